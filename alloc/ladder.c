/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. What an alloc does when its stream's own heap has no piece that fits. Each rung is tried once, in
 * the order of what it costs, and searches again by itself, so that what it found can't be taken by another
 * thread in between (A18). No rung waits for the GPU, sleeps, or puts a wait on a stream, but the last two,
 * for whom asked; none holds a lock during a driver call.
 *
 *   flush       the front cache into the ranges, where blocks join
 *   reap        own pending blocks whose users have passed
 *   exchange    whole pages between the stream's small and large range: stream order is enough
 *   idle        pages that no heap owns
 *   gather      passed pages of all other heaps, which become idle
 *   stitch      idle segments that lie apart, moved side by side; own passed pages too, where much is free
 *   grow        new memory from the driver, within the limit; for a long run only what idle segments lack
 *   make room   own passed pages move, too; else finished segments go back to the driver, then grow
 *   ask others  other pools of the process give back what they have finished on the device, then grow
 *   evict       the caller's callback frees what it can do without; then all of the above again
 *   overgrow    grow from the soft limit to the limit: till here growth, by grow and make room, ends at the
 *               soft one
 *   device wait only by policy: the stream waits, on the device, for another's past and takes its pages
 *   host wait   only by policy: the call waits for the fence that would serve it, then climbs again
 *
 * Rungs that get pages, idle, moved or new ones, put them where they complete a free piece of the heap, if
 * there is such a place: see place.c.
 *
 * What is left is a typed failure: NOT_YET if what pends would be enough, else OUT_OF_MEMORY.
 */
#include "place.h"
#include "pool.h"
#include "nvtx.h"

struct request {
    weir_pool *pool;
    struct wr_heap *heap;
    enum wr_kind kind;
    uint32_t units, pages; /* pages: how many in a row surely hold the units */
    const struct wr_terms *terms;
    uint32_t *start;
    uint64_t ceiling;  /* pages to which it may grow now */
    bool device_full;  /* the driver refused memory that the limit allows */
    uint64_t until_ns; /* HOST_WAIT's deadline */
    bool timed_out;
    enum wr_rung rung;   /* that was tried last */
    weir_status trouble; /* a stream's fence could not be asked: others may serve all the same */
};

/* ---- what rungs share -------------------------------------------------------------------------------- */

/* LOCK: the heap's. */
static weir_status search_locked(struct request *q)
{
    return wr_stream_alloc_aligned(
        q->heap, q->units, q->terms->align, wr_pages_phase(&q->pool->pages), q->start);
}

static weir_status search(struct request *q)
{
    wr_latch_take(&q->heap->lock);
    weir_status st = search_locked(q);
    wr_latch_give(&q->heap->lock);
    return st;
}

/* Pages granted to the heap join its range, and the block is cut from them under the same lock. */
static weir_status add_pages_and_search(struct request *q, struct wr_run run)
{
    struct wr_range *r = &q->heap->range[q->kind];
    wr_latch_take(&q->heap->lock);
    weir_status st = WEIR_OK;
    if (wr_range_reserve(r)) {
        wr_range_add(r, wr_size_units_of_pages(run.first), wr_size_units_of_pages(run.n), 0);
        st = search_locked(q);
    } else {
        wr_pages_take_back(&q->pool->pages, run.first, run.n);
        st = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a heap's pages");
    }
    wr_latch_give(&q->heap->lock);
    return st;
}

/* How a rung gets a run of pages. OK: they are granted. */
typedef weir_status page_source(struct request *q, struct wr_run *run);

/* Pages at a side of what is free in the heap, and the block from both; else as many as surely hold it,
 * wherever they are: so, too, where another thread has taken the free piece meanwhile. */
static weir_status extend(struct request *q, page_source *get, bool idle_only)
{
    wr_latch_take(&q->heap->lock);
    struct wr_run run =
        wr_place_choose(&q->pool->pages, q->heap, q->kind, q->units + q->terms->align - 1, idle_only);
    wr_latch_give(&q->heap->lock);
    weir_status st = WEIR_NOT_YET;
    if (run.n > 0) st = get(q, &run);
    if (run.n > 0 && st == WEIR_OK) st = add_pages_and_search(q, run);
    if (st != WEIR_NOT_YET) return st;
    run = (struct wr_run){.first = WR_ANYWHERE, .n = q->pages};
    st = get(q, &run);
    return st == WEIR_OK ? add_pages_and_search(q, run) : st;
}

/* LOCK: h->lock. */
static void give_passed_pages(weir_pool *p, struct wr_heap *h, bool passed_only)
{
    wr_stream_flush(h);
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        struct wr_page_run run = {0};
        while (wr_stream_next_run(h, kind, passed_only, &run))
            if (wr_stream_cut_run(h, kind, &run, run.n) == WEIR_OK)
                wr_pages_take_back(&p->pages, run.first, run.n);
    }
}

/* Covers and polls the fences of the heap's pending lists, one after the other and off the lock. */
static weir_status poll_pending(weir_pool *p, struct wr_heap *h)
{
    weir_status st = WEIR_OK;
    for (uint32_t i = 0;; i++) {
        wr_latch_take(&h->lock);
        bool more = i < h->n_pending;
        struct wr_pending list = more ? h->pending[i] : (struct wr_pending){0};
        wr_latch_give(&h->lock);
        if (!more) return st;
        struct wr_heap *other = wr_heaps_pin_fence(p, list.fence); /* a tick must find it alive */
        if (other == NULL) continue;
        weir_status one = wr_fence_cover(list.fence, list.greatest_stamp);
        if (one != WEIR_OK && one != WEIR_CAPTURING)
            st = one; /* when a capture has ended, its blocks will pass */
        wr_fence_poll(list.fence);
        wr_heaps_unpin(p, other);
    }
}

/* Covers and polls the stream's own past, if there are pages that it would set free. */
static weir_status poll_own(weir_pool *p, struct wr_heap *h)
{
    wr_latch_take(&h->lock);
    wr_stream_flush(h);
    bool worth_it = wr_stream_has_pages(h);
    uint64_t stamp = h->last_stamp;
    struct wr_fence *gate = h->gate;
    wr_latch_give(&h->lock);
    weir_status st = worth_it ? wr_policy_cover(p, gate, stamp) : WEIR_OK;
    wr_fence_poll(gate);
    return st == WEIR_CAPTURING ? WEIR_OK : st;
}

weir_status wr_ladder_visit(weir_pool *p, struct wr_heap *h, bool give_pages)
{
    weir_status st = poll_pending(p, h);
    wr_latch_take(&h->lock);
    wr_stream_reap(h);
    wr_latch_give(&h->lock);
    if (!give_pages) return st;
    weir_status own = poll_own(p, h);
    wr_latch_take(&h->lock);
    give_passed_pages(p, h, !WR_FAULT(GIVE_BACK_UNPASSED));
    wr_latch_give(&h->lock);
    return st != WEIR_OK ? st : own;
}

weir_status wr_ladder_visit_all(weir_pool *p, const struct wr_heap *but)
{
    weir_status st = WEIR_OK;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        weir_status one = h != but ? wr_ladder_visit(p, h, true) : WEIR_OK;
        if (one != WEIR_OK) st = one;
        wr_heaps_unpin(p, h);
    }
    return st;
}

/* ---- rungs: OK: served; NOT_YET: no; else an error that ends the climb ------------------------------- */

static void note_trouble(struct request *q, weir_status s)
{
    if (s != WEIR_OK) q->trouble = s;
}

static weir_status flush(struct request *q)
{
    wr_latch_take(&q->heap->lock);
    weir_status st = WEIR_NOT_YET;
    if (wr_stream_flush(q->heap)) st = search_locked(q);
    wr_latch_give(&q->heap->lock);
    return st;
}

static weir_status reap(struct request *q)
{
    note_trouble(q, wr_ladder_visit(q->pool, q->heap, false));
    return search(q);
}

/* LOCK: the heap's. Moves the run's first `n` pages to the request's kind. */
static weir_status move_run(struct request *q, const struct wr_page_run *run, uint32_t n)
{
    struct wr_heap *h = q->heap;
    if (!wr_range_reserve(&h->range[q->kind]))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to move pages");
    weir_status st = wr_stream_cut_run(h, !q->kind, run, n);
    if (st != WEIR_OK) return st;
    wr_pages_retag(&q->pool->pages, run->first, n, wr_pool_tag(h, q->kind));
    wr_range_add(&h->range[q->kind], run->first << WR_UNITS_PER_PAGE_LOG2, n << WR_UNITS_PER_PAGE_LOG2,
        WR_FAULT(EXCHANGE_DROPS_STAMP) ? 0 : run->stamp);
    return WEIR_OK;
}

/* A large block may join any pages of the small range; a small one takes just what it needs from the large.
 */
static weir_status exchange(struct request *q)
{
    struct wr_heap *h = q->heap;
    struct wr_page_run run = {0};
    weir_status st = WEIR_OK;
    wr_latch_take(&h->lock);
    while (st == WEIR_OK && wr_stream_next_run(h, !q->kind, false, &run)) {
        st = move_run(q, &run, q->kind == WR_SMALL ? 1 : run.n);
        if (q->kind == WR_SMALL) break;
    }
    if (st == WEIR_OK) st = search_locked(q);
    wr_latch_give(&h->lock);
    return st;
}

static weir_status get_idle(struct request *q, struct wr_run *run)
{
    return wr_pages_grant(&q->pool->pages, run, wr_pool_tag(q->heap, q->kind)) ? WEIR_OK : WEIR_NOT_YET;
}

static weir_status take_idle(struct request *q)
{
    return extend(q, get_idle, true);
}

/* A planted fault: another stream takes what it finds, passed or not. */
static void steal_unpassed(struct request *q)
{
    for (uint32_t i = 0; i < atomic_load(&q->pool->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(q->pool, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        if (h != q->heap) give_passed_pages(q->pool, h, false);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(q->pool, h);
    }
}

static weir_status gather(struct request *q)
{
    if (WR_FAULT(STEAL_UNPASSED)) steal_unpassed(q);
    note_trouble(q, wr_ladder_visit_all(q->pool, q->heap));
    return take_idle(q);
}

/* LOCK: takes the heap's. Is so much free in the own heap that its pages are to move before the pool grows?
 * They leave holes behind, which later blocks no longer fit. A training step of 5.5 GB (pangu_2.6B) takes 1.28
 * times its live memory where they move whenever that avoids growth, 1.19 where growth always comes first,
 * 1.06 where it does as long as less than a quarter is free; halves or sevenths do as well. And it costs a tick
 * to learn what has passed. */
static bool has_own_pages(struct request *q)
{
    enum { WORTH = 16, PART = 4 }; /* the least parts of the request, and of all that is reserved */
    struct wr_heap *h = q->heap;
    struct wr_pages *pages = &q->pool->pages;
    wr_latch_take(&h->lock);
    uint64_t units = h->counts.front_units;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        units += h->range[kind].free_units;
    wr_latch_give(&h->lock);
    uint64_t own = units >> WR_UNITS_PER_PAGE_LOG2;
    return own * WORTH >= q->pages && (own + wr_pages_idle(pages)) * PART >= wr_pages_reserved(pages);
}

static weir_status get_moved(struct request *q, struct wr_run *run)
{
    return wr_pages_stitch(&q->pool->pages, run, wr_pool_tag(q->heap, q->kind));
}

static weir_status move_idle(struct request *q)
{
    weir_status st = extend(q, get_moved, false);
    return st == WEIR_OUT_OF_MEMORY ? WEIR_NOT_YET : st;
}

static weir_status stitch(struct request *q)
{
    weir_status st = WEIR_NOT_YET;
    if (has_own_pages(q)) {
        note_trouble(q, wr_ladder_visit(q->pool, q->heap, true));
        st = take_idle(q);
    }
    return st == WEIR_NOT_YET ? move_idle(q) : st;
}

static weir_status get_new(struct request *q, struct wr_run *run)
{
    return wr_pages_grow(&q->pool->pages, run, q->ceiling, wr_pool_tag(q->heap, q->kind));
}

static weir_status grow(struct request *q)
{
    weir_status st = extend(q, get_new, false);
    if (st != WEIR_OUT_OF_MEMORY && st != WEIR_NOT_YET) return st;
    q->device_full = st == WEIR_OUT_OF_MEMORY;
    return WEIR_NOT_YET;
}

/* Where the limit, or another user of the device, is in the way, all own passed pages are worth moving; and a
 * finished segment goes back to the driver (A25). */
static weir_status make_room(struct request *q)
{
    struct wr_pages *pages = &q->pool->pages;
    note_trouble(q, wr_ladder_visit(q->pool, q->heap, true));
    weir_status st = take_idle(q);
    if (st == WEIR_NOT_YET) st = move_idle(q);
    if (st != WEIR_NOT_YET) return st;
    uint64_t ceiling = q->device_full ? wr_min(q->ceiling, wr_pages_reserved(pages)) : q->ceiling;
    if (wr_pages_trim(pages, ceiling - wr_min(ceiling, q->pages)) == 0) return WEIR_NOT_YET;
    return grow(q);
}

static weir_status ask_others(struct request *q)
{
    if (!q->device_full || wr_pool_trim_others(q->pool, (uint64_t)q->pages * WR_PAGE_BYTES) == 0)
        return WEIR_NOT_YET;
    return grow(q);
}

/* ---- rungs that begin anew: the caller's memory, and growth above the soft limit ---------------------- */

static struct wr_need need_of(const struct request *q)
{
    return (struct wr_need){.pool = q->pool,
        .heap = q->heap,
        .units = q->units,
        .pages = q->pages,
        .align = q->terms->align,
        .device_full = q->device_full};
}

static weir_status climb(struct request *q, enum wr_rung from, enum wr_rung to);

static weir_status climb_again(struct request *q)
{
    q->trouble = WEIR_OK;
    return climb(q, WR_RUNG_flush, WR_RUNG_make_room);
}

static uint64_t live_bytes(weir_pool *p)
{
    weir_stats s = {.struct_size = sizeof s};
    wr_stats_fill(p, &s);
    return s.live_bytes;
}

static _Thread_local bool evicting; /* this thread is in a callback, whose own allocs don't call it again */

/* What really became free counts, not what is claimed. Other threads' calls blur it: where they allocate at
 * the same time the attempt may end early, where they free it may go on, but then memory does come. */
static uint64_t call_evict(struct request *q)
{
    WR_NVTX_RANGE("evict", wr_size_bytes(q->units));
    weir_pool *p = q->pool;
    uint64_t before = live_bytes(p);
    evicting = true;
    size_t claimed = p->evict(p->evict_context, wr_size_bytes(q->units));
    evicting = false;
    uint64_t after = live_bytes(p);
    return before > after ? wr_min(before - after, claimed) : 0;
}

static bool would_do_once_passed(const struct request *q)
{
    struct wr_need need = need_of(q);
    struct wr_shortage sum;
    wr_report_measure(&need, &sum);
    return sum.would_do;
}

static weir_status evict(struct request *q)
{
    if (q->pool->evict == NULL || evicting) return WEIR_NOT_YET;
    weir_status st = WEIR_NOT_YET;
    for (int zeros = 0; st == WEIR_NOT_YET && zeros < 2;) {
        uint64_t freed = call_evict(q);
        zeros = freed == 0 ? zeros + 1 : 0;
        if (atomic_load(&q->pool->state) != WR_POOL_OPEN) return wr_fail(WEIR_CLOSED, "the pool is closed");
        if (freed == 0) continue;
        st = climb_again(q);
        if (st == WEIR_NOT_YET && would_do_once_passed(q)) break; /* more would be in vain */
    }
    return st;
}

static weir_status overgrow(struct request *q)
{
    uint32_t limit = q->pool->pages.limit_pages;
    if (q->pool->soft_pages >= limit) return WEIR_NOT_YET;
    q->ceiling = limit;
    weir_status st = grow(q);
    return st == WEIR_NOT_YET ? make_room(q) : st;
}

/* ---- rungs that wait, by policy ---------------------------------------------------------------------- */

/* LOCK: h->lock. Cuts pages that will have passed where `by` has: true, and they are the caller's. */
static bool cut_waited(struct wr_heap *h, uint32_t n, const struct wr_holder *by, uint32_t *first)
{
    if (h->gate != by->fence) return false;
    wr_stream_flush(h);
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++) {
        struct wr_page_run run = {0};
        while (wr_stream_next_run(h, kind, false, &run)) {
            if (run.n < n || run.stamp > by->stamp) continue;
            *first = run.first;
            return wr_stream_cut_run(h, kind, &run, n) == WEIR_OK;
        }
    }
    return false;
}

static bool cut_from_others(struct request *q, const struct wr_holder *by, uint32_t *first)
{
    bool found = false;
    for (uint32_t i = 0; !found && i < atomic_load(&q->pool->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(q->pool, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        if (h != q->heap) found = cut_waited(h, q->pages, by, first);
        wr_latch_give(&h->lock);
        wr_heaps_unpin(q->pool, h);
    }
    return found;
}

/* Pages on their way from one heap to another are in neither; the room for them is promised before, for there
 * is no way back. They have not passed: their stamp is one that only a tick after the wait covers. */
static weir_status take_from_others(struct request *q, const struct wr_holder *by)
{
    struct wr_heap *h = q->heap;
    struct wr_range *r = &h->range[q->kind];
    uint32_t first;
    wr_latch_take(&h->lock);
    bool room = wr_range_promise(r);
    wr_latch_give(&h->lock);
    if (!room) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a heap's pages");
    bool found = cut_from_others(q, by, &first);
    weir_status st = WEIR_NOT_YET;
    wr_latch_take(&h->lock);
    wr_range_keep(r);
    if (found) {
        h->last_stamp = wr_fence_stamp(h->gate);
        wr_pages_retag(&q->pool->pages, first, q->pages, wr_pool_tag(h, q->kind));
        wr_range_add(r, first << WR_UNITS_PER_PAGE_LOG2, q->pages << WR_UNITS_PER_PAGE_LOG2, h->last_stamp);
        st = search_locked(q);
    }
    wr_latch_give(&h->lock);
    return st;
}

/* The stream has been made to wait for `by`: own blocks that pended for it, or another heap's pages. */
static weir_status take_waited(struct request *q, const struct wr_holder *by)
{
    wr_latch_take(&q->heap->lock);
    wr_stream_let_go(q->heap, by->fence, by->stamp);
    weir_status st = search_locked(q);
    wr_latch_give(&q->heap->lock);
    if (st == WEIR_NOT_YET) st = exchange(q);
    return st == WEIR_NOT_YET ? take_from_others(q, by) : st;
}

/* A block that several streams use takes a wait for each, but no more than a few. */
static weir_status device_wait(struct request *q)
{
    enum { WAITS = 4 };
    if (q->terms->reuse != WEIR_REUSE_DEVICE_WAIT) return WEIR_NOT_YET;
    struct wr_need need = need_of(q);
    need.by_stream = true;
    weir_status st = WEIR_NOT_YET;
    for (int i = 0; st == WEIR_NOT_YET && i < WAITS; i++) {
        struct wr_shortage sum;
        wr_report_measure(&need, &sum);
        if (!sum.best_is_enough) break;
        st = wr_policy_device_wait(q->pool, q->heap, &sum.best);
        if (st == WEIR_CAPTURING) return WEIR_NOT_YET;
        if (st == WEIR_OK) st = take_waited(q, &sum.best);
    }
    return st;
}

/* Each turn a fence has passed; then all rungs are tried again, so that what came free serves by this call
 * (A18). */
static weir_status host_wait(struct request *q)
{
    if (q->terms->reuse != WEIR_REUSE_HOST_WAIT) return WEIR_NOT_YET;
    struct wr_need need = need_of(q);
    weir_status st = WEIR_NOT_YET;
    while (st == WEIR_NOT_YET) {
        struct wr_shortage sum;
        wr_report_measure(&need, &sum);
        if (!sum.would_do) break;
        st = wr_policy_host_wait(q->pool, &sum.best, q->until_ns);
        q->timed_out = st == WEIR_TIMEOUT;
        if (q->timed_out) return WEIR_NOT_YET;
        if (st == WEIR_OK) st = climb_again(q);
    }
    return st;
}

/* ---- failure ----------------------------------------------------------------------------------------- */

static weir_status fail(struct request *q)
{
    if (q->trouble != WEIR_OK)
        return wr_fail(q->trouble, "%llu bytes asked, and the driver failed to say what has passed",
            (unsigned long long)wr_size_bytes(q->units));
    struct wr_need need = need_of(q);
    struct wr_shortage sum;
    wr_report_measure(&need, &sum);
    return wr_report_fail(&need, &sum,
        q->timed_out   ? WEIR_TIMEOUT
        : sum.would_do ? WEIR_NOT_YET
                       : WEIR_OUT_OF_MEMORY);
}

/* ---- the climb --------------------------------------------------------------------------------------- */

/* Tries the rungs of [from, to] in turn. */
static weir_status climb(struct request *q, enum wr_rung from, enum wr_rung to)
{
#define RUNG(name) name,
    static weir_status (*const rungs[WR_RUNGS])(struct request *) = {WR_RUNG_MAP(RUNG)};
#undef RUNG
    weir_status st = WEIR_NOT_YET;
    for (enum wr_rung rung = from; rung <= to && st == WEIR_NOT_YET; rung++) {
        st = rungs[rung](q);
        q->rung = rung; /* set after: a rung that climbs anew is the one that served */
    }
    return st;
}

/* Whole pages that hold the units wherever the alignment puts them: a page's own address has every alignment
 * that may be asked, unless the reservation itself begins off it. */
static uint32_t pages_for(const weir_pool *p, uint32_t units, const struct wr_terms *terms)
{
    bool aligned = (wr_pages_phase(&p->pages) & (terms->align - 1)) == 0;
    return wr_size_pages(aligned ? units : units + terms->align - 1);
}

weir_status wr_ladder_alloc(
    weir_pool *p, struct wr_heap *h, uint32_t units, const struct wr_terms *terms, uint32_t *start)
{
    struct request q = {.pool = p,
        .heap = h,
        .kind = wr_size_kind(units),
        .units = units,
        .pages = pages_for(p, units, terms),
        .terms = terms,
        .ceiling = wr_min(p->soft_pages, p->pages.limit_pages),
        .until_ns = UINT64_MAX,
        .start = start};
    if (terms->reuse == WEIR_REUSE_HOST_WAIT && terms->deadline_ns >= 0)
        q.until_ns = p->pages.device->ops->now_ns(p->pages.device) + (uint64_t)terms->deadline_ns;
    wr_latch_take(&h->lock);
    h->counts.slow_allocs++;
    wr_latch_give(&h->lock);
    weir_status st = climb(&q, 0, WR_RUNGS - 1);
    if (st == WEIR_OK) atomic_fetch_add_explicit(&p->served[q.rung], 1, memory_order_relaxed);
    return st == WEIR_NOT_YET ? fail(&q) : st;
}

uint64_t wr_ladder_trim(weir_pool *p, uint64_t keep_bytes)
{
    wr_ladder_visit_all(p, NULL);
    if (WR_FAULT(TRIM_UNPASSED)) {
        struct request q = {.pool = p};
        steal_unpassed(&q);
    }
    uint64_t keep = wr_min(keep_bytes, (uint64_t)p->pages.limit_pages * WR_PAGE_BYTES);
    return wr_pages_trim(&p->pages, keep >> WR_PAGE_LOG2) * WR_PAGE_BYTES;
}
