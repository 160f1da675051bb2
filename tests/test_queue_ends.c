/* SPDX-License-Identifier: Apache-2.0
 *
 * How queues end, what happens when calls of the driver fail, and callers that are blocked meanwhile.
 */
#include "queue_world.h"

#include <pthread.h>
#include <time.h>

enum { KIB = 1024, MIB = 1024 * 1024 };

static const int64_t SECOND = 1000000000, MILLISECOND = 1000000;

/* ---- the end ----------------------------------------------------------------------------------------- */

static void test_close_delivers_what_there_is(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 3);
    weir_item filling, other;
    OK(feed(&w, 16, 1, 0));
    OK(weir_queue_reserve(w.queue, 16, 0, &filling));
    OK(weir_queue_close(w.queue));
    assert_int_equal(weir_queue_close(w.queue), WEIR_CLOSED);
    assert_int_equal(weir_queue_reserve(w.queue, 16, -1, &other), WEIR_CLOSED);
    eat(&w, 1, 0);
    assert_int_equal(
        weir_queue_acquire(w.queue, w.stream[0], 0, &other), WEIR_WOULD_BLOCK); /* one may come */
    write_item(&w, &filling, 2);
    OK(weir_queue_commit(w.queue, &filling));
    eat(&w, 2, 0);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], -1, &other), WEIR_CLOSED);
    close_world(&w);
}

static void assert_all_closed(struct world *w, weir_item *item)
{
    weir_queue_stats s = {.struct_size = sizeof s};
    weir_span span = {item, sizeof *item};
    assert_int_equal(weir_queue_reserve(w->queue, 16, -1, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_commit(w->queue, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_abort(w->queue, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_push(w->queue, &span, 1, 0, -1, NULL), WEIR_CLOSED);
    assert_int_equal(weir_queue_borrowed(w->queue, 1, -1), WEIR_CLOSED);
    assert_int_equal(weir_queue_acquire(w->queue, w->stream[0], -1, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_use(w->queue, item, w->stream[0]), WEIR_CLOSED);
    assert_int_equal(weir_queue_release(w->queue, item, NULL, 0), WEIR_CLOSED);
    assert_int_equal(weir_queue_close(w->queue), WEIR_CLOSED);
    assert_int_equal(weir_queue_get_stats(w->queue, &s), WEIR_CLOSED);
    assert_int_equal(weir_queue_destroy(w->queue), WEIR_CLOSED);
}

static void test_destroy_never_waits_and_frees_nothing_early(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * MIB, 4);
    OK(feed(&w, 4 * MIB, 1, 0));
    OK(feed(&w, 4 * MIB, 2, 0));
    OK(feed(&w, 4 * MIB, 3, 0));
    struct wr_sim_gate *gate, *other;
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    OK(wr_sim_stall(w.device, w.stream[1], &other));
    weir_item held, filling;
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    eat(&w, 2, 1);
    OK(weir_queue_reserve(w.queue, 4 * MIB, 0, &filling));
    uint64_t start = w.device->ops->now_ns(w.device);
    read_item_on(&w, &held, 1, 0);
    OK(weir_queue_destroy(w.queue));
    assert_int_equal(w.device->ops->now_ns(w.device), start);
    assert_all_closed(&w, &held);

    /* What streams 0 and 1 still read serves nobody; the other two slots do, once their copies are done. */
    wr_sim_drain(w.sim);
    weir_stats s = {.struct_size = sizeof s};
    OK(weir_pool_stats(w.pool, &s));
    assert_true(s.pending_bytes >= 4 * MIB);
    weir_dptr block[4];
    for (int i = 0; i < 4; i++) {
        OK(weir_alloc(w.pool, 4 * MIB, w.stream[2], &block[i]));
        OK(wr_kernels_fill(w.device, w.stream[2], block[i], 4 * MIB, 77));
    }
    wr_sim_drain(w.sim);
    assert_no_reports(&w);
    for (int i = 0; i < 4; i++)
        OK(weir_free(w.pool, block[i], w.stream[2]));
    wr_sim_gate_open(gate);
    wr_sim_gate_open(other);
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    OK(weir_pool_check(w.pool));
    assert_int_equal(end_world(&w), 0);
}

static void test_a_pool_closed_first_ends_with_its_queue(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    assert_int_equal(weir_pool_close(w.pool), WEIR_NOT_YET);
    weir_queue_options o = queue_options(16, 1);
    weir_queue *other;
    assert_int_equal(weir_queue_open(w.pool, &o, &other), WEIR_CLOSED);
    eat(&w, 1, 0);
    OK(feed(&w, 16, 2, -1)); /* the slot that it has, it keeps */
    eat(&w, 2, 0);
    close_world(&w);
}

static void test_a_held_item_outlives_the_stream_that_acquired_it(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * MIB, 1);
    OK(feed(&w, 4 * MIB, 1, 0));
    wr_sim_drain(w.sim);
    weir_stream gone;
    weir_item item;
    OK(w.device->ops->stream_create(w.device, &gone));
    OK(weir_queue_acquire(w.queue, gone, 0, &item));
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(w.device, gone, &gate));
    uint32_t *copy;
    OK(weir_host_alloc(w.pool, 4 * MIB, (void **)&copy));
    OK(w.device->ops->copy(w.device, WR_COPY_D2H, (uintptr_t)copy, item.device, 4 * MIB, gone));
    OK(weir_stream_retire(w.pool, gone));
    OK(w.device->ops->stream_destroy(w.device, gone));
    OK(weir_queue_destroy(w.queue));
    weir_dptr block;
    OK(weir_alloc(w.pool, 4 * MIB, w.stream[0], &block));
    OK(wr_kernels_fill(w.device, w.stream[0], block, 4 * MIB, 2));
    OK(weir_free(w.pool, block, w.stream[0]));
    wr_sim_drain(w.sim);
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    assert_int_equal(copy[0], 1);
    OK(weir_host_free(w.pool, copy, WEIR_NO_STREAM));
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static unsigned eat_all(struct world *w, int stream)
{
    unsigned n = 0;
    weir_item item;
    while (weir_queue_acquire(w->queue, w->stream[stream], 0, &item) == WEIR_OK) {
        weir_queue_use(w->queue, &item, w->stream[3]);
        while (wr_kernels_verify(
                   w->device, w->stream[stream], item.device, item.bytes, 1, w->counter[stream]) != WEIR_OK) {
        }
        while (weir_queue_release(w->queue, &item, NULL, 0) != WEIR_OK) {
        }
        n++;
    }
    return n;
}

/* A producer and a consumer that go on whatever fails: once. Returns the items delivered. */
static unsigned run_whatever_fails(struct world *w)
{
    unsigned delivered = 0;
    void *pinned = NULL;
    while (weir_host_alloc(w->pool, 4 * KIB, &pinned) != WEIR_OK) {
    }
    write_words(pinned, 4 * KIB, 1);
    weir_span span[2] = {{pinned, 2 * KIB}, {(char *)pinned + 3 * KIB, 1 * KIB}};
    for (int i = 0; i < 4; i++) {
        weir_item item;
        if (weir_queue_reserve(w->queue, 4 * KIB, SECOND, &item) == WEIR_OK) {
            write_item(w, &item, 1);
            if (i == 2)
                weir_queue_abort(w->queue, &item);
            else
                weir_queue_commit(w->queue, &item);
        }
        weir_queue_push(w->queue, span, 2, WEIR_PUSH_BORROW, 0, NULL);
        delivered += eat_all(w, i);
        delivered += eat_all(w, i); /* what an acquire that failed has left */
    }
    weir_queue_borrowed(w->queue, 0, SECOND);
    wr_sim_drain(w->sim);
    OK(weir_host_free(w->pool, pinned, WEIR_NO_STREAM));
    return delivered;
}

static void test_any_failing_call_loses_nothing(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct world w;
        struct wr_sim_options o = world_options();
        open_world(&w, &o, 0, NULL);
        uint64_t before = wr_sim_calls(w.sim);
        wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
        weir_queue_options q = queue_options(4 * KIB, 2);
        weir_status s = weir_queue_open(w.pool, &q, &w.queue);
        if (s != WEIR_OK) OK(weir_queue_open(w.pool, &q, &w.queue));
        unsigned delivered = run_whatever_fails(&w);
        assert_in_range(delivered, 6, 7);
        OK(weir_queue_destroy(w.queue));
        bool over = wr_sim_calls(w.sim) - before < n;
        wr_sim_fail_nth(w.sim, 0, WEIR_OK);
        wr_sim_drain(w.sim);
        assert_int_equal(wrong_words(&w), 0);
        assert_no_reports(&w);
        OK(weir_pool_check(w.pool));
        assert_int_equal(end_world(&w), 0);
        if (over) break;
        assert_true(n < 1000);
    }
}

static void test_an_item_whose_fence_failed_still_arrives(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    eat(&w, 1, 0);
    wr_sim_drain(w.sim);
    weir_item item, next;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    write_item(&w, &item, 2);
    struct wr_sim_counts before = counts_of(&w), after;
    wr_sim_fail_nth(w.sim, 2, WEIR_DRIVER_ERROR); /* the first is the copy, the second the record behind it */
    OK(weir_queue_commit(w.queue, &item));
    after = counts_of(&w);
    assert_int_equal(after.copies - before.copies, 1);
    assert_int_equal(after.events_recorded - before.events_recorded, 0);
    assert_int_equal(weir_queue_reserve(w.queue, 16, 0, &next), WEIR_WOULD_BLOCK);
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    read_item_on(&w, &item, 2, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(feed(&w, 16, 3, SECOND)); /* the staging came back, too */
    eat(&w, 3, 0);
    close_world(&w);
}

static void test_an_item_without_memory_takes_no_place(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    open_world(&w, &o, 0, NULL);
    weir_pool_options small = {.struct_size = sizeof small, .limit_bytes = 4 * MIB};
    weir_pool *pool;
    OK(wr_pool_open(w.device, &small, &pool));
    weir_queue_options q = queue_options(4 * MIB, 2);
    OK(weir_queue_open(pool, &q, &w.queue));
    OK(feed(&w, 4 * MIB, 1, 0));
    weir_item item;
    assert_int_equal(weir_queue_reserve(w.queue, 4 * MIB, 0, &item), WEIR_OUT_OF_MEMORY);
    assert_int_equal(stats_of(w.queue).device_bytes, 4 * MIB);
    eat(&w, 1, 0);
    wr_sim_drain(w.sim);
    OK(weir_queue_destroy(w.queue));
    wr_sim_drain(w.sim);
    if (weir_pool_close(pool) == WEIR_NOT_YET) OK(weir_pool_close(pool));
    weir_queue_options again = queue_options(4 * KIB, 1);
    OK(weir_queue_open(w.pool, &again, &w.queue));
    close_world(&w);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

struct caller {
    struct world *w;
    pthread_t thread;
    size_t bytes;
    uint32_t tag;
    weir_status got;
    uint64_t ticket;
    _Atomic bool back;
};

static void *call_reserve(void *arg)
{
    struct caller *c = arg;
    weir_item item;
    c->got = weir_queue_reserve(c->w->queue, c->bytes, -1, &item);
    c->ticket = c->got == WEIR_OK ? item.ticket : 0;
    if (c->got == WEIR_OK) {
        write_item(c->w, &item, c->tag);
        c->got = weir_queue_commit(c->w->queue, &item);
    }
    c->back = true;
    return NULL;
}

static void *call_acquire(void *arg)
{
    struct caller *c = arg;
    weir_item item;
    c->got = weir_queue_acquire(c->w->queue, c->w->stream[0], -1, &item);
    c->back = true;
    return NULL;
}

static void *call_borrowed(void *arg)
{
    struct caller *c = arg;
    c->got = weir_queue_borrowed(c->w->queue, c->ticket, -1);
    c->back = true;
    return NULL;
}

static void start(struct caller *c, struct world *w, void *(*call)(void *))
{
    c->w = w;
    c->back = false;
    assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void await_blocked(struct world *w, uint64_t producers, uint64_t consumers)
{
    for (;;) {
        weir_queue_stats s = stats_of(w->queue);
        if (s.waiting_slot + s.waiting_pinned == producers && s.waiting_item == consumers) return;
        nap();
    }
}

static void test_blocked_producers_are_served_in_their_order(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(1 * MIB, 4);
    q.device_bytes = 1 * MIB;
    open_world(&w, &o, 0, &q);
    weir_item small;
    OK(feed(&w, 64 * KIB, 1, 0));
    OK(weir_queue_reserve(w.queue, 64 * KIB, 0, &small));
    /* The large one comes first and must wait for both; the small one would fit now, but came later. */
    struct caller large = {.bytes = 1 * MIB, .tag = 3}, late = {.bytes = 64 * KIB, .tag = 4};
    start(&large, &w, call_reserve);
    await_blocked(&w, 1, 0);
    start(&late, &w, call_reserve);
    await_blocked(&w, 2, 0);
    weir_item item;
    assert_int_equal(weir_queue_reserve(w.queue, 4, 0, &item), WEIR_WOULD_BLOCK);
    eat(&w, 1, 0);
    nap();
    assert_false(large.back || late.back);
    assert_true(stats_of(w.queue).longest_wait_ns > 0);
    write_item(&w, &small, 2);
    OK(weir_queue_commit(w.queue, &small));
    eat(&w, 2, 0);
    pthread_join(large.thread, NULL);
    OK(large.got);
    eat(&w, 3, 0);
    pthread_join(late.thread, NULL);
    OK(late.got);
    assert_int_equal(late.ticket, large.ticket + 1);
    eat(&w, 4, 0);
    assert_int_equal(stats_of(w.queue).peak_device_bytes, 1 * MIB);
    close_world(&w);
}

static void test_close_wakes_blocked_producers_and_consumers(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, 4 * KIB, 1);
    struct caller producer[3] = {{.bytes = 16}, {.bytes = 16}, {.bytes = 16}}, consumer[3] = {{0}};
    for (int i = 0; i < 3; i++)
        start(&consumer[i], &w, call_acquire);
    await_blocked(&w, 0, 3);
    weir_item item;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    for (int i = 0; i < 3; i++)
        start(&producer[i], &w, call_reserve);
    await_blocked(&w, 3, 3);
    OK(weir_queue_close(w.queue));
    for (int i = 0; i < 3; i++) {
        pthread_join(producer[i].thread, NULL);
        assert_int_equal(producer[i].got, WEIR_CLOSED);
    }
    assert_int_equal(stats_of(w.queue).waiting_item, 3); /* one item may still come */
    OK(weir_queue_abort(w.queue, &item));
    for (int i = 0; i < 3; i++) {
        pthread_join(consumer[i].thread, NULL);
        assert_int_equal(consumer[i].got, WEIR_CLOSED);
    }
    close_world(&w);
}

static void test_destroy_wakes_everyone(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, 4 * KIB, 2);
    struct wr_sim_gate *gate;
    OK(feed(&w, 16, 1, 0));
    OK(feed(&w, 16, 1, 0));
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0);
    eat(&w, 1, 0);
    void *pinned;
    OK(weir_host_alloc(w.pool, 4 * KIB, &pinned));
    write_words(pinned, 4 * KIB, 1);
    struct caller lender = {0}, producer = {.bytes = 16}, consumer = {0};
    OK(weir_queue_push(w.queue, &(weir_span){pinned, 16}, 1, WEIR_PUSH_BORROW, 0, &lender.ticket));
    start(&lender, &w, call_borrowed);
    weir_item held, filling;
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    OK(weir_queue_reserve(w.queue, 16, -1, &filling));
    start(&producer, &w, call_reserve);
    start(&consumer, &w, call_acquire);
    await_blocked(&w, 1, 1);
    OK(weir_queue_destroy(w.queue));
    pthread_join(lender.thread, NULL);
    pthread_join(producer.thread, NULL);
    pthread_join(consumer.thread, NULL);
    assert_int_equal(lender.got, WEIR_CLOSED);
    assert_int_equal(producer.got, WEIR_CLOSED);
    assert_int_equal(consumer.got, WEIR_CLOSED);
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

/* `to` comes after what `from` has queued. */
static void order_streams(struct world *w, weir_stream from, weir_stream to)
{
    struct wr_mark m;
    OK(wr_pool_mark(w->pool, from, &m));
    OK(wr_mark_wait(m, to));
}

struct per_thread {
    struct world *w;
    weir_item item;
};

static void *acquire_on_own_stream(void *arg)
{
    struct per_thread *t = arg;
    struct world *w = t->w;
    weir_stream mine = (weir_stream)2;
    order_streams(w, w->stream[3], mine); /* whose counter it is */
    OK(weir_queue_acquire(w->queue, mine, 0, &t->item));
    OK(wr_kernels_spin(w->device, mine, 20 * MILLISECOND));
    OK(wr_kernels_verify(w->device, mine, t->item.device, t->item.bytes, 1, w->counter[3]));
    order_streams(w, mine, w->stream[3]);
    return NULL;
}

static void test_a_per_thread_stream_is_known_in_other_threads_and_after_its_own(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    struct per_thread t = {.w = &w};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, acquire_on_own_stream, &t), 0);
    pthread_join(thread, NULL);
    OK(weir_queue_release(w.queue, &t.item, NULL, 0)); /* of that thread's stream, not of this one's */
    OK(feed(&w, 16, 2, -1));
    eat(&w, 2, 0);
    wr_sim_drain(w.sim);
    assert_no_reports(&w);

    OK(feed(&w, 16, 1, -1));
    assert_int_equal(pthread_create(&thread, NULL, acquire_on_own_stream, &t), 0);
    pthread_join(thread, NULL);
    OK(weir_queue_destroy(w.queue));
    weir_dptr block;
    OK(weir_alloc(w.pool, 4 * KIB, w.stream[0], &block));
    OK(wr_kernels_fill(w.device, w.stream[0], block, 4 * KIB, 3));
    OK(weir_free(w.pool, block, w.stream[0]));
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_close_delivers_what_there_is),
        cmocka_unit_test(test_destroy_never_waits_and_frees_nothing_early),
        cmocka_unit_test(test_a_held_item_outlives_the_stream_that_acquired_it),
        cmocka_unit_test(test_a_pool_closed_first_ends_with_its_queue),
        cmocka_unit_test(test_any_failing_call_loses_nothing),
        cmocka_unit_test(test_an_item_whose_fence_failed_still_arrives),
        cmocka_unit_test(test_an_item_without_memory_takes_no_place),
        cmocka_unit_test(test_blocked_producers_are_served_in_their_order),
        cmocka_unit_test(test_close_wakes_blocked_producers_and_consumers),
        cmocka_unit_test(test_destroy_wakes_everyone),
        cmocka_unit_test(test_a_per_thread_stream_is_known_in_other_threads_and_after_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
