#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds a Release, and runs the main job: bench/overlap, on the GPU where there is one, else on
# the simulated device. It says which.
#
#   bash bench/run.sh [OPTIONS OF overlap]   for example --file F, or --device sim --profile gtx1080-pcie3x2
#   bash bench/run.sh --all [OPTIONS]        every bench; appends what they measured to bench/results/<bench>.jsonl.
#                                            $WEIR_TRACES names a folder of traces for replay; bench/peers.sh fetches BFC
#   bash bench/run.sh --check                each target of bench/targets.tsv beside its latest value and peers
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/setup.sh

benches=(overlap block alloc grow knee shutdown transfer staging queue)
python3 -c 'import jax' 2> /dev/null && [ -e /dev/nvidia0 ] && benches+=(jax)
[ -z "${WEIR_TRACES:-}" ] || benches+=(replay) # a folder of allocation traces

if [ "${1:-}" = --check ]; then
    exec python3 bench/check.py
fi

need_packages "${build_packages[@]}"
mkdir -p build
configure_and_build release -DCMAKE_BUILD_TYPE=Release -DWEIR_BUILD_TESTS=OFF -DWEIR_WERROR=OFF

if [ "${1:-}" = --all ]; then
    shift
    for bench in "${benches[@]}"; do
        printf '\n## %s\n\n' "$bench"
        case $bench in
            # with the peers that Python packages bring
            alloc | replay) run=(python3 bench/peers.py "$bench") ;;
            queue | transfer) run=(python3 bench/queue_peers.py "$bench") ;;
            jax) run=(bash bench/jax/run.sh) ;;
            *) run=("build/release/bench/$bench") ;;
        esac
        "${run[@]}" --results "bench/results/$bench.jsonl" "$@"
    done
else
    exec build/release/bench/overlap "$@"
fi
