/* SPDX-License-Identifier: Apache-2.0
 *
 * What it costs to get new memory from the driver: an alloc that has to grow the pool, alone and while a
 * kernel of 200 ms runs on another stream, which it must not wait for. Beside it, on a real device,
 * cuMemAlloc of the same size. The median of all rounds counts, and the worst is shown.
 */
#include "driver.h"
#include "harness.h"
#include "kernels.h"
#include "pool.h"

#include <stdio.h>

enum { KERNEL_MS = 200, MOST_ROUNDS = 64 };

struct bench {
    struct wr_harness h;
    unsigned rounds;
    struct wr_device *device;
    weir_stream compute, other;
    struct wr_bench_driver driver;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static void must_driver(struct bench *b, CUresult r, const char *call)
{
    must(b, wr_cuda_status(r, call, b->device->ordinal), call);
}

/* A pool of its own for each round: its first alloc grows by what is asked, and the rest is untimed. The
 * stream is known before, by a block of the smallest growth. */
static double time_weir(struct bench *b, size_t bytes, bool busy)
{
    weir_pool_options o = {.struct_size = sizeof o, .grow_bytes = 2 * WR_MIB};
    weir_pool *pool;
    weir_dptr first, block;
    must(b, wr_pool_open(b->device, &o, &pool), "opening the pool");
    must(b, weir_alloc(pool, 1, b->other, &first), "alloc of the first block");
    if (busy) must(b, wr_kernels_spin(b->device, b->compute, KERNEL_MS * WR_NS_PER_SEC / 1000), "the kernel");
    uint64_t start = wr_device_wall_ns();
    must(b, weir_alloc(pool, bytes, b->other, &block), "alloc");
    uint64_t ns = wr_device_wall_ns() - start;
    must(b, b->device->ops->stream_sync(b->device, b->compute), "waiting for the kernel");
    must(b, weir_free(pool, first, b->other), "free of the first block");
    must(b, weir_free(pool, block, b->other), "free");
    must(b, weir_stream_retire(pool, b->other), "retire");
    wr_harness_close_pool(&b->h, pool);
    return (double)ns / 1000;
}

static double time_peer(struct bench *b, size_t bytes, bool busy)
{
    CUdeviceptr block;
    if (busy) must(b, wr_kernels_spin(b->device, b->compute, KERNEL_MS * WR_NS_PER_SEC / 1000), "the kernel");
    uint64_t start = wr_device_wall_ns();
    must_driver(b, b->driver.cuMemAlloc(&block, bytes), "cuMemAlloc");
    uint64_t ns = wr_device_wall_ns() - start;
    must(b, b->device->ops->stream_sync(b->device, b->compute), "waiting for the kernel");
    must_driver(b, b->driver.cuMemFree(block), "cuMemFree");
    return (double)ns / 1000;
}

/* Microseconds: the median of the rounds, printed with the worst. */
static double measure(struct bench *b, double (*time)(struct bench *b, size_t bytes, bool busy), size_t bytes,
    bool busy, const char *what)
{
    double us[MOST_ROUNDS];
    time(b, bytes, busy);
    for (unsigned i = 0; i < b->rounds; i++) {
        wr_harness_progress(&b->h, what, i, b->rounds);
        us[i] = time(b, bytes, busy);
    }
    double worst = wr_harness_worst(us, b->rounds), median = wr_harness_median(us, b->rounds);
    printf(" %.1f (%.1f) |", median, worst);
    return median;
}

static void open_bench(struct bench *b, int argc, char **argv)
{
    const struct wr_harness_option options[] = {
        {"--rounds", WR_OPTION_COUNT, &b->rounds, "rounds of each probe, 1 to 64; 15 unless told"},
    };
    b->rounds = 15;
    wr_harness_parse(&b->h, "grow", "times growth of the pool, alone and under a running kernel", argc, argv,
        options, WR_ARRAY_LEN(options));
    if (b->rounds < 1 || b->rounds > MOST_ROUNDS)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--rounds is 1 to %d", MOST_ROUNDS);
    wr_harness_open(&b->h, "h200-pcie5", false);
    struct wr_device *d = b->device = b->h.devices[0];
    must(b, d->ops->stream_create(d, &b->compute), "creating a stream");
    must(b, d->ops->stream_create(d, &b->other), "creating a stream");
    must(b, wr_kernels_spin(d, b->compute, 1000), "loading the kernel");
    must(b, d->ops->stream_sync(d, b->compute), "waiting for the kernel");
    if (!b->h.world) must(b, wr_driver_bind(d, &b->driver), "finding the driver's allocator");
}

static unsigned close_bench(struct bench *b)
{
    struct wr_device *d = b->device;
    must(b, d->ops->stream_destroy(d, b->compute), "destroying a stream");
    must(b, d->ops->stream_destroy(d, b->other), "destroying a stream");
    return wr_harness_close(&b->h);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const size_t sizes[] = {2 << 20, 32 << 20, 512 << 20};
    double weir = 0, peer = 0;
    open_bench(&b, argc, argv);
    printf("Device: %s%s; driver %s\nMedian (worst) of %u rounds, us; the kernel runs for %d ms\n\n",
        b.h.label, b.h.world ? ", SIMULATED: what the driver's part costs is the simulation's" : "",
        b.h.driver, b.rounds, KERNEL_MS);
    printf("| growth, MiB | weir, idle | weir, under a kernel | cuMemAlloc, idle | under a kernel |\n");
    printf("|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WR_ARRAY_LEN(sizes); i++) {
        printf("| %zu |", sizes[i] >> 20);
        measure(&b, time_weir, sizes[i], false, "weir");
        weir = measure(&b, time_weir, sizes[i], true, "weir, under a kernel");
        if (b.h.world) {
            printf(" - | - |\n");
            continue;
        }
        measure(&b, time_peer, sizes[i], false, "cuMemAlloc");
        peer = measure(&b, time_peer, sizes[i], true, "cuMemAlloc, under a kernel");
        printf("\n");
    }
    printf("\ngrow.under_kernel_us %.1f (512 MiB)\n", weir);
    wr_harness_result(&b.h, "grow.under_kernel_us", "weir", weir, "us");
    if (!b.h.world) wr_harness_result(&b.h, "grow.under_kernel_us", "cuMemAlloc", peer, "us");
    return close_bench(&b) ? WR_HARNESS_FAILED : 0;
}
