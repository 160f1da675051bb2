/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A pool reserves addresses once, four times what it may ever map, so that they never run out or
 * fragment to a point that matters; reserving costs nothing. Each growth takes the first addresses that have
 * room, so that neighbours make longer runs of pages. It is made of *segments*, each one cuMemCreate mapped
 * as a whole; then access is set once over all of them, which the driver permits for a range of whole
 * mappings. The driver unmaps whole mappings only, so a segment goes back when all its pages are idle; and a
 * small block that stays keeps no more than one segment from going back (A23).
 *
 * SEGMENT SIZE. On an H200 a segment costs 8 to 11 us to create and 1 to map, setting access 41 us however
 * many there are. So a growth of 512 MiB takes 41 + 8 x 12 = 137 us in segments of 64 MiB, 233 in segments of
 * 32. What speaks for small ones is that a block pins those it touches, which matters as memory gets tight:
 * so growths below 512 MiB take 32 MiB, and no segment is larger than a 32nd of what the limit leaves:
 * that begins with the last 2 GiB.
 *
 * Measured on an H200: growth and unmapping don't wait for running kernels, while cuMemFree does.
 *
 * Making and unmaking a segment are the same steps up and down, so a growth that fails half-way is undone by
 * the code that trims. Where a step of an undo fails as well, the entry stays, counted as reserved, for the
 * next trim.
 */
#include "pages.h"

#include <stdio.h>
#include <stdlib.h>

enum { ADDRESS_FACTOR = 4, SEGMENT_PAGES = 16, SEGMENT_PAGES_MOST = 32, ROOM_PARTS = 32 };

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

weir_status wr_pages_open(struct wr_pages *p, struct wr_device *d, uint64_t limit_bytes, uint64_t grow_bytes)
{
    *p = (struct wr_pages){.device = d,
        .limit_pages = (uint32_t)(limit_bytes >> WR_PAGE_LOG2),
        .grow_pages = (uint32_t)(wr_round_up(grow_bytes, WR_PAGE_BYTES) >> WR_PAGE_LOG2)};
    p->n_pages = p->limit_pages * ADDRESS_FACTOR;
    wr_lock_init(&p->lock, WR_RANK_POOL);
    wr_range_init(&p->va);
    wr_range_init(&p->idle);
    weir_status s = WEIR_OK;
    if (!allocate_tables(p))
        s = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for the tables of %u pages", p->n_pages);
    if (s == WEIR_OK) s = d->ops->va_reserve(d, (uint64_t)p->n_pages * WR_PAGE_BYTES, &p->base);
    if (s == WEIR_OK)
        wr_range_add(&p->va, 0, p->n_pages, 0);
    else
        free_tables(p);
    return s;
}

weir_status wr_pages_close(struct wr_pages *p)
{
    wr_pages_trim(p, 0);
    if (p->reserved_pages > 0)
        return wr_fail(WEIR_DRIVER_ERROR, "the driver did not take back %llu bytes",
            (unsigned long long)(p->reserved_pages * WR_PAGE_BYTES));
    weir_status s = p->device->ops->va_free(p->device, p->base, (uint64_t)p->n_pages * WR_PAGE_BYTES);
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

/* LOCK: held. Room for `n` entries more. False: no host memory. */
static bool reserve_entries(struct wr_pages *p, uint32_t n)
{
    if (n <= p->segments_capacity - p->n_segments) return true;
    uint32_t capacity = (uint32_t)wr_max(p->n_segments + n, p->segments_capacity * 2);
    struct wr_segment *segments = realloc(p->segments, capacity * sizeof *segments);
    if (segments == NULL) return false;
    p->segments = segments;
    p->segments_capacity = capacity;
    return true;
}

/* LOCK: held. Index of a spare entry, or of a new one. */
static uint32_t take_entry(struct wr_pages *p)
{
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].n_pages == 0) return i;
    assert(p->n_segments < p->segments_capacity);
    return p->n_segments++;
}

/* LOCK: held. */
static void begin_segment(struct wr_pages *p, uint32_t first, uint32_t n)
{
    uint32_t index = take_entry(p);
    p->segments[index] = (struct wr_segment){.first_page = first, .n_pages = n, .busy = true};
    for (uint32_t page = first; page < first + n; page++)
        p->segment_of[page] = index + 1;
}

/* The driver's part of a growth of 512 MiB is n x (create 11 us + map 1) + access 41: 137 us in 8 segments. */
static uint32_t choose_segment_pages(const struct wr_pages *p, uint32_t n)
{
    uint64_t room_after = p->limit_pages - p->reserved_pages - n;
    uint32_t pages = n >= SEGMENT_PAGES_MOST * 8 ? SEGMENT_PAGES_MOST : SEGMENT_PAGES;
    while (pages > 1 && pages > room_after / ROOM_PARTS)
        pages /= 2;
    return pages;
}

/* Addresses side by side, and the segments that are being mapped into them. */
struct window {
    uint32_t first, n_pages;
};

/* Addresses and segments for `n` pages, within the limit: reserved from now on. */
static weir_status begin_growth(struct wr_pages *p, uint32_t n, struct window *w)
{
    weir_status s = WEIR_OK;
    wr_lock_take(&p->lock);
    uint32_t va = wr_range_find(&p->va, n);
    bool room = n <= p->limit_pages - p->reserved_pages && va != 0;
    uint32_t each = room ? choose_segment_pages(p, n) : 1;
    if (!room)
        s = wr_fail(WEIR_OUT_OF_MEMORY, "%llu bytes more would exceed the pool's limit of %llu",
            (unsigned long long)n * WR_PAGE_BYTES, (unsigned long long)p->limit_pages * WR_PAGE_BYTES);
    else if (!reserve_entries(p, n / each + 1))
        s = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for the entries of segments");
    if (s == WEIR_OK) {
        *w = (struct window){.first = p->va.nodes[va].start, .n_pages = n};
        wr_range_remove(&p->va, va, w->first, n);
        for (uint32_t done = 0; done < n; done += each)
            begin_segment(p, w->first + done, (uint32_t)wr_min(each, n - done));
        p->reserved_pages += n;
        p->peak_reserved_pages = wr_max(p->peak_reserved_pages, p->reserved_pages);
    }
    wr_lock_give(&p->lock);
    return s;
}

static size_t segment_bytes(const struct wr_segment *g)
{
    return (uint64_t)g->n_pages * WR_PAGE_BYTES;
}

static uint64_t page_address(const struct wr_pages *p, uint32_t page)
{
    return p->base + (uint64_t)page * WR_PAGE_BYTES;
}

/* Steps up. */
static weir_status create_segment(struct wr_pages *p, struct wr_segment *g)
{
    weir_status s = p->device->ops->mem_create(p->device, segment_bytes(g), &g->memory);
    g->created = s == WEIR_OK;
    return s;
}

static weir_status map_segment(struct wr_pages *p, struct wr_segment *g)
{
    uint64_t va = page_address(p, g->first_page);
    weir_status s = p->device->ops->mem_map(p->device, va, segment_bytes(g), g->memory);
    g->mapped = s == WEIR_OK;
    return s;
}

static weir_status open_segment(struct wr_pages *p, struct wr_segment *g)
{
    (void)p;
    g->usable = true;
    return WEIR_OK;
}

/* Steps down, as far as the driver lets. */
static weir_status unmap_segment(struct wr_pages *p, struct wr_segment *g)
{
    struct wr_device *d = p->device;
    weir_status s = WEIR_OK;
    g->usable = false;
    if (g->mapped) s = d->ops->mem_unmap(d, page_address(p, g->first_page), segment_bytes(g));
    if (s != WEIR_OK) return s;
    g->mapped = false;
    if (g->created) s = d->ops->mem_release(d, g->memory);
    if (s == WEIR_OK) g->created = false;
    return s;
}

/* LOCK: held. The entry is no longer busy: idle pages, gone, or left for the next trim. */
static void end_segment(struct wr_pages *p, uint32_t index, struct wr_segment g)
{
    g.busy = false;
    if (g.usable) {
        wr_range_add(&p->idle, g.first_page, g.n_pages, 0);
    } else if (!g.created) {
        wr_range_add(&p->va, g.first_page, g.n_pages, 0);
        p->reserved_pages -= g.n_pages;
        g.n_pages = 0;
    }
    p->segments[index] = g;
}

typedef weir_status segment_step(struct wr_pages *p, struct wr_segment *g);

/* One step for each segment of the window, until one fails; with `all`, for the others all the same. The
 * entries are busy: their fields are this thread's, but the array may move. */
static weir_status step_window(struct wr_pages *p, const struct window *w, segment_step *step, bool all)
{
    weir_status s = WEIR_OK;
    for (uint32_t at = w->first; at < w->first + w->n_pages && (all || s == WEIR_OK);) {
        uint32_t index = p->segment_of[at] - 1;
        wr_lock_take(&p->lock);
        struct wr_segment g = p->segments[index];
        wr_lock_give(&p->lock);
        weir_status one = step(p, &g);
        if (one != WEIR_OK) s = one;
        wr_lock_take(&p->lock);
        p->segments[index] = g;
        wr_lock_give(&p->lock);
        at += g.n_pages;
    }
    return s;
}

/* LOCK: held. */
static void end_window(struct wr_pages *p, const struct window *w)
{
    for (uint32_t at = w->first; at < w->first + w->n_pages;) {
        uint32_t index = p->segment_of[at] - 1;
        at += p->segments[index].n_pages;
        end_segment(p, index, p->segments[index]);
    }
}

static weir_status fill_window(struct wr_pages *p, const struct window *w)
{
    weir_status s = step_window(p, w, create_segment, false);
    if (s == WEIR_OK) s = step_window(p, w, map_segment, false);
    if (s == WEIR_OK)
        s = p->device->ops->mem_access(
            p->device, page_address(p, w->first), (uint64_t)w->n_pages * WR_PAGE_BYTES);
    if (s == WEIR_OK) s = step_window(p, w, open_segment, false);
    return s;
}

static weir_status grow_by(struct wr_pages *p, uint32_t total, uint32_t n, uint32_t tag, uint32_t *first)
{
    struct window w;
    weir_status s = begin_growth(p, total, &w);
    if (s != WEIR_OK) return s;
    s = fill_window(p, &w);
    if (s != WEIR_OK) step_window(p, &w, unmap_segment, true);
    wr_lock_take(&p->lock);
    end_window(p, &w);
    if (s == WEIR_OK) {
        p->n_grows++;
        *first = w.first;
        grant_locked(p, wr_range_find_at(&p->idle, w.first), w.first, n, tag);
    }
    wr_lock_give(&p->lock);
    return s;
}

weir_status wr_pages_grow(struct wr_pages *p, uint32_t n, uint64_t ceiling, uint32_t tag, uint32_t *first)
{
    weir_status s = WEIR_OUT_OF_MEMORY;
    if (n < p->grow_pages && wr_pages_reserved(p) + p->grow_pages <= ceiling)
        s = grow_by(p, p->grow_pages, n, tag, first);
    return s == WEIR_OUT_OF_MEMORY ? grow_by(p, n, n, tag, first) : s;
}

/* LOCK: held. A segment that nobody uses and that is not on its way already; UINT32_MAX: none. */
static uint32_t find_idle_segment(const struct wr_pages *p)
{
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct wr_segment *g = &p->segments[i];
        if (g->n_pages > 0 && g->granted_pages == 0 && !g->busy) return i;
    }
    return UINT32_MAX;
}

uint64_t wr_pages_trim(struct wr_pages *p, uint64_t keep)
{
    uint64_t gone = 0;
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
        unmap_segment(p, &g);
        wr_lock_take(&p->lock);
        end_segment(p, index, g);
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
    require(p->va.free_units + reserved == p->n_pages, "an address is free or reserved for a segment");
}
