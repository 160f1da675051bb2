#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Graphs on a GPU: what a launch makes of events, the rest of the seam beside it, and a step that reads the next item of a
# queue at each launch. A minute; nothing runs longer than 100 s, should the GPU wait for ever.
#
#   bash tests/gpu_seat.sh [BUILD]     build/release unless given; the tests must be built there
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
failed=0

run() {
    printf '\n== %s\n' "$*"
    timeout -k 5 100 "$build/tests/$1" "${@:2}"
    local code=$?
    [ $code = 0 ] && return
    echo "FAILED: exit code $code"
    failed=1
}

run conformance_graph cuda
run conformance_device cuda
run conformance_work cuda
run gpu_seat cuda 1000
printf '\n%s\n' "$([ $failed = 0 ] && echo "all as expected" || echo "SOMETHING FAILED")"
exit $failed
