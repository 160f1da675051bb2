/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated graphs: what the oracle says of launches, and of what must not be done to them. What every device does is
 * in conformance_graph.c.
 */
#include "sim_world.h"

static wr_graph capture_reader(struct fixture *f, weir_stream s, wr_event wait, wr_event record)
{
    wr_graph g;
    assert_int_equal(f->ops->graph_begin(f->d, s), WEIR_OK);
    if (wait) assert_int_equal(f->ops->stream_wait_external(f->d, s, wait), WEIR_OK);
    download(f, s, MIB);
    if (record) assert_int_equal(f->ops->event_record_external(f->d, record, s), WEIR_OK);
    assert_int_equal(f->ops->graph_end(f->d, s, &g), WEIR_OK);
    return g;
}

static void launch(struct fixture *f, wr_graph g, weir_stream s)
{
    assert_int_equal(f->ops->graph_launch(f->d, g, s), WEIR_OK);
}

static void drop_graph(struct fixture *f, wr_graph g)
{
    assert_int_equal(f->ops->graph_destroy(f->d, g), WEIR_OK);
}

static void test_a_capture_accesses_nothing(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d), writer = new_stream(f.d);
    fill(&f, writer, 0, MIB, 1);
    wr_graph g = capture_reader(&f, s, NULL, NULL);
    assert_int_equal(wr_sim_reports(f.world), 0);
    drop_graph(&f, g);
    drop(f.d, s, NULL);
    drop(f.d, writer, NULL);
    close_clean(&f);
}

static void test_a_launch_that_waits_for_its_writer_is_clean(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d), writer = new_stream(f.d);
    wr_event ready = new_event(f.d), read = new_event(f.d);
    wr_graph g = capture_reader(&f, s, ready, read);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(f.ops->stream_wait(f.d, writer, read), WEIR_OK);
        fill(&f, writer, 0, MIB, 1);
        assert_int_equal(f.ops->event_record(f.d, ready, writer), WEIR_OK);
        launch(&f, g, s);
    }
    drop_graph(&f, g);
    drop(f.d, s, ready);
    drop(f.d, writer, read);
    close_clean(&f);
}

static void test_a_launch_that_does_not_wait_for_its_writer_is_reported(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d), writer = new_stream(f.d);
    wr_graph g = capture_reader(&f, s, NULL, NULL);
    fill(&f, writer, 0, MIB, 1);
    launch(&f, g, s);
    drop_graph(&f, g);
    drop(f.d, s, NULL);
    drop(f.d, writer, NULL);
    close_reported(&f, "reads");
}

static void test_a_write_under_a_launch_that_still_reads_is_reported(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d), writer = new_stream(f.d);
    wr_event read = new_event(f.d);
    wr_graph g = capture_reader(&f, s, NULL, read);
    launch(&f, g, s);
    assert_int_equal(f.ops->stream_wait(f.d, writer, read), WEIR_OK);
    launch(&f, g, s); /* the wait was for the launch before */
    fill(&f, writer, 0, MIB, 1);
    drop_graph(&f, g);
    drop(f.d, s, read);
    drop(f.d, writer, NULL);
    close_reported(&f, "writes");
}

static void test_a_launch_after_the_end_of_an_event_of_its_is_reported_and_does_nothing(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    wr_event e = new_event(f.d);
    wr_graph g = capture_reader(&f, s, NULL, e);
    drop(f.d, NULL, e);
    assert_int_equal(f.ops->graph_launch(f.d, g, s), WEIR_INVALID_ARGUMENT);
    wr_sim_host_access(f.world, f.host, MIB, true); /* no copy is on its way there */
    drop_graph(&f, g);
    drop(f.d, s, NULL);
    close_reported(&f, "dead handle");
}

static void test_a_broken_capture_ends_without_a_graph(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    wr_event e = new_event(f.d);
    wr_graph g = NULL;
    assert_int_equal(f.ops->graph_begin(f.d, s), WEIR_OK);
    assert_int_equal(f.ops->event_record_context(f.d, e), WEIR_CAPTURING);
    assert_int_equal(f.ops->graph_end(f.d, s, &g), WEIR_CAPTURING);
    assert_null(g);
    download(&f, s, MIB); /* the stream is free again */
    drop(f.d, s, e);
    close_reported(&f, "capture broken");
}

static void test_the_legacy_stream_and_one_that_captures_begin_no_capture(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    wr_graph g = NULL;
    assert_int_equal(f.ops->graph_begin(f.d, NULL), WEIR_CAPTURING);
    assert_int_equal(f.ops->graph_end(f.d, s, &g), WEIR_INVALID_ARGUMENT);
    assert_int_equal(f.ops->graph_begin(f.d, s), WEIR_OK);
    assert_int_equal(f.ops->graph_begin(f.d, s), WEIR_CAPTURING);
    drop(f.d, s, NULL); /* the capture goes with it */
    close_clean(&f);
}

static void test_a_graph_that_is_left_is_a_leak(void **state)
{
    (void)state;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("gtx1080-pcie3")};
    struct wr_sim *world;
    wr_graph g;
    assert_int_equal(wr_sim_open(&o, &world), WEIR_OK);
    struct wr_device *d = wr_sim_device(world, 0);
    weir_stream s = new_stream(d);
    assert_int_equal(d->ops->graph_begin(d, s), WEIR_OK);
    assert_int_equal(d->ops->graph_end(d, s, &g), WEIR_OK);
    assert_int_equal(d->ops->stream_destroy(d, s), WEIR_OK);
    assert_int_equal(wr_sim_close(world), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_capture_accesses_nothing),
        cmocka_unit_test(test_a_launch_that_waits_for_its_writer_is_clean),
        cmocka_unit_test(test_a_launch_that_does_not_wait_for_its_writer_is_reported),
        cmocka_unit_test(test_a_write_under_a_launch_that_still_reads_is_reported),
        cmocka_unit_test(test_a_launch_after_the_end_of_an_event_of_its_is_reported_and_does_nothing),
        cmocka_unit_test(test_a_broken_capture_ends_without_a_graph),
        cmocka_unit_test(test_the_legacy_stream_and_one_that_captures_begin_no_capture),
        cmocka_unit_test(test_a_graph_that_is_left_is_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
