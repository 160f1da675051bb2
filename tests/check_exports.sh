#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A shared library exports the functions that its public headers declare, and nothing else; it needs no CUDA library.
#
#   bash tests/check_exports.sh LIBRARY HEADER...
set -euo pipefail

library=$1
shift

# Symbols of type A are the version's own name.
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
declared=$(cat "$@" | tr '\n' ' ' |
    grep -oE 'WEIR_(PJRT_)?API [^;(]*\(' | grep -o 'weir_[a-z_]*($' | tr -d '(' | sort)

if [ -z "$declared" ] || ! diff <(echo "$declared") <(echo "$exported"); then
    echo "the exports (>) of $library are not the declarations (<) of the public headers" >&2
    exit 1
fi
if readelf -d "$library" | grep -E 'NEEDED.*(cuda|nvidia|jemalloc|stdc\+\+)'; then
    echo "$library needs a library that it must find for itself" >&2
    exit 1
fi
echo "$(echo "$exported" | wc -l) exports, all declared"
