/* SPDX-License-Identifier: Apache-2.0
 *
 * Seats: graphs that read the next item at each launch. See weir_graph.h. Wrong use and failures: test_seat_errors.c.
 */
#include "seat_world.h"

#define MS ((uint64_t)1000000)

enum { ROUNDS = 24 };
static const unsigned kinds[] = {0, WEIR_SEAT_IN_PLACE};

/* ---- each launch reads the next item ----------------------------------------------------------------- */

static void test_each_launch_reads_the_next_item(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        open_seating(&t, kinds[k]);
        for (uint32_t i = 1; i <= ROUNDS; i++) {
            feed_seat(&t, i * 77);
            replay(&t);
        }
        close_seating(&t);
    }
}

/* Whatever is done next that may be done. */
static void test_each_launch_reads_the_next_item_in_any_legal_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct seating t;
        struct wr_sim_options o = world_options();
        weir_queue_options q = queue_options(SEAT_ITEM, 1 + seed % 4);
        o.adversary_seed = seed;
        open_seating_in(&t, &o, &q, kinds[seed % 2]);
        for (uint32_t i = 1; i <= ROUNDS; i++) {
            if (seed % 2 && q.items == 1 && i > 1) wr_sim_drain(t.w.sim);
            feed_seat(&t, i * 31);
            replay(&t);
            if (kinds[seed % 2] && q.items == 1) {
                weir_item none; /* the only slot comes back */
                assert_int_equal(weir_seat_next(t.seat, 0, &none), WEIR_WOULD_BLOCK);
            }
        }
        close_seating(&t);
    }
}

static void test_a_copied_seat_needs_one_graph_and_one_in_place_a_graph_a_slot(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        open_seating(&t, kinds[k]);
        for (uint32_t i = 1; i <= ROUNDS; i++) {
            feed_seat(&t, i);
            replay(&t);
        }
        assert_int_equal(count_graphs(&t), kinds[k] ? 2 : 1);
        uint64_t own = kinds[k] ? 0 : ROUNDS; /* copies of the seat's */
        assert_int_equal(counts_of(&t.w).copies, stats_of(t.w.queue).copies + own);
        close_seating(&t);
    }
}

static void test_a_step_runs_the_same_without_a_capture(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        open_seating(&t, kinds[k]);
        for (uint32_t i = 1; i <= ROUNDS; i++) {
            feed_seat(&t, i * 5);
            take_item(&t, &item);
            if (i % 3)
                run_step(&t);
            else
                launch_at(&t, item.device);
        }
        close_seating(&t);
    }
}

static void test_an_item_says_what_it_is(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    open_seating(&t, 0);
    OK(weir_queue_reserve_key(t.w.queue, 42, 1000, 0, &item));
    write_item(&t.w, &item, 1);
    OK(weir_queue_commit(t.w.queue, &item));
    uint64_t ticket = item.ticket;
    take_item(&t, &item);
    assert_int_equal(item.ticket, ticket);
    assert_int_equal(item.key, 42);
    assert_int_equal(item.bytes, 1000);
    assert_true(item.device != 0);
    assert_int_equal(weir_queue_release(t.w.queue, &item, NULL, 0), WEIR_STALE_HANDLE); /* it is the seat's */
    close_seating(&t);
}

static void test_two_towers_share_a_queue_with_a_seat_each(void **state)
{
    (void)state;
    struct seating t, other;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 4);
    open_seating_in(&t, &o, &q, 0);
    other = t;
    other.stream = t.w.stream[1];
    OK(weir_alloc(t.w.pool, sizeof(uint64_t), other.stream, &other.sum));
    OK(t.w.device->ops->fill(t.w.device, other.sum, 0, sizeof(uint64_t), other.stream));
    weir_seat_options in_place = seat_options(WEIR_SEAT_IN_PLACE);
    OK(weir_seat_open(t.w.queue, &in_place, &other.seat));
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        feed_seat(&t, i);
        replay(i % 3 ? &t : &other);
    }
    uint64_t theirs = sum_of(&other);
    assert_true(theirs != 0);
    t.expected -= theirs;
    drop_graphs(&other);
    OK(weir_seat_close(other.seat));
    OK(weir_free(t.w.pool, other.sum, other.stream));
    close_seating(&t);
}

static void test_a_registered_consumer_has_a_seat(void **state)
{
    (void)state;
    struct seating t;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SEAT_ITEM, 2);
    q.consumers = WEIR_CONSUMERS_SHARED;
    open_seating_in(&t, &o, &q, 0);
    weir_seat_options s = seat_options(WEIR_SEAT_IN_PLACE);
    weir_item item;
    assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_INVALID_ARGUMENT);
    OK(weir_seat_close(t.seat));
    OK(weir_queue_join(t.w.queue, &s.consumer));
    OK(weir_seat_open(t.w.queue, &s, &t.seat));
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        feed_seat(&t, i);
        replay(&t);
    }
    close_seating(&t);
}

/* ---- what waits for what ----------------------------------------------------------------------------- */

static bool has_passed(struct seating *t, weir_stream s)
{
    struct wr_mark m;
    OK(wr_pool_mark(t->w.pool, s, &m));
    return wr_mark_poll(m);
}

/* The item's copy is long: meanwhile the step works up to the place where it enters. */
static void test_a_launch_waits_for_the_item_where_it_enters_the_seat(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        struct wr_sim_options o = world_options();
        struct wr_sim_profile slow = *o.profile;
        slow.h2d_gbps = 0.001;
        o.profile = &slow;
        weir_queue_options q = queue_options(SEAT_ITEM, 2);
        open_seating_in(&t, &o, &q, kinds[k]);
        weir_item item;
        weir_dptr at;
        weir_stream marked;
        feed_seat(&t, 9);
        take_item(&t, &item);
        begin_capture(&t);
        spin_for(&t, MS);
        OK(weir_seat_mark(t.seat, t.stream));
        OK(weir_seat_enter(t.seat, t.stream, &at));
        read_address(&t, at);
        OK(weir_seat_leave(t.seat, t.stream));
        t.graphs[0].graph = end_capture(&t);
        t.graphs[0].address = item.device;
        launch_at(&t, item.device);
        OK(weir_seat_marked(t.seat, &marked));
        struct wr_mark before, after;
        OK(wr_pool_mark(t.w.pool, marked, &before));
        OK(wr_pool_mark(t.w.pool, t.stream, &after));
        wr_sim_advance(t.w.sim, 2 * MS);
        assert_true(wr_mark_poll(before));
        wr_sim_advance(t.w.sim, 40 * MS);
        assert_false(wr_mark_poll(after)); /* 66 ms, a byte a microsecond */
        close_seating(&t);
    }
}

/* The step goes on for long after it has left the seat. */
static void test_the_next_item_comes_as_soon_as_the_seat_is_left(void **state)
{
    (void)state;
    struct seating t;
    weir_item item;
    uint32_t word = 0;
    open_seating(&t, 0);
    t.after_ns = 50 * MS;
    feed_seat(&t, 1);
    replay(&t);
    feed_seat(&t, 2);
    take_item(&t, &item);
    wr_sim_advance(t.w.sim, 2 * MS);
    wr_sim_peek(t.w.sim, item.device, &word, sizeof word);
    assert_int_equal(word, 2);
    assert_false(has_passed(&t, t.stream)); /* though the step is not over */
    launch_at(&t, item.device);
    close_seating(&t);
}

static void test_the_next_item_does_not_come_before_the_seat_is_left(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item, first;
        uint32_t word = 0;
        open_seating(&t, kinds[k]);
        t.before_ns = 50 * MS;
        feed_seat(&t, 1);
        take_item(&t, &first);
        launch_at(&t, first.device);
        feed_seat(&t, 2);
        take_item(&t, &item); /* in place, the first item's slot is another's from here on */
        if (kinds[k]) OK(feed(&t.w, SEAT_ITEM, 3, 0));
        wr_sim_advance(t.w.sim, 40 * MS);
        wr_sim_peek(t.w.sim, first.device, &word, sizeof word);
        assert_int_equal(word, 1);
        launch_at(&t, item.device);
        if (kinds[k]) expect_item(&t, 3);
        if (kinds[k]) replay(&t);
        close_seating(&t);
    }
}

static void test_the_host_waits_for_no_step(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        struct wr_sim_gate *gate;
        open_seating(&t, kinds[k]);
        OK(wr_sim_stall(t.w.device, t.stream, &gate));
        uint64_t start = t.w.device->ops->now_ns(t.w.device);
        for (uint32_t i = 1; i <= 8; i++) { /* as many as there is pinned memory for */
            feed_seat(&t, i);
            replay(&t);
        }
        assert_int_equal(t.w.device->ops->now_ns(t.w.device), start);
        assert_int_equal(stats_of(t.w.queue).host_syncs, 0);
        wr_sim_gate_open(gate);
        close_seating(&t);
    }
}

/* A world whose slots and seat have pages of their own, which the pool would give back to the driver. */
static void open_large(struct seating *t, unsigned flags)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(8 * WR_MIB, 2);
    open_seating_in(t, &o, &q, flags);
}

/* All that the device is known to have passed goes back. */
static void trim_early(struct seating *t)
{
    for (int i = 0; i < 3; i++) {
        wr_sim_advance(t->w.sim, MS);
        OK(weir_trim(t->w.pool, 0, NULL));
    }
}

static void test_a_seat_closed_under_its_last_launch_stays_until_it_was_read(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        open_large(&t, kinds[k]);
        t.before_ns = 5 * MS;
        feed_seat(&t, 3);
        replay(&t);
        drop_graphs(&t);
        OK(weir_seat_close(t.seat));
        OK(weir_queue_destroy(t.w.queue));
        trim_early(&t);
        assert_int_equal(sum_of(&t), t.expected);
        assert_no_reports(&t.w);
        end_seating(&t);
    }
}

/* ---- copies that begin at a place of the step ---------------------------------------------------------- */

static void test_a_copy_begins_at_the_marked_place_of_the_launch(void **state)
{
    (void)state;
    struct seating t;
    weir_stream after;
    void *pinned;
    uint64_t ticket;
    open_seating(&t, 0);
    OK(weir_host_alloc(t.w.pool, SEAT_ITEM, &pinned));
    write_words(pinned, SEAT_ITEM, 4);
    begin_capture(&t);
    spin_for(&t, 5 * MS);
    OK(weir_seat_mark(t.seat, t.stream));
    spin_for(&t, 50 * MS);
    wr_graph g = end_capture(&t);
    weir_span span = {pinned, SEAT_ITEM};
    for (int i = 0; i < 2; i++) { /* the first launch's mark does not do for the second */
        weir_item item;
        wr_sim_drain(t.w.sim);
        OK(t.w.device->ops->graph_launch(t.w.device, g, t.stream));
        OK(weir_seat_marked(t.seat, &after));
        weir_push_options o = {
            .struct_size = sizeof o, .flags = WEIR_PUSH_BORROW, .after = &after, .n_after = 1};
        OK(weir_queue_push_after(t.w.queue, &span, 1, &o, &ticket));
        wr_sim_advance(t.w.sim, 4 * MS);
        assert_int_equal(weir_queue_borrowed(t.w.queue, ticket, 0), WEIR_WOULD_BLOCK);
        wr_sim_advance(t.w.sim, 2 * MS);
        OK(weir_queue_borrowed(t.w.queue, ticket, 0));
        assert_false(has_passed(&t, t.stream)); /* and the launch goes on */
        take_item(&t, &item);
    }
    OK(t.w.device->ops->graph_destroy(t.w.device, g));
    OK(weir_host_free(t.w.pool, pinned, WEIR_NO_STREAM));
    close_seating(&t);
}

/* ---- ends -------------------------------------------------------------------------------------------- */

static void test_a_queues_end_is_said_by_next_after_the_last_item(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        open_seating(&t, kinds[k]);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_WOULD_BLOCK);
        feed_seat(&t, 1);
        feed_seat(&t, 2);
        if (k == 0)
            OK(weir_queue_close(t.w.queue));
        else
            OK(weir_queue_poison(t.w.queue, 7, "no more"));
        replay(&t);
        replay(&t);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), k == 0 ? WEIR_CLOSED : WEIR_POISONED);
        close_seating(&t);
    }
}

/* Graphs go on reading where they read; what they read stays. */
static void test_a_queue_destroyed_under_its_seat_leaves_the_slots_to_the_seats_close(void **state)
{
    (void)state;
    for (unsigned k = 0; k < WR_ARRAY_LEN(kinds); k++) {
        struct seating t;
        weir_item item;
        open_large(&t, kinds[k]);
        t.before_ns = 5 * MS;
        feed_seat(&t, 1);
        take_item(&t, &item);
        launch_at(&t, item.device);
        OK(weir_queue_destroy(t.w.queue));
        launch_at(&t, item.device);
        expect_item(&t, 1);
        assert_int_equal(weir_seat_next(t.seat, 0, &item), WEIR_CLOSED);
        trim_early(&t);
        close_seating(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_launch_reads_the_next_item),
        cmocka_unit_test(test_each_launch_reads_the_next_item_in_any_legal_order),
        cmocka_unit_test(test_a_copied_seat_needs_one_graph_and_one_in_place_a_graph_a_slot),
        cmocka_unit_test(test_a_step_runs_the_same_without_a_capture),
        cmocka_unit_test(test_an_item_says_what_it_is),
        cmocka_unit_test(test_two_towers_share_a_queue_with_a_seat_each),
        cmocka_unit_test(test_a_registered_consumer_has_a_seat),
        cmocka_unit_test(test_a_launch_waits_for_the_item_where_it_enters_the_seat),
        cmocka_unit_test(test_the_next_item_comes_as_soon_as_the_seat_is_left),
        cmocka_unit_test(test_the_next_item_does_not_come_before_the_seat_is_left),
        cmocka_unit_test(test_the_host_waits_for_no_step),
        cmocka_unit_test(test_a_seat_closed_under_its_last_launch_stays_until_it_was_read),
        cmocka_unit_test(test_a_copy_begins_at_the_marked_place_of_the_launch),
        cmocka_unit_test(test_a_queues_end_is_said_by_next_after_the_last_item),
        cmocka_unit_test(test_a_queue_destroyed_under_its_seat_leaves_the_slots_to_the_seats_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
