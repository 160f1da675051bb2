/* SPDX-License-Identifier: Apache-2.0
 *
 * What a warm alloc and free cost: pairs on one stream, by one thread, with nothing else to do. Beside it, on
 * a real device, the driver's stream-ordered allocator, which keeps what it has for the time of the run.
 */
#include "driver.h"
#include "harness.h"
#include "pool.h"

#include <stdio.h>

enum { REPEATS = 51, WEIR_PAIRS = 20000, PEER_PAIRS = 2000 };

struct bench {
    struct wr_harness h;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream stream;
    struct wr_bench_driver driver;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static void run_weir(struct bench *b, size_t bytes, unsigned pairs)
{
    weir_status s = WEIR_OK;
    for (unsigned i = 0; i < pairs && s == WEIR_OK; i++) {
        weir_dptr p;
        s = weir_alloc(b->pool, bytes, b->stream, &p);
        if (s == WEIR_OK) s = weir_free(b->pool, p, b->stream);
    }
    must(b, s, "a pair of weir");
}

static void run_peer(struct bench *b, size_t bytes, unsigned pairs)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < pairs && r == CUDA_SUCCESS; i++) {
        CUdeviceptr p;
        r = b->driver.cuMemAllocAsync(&p, bytes, b->stream);
        if (r == CUDA_SUCCESS) r = b->driver.cuMemFreeAsync(p, b->stream);
    }
    must(b, wr_cuda_status(r, "cuMemAllocAsync+cuMemFreeAsync", b->device->ordinal), "a pair of the driver");
}

/* Nanoseconds a pair, the median of the repeats. */
static double measure(struct bench *b, void (*run)(struct bench *b, size_t bytes, unsigned pairs),
    size_t bytes, unsigned pairs, const char *what)
{
    double ns[REPEATS];
    run(b, bytes, pairs);
    for (unsigned i = 0; i < REPEATS; i++) {
        wr_harness_progress(&b->h, what, i, REPEATS);
        uint64_t start = wr_device_wall_ns();
        run(b, bytes, pairs);
        ns[i] = (double)(wr_device_wall_ns() - start) / pairs;
        must(b, b->device->ops->stream_sync(b->device, b->stream), "waiting for the stream");
    }
    return wr_harness_median(ns, REPEATS);
}

static void open_bench(struct bench *b, int argc, char **argv)
{
    wr_harness_parse(&b->h, "alloc_pair", "times warm pairs of alloc and free", argc, argv, NULL, 0);
    wr_harness_open(&b->h, "h200-pcie5", false);
    struct wr_device *d = b->device = b->h.devices[0];
    weir_pool_options o = {.struct_size = sizeof o};
    must(b, wr_pool_open(d, &o, &b->pool), "opening the pool");
    must(b, d->ops->stream_create(d, &b->stream), "creating the stream");
    if (!b->h.world) must(b, wr_driver_bind(d, &b->driver), "finding the driver's allocator");
}

static unsigned close_bench(struct bench *b)
{
    struct wr_device *d = b->device;
    must(b, weir_stream_retire(b->pool, b->stream), "retiring the stream");
    must(b, d->ops->stream_destroy(d, b->stream), "destroying the stream");
    wr_harness_close_pool(&b->h, b->pool);
    return wr_harness_close(&b->h);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const size_t sizes[] = {512, 64 << 10, 4 << 20};
    double weir_worst = 0, peer_worst = 0;
    open_bench(&b, argc, argv);
    printf("Device: %s%s; driver %s\nMedian of %d repeats, one thread, one stream\n\n", b.h.label,
        b.h.world ? ", SIMULATED: reading a stream's id costs what the simulation costs" : "", b.h.driver,
        REPEATS);
    printf("| size | weir, ns a pair | cuMemAllocAsync+cuMemFreeAsync |\n|---|---|---|\n");
    for (unsigned i = 0; i < WR_ARRAY_LEN(sizes); i++) {
        double weir = measure(&b, run_weir, sizes[i], WEIR_PAIRS, "weir");
        weir_worst = weir > weir_worst ? weir : weir_worst;
        printf("| %zu | %.1f |", sizes[i], weir);
        if (b.h.world) {
            printf(" - |\n");
            continue;
        }
        double peer = measure(&b, run_peer, sizes[i], PEER_PAIRS, "the driver");
        peer_worst = peer > peer_worst ? peer : peer_worst;
        printf(" %.1f |\n", peer);
    }
    printf("\nalloc.pair_ns %.1f (the worst size)\n", weir_worst);
    wr_harness_result(&b.h, "alloc.pair_ns", "weir", weir_worst, "ns");
    if (!b.h.world)
        wr_harness_result(&b.h, "alloc.pair_ns", "cuMemAllocAsync+cuMemFreeAsync", peer_worst, "ns");
    return close_bench(&b) ? WR_HARNESS_FAILED : 0;
}
