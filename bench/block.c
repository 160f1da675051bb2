/* SPDX-License-Identifier: Apache-2.0
 *
 * Does any call wait for the GPU? Each is timed while a kernel of 200 ms runs on the compute stream, with
 * blocks, slots and pinned memory that the very stream still uses. The worst of all rounds counts.
 *
 * A probe has up to four parts: prepare (nothing runs), arm (behind the kernel, not timed), call (timed), and
 * finish (the kernel is over). Beside weir, on a real device: the driver's own allocators under the same
 * kernel.
 */
#include "driver.h"
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_queue.h"

#include <stdio.h>

enum {
    KERNEL_MS = 200,
    BLOCK_BYTES = 64 << 20,
    MOST_ROUNDS = 64,
};

struct bench {
    struct wr_harness h;
    unsigned rounds;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream compute, other;
    wr_event after_kernel;
    weir_queue *queue;
    weir_item item;
    void *source; /* pinned, pushed from */
    struct wr_bench_driver driver;
    /* the probes' own */
    weir_dptr block;
    void *host;
};

struct probe {
    const char *name, *figure;
    bool counts; /* for block.under_kernel_ms */
    bool peer;   /* needs a real device */
    void (*prepare)(struct bench *b), (*arm)(struct bench *b), (*call)(struct bench *b),
        (*finish)(struct bench *b);
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

static void alloc_on(struct bench *b, weir_stream s)
{
    must(b, weir_alloc(b->pool, BLOCK_BYTES, s, &b->block), "alloc");
}
static void free_on(struct bench *b, weir_stream s)
{
    must(b, weir_free(b->pool, b->block, s), "free");
}
static void alloc_on_compute(struct bench *b)
{
    alloc_on(b, b->compute);
}
static void alloc_on_other(struct bench *b)
{
    alloc_on(b, b->other);
}
static void free_on_compute(struct bench *b)
{
    free_on(b, b->compute);
}
static void free_on_other(struct bench *b)
{
    free_on(b, b->other);
}

static void alloc_and_free(struct bench *b)
{
    alloc_on_compute(b);
    free_on_compute(b);
}

static void touch_by_compute(struct bench *b)
{
    must(b, weir_touch(b->pool, b->block, b->compute, 0), "touch");
}

static void touch_and_free(struct bench *b)
{
    touch_by_compute(b);
    free_on_other(b);
}

static void trim_all(struct bench *b)
{
    must(b, weir_trim(b->pool, 0, NULL), "trim");
}

/* ---- pinned memory ----------------------------------------------------------------------------------- */

static void host_alloc(struct bench *b)
{
    must(b, weir_host_alloc(b->pool, BLOCK_BYTES, &b->host), "host_alloc");
}
static void host_free(struct bench *b)
{
    must(b, weir_host_free(b->pool, b->host, b->compute), "host_free");
}

static void host_alloc_and_free(struct bench *b)
{
    host_alloc(b);
    must(b, weir_host_free(b->pool, b->host, WEIR_NO_STREAM), "host_free");
}

/* Nothing is ever unregistered, so each round takes memory that no round before has left behind. */
static void host_alloc_more(struct bench *b)
{
    void *more[MOST_ROUNDS + 1];
    weir_stats stats = {.struct_size = sizeof stats};
    must(b, weir_pool_stats(b->pool, &stats), "stats");
    uint64_t before = stats.pinned_bytes;
    unsigned n = 0;
    do {
        assert(n < WR_ARRAY_LEN(more));
        must(b, weir_host_alloc(b->pool, BLOCK_BYTES, &more[n++]), "host_alloc");
        must(b, weir_pool_stats(b->pool, &stats), "stats");
    } while (stats.pinned_bytes == before);
    while (n > 0)
        must(b, weir_host_free(b->pool, more[--n], WEIR_NO_STREAM), "host_free");
}

/* ---- the queue --------------------------------------------------------------------------------------- */

static void push(struct bench *b)
{
    weir_span span = {b->source, BLOCK_BYTES};
    must(b, weir_queue_push(b->queue, &span, 1, WEIR_PUSH_BORROW, 0, NULL), "push");
}

static void acquire(struct bench *b)
{
    must(b, weir_queue_acquire(b->queue, b->compute, 0, &b->item), "acquire");
}
static void release(struct bench *b)
{
    must(b, weir_queue_release(b->queue, &b->item, NULL, 0), "release");
}
static void reserve(struct bench *b)
{
    must(b, weir_queue_reserve(b->queue, BLOCK_BYTES, 0, &b->item), "reserve");
}
static void commit(struct bench *b)
{
    must(b, weir_queue_commit(b->queue, &b->item), "commit");
}
static void abort_item(struct bench *b)
{
    must(b, weir_queue_abort(b->queue, &b->item), "abort");
}

static void pass_on(struct bench *b)
{
    acquire(b);
    release(b);
}

/* Both slots were read by the stream that runs the kernel, and are not empty before it ends. */
static void drain_slots(struct bench *b)
{
    for (int i = 0; i < 2; i++) {
        push(b);
        pass_on(b);
    }
}

static void drain_and_reserve(struct bench *b)
{
    drain_slots(b);
    reserve(b);
}

static void drain_and_push(struct bench *b)
{
    drain_slots(b);
    push(b);
}

static void drain_and_acquire(struct bench *b)
{
    drain_and_push(b);
    acquire(b);
}

/* ---- peers ------------------------------------------------------------------------------------------- */

static void must_cuda(struct bench *b, CUresult r, const char *call)
{
    must(b, wr_cuda_status(r, call, b->device->ordinal), call);
}

static void peer_alloc_free(struct bench *b)
{
    CUdeviceptr p;
    must_cuda(b, b->driver.cuMemAlloc(&p, BLOCK_BYTES), "cuMemAlloc");
    must_cuda(b, b->driver.cuMemFree(p), "cuMemFree");
}

static void peer_alloc_free_async(struct bench *b)
{
    CUdeviceptr p;
    must_cuda(b, b->driver.cuMemAllocAsync(&p, BLOCK_BYTES, b->compute), "cuMemAllocAsync");
    must_cuda(b, b->driver.cuMemFreeAsync(p, b->compute), "cuMemFreeAsync");
}

/* ---- the probes -------------------------------------------------------------------------------------- */

static const struct probe probes[] = {
    {"weir_alloc, warm", "block.alloc_ms", true, false, alloc_and_free, NULL, alloc_on_compute,
        free_on_compute},
    {"weir_alloc, growing", "block.alloc_grow_ms", false, false, trim_all, NULL, alloc_on_compute,
        free_on_compute},
    {"weir_free, at home", "block.free_ms", true, false, alloc_on_compute, NULL, free_on_compute, NULL},
    {"weir_free, from another stream", "block.free_across_ms", true, false, alloc_on_other, NULL,
        free_on_compute, NULL},
    {"weir_free, touched by the busy stream", "block.free_touched_ms", true, false, alloc_on_other,
        touch_by_compute, free_on_other, NULL},
    {"weir_touch", "block.touch_ms", false, false, alloc_on_other, NULL, touch_by_compute, free_on_other},
    {"weir_trim, with a pending block", "block.trim_ms", false, false, alloc_on_other, touch_and_free,
        trim_all, NULL},
    {"weir_host_alloc, warm", "block.host_alloc_ms", false, false, host_alloc_and_free, NULL, host_alloc,
        host_free},
    {"weir_host_alloc, growing", "block.host_grow_ms", false, false, NULL, NULL, host_alloc_more, NULL},
    {"weir_host_free", "block.host_free_ms", false, false, host_alloc, NULL, host_free, NULL},
    {"weir_queue_push", "block.push_ms", true, false, NULL, drain_slots, push, pass_on},
    {"weir_queue_reserve", "block.reserve_ms", false, false, NULL, drain_slots, reserve, abort_item},
    {"weir_queue_commit", "block.commit_ms", false, false, NULL, drain_and_reserve, commit, pass_on},
    {"weir_queue_acquire", "block.acquire_ms", true, false, NULL, drain_and_push, acquire, release},
    {"weir_queue_release", "block.release_ms", true, false, NULL, drain_and_acquire, release, NULL},
    {"cuMemAlloc+cuMemFree", "block.under_kernel_ms", false, true, NULL, NULL, peer_alloc_free, NULL},
    {"cuMemAllocAsync+cuMemFreeAsync", "block.under_kernel_ms", false, true, NULL, NULL,
        peer_alloc_free_async, NULL},
};

static void run_part(struct bench *b, void (*part)(struct bench *b))
{
    if (part) part(b);
}

static bool kernel_is_over(struct bench *b)
{
    bool done = false;
    must(b, b->device->ops->event_query(b->device, b->after_kernel, &done), "asking for the kernel");
    return done;
}

/* Milliseconds that the call took on the host. */
static double run_probe(struct bench *b, const struct probe *p, uint64_t kernel_ns)
{
    struct wr_device *d = b->device;
    run_part(b, p->prepare);
    must(b, wr_kernels_spin(d, b->compute, kernel_ns), "launching the kernel");
    must(b, d->ops->event_record(d, b->after_kernel, b->compute), "recording behind the kernel");
    run_part(b, p->arm);
    bool over = kernel_is_over(b);
    uint64_t start = wr_device_wall_ns();
    p->call(b);
    uint64_t took = wr_device_wall_ns() - start;
    if (over && kernel_ns >= KERNEL_MS * 1000000)
        wr_harness_end(&b->h, WR_HARNESS_FAILED, "%s: the kernel had ended before the call", p->name);
    must(b, d->ops->stream_sync(d, b->compute), "waiting for the kernel");
    run_part(b, p->finish);
    must(b, d->ops->stream_sync(d, b->compute), "waiting for the probe's end");
    return (double)took / 1e6;
}

static double run_rounds(struct bench *b, const struct probe *p)
{
    double ms[MOST_ROUNDS];
    run_probe(b, p, 1000); /* modules, slots and staging are there */
    for (unsigned i = 0; i < b->rounds; i++) {
        wr_harness_progress(&b->h, p->name, i, b->rounds);
        ms[i] = run_probe(b, p, KERNEL_MS * 1000000);
    }
    return wr_harness_worst(ms, b->rounds);
}

/* ---- the program ------------------------------------------------------------------------------------- */

static void open_bench(struct bench *b, int argc, char **argv)
{
    struct wr_harness_option options[] = {
        {"--rounds", WR_OPTION_COUNT, &b->rounds, "kernels that each call is timed under; else 5"},
    };
    wr_harness_parse(&b->h, "block", "times each call of weir while a kernel of 200 ms runs", argc, argv,
        options, WR_ARRAY_LEN(options));
    if (!b->rounds) b->rounds = 5;
    if (b->rounds > MOST_ROUNDS)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--rounds: %d at most", MOST_ROUNDS);
    wr_harness_open(&b->h, "h200-pcie5", true);
    struct wr_device *d = b->device = b->h.devices[0];
    weir_queue_options q = {.struct_size = sizeof q, .item_bytes = BLOCK_BYTES};
    weir_pool_options o = {.struct_size = sizeof o};
    must(b, wr_pool_open(d, &o, &b->pool), "opening the pool");
    must(b, weir_queue_open(b->pool, &q, &b->queue), "opening the queue");
    must(b, weir_host_alloc(b->pool, BLOCK_BYTES, &b->source), "pinned memory to push from");
    must(b, d->ops->stream_create(d, &b->compute), "creating a stream");
    must(b, d->ops->stream_create(d, &b->other), "creating a stream");
    must(b, d->ops->event_create(d, &b->after_kernel), "creating an event");
    if (!b->h.world) must(b, wr_driver_bind(d, &b->driver), "finding the driver's allocators");
}

static unsigned close_bench(struct bench *b)
{
    struct wr_device *d = b->device;
    weir_stream streams[] = {b->compute, b->other};
    must(b, weir_queue_destroy(b->queue), "destroying the queue");
    must(b, weir_host_free(b->pool, b->source, WEIR_NO_STREAM), "host_free");
    for (unsigned i = 0; i < WR_ARRAY_LEN(streams); i++) {
        must(b, d->ops->stream_sync(d, streams[i]), "waiting for a stream");
        must(b, weir_stream_retire(b->pool, streams[i]), "retiring a stream");
        must(b, d->ops->stream_destroy(d, streams[i]), "destroying a stream");
    }
    must(b, d->ops->event_destroy(d, b->after_kernel), "destroying an event");
    wr_harness_close_pool(&b->h, b->pool);
    return wr_harness_close(&b->h);
}

int main(int argc, char **argv)
{
    static struct bench b;
    double worst = 0;
    open_bench(&b, argc, argv);
    printf("Device: %s%s; driver %s\nWorst of %u rounds, each beside a kernel of %d ms, blocks of %d MiB\n\n",
        b.h.label, b.h.world ? ", SIMULATED on the machine's clock" : "", b.h.driver, b.rounds, KERNEL_MS,
        BLOCK_BYTES >> 20);
    printf("| call | worst ms |\n|---|---|\n");
    for (unsigned i = 0; i < WR_ARRAY_LEN(probes); i++) {
        const struct probe *p = &probes[i];
        if (p->peer && b.h.world) continue;
        double ms = run_rounds(&b, p);
        if (p->counts && ms > worst) worst = ms;
        printf("| %s%s | %.4f |\n", p->name, p->counts ? " *" : "", ms);
        wr_harness_result(&b.h, p->figure, p->peer ? p->name : "weir", ms, "ms");
    }
    printf("\nblock.under_kernel_ms %.4f (the worst of those marked *)\n", worst);
    unsigned reports = close_bench(&b);
    if (reports == 0) wr_harness_result(&b.h, "block.under_kernel_ms", "weir", worst, "ms");
    return reports ? WR_HARNESS_FAILED : 0;
}
