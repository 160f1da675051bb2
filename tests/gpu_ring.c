/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue's other directions and the replay ring on real GPUs: each word that arrives is looked at. Exits 77 where
 * there is no GPU; between devices only where there are two.
 *
 *   gpu_ring [KIND]     KIND: cuda (the default) or sim
 */
#include "close_pool.h"
#include "queue_world.h"
#include "weir_ring.h"

enum { ITEMS = 60, ROWS = 2048, ROW_BYTES = 8192, BATCH = 64, WRITES = 256, ROUNDS = 60 };
#define ITEM_BYTES ((size_t)8 << 20)
#define SPIN_NS    ((uint64_t)200000000)
#define OKAY(call) okay((call), #call)

static const char *kind = "cuda";
static struct wr_device *device, *second; /* second NULL: one device */
static weir_pool *pool, *peer;
static weir_stream consumer;
static weir_dptr counter; /* of wrong words */

static void okay(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

static weir_pool *open_pool(int ordinal)
{
    weir_pool *p;
    weir_pool_options o = {
        .struct_size = sizeof o, .device_kind = kind, .device = ordinal, .limit_bytes = 2 * WR_GIB};
    OKAY(weir_pool_open(&o, &p));
    return p;
}

static int open_all(void **state)
{
    (void)state;
    pool = open_pool(0);
    if (second) peer = open_pool(1);
    OKAY(device->ops->stream_create(device, &consumer));
    OKAY(weir_alloc(pool, sizeof(uint64_t), consumer, &counter));
    OKAY(device->ops->fill(device, counter, 0, sizeof(uint64_t), consumer));
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    OKAY(weir_free(pool, counter, consumer));
    OKAY(device->ops->stream_sync(device, consumer));
    OKAY(weir_stream_retire(pool, consumer));
    OKAY(device->ops->stream_destroy(device, consumer));
    OKAY(close_pool_within(pool, 10 * WR_NS_PER_SEC));
    if (peer) OKAY(close_pool_within(peer, 10 * WR_NS_PER_SEC));
    return 0;
}

static uint64_t wrong_on_device(void)
{
    uint64_t *seen, wrong;
    OKAY(weir_host_alloc(pool, sizeof *seen, (void **)&seen));
    OKAY(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)seen, counter, sizeof *seen, consumer));
    OKAY(device->ops->stream_sync(device, consumer));
    wrong = *seen;
    OKAY(weir_host_free(pool, seen, WEIR_NO_STREAM));
    return wrong;
}

static weir_queue *open_queue(weir_direction direction, weir_pool *source, size_t item_bytes)
{
    weir_queue *q;
    weir_queue_options o = queue_options(item_bytes, 3);
    o.direction = direction;
    o.source = source;
    OKAY(weir_queue_open(pool, &o, &q));
    return q;
}

/* ---- directions -------------------------------------------------------------------------------------- */

struct source {
    struct wr_device *device;
    weir_pool *pool;
    weir_stream stream;
    weir_dptr block;
};

static struct source open_source(struct wr_device *d, weir_pool *p)
{
    struct source s = {.device = d, .pool = p};
    OKAY(d->ops->stream_create(d, &s.stream));
    OKAY(weir_alloc(p, ITEM_BYTES, s.stream, &s.block));
    return s;
}

static void close_source(struct source *s)
{
    OKAY(weir_free(s->pool, s->block, s->stream));
    OKAY(s->device->ops->stream_sync(s->device, s->stream));
    OKAY(weir_stream_retire(s->pool, s->stream));
    OKAY(s->device->ops->stream_destroy(s->device, s->stream));
}

/* One block for all items: the stream waits, before it is filled anew, until it was read. */
static void produce(weir_queue *q, const struct source *s, uint32_t tag)
{
    uint64_t ticket;
    const weir_span span = {(const void *)(uintptr_t)s->block, ITEM_BYTES};
    const weir_push_options o = {.struct_size = sizeof o,
        .key = tag,
        .flags = WEIR_PUSH_BORROW,
        .after = &s->stream,
        .n_after = 1,
        .timeout_ns = -1};
    OKAY(wr_kernels_spin(s->device, s->stream, 500000));
    OKAY(wr_kernels_fill(s->device, s->stream, s->block, ITEM_BYTES, tag));
    OKAY(weir_queue_push_after(q, &span, 1, &o, &ticket));
    OKAY(weir_queue_borrowed_by(q, ticket, s->stream));
}

static size_t consume(weir_queue *q, uint32_t tag)
{
    weir_item item;
    size_t wrong = 0;
    OKAY(weir_queue_acquire(q, consumer, 20 * (int64_t)WR_NS_PER_SEC, &item));
    assert_int_equal(item.key, tag);
    assert_int_equal(item.bytes, ITEM_BYTES);
    for (size_t i = 0; item.host && i < ITEM_BYTES / sizeof tag; i++)
        wrong += ((const uint32_t *)item.host)[i] != tag;
    if (item.device) OKAY(wr_kernels_verify(device, consumer, item.device, item.bytes, tag, counter));
    OKAY(weir_queue_release(q, &item, NULL, 0));
    return wrong;
}

static void run_direction(weir_direction direction, struct wr_device *d, weir_pool *p, const char *name)
{
    weir_queue *q = open_queue(direction, p == pool ? NULL : p, ITEM_BYTES);
    struct source s = open_source(d, p);
    size_t wrong = 0;
    uint64_t start = device->ops->now_ns(device);
    for (uint32_t i = 1; i <= ITEMS; i++) {
        produce(q, &s, i);
        if (i > 1) wrong += consume(q, i - 1);
    }
    wrong += consume(q, ITEMS);
    double seconds = (double)(device->ops->now_ns(device) - start) / WR_NS_PER_SEC;
    wrong += wrong_on_device();
    weir_queue_stats stats = stats_of(q);
    print_message("%s: %d items of %zu MiB in %.3f s; wrong words: %zu; staged between devices: %s\n", name,
        ITEMS, ITEM_BYTES >> 20, seconds, wrong, stats.peer_staged ? "yes" : "no");
    assert_int_equal(wrong, 0);
    assert_int_equal(stats.host_syncs, 0);
    assert_int_equal(stats.peer_staged_bytes, stats.peer_staged ? ITEMS * ITEM_BYTES : 0);
    OKAY(weir_queue_destroy(q));
    close_source(&s);
}

static void test_every_word_arrives_on_the_host(void **state)
{
    (void)state;
    run_direction(WEIR_TO_HOST, device, pool, "to the host");
}

static void test_every_word_arrives_from_the_same_device(void **state)
{
    (void)state;
    run_direction(WEIR_ON_DEVICE, device, pool, "on one device");
}

static void test_every_word_arrives_from_another_device(void **state)
{
    (void)state;
    if (!second) skip();
    run_direction(WEIR_ON_DEVICE, second, peer, "between two devices");
}

static void test_promise_1_an_item_reaches_the_host_past_a_running_kernel(void **state)
{
    (void)state;
    weir_queue *q = open_queue(WEIR_TO_HOST, NULL, ITEM_BYTES);
    struct source s = open_source(device, pool);
    produce(q, &s, 1); /* loads kernels, makes memory */
    assert_int_equal(consume(q, 1), 0);
    uint64_t spin_ns =
        strcmp(kind, "cuda") ? 10 * SPIN_NS : SPIN_NS; /* a simulated device copies by the processor */
    OKAY(wr_kernels_spin(device, consumer, spin_ns));
    uint64_t start = device->ops->now_ns(device);
    produce(q, &s, 2);
    assert_int_equal(consume(q, 2), 0);
    uint64_t took = device->ops->now_ns(device) - start;
    print_message(
        "to the host past a kernel of %u ms: %.2f ms\n", (unsigned)(spin_ns / 1000000), (double)took / 1e6);
    assert_true(took < spin_ns / 2);
    OKAY(device->ops->stream_sync(device, consumer));
    OKAY(weir_queue_destroy(q));
    close_source(&s);
}

/* ---- the ring ---------------------------------------------------------------------------------------- */

static uint32_t tags[ROWS], newest;

static void write_rows(weir_ring *r, char *host)
{
    size_t first;
    OKAY(weir_ring_written(r, 20 * (int64_t)WR_NS_PER_SEC)); /* host may be written anew */
    for (size_t i = 0; i < WRITES; i++)
        write_words(host + i * ROW_BYTES, ROW_BYTES, newest + 1 + (uint32_t)i);
    OKAY(weir_ring_insert(r, host, WRITES, -1, &first));
    for (size_t i = 0; i < WRITES; i++)
        tags[(first + i) % ROWS] = ++newest;
}

static void sample_and_look(weir_ring *r, weir_queue *q, char *host, uint64_t *random)
{
    size_t index[BATCH];
    uint32_t tag[BATCH];
    weir_item item;
    for (size_t i = 0; i < BATCH; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        index[i] = (*random >> 33) % ROWS;
        tag[i] = tags[index[i]];
    }
    OKAY(weir_ring_sample(r, 0, index, BATCH, -1, NULL));
    write_rows(r, host); /* over some of those, perhaps */
    OKAY(weir_queue_acquire(q, consumer, -1, &item));
    OKAY(wr_kernels_spin(device, consumer, 1000000)); /* the next gathers into this slot are late */
    for (size_t i = 0; i < BATCH; i++)
        OKAY(wr_kernels_verify(device, consumer, item.device + i * ROW_BYTES, ROW_BYTES, tag[i], counter));
    OKAY(weir_queue_release(q, &item, NULL, 0));
}

static void test_batches_hold_the_rows_as_they_were_when_sampled(void **state)
{
    (void)state;
    weir_ring *r;
    char *host;
    uint64_t random = 1;
    weir_queue *q = open_queue(WEIR_ON_DEVICE, NULL, BATCH * ROW_BYTES);
    const weir_ring_options o = {.struct_size = sizeof o,
        .rows = ROWS,
        .row_bytes = ROW_BYTES,
        .samples_per_insert = 1,
        .slack = ROWS};
    OKAY(weir_ring_open(pool, q, &o, &r));
    OKAY(weir_host_alloc(pool, WRITES * ROW_BYTES, (void **)&host));
    for (int i = 0; i < ROWS / WRITES; i++)
        write_rows(r, host);
    uint64_t start = device->ops->now_ns(device);
    for (int i = 0; i < ROUNDS; i++)
        sample_and_look(r, q, host, &random);
    double seconds = (double)(device->ops->now_ns(device) - start) / WR_NS_PER_SEC;
    uint64_t wrong = wrong_on_device();
    print_message("ring: %d batches of %d rows, %d rows rewritten each, in %.3f s; wrong words: %llu\n",
        ROUNDS, BATCH, WRITES, seconds, (unsigned long long)wrong);
    assert_int_equal(wrong, 0);
    OKAY(weir_ring_written(r, -1));
    OKAY(weir_ring_close(r));
    OKAY(weir_queue_destroy(q));
    OKAY(weir_host_free(pool, host, WEIR_NO_STREAM));
}

int main(int argc, char **argv)
{
    if (argc > 1) kind = argv[1];
    if (wr_device_get(kind, 0, &device) != WEIR_OK) {
        print_message("skipped: %s\n", weir_error_text());
        return 77;
    }
    if (wr_device_get(kind, 1, &second) != WEIR_OK) second = NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_word_arrives_on_the_host),
        cmocka_unit_test(test_every_word_arrives_from_the_same_device),
        cmocka_unit_test(test_every_word_arrives_from_another_device),
        cmocka_unit_test(test_promise_1_an_item_reaches_the_host_past_a_running_kernel),
        cmocka_unit_test(test_batches_hold_the_rows_as_they_were_when_sampled),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
