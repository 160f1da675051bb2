/* SPDX-License-Identifier: Apache-2.0
 *
 * Do copies run beside compute on this machine, and if not, why? A kernel keeps a stream busy; meanwhile items go
 * through a queue, and each must arrive before the kernel ends. Then weir_queue_diagnose says what it saw. The
 * options make the known causes, to see what they do and that they are named.
 *
 * Exit code 0: nothing is named, and copies are not held up.
 */
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_diagnose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS ((uint64_t)1000000)

enum { ITEM = 16 << 20, SMALL = 64 << 10, LARGE = 64 << 20, MOST_STREAMS = 64, ITEMS = 8 };

struct bench {
    struct wr_harness h;
    unsigned streams, pageable, null_stream, mixed;
    double busy_ms;
    struct wr_device *device;
    weir_pool *pool;
    weir_queue *queue;
    weir_stream busy[MOST_STREAMS], reader;
    void *batch;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static uint64_t now(struct bench *b)
{
    return b->device->ops->now_ns(b->device);
}

static void parse(struct bench *b, int argc, char **argv)
{
    b->busy_ms = 100;
    b->streams = 2;
    struct wr_harness_option options[] = {
        {"--busy-ms", WR_OPTION_NUMBER, &b->busy_ms, "length of each kernel; else 100"},
        {"--streams", WR_OPTION_COUNT, &b->streams, "streams that compute, 64 at most; else 2"},
        {"--pageable", WR_OPTION_COUNT, &b->pageable, "1: lend pageable memory"},
        {"--null-stream", WR_OPTION_COUNT, &b->null_stream, "1: read items on the NULL stream"},
        {"--mixed", WR_OPTION_COUNT, &b->mixed, "1: small items behind large ones"},
    };
    wr_harness_parse(&b->h, "diagnose", "tells whether copies run beside compute here, and if not, why", argc,
        argv, options, WR_ARRAY_LEN(options));
    if (b->streams == 0 || b->streams > MOST_STREAMS)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--streams: 1 to %d", MOST_STREAMS);
}

static void open_bench(struct bench *b)
{
    weir_pool_options pool = {.struct_size = sizeof pool};
    weir_queue_options queue = {.struct_size = sizeof queue, .item_bytes = LARGE, .items = 4};
    wr_harness_open(&b->h, "h200-pcie5", false);
    b->device = b->h.devices[0];
    must(b, wr_pool_open(b->device, &pool, &b->pool), "opening the pool");
    must(b, weir_queue_open(b->pool, &queue, &b->queue), "opening the queue");
    must(b, b->device->ops->stream_create(b->device, &b->reader), "making a stream");
    for (unsigned i = 0; i < b->streams; i++) {
        weir_dptr block; /* so that the pool knows the stream, as it would of one in use */
        must(b, b->device->ops->stream_create(b->device, &b->busy[i]), "making a stream");
        must(b, weir_alloc(b->pool, 256, b->busy[i], &block), "alloc");
        must(b, weir_free(b->pool, block, b->busy[i]), "free");
    }
    b->batch = b->pageable ? malloc(LARGE) : NULL;
    if (!b->pageable) must(b, weir_host_alloc(b->pool, LARGE, &b->batch), "pinned memory");
    if (!b->batch) wr_harness_end(&b->h, WR_HARNESS_FAILED, "no memory for a batch");
    memset(b->batch, 1, LARGE);
}

static void end_stream(struct bench *b, weir_stream s)
{
    must(b, b->device->ops->stream_sync(b->device, s), "waiting for a stream");
    must(b, weir_stream_retire(b->pool, s), "retiring a stream");
    must(b, b->device->ops->stream_destroy(b->device, s), "destroying a stream");
}

static void close_bench(struct bench *b)
{
    must(b, weir_queue_wait_idle(b->queue, -1), "waiting for the queue");
    must(b, weir_queue_destroy(b->queue), "destroying the queue");
    if (b->pageable)
        free(b->batch);
    else
        must(b, weir_host_free(b->pool, b->batch, WEIR_NO_STREAM), "freeing the batch");
    for (unsigned i = 0; i < b->streams; i++)
        end_stream(b, b->busy[i]);
    end_stream(b, b->reader);
    wr_harness_close_pool(&b->h, b->pool);
}

static void push(struct bench *b, size_t bytes)
{
    weir_span span = {b->batch, bytes};
    must(b, weir_queue_push(b->queue, &span, 1, WEIR_PUSH_BORROW, -1, NULL), "push");
}

/* From the push until a stream that does nothing else could read the item. */
static uint64_t pass_item(struct bench *b, size_t bytes)
{
    weir_item item;
    uint64_t start = now(b);
    push(b, bytes);
    if (b->mixed) push(b, SMALL);
    for (unsigned i = 0; i < (b->mixed ? 2 : 1); i++) {
        must(b, weir_queue_acquire(b->queue, b->null_stream ? NULL : b->reader, -1, &item), "acquire");
        must(b, weir_queue_release(b->queue, &item, NULL, 0), "release");
    }
    must(b, weir_queue_wait_idle(b->queue, -1), "waiting for the item");
    return now(b) - start;
}

static void make_busy(struct bench *b, uint64_t ns)
{
    for (unsigned i = 0; i < b->streams; i++)
        must(b, wr_kernels_spin(b->device, b->busy[i], ns), "a kernel");
}

static uint64_t worst_item(struct bench *b, uint64_t busy_ns)
{
    uint64_t worst = 0;
    size_t bytes = b->mixed ? LARGE : ITEM;
    for (unsigned i = 0; i < ITEMS; i++) {
        if (busy_ns) make_busy(b, busy_ns);
        worst = wr_max(worst, pass_item(b, bytes));
        for (unsigned k = 0; k < b->streams; k++)
            must(b, b->device->ops->stream_sync(b->device, b->busy[k]), "waiting for a stream");
    }
    return worst;
}

int main(int argc, char **argv)
{
    static struct bench b;
    weir_diagnosis d = {.struct_size = sizeof d};
    parse(&b, argc, argv);
    open_bench(&b);
    uint64_t busy_ns = (uint64_t)(b.busy_ms * 1e6);
    make_busy(&b, 1);  /* loads the kernel */
    worst_item(&b, 0); /* memory is there */
    uint64_t alone = worst_item(&b, 0), beside = worst_item(&b, busy_ns);
    must(&b, weir_queue_diagnose(b.queue, NULL, &d), "diagnosing");
    bool held = beside >= busy_ns / 2 && beside > 2 * alone;
    printf("%s; %u streams busy for %.0f ms at a time\n", b.h.label, b.streams, b.busy_ms);
    printf("an item arrives after %.3f ms alone, %.3f ms beside compute: copies are %s\n",
        (double)alone / 1e6, (double)beside / 1e6, held ? "held up" : "not held up");
    fputs(d.text, stdout);
    close_bench(&b);
    return wr_harness_close(&b.h) > 0 || held || d.causes ? WR_HARNESS_FAILED : 0;
}
