/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other prefetch queues ran into, each by its number in the list of reports: wrong once
 * elsewhere, right here. Sizes are scaled down where the simulation would have to move real gigabytes.
 */
#define _GNU_SOURCE 1 /* RUSAGE_THREAD */
#include "queue_world.h"
#include "queue.h" /* the copy stream, to stall it */

#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

enum { KIB = 1024, MIB = 1024 * 1024 };

static const int64_t SECOND = 1000000000;

static uint64_t now(struct world *w)
{
    return w->device->ops->now_ns(w->device);
}

static uint32_t first_word(struct world *w, weir_dptr device)
{
    uint32_t word;
    wr_sim_peek(w->sim, device, &word, sizeof word);
    return word;
}

static void stall(struct world *w, weir_stream s, struct wr_sim_gate **gate)
{
    OK(wr_sim_stall(w->device, s, gate));
}

/* ---- no overlap -------------------------------------------------------------------------------------- */

enum { STEPS = 100, STEP_BYTES = 4000000 };

/* A training loop at depth 2 in one thread: the next batch is pushed, then this one computed on. */
static void train(uint64_t kernel_ns, uint64_t at_most_ns, unsigned flags)
{
    struct world w;
    open_virtual(&w, STEP_BYTES, 2);
    void *batch;
    OK(weir_host_alloc(w.pool, STEP_BYTES, &batch));
    write_words(batch, STEP_BYTES, 1);
    weir_span span = {batch, STEP_BYTES};
    uint64_t start = now(&w);
    OK(weir_queue_push(w.queue, &span, 1, flags, -1, NULL));
    for (int i = 0; i < STEPS; i++) {
        if (i < STEPS - 1) OK(weir_queue_push(w.queue, &span, 1, flags, -1, NULL));
        weir_item item;
        OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item));
        OK(wr_kernels_spin(w.device, w.stream[0], kernel_ns));
        OK(weir_queue_release(w.queue, &item, NULL, 0));
    }
    wr_sim_drain(w.sim);
    assert_in_range(now(&w) - start, 1, at_most_ns);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(counts_of(&w).stream_waits, s.stream_waits_copy + s.stream_waits_slot);
    OK(weir_host_free(w.pool, batch, WEIR_NO_STREAM));
    close_world(&w);
}

static void test_Q01_copy_and_compute_overlap(void **state)
{
    (void)state;
    const uint64_t copy_ns = 10000 + STEP_BYTES / 12, long_ns = 500000, short_ns = 100000;
    for (unsigned flags = WEIR_PUSH_COPY; flags <= WEIR_PUSH_BORROW; flags++) {
        train(long_ns, long_ns * STEPS * 103 / 100 + copy_ns, flags);
        train(short_ns, copy_ns * STEPS * 103 / 100 + copy_ns, flags);
    }
}

static void test_Q01_a_free_slot_is_filled_now_however_busy_the_consumer(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 1 * MIB, 3);
    struct wr_sim_gate *gate;
    OK(feed(&w, 1 * MIB, 1, 0));
    wr_sim_drain(w.sim);
    stall(&w, w.stream[0], &gate);
    eat(&w, 1, 0);
    OK(feed(&w, 1 * MIB, 2, 0));
    wr_sim_drain(w.sim);
    weir_item item;
    OK(weir_queue_acquire(w.queue, w.stream[1], 0, &item));
    assert_int_equal(first_word(&w, item.device), 2);
    read_item_on(&w, &item, 2, 1);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    assert_int_equal(stats_of(w.queue).stream_waits_slot, 0);
    wr_sim_gate_open(gate);
    close_world(&w);
}

static void test_Q02_pageable_memory_goes_through_staging_and_push_returns(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 64 * KIB, 2);
    struct wr_sim_gate *gate;
    stall(&w, w.stream[0], &gate);
    uint32_t pageable[KIB];
    write_words(pageable, sizeof pageable, 3);
    void *pinned;
    OK(weir_host_alloc(w.pool, 4 * KIB, &pinned));
    write_words(pinned, 4 * KIB, 3);
    uint64_t start = now(&w), ticket;
    OK(weir_queue_push(w.queue, &(weir_span){pageable, sizeof pageable}, 1, WEIR_PUSH_COPY, 0, NULL));
    /* A nested batch, one leaf of which is pageable: that one is staged, and counted. */
    weir_span leaves[] = {{pinned, 2 * KIB}, {pageable, KIB}, {(char *)pinned + 2 * KIB, 2 * KIB}};
    OK(weir_queue_push(w.queue, leaves, 3, WEIR_PUSH_BORROW, 0, &ticket));
    memset(pageable, 0, sizeof pageable);
    assert_int_equal(now(&w), start);
    assert_int_equal(stats_of(w.queue).staged_pageable_bytes, KIB);
    assert_int_equal(stats_of(w.queue).borrowed_bytes, 4 * KIB);
    wr_sim_gate_open(gate);
    eat(&w, 3, 0);
    eat(&w, 3, 0);
    OK(weir_queue_borrowed(w.queue, ticket, SECOND));
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    close_world(&w);
}

/* ---- wrong data -------------------------------------------------------------------------------------- */

static void test_Q07_a_pinned_slot_is_not_refilled_before_its_copy(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 16 * KIB, 2);
    struct wr_sim_gate *compute, *copies;
    stall(&w, w.stream[0], &compute);
    stall(&w, w.queue->copier.stream, &copies);
    OK(feed(&w, 16 * KIB, 0, 0));
    OK(feed(&w, 16 * KIB, 1, 0));
    weir_item third;
    assert_int_equal(weir_queue_reserve(w.queue, 16 * KIB, 0, &third), WEIR_WOULD_BLOCK);
    eat(&w, 0, 0);
    eat(&w, 1, 0);
    /* The device slots may be queued for again, but the pinned ones still hold what no copy has read. */
    assert_int_equal(weir_queue_reserve(w.queue, 16 * KIB, 0, &third), WEIR_WOULD_BLOCK);
    wr_sim_gate_open(copies);
    wr_sim_gate_open(compute);
    for (uint32_t i = 2; i < 100; i++) {
        OK(feed(&w, 16 * KIB, i, -1));
        eat(&w, i, 0);
        OK(wr_kernels_spin(w.device, w.stream[0], 20000000));
    }
    close_world(&w);
}

static void read_on_any_stream(struct world *w, weir_stream s)
{
    weir_dptr counter;
    OK(weir_alloc(w->pool, sizeof(uint64_t), s, &counter));
    OK(w->device->ops->fill(w->device, counter, 0, sizeof(uint64_t), s));
    for (uint32_t i = 0; i < 100; i++) {
        weir_item item;
        OK(feed(w, 16 * KIB, i, -1));
        OK(weir_queue_acquire(w->queue, s, 0, &item));
        OK(wr_kernels_verify(w->device, s, item.device, item.bytes, i, counter));
        OK(weir_queue_release(w->queue, &item, NULL, 0));
    }
    wr_sim_drain(w->sim);
    uint64_t wrong;
    wr_sim_peek(w->sim, counter, &wrong, sizeof wrong);
    assert_int_equal(wrong, 0);
    OK(weir_free(w->pool, counter, s));
}

/* That the test would fail with the wait left out is tested in test_queue_faults. */
static void test_Q08_acquire_orders_any_kind_of_stream_after_the_copy(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 16 * KIB, 2);
    weir_stream streams[] = {w.stream[0], NULL, (weir_stream)1, (weir_stream)2};
    for (size_t i = 0; i < WR_ARRAY_LEN(streams); i++)
        read_on_any_stream(&w, streams[i]);
    close_world(&w);
}

static void test_Q10_what_is_written_after_the_push_does_not_arrive(void **state)
{
    (void)state;
    struct world w;
    enum { FLOATS = 1000000, BYTES = FLOATS * 4 };
    open_virtual(&w, BYTES, 2);
    void *floats;
    OK(weir_host_alloc(w.pool, BYTES, &floats));
    write_words(floats, BYTES, 8);
    OK(weir_queue_push(w.queue, &(weir_span){floats, BYTES}, 1, WEIR_PUSH_COPY, 0, NULL));
    write_words((char *)floats + BYTES - 4, 4, UINT32_MAX);
    eat(&w, 8, 0);

    weir_item item, copy;
    OK(weir_queue_reserve(w.queue, BYTES, 0, &item));
    write_item(&w, &item, 9);
    copy = item;
    OK(weir_queue_commit(w.queue, &item));
    assert_null(item.host);
    assert_int_equal(weir_queue_commit(w.queue, &copy), WEIR_STALE_HANDLE);
    eat(&w, 9, 0);

    write_words(floats, BYTES, 10);
    uint64_t ticket;
    OK(weir_queue_push(w.queue, &(weir_span){floats, BYTES}, 1, WEIR_PUSH_BORROW, -1, &ticket));
    assert_int_equal(weir_queue_borrowed(w.queue, ticket, 0), WEIR_WOULD_BLOCK);
    OK(weir_queue_borrowed(w.queue, ticket, SECOND));
    wr_sim_host_access(w.sim, floats, BYTES, true);
    memset(floats, 0, BYTES);
    eat(&w, 10, 0);
    OK(weir_host_free(w.pool, floats, WEIR_NO_STREAM));
    close_world(&w);
}

struct second_thread {
    struct world *w;
    const weir_item *item;
};

static void *declare_use(void *arg)
{
    const struct second_thread *t = arg;
    read_item_on(t->w, t->item, 1, 1);
    OK(weir_queue_use(t->w->queue, t->item, t->w->stream[1]));
    return NULL;
}

/* One slot, read on streams 0, 1 and 2, of which `stalled` ends last. */
static void read_by_three(int stalled)
{
    struct world w;
    open_virtual(&w, 16 * KIB, 1);
    weir_item item;
    OK(feed(&w, 16 * KIB, 1, 0));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    weir_dptr slot = item.device;
    for (int i = 1; i < 3; i++) { /* the user's own joins */
        struct wr_mark copied;
        OK(wr_pool_mark(w.pool, w.stream[0], &copied));
        OK(wr_mark_wait(copied, w.stream[i]));
    }
    wr_sim_drain(w.sim);
    struct wr_sim_gate *gate;
    stall(&w, w.stream[stalled], &gate);
    struct second_thread t = {&w, &item};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, declare_use, &t), 0);
    pthread_join(thread, NULL);
    read_item_on(&w, &item, 1, 0);
    read_item_on(&w, &item, 1, 2);
    weir_stream named[] = {w.stream[0], w.stream[2]};
    OK(weir_queue_release(w.queue, &item, named, 2));

    OK(feed(&w, 16 * KIB, 2, -1));
    wr_sim_drain(w.sim);
    assert_int_equal(first_word(&w, slot), 1);
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    assert_int_equal(first_word(&w, slot), 2);
    eat(&w, 2, 3);
    close_world(&w);
}

static void test_Q12_a_slot_is_reused_after_the_last_of_all_its_readers(void **state)
{
    (void)state;
    for (int stalled = 0; stalled < 3; stalled++)
        read_by_three(stalled);
}

/* ---- shutdown and errors ----------------------------------------------------------------------------- */

static void test_Q16_a_short_source_ends_without_delay(void **state)
{
    (void)state;
    enum { DEPTH = 6 };
    for (uint32_t k = 0; k <= DEPTH; k++) {
        struct world w;
        open_virtual(&w, 4 * KIB, DEPTH);
        for (uint32_t i = 0; i < k; i++)
            OK(feed(&w, 4 * KIB, i, 0));
        OK(weir_queue_close(w.queue));
        uint64_t start = now(&w);
        for (uint32_t i = 0; i < k; i++)
            eat(&w, i, 0);
        weir_item item;
        assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], -1, &item), WEIR_CLOSED);
        assert_int_equal(now(&w), start);
        close_world(&w);
    }
}

struct crowd {
    struct world w;
    _Atomic uint32_t committed, delivered;
    size_t largest;
};

struct member {
    struct crowd *crowd;
    pthread_t thread;
    uint64_t random;
    uint32_t rounds;
};

static void *produce(void *arg)
{
    struct member *m = arg;
    struct world *w = &m->crowd->w;
    for (uint32_t i = 0; i < m->rounds; i++) {
        weir_item item;
        size_t bytes = 4 + next_random(&m->random) % m->crowd->largest / 4 * 4;
        int64_t timeout = next_random(&m->random) % 4 ? -1 : 0;
        weir_status s = weir_queue_reserve(w->queue, bytes, timeout, &item);
        if (s == WEIR_WOULD_BLOCK) continue;
        OK(s);
        if (next_random(&m->random) % 3 == 0) {
            OK(weir_queue_abort(w->queue, &item));
            continue;
        }
        write_item(w, &item, (uint32_t)bytes);
        OK(weir_queue_commit(w->queue, &item));
        m->crowd->committed++;
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct member *m = arg;
    struct world *w = &m->crowd->w;
    int stream = (int)(m->random % WORLD_STREAMS);
    weir_item item;
    while (weir_queue_acquire(w->queue, w->stream[stream], -1, &item) == WEIR_OK) {
        read_item_on(w, &item, (uint32_t)item.bytes, stream);
        OK(weir_queue_release(w->queue, &item, NULL, 0));
        m->crowd->delivered++;
    }
    return NULL;
}

static void run_crowd(struct crowd *c, unsigned producers, unsigned consumers, uint32_t rounds)
{
    struct member m[32];
    for (unsigned i = 0; i < producers + consumers; i++) {
        m[i] = (struct member){.crowd = c, .random = i + 1, .rounds = rounds};
        assert_int_equal(pthread_create(&m[i].thread, NULL, i < producers ? produce : consume, &m[i]), 0);
    }
    for (unsigned i = 0; i < producers; i++)
        pthread_join(m[i].thread, NULL);
    OK(weir_queue_close(c->w.queue));
    for (unsigned i = producers; i < producers + consumers; i++)
        pthread_join(m[i].thread, NULL);
    assert_int_equal(c->committed, c->delivered);
    assert_int_equal(stats_of(c->w.queue).items_released, c->delivered);
    assert_true(c->delivered > 0);
}

static void test_Q18_sixteen_threads_on_two_slots_come_to_an_end(void **state)
{
    (void)state;
    struct crowd c = {.largest = 4 * KIB};
    open_wall(&c.w, 4 * KIB, 2);
    run_crowd(&c, 12, 4, 60);
    close_world(&c.w);
}

static void *push_from_a_fresh_thread(void *arg)
{
    struct world *w = arg;
    uint32_t words[KIB];
    write_words(words, sizeof words, 5);
    OK(weir_queue_push(w->queue, &(weir_span){words, sizeof words}, 1, WEIR_PUSH_COPY, 0, NULL));
    return NULL;
}

/* That a thread's current context stays as it is is tested where there are contexts, in test_device_cuda. */
static void test_Q20_the_queue_fills_its_own_device_from_any_thread(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("gtx1080-pcie3x2")};
    weir_queue_options q = queue_options(4 * KIB, 2);
    open_world(&w, &o, 1, &q);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, push_from_a_fresh_thread, &w), 0);
    pthread_join(thread, NULL);
    size_t free_bytes[2], total;
    for (unsigned i = 0; i < 2; i++) {
        struct wr_device *d = wr_sim_device(w.sim, i);
        OK(d->ops->mem_info(d, &free_bytes[i], &total));
    }
    assert_int_equal(free_bytes[0], total);
    assert_true(free_bytes[1] < total);
    eat(&w, 5, 0);
    close_world(&w);
}

/* ---- memory and order -------------------------------------------------------------------------------- */

static void test_Q21_all_limits_hold_together_with_eight_producers(void **state)
{
    (void)state;
    struct crowd c = {.largest = 64 * KIB};
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(64 * KIB, 6);
    q.device_bytes = 200 * KIB;
    q.pinned_bytes = 130 * KIB;
    open_world(&c.w, &o, 0, &q);
    weir_item item;
    assert_int_equal(weir_queue_reserve(c.w.queue, 64 * KIB + 1, -1, &item), WEIR_TOO_LARGE);
    run_crowd(&c, 8, 2, 60);
    weir_queue_stats s = stats_of(c.w.queue);
    assert_in_range(s.peak_device_bytes, 1, 200 * KIB);
    assert_in_range(s.peak_pinned_bytes, 1, 130 * KIB);
    close_world(&c.w);
}

static void test_Q22_items_of_any_size_need_no_memory_after_the_first(void **state)
{
    (void)state;
    struct world w;
    enum { LARGEST = 64 * KIB, ITEMS = 5000, WARM = 100 };
    open_virtual(&w, LARGEST, 4);
    uint64_t random = 22;
    struct wr_sim_counts warm = {0};
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (i == WARM) warm = counts_of(&w);
        size_t bytes = LARGEST / 16 + next_random(&random) % (LARGEST - LARGEST / 16) / 4 * 4;
        weir_item item;
        OK(weir_queue_reserve(w.queue, bytes, -1, &item));
        write_words(item.host, 4, i);
        OK(weir_queue_commit(w.queue, &item));
        if (i < 3) continue;
        OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
        OK(wr_kernels_verify(w.device, w.stream[0], item.device, 4, i - 3, w.counter[0]));
        OK(weir_queue_release(w.queue, &item, NULL, 0));
    }
    struct wr_sim_counts end = counts_of(&w);
    assert_int_equal(end.registrations, warm.registrations);
    assert_int_equal(end.events_created, warm.events_created);
    assert_int_equal(end.host_syncs, 0);
    assert_int_equal(stats_of(w.queue).peak_pinned_bytes, 4 * LARGEST);
    close_world(&w);
}

/* Commits in the order of the permutation's digits; `aborted` does not come. */
static void commit_permuted(const int *order, uint32_t aborted)
{
    struct world w;
    open_virtual(&w, 4 * KIB, 4);
    weir_item item[4];
    for (int i = 0; i < 4; i++)
        OK(weir_queue_reserve(w.queue, 64, 0, &item[i]));
    for (int i = 0; i < 4; i++) {
        uint32_t k = (uint32_t)order[i];
        write_item(&w, &item[k], k);
        OK(k == aborted ? weir_queue_abort(w.queue, &item[k]) : weir_queue_commit(w.queue, &item[k]));
    }
    for (uint32_t k = 0; k < 4; k++)
        if (k != aborted) eat(&w, k, 0);
    weir_item none;
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &none), WEIR_WOULD_BLOCK);
    close_world(&w);
}

static void test_Q24_order_is_the_order_of_reserve(void **state)
{
    (void)state;
    for (int n = 0; n < 256; n++) {
        int order[4] = {n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6 & 3};
        bool permutes = (1 << order[0] | 1 << order[1] | 1 << order[2] | 1 << order[3]) == 15;
        if (permutes) commit_permuted(order, (uint32_t)n % 4);
    }
}

static void test_Q25_just_after_a_pop_the_depth_is_in_flight(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 4; depth++) {
        struct world w;
        open_virtual(&w, 4 * KIB, depth + 1); /* and the one that the consumer holds */
        uint32_t pushed = 0, popped = 0;
        while (popped < 20) {
            weir_item item;
            while (feed(&w, 4 * KIB, pushed, 0) == WEIR_OK)
                pushed++;
            OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
            assert_int_equal(pushed - ++popped, depth);
            read_item_on(&w, &item, popped - 1, 0);
            OK(weir_queue_release(w.queue, &item, NULL, 0));
            wr_sim_advance(w.sim, 100000);
        }
        while (popped < pushed)
            eat(&w, popped++, 0);
        close_world(&w);
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

struct sleeper {
    struct world *w;
    weir_queue *queue;
    bool consumes;
    pthread_t thread;
    uint64_t cpu_us;
};

static uint64_t thread_cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void *wait_ten_seconds(void *arg)
{
    struct sleeper *s = arg;
    weir_item item;
    uint64_t before = thread_cpu_us();
    weir_status got = s->consumes ? weir_queue_acquire(s->queue, s->w->stream[0], 10 * SECOND, &item)
                                  : weir_queue_reserve(s->queue, 16, 10 * SECOND, &item);
    assert_int_equal(got, WEIR_TIMEOUT);
    s->cpu_us = thread_cpu_us() - before;
    return NULL;
}

/* Three queues: an empty one, a full one, and one whose only pinned slot waits for its copy. */
static void test_Q27_waiting_costs_no_processor_time_and_says_for_what(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, 16, 1);
    struct sleeper s[3] = {{.w = &w, .queue = w.queue, .consumes = true}};
    weir_queue_options full = queue_options(16, 1), staged = queue_options(16, 2);
    staged.pinned_bytes = 16;
    OK(weir_queue_open(w.pool, &full, &s[1].queue));
    OK(weir_queue_open(w.pool, &staged, &s[2].queue));
    struct wr_sim_gate *gate;
    stall(&w, s[2].queue->copier.stream, &gate);
    for (int i = 1; i < 3; i++)
        OK(weir_queue_push(s[i].queue, &(weir_span){"0123456789abcdef", 16}, 1, WEIR_PUSH_COPY, 0, NULL));
    for (int i = 0; i < 3; i++) {
        s[i].w = &w;
        assert_int_equal(pthread_create(&s[i].thread, NULL, wait_ten_seconds, &s[i]), 0);
    }
    nanosleep(&(struct timespec){5, 0}, NULL);
    weir_queue_stats half[3] = {stats_of(s[0].queue), stats_of(s[1].queue), stats_of(s[2].queue)};
    assert_int_equal(half[0].waiting_item, 1);
    assert_int_equal(half[1].waiting_slot, 1);
    assert_int_equal(half[2].waiting_pinned, 1);
    for (int i = 0; i < 3; i++) {
        assert_true(half[i].longest_wait_ns > 4 * (uint64_t)SECOND);
        pthread_join(s[i].thread, NULL);
        print_message("Q27: %llu us of processor time in 10 s\n", (unsigned long long)s[i].cpu_us);
        assert_in_range(s[i].cpu_us, 0, 49999);
        assert_int_equal(stats_of(s[i].queue).host_syncs, 0);
    }
    wr_sim_gate_open(gate);
    OK(weir_queue_destroy(s[1].queue));
    OK(weir_queue_destroy(s[2].queue));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_Q01_copy_and_compute_overlap),
        cmocka_unit_test(test_Q01_a_free_slot_is_filled_now_however_busy_the_consumer),
        cmocka_unit_test(test_Q02_pageable_memory_goes_through_staging_and_push_returns),
        cmocka_unit_test(test_Q07_a_pinned_slot_is_not_refilled_before_its_copy),
        cmocka_unit_test(test_Q08_acquire_orders_any_kind_of_stream_after_the_copy),
        cmocka_unit_test(test_Q10_what_is_written_after_the_push_does_not_arrive),
        cmocka_unit_test(test_Q12_a_slot_is_reused_after_the_last_of_all_its_readers),
        cmocka_unit_test(test_Q16_a_short_source_ends_without_delay),
        cmocka_unit_test(test_Q18_sixteen_threads_on_two_slots_come_to_an_end),
        cmocka_unit_test(test_Q20_the_queue_fills_its_own_device_from_any_thread),
        cmocka_unit_test(test_Q21_all_limits_hold_together_with_eight_producers),
        cmocka_unit_test(test_Q22_items_of_any_size_need_no_memory_after_the_first),
        cmocka_unit_test(test_Q24_order_is_the_order_of_reserve),
        cmocka_unit_test(test_Q25_just_after_a_pop_the_depth_is_in_flight),
        cmocka_unit_test(test_Q27_waiting_costs_no_processor_time_and_says_for_what),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
