/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of seats share: a world with a queue and a seat in it; a step that sums what it reads, captured or
 * not; and for each address that an item may have a graph of that step.
 */
#ifndef SEAT_WORLD_H
#define SEAT_WORLD_H

#include "../bench/work.h"
#include "queue_world.h"
#include "weir_graph.h"

enum { SEAT_ITEM = 64 * 1024, SEAT_GRAPHS = 8, SEAT_SUM_NS = 100000 };

struct seating {
    struct world w;
    weir_seat *seat;
    weir_stream stream; /* the step's */
    weir_dptr sum;
    uint64_t expected;
    uint64_t before_ns, after_ns; /* how long the step works beside what reads the item */
    struct {
        weir_dptr address;
        wr_graph graph;
    } graphs[SEAT_GRAPHS];
};

static inline weir_seat_options seat_options(unsigned flags)
{
    return (weir_seat_options){.struct_size = sizeof(weir_seat_options), .flags = flags};
}

static inline void open_seating_in(
    struct seating *t, const struct wr_sim_options *o, const weir_queue_options *q, unsigned flags)
{
    *t = (struct seating){0};
    weir_seat_options s = seat_options(flags);
    open_world(&t->w, o, 0, q);
    t->stream = t->w.stream[0];
    OK(weir_alloc(t->w.pool, sizeof(uint64_t), t->stream, &t->sum));
    OK(t->w.device->ops->fill(t->w.device, t->sum, 0, sizeof(uint64_t), t->stream));
    OK(weir_seat_open(t->w.queue, &s, &t->seat));
}

static inline void open_seating(struct seating *t, unsigned flags)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 2);
    q.pinned_bytes = 8 * SEAT_ITEM; /* producers wait for nothing of the device */
    open_seating_in(t, &o, &q, flags);
}

/* ---- items ------------------------------------------------------------------------------------------- */

static inline void expect_item(struct seating *t, uint32_t tag)
{
    static uint32_t words[SEAT_ITEM / sizeof(uint32_t)];
    write_words(words, SEAT_ITEM, tag);
    t->expected += wr_work_checksum_host(words, SEAT_ITEM);
}

/* To be read once. */
static inline void feed_seat(struct seating *t, uint32_t tag)
{
    OK(feed(&t->w, SEAT_ITEM, tag, -1));
    expect_item(t, tag);
}

static inline void take_item(struct seating *t, weir_item *item)
{
    OK(weir_seat_next(t->seat, -1, item));
}

/* ---- the step ------------------------------------------------------------------------------------------ */

static inline void read_address(struct seating *t, weir_dptr at)
{
    OK(wr_work_checksum(t->w.device, t->stream, at, SEAT_ITEM, t->sum, SEAT_SUM_NS));
}

static inline void spin_for(struct seating *t, uint64_t ns)
{
    if (ns) OK(wr_kernels_spin(t->w.device, t->stream, ns));
}

static inline void run_step(struct seating *t)
{
    weir_dptr at = 0;
    spin_for(t, t->before_ns);
    OK(weir_seat_enter(t->seat, t->stream, &at));
    read_address(t, at);
    OK(weir_seat_leave(t->seat, t->stream));
    spin_for(t, t->after_ns);
}

static inline void begin_capture(struct seating *t)
{
    OK(t->w.device->ops->graph_begin(t->w.device, t->stream));
}

static inline wr_graph end_capture(struct seating *t)
{
    wr_graph g = NULL;
    OK(t->w.device->ops->graph_end(t->w.device, t->stream, &g));
    return g;
}

/* Captured when it is asked for first. */
static inline wr_graph graph_at(struct seating *t, weir_dptr address)
{
    unsigned i = 0;
    while (i < SEAT_GRAPHS && t->graphs[i].address && t->graphs[i].address != address)
        i++;
    assert_true(i < SEAT_GRAPHS);
    if (!t->graphs[i].graph) {
        begin_capture(t);
        run_step(t);
        t->graphs[i].graph = end_capture(t);
        t->graphs[i].address = address;
    }
    return t->graphs[i].graph;
}

static inline void launch_at(struct seating *t, weir_dptr address)
{
    OK(t->w.device->ops->graph_launch(t->w.device, graph_at(t, address), t->stream));
}

static inline void replay(struct seating *t)
{
    weir_item item;
    take_item(t, &item);
    launch_at(t, item.device);
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

static inline unsigned count_graphs(const struct seating *t)
{
    unsigned n = 0;
    while (n < SEAT_GRAPHS && t->graphs[n].graph)
        n++;
    return n;
}

static inline void drop_graphs(struct seating *t)
{
    for (unsigned n = count_graphs(t), i = 0; i < n; i++)
        OK(t->w.device->ops->graph_destroy(t->w.device, t->graphs[i].graph));
}

static inline uint64_t sum_of(struct seating *t)
{
    uint64_t sum;
    wr_sim_drain(t->w.sim);
    wr_sim_peek(t->w.sim, t->sum, &sum, sizeof sum);
    return sum;
}

/* The graphs and the seat are gone. */
static inline void end_seating(struct seating *t)
{
    OK(weir_free(t->w.pool, t->sum, t->stream));
    assert_int_equal(end_world(&t->w), 0);
}

/* All items were read, each once, and nobody waited or was in anybody's way. */
static inline void close_seating(struct seating *t)
{
    assert_int_equal(sum_of(t), t->expected);
    drop_graphs(t);
    OK(weir_seat_close(t->seat));
    assert_int_equal(counts_of(&t->w).host_syncs, 0);
    assert_int_equal(counts_of(&t->w).captures_broken, 0);
    assert_no_reports(&t->w);
    end_seating(t);
}

#endif
