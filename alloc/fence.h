/* SPDX-License-Identifier: Apache-2.0
 *
 * Fences: a stream's past as a 64-bit sequence.
 *
 *   enq    the number of the last tick begun. A use of memory by this stream is stamped enq + 1: "the next tick
 *          covers me". Stamping is one load; no driver call.
 *   tick   number n = ++enq is taken first, then an event is recorded. So every stamp <= n was made before the
 *          record, and the event's completion covers it, whichever of several ticking threads records first.
 *   done   the greatest number known to have passed. stamp <= done: the use is over. What is not known is
 *          pending.
 *
 * PAIRS: a stamper queues its work, then loads enq; a ticker stores enq, then records. If the record came
 * before the work, the driver's own lock orders the store before the load, so the stamp is greater than the
 * tick. (enq is seq_cst on both sides.) done is stored with release after the driver's answer, and read with
 * acquire: who sees a stamp passed comes after that answer. Checked by tests/test_model_fence.c.
 *
 * No call here waits for the GPU, and none holds the lock across a driver call: a tick in use by a caller
 * outside the lock is pinned, so that its event is not handed out for another tick meanwhile.
 */
#ifndef WR_FENCE_H
#define WR_FENCE_H

#include "device.h"

/* Events are pooled per owner (a pool) and device: an event is recorded on its own device's streams only.
 * Created on demand, destroyed at fini. A fence keeps some of those that have passed for its next ticks. */
struct wr_events {
    struct wr_events *next; /* the owner's, of another device */
    struct wr_device *device;
    struct wr_lock lock;
    wr_event *free; /* stack */
    size_t n_free, capacity, n_created;
};

void wr_events_init(struct wr_events *e, struct wr_device *d);
/* Destroys those that no fence holds. An error leaves the rest; call again. */
weir_status wr_events_trim(struct wr_events *e);
void wr_events_fini(struct wr_events *e); /* all fences closed */

#define WR_FENCE_PER_THREAD ((weir_stream)2) /* CU_STREAM_PER_THREAD: another stream in each thread */

struct wr_tick {
    uint64_t number;
    wr_event event;
    uint32_t pins;
    bool recorded; /* false: being recorded, or failed to */
    bool failed;
};

enum { WR_FENCE_SPARE = 16 };

struct wr_fence {
    _Atomic uint64_t enq, done;
    _Atomic uint64_t lent;          /* the latest stamp that another heap's block holds of this stream */
    struct wr_events *events;       /* this and the next three: constant from open to close */
    weir_stream stream;             /* not used once retired */
    uint64_t id;                    /* the stream's: by now the handle may be another's */
    const void *owner;              /* a per-thread default stream: the thread whose it is; else NULL */
    struct wr_lock lock;            /* guards all below */
    _Atomic bool captured;          /* a capture's: it never ticks before the graph is released */
    bool retired;                   /* the handle may be dead: ticks cover the whole context instead */
    uint32_t asking;                /* threads that name the handle to the driver, other than in a tick */
    bool polling;                   /* one thread polls at a time; others use done */
    wr_event spare[WR_FENCE_SPARE]; /* of ticks that have passed, for the next ones */
    uint32_t n_spare;
    struct wr_tick *ring;       /* outstanding ticks, oldest at head, numbers rising; grows on demand */
    uint32_t capacity, head, n; /* capacity: 0 or a power of two */
    _Atomic uint64_t n_ticks;
};

void wr_fence_init(struct wr_fence *f); /* once in the struct's life */

/* Begins with a stream. Numbers go on from the last one's, so that a stamp or mark of a stream gone by stays
 * passed. */
void wr_fence_open(struct wr_fence *f, struct wr_events *e, weir_stream s, uint64_t id);
void wr_fence_close(struct wr_fence *f); /* gives the events back, passed or not */

/* From open on the fence is that of a stream in a capture: no stamp passes, ticks return CAPTURING, without a
 * driver call. A release ends that, and the stream's handle is not used any more: ticks cover the context. */
void wr_fence_hold(struct wr_fence *f);
void wr_fence_release(struct wr_fence *f);

/* The stamp of a use that is queued now. */
static inline uint64_t wr_fence_stamp(const struct wr_fence *f)
{
    uint64_t enq = atomic_load((_Atomic uint64_t *)&f->enq);
    return WR_FAULT(TICK_BEFORE_FREE) ? enq : enq + 1;
}

/* The stamp of a use by a block of another stream's heap. */
uint64_t wr_fence_lend(struct wr_fence *f);

static inline bool wr_fence_passed(const struct wr_fence *f, uint64_t stamp)
{
    return stamp <= atomic_load_explicit((_Atomic uint64_t *)&f->done, memory_order_acquire);
}

/* Records a tick and says its number (number may be NULL). Errors: CAPTURING; NO_HOST_MEMORY; the driver's.
 * After an error every stamp is still pending, until some later tick covers it. */
weir_status wr_fence_tick(struct wr_fence *f, uint64_t *number);

/* Ticks if `stamp` is not covered by a tick yet. Errors are those of tick. */
weir_status wr_fence_cover(struct wr_fence *f, uint64_t stamp);

/* Asks the driver about the oldest ticks, publishes done, gives passed events back. True if done moved. */
bool wr_fence_poll(struct wr_fence *f);

/* Makes `waiter` wait for `stamp` (one stream wait; none where it has passed). Ticks where no tick covers it yet. */
weir_status wr_fence_wait_on(struct wr_fence *f, uint64_t stamp, weir_stream waiter);

/* Is it the fence of this handle, as the calling thread means it? (A handle may be another stream's by now.)
 */
bool wr_fence_is_own_slow(const struct wr_fence *f);
static inline bool wr_fence_is_of(const struct wr_fence *f, weir_stream handle)
{
    return f->stream == handle && (WR_LIKELY(f->owner == NULL) || wr_fence_is_own_slow(f));
}

/* Does the stream capture a graph? Asks the driver. False where this thread can't name it, or none any more. */
bool wr_fence_captures(struct wr_fence *f);

/* Takes a last tick; when it returns OK no thread uses the handle any more. */
weir_status wr_fence_retire(struct wr_fence *f);

/* If this is the fence of `handle` and not retired: the handle belongs to another stream by now, so what has
 * no tick yet is covered by ticks on the whole context. True if it was. */
bool wr_fence_orphan_if(struct wr_fence *f, weir_stream handle);

/* The same for the calling thread's own default stream, as the thread ends: no driver call. */
bool wr_fence_orphan_own(struct wr_fence *f);

/* The stream's id, for words: the fence may be another stream's by the time they are read. */
uint64_t wr_fence_id(struct wr_fence *f);

/* Every tick and every stamp lent has passed. */
bool wr_fence_is_quiet(struct wr_fence *f);
/* A poll, before the end: no event stays with the fence but of ticks that are pending. */
void wr_fence_settle(struct wr_fence *f);

#ifdef WEIR_FAULTS
/* Called by a ticking thread between taking its number and recording (A05). */
extern void (*wr_fence_before_record)(struct wr_fence *f);
#endif

#endif
