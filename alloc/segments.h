/* SPDX-License-Identifier: Apache-2.0
 *
 * For pages.c alone: how segments are made, moved and unmade. See segments.c.
 */
#ifndef WR_SEGMENTS_H
#define WR_SEGMENTS_H

#include "pages.h"

/* Addresses side by side, and the segments that are on their way to them, each busy. */
struct wr_window {
    uint32_t first, n_pages;
};

/* LOCK: held. Nobody uses it, and no thread is at it. */
static inline bool wr_segments_is_idle(const struct wr_segment *g)
{
    return g->n_pages > 0 && g->granted_pages == 0 && !g->busy && g->holds == 0;
}

/* LOCK: held. Marks idle, usable segments to be moved: of `n` pages or more in all, where there are as many.
 * Returns their pages. The next begin, under the same lock, takes them. */
uint32_t wr_segments_choose(struct wr_pages *p, uint32_t n);
void wr_segments_unchoose(struct wr_pages *p); /* or none is taken */

/* LOCK: held. The `moved` pages just chosen and `fresh` new ones, which are within the limit and reserved from
 * now on, are to be at the free addresses from w->first on. NOT_YET (no room), NO_HOST_MEMORY: nothing changed,
 * and none is chosen any more. */
weir_status wr_segments_begin(struct wr_pages *p, uint32_t moved, uint32_t fresh, struct wr_window *w);

/* Makes the new ones and moves the others: all of the window is idle now. An error has unmade the new ones and
 * moved the others home. LOCK: taken, and held on return. */
weir_status wr_segments_finish(struct wr_pages *p, const struct wr_window *w);

/* Steps down, as far as the driver lets. `g` is a copy of a busy entry. */
void wr_segments_unmake(struct wr_pages *p, struct wr_segment *g);

/* Gives the n-th device of the list access to every usable segment. */
weir_status wr_segments_share(struct wr_pages *p, uint32_t n);

/* LOCK: held. The busy entry becomes what the copy says: idle pages, gone, or left for the next trim. */
void wr_segments_settle(struct wr_pages *p, uint32_t index, struct wr_segment g);

#endif
