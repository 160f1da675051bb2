#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What a queue tells of itself, on a GPU, and the queue beside hand-written CUDA. Two minutes.
#
#   bash tests/gpu_queue.sh [BUILD]     build/release unless given; tests and benches must be built there
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# run NAME EXPECTED_CODE COMMAND...
run() {
    local name=$1 expected=$2 code
    shift 2
    printf '\n== %s\n' "$name"
    timeout -k 5 200 "$@"
    code=$?
    if [ $code != "$expected" ]; then
        echo "FAILED: exit code $code, not $expected"
        failed=1
    fi
}

run "time between events" 0 "$build/tests/conformance_work" cuda
run "pushes and commits behind kernels" 0 "$build/tests/gpu_queue"
run "random traffic with checksums" 0 "$build/tests/gpu_traffic" "${WEIR_TRAFFIC_SECONDS:-15}" cuda
run "a clean machine: nothing is named" 0 "$build/bench/diagnose" --device cuda
run "pageable memory is named" 1 "$build/bench/diagnose" --device cuda --pageable 1
run "the NULL stream is named" 1 "$build/bench/diagnose" --device cuda --null-stream 1
run "small behind large is named" 1 "$build/bench/diagnose" --device cuda --mixed 1
run "one hardware queue is named" 1 env CUDA_DEVICE_MAX_CONNECTIONS=1 "$build/bench/diagnose" --device cuda --streams 6
run "a timeline of the main job" 0 env WEIR_TIMELINE="$work/timeline.json" "$build/bench/overlap" --device cuda --steps 40 --repeats 1
run "is one" 0 python3 tests/check_timeline.py "$work/timeline.json" overlap
run "the queue beside two streams by hand" 0 "$build/bench/queue" --device cuda
printf '\n%s\n' "$([ $failed = 0 ] && echo "all as expected" || echo "SOMETHING FAILED")"
exit $failed
