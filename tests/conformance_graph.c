/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam's contract: graphs, and events as their nodes. See conformance.h.
 */
#include "conformance.h"

static void await(wr_event e)
{
    uint64_t start = dev->ops->now_ns(dev);
    while (!is_done(dev, e)) {
        assert_true(dev->ops->now_ns(dev) - start < GIVEN);
        doze(20000);
    }
}

static void begin(void)
{
    ok(dev->ops->graph_begin(dev, stream));
}

static wr_graph end(void)
{
    wr_graph g;
    ok(dev->ops->graph_end(dev, stream, &g));
    return g;
}

static void launch_on(wr_graph g, weir_stream s)
{
    ok(dev->ops->graph_launch(dev, g, s));
}

static void drop_graph(wr_graph g)
{
    ok(dev->ops->graph_destroy(dev, g));
}

static void fill_byte(unsigned char byte, weir_stream s)
{
    ok(dev->ops->fill(dev, slab.va, byte, 1, s));
}

/* The slab's first byte goes to its second place. */
static void move_byte(weir_stream s)
{
    ok(dev->ops->copy(dev, WR_COPY_D2D, slab.va + WR_MIB, slab.va, 1, s));
}

static void test_captured_work_runs_once_for_each_launch(void **state)
{
    (void)state;
    uint64_t counter = slab.va + SLAB - 8;
    uint64_t *wrong = (uint64_t *)(void *)host;
    ok(dev->ops->fill(dev, slab.va, 0, SLAB, stream));
    begin();
    ok(wr_kernels_verify(dev, stream, slab.va, 8, 1, counter)); /* two words are wrong, each time */
    wr_graph g = end();
    for (int launches = 0; launches <= 3; launches++) {
        download(wrong, counter, 8, stream);
        sync_all();
        assert_int_equal(*wrong, 2 * launches);
        launch_on(g, stream);
    }
    sync_all();
    drop_graph(g);
}

static void test_a_graph_reads_memory_as_it_is_at_the_launch(void **state)
{
    (void)state;
    begin();
    move_byte(stream);
    wr_graph g = end();
    for (unsigned char byte = 5; byte < 8; byte++) {
        fill_byte(byte, stream);
        launch_on(g, stream);
        assert_int_equal(read_byte(WR_MIB), byte);
    }
    drop_graph(g);
}

static void test_a_captured_stream_is_free_for_other_work_afterwards(void **state)
{
    (void)state;
    begin();
    struct wr_stream_info info;
    ok(dev->ops->stream_identify(dev, stream, &info));
    assert_true(info.capturing);
    move_byte(stream);
    wr_graph g = end();
    assert_true(identify(stream) != 0);
    drop_graph(g);
}

static void test_each_launch_records_the_event_anew(void **state)
{
    (void)state;
    wr_event e = new_event(dev);
    begin();
    ok(wr_kernels_spin(dev, stream, BUSY));
    ok(dev->ops->event_record_external(dev, e, stream));
    wr_graph g = end();
    assert_true(is_done(dev, e)); /* a capture records nothing */
    for (int i = 0; i < 2; i++) {
        launch_on(g, stream);
        assert_false(is_done(dev, e)); /* from the launch on, whatever it said before */
        sync_all();
        assert_true(is_done(dev, e));
    }
    drop_event(e);
    drop_graph(g);
}

static void test_a_stream_waits_for_the_place_that_a_launch_records(void **state)
{
    (void)state;
    wr_event e = new_event(dev);
    begin();
    ok(wr_kernels_spin(dev, stream, SOON));
    fill_byte(3, stream);
    ok(dev->ops->event_record_external(dev, e, stream));
    ok(wr_kernels_spin(dev, stream, BUSY));
    wr_graph g = end();
    fill_byte(1, stream);
    launch_on(g, stream);
    ok(dev->ops->stream_wait(dev, other, e));
    move_byte(other);
    wr_event moved = record(dev, other), all = record(dev, stream);
    finish(dev, moved);
    assert_false(is_done(dev, all)); /* not for the whole launch */
    finish(dev, all);
    assert_int_equal(read_byte(WR_MIB), 3);
    drop_event(e);
    drop_graph(g);
}

static void test_a_launch_waits_at_its_node_for_what_was_recorded_before_it(void **state)
{
    (void)state;
    wr_event e = new_event(dev), before = new_event(dev);
    begin();
    ok(dev->ops->event_record_external(dev, before, stream));
    ok(dev->ops->stream_wait_external(dev, stream, e));
    move_byte(stream);
    wr_graph g = end();
    for (unsigned char byte = 1; byte < 4; byte++) {
        make_busy(other);
        fill_byte(byte, other);
        ok(dev->ops->event_record(dev, e, other));
        launch_on(g, stream);
        wr_event launched = record(dev, stream);
        await(before); /* what stands before the node runs meanwhile */
        assert_false(is_done(dev, launched));
        finish(dev, launched);
        assert_int_equal(read_byte(WR_MIB), byte);
    }
    drop_event(e);
    drop_event(before);
    drop_graph(g);
}

/* What is recorded after the launch, before the node has run, is none of its business. */
static void test_a_launch_takes_the_event_as_it_stands(void **state)
{
    (void)state;
    wr_event e = new_event(dev);
    begin();
    ok(dev->ops->stream_wait_external(dev, stream, e));
    move_byte(stream);
    wr_graph g = end();
    make_busy(stream); /* the node can't run yet */
    launch_on(g, stream);
    wr_event launched = record(dev, stream);
    for (int i = 0; i < 4; i++)
        make_busy(other);
    ok(dev->ops->event_record(dev, e, other));
    finish(dev, launched);
    assert_false(is_done(dev, e));
    sync_all();
    drop_event(e);
    drop_graph(g);
}

static void test_nodes_are_refused_where_nothing_is_captured(void **state)
{
    (void)state;
    wr_event e = new_event(dev);
    wr_graph g;
    assert_int_equal(dev->ops->event_record_external(dev, e, stream), WEIR_INVALID_ARGUMENT);
    assert_int_equal(dev->ops->stream_wait_external(dev, stream, e), WEIR_INVALID_ARGUMENT);
    begin();
    assert_int_equal(dev->ops->event_record_external(dev, e, other), WEIR_INVALID_ARGUMENT);
    move_byte(stream);
    g = end(); /* the capture has not suffered */
    launch_on(g, stream);
    sync_all();
    drop_event(e);
    drop_graph(g);
}

static void test_plain_events_are_refused_in_a_capture_and_leave_it_whole(void **state)
{
    (void)state;
    wr_event e = record(dev, other);
    begin();
    assert_int_equal(dev->ops->event_record(dev, e, stream), WEIR_CAPTURING);
    assert_int_equal(dev->ops->stream_wait(dev, stream, e), WEIR_CAPTURING);
    is_done(dev, e);
    fill_byte(9, stream);
    wr_graph g = end();
    launch_on(g, stream);
    assert_int_equal(read_byte(0), 9);
    drop_event(e);
    drop_graph(g);
}

static void test_launches_of_one_graph_run_one_after_the_other(void **state)
{
    (void)state;
    begin();
    ok(wr_kernels_spin(dev, stream, SOON));
    wr_graph g = end();
    uint64_t start = dev->ops->now_ns(dev);
    launch_on(g, stream);
    launch_on(g, other);
    sync_all();
    assert_true(dev->ops->now_ns(dev) - start >= 2 * SOON);
    drop_graph(g);
}

static void test_a_graph_destroyed_under_its_launch_still_runs(void **state)
{
    (void)state;
    begin();
    ok(wr_kernels_spin(dev, stream, SOON));
    fill_byte(7, stream);
    wr_graph g = end();
    fill_byte(1, stream);
    launch_on(g, stream);
    drop_graph(g);
    assert_int_equal(read_byte(0), 7);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_work_runs_once_for_each_launch),
        cmocka_unit_test(test_a_graph_reads_memory_as_it_is_at_the_launch),
        cmocka_unit_test(test_a_captured_stream_is_free_for_other_work_afterwards),
        cmocka_unit_test(test_each_launch_records_the_event_anew),
        cmocka_unit_test(test_a_stream_waits_for_the_place_that_a_launch_records),
        cmocka_unit_test(test_a_launch_waits_at_its_node_for_what_was_recorded_before_it),
        cmocka_unit_test(test_a_launch_takes_the_event_as_it_stands),
        cmocka_unit_test(test_nodes_are_refused_where_nothing_is_captured),
        cmocka_unit_test(test_plain_events_are_refused_in_a_capture_and_leave_it_whole),
        cmocka_unit_test(test_launches_of_one_graph_run_one_after_the_other),
        cmocka_unit_test(test_a_graph_destroyed_under_its_launch_still_runs),
    };
    return run_conformance(argc, argv, tests, WR_ARRAY_LEN(tests));
}
