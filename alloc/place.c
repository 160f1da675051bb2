/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A heap that has no piece of `units` gets pages from the pool. If these lay anywhere, the free units
 * at the end of its last pages would stay too few for the next block as well, and so on with each growth:
 * replayed traces needed 3.6 % more memory than was live at once, the worst 23 %; with what is below, and
 * growth as in ladder.c, it is 0.8 % and 2.4 % (bench/replay). So new pages are put where they make a free piece
 * of the heap large enough, and only what that piece lacks is asked for. One stream that does nothing but grow
 * has a single extent, in which its blocks lie side by side whatever their sizes.
 *
 * A place is a *gap* between pages of heaps: idle pages, then addresses with nothing mapped. Before it the
 * heap has a free piece that ends there, and maybe one behind it, which counts when the gap is filled. So a
 * hole whose whole pages have been moved away is filled again by just these.
 *
 *      heap's block | free | idle pages | unmapped addresses | free | heap's block
 *                    before \------------- gap -------------/ behind
 *
 * Of all places the one that needs the fewest pages which are not idle is the best, and of equals the
 * smallest: the open end of the reservation is kept for what fits nowhere else. The walk is over the pool's
 * gaps, not over the heap's pieces: there are far fewer.
 */
#include "place.h"

/* The pages of the gap's first `room` that are needed; 0: it is no place for these units. */
static uint32_t pages_in_gap(
    const struct wr_heap *h, enum wr_kind kind, uint32_t units, uint32_t first, uint32_t room)
{
    uint64_t before = wr_stream_units_before(h, kind, first);
    if (before == 0 || before >= units) return 0;
    uint32_t pages = wr_size_pages(units - (uint32_t)before);
    if (pages <= room) return pages;
    uint64_t behind = wr_stream_units_behind(h, kind, first + room);
    return before + wr_size_units_of_pages(room) + behind >= units ? room : 0;
}

struct wr_run wr_place_choose(
    struct wr_pages *p, const struct wr_heap *h, enum wr_kind kind, uint32_t units, bool idle_only)
{
    struct wr_run best = {.first = WR_ANYWHERE};
    uint32_t least_missing = UINT32_MAX, least_room = UINT32_MAX;
    struct wr_gap gap = {0};
    wr_lock_take(&p->lock);
    while (wr_pages_next_gap(p, &gap)) {
        uint32_t room = gap.idle + (idle_only ? 0 : gap.unmapped);
        uint32_t n = pages_in_gap(h, kind, units, gap.first, room);
        if (n == 0 || (!idle_only && n <= gap.idle)) continue;
        uint32_t missing = n - (uint32_t)wr_min(n, gap.idle);
        if (missing > least_missing || (missing == least_missing && room >= least_room)) continue;
        best = (struct wr_run){.first = gap.first, .n = n};
        least_missing = missing;
        least_room = room;
    }
    wr_lock_give(&p->lock);
    return best;
}
