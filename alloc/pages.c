/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A pool reserves addresses once, four times what it may ever map, so that they never run out or
 * fragment to a point that matters; reserving costs nothing. Each growth takes the addresses behind what is
 * there: behind a free piece of the heap that asks, if that can be (place.c), else where the fewest addresses
 * do. Idle pages that end there are its beginning, so that steps of growth leave no pages behind which are
 * too few for the next block. It is made of *segments*, each one cuMemCreate mapped as a whole. The driver
 * unmaps whole mappings only, so a segment goes back when all its pages are idle; and a small block that
 * stays keeps no more than the segments that it touches from going back (A23).
 *
 * Idle segments that lie apart serve a long run, too: they are unmapped and mapped side by side, before any
 * growth, and by a growth for what it needs not make anew. See segments.c.
 *
 * Measured on an H200: growth, moving and unmapping don't wait for running kernels, while cuMemFree does.
 *
 * Making and unmaking a segment are the same steps up and down, so a growth that fails half-way is undone by
 * the code that trims. Where a step of an undo fails as well, the entry stays, counted as reserved, for the
 * next trim.
 */
#include "segments.h"
#include "captures.h"
#include "nvtx.h"

#include <stdio.h>
#include <stdlib.h>

enum { ADDRESS_FACTOR = 4 };

/* ---- PLAIN ------------------------------------------------------------------------------------------- */

/* Page numbers are address arithmetic, which plain allocations at addresses of their own would break. So there is
 * one, of the whole limit, as one segment that is always there: held, so it neither moves nor goes back. The
 * driver may align it to 256 only: a last page that does not fit any more is lost. */

static void add_slab(struct wr_pages *p)
{
    p->limit_pages =
        (uint32_t)((p->slab + (uint64_t)p->limit_pages * WR_PAGE_BYTES - p->base) >> WR_PAGE_LOG2);
    p->n_pages = p->limit_pages;
    p->segments[0] = (struct wr_segment){
        .n_pages = p->n_pages, .created = true, .mapped = true, .usable = true, .devices = 1, .holds = 1};
    p->n_segments = 1;
    for (uint32_t page = 0; page < p->n_pages; page++)
        p->segment_of[page] = 1;
    p->reserved_pages = p->peak_reserved_pages = p->n_pages;
    wr_range_add(&p->idle, 0, p->n_pages, 0);
}

static weir_status open_slab(struct wr_pages *p)
{
    struct wr_device *d = p->device;
    p->segments = calloc(1, sizeof *p->segments);
    if (p->segments == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a segment");
    p->segments_capacity = 1;
    weir_status s = d->ops->plain_alloc(d, (size_t)p->limit_pages * WR_PAGE_BYTES, &p->slab);
    if (s != WEIR_OK) return s;
    p->base = wr_round_up(p->slab, WR_UNIT_BYTES);
    if (p->base != p->slab && p->limit_pages == 1) {
        d->ops->plain_free(d, p->slab);
        return wr_fail(WEIR_OUT_OF_MEMORY, "the driver's 2 MiB lie so that no page fits into them");
    }
    add_slab(p);
    return WEIR_OK;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static bool allocate_tables(struct wr_pages *p)
{
    p->owner = calloc(p->n_pages, sizeof *p->owner);
    p->segment_of = calloc(p->n_pages, sizeof *p->segment_of);
    return p->owner != NULL && p->segment_of != NULL && wr_range_reserve_pieces(&p->va, p->n_pages) &&
           wr_range_reserve_pieces(&p->idle, p->n_pages);
}

static void free_tables(struct wr_pages *p)
{
    wr_range_fini(&p->va);
    wr_range_fini(&p->idle);
    free(p->owner);
    free(p->segment_of);
    free(p->segments);
    p->owner = NULL;
    p->segment_of = NULL;
    p->segments = NULL;
    wr_lock_fini(&p->lock);
}

static weir_status open_virtual(struct wr_pages *p)
{
    struct wr_device *d = p->device;
    if (d->granularity == 0)
        return wr_fail(WEIR_DRIVER_ERROR,
            "device %d (%s) has no virtual memory management: only a PLAIN pool", d->ordinal, d->name);
    weir_status s = d->ops->va_reserve(d, (uint64_t)p->n_pages * WR_PAGE_BYTES, &p->base);
    if (s == WEIR_OK) wr_range_add(&p->va, 0, p->n_pages, 0);
    return s;
}

weir_status wr_pages_open(struct wr_pages *p, struct wr_device *d, const struct wr_pages_plan *plan)
{
    *p = (struct wr_pages){.device = d,
        .devices = {d},
        .n_devices = 1,
        .limit_pages = (uint32_t)(plan->limit_bytes >> WR_PAGE_LOG2),
        .grow_pages = (uint32_t)(wr_round_up(plan->grow_bytes, WR_PAGE_BYTES) >> WR_PAGE_LOG2)};
    p->first_limit_pages = p->limit_pages;
    p->most_pages = (uint32_t)(plan->most_bytes >> WR_PAGE_LOG2);
    p->n_pages = plan->plain ? p->limit_pages : p->most_pages * ADDRESS_FACTOR;
    wr_lock_init(&p->lock, WR_RANK_POOL);
    wr_range_init(&p->va);
    wr_range_init(&p->idle);
    weir_status s = WEIR_OK;
    if (!allocate_tables(p))
        s = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for the tables of %u pages", p->n_pages);
    if (s == WEIR_OK) s = plan->plain ? open_slab(p) : open_virtual(p);
    if (s != WEIR_OK) free_tables(p);
    return s;
}

static weir_status close_slab(struct wr_pages *p)
{
    assert(p->idle.free_units == p->n_pages);
    return p->device->ops->plain_free(p->device, p->slab);
}

static weir_status close_virtual(struct wr_pages *p)
{
    wr_pages_trim(p, 0);
    if (p->reserved_pages > 0)
        return wr_fail(WEIR_DRIVER_ERROR, "the driver did not take back %llu bytes",
            (unsigned long long)(p->reserved_pages * WR_PAGE_BYTES));
    return p->device->ops->va_free(p->device, p->base, (uint64_t)p->n_pages * WR_PAGE_BYTES);
}

weir_status wr_pages_close(struct wr_pages *p)
{
    weir_status s = p->slab != 0 ? close_slab(p) : close_virtual(p);
    if (s == WEIR_OK) free_tables(p);
    return s;
}

void wr_pages_forget(struct wr_pages *p)
{
    for (uint32_t page = 0; page < p->n_pages; page++)
        atomic_store_explicit(&p->owner[page], 0, memory_order_relaxed);
    wr_lock_take(&p->lock);
    wr_range_fini(&p->va);
    wr_range_fini(&p->idle);
    free(p->segment_of);
    free(p->segments);
    p->segment_of = NULL;
    p->segments = NULL;
    p->n_segments = p->segments_capacity = 0;
    p->reserved_pages = 0;
    wr_lock_give(&p->lock);
}

/* ---- granting ---------------------------------------------------------------------------------------- */

/* Counts `n` pages from `first` in or out of their segments' granted pages. LOCK: held. */
static void count_granted(struct wr_pages *p, uint32_t first, uint32_t n, bool granted)
{
    for (uint32_t page = first; page < first + n;) {
        struct wr_segment *g = &p->segments[p->segment_of[page] - 1];
        uint32_t past = (uint32_t)wr_min(first + n, g->first_page + g->n_pages);
        g->granted_pages += granted ? past - page : page - past;
        page = past;
    }
}

static void set_owner(struct wr_pages *p, uint32_t first, uint32_t n, uint32_t tag)
{
    for (uint32_t page = first; page < first + n; page++)
        atomic_store_explicit(&p->owner[page], tag, memory_order_release);
}

static void grant_locked(struct wr_pages *p, uint32_t idle_id, uint32_t first, uint32_t n, uint32_t tag)
{
    wr_range_remove(&p->idle, idle_id, first, n);
    count_granted(p, first, n, true);
    set_owner(p, first, n, tag);
}

/* LOCK: held. */
static struct wr_gap gap_at(const struct wr_pages *p, uint32_t first)
{
    struct wr_gap gap = {.first = first};
    gap.idle = wr_range_units(&p->idle, wr_range_free_from(&p->idle, first));
    gap.unmapped = wr_range_units(&p->va, wr_range_free_from(&p->va, first + gap.idle));
    return gap;
}

/* First those that begin with idle pages. The addresses behind such a gap come again, as one of their own. */
bool wr_pages_next_gap(const struct wr_pages *p, struct wr_gap *gap)
{
    const struct wr_range *r = &p->idle;
    uint32_t id = 0;
    if (gap->piece == 0 || gap->idle > 0) id = wr_range_next_free(r, gap->piece, 1);
    if (id == 0) {
        r = &p->va;
        id = wr_range_next_free(r, gap->idle > 0 ? 0 : gap->piece, 1);
    }
    if (id == 0) return false;
    *gap = gap_at(p, r->nodes[id].start);
    gap->piece = id;
    return true;
}

bool wr_pages_grant(struct wr_pages *p, struct wr_run *run, uint32_t tag)
{
    wr_lock_take(&p->lock);
    uint32_t id = run->first == WR_ANYWHERE ? wr_range_find(&p->idle, run->n)
                                            : wr_range_free_from(&p->idle, run->first);
    bool fits = wr_range_units(&p->idle, id) >= run->n;
    if (fits) {
        run->first = p->idle.nodes[id].start;
        grant_locked(p, id, run->first, run->n, tag);
    }
    wr_lock_give(&p->lock);
    return fits;
}

/* LOCK: held. */
static void take_back_locked(struct wr_pages *p, uint32_t first, uint32_t n)
{
    set_owner(p, first, n, 0);
    count_granted(p, first, n, false);
    wr_range_add(&p->idle, first, n, 0);
}

void wr_pages_take_back(struct wr_pages *p, uint32_t first, uint32_t n)
{
    wr_lock_take(&p->lock);
    take_back_locked(p, first, n);
    wr_lock_give(&p->lock);
}

void wr_pages_retag(struct wr_pages *p, uint32_t first, uint32_t n, uint32_t tag)
{
    set_owner(p, first, n, tag);
}

uint64_t wr_pages_reserved(struct wr_pages *p)
{
    wr_lock_take(&p->lock);
    uint64_t n = p->reserved_pages;
    wr_lock_give(&p->lock);
    return n;
}

uint64_t wr_pages_room(struct wr_pages *p)
{
    wr_lock_take(&p->lock);
    uint64_t n = p->limit_pages - p->reserved_pages;
    wr_lock_give(&p->lock);
    return n;
}

uint32_t wr_pages_set_limit(struct wr_pages *p, uint32_t limit_pages)
{
    wr_lock_take(&p->lock);
    uint32_t now = (uint32_t)wr_max(limit_pages, p->reserved_pages);
    atomic_store(&p->limit_pages, now);
    wr_lock_give(&p->lock);
    return now;
}

uint64_t wr_pages_idle(struct wr_pages *p)
{
    wr_lock_take(&p->lock);
    uint64_t n = p->idle.free_units;
    wr_lock_give(&p->lock);
    return n;
}

uint32_t wr_pages_largest_idle(struct wr_pages *p)
{
    wr_lock_take(&p->lock);
    uint32_t n = wr_range_largest_free(&p->idle);
    wr_lock_give(&p->lock);
    return n;
}

/* ---- segments ---------------------------------------------------------------------------------------- */

/* LOCK: held. Finds the addresses for what a run lacks, behind its idle pages. Anywhere: those with which the
 * addresses before end count, so that growth leaves no pages behind that are too few by themselves. False:
 * there is no room. */
static bool find_site(const struct wr_pages *p, struct wr_run *run, struct wr_window *w)
{
    if (run->first != WR_ANYWHERE) {
        struct wr_gap gap = gap_at(p, run->first);
        w->first = run->first + gap.idle;
        return gap.idle < run->n && run->n - gap.idle <= gap.unmapped;
    }
    uint32_t va = wr_range_find(&p->va, run->n);
    if (va == 0) return false;
    w->first = p->va.nodes[va].start;
    uint32_t idle = wr_range_units(&p->idle, wr_range_free_to(&p->idle, w->first));
    run->first = w->first - (uint32_t)wr_min(idle, run->n - 1);
    return true;
}

/* Completes a run by idle segments, if any may move, and by new ones, as far as the ceiling allows: all that
 * is missing, or `least` where that is more. The idle pages with which it begins are granted first, lest they
 * go, or move, meanwhile. LOCK: held. */
static weir_status complete_run(struct wr_pages *p, struct wr_run *run, struct wr_window *w, bool moves,
    uint32_t least, uint64_t ceiling, uint32_t tag)
{
    uint32_t kept = w->first - run->first, missing = run->n - kept;
    if (kept > 0) grant_locked(p, wr_range_find_at(&p->idle, run->first), run->first, kept, tag);
    uint32_t moved = moves ? wr_segments_choose(p, missing) : 0;
    uint32_t fresh = (uint32_t)wr_max(least, missing - wr_min(missing, moved));
    weir_status s = WEIR_NOT_YET;
    if (fresh == 0 || p->reserved_pages + fresh <= ceiling)
        s = wr_segments_begin(p, moved, fresh, w);
    else
        wr_segments_unchoose(p);
    if (s == WEIR_OK) {
        wr_lock_give(&p->lock);
        s = wr_segments_finish(p, w);
    }
    if (s == WEIR_OK) {
        p->n_grows += fresh > 0;
        grant_locked(p, wr_range_find_at(&p->idle, w->first), w->first, missing, tag);
    } else if (kept > 0) {
        take_back_locked(p, run->first, kept);
    }
    return s;
}

weir_status wr_pages_stitch(struct wr_pages *p, struct wr_run *run, uint32_t tag)
{
    WR_NVTX_RANGE("stitch", (uint64_t)run->n * WR_PAGE_BYTES);
    if (wr_captures_any(p->device)) /* nothing is unmapped meanwhile (P02) */
        return wr_fail(WEIR_NOT_YET, "a stream captures: no segment is moved");
    struct wr_window w;
    weir_status s = WEIR_NOT_YET;
    wr_lock_take(&p->lock);
    if (find_site(p, run, &w)) s = complete_run(p, run, &w, true, 0, 0, tag);
    wr_lock_give(&p->lock);
    return s == WEIR_NOT_YET ? wr_fail(s, "%u pages are not idle in whole segments", run->n) : s;
}

weir_status wr_pages_grow(struct wr_pages *p, struct wr_run *run, uint64_t ceiling, uint32_t tag)
{
    WR_NVTX_RANGE("grow", (uint64_t)run->n * WR_PAGE_BYTES);
    struct wr_run asked = *run;
    struct wr_window w;
    weir_status s = WEIR_NOT_YET;
    bool may_move = !wr_captures_any(p->device);
    wr_lock_take(&p->lock);
    bool room = find_site(p, run, &w);
    if (room && run->first + run->n - w.first < p->grow_pages)
        s = complete_run(p, run, &w, false, p->grow_pages, ceiling, tag);
    if (s == WEIR_NOT_YET || s == WEIR_OUT_OF_MEMORY) { /* not by a whole step, then */
        *run = asked;                                   /* the lock was given meanwhile */
        if (find_site(p, run, &w)) s = complete_run(p, run, &w, may_move, 0, ceiling, tag);
    }
    wr_lock_give(&p->lock);
    return s == WEIR_NOT_YET
               ? wr_fail(s, "%u pages more would exceed %llu", run->n, (unsigned long long)ceiling)
               : s;
}

/* The device joins the list first, so that no mapping made meanwhile is missed. */
weir_status wr_pages_share(struct wr_pages *p, struct wr_device *peer)
{
    wr_lock_take(&p->lock);
    uint32_t n = 0;
    while (n < p->n_devices && p->devices[n] != peer)
        n++;
    bool full = n == WR_PAGES_DEVICES;
    if (n == p->n_devices && !full) p->devices[p->n_devices++] = peer;
    wr_lock_give(&p->lock);
    if (full)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a pool is shared with %d devices at most", WR_PAGES_DEVICES);
    weir_status s = wr_segments_share(p, n);
    wr_lock_take(&p->lock);
    if (s != WEIR_OK) p->devices[n] = p->device; /* has access anyway: the places of others stay */
    wr_lock_give(&p->lock);
    return s;
}

weir_status wr_pages_export(struct wr_pages *p, uint32_t unit, struct wr_exported *out)
{
    if (p->slab != 0)
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "a PLAIN pool's memory has no descriptor: use cuIpcGetMemHandle");
    wr_lock_take(&p->lock);
    uint32_t index = p->segment_of[unit >> WR_UNITS_PER_PAGE_LOG2] - 1;
    struct wr_segment g = p->segments[index];
    p->segments[index].holds++; /* it stays created, whatever becomes of the block */
    wr_lock_give(&p->lock);
    int fd;
    weir_status s = p->device->ops->mem_export(p->device, g.memory, &fd);
    wr_lock_take(&p->lock);
    p->segments[index].holds--;
    wr_lock_give(&p->lock);
    if (s != WEIR_OK) return s;
    *out = (struct wr_exported){.fd = fd,
        .segment_bytes = (uint64_t)g.n_pages * WR_PAGE_BYTES,
        .offset = wr_size_bytes(unit) - (uint64_t)g.first_page * WR_PAGE_BYTES};
    return WEIR_OK;
}

/* LOCK: held. A segment that nobody uses and that is not on its way already; UINT32_MAX: none. */
static uint32_t find_idle_segment(const struct wr_pages *p)
{
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (wr_segments_is_idle(&p->segments[i])) return i;
    return UINT32_MAX;
}

uint64_t wr_pages_trim(struct wr_pages *p, uint64_t keep)
{
    WR_NVTX_RANGE("trim", keep * WR_PAGE_BYTES);
    uint64_t gone = 0;
    if (wr_captures_any(p->device)) return 0; /* nothing is unmapped meanwhile (P02) */
    wr_lock_take(&p->lock);
    uint32_t index;
    while (p->reserved_pages > keep && (index = find_idle_segment(p)) != UINT32_MAX) {
        struct wr_segment *entry = &p->segments[index];
        if (entry->usable) {
            uint32_t id = wr_range_find_at(&p->idle, entry->first_page);
            wr_range_remove(&p->idle, id, entry->first_page, entry->n_pages);
        }
        entry->busy = true;
        struct wr_segment g = *entry;
        wr_lock_give(&p->lock);
        wr_segments_unmake(p, &g);
        wr_lock_take(&p->lock);
        wr_segments_settle(p, index, g);
        if (g.created) break; /* the driver refused: it would again */
        gone += g.n_pages;
        p->n_trims++;
    }
    wr_lock_give(&p->lock);
    return gone;
}

/* ---- validator --------------------------------------------------------------------------------------- */

static void require(bool holds, const char *invariant)
{
    if (holds) return;
    fprintf(stderr, "weir: pages: broken invariant: %s\n", invariant);
    abort();
}

void wr_pages_check(struct wr_pages *p)
{
    uint64_t reserved = 0, granted = 0, owned = 0, usable = 0;
    wr_range_check(&p->va);
    wr_range_check(&p->idle);
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct wr_segment *g = &p->segments[i];
        reserved += g->n_pages;
        granted += g->granted_pages;
        if (g->n_pages > 0 && g->usable && !g->busy) usable += g->n_pages;
        for (uint32_t page = g->first_page; g->usable && page < g->first_page + g->n_pages; page++) {
            require(p->segment_of[page] == i + 1, "a page knows its segment");
            owned += atomic_load(&p->owner[page]) != 0;
        }
    }
    require(reserved == p->reserved_pages, "the segments hold the reserved pages");
    require(reserved <= p->limit_pages, "reserved never exceeds the limit");
    require(granted == owned, "the pages granted are those with an owner");
    require(usable == granted + p->idle.free_units, "a usable page is granted or idle");
    require(p->va.free_units + reserved + p->moving_pages == p->n_pages,
        "an address is free or reserved for a segment");
}
