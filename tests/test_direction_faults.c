/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of the directions' tests: each rule that can be switched off is, and the oracle must notice.
 */
#include "direction_world.h"

static unsigned reports_with(enum flow_kind kind, int fault)
{
    struct flow f;
    open_flow(&f, kind, queue_options(FLOW_BYTES, 2));
    wr_fault_on = fault;
    for (uint32_t i = 1; i <= 20; i++) {
        produce(&f, i);
        if (i > 1) (void)consume(&f, i - 1);
    }
    wr_sim_drain(f.w.sim);
    wr_fault_on = -1;
    unsigned reports = wr_sim_reports(f.w.sim);
    wr_sim_reports_clear(f.w.sim);
    close_flow(&f);
    return reports;
}

static void test_a_run_with_all_rules_on_is_clean(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_int_equal(reports_with(kind, -1), 0);
}

static void test_a_copy_that_begins_before_its_span_is_written_is_noticed(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_true(reports_with(kind, WR_FAULT_QUEUE_SKIPS_AFTER) > 0);
}

static void test_a_span_that_is_overwritten_before_its_copy_is_noticed(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_true(reports_with(kind, WR_FAULT_QUEUE_BORROWED_SKIPS_WAIT) > 0);
}

static void test_an_item_read_before_it_has_come_is_noticed(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_true(reports_with(kind, WR_FAULT_QUEUE_ACQUIRE_SKIPS_WAIT) > 0);
}

static void test_a_staged_copy_that_overtakes_its_first_half_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(FLOW_STAGED, WR_FAULT_QUEUE_HOP_SKIPS_WAIT) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_with_all_rules_on_is_clean),
        cmocka_unit_test(test_a_copy_that_begins_before_its_span_is_written_is_noticed),
        cmocka_unit_test(test_a_span_that_is_overwritten_before_its_copy_is_noticed),
        cmocka_unit_test(test_an_item_read_before_it_has_come_is_noticed),
        cmocka_unit_test(test_a_staged_copy_that_overtakes_its_first_half_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
