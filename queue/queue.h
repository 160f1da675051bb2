/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue from inside. queue.c: its life, its lock. order.c: which item is next, for whom. produce.c,
 * consume.c: the two sides; borrow.c: what pushes lent; consumers.c: those that are registered. ends.c: how it
 * ends, or empties. bell.c: what pollers see. staging.c, queue_stats.c, diagnose.c: words and numbers on top. Memory
 * and its limits are in slots.c, waiting callers in line.c, the copies in copy.c, those out of device memory in
 * fetch.c. On top of it: ring.c, seat.h.
 *
 * PLACES. An item lives in a place, one for each device slot:
 *
 *     FREE -> TAKEN -> FILLING -> COPYING -> READY -> FREE          abort: FILLING -> FREE
 *
 * TAKEN and COPYING: one call works on it off the lock, and what it holds is that call's; any other call finds
 * the handle stale. Places not yet delivered are `listed`, in the order of tickets.
 *
 * HOLDS. Who acquires an item, or peeks at it, has a hold on its place: FREE -> BUSY -> HELD -> BUSY -> FREE,
 * where BUSY is again one call's. An item is over, and its place FREE, when it is READY, no longer listed, and
 * without holds.
 *
 * LOCK: one lock guards the queue. No driver call and no call of the pool is made under it: decide under the
 * lock, act off it, publish under it.
 *
 * LINES. Producers and consumers that can't go on stand in a line each. Of the producers only the head acts.
 * So the order of arrival is the order of tickets, a blocked caller holds nothing, and no one overtakes: slots
 * are taken by the head of the line alone, though anyone gives them back. A consumer leaves alone what one
 * before it in the line would take: where all want the same, that is the head's rule again.
 *
 * ENDS. Each call counts itself in; destroy turns new calls away and wakes the old, and whoever is last out
 * tears down. The weir_queue itself stays for ever (some 8 KiB), so that its handle goes on to mean "closed".
 */
#ifndef WR_QUEUE_H
#define WR_QUEUE_H

#include "bell.h"
#include "copy.h"
#include "fetch.h"
#include "line.h"

enum { WR_QUEUE_HOLDS = 64, WR_QUEUE_CONSUMERS = 64, WR_QUEUE_TEXT = 256 };

enum wr_place_state { WR_PLACE_FREE, WR_PLACE_TAKEN, WR_PLACE_FILLING, WR_PLACE_COPYING, WR_PLACE_READY };
enum wr_hold_state { WR_HOLD_FREE, WR_HOLD_BUSY, WR_HOLD_HELD };

struct wr_hold {
    enum wr_hold_state state;
    uint32_t generation; /* rises with each use: part of the handle */
    unsigned consumer;   /* number from 1 of a registered one; 0: none */
    bool peeks;
    weir_stream stream;     /* given to acquire */
    struct wr_heap *reader; /* that stream's heap, pinned: its fence stays that stream's */
    struct wr_span *span;   /* of the timeline: since acquire */
};

struct wr_place {
    enum wr_place_state state;
    bool listed, cancelled, delivered; /* cancelled: dropped when its producer is done with it */
    uint64_t ticket;
    int64_t key;
    size_t bytes;
    struct wr_slot *slot, *staging; /* staging NULL: read in place, or given back after commit */
    struct wr_mark copied;          /* READY: the copy */
    uint64_t committed;             /* READY: in the order of commits */
    uint64_t owed; /* BROADCAST: a bit for each consumer that it is still to be delivered to */
    unsigned n_holds;
    struct wr_hold *holds; /* WR_QUEUE_HOLDS; the place's for good */
    struct wr_place *next; /* listed */
};

struct wr_consumer {
    bool joined;
    uint32_t generation;
    struct wr_bell bell;
};

/* Signs of what holds copies up: see diagnose.c. */
struct wr_queue_signs {
    uint64_t slow_calls, slowest_call_ns; /* of the driver, that only queue */
    uint64_t legacy_reads, small_behind_big;
    size_t largest; /* item */
};

struct weir_queue {
    struct wr_lock lock; /* guards all below but the constants */
    struct weir_queue *next_shell;

    struct wr_copier copier; /* constant from open to the end, like those up to `opened_ns` */
    struct wr_device *device;
    struct wr_origin origin;
    size_t item_bytes;
    uint32_t serial; /* in handles, so that another queue's are known for strangers */
    weir_order kind;
    weir_consumers sharing;
    unsigned low, high;
    uint64_t opened_ns;

    unsigned inside; /* calls */
    bool closed, destroyed, poisoned;
    int64_t poison;
    char poison_text[WR_QUEUE_TEXT];
    struct wr_slots slots, pinned;
    struct wr_place *places; /* one for each of slots */
    struct wr_hold *holds;   /* all of theirs */
    struct wr_place *order;  /* listed */
    unsigned n_used;         /* places not FREE */
    unsigned n_delivering;   /* taken off the order by an acquire that may still fail */
    unsigned n_held;         /* holds that came from the order, BUSY ones included */
    unsigned n_peeking;      /* callers of peek in the consumers' line */
    struct wr_waiter *producers, *consumers, *lenders, *idlers;
    uint64_t n_tickets, n_commits, newest; /* newest: ticket committed */
    uint64_t newest_copy;                  /* stamp */
    struct wr_copy_lent lent;
    struct wr_consumer consumer[WR_QUEUE_CONSUMERS];
    uint64_t joined; /* a bit for each */
    struct wr_bell items, room;
    weir_queue_stats stats; /* the counters in it */
    struct wr_queue_signs signs;
};

/* Calls in and out. LOCK: enter takes it on OK, leave gives it, and passes on the status. */
weir_status wr_queue_enter(weir_queue *q);
weir_status wr_queue_leave(weir_queue *q, weir_status s);

/* ---- under the lock ---------------------------------------------------------------------------------- */

/* What makes an item's struct a handle: the ticket tells items apart, these bits queues, places and holds. Of
 * producers' items the hold is number 0 of generation 0. */
uint64_t wr_queue_handle(const weir_queue *q, const struct wr_place *p, unsigned hold, uint32_t generation);
/* The place of that item, whatever its state; NULL: the handle is stale, or of another queue. */
struct wr_place *wr_queue_find(const weir_queue *q, const weir_item *item);
static inline unsigned wr_queue_hold_of(const weir_item *item)
{
    return item->handle % WR_QUEUE_HOLDS;
}
weir_status wr_queue_fail_stale(uint64_t ticket, const char *what);

/* Do producers get a place still? */
static inline bool wr_queue_takes(const weir_queue *q)
{
    return !q->closed && !q->poisoned;
}

/* The place is FREE, and its slot somebody else's. */
void wr_queue_give_slot(weir_queue *q, struct wr_place *p);

/* Wakes whom an item, or the end of one, concerns. */
void wr_queue_wake_consumers(weir_queue *q);
/* Not all in the consumers' line want the same, so the head may not be the one that can go on. */
static inline bool wr_queue_wants_differ(const weir_queue *q)
{
    return q->kind == WEIR_ORDER_KEYED || q->sharing == WEIR_CONSUMERS_BROADCAST || q->n_peeking > 0;
}
void wr_queue_wake_all(weir_queue *q);

/* Are items read on the host? Then an acquire waits there for the copy, and no stream does. */
static inline bool wr_queue_lands(const weir_queue *q)
{
    return q->origin.direction == WEIR_TO_HOST;
}

/* Sleeps in a line, and leaves it with the time waited noted. LOCK: given up while asleep. */
weir_status wr_queue_doze(weir_queue *q, struct wr_waiter *w, enum wr_cause cause, bool polls);
void wr_queue_leave_line(weir_queue *q, struct wr_waiter **line, struct wr_waiter *w);

/* Asking the GPU. LOCK: held, given up for each question. */
void wr_queue_poll_copies(weir_queue *q);
void wr_queue_poll_readers(weir_queue *q);

/* ---- order.c, under the lock ------------------------------------------------------------------------- */

/* What a consumer asks for. */
struct wr_want {
    bool by_key, peeks;
    int64_t which;     /* the key; of a peek that is not by key: the index */
    unsigned consumer; /* its number from 1; 0: any */
};

struct wr_consumer_waiter {
    struct wr_waiter line; /* in q->consumers */
    const struct wr_want *want;
};

void wr_order_insert(weir_queue *q, struct wr_place *p);
void wr_order_remove(weir_queue *q, struct wr_place *p);

/* The item that such a consumer gets now, NULL: none. */
struct wr_place *wr_order_next(const weir_queue *q, const struct wr_want *want);
/* Will there be one, if nothing is reserved any more? */
bool wr_order_expects(const weir_queue *q, const struct wr_want *want);
/* Does one that stands before it in the line want that item? */
bool wr_order_claimed(const weir_queue *q, const struct wr_consumer_waiter *me, const struct wr_place *p);

/* COPYING becomes READY, for those that there are to read it. */
void wr_order_commit(weir_queue *q, struct wr_place *p);
/* A committed item that nobody is to get any more; who holds it goes on. */
void wr_order_drop(weir_queue *q, struct wr_place *p);
/* Frees the place of an item that is over. */
void wr_order_end_if_over(weir_queue *q, struct wr_place *p);
/* The first item that nobody has acquired or looks at is dropped for a newer one. False: there is none. */
bool wr_order_drop_unread(weir_queue *q);

bool wr_order_has_key(const weir_queue *q, int64_t key);

/* ---- diagnose.c, under the lock ---------------------------------------------------------------------- */

enum { WR_SLOW_CALL_NS = 5000000, WR_SMALL_ITEM = 256 << 10, WR_MUCH_AHEAD = 32 << 20 };
#define WR_STREAM_LEGACY ((weir_stream)1) /* CU_STREAM_LEGACY: what NULL means, too */

/* So long a call of the driver took that only queues: by a clock that is good enough for slow ones, since it stands
 * still for less than WR_SLOW_CALL_NS. */
void wr_diagnose_call(weir_queue *q, uint64_t ns);
static inline uint64_t wr_diagnose_clock(const weir_queue *q)
{
    return q->device->ops->now_coarse_ns(q->device);
}
void wr_diagnose_reader(weir_queue *q, weir_stream stream);
/* COPYING, about to be queued. LOCK: given up meanwhile. */
void wr_diagnose_item(weir_queue *q, const struct wr_place *p);

/* ---- produce.c, consume.c, consumers.c, ends.c ------------------------------------------------------- */

/* The whole of push, put and their kind. */
weir_status wr_produce_push(
    weir_queue *q, const weir_span *spans, size_t n_spans, const weir_push_options *o, uint64_t *ticket);
/* LOCK: held. An item that is being filled, or failed to be: consumers will not see it. */
void wr_produce_drop(weir_queue *q, struct wr_place *p);

weir_status wr_consume_acquire(
    weir_queue *q, const struct wr_want *want, weir_stream stream, int64_t timeout_ns, weir_item *item);
/* HELD, by the caller's decision, becomes FREE; after an error it is HELD. LOCK: held, given up meanwhile. */
weir_status wr_consume_release(
    weir_queue *q, struct wr_place *p, struct wr_hold *h, const weir_stream *streams, size_t n_streams);

/* LOCK: held. The number of a registered consumer, from 1; 0: it has left, or is none. */
unsigned wr_consumers_find(const weir_queue *q, weir_consumer c);

/* LOCK: held for both. Such a consumer gets nothing any more. */
bool wr_ends_over(const weir_queue *q, const struct wr_want *want);
/* Why the queue turns somebody away: POISONED or CLOSED, worded. */
weir_status wr_ends_refuse(const weir_queue *q);

#endif
