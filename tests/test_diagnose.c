/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_queue_diagnose: each cause is named where it is at work, by itself, and none where all is well.
 */
#include "copy_pair.h"
#include "weir_diagnose.h"

#include <pthread.h>
#include <stdlib.h>

enum { BYTES = 1 << 20 };

static weir_diagnosis diagnose(weir_queue *q, weir_engine *engine)
{
    weir_diagnosis d = {.struct_size = sizeof d};
    OK(weir_queue_diagnose(q, engine, &d));
    return d;
}

/* That cause and no other, in words too. */
static void assert_cause(weir_queue *q, weir_engine *engine, unsigned cause, const char *word)
{
    weir_diagnosis d = diagnose(q, engine);
    assert_int_equal(d.causes, cause);
    if (!strstr(d.text, word)) fail_msg("no \"%s\" in: %s", word, d.text);
    assert_ptr_equal(strchr(d.text, '\n'), d.text + strlen(d.text) - 1); /* one line */
}

static int clear_environment(void **state)
{
    (void)state;
    return unsetenv("CUDA_DEVICE_MAX_CONNECTIONS") | unsetenv("CUDA_MODULE_LOADING");
}

static void eat_on(struct world *w, weir_stream stream)
{
    weir_item item;
    OK(weir_queue_acquire(w->queue, stream, -1, &item));
    OK(weir_queue_release(w->queue, &item, NULL, 0));
}

static void feed_and_eat(struct world *w, size_t bytes, unsigned n)
{
    for (uint32_t i = 0; i < n; i++) {
        OK(feed(w, bytes, i, -1));
        eat(w, i, 0);
    }
}

static void test_nothing_is_named_where_all_is_well(void **state)
{
    (void)state;
    struct world w;
    void *batch;
    open_virtual(&w, BYTES, 4);
    OK(weir_host_alloc(w.pool, BYTES, &batch));
    write_words(batch, BYTES, 5);
    assert_cause(w.queue, NULL, 0, "nothing");
    feed_and_eat(&w, BYTES, 20);
    feed_and_eat(&w, 4096, 20);
    for (int i = 0; i < 10; i++) {
        OK(weir_queue_push(w.queue, &(weir_span){batch, BYTES}, 1, WEIR_PUSH_BORROW, -1, NULL));
        eat(&w, 5, 1);
    }
    OK(weir_queue_wait_idle(w.queue, -1));
    assert_cause(w.queue, NULL, 0, "nothing");
    OK(weir_host_free(w.pool, batch, WEIR_NO_STREAM));
    close_world(&w);
}

static void test_pageable_memory_is_named(void **state)
{
    (void)state;
    struct world w;
    uint32_t *batch = malloc(BYTES);
    assert_non_null(batch);
    write_words(batch, BYTES, 5);
    open_virtual(&w, BYTES, 2);
    feed_and_eat(&w, BYTES, 21); /* below 5 % */
    OK(weir_queue_push(w.queue, &(weir_span){batch, BYTES}, 1, WEIR_PUSH_BORROW, -1, NULL));
    eat(&w, 5, 0);
    assert_cause(w.queue, NULL, 0, "nothing");
    OK(weir_queue_push(w.queue, &(weir_span){batch, BYTES}, 1, WEIR_PUSH_BORROW, -1, NULL));
    eat(&w, 5, 0);
    assert_cause(w.queue, NULL, WEIR_SLOW_PAGEABLE, "pageable memory: 9 %");
    free(batch);
    close_world(&w);
}

static void test_reading_on_the_null_stream_is_named(void **state)
{
    (void)state;
    weir_stream names[] = {NULL, (weir_stream)1};
    for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
        struct world w;
        open_virtual(&w, BYTES, 2);
        OK(feed(&w, BYTES, 1, -1));
        eat_on(&w, names[i]);
        assert_cause(w.queue, NULL, WEIR_SLOW_NULL_STREAM, "NULL stream: 1 items");
        OK(weir_queue_wait_idle(w.queue, -1));
        close_world(&w);
    }
}

static void test_a_declared_use_on_the_null_stream_is_named(void **state)
{
    (void)state;
    struct world w;
    weir_item item;
    open_virtual(&w, BYTES, 2);
    OK(feed(&w, BYTES, 1, -1));
    OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item));
    assert_cause(w.queue, NULL, 0, "nothing");
    OK(weir_queue_use(w.queue, &item, NULL));
    assert_cause(w.queue, NULL, WEIR_SLOW_NULL_STREAM, "NULL stream: 1 items");
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(weir_queue_wait_idle(w.queue, -1));
    close_world(&w);
}

/* Five streams: the world's and the queue's own. */
static void test_more_streams_than_hardware_queues_are_named(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, BYTES, 2);
    feed_and_eat(&w, BYTES, 2);
    unsigned streams = diagnose(w.queue, NULL).streams;
    assert_int_equal(streams, WORLD_STREAMS + 1);
    OK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "5", 1));
    assert_cause(w.queue, NULL, 0, "nothing");
    OK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1));
    assert_cause(w.queue, NULL, WEIR_SLOW_FEW_QUEUES, "too few hardware queues: 4 for 5");
    OK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "nonsense", 1)); /* as if not set: 8 */
    assert_cause(w.queue, NULL, 0, "nothing");
    close_world(&w);
}

/* ---- a kernel loaded at its first launch ------------------------------------------------------------- */

static const uint64_t load_ns = 60000000;

struct launcher {
    struct world *w;
    _Atomic bool over;
};

/* Three kernels, each for the first time. */
static void *launch_first(void *launcher)
{
    struct launcher *l = launcher;
    struct world *w = l->w;
    weir_dptr block;
    OK(weir_alloc(w->pool, 4096, w->stream[1], &block));
    OK(wr_kernels_spin(w->device, w->stream[1], 1));
    OK(wr_kernels_fill(w->device, w->stream[1], block, 4096, 1));
    OK(wr_kernels_verify(w->device, w->stream[1], block, 4096, 1, w->counter[1]));
    OK(weir_free(w->pool, block, w->stream[1]));
    atomic_store(&l->over, true);
    return NULL;
}

static void pass_lent(struct world *w, const void *batch)
{
    OK(weir_queue_push(w->queue, &(weir_span){batch, 4096}, 1, WEIR_PUSH_BORROW, -1, NULL));
    eat_on(w, w->stream[0]);
}

/* Items go through the queue while the other thread is in its launches, so that some of their calls are stuck. */
static weir_diagnosis pass_beside_first_launches(struct world *w, void **batch)
{
    pthread_t thread;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(4096, 2);
    o.wall_clock = true;
    o.lazy_load_ns = load_ns;
    open_world(w, &o, 0, &q);
    struct launcher l = {.w = w};
    OK(weir_host_alloc(w->pool, 4096, batch));
    pass_lent(w, *batch);
    assert_int_equal(pthread_create(&thread, NULL, launch_first, &l), 0);
    while (!atomic_load(&l.over))
        pass_lent(w, *batch);
    pthread_join(thread, NULL);
    return diagnose(w->queue, NULL);
}

static void close_after_batch(struct world *w, void *batch)
{
    OK(weir_queue_wait_idle(w->queue, -1));
    OK(weir_host_free(w->pool, batch, WEIR_NO_STREAM));
    close_world(w);
}

static void test_calls_stuck_behind_lazy_loading_are_named(void **state)
{
    (void)state;
    struct world w;
    void *batch;
    weir_diagnosis d = pass_beside_first_launches(&w, &batch);
    for (int i = 0; i < 10 && d.slow_calls == 0;
         i++) { /* a busy machine ran this thread at other times only */
        close_after_batch(&w, batch);
        d = pass_beside_first_launches(&w, &batch);
    }
    assert_true(d.slow_calls > 0);
    assert_in_range(d.slowest_call_ns, 5000000, 1000 * load_ns);
    assert_cause(w.queue, NULL, WEIR_SLOW_LAZY_LOADING, "lazy loading");
    OK(setenv("CUDA_MODULE_LOADING", "EAGER", 1)); /* then it was something else */
    assert_cause(w.queue, NULL, 0, "nothing");
    close_after_batch(&w, batch);
}

/* ---- sizes, and peers -------------------------------------------------------------------------------- */

static void test_a_small_item_behind_large_ones_is_named(void **state)
{
    (void)state;
    struct world w;
    enum { LARGE = 40 << 20, SMALL = 64 << 10 };
    open_virtual(&w, LARGE, 3);
    OK(feed(&w, LARGE, 0, -1));
    wr_sim_drain(w.sim);
    OK(feed(&w, SMALL, 1, -1)); /* nothing is ahead of it any more */
    eat(&w, 0, 0);
    eat(&w, 1, 0);
    OK(weir_queue_wait_idle(w.queue, -1));
    assert_cause(w.queue, NULL, 0, "nothing");
    OK(feed(&w, LARGE, 2, -1));
    OK(feed(&w, SMALL, 3, -1));
    assert_cause(w.queue, NULL, WEIR_SLOW_BIG_BEFORE_SMALL, "big copies ahead of small: 1 small");
    eat(&w, 2, 0);
    eat(&w, 3, 0);
    close_world(&w);
}

static void test_a_link_without_peer_access_is_named(void **state)
{
    (void)state;
    for (int staged = 0; staged <= 1; staged++) {
        struct pair p;
        weir_queue_options o = queue_options(BYTES, 2);
        open_pair(&p, staged, false);
        OK(weir_engine_link(p.c.engine, p.peer));
        OK(weir_queue_open(p.c.w.pool, &o, &p.c.w.queue));
        OK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1)); /* the engine has streams of its own */
        if (staged)
            assert_cause(p.c.w.queue, p.c.engine, WEIR_SLOW_NO_PEER, "no peer access");
        else
            assert_cause(p.c.w.queue, p.c.engine, 0, "nothing");
        OK(weir_queue_destroy(p.c.w.queue));
        p.c.w.queue = NULL;
        close_pair(&p);
    }
}

static void test_a_diagnosis_of_nothing_is_refused(void **state)
{
    (void)state;
    struct world w;
    weir_diagnosis d = {.struct_size = 4};
    open_virtual(&w, BYTES, 2);
    assert_int_equal(weir_queue_diagnose(w.queue, NULL, &d), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_diagnose(w.queue, NULL, NULL), WEIR_INVALID_ARGUMENT);
    d.struct_size = sizeof d;
    assert_int_equal(weir_queue_diagnose(NULL, NULL, &d), WEIR_INVALID_ARGUMENT);
    OK(weir_queue_destroy(w.queue));
    assert_int_equal(weir_queue_diagnose(w.queue, NULL, &d), WEIR_CLOSED);
    assert_int_equal(d.causes, 0);
    assert_int_equal(end_world(&w), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_is_named_where_all_is_well),
        TEST(test_pageable_memory_is_named),
        TEST(test_reading_on_the_null_stream_is_named),
        TEST(test_a_declared_use_on_the_null_stream_is_named),
        TEST(test_more_streams_than_hardware_queues_are_named),
        TEST(test_calls_stuck_behind_lazy_loading_are_named),
        TEST(test_a_small_item_behind_large_ones_is_named),
        TEST(test_a_link_without_peer_access_is_named),
        TEST(test_a_diagnosis_of_nothing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
