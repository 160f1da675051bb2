/* SPDX-License-Identifier: Apache-2.0
 *
 * A heap seen by the page, for the ladder; by the piece, for those who look inside; its life, and its invariants. See
 * stream.c.
 */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages ------------------------------------------------------------------------------------------- */

static uint32_t first_whole_page(const struct wr_node *n)
{
    return wr_size_pages(n->start);
}
static uint32_t past_whole_pages(const struct wr_node *n)
{
    return (n->start + n->units) >> WR_UNITS_PER_PAGE_LOG2;
}

bool wr_stream_next_run(const struct wr_heap *h, enum wr_kind kind, bool passed_only, struct wr_page_run *run)
{
    const struct wr_range *r = &h->range[kind];
    uint32_t id = run->piece == 0 ? wr_range_next_free(r, 0, WR_UNITS_PER_PAGE) : run->next_piece;
    for (; id != 0; id = wr_range_next_free(r, id, WR_UNITS_PER_PAGE)) {
        const struct wr_node *n = &r->nodes[id];
        uint32_t first = first_whole_page(n), past = past_whole_pages(n);
        if (first >= past || (passed_only && !wr_fence_passed(h->gate, n->stamp))) continue;
        /* The next piece is found before a cut refiles this one. */
        *run = (struct wr_page_run){.first = first,
            .n = past - first,
            .stamp = n->stamp,
            .piece = id,
            .next_piece = wr_range_next_free(r, id, WR_UNITS_PER_PAGE)};
        return true;
    }
    return false;
}

weir_status wr_stream_cut_run(struct wr_heap *h, enum wr_kind kind, const struct wr_page_run *run, uint32_t n)
{
    struct wr_range *r = &h->range[kind];
    assert(n > 0 && n <= run->n);
    if (!wr_range_reserve(r)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to split a free piece");
    wr_range_remove(r, run->piece, run->first << WR_UNITS_PER_PAGE_LOG2, n << WR_UNITS_PER_PAGE_LOG2);
    return WEIR_OK;
}

uint32_t wr_stream_units_before(const struct wr_heap *h, enum wr_kind kind, uint32_t page)
{
    const struct wr_range *r = &h->range[kind];
    return wr_range_units(r, wr_range_free_to(r, wr_size_units_of_pages(page)));
}

uint32_t wr_stream_units_behind(const struct wr_heap *h, enum wr_kind kind, uint32_t page)
{
    const struct wr_range *r = &h->range[kind];
    return wr_range_units(r, wr_range_free_from(r, wr_size_units_of_pages(page)));
}

bool wr_stream_has_pages(const struct wr_heap *h)
{
    return wr_range_next_free(&h->range[WR_SMALL], 0, WR_UNITS_PER_PAGE) != 0 ||
           wr_range_next_free(&h->range[WR_LARGE], 0, WR_UNITS_PER_PAGE) != 0;
}

bool wr_stream_is_empty(const struct wr_heap *h)
{
    return wr_stream_live_blocks(h) == 0 && h->counts.pending_blocks == 0 && h->counts.front_units == 0 &&
           h->range[WR_SMALL].free_units == 0 && h->range[WR_LARGE].free_units == 0;
}

/* INVARIANT: all stamps of a heap are of one fence. The context's next tick covers whatever they stood for. */
void wr_stream_own(struct wr_heap *h, struct wr_fence *context)
{
    if (h->gate == context || WR_FAULT(OWNER_FORGOTTEN)) return;
    h->disowned = false;
    h->gate = context;
    h->last_stamp = wr_fence_stamp(context);
    for (enum wr_kind kind = 0; kind < WR_KINDS && !WR_FAULT(OWNER_KEEPS_STAMPS); kind++)
        for (uint32_t id = 1; id < h->range[kind].n_nodes; id++)
            h->range[kind].nodes[id].stamp = h->last_stamp;
}

void wr_stream_disown(struct wr_heap *h)
{
    if (h->gate == &h->fence) return;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        if (h->range[kind].n_nodes > 1) return; /* node 0 is nobody's */
    h->disowned = true;
    h->gate = &h->fence;
    h->last_stamp = wr_fence_stamp(h->gate);
}

enum wr_piece_state wr_stream_state(const struct wr_heap *h, enum wr_kind kind, uint32_t id)
{
    const struct wr_node *n = &h->range[kind].nodes[id];
    if (n->state == WR_NODE_FREE) return WR_PIECE_FREE;
    if (n->owner_data == WR_IN_FRONT) return WR_PIECE_CACHED;
    return wr_index_get(&h->blocks, n->start) == id ? WR_PIECE_LIVE : WR_PIECE_PENDING;
}

uint32_t wr_stream_first_use(const struct wr_heap *h, enum wr_kind kind, uint32_t id)
{
    const struct wr_node *n = &h->range[kind].nodes[id];
    return n->state == WR_NODE_TAKEN && n->owner_data != WR_IN_FRONT ? n->owner_data : 0;
}

/* ---- life -------------------------------------------------------------------------------------------- */

void wr_stream_open(struct wr_heap *h, const void *pool, uint64_t id, uint32_t index, uint64_t tick_units)
{
    assert(h->pool == NULL && pool != NULL);
    h->gate = &h->fence;
    h->pool = pool;
    h->id = id;
    h->index = index;
    h->tick_units = tick_units;
    h->retired = h->disowned = false;
    atomic_store(&h->capture, 0);
    h->users = 0;
    h->last_stamp = h->unfenced_units = h->ticked_frees = 0;
    h->counts = (struct wr_heap_counts){0};
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_init(&h->range[kind]);
}

void wr_stream_forget(struct wr_heap *h)
{
    h->counts.live_units = 0;
    h->counts.frees = h->counts.allocs; /* they are as good as freed */
    h->counts.pending_blocks = h->counts.pending_units = h->counts.front_units = 0;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_fini(&h->range[kind]);
}

void wr_stream_close(struct wr_heap *h)
{
    assert(wr_stream_is_empty(h) && h->users == 0);
    h->pool = NULL;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_fini(&h->range[kind]);
    wr_index_fini(&h->blocks);
    memset(h->fronts, 0, sizeof h->fronts);
    free(h->uses);
    free(h->pending);
    h->uses = NULL;
    h->pending = NULL;
    h->n_uses = h->uses_capacity = h->spare_use = 0;
    h->n_pending = h->pending_capacity = 0;
}

/* ---- validator --------------------------------------------------------------------------------------- */

static void require(bool holds, const char *invariant)
{
    if (holds) return;
    fprintf(stderr, "weir: heap: broken invariant: %s\n", invariant);
    abort();
}

/* Pending units of a kind's lists; counts the blocks. */
static uint64_t check_pending(const struct wr_heap *h, enum wr_kind kind, uint64_t *blocks)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < h->n_pending; i++) {
        for (uint32_t id = h->pending[i].first[kind]; id != 0; id = h->range[kind].nodes[id].bin_next) {
            const struct wr_node *n = &h->range[kind].nodes[id];
            require(n->state == WR_NODE_TAKEN && n->owner_data != 0, "a pending block waits for a use");
            require(wr_index_get(&h->blocks, n->start) == 0, "a pending block is not live");
            ++*blocks;
            units += n->units;
        }
    }
    return units;
}

static uint64_t check_fronts(const struct wr_heap *h, uint64_t *blocks)
{
    uint64_t units = 0;
    for (const struct wr_front *front = h->fronts; front < h->fronts + WR_FRONTS; front++) {
        const struct wr_range *r = &h->range[wr_size_kind(front->units)];
        for (uint32_t id = front->first; id != 0; id = r->nodes[id].bin_next) {
            require(r->nodes[id].owner_data == WR_IN_FRONT, "a block in the front cache says so");
            require(r->nodes[id].units == front->units, "the front cache is by exact size");
            require(wr_index_get(&h->blocks, r->nodes[id].start) == id,
                "the front cache keeps its blocks' entries");
            ++*blocks;
            units += front->units;
        }
    }
    return units;
}

void wr_stream_check(const struct wr_heap *h)
{
    uint64_t taken_units = 0, pending_blocks = 0, pending_units = 0, front_blocks = 0;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        wr_range_check(&h->range[kind]);
        taken_units += h->range[kind].taken_units;
        pending_units += check_pending(h, kind, &pending_blocks);
    }
    require(check_fronts(h, &front_blocks) == h->counts.front_units, "the front cache holds the front units");
    require(pending_blocks == h->counts.pending_blocks, "the pending lists hold the pending blocks");
    require(pending_units == h->counts.pending_units, "the pending lists hold the pending units");
    require(h->blocks.used == wr_stream_live_blocks(h) + front_blocks,
        "the table holds the live and the front blocks");
    require(taken_units == h->counts.live_units + pending_units + h->counts.front_units,
        "what is taken is live, pending or in the front cache");
}
