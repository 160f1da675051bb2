/* SPDX-License-Identifier: Apache-2.0
 *
 * The consumers' side: acquire, use, release. See queue.h.
 */
#include "queue.h"

#define STREAM_PER_THREAD ((weir_stream)2) /* CU_STREAM_PER_THREAD: another stream in each thread */

/* The next item, out of the order and BUSY. LOCK: held, given up while asleep. */
static weir_status await_item(weir_queue *q, int64_t timeout_ns, struct wr_place **out)
{
    struct wr_waiter me;
    wr_line_join(&q->consumers, &me, q->device, timeout_ns);
    weir_status s = WEIR_OK;
    for (*out = NULL; s == WEIR_OK;) {
        struct wr_place *p = q->order;
        if (q->destroyed || (q->closed && !p && q->n_delivering == 0)) {
            s = wr_fail(WEIR_CLOSED, "the queue is closed, and all its items are delivered");
        } else if (q->consumers == &me && p && p->state == WR_PLACE_READY) {
            p->state = WR_PLACE_BUSY;
            wr_queue_remove(q, p);
            q->n_delivering++;
            *out = p;
            break;
        } else {
            s = wr_queue_doze(q, &me, WR_CAUSE_ITEM, false);
        }
    }
    wr_queue_leave_line(q, &q->consumers, &me);
    return s;
}

/* The stream waits for the item's copy. Its heap is kept from ending until the item is released: of a stream
 * or thread that is gone the fence stays, to be waited for. Off the lock. */
static weir_status join_copy(weir_queue *q, struct wr_place *p, weir_stream stream, bool *waits)
{
    struct wr_heap *reader;
    weir_status s = wr_heaps_pin_stream(q->copier.pool, stream, &reader);
    if (s != WEIR_OK) return s;
    *waits = !wr_mark_passed(p->copied) && !WR_FAULT(QUEUE_ACQUIRE_SKIPS_WAIT);
    if (*waits) s = wr_mark_wait(p->copied, stream);
    if (s != WEIR_OK) {
        wr_heaps_unpin(q->copier.pool, reader);
        return s;
    }
    p->reader = reader;
    p->stream = stream;
    return WEIR_OK;
}

/* BUSY becomes HELD; after an error the item is the next one again. LOCK: held, given up meanwhile. */
static weir_status deliver(weir_queue *q, struct wr_place *p, weir_stream stream)
{
    bool waits = false;
    wr_lock_give(&q->lock);
    weir_status s = join_copy(q, p, stream, &waits);
    wr_lock_take(&q->lock);
    q->n_delivering--;
    wr_line_wake(q->consumers); /* to take it after an error, or to see that a closed queue is empty now */
    if (s != WEIR_OK) {
        p->state = WR_PLACE_READY;
        wr_queue_insert(q, p);
        return s;
    }
    p->state = WR_PLACE_HELD;
    q->stats.items_delivered++;
    q->stats.stream_waits_copy += waits;
    return q->destroyed ? wr_fail(WEIR_CLOSED, "the queue was destroyed meanwhile") : WEIR_OK;
}

weir_status weir_queue_acquire(weir_queue *q, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_place *p;
    s = await_item(q, timeout_ns, &p);
    if (s == WEIR_OK) s = deliver(q, p, stream);
    if (s == WEIR_OK) *item = (weir_item){.ticket = p->ticket, .bytes = p->bytes, .device = p->slot->address};
    return wr_queue_leave(q, s);
}

/* ---- readers ----------------------------------------------------------------------------------------- */

weir_status weir_queue_use(weir_queue *q, const weir_item *item, weir_stream stream)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (!wr_queue_find(q, item->ticket, WR_PLACE_HELD))
        return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "held"));
    struct wr_mark mark;
    wr_lock_give(&q->lock);
    s = wr_pool_mark(q->copier.pool, stream, &mark);
    wr_lock_take(&q->lock);
    if (s != WEIR_OK) return wr_queue_leave(q, s);
    struct wr_place *p = wr_queue_find(q, item->ticket, WR_PLACE_HELD);
    if (p)
        s = wr_slots_add_mark(p->slot, mark);
    else
        s = wr_queue_fail_stale(item->ticket, "held"); /* released meanwhile: the mark comes too late */
    return wr_queue_leave(q, s);
}

/* What the acquiring stream has queued so far. A per-thread stream can't be named by another thread. */
static weir_status mark_acquirer(weir_queue *q, const struct wr_place *p, struct wr_mark *out)
{
    if (p->stream != STREAM_PER_THREAD) return wr_pool_mark(q->copier.pool, p->stream, out);
    out->fence = &p->reader->fence;
    return wr_fence_tick(out->fence, &out->number);
}

/* Off the lock: the place is BUSY. Marks taken before an error stay, and do no harm. */
static weir_status mark_readers(
    weir_queue *q, const struct wr_place *p, const weir_stream *streams, size_t n_streams)
{
    struct wr_mark mark;
    weir_status s = WEIR_OK;
    if (n_streams == 0) {
        s = mark_acquirer(q, p, &mark);
        if (s == WEIR_OK) s = wr_slots_add_mark(p->slot, mark);
    }
    if (WR_FAULT(QUEUE_RELEASE_FORGETS) && n_streams > 1) n_streams = 1;
    for (size_t i = 0; i < n_streams && s == WEIR_OK; i++) {
        s = wr_pool_mark(q->copier.pool, streams[i], &mark);
        if (s == WEIR_OK) s = wr_slots_add_mark(p->slot, mark);
    }
    if (s == WEIR_OK) wr_heaps_unpin(q->copier.pool, p->reader);
    return s;
}

weir_status weir_queue_release(weir_queue *q, weir_item *item, const weir_stream *streams, size_t n_streams)
{
    if (!item || (!streams && n_streams > 0))
        return wr_fail(WEIR_INVALID_ARGUMENT, "the item or the list of streams is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_place *p = wr_queue_find(q, item->ticket, WR_PLACE_HELD);
    if (!p) return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "held"));
    p->state = WR_PLACE_BUSY;
    wr_lock_give(&q->lock);
    s = mark_readers(q, p, streams, n_streams);
    wr_lock_take(&q->lock);
    if (s != WEIR_OK) {
        p->state = WR_PLACE_HELD;
        return wr_queue_leave(q, s);
    }
    q->stats.items_released++;
    wr_queue_give_slot(q, p);
    item->device = 0;
    return wr_queue_leave(q, WEIR_OK);
}
