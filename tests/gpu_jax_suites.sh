#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# JAX's own tests with the hook and without: which of them end differently. Exits 1 where any does, 77 without a GPU.
#
#   JAX_TESTS=FOLDER WEIR_LIBRARY_PATH=BUILD bash tests/gpu_jax_suites.sh [--results FILE]
#
# FOLDER holds, of JAX's sources in the version that is installed, tests/array_test.py, array_interoperability_test.py,
# memories_test.py, api_test.py and pjit_test.py; another machine gets them by
#   git clone --depth 1 --branch jax-v0.11.2 https://github.com/jax-ml/jax && cp jax/tests/*_test.py FOLDER
# They need the Python package absl-py, and are run by it, not by pytest. No folder is left but $JAX_SUITES_OUT, where it
# is given: the log of each process, and plain.txt and hooked.txt, a line a test.
#
# Each pass takes some two minutes with 14 processes at once ($JAX_SUITES_SECONDS is the most: 250).
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD

suites=(array_test:2 array_interoperability_test:2 memories_test:2 api_test:4 pjit_test:4) # name:processes
seconds=${JAX_SUITES_SECONDS:-250}

skip() {
    echo "gpu_jax_suites: $1: skipped"
    exit 77
}
[ -n "${JAX_TESTS:-}" ] || skip "JAX_TESTS names no folder of JAX's tests"
[ "${JAX_PLATFORMS:-}" = cpu ] || [ -e /dev/nvidia0 ] || skip "no GPU"
for suite in "${suites[@]}"; do
    [ -f "$JAX_TESTS/${suite%:*}.py" ] || skip "no ${suite%:*}.py in $JAX_TESTS"
done

out=${JAX_SUITES_OUT:-$(mktemp -d)}
[ -n "${JAX_SUITES_OUT:-}" ] || trap 'rm -rf "$out"' EXIT
mkdir -p "$out/entry/weir.dist-info"
# What an installed package tells JAX: that WEIR_JAX is to be asked.
printf 'Metadata-Version: 2.1\nName: weir\nVersion: 0\n' > "$out/entry/weir.dist-info/METADATA"
printf '[jax_plugins]\nweir = weir._jax_plugin\n' > "$out/entry/weir.dist-info/entry_points.txt"
export PYTHONPATH="$out/entry:$here/interpose/python${PYTHONPATH:+:$PYTHONPATH}"
export WEIR_LIBRARY_PATH=${WEIR_LIBRARY_PATH:-$here/build/release}
# Many processes share the GPU: each gets little, XLA's part and weir's.
export XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_PYTHON_CLIENT_MEM_FRACTION=.05 WEIR_JAX_LIMIT=2G

# run_shard PASS SUITE INDEX TOTAL: what is left of a test that ended its process is "[ RUN ]" without an end
run_shard() {
    TEST_SHARD_INDEX=$3 TEST_TOTAL_SHARDS=$4 timeout -k 5 "$seconds" \
        python3 "$JAX_TESTS/$2.py" > "$out/$1.$2.$3.log" 2>&1 || [ $? -lt 124 ] ||
        echo "$1: $2, part $3 of $4: ended by a signal, or not over after $seconds s"
}

# results_of FILE SUITE: "suite.Class.test RESULT", the last one of each test
results_of() {
    sed -nE 's/^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([A-Za-z_0-9.]+).*/\2 \1/p' "$1" |
        awk -v suite="$2" '{ result[$1] = $2 }
            END { for (t in result) print suite "." t, result[t] == "RUN" ? "UNFINISHED" : result[t] }'
}

# run_pass PASS
run_pass() {
    local suite index
    for suite in "${suites[@]}"; do
        for ((index = 0; index < ${suite#*:}; index++)); do
            run_shard "$1" "${suite%:*}" "$index" "${suite#*:}" &
        done
    done
    wait
    for suite in "${suites[@]}"; do
        for log in "$out/$1.${suite%:*}".*.log; do
            results_of "$log" "${suite%:*}"
        done
    done | LC_ALL=C sort > "$out/$1.txt"
    echo "$1: $(cut -d' ' -f2 "$out/$1.txt" | sort | uniq -c | xargs)"
}

check_hook() {
    WEIR_JAX=1 timeout 100 python3 - << 'EOF'
import jax, numpy, weir.jax
jax.block_until_ready(jax.device_put(numpy.ones(1 << 20)))
status = weir.jax.status()
assert status["installed"] and status["served"]["from_host"]["count"] > 0, status
EOF
}

[ "${JAX_PLATFORMS:-}" = cpu ] || check_hook # on the CPU platform there is none: the script alone is tried
began=$SECONDS
run_pass plain
WEIR_JAX=1 run_pass hooked
[ -s "$out/plain.txt" ] || { echo "no test ran: see the logs" && tail -n 5 "$out"/plain.*.log && exit 1; }

LC_ALL=C join -a1 -a2 -e absent -o 0,1.2,2.2 "$out/plain.txt" "$out/hooked.txt" | awk '$2 != $3' > "$out/diff.txt"
n=$(wc -l < "$out/diff.txt")
echo "jax.own_tests_diff $n ($((SECONDS - began)) s)"
awk '{ print "  " $1 ": plain " $2 ", hooked " $3 }' "$out/diff.txt"
if [ "${1:-}" = --results ]; then
    device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) || device=unknown
    PYTHONPATH=bench/jax python3 -c 'import sys, common
common.Results(sys.argv[1], "tests/gpu_jax_suites.sh", sys.argv[2]).add("jax.own_tests_diff", "weir", int(sys.argv[3]))' \
        "$2" "$device" "$n"
fi
[ "$n" = 0 ]
