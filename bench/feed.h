/* SPDX-License-Identifier: Apache-2.0
 *
 * Four ways of feeding batches of host memory to a stream that computes. The program around them is the same
 * plain loop:
 *
 *   put(batch) -> queue the work that reads it, on the compute stream -> done()
 *
 * One host thread runs it, and none more is needed: put and done only queue work, but for the copy of
 * pageable memory, in which the driver itself waits for the stream. The ways differ in what the copy has to
 * wait for.
 */
#ifndef WR_BENCH_FEED_H
#define WR_BENCH_FEED_H

#include "region.h"
#include "weir_queue.h"

struct wr_feed;

struct wr_feed_way {
    const char *name;
    bool pageable; /* batches come from pageable memory */
    weir_status (*open)(struct wr_feed *f);
    weir_status (*close)(struct wr_feed *f); /* the compute stream must have been waited for */
    /* The batch may be read at *out by what the compute stream gets from now on. */
    weir_status (*put)(struct wr_feed *f, const void *host, size_t bytes, weir_dptr *out);
    /* All work that reads the batch is queued. */
    weir_status (*done)(struct wr_feed *f);
    /* put in two halves, for a batch yet to be read from a file: where to write it, and the rest. */
    weir_status (*stage)(struct wr_feed *f, size_t bytes, void **host);
    weir_status (*put_staged)(struct wr_feed *f, size_t bytes, weir_dptr *out);
    /* Waits put on streams so far. */
    weir_status (*count_waits)(struct wr_feed *f, uint64_t *out);
};

enum { WR_FEED_PAGEABLE, WR_FEED_PINNED, WR_FEED_TIED, WR_FEED_WEIR, WR_FEED_WAYS };
extern const struct wr_feed_way *const wr_feed_ways[WR_FEED_WAYS];

struct wr_feed {
    /* given */
    const struct wr_feed_way *way;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream compute;
    size_t batch_bytes;
    unsigned depth;     /* of weir's queue */
    size_t queue_bytes; /* limit of its device memory, 0: depth * batch_bytes */
    /* the ways' own */
    struct wr_region block;
    void *staging;
    weir_stream copy_stream;
    wr_event allocated, copied;
    uint64_t stream_waits;
    weir_queue *queue;
    weir_item item;
};

#endif
