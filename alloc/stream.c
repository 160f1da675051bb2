/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A block is in one place: live, pending, in the front cache, or part of a free piece of a range. The
 * last two are READY for this stream: stream order is enough. The front cache holds blocks as they were, by
 * exact size; the ranges split and join. There are two ranges, one for small blocks (size.h) and one for the
 * others, so that small blocks never pin large pages; both hold only pages that the pool has granted to this
 * heap.
 *
 * A live block's node carries a list of declared uses by other streams. When the block is freed the uses that
 * have passed are dropped; if none is left it is READY, else it is filed under the fence of the first that is
 * left, and looked at again when that fence has moved. So a stalled stream holds back its own blocks only
 * (A10).
 *
 * The READY piece keeps the home stream's stamp of the free: other streams, and the driver, get its pages
 * only when that has passed.
 */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- HOT PATH ---------------------------------------------------------------------------------------- */
/* Budget, warm: alloc one look into the front cache, 40 instructions; free one into the index and one push to the
 * front cache, 60. No driver call, no malloc, no write outside this heap, and nothing that the slow functions need
 * is saved on the way. Where the front cache has no block: a bin search, a split, an index put.
 *
 * Owner data of a live block: its uses; IN_FRONT: it is in the front cache. */

#define IN_FRONT UINT32_MAX

static struct wr_front *front_of(struct wr_heap *h, uint32_t units)
{
    return &h->fronts[(units * UINT32_C(0x9E3779B1)) >> 24];
}

static void count_live(struct wr_heap *h, uint32_t units)
{
    h->counts.allocs++;
    h->counts.live_units += units;
    if (h->counts.live_units > h->counts.peak_live_units) h->counts.peak_live_units = h->counts.live_units;
}

/* Most often it is noted: then the line stays as it is, and in other threads' caches. */
static void note_used(struct wr_heap *h, const struct wr_front *front)
{
    size_t i = (size_t)(front - h->fronts);
    uint64_t bit = UINT64_C(1) << i % 64;
    if (WR_UNLIKELY((h->front_used[i / 64] & bit) == 0)) h->front_used[i / 64] |= bit;
}

static void count_free(struct wr_heap *h, uint32_t units)
{
    h->counts.frees++;
    h->counts.live_units -= units;
    h->unfenced_units += units;
}

static weir_status alloc_from_range(
    struct wr_heap *h, struct wr_front *front, uint32_t units, uint32_t *start);
static weir_status free_used_slow(struct wr_heap *h, enum wr_kind kind, uint32_t id, struct wr_fence *by);
static weir_status free_to_range(struct wr_heap *h, enum wr_kind kind, uint32_t id);
static void flush_some(struct wr_heap *h, uint32_t most);

static __attribute__((noinline)) weir_status refuse_slow(void)
{
    return wr_fail(WEIR_INVALID_POINTER, "no live block starts at this address");
}

weir_status wr_stream_alloc(struct wr_heap *h, uint32_t units, uint32_t *start)
{
    struct wr_front *front = front_of(h, units);
    if (WR_UNLIKELY(front->units != units || front->first == 0))
        return alloc_from_range(h, front, units, start);
    struct wr_node *n = &h->range[wr_size_kind(units)].nodes[front->first];
    assert(n->owner_data == IN_FRONT && n->units == units);
    front->first = n->bin_next;
    n->owner_data = 0;
    h->counts.front_units -= units;
    count_live(h, units);
    *start = n->start;
    return WEIR_OK;
}

weir_status wr_stream_free(struct wr_heap *h, enum wr_kind kind, uint32_t start, struct wr_fence *by)
{
    uint32_t id = wr_index_get(&h->blocks, start);
    if (WR_UNLIKELY(id == 0)) return refuse_slow();
    struct wr_node *n = &h->range[kind].nodes[id];
    if (WR_UNLIKELY(n->owner_data == IN_FRONT)) return refuse_slow();
    if (WR_UNLIKELY(n->owner_data != 0 || by != &h->fence)) return free_used_slow(h, kind, id, by);
    count_free(h, n->units);
    n->stamp = h->last_stamp = wr_fence_stamp(h->gate);
    struct wr_front *front = front_of(h, n->units);
    if (WR_UNLIKELY(front->units != n->units || !front->repeats)) return free_to_range(h, kind, id);
    n->bin_next = front->first;
    front->first = id;
    note_used(h, front);
    n->owner_data = IN_FRONT;
    h->counts.front_units += n->units;
    return WEIR_OK;
}

/* An entry goes to a size that is asked for a second time before another takes it: random sizes pass by, and
 * their blocks join at once. */
static void ask_for(struct wr_front *front, uint32_t units)
{
    if (front->units == units)
        front->repeats = true;
    else if (front->repeats)
        front->repeats = front->first != 0; /* the next size but one gets it, if it is not used meanwhile */
    else
        front->units = units;
}

/* Before a larger piece is cut cached blocks join, else what they keep apart is never whole again. Not for a
 * handful: a 128th of what lives is little to lose. And not all at once: the call that cuts would pay for all
 * that were freed before it. */
static bool flush_before_cut(struct wr_heap *h)
{
    enum { BLOCKS = 8 };
    if (h->counts.front_units <= h->counts.live_units / 128) return false;
    flush_some(h, BLOCKS);
    return true;
}

static __attribute__((noinline)) weir_status alloc_from_range(
    struct wr_heap *h, struct wr_front *front, uint32_t units, uint32_t *start)
{
    struct wr_range *r = &h->range[wr_size_kind(units)];
    uint32_t id = wr_range_find(r, units);
    if (WR_UNLIKELY(id == 0)) return WEIR_NOT_YET;
    if (r->nodes[id].units != units && flush_before_cut(h)) id = wr_range_find(r, units);
    if (WR_UNLIKELY(!wr_range_reserve_split(r) || !wr_index_reserve(&h->blocks)))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a block's entry");
    ask_for(front, units); /* not before: a slow path may have to come here twice */
    wr_range_take(r, id, units);
    *start = r->nodes[id].start;
    wr_index_put(&h->blocks, *start, id);
    count_live(h, units);
    return WEIR_OK;
}

static __attribute__((noinline)) weir_status free_to_range(struct wr_heap *h, enum wr_kind kind, uint32_t id)
{
    const struct wr_node *n = &h->range[kind].nodes[id];
    wr_index_remove(&h->blocks, n->start);
    wr_range_give(&h->range[kind], id, n->stamp);
    return WEIR_OK;
}

static weir_status add_use(struct wr_heap *h, struct wr_node *n, struct wr_fence *by, uint64_t stamp);
static weir_status reserve_pending(struct wr_heap *h);
static bool settle_slow(struct wr_heap *h, enum wr_kind kind, uint32_t id, uint32_t fallback);

/* SLOW: other streams used the block, or free it. */
static __attribute__((noinline)) weir_status free_used_slow(
    struct wr_heap *h, enum wr_kind kind, uint32_t id, struct wr_fence *by)
{
    struct wr_node *n = &h->range[kind].nodes[id];
    if (by != &h->fence && !WR_FAULT(FREE_FORGETS_STREAM)) {
        weir_status s = add_use(h, n, by, wr_fence_lend(by));
        if (s != WEIR_OK) return s;
    }
    if (n->owner_data != 0 && reserve_pending(h) != WEIR_OK) return WEIR_NO_HOST_MEMORY;
    count_free(h, n->units);
    n->stamp = h->last_stamp = wr_fence_stamp(h->gate);
    if (n->owner_data == 0) return free_to_range(h, kind, id);
    wr_index_remove(&h->blocks, n->start);
    settle_slow(h, kind, id, 0);
    return WEIR_OK;
}

bool wr_stream_wants_tick(struct wr_heap *h)
{
    enum { FREES = 256 };
    if (WR_LIKELY(h->counts.frees - h->ticked_frees < FREES && h->unfenced_units < h->tick_units))
        return false;
    h->ticked_frees = h->counts.frees;
    h->unfenced_units = 0;
    return true;
}

/* ---- aligned blocks ---------------------------------------------------------------------------------- */

static weir_status alloc_aligned_from_range(
    struct wr_heap *h, uint32_t units, uint32_t align, uint32_t phase, uint32_t *start)
{
    struct wr_range *r = &h->range[wr_size_kind(units)];
    uint32_t at, id = wr_range_find_aligned(r, units, align, phase, &at);
    if (id == 0) return WEIR_NOT_YET;
    if (!wr_range_reserve(r) || !wr_index_reserve(&h->blocks))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a block's entry");
    id = wr_range_take_at(r, id, at, units);
    wr_index_put(&h->blocks, at, id);
    count_live(h, units);
    *start = at;
    return WEIR_OK;
}

/* A block of the front cache may do by luck, and does where the size is always asked for with this
 * alignment. */
weir_status wr_stream_alloc_aligned(
    struct wr_heap *h, uint32_t units, uint32_t align, uint32_t phase, uint32_t *start)
{
    if (align == 1) return wr_stream_alloc(h, units, start);
    const struct wr_front *front = front_of(h, units);
    if (front->units == units && front->first != 0) {
        const struct wr_node *n = &h->range[wr_size_kind(units)].nodes[front->first];
        if (((n->start + phase) & (align - 1)) == 0) return wr_stream_alloc(h, units, start);
    }
    return alloc_aligned_from_range(h, units, align, phase, start);
}

/* ---- uses -------------------------------------------------------------------------------------------- */

static bool reserve_use(struct wr_heap *h)
{
    if (h->spare_use != 0 || h->n_uses < h->uses_capacity) return true;
    uint32_t capacity = h->uses_capacity == 0 ? 64 : h->uses_capacity * 2;
    struct wr_block_use *uses = realloc(h->uses, capacity * sizeof *uses);
    if (uses == NULL) return false;
    h->uses = uses;
    h->uses_capacity = capacity;
    if (h->n_uses == 0) h->n_uses = 1; /* 0 is none */
    return true;
}

static void drop_use(struct wr_heap *h, uint32_t use)
{
    h->uses[use].next = h->spare_use;
    h->spare_use = use;
}

static weir_status add_use(struct wr_heap *h, struct wr_node *n, struct wr_fence *by, uint64_t stamp)
{
    for (uint32_t u = n->owner_data; u != 0; u = h->uses[u].next) {
        if (h->uses[u].fence != by) continue;
        if (!WR_FAULT(TOUCH_KEEPS_FIRST)) h->uses[u].stamp = wr_max(h->uses[u].stamp, stamp);
        return WEIR_OK;
    }
    if (!reserve_use(h)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a block's use");
    uint32_t u = h->spare_use;
    if (u != 0)
        h->spare_use = h->uses[u].next;
    else
        u = h->n_uses++;
    h->uses[u] = (struct wr_block_use){.fence = by, .stamp = stamp, .next = n->owner_data};
    n->owner_data = u;
    return WEIR_OK;
}

weir_status wr_stream_use(
    struct wr_heap *h, uint32_t start, enum wr_kind kind, struct wr_fence *by, uint64_t stamp)
{
    uint32_t id = wr_index_get(&h->blocks, start);
    if (id == 0 || h->range[kind].nodes[id].owner_data == IN_FRONT) return refuse_slow();
    h->counts.touches++;
    if (by == &h->fence || WR_FAULT(TOUCH_FORGOTTEN)) return WEIR_OK; /* at home stream order is enough */
    return add_use(h, &h->range[kind].nodes[id], by, stamp);
}

uint32_t wr_stream_live_units(const struct wr_heap *h, enum wr_kind kind, uint32_t start)
{
    uint32_t id = wr_index_get(&h->blocks, start);
    return id == 0 || h->range[kind].nodes[id].owner_data == IN_FRONT ? 0 : h->range[kind].nodes[id].units;
}

static void drop_passed_uses(struct wr_heap *h, struct wr_node *n)
{
    uint32_t *link = &n->owner_data;
    while (*link != 0) {
        uint32_t u = *link;
        if (!wr_fence_passed(h->uses[u].fence, h->uses[u].stamp)) {
            link = &h->uses[u].next;
            continue;
        }
        *link = WR_FAULT(REAP_ONE_USE) ? 0 : h->uses[u].next;
        drop_use(h, u);
    }
}

/* ---- pending ----------------------------------------------------------------------------------------- */

static weir_status reserve_pending(struct wr_heap *h)
{
    if (h->n_pending < h->pending_capacity) return WEIR_OK;
    uint32_t capacity = h->pending_capacity == 0 ? 8 : h->pending_capacity * 2;
    struct wr_pending *lists = realloc(h->pending, capacity * sizeof *lists);
    if (lists == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a list of pending blocks");
    h->pending = lists;
    h->pending_capacity = capacity;
    return WEIR_OK;
}

static uint32_t find_pending(struct wr_heap *h, struct wr_fence *f, uint32_t fallback)
{
    for (uint32_t i = 0; i < h->n_pending; i++)
        if (h->pending[i].fence == f) return i;
    if (reserve_pending(h) != WEIR_OK) return fallback;
    h->pending[h->n_pending] = (struct wr_pending){.fence = f};
    return h->n_pending++;
}

/* A freed block's next place: READY (true), or pending under the first use that has not passed. Where the
 * host has no memory for another list the block goes under `fallback`, one that exists: looked at late, but
 * not lost. */
static bool settle_slow(struct wr_heap *h, enum wr_kind kind, uint32_t id, uint32_t fallback)
{
    struct wr_node *n = &h->range[kind].nodes[id];
    drop_passed_uses(h, n);
    if (n->owner_data == 0) {
        wr_range_give(&h->range[kind], id, WR_FAULT(SETTLE_DROPS_STAMP) ? 0 : n->stamp);
        return true;
    }
    const struct wr_block_use *use = &h->uses[n->owner_data];
    uint32_t at = find_pending(h, use->fence, fallback); /* may move the lists */
    struct wr_pending *list = &h->pending[at];
    list->greatest_stamp = wr_max(list->greatest_stamp, use->stamp);
    n->bin_next = list->first[kind];
    list->first[kind] = id;
    h->counts.pending_blocks++;
    h->counts.pending_units += n->units;
    return false;
}

/* Settles each block of a list again. A block may come back to this very list: its head is taken off first.
 */
static bool reap_list(struct wr_heap *h, uint32_t i)
{
    bool any = false;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        uint32_t id = h->pending[i].first[kind];
        h->pending[i].first[kind] = 0;
        while (id != 0) {
            uint32_t next = h->range[kind].nodes[id].bin_next;
            h->counts.pending_blocks--;
            h->counts.pending_units -= h->range[kind].nodes[id].units;
            any |= settle_slow(h, kind, id, i);
            id = next;
        }
    }
    return any;
}

static void drop_empty_lists(struct wr_heap *h)
{
    for (uint32_t i = h->n_pending; i-- > 0;)
        if (h->pending[i].first[WR_SMALL] == 0 && h->pending[i].first[WR_LARGE] == 0)
            h->pending[i] = h->pending[--h->n_pending];
}

bool wr_stream_reap(struct wr_heap *h)
{
    bool any = false;
    for (uint32_t i = 0; i < h->n_pending; i++) { /* lists appended meanwhile are looked at, too */
        uint64_t done = atomic_load(&h->pending[i].fence->done);
        if (done == h->pending[i].looked_at) continue;
        h->pending[i].looked_at = done;
        any |= reap_list(h, i);
    }
    drop_empty_lists(h);
    return any;
}

/* Uses that the heap's own stream has been made to wait for. */
static void drop_waited_uses(struct wr_heap *h, struct wr_node *n, const struct wr_fence *by, uint64_t stamp)
{
    uint32_t *link = &n->owner_data;
    while (*link != 0) {
        uint32_t u = *link;
        bool waited = (h->uses[u].fence == by && h->uses[u].stamp <= stamp) || WR_FAULT(WAIT_DROPS_ALL_USES);
        if (!waited) {
            link = &h->uses[u].next;
            continue;
        }
        *link = h->uses[u].next;
        drop_use(h, u);
    }
}

/* INVARIANT: what is READY because its stream waits has not passed on it before that wait has: its stamp is
 * one that only a tick after the wait covers. */
void wr_stream_let_go(struct wr_heap *h, struct wr_fence *by, uint64_t stamp)
{
    uint64_t after_wait = wr_fence_stamp(h->gate);
    h->last_stamp = after_wait;
    for (uint32_t i = 0; i < h->n_pending; i++) {
        if (h->pending[i].fence != by) continue;
        for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
            for (uint32_t id = h->pending[i].first[kind]; id != 0; id = h->range[kind].nodes[id].bin_next) {
                struct wr_node *n = &h->range[kind].nodes[id];
                drop_waited_uses(h, n, by, stamp);
                if (!WR_FAULT(WAIT_KEEPS_STAMP)) n->stamp = after_wait;
            }
        reap_list(h, i);
        break; /* a fence has one list */
    }
    drop_empty_lists(h);
}

/* ---- the front cache --------------------------------------------------------------------------------- */

/* Gives up to `most` blocks to the range; returns how many. */
static uint32_t flush_front(struct wr_heap *h, struct wr_front *front, uint32_t most)
{
    struct wr_range *r = &h->range[wr_size_kind(front->units)];
    uint32_t n = 0;
    for (; front->first != 0 && n < most; n++) {
        uint32_t id = front->first;
        front->first = r->nodes[id].bin_next;
        h->counts.front_units -= front->units;
        wr_index_remove(&h->blocks, r->nodes[id].start);
        wr_range_give(r, id, WR_FAULT(FLUSH_DROPS_STAMP) ? 0 : r->nodes[id].stamp);
    }
    return n;
}

/* Goes on where the last one ended, so that each size has its turn. */
static void flush_some(struct wr_heap *h, uint32_t most)
{
    enum { WORDS = WR_FRONTS / 64 };
    uint32_t n = 0;
    for (uint32_t i = 0; i < WORDS && n < most; i++) {
        uint32_t word = h->flush_word % WORDS;
        while (h->front_used[word] != 0 && n < most) {
            uint32_t bit = (uint32_t)__builtin_ctzll(h->front_used[word]);
            struct wr_front *front = &h->fronts[word * 64 + bit];
            n += flush_front(h, front, most - n);
            if (front->first == 0) h->front_used[word] &= ~(UINT64_C(1) << bit);
        }
        h->flush_word++;
    }
}

bool wr_stream_flush(struct wr_heap *h)
{
    if (h->counts.front_units == 0) return false;
    flush_some(h, UINT32_MAX);
    return true;
}

/* ---- pages ------------------------------------------------------------------------------------------- */

static uint32_t first_whole_page(const struct wr_node *n)
{
    return wr_size_pages(n->start);
}
static uint32_t past_whole_pages(const struct wr_node *n)
{
    return (n->start + n->units) >> WR_UNITS_PER_PAGE_LOG2;
}

bool wr_stream_next_run(const struct wr_heap *h, enum wr_kind kind, bool passed_only, struct wr_page_run *run)
{
    const struct wr_range *r = &h->range[kind];
    uint32_t id = run->piece == 0 ? wr_range_next_free(r, 0, WR_UNITS_PER_PAGE) : run->next_piece;
    for (; id != 0; id = wr_range_next_free(r, id, WR_UNITS_PER_PAGE)) {
        const struct wr_node *n = &r->nodes[id];
        uint32_t first = first_whole_page(n), past = past_whole_pages(n);
        if (first >= past || (passed_only && !wr_fence_passed(h->gate, n->stamp))) continue;
        /* The next piece is found before a cut refiles this one. */
        *run = (struct wr_page_run){.first = first,
            .n = past - first,
            .stamp = n->stamp,
            .piece = id,
            .next_piece = wr_range_next_free(r, id, WR_UNITS_PER_PAGE)};
        return true;
    }
    return false;
}

weir_status wr_stream_cut_run(struct wr_heap *h, enum wr_kind kind, const struct wr_page_run *run, uint32_t n)
{
    struct wr_range *r = &h->range[kind];
    assert(n > 0 && n <= run->n);
    if (!wr_range_reserve(r)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to split a free piece");
    wr_range_remove(r, run->piece, run->first << WR_UNITS_PER_PAGE_LOG2, n << WR_UNITS_PER_PAGE_LOG2);
    return WEIR_OK;
}

uint32_t wr_stream_units_before(const struct wr_heap *h, enum wr_kind kind, uint32_t page)
{
    const struct wr_range *r = &h->range[kind];
    return wr_range_units(r, wr_range_free_to(r, wr_size_units_of_pages(page)));
}

uint32_t wr_stream_units_behind(const struct wr_heap *h, enum wr_kind kind, uint32_t page)
{
    const struct wr_range *r = &h->range[kind];
    return wr_range_units(r, wr_range_free_from(r, wr_size_units_of_pages(page)));
}

bool wr_stream_has_pages(const struct wr_heap *h)
{
    return wr_range_next_free(&h->range[WR_SMALL], 0, WR_UNITS_PER_PAGE) != 0 ||
           wr_range_next_free(&h->range[WR_LARGE], 0, WR_UNITS_PER_PAGE) != 0;
}

bool wr_stream_is_empty(const struct wr_heap *h)
{
    return wr_stream_live_blocks(h) == 0 && h->counts.pending_blocks == 0 && h->counts.front_units == 0 &&
           h->range[WR_SMALL].free_units == 0 && h->range[WR_LARGE].free_units == 0;
}

/* INVARIANT: all stamps of a heap are of one fence. The context's next tick covers whatever they stood for. */
void wr_stream_own(struct wr_heap *h, struct wr_fence *context)
{
    if (h->gate == context || WR_FAULT(OWNER_FORGOTTEN)) return;
    h->gate = context;
    h->last_stamp = wr_fence_stamp(context);
    for (enum wr_kind kind = 0; kind < WR_KINDS && !WR_FAULT(OWNER_KEEPS_STAMPS); kind++)
        for (uint32_t id = 1; id < h->range[kind].n_nodes; id++)
            h->range[kind].nodes[id].stamp = h->last_stamp;
}

enum wr_piece_state wr_stream_state(const struct wr_heap *h, enum wr_kind kind, uint32_t id)
{
    const struct wr_node *n = &h->range[kind].nodes[id];
    if (n->state == WR_NODE_FREE) return WR_PIECE_FREE;
    if (n->owner_data == IN_FRONT) return WR_PIECE_CACHED;
    return wr_index_get(&h->blocks, n->start) == id ? WR_PIECE_LIVE : WR_PIECE_PENDING;
}

uint32_t wr_stream_first_use(const struct wr_heap *h, enum wr_kind kind, uint32_t id)
{
    const struct wr_node *n = &h->range[kind].nodes[id];
    return n->state == WR_NODE_TAKEN && n->owner_data != IN_FRONT ? n->owner_data : 0;
}

/* ---- life -------------------------------------------------------------------------------------------- */

void wr_stream_open(struct wr_heap *h, const void *pool, uint64_t id, uint32_t index, uint64_t tick_units)
{
    assert(h->pool == NULL && pool != NULL);
    h->gate = &h->fence;
    h->pool = pool;
    h->id = id;
    h->index = index;
    h->tick_units = tick_units;
    h->retired = false;
    atomic_store(&h->capture, 0);
    h->users = 0;
    h->last_stamp = h->unfenced_units = h->ticked_frees = 0;
    h->counts = (struct wr_heap_counts){0};
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_init(&h->range[kind]);
}

void wr_stream_forget(struct wr_heap *h)
{
    h->counts.live_units = 0;
    h->counts.frees = h->counts.allocs; /* they are as good as freed */
    h->counts.pending_blocks = h->counts.pending_units = h->counts.front_units = 0;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_fini(&h->range[kind]);
}

void wr_stream_close(struct wr_heap *h)
{
    assert(wr_stream_is_empty(h) && h->users == 0);
    h->pool = NULL;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        wr_range_fini(&h->range[kind]);
    wr_index_fini(&h->blocks);
    memset(h->fronts, 0, sizeof h->fronts);
    free(h->uses);
    free(h->pending);
    h->uses = NULL;
    h->pending = NULL;
    h->n_uses = h->uses_capacity = h->spare_use = 0;
    h->n_pending = h->pending_capacity = 0;
}

/* ---- validator --------------------------------------------------------------------------------------- */

static void require(bool holds, const char *invariant)
{
    if (holds) return;
    fprintf(stderr, "weir: heap: broken invariant: %s\n", invariant);
    abort();
}

/* Pending units of a kind's lists; counts the blocks. */
static uint64_t check_pending(const struct wr_heap *h, enum wr_kind kind, uint64_t *blocks)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < h->n_pending; i++) {
        for (uint32_t id = h->pending[i].first[kind]; id != 0; id = h->range[kind].nodes[id].bin_next) {
            const struct wr_node *n = &h->range[kind].nodes[id];
            require(n->state == WR_NODE_TAKEN && n->owner_data != 0, "a pending block waits for a use");
            require(wr_index_get(&h->blocks, n->start) == 0, "a pending block is not live");
            ++*blocks;
            units += n->units;
        }
    }
    return units;
}

static uint64_t check_fronts(const struct wr_heap *h, uint64_t *blocks)
{
    uint64_t units = 0;
    for (const struct wr_front *front = h->fronts; front < h->fronts + WR_FRONTS; front++) {
        const struct wr_range *r = &h->range[wr_size_kind(front->units)];
        for (uint32_t id = front->first; id != 0; id = r->nodes[id].bin_next) {
            require(r->nodes[id].owner_data == IN_FRONT, "a block in the front cache says so");
            require(r->nodes[id].units == front->units, "the front cache is by exact size");
            require(wr_index_get(&h->blocks, r->nodes[id].start) == id,
                "the front cache keeps its blocks' entries");
            ++*blocks;
            units += front->units;
        }
    }
    return units;
}

void wr_stream_check(const struct wr_heap *h)
{
    uint64_t taken_units = 0, pending_blocks = 0, pending_units = 0, front_blocks = 0;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        wr_range_check(&h->range[kind]);
        taken_units += h->range[kind].taken_units;
        pending_units += check_pending(h, kind, &pending_blocks);
    }
    require(check_fronts(h, &front_blocks) == h->counts.front_units, "the front cache holds the front units");
    require(pending_blocks == h->counts.pending_blocks, "the pending lists hold the pending blocks");
    require(pending_units == h->counts.pending_units, "the pending lists hold the pending units");
    require(h->blocks.used == wr_stream_live_blocks(h) + front_blocks,
        "the table holds the live and the front blocks");
    require(taken_units == h->counts.live_units + pending_units + h->counts.front_units,
        "what is taken is live, pending or in the front cache");
}
