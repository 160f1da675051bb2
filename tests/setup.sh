# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by tests/run.sh and bench/run.sh: what a fresh Debian 12 or Ubuntu 24.04 machine lacks, and how builds are made.

build_packages=(cmake ninja-build gcc libc6-dev make bzip2 binutils python3 python3-pip ca-certificates)
test_packages=(clang libclang-rt-dev clang-format-14 libcmocka-dev pkg-config util-linux)

# Installs the packages that are missing, and says which. Where there is no apt, the build says what it misses.
need_packages() {
    command -v dpkg-query > /dev/null || return 0
    local package missing=() as_root=()
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2> /dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    echo "installing: ${missing[*]}"
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo)
        command -v sudo > /dev/null || { echo "not root, and no sudo: install these first" >&2 && return 1; }
    fi
    "${as_root[@]}" apt-get -q update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}"
}

# configure_and_build NAME [CMAKE OPTIONS]: into build/NAME; $target, else all
configure_and_build() {
    local folder=build/$1 launcher=()
    shift
    command -v ccache > /dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    echo "building $folder (log: $folder.log)"
    cmake -S . -B "$folder" -G Ninja "${launcher[@]}" "$@" > "$folder.log" 2>&1 &&
        cmake --build "$folder" --target "${target:-all}" >> "$folder.log" 2>&1 || { tail -n 60 "$folder.log" >&2 && return 1; }
}
