/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of the queue's tests: each rule that can be switched off is, in a run that the oracle finds clean
 * with all rules on, and the oracle must notice.
 */
#include "queue_world.h"

enum { ITEM = 64 * 1024, ITEMS = 40 };

/* What the oracle has to say of the program up to here. */
static unsigned end_faulty(struct world *w)
{
    wr_sim_drain(w->sim);
    wr_fault_on = -1;
    unsigned reports = wr_sim_reports(w->sim);
    wr_sim_reports_clear(w->sim);
    assert_int_equal(end_world(w), 0);
    return reports;
}

/* Two slots; each item is read by two streams, and slowly: all that is reused is close behind its last use.
 */
static unsigned reports_with(int fault)
{
    struct world w;
    open_virtual(&w, ITEM, 2);
    wr_fault_on = fault;
    for (uint32_t i = 0; i < ITEMS; i++) {
        weir_item item;
        OK(feed(&w, ITEM, i, -1));
        OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
        struct wr_mark copied;
        OK(wr_pool_mark(w.pool, w.stream[0], &copied));
        OK(wr_mark_wait(copied, w.stream[1]));
        for (int s = 0; s < 2; s++) {
            OK(wr_kernels_spin(w.device, w.stream[s], 100000));
            read_item_on(&w, &item, i, s);
        }
        OK(weir_queue_release(w.queue, &item, w.stream, 2));
    }
    return end_faulty(&w);
}

static void test_a_run_with_all_rules_on_is_clean(void **state)
{
    (void)state;
    assert_int_equal(reports_with(-1), 0);
}

static void test_an_acquire_that_skips_its_wait_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_QUEUE_ACQUIRE_SKIPS_WAIT) > 0);
}

static void test_a_commit_that_skips_its_wait_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_QUEUE_COMMIT_SKIPS_WAIT) > 0);
}

static void test_a_pinned_slot_refilled_too_early_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_QUEUE_REUSES_PINNED) > 0);
}

static void test_a_release_that_forgets_a_stream_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_QUEUE_RELEASE_FORGETS) > 0);
}

/* Three consumers read each item, the last of them slowly, and release it without naming their streams. */
static unsigned reports_of_broadcast_with(int fault)
{
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, 2);
    q.consumers = WEIR_CONSUMERS_BROADCAST;
    open_world(&w, &o, 0, &q);
    weir_consumer c[3];
    for (int i = 0; i < 3; i++)
        OK(weir_queue_join(w.queue, &c[i]));
    wr_fault_on = fault;
    for (uint32_t i = 0; i < ITEMS; i++) {
        OK(feed(&w, ITEM, i, -1));
        for (int k = 0; k < 3; k++) {
            weir_item item;
            OK(weir_queue_acquire_as(w.queue, c[k], w.stream[k], 0, &item));
            OK(wr_kernels_spin(w.device, w.stream[k], k == 2 ? 200000 : 100));
            read_item_on(&w, &item, i, k);
            OK(weir_queue_release(w.queue, &item, NULL, 0));
        }
    }
    return end_faulty(&w);
}

static void test_a_reader_forgotten_among_several_is_noticed(void **state)
{
    (void)state;
    assert_int_equal(reports_of_broadcast_with(-1), 0);
    assert_true(reports_of_broadcast_with(WR_FAULT_QUEUE_BROADCAST_KEEPS_FIRST) > 0);
    assert_true(reports_of_broadcast_with(WR_FAULT_QUEUE_RELEASE_FORGETS_OWN) > 0);
}

/* A producer still writes into what was cancelled, while another's item is copied out of the same memory. */
static unsigned reports_of_cancel_with(int fault)
{
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, 2);
    q.pinned_bytes = 2 * ITEM;
    open_world(&w, &o, 0, &q);
    weir_item cancelled;
    OK(weir_queue_reserve(w.queue, ITEM, 0, &cancelled));
    wr_fault_on = fault;
    OK(weir_queue_cancel(w.queue, cancelled.ticket));
    OK(feed(&w, ITEM, 2, 0));
    write_item(&w, &cancelled, 1);
    return end_faulty(&w);
}

static void test_staging_taken_from_a_producer_that_writes_is_noticed(void **state)
{
    (void)state;
    assert_int_equal(reports_of_cancel_with(-1), 0);
    assert_true(reports_of_cancel_with(WR_FAULT_QUEUE_CANCEL_TAKES_STAGING) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_with_all_rules_on_is_clean),
        cmocka_unit_test(test_an_acquire_that_skips_its_wait_is_noticed),
        cmocka_unit_test(test_a_commit_that_skips_its_wait_is_noticed),
        cmocka_unit_test(test_a_pinned_slot_refilled_too_early_is_noticed),
        cmocka_unit_test(test_a_release_that_forgets_a_stream_is_noticed),
        cmocka_unit_test(test_a_reader_forgotten_among_several_is_noticed),
        cmocka_unit_test(test_staging_taken_from_a_producer_that_writes_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
