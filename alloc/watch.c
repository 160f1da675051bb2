/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A stream that uses a block and is neither declared by weir_touch nor joined, by the time of the free, to the
 * stream given there is an error that shows only when the block goes to somebody else meanwhile (A06). A simulated
 * device knows what each operation touches and what it is ordered after, so there the error is found at the free,
 * whoever gets the block and whether or not anybody does. A real device does not tell.
 *
 * Blocks under OWNER are left out: they are for callers whose users are joined later. A stream that was declared once
 * is taken at its word: what it does to the block after its last weir_touch is not looked at.
 */
#include "watch.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_DECLARED = 64 }; /* of one block; one with more is not looked at */

_Atomic bool wr_watch_on;

static void look_at_environment(void)
{
    atomic_store(&wr_watch_on, getenv("WEIR_CHECK_USES") != NULL);
}

void wr_watch_open(struct wr_device *d)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_at_environment);
    if (wr_watch_is_on() && d->ops->watch_free == NULL)
        fprintf(stderr, "weir: WEIR_CHECK_USES: only simulated devices see uses; %s does not\n", d->name);
}

/* LOCK: h->lock. False: too many. */
static bool list_declared(
    const struct wr_heap *h, enum wr_kind kind, uint32_t unit, uint64_t *ids, struct wr_freed *out)
{
    uint32_t u = wr_stream_first_use(h, kind, wr_index_get(&h->blocks, unit));
    for (; u != 0 && out->n_declared < MOST_DECLARED; u = h->uses[u].next)
        ids[out->n_declared++] = wr_fence_id(h->uses[u].fence);
    return u == 0;
}

void wr_watch_free(weir_pool *p, weir_dptr block, weir_stream s)
{
    struct wr_device *d = p->pages.device;
    struct wr_heap *home;
    enum wr_kind kind;
    uint32_t unit;
    uint64_t declared[MOST_DECLARED];
    struct wr_freed freed = {.address = block, .stream = s, .declared = declared};
    bool open = atomic_load(&p->state) < WR_POOL_CLOSED && d->ops->watch_free != NULL;
    /* The free itself says what is wrong with the block. */
    if (!open || wr_pool_lock_block(p, block, &home, &kind, &unit) != WEIR_OK) return;
    freed.bytes = wr_size_bytes(wr_stream_live_units(home, kind, unit));
    freed.home = home->id;
    bool checked = home->gate != &p->context && list_declared(home, kind, unit, declared, &freed);
    wr_latch_give(&home->lock);
    if (checked) d->ops->watch_free(d, &freed);
}
