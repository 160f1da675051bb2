#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every C file is as clang-format 14 writes it, and every file of ours names its licence.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
mapfile -t c_files < <(find alloc queue interpose tests bench -name '*.[ch]' | sort)
printf '%s\0' "${c_files[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format-14 --dry-run --Werror || status=1

mapfile -t all_files < <(find CMakeLists.txt alloc queue interpose tests bench .ci -name '*.[ch]' -o -name '*.sh' -o -name '*.py' \
    -o -name '*.in' -o -name '*.map' -o -name CMakeLists.txt -o -path .ci/run)
unlicensed=$(grep -L 'SPDX-License-Identifier: Apache-2.0' "${all_files[@]}" || true)
if [ -n "$unlicensed" ]; then
    echo "no SPDX line in: $unlicensed" >&2
    status=1
fi
[ $status = 0 ] && echo "${#c_files[@]} C files are formatted, ${#all_files[@]} files name their licence"
exit $status
