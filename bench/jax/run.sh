#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of JAX, where it and a GPU are: of the libraries in $WEIR_LIBRARY_PATH, or build/release (bench/run.sh).
#
#   bash bench/jax/run.sh [--results FILE]     77: no JAX, or no GPU. Options of the other benches are none of these
set -euo pipefail
cd "$(dirname "$0")/../.."
export WEIR_LIBRARY_PATH=${WEIR_LIBRARY_PATH:-$PWD/build/release}
export WEIR_PJRT=${WEIR_PJRT:-$WEIR_LIBRARY_PATH/libweir_pjrt.so}

results=()
[ "${1:-}" != --results ] || results=("$1" "$2")
status=0
for program in tests/gpu_jax bench/jax/actor_learner bench/jax/train; do
    printf '\n### %s\n\n' "$program"
    python3 "$program.py" "${results[@]}" || status=$?
done
exit $status
