/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. What an alloc lacks: who holds free memory that has not passed, and which point of whose past would
 * serve the request. One walk over all heaps, each under its own lock, measures it; the failure's words and
 * numbers, the end of eviction and the waits that a caller may ask for all go by the same measure.
 *
 * `best` is the point to wait for. Where a single piece would do, it is *enough*: of those the one with the
 * fewest ticks yet to pass, then the smallest piece. It may be one step of several: a block used by two
 * streams waits for one after the other, and a block of another heap for that heap's own past at last. Where
 * no piece would do alone, several may join: then `best` is the stream that holds most.
 */
#include "pool.h"

static _Thread_local weir_failure last_failure;

const weir_failure *wr_report_last(void)
{
    return &last_failure;
}

/* ---- measuring --------------------------------------------------------------------------------------- */

struct measure {
    const struct wr_need *need;
    struct wr_shortage *sum;
    uint64_t best_ticks;
    uint64_t own_units;   /* free and pending, in pages that the need's heap cuts such blocks from */
    uint64_t own_waiting; /* of those, pending */
};

static bool is_own(const struct measure *m, const struct wr_heap *h, enum wr_kind kind)
{
    return h == m->need->heap && kind == wr_size_kind(m->need->units);
}

static void add_holder(struct wr_shortage *sum, struct wr_holder by)
{
    if (by.units == 0) return;
    sum->waiting_units += by.units;
    for (uint32_t i = 0; i < sum->n_holders; i++) {
        struct wr_holder *known = &sum->holders[i];
        if (known->id != by.id || known->fence != by.fence) continue;
        known->units += by.units;
        known->stamp = wr_max(known->stamp, by.stamp);
        return;
    }
    if (sum->n_holders < WR_ARRAY_LEN(sum->holders)) sum->holders[sum->n_holders++] = by;
}

static void offer(struct measure *m, struct wr_holder by)
{
    uint64_t done = atomic_load(&by.fence->done), ticks = by.stamp - wr_min(done, by.stamp);
    struct wr_shortage *sum = m->sum;
    bool better = !sum->best_is_enough || ticks < m->best_ticks ||
                  (ticks == m->best_ticks && by.units < sum->best.units);
    if (!better) return;
    sum->best = by;
    sum->best_is_enough = true;
    m->best_ticks = ticks;
}

static bool holds_pages(const struct wr_node *n, uint32_t pages)
{
    uint64_t first = wr_size_pages(n->start),
             past = ((uint64_t)n->start + n->units) >> WR_UNITS_PER_PAGE_LOG2;
    return first + pages <= past;
}

/* LOCK: h->lock. Free pieces: the heap's own stream may use them at once, others when it has passed. */
static void measure_free(struct measure *m, struct wr_heap *h, enum wr_kind kind)
{
    const struct wr_range *r = &h->range[kind];
    struct wr_holder by = {.id = h->id, .fence = h->gate};
    if (atomic_load(&by.fence->captured)) {
        m->sum->graph_units += r->free_units;
        return;
    }
    m->sum->free_units += r->free_units;
    if (is_own(m, h, kind)) m->own_units += r->free_units;
    for (uint32_t id = wr_range_next_free(r, 0, 1); id != 0; id = wr_range_next_free(r, id, 1)) {
        const struct wr_node *n = &r->nodes[id];
        /* Whole pages that passed after the rungs had looked: the next call gets them. */
        if (wr_fence_passed(by.fence, n->stamp) && !holds_pages(n, 1)) continue;
        by.units += n->units;
        by.stamp = wr_max(by.stamp, n->stamp);
        bool enough = h != m->need->heap && holds_pages(n, m->need->pages);
        if (enough)
            offer(
                m, (struct wr_holder){.id = by.id, .fence = by.fence, .stamp = n->stamp, .units = n->units});
    }
    add_holder(m->sum, by);
}

/* LOCK: h->lock. Blocks of one kind that wait, first of all, for the list's fence. */
static void measure_pending(
    struct measure *m, const struct wr_heap *h, const struct wr_pending *list, enum wr_kind kind)
{
    struct wr_holder by = {
        .id = wr_fence_id(list->fence), .fence = list->fence, .stamp = list->greatest_stamp};
    bool captured = atomic_load(&list->fence->captured);
    for (uint32_t id = list->first[kind]; id != 0; id = h->range[kind].nodes[id].bin_next) {
        const struct wr_node *n = &h->range[kind].nodes[id];
        by.units += n->units;
        if (captured) continue;
        /* A stream that waits for a declared user is not ordered after the block's home yet. */
        if (m->need->by_stream && h != m->need->heap) continue;
        if (holds_pages(n, m->need->pages) ||
            (is_own(m, h, kind) && n->units >= m->need->units && m->need->align == 1))
            offer(m, (struct wr_holder){.id = by.id,
                         .fence = by.fence,
                         .stamp = h->uses[n->owner_data].stamp,
                         .units = n->units});
    }
    if (captured) {
        m->sum->graph_units += by.units;
        return;
    }
    m->sum->free_units += by.units;
    if (is_own(m, h, kind)) {
        m->own_units += by.units;
        m->own_waiting += by.units;
    }
    add_holder(m->sum, by);
}

/* LOCK: h->lock. */
static void measure_heap(struct measure *m, struct wr_heap *h)
{
    wr_stream_flush(h); /* what was freed since the rungs looked counts as well */
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        measure_free(m, h, kind);
        if (h == m->need->heap)
            m->sum->largest_units = wr_max(m->sum->largest_units, wr_range_largest_free(&h->range[kind]));
        for (uint32_t i = 0; i < h->n_pending; i++)
            measure_pending(m, h, &h->pending[i], kind);
    }
}

static void choose_joint(struct wr_shortage *sum)
{
    if (sum->best_is_enough || sum->n_holders == 0) return;
    sum->best = sum->holders[0];
    for (uint32_t i = 1; i < sum->n_holders; i++)
        if (sum->holders[i].units > sum->best.units) sum->best = sum->holders[i];
}

/* Whole pages can become anybody's. What is less can only join in the pages of the need's own heap. */
static bool would_do(const struct measure *m, uint64_t room_pages)
{
    uint64_t page_units = m->sum->free_units + (room_pages << WR_UNITS_PER_PAGE_LOG2);
    if (m->sum->waiting_units > 0 && page_units >= (uint64_t)m->need->pages << WR_UNITS_PER_PAGE_LOG2)
        return true;
    return m->own_waiting > 0 && m->own_units >= m->need->units;
}

void wr_report_measure(const struct wr_need *need, struct wr_shortage *out)
{
    weir_pool *p = need->pool;
    *out = (struct wr_shortage){0};
    struct measure m = {.need = need, .sum = out};
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        measure_heap(&m, h);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(p, h);
    }
    choose_joint(out);
    uint64_t room = need->device_full ? 0 : wr_pages_room(&p->pages);
    out->would_do = would_do(&m, room + wr_pages_idle(&p->pages));
    uint64_t largest_pages = wr_max(room, wr_pages_largest_idle(&p->pages));
    out->largest_units = wr_max(out->largest_units, largest_pages << WR_UNITS_PER_PAGE_LOG2);
}

/* ---- words and numbers ------------------------------------------------------------------------------- */

static uint64_t bytes_of(uint64_t units)
{
    return units << WR_UNIT_LOG2;
}

/* Inserts by bytes, most first. */
static void list_stream(weir_failure *f, const struct wr_holder *by)
{
    struct weir_failure_stream entry = {.id = by->id, .bytes = bytes_of(by->units)};
    uint32_t at = 0;
    while (at < f->n_streams && f->streams[at].bytes >= entry.bytes)
        at++;
    if (at == WEIR_FAILURE_STREAMS) return;
    uint32_t last = f->n_streams < WEIR_FAILURE_STREAMS ? f->n_streams++ : WEIR_FAILURE_STREAMS - 1;
    for (uint32_t i = last; i > at; i--)
        f->streams[i] = f->streams[i - 1];
    f->streams[at] = entry;
}

/* One entry a stream, whichever fence its memory waits for. */
static void merge_ids(struct wr_shortage *sum)
{
    for (uint32_t i = 0; i < sum->n_holders; i++)
        for (uint32_t k = i + 1; k < sum->n_holders;) {
            if (sum->holders[k].id != sum->holders[i].id) {
                k++;
                continue;
            }
            sum->holders[i].units += sum->holders[k].units;
            sum->holders[k] = sum->holders[--sum->n_holders];
        }
}

weir_status wr_report_fail(const struct wr_need *need, const struct wr_shortage *sum, weir_status s)
{
    struct wr_pages *pages = &need->pool->pages;
    struct wr_shortage by_id = *sum;
    merge_ids(&by_id);
    weir_failure f = {.status = s,
        .asked_bytes = bytes_of(need->units),
        .limit_bytes = (uint64_t)pages->limit_pages * WR_PAGE_BYTES,
        .reserved_bytes = wr_pages_reserved(pages) * WR_PAGE_BYTES,
        .largest_free_bytes = bytes_of(sum->largest_units),
        .pending_bytes = bytes_of(sum->waiting_units),
        .fence_stream = sum->would_do ? sum->best.id : 0,
        .device_is_full = need->device_full};
    for (uint32_t i = 0; i < by_id.n_holders; i++)
        list_stream(&f, &by_id.holders[i]);
    last_failure = f;
    return wr_fail(s,
        "%llu bytes asked; %llu reserved of at most %llu%s; largest free piece %llu; %llu freed but not "
        "passed, "
        "most of it (%llu) on stream id %llu; what would help first: stream id %llu; "
        "%llu kept for graphs",
        (unsigned long long)f.asked_bytes, (unsigned long long)f.reserved_bytes,
        (unsigned long long)f.limit_bytes, need->device_full ? " (the device is full)" : "",
        (unsigned long long)f.largest_free_bytes, (unsigned long long)f.pending_bytes,
        (unsigned long long)f.streams[0].bytes, (unsigned long long)f.streams[0].id,
        (unsigned long long)f.fence_stream, (unsigned long long)bytes_of(sum->graph_units));
}

weir_status wr_report_refuse(weir_pool *p, size_t bytes)
{
    uint64_t limit = (uint64_t)p->pages.limit_pages * WR_PAGE_BYTES;
    last_failure = (weir_failure){.status = WEIR_TOO_LARGE, .asked_bytes = bytes, .limit_bytes = limit};
    return wr_fail(
        WEIR_TOO_LARGE, "%zu bytes asked of a pool limited to %llu", bytes, (unsigned long long)limit);
}
