/* SPDX-License-Identifier: Apache-2.0
 *
 * What the oracle reports, and what it does not.
 */
#include "sim_world.h"

/* ---- the oracle -------------------------------------------------------------------------------------- */

static void test_writes_of_two_streams_without_order_are_a_race_even_if_the_times_are_right(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    wr_sim_advance(f.world, 100 * MS); /* it is over, but nobody knows */
    fill(&f, b, 99, 100, 2);
    drop(f.d, a, NULL);
    drop(f.d, b, NULL);
    close_reported(&f, "writes");
}

static void test_neighbours_do_not_race(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    fill(&f, b, 100, 100, 2);
    fill(&f, a, 200, 100, 1);
    drop(f.d, a, NULL);
    drop(f.d, b, NULL);
    close_clean(&f);
}

static void test_two_reads_do_not_race_but_a_write_after_either_does(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    uint64_t aside = MIB;
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            f.ops->copy(f.d, WR_COPY_D2D, f.slab + aside * (uint64_t)(i + 1), f.slab, 64, i ? a : b),
            WEIR_OK);
    assert_int_equal(wr_sim_reports(f.world), 0);
    fill(&f, a, 10, 1, 1); /* after a's own read, not after b's */
    drop(f.d, a, NULL);
    drop(f.d, b, NULL);
    close_reported(&f, "which reads it");
}

static void test_a_stream_wait_orders(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d), c = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    wr_event e = record(f.d, a);
    assert_int_equal(f.ops->stream_wait(f.d, b, e), WEIR_OK);
    fill(&f, b, 0, 100, 2);
    assert_int_equal(f.ops->event_record(f.d, e, b), WEIR_OK);
    assert_int_equal(f.ops->stream_wait(f.d, c, e), WEIR_OK); /* so after a, too */
    fill(&f, c, 0, 100, 3);
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    drop(f.d, c, NULL);
    close_clean(&f);
}

static void test_a_wait_orders_after_the_record_that_was_latest_then_not_after_later_work(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    wr_event e = record(f.d, a);
    fill(&f, a, 0, 100, 1);
    assert_int_equal(f.ops->stream_wait(f.d, b, e), WEIR_OK);
    assert_int_equal(f.ops->event_record(f.d, e, a), WEIR_OK);
    fill(&f, b, 0, 100, 2);
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    close_reported(&f, "race");
}

static void test_a_query_that_says_done_orders_and_one_that_does_not_does_not(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    wr_event e = record(f.d, a);
    wr_sim_drain(f.world);
    assert_true(is_done(f.d, e));
    fill(&f, b, 0, 100, 2);
    assert_int_equal(wr_sim_reports(f.world), 0);
    assert_int_equal(f.ops->event_record(f.d, e, b), WEIR_OK);
    assert_false(is_done(f.d, e));
    fill(&f, a, 0, 100, 3);
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    close_reported(&f, "race");
}

static void test_a_context_record_orders_after_every_stream_even_gone_ones(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d), gone = new_stream(f.d), c = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    fill(&f, b, 100, 100, 1);
    fill(&f, gone, 200, 100, 1);
    wr_sim_advance(f.world, MS);
    drop(f.d, gone, NULL);
    wr_event e = new_event(f.d);
    assert_int_equal(f.ops->event_record_context(f.d, e), WEIR_OK);
    assert_int_equal(f.ops->stream_wait(f.d, c, e), WEIR_OK);
    fill(&f, c, 0, 300, 2);
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    drop(f.d, c, NULL);
    close_clean(&f);
}

static void test_the_host_may_reuse_pinned_memory_only_when_it_knows_the_copy_done(void **state)
{
    (void)state;
    struct fixture f = open_world();
    upload(&f, NULL, 1000);
    wr_event e = record(f.d, NULL);
    wr_sim_host_access(f.world, f.host + 500, 10, false); /* reading beside a read is fine */
    wr_sim_host_access(f.world, f.host + 1000, 10, true);
    assert_int_equal(wr_sim_reports(f.world), 0);
    wr_sim_host_access(f.world, f.host + 999, 10, true);
    assert_int_equal(wr_sim_reports(f.world), 1);
    wr_sim_reports_clear(f.world);
    wr_sim_drain(f.world);
    assert_true(is_done(f.d, e));
    wr_sim_host_access(f.world, f.host, SLAB, true);
    assert_int_equal(wr_sim_reports(f.world), 0);
    download(&f, NULL, 10);
    wr_sim_host_access(f.world, f.host, 1, false); /* not written yet */
    drop(f.d, NULL, e);
    close_reported(&f, "the host reads");
}

static void test_unmapping_and_unregistering_need_to_know_that_all_has_passed(void **state)
{
    (void)state;
    struct fixture f = open_world();
    wr_memory handle;
    uint64_t va = map_slab(f.d, &handle);
    static char host[64];
    assert_int_equal(f.ops->host_register(f.d, host, sizeof host), WEIR_OK);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, va, (uintptr_t)host, sizeof host, NULL), WEIR_OK);
    wr_sim_drain(f.world);
    assert_int_equal(f.ops->host_unregister(f.d, host), WEIR_OK);
    unmap_slab(f.d, va, handle);
    assert_int_equal(wr_sim_reports(f.world), 2);
    assert_non_null(strstr(wr_sim_report(f.world, 0), "unregisters"));
    assert_non_null(strstr(wr_sim_report(f.world, 1), "unmaps"));
    close_world(&f);
}

static void test_a_pair_of_ops_is_reported_once_however_many_pieces_they_share(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    fill(&f, a, 0, 4096, 1);
    for (uint64_t i = 0; i < 4096; i += 512) /* cuts the first fill's bytes into pieces */
        fill(&f, a, i, 64, 2);
    fill(&f, b, 0, 4096, 3);
    assert_int_equal(wr_sim_reports(f.world), 1 + 8);
    const char *text = wr_sim_report(f.world, 0);
    wr_sim_reports_clear(f.world);
    assert_int_equal(wr_sim_reports(f.world), 0);
    assert_null(wr_sim_report(f.world, 0));
    assert_non_null(strstr(text, "fill")); /* texts stay */
    drop(f.d, a, NULL);
    drop(f.d, b, NULL);
    close_clean(&f);
}

static void test_a_write_in_the_middle_leaves_the_history_on_both_sides(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d), c = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    wr_event e = record(f.d, a);
    assert_int_equal(f.ops->stream_wait(f.d, b, e), WEIR_OK);
    fill(&f, b, 40, 20, 2);
    const uint64_t offsets[] = {39, 40, 59, 60};
    for (unsigned i = 0; i < 4; i++) {
        char name[40];
        fill(&f, c, offsets[i], 1, 3);
        assert_int_equal(wr_sim_reports(f.world), i + 1);
        weir_stream writer = i == 1 || i == 2 ? b : a;
        snprintf(name, sizeof name, "stream %llu), which", (unsigned long long)identify(f.d, writer));
        assert_non_null(strstr(wr_sim_report(f.world, i), name));
    }
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    drop(f.d, c, NULL);
    close_world(&f);
}

static void test_a_split_keeps_the_readers_of_both_parts(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    upload(&f, a, 100); /* reads the host's bytes */
    wr_event e = record(f.d, a);
    wr_sim_drain(f.world);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, f.slab + MIB, (uintptr_t)f.host + 40, 20, b), WEIR_OK);
    wr_sim_host_access(f.world, f.host + 99, 1, true);
    wr_sim_host_access(f.world, f.host, 1, true);
    wr_sim_host_access(f.world, f.host + 50, 1, true); /* two readers */
    assert_int_equal(wr_sim_reports(f.world), 4);
    drop(f.d, a, e);
    drop(f.d, b, NULL);
    close_world(&f);
}

static void test_a_new_stream_does_not_inherit_what_a_gone_one_did(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d);
    fill(&f, a, 0, 100, 1);
    wr_sim_drain(f.world);
    drop(f.d, a, NULL); /* gone, though nobody was told that it had passed */
    weir_stream b = new_stream(f.d);
    fill(&f, b, 0, 100, 2);
    drop(f.d, b, NULL);
    close_reported(&f, "race");
}

/* A model to compare with: for each byte the last access, for each pair of streams whether ordered. Ops have
 * one stream's order and full joins only, so that what is ordered is easy to say. */
static void test_a_hundred_thousand_ops_are_judged_right(void **state)
{
    (void)state;
    enum { STREAMS = 8, CELLS = 64, CELL = 4096, OPS = 100000 };
    struct fixture f = open_world();
    weir_stream streams[STREAMS];
    wr_event events[STREAMS];
    unsigned times[STREAMS] = {0}, known[STREAMS][STREAMS] = {0}, snapshot[STREAMS][STREAMS] = {0};
    struct {
        int stream;
        unsigned time;
    } last[CELLS];
    unsigned expected = 0;
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream(f.d);
        events[i] = record(f.d, streams[i]);
    }
    for (int i = 0; i < CELLS; i++)
        last[i].stream = -1;
    uint32_t x = 12345;
    for (int n = 0; n < OPS; n++) {
        x = x * 1664525 + 1013904223;
        int s = (int)(x >> 28) % STREAMS, other = (int)(x >> 24) % STREAMS, cell = (int)(x >> 16) % CELLS;
        if (x >> 8 & 1) {
            fill(&f, streams[s], (uint64_t)cell * CELL, CELL, 1);
            known[s][s] = ++times[s];
            int by = last[cell].stream;
            expected += by >= 0 && known[s][by] < last[cell].time;
            last[cell].stream = s;
            last[cell].time = times[s];
        } else if (x >> 9 & 1) {
            assert_int_equal(f.ops->event_record(f.d, events[s], streams[s]), WEIR_OK);
            memcpy(snapshot[s], known[s], sizeof known[s]);
        } else {
            assert_int_equal(f.ops->stream_wait(f.d, streams[s], events[other]), WEIR_OK);
            for (int i = 0; i < STREAMS; i++)
                if (snapshot[other][i] > known[s][i]) known[s][i] = snapshot[other][i];
        }
    }
    assert_true(expected > 1000);
    assert_int_equal(wr_sim_reports(f.world), expected);
    for (int i = 0; i < STREAMS; i++)
        drop(f.d, streams[i], events[i]);
    close_world(&f);
}

static void test_history_does_not_grow_with_streams_that_come_and_go(void **state)
{
    (void)state;
    struct fixture f = open_world();
    for (int i = 0; i < 20000; i++) {
        weir_stream s = new_stream(f.d);
        fill(&f, s, (uint64_t)i * 64 % SLAB, 64, 1);
        wr_event e = record(f.d, s);
        wr_sim_drain(f.world);
        assert_true(is_done(f.d, e));
        drop(f.d, s, e);
    }
    assert_true(f.world->oracle.n_components < 10);
    assert_true(f.world->oracle.n_intervals < 5000);
    assert_true(f.world->n_stream_handles == 20000 && f.world->n_streams < 10);
    close_clean(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writes_of_two_streams_without_order_are_a_race_even_if_the_times_are_right),
        cmocka_unit_test(test_neighbours_do_not_race),
        cmocka_unit_test(test_two_reads_do_not_race_but_a_write_after_either_does),
        cmocka_unit_test(test_a_stream_wait_orders),
        cmocka_unit_test(test_a_wait_orders_after_the_record_that_was_latest_then_not_after_later_work),
        cmocka_unit_test(test_a_query_that_says_done_orders_and_one_that_does_not_does_not),
        cmocka_unit_test(test_a_context_record_orders_after_every_stream_even_gone_ones),
        cmocka_unit_test(test_the_host_may_reuse_pinned_memory_only_when_it_knows_the_copy_done),
        cmocka_unit_test(test_unmapping_and_unregistering_need_to_know_that_all_has_passed),
        cmocka_unit_test(test_a_pair_of_ops_is_reported_once_however_many_pieces_they_share),
        cmocka_unit_test(test_a_write_in_the_middle_leaves_the_history_on_both_sides),
        cmocka_unit_test(test_a_split_keeps_the_readers_of_both_parts),
        cmocka_unit_test(test_a_new_stream_does_not_inherit_what_a_gone_one_did),
        cmocka_unit_test(test_a_hundred_thousand_ops_are_judged_right),
        cmocka_unit_test(test_history_does_not_grow_with_streams_that_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
