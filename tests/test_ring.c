/* SPDX-License-Identifier: Apache-2.0
 *
 * The replay ring on the simulated device.
 */
#include "ring_world.h"

#define MS ((int64_t)1000000)

static void end_clean(struct ring_world *r)
{
    wr_sim_drain(r->w.sim);
    assert_int_equal(wrong_words(&r->w), 0);
    assert_int_equal(counts_of(&r->w).host_syncs, 0);
    assert_no_reports(&r->w);
    close_ring(r);
}

static weir_ring_stats ring_stats(struct ring_world *r)
{
    weir_ring_stats s = {.struct_size = sizeof s};
    OK(weir_ring_get_stats(r->ring, &s));
    return s;
}

static void test_batches_hold_the_rows_as_they_were_when_sampled(void **state)
{
    (void)state;
    struct ring_world r;
    open_ring(&r);
    run_ring(&r, 40);
    weir_ring_stats s = ring_stats(&r);
    assert_int_equal(s.inserts, ROWS + 40 * WRITES);
    assert_int_equal(s.samples, 40 * BATCH);
    assert_int_equal(s.rows_held, ROWS);
    assert_true(counts_of(&r.w).launches >= 40); /* gathered by the kernel */
    end_clean(&r);
}

static void test_a_ring_over_a_queue_without_kernels_launches_none(void **state)
{
    (void)state;
    struct ring_world r;
    struct batch b;
    struct wr_sim_options sim = world_options();
    weir_ring_options o = ring_options();
    weir_queue_options q = queue_options(BATCH * ROW_BYTES, 2);
    q.flags = WEIR_QUEUE_NO_KERNELS;
    open_ring_on(&r, &sim, q, &o);
    OK(write_rows(&r, ROWS));
    OK(sample_rows(&r, &b, -1));
    wr_sim_drain(r.w.sim);
    assert_int_equal(counts_of(&r.w).launches, 0);
    read_batch(&r, &b);
    end_clean(&r);
}

static void test_a_writer_does_not_wait_for_a_gather_that_is_held_up(void **state)
{
    (void)state;
    struct ring_world r;
    struct wr_sim_gate *gate;
    struct batch b[3];
    open_ring(&r);
    for (int i = 0; i < ROWS / WRITES; i++)
        OK(write_rows(&r, WRITES));
    OK(weir_ring_written(r.ring, -1));
    for (int i = 0; i < 2; i++) {
        OK(sample_rows(&r, &b[i], 0));
        read_batch(&r, &b[i]);
    }
    OK(wr_sim_stall(r.w.device, r.w.stream[0], &gate)); /* the slots' readers do not end */
    OK(sample_rows(&r, &b[0], 0));
    read_batch(&r, &b[0]);
    OK(sample_rows(&r, &b[2], 0)); /* its gather waits for the consumer */
    OK(write_rows(&r, WRITES));    /* and these rows for it */
    assert_int_equal(weir_ring_written(r.ring, 0), WEIR_WOULD_BLOCK);
    wr_sim_gate_open(gate);
    read_batch(&r, &b[2]);
    end_clean(&r);
}

static void test_the_ratio_holds_samplers_back_until_rows_are_written(void **state)
{
    (void)state;
    struct ring_world r;
    struct batch b;
    weir_ring_options o = ring_options();
    o.min_rows = 2 * WRITES;
    o.samples_per_insert = 2;
    o.slack = BATCH - 2 * WRITES;
    open_ring_with(&r, &o);
    OK(write_rows(&r, WRITES));
    const size_t first[] = {0, 1};
    assert_int_equal(weir_ring_sample(r.ring, 0, first, 2, 0, NULL), WEIR_WOULD_BLOCK); /* min_rows */
    OK(write_rows(&r, WRITES));
    for (size_t i = 0; i < BATCH; i++) {
        b.index[i] = i % (2 * WRITES);
        b.tag[i] = r.tag[b.index[i]];
    }
    OK(weir_ring_sample(r.ring, 0, b.index, BATCH, 0, NULL)); /* 48 of 64 + 16 */
    assert_int_equal(weir_ring_sample(r.ring, 0, b.index, BATCH, 5 * MS, NULL), WEIR_TIMEOUT);
    OK(weir_ring_sample(r.ring, 0, b.index, 2 * WRITES, 0, NULL)); /* up to the limit */
    assert_int_equal(weir_ring_sample(r.ring, 0, b.index, 1, 0, NULL), WEIR_WOULD_BLOCK);
    assert_int_equal(ring_stats(&r).ratio_waits, 3);
    assert_int_equal(ring_stats(&r).samples, BATCH + 2 * WRITES);
    read_batch(&r, &b);
    OK(weir_queue_clear(r.w.queue));
    end_clean(&r);
}

static void test_bad_input_is_a_typed_error(void **state)
{
    (void)state;
    struct ring_world r;
    weir_ring *none;
    weir_queue *upload;
    open_ring(&r);
    weir_ring_options o = ring_options();
    weir_queue_options q = queue_options(100, 2);
    const size_t beyond = ROWS, unwritten = 3, all[BATCH + 1] = {0};
    OK(weir_queue_open(r.w.pool, &q, &upload));
    assert_int_equal(weir_ring_open(r.w.pool, upload, &o, &none), WEIR_INVALID_ARGUMENT);
    OK(weir_queue_destroy(upload));
    assert_int_equal(weir_ring_open(r.w.pool, r.w.queue, NULL, &none), WEIR_INVALID_ARGUMENT);
    o.samples_per_insert = -1;
    assert_int_equal(weir_ring_open(r.w.pool, r.w.queue, &o, &none), WEIR_INVALID_ARGUMENT);
    o = ring_options();
    o.rows = SIZE_MAX;
    assert_int_equal(weir_ring_open(r.w.pool, r.w.queue, &o, &none), WEIR_INVALID_ARGUMENT);
    OK(write_rows(&r, 2));
    assert_int_equal(weir_ring_insert(r.ring, r.host, ROWS + 1, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_ring_insert(r.ring, NULL, 1, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_ring_sample(r.ring, 0, &beyond, 1, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_ring_sample(r.ring, 0, &unwritten, 1, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_ring_sample(r.ring, 0, all, 0, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_ring_sample(r.ring, 0, all, BATCH + 1, 0, NULL), WEIR_TOO_LARGE);
    assert_int_equal(ring_stats(&r).samples, 0);
    OK(weir_queue_close(r.w.queue));
    assert_int_equal(weir_ring_sample(r.ring, 0, all, 1, -1, NULL), WEIR_CLOSED);
    OK(weir_ring_close(r.ring));
    assert_int_equal(weir_ring_sample(r.ring, 0, all, 1, 0, NULL), WEIR_CLOSED);
    assert_int_equal(weir_ring_insert(r.ring, r.host, 1, 0, NULL), WEIR_CLOSED);
    assert_int_equal(weir_ring_close(r.ring), WEIR_CLOSED);
    OK(weir_queue_destroy(r.w.queue));
    OK(weir_queue_open(r.w.pool, &q, &r.w.queue)); /* for the world's end to destroy */
    wr_sim_drain(r.w.sim);
    OK(weir_host_free(r.w.pool, r.host, NULL));
    assert_no_reports(&r.w);
    assert_int_equal(end_world(&r.w), 0);
}

/* ---- several samplers, each a thread ------------------------------------------------------------------ */

static void open_threaded(struct ring_world *r, const weir_ring_options *o)
{
    struct wr_sim_options sim = world_options();
    sim.wall_clock = true;
    open_ring_on(r, &sim, queue_options(BATCH * ROW_BYTES, 4), o);
}

struct sampler {
    struct ring_world *r;
    size_t n; /* rows */
    int64_t timeout_ns;
    uint64_t ticket;
    pthread_t thread;
};

static void *sample_one(void *arg)
{
    struct sampler *s = arg;
    const size_t index[BATCH] = {0};
    return (void *)(intptr_t)weir_ring_sample(s->r->ring, 0, index, s->n, s->timeout_ns, &s->ticket);
}

/* Returns when it waits, or has waited, for the ratio. */
static void start_sampler(struct ring_world *r, struct sampler *s, size_t n, int64_t timeout_ns)
{
    uint64_t before = ring_stats(r).ratio_waits;
    *s = (struct sampler){.r = r, .n = n, .timeout_ns = timeout_ns};
    assert_int_equal(pthread_create(&s->thread, NULL, sample_one, s), 0);
    while (ring_stats(r).ratio_waits == before)
        sched_yield();
}

static weir_status join_sampler(struct sampler *s)
{
    void *result;
    assert_int_equal(pthread_join(s->thread, &result), 0);
    return (weir_status)(intptr_t)result;
}

static void test_close_wakes_all_samplers_that_wait_for_rows(void **state)
{
    (void)state;
    struct ring_world r;
    struct sampler s[3];
    weir_ring_options o = ring_options();
    open_threaded(&r, &o);
    for (unsigned i = 0; i < 3; i++)
        start_sampler(&r, &s[i], 1, -1);
    OK(weir_ring_close(r.ring));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(join_sampler(&s[i]), WEIR_CLOSED);
    OK(weir_host_free(r.w.pool, r.host, NULL));
    close_world(&r.w);
}

/* One asks for many rows, those behind it for few: each row written would be enough for one of them. */
static void test_samplers_that_wait_for_the_ratio_are_served_in_the_order_of_their_calls(void **state)
{
    (void)state;
    struct ring_world r;
    struct sampler s[3];
    const size_t index = 0;
    weir_ring_options o = ring_options();
    o.samples_per_insert = 1;
    open_threaded(&r, &o);
    start_sampler(&r, &s[0], WRITES, -1);
    OK(write_rows(&r, WRITES / 2));
    assert_int_equal(weir_ring_sample(r.ring, 0, &index, 1, 0, NULL), WEIR_WOULD_BLOCK);
    start_sampler(&r, &s[1], 1, -1);
    start_sampler(&r, &s[2], 1, -1);
    assert_int_equal(ring_stats(&r).samples, 0);
    assert_int_equal(ring_stats(&r).samplers_waiting, 3);
    OK(write_rows(&r, WRITES / 2));
    OK(join_sampler(&s[0]));
    assert_int_equal(ring_stats(&r).samplers_waiting, 2);
    OK(write_rows(&r, 1));
    OK(join_sampler(&s[1]));
    OK(write_rows(&r, 1));
    OK(join_sampler(&s[2]));
    assert_true(s[0].ticket < s[1].ticket && s[1].ticket < s[2].ticket);
    assert_int_equal(ring_stats(&r).samples, WRITES + 2);
    OK(weir_queue_clear(r.w.queue));
    end_clean(&r);
}

/* The row that is there is enough for the second, once the first has given up. */
static void test_a_sampler_that_gives_up_holds_nobody_back(void **state)
{
    (void)state;
    struct ring_world r;
    struct sampler large;
    const size_t index = 0;
    weir_ring_options o = ring_options();
    o.samples_per_insert = 1;
    open_threaded(&r, &o);
    OK(write_rows(&r, 1));
    start_sampler(&r, &large, WRITES, 200 * MS);
    OK(weir_ring_sample(r.ring, 0, &index, 1, -1, NULL));
    assert_int_equal(join_sampler(&large), WEIR_TIMEOUT);
    OK(weir_queue_clear(r.w.queue));
    end_clean(&r);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

/* Calls are made again until they succeed: nothing of a failed one may be left behind. */
static bool run_with_failure(uint64_t n)
{
    struct ring_world r;
    struct batch b;
    open_ring(&r);
    for (int i = 0; i < ROWS / WRITES; i++)
        OK(write_rows(&r, WRITES));
    uint64_t before = wr_sim_calls(r.w.sim);
    wr_sim_fail_nth(r.w.sim, n, WEIR_DRIVER_ERROR);
    for (int i = 0; i < 4; i++) {
        weir_item item;
        while (sample_rows(&r, &b, 1000 * MS) != WEIR_OK) {
        }
        while (write_rows(&r, WRITES) != WEIR_OK) {
        }
        while (weir_queue_acquire(r.w.queue, r.w.stream[0], 1000 * MS, &item) != WEIR_OK) {
        }
        for (size_t k = 0; k < BATCH; k++)
            while (wr_kernels_verify(r.w.device, r.w.stream[0], item.device + k * ROW_BYTES, ROW_BYTES,
                       b.tag[k], r.w.counter[0]) != WEIR_OK) {
            }
        while (weir_queue_release(r.w.queue, &item, NULL, 0) != WEIR_OK) {
        }
    }
    bool over = wr_sim_calls(r.w.sim) - before < n;
    wr_sim_fail_nth(r.w.sim, 0, WEIR_OK);
    assert_int_equal(ring_stats(&r).samples, 4 * BATCH);
    assert_int_equal(ring_stats(&r).rows_held, ROWS);
    end_clean(&r);
    return over;
}

static void test_any_failing_call_leaves_the_ring_whole(void **state)
{
    (void)state;
    for (uint64_t n = 1; !run_with_failure(n); n++)
        assert_true(n < 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_hold_the_rows_as_they_were_when_sampled),
        cmocka_unit_test(test_a_ring_over_a_queue_without_kernels_launches_none),
        cmocka_unit_test(test_a_writer_does_not_wait_for_a_gather_that_is_held_up),
        cmocka_unit_test(test_the_ratio_holds_samplers_back_until_rows_are_written),
        cmocka_unit_test(test_bad_input_is_a_typed_error),
        cmocka_unit_test(test_close_wakes_all_samplers_that_wait_for_rows),
        cmocka_unit_test(test_samplers_that_wait_for_the_ratio_are_served_in_the_order_of_their_calls),
        cmocka_unit_test(test_a_sampler_that_gives_up_holds_nobody_back),
        cmocka_unit_test(test_any_failing_call_leaves_the_ring_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
