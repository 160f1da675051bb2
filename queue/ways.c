/* SPDX-License-Identifier: Apache-2.0
 *
 * What small pieces cost each way, measured at open: pieces of a slab, a gap between them, to the device. Direct: one
 * copy each. Gather: the kernel. Packed: hauled together by the host, then one copy; that way needs destinations
 * that lie together, so it is taken only where no kernel may be.
 *
 * The engine is idle, but the device may compute: a kernel then finds no room, and a measurement that takes longer than
 * it is given is none. What is not measured keeps a guess, from an H200's figures.
 */
#include "engine.h"
#include "gather.h"

#include <string.h>

enum { PIECES_MOST = 64, PIECES_SIMULATED = 16, ROUNDS = 3, GAP = 512, POLL_NS = 20000 };
static const size_t class_bytes[WEIR_SMALL_CLASSES] = {2 << 10, 8 << 10, 32 << 10, 128 << 10};
static const uint64_t given_ns = 20000000;

const struct wr_ways wr_ways_guess = {
    .best = {WEIR_WAY_GATHER, WEIR_WAY_GATHER, WEIR_WAY_GATHER, WEIR_WAY_DIRECT}};

weir_way wr_ways_choose(const struct wr_ways *w, size_t n, size_t bytes)
{
    if (n < WR_SMALL_FEW) return WEIR_WAY_DIRECT;
    size_t mean = bytes / n;
    for (int i = 0; i < WEIR_SMALL_CLASSES; i++)
        if (mean <= class_bytes[i]) return w->best[i];
    return WEIR_WAY_DIRECT;
}

/* ---- one measurement --------------------------------------------------------------------------------- */

struct bench {
    weir_engine *engine;
    struct wr_lane *lane;
    char *host, *packed; /* pinned, room_bytes each */
    weir_dptr device;
    size_t room_bytes;
};

/* True: the lane has passed all that is queued. */
static bool await_lane(struct bench *b, uint64_t until_ns)
{
    struct wr_device *d = b->engine->device;
    struct wr_fence *f = b->lane->copier.fence;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    uint64_t number;
    if (wr_fence_tick(f, &number) != WEIR_OK) return false;
    for (;;) {
        wr_fence_poll(f);
        if (wr_fence_passed(f, number)) return true;
        if (d->ops->now_ns(d) > until_ns) return false;
        if (!wr_device_is_simulated(d)) continue; /* a sleep would take longer than what is measured */
        wr_lock_take(&b->engine->lock);
        d->ops->doze(d, &never, &b->engine->lock, POLL_NS);
        wr_lock_give(&b->engine->lock);
    }
}

static size_t list_pieces(const struct bench *b, size_t bytes, size_t gap, struct wr_move *moves)
{
    size_t most = wr_device_is_simulated(b->engine->device) ? PIECES_SIMULATED : PIECES_MOST;
    size_t n = wr_min(most, b->room_bytes / (bytes + gap));
    for (size_t i = 0; i < n; i++)
        moves[i] = (struct wr_move){
            b->device + i * (bytes + gap), (uintptr_t)b->host + i * (bytes + gap), bytes, 1, bytes, bytes};
    return n;
}

static weir_status queue_packed(struct bench *b, const struct wr_mover *m, struct wr_move *moves, size_t n)
{
    struct wr_haul hauls[PIECES_MOST];
    struct wr_move_tally ignored = {0};
    size_t at = 0;
    for (size_t i = 0; i < n; at += moves[i++].bytes)
        hauls[i] =
            (struct wr_haul){b->packed + at, (const void *)(uintptr_t)moves[i].from, moves[i].bytes, 1, 0, 0};
    wr_crew_haul(hauls, n, false);
    struct wr_move whole = {b->device, (uintptr_t)b->packed, at, 1, at, at};
    return wr_move_queue(m, WR_COPY_H2D, &whole, 1, &ignored);
}

static weir_status queue_way(struct bench *b, weir_way way, struct wr_move *moves, size_t n)
{
    struct wr_mover m = wr_engine_mover(b->engine, b->lane);
    struct wr_move_tally ignored = {0};
    if (way == WEIR_WAY_PACKED) return queue_packed(b, &m, moves, n);
    if (way == WEIR_WAY_GATHER) return wr_gather_queue(&m, moves, n, &ignored);
    m.ways = NULL;
    return wr_move_queue(&m, WR_COPY_H2D, moves, n, &ignored);
}

/* Microseconds a piece, of the best round; 0: none came to its end in time. */
static double time_way(struct bench *b, weir_way way, size_t bytes)
{
    struct wr_device *d = b->engine->device;
    double best = 0;
    int rounds = wr_device_is_simulated(d) ? 1 : ROUNDS; /* whose times don't vary */
    for (int round = 0; round < rounds; round++) {
        struct wr_move moves[PIECES_MOST];
        size_t n = list_pieces(b, bytes, GAP, moves);
        uint64_t start = d->ops->now_ns(d);
        if (queue_way(b, way, moves, n) != WEIR_OK || !await_lane(b, start + given_ns)) return best;
        double us = (double)(d->ops->now_ns(d) - start) / 1e3 / (double)n;
        if (round == 0 || us < best) best = us;
    }
    return best;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static void choose(struct wr_ways *w, int class)
{
    weir_way best = WEIR_WAY_DIRECT;
    for (int way = WEIR_WAY_GATHER; way < WEIR_WAYS; way++) {
        double us = w->us[class][way];
        if (us > 0 && us < w->us[class][best]) best = (weir_way)way;
        if (best == WEIR_WAY_GATHER) break; /* it serves scattered destinations, too */
    }
    w->best[class] = best;
}

static bool prepare(struct bench *b)
{
    weir_engine *e = b->engine;
    void *host = NULL, *packed = NULL;
    struct wr_mover m = wr_engine_mover(e, b->lane);
    if (wr_pool_host_alloc(e->pool, b->room_bytes, &host) != WEIR_OK) return false;
    b->host = host;
    if (wr_pool_host_alloc(e->pool, b->room_bytes, &packed) != WEIR_OK) return false;
    b->packed = packed;
    if (wr_copy_alloc(&e->home, b->room_bytes, &b->device) != WEIR_OK) return false;
    memset(host, 0, b->room_bytes);
    if (e->kernels && wr_gather_warm_up(&m) != WEIR_OK) e->kernels = false;
    return await_lane(b, e->device->ops->now_ns(e->device) + given_ns);
}

/* What runs late still uses the memory. */
static void give_back(struct bench *b)
{
    weir_engine *e = b->engine;
    struct wr_fence *f = b->lane->copier.fence;
    struct wr_mark until = {f, wr_fence_stamp(f)};
    if (b->host) (void)wr_pinned_free(wr_pool_pinned(e->pool), b->host, until.fence, until.number);
    if (b->packed) (void)wr_pinned_free(wr_pool_pinned(e->pool), b->packed, until.fence, until.number);
    wr_copy_poll(&b->lane->copier, until.number);
    if (b->device && wr_pool_use(e->pool, b->device, until) == WEIR_OK)
        (void)weir_free(e->pool, b->device, e->home.stream);
}

/* False: something does not come to its end, and what would be measured next stands behind it. */
static bool measure_class(struct bench *b, int class)
{
    weir_engine *e = b->engine;
    for (int way = WEIR_WAY_DIRECT; way < WEIR_WAYS; way++) {
        if (way == WEIR_WAY_GATHER && !e->kernels) continue;
        e->ways.us[class][way] = time_way(b, (weir_way)way, class_bytes[class]);
        if (e->ways.us[class][way] == 0) return false;
    }
    choose(&e->ways, class);
    return true;
}

void wr_ways_measure(weir_engine *e)
{
    struct bench b = {.engine = e, .lane = e->lanes[0], .room_bytes = 4 * WR_MIB};
    bool goes_on = prepare(&b);
    for (int class = 0; class < WEIR_SMALL_CLASSES; class ++) {
        e->ways.best[class] = e->kernels ? wr_ways_guess.best[class] : WEIR_WAY_DIRECT;
        goes_on = goes_on && measure_class(&b, class);
    }
    give_back(&b);
    wr_lock_take(&e->lock);
    e->lanes[0]->newest = e->lanes[0]->blocked = wr_fence_stamp(e->lanes[0]->copier.fence);
    wr_lock_give(&e->lock);
}
