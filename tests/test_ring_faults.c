/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of the ring's tests: each rule that can be switched off is, and the oracle must notice.
 */
#include "ring_world.h"

static unsigned reports_with(int fault)
{
    struct ring_world r;
    open_ring(&r);
    wr_fault_on = fault;
    run_ring(&r, 20);
    wr_sim_drain(r.w.sim);
    wr_fault_on = -1;
    unsigned reports = wr_sim_reports(r.w.sim);
    wr_sim_reports_clear(r.w.sim);
    close_ring(&r);
    return reports;
}

static void test_a_run_with_all_rules_on_is_clean(void **state)
{
    (void)state;
    assert_int_equal(reports_with(-1), 0);
}

static void test_a_row_refreshed_under_its_reader_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_RING_WRITES_UNDER_READER) > 0);
}

static void test_a_gather_before_the_refresh_has_landed_is_noticed(void **state)
{
    (void)state;
    assert_true(reports_with(WR_FAULT_RING_GATHERS_EARLY) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_with_all_rules_on_is_clean),
        cmocka_unit_test(test_a_row_refreshed_under_its_reader_is_noticed),
        cmocka_unit_test(test_a_gather_before_the_refresh_has_landed_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
