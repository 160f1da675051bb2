/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A block is in one place: live, pending, in the front cache, or part of a free piece of a range. The
 * last two are READY for this stream: stream order is enough. The front cache holds blocks as they were, by
 * exact size; the ranges split and join. There are two ranges, one for small blocks (size.h) and one for the
 * others, so that small blocks never pin large pages; both hold only pages that the pool has granted to this
 * heap.
 *
 * The READY piece keeps the home stream's stamp of the free: other streams, and the driver, get its pages
 * only when that has passed.
 */
#include "stream.h"

/* ---- HOT PATH ---------------------------------------------------------------------------------------- */
/* Budget, warm: alloc one look into the front cache, 40 instructions; free one into the index and one push to the
 * front cache, 60. No driver call, no malloc, no write outside this heap, and nothing that the slow functions need
 * is saved on the way. Where the front cache has no block: a bin search, a split, an index put. */

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

weir_status wr_stream_refuse(void)
{
    return wr_fail(WEIR_INVALID_POINTER, "no live block starts at this address");
}

weir_status wr_stream_alloc(struct wr_heap *h, uint32_t units, uint32_t *start)
{
    struct wr_front *front = front_of(h, units);
    if (WR_UNLIKELY(front->units != units || front->first == 0))
        return alloc_from_range(h, front, units, start);
    struct wr_node *n = &h->range[wr_size_kind(units)].nodes[front->first];
    assert(n->owner_data == WR_IN_FRONT && n->units == units);
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
    if (WR_UNLIKELY(id == 0)) return wr_stream_refuse();
    struct wr_node *n = &h->range[kind].nodes[id];
    if (WR_UNLIKELY(n->owner_data == WR_IN_FRONT)) return wr_stream_refuse();
    if (WR_UNLIKELY(n->owner_data != 0 || by != &h->fence)) return free_used_slow(h, kind, id, by);
    count_free(h, n->units);
    n->stamp = h->last_stamp = wr_fence_stamp(h->gate);
    struct wr_front *front = front_of(h, n->units);
    if (WR_UNLIKELY(front->units != n->units || !front->repeats)) return free_to_range(h, kind, id);
    n->bin_next = front->first;
    front->first = id;
    note_used(h, front);
    n->owner_data = WR_IN_FRONT;
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

/* SLOW: other streams used the block, or free it. */
static __attribute__((noinline)) weir_status free_used_slow(
    struct wr_heap *h, enum wr_kind kind, uint32_t id, struct wr_fence *by)
{
    struct wr_node *n = &h->range[kind].nodes[id];
    if (by != &h->fence && !WR_FAULT(FREE_FORGETS_STREAM)) {
        weir_status s = wr_uses_add(h, n, by, wr_fence_lend(by));
        if (s != WEIR_OK) return s;
    }
    if (n->owner_data != 0 && wr_uses_reserve_pending(h) != WEIR_OK) return WEIR_NO_HOST_MEMORY;
    count_free(h, n->units);
    n->stamp = h->last_stamp = wr_fence_stamp(h->gate);
    if (n->owner_data == 0) return free_to_range(h, kind, id);
    wr_index_remove(&h->blocks, n->start);
    wr_uses_settle(h, kind, id, 0);
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
