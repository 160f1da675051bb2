#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds, and runs every test: with gcc and clang, under ASan+UBSan, under TSan, and as Release;
# then the fuzzers, half a minute each.
# GPU tests are skipped where there is no GPU.
#
#   bash tests/run.sh              everything
#   bash tests/run.sh gcc tsan     these builds only: gcc clang asan tsan release fuzz
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tests/setup.sh

declare -A options=(
    [gcc]="-DCMAKE_C_COMPILER=gcc"
    [clang]="-DCMAKE_C_COMPILER=clang"
    [asan]="-DCMAKE_C_COMPILER=clang -DWEIR_SANITIZE=address,undefined"
    [tsan]="-DCMAKE_C_COMPILER=clang -DWEIR_SANITIZE=thread"
    [release]="-DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Release"
    [fuzz]="-DCMAKE_C_COMPILER=clang -DWEIR_SANITIZE=fuzzer,address,undefined -DWEIR_BUILD_BENCH=OFF"
)
declare -A targets=([fuzz]=fuzzers) labels=([fuzz]="-L fuzz") # of a build that is not for all tests
builds=("$@")
[ $# -gt 0 ] || builds=(gcc clang asan tsan release fuzz)

# protect_shadow_gap: the CUDA driver maps where ASan would not have it.
export ASAN_OPTIONS=protect_shadow_gap=0:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
# Tests of the exit leave threads behind, and time how long it takes.
export TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0:atexit_sleep_ms=0

# "PASSED FAILED SKIPPED" of a ctest report.
count_results() {
    python3 -c 'import sys, xml.etree.ElementTree as xml
suite = xml.parse(sys.argv[1]).getroot()
total, failed, skipped = (int(suite.get(k)) for k in ("tests", "failures", "skipped"))
print(total - failed - skipped, failed, skipped)' "$1"
}

passed=0 failed=0 skipped=0 summary=()

run_build() {
    local name=$1 started=$SECONDS counts="0 1 0" p f s launcher=()
    # TSan can't lay out its memory where the kernel spreads addresses over more bits than it knows.
    [ "$name" = tsan ] && setarch -R true 2> /dev/null && launcher=(setarch -R)
    echo "== $name"
    # shellcheck disable=SC2086 # options are words
    if target=${targets[$name]:-all} configure_and_build "$name" -DWEIR_WERROR=ON -DWEIR_BUILD_TESTS=ON ${options[$name]}; then
        "${launcher[@]}" ctest --test-dir "build/$name" ${labels[$name]:-} -j "$(nproc)" --output-on-failure \
            --output-junit "$PWD/build/$name/results.xml"
        counts=$(count_results "build/$name/results.xml")
    fi
    read -r p f s <<< "$counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-8s %3d passed, %d failed, %d skipped   (%d s)' "$name" "$p" "$f" "$s" $((SECONDS - started)))")
}

need_packages "${build_packages[@]}" "${test_packages[@]}" || exit 1
mkdir -p build
for build in "${builds[@]}"; do
    [ -n "${options[$build]:-}" ] || { echo "no such build: $build" >&2 && exit 2; }
    run_build "$build"
done

echo
printf '%s\n' "${summary[@]}"
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
