/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch.h"
#include "move.h"

enum { CHUNK_BYTES = 8 << 20, BATCH_MOVES = 256 };

/* ---- open and close ---------------------------------------------------------------------------------- */

/* An engine that lives as long as the trial does. */
static weir_status try_link(weir_pool *own, weir_pool *source, bool *staged)
{
    weir_engine_options options = {.struct_size = sizeof options, .flags = WEIR_ENGINE_NO_KERNELS};
    weir_engine_stats stats = {.struct_size = sizeof stats};
    weir_engine *e;
    weir_status s = weir_engine_open(own, &options, &e);
    if (s != WEIR_OK) return s;
    s = weir_engine_link(e, source);
    if (s == WEIR_OK) s = weir_engine_get_stats(e, &stats);
    *staged = stats.links_staged > 0;
    (void)weir_engine_close(e); /* nothing is under way to pageable memory: it closes */
    return s;
}

weir_status wr_fetch_open(struct wr_origin *o, weir_direction direction, weir_pool *own, weir_pool *source)
{
    *o = (struct wr_origin){.direction = direction, .pool = source ? source : own};
    weir_status s = wr_pool_hold(o->pool);
    if (s != WEIR_OK) return s;
    o->device = wr_pool_device(o->pool);
    o->peer = o->device != wr_pool_device(own);
    if (o->peer) s = try_link(own, source, &o->staged);
    if (s == WEIR_OK && o->staged) s = wr_copy_open(&o->hop, source);
    if (s != WEIR_OK) wr_pool_unhold(o->pool);
    return s;
}

void wr_fetch_close(struct wr_origin *o)
{
    if (o->staged) wr_copy_close(&o->hop);
    wr_pool_unhold(o->pool);
}

/* ---- what is asked ----------------------------------------------------------------------------------- */

static weir_status check_place(const struct wr_origin *o, struct wr_location *known, uint64_t address)
{
    weir_status s = WEIR_OK;
    if (!wr_location_holds(known, address, 1)) s = o->device->ops->locate(o->device, address, known);
    if (s != WEIR_OK) return s;
    if (known->kind != WR_MEMORY_DEVICE)
        return wr_fail(WEIR_INVALID_POINTER, "0x%llx is not device memory", (unsigned long long)address);
    if (known->ordinal == o->device->ordinal) return WEIR_OK;
    return wr_fail(WEIR_INVALID_ARGUMENT, "0x%llx is memory of device %d, the queue's spans are of device %d",
        (unsigned long long)address, known->ordinal, o->device->ordinal);
}

/* Both ends: what lies between is one allocation's, or the copy itself fails. */
weir_status wr_fetch_check(const struct wr_origin *o, const weir_span *spans, size_t n_spans)
{
    struct wr_location known = {0};
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < n_spans && s == WEIR_OK; i++) {
        uint64_t first = (uintptr_t)spans[i].host;
        if (spans[i].bytes == 0) continue;
        s = check_place(o, &known, first);
        if (s == WEIR_OK) s = check_place(o, &known, first + spans[i].bytes - 1);
    }
    return s;
}

/* ---- in place ---------------------------------------------------------------------------------------- */

static enum wr_copy_kind kind_of(const struct wr_origin *o)
{
    if (o->direction == WEIR_TO_HOST) return WR_COPY_D2H;
    return o->peer ? WR_COPY_PEER : WR_COPY_D2D;
}

static struct wr_mover mover_on(const struct wr_copier *c)
{
    return (struct wr_mover){.pool = c->pool,
        .device = c->device,
        .stream = c->stream,
        .fence = c->fence,
        .chunk_bytes = CHUNK_BYTES};
}

static weir_status queue_in_place(struct wr_copier *c, const struct wr_origin *o, uint64_t to,
    const struct wr_gather *g, struct wr_copy_tally *t)
{
    struct wr_mover mover = mover_on(c);
    struct wr_move moves[BATCH_MOVES];
    weir_status s = WEIR_OK;
    if (!o->peer && c->device->reads_host && !c->no_kernels) mover.ways = &wr_ways_guess;
    for (size_t i = 0; i < g->n_spans && s == WEIR_OK;) {
        struct wr_move_tally moved = {0};
        size_t n = 0;
        for (; i < g->n_spans && n < BATCH_MOVES; to += g->spans[i++].bytes) {
            size_t bytes = g->spans[i].bytes;
            moves[n++] = (struct wr_move){to, (uintptr_t)g->spans[i].host, bytes, 1, bytes, bytes};
        }
        s = wr_move_queue(&mover, kind_of(o), moves, n, &moved);
        t->copies += moved.transfers;
        t->bytes += moved.direct_bytes + moved.gather_bytes;
    }
    return s;
}

/* ---- through pinned memory --------------------------------------------------------------------------- */

/* The copy stream goes on behind what the hop has queued so far. */
static weir_status follow_hop(struct wr_copier *c, const struct wr_copier *hop)
{
    struct wr_mark mark = {hop->fence, wr_fence_stamp(hop->fence)};
    if (WR_FAULT(QUEUE_HOP_SKIPS_WAIT)) return WEIR_OK;
    weir_status s = wr_fence_cover(mark.fence, mark.number);
    return s == WEIR_OK ? wr_mark_wait(mark, c->stream) : s;
}

static weir_status queue_chunk(struct wr_copier *c, const struct wr_copier *hop, uint64_t to,
    uint64_t staging, uint64_t from, size_t bytes, struct wr_copy_tally *t)
{
    weir_status s = hop->device->ops->copy(hop->device, WR_COPY_D2H, staging, from, bytes, hop->stream);
    if (s == WEIR_OK) s = follow_hop(c, hop);
    if (s == WEIR_OK) s = c->device->ops->copy(c->device, WR_COPY_H2D, to, staging, bytes, c->stream);
    if (s != WEIR_OK) return s;
    t->copies += 2;
    t->bytes += bytes;
    t->peer_staged_bytes += bytes;
    return WEIR_OK;
}

static weir_status queue_staged(struct wr_copier *c, const struct wr_copier *hop, uint64_t to,
    uint64_t staging, const struct wr_gather *g, struct wr_copy_tally *t)
{
    weir_status s = wr_copy_wait_for(hop, g->after, g->n_after);
    for (size_t i = 0; i < g->n_spans && s == WEIR_OK; i++)
        for (size_t at = 0; at < g->spans[i].bytes && s == WEIR_OK;) {
            size_t bytes = wr_min(CHUNK_BYTES, g->spans[i].bytes - at);
            s = queue_chunk(c, hop, to, staging, (uintptr_t)g->spans[i].host + at, bytes, t);
            at += bytes;
            to += bytes;
            staging += bytes;
        }
    return s;
}

/* What the hop has queued writes the staging still, though nothing follows it. */
static void cover_failed(struct wr_copier *c, const struct wr_copier *hop, struct wr_slot *staging)
{
    if (follow_hop(c, hop) == WEIR_OK || follow_hop(c, hop) == WEIR_OK) return;
    staging->address = 0;
    staging->allocated = 0;
}

weir_status wr_fetch_queue(struct wr_copier *c, const struct wr_origin *o, uint64_t to,
    struct wr_slot *staging, const struct wr_gather *g, struct wr_copy_tally *t)
{
    if (!o->staged) return queue_in_place(c, o, to, g, t);
    weir_status s = queue_staged(c, &o->hop, to, staging->address, g, t);
    if (s != WEIR_OK) cover_failed(c, &o->hop, staging);
    return s;
}
