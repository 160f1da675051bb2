/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking inside: the counters, and the validator of a whole pool.
 */
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>

/* LOCK: h->lock. */
static void add_heap(weir_stats *s, const struct wr_heap *h)
{
    const struct wr_heap_counts *c = &h->counts;
    s->live_bytes += c->live_units << WR_UNIT_LOG2;
    s->peak_live_bytes += c->peak_live_units << WR_UNIT_LOG2;
    s->pending_bytes += c->pending_units << WR_UNIT_LOG2;
    s->cached_bytes += (c->front_units + h->range[WR_SMALL].free_units + h->range[WR_LARGE].free_units)
                       << WR_UNIT_LOG2;
    s->live_blocks += c->allocs - c->frees;
    s->pending_blocks += c->pending_blocks;
    s->streams++;
    s->allocs += c->allocs;
    s->slow_allocs += c->slow_allocs;
    s->frees += c->frees;
    s->touches += c->touches;
    s->ticks += atomic_load_explicit(&h->fence.n_ticks, memory_order_relaxed);
}

static void add_pages(weir_stats *s, struct wr_pages *g)
{
    wr_lock_take(&g->lock);
    s->reserved_bytes = g->reserved_pages * WR_PAGE_BYTES;
    s->peak_reserved_bytes = g->peak_reserved_pages * WR_PAGE_BYTES;
    s->idle_bytes = g->idle.free_units * WR_PAGE_BYTES;
    s->limit_bytes = (uint64_t)g->limit_pages * WR_PAGE_BYTES;
    s->grows = g->n_grows;
    s->trims = g->n_trims;
    wr_lock_give(&g->lock);
}

void wr_stats_fill(weir_pool *p, weir_stats *s)
{
    wr_lock_take(&p->lock);
    s->allocs = p->gone.allocs;
    s->slow_allocs = p->gone.slow_allocs;
    s->frees = p->gone.frees;
    s->touches = p->gone.touches;
    s->ticks = p->gone_ticks + atomic_load(&p->context.n_ticks);
    s->host_waits = atomic_load(&p->host_waits);
    s->stream_waits = atomic_load(&p->stream_waits);
    wr_lock_give(&p->lock);
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        add_heap(s, h);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(p, h);
    }
    add_pages(s, &p->pages);
    uint64_t served = 0; /* by the slow path */
    for (int i = 0; i < WR_RUNGS; i++)
        served += atomic_load_explicit(&p->served[i], memory_order_relaxed);
    s->hits = s->allocs - wr_min(s->allocs, served);
    s->driver_calls = atomic_load_explicit(&p->pages.device->calls, memory_order_relaxed);
    struct wr_pinned_stats pinned;
    wr_pinned_get_stats(p->pinned, &pinned);
    s->pinned_bytes = pinned.reserved_bytes;
    s->pinned_live_bytes = pinned.live_bytes;
    s->pinned_pending_bytes = pinned.pending_bytes;
}

static void require(bool holds, const char *invariant)
{
    if (holds) return;
    fprintf(stderr, "weir: pool: broken invariant: %s\n", invariant);
    abort();
}

/* Every page of a heap's pieces carries the heap's tag; returns the heap's units. */
static uint64_t check_heap(weir_pool *p, const struct wr_heap *h)
{
    uint64_t units = 0;
    wr_stream_check(h);
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        const struct wr_range *r = &h->range[kind];
        for (uint32_t id = 1; id < r->n_nodes; id++) {
            const struct wr_node *n = &r->nodes[id];
            if (n->state != WR_NODE_FREE && n->state != WR_NODE_TAKEN) continue;
            units += n->units;
            for (uint32_t page = n->start >> WR_UNITS_PER_PAGE_LOG2;
                 page < wr_size_pages(n->start + n->units); page++)
                require(atomic_load(&p->pages.owner[page]) == wr_pool_tag(h, kind),
                    "a heap's page carries its tag");
        }
    }
    return units;
}

/* Slow paths so far; 0: another thread is in one. */
static uint64_t count_if_alone(weir_pool *p)
{
    wr_lock_take(&p->lock);
    uint64_t n = p->inside == 1 ? p->n_entered : 0;
    wr_lock_give(&p->lock);
    return n;
}

/* INVARIANT: live + pending + cached + idle == reserved. The sum is compared only where no other thread was
 * in a slow path meanwhile: a page on its way between the pool and a heap belongs to neither. */
void wr_stats_check(weir_pool *p)
{
    uint64_t heap_units = 0, alone = count_if_alone(p);
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        heap_units += check_heap(p, h);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(p, h);
    }
    wr_lock_take(&p->pages.lock);
    wr_pages_check(&p->pages);
    uint64_t unusable = 0;
    for (uint32_t i = 0; i < p->pages.n_segments; i++)
        if (!p->pages.segments[i].usable) unusable += p->pages.segments[i].n_pages;
    uint64_t pages = p->pages.reserved_pages - unusable - p->pages.idle.free_units;
    wr_lock_give(&p->pages.lock);
    if (alone == 0 || alone != count_if_alone(p)) return;
    require(heap_units == pages << WR_UNITS_PER_PAGE_LOG2, "live + pending + cached + idle == reserved");
}
