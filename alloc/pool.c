/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A pool is a set of heaps, one per stream (heaps.c), over one page pool (pages.c). A block is found
 * by its address: page -> owner tag -> heap -> index of live blocks. The tag is read without a lock; for a
 * page with a live block it can't change, and for any other the heap's table has the last word.
 *
 * A pool's shell is never freed: a closed handle still says CLOSED. A pool ends when it is closed, no heap
 * holds a block or a tick, and no thread is in a slow path; its last free, or a further close, finishes it.
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

/* ---- HOT PATH ---------------------------------------------------------------------------------------- */
/* Budget, warm, single thread: alloc two driver reads (24 ns each), none where streams are announced; free
 * none; each one uncontended latch, and what stream.c says. */

struct located;
static weir_status alloc_slow(
    weir_pool *p, struct wr_heap *h, uint32_t units, const struct wr_terms *terms, uint32_t *start);
static weir_status free_elsewhere_slow(weir_pool *p, const struct located *at, weir_stream s);
static void tick_by_weight(weir_pool *p, struct wr_heap *h);
static void finish_closing(weir_pool *p);

/* `terms` NULL: a plain alloc, for which the compiler leaves out all that has to do with terms. */
static inline __attribute__((always_inline)) weir_status alloc_by(
    weir_pool *p, size_t bytes, weir_stream s, const struct wr_terms *terms, weir_dptr *out)
{
    if (WR_UNLIKELY(atomic_load_explicit(&p->state, memory_order_relaxed) != WR_POOL_OPEN))
        return wr_pool_refuse(p);
    uint64_t limit = (uint64_t)p->pages.limit_pages * WR_PAGE_BYTES;
    uint32_t units = wr_size_units(bytes, limit), start;
    if (WR_UNLIKELY(units == 0)) {
        if (bytes != 0) return wr_report_refuse(p, bytes);
        *out = 0;
        return WEIR_OK;
    }
    struct wr_heap *h;
    weir_status st = wr_heaps_lock(p, s, &h);
    if (WR_UNLIKELY(st == WEIR_CAPTURING))
        return wr_capture_alloc(p, units, s, terms != NULL ? terms : &p->terms, out);
    if (WR_UNLIKELY(st != WEIR_OK)) return st;
    if (terms != NULL && terms->reuse == WEIR_REUSE_OWNER) wr_policy_own(p, h);
    /* Looked at again under the lock: a pool that is closing visits every heap under its lock afterwards. */
    if (WR_LIKELY(atomic_load_explicit(&p->state, memory_order_relaxed) == WR_POOL_OPEN))
        st = terms == NULL
                 ? wr_stream_alloc(h, units, &start)
                 : wr_stream_alloc_aligned(h, units, terms->align, wr_pages_phase(&p->pages), &start);
    else
        st = wr_pool_refuse(p);
    if (WR_UNLIKELY(st == WEIR_NOT_YET)) h->users++;
    wr_latch_give(&h->lock);

    if (WR_UNLIKELY(st == WEIR_NOT_YET))
        st = alloc_slow(p, h, units, terms != NULL ? terms : &p->terms, &start);
    if (WR_LIKELY(st == WEIR_OK)) *out = wr_pages_address(&p->pages, start);
    return st;
}

weir_status wr_pool_alloc(weir_pool *p, size_t bytes, weir_stream s, weir_dptr *out)
{
    return alloc_by(p, bytes, s, NULL, out);
}

/* What the address of a live block says: its first unit, its heap (by index) and kind. */
struct located {
    uint32_t unit, index;
    enum wr_kind kind;
};

static __attribute__((noinline)) weir_status refuse_address_slow(weir_dptr block)
{
    return wr_fail(
        WEIR_INVALID_POINTER, "no live block of this pool starts at %#llx", (unsigned long long)block);
}

static inline weir_status locate(weir_pool *p, weir_dptr block, struct located *out)
{
    uint64_t offset = block - p->pages.base; /* wraps for what lies below: then it is too great */
    uint64_t page = offset >> WR_PAGE_LOG2;
    if (WR_UNLIKELY(page >= p->pages.n_pages || offset % WR_UNIT_BYTES != 0))
        return refuse_address_slow(block);
    uint32_t tag = atomic_load_explicit(&p->pages.owner[page], memory_order_acquire);
    if (WR_UNLIKELY(tag == 0)) return refuse_address_slow(block);
    *out = (struct located){
        .unit = (uint32_t)(offset >> WR_UNIT_LOG2), .index = (tag >> 1) - 1, .kind = tag & 1};
    return WEIR_OK;
}

/* SLOW: by the directory. INVALID_POINTER where the heap has ended. */
static __attribute__((noinline)) weir_status lock_home_slow(
    weir_pool *p, const struct located *at, struct wr_heap **out)
{
    struct wr_heap *home = wr_heaps_at(p, at->index);
    if (home != NULL) {
        wr_latch_take(&home->lock);
        *out = home;
        if (home->pool == p && home->index == at->index) return WEIR_OK;
        wr_latch_give(&home->lock);
    }
    return wr_fail(WEIR_INVALID_POINTER, "no live block starts there");
}

/* Takes home's lock. It is most often the heap that this thread used last; that struct may serve another stream
 * by now. */
static inline weir_status lock_home(weir_pool *p, const struct located *at, struct wr_heap **out)
{
    const struct wr_last_heap *last = &wr_last_heap;
    if (WR_UNLIKELY(last->index != at->index || last->pool_uid != p->uid)) return lock_home_slow(p, at, out);
    struct wr_heap *home = last->heap;
    wr_latch_take(&home->lock);
    *out = home;
    if (WR_LIKELY(home->pool == p && home->index == at->index)) return WEIR_OK;
    wr_latch_give(&home->lock);
    return lock_home_slow(p, at, out);
}

/* Freed at home? The handle is enough to tell: where it has come back as another stream's, no stream can use
 * the block in the home's order any more, and the home's next tick covers the whole context (A08). So a free
 * asks the driver nothing. LOCK: home's. */
static bool is_home(const struct wr_heap *home, weir_stream s)
{
    return wr_fence_is_of(&home->fence, s) && !home->retired;
}

/* The known capture that the stream is part of, 0: none. What is freed there is at home in that capture's heap
 * alone: elsewhere the graph's launches may use it, so it waits for the release. */
static inline uint64_t read_capture(weir_stream s)
{
    return WR_UNLIKELY(wr_captures_maybe()) ? wr_captures_of(s) : 0;
}

weir_status wr_pool_free(weir_pool *p, weir_dptr block, weir_stream s)
{
    if (block == 0) return WEIR_OK;
    if (WR_UNLIKELY(atomic_load_explicit(&p->state, memory_order_relaxed) >= WR_POOL_CLOSED))
        return wr_pool_refuse(p);
    struct located at = {0};
    struct wr_heap *home;
    uint64_t capture = read_capture(s);
    weir_status st = locate(p, block, &at);
    if (WR_LIKELY(st == WEIR_OK)) st = lock_home(p, &at, &home);
    if (WR_UNLIKELY(st != WEIR_OK)) return st;
    bool at_home = is_home(home, s), tick = false;
    if (WR_UNLIKELY(capture != 0)) at_home &= atomic_load(&home->capture) == capture;
    if (WR_LIKELY(at_home)) {
        st = wr_stream_free(home, at.kind, at.unit, &home->fence);
        tick = wr_stream_wants_tick(home);
        home->users += tick;
    }
    wr_latch_give(&home->lock);

    if (WR_UNLIKELY(!at_home)) st = free_elsewhere_slow(p, &at, s);
    if (WR_UNLIKELY(tick)) tick_by_weight(p, home);
    /* Read after the free: a close that came too early to see it set the state before it looked. */
    bool closing = atomic_load_explicit(&p->state, memory_order_relaxed) == WR_POOL_CLOSING;
    if (WR_UNLIKELY(closing && st == WEIR_OK)) finish_closing(p);
    return st;
}

/* ---- slow calls -------------------------------------------------------------------------------------- */

/* `terms` holds the defaults. */
static weir_status read_reuse(weir_reuse reuse, int64_t deadline_ns, struct wr_terms *terms)
{
    if (reuse != WEIR_REUSE_DEFAULT) terms->reuse = reuse;
    if (deadline_ns != 0) terms->deadline_ns = deadline_ns;
    if ((unsigned)reuse > WEIR_REUSE_HOST_WAIT || deadline_ns < -1)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no reuse policy %d, or no deadline %lld", (int)reuse,
            (long long)deadline_ns);
    if (terms->reuse == WEIR_REUSE_HOST_WAIT && terms->deadline_ns == 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "HOST_WAIT needs a deadline; -1 waits without end");
    return WEIR_OK;
}

static weir_status read_terms(const weir_pool *p, const weir_alloc_options *o, struct wr_terms *out)
{
    *out = p->terms;
    size_t a = o->alignment;
    if ((a & (a - 1)) != 0 || a > WR_PAGE_BYTES)
        return wr_fail(WEIR_INVALID_ARGUMENT, "alignment %zu is no power of two up to 2 MiB", a);
    if (a > WR_UNIT_BYTES) out->align = (uint32_t)(a >> WR_UNIT_LOG2);
    return read_reuse(o->reuse, o->deadline_ns, out);
}

weir_status wr_pool_alloc_with(
    weir_pool *p, size_t bytes, weir_stream s, const weir_alloc_options *o, weir_dptr *out)
{
    struct wr_terms terms;
    weir_status st = read_terms(p, o, &terms);
    return st == WEIR_OK ? alloc_by(p, bytes, s, &terms, out) : st;
}

/* SLOW: `h` was pinned under its lock. */
static weir_status alloc_slow(
    weir_pool *p, struct wr_heap *h, uint32_t units, const struct wr_terms *terms, uint32_t *start)
{
    weir_status st = wr_pool_enter(p);
    if (st == WEIR_OK) {
        st = wr_ladder_alloc(p, h, units, terms, start);
        wr_heaps_unpin(p, h);
        wr_pool_leave(p);
    } else {
        wr_heaps_unpin(p, h);
    }
    return st;
}

static bool is_owned(weir_pool *p, struct wr_heap *h)
{
    wr_latch_take(&h->lock);
    bool owned = h->gate == &p->context;
    wr_latch_give(&h->lock);
    return owned;
}

/* SLOW: `h` was pinned under its lock. A tick that fails leaves the frees pending for a later one. */
static void tick_by_weight(weir_pool *p, struct wr_heap *h)
{
    wr_fence_poll(&h->fence); /* nobody else may: the ticks would pile up */
    wr_fence_cover(&h->fence, wr_fence_stamp(&h->fence));
    if (is_owned(p, h)) {
        wr_fence_poll(&p->context);
        wr_policy_cover(p, &p->context, wr_fence_stamp(&p->context));
    }
    wr_heaps_unpin(p, h);
}

static weir_status pin_stream_captured_or_not(weir_pool *p, weir_stream s, struct wr_heap **out)
{
    weir_status st = wr_heaps_pin_stream(p, s, out);
    if (st == WEIR_CAPTURING && (st = wr_pool_enter(p)) == WEIR_OK) {
        st = wr_capture_pin(p, s, out);
        wr_pool_leave(p);
    }
    return st;
}

/* SLOW: freed by another stream than the block's home. */
static weir_status free_elsewhere_slow(weir_pool *p, const struct located *at, weir_stream s)
{
    struct wr_heap *by = NULL, *home;
    weir_status st = pin_stream_captured_or_not(p, s, &by);
    if (st != WEIR_OK) return st;
    bool tick = false;
    st = lock_home(p, at, &home);
    if (st == WEIR_OK) {
        st = wr_stream_free(home, at->kind, at->unit, &by->fence);
        tick = wr_stream_wants_tick(home);
        wr_latch_give(&home->lock);
    }
    if (tick)
        tick_by_weight(p, by);
    else
        wr_heaps_unpin(p, by);
    return st;
}

static weir_status mark_inside(weir_pool *p, weir_stream s, struct wr_mark *out)
{
    struct wr_heap *h;
    weir_status st = wr_heaps_pin_stream(p, s, &h);
    if (st != WEIR_OK) return st;
    uint64_t number;
    st = wr_fence_tick(&h->fence, &number);
    if (st == WEIR_OK) *out = (struct wr_mark){.fence = &h->fence, .number = number};
    wr_heaps_unpin(p, h);
    return st;
}

weir_status wr_pool_mark(weir_pool *p, weir_stream s, struct wr_mark *out)
{
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = mark_inside(p, s, out);
    wr_pool_leave(p);
    return st;
}

weir_status wr_pool_use(weir_pool *p, weir_dptr block, struct wr_mark m)
{
    struct located at = {0};
    struct wr_heap *home;
    weir_status st = locate(p, block, &at);
    if (st == WEIR_OK) st = lock_home(p, &at, &home);
    if (st != WEIR_OK) return st;
    st = wr_stream_use(home, at.unit, at.kind, m.fence, m.number - WR_FAULT(TOUCH_STAMPS_EARLY));
    wr_latch_give(&home->lock);
    return st;
}

/* Work captured on `s` uses it, at each launch: until the graph is released. */
static weir_status touch_captured(weir_pool *p, weir_dptr block, weir_stream s)
{
    struct wr_heap *by;
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = wr_capture_pin(p, s, &by);
    if (st == WEIR_OK) {
        st =
            wr_pool_use(p, block, (struct wr_mark){.fence = &by->fence, .number = wr_fence_lend(&by->fence)});
        wr_heaps_unpin(p, by);
    }
    wr_pool_leave(p);
    return st;
}

weir_status wr_pool_touch(weir_pool *p, weir_dptr block, weir_stream s)
{
    if (atomic_load(&p->state) >= WR_POOL_CLOSED) return wr_pool_refuse(p);
    struct located at = {0};
    weir_status st = locate(p, block, &at);
    struct wr_mark m;
    /* The mark is taken here and not when the memory is wanted: by then the stream may have got other work
     * (A11). */
    if (st == WEIR_OK) st = wr_pool_mark(p, s, &m);
    if (st == WEIR_CAPTURING) return touch_captured(p, block, s);
    return st == WEIR_OK ? wr_pool_use(p, block, m) : st;
}

weir_status wr_pool_retire(weir_pool *p, weir_stream s)
{
    if (atomic_load(&p->state) >= WR_POOL_CLOSED) return wr_pool_refuse(p);
    struct wr_stream_info info;
    struct wr_heap *h;
    weir_status st = wr_heaps_identify(p, s, &info);
    if (st == WEIR_OK && info.capturing)
        st = wr_fail(WEIR_CAPTURING, "a stream that captures a graph can't be retired");
    if (st != WEIR_OK) return st;
    wr_captures_forget_stream(p->pages.device, s);
    h = wr_heaps_find(p, info.id);
    if (h == NULL) return WEIR_OK;
    wr_latch_take(&h->lock);
    bool here = wr_heaps_serves(h, p, info.id); /* else it was retired meanwhile */
    if (here) h->users++;
    wr_latch_give(&h->lock);
    if (!here) return WEIR_OK;
    st = wr_fence_retire(&h->fence);
    if (st == WEIR_OK) wr_heaps_retire(p, h);
    wr_heaps_unpin(p, h);
    return st;
}

weir_status wr_pool_peer_enable(weir_pool *p, int ordinal)
{
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    struct wr_device *own = wr_pool_device(p), *peer;
    st = own->ops->sibling(own, ordinal, &peer);
    if (st == WEIR_OK) st = wr_pages_share(&p->pages, peer);
    wr_pool_leave(p);
    return st;
}

weir_status wr_pool_lock_block(
    weir_pool *p, weir_dptr block, struct wr_heap **home, enum wr_kind *kind, uint32_t *unit)
{
    struct located at = {0};
    weir_status st = locate(p, block, &at);
    if (st == WEIR_OK) st = lock_home(p, &at, home);
    if (st != WEIR_OK) return st;
    *kind = at.kind;
    *unit = at.unit;
    if (wr_stream_live_units(*home, at.kind, at.unit) > 0) return WEIR_OK;
    wr_latch_give(&(*home)->lock);
    return wr_fail(WEIR_INVALID_POINTER, "no live block starts at this address");
}

static weir_status export_inside(weir_pool *p, weir_dptr block, size_t from, weir_exported *out)
{
    struct wr_heap *home;
    enum wr_kind kind;
    uint32_t unit;
    struct wr_exported part;
    weir_status st = wr_pool_lock_block(p, block, &home, &kind, &unit);
    if (st != WEIR_OK) return st;
    uint64_t bytes = wr_size_bytes(wr_stream_live_units(home, kind, unit));
    wr_latch_give(&home->lock);
    if (from >= bytes)
        return wr_fail(WEIR_INVALID_ARGUMENT, "byte %zu of a block of %llu", from, (unsigned long long)bytes);
    uint64_t inside = from % WR_UNIT_BYTES;
    st = wr_pages_export(&p->pages, unit + (uint32_t)(from >> WR_UNIT_LOG2), &part);
    if (st != WEIR_OK) return st;
    out->fd = part.fd;
    out->segment_bytes = part.segment_bytes;
    out->offset = part.offset + inside;
    out->bytes = wr_min(bytes - from, part.segment_bytes - out->offset);
    return WEIR_OK;
}

weir_status wr_pool_export(weir_pool *p, weir_dptr block, size_t from, weir_exported *out)
{
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = export_inside(p, block, from, out);
    wr_pool_leave(p);
    return st;
}

/* ---- pinned memory ----------------------------------------------------------------------------------- */

weir_status wr_pool_host_alloc(weir_pool *p, size_t bytes, void **out)
{
    if (atomic_load(&p->state) != WR_POOL_OPEN) return wr_pool_refuse(p);
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    struct wr_pinned_stats pinned;
    wr_pinned_get_stats(p->pinned, &pinned);
    uint32_t n = pinned.pending_bytes > 0 ? atomic_load(&p->n_heaps) : 0;
    for (uint32_t i = 0; i < n; i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        wr_fence_poll(&h->fence);
        wr_heaps_unpin(p, h);
    }
    if (n > 0) wr_pinned_reap(p->pinned);
    st = wr_pinned_alloc(p->pinned, bytes, out);
    wr_pool_leave(p);
    return st;
}

weir_status wr_pool_host_free(weir_pool *p, void *host, weir_stream s)
{
    if (host == NULL) return WEIR_OK;
    weir_status st = wr_edges_check(); /* a forked child may never get the arena's lock */
    if (st != WEIR_OK) return st;
    if (s == WEIR_NO_STREAM) return wr_pinned_free(p->pinned, host, NULL, 0); /* on a closed pool, too */
    struct wr_mark m = {0};
    st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = mark_inside(p, s, &m);
    if (st == WEIR_OK)
        st = wr_pinned_free(p->pinned, host, m.fence, m.number - WR_FAULT(HOST_FREE_STAMPS_EARLY));
    wr_pool_leave(p);
    return st;
}

/* ---- life -------------------------------------------------------------------------------------------- */

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
            finish_closing(other); /* it may have been the last */
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
    if (atomic_load(&p->state) == WR_POOL_CLOSING) finish_closing(p);
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
    if (o->grow_bytes != 0 || o->soft_limit_bytes != 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a PLAIN pool never grows: no grow_bytes, no soft_limit_bytes");
    return WEIR_OK;
}

static weir_status read_sizes(struct wr_device *d, const weir_pool_options *o, struct wr_pages_plan *out)
{
    if (!(o->limit_fraction >= 0 && o->limit_fraction <= 1))
        return wr_fail(WEIR_INVALID_ARGUMENT, "limit_fraction %g is not between 0 and 1", o->limit_fraction);
    const uint64_t addressable = (uint64_t)512 << 30; /* times ADDRESS_FACTOR: what 32-bit units reach */
    uint64_t limit = o->limit_bytes != 0 ? o->limit_bytes : d->total_bytes;
    if (o->limit_fraction > 0) limit = wr_min(limit, (uint64_t)((double)d->total_bytes * o->limit_fraction));
    limit = wr_min(wr_round_down(limit, WR_PAGE_BYTES), addressable - WR_PAGE_BYTES);
    /* A segment goes back whole: near a small limit large ones would be what doesn't fit. */
    uint64_t step = wr_max(2 * WR_MIB, wr_min(32 * WR_MIB, wr_round_down(limit / 2048, WR_PAGE_BYTES)));
    if (limit == 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a limit of %zu bytes, %g of the device, is below 2 MiB",
            o->limit_bytes, o->limit_fraction);
    *out = (struct wr_pages_plan){.limit_bytes = limit,
        .grow_bytes = wr_min(o->grow_bytes != 0 ? o->grow_bytes : step, limit),
        .plain = o->backing == WEIR_BACKING_PLAIN};
    return WEIR_OK;
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
    if (st == WEIR_OK) st = read_reuse(o->reuse, o->deadline_ns, &terms);
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
    p->soft_pages = p->pages.limit_pages;
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
        wr_fence_poll(&h->fence);
        wr_latch_take(&h->lock);
        over &= wr_stream_is_empty(h) && h->users == 1 && wr_fence_is_quiet(&h->fence);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(p, h);
    }
    over &= wr_policy_cover(p, &p->context, atomic_load(&p->context.enq)) == WEIR_OK;
    wr_fence_poll(&p->context);
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
static void finish_closing(weir_pool *p)
{
    if (p->pages.slab == 0) wr_pool_close(p);
}
