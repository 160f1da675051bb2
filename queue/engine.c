/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's life, lanes and tickets. See engine.h.
 */
#include "engine.h"
#include "edges.h"
#include "gather.h"

#include <stdlib.h>
#include <string.h>

enum { SLABS_DEFAULT = 16, SLABS_LEAST = 4 };
static const size_t chunk_default = 8 * WR_MIB, chunk_least = 64 * WR_KIB, chunk_most = 64 * WR_MIB;

/* LOCK: guards the list of all engines ever opened, which keeps them reachable, for leak checkers. */
static struct wr_lock shells_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static struct weir_engine *shells;

/* ---- calls in and out -------------------------------------------------------------------------------- */

static void tear_down(weir_engine *e);

weir_status wr_engine_enter(weir_engine *e)
{
    if (!e) return wr_fail(WEIR_INVALID_ARGUMENT, "the engine is NULL");
    weir_status over =
        wr_edges_check(); /* before the lock: in a forked child nobody may be left to give it */
    if (over != WEIR_OK) return over;
    wr_lock_take(&e->lock);
    if (e->closed) {
        wr_lock_give(&e->lock);
        return wr_fail(WEIR_CLOSED, "the engine is closed");
    }
    e->inside++;
    over = wr_edges_check_device(e->device);
    return over == WEIR_OK ? WEIR_OK : wr_engine_leave(e, over);
}

weir_status wr_engine_leave(weir_engine *e, weir_status s)
{
    assert(e->inside > 0);
    bool last = --e->inside == 0 && e->closed && !e->torn_down;
    e->torn_down |= last;
    wr_lock_give(&e->lock);
    if (last) tear_down(e);
    return s;
}

/* ---- lanes ------------------------------------------------------------------------------------------- */

static bool is_blocked(const struct wr_lane *l)
{
    if (WR_FAULT(COPY_QUEUES_BEHIND_BLOCKED)) return false;
    return l->gated_users > 0 || !wr_fence_passed(l->copier.fence, l->blocked);
}

static bool is_of_kind(
    const struct wr_lane *l, const struct wr_device *d, enum weir_direction direction, bool urgent)
{
    return l->copier.device == d && l->direction == direction && l->urgent == urgent;
}

/* LOCK: held. One that nothing holds up, *n of that kind; NULL: none. A copy that will wait prefers one with no
 * other user. */
static struct wr_lane *find_lane(
    weir_engine *e, struct wr_device *d, enum weir_direction direction, bool urgent, bool gated, unsigned *n)
{
    unsigned n_lanes = atomic_load(&e->n_lanes);
    *n = 0;
    for (unsigned i = 0; i < n_lanes; i++) {
        struct wr_lane *l = e->lanes[i];
        if (!is_of_kind(l, d, direction, urgent)) continue;
        ++*n;
        if (!is_blocked(l) && !(gated && l->users > 0)) return l;
    }
    return NULL;
}

/* LOCK: held. All are blocked, and no more are made: the one that the fewest calls use. */
static struct wr_lane *find_least_used(
    weir_engine *e, struct wr_device *d, enum weir_direction direction, bool urgent)
{
    struct wr_lane *least = NULL;
    for (unsigned i = 0; i < atomic_load(&e->n_lanes); i++) {
        struct wr_lane *l = e->lanes[i];
        if (is_of_kind(l, d, direction, urgent) && (!least || l->users < least->users)) least = l;
    }
    return least;
}

/* LOCK: not held; held on OK. */
static weir_status make_lane(
    weir_engine *e, struct wr_device *d, enum weir_direction direction, bool urgent, struct wr_lane **out)
{
    struct wr_lane *l = calloc(1, sizeof *l);
    if (!l) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a lane");
    weir_status s = wr_copy_open_on(&l->copier, e->pool, d);
    if (s != WEIR_OK) {
        free(l);
        return s;
    }
    l->direction = direction;
    l->urgent = urgent;
    wr_lock_take(&e->lock);
    unsigned n = atomic_load(&e->n_lanes);
    if (n < WR_LANES_MOST) {
        l->number = n + 1;
        e->lanes[n] = l;
        atomic_store(&e->n_lanes, n + 1);
        *out = l;
        return WEIR_OK;
    }
    wr_lock_give(&e->lock);
    wr_copy_close(&l->copier);
    free(l);
    return wr_fail(WEIR_DRIVER_ERROR, "an engine has %d lanes at most", WR_LANES_MOST);
}

/* Asks only where something is under way. */
void wr_engine_poll_lanes(weir_engine *e)
{
    for (unsigned i = 0; i < atomic_load(&e->n_lanes); i++) {
        struct wr_lane *l = e->lanes[i];
        wr_lock_take(&e->lock);
        uint64_t newest = l->newest;
        wr_lock_give(&e->lock);
        if (!wr_fence_passed(l->copier.fence, newest)) wr_copy_poll(&l->copier, newest);
    }
}

weir_status wr_engine_take_lane(weir_engine *e, struct wr_device *d, enum weir_direction direction,
    bool urgent, bool gated, struct wr_lane **out)
{
    unsigned n;
    wr_engine_poll_lanes(e);
    wr_lock_take(&e->lock);
    struct wr_lane *l = find_lane(e, d, direction, urgent, gated, &n);
    if (!l && n < WR_LANES_OF_A_KIND && atomic_load(&e->n_lanes) < WR_LANES_MOST) {
        wr_lock_give(&e->lock);
        weir_status s = make_lane(e, d, direction, urgent, &l);
        if (s != WEIR_OK && n == 0) return s;
        if (s != WEIR_OK) wr_lock_take(&e->lock);
    }
    if (!l) l = find_least_used(e, d, direction, urgent);
    bool found = l != NULL;
    if (found) {
        l->users++;
        l->gated_users += gated;
        *out = l;
    }
    wr_lock_give(&e->lock);
    return found ? WEIR_OK : wr_fail(WEIR_DRIVER_ERROR, "an engine has %d lanes at most", WR_LANES_MOST);
}

uint64_t wr_engine_release_lane(weir_engine *e, struct wr_lane *l, bool gated, bool launched)
{
    uint64_t stamp = wr_fence_stamp(l->copier.fence);
    wr_lock_take(&e->lock);
    l->users--;
    l->gated_users -= gated;
    l->newest = wr_max(l->newest, stamp);
    if (gated || launched) l->blocked = wr_max(l->blocked, stamp);
    wr_lock_give(&e->lock);
    wr_copy_cover(&l->copier, stamp);
    return stamp;
}

struct wr_mover wr_engine_mover(const weir_engine *e, const struct wr_lane *l)
{
    return (struct wr_mover){.pool = e->pool,
        .device = l->copier.device,
        .stream = l->copier.stream,
        .fence = l->copier.fence,
        .chunk_bytes = e->chunk_bytes,
        .ways = e->kernels && l->copier.device == e->device ? &e->ways : NULL};
}

const struct wr_link *wr_engine_find_link(const weir_engine *e, int ordinal)
{
    for (unsigned i = 0; i < e->n_links; i++)
        if (e->links[i].device->ordinal == ordinal) return &e->links[i];
    return NULL;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static weir_status check_options(const weir_engine_options *o)
{
    if (o->struct_size != sizeof *o)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *o);
    if (o->flags & ~(unsigned)WEIR_ENGINE_NO_KERNELS)
        return wr_fail(WEIR_INVALID_ARGUMENT, "unknown flags %#x", o->flags);
    if (o->chunk_bytes && (o->chunk_bytes < chunk_least || o->chunk_bytes > chunk_most))
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "chunks of %zu bytes: 64 KiB to 64 MiB are possible", o->chunk_bytes);
    size_t chunk = o->chunk_bytes ? o->chunk_bytes : chunk_default;
    if (o->staging_bytes && o->staging_bytes / chunk < SLABS_LEAST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "staging of %zu bytes is less than %d chunks", o->staging_bytes,
            SLABS_LEAST);
    return WEIR_OK;
}

/* The first lane of each direction, before the user's own streams and work. */
static weir_status make_first_lanes(weir_engine *e)
{
    weir_status s = WEIR_OK;
    for (int direction = WEIR_TO_DEVICE; direction <= WEIR_ON_DEVICE && s == WEIR_OK; direction++) {
        struct wr_lane *lane;
        s = make_lane(e, e->device, (enum weir_direction)direction, false, &lane);
        if (s == WEIR_OK) wr_lock_give(&e->lock);
    }
    return s;
}

static void close_lanes(weir_engine *e)
{
    for (unsigned i = 0; i < atomic_load(&e->n_lanes); i++) {
        wr_copy_close(&e->lanes[i]->copier);
        free(e->lanes[i]);
    }
    atomic_store(&e->n_lanes, 0);
}

static weir_status open_on_pool(weir_engine *e, weir_pool *pool)
{
    weir_status s = wr_pool_hold(pool);
    if (s != WEIR_OK) return s;
    e->pool = pool;
    e->device = wr_pool_device(pool);
    e->kernels = e->kernels && e->device->reads_host;
    s = wr_copy_open(&e->home, pool);
    if (s != WEIR_OK) {
        wr_pool_unhold(pool);
        return s;
    }
    s = make_first_lanes(e);
    if (s == WEIR_OK) return s;
    close_lanes(e);
    wr_copy_close(&e->home);
    wr_pool_unhold(pool);
    return s;
}

static void keep_shell(weir_engine *e)
{
    wr_lock_take(&shells_lock);
    e->next_shell = shells;
    shells = e;
    wr_lock_give(&shells_lock);
}

weir_status weir_engine_open(weir_pool *pool, const weir_engine_options *options, weir_engine **out)
{
    weir_engine_options o = {.struct_size = sizeof o};
    if (!pool || !out) return wr_fail(WEIR_INVALID_ARGUMENT, "the pool or the place for the engine is NULL");
    weir_status s = options ? check_options(options) : WEIR_OK;
    if (s != WEIR_OK) return s;
    if (options) o = *options;
    weir_engine *e = calloc(1, sizeof *e);
    if (!e) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an engine");
    e->chunk_bytes = o.chunk_bytes ? wr_round_up(o.chunk_bytes, 4096) : chunk_default;
    e->slabs_most = o.staging_bytes ? (unsigned)(o.staging_bytes / e->chunk_bytes) : SLABS_DEFAULT;
    e->slabs_most = (unsigned)wr_max(e->slabs_most, SLABS_LEAST);
    e->kernels = !(o.flags & WEIR_ENGINE_NO_KERNELS);
    wr_lock_init(&e->lock, WR_RANK_QUEUE);
    e->slabs = calloc(e->slabs_most, sizeof(void *));
    s = e->slabs ? open_on_pool(e, pool) : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an engine");
    if (s != WEIR_OK) {
        wr_lock_fini(&e->lock);
        free(e->slabs);
        free(e);
        return s;
    }
    wr_ways_measure(e);
    keep_shell(e);
    *out = e;
    return WEIR_OK;
}

/* The last one out. No lock: nobody else comes here, and all that look see `closed`. */
static void tear_down(weir_engine *e)
{
    wr_slabs_fini(e);
    wr_gates_fini(e);
    close_lanes(e);
    wr_copy_close(&e->home);
    wr_pool_unhold(e->pool);
}

/* Nothing will arrive any more. */
static weir_status close_lost(weir_engine *e)
{
    wr_lock_take(&e->lock);
    e->inside++;
    if (e->closed) return wr_engine_leave(e, wr_fail(WEIR_CLOSED, "the engine was closed before"));
    e->closed = true;
    wr_line_wake_all(e->waiters);
    return wr_engine_leave(e, WEIR_OK);
}

weir_status weir_engine_close(weir_engine *e)
{
    weir_status s = wr_engine_enter(e);
    if (s == WEIR_CONTEXT_LOST) return close_lost(e);
    if (s != WEIR_OK) return s;
    wr_lock_give(&e->lock);
    wr_engine_poll_lanes(e);
    while (wr_slabs_land(e))
        ;
    wr_lock_take(&e->lock);
    if (e->landings)
        return wr_engine_leave(
            e, wr_fail(WEIR_NOT_YET, "copies to pageable memory are under way: wait for them"));
    e->closed = true;
    wr_line_wake_all(e->waiters);
    return wr_engine_leave(e, WEIR_OK);
}

weir_stream weir_engine_stream(weir_engine *e)
{
    if (wr_engine_enter(e) != WEIR_OK) return NULL;
    weir_stream home = e->home.stream;
    (void)wr_engine_leave(e, WEIR_OK);
    return home;
}

/* ---- tickets ----------------------------------------------------------------------------------------- */

/* LOCK: held. */
static weir_status find_ticket(weir_engine *e, weir_ticket t, struct wr_lane **lane)
{
    bool known = t.lane <= atomic_load(&e->n_lanes) && t.landing <= e->n_landings;
    struct wr_lane *l = known && t.lane > 0 ? e->lanes[t.lane - 1] : NULL;
    if (!known || (l ? t.stamp > l->newest : t.stamp > 0))
        return wr_fail(WEIR_INVALID_ARGUMENT, "no ticket of this engine");
    *lane = l;
    return WEIR_OK;
}

weir_status weir_copy_join(weir_engine *e, weir_ticket ticket, weir_stream stream)
{
    struct wr_lane *lane = NULL;
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    s = find_ticket(e, ticket, &lane);
    if (s == WEIR_OK && !wr_slabs_landed(e, ticket.landing))
        s = wr_fail(WEIR_WOULD_BLOCK, "the copy ends on the host, which no stream can wait for");
    wr_lock_give(&e->lock);
    if (s == WEIR_OK && lane) {
        struct wr_mark mark = {lane->copier.fence, ticket.stamp};
        s = wr_fence_cover(mark.fence, mark.number); /* should the tick at the copy's end have failed */
        bool waits = !wr_mark_passed(mark) && !WR_FAULT(COPY_JOIN_SKIPS_WAIT);
        if (s == WEIR_OK && waits) s = wr_mark_wait(mark, stream);
    }
    wr_lock_take(&e->lock);
    return wr_engine_leave(e, s);
}

static bool is_over(const weir_engine *e, weir_ticket t, const struct wr_lane *lane)
{
    return wr_slabs_landed(e, t.landing) && (!lane || wr_fence_passed(lane->copier.fence, t.stamp));
}

/* LOCK: held, given up meanwhile. */
static void make_progress(weir_engine *e)
{
    wr_lock_give(&e->lock);
    wr_engine_poll_lanes(e);
    while (wr_slabs_land(e))
        ;
    wr_lock_take(&e->lock);
}

weir_status weir_copy_wait(weir_engine *e, weir_ticket ticket, int64_t timeout_ns)
{
    struct wr_lane *lane = NULL;
    struct wr_waiter me;
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    s = find_ticket(e, ticket, &lane);
    if (s != WEIR_OK) return wr_engine_leave(e, s);
    wr_line_join(&e->waiters, &me, timeout_ns);
    while (s == WEIR_OK && !is_over(e, ticket, lane)) {
        make_progress(e);
        if (is_over(e, ticket, lane)) break;
        s = e->closed ? wr_fail(WEIR_CLOSED, "the engine was closed meanwhile")
                      : wr_line_doze(&me, e->device, &e->lock, WR_CAUSE_TRANSFER, true);
    }
    wr_line_leave(&e->waiters, &me);
    return wr_engine_leave(e, s);
}

/* ---- stats ------------------------------------------------------------------------------------------- */

weir_status weir_engine_get_stats(weir_engine *e, weir_engine_stats *out)
{
    if (!out || out->struct_size < sizeof out->struct_size)
        return wr_fail(WEIR_INVALID_ARGUMENT, "stats with struct_size = %zu are needed", sizeof *out);
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    weir_engine_stats now = e->stats;
    now.struct_size = out->struct_size;
    now.lanes = atomic_load(&e->n_lanes);
    now.slabs = e->n_slabs;
    now.links = e->n_links;
    for (unsigned i = 0; i < e->n_links; i++)
        now.links_staged += !e->links[i].direct;
    memcpy(now.small_way, e->ways.best, sizeof now.small_way);
    memcpy(now.small_us, e->ways.us, sizeof now.small_us);
    memcpy(out, &now, wr_min(out->struct_size, sizeof now));
    return wr_engine_leave(e, WEIR_OK);
}
