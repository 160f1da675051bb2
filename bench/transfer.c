/* SPDX-License-Identifier: Apache-2.0
 *
 * The transfer engine beside plain ways of doing the same, each in the same run:
 *
 *   queue.small_piece_us          many small pinned pieces in one push; peers: a copy each, packed by one thread
 *   queue.urgent_p99_ms           64 KiB while 1 GiB goes the same way; peer: plain streams
 *   queue.pageable_compute_share  fresh pageable batches behind 30 ms of compute; peers: plain pageable copies on the
 *                                 compute stream, copied into pinned memory by one thread
 *   queue.d2d_busy_ratio          256 MiB to a second device that computes, over the same to an idle one; peer: ordered
 *                                 behind the destination's stream, as some frameworks do. Needs --devices 2.
 *
 * On a simulated device time is virtual, and what the host does takes none of it: only the shape counts there.
 */
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_copy.h"
#include "weir_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS ((uint64_t)1000000)

enum {
    PIECES = 2000,
    PIECE = 8 << 10,
    PIECE_GAP = 8 << 10,
    MOST_SAMPLES = 1024,
    BULKS_SAMPLED = 8,
    BUFFERS = 3
};

struct bench {
    struct wr_harness h;
    unsigned rounds, steps, batch_mb;
    struct wr_device *device;
    weir_pool *pool;
    weir_engine *engine;
    weir_stream compute, side;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static uint64_t now(struct bench *b)
{
    return b->device->ops->now_ns(b->device);
}

static void sync_stream(struct bench *b, weir_stream s)
{
    must(b, b->device->ops->stream_sync(b->device, s), "waiting for a stream");
}

/* By asking without a pause, which is more exact than sleeping; virtual time moves only in a sleep. */
static void finish(struct bench *b, weir_ticket t)
{
    weir_status s;
    do
        s = weir_copy_wait(b->engine, t, b->h.world ? -1 : 0);
    while (s == WEIR_WOULD_BLOCK);
    must(b, s, "waiting for a copy");
}

static weir_ticket copy(
    struct bench *b, weir_direction d, uint64_t to, uint64_t from, size_t bytes, unsigned flags)
{
    weir_piece p = {.to = to, .from = from, .bytes = bytes};
    weir_copy_options o = {.struct_size = sizeof o, .flags = flags};
    weir_ticket t;
    must(b, weir_copy(b->engine, d, &p, 1, &o, &t), "weir_copy");
    return t;
}

static void *alloc_pinned(struct bench *b, size_t bytes)
{
    void *host;
    must(b, weir_host_alloc(b->pool, bytes, &host), "pinned memory");
    memset(host, 1, bytes);
    return host;
}

static void free_pinned(struct bench *b, void *host)
{
    must(b, weir_host_free(b->pool, host, WEIR_NO_STREAM), "giving pinned memory back");
}

static weir_dptr alloc_device(struct bench *b, size_t bytes)
{
    weir_dptr block;
    must(b, weir_alloc(b->pool, bytes, weir_engine_stream(b->engine), &block), "device memory");
    return block;
}

static void free_device(struct bench *b, weir_dptr block)
{
    must(b, weir_free(b->pool, block, weir_engine_stream(b->engine)), "giving device memory back");
}

static void report(struct bench *b, const char *figure, const char *subject, double value, const char *unit)
{
    printf("| %s | %s | %.3f %s |\n", figure, subject, value, unit);
    fflush(stdout);
    wr_harness_result(&b->h, figure, subject, value, unit);
}

/* ---- small pieces ------------------------------------------------------------------------------------ */

struct small {
    weir_queue *queue;
    weir_span spans[PIECES];
    unsigned char *host, *packed;
    weir_dptr device;
};

static void push_pieces(struct bench *b, struct small *s)
{
    weir_item item;
    must(b, weir_queue_push(s->queue, s->spans, PIECES, WEIR_PUSH_BORROW, -1, NULL), "push");
    must(b, weir_queue_acquire(s->queue, b->side, -1, &item), "acquire");
    sync_stream(b, b->side);
    must(b, weir_queue_release(s->queue, &item, NULL, 0), "release");
}

static void copy_pieces(struct bench *b, struct small *s)
{
    for (size_t i = 0; i < PIECES; i++)
        must(b,
            b->device->ops->copy(
                b->device, WR_COPY_H2D, s->device + i * PIECE, (uintptr_t)s->spans[i].host, PIECE, b->side),
            "a copy");
    sync_stream(b, b->side);
}

static void pack_pieces(struct bench *b, struct small *s)
{
    for (size_t i = 0; i < PIECES; i++)
        memcpy(s->packed + i * PIECE, s->spans[i].host, PIECE);
    must(b,
        b->device->ops->copy(
            b->device, WR_COPY_H2D, s->device, (uintptr_t)s->packed, (size_t)PIECES * PIECE, b->side),
        "a copy");
    sync_stream(b, b->side);
}

static void time_small(
    struct bench *b, struct small *s, const char *subject, void (*way)(struct bench *, struct small *))
{
    double us[MOST_SAMPLES];
    way(b, s);
    for (unsigned i = 0; i < b->rounds; i++) {
        uint64_t start = now(b);
        way(b, s);
        us[i] = (double)(now(b) - start) / 1e3 / PIECES;
    }
    report(b, "queue.small_piece_us", subject, wr_harness_median(us, b->rounds), "us");
}

static void measure_small(struct bench *b)
{
    static struct small s;
    size_t bytes = (size_t)PIECES * PIECE;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = bytes};
    must(b, weir_queue_open(b->pool, &o, &s.queue), "opening a queue");
    s.host = alloc_pinned(b, (size_t)PIECES * (PIECE + PIECE_GAP));
    s.packed = alloc_pinned(b, bytes);
    s.device = alloc_device(b, bytes);
    for (size_t i = 0; i < PIECES; i++)
        s.spans[i] = (weir_span){s.host + i * (PIECE + PIECE_GAP), PIECE};
    time_small(b, &s, "weir", push_pieces);
    time_small(b, &s, "a copy each", copy_pieces);
    time_small(b, &s, "packed by one thread", pack_pieces);
    must(b, weir_queue_destroy(s.queue), "ending a queue");
    free_pinned(b, s.host);
    free_pinned(b, s.packed);
    free_device(b, s.device);
}

/* ---- urgent ------------------------------------------------------------------------------------------ */

struct urgent {
    size_t large_bytes;
    char *host;
    weir_dptr large, small;
};

enum { URGENT_BYTES = 64 << 10 };

static double percentile_99(double *ms, size_t n)
{
    (void)wr_harness_median(ms, n); /* sorts */
    return ms[(n * 99) / 100 < n ? (n * 99) / 100 : n - 1];
}

/* Some urgent copies while one large copy runs, a millisecond apart. */
static unsigned sample_weir(struct bench *b, const struct urgent *u, double *ms)
{
    weir_ticket bulk = copy(b, WEIR_TO_DEVICE, u->large, (uintptr_t)u->host, u->large_bytes, 0);
    unsigned n = 0;
    while (n < BULKS_SAMPLED && weir_copy_wait(b->engine, bulk, (int64_t)MS / 2) != WEIR_OK) {
        uint64_t start = now(b);
        finish(b, copy(b, WEIR_TO_DEVICE, u->small, (uintptr_t)u->host, URGENT_BYTES, WEIR_COPY_URGENT));
        ms[n++] = (double)(now(b) - start) / 1e6;
    }
    finish(b, bulk);
    return n;
}

/* One copy of each on streams of their own. */
static unsigned sample_streams(struct bench *b, const struct urgent *u, double *ms)
{
    const struct wr_device_ops *ops = b->device->ops;
    must(b, ops->copy(b->device, WR_COPY_H2D, u->large, (uintptr_t)u->host, u->large_bytes, b->side),
        "a copy");
    uint64_t start = now(b);
    must(b, ops->copy(b->device, WR_COPY_H2D, u->small, (uintptr_t)u->host, URGENT_BYTES, b->compute),
        "a copy");
    sync_stream(b, b->compute);
    ms[0] = (double)(now(b) - start) / 1e6;
    sync_stream(b, b->side);
    return 1;
}

static void time_urgent(struct bench *b, const struct urgent *u, const char *subject,
    unsigned (*sample)(struct bench *, const struct urgent *, double *))
{
    double ms[MOST_SAMPLES];
    unsigned n = 0;
    (void)sample(b, u, ms);
    for (unsigned i = 0; i < b->rounds && n + BULKS_SAMPLED <= MOST_SAMPLES; i++)
        n += sample(b, u, ms + n);
    if (n == 0)
        wr_harness_end(&b->h, WR_HARNESS_FAILED, "the large copy was over before an urgent one began");
    report(b, "queue.urgent_p99_ms", subject, percentile_99(ms, n), "ms");
}

static void measure_urgent(struct bench *b)
{
    struct urgent u = {.large_bytes = b->h.world ? 256 * WR_MIB : WR_GIB};
    u.host = alloc_pinned(b, u.large_bytes);
    u.large = alloc_device(b, u.large_bytes);
    u.small = alloc_device(b, URGENT_BYTES);
    time_urgent(b, &u, "weir", sample_weir);
    time_urgent(b, &u, "plain streams", sample_streams);
    free_pinned(b, u.host);
    free_device(b, u.large);
    free_device(b, u.small);
}

/* ---- pageable batches -------------------------------------------------------------------------------- */

static const uint64_t compute_ns = 30 * MS;

struct pageable {
    size_t bytes;
    char *batches[BUFFERS]; /* as a loader hands them out: pageable, and touched */
    weir_queue *queue;
    char *pinned[2];
    weir_dptr device[2];
    wr_event copied[2];
};

static void compute_step(struct bench *b)
{
    must(b, wr_kernels_spin(b->device, b->compute, compute_ns), "a step of compute");
}

static void step_weir(struct bench *b, struct pageable *p, unsigned k)
{
    weir_span span = {p->batches[k % BUFFERS], p->bytes};
    weir_item item;
    must(b, weir_queue_push(p->queue, &span, 1, WEIR_PUSH_COPY, -1, NULL), "push");
    must(b, weir_queue_acquire(p->queue, b->compute, -1, &item), "acquire");
    compute_step(b);
    must(b, weir_queue_release(p->queue, &item, NULL, 0), "release");
}

static void step_plain(struct bench *b, struct pageable *p, unsigned k)
{
    must(b,
        b->device->ops->copy(
            b->device, WR_COPY_H2D, p->device[0], (uintptr_t)p->batches[k % BUFFERS], p->bytes, b->compute),
        "a pageable copy");
    compute_step(b);
}

/* Double buffering by hand: the host waits until the copy before the last has read its buffer. */
static void step_one_thread(struct bench *b, struct pageable *p, unsigned k)
{
    const struct wr_device_ops *ops = b->device->ops;
    unsigned i = k % 2;
    bool done = false;
    for (must(b, ops->event_query(b->device, p->copied[i], &done), "a query"); !done && !b->h.world;)
        must(b, ops->event_query(b->device, p->copied[i], &done), "a query");
    if (!done) sync_stream(b, b->side);
    memcpy(p->pinned[i], p->batches[k % BUFFERS], p->bytes);
    must(b, ops->copy(b->device, WR_COPY_H2D, p->device[i], (uintptr_t)p->pinned[i], p->bytes, b->side),
        "a copy");
    must(b, ops->event_record(b->device, p->copied[i], b->side), "recording an event");
    must(b, ops->stream_wait(b->device, b->compute, p->copied[i]), "waiting for an event");
    compute_step(b);
}

static void time_pageable(struct bench *b, struct pageable *p, const char *subject,
    void (*step)(struct bench *, struct pageable *, unsigned))
{
    for (unsigned k = 0; k < 4; k++)
        step(b, p, k);
    sync_stream(b, b->compute);
    uint64_t start = now(b);
    for (unsigned k = 0; k < b->steps; k++)
        step(b, p, k);
    sync_stream(b, b->compute);
    double share = (double)compute_ns * b->steps / (double)(now(b) - start);
    report(b, "queue.pageable_compute_share", subject, share, "");
}

static void measure_pageable(struct bench *b)
{
    struct pageable p = {.bytes = (size_t)b->batch_mb * 1000000};
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = p.bytes};
    for (int i = 0; i < BUFFERS; i++) {
        p.batches[i] = malloc(p.bytes);
        if (!p.batches[i]) wr_harness_end(&b->h, WR_HARNESS_FAILED, "no memory for batches");
        memset(p.batches[i], i, p.bytes);
    }
    must(b, weir_queue_open(b->pool, &o, &p.queue), "opening a queue");
    time_pageable(b, &p, "weir", step_weir);
    must(b, weir_queue_destroy(p.queue), "ending a queue");
    for (int i = 0; i < 2; i++) {
        p.pinned[i] = alloc_pinned(b, p.bytes);
        p.device[i] = alloc_device(b, p.bytes);
        must(b, b->device->ops->event_create(b->device, &p.copied[i]), "making an event");
    }
    time_pageable(b, &p, "pageable, on the compute stream", step_plain);
    time_pageable(b, &p, "pinned by one thread", step_one_thread);
    for (int i = 0; i < 2; i++) {
        free_pinned(b, p.pinned[i]);
        free_device(b, p.device[i]);
        must(b, b->device->ops->event_destroy(b->device, p.copied[i]), "ending an event");
    }
    for (int i = 0; i < BUFFERS; i++)
        free(p.batches[i]);
}

/* ---- device to device -------------------------------------------------------------------------------- */

static const uint64_t busy_ns = 80 * MS;
static const size_t across_bytes = 256 * WR_MIB;

struct across {
    struct wr_device *there;
    weir_pool *pool;
    weir_stream stream; /* on which the destination computes */
    weir_dptr from, to;
};

static double time_across(struct bench *b, const struct across *a, bool busy, bool ordered)
{
    double ms[MOST_SAMPLES];
    unsigned rounds = wr_min(b->rounds, 15);
    for (unsigned i = 0; i < rounds; i++) {
        if (busy) must(b, wr_kernels_spin(a->there, a->stream, busy_ns), "a kernel");
        weir_piece p = {.to = a->to, .from = a->from, .bytes = across_bytes};
        weir_copy_options o = {.struct_size = sizeof o, .after = &a->stream, .n_after = ordered};
        weir_ticket t;
        uint64_t start = now(b);
        must(b, weir_copy(b->engine, WEIR_ON_DEVICE, &p, 1, &o, &t), "weir_copy");
        finish(b, t);
        ms[i] = (double)(now(b) - start) / 1e6;
        must(b, a->there->ops->stream_sync(a->there, a->stream), "waiting for the kernel");
    }
    return wr_harness_median(ms, rounds);
}

static void measure_across(struct bench *b)
{
    struct across a = {.there = b->h.devices[1]};
    weir_pool_options o = {.struct_size = sizeof o, .device = 1};
    weir_engine_stats stats = {.struct_size = sizeof stats};
    must(b, wr_pool_open(a.there, &o, &a.pool), "opening the second pool");
    must(b, a.there->ops->stream_create(a.there, &a.stream), "creating a stream");
    must(b, wr_kernels_spin(a.there, a.stream, 1000), "loading the kernel");
    must(b, weir_engine_link(b->engine, a.pool), "linking the devices");
    a.from = alloc_device(b, across_bytes);
    must(b, weir_alloc(a.pool, across_bytes, a.stream, &a.to), "device memory");
    (void)time_across(b, &a, false, false);
    double idle = time_across(b, &a, false, false);
    must(b, weir_engine_get_stats(b->engine, &stats), "stats");
    printf("256 MiB between the devices: %.3f ms idle, %s\n", idle, stats.links_staged ? "staged" : "direct");
    report(b, "queue.d2d_busy_ratio", "weir", time_across(b, &a, true, false) / idle, "");
    report(b, "queue.d2d_busy_ratio", "ordered behind the destination", time_across(b, &a, true, true) / idle,
        "");
    free_device(b, a.from);
    must(b, weir_free(a.pool, a.to, a.stream), "giving device memory back");
    must(b, weir_stream_retire(a.pool, a.stream), "retiring a stream");
    must(b, weir_stream_retire(b->pool, a.stream), "retiring a stream");
    must(b, a.there->ops->stream_destroy(a.there, a.stream), "destroying a stream");
    wr_harness_close_pool(&b->h, a.pool);
}

/* ---- running it -------------------------------------------------------------------------------------- */

static void open_bench(struct bench *b, int argc, char **argv)
{
    const struct wr_harness_option options[] = {
        {"--rounds", WR_OPTION_COUNT, &b->rounds, "rounds of small, urgent and peer copies; 25 unless told"},
        {"--steps", WR_OPTION_COUNT, &b->steps,
            "timed steps of pageable batches; 40 unless told, 8 simulated"},
        {"--batch-mb", WR_OPTION_COUNT, &b->batch_mb, "a pageable batch; 616 unless told, 64 simulated"},
    };
    wr_harness_parse(&b->h, "transfer", "times the transfer engine beside plain copies", argc, argv, options,
        WR_ARRAY_LEN(options));
    wr_harness_open(&b->h, "h200-pcie5x2", false);
    if (!b->rounds) b->rounds = b->h.world ? 5 : 25;
    if (!b->steps) b->steps = b->h.world ? 8 : 40;
    if (!b->batch_mb) b->batch_mb = b->h.world ? 64 : 616;
    if (b->rounds > 100) wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--rounds: 100 at most");
    struct wr_device *d = b->device = b->h.devices[0];
    weir_pool_options o = {.struct_size = sizeof o};
    must(b, wr_pool_open(d, &o, &b->pool), "opening the pool");
    must(b, weir_engine_open(b->pool, NULL, &b->engine), "opening the engine");
    must(b, d->ops->stream_create(d, &b->compute), "creating a stream");
    must(b, d->ops->stream_create(d, &b->side), "creating a stream");
    must(b, wr_kernels_spin(d, b->compute, 1000), "loading the kernel");
    sync_stream(b, b->compute);
}

static void print_table_of_ways(struct bench *b)
{
    static const char *const names[] = {"direct", "gather", "packed"};
    weir_engine_stats s = {.struct_size = sizeof s};
    must(b, weir_engine_get_stats(b->engine, &s), "stats");
    printf("Small pieces, us each as measured at open (2, 8, 32, 128 KiB):");
    for (int i = 0; i < WEIR_SMALL_CLASSES; i++)
        printf(" %.2f direct, %.2f gather, %.2f packed: %s;", s.small_us[i][0], s.small_us[i][1],
            s.small_us[i][2], names[s.small_way[i]]);
    printf("\n\n");
}

static unsigned close_bench(struct bench *b)
{
    struct wr_device *d = b->device;
    must(b, weir_engine_close(b->engine), "closing the engine");
    must(b, weir_stream_retire(b->pool, b->side), "retiring a stream");
    must(b, weir_stream_retire(b->pool, b->compute), "retiring a stream");
    must(b, d->ops->stream_destroy(d, b->compute), "destroying a stream");
    must(b, d->ops->stream_destroy(d, b->side), "destroying a stream");
    wr_harness_close_pool(&b->h, b->pool);
    return wr_harness_close(&b->h);
}

int main(int argc, char **argv)
{
    static struct bench b;
    open_bench(&b, argc, argv);
    printf("Device: %u x %s%s; driver %s\n", b.h.n_devices, b.h.label,
        b.h.world ? ", SIMULATED on a virtual clock" : "", b.h.driver);
    print_table_of_ways(&b);
    printf("| figure | subject | value |\n|---|---|---|\n");
    measure_small(&b);
    measure_urgent(&b);
    measure_pageable(&b);
    if (b.h.n_devices > 1)
        measure_across(&b);
    else
        printf("\nOne device: no copies between devices (--devices 2)\n");
    return close_bench(&b) ? WR_HARNESS_FAILED : 0;
}
