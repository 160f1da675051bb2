/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats from inside, over acquire and release: see weir_graph.h. seat.c: taking items, and the step. seat_life.c: open
 * and close.
 *
 * SPOTS. A spot is an address that graphs know, with two events that stay its own: `ready`, which launches wait for,
 * and `left`, which they record. A copied seat has one spot, in memory of its own; one in place has a spot for each
 * slot.
 *
 * THE RELAY is a stream of the seat's own, on which nothing runs but waits, and the copy into the seat. It acquires the
 * items, so that `ready` is recorded behind their copies; and it waits for `left` before the item is released, or
 * overwritten. So the queue knows of one reader like any other, and of no graph.
 *
 * A seat counts as a call inside its queue, from open to close: a queue that is destroyed meanwhile leaves its slots,
 * and its hold on the pool, to the close of its last seat.
 *
 * LOCK: guards `busy` and `closed`. All else is the busy caller's. No driver call is made under it.
 */
#ifndef WR_SEAT_H
#define WR_SEAT_H

#include "queue.h"
#include "weir_graph.h"

struct wr_spot {
    weir_dptr address; /* 0: in place, of a slot not met yet */
    wr_event ready, left;
};

struct weir_seat {
    struct wr_lock lock;
    struct weir_seat *next_shell;
    bool busy, closed;

    weir_queue *queue; /* constant from open to close, down to in_place */
    struct wr_device *device;
    weir_pool *pool;
    struct wr_copier relay;
    struct wr_spot *spots;
    unsigned n_spots;
    weir_consumer consumer;
    bool in_place;

    weir_item held;      /* acquired and not released; handle 0: none */
    struct wr_spot *now; /* where the last item is, or was */
    bool landed;         /* it is there: `ready` is behind it */

    bool entered;         /* and not left */
    uint64_t entered_in;  /* the capture; 0: in none */
    weir_stream noted_on; /* of the last capture that was entered in: see captures.h */
    uint64_t noted;       /* 0: none */

    wr_event mark;
    bool marked, has_after;
    struct wr_copier after; /* waits for marks */
};

/* Calls in and out: one at a time. PAIRS: end_call, which passes on the status. */
weir_status wr_seat_begin_call(weir_seat *s);
weir_status wr_seat_end_call(weir_seat *s, weir_status status);

/* What the relay does from here on may overwrite what the steps so far have read at the spot. */
weir_status wr_seat_wait_for_readers(weir_seat *s, const struct wr_spot *at);
/* The item in hand goes back to the queue, behind the relay. */
weir_status wr_seat_release(weir_seat *s);
/* In place: the item that was read goes back, behind its readers. */
weir_status wr_seat_give_back(weir_seat *s);
void wr_seat_forget_capture(weir_seat *s);

#endif
