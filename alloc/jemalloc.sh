#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds weir's private jemalloc and prints the folder that holds include/ and lib/. Run by CMake.
#
#   bash alloc/jemalloc.sh              from the distribution's source package
#   bash alloc/jemalloc.sh FOLDER       from a source tree (with `configure`), or an installed build, given by the user
#
# Every public symbol is prefixed with wr_je_, every other one with wr_je_internal_, so that the archive can live in
# a process beside another jemalloc and replaces nobody's malloc. The build is kept in ~/.cache/weir, by recipe.
# Needs no root and changes nothing of the system: the package lists are a private copy.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir
flags=(
    --with-jemalloc-prefix=wr_je_ --with-private-namespace=wr_je_internal_
    --disable-initial-exec-tls # or dlopen fails: the static TLS block of a running process is nearly full
    --disable-cxx --disable-libdl --disable-stats --disable-fill --disable-doc --disable-shared
    --disable-cache-oblivious # large blocks start at their page, and need no page more than they ask for
    --with-lg-vaddr=48
    --with-malloc-conf=background_thread:false,narenas:1,tcache:false,retain:true
)

fail() { echo "jemalloc.sh: $*" >&2 && exit 1; }

is_installed() { [ -f "$1/lib/libjemalloc_pic.a" ] && [ -f "$1/include/jemalloc/jemalloc.h" ]; }

# The machine's own package sources, binary entries turned into source entries.
write_source_list() {
    local file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] && sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file"
    done > "$1/weir.list"
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] && sed 's/^Types:.*/Types: deb-src/' "$file" > "$1/${file##*/}"
    done
    return 0
}

# Downloads the source package into $1; apt checks its signature and checksums.
download() {
    command -v apt-get > /dev/null || fail "no apt-get here: give a jemalloc source tree, cmake -DWEIR_JEMALLOC_DIR=..."
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/parts"
    write_source_list "$1/parts"
    local apt=(apt-get -q -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache" -o Dir::Etc::SourceList=/dev/null
        -o "Dir::Etc::SourceParts=$1/parts" -o APT::Sandbox::User= -o Acquire::Retries=3)
    "${apt[@]}" update || true # a third-party entry without sources is no reason to stop
    (cd "$1" && "${apt[@]}" source --download-only jemalloc) ||
        fail "the package lists offer no source of jemalloc: give a source tree, cmake -DWEIR_JEMALLOC_DIR=..."
}

# On the way out: the log's end where the build failed, and no trace of the work.
finish() {
    local status=$?
    [ $status = 0 ] || { tail -n 20 "$log" && echo "jemalloc.sh: the build failed, see $log"; } >&2
    rm -rf "$work"
}

unpack() { # source tree or "", work folder
    if [ -n "$1" ]; then
        cp -R "$1" "$2/source"
    else
        download "$2"
        mkdir "$2/source"
        tar -xf "$2"/jemalloc_*.orig.tar.* --strip-components=1 -C "$2/source"
    fi
}

build() { # source tree or "", prefix
    log=$cache/jemalloc.log
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap finish EXIT
    echo "building jemalloc from ${1:-the source package of the distribution}, once (under a minute)" >&2
    unpack "$1" "$work" > "$log" 2>&1
    (
        cd "$work/source"
        [ -x configure ] || autoconf
        # The archive serves every build of weir, so its compiler and flags are its own.
        env -u CFLAGS -u LDFLAGS CC=cc ./configure "${flags[@]}"
        make clean
        make -j "$(nproc)" lib/libjemalloc_pic.a
    ) >> "$log" 2>&1
    mkdir -p "$work/prefix/lib" "$work/prefix/include/jemalloc"
    strip --strip-debug -o "$work/prefix/lib/libjemalloc_pic.a" "$work/source/lib/libjemalloc_pic.a"
    cp "$work/source/include/jemalloc/jemalloc.h" "$work/prefix/include/jemalloc/"
    cp "$work/source/COPYING" "$work/prefix/"
    mv -T "$work/prefix" "$2"
}

given=${1:-}
[ -z "$given" ] || given=$(cd "$given" && pwd) || fail "no such folder: $1"
if [ -n "$given" ] && is_installed "$given"; then
    grep -q wr_je_mallocx "$given/include/jemalloc/jemalloc.h" ||
        fail "$given was built without --with-jemalloc-prefix=wr_je_: give its source tree instead"
    echo "$given"
    exit 0
fi
[ -z "$given" ] || [ -e "$given/configure.ac" ] || fail "$given is neither a jemalloc source tree nor an installed build"

mkdir -p "$cache"
recipe=$( (cat "$0"; uname -m; [ -z "$given" ] || cat <(echo "$given") "$given/configure.ac") | sha256sum)
prefix=$cache/jemalloc-${recipe:0:12}
exec 9> "$cache/lock" # one build at a time; the others find it done
flock 9
is_installed "$prefix" || build "$given" "$prefix"
echo "$prefix"
