/* SPDX-License-Identifier: Apache-2.0
 *
 * The price of never waiting, on a simulated device, exact: with D slots being filled or live, and L freed by
 * the host that the GPU has not passed yet, D + L slots never wait and never fail, and one fewer does.
 *
 *   pool   L blocks were read by a stalled stream and freed; then D more are asked for on another stream, under
 *          a limit of n blocks. With n too small an alloc returns NOT_YET.
 *   queue  a loop that fetches D - 1 items ahead, while the host is L steps ahead of the GPU. With n slots too
 *          few, a push finds no slot, or one that still drains, for which its copy waits.
 *
 * For each D and L the least n without a wait is looked for from 1 on. It is to be D + L.
 */
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_queue.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_LIVE = 5, MOST_LATE = 8, STEPS = 100 };

static const size_t slot_bytes = 2 << 20; /* the device's granularity: the pool's limit counts blocks */
static const uint64_t kernel_ns = 1000000;

struct bench {
    struct wr_harness h;
    struct wr_device *device;
    weir_stream compute, copies;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static weir_pool *open_pool(struct bench *b, size_t limit_bytes)
{
    weir_pool *pool;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = limit_bytes, .grow_bytes = slot_bytes};
    must(b, wr_pool_open(b->device, &o, &pool), "opening a pool");
    return pool;
}

/* ---- the pool ---------------------------------------------------------------------------------------- */

/* How many of D + L allocs were refused under a limit of n blocks. */
static unsigned refusals_of_pool(struct bench *b, unsigned live, unsigned late, unsigned n)
{
    weir_pool *pool = open_pool(b, n * slot_bytes);
    weir_dptr block[MOST_LIVE];
    struct wr_sim_gate *gate;
    unsigned refused = 0, kept = 0;
    must(b, wr_sim_stall(b->device, b->compute, &gate), "stalling the stream");
    for (unsigned i = 0; i < late; i++) {
        weir_dptr d;
        weir_status s = weir_alloc(pool, slot_bytes, b->copies, &d);
        refused += s == WEIR_NOT_YET;
        if (s == WEIR_NOT_YET) continue;
        must(b, s, "alloc");
        must(b, weir_touch(pool, d, b->compute, 0), "touch");
        must(b, weir_free(pool, d, b->copies), "free");
    }
    for (unsigned i = 0; i < live; i++) {
        weir_status s = weir_alloc(pool, slot_bytes, b->copies, &block[kept]);
        refused += s != WEIR_OK;
        kept += s == WEIR_OK;
    }
    while (kept > 0)
        must(b, weir_free(pool, block[--kept], b->copies), "free");
    wr_sim_gate_open(gate);
    wr_sim_drain(b->h.world);
    must(b, weir_stream_retire(pool, b->copies), "retiring a stream");
    must(b, weir_stream_retire(pool, b->compute), "retiring a stream");
    wr_harness_close_pool(&b->h, pool);
    return refused;
}

/* ---- the queue --------------------------------------------------------------------------------------- */

struct loop {
    struct bench *b;
    weir_pool *pool;
    weir_queue *queue;
    weir_span batch;
    struct wr_mark step[STEPS];
    unsigned pushed, refused;
};

static void fetch(struct loop *l)
{
    weir_status s = weir_queue_push(l->queue, &l->batch, 1, WEIR_PUSH_BORROW, 0, NULL);
    l->refused += s == WEIR_WOULD_BLOCK;
    if (s != WEIR_WOULD_BLOCK) must(l->b, s, "push");
    l->pushed += s == WEIR_OK;
}

/* False: it can't go on, for there is no item. */
static bool run_step(struct loop *l, unsigned i, unsigned late)
{
    struct bench *b = l->b;
    weir_item item;
    if (i > late)
        while (!wr_mark_poll(l->step[i - late - 1]))
            wr_sim_step(b->h.world);
    fetch(l);
    if (l->pushed <= i) return false;
    must(b, weir_queue_acquire(l->queue, b->compute, 0, &item), "acquire");
    must(b, wr_kernels_spin(b->device, b->compute, kernel_ns), "the kernel");
    must(b, weir_queue_release(l->queue, &item, NULL, 0), "release");
    must(b, wr_pool_mark(l->pool, b->compute, &l->step[i]), "marking a step");
    return true;
}

/* How many pushes found no slot, or a copy had to wait for its slot's last readers. */
static uint64_t waits_of_queue(struct bench *b, unsigned live, unsigned late, unsigned n)
{
    struct loop l = {.b = b, .pool = open_pool(b, 0)};
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = slot_bytes, .items = n};
    must(b, weir_queue_open(l.pool, &o, &l.queue), "opening a queue");
    void *host;
    must(b, weir_host_alloc(l.pool, slot_bytes, &host), "pinned memory");
    l.batch = (weir_span){host, slot_bytes};
    for (unsigned i = 1; i < live; i++)
        fetch(&l);
    for (unsigned i = 0; i < STEPS && run_step(&l, i, late); i++) {
    }
    weir_queue_stats s = {.struct_size = sizeof s};
    must(b, weir_queue_get_stats(l.queue, &s), "stats");
    must(b, weir_queue_destroy(l.queue), "destroying the queue");
    wr_sim_drain(b->h.world);
    must(b, weir_host_free(l.pool, host, WEIR_NO_STREAM), "freeing pinned memory");
    must(b, weir_stream_retire(l.pool, b->compute), "retiring a stream");
    wr_harness_close_pool(&b->h, l.pool);
    return l.refused + s.stream_waits_slot;
}

/* ---- the knee ---------------------------------------------------------------------------------------- */

struct knee {
    unsigned at;
    uint64_t one_fewer; /* waits with that */
};

static struct knee find_knee(struct bench *b, bool of_queue, unsigned live, unsigned late)
{
    struct knee k = {0};
    for (k.at = 1; k.at < 2 * (MOST_LIVE + MOST_LATE); k.at++) {
        uint64_t waits =
            of_queue ? waits_of_queue(b, live, late, k.at) : refusals_of_pool(b, live, late, k.at);
        if (waits == 0) break;
        k.one_fewer = waits;
    }
    return k;
}

static unsigned print_row(struct bench *b, unsigned live, unsigned late)
{
    struct knee pool = find_knee(b, false, live, late), queue = find_knee(b, true, live, late);
    unsigned predicted = live + late;
    printf("| %u | %u | %u | %u | %llu | %u | %llu |\n", live, late, predicted, pool.at,
        (unsigned long long)pool.one_fewer, queue.at, (unsigned long long)queue.one_fewer);
    unsigned pool_error = (unsigned)abs((int)pool.at - (int)predicted);
    unsigned queue_error = (unsigned)abs((int)queue.at - (int)predicted);
    return pool_error > queue_error ? pool_error : queue_error;
}

int main(int argc, char **argv)
{
    static struct bench b;
    wr_harness_parse(
        &b.h, "knee", "finds how few slots do without a wait, on a simulated device", argc, argv, NULL, 0);
    if (b.h.device_kind && b.h.device_kind[0] != 's')
        wr_harness_end(&b.h, WR_HARNESS_BAD_INPUT, "only a simulated device can be stalled at will");
    b.h.device_kind = "sim";
    wr_harness_open(&b.h, "h200-pcie5", false);
    b.device = b.h.devices[0];
    must(&b, b.device->ops->stream_create(b.device, &b.compute), "creating a stream");
    must(&b, b.device->ops->stream_create(b.device, &b.copies), "creating a stream");
    printf("Device: %s, SIMULATED on a virtual clock\n", b.h.label);
    printf("D: slots being filled or live. L: freed by the host, not passed by the GPU. The least number of\n"
           "slots without a wait, and the waits with one fewer: allocs refused, or pushes of %d\n\n",
        STEPS);
    printf("| D | L | predicted | pool | one fewer | queue | one fewer |\n|---|---|---|---|---|---|---|\n");
    unsigned error = 0;
    for (unsigned live = 1; live <= MOST_LIVE; live++)
        for (unsigned late = 0; late <= MOST_LATE; late += 1 + (late > 1)) {
            unsigned e = print_row(&b, live, late);
            error = e > error ? e : error;
        }
    printf("\nqueue.knee_error %u slots (the farthest from D + L)\n", error);
    wr_harness_result(&b.h, "queue.knee_error", "weir", error, "slots");
    must(&b, b.device->ops->stream_destroy(b.device, b.compute), "destroying a stream");
    must(&b, b.device->ops->stream_destroy(b.device, b.copies), "destroying a stream");
    return wr_harness_close(&b.h) || error ? WR_HARNESS_FAILED : 0;
}
