#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches and builds the peer that benches find at run time: tsl::BFCAllocator out of the TensorFlow CPU wheel, behind a
# small shim (bfc.cc). Kept in ~/.cache/weir/peers (260 MB while it downloads, 80 MB after); prints the library. Needs pip,
# unzip and a C++17 compiler.
#
#   bash bench/peers.sh && build/release/bench/alloc
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=2.21.0
peers=${WEIR_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/weir/peers}
library=$peers/libweir_bfc.so
framework=libtensorflow_framework.so.2

fetch() {
    local work
    work=$(mktemp -d "$peers/fetch.XXXXXX")
    trap 'rm -rf "$work"' RETURN
    echo "peers: fetching the TensorFlow $version CPU wheel" >&2
    # A Python that the wheel is made for need not run here: nothing of it is run.
    python3 -m pip download -q --no-deps --only-binary :all: --python-version 3.11 --platform manylinux_2_27_x86_64 \
        -d "$work" "tensorflow-cpu==$version" >&2
    unzip -q "$work"/*.whl "tensorflow/$framework" 'tensorflow/include/*' -d "$work"
    rm -rf "$peers/include"
    mv "$work/tensorflow/include" "$peers/include"
    mv "$work/tensorflow/$framework" "$peers/$framework"
}

mkdir -p "$peers"
[ -e "$peers/$framework" ] || fetch
if [ ! -e "$library" ] || [ "$here/bfc.cc" -nt "$library" ]; then
    # The wheel's headers warn; they are not ours.
    "${CXX:-c++}" -std=c++17 -O2 -DNDEBUG -w -fPIC -shared -isystem "$peers/include" "$here/bfc.cc" -o "$library.new" \
        -L"$peers" "-l:$framework" '-Wl,-rpath,$ORIGIN' >&2
    mv "$library.new" "$library"
fi
echo "$library"
