/* SPDX-License-Identifier: Apache-2.0
 *
 * Uses that nobody declared. WEIR_CHECK_USES=1 in the environment when the process's first pool opens: each free is
 * preceded by a look at who uses the block. See watch.c.
 */
#ifndef WR_WATCH_H
#define WR_WATCH_H

#include "pool.h"

/* Off: one read, of a line that nobody writes. */
extern _Atomic bool wr_watch_on;

static inline bool wr_watch_is_on(void)
{
    return WR_UNLIKELY(atomic_load_explicit(&wr_watch_on, memory_order_relaxed));
}

void wr_watch_open(struct wr_device *d); /* looks at the environment, once */

/* Before a free. */
void wr_watch_free(weir_pool *p, weir_dptr block, weir_stream s);

#endif
