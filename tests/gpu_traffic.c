/* SPDX-License-Identifier: Apache-2.0
 *
 * Random traffic with checksums: queues of random orders, consumers, sizes and limits, one after the other, fed from
 * pinned, lent and pageable memory by several threads, read by several streams that are busy; and from there back to
 * the host, or to another place on the device, by weir_copy. An item's key is the checksum of its bytes. Whoever reads
 * it sums on the device what it reads, and keys; the two sums must be one.
 *
 *   gpu_traffic [SECONDS] [cuda | sim] [SEED]       exits 77 where there is no GPU. With 300: five minutes
 */
#include "close_pool.h"
#include "harness.h"

#include "../bench/work.h"
#include "kernels.h"
#include "pool.h"
#include "weir_copy.h"
#include "weir_queue.h"

#include <pthread.h>
#include <time.h>

#define OK(call) okay((call), #call)

enum {
    PRODUCERS = 3,
    CONSUMERS = 3,
    SOURCE = 48 << 20,
    SPANS_MOST = 300,
    BACK_MOST = 4 << 20,
    JUNK = 1 << 20,
    LENT = 3
};

static struct wr_device *device;
static weir_pool *pool;
static weir_engine *engine;
static const char *kind = "cuda";
static double seconds = 5;
static uint64_t seed = 1;
static char *source; /* random bytes */
static bool slow;    /* simulated: bytes cost the host's time */

static _Atomic uint64_t n_items, n_bytes, n_back, n_across;

static void okay(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

struct scene {
    weir_queue *queue;
    weir_consumers consumers;
    size_t item_bytes;
    _Atomic bool stop;
};

struct hand {
    struct scene *scene;
    pthread_t thread;
    uint64_t random;
    /* producers */
    char *lent[LENT]; /* pinned */
    uint64_t ticket[LENT];
    char *pageable;
    /* consumers */
    weir_stream stream;
    weir_consumer self;
    weir_dptr sum;
    uint64_t expected;
    char *back;  /* pinned */
    char *fresh; /* pageable */
};

static uint64_t draw(struct hand *h, uint64_t below)
{
    return next_random(&h->random) % below;
}

/* All lengths of numbers alike; whole words. */
static size_t draw_bytes(struct hand *h, size_t most)
{
    unsigned logs = 0;
    while (((size_t)8 << logs) < most)
        logs++;
    size_t bytes = (size_t)8 << draw(h, logs + 1);
    bytes = bytes / 2 + draw(h, bytes / 2 + 1);
    return wr_min(most, wr_max(8, bytes)) / 8 * 8;
}

/* ---- producers --------------------------------------------------------------------------------------- */

static const char *draw_window(struct hand *h, size_t bytes)
{
    return source + draw(h, SOURCE - bytes) / 8 * 8;
}

static weir_status feed_staged(struct hand *h, const char *from, size_t bytes, int64_t key)
{
    weir_item item;
    weir_queue *q = h->scene->queue;
    weir_status s = weir_queue_reserve_key(q, key, bytes, 50000000, &item);
    if (s != WEIR_OK) return s;
    memcpy(item.host, from, bytes);
    return weir_queue_commit(q, &item);
}

/* Cut anywhere, in up to SPANS_MOST. */
static size_t cut(struct hand *h, const char *at, size_t bytes, weir_span *spans)
{
    size_t n = 0, most = 1 + draw(h, draw(h, 3) ? 3 : SPANS_MOST);
    while (bytes > 0 && n + 1 < most) {
        size_t part = draw(h, bytes / (most / 2 + 1) + 2);
        part = wr_min(part, bytes);
        spans[n++] = (weir_span){at, part};
        at += part;
        bytes -= part;
    }
    spans[n++] = (weir_span){at, bytes};
    return n;
}

/* Lent memory is written anew as soon as the queue says that it may be. */
static weir_status feed_lent(struct hand *h, const char *from, size_t bytes, int64_t key)
{
    weir_span spans[SPANS_MOST];
    unsigned i = (unsigned)draw(h, LENT);
    OK(weir_queue_borrowed(h->scene->queue, h->ticket[i], -1));
    memcpy(h->lent[i], from, bytes);
    size_t n = cut(h, h->lent[i], bytes, spans);
    return weir_queue_put(h->scene->queue, key, spans, n, WEIR_PUSH_BORROW, 50000000, &h->ticket[i]);
}

/* Pageable memory is written anew at once. */
static weir_status feed_pageable(struct hand *h, const char *from, size_t bytes, int64_t key)
{
    weir_span spans[SPANS_MOST];
    memcpy(h->pageable, from, bytes);
    size_t n = cut(h, h->pageable, bytes, spans);
    unsigned flags = draw(h, 2) ? WEIR_PUSH_BORROW : WEIR_PUSH_COPY;
    weir_status s = weir_queue_put(h->scene->queue, key, spans, n, flags, 50000000, NULL);
    memset(h->pageable, 0x5a, wr_min(bytes, 4096));
    return s;
}

static void *produce(void *arg)
{
    struct hand *h = arg;
    weir_status (*const feeds[])(struct hand *, const char *, size_t, int64_t) = {
        feed_staged, feed_lent, feed_pageable};
    while (!h->scene->stop) {
        size_t bytes = draw_bytes(h, h->scene->item_bytes);
        const char *from = draw_window(h, bytes);
        int64_t key = (int64_t)wr_work_checksum_host(from, bytes);
        weir_status s = feeds[draw(h, WR_ARRAY_LEN(feeds))](h, from, bytes, key);
        if (s == WEIR_TIMEOUT) continue;
        OK(s);
        n_items++;
        n_bytes += bytes;
    }
    OK(weir_queue_borrowed(h->scene->queue, 0, -1));
    return NULL;
}

/* ---- consumers --------------------------------------------------------------------------------------- */

static void add_sum(struct hand *h, weir_dptr at, const weir_item *item)
{
    OK(wr_work_checksum(device, h->stream, at, item->bytes, h->sum, 0));
    h->expected += (uint64_t)item->key;
}

/* Its bytes as the host sees them. */
static void take_back(struct hand *h, const weir_item *item)
{
    weir_ticket t;
    char *to = draw(h, 2) ? h->back : h->fresh;
    weir_copy_options after = {
        .struct_size = sizeof after, .after = &h->stream, .n_after = 1, .timeout_ns = -1};
    weir_piece p = {.to = (uintptr_t)to, .from = item->device, .bytes = item->bytes};
    memset(to, 0xa5, item->bytes);
    OK(weir_copy(engine, WEIR_TO_HOST, &p, 1, &after, &t));
    OK(weir_copy_wait(engine, t, -1));
    if (wr_work_checksum_host(to, item->bytes) != (uint64_t)item->key)
        fail_msg("item %llu came back wrong", (unsigned long long)item->ticket);
    n_back += item->bytes;
}

/* A copy of it on the device, summed too. */
static void take_across(struct hand *h, const weir_item *item)
{
    weir_ticket t;
    weir_dptr block;
    weir_copy_options after = {
        .struct_size = sizeof after, .after = &h->stream, .n_after = 1, .timeout_ns = -1};
    OK(weir_alloc(pool, item->bytes, h->stream, &block));
    weir_piece p = {.to = block, .from = item->device, .bytes = item->bytes};
    OK(weir_copy(engine, WEIR_ON_DEVICE, &p, 1, &after, &t));
    OK(weir_copy_join(engine, t, h->stream));
    add_sum(h, block, item);
    OK(weir_free(pool, block, h->stream));
    n_across += item->bytes;
}

/* What is reused too early has junk in it. */
static void leave_junk(struct hand *h)
{
    weir_dptr junk;
    OK(weir_alloc(pool, JUNK, h->stream, &junk));
    OK(device->ops->fill(device, junk, 0xee, JUNK, h->stream));
    OK(weir_free(pool, junk, h->stream));
}

static void use_item(struct hand *h, const weir_item *item)
{
    if (draw(h, 4) == 0) OK(wr_kernels_spin(device, h->stream, 1000 * (1 + draw(h, 500))));
    add_sum(h, item->device, item);
    if (item->bytes <= BACK_MOST && draw(h, 8) == 0) take_back(h, item);
    if (item->bytes <= BACK_MOST && draw(h, 8) == 0) take_across(h, item);
    if (draw(h, 4) == 0) leave_junk(h);
}

static void *consume(void *arg)
{
    struct hand *h = arg;
    for (;;) {
        weir_item item;
        weir_status s = h->self ? weir_queue_acquire_as(h->scene->queue, h->self, h->stream, 50000000, &item)
                                : weir_queue_acquire(h->scene->queue, h->stream, 50000000, &item);
        if (s == WEIR_CLOSED) return NULL;
        if (s == WEIR_TIMEOUT) continue;
        OK(s);
        use_item(h, &item);
        OK(weir_queue_release(h->scene->queue, &item, NULL, 0));
    }
}

/* ---- scenes ------------------------------------------------------------------------------------------ */

static void open_hand(struct hand *h, struct scene *s, int i, uint64_t random)
{
    *h = (struct hand){.scene = s, .random = random * 31 + (uint64_t)i};
    if (i < PRODUCERS) {
        for (int k = 0; k < LENT; k++)
            OK(weir_host_alloc(pool, s->item_bytes, (void **)&h->lent[k]));
        h->pageable = malloc(s->item_bytes);
        assert_non_null(h->pageable);
        return;
    }
    OK(device->ops->stream_create(device, &h->stream));
    OK(weir_alloc(pool, sizeof(uint64_t), h->stream, &h->sum));
    OK(device->ops->fill(device, h->sum, 0, sizeof(uint64_t), h->stream));
    OK(weir_host_alloc(pool, BACK_MOST, (void **)&h->back));
    h->fresh = malloc(BACK_MOST);
    assert_non_null(h->fresh);
    if (s->consumers == WEIR_CONSUMERS_SHARED || s->consumers == WEIR_CONSUMERS_BROADCAST)
        OK(weir_queue_join(s->queue, &h->self));
}

static void close_producer(struct hand *h)
{
    for (int k = 0; k < LENT; k++)
        OK(weir_host_free(pool, h->lent[k], WEIR_NO_STREAM));
    free(h->pageable);
}

static void close_consumer(struct hand *h)
{
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)h->back, h->sum, sizeof(uint64_t), h->stream));
    OK(device->ops->stream_sync(device, h->stream));
    uint64_t sum = *(uint64_t *)(void *)h->back;
    if (sum != h->expected) fail_msg("WRONG BYTES: a reader's sums differ");
    OK(weir_free(pool, h->sum, h->stream));
    OK(weir_host_free(pool, h->back, WEIR_NO_STREAM));
    free(h->fresh);
    OK(weir_stream_retire(pool, h->stream));
    OK(device->ops->stream_sync(device, h->stream));
    OK(device->ops->stream_destroy(device, h->stream));
}

static weir_queue_options draw_options(struct hand *h)
{
    const size_t largest = slow ? (size_t)256 << 10 : (size_t)32 << 20;
    weir_queue_options o = {.struct_size = sizeof o, .items = 1 + (unsigned)draw(h, 8)};
    o.item_bytes = wr_max(4096, draw_bytes(h, largest));
    o.order = (weir_order)draw(h, WEIR_ORDER_PRIORITY + 1);
    o.consumers = (weir_consumers)draw(h, WEIR_CONSUMERS_LATEST + 1);
    if (o.consumers >= WEIR_CONSUMERS_BROADCAST) o.order = WEIR_ORDER_FIFO;
    if (draw(h, 2)) o.device_bytes = o.item_bytes * (1 + draw(h, o.items));
    if (draw(h, 2)) o.pinned_bytes = o.item_bytes * (1 + draw(h, o.items));
    return o;
}

static void pause_for(double s)
{
    const struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static void run_scene(uint64_t number)
{
    struct hand drawer = {.random = seed * 1000003 + number}, h[PRODUCERS + CONSUMERS];
    weir_queue_options o = draw_options(&drawer);
    struct scene s = {.consumers = o.consumers, .item_bytes = o.item_bytes};
    weir_queue_stats stats = {.struct_size = sizeof stats};
    OK(weir_queue_open(pool, &o, &s.queue));
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++)
        open_hand(&h[i], &s, i, drawer.random);
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++)
        assert_int_equal(pthread_create(&h[i].thread, NULL, i < PRODUCERS ? produce : consume, &h[i]), 0);
    pause_for(0.2 + 0.001 * (double)draw(&drawer, 600));
    s.stop = true;
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(h[i].thread, NULL);
    OK(weir_queue_close(s.queue));
    for (int i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
        pthread_join(h[i].thread, NULL);
    OK(weir_queue_wait_idle(s.queue, 30 * (int64_t)WR_NS_PER_SEC));
    OK(weir_queue_get_stats(s.queue, &stats));
    assert_int_equal(stats.host_syncs, 0);
    assert_int_equal(stats.items_released + stats.items_replaced >= stats.items_pushed, 1);
    for (int i = 0; i < PRODUCERS; i++)
        close_producer(&h[i]);
    for (int i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
        close_consumer(&h[i]);
    OK(weir_queue_destroy(s.queue));
}

static void tell(uint64_t scenes, uint64_t start)
{
    printf("%.0f s: %llu queues, %llu items, %.1f GiB up, %.1f GiB back, %.1f GiB on the device; 0 wrong\n",
        (double)(wr_device_wall_ns() - start) / 1e9, (unsigned long long)scenes, (unsigned long long)n_items,
        (double)n_bytes / WR_GIB, (double)n_back / WR_GIB, (double)n_across / WR_GIB);
    fflush(stdout);
}

static void test_random_traffic_arrives_as_it_was_sent(void **state)
{
    (void)state;
    uint64_t start = wr_device_wall_ns(), told = start, scenes = 0, random = seed;
    weir_pool_options o = {.struct_size = sizeof o, .device_kind = kind};
    source = malloc(SOURCE);
    assert_non_null(source);
    for (size_t i = 0; i < SOURCE / sizeof random; i++) {
        uint64_t word = next_random(&random);
        memcpy(source + i * sizeof word, &word, sizeof word);
    }
    OK(weir_pool_open(&o, &pool));
    OK(weir_engine_open(pool, NULL, &engine));
    while ((double)(wr_device_wall_ns() - start) < seconds * 1e9) {
        run_scene(scenes++);
        if (wr_device_wall_ns() - told < 10 * WR_NS_PER_SEC) continue;
        told = wr_device_wall_ns();
        tell(scenes, start);
    }
    tell(scenes, start);
    assert_true(n_items > scenes && n_back > 0 && n_across > 0);
    OK(weir_engine_close(engine));
    OK(close_pool_within(pool, WR_NS_PER_SEC));
    free(source);
}

int main(int argc, char **argv)
{
    if (argc > 1) seconds = strtod(argv[1], NULL);
    if (argc > 2) kind = argv[2];
    if (argc > 3) seed = strtoull(argv[3], NULL, 0);
    if (wr_device_get(kind, 0, &device) != WEIR_OK) {
        printf("skipped: %s\n", weir_error_text());
        return 77;
    }
    slow = wr_device_is_simulated(device);
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion in a thread can't jump to the test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traffic_arrives_as_it_was_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
