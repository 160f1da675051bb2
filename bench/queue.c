/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue beside what one would write by hand: two streams, two buffers and four events.
 *
 *   queue.wall_ratio_16m, queue.wall_ratio_1m   a step's time / the longer of copy and compute, each measured alone;
 *                                               of the first the worst of sizes from 16 MiB, and both with compute
 *                                               longer than the copy and shorter
 *   queue.item_us, queue.item_p99_us            host time of push, acquire and release, beyond that of a bare copy;
 *                                               by hand: of the copy, two waits and two records
 *   queue.host_syncs                            host waits for a stream
 *
 * Steps are timed by events on the compute stream, from the end of the second one: filling the pipeline counts for
 * none. What each step read is checked by its sum. On a simulated device time is virtual, and the host's work takes
 * none of it: item_us is not told there.
 */
#include "compute.h"
#include "harness.h"
#include "pool.h"
#include "weir_queue.h"
#include "work.h"

#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 2, LEAD = 2, SAMPLES = 8192, SMALL = 4096, BURST = 32, SMALL_DEPTH = 8 /* the most */ };

static const double compute_shares[] = {1.5, 0.67}; /* compute's length in copies */

struct bench {
    struct wr_harness h;
    unsigned steps, most_mib, repeats;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream stream;
    struct wr_compute compute;
    char *batch; /* pinned */
    size_t bytes;
    unsigned depth; /* batches that may be on the way */
    size_t summed;  /* bytes, and their checksum */
    uint64_t sum;
    wr_event begin, end;
    uint64_t host_syncs;
    /* weir */
    weir_queue *queue;
    weir_item item;
    /* by hand */
    struct wr_region buffer[SMALL_DEPTH];
    wr_event copied[SMALL_DEPTH], used[SMALL_DEPTH];
    weir_stream copies;
    uint64_t n_put;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

/* ---- ways of feeding --------------------------------------------------------------------------------- */

struct way {
    const char *name;
    void (*open)(struct bench *b);
    weir_dptr (*put)(struct bench *b); /* a batch that the compute stream may read */
    void (*done)(struct bench *b);     /* its reading is queued */
    void (*close)(struct bench *b);
};

static void open_weir(struct bench *b)
{
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = b->bytes, .items = b->depth};
    must(b, weir_queue_open(b->pool, &o, &b->queue), "opening the queue");
}

static weir_dptr put_weir(struct bench *b)
{
    weir_span span = {b->batch, b->bytes};
    must(b, weir_queue_push(b->queue, &span, 1, WEIR_PUSH_BORROW, -1, NULL), "push");
    must(b, weir_queue_acquire(b->queue, b->stream, -1, &b->item), "acquire");
    return b->item.device;
}

static void done_weir(struct bench *b)
{
    must(b, weir_queue_release(b->queue, &b->item, NULL, 0), "release");
}

static void close_weir(struct bench *b)
{
    weir_queue_stats s = {.struct_size = sizeof s};
    must(b, weir_queue_get_stats(b->queue, &s), "stats");
    b->host_syncs += s.host_syncs;
    must(b, weir_queue_destroy(b->queue), "destroying the queue");
    must(b, weir_trim(b->pool, 0, NULL), "trim");
}

static void open_by_hand(struct bench *b)
{
    b->n_put = 0;
    must(b, b->device->ops->stream_create(b->device, &b->copies), "making a stream");
    for (unsigned i = 0; i < b->depth; i++) {
        must(b, wr_region_open(b->device, b->bytes, &b->buffer[i]), "making a buffer");
        must(b, b->device->ops->event_create(b->device, &b->copied[i]), "making an event");
        must(b, b->device->ops->event_create(b->device, &b->used[i]), "making an event");
    }
}

static weir_dptr put_by_hand(struct bench *b)
{
    unsigned i = b->n_put++ % b->depth;
    const struct wr_device_ops *ops = b->device->ops;
    must(b, ops->stream_wait(b->device, b->copies, b->used[i]), "waiting for the reader");
    must(b, ops->copy(b->device, WR_COPY_H2D, b->buffer[i].address, (uintptr_t)b->batch, b->bytes, b->copies),
        "copy");
    must(b, ops->event_record(b->device, b->copied[i], b->copies), "recording");
    must(b, ops->stream_wait(b->device, b->stream, b->copied[i]), "waiting for the copy");
    return b->buffer[i].address;
}

static void done_by_hand(struct bench *b)
{
    must(b, b->device->ops->event_record(b->device, b->used[(b->n_put - 1) % b->depth], b->stream),
        "recording");
}

static void close_by_hand(struct bench *b)
{
    must(b, b->device->ops->stream_sync(b->device, b->copies), "waiting for the copies");
    for (unsigned i = 0; i < b->depth; i++) {
        wr_region_close(&b->buffer[i]);
        must(b, b->device->ops->event_destroy(b->device, b->copied[i]), "destroying an event");
        must(b, b->device->ops->event_destroy(b->device, b->used[i]), "destroying an event");
    }
    must(b, b->device->ops->stream_destroy(b->device, b->copies), "destroying a stream");
}

static const struct way ways[] = {
    {"weir", open_weir, put_weir, done_weir, close_weir},
    {"two streams by hand", open_by_hand, put_by_hand, done_by_hand, close_by_hand},
};

/* ---- steps ------------------------------------------------------------------------------------------- */

static void record(struct bench *b, wr_event e)
{
    must(b, b->device->ops->event_record(b->device, e, b->stream), "recording");
}

static void check_sum(struct bench *b, unsigned steps)
{
    uint64_t sum = 0;
    if (b->summed != b->bytes) b->sum = wr_work_checksum_host(b->batch, b->bytes);
    b->summed = b->bytes;
    must(b, wr_compute_take_sum(&b->compute, &sum), "reading the checksum");
    if (sum != steps * WR_COMPUTE_READS * b->sum)
        wr_harness_end(&b->h, WR_HARNESS_FAILED, "a step read wrong bytes");
}

static double elapsed_ms(struct bench *b, unsigned steps)
{
    int64_t ns = 0;
    must(b, b->device->ops->event_elapsed(b->device, b->begin, b->end, &ns), "reading the time");
    return (double)ns / 1e6 / steps;
}

/* A step of both, in ms. */
static double time_way(struct bench *b, const struct way *w, unsigned steps)
{
    w->open(b);
    for (unsigned i = 0; i < LEAD + steps; i++) {
        weir_dptr at = w->put(b);
        must(b, wr_compute_step(&b->compute, at, b->bytes), "a step of compute");
        w->done(b);
        if (i + 1 == LEAD) record(b, b->begin);
    }
    record(b, b->end);
    must(b, b->device->ops->stream_sync(b->device, b->stream), "waiting for the end");
    double ms = elapsed_ms(b, steps);
    check_sum(b, LEAD + steps);
    w->close(b);
    return ms;
}

static double time_compute(struct bench *b, weir_dptr at, unsigned steps)
{
    record(b, b->begin);
    for (unsigned i = 0; i < steps; i++)
        must(b, wr_compute_step(&b->compute, at, b->bytes), "a step of compute");
    record(b, b->end);
    must(b, b->device->ops->stream_sync(b->device, b->stream), "waiting for the end");
    double ms = elapsed_ms(b, steps);
    check_sum(b, steps);
    return ms;
}

static double time_copies(struct bench *b, weir_dptr to, unsigned steps)
{
    record(b, b->begin);
    for (unsigned i = 0; i < steps; i++)
        must(b, b->device->ops->copy(b->device, WR_COPY_H2D, to, (uintptr_t)b->batch, b->bytes, b->stream),
            "copy");
    record(b, b->end);
    must(b, b->device->ops->stream_sync(b->device, b->stream), "waiting for the end");
    return elapsed_ms(b, steps);
}

/* A device computes in units. Where a step is to be shorter than the copy and half a unit is longer, it is as short
 * as can be. */
static void set_step(struct bench *b, double share, double ns)
{
    bool shortest = !b->h.world && share < 1 && ns < b->compute.unit_ns / 2;
    wr_compute_set_step(&b->compute, shortest ? 0 : (uint64_t)ns);
}

/* The least of several: what disturbs adds. */
struct alone {
    double copy, compute;
};

static struct alone time_alone(struct bench *b, double share, unsigned steps)
{
    struct wr_region r;
    struct alone a;
    must(b, wr_region_open(b->device, b->bytes, &r), "making a buffer");
    wr_compute_set_step(&b->compute, 0);
    time_copies(b, r.address, steps); /* clocks are up */
    a.copy = time_copies(b, r.address, steps);
    set_step(b, share, share * a.copy * 1e6);
    a.compute = time_compute(b, r.address, steps);
    for (unsigned i = 1; i < b->repeats; i++) {
        double copy = time_copies(b, r.address, steps), compute = time_compute(b, r.address, steps);
        a.copy = copy < a.copy ? copy : a.copy;
        a.compute = compute < a.compute ? compute : a.compute;
    }
    wr_region_close(&r);
    return a;
}

static unsigned steps_for(const struct bench *b)
{
    const size_t bytes_in_all = (size_t)8 << 30;
    unsigned most = b->h.world ? 8 : 512;
    if (b->steps) return b->steps;
    return (unsigned)wr_min(most, wr_max(b->h.world ? 4 : 24, bytes_in_all / b->bytes));
}

static void ratios_of(struct bench *b, double share, double ratios[])
{
    double samples[16];
    unsigned steps = steps_for(b), repeats = (unsigned)wr_min(b->repeats, WR_ARRAY_LEN(samples));
    struct alone a = time_alone(b, share, steps);
    double longer = a.copy > a.compute ? a.copy : a.compute;
    for (size_t way = 0; way < WR_ARRAY_LEN(ways); way++) {
        for (unsigned i = 0; i < repeats; i++)
            samples[i] = time_way(b, &ways[way], steps) / longer;
        ratios[way] = wr_harness_median(samples, repeats);
        printf("| %zu MiB | %s | %.3f | %.3f | %.3f |\n", b->bytes >> 20, ways[way].name, a.copy, a.compute,
            ratios[way]);
    }
}

static void worst_ratios(struct bench *b, size_t from, size_t to, const char *figure)
{
    double worst[WR_ARRAY_LEN(ways)] = {0};
    for (b->bytes = from; b->bytes <= to; b->bytes *= 4)
        for (size_t i = 0; i < WR_ARRAY_LEN(compute_shares); i++) {
            double ratios[WR_ARRAY_LEN(ways)];
            ratios_of(b, compute_shares[i], ratios);
            for (size_t way = 0; way < WR_ARRAY_LEN(ways); way++)
                worst[way] = ratios[way] > worst[way] ? ratios[way] : worst[way];
        }
    for (size_t way = 0; way < WR_ARRAY_LEN(ways); way++)
        wr_harness_result(&b->h, figure, ways[way].name, worst[way], "ratio");
    printf("%s: weir %.3f, by hand %.3f\n\n", figure, worst[0], worst[1]);
}

/* ---- what an item costs the host --------------------------------------------------------------------- */

static uint64_t host_ns(void)
{
    return wr_device_wall_ns();
}

static void drain(struct bench *b)
{
    must(b, b->device->ops->stream_sync(b->device, b->stream), "waiting for a stream");
}

static double time_items(struct bench *b, const struct way *w, double *us)
{
    uint64_t counted = 0;
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t before = atomic_load(&b->device->calls), start = host_ns();
        (void)w->put(b);
        w->done(b);
        us[i] = (double)(host_ns() - start) / 1e3;
        counted += atomic_load(&b->device->calls) - before;
        if (i % BURST == BURST - 1) drain(b);
    }
    return (double)counted / SAMPLES;
}

static void time_bare(struct bench *b, weir_dptr to, double *us)
{
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t start = host_ns();
        must(b, b->device->ops->copy(b->device, WR_COPY_H2D, to, (uintptr_t)b->batch, SMALL, b->stream),
            "copy");
        us[i] = (double)(host_ns() - start) / 1e3;
        if (i % BURST == BURST - 1) drain(b);
    }
}

/* Half of the samples take less; and 99 of a hundred. */
struct cost {
    double half, p99;
};

static struct cost cost_of(double *us)
{
    double half = wr_harness_median(us, SAMPLES); /* sorts */
    return (struct cost){half, us[SAMPLES * 99 / 100]};
}

static struct cost measure_bare(struct bench *b)
{
    static double us[SAMPLES];
    struct wr_region r;
    must(b, wr_region_open(b->device, SMALL, &r), "making a buffer");
    time_bare(b, r.address, us); /* warm */
    time_bare(b, r.address, us);
    wr_region_close(&r);
    return cost_of(us);
}

static void measure_items_of(struct bench *b, const struct way *w, struct cost bare)
{
    static double us[SAMPLES];
    w->open(b);
    (void)time_items(b, w, us); /* warm */
    double calls = time_items(b, w, us);
    struct cost item = cost_of(us);
    w->close(b);
    printf("%s: an item costs %.1f calls of the driver, one of them the copy\n", w->name, calls);
    wr_harness_result(&b->h, "queue.item_calls", w->name, calls, "calls");
    if (b->h.world) return;
    printf("%s: queue.item_us %.2f, queue.item_p99_us %.2f, beyond a bare copy's %.2f us\n", w->name,
        item.half - bare.half, item.p99 - bare.half, bare.half);
    wr_harness_result(&b->h, "queue.item_us", w->name, item.half - bare.half, "us");
    wr_harness_result(&b->h, "queue.item_p99_us", w->name, item.p99 - bare.half, "us");
}

static void measure_items(struct bench *b)
{
    b->bytes = SMALL;
    b->depth = SMALL_DEPTH;
    struct cost bare = measure_bare(b);
    for (size_t way = 0; way < WR_ARRAY_LEN(ways); way++)
        measure_items_of(b, &ways[way], bare);
    if (b->h.world) return;
    printf("a bare copy: %.2f us, p99 %.2f\n", bare.half, bare.p99);
    wr_harness_result(&b->h, "queue.bare_copy_us", "the driver", bare.half, "us");
    wr_harness_result(&b->h, "queue.bare_copy_p99_us", "the driver", bare.p99, "us");
}

/* ---- the run ----------------------------------------------------------------------------------------- */

static void parse(struct bench *b, int argc, char **argv)
{
    struct wr_harness_option options[] = {
        {"--steps", WR_OPTION_COUNT, &b->steps, "timed steps of a pass; else 8 GiB, 24 to 512 steps"},
        {"--most-mib", WR_OPTION_COUNT, &b->most_mib, "the largest batch; else 1024, or 64 where simulated"},
        {"--repeats", WR_OPTION_COUNT, &b->repeats, "passes, whose median counts; else 3, or 1"},
    };
    wr_harness_parse(
        &b->h, "queue", "the queue beside two streams by hand", argc, argv, options, WR_ARRAY_LEN(options));
}

static void fill_batch(char *batch, size_t bytes)
{
    uint64_t x = 88172645463325252;
    for (size_t i = 0; i < bytes; i += sizeof x) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift */
        *(uint64_t *)(void *)(batch + i) = x;
    }
}

static void open_bench(struct bench *b)
{
    weir_pool_options o = {.struct_size = sizeof o};
    wr_harness_open(&b->h, "h200-pcie5", false);
    b->device = b->h.devices[0];
    if (!b->most_mib) b->most_mib = b->h.world ? 64 : 1024;
    if (!b->repeats) b->repeats = b->h.world ? 1 : 3;
    if (b->most_mib < 16) wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--most-mib: 16 at least");
    must(b, wr_pool_open(b->device, &o, &b->pool), "opening the pool");
    must(b, b->device->ops->stream_create(b->device, &b->stream), "making a stream");
    must(b, wr_compute_open(&b->compute, b->device, b->stream, b->h.world != NULL), "preparing the compute");
    must(b, b->device->ops->event_create_timed(b->device, &b->begin), "making an event");
    must(b, b->device->ops->event_create_timed(b->device, &b->end), "making an event");
    must(b, weir_host_alloc(b->pool, b->most_mib * WR_MIB, (void **)&b->batch), "pinned memory");
    fill_batch(b->batch, b->most_mib * WR_MIB);
}

static unsigned close_bench(struct bench *b)
{
    must(b, wr_compute_close(&b->compute), "ending the compute");
    must(b, weir_host_free(b->pool, b->batch, WEIR_NO_STREAM), "freeing the batch");
    must(b, b->device->ops->event_destroy(b->device, b->begin), "destroying an event");
    must(b, b->device->ops->event_destroy(b->device, b->end), "destroying an event");
    must(b, weir_stream_retire(b->pool, b->stream), "retiring the stream");
    must(b, b->device->ops->stream_destroy(b->device, b->stream), "destroying the stream");
    wr_harness_close_pool(&b->h, b->pool);
    return wr_harness_close(&b->h);
}

int main(int argc, char **argv)
{
    static struct bench b;
    parse(&b, argc, argv);
    open_bench(&b);
    b.depth = DEPTH;
    printf("Device: %s%s; driver %s\nCompute: %s\n\n", b.h.label,
        b.h.world ? ", SIMULATED on a virtual clock" : "", b.h.driver, b.compute.name);
    printf(
        "| batch | way | copy alone, ms | compute alone, ms | step / the longer |\n|---|---|---|---|---|\n");
    worst_ratios(&b, WR_MIB, WR_MIB, "queue.wall_ratio_1m");
    worst_ratios(&b, 16 * WR_MIB, b.most_mib * WR_MIB, "queue.wall_ratio_16m");
    measure_items(&b);
    wr_harness_result(&b.h, "queue.host_syncs", "weir", (double)b.host_syncs, "syncs");
    printf("queue.host_syncs %llu\n", (unsigned long long)b.host_syncs);
    unsigned reports = close_bench(&b);
    if (reports) printf("The simulated device's oracle: %u accesses out of order or leaks\n", reports);
    return reports ? WR_HARNESS_FAILED : 0;
}
