/* SPDX-License-Identifier: Apache-2.0
 *
 * A seat's beginning and end. See seat.h.
 */
#include "seat.h"
#include "captures.h"

#include <stdlib.h>
#include <string.h>

/* LOCK: guards the list of all seats ever opened, which keeps them reachable, for leak checkers. */
static struct wr_lock shells_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static struct weir_seat *shells;

/* ---- open and close ---------------------------------------------------------------------------------- */

static weir_status create_events(weir_seat *s)
{
    struct wr_device *d = s->device;
    weir_status status = d->ops->event_create(d, &s->mark);
    for (unsigned i = 0; i < s->n_spots && status == WEIR_OK; i++) {
        status = d->ops->event_create(d, &s->spots[i].ready);
        if (status == WEIR_OK) status = d->ops->event_create(d, &s->spots[i].left);
    }
    return status;
}

/* Tried twice: one that stays is of no more use to anybody. */
static void destroy_event(struct wr_device *d, wr_event e)
{
    if (e && d->ops->event_destroy(d, e) != WEIR_OK) (void)d->ops->event_destroy(d, e);
}

/* No item is in hand, and the memory has gone where it goes. */
static void tear_down(weir_seat *s)
{
    wr_seat_forget_capture(s);
    destroy_event(s->device, s->mark);
    for (unsigned i = 0; i < s->n_spots; i++) {
        destroy_event(s->device, s->spots[i].ready);
        destroy_event(s->device, s->spots[i].left);
    }
    if (s->has_after) wr_copy_close(&s->after);
    wr_copy_close(&s->relay);
    free(s->spots);
}

/* The seat's own memory. */
static weir_status furnish(weir_seat *s)
{
    weir_status status = create_events(s);
    if (status == WEIR_OK && !s->in_place)
        status = weir_alloc(s->pool, s->queue->item_bytes, s->relay.stream, &s->spots[0].address);
    return status;
}

/* Off the queue's lock, inside the queue. */
static weir_status open_seat(weir_seat *s)
{
    s->n_spots = s->in_place ? s->queue->slots.n : 1;
    s->spots = calloc(s->n_spots, sizeof *s->spots);
    if (!s->spots) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a seat");
    weir_status status = wr_copy_open(&s->relay, s->pool);
    if (status != WEIR_OK) {
        free(s->spots);
        return status;
    }
    status = furnish(s);
    if (status != WEIR_OK) tear_down(s);
    return status;
}

/* LOCK: the queue's. */
static weir_status check_queue(const weir_queue *q, const weir_seat_options *o)
{
    if (wr_queue_lands(q))
        return wr_fail(WEIR_INVALID_ARGUMENT, "items of this queue are read on the host, by no graph");
    if (o->flags & WEIR_SEAT_IN_PLACE && !q->slots.unit)
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "device_bytes below items * item_bytes: slots don't keep their addresses");
    return WEIR_OK;
}

static void keep_shell(weir_seat *s)
{
    wr_lock_take(&shells_lock);
    s->next_shell = shells;
    shells = s;
    wr_lock_give(&shells_lock);
}

/* A caller compiled with an older header knows fewer fields. */
static weir_status copy_options(weir_seat_options *to, const weir_seat_options *from)
{
    *to = (weir_seat_options){.struct_size = sizeof *to};
    if (!from) return WEIR_OK;
    if (from->struct_size < sizeof from->struct_size || from->struct_size > sizeof *from)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *from);
    memcpy(to, from, from->struct_size);
    if (to->flags & ~(unsigned)WEIR_SEAT_IN_PLACE)
        return wr_fail(WEIR_INVALID_ARGUMENT, "unknown flags %#x", to->flags);
    return WEIR_OK;
}

weir_status weir_seat_open(weir_queue *q, const weir_seat_options *options, weir_seat **out)
{
    if (!out) return wr_fail(WEIR_INVALID_ARGUMENT, "the place for the seat is NULL");
    weir_seat_options o;
    weir_status status = copy_options(&o, options);
    if (status == WEIR_OK) status = wr_queue_enter(q);
    if (status != WEIR_OK) return status;
    weir_seat *s = NULL;
    status = check_queue(q, &o);
    wr_lock_give(&q->lock);
    if (status == WEIR_OK && !(s = calloc(1, sizeof *s)))
        status = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a seat");
    if (status == WEIR_OK) {
        *s = (weir_seat){.queue = q,
            .device = q->device,
            .pool = q->copier.pool,
            .consumer = o.consumer,
            .in_place = o.flags & WEIR_SEAT_IN_PLACE};
        wr_lock_init(&s->lock, WR_RANK_QUEUE);
        status = open_seat(s);
    }
    if (status != WEIR_OK) {
        free(s);
        wr_lock_take(&q->lock);
        return wr_queue_leave(q, status);
    }
    keep_shell(s);
    *out = s;
    return WEIR_OK;
}

/* What the last step reads stays until it has. */
static weir_status give_all(weir_seat *s)
{
    weir_status status = wr_seat_give_back(s);
    if (status == WEIR_OK && s->held.handle) status = wr_seat_release(s); /* it never landed */
    if (status != WEIR_OK || s->in_place || !s->spots[0].address) return status;
    status = wr_seat_wait_for_readers(s, s->spots);
    if (status == WEIR_OK) status = weir_free(s->pool, s->spots[0].address, s->relay.stream);
    if (status == WEIR_OK) s->spots[0].address = 0;
    return status;
}

static void end_seat(weir_seat *s)
{
    tear_down(s);
    wr_lock_take(&s->lock);
    s->closed = true;
    wr_lock_give(&s->lock);
    wr_lock_take(&s->queue->lock);
    (void)wr_queue_leave(s->queue, WEIR_OK);
}

weir_status weir_seat_close(weir_seat *s)
{
    weir_status status = wr_seat_begin_call(s);
    if (status != WEIR_OK) return status;
    if (s->entered && !s->entered_in)
        return wr_seat_end_call(s, wr_fail(WEIR_INVALID_ARGUMENT, "the seat was entered and not left"));
    if (s->entered && wr_captures_goes_on(s->device, s->noted_on, s->noted))
        return wr_seat_end_call(s, wr_fail(WEIR_CAPTURING, "the seat was entered in a capture that goes on"));
    status = give_all(s);
    if (status != WEIR_OK && status != WEIR_CONTEXT_LOST) return wr_seat_end_call(s, status);
    end_seat(s); /* on a lost device, too: nothing runs there any more */
    return wr_seat_end_call(s, status);
}
