/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats used wrongly, captures that go wrong, and calls of the device that fail: typed errors, captures left whole,
 * nothing lost.
 */
#include "seat_world.h"

#include <pthread.h>

static const unsigned kinds[] = {0, WEIR_SEAT_IN_PLACE};

/* The step entered in the capture reads what is there, and becomes the first graph. */
static void end_step_and_launch(struct seating *t, weir_dptr at)
{
    read_address(t, at);
    OK(weir_seat_leave(t->seat, t->stream));
    t->graphs[0].address = at;
    t->graphs[0].graph = end_capture(t);
    launch_at(t, at);
}

/* ---- captures ---------------------------------------------------------------------------------------- */

static void test_an_acquire_on_a_capturing_stream_is_refused_and_leaves_the_capture_whole(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    open_seating(&t, 0);
    feed_seat(&t, 1);
    begin_capture(&t);
    assert_int_equal(weir_queue_acquire(t.w.queue, t.stream, 0, &item), WEIR_CAPTURING);
    spin_for(&t, 1000);
    wr_graph g = end_capture(&t);
    OK(t.w.device->ops->graph_launch(t.w.device, g, t.stream));
    OK(t.w.device->ops->graph_destroy(t.w.device, g));
    replay(&t); /* the item is the next one still */
    close_seating(&t);
}

/* Memory that could go back to the driver is not unmapped meanwhile. */
static void test_a_capture_that_was_entered_is_known_to_the_pool_which_does_nothing_that_would_break_it(
    void **state)
{
    (void)state;
    struct seating t;
    weir_dptr at, block;
    size_t trimmed;
    open_seating(&t, 0);
    OK(weir_alloc(t.w.pool, 64 * WR_MIB, t.w.stream[1], &block));
    OK(weir_free(t.w.pool, block, t.w.stream[1]));
    wr_sim_drain(t.w.sim);
    begin_capture(&t);
    OK(weir_seat_enter(t.seat, t.stream, &at));
    OK(weir_trim(t.w.pool, 0, &trimmed));
    read_address(&t, at);
    OK(weir_seat_leave(t.seat, t.stream));
    OK(weir_trim(t.w.pool, 0, &trimmed));
    t.graphs[0].address = at;
    t.graphs[0].graph = end_capture(&t);
    feed_seat(&t, 2);
    replay(&t);
    close_seating(&t); /* says whether anything was broken */
}

static void test_a_capture_given_up_after_the_seat_was_entered_is_captured_anew(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    weir_dptr at;
    open_seating(&t, 0);
    begin_capture(&t);
    OK(weir_seat_enter(t.seat, t.stream, &at));
    OK(t.w.device->ops->graph_destroy(t.w.device, end_capture(&t)));
    feed_seat(&t, 1);
    assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_INVALID_ARGUMENT); /* its readers never leave */
    assert_int_equal(weir_seat_leave(t.seat, t.stream), WEIR_INVALID_ARGUMENT);
    (void)graph_at(&t, at);
    replay(&t);
    close_seating(&t);
}

static void test_a_seat_is_left_in_the_capture_that_it_was_entered_in(void **state)
{
    (void)state;
    struct seating t;
    struct wr_device *d;
    weir_item item;
    weir_dptr at;
    wr_graph g = NULL;
    open_seating(&t, 0);
    d = t.w.device;
    feed_seat(&t, 1);
    take_item(&t, &item);
    begin_capture(&t);
    OK(weir_seat_enter(t.seat, t.stream, &at));
    assert_int_equal(weir_seat_leave(t.seat, t.w.stream[1]), WEIR_INVALID_ARGUMENT); /* captures nothing */
    OK(d->ops->graph_begin(d, t.w.stream[1]));
    assert_int_equal(weir_seat_leave(t.seat, t.w.stream[1]), WEIR_INVALID_ARGUMENT); /* captures another */
    OK(d->ops->graph_end(d, t.w.stream[1], &g));
    OK(d->ops->graph_destroy(d, g));
    end_step_and_launch(&t, at);
    close_seating(&t);
}

/* Or what was entered first would have readers that nobody waits for. */
static void test_a_seat_is_not_entered_elsewhere_before_it_is_left(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    weir_dptr at;
    open_seating(&t, 0);
    feed_seat(&t, 1);
    take_item(&t, &item);
    OK(weir_seat_enter(t.seat, t.w.stream[1], &at));
    begin_capture(&t);
    assert_int_equal(weir_seat_enter(t.seat, t.stream, &at), WEIR_INVALID_ARGUMENT);
    OK(weir_seat_leave(t.seat, t.w.stream[1]));
    OK(weir_seat_enter(t.seat, t.stream, &at));
    assert_int_equal(weir_seat_enter(t.seat, t.w.stream[1], &at), WEIR_INVALID_ARGUMENT);
    end_step_and_launch(&t, at);
    close_seating(&t);
}

static void test_a_seat_entered_in_a_capture_that_goes_on_is_not_closed(void **state)
{
    (void)state;
    struct seating t;
    weir_dptr at;
    open_seating(&t, 0);
    begin_capture(&t);
    OK(weir_seat_enter(t.seat, t.stream, &at));
    assert_int_equal(weir_seat_close(t.seat), WEIR_CAPTURING);
    OK(weir_seat_leave(t.seat, t.stream));
    OK(t.w.device->ops->graph_destroy(t.w.device, end_capture(&t)));
    close_seating(&t);
}

/* ---- wrong use --------------------------------------------------------------------------------------- */

static void test_a_step_without_an_item_is_refused(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        weir_dptr at = 7;
        open_seating(&t, kinds[k]);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_WOULD_BLOCK);
        assert_int_equal(weir_seat_next(t.seat, 1000, &item), WEIR_TIMEOUT);
        assert_int_equal(weir_seat_enter(t.seat, t.stream, &at), WEIR_INVALID_ARGUMENT);
        assert_int_equal(at, 7);
        if (kinds[k]) { /* which address, of which slot? */
            begin_capture(&t);
            assert_int_equal(weir_seat_enter(t.seat, t.stream, &at), WEIR_INVALID_ARGUMENT);
            OK(t.w.device->ops->graph_destroy(t.w.device, end_capture(&t)));
        }
        feed_seat(&t, 1);
        replay(&t);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_WOULD_BLOCK);
        if (kinds[k]) /* it was given back */
            assert_int_equal(weir_seat_enter(t.seat, t.stream, &at), WEIR_INVALID_ARGUMENT);
        close_seating(&t);
    }
}

static void test_enter_and_leave_come_in_pairs(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        weir_dptr at;
        open_seating(&t, kinds[k]);
        assert_int_equal(weir_seat_leave(t.seat, t.stream), WEIR_INVALID_ARGUMENT);
        feed_seat(&t, 1);
        feed_seat(&t, 2);
        take_item(&t, &item);
        OK(weir_seat_enter(t.seat, t.stream, &at));
        OK(weir_seat_enter(t.seat, t.w.stream[1], &at)); /* another stream of the step */
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_seat_close(t.seat), WEIR_INVALID_ARGUMENT);
        read_address(&t, at);
        OK(weir_seat_leave(t.seat, t.stream));
        assert_int_equal(weir_seat_leave(t.seat, t.stream), WEIR_INVALID_ARGUMENT);
        replay(&t);
        close_seating(&t);
    }
}

static void test_what_is_no_seat_is_refused(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    weir_dptr at;
    weir_stream after;
    weir_seat *seat;
    weir_seat_options o = seat_options(2);
    open_seating(&t, 0);
    assert_int_equal(weir_seat_open(NULL, NULL, &seat), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_open(t.w.queue, NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_open(t.w.queue, &o, &seat), WEIR_INVALID_ARGUMENT);
    o.struct_size = sizeof o + 1;
    assert_int_equal(weir_seat_open(t.w.queue, &o, &seat), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_next(NULL, 0, &item), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_next(t.seat, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_enter(t.seat, t.stream, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_marked(t.seat, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_marked(t.seat, &after), WEIR_INVALID_ARGUMENT); /* nothing is marked */
    weir_seat *closed = t.seat;
    OK(weir_seat_open(t.w.queue, NULL, &t.seat));
    OK(weir_seat_close(closed));
    assert_int_equal(weir_seat_next(closed, 0, &item), WEIR_CLOSED);
    assert_int_equal(weir_seat_enter(closed, t.stream, &at), WEIR_CLOSED);
    assert_int_equal(weir_seat_leave(closed, t.stream), WEIR_CLOSED);
    assert_int_equal(weir_seat_mark(closed, t.stream), WEIR_CLOSED);
    assert_int_equal(weir_seat_marked(closed, &after), WEIR_CLOSED);
    assert_int_equal(weir_seat_close(closed), WEIR_CLOSED);
    OK(weir_queue_destroy(t.w.queue));
    assert_int_equal(weir_seat_open(t.w.queue, NULL, &seat), WEIR_CLOSED);
    close_seating(&t);
}

static void test_queues_that_no_graph_can_read_have_no_seats(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 4);
    weir_seat_options in_place = seat_options(WEIR_SEAT_IN_PLACE);
    weir_seat *seat = NULL;
    weir_queue *lands;
    q.device_bytes = 2 * SEAT_ITEM; /* slots of the items' sizes */
    open_world(&w, &o, 0, &q);
    assert_int_equal(weir_seat_open(w.queue, &in_place, &seat), WEIR_INVALID_ARGUMENT);
    OK(weir_seat_open(w.queue, NULL, &seat));
    OK(weir_seat_close(seat));
    q.device_bytes = 0;
    q.direction = WEIR_TO_HOST;
    OK(weir_queue_open(w.pool, &q, &lands));
    assert_int_equal(weir_seat_open(lands, NULL, &seat), WEIR_INVALID_ARGUMENT);
    OK(weir_queue_destroy(lands));
    close_world(&w);
}

static void *wait_for_item(void *seating)
{
    struct seating *t = seating;
    weir_item item;
    OK(weir_seat_next(t->seat, -1, &item));
    return NULL;
}

static void test_a_second_thread_is_refused(void **state)
{
    (void)state;
    struct seating t;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 2);
    pthread_t thread;
    o.wall_clock = true;
    open_seating_in(&t, &o, &q, 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_item, &t), 0);
    while (stats_of(t.w.queue).waiting_item == 0)
        sched_yield();
    assert_int_equal(weir_seat_close(t.seat), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_seat_mark(t.seat, t.stream), WEIR_INVALID_ARGUMENT);
    OK(feed(&t.w, SEAT_ITEM, 1, -1));
    pthread_join(thread, NULL);
    run_step(&t);
    expect_item(&t, 1);
    close_seating(&t);
}

/* ---- calls that fail --------------------------------------------------------------------------------- */

/* Each call of the device in turn, in every step of a run; what failed is called again. */
static void run_with_failure(unsigned flags, uint64_t nth, bool *reached)
{
    struct seating t;
    weir_item item;
    weir_status s;
    open_seating(&t, flags);
    for (uint32_t i = 1; i <= 4; i++) {
        feed_seat(&t, i * 9);
        uint64_t calls = wr_sim_calls(t.w.sim);
        if (i == 3) wr_sim_fail_nth(t.w.sim, nth, WEIR_DRIVER_ERROR);
        while ((s = weir_seat_next(t.seat, 0, &item)) != WEIR_OK)
            assert_int_equal(s, WEIR_DRIVER_ERROR);
        if (i == 3) *reached = wr_sim_calls(t.w.sim) - calls >= nth;
        wr_sim_fail_nth(t.w.sim, 0, WEIR_OK);
        launch_at(&t, item.device);
    }
    close_seating(&t);
}

static void test_a_next_that_fails_loses_no_item(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        bool reached = true;
        uint64_t n = 1;
        for (; reached; n++)
            run_with_failure(kinds[k], n, &reached);
        assert_true(n > 4);
    }
}

static void test_an_open_that_fails_leaves_nothing(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        weir_status s = WEIR_DRIVER_ERROR;
        for (uint64_t n = 1; s == WEIR_DRIVER_ERROR; n++) {
            struct world w;
            weir_seat *seat = NULL;
            weir_seat_options o = seat_options(kinds[k]);
            open_virtual(&w, SEAT_ITEM, 2);
            wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
            s = weir_seat_open(w.queue, &o, &seat);
            wr_sim_fail_nth(w.sim, 0, WEIR_OK);
            if (s == WEIR_OK) OK(weir_seat_close(seat));
            close_world(&w);
        }
        OK(s);
    }
}

static void test_a_close_that_fails_is_called_again(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        bool failed = true;
        for (uint64_t n = 1; failed && n < 4; n++) {
            struct seating t;
            open_seating(&t, kinds[k]);
            feed_seat(&t, 1);
            replay(&t);
            assert_int_equal(sum_of(&t), t.expected);
            drop_graphs(&t);
            wr_sim_fail_nth(t.w.sim, n, WEIR_DRIVER_ERROR);
            weir_status s = weir_seat_close(t.seat);
            wr_sim_fail_nth(t.w.sim, 0, WEIR_OK);
            failed = s != WEIR_OK;
            assert_true(n > 1 || failed);
            if (failed) OK(weir_seat_close(t.seat));
            assert_no_reports(&t.w);
            end_seating(&t);
        }
    }
}

/* It was acquired, and can't be another's any more. */
static void test_a_close_gives_back_an_item_that_could_not_land(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        uint64_t n = 0;
        weir_status s = WEIR_DRIVER_ERROR;
        open_seating(&t, kinds[k]);
        OK(feed(&t.w, SEAT_ITEM, 1, 0));
        for (; stats_of(t.w.queue).items_delivered == 0; n++) {
            wr_sim_fail_nth(t.w.sim, n + 1, WEIR_DRIVER_ERROR);
            s = weir_seat_next(t.seat, 0, &item);
        }
        wr_sim_fail_nth(t.w.sim, 0, WEIR_OK);
        assert_int_equal(s, WEIR_DRIVER_ERROR);
        assert_int_equal(stats_of(t.w.queue).items_released, 0);
        OK(weir_seat_close(t.seat));
        assert_int_equal(stats_of(t.w.queue).items_released, 1);
        assert_no_reports(&t.w);
        end_seating(&t);
    }
}

/* What it held was released by that. */
static void test_a_seat_whose_consumer_has_left_closes(void **state)
{
    (void)state;
    struct seating t;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 2);
    weir_seat_options s = seat_options(WEIR_SEAT_IN_PLACE);
    weir_item item;
    q.consumers = WEIR_CONSUMERS_SHARED;
    open_seating_in(&t, &o, &q, 0);
    OK(weir_seat_close(t.seat));
    OK(weir_queue_join(t.w.queue, &s.consumer));
    OK(weir_seat_open(t.w.queue, &s, &t.seat));
    feed_seat(&t, 1);
    replay(&t);
    wr_sim_drain(t.w.sim);
    OK(weir_queue_leave(t.w.queue, s.consumer));
    assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_STALE_HANDLE);
    close_seating(&t);
}

static void test_a_seat_of_a_device_that_was_reset_closes(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        open_seating(&t, kinds[k]);
        feed_seat(&t, 1);
        replay(&t);
        wr_sim_drain(t.w.sim);
        wr_sim_reset_device(t.w.device);
        assert_int_equal(weir_seat_mark(t.seat, t.stream), WEIR_CONTEXT_LOST);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_CONTEXT_LOST);
        assert_int_equal(weir_seat_close(t.seat), WEIR_CONTEXT_LOST);
        assert_int_equal(weir_seat_close(t.seat), WEIR_CLOSED);
        (void)weir_queue_destroy(t.w.queue);
        (void)weir_pool_close(t.w.pool);
        wr_sim_close(t.w.sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_acquire_on_a_capturing_stream_is_refused_and_leaves_the_capture_whole),
        cmocka_unit_test(
            test_a_capture_that_was_entered_is_known_to_the_pool_which_does_nothing_that_would_break_it),
        cmocka_unit_test(test_a_capture_given_up_after_the_seat_was_entered_is_captured_anew),
        cmocka_unit_test(test_a_seat_is_left_in_the_capture_that_it_was_entered_in),
        cmocka_unit_test(test_a_seat_is_not_entered_elsewhere_before_it_is_left),
        cmocka_unit_test(test_a_seat_entered_in_a_capture_that_goes_on_is_not_closed),
        cmocka_unit_test(test_a_step_without_an_item_is_refused),
        cmocka_unit_test(test_enter_and_leave_come_in_pairs),
        cmocka_unit_test(test_what_is_no_seat_is_refused),
        cmocka_unit_test(test_queues_that_no_graph_can_read_have_no_seats),
        cmocka_unit_test(test_a_second_thread_is_refused),
        cmocka_unit_test(test_a_next_that_fails_loses_no_item),
        cmocka_unit_test(test_an_open_that_fails_leaves_nothing),
        cmocka_unit_test(test_a_close_that_fails_is_called_again),
        cmocka_unit_test(test_a_close_gives_back_an_item_that_could_not_land),
        cmocka_unit_test(test_a_seat_whose_consumer_has_left_closes),
        cmocka_unit_test(test_a_seat_of_a_device_that_was_reset_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
