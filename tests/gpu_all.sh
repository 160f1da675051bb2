#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# All that needs a GPU, for whoever has one for a few minutes: tests and benches, what matters most first, each with a time
# limit of its own, and all of them within SECONDS (1500). What is not there is skipped.
#
#   bash tests/gpu_all.sh BUILD OUT [SECONDS [PART...]]
#
# PART: core (the allocator), queue (queue, engine, ring, graphs), jax, frameworks (PyTorch, CuPy and the others), each with
# its benches; bench (all benches); suites (JAX's, PyTorch's and CuPy's own tests, in the folders $JAX_TESTS, $TORCH_TESTS and
# $CUPY_TESTS); or a program's name. Without one: all. BUILD and OUT are seen from the repository's root;
# BUILD is to have tests and benches:
#   cmake -S . -B build/release -DCMAKE_BUILD_TYPE=Release && cmake --build build/release
#
# Prints a line for each program: its name, ok, failed, skipped or timed out, and seconds. OUT/log.txt has what they said, and
# OUT/results.jsonl what they measured; both are appended to. Exit code 1: something failed or timed out; 77: nothing ran.
cd "$(dirname "$0")/.." || exit 1
if [ $# -lt 2 ] || [[ ! ${3:-0} =~ ^[0-9]+$ ]]; then
    echo "bash tests/gpu_all.sh BUILD OUT [SECONDS [PART...]]" >&2
    exit 2
fi
build=$(realpath -m "$1") out=$(realpath -m "$2") budget=${3:-1500}
shift $(($# < 3 ? $# : 3))
parts=" $* "
mkdir -p "$out" || exit 1
log=$out/log.txt results=(--results "$out/results.jsonl")
export WEIR_LIBRARY_PATH=$build WEIR_PJRT=$build/libweir_pjrt.so WEIR_BENCH=$build/bench PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD/interpose/python${PYTHONPATH:+:$PYTHONPATH}
declare -A count=() known=()

# say NAME OUTCOME SECONDS [REASON]
say() {
    printf '%-26s %-10s %4d s%s\n' "$1" "$2" "$3" "${4:+   (${4:0:60})}" | tee -a "$log"
    count[$2]=$((${count[$2]:-0} + 1))
}

# is_wanted PARTS NAME
is_wanted() {
    local word wanted=1
    for word in $1 "$2"; do
        known[$word]=1
        [[ $parts = "  " || $parts == *" $word "* ]] && wanted=0
    done
    return $wanted
}

# run PARTS NAME LIMIT FILE COMMAND...: without FILE it is skipped
run() {
    local name=$2 limit=$3 file=$4 began=$SECONDS left=$((budget - SECONDS)) code took
    is_wanted "$1" "$name" || return 0
    shift 4
    [ -e "$file" ] || { say "$name" skipped 0 "no $file" && return; }
    [ $left -gt 0 ] || { say "$name" skipped 0 "no time left" && return; }
    limit=$((limit < left ? limit : left))
    printf '\n== %s: %s\n\n' "$name" "$*" >> "$log"
    timeout -k 5 $limit "$@" < /dev/null >> "$log" 2>&1
    code=$? took=$((SECONDS - began))
    if [ $code = 0 ]; then
        say "$name" ok $took
    elif [ $code = 77 ]; then
        say "$name" skipped $took "$(tail -n 1 "$log")"
    elif [ $code = 124 ] || { [ $code = 137 ] && [ $took -ge $limit ]; }; then
        say "$name" "timed out" $took
    else
        say "$name" failed $took "exit code $code"
    fi
}

# program PARTS NAME LIMIT [FILE ARGUMENT...]
program() {
    run "$1" "$2" "$3" "$build/tests/${4:-$2}" "$build/tests/${4:-$2}" "${@:5}"
}

# script PARTS NAME LIMIT [ARGUMENT...]
script() {
    run "$1" "$2" "$3" "tests/$2.py" python3 "tests/$2.py" "${@:4}"
}

# bench PARTS NAME LIMIT FILE COMMAND...: without a GPU it would fail, or measure something else
bench() {
    local file=$4
    [ -e /dev/nvidia0 ] || file=/dev/nvidia0
    run "$1 bench" "$2" "$3" "$file" "${@:5}" "${results[@]}"
}

# A file of the Python package, or what says that there is none.
package() {
    python3 -c 'import importlib.util, sys
found = importlib.util.find_spec(sys.argv[1])
print(found.origin if found else "Python package " + sys.argv[1])' "$1"
}

program core conformance_device_cuda 60 conformance_device cuda
program core conformance_work_cuda 60 conformance_work cuda
program core gpu_pool 60
program core gpu_canaries 60
program core gpu_memory 60
program core gpu_graphs 60
program core share_processes_cuda 60 share_processes cuda
program queue gpu_queue 60
program queue gpu_copy 60
program queue gpu_hands 60
program queue gpu_traffic 60
program queue gpu_ring 60
program queue conformance_graph_cuda 60 conformance_graph cuda
program queue gpu_seat 60
script jax gpu_jax 300 "${results[@]}"
script frameworks gpu_adapters 400
script "frameworks queue jax" gpu_python 300
script jax gpu_jax_distributed 230
script frameworks gpu_nccl 190
bench "core queue" overlap 120 "$build/bench/overlap" "$build/bench/overlap" --device cuda
bench queue transfer 200 "$build/bench/transfer" python3 bench/queue_peers.py transfer
bench queue queue_beside_peers 120 "$build/bench/queue" python3 bench/queue_peers.py queue
bench jax actor_learner 400 "$build/libweir_pjrt.so" python3 bench/jax/actor_learner.py
bench jax jax_train 400 "$build/libweir_pjrt.so" python3 bench/jax/train.py
bench frameworks torch_train 600 "$(package torch)" python3 bench/pytorch/train.py
bench core alloc 200 "$build/bench/alloc" python3 bench/peers.py alloc
bench core block 60 "$build/bench/block" "$build/bench/block" --device cuda
bench core grow 60 "$build/bench/grow" "$build/bench/grow" --device cuda
bench queue staging 120 "$build/bench/staging" "$build/bench/staging" --device cuda
bench queue diagnose 60 "$build/bench/diagnose" "$build/bench/diagnose" --device cuda
run "jax suites" gpu_jax_suites 560 "${JAX_TESTS:-\$JAX_TESTS}" bash tests/gpu_jax_suites.sh "${results[@]}"
run "frameworks suites" torch_suites 1000 "${TORCH_TESTS:-\$TORCH_TESTS}" \
    python3 tests/peer_suites.py --torch "${TORCH_TESTS:-}" "${results[@]}"
run "frameworks suites" cupy_suites 1000 "${CUPY_TESTS:-\$CUPY_TESTS}" \
    python3 tests/peer_suites.py --cupy "${CUPY_TESTS:-}" "${results[@]}"

for part in $parts; do
    [ -n "${known[$part]:-}" ] || { echo "no part, and no program, is called $part" >&2 && count[failed]=1; }
done
ran=$((${count[ok]:-0} + ${count[failed]:-0} + ${count["timed out"]:-0}))
printf '%d ok, %d failed, %d timed out, %d skipped   (%d s)\n' "${count[ok]:-0}" "${count[failed]:-0}" \
    "${count["timed out"]:-0}" "${count[skipped]:-0}" $SECONDS | tee -a "$log"
[ $ran -gt 0 ] || exit 77
[ "${count[ok]:-0}" = $ran ]
