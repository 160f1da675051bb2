#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figures of JAX, where it and a GPU are: of the libraries in $WEIR_LIBRARY_PATH, or build/release (bench/run.sh).
#
#   bash bench/jax/run.sh [--results FILE]     77: no JAX, or no GPU
set -euo pipefail
cd "$(dirname "$0")/../.."
export WEIR_LIBRARY_PATH=${WEIR_LIBRARY_PATH:-$PWD/build/release}

status=0
for program in actor_learner train; do
    printf '\n### %s\n\n' "$program"
    python3 "bench/jax/$program.py" "$@" || status=$?
done
exit $status
