/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <string.h>

/* ---- the stream -------------------------------------------------------------------------------------- */

weir_status wr_copy_open_on(struct wr_copier *c, weir_pool *pool, struct wr_device *d)
{
    *c = (struct wr_copier){.pool = pool, .device = d};
    weir_status s = c->device->ops->stream_create(c->device, &c->stream);
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

void wr_copy_poll(struct wr_copier *c, uint64_t newest)
{
    (void)wr_fence_cover(c->fence, newest); /* should its tick have failed; failing again, it stays pending */
    wr_fence_poll(c->fence);
}

/* ---- spans ------------------------------------------------------------------------------------------- */

/* Of memory that is not ours the driver is asked about both ends. */
static weir_status is_pinned(struct wr_copier *c, const weir_span *span, bool *out)
{
    uint64_t first = (uintptr_t)span->host, last = first + span->bytes - 1;
    bool pinned = wr_pinned_owns(wr_pool_pinned(c->pool), span->host, span->bytes);
    weir_status s = WEIR_OK;
    if (!pinned) {
        struct wr_location at;
        s = c->device->ops->locate(c->device, first, &at);
        pinned = s == WEIR_OK && at.kind == WR_MEMORY_PINNED;
        if (pinned && last - at.start >= at.bytes) {
            s = c->device->ops->locate(c->device, last, &at);
            pinned = at.kind == WR_MEMORY_PINNED;
        }
    }
    if (s == WEIR_OK) *out = pinned;
    return s;
}

weir_status wr_copy_sort(struct wr_copier *c, const weir_span *spans, size_t n_spans, bool lent,
    unsigned char *in_place, size_t *staged)
{
    size_t sum = 0;
    for (size_t i = 0; i < n_spans; i++) {
        bool pinned = false;
        weir_status s = WEIR_OK;
        if (lent && spans[i].bytes > 0) s = is_pinned(c, &spans[i], &pinned);
        if (s != WEIR_OK) return s;
        in_place[i] = pinned;
        if (!pinned) sum += spans[i].bytes;
    }
    *staged = sum;
    return WEIR_OK;
}

/* ---- copying ----------------------------------------------------------------------------------------- */

/* Bytes that lie together on both sides: one copy. */
struct run {
    const char *from;
    weir_dptr to;
    size_t bytes;
};

/* Queues the run, and begins the next one behind it. */
static weir_status end_run(struct wr_copier *c, struct run *r, struct wr_copy_tally *t)
{
    if (r->bytes == 0) return WEIR_OK;
    weir_status s =
        c->device->ops->copy(c->device, WR_COPY_H2D, r->to, (uintptr_t)r->from, r->bytes, c->stream);
    if (s != WEIR_OK) return s;
    t->copies++;
    t->bytes += r->bytes;
    *r = (struct run){.to = r->to + r->bytes};
    return WEIR_OK;
}

/* Stages what must be, and queues the copies. Neighbours become one, be they staged or not. */
static weir_status copy_spans(
    struct wr_copier *c, weir_dptr to, char *staging, const struct wr_gather *g, struct wr_copy_tally *t)
{
    struct run run = {.to = to};
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < g->n_spans && s == WEIR_OK; i++) {
        size_t bytes = g->spans[i].bytes;
        const char *from = g->spans[i].host;
        if (bytes == 0) continue;
        if (g->in_place && !g->in_place[i]) {
            from = memcpy(staging, from, bytes);
            staging += bytes;
        }
        if (run.bytes > 0 && run.from + run.bytes != from) s = end_run(c, &run, t);
        if (run.bytes == 0) run.from = from;
        run.bytes += bytes;
    }
    return s == WEIR_OK ? end_run(c, &run, t) : s;
}

/* The copy stream waits for the slot's last readers: the only wait ever put on it. */
static weir_status wait_for_readers(struct wr_copier *c, const struct wr_slot *slot, struct wr_copy_tally *t)
{
    for (unsigned i = 0; i < slot->n_marks; i++) {
        if (wr_mark_poll(slot->marks[i]) || WR_FAULT(QUEUE_COMMIT_SKIPS_WAIT)) continue;
        weir_status s = wr_mark_wait(slot->marks[i], c->stream);
        if (s != WEIR_OK) return s;
        t->reader_waits++;
    }
    return WEIR_OK;
}

weir_status wr_copy_start(struct wr_copier *c, const struct wr_slot *slot, const struct wr_slot *staging,
    const struct wr_gather *g, struct wr_mark *done, struct wr_copy_tally *t)
{
    assert(slot->taken && slot->address);
    char *staged = staging ? (char *)(uintptr_t)staging->address : NULL;
    weir_status s = wait_for_readers(c, slot, t);
    if (s == WEIR_OK) s = copy_spans(c, slot->address, staged, g, t);
    *done = (struct wr_mark){c->fence, wr_fence_stamp(c->fence)};
    wr_copy_poll(c, done->number); /* not to know, but to keep the ticks few where nobody else has to ask */
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
