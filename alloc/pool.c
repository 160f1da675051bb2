/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A pool is a set of heaps, one per stream (heaps.c), over one page pool (pages.c). A block is found
 * by its address: page -> owner tag -> heap -> index of live blocks. The tag is read without a lock; for a
 * page with a live block it can't change, and for any other the heap's index has the last word.
 */
#include "pool.h"
#include "captures.h"

/* ---- HOT PATH ---------------------------------------------------------------------------------------- */
/* Budget, warm, single thread: alloc two driver reads (24 ns each), none where streams are announced; free
 * none; each one uncontended latch, and what stream.c says. */

struct located;
static weir_status alloc_slow(
    weir_pool *p, struct wr_heap *h, uint32_t units, const struct wr_terms *terms, uint32_t *start);
static weir_status free_elsewhere_slow(weir_pool *p, const struct located *at, weir_stream s);
static void tick_by_weight(weir_pool *p, struct wr_heap *h);

/* `terms` NULL: a plain alloc, for which the compiler leaves out all that has to do with terms. */
static inline __attribute__((always_inline)) weir_status alloc_by(
    weir_pool *p, size_t bytes, weir_stream s, const struct wr_terms *terms, weir_dptr *out)
{
    if (WR_UNLIKELY(atomic_load_explicit(&p->state, memory_order_relaxed) != WR_POOL_OPEN))
        return wr_pool_refuse(p);
    uint64_t limit =
        (uint64_t)atomic_load_explicit(&p->pages.limit_pages, memory_order_relaxed) * WR_PAGE_BYTES;
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
    if (terms != NULL || WR_UNLIKELY(h->disowned))
        wr_policy_choose(p, h, terms != NULL ? terms->reuse : p->terms.reuse);
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
    if (WR_UNLIKELY(closing && st == WEIR_OK)) wr_pool_finish_closing(p);
    return st;
}

/* ---- slow calls -------------------------------------------------------------------------------------- */

weir_status wr_pool_read_reuse(weir_reuse reuse, int64_t deadline_ns, struct wr_terms *terms)
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
    return wr_pool_read_reuse(o->reuse, o->deadline_ns, out);
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
    wr_fence_poll(&h->fence); /* what was freed long ago is known to be free, though nobody else asks */
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
