/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. How a pool begins and ends. Its shell is never freed: a closed handle still says CLOSED. A pool ends when
 * it is closed, no heap holds a block or a tick, and no thread is in a slow path; its last free, or a further
 * close, finishes it.
 */
#include "pool.h"
#include "captures.h"
#include "nvtx.h"
#include "record.h"
#include "watch.h"

#include <stdlib.h>

/* All pools ever opened; a leaf lock. */
static struct {
    pthread_mutex_t mutex;
    _Atomic(weir_pool *) shells;
    uint64_t last_uid;
} registry = {.mutex = PTHREAD_MUTEX_INITIALIZER};

weir_status wr_pool_refuse(weir_pool *p)
{
    /* A pool that has ended outlives its device, where that is a simulated one. */
    bool ended = atomic_load(&p->state) == WR_POOL_CLOSED;
    weir_status st = ended ? wr_edges_check() : wr_edges_check_device(p->pages.device);
    return st != WEIR_OK ? st : wr_fail(WEIR_CLOSED, "the pool is closed");
}

weir_status wr_pool_enter(weir_pool *p)
{
    if (atomic_load(&p->state) >= WR_POOL_CLOSED) return wr_pool_refuse(p);
    wr_lock_take(&p->lock);
    bool open = !p->finishing && atomic_load(&p->state) < WR_POOL_CLOSED;
    p->inside += open;
    p->n_entered += open;
    wr_lock_give(&p->lock);
    return open ? WEIR_OK : wr_pool_refuse(p);
}

void wr_pool_leave(weir_pool *p)
{
    wr_lock_take(&p->lock);
    p->inside--;
    wr_lock_give(&p->lock);
}

/* Shells are never freed and the list only grows at its head, so it is walked without its mutex. */
uint64_t wr_pool_trim_others(weir_pool *p, uint64_t bytes)
{
    pthread_mutex_lock(&registry.mutex);
    weir_pool *other = registry.shells;
    pthread_mutex_unlock(&registry.mutex);
    uint64_t gone = 0;
    for (; other != NULL && gone < bytes; other = other->next_shell) {
        if (other == p || other->pages.device != p->pages.device || wr_pool_enter(other) != WEIR_OK) continue;
        uint64_t reserved = wr_pages_reserved(&other->pages) * WR_PAGE_BYTES;
        gone += wr_ladder_trim(other, reserved - wr_min(reserved, bytes - gone));
        wr_pool_leave(other);
        if (atomic_load(&other->state) == WR_POOL_CLOSING)
            wr_pool_finish_closing(other); /* it may have been the last */
    }
    return gone;
}

weir_status wr_pool_hold(weir_pool *p)
{
    if (atomic_load(&p->state) != WR_POOL_OPEN) return wr_pool_refuse(p);
    wr_lock_take(&p->lock);
    bool open = atomic_load(&p->state) == WR_POOL_OPEN;
    if (open) p->holds++;
    wr_lock_give(&p->lock);
    return open ? WEIR_OK : wr_pool_refuse(p);
}

void wr_pool_unhold(weir_pool *p)
{
    wr_lock_take(&p->lock);
    p->holds--;
    wr_lock_give(&p->lock);
    if (atomic_load(&p->state) == WR_POOL_CLOSING) wr_pool_finish_closing(p);
}

struct wr_device *wr_pool_device(weir_pool *p)
{
    return p->pages.device;
}
struct wr_pinned *wr_pool_pinned(weir_pool *p)
{
    return p->pinned;
}

static weir_status read_backing(const weir_pool_options *o)
{
    if ((unsigned)o->backing > WEIR_BACKING_PLAIN)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no backing %d", (int)o->backing);
    if (o->backing == WEIR_BACKING_VIRTUAL) return WEIR_OK;
    if (o->limit_bytes == 0 && o->limit_fraction == 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a PLAIN pool takes all of its limit at once: name one");
    if (o->grow_bytes != 0 || o->soft_limit_bytes != 0 || o->most_limit_bytes != 0)
        return wr_fail(WEIR_INVALID_ARGUMENT,
            "a PLAIN pool never grows: no grow_bytes, no soft_limit_bytes, no most_limit_bytes");
    return WEIR_OK;
}

/* A page more, times pages.c's ADDRESS_FACTOR, is what 32-bit units reach. */
static const uint64_t most_addressable = (UINT64_C(1) << 39) - WR_PAGE_BYTES;

/* A limit of whole pages from what a caller gives: 0, or a fraction of 0, is none. */
static weir_status read_limit(const struct wr_device *d, size_t bytes, double fraction, uint64_t *out)
{
    if (!(fraction >= 0 && fraction <= 1))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a fraction of %g is not between 0 and 1", fraction);
    uint64_t limit = bytes != 0 ? bytes : d->total_bytes;
    if (fraction > 0) limit = wr_min(limit, (uint64_t)((double)d->total_bytes * fraction));
    limit = wr_min(wr_round_down(limit, WR_PAGE_BYTES), most_addressable);
    if (limit == 0)
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "a limit of %zu bytes, %g of the device, is below 2 MiB", bytes, fraction);
    *out = limit;
    return WEIR_OK;
}

static weir_status read_sizes(struct wr_device *d, const weir_pool_options *o, struct wr_pages_plan *out)
{
    uint64_t limit = 0;
    weir_status st = read_limit(d, o->limit_bytes, o->limit_fraction, &limit);
    if (st != WEIR_OK) return st;
    /* A segment goes back whole: near a small limit large ones would be what doesn't fit. */
    uint64_t step = wr_max(2 * WR_MIB, wr_min(32 * WR_MIB, wr_round_down(limit / 2048, WR_PAGE_BYTES)));
    uint64_t most = wr_round_down(wr_min(o->most_limit_bytes, d->total_bytes), WR_PAGE_BYTES);
    *out = (struct wr_pages_plan){.limit_bytes = limit,
        .most_bytes = wr_max(wr_min(most, most_addressable), limit),
        .grow_bytes = wr_min(o->grow_bytes != 0 ? o->grow_bytes : step, limit),
        .plain = o->backing == WEIR_BACKING_PLAIN};
    return WEIR_OK;
}

/* SLOW. The limit is lowered as far as it can be before memory goes back, so that nobody takes it anew, and again
 * after. */
static weir_status change_limit(weir_pool *p, size_t bytes, double fraction)
{
    struct wr_pages *g = &p->pages;
    uint64_t limit = (uint64_t)g->first_limit_pages * WR_PAGE_BYTES;
    weir_status st = WEIR_OK;
    if (bytes != 0 || fraction != 0) st = read_limit(g->device, bytes, fraction, &limit);
    if (st != WEIR_OK) return st;
    uint32_t pages = (uint32_t)(limit >> WR_PAGE_LOG2);
    if (g->slab != 0) return wr_fail(WEIR_INVALID_ARGUMENT, "a PLAIN pool's limit is what it holds");
    if (pages > g->most_pages)
        return wr_fail(WEIR_INVALID_ARGUMENT, "the pool was opened for a limit of at most %llu bytes",
            (unsigned long long)g->most_pages * WR_PAGE_BYTES);
    if (wr_pages_set_limit(g, pages) == pages) return WEIR_OK;
    wr_ladder_trim(p, limit);
    uint32_t now = wr_pages_set_limit(g, pages);
    if (now == pages) return WEIR_OK;
    return wr_fail(WEIR_NOT_YET, "%llu bytes are in use or pending: the limit is that for now, not %llu",
        (unsigned long long)now * WR_PAGE_BYTES, (unsigned long long)limit);
}

weir_status wr_pool_set_limit(weir_pool *p, size_t bytes, double fraction)
{
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = change_limit(p, bytes, fraction);
    wr_pool_leave(p);
    return st;
}

/* An edge has come: see edges.h. No lock. */
static void turn_pools_away(struct wr_device *d)
{
    for (weir_pool *p = atomic_load(&registry.shells); p != NULL; p = p->next_shell) {
        int open = WR_POOL_OPEN, closing = WR_POOL_CLOSING;
        if (d != NULL && p->pages.device != d) continue;
        if (!atomic_compare_exchange_strong(&p->state, &open, WR_POOL_GONE))
            atomic_compare_exchange_strong(&p->state, &closing, WR_POOL_GONE);
    }
}

static void register_pool(weir_pool *p)
{
    static struct wr_edges_watcher watcher = {.over = turn_pools_away};
    static pthread_once_t armed = PTHREAD_ONCE_INIT;
    pthread_mutex_lock(&registry.mutex);
    p->uid = ++registry.last_uid;
    p->next_shell = atomic_load(&registry.shells);
    atomic_store(&registry.shells, p);
    pthread_mutex_unlock(&registry.mutex);
    wr_edges_watch(&watcher);
    pthread_once(&armed, wr_edges_arm); /* for a device that did not come by wr_device_get */
    if (atomic_load(&p->pages.device->gone) != WEIR_OK) turn_pools_away(p->pages.device);
}

void wr_pool_end_thread(void)
{
    if (wr_edges_check() != WEIR_OK || WR_FAULT(EDGE_THREAD_IGNORED)) return;
    wr_captures_end_thread();
    for (weir_pool *p = atomic_load(&registry.shells); p != NULL; p = p->next_shell) {
        /* A closed pool's device may be gone, where it was simulated. */
        if (atomic_load(&p->state) >= WR_POOL_CLOSED || wr_pool_enter(p) != WEIR_OK) continue;
        for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
            struct wr_heap *h = wr_heaps_pin(p, i);
            if (h == NULL) continue;
            if (wr_fence_orphan_own(&h->fence)) wr_heaps_retire(p, h);
            wr_heaps_unpin(p, h);
        }
        wr_pool_leave(p);
    }
}

weir_status wr_pool_open(struct wr_device *d, const weir_pool_options *o, weir_pool **out)
{
    wr_record_open();
    wr_nvtx_open();
    wr_watch_open(d);
    struct wr_pages_plan plan = {0};
    struct wr_terms terms = {.align = 1, .reuse = WEIR_REUSE_COMPLETED};
    weir_status st = wr_edges_check_device(d);
    if (st == WEIR_OK) st = read_backing(o);
    if (st == WEIR_OK) st = read_sizes(d, o, &plan);
    if (st == WEIR_OK && (unsigned)o->streams > WEIR_STREAMS_ANNOUNCED)
        st = wr_fail(WEIR_INVALID_ARGUMENT, "no way %d to know streams by", (int)o->streams);
    if (st == WEIR_OK) st = wr_pool_read_reuse(o->reuse, o->deadline_ns, &terms);
    if (st != WEIR_OK) return st;
    weir_pool *p = calloc(1, sizeof *p);
    if (p == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a pool");
    st = wr_pinned_get(d, &p->pinned);
    if (st == WEIR_OK) st = wr_pages_open(&p->pages, d, &plan);
    if (st != WEIR_OK) {
        free(p);
        return st;
    }
    p->terms = terms;
    p->announced = o->streams == WEIR_STREAMS_ANNOUNCED;
    p->soft_pages = UINT32_MAX;
    if (o->soft_limit_bytes != 0)
        p->soft_pages = (uint32_t)wr_min(p->soft_pages, o->soft_limit_bytes >> WR_PAGE_LOG2);
    p->evict = o->evict;
    p->evict_context = o->evict_context;
    wr_events_init(&p->events, d);
    wr_fence_init(&p->context);
    wr_fence_open(&p->context, &p->events, NULL, 0);
    wr_fence_orphan_if(&p->context, NULL); /* of no stream: its ticks cover the context */
    wr_lock_init(&p->lock, WR_RANK_POOL);
    register_pool(p);
    *out = p;
    return WEIR_OK;
}

/* Covers and polls every stream; true if all heaps are empty and quiet, so that nothing of the GPU's is left
 * here. */
static bool settle_all(weir_pool *p)
{
    bool over = wr_ladder_visit_all(p, NULL) == WEIR_OK;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        over &= wr_fence_cover(&h->fence, wr_max(atomic_load(&h->fence.lent), atomic_load(&h->fence.enq))) ==
                WEIR_OK;
        wr_fence_settle(&h->fence);
        wr_latch_take(&h->lock);
        over &= wr_stream_is_empty(h) && h->users == 1 && wr_fence_is_quiet(&h->fence);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(p, h);
    }
    over &= wr_policy_cover(p, &p->context, atomic_load(&p->context.enq)) == WEIR_OK;
    wr_fence_settle(&p->context);
    over &= wr_fence_is_quiet(&p->context);
    wr_pinned_reap(p->pinned);
    return over;
}

static weir_status trim_events(weir_pool *p)
{
    weir_status st = WEIR_OK;
    for (struct wr_events *e = &p->events; e != NULL && st == WEIR_OK; e = e->next)
        st = wr_events_trim(e);
    return st;
}

static void fini_events(weir_pool *p)
{
    struct wr_events *next = p->events.next;
    wr_events_fini(&p->events);
    while (next != NULL) {
        struct wr_events *e = next;
        next = e->next;
        wr_events_fini(e);
        free(e);
    }
}

/* Gives all back. */
static weir_status settle(weir_pool *p)
{
    if (!settle_all(p) || wr_captures_any(p->pages.device)) return WEIR_NOT_YET;
    weir_status st = trim_events(p);
    return st == WEIR_OK ? wr_pages_close(&p->pages) : st;
}

/* Drops all: what it stood for went with the device's context, events and blocks. */
static weir_status forget(weir_pool *p)
{
    if (!wr_heaps_forget(p)) return WEIR_NOT_YET;
    wr_pages_forget(&p->pages);
    return WEIR_OK;
}

/* One thread at a time, `finishing` set and nobody inside. */
static weir_status finish(weir_pool *p)
{
    bool lost = atomic_load(&p->pages.device->gone) != WEIR_OK;
    weir_status st = lost ? forget(p) : settle(p);
    if (st != WEIR_OK) return st;
    wr_lock_take(&p->lock); /* from here on no heap can be opened */
    atomic_store(&p->state, WR_POOL_CLOSED);
    wr_lock_give(&p->lock);
    wr_heaps_fini(p);
    wr_fence_close(&p->context);
    fini_events(p);
    return WEIR_OK;
}

weir_status wr_pool_close(weir_pool *p)
{
    weir_status st = wr_edges_check(); /* before the lock: a forked child may never get it */
    if (st != WEIR_OK) return st;
    wr_lock_take(&p->lock);
    bool was_closed = atomic_load(&p->state) == WR_POOL_CLOSED;
    bool mine = !was_closed && p->inside == 0 && p->holds == 0 && !p->finishing;
    int was_open = WR_POOL_OPEN; /* what is GONE stays so */
    atomic_compare_exchange_strong(&p->state, &was_open, WR_POOL_CLOSING);
    if (mine)
        p->finishing = true;
    else
        p->finish_again = true; /* the thread that is at it may just have passed what this one freed */
    wr_lock_give(&p->lock);
    if (was_closed) return wr_fail(WEIR_CLOSED, "the pool is closed");

    st = WEIR_NOT_YET;
    while (mine) {
        wr_lock_take(&p->lock);
        p->finish_again = false;
        wr_lock_give(&p->lock);
        st = finish(p);
        wr_lock_take(&p->lock);
        mine = st == WEIR_NOT_YET && p->finish_again;
        p->finishing = mine;
        wr_lock_give(&p->lock);
    }
    if (st == WEIR_NOT_YET) wr_fail(st, "closed; live or pending blocks still hold memory");
    return st;
}

/* For a call that was none: giving PLAIN memory back waits, so that is left to who asks for it. */
void wr_pool_finish_closing(weir_pool *p)
{
    if (p->pages.slab == 0) wr_pool_close(p);
}
