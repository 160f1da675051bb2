/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumers' side: acquire and its kind, use, release. See queue.h.
 */
#include "queue.h"
#include "nvtx.h"

#define STREAM_PER_THREAD ((weir_stream)2) /* CU_STREAM_PER_THREAD: another stream in each thread */

/* What an acquire has got: a hold on an item. */
struct grip {
    struct wr_place *place;
    struct wr_hold *hold;
};

/* ---- handles ----------------------------------------------------------------------------------------- */

static uint64_t handle_of(const weir_queue *q, struct grip g)
{
    return wr_queue_handle(q, g.place, (unsigned)(g.hold - g.place->holds), g.hold->generation);
}

/* False: the handle is stale, or of another queue. */
static bool find_held(weir_queue *q, const weir_item *item, struct grip *out)
{
    struct wr_place *p = wr_queue_find(q, item);
    if (!p) return false;
    *out = (struct grip){p, &p->holds[wr_queue_hold_of(item)]};
    return out->hold->state == WR_HOLD_HELD && handle_of(q, *out) == item->handle;
}

/* ---- taking (under the lock) ------------------------------------------------------------------------- */

static struct wr_hold *free_hold(struct wr_place *p)
{
    for (unsigned i = 0; i < WR_QUEUE_HOLDS; i++)
        if (p->holds[i].state == WR_HOLD_FREE) return &p->holds[i];
    return NULL;
}

/* PAIRS: put_back, end_hold. */
static struct grip take(weir_queue *q, struct wr_place *p, struct wr_hold *h, const struct wr_want *want)
{
    *h = (struct wr_hold){.state = WR_HOLD_BUSY,
        .generation = h->generation + 1,
        .consumer = want->consumer,
        .peeks = want->peeks};
    p->n_holds++;
    if (!want->peeks) {
        q->n_held++;
        q->n_delivering++;
        if (q->sharing == WEIR_CONSUMERS_BROADCAST) p->owed &= ~((uint64_t)1 << (want->consumer - 1));
        if (p->owed == 0) wr_order_remove(q, p);
    }
    return (struct grip){p, h};
}

static void end_hold(weir_queue *q, struct grip g)
{
    g.hold->state = WR_HOLD_FREE;
    g.place->n_holds--;
    q->n_held -= !g.hold->peeks;
    bool was_full = g.place->n_holds == WR_QUEUE_HOLDS - 1;
    wr_order_end_if_over(q, g.place);
    if (q->sharing == WEIR_CONSUMERS_STRICT || was_full) wr_queue_wake_consumers(q);
}

/* Whoever it was for is to get it still: unless that one has left, and nobody else may have it. */
static void put_back(weir_queue *q, struct grip g)
{
    if (!g.hold->peeks) {
        bool wanted = q->sharing != WEIR_CONSUMERS_LATEST || g.place->ticket == q->newest;
        if (q->sharing == WEIR_CONSUMERS_BROADCAST) {
            g.place->owed |= ((uint64_t)1 << (g.hold->consumer - 1)) & q->joined;
            wanted = g.place->owed != 0;
        }
        if (wanted && !g.place->listed) wr_order_insert(q, g.place);
    }
    end_hold(q, g);
}

/* What the caller lacks to go on; NOTHING: *out is taken, or nothing will come any more. */
static enum wr_cause try_take(
    weir_queue *q, const struct wr_consumer_waiter *me, const struct wr_want *want, struct grip *out)
{
    if (!want->peeks && q->sharing == WEIR_CONSUMERS_STRICT && q->n_held > 0) return WR_CAUSE_TURN;
    struct wr_place *p = wr_order_next(q, want);
    if (!p || (!want->peeks && wr_order_claimed(q, me, p))) return WR_CAUSE_ITEM;
    if (wr_queue_lands(q) && !wr_mark_passed(p->copied) && !WR_FAULT(QUEUE_ACQUIRE_SKIPS_WAIT))
        return WR_CAUSE_TRANSFER;
    struct wr_hold *h = free_hold(p);
    if (!h) return WR_CAUSE_TURN;
    *out = take(q, p, h, want);
    return WR_CAUSE_NOTHING;
}

static bool has_left(const weir_queue *q, const struct wr_want *want)
{
    return want->consumer && !(q->joined >> (want->consumer - 1) & 1);
}

/* LOCK: held, given up while asleep. */
static weir_status await_item(weir_queue *q, const struct wr_want *want, int64_t timeout_ns, struct grip *out)
{
    struct wr_consumer_waiter me = {.want = want};
    wr_line_join(&q->consumers, &me.line, timeout_ns);
    q->n_peeking += want->peeks;
    weir_status s = WEIR_OK;
    for (*out = (struct grip){0}; s == WEIR_OK && !out->place;) {
        enum wr_cause lacks = WR_CAUSE_ITEM;
        if (wr_queue_lands(q)) wr_queue_poll_copies(q); /* before the look, which no wake-up may escape */
        bool over = wr_ends_over(q, want), left = has_left(q, want);
        if (!over && !left) lacks = try_take(q, &me, want, out);
        if (left)
            s = wr_fail(WEIR_STALE_HANDLE, "the consumer has left");
        else if (over)
            s = wr_ends_refuse(q);
        else if (!out->place)
            s = wr_queue_doze(q, &me.line, lacks, lacks == WR_CAUSE_TRANSFER);
    }
    wr_queue_leave_line(q, &q->consumers, &me.line);
    if (wr_queue_wants_differ(q)) wr_line_wake_all(q->consumers);
    q->n_peeking -= want->peeks;
    return s;
}

/* ---- delivering -------------------------------------------------------------------------------------- */

/* The stream waits for the copy. *reader is its heap, pinned. Off the lock. */
static weir_status wait_pinned(
    weir_queue *q, struct wr_mark copied, weir_stream stream, struct wr_heap **reader, bool *waits)
{
    weir_status s = wr_heaps_pin_stream(q->copier.pool, stream, reader);
    if (s != WEIR_OK) return s;
    *waits = !wr_mark_passed(copied) && !WR_FAULT(QUEUE_ACQUIRE_SKIPS_WAIT);
    if (*waits) s = wr_mark_wait(copied, stream);
    if (s != WEIR_OK) wr_heaps_unpin(q->copier.pool, *reader);
    return s;
}

/* The stream waits for the item's copy, for which the host has waited where items land there. Its heap is kept from
 * ending until the item is released: of a stream or thread that is gone the fence stays, to be waited for. Off the
 * lock. */
static weir_status join_copy(weir_queue *q, struct grip g, weir_stream stream, bool *waits)
{
    struct wr_heap *reader;
    if (wr_queue_lands(q)) return WEIR_OK;
    weir_status s = wait_pinned(q, g.place->copied, stream, &reader, waits);
    if (s != WEIR_OK) return s;
    g.hold->reader = reader;
    g.hold->stream = stream;
    g.hold->span =
        wr_timeline_begin(q->copier.timeline, WR_SPAN_USE, g.place->ticket, g.place->bytes, stream);
    return WEIR_OK;
}

/* Another thread can't name the per-thread stream that acquired. LOCK: not held. */
static void end_span(weir_queue *q, const struct wr_hold *h, weir_stream stream)
{
    if (stream == STREAM_PER_THREAD && !wr_fence_is_of(&h->reader->fence, stream))
        wr_timeline_forget(q->copier.timeline, h->span);
    else
        wr_timeline_end(q->copier.timeline, h->span, stream);
}

/* The item's last use is queued on *last; NULL: it was not used. LOCK: held, given up meanwhile. The hold is BUSY. */
static void unpin_reader(weir_queue *q, const struct wr_hold *h, const weir_stream *last)
{
    if (!h->reader) return; /* read on the host */
    wr_lock_give(&q->lock);
    if (last)
        end_span(q, h, *last);
    else
        wr_timeline_forget(q->copier.timeline, h->span);
    wr_heaps_unpin(q->copier.pool, h->reader);
    wr_lock_take(&q->lock);
}

/* The consumer has left while its item was on the way: nothing reads it, but the wait that was queued. */
static weir_status refuse_late(weir_queue *q, struct grip g)
{
    unpin_reader(q, g.hold, NULL);
    put_back(q, g);
    return wr_fail(WEIR_STALE_HANDLE, "the consumer has left meanwhile");
}

/* BUSY becomes HELD; after an error the item is the next one again. LOCK: held, given up meanwhile. */
static weir_status deliver(weir_queue *q, struct grip g, const struct wr_want *want, weir_stream stream)
{
    bool waits = false;
    wr_lock_give(&q->lock);
    uint64_t start = wr_diagnose_clock(q);
    weir_status s = join_copy(q, g, stream, &waits);
    uint64_t took = wr_diagnose_clock(q) - start;
    wr_lock_take(&q->lock);
    if (q->stats.items_delivered > 0) wr_diagnose_call(q, took); /* the first sets the driver up */
    if (s == WEIR_OK && !wr_queue_lands(q)) wr_diagnose_reader(q, stream);
    if (s == WEIR_OK && has_left(q, want))
        s = refuse_late(q, g);
    else if (s != WEIR_OK)
        put_back(q, g);
    q->n_delivering -= !want->peeks;
    wr_queue_wake_consumers(q); /* to take it after an error, or to see that a closed queue is empty now */
    if (s != WEIR_OK) return s;
    g.hold->state = WR_HOLD_HELD;
    g.place->delivered = true;
    q->stats.items_delivered += !want->peeks;
    q->stats.stream_waits_copy += waits;
    return q->destroyed ? wr_ends_refuse(q) : WEIR_OK;
}

weir_status wr_consume_acquire(
    weir_queue *q, const struct wr_want *want, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    struct grip g;
    weir_status s = await_item(q, want, timeout_ns, &g);
    if (s == WEIR_OK) s = deliver(q, g, want, stream);
    if (s != WEIR_OK) return s;
    uint64_t address = g.place->slot->address;
    *item = (weir_item){.ticket = g.place->ticket,
        .handle = handle_of(q, g),
        .key = g.place->key,
        .bytes = g.place->bytes,
        .host = wr_queue_lands(q) ? (void *)(uintptr_t)address : NULL,
        .device = wr_queue_lands(q) ? 0 : address};
    return WEIR_OK;
}

weir_status weir_queue_acquire(weir_queue *q, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    WR_NVTX_RANGE("acquire", 0);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->sharing == WEIR_CONSUMERS_SHARED || q->sharing == WEIR_CONSUMERS_BROADCAST)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "consumers of this queue are registered: see weir_queue_join");
    struct wr_want want = {0};
    if (s == WEIR_OK) s = wr_consume_acquire(q, &want, stream, timeout_ns, item);
    return wr_queue_leave(q, s);
}

/* ---- readers ----------------------------------------------------------------------------------------- */

static weir_status fail_streams(void)
{
    return wr_fail(WEIR_INVALID_ARGUMENT, "items of this queue are read on the host, by no stream");
}

weir_status weir_queue_await(weir_queue *q, const weir_item *item, weir_stream stream)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (wr_queue_lands(q)) return wr_queue_leave(q, fail_streams());
    struct grip g;
    if (!find_held(q, item, &g)) return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "held"));
    struct wr_mark copied = g.place->copied;
    bool waits = false;
    wr_lock_give(&q->lock);
    struct wr_heap *reader;
    s = wait_pinned(q, copied, stream, &reader, &waits);
    if (s == WEIR_OK) wr_heaps_unpin(q->copier.pool, reader);
    wr_lock_take(&q->lock);
    if (s == WEIR_OK) q->stats.stream_waits_copy += waits;
    return wr_queue_leave(q, s);
}

weir_status weir_queue_use(weir_queue *q, const weir_item *item, weir_stream stream)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct grip g;
    if (!find_held(q, item, &g)) return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "held"));
    if (wr_queue_lands(q)) return wr_queue_leave(q, fail_streams());
    struct wr_mark mark;
    wr_lock_give(&q->lock);
    s = wr_pool_mark(q->copier.pool, stream, &mark);
    wr_lock_take(&q->lock);
    if (s != WEIR_OK) return wr_queue_leave(q, s);
    wr_diagnose_reader(q, stream);
    if (find_held(q, item, &g))
        s = wr_slots_add_mark(g.place->slot, mark);
    else
        s = wr_queue_fail_stale(item->ticket, "held"); /* released meanwhile: the mark comes too late */
    return wr_queue_leave(q, s);
}

/* What the acquiring stream has queued so far. Its fence knows whether the handle still names that stream, and whether
 * this thread may name it. */
static weir_status mark_acquirer(const struct wr_hold *h, struct wr_mark *out)
{
    out->fence = &h->reader->fence;
    return wr_fence_tick(out->fence, &out->number);
}

/* LOCK: held, given up for each mark. The hold is BUSY. Marks taken before an error stay, and do no harm. */
static weir_status mark_readers(weir_queue *q, const struct wr_place *p, const struct wr_hold *h,
    const weir_stream *streams, size_t n_streams)
{
    weir_status s = WEIR_OK;
    if (wr_queue_lands(q)) return WEIR_OK; /* the host has read it */
    if (WR_FAULT(QUEUE_RELEASE_FORGETS) && n_streams > 1) n_streams = 1;
    if (WR_FAULT(QUEUE_RELEASE_FORGETS_OWN) && n_streams == 0) return WEIR_OK;
    if (WR_FAULT(QUEUE_BROADCAST_KEEPS_FIRST) && p->slot->n_marks > 0) return WEIR_OK;
    for (size_t i = 0; i < (n_streams ? n_streams : 1) && s == WEIR_OK; i++) {
        struct wr_mark mark;
        wr_lock_give(&q->lock);
        s = n_streams ? wr_pool_mark(q->copier.pool, streams[i], &mark) : mark_acquirer(h, &mark);
        wr_lock_take(&q->lock);
        if (s == WEIR_OK) s = wr_slots_add_mark(p->slot, mark);
    }
    return s;
}

weir_status wr_consume_release(
    weir_queue *q, struct wr_place *p, struct wr_hold *h, const weir_stream *streams, size_t n_streams)
{
    h->state = WR_HOLD_BUSY;
    uint64_t start = wr_diagnose_clock(q);
    weir_status s = mark_readers(q, p, h, streams, n_streams);
    if (q->stats.items_released > 0) wr_diagnose_call(q, wr_diagnose_clock(q) - start);
    if (s != WEIR_OK) {
        h->state = WR_HOLD_HELD;
        return s;
    }
    unpin_reader(q, h, n_streams ? &streams[0] : &h->stream);
    q->stats.items_released += !h->peeks;
    end_hold(q, (struct grip){p, h});
    return WEIR_OK;
}

weir_status weir_queue_release(weir_queue *q, weir_item *item, const weir_stream *streams, size_t n_streams)
{
    if (!item || (!streams && n_streams > 0))
        return wr_fail(WEIR_INVALID_ARGUMENT, "the item or the list of streams is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct grip g;
    if (!find_held(q, item, &g)) return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "held"));
    if (wr_queue_lands(q) && n_streams > 0) return wr_queue_leave(q, fail_streams());
    s = wr_consume_release(q, g.place, g.hold, streams, n_streams);
    if (s == WEIR_OK) item->device = 0;
    if (s == WEIR_OK) item->host = NULL;
    return wr_queue_leave(q, s);
}
