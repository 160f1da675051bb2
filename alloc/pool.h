/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool from inside: what weir.c translates, and what the queue needs beyond the public API.
 */
#ifndef WR_POOL_H
#define WR_POOL_H

#include "edges.h"
#include "fence.h"
#include "pages.h"
#include "pinned.h"
#include "stream.h"

/* GONE: an edge of edges.h came first. From CLOSED on no call takes a lock or looks at a table. */
enum wr_pool_state { WR_POOL_OPEN, WR_POOL_CLOSING, WR_POOL_CLOSED, WR_POOL_GONE };

enum { WR_HEAP_ROWS = 64, WR_HEAPS_PER_ROW = 1024 };

/* What an alloc tries that its stream's heap could not serve, in this order: see ladder.c. */
#define WR_RUNG_MAP(X)                                                                                       \
    X(flush)                                                                                                 \
    X(reap)                                                                                                  \
    X(exchange)                                                                                              \
    X(take_idle)                                                                                             \
    X(gather) X(stitch) X(grow) X(make_room) X(ask_others) X(evict) X(overgrow) X(device_wait) X(host_wait)
enum wr_rung {
#define WR_RUNG_ENUM(name) WR_RUNG_##name,
    WR_RUNG_MAP(WR_RUNG_ENUM)
#undef WR_RUNG_ENUM
        WR_RUNGS
};

/* How one alloc is to be served: the call's options over the pool's. */
struct wr_terms {
    uint32_t align; /* units, a power of two up to a page */
    weir_reuse reuse;
    int64_t deadline_ns;
};

struct weir_pool {
    _Atomic int state;                 /* enum wr_pool_state */
    _Atomic uint64_t served[WR_RUNGS]; /* allocs, by the rung that served them */
    uint64_t
        uid; /* never used again: what a thread remembers of a pool gone by can't be taken for this one's */
    bool announced;        /* see WEIR_STREAMS_ANNOUNCED */
    struct wr_terms terms; /* of a plain alloc */
    uint32_t soft_pages;   /* growth above them comes after eviction; UINT32_MAX: no soft limit */
    weir_evict evict;
    void *evict_context;
    struct wr_fence context; /* ticks cover the whole context: what OWNER's free memory waits for */
    _Atomic uint64_t host_waits, stream_waits;
    struct wr_pages pages;
    struct wr_events events;
    struct wr_pinned *pinned;
    struct wr_lock lock; /* guards all below; the directory is written under it and read without */
    _Atomic(_Atomic(struct wr_heap *) *) rows[WR_HEAP_ROWS];
    _Atomic uint32_t n_heaps;    /* indices handed out so far; an entry may be NULL */
    struct wr_table heap_of_id;  /* stream id -> index + 1 */
    uint32_t inside;             /* threads in a slow path: the pool does not end under them */
    uint64_t n_entered;          /* slow paths so far */
    uint32_t holds;              /* see wr_pool_hold */
    _Atomic uint32_t n_captures; /* heaps of captures whose graphs are not released */
    bool finishing, finish_again;
    struct wr_heap_counts gone; /* of heaps that have ended */
    uint64_t gone_ticks;
    struct weir_pool *next_shell;
};

weir_status wr_pool_open(struct wr_device *d, const weir_pool_options *o, weir_pool **out);
weir_status wr_pool_close(weir_pool *p);
weir_status wr_pool_alloc(weir_pool *p, size_t bytes, weir_stream s, weir_dptr *out);
weir_status wr_pool_alloc_with(
    weir_pool *p, size_t bytes, weir_stream s, const weir_alloc_options *o, weir_dptr *out);
weir_status wr_pool_free(weir_pool *p, weir_dptr block, weir_stream s);
weir_status wr_pool_touch(weir_pool *p, weir_dptr block, weir_stream s);
weir_status wr_pool_retire(weir_pool *p, weir_stream s);
/* See weir_pool_set_limit. */
weir_status wr_pool_set_limit(weir_pool *p, size_t bytes, double fraction);
weir_status wr_pool_peer_enable(weir_pool *p, int ordinal);
weir_status wr_pool_export(weir_pool *p, weir_dptr block, size_t from, weir_exported *out);
weir_status wr_pool_host_alloc(weir_pool *p, size_t bytes, void **out);
weir_status wr_pool_host_free(weir_pool *p, void *host, weir_stream s);

/* The home of a live block, its lock taken. INVALID_POINTER. */
weir_status wr_pool_lock_block(
    weir_pool *p, weir_dptr block, struct wr_heap **home, enum wr_kind *kind, uint32_t *unit);

/* stats.c */
void wr_stats_fill(weir_pool *p, weir_stats *out);
void wr_stats_check(weir_pool *p);
weir_status wr_snapshot_take(weir_pool *p, char **out); /* snapshot.c */

/* ---- for ladder.c and stats.c ------------------------------------------------------------------------ */

/* Between the two the pool's tables stay. CLOSED where it has ended. */
weir_status wr_pool_enter(weir_pool *p);
void wr_pool_leave(weir_pool *p);

/* After a free or an unhold of a pool that is closing: ends it, if that was the last. */
void wr_pool_finish_closing(weir_pool *p);

/* `terms` holds the defaults of what the two leave out. */
weir_status wr_pool_read_reuse(weir_reuse reuse, int64_t deadline_ns, struct wr_terms *terms);

/* Why a pool that is not open turns a call away: CLOSED, AFTER_FORK, CONTEXT_LOST, worded. */
weir_status wr_pool_refuse(weir_pool *p) __attribute__((cold));

/* The calling thread ends: the fences of its default stream can be ticked by nobody as theirs any more. */
void wr_pool_end_thread(void);

/* Other pools of the process on the same device give up to `bytes` of what they have finished back to the
 * driver. Returns what went back. */
uint64_t wr_pool_trim_others(weir_pool *p, uint64_t bytes);

/* ---- heaps.c ---- */

/* The driver's reads of a stream: its id and whether it captures. */
weir_status wr_heaps_identify(weir_pool *p, weir_stream s, struct wr_stream_info *info);

/* LOCK: h->lock. False: `h` was remembered or looked up, and has ended since. */
static inline bool wr_heaps_serves(const struct wr_heap *h, const weir_pool *p, uint64_t id)
{
    return h->id == id && h->pool == p && !h->retired;
}

/* The heap that the calling thread used last. */
struct wr_last_heap {
    uint64_t pool_uid, id;
    weir_stream stream;
    struct wr_heap *heap;
    uint32_t index;
};
extern _Thread_local struct wr_last_heap wr_last_heap;

/* May a handle be taken for its stream? Default streams' handles mean another stream in another context or
 * thread. */
static inline bool wr_heaps_trusts(const weir_pool *p, weir_stream s)
{
    return p->announced && (uintptr_t)s > 2 &&
           atomic_load_explicit((_Atomic uint32_t *)&p->n_captures, memory_order_relaxed) == 0;
}

/* Finds the stream's heap, or makes it, and takes its lock. CAPTURING, without a text: it captures a graph. */
weir_status wr_heaps_lock(weir_pool *p, weir_stream s, struct wr_heap **out);
weir_status wr_heaps_lock_id_slow(weir_pool *p, weir_stream s, uint64_t id, struct wr_heap **out);

struct wr_heap *wr_heaps_find(
    weir_pool *p, uint64_t id); /* NULL: none; may have ended by the time it is locked */
struct wr_heap *wr_heaps_at(weir_pool *p, uint32_t index); /* the same */
void wr_heaps_retire(weir_pool *p, struct wr_heap *h);     /* pinned: found no more, ends when it can */
void wr_heaps_fini(weir_pool *p); /* all are empty and quiet, and no thread uses them */

/* The heap of an index, NULL where it has ended. Pinned until unpinned: it serves the same stream all the
 * while. */
struct wr_heap *wr_heaps_pin(weir_pool *p, uint32_t index);
/* The stream's heap, made where there is none, pinned. CAPTURING: it has no id now. */
weir_status wr_heaps_pin_stream(weir_pool *p, weir_stream s, struct wr_heap **out);
/* The heap last opened with that handle, pinned; NULL: none. No proof of identity (A08), but good enough to
 * stamp by: the fence's tick finds out. */
struct wr_heap *wr_heaps_find_handle(weir_pool *p, weir_stream s);
/* The heap of a fence, pinned likewise. NULL: it has ended, so all that is asked of the fence has passed. */
struct wr_heap *wr_heaps_pin_fence(weir_pool *p, struct wr_fence *f);
/* LOCK: takes the heap's. Ends a retired heap that is empty and whose stream has passed. */
void wr_heaps_unpin(weir_pool *p, struct wr_heap *h);

/* The private heap of a stream in a capture, made and pinned. */
weir_status wr_heaps_open_captured(
    weir_pool *p, weir_stream s, uint64_t capture, struct wr_device *device, struct wr_heap **out);

/* Drops all tables of heaps that no thread uses, live blocks and all: their device is lost. False: a thread
 * still uses one. */
bool wr_heaps_forget(weir_pool *p);

/* ---- capture.c ---- */

weir_status wr_capture_alloc(
    weir_pool *p, uint32_t units, weir_stream s, const struct wr_terms *terms, weir_dptr *out);
/* The heap of a capturing stream, made where there is none, pinned. The pool is entered. CAPTURING: the capture
 * can't be named. */
weir_status wr_capture_pin(weir_pool *p, weir_stream s, struct wr_heap **out);
weir_status wr_capture_id(weir_pool *p, weir_stream s, uint64_t *out);
weir_status wr_capture_release(weir_pool *p, uint64_t id);

/* ---- ladder.c ---- */

/* SLOW. `h` is pinned and stays so. */
weir_status wr_ladder_alloc(
    weir_pool *p, struct wr_heap *h, uint32_t units, const struct wr_terms *terms, uint32_t *start);
/* Polls what the heap waits for, lets pending blocks go and, where asked, gives its passed pages to the pool.
 */
weir_status wr_ladder_visit(weir_pool *p, struct wr_heap *h, bool give_pages);
weir_status wr_ladder_visit_all(weir_pool *p, const struct wr_heap *but);
uint64_t wr_ladder_trim(weir_pool *p, uint64_t keep_bytes);

/* ---- report.c ---- */

/* What an alloc needs: `units`, and so many pages in a row to be sure of them. */
struct wr_need {
    weir_pool *pool;
    struct wr_heap *heap;
    uint32_t units, pages, align;
    bool device_full; /* the driver refused memory that the limit allows */
    bool by_stream;   /* the stream will wait, not the host: see wr_shortage.best */
};

/* A point of a stream's past, and the free memory that waits for it. */
struct wr_holder {
    uint64_t id;            /* the stream's; by now it may have ended */
    struct wr_fence *fence; /* stays a fence even then: one that has passed */
    uint64_t stamp;
    uint64_t units;
};

struct wr_shortage {
    uint64_t free_units, waiting_units; /* in heaps; waiting: of those, not passed */
    uint64_t largest_units;             /* that the need's stream could get at once */
    struct wr_holder best;              /* what to wait for: see report.c. fence NULL: nothing */
    uint64_t graph_units;               /* kept for graphs: a release brings them back, not waiting */
    bool best_is_enough;                /* then the need is met, or one step nearer; by_stream: at once */
    bool would_do;                      /* the need is met once all has passed, if pieces are well placed */
    uint32_t n_holders;
    struct wr_holder holders[128]; /* one a stream, in no order; what more streams hold is in waiting_units */
};

void wr_report_measure(const struct wr_need *need, struct wr_shortage *out);
/* Words the failure, keeps it for weir_last_failure, returns `s`. */
weir_status wr_report_fail(const struct wr_need *need, const struct wr_shortage *sum, weir_status s);
weir_status wr_report_refuse(weir_pool *p, size_t bytes); /* TOO_LARGE */
const weir_failure *wr_report_last(void);                 /* the calling thread's */

/* ---- policy.c ---- */

/* LOCK: h->lock. The heap's memory follows OWNER from now on. */
void wr_policy_own(weir_pool *p, struct wr_heap *h);
/* LOCK: h->lock. What an alloc's own terms say of its stream's memory. */
void wr_policy_choose(weir_pool *p, struct wr_heap *h, weir_reuse reuse);
/* wr_fence_cover. CAPTURING: it would take a tick of the context, which ends every capture in it. The fence's
 * heap is pinned, or it is the context's. */
weir_status wr_policy_cover(weir_pool *p, struct wr_fence *f, uint64_t stamp);
/* The stream of `h`, pinned, waits on the device for the point. */
weir_status wr_policy_device_wait(weir_pool *p, struct wr_heap *h, const struct wr_holder *by);
/* The call waits for the point. TIMEOUT: not before `until_ns`; CLOSED: the pool is being closed. */
weir_status wr_policy_host_wait(weir_pool *p, const struct wr_holder *by, uint64_t until_ns);

static inline uint32_t wr_pool_tag(const struct wr_heap *h, enum wr_kind kind)
{
    return (h->index + 1) << 1 | kind;
}

/* ---- for the queue ----------------------------------------------------------------------------------- */

/* A point of a stream's past, as taken by wr_pool_mark: recorded, and so fit to be waited for. */
struct wr_mark {
    struct wr_fence *fence;
    uint64_t number;
};

struct wr_device *wr_pool_device(weir_pool *p);
struct wr_pinned *wr_pool_pinned(weir_pool *p);

/* While held, a closed pool keeps its fences and memory: marks stay valid. CLOSED where the pool is closed.
 */
weir_status wr_pool_hold(weir_pool *p);
void wr_pool_unhold(weir_pool *p);

/* Marks what is queued on `s` now: one event record. Errors: CAPTURING, DRIVER_ERROR, CONTEXT_LOST,
 * NO_HOST_MEMORY. */
weir_status wr_pool_mark(weir_pool *p, weir_stream s, struct wr_mark *out);

/* touch with a mark taken before: no driver call. */
weir_status wr_pool_use(weir_pool *p, weir_dptr block, struct wr_mark m);

static inline bool wr_mark_passed(struct wr_mark m)
{
    return wr_fence_passed(m.fence, m.number);
}
/* Asks the driver first; false: not known to have passed. */
static inline bool wr_mark_poll(struct wr_mark m)
{
    if (wr_mark_passed(m)) return true;
    wr_fence_poll(m.fence);
    return wr_mark_passed(m);
}
/* `waiter` waits for the mark; no wait is queued where it is known to have passed. */
static inline weir_status wr_mark_wait(struct wr_mark m, weir_stream waiter)
{
    return wr_fence_wait_on(m.fence, m.number, waiter);
}

#endif
