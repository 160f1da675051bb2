/* SPDX-License-Identifier: Apache-2.0
 *
 * Credits: what a queue may take at most, and that it takes no more; of the host neither, once it is warm.
 *
 * Linked with -Wl,--wrap for the host's allocation calls, so that they can be counted.
 */
#include "queue_world.h"

#include "../bench/null_device.h"
#include "slots.h"

#include <pthread.h>
#include <time.h>

enum { KIB = 1024 };

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);

static _Atomic unsigned long n_mallocs;

void *__wrap_malloc(size_t n)
{
    n_mallocs++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    n_mallocs++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    n_mallocs++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    n_mallocs++;
    return __real_aligned_alloc(align, n);
}

/* ---- arithmetic -------------------------------------------------------------------------------------- */

/* Nothing is allocated: only what it would count. */
static void test_credits_count_in_64_bits(void **state)
{
    (void)state;
    const size_t gib = (size_t)1 << 30;
    struct wr_slots s;
    OK(wr_slots_init(&s, WR_SLOTS_DEVICE, 8, 8 * gib, 20 * gib));
    struct wr_slot *taken[3];
    static const size_t sizes[] = {8, 8, 4};
    for (int i = 0; i < 3; i++) {
        struct wr_slots_choice c = wr_slots_choose(&s, sizes[i] * gib);
        assert_int_equal(c.what, WR_SLOTS_TAKE);
        assert_int_equal(c.capacity, sizes[i] * gib);
        wr_slots_take(&s, c.slot, c.capacity);
        taken[i] = c.slot;
    }
    assert_int_equal(s.used, 20 * gib);
    assert_int_equal(wr_slots_choose(&s, 1).what, WR_SLOTS_WAIT);
    wr_slots_give(&s, taken[1]);
    assert_int_equal(wr_slots_choose(&s, 8 * gib).what, WR_SLOTS_TAKE);
    assert_int_equal(s.peak, 20 * gib);
    wr_slots_give(&s, taken[0]);
    wr_slots_give(&s, taken[2]);
    assert_int_equal(s.used, 0);
    wr_slots_fini(&s);
}

/* ---- the limit --------------------------------------------------------------------------------------- */

enum { PRODUCERS = 6, CONSUMERS = 3, ROUNDS = 40 };

struct crowd {
    struct world w;
    size_t largest;
    _Atomic uint64_t in_hand, most; /* bytes reserved, committed or held, as the callers know them */
    _Atomic unsigned blocked_seen;
};

struct member {
    struct crowd *crowd;
    pthread_t thread;
    uint64_t random;
    int stream;
};

static void add(struct crowd *c, uint64_t bytes)
{
    uint64_t now = atomic_fetch_add(&c->in_hand, bytes) + bytes, most = c->most;
    while (now > most && !atomic_compare_exchange_weak(&c->most, &most, now)) {
    }
}

static void *produce(void *arg)
{
    struct member *m = arg;
    struct world *w = &m->crowd->w;
    for (int i = 0; i < ROUNDS; i++) {
        weir_item item;
        size_t bytes = 4 + next_random(&m->random) % m->crowd->largest / 4 * 4;
        OK(weir_queue_reserve(w->queue, bytes, -1, &item));
        add(m->crowd, bytes);
        write_item(w, &item, (uint32_t)bytes);
        OK(weir_queue_commit(w->queue, &item));
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct member *m = arg;
    struct world *w = &m->crowd->w;
    weir_item item;
    while (weir_queue_acquire(w->queue, w->stream[m->stream], -1, &item) == WEIR_OK) {
        read_item_on(w, &item, (uint32_t)item.bytes, m->stream);
        if (next_random(&m->random) % 4 == 0) nanosleep(&(struct timespec){0, 300000}, NULL);
        atomic_fetch_sub(&m->crowd->in_hand, item.bytes);
        OK(weir_queue_release(w->queue, &item, NULL, 0));
    }
    return NULL;
}

/* What the queue takes is looked at while it works, in its own books, in the callers' and in the pool's. */
static void watch(struct crowd *c, const weir_queue_options *q)
{
    for (bool over = false; !over;) {
        weir_queue_stats s = stats_of(c->w.queue);
        weir_stats p = {.struct_size = sizeof p};
        OK(weir_pool_stats(c->w.pool, &p));
        assert_true(s.device_bytes <= q->device_bytes && s.pinned_bytes <= q->pinned_bytes);
        assert_true(p.live_bytes <= q->device_bytes + WORLD_STREAMS * 512);
        assert_true(p.pinned_live_bytes <= q->pinned_bytes + q->items * 4 * 64);
        c->blocked_seen += s.waiting_slot + s.waiting_pinned > 0;
        over = s.items_pushed == (uint64_t)PRODUCERS * ROUNDS;
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

static void test_peak_bytes_stay_below_the_limit_with_producers_blocked_and_items_in_hand(void **state)
{
    (void)state;
    struct crowd c = {.largest = 64 * KIB};
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(64 * KIB, 8);
    q.device_bytes = 150 * KIB;
    q.pinned_bytes = 100 * KIB;
    open_world(&c.w, &o, 0, &q);
    struct member m[PRODUCERS + CONSUMERS];
    for (int i = 0; i < PRODUCERS + CONSUMERS; i++) {
        m[i] = (struct member){.crowd = &c, .random = (uint64_t)i + 1, .stream = i % WORLD_STREAMS};
        assert_int_equal(pthread_create(&m[i].thread, NULL, i < PRODUCERS ? produce : consume, &m[i]), 0);
    }
    watch(&c, &q);
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(m[i].thread, NULL);
    OK(weir_queue_close(c.w.queue));
    for (int i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
        pthread_join(m[i].thread, NULL);
    assert_in_range(c.most, 64 * KIB, q.device_bytes);
    assert_true(c.blocked_seen > 0);
    weir_queue_stats s = stats_of(c.w.queue);
    assert_true(s.peak_device_bytes <= q.device_bytes && s.peak_pinned_bytes <= q.pinned_bytes);
    close_world(&c.w);
}

/* ---- the host's memory ------------------------------------------------------------------------------- */

static void run_rounds(
    weir_queue *q, bool registered, weir_consumer *c, const weir_stream *stream, int rounds)
{
    static char bytes[16 * KIB];
    for (int i = 0; i < rounds; i++) {
        weir_span span[] = {{bytes, 100 + (size_t)i * 97 % 8000}, {bytes, 4000}};
        weir_item item, peeked;
        OK(weir_queue_reserve_key(q, i, 16 * KIB, 0, &item));
        OK(i % 3 ? weir_queue_commit(q, &item) : weir_queue_abort(q, &item));
        OK(weir_queue_put(q, i, span, 2, i % 2 ? WEIR_PUSH_BORROW : WEIR_PUSH_COPY, 0, NULL));
        if (!registered) OK(weir_queue_peek(q, 0, stream[2], 0, &peeked));
        for (int k = 0; k < (registered ? 2 : 1); k++)
            while (registered ? weir_queue_acquire_as(q, c[k], stream[k], 0, &item) == WEIR_OK
                              : weir_queue_acquire(q, stream[k], 0, &item) == WEIR_OK) {
                OK(weir_queue_use(q, &item, stream[2]));
                OK(weir_queue_release(q, &item, stream, 2));
            }
        if (!registered) OK(weir_queue_release(q, &peeked, NULL, 0));
        assert_int_equal(weir_queue_poisoned(q, NULL, NULL), WEIR_INVALID_ARGUMENT);
        OK(weir_queue_wait_idle(q, 0));
    }
}

/* On a device that keeps no books of its own, which would be counted, too. */
static void test_a_warm_queue_allocates_no_host_memory(void **state)
{
    (void)state;
    struct wr_device d;
    wr_null_device_init(&d, (size_t)1 << 30);
    for (int kind = 0; kind < 5; kind++) {
        weir_pool_options defaults = {.struct_size = sizeof defaults};
        weir_pool *pool;
        weir_queue *q;
        weir_stream stream[3];
        weir_consumer c[2] = {0};
        OK(wr_pool_open(&d, &defaults, &pool));
        for (int i = 0; i < 3; i++)
            OK(d.ops->stream_create(&d, &stream[i]));
        weir_queue_options o = queue_options(16 * KIB, 6);
        o.device_bytes = o.pinned_bytes = 80 * KIB;
        o.consumers = (weir_consumers)kind;
        OK(weir_queue_open(pool, &o, &q));
        bool registered = kind == WEIR_CONSUMERS_SHARED || kind == WEIR_CONSUMERS_BROADCAST;
        for (int i = 0; i < 2 && registered; i++)
            OK(weir_queue_join(q, &c[i]));
        run_rounds(q, registered, c, stream, 200);
        unsigned long before = n_mallocs;
        run_rounds(q, registered, c, stream, 2000);
        assert_int_equal(n_mallocs, before);
        OK(weir_queue_destroy(q));
        for (int i = 0; i < 3; i++)
            OK(weir_stream_retire(pool, stream[i]));
        weir_status s = weir_pool_close(pool);
        if (s == WEIR_NOT_YET) OK(weir_pool_close(pool));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_credits_count_in_64_bits),
        cmocka_unit_test(test_peak_bytes_stay_below_the_limit_with_producers_blocked_and_items_in_hand),
        cmocka_unit_test(test_a_warm_queue_allocates_no_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
