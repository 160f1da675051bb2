/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A pool reserves addresses once, four times what it may ever map, so that they never run out or
 * fragment to a point that matters; reserving costs nothing. Each growth takes the first addresses that have
 * room, so that neighbours make longer runs of pages. It is made of *segments*, each one cuMemCreate mapped
 * as a whole. The driver unmaps whole mappings only, so a segment goes back when all its pages are idle; and a
 * small block that stays keeps no more than the segments that it touches from going back (A23).
 *
 * Idle segments that lie apart serve a long run, too: they are unmapped and mapped side by side, which is
 * tried before any growth, and by a growth for what it needs not make anew. See segments.c.
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
    p->n_pages = p->limit_pages =
        (uint32_t)((p->slab + (uint64_t)p->limit_pages * WR_PAGE_BYTES - p->base) >> WR_PAGE_LOG2);
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
    p->n_pages = plan->plain ? p->limit_pages : p->limit_pages * ADDRESS_FACTOR;
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

bool wr_pages_grant(struct wr_pages *p, uint32_t n, uint32_t tag, uint32_t *first)
{
    wr_lock_take(&p->lock);
    uint32_t id = wr_range_find(&p->idle, n);
    if (id != 0) {
        *first = p->idle.nodes[id].start;
        grant_locked(p, id, *first, n, tag);
    }
    wr_lock_give(&p->lock);
    return id != 0;
}

void wr_pages_take_back(struct wr_pages *p, uint32_t first, uint32_t n)
{
    wr_lock_take(&p->lock);
    set_owner(p, first, n, 0);
    count_granted(p, first, n, false);
    wr_range_add(&p->idle, first, n, 0);
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
    return p->limit_pages - wr_pages_reserved(p);
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

/* Grants `n` pages of `moved` idle ones and `fresh` new ones, side by side. LOCK: held, and given. */
static weir_status build_run(
    struct wr_pages *p, uint32_t moved, uint32_t fresh, uint32_t n, uint32_t tag, uint32_t *first)
{
    struct wr_window w;
    weir_status s = wr_segments_begin(p, moved, fresh, &w);
    if (s == WEIR_OK) {
        wr_lock_give(&p->lock);
        s = wr_segments_finish(p, &w);
    }
    if (s == WEIR_OK) {
        p->n_grows += fresh > 0;
        *first = w.first;
        grant_locked(p, wr_range_find_at(&p->idle, w.first), w.first, n, tag);
    }
    wr_lock_give(&p->lock);
    return s;
}

weir_status wr_pages_stitch(struct wr_pages *p, uint32_t n, uint32_t tag, uint32_t *first)
{
    WR_NVTX_RANGE("stitch", (uint64_t)n * WR_PAGE_BYTES);
    if (wr_captures_any(p->device)) /* nothing is unmapped meanwhile (P02) */
        return wr_fail(WEIR_NOT_YET, "a stream captures: no segment is moved");
    wr_lock_take(&p->lock);
    uint32_t moved = wr_segments_choose(p, n);
    if (moved >= n) return build_run(p, moved, 0, n, tag, first);
    wr_segments_unchoose(p);
    wr_lock_give(&p->lock);
    return wr_fail(WEIR_NOT_YET, "only %u of %u pages are idle in whole segments", moved, n);
}

weir_status wr_pages_grow(struct wr_pages *p, uint32_t n, uint64_t ceiling, uint32_t tag, uint32_t *first)
{
    WR_NVTX_RANGE("grow", (uint64_t)n * WR_PAGE_BYTES);
    weir_status s = WEIR_OUT_OF_MEMORY;
    if (n < p->grow_pages && wr_pages_reserved(p) + p->grow_pages <= ceiling) {
        wr_lock_take(&p->lock);
        s = build_run(p, 0, p->grow_pages, n, tag, first);
    }
    if (s != WEIR_OUT_OF_MEMORY && s != WEIR_NOT_YET) return s;
    bool captures = wr_captures_any(p->device);
    wr_lock_take(&p->lock);
    uint32_t moved = captures ? 0 : wr_segments_choose(p, n);
    uint32_t fresh = n - (uint32_t)wr_min(n, moved);
    if (p->reserved_pages + fresh <= ceiling) return build_run(p, moved, fresh, n, tag, first);
    wr_segments_unchoose(p);
    wr_lock_give(&p->lock);
    return wr_fail(WEIR_NOT_YET, "%u pages more would exceed %llu", fresh, (unsigned long long)ceiling);
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
