/* SPDX-License-Identifier: Apache-2.0
 *
 * A heap's blocks and other streams. A live block's node carries a list of declared uses by other streams. When the
 * block is freed the uses that have passed are dropped; if none is left it is READY, else it is filed under the fence
 * of the first that is left, and looked at again when that fence has moved. So a stalled stream holds back its own
 * blocks only (A10). See stream.c.
 */
#include "stream.h"

#include <stdlib.h>

/* ---- uses -------------------------------------------------------------------------------------------- */

static bool reserve_use(struct wr_heap *h)
{
    if (h->spare_use != 0 || h->n_uses < h->uses_capacity) return true;
    uint32_t capacity = h->uses_capacity == 0 ? 64 : h->uses_capacity * 2;
    struct wr_block_use *uses = realloc(h->uses, capacity * sizeof *uses);
    if (uses == NULL) return false;
    h->uses = uses;
    h->uses_capacity = capacity;
    if (h->n_uses == 0) h->n_uses = 1; /* 0 is none */
    return true;
}

static void drop_use(struct wr_heap *h, uint32_t use)
{
    h->uses[use].next = h->spare_use;
    h->spare_use = use;
}

weir_status wr_uses_add(struct wr_heap *h, struct wr_node *n, struct wr_fence *by, uint64_t stamp)
{
    for (uint32_t u = n->owner_data; u != 0; u = h->uses[u].next) {
        if (h->uses[u].fence != by) continue;
        if (!WR_FAULT(TOUCH_KEEPS_FIRST)) h->uses[u].stamp = wr_max(h->uses[u].stamp, stamp);
        return WEIR_OK;
    }
    if (!reserve_use(h)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a block's use");
    uint32_t u = h->spare_use;
    if (u != 0)
        h->spare_use = h->uses[u].next;
    else
        u = h->n_uses++;
    h->uses[u] = (struct wr_block_use){.fence = by, .stamp = stamp, .next = n->owner_data};
    n->owner_data = u;
    return WEIR_OK;
}

weir_status wr_stream_use(
    struct wr_heap *h, uint32_t start, enum wr_kind kind, struct wr_fence *by, uint64_t stamp)
{
    uint32_t id = wr_index_get(&h->blocks, start);
    if (id == 0 || h->range[kind].nodes[id].owner_data == WR_IN_FRONT) return wr_stream_refuse();
    h->counts.touches++;
    if (by == &h->fence || WR_FAULT(TOUCH_FORGOTTEN)) return WEIR_OK; /* at home stream order is enough */
    return wr_uses_add(h, &h->range[kind].nodes[id], by, stamp);
}

uint32_t wr_stream_live_units(const struct wr_heap *h, enum wr_kind kind, uint32_t start)
{
    uint32_t id = wr_index_get(&h->blocks, start);
    return id == 0 || h->range[kind].nodes[id].owner_data == WR_IN_FRONT ? 0 : h->range[kind].nodes[id].units;
}

static void drop_passed_uses(struct wr_heap *h, struct wr_node *n)
{
    uint32_t *link = &n->owner_data;
    while (*link != 0) {
        uint32_t u = *link;
        if (!wr_fence_passed(h->uses[u].fence, h->uses[u].stamp)) {
            link = &h->uses[u].next;
            continue;
        }
        *link = WR_FAULT(REAP_ONE_USE) ? 0 : h->uses[u].next;
        drop_use(h, u);
    }
}

/* ---- pending ----------------------------------------------------------------------------------------- */

weir_status wr_uses_reserve_pending(struct wr_heap *h)
{
    if (h->n_pending < h->pending_capacity) return WEIR_OK;
    uint32_t capacity = h->pending_capacity == 0 ? 8 : h->pending_capacity * 2;
    struct wr_pending *lists = realloc(h->pending, capacity * sizeof *lists);
    if (lists == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a list of pending blocks");
    h->pending = lists;
    h->pending_capacity = capacity;
    return WEIR_OK;
}

static uint32_t find_pending(struct wr_heap *h, struct wr_fence *f, uint32_t fallback)
{
    for (uint32_t i = 0; i < h->n_pending; i++)
        if (h->pending[i].fence == f) return i;
    if (wr_uses_reserve_pending(h) != WEIR_OK) return fallback;
    h->pending[h->n_pending] = (struct wr_pending){.fence = f};
    return h->n_pending++;
}

bool wr_uses_settle(struct wr_heap *h, enum wr_kind kind, uint32_t id, uint32_t fallback)
{
    struct wr_node *n = &h->range[kind].nodes[id];
    drop_passed_uses(h, n);
    if (n->owner_data == 0) {
        wr_range_give(&h->range[kind], id, WR_FAULT(SETTLE_DROPS_STAMP) ? 0 : n->stamp);
        return true;
    }
    const struct wr_block_use *use = &h->uses[n->owner_data];
    uint32_t at = find_pending(h, use->fence, fallback); /* may move the lists */
    struct wr_pending *list = &h->pending[at];
    list->greatest_stamp = wr_max(list->greatest_stamp, use->stamp);
    n->bin_next = list->first[kind];
    list->first[kind] = id;
    h->counts.pending_blocks++;
    h->counts.pending_units += n->units;
    return false;
}

/* Settles each block of a list again. A block may come back to this very list: its head is taken off first.
 */
static bool reap_list(struct wr_heap *h, uint32_t i)
{
    bool any = false;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        uint32_t id = h->pending[i].first[kind];
        h->pending[i].first[kind] = 0;
        while (id != 0) {
            uint32_t next = h->range[kind].nodes[id].bin_next;
            h->counts.pending_blocks--;
            h->counts.pending_units -= h->range[kind].nodes[id].units;
            any |= wr_uses_settle(h, kind, id, i);
            id = next;
        }
    }
    return any;
}

static void drop_empty_lists(struct wr_heap *h)
{
    for (uint32_t i = h->n_pending; i-- > 0;)
        if (h->pending[i].first[WR_SMALL] == 0 && h->pending[i].first[WR_LARGE] == 0)
            h->pending[i] = h->pending[--h->n_pending];
}

bool wr_stream_reap(struct wr_heap *h)
{
    bool any = false;
    for (uint32_t i = 0; i < h->n_pending; i++) { /* lists appended meanwhile are looked at, too */
        uint64_t done = atomic_load(&h->pending[i].fence->done);
        if (done == h->pending[i].looked_at) continue;
        h->pending[i].looked_at = done;
        any |= reap_list(h, i);
    }
    drop_empty_lists(h);
    return any;
}

/* Uses that the heap's own stream has been made to wait for. */
static void drop_waited_uses(struct wr_heap *h, struct wr_node *n, const struct wr_fence *by, uint64_t stamp)
{
    uint32_t *link = &n->owner_data;
    while (*link != 0) {
        uint32_t u = *link;
        bool waited = (h->uses[u].fence == by && h->uses[u].stamp <= stamp) || WR_FAULT(WAIT_DROPS_ALL_USES);
        if (!waited) {
            link = &h->uses[u].next;
            continue;
        }
        *link = h->uses[u].next;
        drop_use(h, u);
    }
}

/* INVARIANT: what is READY because its stream waits has not passed on it before that wait has: its stamp is
 * one that only a tick after the wait covers. */
void wr_stream_let_go(struct wr_heap *h, struct wr_fence *by, uint64_t stamp)
{
    uint64_t after_wait = wr_fence_stamp(h->gate);
    h->last_stamp = after_wait;
    for (uint32_t i = 0; i < h->n_pending; i++) {
        if (h->pending[i].fence != by) continue;
        for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
            for (uint32_t id = h->pending[i].first[kind]; id != 0; id = h->range[kind].nodes[id].bin_next) {
                struct wr_node *n = &h->range[kind].nodes[id];
                drop_waited_uses(h, n, by, stamp);
                if (!WR_FAULT(WAIT_KEEPS_STAMP)) n->stamp = after_wait;
            }
        reap_list(h, i);
        break; /* a fence has one list */
    }
    drop_empty_lists(h);
}
