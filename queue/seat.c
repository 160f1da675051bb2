/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking items, and the step that reads them. See seat.h.
 */
#include "seat.h"
#include "captures.h"
#include "edges.h"

/* ---- calls in and out -------------------------------------------------------------------------------- */

weir_status wr_seat_begin_call(weir_seat *s)
{
    if (!s) return wr_fail(WEIR_INVALID_ARGUMENT, "the seat is NULL");
    weir_status status = wr_edges_check();
    if (status != WEIR_OK) return status;
    wr_lock_take(&s->lock);
    bool closed = s->closed, busy = s->busy;
    if (!closed) s->busy = true;
    wr_lock_give(&s->lock);
    if (closed) return wr_fail(WEIR_CLOSED, "the seat is closed");
    return busy ? wr_fail(WEIR_INVALID_ARGUMENT, "another thread's call of the seat has not returned")
                : WEIR_OK;
}

weir_status wr_seat_end_call(weir_seat *s, weir_status status)
{
    wr_lock_take(&s->lock);
    s->busy = false;
    wr_lock_give(&s->lock);
    return status;
}

/* ---- the next item ----------------------------------------------------------------------------------- */

weir_status wr_seat_wait_for_readers(weir_seat *s, const struct wr_spot *at)
{
    if (WR_FAULT(SEAT_SKIPS_READERS)) return WEIR_OK;
    return s->device->ops->stream_wait(s->device, s->relay.stream, at->left);
}

/* What a destroyed queue has lent comes back to it by the seat's close, behind the relay. What is not held any more was
 * its consumer's, who has left. */
weir_status wr_seat_release(weir_seat *s)
{
    weir_status status = weir_queue_release(s->queue, &s->held, NULL, 0);
    if (status != WEIR_OK && status != WEIR_CLOSED && status != WEIR_STALE_HANDLE) return status;
    s->held.handle = 0;
    return WEIR_OK;
}

static weir_status acquire(weir_seat *s, int64_t timeout_ns)
{
    weir_stream relay = s->relay.stream;
    weir_item item;
    weir_status status = s->consumer ? weir_queue_acquire_as(s->queue, s->consumer, relay, timeout_ns, &item)
                                     : weir_queue_acquire(s->queue, relay, timeout_ns, &item);
    if (status == WEIR_OK) s->held = item;
    return status;
}

static struct wr_spot *find_spot(const weir_seat *s)
{
    struct wr_spot *at = s->spots;
    if (!s->in_place) return at;
    while (at->address && at->address != s->held.device)
        at++;
    assert(at < s->spots + s->n_spots); /* slots of full size stay where they are */
    at->address = s->held.device;
    return at;
}

static weir_status copy_into(weir_seat *s, const struct wr_spot *at)
{
    weir_status status = wr_seat_wait_for_readers(s, at);
    if (status != WEIR_OK) return status;
    return s->device->ops->copy(
        s->device, WR_COPY_D2D, at->address, s->held.device, s->held.bytes, s->relay.stream);
}

/* Steps from here on that wait for `ready` wait for the item in hand. */
static weir_status land(weir_seat *s)
{
    s->now = find_spot(s);
    weir_status status = s->in_place ? WEIR_OK : copy_into(s, s->now);
    if (status == WEIR_OK) status = s->device->ops->event_record(s->device, s->now->ready, s->relay.stream);
    s->landed = status == WEIR_OK;
    return status;
}

/* An item in hand that has not landed is there because a call failed: it is kept. */
weir_status wr_seat_give_back(weir_seat *s)
{
    if (!s->held.handle || !s->landed) return WEIR_OK;
    weir_status status = wr_seat_wait_for_readers(s, s->now);
    if (status == WEIR_OK) status = wr_seat_release(s);
    if (status == WEIR_OK) s->landed = false;
    return status;
}

static weir_status take_next(weir_seat *s, int64_t timeout_ns, weir_item *item)
{
    weir_status status = wr_seat_give_back(s);
    if (status == WEIR_OK && !s->held.handle) status = acquire(s, timeout_ns);
    if (status == WEIR_OK) status = land(s);
    if (status != WEIR_OK) return status;
    weir_item taken = s->held;
    if (!s->in_place) {
        status = wr_seat_release(s);
        s->landed = status == WEIR_OK; /* else the next call lands it again */
    }
    if (status != WEIR_OK) return status;
    *item = taken;
    item->handle = 0;
    item->device = s->now->address;
    return WEIR_OK;
}

weir_status weir_seat_next(weir_seat *s, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status status = wr_seat_begin_call(s);
    if (status != WEIR_OK) return status;
    if (s->entered)
        status = wr_fail(WEIR_INVALID_ARGUMENT, "the seat was entered and not left, so its readers can't be "
                                                "waited for: leave it, or capture anew");
    else
        status = take_next(s, timeout_ns, item);
    return wr_seat_end_call(s, status);
}

/* ---- the step ---------------------------------------------------------------------------------------- */

/* The capture that the stream is part of; 0: none. */
static weir_status find_capture(weir_seat *s, weir_stream stream, uint64_t *id)
{
    struct wr_device *d = s->device;
    struct wr_stream_info info;
    weir_status status = d->ops->stream_identify(d, stream, &info);
    *id = 0;
    if (status != WEIR_OK || !info.capturing) return status;
    status = d->ops->stream_capture(d, stream, id);
    if (status == WEIR_OK && *id == 0)
        status = wr_fail(WEIR_CAPTURING, "the stream is part of no capture that has an id");
    return status;
}

void wr_seat_forget_capture(weir_seat *s)
{
    if (s->noted) wr_captures_forget(s->device, s->noted_on, s->noted);
    s->noted = 0;
}

/* So that nothing is done by weir meanwhile that would break it. */
static weir_status note_capture(weir_seat *s, weir_stream stream, uint64_t id)
{
    if (id == s->noted && stream == s->noted_on) return WEIR_OK;
    if (!wr_captures_note(s->device, stream, id))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to note a capture");
    wr_seat_forget_capture(s);
    s->noted_on = stream;
    s->noted = id;
    return WEIR_OK;
}

static weir_status wait_at(weir_seat *s, weir_stream stream, uint64_t capture, wr_event e)
{
    struct wr_device *d = s->device;
    if (WR_FAULT(SEAT_SKIPS_READY)) return WEIR_OK;
    return capture ? d->ops->stream_wait_external(d, stream, e) : d->ops->stream_wait(d, stream, e);
}

static weir_status record_at(weir_seat *s, weir_stream stream, uint64_t capture, wr_event e)
{
    struct wr_device *d = s->device;
    return capture ? d->ops->event_record_external(d, e, stream) : d->ops->event_record(d, e, stream);
}

/* Those who read there would leave by nobody's word. A capture that was given up has no readers. */
static bool is_entered_elsewhere(const weir_seat *s, uint64_t capture)
{
    if (!s->entered || s->entered_in == capture) return false;
    return !s->entered_in || wr_captures_goes_on(s->device, s->noted_on, s->noted);
}

static weir_status enter_seat(weir_seat *s, weir_stream stream, weir_dptr *device)
{
    uint64_t capture;
    weir_status status = find_capture(s, stream, &capture);
    if (status != WEIR_OK) return status;
    if (is_entered_elsewhere(s, capture))
        return wr_fail(WEIR_INVALID_ARGUMENT, "the seat was entered outside of this capture, and not left");
    bool needs_item = s->in_place || !capture;
    if (needs_item && !s->landed)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no item has the seat: call weir_seat_next first");
    const struct wr_spot *at = s->in_place ? s->now : s->spots;
    if (capture) status = note_capture(s, stream, capture);
    if (status == WEIR_OK) status = wait_at(s, stream, capture, at->ready);
    if (status != WEIR_OK) return status;
    s->entered = true;
    s->entered_in = capture;
    *device = at->address;
    return WEIR_OK;
}

weir_status weir_seat_enter(weir_seat *s, weir_stream stream, weir_dptr *device)
{
    if (!device) return wr_fail(WEIR_INVALID_ARGUMENT, "the place for the address is NULL");
    weir_status status = wr_seat_begin_call(s);
    return status == WEIR_OK ? wr_seat_end_call(s, enter_seat(s, stream, device)) : status;
}

static weir_status leave_seat(weir_seat *s, weir_stream stream)
{
    uint64_t capture;
    if (!s->entered) return wr_fail(WEIR_INVALID_ARGUMENT, "the seat was not entered");
    weir_status status = find_capture(s, stream, &capture);
    if (status != WEIR_OK) return status;
    if (capture != s->entered_in)
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "the stream is not part of the capture that the seat was entered in");
    const struct wr_spot *at = s->in_place ? s->now : s->spots;
    status = record_at(s, stream, capture, at->left);
    s->entered = status != WEIR_OK;
    return status;
}

weir_status weir_seat_leave(weir_seat *s, weir_stream stream)
{
    weir_status status = wr_seat_begin_call(s);
    return status == WEIR_OK ? wr_seat_end_call(s, leave_seat(s, stream)) : status;
}

/* ---- copies that begin at a place of the step ---------------------------------------------------------- */

weir_status weir_seat_mark(weir_seat *s, weir_stream stream)
{
    uint64_t capture;
    weir_status status = wr_seat_begin_call(s);
    if (status != WEIR_OK) return status;
    status = find_capture(s, stream, &capture);
    if (status == WEIR_OK) status = record_at(s, stream, capture, s->mark);
    s->marked |= status == WEIR_OK;
    return wr_seat_end_call(s, status);
}

static weir_status wait_for_mark(weir_seat *s, weir_stream *out)
{
    weir_status status = WEIR_OK;
    if (!s->marked) return wr_fail(WEIR_INVALID_ARGUMENT, "no place of a step is marked");
    if (!s->has_after) {
        status = wr_copy_open(&s->after, s->pool);
        s->has_after = status == WEIR_OK;
    }
    if (status == WEIR_OK && !WR_FAULT(SEAT_SKIPS_MARK))
        status = s->device->ops->stream_wait(s->device, s->after.stream, s->mark);
    if (status == WEIR_OK) *out = s->after.stream;
    return status;
}

weir_status weir_seat_marked(weir_seat *s, weir_stream *after)
{
    if (!after) return wr_fail(WEIR_INVALID_ARGUMENT, "the place for the stream is NULL");
    weir_status status = wr_seat_begin_call(s);
    return status == WEIR_OK ? wr_seat_end_call(s, wait_for_mark(s, after)) : status;
}
