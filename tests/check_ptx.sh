#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The PTX that the library carries assembles. Exits 77 where there is no ptxas.
#
#   bash tests/check_ptx.sh PRINT_PTX
set -euo pipefail

ptxas=$(command -v ptxas || ls /usr/local/cuda*/bin/ptxas 2> /dev/null | head -n 1 || true)
[ -n "$ptxas" ] || { echo "no ptxas here" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$1" > "$work/kernels.ptx"
grep -q '^\.target sm_70' "$work/kernels.ptx" # the oldest that weir is for
for target in sm_75 sm_80 sm_90; do
    "$ptxas" -arch=$target -o "$work/kernels.cubin" "$work/kernels.ptx"
    echo "assembled for $target"
done
