/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hot path asks and keeps: announced streams, the sizes that the front cache takes.
 */
#include "harness.h"
#include "pool_world.h"

/* ---- questions to the driver ------------------------------------------------------------------------- */

static const struct wr_device_ops *real_ops;
static unsigned n_questions;

static weir_status count_identify(struct wr_device *d, weir_stream s, struct wr_stream_info *out)
{
    n_questions++;
    return real_ops->stream_identify(d, s, out);
}

static unsigned questions_of_a_pair(weir_stream s)
{
    unsigned before = n_questions;
    wr_world_free(&world, wr_world_alloc(&world, WR_MIB, s), s);
    return n_questions - before;
}

static void open_world(weir_streams streams)
{
    static struct wr_device_ops ops;
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB,
                              .grow_bytes = 1,
                              .reuse_handles = true,
                              .pool = {.streams = streams}});
    real_ops = world.device->ops;
    ops = *real_ops;
    ops.stream_identify = count_identify;
    world.device->ops = &ops;
}

static int open_announced(void **state)
{
    (void)state;
    open_world(WEIR_STREAMS_ANNOUNCED);
    return 0;
}

static int open_checked(void **state)
{
    (void)state;
    open_world(WEIR_STREAMS_CHECKED);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    world.device->ops = real_ops;
    wr_world_close(&world);
    return 0;
}

static void test_a_checked_stream_is_asked_about_at_each_alloc(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    questions_of_a_pair(s);
    assert_int_equal(questions_of_a_pair(s), 1);
}

static void test_an_announced_stream_is_asked_about_once(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    assert_int_not_equal(questions_of_a_pair(s), 0);
    assert_int_equal(questions_of_a_pair(s), 0);
}

static void test_a_default_stream_is_asked_about_even_in_an_announced_pool(void **state)
{
    (void)state;
    for (uintptr_t handle = 0; handle <= 2; handle += 2) {
        questions_of_a_pair((weir_stream)handle);
        assert_int_equal(questions_of_a_pair((weir_stream)handle), 1);
    }
}

static void test_A08_a_retired_stream_s_handle_may_come_back_in_an_announced_pool(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr block = wr_world_alloc(&world, WR_MIB, s);
    struct wr_sim_gate *gate = wr_world_stall(&world, s);
    wr_world_fill(&world, s, block, WR_MIB, 1);
    wr_world_free(&world, block, s);
    assert_int_equal(weir_stream_retire(world.pool, s), WEIR_OK);
    wr_world_destroy_stream(&world, s);
    weir_stream again = wr_world_stream(&world);
    assert_ptr_equal(again, s);
    weir_dptr other = wr_world_alloc(&world, WR_MIB, again);
    assert_int_not_equal(other, block); /* what is queued on the stream before has not passed */
    wr_world_fill(&world, again, other, WR_MIB, 2);
    wr_world_free(&world, other, again);
    wr_world_let_go(&world, gate);
}

static void test_a_capture_is_told_of_in_an_announced_pool_and_gets_memory_of_its_own(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr warm = wr_world_alloc(&world, WR_MIB, s);
    wr_world_free(&world, warm, s);
    uint64_t graph;
    wr_sim_set_capturing(world.device, s, true);
    assert_int_equal(weir_graph_id(world.pool, s, &graph), WEIR_OK);
    weir_dptr captured = wr_world_alloc(&world, WR_MIB, s);
    assert_int_not_equal(captured, warm);
    wr_world_free(&world, captured, s);
    wr_sim_set_capturing(world.device, s, false);
    assert_int_not_equal(questions_of_a_pair(s), 0); /* as long as the graph is kept */
    assert_int_equal(weir_graph_release(world.pool, graph), WEIR_OK);
    questions_of_a_pair(s);
    assert_int_equal(questions_of_a_pair(s), 0);
}

static void test_an_unknown_way_to_know_streams_is_refused(void **state)
{
    (void)state;
    weir_pool *pool;
    const weir_pool_options o = {.struct_size = sizeof o, .streams = WEIR_STREAMS_ANNOUNCED + 1};
    assert_int_equal(wr_pool_open(world.device, &o, &pool), WEIR_INVALID_ARGUMENT);
}

/* ---- the front cache --------------------------------------------------------------------------------- */

static uint64_t cached_units(weir_stream s)
{
    struct wr_heap *h = wr_heaps_find_handle(world.pool, s);
    assert_non_null(h);
    uint64_t units = h->counts.front_units;
    wr_heaps_unpin(world.pool, h);
    return units;
}

static void test_a_size_is_cached_once_it_repeats(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    questions_of_a_pair(s);
    assert_int_equal(cached_units(s), 0);
    questions_of_a_pair(s);
    assert_int_equal(cached_units(s), WR_MIB >> WR_UNIT_LOG2);
}

static void test_blocks_of_sizes_that_do_not_repeat_join_at_once(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    for (size_t bytes = WR_MIB; bytes < 2 * WR_MIB; bytes += 16 * WR_KIB)
        wr_world_free(&world, wr_world_alloc(&world, bytes, s), s);
    assert_int_equal(cached_units(s), 0);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 2 * WR_MIB);
}

/* What the cache holds is less than a 128th of what lives: a cut leaves it alone. */
static void test_a_cut_flushes_the_front_cache_only_where_it_holds_enough(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr live = wr_world_alloc(&world, 50 * WR_MIB, s);
    for (int i = 0; i < 2; i++)
        wr_world_free(&world, wr_world_alloc(&world, 300 * WR_KIB, s), s);
    weir_dptr cut = wr_world_alloc(&world, 700 * WR_KIB, s);
    assert_int_equal(cached_units(s), (300 * WR_KIB) >> WR_UNIT_LOG2);
    wr_world_free(&world, live, s);
    weir_dptr next_cut = wr_world_alloc(&world, 500 * WR_KIB, s);
    assert_int_equal(cached_units(s), 0);
    wr_world_free(&world, cut, s);
    wr_world_free(&world, next_cut, s);
}

int main(void)
{
#define ANNOUNCED(f) cmocka_unit_test_setup_teardown(f, open_announced, tear_down)
#define CHECKED(f)   cmocka_unit_test_setup_teardown(f, open_checked, tear_down)
    const struct CMUnitTest tests[] = {
        CHECKED(test_a_checked_stream_is_asked_about_at_each_alloc),
        ANNOUNCED(test_an_announced_stream_is_asked_about_once),
        ANNOUNCED(test_a_default_stream_is_asked_about_even_in_an_announced_pool),
        ANNOUNCED(test_A08_a_retired_stream_s_handle_may_come_back_in_an_announced_pool),
        ANNOUNCED(test_a_capture_is_told_of_in_an_announced_pool_and_gets_memory_of_its_own),
        CHECKED(test_an_unknown_way_to_know_streams_is_refused),
        CHECKED(test_a_size_is_cached_once_it_repeats),
        CHECKED(test_blocks_of_sizes_that_do_not_repeat_join_at_once),
        CHECKED(test_a_cut_flushes_the_front_cache_only_where_it_holds_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
