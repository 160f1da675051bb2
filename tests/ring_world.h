/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the replay ring share: a ring over a queue, and a model of what each of its rows holds.
 */
#ifndef RING_WORLD_H
#define RING_WORLD_H

#include "queue_world.h"
#include "weir_ring.h"

enum { ROWS = 96, ROW_BYTES = 512, BATCH = 48, WRITES = 16 };

struct ring_world {
    struct world w;
    weir_ring *ring;
    char *host; /* pinned: rows to be written, as many as the ring has */
    uint32_t tag[ROWS], newest;
    size_t next;
    uint64_t random;
};

static inline weir_ring_options ring_options(void)
{
    return (weir_ring_options){
        .struct_size = sizeof(weir_ring_options), .rows = ROWS, .row_bytes = ROW_BYTES};
}

static inline void open_ring_on(
    struct ring_world *r, const struct wr_sim_options *sim, weir_queue_options q, const weir_ring_options *o)
{
    q.direction = WEIR_ON_DEVICE;
    *r = (struct ring_world){.random = 1};
    open_world(&r->w, sim, 0, &q);
    OK(weir_host_alloc(r->w.pool, ROWS * ROW_BYTES, (void **)&r->host));
    OK(weir_ring_open(r->w.pool, r->w.queue, o, &r->ring));
}

static inline void open_ring_with(struct ring_world *r, const weir_ring_options *o)
{
    struct wr_sim_options sim = world_options();
    open_ring_on(r, &sim, queue_options(BATCH * ROW_BYTES, 2), o);
}

static inline void open_ring(struct ring_world *r)
{
    weir_ring_options o = ring_options();
    open_ring_with(r, &o);
}

static inline void close_ring(struct ring_world *r)
{
    OK(weir_ring_close(r->ring));
    OK(weir_queue_destroy(r->w.queue));
    wr_sim_drain(r->w.sim);
    OK(weir_host_free(r->w.pool, r->host, NULL));
    assert_int_equal(end_world(&r->w), 0);
}

/* Writes the next n rows, which have a tag each, once the rows before have been read from the host. */
static inline weir_status write_rows(struct ring_world *r, size_t n)
{
    OK(weir_ring_written(r->ring, -1));
    wr_sim_host_access(r->w.sim, r->host, n * ROW_BYTES, true);
    for (size_t i = 0; i < n; i++)
        write_words(r->host + i * ROW_BYTES, ROW_BYTES, r->newest + 1 + (uint32_t)i);
    size_t first = ROWS;
    weir_status s = weir_ring_insert(r->ring, r->host, n, -1, &first);
    if (s != WEIR_OK) return s;
    assert_int_equal(first, r->next);
    for (size_t i = 0; i < n; i++)
        r->tag[(first + i) % ROWS] = ++r->newest;
    r->next = (first + n) % ROWS;
    return WEIR_OK;
}

struct batch {
    size_t index[BATCH];
    uint32_t tag[BATCH]; /* that the rows have when they are sampled */
};

static inline void choose_batch(struct ring_world *r, struct batch *b)
{
    for (int i = 0; i < BATCH; i++) {
        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        b->index[i] = (r->random >> 33) % ROWS;
        b->tag[i] = r->tag[b->index[i]];
    }
}

static inline weir_status sample_rows(struct ring_world *r, struct batch *b, int64_t timeout_ns)
{
    choose_batch(r, b);
    return weir_ring_sample(r->ring, 0, b->index, BATCH, timeout_ns, NULL);
}

/* A consumer that is slow to begin: the gathers into its slots are late, and rows are refreshed meanwhile. */
static inline void read_batch(struct ring_world *r, const struct batch *b)
{
    weir_item item;
    OK(weir_queue_acquire(r->w.queue, r->w.stream[0], -1, &item));
    assert_int_equal(item.bytes, BATCH * ROW_BYTES);
    OK(wr_kernels_spin(r->w.device, r->w.stream[0], 500000));
    for (size_t i = 0; i < BATCH; i++)
        OK(wr_kernels_verify(
            r->w.device, r->w.stream[0], item.device + i * ROW_BYTES, ROW_BYTES, b->tag[i], r->w.counter[0]));
    OK(weir_queue_release(r->w.queue, &item, NULL, 0));
}

/* Rows are written and sampled at once, and nobody waits for the consumer but through the queue. */
static inline void run_ring(struct ring_world *r, int rounds)
{
    struct batch b;
    for (size_t i = 0; i < ROWS / WRITES; i++)
        OK(write_rows(r, WRITES));
    for (int i = 0; i < rounds; i++) {
        OK(sample_rows(r, &b, -1));
        OK(write_rows(r, WRITES));
        read_batch(r, &b);
    }
}

#endif
