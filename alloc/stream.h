/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream's heap: the memory that one stream may use at once, and what it has lent and not got back. stream.c: the
 * hot path and the front cache. uses.c: other streams' uses. heap.c: pages, life, invariants.
 */
#ifndef WR_STREAM_H
#define WR_STREAM_H

#include "fence.h"
#include "index.h"
#include "range.h"

/* One declared use of a block by another stream: over when fence has passed stamp. */
struct wr_block_use {
    struct wr_fence *fence;
    uint64_t stamp;
    uint32_t next; /* index into heap->uses; 0 ends. A spare: the next spare */
};

/* Pending blocks that wait, first of all, for one fence. */
struct wr_pending {
    struct wr_fence *fence;
    uint64_t looked_at;       /* fence->done when the list was last gone through */
    uint64_t greatest_stamp;  /* what a tick must cover for all of them to leave */
    uint32_t first[WR_KINDS]; /* nodes, chained by bin_next */
};

/* The front cache: freed blocks of one exact size, last in first out. Real programs use 9 to 93 sizes, and
 * half to nearly all of their allocations hit one that was freed before. */
struct wr_front {
    uint32_t units; /* of the size whose entry it is; 0: of none yet */
    uint32_t first; /* node, chained by bin_next; 0: none */
    bool repeats;   /* the size was asked for twice with no other of the entry in between */
};

enum { WR_FRONTS = 256 };

struct wr_heap_counts {
    uint64_t live_units, front_units, peak_live_units, allocs, frees;
    uint64_t pending_units, pending_blocks, slow_allocs, touches;
};

/* What a warm call writes stands in one cache line, from the latch on, and what it only reads in the next: a heap
 * that several threads share moves few lines between them. */
struct wr_heap {
    struct wr_fence fence;                        /* first: a fence finds its heap */
    _Alignas(WR_CACHE_LINE) struct wr_latch lock; /* guards all below */
    uint64_t last_stamp;                          /* the latest given to a free piece */
    uint64_t unfenced_units;                      /* freed since the last tick by weight */
    struct wr_heap_counts counts;
    struct wr_fence *gate; /* what free pieces are stamped by: the stream's, or (OWNER) the context's */
    const void *pool;      /* NULL while the heap serves no stream */
    uint64_t id;           /* the stream's (cuStreamGetId) */
    uint64_t tick_units, ticked_frees; /* see wr_stream_wants_tick */
    uint32_t index;                    /* in its pool */
    uint32_t users;                    /* threads in a slow path with this heap */
    bool retired, disowned;
    struct wr_index blocks; /* start unit -> node of a block that is live or in the front cache */
    struct wr_front fronts[WR_FRONTS];
    uint64_t front_used[WR_FRONTS / 64]; /* bit i: fronts[i] may hold a block */
    uint32_t flush_word;                 /* where the next flush of a part begins */
    struct wr_range range[WR_KINDS];
    struct wr_block_use *uses;
    uint32_t n_uses, uses_capacity, spare_use;
    struct wr_pending *pending;
    uint32_t n_pending, pending_capacity;
    _Atomic uint64_t capture; /* whose private heap it is; 0: of none, or of a graph that was released */
    struct wr_heap *next_spare;
};

static inline uint64_t wr_stream_live_blocks(const struct wr_heap *h)
{
    return h->counts.allocs - h->counts.frees;
}

/* A heap begins with a stream and ends empty. The struct itself is never freed: see pool.c. */
void wr_stream_open(struct wr_heap *h, const void *pool, uint64_t id, uint32_t index, uint64_t tick_units);
void wr_stream_close(struct wr_heap *h);

/* Its memory is gone with the device: everything is dropped, live blocks, too, and the heap is empty. LOCK:
 * h->lock. */
void wr_stream_forget(struct wr_heap *h);

/* ---- under h->lock ----------------------------------------------------------------------------------- */

/* *start is the block's first unit. NOT_YET: no free piece is large enough. NO_HOST_MEMORY. */
weir_status wr_stream_alloc(struct wr_heap *h, uint32_t units, uint32_t *start);

/* The same, for a block whose (start + phase) is a multiple of `align`, a power of two. */
weir_status wr_stream_alloc_aligned(
    struct wr_heap *h, uint32_t units, uint32_t align, uint32_t phase, uint32_t *start);

/* The live block at `start` was freed by the stream of `by`. INVALID_POINTER: none starts there.
 * NO_HOST_MEMORY: nothing changed. */
weir_status wr_stream_free(struct wr_heap *h, enum wr_kind kind, uint32_t start, struct wr_fence *by);

/* The live block at `start` is used by the stream of `by` up to `stamp`. Errors as above. */
weir_status wr_stream_use(
    struct wr_heap *h, uint32_t start, enum wr_kind kind, struct wr_fence *by, uint64_t stamp);

/* The units of the live block at `start`; 0: none starts there. */
uint32_t wr_stream_live_units(const struct wr_heap *h, enum wr_kind kind, uint32_t start);

/* Enough was freed since the last tick that its own event is worth it: blocks freed long ago should not have
 * to wait for what the stream was given later. True once; the caller ticks, off the lock. */
bool wr_stream_wants_tick(struct wr_heap *h);

/* Empties the front cache into the ranges, where blocks join. True if there was any. Costs what it holds. */
bool wr_stream_flush(struct wr_heap *h);

/* Lets pending blocks go whose users have passed, as far as their fences are known. True if any left. */
bool wr_stream_reap(struct wr_heap *h);

/* From now on free pieces, those there are as well, wait for `context` before others may have them. */
void wr_stream_own(struct wr_heap *h, struct wr_fence *context);

/* Undoes that, until it is done again, for a heap that has had no memory yet; for others it does nothing. */
void wr_stream_disown(struct wr_heap *h);

/* The heap's stream was made to wait for `stamp` of `by`: what pends for that only is READY. */
void wr_stream_let_go(struct wr_heap *h, struct wr_fence *by, uint64_t stamp);

/* A run of whole pages inside a free piece. */
struct wr_page_run {
    uint32_t first, n;
    uint64_t stamp;
    uint32_t piece, next_piece; /* where the walk stands; zeroed to begin with */
};

/* The next run; false: no more. With `passed_only`, only what has passed on the stream, and may serve any
 * other; else what may serve this stream alone. Between two calls nothing but wr_stream_cut_run may change
 * the range. */
bool wr_stream_next_run(
    const struct wr_heap *h, enum wr_kind kind, bool passed_only, struct wr_page_run *run);

/* Takes the run's first `n` pages out of the range. NO_HOST_MEMORY: nothing changed. */
weir_status wr_stream_cut_run(
    struct wr_heap *h, enum wr_kind kind, const struct wr_page_run *run, uint32_t n);

/* The free units with which one of the heap's extents ends where that page begins, or begins there: more
 * pages at that side would make one piece with them. 0: none. */
uint32_t wr_stream_units_before(const struct wr_heap *h, enum wr_kind kind, uint32_t page);
uint32_t wr_stream_units_behind(const struct wr_heap *h, enum wr_kind kind, uint32_t page);

/* Does any free piece hold a whole page? (The front cache is flushed before.) */
bool wr_stream_has_pages(const struct wr_heap *h);

/* No block, no page, nothing pending. */
bool wr_stream_is_empty(const struct wr_heap *h);

/* Where a piece of a range is: for looking inside. */
enum wr_piece_state { WR_PIECE_FREE, WR_PIECE_CACHED, WR_PIECE_LIVE, WR_PIECE_PENDING };
enum wr_piece_state wr_stream_state(const struct wr_heap *h, enum wr_kind kind, uint32_t id);
/* The first declared use of a block that is live or pending; 0: none. */
uint32_t wr_stream_first_use(const struct wr_heap *h, enum wr_kind kind, uint32_t id);

/* ---- between stream.c, uses.c and heap.c ------------------------------------------------------------- */

#define WR_IN_FRONT                                                                                          \
    UINT32_MAX /* owner data of a block in the front cache; of a live or pending one: its first use */

weir_status wr_stream_refuse(void); /* INVALID_POINTER */
/* NO_HOST_MEMORY: nothing changed. */
weir_status wr_uses_add(struct wr_heap *h, struct wr_node *n, struct wr_fence *by, uint64_t stamp);
weir_status wr_uses_reserve_pending(struct wr_heap *h); /* room for one more list */
/* A freed block's next place: READY (true), or pending under the first use that has not passed. Where the
 * host has no memory for another list the block goes under `fallback`, one that exists: looked at late, but
 * not lost. */
bool wr_uses_settle(struct wr_heap *h, enum wr_kind kind, uint32_t id, uint32_t fallback);

void wr_stream_check(const struct wr_heap *h); /* all invariants; aborts with the broken one's text */

#endif
