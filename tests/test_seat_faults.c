/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of the seats' tests: each rule that can be switched off is, in a run that the oracle finds clean with all
 * rules on, and the oracle must notice.
 */
#include "seat_world.h"

enum { ITEMS = 12 };
static const unsigned kinds[] = {0, WEIR_SEAT_IN_PLACE};

static unsigned end_faulty(struct seating *t)
{
    wr_sim_drain(t->w.sim);
    wr_fault_on = -1;
    unsigned reports = wr_sim_reports(t->w.sim);
    wr_sim_reports_clear(t->w.sim);
    drop_graphs(t);
    OK(weir_seat_close(t->seat));
    end_seating(t);
    return reports;
}

/* Launches, and in between the step as it is, all queued while the first of them is still on its way. */
static unsigned reports_with(unsigned flags, int fault, bool captured)
{
    struct seating t;
    open_seating(&t, flags);
    wr_fault_on = fault;
    for (uint32_t i = 1; i <= ITEMS; i++) {
        weir_item item;
        OK(feed(&t.w, SEAT_ITEM, i, -1));
        take_item(&t, &item);
        if (captured)
            launch_at(&t, item.device);
        else
            run_step(&t);
    }
    return end_faulty(&t);
}

static void assert_noticed(int fault)
{
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++)
        for (int captured = 0; captured < 2; captured++) {
            assert_int_equal(reports_with(kinds[k], -1, captured), 0);
            assert_true(reports_with(kinds[k], fault, captured) > 0);
        }
}

static void test_an_item_that_overwrites_what_a_launch_still_reads_is_noticed(void **state)
{
    (void)state;
    assert_noticed(WR_FAULT_SEAT_SKIPS_READERS);
}

static void test_a_launch_that_does_not_wait_for_its_item_is_noticed(void **state)
{
    (void)state;
    assert_noticed(WR_FAULT_SEAT_SKIPS_READY);
}

/* What the step writes is pushed as an item, to be copied once the step has passed its mark. */
static unsigned reports_of_mark_with(int fault)
{
    struct seating t;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 2);
    weir_dptr block;
    weir_stream after;
    q.direction = WEIR_ON_DEVICE;
    open_seating_in(&t, &o, &q, 0);
    struct wr_device *d = t.w.device;
    OK(weir_alloc(t.w.pool, SEAT_ITEM, t.stream, &block));
    begin_capture(&t);
    OK(wr_kernels_fill(d, t.stream, block, SEAT_ITEM, 5));
    OK(weir_seat_mark(t.seat, t.stream));
    t.graphs[0].graph = end_capture(&t);
    OK(d->ops->graph_launch(d, t.graphs[0].graph, t.stream));
    wr_fault_on = fault;
    OK(weir_seat_marked(t.seat, &after));
    weir_span span = {(const void *)(uintptr_t)block, SEAT_ITEM};
    weir_push_options p = {.struct_size = sizeof p, .flags = WEIR_PUSH_BORROW, .after = &after, .n_after = 1};
    OK(weir_queue_push_after(t.w.queue, &span, 1, &p, NULL));
    OK(weir_queue_borrowed_by(t.w.queue, 0, t.stream));
    OK(weir_free(t.w.pool, block, t.stream));
    return end_faulty(&t);
}

static void test_a_copy_that_begins_before_the_marked_place_is_noticed(void **state)
{
    (void)state;
    assert_int_equal(reports_of_mark_with(-1), 0);
    assert_true(reports_of_mark_with(WR_FAULT_SEAT_SKIPS_MARK) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_item_that_overwrites_what_a_launch_still_reads_is_noticed),
        cmocka_unit_test(test_a_launch_that_does_not_wait_for_its_item_is_noticed),
        cmocka_unit_test(test_a_copy_that_begins_before_the_marked_place_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
