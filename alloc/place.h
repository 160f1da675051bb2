/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a heap is to get its next pages. See place.c.
 */
#ifndef WR_PLACE_H
#define WR_PLACE_H

#include "pages.h"
#include "stream.h"

/* The pages that, together with what is free in the heap at their sides, hold `units`: as few as possible of
 * them not idle. Only idle ones, or also such as are yet to be mapped there. First WR_ANYWHERE, n 0: at no
 * place that touches what is free in the heap. LOCK: h->lock. */
struct wr_run wr_place_choose(
    struct wr_pages *p, const struct wr_heap *h, enum wr_kind kind, uint32_t units, bool idle_only);

#endif
