/* SPDX-License-Identifier: Apache-2.0 */
#include "feed.h"

#include <stdlib.h>

/* ---- on the compute stream itself: copy and compute take turns --------------------------------------- */

static weir_status open_block(struct wr_feed *f)
{
    weir_status s = wr_region_open(f->device, f->batch_bytes, &f->block);
    if (s != WEIR_OK) return s;
    if (!f->way->pageable) return weir_host_alloc(f->pool, f->batch_bytes, &f->staging);
    f->staging = malloc(f->batch_bytes);
    return f->staging ? WEIR_OK : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a batch");
}

static weir_status close_block(struct wr_feed *f)
{
    wr_region_close(&f->block);
    if (!f->way->pageable) return weir_host_free(f->pool, f->staging, WEIR_NO_STREAM);
    free(f->staging);
    return WEIR_OK;
}

static weir_status put_same_stream(struct wr_feed *f, const void *host, size_t bytes, weir_dptr *out)
{
    struct wr_device *d = f->device;
    *out = f->block.address;
    return d->ops->copy(d, WR_COPY_H2D, f->block.address, (uintptr_t)host, bytes, f->compute);
}

static weir_status done_same_stream(struct wr_feed *f)
{
    (void)f; /* the next copy is queued behind the work */
    return WEIR_OK;
}

static weir_status stage_own(struct wr_feed *f, size_t bytes, void **host)
{
    assert(bytes <= f->batch_bytes);
    (void)bytes;
    *host = f->staging;
    return WEIR_OK;
}

static weir_status put_staged_own(struct wr_feed *f, size_t bytes, weir_dptr *out)
{
    return f->way->put(f, f->staging, bytes, out);
}

static weir_status count_own_waits(struct wr_feed *f, uint64_t *out)
{
    *out = f->stream_waits;
    return WEIR_OK;
}

static const struct wr_feed_way pageable_way = {
    .name = "pageable, same stream",
    .pageable = true,
    .open = open_block,
    .close = close_block,
    .put = put_same_stream,
    .done = done_same_stream,
    .stage = stage_own,
    .put_staged = put_staged_own,
    .count_waits = count_own_waits,
};

static const struct wr_feed_way pinned_way = {
    .name = "pinned, same stream",
    .open = open_block,
    .close = close_block,
    .put = put_same_stream,
    .done = done_same_stream,
    .stage = stage_own,
    .put_staged = put_staged_own,
    .count_waits = count_own_waits,
};

/* ---- own copy stream, allocator tied to compute ------------------------------------------------------ *
 * Such an allocator reuses a block as soon as the host has freed it, because everything that it hands out is
 * used in the compute stream's order. So a fresh block carries a point of the compute stream, taken at its
 * allocation, and any other stream waits for that first, whatever block it is: XLA's contract. And the block
 * freed last is the next. */

static weir_status open_tied(struct wr_feed *f)
{
    struct wr_device *d = f->device;
    weir_status s = open_block(f);
    if (s == WEIR_OK) s = d->ops->stream_create(d, &f->copy_stream);
    if (s == WEIR_OK) s = d->ops->event_create(d, &f->allocated);
    if (s == WEIR_OK) s = d->ops->event_create(d, &f->copied);
    return s;
}

static weir_status close_tied(struct wr_feed *f)
{
    struct wr_device *d = f->device;
    weir_status s = d->ops->stream_sync(d, f->copy_stream);
    if (s == WEIR_OK) s = d->ops->event_destroy(d, f->allocated);
    if (s == WEIR_OK) s = d->ops->event_destroy(d, f->copied);
    if (s == WEIR_OK) s = d->ops->stream_destroy(d, f->copy_stream);
    return s == WEIR_OK ? close_block(f) : s;
}

/* Makes `later` wait for what `earlier` has queued. */
static weir_status order(struct wr_feed *f, wr_event e, weir_stream earlier, weir_stream later)
{
    struct wr_device *d = f->device;
    weir_status s = d->ops->event_record(d, e, earlier);
    if (s == WEIR_OK) s = d->ops->stream_wait(d, later, e);
    f->stream_waits++;
    return s;
}

static weir_status put_tied(struct wr_feed *f, const void *host, size_t bytes, weir_dptr *out)
{
    struct wr_device *d = f->device;
    *out = f->block.address;
    weir_status s = order(f, f->allocated, f->compute, f->copy_stream);
    if (s == WEIR_OK)
        s = d->ops->copy(d, WR_COPY_H2D, f->block.address, (uintptr_t)host, bytes, f->copy_stream);
    return s == WEIR_OK ? order(f, f->copied, f->copy_stream, f->compute) : s;
}

static const struct wr_feed_way tied_way = {
    .name = "own stream, allocator tied to compute",
    .open = open_tied,
    .close = close_tied,
    .put = put_tied,
    .done = done_same_stream,
    .stage = stage_own,
    .put_staged = put_staged_own,
    .count_waits = count_own_waits,
};

/* ---- weir -------------------------------------------------------------------------------------------- */

static weir_status open_weir(struct wr_feed *f)
{
    weir_queue_options o = {
        .struct_size = sizeof o,
        .item_bytes = f->batch_bytes,
        .items = f->depth,
        .device_bytes = f->queue_bytes,
    };
    return weir_queue_open(f->pool, &o, &f->queue);
}

static weir_status close_weir(struct wr_feed *f)
{
    return weir_queue_destroy(f->queue);
}

static weir_status acquire(struct wr_feed *f, weir_dptr *out)
{
    weir_status s = weir_queue_acquire(f->queue, f->compute, -1, &f->item);
    if (s == WEIR_OK) *out = f->item.device;
    return s;
}

/* The batches stay as they are for the whole run, so the queue may read them in place. */
static weir_status put_weir(struct wr_feed *f, const void *host, size_t bytes, weir_dptr *out)
{
    weir_span span = {host, bytes};
    weir_status s = weir_queue_push(f->queue, &span, 1, WEIR_PUSH_BORROW, -1, NULL);
    return s == WEIR_OK ? acquire(f, out) : s;
}

static weir_status done_weir(struct wr_feed *f)
{
    return weir_queue_release(f->queue, &f->item, NULL, 0);
}

static weir_status stage_weir(struct wr_feed *f, size_t bytes, void **host)
{
    weir_status s = weir_queue_reserve(f->queue, bytes, -1, &f->item);
    if (s == WEIR_OK) *host = f->item.host;
    return s;
}

static weir_status put_staged_weir(struct wr_feed *f, size_t bytes, weir_dptr *out)
{
    assert(f->item.bytes == bytes);
    (void)bytes;
    weir_status s = weir_queue_commit(f->queue, &f->item);
    return s == WEIR_OK ? acquire(f, out) : s;
}

static weir_status count_weir_waits(struct wr_feed *f, uint64_t *out)
{
    weir_queue_stats stats = {.struct_size = sizeof stats};
    weir_status s = weir_queue_get_stats(f->queue, &stats);
    if (s == WEIR_OK) *out = stats.stream_waits_copy + stats.stream_waits_slot;
    return s;
}

static const struct wr_feed_way weir_itself = {
    .name = "weir",
    .open = open_weir,
    .close = close_weir,
    .put = put_weir,
    .done = done_weir,
    .stage = stage_weir,
    .put_staged = put_staged_weir,
    .count_waits = count_weir_waits,
};

const struct wr_feed_way *const wr_feed_ways[WR_FEED_WAYS] = {
    [WR_FEED_PAGEABLE] = &pageable_way,
    [WR_FEED_PINNED] = &pinned_way,
    [WR_FEED_TIED] = &tied_way,
    [WR_FEED_WEIR] = &weir_itself,
};
