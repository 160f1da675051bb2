/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. Segments get to their addresses in *windows*: some are made, others are moved there from where they
 * were idle (re-stitching: the same physical memory, mapped elsewhere, with nothing created or released), and
 * side by side they are a longer run of pages than any that was there before. The order of the driver's calls
 * makes failing cheap: first all new memory, the step that fails most, then the moves, then access for all of
 * the window at once.
 *
 * Addresses and entries are taken and given under the pool's lock; the driver is called off it. Meanwhile an
 * entry is busy: its fields are the thread's own, only the array may move. A segment that moves keeps its old
 * addresses until the window is over, so that an undo finds its home free.
 *
 * SEGMENT SIZE. On an H200 each segment costs 9 us to create, 1 to 5 to map and 25 to 40 to get access: the
 * driver charges for segments, whether one call gives access to one or to all. So a growth of 512 MiB took 300 us
 * in segments of 64 MiB, and takes 70 to 90 in one; the first growth at fresh addresses 40 more. What speaks for
 * small ones is fragmentation: the driver unmaps them whole only, so each hole between blocks keeps about one
 * segment from moving. With 53 GB live in blocks of 1 to 256 MiB, segments of 32 MiB failed requests for 0.8 to 1 GB
 * at 95 % of the limit (A24), those of 16 MiB none in 60 seeds. So a growth is made of two or more, of 8 to 16 MiB,
 * and only a growth of about 512 MiB and more takes 512: its block is large beside them. None is larger than a 32nd
 * of what the limit leaves, which matters for the last 16 GiB. To move a segment costs 20 us to unmap, and its
 * mapping and access anew.
 */
#include "segments.h"
#include "captures.h"

#include <stdlib.h>

enum {
    SEGMENT_PAGES_LEAST = 4,
    SEGMENT_PAGES = 8,
    SEGMENT_PAGES_MOST = 256, /* of a growth by LARGE_GROWTH_PAGES or more */
    LARGE_GROWTH_PAGES = 240,
    GROWTH_PARTS = 2,
    ROOM_PARTS = 32
};

/* ---- entries ----------------------------------------------------------------------------------------- */

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
static void set_segment_of(struct wr_pages *p, uint32_t first, uint32_t n, uint32_t index)
{
    for (uint32_t page = first; page < first + n; page++)
        p->segment_of[page] = index + 1;
}

/* ---- beginning a window ------------------------------------------------------------------------------ */

static uint32_t choose_segment_pages(const struct wr_pages *p, uint32_t n)
{
    uint64_t room_after = p->limit_pages - p->reserved_pages - n;
    uint64_t pages = wr_min(wr_max(n / GROWTH_PARTS, SEGMENT_PAGES_LEAST), SEGMENT_PAGES);
    if (n >= LARGE_GROWTH_PAGES) pages = SEGMENT_PAGES_MOST;
    return (uint32_t)wr_max(1, wr_min(pages, room_after / ROOM_PARTS));
}

static bool can_move(const struct wr_segment *g)
{
    return wr_segments_is_idle(g) && g->usable && !g->moving;
}

/* What fits whole first; what is left unchosen after that is larger than what is missing. */
uint32_t wr_segments_choose(struct wr_pages *p, uint32_t n)
{
    uint32_t chosen = 0, smallest = UINT32_MAX;
    for (uint32_t i = 0; i < p->n_segments && chosen < n; i++) {
        struct wr_segment *g = &p->segments[i];
        if (!can_move(g) || g->n_pages > n - chosen) continue;
        g->moving = true;
        chosen += g->n_pages;
    }
    for (uint32_t i = 0; i < p->n_segments && chosen < n; i++) {
        struct wr_segment *g = &p->segments[i];
        if (!can_move(g)) continue;
        if (smallest == UINT32_MAX || g->n_pages < p->segments[smallest].n_pages) smallest = i;
    }
    if (smallest != UINT32_MAX) {
        p->segments[smallest].moving = true;
        chosen += p->segments[smallest].n_pages;
    }
    return chosen;
}

/* LOCK: held. Is it chosen, and not on its way with another thread already? */
static bool is_chosen(const struct wr_segment *g)
{
    return g->moving && !g->busy;
}

void wr_segments_unchoose(struct wr_pages *p)
{
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (is_chosen(&p->segments[i])) p->segments[i].moving = false;
}

/* LOCK: held. Returns the first page behind it. */
static uint32_t begin_move(struct wr_pages *p, uint32_t index, uint32_t to)
{
    struct wr_segment *g = &p->segments[index];
    wr_range_remove(&p->idle, wr_range_find_at(&p->idle, g->first_page), g->first_page, g->n_pages);
    g->busy = true;
    g->other_page = to;
    set_segment_of(p, to, g->n_pages, index);
    p->moving_pages += g->n_pages;
    return to + g->n_pages;
}

static uint32_t begin_fresh(struct wr_pages *p, uint32_t first, uint32_t n)
{
    uint32_t index = take_entry(p);
    p->segments[index] = (struct wr_segment){.first_page = first, .n_pages = n, .busy = true};
    set_segment_of(p, first, n, index);
    p->reserved_pages += n;
    return first + n;
}

static weir_status check_room(struct wr_pages *p, uint32_t va, uint32_t moved, uint32_t fresh, uint32_t each)
{
    if (fresh > p->limit_pages - p->reserved_pages || va == 0 || moved + fresh > p->va.nodes[va].units)
        return wr_fail(WEIR_NOT_YET, "%llu bytes more would exceed the pool's limit of %llu",
            (unsigned long long)fresh * WR_PAGE_BYTES, (unsigned long long)p->limit_pages * WR_PAGE_BYTES);
    if (!reserve_entries(p, fresh / each + 1))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for the entries of segments");
    return WEIR_OK;
}

weir_status wr_segments_begin(struct wr_pages *p, uint32_t moved, uint32_t fresh, struct wr_window *w)
{
    uint32_t va = wr_range_free_from(&p->va, w->first),
             each = choose_segment_pages(p, (uint32_t)wr_min(fresh, p->limit_pages - p->reserved_pages));
    weir_status s = check_room(p, va, moved, fresh, each);
    if (s != WEIR_OK) {
        wr_segments_unchoose(p);
        return s;
    }
    w->n_pages = moved + fresh;
    wr_range_remove(&p->va, va, w->first, w->n_pages);
    uint32_t at = w->first;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (is_chosen(&p->segments[i])) at = begin_move(p, i, at);
    assert(at == w->first + moved);
    for (uint32_t past = w->first + w->n_pages; at < past;)
        at = begin_fresh(p, at, (uint32_t)wr_min(each, past - at));
    p->peak_reserved_pages = wr_max(p->peak_reserved_pages, p->reserved_pages);
    return WEIR_OK;
}

/* ---- steps, off the lock ----------------------------------------------------------------------------- */

static size_t segment_bytes(const struct wr_segment *g)
{
    return (size_t)g->n_pages * WR_PAGE_BYTES;
}

static uint64_t page_address(const struct wr_pages *p, uint32_t page)
{
    return p->base + (uint64_t)page * WR_PAGE_BYTES;
}

static weir_status map_segment(struct wr_pages *p, struct wr_segment *g)
{
    uint64_t va = page_address(p, g->first_page);
    weir_status s = p->device->ops->mem_map(p->device, va, segment_bytes(g), g->memory);
    g->mapped = s == WEIR_OK;
    return s;
}

static weir_status unmap_segment(struct wr_pages *p, struct wr_segment *g)
{
    uint64_t va = page_address(p, g->first_page);
    weir_status s = WEIR_OK;
    if (g->mapped) s = p->device->ops->mem_unmap(p->device, va, segment_bytes(g));
    if (s == WEIR_OK) g->mapped = g->usable = false;
    return s;
}

static void swap_places(struct wr_segment *g)
{
    uint32_t place = g->first_page;
    g->first_page = g->other_page;
    g->other_page = place;
}

static weir_status permit(struct wr_pages *p, struct wr_device *d, uint32_t first, uint32_t n)
{
    if (p->slab != 0) return d->ops->plain_access(d, p->device);
    return d->ops->mem_access(d, page_address(p, first), (size_t)n * WR_PAGE_BYTES);
}

/* Access for each device of the list. LOCK: taken, and held on return, so that none has joined unseen. */
static weir_status permit_all(struct wr_pages *p, uint32_t first, uint32_t n)
{
    weir_status s = WEIR_OK;
    wr_lock_take(&p->lock);
    for (uint32_t i = 0; i < p->n_devices && s == WEIR_OK; i++) {
        struct wr_device *d = p->devices[i];
        wr_lock_give(&p->lock);
        s = permit(p, d, first, n);
        wr_lock_take(&p->lock);
    }
    return s;
}

/* LOCK: held. */
static uint32_t all_devices(const struct wr_pages *p)
{
    return (uint32_t)(((uint64_t)1 << p->n_devices) - 1);
}

void wr_segments_unmake(struct wr_pages *p, struct wr_segment *g)
{
    g->usable = false;
    if (unmap_segment(p, g) != WEIR_OK) return;
    if (g->created && p->device->ops->mem_release(p->device, g->memory) != WEIR_OK) return;
    g->created = false;
}

static weir_status create_fresh(struct wr_pages *p, struct wr_segment *g)
{
    if (g->moving) return WEIR_OK;
    weir_status s = p->device->ops->mem_create(p->device, segment_bytes(g), &g->memory);
    g->created = s == WEIR_OK;
    return s;
}

/* INVARIANT: a segment that moves is usable as long as it has not left its home. */
static weir_status take_to_window(struct wr_pages *p, struct wr_segment *g)
{
    if (g->moving) {
        weir_status s = unmap_segment(p, g);
        if (s != WEIR_OK) return s;
        swap_places(g);
    }
    return map_segment(p, g);
}

static weir_status step_back(struct wr_pages *p, struct wr_segment *g)
{
    if (!g->moving) {
        wr_segments_unmake(p, g);
    } else if (!g->usable && unmap_segment(p, g) == WEIR_OK) {
        swap_places(g);
        if (map_segment(p, g) != WEIR_OK) return WEIR_OK;
        g->usable = permit_all(p, g->first_page, g->n_pages) == WEIR_OK;
        g->devices = all_devices(p);
        wr_lock_give(&p->lock);
    }
    return WEIR_OK; /* what could not be done is left for the next trim */
}

/* While a stream captures nothing is unmapped (P02): that, too, is left for the next trim. */
static weir_status step_back_captured(struct wr_pages *p, struct wr_segment *g)
{
    if (!g->moving && !g->mapped) wr_segments_unmake(p, g);
    return WEIR_OK;
}

typedef weir_status window_step(struct wr_pages *p, struct wr_segment *g);

/* One step for each segment of the window, until one fails. */
static weir_status step_window(struct wr_pages *p, const struct wr_window *w, window_step *step)
{
    weir_status s = WEIR_OK;
    for (uint32_t at = w->first; at < w->first + w->n_pages && s == WEIR_OK;) {
        uint32_t index = p->segment_of[at] - 1;
        wr_lock_take(&p->lock);
        struct wr_segment g = p->segments[index];
        wr_lock_give(&p->lock);
        s = step(p, &g);
        wr_lock_take(&p->lock);
        p->segments[index] = g;
        wr_lock_give(&p->lock);
        at += g.n_pages;
    }
    return s;
}

/* ---- ending one -------------------------------------------------------------------------------------- */

void wr_segments_settle(struct wr_pages *p, uint32_t index, struct wr_segment g)
{
    if (g.moving) {
        wr_range_add(&p->va, g.other_page, g.n_pages, 0);
        p->moving_pages -= g.n_pages;
    }
    g.busy = g.moving = false;
    /* A device that joined during an undo has no access here: rather unused than refused. */
    g.usable &= (g.devices & all_devices(p)) == all_devices(p);
    if (g.usable) {
        wr_range_add(&p->idle, g.first_page, g.n_pages, 0);
    } else if (!g.created) {
        wr_range_add(&p->va, g.first_page, g.n_pages, 0);
        p->reserved_pages -= g.n_pages;
        g.n_pages = 0;
    }
    p->segments[index] = g;
}

weir_status wr_segments_finish(struct wr_pages *p, const struct wr_window *w)
{
    weir_status s = step_window(p, w, create_fresh);
    if (s == WEIR_OK) s = step_window(p, w, take_to_window);
    if (s == WEIR_OK) {
        s = permit_all(p, w->first, w->n_pages);
        if (s != WEIR_OK) wr_lock_give(&p->lock);
    }
    if (s != WEIR_OK) {
        step_window(p, w, wr_captures_any(p->device) ? step_back_captured : step_back);
        wr_lock_take(&p->lock);
    }
    for (uint32_t at = w->first; at < w->first + w->n_pages;) {
        uint32_t index = p->segment_of[at] - 1;
        struct wr_segment g = p->segments[index];
        at += g.n_pages;
        if (s == WEIR_OK) {
            g.usable = true;
            g.devices = all_devices(p);
        }
        wr_segments_settle(p, index, g);
    }
    return s;
}

/* ---- access ------------------------------------------------------------------------------------------ */

/* Segments that are on their way get it there, or are checked when they settle. Entries may move and come
 * meanwhile; those that come have it. */
weir_status wr_segments_share(struct wr_pages *p, uint32_t n)
{
    weir_status s = WEIR_OK;
    wr_lock_take(&p->lock);
    struct wr_device *d = p->devices[n];
    for (uint32_t i = 0; i < p->n_segments && s == WEIR_OK; i++) {
        struct wr_segment *g = &p->segments[i];
        if (g->n_pages == 0 || !g->usable || g->busy || g->devices >> n & 1) continue;
        uint32_t first = g->first_page, n_pages = g->n_pages;
        g->holds++;
        wr_lock_give(&p->lock);
        s = permit(p, d, first, n_pages);
        wr_lock_take(&p->lock);
        p->segments[i].holds--;
        if (s == WEIR_OK) p->segments[i].devices |= (uint32_t)1 << n;
    }
    wr_lock_give(&p->lock);
    return s;
}
