/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_queue: a bounded prefetch queue from host memory into device memory. Conventions: see weir.h.
 *
 *   producer   reserve -> write item.host -> commit | abort        or   push(spans)
 *   consumer   acquire(stream) -> work on item.device -> release(streams)
 *
 * A slot is EMPTY -> FILLING (reserved) -> COPYING (committed) -> IN_USE (acquired) -> DRAINING (released by
 * the host, its readers still queued on the GPU) -> EMPTY. Order is the order of reserve: items come out in
 * it, aborted ones leave no hole. With n slots, n - 1 are ready or in flight while the consumer holds one.
 *
 * WHAT WAITS FOR WHAT
 *   - A copy waits, on the queue's own stream, for the last readers of its own slot, and for nothing else.
 *   - acquire makes the given stream wait for that item's copy. The host never waits for a copy there.
 *   - reserve and push wait on the host, as long as the timeout allows, for a slot that no consumer holds,
 *     and for a pinned buffer whose copy has been seen complete: it must not be overwritten sooner. For no
 *     kernel, ever, unless device_bytes is too small for all slots: a slot must be empty before it grows.
 *   - No call needs a thread of the queue's own, or another call, to make a copy proceed. So who waits for
 *     the GPU looks again from time to time: 20 us to 1 s apart, a sixteenth of the time waited so far.
 *
 * LIMITS, counted from reserve on, blocked producers included: items, device bytes, pinned bytes. Credits are
 * taken in the order of arrival, before anything is allocated.
 */
#ifndef WEIR_QUEUE_H
#define WEIR_QUEUE_H

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_queue weir_queue;

typedef struct weir_queue_options {
    size_t struct_size;
    size_t item_bytes; /* the largest item; must be given */
    unsigned items;    /* slots, 1 to 1024. 0: 2, double buffering */
    /* Limits of the slots' device memory and of the staging memory. 0: items * item_bytes. With less than
     * that a slot has its item's size, not item_bytes. What the pool rounds up is not counted. */
    size_t device_bytes, pinned_bytes;
} weir_queue_options;

/* Opens a queue that fills memory of `pool`, which must stay open. Slots and staging are allocated on first
 * use. Errors: INVALID_ARGUMENT (also sizes whose product overflows, limits below one item), CLOSED,
 * DRIVER_ERROR, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_open(weir_pool *pool, const weir_queue_options *options, weir_queue **out);

/* One item. The caller owns the struct; the queue knows it by `ticket`, so that a stale copy is refused. */
typedef struct weir_item {
    uint64_t ticket; /* position in the queue's order, from 1 */
    size_t bytes;
    void *host;       /* FILLING: write here. Pinned. Else NULL */
    weir_dptr device; /* IN_USE: read here, on the stream given to acquire. Else 0 */
} weir_item;

/* Takes the next place and a pinned buffer of `bytes` (1 to item_bytes).
 * Errors: INVALID_ARGUMENT; TOO_LARGE (over item_bytes or a limit); WOULD_BLOCK (timeout 0), TIMEOUT; CLOSED;
 * NOT_YET and OUT_OF_MEMORY of the pool; NO_HOST_MEMORY; DRIVER_ERROR. After an error no
 * place is taken, though a number may be missing in the tickets. */
WEIR_API weir_status weir_queue_reserve(weir_queue *q, size_t bytes, int64_t timeout_ns, weir_item *item);

/* Starts the copy of the first item->bytes, which may be fewer than reserved. From now on item->host must not be
 * touched: it is NULL.
 * Errors: INVALID_ARGUMENT (0 bytes, or more than reserved: the item is as it was), STALE_HANDLE; DRIVER_ERROR,
 * CONTEXT_LOST (the item is aborted). */
WEIR_API weir_status weir_queue_commit(weir_queue *q, weir_item *item);

/* Gives the place back; consumers never see it. Errors: STALE_HANDLE. */
WEIR_API weir_status weir_queue_abort(weir_queue *q, weir_item *item);

typedef struct weir_span {
    const void *host;
    size_t bytes;
} weir_span;

enum {
    WEIR_PUSH_COPY = 0,       /* the spans may be overwritten as soon as push returns */
    WEIR_PUSH_BORROW = 1 << 0 /* pinned spans are read in place: leave them until weir_queue_borrowed says OK.
                               * Spans that are not pinned are copied all the same. */
};

/* reserve, gather the spans one after the other, commit. Empty spans are fine; their sum is the item's size.
 * *ticket (may be NULL) names the item for weir_queue_borrowed. Errors: those of reserve and commit. */
WEIR_API weir_status weir_queue_push(weir_queue *q, const weir_span *spans, size_t n_spans, unsigned flags,
    int64_t timeout_ns, uint64_t *ticket);

/* Are the spans lent by that push free to be overwritten? OK: yes. Ticket 0 asks about all pushes so far,
 * those that failed included: a push that fails with DRIVER_ERROR may have begun to read. A ticket older than
 * the last 256 may be answered late, with that of a younger one. Errors: WOULD_BLOCK, TIMEOUT;
 * INVALID_ARGUMENT (never given out); CLOSED. */
WEIR_API weir_status weir_queue_borrowed(weir_queue *q, uint64_t ticket, int64_t timeout_ns);

/* The next item in order; `stream` waits for its copy, the host only until it is committed.
 * Errors: WOULD_BLOCK, TIMEOUT; CLOSED (closed, and all items delivered); CAPTURING; DRIVER_ERROR. */
WEIR_API weir_status weir_queue_acquire(
    weir_queue *q, weir_stream stream, int64_t timeout_ns, weir_item *item);

/* Declares that `stream`, too, has work queued that reads the item.
 * Errors: STALE_HANDLE, CAPTURING, DRIVER_ERROR, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_use(weir_queue *q, const weir_item *item, weir_stream stream);

/* Gives the slot back once the work queued so far on `streams` (the acquiring one if n_streams is 0), and on
 * all streams declared by use, has passed. Errors: STALE_HANDLE; else the item is still held:
 * INVALID_ARGUMENT, CAPTURING, DRIVER_ERROR, NO_HOST_MEMORY. */
WEIR_API weir_status weir_queue_release(
    weir_queue *q, weir_item *item, const weir_stream *streams, size_t n_streams);

/* No more items: reserve returns CLOSED, blocked producers included; consumers get what was committed, then
 * CLOSED. Items still FILLING can be committed or aborted. Errors: INVALID_ARGUMENT, CLOSED (closed before).
 */
WEIR_API weir_status weir_queue_close(weir_queue *q);

/* Closes if need be, wakes everyone with CLOSED, and gives slots and staging back to the pool, each once the
 * GPU has passed it. Never waits for the GPU. Items still held become stale, though their memory is not
 * reused before the streams given to acquire have passed what they had queued at this call, and those given
 * to use what they had queued at theirs. Every later call returns CLOSED. */
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
    uint64_t stream_waits_copy; /* put on consumers' streams by acquire */
    uint64_t stream_waits_slot; /* put on the copy stream, for a slot's last readers */
    uint64_t host_syncs;        /* host waits for a stream that computes: 0, always */
    uint64_t waiting_slot, waiting_pinned, waiting_item; /* callers blocked at this moment, by cause */
    uint64_t longest_wait_ns;                            /* of those, so far */
} weir_queue_stats;

/* Errors: INVALID_ARGUMENT, CLOSED (destroyed). */
WEIR_API weir_status weir_queue_get_stats(weir_queue *q, weir_queue_stats *out);

#ifdef __cplusplus
}
#endif
#endif
