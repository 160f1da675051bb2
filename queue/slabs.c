/* SPDX-License-Identifier: Apache-2.0
 *
 * Slabs: see engine.h.
 */
#include "edges.h"
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB_POLL_NS = 20000, LANDED_TOGETHER = 4, HAULS_TOGETHER = 64 };

/* ---- taking (LOCK: held, where nothing else is said) ------------------------------------------------- */

static struct wr_slab *find_free(weir_engine *e)
{
    for (unsigned i = 0; i < e->n_slabs; i++) {
        struct wr_slab *slab = e->slabs[i];
        bool copying = slab->state == WR_SLAB_COPYING && !WR_FAULT(COPY_REUSES_SLAB);
        if (copying && !wr_mark_passed(slab->until)) continue;
        if (slab->state == WR_SLAB_COPYING || slab->state == WR_SLAB_FREE) return slab;
    }
    return NULL;
}

/* Those that stand behind some `after`. */
static unsigned count_gated(const weir_engine *e)
{
    unsigned n = 0;
    for (unsigned i = 0; i < e->n_slabs; i++) {
        const struct wr_slab *slab = e->slabs[i];
        bool over =
            slab->state == WR_SLAB_FREE || (slab->state == WR_SLAB_COPYING && wr_mark_passed(slab->until));
        n += slab->gated && !over;
    }
    return n;
}

/* LOCK: given up while memory is allocated. */
static weir_status make_slab(weir_engine *e, struct wr_slab **out)
{
    void *memory = NULL;
    e->n_making++;
    wr_lock_give(&e->lock);
    struct wr_slab *slab = malloc(sizeof *slab);
    weir_status s = slab ? wr_pool_host_alloc(e->pool, e->chunk_bytes, &memory)
                         : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a slab");
    wr_lock_take(&e->lock);
    e->n_making--;
    if (s != WEIR_OK) {
        free(slab);
        return s;
    }
    slab->memory = memory;
    slab->state = WR_SLAB_FREE;
    slab->landing = NULL;
    e->slabs[e->n_slabs++] = slab;
    *out = slab;
    return WEIR_OK;
}

/* LOCK: given up while asleep. Polls: copies end without a wake-up. */
static weir_status wait_for_slab(weir_engine *e)
{
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    weir_status s = wr_edges_check_device(e->device);
    if (s != WEIR_OK) return s;
    uint64_t start = e->device->ops->now_ns(e->device);
    e->device->ops->doze(e->device, &never, &e->lock, SLAB_POLL_NS);
    e->stats.slab_waits++;
    e->stats.slab_wait_ns += e->device->ops->now_ns(e->device) - start;
    return WEIR_OK;
}

/* LOCK: given up meanwhile. Where slabs can't be had any more, one that comes back must do. */
static weir_status find_or_make(weir_engine *e, struct wr_slab **out)
{
    weir_status s = WEIR_OK;
    struct wr_slab *slab = find_free(e);
    if (!slab && e->n_slabs + e->n_making < e->slabs_most) {
        s = make_slab(e, &slab);
        if (s != WEIR_OK && e->n_slabs + e->n_making > 0) s = WEIR_OK;
    }
    *out = slab;
    return s;
}

/* LOCK: held. */
static void mark_taken(struct wr_slab *slab, bool gated)
{
    slab->state = WR_SLAB_TAKEN;
    slab->gated = gated;
    slab->used = slab->n = 0;
}

weir_status wr_slabs_try(weir_engine *e, bool gated, struct wr_slab **out)
{
    struct wr_slab *slab;
    wr_lock_take(&e->lock);
    weir_status s = find_or_make(e, &slab);
    if (s == WEIR_OK && slab) mark_taken(slab, gated);
    wr_lock_give(&e->lock);
    if (s == WEIR_OK) *out = slab;
    return s;
}

weir_status wr_slabs_take(weir_engine *e, bool gated, struct wr_slab **out)
{
    struct wr_slab *slab = NULL;
    weir_status s = WEIR_OK;
    wr_lock_take(&e->lock);
    while (s == WEIR_OK) {
        s = find_or_make(e, &slab);
        if (slab || s != WEIR_OK) break;
        wr_lock_give(&e->lock);
        wr_engine_poll_lanes(e);
        bool landed = wr_slabs_land(e);
        wr_lock_take(&e->lock);
        if (!landed && !find_free(e)) s = wait_for_slab(e);
    }
    if (s == WEIR_OK) {
        mark_taken(slab, gated);
        *out = slab;
    }
    wr_lock_give(&e->lock);
    return s;
}

bool wr_slabs_promise(weir_engine *e, size_t n)
{
    wr_engine_poll_lanes(e);
    while (wr_slabs_land(e))
        ;
    wr_lock_take(&e->lock);
    bool room = n <= e->slabs_most / 2 && n + e->promised + count_gated(e) <= e->slabs_most / 2;
    if (room) e->promised += n;
    wr_lock_give(&e->lock);
    return room;
}

void wr_slabs_unpromise(weir_engine *e, size_t n)
{
    if (n == 0) return;
    wr_lock_take(&e->lock);
    assert(e->promised >= n);
    e->promised -= n;
    wr_lock_give(&e->lock);
}

void wr_slabs_give(weir_engine *e, struct wr_slab *slab, struct wr_lane *lane, struct wr_landing *landing)
{
    struct wr_mark until = {lane->copier.fence, wr_fence_stamp(lane->copier.fence)};
    wr_lock_take(&e->lock);
    assert(slab->state == WR_SLAB_TAKEN);
    slab->until = until;
    slab->landing = landing;
    slab->state = landing ? WR_SLAB_LANDING : WR_SLAB_COPYING;
    if (landing) landing->slabs++;
    lane->newest = wr_max(lane->newest, until.number);
    wr_lock_give(&e->lock);
    wr_copy_cover(&lane->copier, until.number); /* behind each slab: it comes back by itself */
}

/* ---- landing ----------------------------------------------------------------------------------------- */

weir_status wr_slabs_open_landing(weir_engine *e, struct wr_landing **out, uint64_t *number)
{
    struct wr_landing *l = calloc(1, sizeof *l);
    if (!l) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a copy to pageable memory");
    wr_lock_take(&e->lock);
    l->number = *number = ++e->n_landings;
    l->next = e->landings;
    e->landings = l;
    wr_lock_give(&e->lock);
    *out = l;
    return WEIR_OK;
}

/* LOCK: held. Over once complete, with no slab left. */
static void end_landing(weir_engine *e, struct wr_landing *l)
{
    if (!l->complete || l->slabs > 0) return;
    struct wr_landing **link = &e->landings;
    while (*link != l)
        link = &(*link)->next;
    *link = l->next;
    free(l);
    wr_line_wake_all(e->waiters);
}

void wr_slabs_complete_landing(weir_engine *e, struct wr_landing *l)
{
    wr_lock_take(&e->lock);
    l->complete = true;
    end_landing(e, l);
    wr_lock_give(&e->lock);
}

bool wr_slabs_landed(const weir_engine *e, uint64_t number)
{
    for (const struct wr_landing *l = e->landings; l && number; l = l->next)
        if (l->number == number) return false;
    return true;
}

/* LOCK: held. One of at most so many parts. */
static struct wr_slab *find_arrived(weir_engine *e, size_t n_most)
{
    for (unsigned i = 0; i < e->n_slabs; i++) {
        struct wr_slab *slab = e->slabs[i];
        if (slab->state != WR_SLAB_LANDING || slab->n > n_most) continue;
        if (wr_mark_passed(slab->until) || WR_FAULT(COPY_LANDS_EARLY)) return slab;
    }
    return NULL;
}

/* Slabs of few parts are hauled together: one alone is cut into fewer slices than the crew has hands. */
struct arrivals {
    struct wr_slab *slabs[LANDED_TOGETHER];
    unsigned n_slabs;
    size_t n_hauls;
    struct wr_haul few[HAULS_TOGETHER];
    const struct wr_haul *hauls; /* `few`, or a single slab's own */
};

/* LOCK: held. */
static void take_arrivals(weir_engine *e, struct arrivals *a)
{
    struct wr_slab *slab = find_arrived(e, WR_SLAB_PARTS);
    a->n_slabs = 0;
    a->n_hauls = 0;
    a->hauls = slab && slab->n > HAULS_TOGETHER ? slab->hauls : a->few;
    while (slab) {
        slab->state = WR_SLAB_TAKEN;
        a->slabs[a->n_slabs++] = slab;
        if (a->hauls == a->few) memcpy(a->few + a->n_hauls, slab->hauls, slab->n * sizeof *a->few);
        a->n_hauls += slab->n;
        bool more = a->n_slabs < LANDED_TOGETHER && a->n_hauls < HAULS_TOGETHER;
        slab = more ? find_arrived(e, HAULS_TOGETHER - a->n_hauls) : NULL;
    }
}

/* LOCK: held. */
static void give_arrival(weir_engine *e, struct wr_slab *slab)
{
    struct wr_landing *l = slab->landing;
    slab->state = WR_SLAB_FREE;
    slab->landing = NULL;
    l->slabs--;
    end_landing(e, l);
}

bool wr_slabs_land(weir_engine *e)
{
    struct arrivals a;
    wr_lock_take(&e->lock);
    take_arrivals(e, &a);
    wr_lock_give(&e->lock);
    if (a.n_slabs == 0) return false;
    wr_crew_haul(a.hauls, a.n_hauls, true);
    wr_lock_take(&e->lock);
    for (unsigned i = 0; i < a.n_slabs; i++)
        give_arrival(e, a.slabs[i]);
    wr_lock_give(&e->lock);
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void wr_slabs_fini(weir_engine *e)
{
    for (unsigned i = 0; i < e->n_slabs; i++) {
        struct wr_slab *slab = e->slabs[i];
        bool free_now = slab->state == WR_SLAB_FREE;
        weir_status s = wr_pinned_free(wr_pool_pinned(e->pool), slab->memory,
            free_now ? NULL : slab->until.fence, free_now ? 0 : slab->until.number);
        assert(s == WEIR_OK);
        (void)s;
        free(slab);
    }
    while (e->landings) { /* of a lost device */
        struct wr_landing *l = e->landings;
        e->landings = l->next;
        free(l);
    }
    free(e->slabs);
    e->n_slabs = 0;
}
