/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"
#include "crew.h"
#include "fetch.h"
#include "move.h"
#include "nvtx.h"

/* A batch is a launch of the gather kernel at most, and 128 KiB of stack. Fewer small spans than GATHER_LEAST are
 * copied one by one: a kernel needs room beside those that compute, which copy engines don't. */
enum { CHUNK_BYTES = 8 << 20, BATCH_PARTS = 1024, GATHER_LEAST = 32 };

/* ---- the stream -------------------------------------------------------------------------------------- */

weir_status wr_copy_open_on(struct wr_copier *c, weir_pool *pool, struct wr_device *d)
{
    *c = (struct wr_copier){.pool = pool, .device = d};
    weir_status s = c->device->ops->stream_create_first(c->device, &c->stream);
    if (s != WEIR_OK) return s;
    struct wr_mark mark = {0};
    s = wr_pool_mark(pool, c->stream, &mark);
    c->fence = mark.fence;
    if (s != WEIR_OK) wr_copy_close(c);
    return s;
}

weir_status wr_copy_open(struct wr_copier *c, weir_pool *pool)
{
    return wr_copy_open_on(c, pool, wr_pool_device(pool));
}

/* Each step is tried twice. A stream that can't be retired is left alone: the pool may name its handle. */
void wr_copy_close(struct wr_copier *c)
{
    weir_status s = weir_stream_retire(c->pool, c->stream);
    if (s != WEIR_OK) s = weir_stream_retire(c->pool, c->stream);
    if (s != WEIR_OK) return;
    s = c->device->ops->stream_destroy(c->device, c->stream);
    if (s != WEIR_OK) (void)c->device->ops->stream_destroy(c->device, c->stream);
}

weir_status wr_copy_alloc(const struct wr_copier *c, size_t bytes, weir_dptr *out)
{
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = WEIR_REUSE_COMPLETED};
    return weir_alloc_with(c->pool, bytes, c->stream, &o, out);
}

void wr_copy_cover(struct wr_copier *c, uint64_t newest)
{
    (void)wr_fence_cover(c->fence, newest); /* failing, it stays pending until a later tick */
}

void wr_copy_poll(struct wr_copier *c, uint64_t newest)
{
    wr_copy_cover(c, newest); /* should its tick have failed */
    wr_fence_poll(c->fence);
}

/* ---- spans ------------------------------------------------------------------------------------------- */

enum { STAGED, IN_PLACE, IN_PLACE_UNMAPPED }; /* unmapped: kernels don't reach it */

/* Of memory that is not ours, or of many spans, the driver is asked, about both ends. *known is a pinned range that it
 * told of before: many spans of one allocation cost one question. */
static weir_status find_way(
    struct wr_copier *c, const weir_span *span, bool few, struct wr_location *known, unsigned char *way)
{
    uint64_t first = (uintptr_t)span->host, last = first + span->bytes - 1;
    struct wr_location at = *known, end = *known;
    weir_status s = WEIR_OK;
    *way = IN_PLACE;
    if (few && wr_pinned_owns(wr_pool_pinned(c->pool), span->host, span->bytes)) return WEIR_OK;
    if (!wr_location_holds(&at, first, 1)) s = c->device->ops->locate(c->device, first, &at);
    if (s == WEIR_OK && at.kind == WR_MEMORY_PINNED) {
        *known = end = at;
        if (!wr_location_holds(&end, last, 1)) s = c->device->ops->locate(c->device, last, &end);
    }
    if (s != WEIR_OK) return s;
    if (at.kind != WR_MEMORY_PINNED || end.kind != WR_MEMORY_PINNED)
        *way = STAGED;
    else if (!at.mapped || !end.mapped)
        *way = IN_PLACE_UNMAPPED;
    return WEIR_OK;
}

weir_status wr_copy_sort(struct wr_copier *c, const weir_span *spans, size_t n_spans, bool lent,
    unsigned char *in_place, size_t *staged)
{
    struct wr_location known = {0};
    size_t sum = 0;
    for (size_t i = 0; i < n_spans; i++) {
        weir_status s = WEIR_OK;
        in_place[i] = STAGED;
        if (lent && spans[i].bytes > 0)
            s = find_way(c, &spans[i], n_spans < GATHER_LEAST, &known, &in_place[i]);
        if (s != WEIR_OK) return s;
        if (in_place[i] == STAGED) sum += spans[i].bytes;
    }
    *staged = sum;
    return WEIR_OK;
}

/* ---- copying ----------------------------------------------------------------------------------------- */

/* Spans on their way, until there is a chunk of them or no room for more. */
struct batch {
    struct wr_copier *copier;
    size_t n_hauls, n_moves, hauled_bytes;
    bool unmapped;                     /* some of it: no kernel */
    struct wr_haul hauls[BATCH_PARTS]; /* into the staging memory */
    struct wr_move moves[BATCH_PARTS]; /* from there, or in place */
};

static void stage(const struct batch *b)
{
    if (b->n_hauls == 0) return;
    WR_NVTX_RANGE("stage", b->hauled_bytes);
    wr_crew_haul(b->hauls, b->n_hauls, false);
}

/* Stages what must be, by several threads where it is much, and queues the copies: they travel while the next batch
 * is staged. */
static weir_status end_batch(struct batch *b, struct wr_copy_tally *t)
{
    struct wr_copier *c = b->copier;
    bool many = b->n_moves >= GATHER_LEAST;
    bool gathers = many && c->device->reads_host && !c->no_kernels && !b->unmapped;
    struct wr_mover mover = {.pool = c->pool,
        .device = c->device,
        .stream = c->stream,
        .fence = c->fence,
        .chunk_bytes = CHUNK_BYTES,
        .ways = gathers ? &wr_ways_guess : NULL};
    struct wr_move_tally moved = {0};
    stage(b);
    weir_status s = wr_move_queue(&mover, WR_COPY_H2D, b->moves, b->n_moves, &moved);
    t->copies += moved.transfers;
    t->bytes += moved.direct_bytes + moved.gather_bytes;
    t->gathers += moved.gathers;
    t->gathered_bytes += moved.gather_bytes;
    t->fallbacks += many && !gathers;
    b->n_hauls = b->n_moves = b->hauled_bytes = 0;
    b->unmapped = false;
    return s;
}

/* `staging` NULL: in place. */
static void add_part(struct batch *b, weir_dptr to, const char *from, char *staging, size_t bytes)
{
    if (staging) b->hauls[b->n_hauls++] = (struct wr_haul){staging, from, bytes, 1, bytes, bytes};
    if (staging) b->hauled_bytes += bytes;
    uint64_t source = staging ? (uintptr_t)staging : (uintptr_t)from;
    b->moves[b->n_moves++] = (struct wr_move){to, source, bytes, 1, bytes, bytes};
}

static weir_status copy_span(
    struct batch *b, weir_dptr to, const weir_span *span, char *staging, struct wr_copy_tally *t)
{
    for (size_t at = 0; at < span->bytes;) {
        /* What is read in place needs no cutting here: move.c does that. */
        size_t bytes = staging ? wr_min(span->bytes - at, CHUNK_BYTES - b->hauled_bytes) : span->bytes;
        add_part(b, to + at, (const char *)span->host + at, staging ? staging + at : NULL, bytes);
        at += bytes;
        if (b->n_moves < BATCH_PARTS && b->hauled_bytes < CHUNK_BYTES) continue;
        weir_status s = end_batch(b, t);
        if (s != WEIR_OK) return s;
    }
    return WEIR_OK;
}

static weir_status copy_spans(
    struct wr_copier *c, weir_dptr to, char *staging, const struct wr_gather *g, struct wr_copy_tally *t)
{
    struct batch b;
    b.copier = c;
    b.n_hauls = b.n_moves = b.hauled_bytes = 0;
    b.unmapped = false;
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < g->n_spans && s == WEIR_OK; i++) {
        bool staged = g->in_place && g->in_place[i] == STAGED;
        b.unmapped |= g->in_place && g->in_place[i] == IN_PLACE_UNMAPPED;
        s = copy_span(&b, to, &g->spans[i], staged ? staging : NULL, t);
        to += g->spans[i].bytes;
        if (staged && g->spans[i].bytes > 0)
            staging += g->spans[i].bytes; /* of empty spans alone it is NULL */
    }
    return s == WEIR_OK ? end_batch(&b, t) : s;
}

/* The copy stream waits for the slot's last readers: the only wait put on it that its item's push did not name. The
 * driver is not asked about them, for that costs as much as the wait. */
static weir_status wait_for_readers(struct wr_copier *c, const struct wr_slot *slot, struct wr_copy_tally *t)
{
    for (unsigned i = 0; i < slot->n_marks; i++) {
        if (wr_mark_passed(slot->marks[i]) || WR_FAULT(QUEUE_COMMIT_SKIPS_WAIT)) continue;
        weir_status s = wr_mark_wait(slot->marks[i], c->stream);
        if (s != WEIR_OK) return s;
        t->reader_waits++;
    }
    return WEIR_OK;
}

weir_status wr_copy_wait_for(const struct wr_copier *c, const struct wr_mark *marks, size_t n)
{
    for (size_t i = 0; i < n && !WR_FAULT(QUEUE_SKIPS_AFTER); i++) {
        weir_status s = wr_mark_wait(marks[i], c->stream);
        if (s != WEIR_OK) return s;
    }
    return WEIR_OK;
}

/* The work that the copy comes after. It may write a committed buffer: should the copy stream not get behind it, then
 * nothing tells when that is free, and the memory stays with nobody. */
static weir_status wait_for_work(struct wr_copier *c, struct wr_slot *staging, const struct wr_gather *g)
{
    weir_status s = wr_copy_wait_for(c, g->after, g->n_after);
    if (s == WEIR_OK || !g->written_after || wr_copy_wait_for(c, g->after, g->n_after) == WEIR_OK) return s;
    staging->address = 0;
    staging->allocated = 0;
    return s;
}

/* The timeline's span begins behind all waits: when the copy may begin. Of an item that goes through a hop the hop
 * waits by itself, and the copy stream here, or the span would begin too soon. */
weir_status wr_copy_start(struct wr_copier *c, const struct wr_slot *slot, struct wr_slot *staging,
    const struct wr_gather *g, struct wr_mark *done, struct wr_copy_tally *t)
{
    assert(slot->taken && slot->address);
    weir_status s = wait_for_work(c, staging, g);
    if (s == WEIR_OK) s = wait_for_readers(c, slot, t);
    struct wr_span *span = wr_timeline_begin(c->timeline, WR_SPAN_COPY, g->ticket, g->bytes, c->stream);
    if (s == WEIR_OK && g->origin)
        s = wr_fetch_queue(c, g->origin, slot->address, staging, g, t);
    else if (s == WEIR_OK)
        s = copy_spans(c, slot->address, staging ? (char *)(uintptr_t)staging->address : NULL, g, t);
    wr_timeline_end(c->timeline, span, c->stream);
    *done = (struct wr_mark){c->fence, wr_fence_stamp(c->fence)};
    wr_copy_cover(c, done->number);
    return s;
}

/* ---- what is lent ------------------------------------------------------------------------------------ */

void wr_copy_lend(struct wr_copy_lent *l, uint64_t ticket, uint64_t stamp)
{
    uint64_t i = ticket % WR_COPY_LENT_REMEMBERED, older = stamp;
    if (ticket > l->recent[i].ticket) {
        older = l->recent[i].stamp;
        l->recent[i].ticket = ticket;
        l->recent[i].stamp = stamp;
    }
    l->older = wr_max(l->older, older);
    l->newest = wr_max(l->newest, stamp);
}

uint64_t wr_copy_lent_until(const struct wr_copy_lent *l, uint64_t ticket)
{
    uint64_t i = ticket % WR_COPY_LENT_REMEMBERED;
    if (ticket == 0) return l->newest;
    if (l->recent[i].ticket == ticket) return l->recent[i].stamp;
    return l->recent[i].ticket > ticket ? l->older : 0; /* never lent */
}
