/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_queue: a bounded prefetch queue: from host memory into device memory, and with the same calls from device
 * memory to the host, or to another device. Conventions: see weir.h.
 *
 *   producers  reserve -> write item.host -> commit | abort        or   push(spans)
 *              (where a stream writes: commit_after, push_after)
 *   consumers  acquire(stream) -> work on item.device -> release(streams)
 *
 * A slot is EMPTY -> FILLING (reserved) -> COPYING (committed) -> READY -> IN_USE (acquired) -> DRAINING
 * (released by the host, its readers still queued on the GPU) -> EMPTY. With n slots, n - 1 are ready or in
 * flight while the consumer holds one. Any number of threads may be on either side.
 *
 * WHAT WAITS FOR WHAT
 *   - A copy waits, on the queue's own stream, for the last readers of its own slot, for the streams that its push or
 *     commit names as `after`, and for nothing else.
 *   - acquire makes the given stream wait for that item's copy. The host never waits for a copy there.
 *   - reserve and push wait on the host, as long as the timeout allows, for a slot that no consumer holds,
 *     and for a pinned buffer whose copy has been seen complete: it must not be overwritten sooner. For no
 *     kernel, ever, unless device_bytes is too small for all slots: a slot must be empty before it grows.
 *   - No call needs a thread of the queue's own, or another call, to make a copy proceed. So who waits for
 *     the GPU looks again from time to time: 20 us to 1 s apart, a sixteenth of the time waited so far.
 *
 * DIRECTIONS. So far this tells of WEIR_TO_DEVICE. In the others a producer pushes spans of device memory, which it
 * lends: they are read where they are, behind the streams named `after`. Copies of a queue run in the order of
 * their pushes, so one that waits for compute holds up those behind it.
 *   WEIR_TO_HOST    Items arrive in pinned memory: acquire waits on the host, as long as the timeout allows, for
 *                   the item's copy, and gives item.host, to be read until release. No stream takes part.
 *   WEIR_ON_DEVICE  Items are copied from `source`, another device, or from the queue's own. Where devices don't
 *                   reach each other (a pattern is tried at open) they go through pinned memory: stats.peer_staged.
 *
 * LIMITS, counted from reserve to release, blocked producers included: items, device bytes, pinned bytes.
 * Credits are taken in the order of arrival, before anything is allocated.
 *
 * WHATEVER DIES, nobody hangs. A source that fails says so by poison. A producer's thread that ends with an
 * item reserved: anyone may abort it, by ticket and handle. A consumer's thread that ends with items in its hands:
 * where consumers are registered, anyone may call weir_queue_leave for it.
 *
 * WHO KNOWS tf.StagingArea AND tf.MapStagingArea finds each word here:
 *
 *   put            weir_queue_put: with the flag NEW_KEY a key that is there already is refused
 *   get            weir_queue_acquire; by key: weir_queue_get
 *   peek           weir_queue_peek, by index or, in a KEYED queue, by key
 *   size           weir_queue_size; incomplete_size: weir_queue_stats.items_filling
 *   clear          weir_queue_clear
 *   capacity       weir_queue_options.items
 *   memory_limit   weir_queue_options.device_bytes, pinned_bytes
 */
#ifndef WEIR_QUEUE_H
#define WEIR_QUEUE_H

#include "weir.h"
#include "weir_copy.h" /* weir_direction */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_queue weir_queue;

/* Which of the items that are committed comes next. */
typedef enum weir_order {
    WEIR_ORDER_FIFO,    /* the first reserved: one that is being filled holds back those behind it */
    WEIR_ORDER_ANY,     /* the first committed */
    WEIR_ORDER_KEYED,   /* get: the first reserved of that key; acquire: the first committed of all */
    WEIR_ORDER_PRIORITY /* the one of the greatest key; of equal ones, the first reserved */
} weir_order;

/* Who gets it. */
typedef enum weir_consumers {
    WEIR_CONSUMERS_LOOSE,  /* whoever calls acquire, as many at once as there are */
    WEIR_CONSUMERS_STRICT, /* the same, one at a time: the next when the one before is released. (A reader that
                               * dies holds up all others: until destroy) */
    WEIR_CONSUMERS_SHARED,    /* one of those registered; what it still holds when it leaves is released */
    WEIR_CONSUMERS_BROADCAST, /* each that was registered at the commit; over when all have released it. What
                               * is committed while nobody is registered waits for the first to join */
    WEIR_CONSUMERS_LATEST     /* whoever calls, the newest committed: it replaces those nobody has acquired. A
                               * reserve that finds no slot takes an unread item's */
} weir_consumers;

/* Copy engines alone: many small spans are copied one by one, and not by a kernel, which needs room between those that
 * compute. So are those of a ring over the queue. */
enum { WEIR_QUEUE_NO_KERNELS = 1 << 0 };

typedef struct weir_queue_options {
    size_t struct_size;
    size_t item_bytes; /* the largest item; must be given */
    unsigned items;    /* slots, 1 to 1024. 0: 2, double buffering */
    /* Limits of the slots' device memory and of the staging memory. 0: items * item_bytes. With less than
     * that a slot has its item's size, not item_bytes. What the pool rounds up is not counted. */
    size_t device_bytes, pinned_bytes;
    weir_order order;
    weir_consumers consumers; /* BROADCAST and LATEST: order FIFO alone */
    /* Watermarks of WEIR_POLL_ROOM, in items reserved and not over: full at high_items (0: items), and room
     * again below low_items (0: high_items). */
    unsigned low_items, high_items;
    /* A file for a timeline: when each item was copied, and when it was in use, by the device's own clock, as
     * trace-event JSON for Perfetto or chrome://tracing. Two events more for each. Written by destroy, with what
     * the device has passed by then: see wait_idle. NULL: $WEIR_TIMELINE, .2, .3 and so on behind it for the
     * further queues of a process; without that there is none. */
    const char *timeline;
    /* TO_DEVICE unless set. TO_HOST: pinned_bytes limits the items, and device_bytes is 0. ON_DEVICE: pinned_bytes
     * limits what is staged; `source` is a pool of the device that the spans are of, open as long as the queue.
     * NULL: the queue's own. */
    weir_direction direction;
    weir_pool *source;
    unsigned flags; /* WEIR_QUEUE_NO_KERNELS */
} weir_queue_options;

/* Opens a queue that fills memory of `pool`, which must stay open. Slots and staging are allocated on first
 * use. Errors: INVALID_ARGUMENT (also sizes whose product overflows, limits below one item, or that limit nothing
 * in this direction), CLOSED, DRIVER_ERROR, NO_HOST_MEMORY; with another device as the source, those of
 * weir_engine_link. */
WEIR_API weir_status weir_queue_open(weir_pool *pool, const weir_queue_options *options, weir_queue **out);

/* One item. The caller owns the struct; the queue knows it by `ticket` and `handle`, so that a stale copy or
 * another queue's item is refused. */
typedef struct weir_item {
    uint64_t ticket; /* position in the order of reserve, from 1 */
    uint64_t handle; /* the queue's own */
    int64_t key;     /* as given to reserve_key or put; else 0 */
    size_t bytes;
    void *host;       /* FILLING: write here. Pinned. IN_USE, TO_HOST: read here. Else NULL */
    weir_dptr device; /* IN_USE, not TO_HOST: read here, on the stream given to acquire. Else 0 */
} weir_item;

/* ---- producers --------------------------------------------------------------------------------------- */

/* Takes the next place and a pinned buffer of `bytes` (1 to item_bytes).
 * Errors: INVALID_ARGUMENT (not TO_DEVICE: push); TOO_LARGE (over item_bytes or a limit); WOULD_BLOCK (timeout 0),
 * TIMEOUT; CLOSED, POISONED; NOT_YET and OUT_OF_MEMORY of the pool; NO_HOST_MEMORY; DRIVER_ERROR. After an error no
 * place is taken, though a number may be missing in the tickets. */
WEIR_API weir_status weir_queue_reserve(weir_queue *q, size_t bytes, int64_t timeout_ns, weir_item *item);

/* The same with a key: in a KEYED queue what to ask for, in a PRIORITY one the priority, else a number of
 * yours. Several items may have one key. */
WEIR_API weir_status weir_queue_reserve_key(
    weir_queue *q, int64_t key, size_t bytes, int64_t timeout_ns, weir_item *item);

/* Starts the copy of the first item->bytes, which may be fewer than reserved. From now on item->host must not be
 * touched: it is NULL.
 * Errors: INVALID_ARGUMENT (0 bytes, or more than reserved: the item is as it was), STALE_HANDLE; DRIVER_ERROR,
 * CONTEXT_LOST, POISONED, or STALE_HANDLE for one that was cancelled (the item is aborted). */
WEIR_API weir_status weir_queue_commit(weir_queue *q, weir_item *item);

/* commit, at a chosen place of a step: the copy waits, on the queue's stream, for the work queued on `after` by now,
 * and so do the copies behind it. That work may write item->host: the buffer serves nobody else before it has passed,
 * also where the item is aborted. Streams of the queue's device.
 * Errors: those of commit; INVALID_ARGUMENT (streams NULL), CAPTURING, NO_HOST_MEMORY, and DRIVER_ERROR with
 * item->host not NULL: the item is as it was. */
WEIR_API weir_status weir_queue_commit_after(
    weir_queue *q, weir_item *item, const weir_stream *after, size_t n_after);

/* Gives the place back; consumers never see it. What writes item->host must have ended. Of a thread that ended any
 * other may abort the item: `ticket` and `handle` are enough. Errors: STALE_HANDLE. */
WEIR_API weir_status weir_queue_abort(weir_queue *q, weir_item *item);

typedef struct weir_span {
    const void *host; /* where the spans are device memory: (const void *)(uintptr_t)address */
    size_t bytes;
} weir_span;

enum {
    WEIR_PUSH_COPY = 0, /* the spans may be overwritten as soon as push returns. Not of device memory */
    WEIR_PUSH_BORROW =
        1 << 0, /* pinned spans are read in place: leave them until weir_queue_borrowed says OK.
                               * Spans that are not pinned are copied all the same. */
    WEIR_PUSH_NEW_KEY = 1 << 1 /* of put: IN_USE if an item of that key is reserved, committed or held */
};

/* reserve, gather the spans one after the other, commit. Empty spans are fine; their sum is the item's size.
 * *ticket (may be NULL) names the item for weir_queue_borrowed. Errors: those of reserve and commit. */
WEIR_API weir_status weir_queue_push(weir_queue *q, const weir_span *spans, size_t n_spans, unsigned flags,
    int64_t timeout_ns, uint64_t *ticket);

/* push with a key: see reserve_key. Errors: those of push; IN_USE. */
WEIR_API weir_status weir_queue_put(weir_queue *q, int64_t key, const weir_span *spans, size_t n_spans,
    unsigned flags, int64_t timeout_ns, uint64_t *ticket);

typedef struct weir_push_options {
    size_t struct_size;
    int64_t key; /* see reserve_key */
    unsigned flags;
    /* The copy begins after the work queued on them by now: streams of the device that the spans lie on, of the queue's
     * where they are host memory. */
    const weir_stream *after;
    size_t n_after;
    int64_t timeout_ns;
} weir_push_options;

/* push or put, at a chosen place of a step: the copy waits, on the queue's stream, for the work queued on `after` by
 * now, and so do the copies behind it. That work may write the spans, where they are device memory; host memory is
 * read or lent as by push. Errors: those of put; INVALID_POINTER (not device memory where that is asked for);
 * CAPTURING (a stream of `after`). */
WEIR_API weir_status weir_queue_push_after(weir_queue *q, const weir_span *spans, size_t n_spans,
    const weir_push_options *options, uint64_t *ticket);

/* What is queued on `stream` from now on may overwrite or free the spans lent by that push (0: by all so far): it
 * waits for the copies, and the host for nothing. Errors: INVALID_ARGUMENT (never given out); CLOSED, CAPTURING,
 * DRIVER_ERROR. */
WEIR_API weir_status weir_queue_borrowed_by(weir_queue *q, uint64_t ticket, weir_stream stream);

/* Are the spans lent by that push free to be overwritten? OK: yes. Ticket 0 asks about all pushes so far,
 * those that failed included: a push that fails with DRIVER_ERROR may have begun to read. A ticket older than
 * the last 256 may be answered late, with that of a younger one. Errors: WOULD_BLOCK, TIMEOUT;
 * INVALID_ARGUMENT (never given out); CLOSED. */
WEIR_API weir_status weir_queue_borrowed(weir_queue *q, uint64_t ticket, int64_t timeout_ns);

/* ---- consumers --------------------------------------------------------------------------------------- */

/* The next item in order; `stream` waits for its copy, the host only until it is committed. (TO_HOST: until it is
 * there; `stream` is not looked at.)
 * Errors: WOULD_BLOCK, TIMEOUT; CLOSED (closed, and all items delivered); POISONED (all that was committed
 * before is delivered); INVALID_ARGUMENT (the queue's consumers are registered: acquire_as); CAPTURING (see
 * weir_graph.h); DRIVER_ERROR. */
WEIR_API weir_status weir_queue_acquire(
    weir_queue *q, weir_stream stream, int64_t timeout_ns, weir_item *item);

/* The next item of that key, from a KEYED queue that is not SHARED. Errors: those of acquire. CLOSED: there is none
 * to come. */
WEIR_API weir_status weir_queue_get(
    weir_queue *q, int64_t key, weir_stream stream, int64_t timeout_ns, weir_item *item);

/* An item that stays where it is: somebody acquires it still. Release it all the same: its slot is held until
 * then. `which` is its key in a KEYED queue; else its index among those to be delivered, 0 for the next, and
 * only that where the order is not FIFO. Not from a BROADCAST queue. Errors: those of acquire. */
WEIR_API weir_status weir_queue_peek(
    weir_queue *q, int64_t which, weir_stream stream, int64_t timeout_ns, weir_item *item);

/* A registered consumer of a SHARED or BROADCAST queue. 0 is none. */
typedef uint64_t weir_consumer;

/* Errors: INVALID_ARGUMENT; CLOSED; TOO_LARGE (64 are registered). */
WEIR_API weir_status weir_queue_join(weir_queue *q, weir_consumer *out);

/* acquire, as that consumer. Errors: those of acquire; STALE_HANDLE (it has left, meanwhile perhaps). */
WEIR_API weir_status weir_queue_acquire_as(
    weir_queue *q, weir_consumer consumer, weir_stream stream, int64_t timeout_ns, weir_item *item);

/* Takes the consumer off: nothing waits for it any more. What it holds is released, as by release without
 * streams; by any thread, but where the consumer acquired for its own per-thread stream the thread's work is
 * covered up to its end or this call. Errors: STALE_HANDLE; those of release: then call again. */
WEIR_API weir_status weir_queue_leave(weir_queue *q, weir_consumer consumer);

/* Makes `stream`, too, wait for the item's copy, before work is queued there that reads it: as acquire does for the
 * stream given to it. What is queued later is declared by use, or named to release.
 * Errors: STALE_HANDLE, CAPTURING, DRIVER_ERROR, CONTEXT_LOST, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_await(weir_queue *q, const weir_item *item, weir_stream stream);

/* Declares that `stream`, too, has work queued that reads the item.
 * Errors: STALE_HANDLE, INVALID_ARGUMENT (TO_HOST), CAPTURING, DRIVER_ERROR, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_use(weir_queue *q, const weir_item *item, weir_stream stream);

/* Gives the slot back once the work queued so far on `streams` (the acquiring one if n_streams is 0), and on
 * all streams declared by use, has passed. Errors: STALE_HANDLE; else the item is still held:
 * INVALID_ARGUMENT (also streams, TO_HOST: the host has read it), CAPTURING, DRIVER_ERROR, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_release(
    weir_queue *q, weir_item *item, const weir_stream *streams, size_t n_streams);

/* Items committed and not yet delivered (to all, of a BROADCAST queue). Errors: CLOSED (destroyed). */
WEIR_API weir_status weir_queue_size(weir_queue *q, size_t *out);

/* ---- for pollers ------------------------------------------------------------------------------------- */

typedef enum weir_poll {
    WEIR_POLL_ITEM, /* an acquire would not block: it returns an item, or an end. (TO_HOST: it may still have to
                     * wait for the item's copy) */
    WEIR_POLL_ROOM /* fewer items than the low watermark, and since then not as many as the high one; or a
                     * reserve would return an end. It may still have to wait for a pinned buffer's copy. */
} weir_poll;

/* A file descriptor that polls readable while that is so; never read or write it, and close it when done. It
 * outlives the queue: after destroy it is readable for good. Between two threads that see it readable one may
 * come too late, so call with timeout 0. `consumer`: for ITEM of a SHARED or BROADCAST queue, else 0.
 * Errors: INVALID_ARGUMENT, STALE_HANDLE, CLOSED; NO_HOST_MEMORY (the process has no descriptor left). */
WEIR_API weir_status weir_queue_eventfd(weir_queue *q, weir_poll what, weir_consumer consumer, int *out);

/* ---- ends -------------------------------------------------------------------------------------------- */

/* No more items: reserve returns CLOSED, blocked producers included; consumers get what was committed, then
 * CLOSED. Items still FILLING can be committed or aborted. Errors: INVALID_ARGUMENT, CLOSED (closed before).
 */
WEIR_API weir_status weir_queue_close(weir_queue *q);

/* The source has failed, for the reason given; `text` is copied, 255 bytes at most. Consumers get what is
 * committed, then POISONED, at every later call, too; producers get it at once, and items still FILLING are
 * dropped at their commit. A queue may be poisoned after close. Errors: INVALID_ARGUMENT; CLOSED (destroyed);
 * POISONED (before: the first reason stays). */
WEIR_API weir_status weir_queue_poison(weir_queue *q, int64_t code, const char *text);

/* The reason. *text stays valid for ever; either may be NULL. After destroy, too. Errors: INVALID_ARGUMENT
 * (not poisoned). */
WEIR_API weir_status weir_queue_poisoned(weir_queue *q, int64_t *code, const char **text);

/* Takes an item out that nobody has acquired (0: all of them). A committed one is gone at once. One that is
 * being filled holds nobody back any more, but keeps its memory until its producer has called commit, which
 * returns STALE_HANDLE, or abort: it may be writing there. Of a BROADCAST item the deliveries made stand.
 * Errors: STALE_HANDLE (no such item, or it is with its consumer), CLOSED. */
WEIR_API weir_status weir_queue_cancel(weir_queue *q, uint64_t ticket);
WEIR_API weir_status weir_queue_clear(weir_queue *q); /* cancel of all */

/* Waits until no item is reserved, committed or held, and the GPU is past all copies and all last uses: for
 * compute, then, because you asked. Errors: WOULD_BLOCK, TIMEOUT, CLOSED (destroyed). */
WEIR_API weir_status weir_queue_wait_idle(weir_queue *q, int64_t timeout_ns);

/* Closes if need be, wakes everyone with CLOSED, and gives slots and staging back to the pool, each once the
 * GPU has passed it. Never waits for the GPU. Items still held become stale, though their memory is not
 * reused before the streams given to acquire have passed what they had queued at this call, and those given
 * to use what they had queued at theirs (TO_HOST: not before this call, for no stream tells of the host). What
 * writes the item.host of a reserved item must have ended, on the host or on a stream, as for abort. Every later
 * call returns CLOSED. */
WEIR_API weir_status weir_queue_destroy(weir_queue *q);

typedef struct weir_queue_stats {
    size_t struct_size;
    uint64_t items_pushed, items_delivered, items_released, items_aborted;
    uint64_t bytes_copied;
    uint64_t copies;                /* transfers given to the driver */
    uint64_t borrowed_bytes;        /* of those, read in place */
    uint64_t staged_pageable_bytes; /* lent by push, but not pinned: staged */
    uint64_t slots, slots_in_use;   /* not EMPTY */
    uint64_t device_bytes, peak_device_bytes, pinned_bytes, peak_pinned_bytes;
    /* Calls that blocked and are back, by what they waited for last. */
    uint64_t producer_waits_slot, producer_waits_pinned, consumer_waits_item;
    uint64_t producer_wait_ns, consumer_wait_ns;
    uint64_t stream_waits_copy; /* put on consumers' streams by acquire and await */
    uint64_t stream_waits_slot; /* put on the copy stream, for a slot's last readers */
    uint64_t host_syncs;        /* host waits for a stream that computes: 0, always */
    uint64_t waiting_slot, waiting_pinned, waiting_item; /* callers blocked at this moment, by cause */
    uint64_t longest_wait_ns;                            /* of those, so far */
    uint64_t items_cancelled, items_replaced;            /* replaced: unread, by a newer one (LATEST) */
    uint64_t items_filling, items_ready;                 /* reserved; committed and not delivered to all */
    uint64_t consumers;                                  /* registered */
    /* More of the waits. By turn: for the release of the item before, of consumer_waits_item. Calls that are back
     * from weir_queue_borrowed and weir_queue_wait_idle, and blocked. */
    uint64_t wait_slot_ns, wait_pinned_ns; /* of producer_wait_ns */
    uint64_t waits_turn, wait_turn_ns;
    uint64_t waits_borrowed, wait_borrowed_ns;
    uint64_t waits_idle, wait_idle_ns;
    /* Many small spans together. */
    uint64_t gathers, gathered_bytes; /* launches of the gather kernel, of `copies`, and their bytes */
    /* Batches that a kernel might have moved, had it reached them or been allowed: copied one by one. */
    uint64_t gather_fallbacks;
    /* Memory asked for since open. None once every slot has had its largest item and all its readers. */
    uint64_t slot_allocations; /* of the pool: device and pinned */
    uint64_t host_allocations; /* of the C library */
    uint64_t age_ns;           /* since open */
    double items_per_s,
        bytes_per_s; /* pushed, copied, over all that time; of less, by the difference of two stats */
    uint64_t consumer_waits_copy; /* TO_HOST: for an item's copy */
    uint64_t peer_staged;         /* 1: the devices don't reach each other */
    uint64_t peer_staged_bytes;   /* so much went through pinned memory for that */
} weir_queue_stats;

/* Errors: INVALID_ARGUMENT, CLOSED (destroyed). */
WEIR_API weir_status weir_queue_get_stats(weir_queue *q, weir_queue_stats *out);

#ifdef __cplusplus
}
#endif
#endif
