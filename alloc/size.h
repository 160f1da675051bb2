/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes. The smallest unit of device memory is 512 bytes, as in every caching allocator that frameworks are
 * used to; pages are the driver's 2 MiB. Small blocks live in pages of their own, so that they never pin large
 * ones. Small is below 256 KiB: replayed traces need 1 to 8 % less than with a border at 1 or 2 MiB, as blocks of
 * that size pack badly among themselves, and fill what larger ones leave of their last pages.
 */
#ifndef WR_SIZE_H
#define WR_SIZE_H

#include "base.h"

enum {
    WR_UNIT_LOG2 = 9,
    WR_PAGE_LOG2 = 21,
    WR_UNITS_PER_PAGE_LOG2 = WR_PAGE_LOG2 - WR_UNIT_LOG2,
    WR_UNITS_PER_PAGE = 1 << WR_UNITS_PER_PAGE_LOG2,
    WR_LARGE_UNITS = (256 << 10) >> WR_UNIT_LOG2 /* from here on a block is large */
};

#define WR_UNIT_BYTES ((uint64_t)1 << WR_UNIT_LOG2)
#define WR_PAGE_BYTES ((uint64_t)1 << WR_PAGE_LOG2)

enum wr_kind { WR_SMALL, WR_LARGE, WR_KINDS };

/* Units that hold `bytes`; 0 where `bytes` is 0 or above `limit`. The check comes before the rounding, which
 * would wrap near SIZE_MAX (A01). limit <= 2^40. */
static inline uint32_t wr_size_units(size_t bytes, uint64_t limit)
{
    if (WR_UNLIKELY(bytes == 0 || bytes > limit)) return 0;
    return (uint32_t)((bytes + WR_UNIT_BYTES - 1) >> WR_UNIT_LOG2);
}

static inline enum wr_kind wr_size_kind(uint32_t units)
{
    return units < WR_LARGE_UNITS ? WR_SMALL : WR_LARGE;
}

static inline uint64_t wr_size_bytes(uint32_t units)
{
    return (uint64_t)units << WR_UNIT_LOG2;
}
static inline uint32_t wr_size_units_of_pages(uint32_t pages)
{
    return pages << WR_UNITS_PER_PAGE_LOG2;
}
static inline uint32_t wr_size_pages(uint32_t units)
{
    return (units + WR_UNITS_PER_PAGE - 1) >> WR_UNITS_PER_PAGE_LOG2;
}

/* Bins: sizes below 32 units have one each; above, each power of two is cut in 32. A bin's name is the
 * greatest bin start <= units, so that a block filed there can be smaller than a request of the same bin: see
 * range.c. */
enum { WR_BINS_PER_ROW = 32, WR_BIN_ROWS = 28, WR_BINS = WR_BIN_ROWS * WR_BINS_PER_ROW };

static inline uint32_t wr_size_bin(uint32_t units)
{
    uint32_t shift = 31u - (uint32_t)__builtin_clz(units | WR_BINS_PER_ROW) - 5; /* 2^5 is WR_BINS_PER_ROW */
    return shift * WR_BINS_PER_ROW + (units >> shift);
}

#endif
