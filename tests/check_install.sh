#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build into an empty folder, moves it elsewhere, and builds a user's program against it: by CMake package and
# by pkg-config, shared and static.
#
#   bash tests/check_install.sh BUILD_DIR
set -euo pipefail

build=$(cd "$1" && pwd)
tests=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" > /dev/null
mv "$work/first" "$work/moved" # an installed tree is relocatable

cmake -S "$tests/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" > /dev/null
cmake --build "$work/build" > /dev/null
"$work/build/consumer_shared"

lib=$(dirname "$(find "$work/moved" -name weir.pc -printf '%h')")
export PKG_CONFIG_PATH=$lib/pkgconfig
cflags=$(pkg-config --cflags weir)
libs=$(pkg-config --libs weir)
static_libs=$(pkg-config --libs --static weir | sed 's/-lweir /-l:libweir.a /')
# shellcheck disable=SC2086 # flags are words
cc "$tests/consumer/consumer.c" -o "$work/by_pkg_config" $cflags $libs
LD_LIBRARY_PATH=$lib "$work/by_pkg_config"
# shellcheck disable=SC2086
cc "$tests/consumer/consumer.c" -o "$work/by_pkg_config_static" $cflags $static_libs
for program in "$work/build/consumer_static" "$work/by_pkg_config_static"; do
    if ldd "$program" | grep libweir; then
        echo "$program still needs the shared library" >&2
        exit 1
    fi
    "$program"
done
