/* SPDX-License-Identifier: Apache-2.0
 *
 * Staging: moves are cut into the parts that slabs hold. Up, a full slab is hauled in by the crew and then queued; the
 * crew has the next one before it is through with this, and hauls it while this one travels. Down, it is queued, and
 * lands later. Between devices that don't reach each other it goes down on one lane and up on another.
 */
#include "transfer.h"

struct stager {
    struct wr_transfer *transfer;
    const struct wr_route *route;
    struct wr_slab *slab;       /* being filled */
    struct wr_slab *hauled;     /* TO_DEVICE: the one before, which the crew has, or NULL */
    struct wr_crew_job jobs[2]; /* of the two in turn */
    unsigned turn;
    struct wr_landing *landing; /* TO_HOST */
    struct wr_move_tally *tally;
};

/* The slab's second half of the way, behind the first, on the destination's own lane. */
static weir_status send_onward(struct stager *g, struct wr_slab *slab, struct wr_mark arrived)
{
    struct wr_mover mover = wr_engine_mover(g->transfer->engine, g->route->onward);
    weir_status s = wr_fence_cover(arrived.fence, arrived.number);
    if (s == WEIR_OK) s = wr_mark_wait(arrived, mover.stream);
    for (size_t i = 0; i < slab->n; i++) {
        const struct wr_haul *h = &slab->hauls[i];
        slab->moves[i] = (struct wr_move){
            (uintptr_t)h->to, (uintptr_t)h->from, h->bytes, h->rows, h->to_pitch, h->from_pitch};
    }
    return s == WEIR_OK ? wr_move_queue(&mover, WR_COPY_H2D, slab->moves, slab->n, g->tally) : s;
}

/* What is in the slab is brought on its way. After an error nothing of it lands, but what was queued may still use
 * the slab. */
static weir_status queue_slab(struct stager *g, struct wr_slab *slab)
{
    weir_engine *e = g->transfer->engine;
    struct wr_lane *last = g->route->lane;
    struct wr_mover mover = wr_engine_mover(e, last);
    bool up = g->transfer->direction == WEIR_TO_DEVICE;
    weir_status s = wr_move_queue(&mover, up ? WR_COPY_H2D : WR_COPY_D2H, slab->moves, slab->n, g->tally);
    if (s == WEIR_OK && g->route->onward) {
        s = send_onward(g, slab, (struct wr_mark){mover.fence, wr_fence_stamp(mover.fence)});
        if (s == WEIR_OK) last = g->route->onward;
    }
    if (s != WEIR_OK) slab->n = 0;
    wr_slabs_give(e, slab, last, g->landing);
    return s;
}

/* The slab that the crew has is hauled to its end, and queued. */
static weir_status end_haul(struct stager *g)
{
    struct wr_slab *slab = g->hauled;
    if (!slab) return WEIR_OK;
    g->hauled = NULL;
    wr_crew_end(&g->jobs[g->turn]);
    return queue_slab(g, slab);
}

/* The slab that was filled goes on; up, to the crew, before the one of before is ended. */
static weir_status flush(struct stager *g)
{
    struct wr_slab *slab = g->slab;
    if (!slab) return WEIR_OK;
    g->slab = NULL;
    if (g->transfer->direction != WEIR_TO_DEVICE) return queue_slab(g, slab);
    wr_crew_begin(&g->jobs[!g->turn], slab->hauls, slab->n, false);
    weir_status s = end_haul(g);
    g->hauled = slab;
    g->turn = !g->turn;
    return s;
}

/* Who waits for a slab holds none, or all might wait. */
static weir_status take_slab(struct stager *g)
{
    weir_engine *e = g->transfer->engine;
    bool gated = g->transfer->n_marks > 0;
    weir_status s = g->hauled ? wr_slabs_try(e, gated, &g->slab) : WEIR_OK;
    if (s == WEIR_OK && !g->slab) s = end_haul(g);
    return s == WEIR_OK && !g->slab ? wr_slabs_take(e, gated, &g->slab) : s;
}

/* Where in the slab the next part goes: behind the last one if it continues it on the device, so that the two can be
 * joined; else so that both addresses allow the same wide steps. */
static size_t place_part(const struct wr_slab *slab, uint64_t device, bool up)
{
    if (slab->n > 0) {
        const struct wr_move *last = &slab->moves[slab->n - 1];
        if ((up ? last->to : last->from) + last->bytes == device && last->rows == 1) return slab->used;
    }
    size_t wanted = device % 16, is = slab->used % 16;
    return slab->used + (wanted + 16 - is) % 16;
}

static void add_part(struct stager *g, const struct wr_move *m, size_t at)
{
    struct wr_slab *slab = g->slab;
    bool up = g->transfer->direction == WEIR_TO_DEVICE;
    char *memory = slab->memory + at;
    uint64_t host = up ? m->from : m->to;
    struct wr_haul *h = &slab->hauls[slab->n];
    *h = (struct wr_haul){memory, (const void *)(uintptr_t)host, m->bytes, m->rows, m->bytes, m->from_pitch};
    if (!up) *h = (struct wr_haul){(void *)(uintptr_t)host, memory, m->bytes, m->rows, m->to_pitch, m->bytes};
    struct wr_move *q = &slab->moves[slab->n++];
    *q = *m;
    *(up ? &q->from : &q->to) = (uintptr_t)memory;
    *(up ? &q->from_pitch : &q->to_pitch) = m->bytes;
    slab->used = at + m->bytes * m->rows;
}

/* The part of the move that fits into `room` bytes: whole rows, or bytes of a single one. 0 rows: none fits. */
static struct wr_move cut(const struct wr_move *m, size_t room)
{
    struct wr_move part = *m;
    if (m->rows > 1)
        part.rows = wr_min(m->rows, room / m->bytes);
    else
        part.bytes = wr_min(m->bytes, room);
    if (part.bytes == 0) part.rows = 0;
    return part;
}

static void advance(struct wr_move *m, const struct wr_move *done)
{
    size_t by = m->rows > 1 ? done->rows * m->to_pitch : done->bytes;
    size_t from_by = m->rows > 1 ? done->rows * m->from_pitch : done->bytes;
    m->to += by;
    m->from += from_by;
    if (m->rows > 1)
        m->rows -= done->rows;
    else
        m->bytes -= done->bytes;
}

static weir_status stage_move(struct stager *g, struct wr_move m)
{
    weir_engine *e = g->transfer->engine;
    bool up = g->transfer->direction == WEIR_TO_DEVICE;
    weir_status s = WEIR_OK;
    while (m.rows > 0 && m.bytes > 0) {
        if (!g->slab) s = take_slab(g);
        if (s != WEIR_OK) return s;
        size_t at = place_part(g->slab, up ? m.to : m.from, up);
        size_t room = at < e->chunk_bytes && g->slab->n < WR_SLAB_PARTS ? e->chunk_bytes - at : 0;
        struct wr_move part = cut(&m, room);
        if (part.rows > 0) {
            add_part(g, &part, at);
            advance(&m, &part);
            if (m.rows == 0 || m.bytes == 0) break;
        }
        s = flush(g);
        if (s != WEIR_OK) return s;
    }
    return s;
}

/* Rows that no slab holds go one by one. */
static weir_status stage_rows(struct stager *g, const struct wr_move *m)
{
    if (m->rows == 1 || m->bytes + 16 <= g->transfer->engine->chunk_bytes) return stage_move(g, *m);
    weir_status s = WEIR_OK;
    for (size_t row = 0; row < m->rows && s == WEIR_OK; row++) {
        struct wr_move one = {
            m->to + row * m->to_pitch, m->from + row * m->from_pitch, m->bytes, 1, m->bytes, m->bytes};
        s = stage_move(g, one);
    }
    return s;
}

static void advise(const struct wr_move *staged, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (staged[i].rows == 1) wr_crew_advise((void *)(uintptr_t)staged[i].to, staged[i].bytes);
}

weir_status wr_stage_moves(
    struct wr_transfer *t, const struct wr_route *route, uint64_t *landing, struct wr_move_tally *tally)
{
    struct stager g = {.transfer = t, .route = route, .tally = tally};
    struct wr_move *staged = t->moves + t->n_in_place;
    size_t n = wr_move_join(staged, t->n - t->n_in_place);
    weir_status s = WEIR_OK;
    if (n == 0) return WEIR_OK;
    if (t->direction == WEIR_TO_HOST) {
        advise(staged, n);
        s = wr_slabs_open_landing(t->engine, &g.landing, landing);
        if (s != WEIR_OK) return s;
    }
    for (size_t i = 0; i < n && s == WEIR_OK; i++)
        s = stage_rows(&g, &staged[i]);
    weir_status last = flush(&g), hauled = end_haul(&g);
    if (last == WEIR_OK) last = hauled;
    if (g.landing) wr_slabs_complete_landing(t->engine, g.landing);
    return s == WEIR_OK ? last : s;
}

/* Parts are aligned to 16 bytes, slabs hold so many, and rows may leave up to half of a slab empty. */
size_t wr_stage_slabs(const struct wr_transfer *t)
{
    size_t parts = t->n - t->n_in_place, padded = t->staged_bytes + 16 * parts;
    return 2 * (padded / t->engine->chunk_bytes + 1) + parts / WR_SLAB_PARTS;
}
