/* SPDX-License-Identifier: Apache-2.0
 *
 * A step captured as a CUDA graph and fed by a queue: each launch is to read the next item, and the checksum of each is
 * looked at. Exits 77 where there is no GPU.
 *
 *   gpu_seat [KIND] [ITEMS]     KIND: cuda (the default) or sim. ITEMS: 1000
 *
 * Prints for each way how many items a second went through and what the host waited for. What a launch makes of events
 * is for conformance_graph to say.
 */
#include "../bench/work.h"
#include "close_pool.h"
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_graph.h"

#include <pthread.h>
#include <unistd.h>

#define OK(call) okay((call), #call)
#define PATIENCE (20 * (int64_t)WR_NS_PER_SEC) /* what has not come by then never will */
#define STALL_NS ((uint64_t)200000000)

enum { SLOTS = 3, WINDOWS = 16, WINDOW_STEP = 4096 };
enum way { NO_GRAPH, COPIED, IN_PLACE, MARKED, WAYS };
static const char *const names[WAYS] = {[NO_GRAPH] = "no graph: acquire and release",
    [COPIED] = "one graph, items copied into the seat",
    [IN_PLACE] = "a graph a slot, items read in place",
    [MARKED] = "one graph, copies begin at its mark"};

static const char *kind = "cuda";
static unsigned n_items = 1000;
static struct wr_device *device;
static weir_pool *pool;
static weir_stream stream;
static weir_dptr sum;
static size_t item_bytes = 16 << 20;
static uint64_t spin_ns = 400000; /* a step computes a little longer than an item is copied */
static char *source;              /* pinned; each item is a window of it */
static uint64_t sums[WINDOWS];
static uint64_t *seen; /* pinned: the sum that each step has found */

static void okay(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

/* ---- items ------------------------------------------------------------------------------------------- */

struct run {
    enum way way;
    weir_queue *queue;
    weir_seat *seat;
    unsigned pushed;
    struct {
        weir_dptr address;
        wr_graph graph;
    } graphs[SLOTS];
};

static unsigned window_of(unsigned item)
{
    return item * 7 % WINDOWS;
}

static void push(struct run *r, const weir_stream *after)
{
    weir_span span = {source + (size_t)window_of(r->pushed++) * WINDOW_STEP, item_bytes};
    weir_push_options o = {.struct_size = sizeof o,
        .flags = WEIR_PUSH_BORROW,
        .after = after,
        .n_after = after != NULL,
        .timeout_ns = PATIENCE};
    OK(weir_queue_push_after(r->queue, &span, 1, &o, NULL));
}

static void *produce(void *run)
{
    struct run *r = run;
    while (r->pushed < n_items)
        push(r, NULL);
    return NULL;
}

/* ---- the step ------------------------------------------------------------------------------------------ */

static void sum_up(weir_dptr at)
{
    OK(device->ops->fill(device, sum, 0, sizeof *seen, stream));
    OK(wr_work_checksum(device, stream, at, item_bytes, sum, 1000));
}

static void run_step(struct run *r)
{
    weir_dptr at = 0;
    OK(weir_seat_enter(r->seat, stream, &at));
    sum_up(at);
    OK(weir_seat_leave(r->seat, stream));
    if (r->way == MARKED) OK(weir_seat_mark(r->seat, stream));
    OK(wr_kernels_spin(device, stream, spin_ns));
}

/* Captured when its address is met first. */
static wr_graph find_graph(struct run *r, weir_dptr address)
{
    unsigned i = 0;
    while (i < SLOTS && r->graphs[i].address && r->graphs[i].address != address)
        i++;
    assert_true(i < SLOTS);
    if (!r->graphs[i].graph) {
        OK(device->ops->graph_begin(device, stream));
        run_step(r);
        OK(device->ops->graph_end(device, stream, &r->graphs[i].graph));
        r->graphs[i].address = address;
    }
    return r->graphs[i].graph;
}

static void launch_next(struct run *r)
{
    weir_item item;
    OK(weir_seat_next(r->seat, PATIENCE, &item));
    OK(device->ops->graph_launch(device, find_graph(r, item.device), stream));
}

static void consume_plainly(struct run *r)
{
    weir_item item;
    OK(weir_queue_acquire(r->queue, stream, PATIENCE, &item));
    sum_up(item.device);
    OK(wr_kernels_spin(device, stream, spin_ns));
    OK(weir_queue_release(r->queue, &item, NULL, 0));
}

static void consume(struct run *r, unsigned i)
{
    weir_stream after;
    if (r->way == NO_GRAPH)
        consume_plainly(r);
    else
        launch_next(r);
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)&seen[i], sum, sizeof *seen, stream));
    if (r->way != MARKED || r->pushed == n_items) return;
    OK(weir_seat_marked(r->seat, &after));
    push(r, &after);
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static void open_run(struct run *r, enum way way)
{
    weir_queue_options q = {.struct_size = sizeof q, .item_bytes = item_bytes, .items = SLOTS};
    weir_seat_options s = {.struct_size = sizeof s, .flags = way == IN_PLACE ? WEIR_SEAT_IN_PLACE : 0};
    *r = (struct run){.way = way};
    OK(weir_queue_open(pool, &q, &r->queue));
    if (way != NO_GRAPH) OK(weir_seat_open(r->queue, &s, &r->seat));
}

static void close_run(struct run *r)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (r->graphs[i].graph) OK(device->ops->graph_destroy(device, r->graphs[i].graph));
    if (r->seat) OK(weir_seat_close(r->seat));
    OK(weir_queue_destroy(r->queue));
}

/* Host syncs are counted by the queue; that the device counts none either is the simulated tests' to say. */
static void tell(struct run *r, uint64_t ns)
{
    weir_queue_stats s = {.struct_size = sizeof s};
    OK(weir_queue_get_stats(r->queue, &s));
    printf("%-40s %7.0f items/s, %6.1f us a step, host syncs %llu, waited for items %.1f us a step\n",
        names[r->way], n_items * 1e9 / (double)ns, (double)ns / 1e3 / n_items,
        (unsigned long long)s.host_syncs, (double)s.consumer_wait_ns / 1e3 / n_items);
    fflush(stdout);
    assert_int_equal(s.host_syncs, 0);
    assert_int_equal(s.items_delivered, n_items);
}

static unsigned count_wrong(void)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < n_items; i++)
        wrong += seen[i] != sums[window_of(i)];
    return wrong;
}

static void go(enum way way)
{
    struct run r;
    pthread_t producer;
    bool threaded = way != MARKED;
    open_run(&r, way);
    memset(seen, 0, n_items * sizeof *seen);
    uint64_t start = wr_device_wall_ns();
    if (threaded) assert_int_equal(pthread_create(&producer, NULL, produce, &r), 0);
    while (!threaded && r.pushed < wr_min(SLOTS - 1, n_items))
        push(&r, NULL);
    for (unsigned i = 0; i < n_items; i++)
        consume(&r, i);
    OK(device->ops->stream_sync(device, stream));
    uint64_t took = wr_device_wall_ns() - start;
    if (threaded) pthread_join(producer, NULL);
    tell(&r, took);
    assert_int_equal(count_wrong(), 0);
    OK(weir_queue_borrowed(r.queue, 0, PATIENCE));
    close_run(&r);
}

static void test_each_launch_reads_the_next_item(void **state)
{
    (void)state;
    for (enum way w = NO_GRAPH; w < WAYS; w++)
        go(w);
    printf("%u items a way: 0 wrong checksums\n", n_items);
}

/* The stream is busy for long; what the host calls meanwhile returns at once all the same. */
static void test_the_host_waits_for_no_step(void **state)
{
    (void)state;
    for (enum way w = COPIED; w <= IN_PLACE; w++) {
        struct run r;
        open_run(&r, w);
        for (unsigned i = 0; i < 2; i++) { /* both addresses have their graphs */
            push(&r, NULL);
            launch_next(&r);
        }
        OK(device->ops->stream_sync(device, stream));
        push(&r, NULL);
        push(&r, NULL);
        OK(wr_kernels_spin(device, stream, STALL_NS));
        uint64_t start = wr_device_wall_ns();
        launch_next(&r);
        launch_next(&r);
        uint64_t took = wr_device_wall_ns() - start;
        printf("%-40s two steps queued in %.0f us behind a kernel of %.0f ms\n", names[w], (double)took / 1e3,
            (double)STALL_NS / 1e6);
        assert_true(took < STALL_NS / 2);
        OK(device->ops->stream_sync(device, stream));
        OK(weir_queue_borrowed(r.queue, 0, PATIENCE));
        close_run(&r);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static int open_all(void **state)
{
    (void)state;
    weir_pool_options o = {.struct_size = sizeof o, .device_kind = kind, .limit_bytes = WR_GIB};
    uint64_t random = 1;
    size_t bytes = item_bytes + (WINDOWS - 1) * WINDOW_STEP;
    OK(weir_pool_open(&o, &pool));
    OK(weir_host_alloc(pool, bytes, (void **)&source));
    OK(weir_host_alloc(pool, n_items * sizeof *seen, (void **)&seen));
    for (size_t i = 0; i < bytes / sizeof random; i++) {
        uint64_t word = next_random(&random);
        memcpy(source + i * sizeof word, &word, sizeof word);
    }
    for (unsigned i = 0; i < WINDOWS; i++)
        sums[i] = wr_work_checksum_host(source + (size_t)i * WINDOW_STEP, item_bytes);
    OK(device->ops->stream_create(device, &stream));
    OK(weir_alloc(pool, sizeof *seen, stream, &sum));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    OK(weir_free(pool, sum, stream));
    OK(weir_host_free(pool, source, WEIR_NO_STREAM));
    OK(weir_host_free(pool, seen, WEIR_NO_STREAM));
    OK(weir_stream_retire(pool, stream));
    OK(device->ops->stream_destroy(device, stream));
    OK(close_pool_within(pool, (uint64_t)PATIENCE));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) kind = argv[1];
    if (argc > 2) n_items = (unsigned)strtoul(argv[2], NULL, 0);
    if (wr_device_get(kind, 0, &device) != WEIR_OK) {
        printf("skipped: %s\n", weir_error_text());
        return 77;
    }
    if (wr_device_is_simulated(device)) item_bytes = 64 << 10; /* bytes cost the host's time */
    alarm(100);                                                /* no stream_sync is to hang */
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion in a thread can't jump to the test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launch_reads_the_next_item),
        cmocka_unit_test(test_the_host_waits_for_no_step),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
