/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue from inside. queue.c: its life, its lock, the order of its items. produce.c, consume.c: the two
 * sides. Memory and its limits are in slots.c, waiting callers in line.c, the copies in copy.c.
 *
 * PLACES. An item lives in a place, one for each device slot:
 *
 *     FREE -> FILLING -> READY -> HELD -> FREE          abort: FILLING -> FREE
 *
 * and BUSY between two of them, while one call works on it off the lock: any other call finds the handle
 * stale. Places not yet delivered form one list in the order of tickets. Only its head is delivered, and only
 * when READY.
 *
 * LOCK: one lock guards the queue. No driver call and no call of the pool is made under it: decide under the
 * lock, act off it, publish under it. What belongs to a BUSY place belongs to the call that made it so.
 *
 * LINES. Producers and consumers that can't go on stand in a line each, where only the head acts. So the
 * order of arrival is the order of tickets, a blocked caller holds nothing, and no one overtakes: slots are
 * taken by the head of the producers' line alone, though anyone gives them back.
 *
 * ENDS. Each call counts itself in; destroy turns new calls away and wakes the old, and whoever is last out
 * tears down. The weir_queue itself stays for ever (some 5 KiB), so that its handle goes on to mean "closed".
 */
#ifndef WR_QUEUE_H
#define WR_QUEUE_H

#include "copy.h"
#include "line.h"

enum wr_place_state { WR_PLACE_FREE, WR_PLACE_BUSY, WR_PLACE_FILLING, WR_PLACE_READY, WR_PLACE_HELD };

struct wr_place {
    enum wr_place_state state;
    uint64_t ticket;
    size_t bytes;
    struct wr_slot *slot, *staging; /* staging NULL: read in place, or given back after commit */
    struct wr_mark copied;          /* READY and HELD: the copy */
    weir_stream stream;             /* HELD: given to acquire */
    struct wr_heap *reader;         /* HELD: that stream's heap, pinned: its fence stays that stream's */
    struct wr_place *next;          /* in the order of delivery */
};

struct weir_queue {
    struct wr_lock lock; /* guards all below but the constants */
    struct weir_queue *next_shell;

    struct wr_copier copier; /* constant from open to the end, like the two below */
    struct wr_device *device;
    size_t item_bytes;

    unsigned inside; /* calls */
    bool closed, destroyed;
    struct wr_slots slots, pinned;
    struct wr_place *places; /* one for each of slots */
    struct wr_place *order;  /* not delivered yet, by ticket */
    unsigned n_delivering;   /* taken off the order by an acquire that may still fail */
    struct wr_waiter *producers, *consumers, *lenders;
    uint64_t n_tickets;
    uint64_t newest_copy; /* stamp */
    struct wr_copy_lent lent;
    weir_queue_stats stats; /* the counters in it */
};

/* Calls in and out. LOCK: enter takes it on OK, leave gives it, and passes on the status. */
weir_status wr_queue_enter(weir_queue *q);
weir_status wr_queue_leave(weir_queue *q, weir_status s);

/* ---- under the lock ---------------------------------------------------------------------------------- */

/* The order of items not yet delivered. */
void wr_queue_insert(weir_queue *q, struct wr_place *p);
void wr_queue_remove(weir_queue *q, struct wr_place *p);

/* The item of a ticket, if its place is in that state. NULL: the handle is stale. */
struct wr_place *wr_queue_find(const weir_queue *q, uint64_t ticket, enum wr_place_state state);
weir_status wr_queue_fail_stale(uint64_t ticket, const char *what);

/* The item is over: its place is FREE. */
void wr_queue_give_slot(weir_queue *q, struct wr_place *p);

/* Sleeps in a line, and leaves it with the time waited noted. LOCK: given up while asleep. */
weir_status wr_queue_doze(weir_queue *q, struct wr_waiter *w, enum wr_cause cause, bool polls);
void wr_queue_leave_line(weir_queue *q, struct wr_waiter **line, struct wr_waiter *w);

#endif
