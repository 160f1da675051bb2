/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the queue share: a simulated world with a pool, a queue and some streams; items whose
 * words are all one tag; kernels that read items and count wrong words; and an end that finds leaks and
 * oracle reports.
 */
#ifndef QUEUE_WORLD_H
#define QUEUE_WORLD_H

#include "harness.h"

#include "device_sim.h"
#include "kernels.h"
#include "pool.h"
#include "weir_queue.h"

enum { WORLD_STREAMS = 4 };

struct world {
    struct wr_sim *sim;
    struct wr_device *device;
    weir_pool *pool;
    weir_queue *queue;
    weir_stream stream[WORLD_STREAMS];
    weir_dptr counter[WORLD_STREAMS]; /* of wrong words, one for each stream */
};

#define OK(call) assert_int_equal(call, WEIR_OK)

static inline struct wr_sim_options world_options(void)
{
    return (struct wr_sim_options){.profile = wr_sim_profile_find("gtx1080-pcie3")};
}

static inline weir_queue_options queue_options(size_t item_bytes, unsigned items)
{
    return (weir_queue_options){
        .struct_size = sizeof(weir_queue_options), .item_bytes = item_bytes, .items = items};
}

static inline weir_queue_stats stats_of(weir_queue *q)
{
    weir_queue_stats s = {.struct_size = sizeof s};
    OK(weir_queue_get_stats(q, &s));
    return s;
}

static inline struct wr_sim_counts counts_of(struct world *w)
{
    struct wr_sim_counts c;
    wr_sim_get_counts(w->sim, &c);
    return c;
}

static inline void open_world(
    struct world *w, const struct wr_sim_options *o, unsigned ordinal, const weir_queue_options *q)
{
    *w = (struct world){0};
    OK(wr_sim_open(o, &w->sim));
    w->device = wr_sim_device(w->sim, ordinal);
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    OK(wr_pool_open(w->device, &defaults, &w->pool));
    for (int i = 0; i < WORLD_STREAMS; i++) {
        OK(w->device->ops->stream_create(w->device, &w->stream[i]));
        OK(weir_alloc(w->pool, sizeof(uint64_t), w->stream[i], &w->counter[i]));
        OK(w->device->ops->fill(w->device, w->counter[i], 0, sizeof(uint64_t), w->stream[i]));
    }
    wr_sim_drain(w->sim);
    if (q) OK(weir_queue_open(w->pool, q, &w->queue));
}

/* A world on the virtual clock. */
static inline void open_virtual(struct world *w, size_t item_bytes, unsigned items)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(item_bytes, items);
    open_world(w, &o, 0, &q);
}

static inline void open_wall(struct world *w, size_t item_bytes, unsigned items)
{
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(item_bytes, items);
    open_world(w, &o, 0, &q);
}

static inline uint64_t wrong_words(struct world *w)
{
    uint64_t sum = 0;
    for (int i = 0; i < WORLD_STREAMS; i++) {
        uint64_t n;
        wr_sim_peek(w->sim, w->counter[i], &n, sizeof n);
        sum += n;
    }
    return sum;
}

static inline void assert_no_reports(struct world *w)
{
    for (unsigned i = 0; i < wr_sim_reports(w->sim); i++)
        fprintf(stderr, "oracle: %s\n", wr_sim_report(w->sim, i));
    assert_int_equal(wr_sim_reports(w->sim), 0);
}

/* All gates are open by now. The pool gives all of its memory back, and the world ends with nothing left. */
static inline unsigned end_world(struct world *w)
{
    weir_queue_destroy(w->queue);
    wr_sim_drain(w->sim);
    for (int i = 0; i < WORLD_STREAMS; i++) {
        OK(weir_free(w->pool, w->counter[i], w->stream[i]));
        weir_status s = weir_stream_retire(w->pool, w->stream[i]);
        assert_true(s == WEIR_OK || s == WEIR_CLOSED); /* a pool closed before ends with its last block */
        OK(w->device->ops->stream_destroy(w->device, w->stream[i]));
    }
    wr_sim_drain(w->sim);
    weir_status s = weir_pool_close(w->pool);
    for (int i = 0; i < 3 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(w->sim);
        s = weir_pool_close(w->pool);
    }
    assert_true(s == WEIR_OK || s == WEIR_CLOSED);
    return wr_sim_close(w->sim);
}

static inline void close_world(struct world *w)
{
    wr_sim_drain(w->sim);
    assert_int_equal(wrong_words(w), 0);
    assert_int_equal(stats_of(w->queue).host_syncs, 0);
    assert_int_equal(counts_of(w).host_syncs, 0);
    assert_no_reports(w);
    assert_int_equal(end_world(w), 0);
}

/* ---- items ------------------------------------------------------------------------------------------- */

static inline void write_words(void *to, size_t bytes, uint32_t tag)
{
    for (size_t i = 0; i < bytes / sizeof tag; i++)
        memcpy((char *)to + i * sizeof tag, &tag, sizeof tag);
}

/* Writes an item, and tells the oracle. */
static inline void write_item(struct world *w, const weir_item *item, uint32_t tag)
{
    wr_sim_host_access(w->sim, item->host, item->bytes, true);
    write_words(item->host, item->bytes, tag);
}

static inline weir_status feed(struct world *w, size_t bytes, uint32_t tag, int64_t timeout_ns)
{
    weir_item item;
    weir_status s = weir_queue_reserve(w->queue, bytes, timeout_ns, &item);
    if (s != WEIR_OK) return s;
    write_item(w, &item, tag);
    return weir_queue_commit(w->queue, &item);
}

static inline void read_item_on(struct world *w, const weir_item *item, uint32_t tag, int stream)
{
    OK(wr_kernels_verify(w->device, w->stream[stream], item->device, item->bytes, tag, w->counter[stream]));
}

/* The next item is read on a stream of the world's, and released there. */
static inline void eat(struct world *w, uint32_t tag, int stream)
{
    weir_item item;
    OK(weir_queue_acquire(w->queue, w->stream[stream], 0, &item));
    read_item_on(w, &item, tag, stream);
    OK(weir_queue_release(w->queue, &item, NULL, 0));
}

#endif
