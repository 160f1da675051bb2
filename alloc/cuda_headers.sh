#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints a folder that holds cuda.h of CUDA 12.5 or later. Run by CMake. weir needs the header to build, and nothing
# else of a CUDA installation but the headers of NVTX, if they are there. Where the machine has none, they come from
# NVIDIA's packages on PyPI, kept in ~/.cache/weir.
set -euo pipefail

least=12050
version=13.0.96
packages=("nvidia-cuda-runtime==$version" nvidia-nvtx==13.0.85)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir

is_new_enough() {
    local found
    found=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1/cuda.h" 2> /dev/null) && [ "${found:-0}" -ge $least ]
}

for folder in ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include /usr/local/cuda-*/include \
    /usr/lib/cuda/include /usr/local/include /usr/include "$cache/cuda-nvtx-$version/include"; do
    if is_new_enough "$folder"; then
        echo "$folder"
        exit 0
    fi
done

echo "no cuda.h of CUDA 12.5 or later here: downloading ${packages[*]} from PyPI, once" >&2
mkdir -p "$cache"
work=$(mktemp -d "$cache/cuda.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 -m pip -q download --no-deps --only-binary :all: -d "$work" "${packages[@]}" >&2 || {
    echo "cuda_headers.sh: failed. Install CUDA's headers and give their folder: cmake -DWEIR_CUDA_INCLUDE=..." >&2
    exit 1
}
for wheel in "$work"/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/wheel"
done
mkdir "$work/cuda"
mv "$work"/wheel/nvidia/*/include "$work/cuda/include"
mv -T "$work/cuda" "$cache/cuda-nvtx-$version" 2> /dev/null || true # another build may have been first
is_new_enough "$cache/cuda-nvtx-$version/include"
echo "$cache/cuda-nvtx-$version/include"
