/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues of every order and every kind of consumers on the GPU, with threads on both sides: each item's words are
 * checked where it is read, consumers wait in poll(2), and nothing waits for compute.
 *
 *   gpu_hands [SECONDS of each kind] [cuda | sim]       exits 77 where there is no GPU
 */
#include "close_pool.h"
#include "harness.h"

#include "kernels.h"
#include "pool.h"
#include "weir_queue.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#define OK(call) assert_int_equal(call, WEIR_OK)

enum { ITEM = 1 << 20, ITEMS = 6, PRODUCERS = 3, CONSUMERS = 3 };

static struct wr_device *device;
static weir_pool *pool;
static const char *kind = "cuda";
static double seconds = 1;

struct scene {
    weir_queue *queue;
    weir_order order;
    weir_consumers consumers;
    _Atomic uint64_t committed;
    _Atomic bool stop;
};

struct hand {
    struct scene *scene;
    pthread_t thread;
    uint64_t random, delivered;
    weir_stream stream;
    weir_dptr counter;
    weir_consumer self; /* 0: not registered */
};

/* ---- producers: an item's key is its tag ------------------------------------------------------------- */

static void *produce(void *arg)
{
    struct hand *h = arg;
    while (!h->scene->stop) {
        weir_item item;
        uint32_t tag = (uint32_t)next_random(&h->random);
        size_t bytes = 4 * (1 + next_random(&h->random) % (ITEM / 4));
        weir_status s = weir_queue_reserve_key(h->scene->queue, tag, bytes, 100000000, &item);
        if (s == WEIR_TIMEOUT) continue;
        OK(s);
        for (size_t i = 0; i < bytes / sizeof tag; i++)
            memcpy((char *)item.host + i * sizeof tag, &tag, sizeof tag);
        OK(weir_queue_commit(h->scene->queue, &item));
        h->scene->committed++;
    }
    return NULL;
}

/* ---- consumers --------------------------------------------------------------------------------------- */

static weir_status acquire(struct hand *h, weir_item *item)
{
    if (h->self) return weir_queue_acquire_as(h->scene->queue, h->self, h->stream, 0, item);
    return weir_queue_acquire(h->scene->queue, h->stream, 0, item);
}

static void *consume(void *arg)
{
    struct hand *h = arg;
    struct pollfd fd = {.events = POLLIN};
    OK(weir_queue_eventfd(h->scene->queue, WEIR_POLL_ITEM, h->self, &fd.fd));
    for (weir_status s = WEIR_OK; s != WEIR_CLOSED;) {
        weir_item item;
        assert_int_equal(poll(&fd, 1, 10000), 1); /* something comes, or the end */
        s = acquire(h, &item);
        if (s == WEIR_WOULD_BLOCK || s == WEIR_CLOSED) continue;
        OK(s);
        OK(wr_kernels_verify(device, h->stream, item.device, item.bytes, (uint32_t)item.key, h->counter));
        OK(weir_queue_release(h->scene->queue, &item, NULL, 0));
        h->delivered++;
    }
    close(fd.fd);
    return NULL;
}

/* ---- scenes ------------------------------------------------------------------------------------------ */

static void open_hand(struct hand *h, struct scene *s, int i)
{
    *h = (struct hand){.scene = s, .random = (uint64_t)i + 1};
    if (i < PRODUCERS) return;
    OK(device->ops->stream_create(device, &h->stream));
    OK(weir_alloc(pool, sizeof(uint64_t), h->stream, &h->counter));
    OK(device->ops->fill(device, h->counter, 0, sizeof(uint64_t), h->stream));
    if (s->consumers == WEIR_CONSUMERS_SHARED || s->consumers == WEIR_CONSUMERS_BROADCAST)
        OK(weir_queue_join(s->queue, &h->self));
}

/* Returns the words that were wrong. */
static uint64_t close_hand(struct hand *h)
{
    uint64_t *wrong, n;
    if (!h->stream) return 0;
    OK(weir_host_alloc(pool, sizeof *wrong, (void **)&wrong));
    OK(device->ops->copy(
        device, WR_COPY_D2H, (uint64_t)(uintptr_t)wrong, h->counter, sizeof *wrong, h->stream));
    OK(device->ops->stream_sync(device, h->stream));
    n = *wrong;
    OK(weir_host_free(pool, wrong, h->stream));
    OK(weir_free(pool, h->counter, h->stream));
    OK(weir_stream_retire(pool, h->stream));
    OK(device->ops->stream_sync(device, h->stream));
    OK(device->ops->stream_destroy(device, h->stream));
    return n;
}

static void assert_all_came(const struct scene *s, const struct hand *h)
{
    uint64_t delivered = 0;
    weir_queue_stats q = {.struct_size = sizeof q};
    OK(weir_queue_get_stats(s->queue, &q));
    for (int i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
        delivered += h[i].delivered;
    uint64_t each = s->consumers == WEIR_CONSUMERS_BROADCAST ? CONSUMERS : 1;
    assert_true(s->committed > 10);
    assert_int_equal(delivered, s->committed * each - q.items_replaced);
    assert_int_equal(q.host_syncs, 0);
    printf("  order %d, consumers %d: %llu items, %llu deliveries\n", s->order, s->consumers,
        (unsigned long long)s->committed, (unsigned long long)delivered);
}

static void run(weir_order order, weir_consumers consumers)
{
    struct scene s = {.order = order, .consumers = consumers};
    struct hand h[PRODUCERS + CONSUMERS];
    weir_queue_options o = {
        .struct_size = sizeof o, .item_bytes = ITEM, .items = ITEMS, .order = order, .consumers = consumers};
    o.device_bytes = (size_t)ITEM * (ITEMS - 1); /* sized by item */
    OK(weir_queue_open(pool, &o, &s.queue));
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++)
        open_hand(&h[i], &s, i);
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++)
        assert_int_equal(pthread_create(&h[i].thread, NULL, i < PRODUCERS ? produce : consume, &h[i]), 0);
    usleep((useconds_t)(seconds * 1e6));
    s.stop = true;
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(h[i].thread, NULL);
    OK(weir_queue_close(s.queue));
    for (int i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
        pthread_join(h[i].thread, NULL);
    OK(weir_queue_wait_idle(s.queue, 10 * (int64_t)WR_NS_PER_SEC));
    assert_all_came(&s, h);
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++)
        assert_int_equal(close_hand(&h[i]), 0);
    OK(weir_queue_destroy(s.queue));
}

static void test_threads_get_the_right_words_from_every_kind_of_queue(void **state)
{
    (void)state;
    weir_pool_options o = {.struct_size = sizeof o, .device_kind = kind};
    OK(weir_pool_open(&o, &pool));
    for (int order = WEIR_ORDER_FIFO; order <= WEIR_ORDER_PRIORITY; order++)
        run((weir_order)order, WEIR_CONSUMERS_LOOSE);
    for (int consumers = WEIR_CONSUMERS_STRICT; consumers <= WEIR_CONSUMERS_LATEST; consumers++)
        run(WEIR_ORDER_FIFO, (weir_consumers)consumers);
    OK(close_pool_within(pool, WR_NS_PER_SEC));
}

int main(int argc, char **argv)
{
    if (argc > 1) seconds = strtod(argv[1], NULL);
    if (argc > 2) kind = argv[2];
    if (wr_device_get(kind, 0, &device) != WEIR_OK) {
        printf("skipped: %s\n", weir_error_text());
        return 77;
    }
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion in a thread can't jump to the test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_get_the_right_words_from_every_kind_of_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
