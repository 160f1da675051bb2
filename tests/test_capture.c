/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that capture a graph. A launch is simulated by queueing, on streams that capture nothing, the work
 * that was captured, in the order that was captured; whether anything overlaps is the oracle's to say.
 */
#include "harness.h"
#include "captures.h"
#include "pool_world.h"

#define MS ((uint64_t)1000000)

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 1});
    return 0;
}

static int set_up_large(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){.adversary_seed = 3});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_int_equal(wr_world_counts(&world).captures_broken, 0);
    wr_world_close(&world);
    return 0;
}

static uint64_t begin(weir_stream s)
{
    uint64_t id;
    wr_sim_set_capturing(world.device, s, true);
    assert_int_equal(weir_graph_id(world.pool, s, &id), WEIR_OK);
    return id;
}

static void end(weir_stream s)
{
    wr_sim_set_capturing(world.device, s, false);
}

static void release(uint64_t id)
{
    assert_int_equal(weir_graph_release(world.pool, id), WEIR_OK);
}

/* What the pool holds after all has passed and been trimmed: a few looks, for ticks must pass, too. */
static uint64_t settled_bytes(void)
{
    for (int i = 0; i < 4; i++) {
        assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
        wr_sim_drain(world.sim);
    }
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    return wr_world_stats(&world).reserved_bytes;
}

/* ---- P01 --------------------------------------------------------------------------------------------- */

static void test_P01_a_block_freed_on_another_captured_stream_is_not_reused_in_the_graph(void **state)
{
    (void)state;
    const size_t bytes = 4 * WR_MIB;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    uint64_t id = begin(a);
    wr_sim_join_capture(world.device, b, a);
    weir_dptr x = wr_world_alloc(&world, bytes, a);
    wr_world_free(&world, x, b); /* captured: a writes x, b joins a and reads it */
    weir_dptr y = wr_world_alloc(&world, bytes, a), z = wr_world_alloc(&world, bytes, b);
    wr_world_free(&world, y, a);
    wr_world_free(&world, z, b);
    end(b);
    end(a);
    weir_stream to_a = wr_world_stream(&world), to_b = wr_world_stream(&world);
    for (int launch = 0; launch < 3; launch++) {
        wr_world_write(&world, to_a, x, bytes, MS);
        wr_world_join(&world, to_a, to_b);
        wr_world_read(&world, to_b, x, bytes, MS);
        wr_world_write(&world, to_a, y, bytes, MS);
        wr_world_write(&world, to_b, z, bytes, MS);
        wr_world_join(&world, to_b, to_a);
    }
    wr_sim_drain(world.sim);
    release(id);
}

static void test_P01_three_times_alloc_and_free_on_one_captured_stream_peak_at_one_block(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    uint64_t id = begin(a), events = wr_world_counts(&world).events_recorded;
    weir_dptr x[3];
    for (int i = 0; i < 3; i++) {
        x[i] = wr_world_alloc(&world, WR_GIB, a);
        wr_world_free(&world, x[i], a);
    }
    assert_int_equal(wr_world_stats(&world).peak_reserved_bytes, WR_GIB);
    assert_int_equal(wr_world_counts(&world).events_recorded, events);
    end(a);
    weir_stream launches = wr_world_stream(&world);
    for (int launch = 0; launch < 3; launch++)
        for (int i = 0; i < 3; i++)
            wr_world_write(&world, launches, x[i], WR_GIB, MS);
    wr_sim_drain(world.sim);
    release(id);
    assert_int_equal(settled_bytes(), 0);
}

static void test_P01_the_streams_own_memory_from_before_is_not_touched_by_its_capture(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 4 * WR_MIB, a), y;
    wr_world_stall(&world, a);
    wr_world_write(&world, a, x, 4 * WR_MIB, MS);
    wr_world_free(&world, x, a); /* ready on a, but a launch is not ordered after the write */
    uint64_t id = begin(a);
    y = wr_world_alloc(&world, 4 * WR_MIB, a);
    assert_int_not_equal(x, y);
    wr_world_free(&world, y, a);
    end(a);
    release(id);
}

/* Freed at home, in stream order, and yet used by each launch to come. */
static void test_P01_a_block_of_before_freed_by_its_capturing_home_is_kept_for_the_graph(void **state)
{
    (void)state;
    const size_t bytes = 4 * WR_MIB;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, bytes, a);
    uint64_t id = begin(a);
    wr_world_free(&world, x, a); /* captured: a writes x */
    end(a);
    weir_dptr y = wr_world_alloc(&world, bytes, a), z = wr_world_alloc(&world, bytes, b);
    weir_stream launches = wr_world_stream(&world);
    wr_world_write(&world, launches, x, bytes, MS);
    wr_world_write(&world, a, y, bytes, MS);
    wr_world_write(&world, b, z, bytes, MS);
    assert_int_not_equal(x, y);
    assert_int_not_equal(x, z);
    assert_int_equal(wr_world_stats(&world).pending_bytes, bytes);
    wr_sim_drain(world.sim);
    wr_world_free(&world, y, a);
    wr_world_free(&world, z, b);
    release(id);
    assert_int_equal(settled_bytes(), 0);
}

/* The heap of one capture is not home to another of the same stream. */
static void test_P01_a_block_of_one_graph_freed_in_the_next_ones_capture_is_kept_for_both(void **state)
{
    (void)state;
    const size_t bytes = 4 * WR_MIB;
    weir_stream a = wr_world_stream(&world);
    uint64_t first = begin(a);
    weir_dptr x = wr_world_alloc(&world, bytes, a);
    end(a);
    uint64_t second = begin(a);
    wr_world_free(&world, x, a); /* captured: a reads x */
    end(a);
    release(first);
    assert_int_equal(settled_bytes(), bytes);
    assert_int_equal(wr_world_stats(&world).pending_bytes, bytes);
    release(second);
    assert_int_equal(settled_bytes(), 0);
}

/* What it costs: one look of the stream's frees at the capture, till it is seen to have ended. */
static void test_frees_after_a_capture_are_at_home_again_while_its_graph_lives(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    uint64_t id = begin(a);
    end(a);
    weir_dptr x = wr_world_alloc(&world, WR_MIB, a);
    wr_world_free(&world, x, a);
    assert_false(wr_captures_maybe());
    assert_int_equal(wr_world_alloc(&world, WR_MIB, a), x);
    wr_world_free(&world, x, a);
    release(id);
}

/* ---- P02 --------------------------------------------------------------------------------------------- */

static void test_P02_nothing_that_a_capture_forbids_is_done_meanwhile(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world), gone = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 8 * WR_MIB, gone), y;
    wr_world_free(&world, wr_world_alloc(&world, 16 * WR_MIB, b), b);
    assert_int_equal(weir_stream_retire(world.pool, gone), WEIR_OK);
    wr_world_destroy_stream(&world, gone);
    uint64_t id = begin(a), reserved = wr_world_stats(&world).reserved_bytes;
    wr_world_free(&world, x, b); /* of a stream that is gone: only a tick on the context could pass it */
    size_t freed = 1;
    assert_int_equal(weir_trim(world.pool, 0, &freed), WEIR_OK);
    assert_int_equal(freed, 0);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, reserved);
    for (int i = 0; i < 3; i++) { /* cached memory would have to go back to the driver first */
        weir_status s = weir_alloc(world.pool, 60 * WR_MIB, i % 2 ? a : b, &y);
        assert_true(s == WEIR_NOT_YET || s == WEIR_OUT_OF_MEMORY);
    }
    y = wr_world_alloc(&world, WR_MIB, a);
    wr_world_free(&world, y, a);
    end(a);
    release(id);
    assert_int_equal(settled_bytes(), 0);
    wr_world_free(&world, wr_world_alloc(&world, 60 * WR_MIB, b), b);
}

static void test_P02_a_growth_that_fails_half_way_in_a_capture_unmaps_nothing_before_its_end(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    uint64_t id = begin(a);
    for (unsigned n = 1; n <= 6; n++) { /* create, map, access of two segments */
        weir_dptr x;
        wr_sim_fail_nth(world.sim, n, WEIR_OUT_OF_MEMORY);
        weir_status s = weir_alloc(world.pool, 48 * WR_MIB, a, &x);
        wr_sim_fail_nth(world.sim, 0, WEIR_OK);
        if (s == WEIR_OK) wr_world_free(&world, x, a);
        wr_world_check(&world);
    }
    end(a);
    release(id);
    assert_int_equal(settled_bytes(), 0);
}

/* ---- P06 --------------------------------------------------------------------------------------------- */

enum { STEPS = 7 };

/* The first `n` steps of a capture. What is live at their end comes back in `live`. */
static void capture_steps(unsigned n, weir_stream a, weir_stream b, weir_dptr outside, weir_dptr live[2])
{
    live[0] = live[1] = 0;
    if (n > 0) live[0] = wr_world_alloc(&world, 4 * WR_MIB, a);
    if (n > 1) live[1] = wr_world_alloc(&world, 600, b);
    if (n > 2) wr_world_touch(&world, live[0], b);
    if (n > 3) wr_world_touch(&world, outside, a);
    if (n > 4) wr_world_free(&world, live[0], a);
    if (n > 4) live[0] = 0;
    if (n > 5) wr_world_free(&world, live[1], a);
    if (n > 5) live[1] = 0;
    if (n > 6) live[0] = wr_world_alloc(&world, 2 * WR_MIB, b);
}

static void test_P06_a_capture_aborted_at_any_step_gives_everything_back(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world), c = wr_world_stream(&world);
    assert_int_equal(settled_bytes(), 0);
    for (unsigned n = 0; n <= STEPS; n++) {
        weir_dptr live[2], outside = wr_world_alloc(&world, WR_MIB, c);
        uint64_t id = begin(a);
        wr_sim_join_capture(world.device, b, a);
        capture_steps(n, a, b, outside, live);
        end(b);
        end(a);
        release(id);
        for (int i = 0; i < 2; i++)
            wr_world_free(&world, live[i], i == 0 ? a : c);
        wr_world_free(&world, outside, c);
        wr_sim_drain(world.sim);
        assert_int_equal(settled_bytes(), 0);
        wr_world_check(&world);
    }
}

/* The capture is aborted by a failure of any call of the driver; what failed has changed nothing. */
static void test_P06_a_capture_whose_nth_driver_call_fails_gives_everything_back(void **state)
{
    (void)state;
    enum { MOST = 40 };
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    for (uint64_t n = 1, calls = n; calls >= n && n < MOST; n++) {
        weir_dptr x[3] = {0}, outside = wr_world_alloc(&world, WR_MIB, b);
        uint64_t id = begin(a), before = wr_sim_calls(world.sim);
        wr_sim_fail_nth(world.sim, n, n % 2 ? WEIR_DRIVER_ERROR : WEIR_OUT_OF_MEMORY);
        for (int i = 0; i < 3; i++) {
            (void)weir_alloc(world.pool, (size_t)(i + 1) * 12 * WR_MIB, a, &x[i]);
            if (i == 0) (void)weir_touch(world.pool, outside, a, 0);
            if (i == 1) (void)weir_free(world.pool, x[0], a);
        }
        x[0] = 0;
        calls = wr_sim_calls(world.sim) - before;
        wr_sim_fail_nth(world.sim, 0, WEIR_OK);
        end(a);
        release(id);
        for (int i = 0; i < 3; i++)
            wr_world_free(&world, x[i], b);
        wr_world_free(&world, outside, b);
        assert_int_equal(settled_bytes(), 0);
        wr_world_check(&world);
        assert_true(n + 1 < MOST || calls < n);
    }
}

/* ---- graphs ------------------------------------------------------------------------------------------ */

static void test_memory_of_a_graph_stays_until_the_graph_is_released(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    uint64_t id = begin(a), again;
    wr_world_free(&world, wr_world_alloc(&world, 40 * WR_MIB, a), a);
    assert_int_equal(weir_graph_release(world.pool, id), WEIR_CAPTURING);
    end(a);
    assert_int_equal(weir_graph_id(world.pool, a, &again), WEIR_CAPTURING);
    weir_dptr y;
    for (int i = 0; i < 3; i++) {
        wr_sim_drain(world.sim);
        assert_int_equal(weir_alloc(world.pool, 40 * WR_MIB, i == 0 ? a : b, &y), WEIR_OUT_OF_MEMORY);
        assert_non_null(strstr(weir_error_text(), "41943040 kept for graphs")); /* waiting would not help */
        assert_int_equal(settled_bytes(), 40 * WR_MIB);
    }
    assert_int_equal(weir_graph_release(world.pool, id + 1), WEIR_INVALID_ARGUMENT);
    release(id);
    assert_int_equal(weir_graph_release(world.pool, id), WEIR_INVALID_ARGUMENT);
    assert_int_equal(settled_bytes(), 0);
    wr_world_free(&world, wr_world_alloc(&world, 40 * WR_MIB, b), b);
}

/* A launch that is still queued at the release is waited for like any other work. */
static void test_a_released_graphs_memory_waits_for_the_launches_that_are_queued(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world), launches = wr_world_stream(&world);
    uint64_t id = begin(a);
    weir_dptr x = wr_world_alloc(&world, 40 * WR_MIB, a);
    wr_world_free(&world, x, a);
    end(a);
    struct wr_sim_gate *g = wr_world_stall(&world, launches);
    wr_world_write(&world, launches, x, 40 * WR_MIB, MS);
    release(id);
    assert_int_equal(wr_world_try_alloc(&world, 40 * WR_MIB, b), 0);
    wr_world_let_go(&world, g);
    weir_dptr y = wr_world_alloc(&world, 40 * WR_MIB, b);
    wr_world_write(&world, b, y, 40 * WR_MIB, MS);
    wr_world_free(&world, y, b);
}

static void test_a_block_that_captured_work_uses_stays_until_the_graph_is_released(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr touched = wr_world_alloc(&world, 20 * WR_MIB, b),
              freed = wr_world_alloc(&world, 20 * WR_MIB, b);
    uint64_t id = begin(a);
    wr_world_touch(&world, touched, a);
    wr_world_free(&world, freed, a);
    end(a);
    wr_world_free(&world, touched, b);
    wr_sim_drain(world.sim);
    assert_int_equal(wr_world_stats(&world).pending_bytes, 40 * WR_MIB);
    weir_dptr y;
    assert_int_equal(weir_alloc(world.pool, 40 * WR_MIB, b, &y), WEIR_OUT_OF_MEMORY);
    release(id);
    assert_int_equal(settled_bytes(), 0);
}

static void test_two_captures_of_one_stream_share_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    uint64_t first = begin(a);
    weir_dptr x = wr_world_alloc(&world, WR_MIB, a);
    wr_world_free(&world, x, a);
    end(a);
    uint64_t second = begin(a);
    assert_int_not_equal(first, second);
    weir_dptr y = wr_world_alloc(&world, WR_MIB, a);
    assert_int_not_equal(x, y);
    end(a);
    release(first);
    wr_world_free(&world, y, a); /* an output of the graph, freed after its capture */
    assert_int_equal(settled_bytes(), 2 * WR_MIB);
    release(second);
    assert_int_equal(settled_bytes(), 0);
}

static void test_a_pool_closes_once_its_graphs_are_released(void **state)
{
    (void)state;
    weir_pool *p, *fixture = world.pool;
    weir_pool_options o = {.struct_size = sizeof o};
    assert_int_equal(wr_pool_open(world.device, &o, &p), WEIR_OK);
    world.pool = p;
    weir_stream a = wr_world_stream(&world);
    uint64_t id = begin(a);
    wr_world_free(&world, wr_world_alloc(&world, WR_MIB, a), a);
    end(a);
    assert_int_equal(weir_pool_close(p), WEIR_NOT_YET);
    release(id);
    wr_world_close_pool(&world, p);
    world.pool = fixture;
}

static void *own_stream_alloc(void *out)
{
    weir_dptr *x = out;
    wr_sim_set_capturing(world.device, WR_FENCE_PER_THREAD, true);
    *x = wr_world_alloc(&world, WR_MIB, WR_FENCE_PER_THREAD);
    wr_world_free(&world, *x, WR_FENCE_PER_THREAD);
    wr_sim_set_capturing(world.device, WR_FENCE_PER_THREAD, false);
    return NULL;
}

/* The thread's stream goes with it; its graph, and what the graph uses, do not. */
static void test_a_graph_outlives_the_thread_that_captured_it(void **state)
{
    (void)state;
    weir_dptr x = 0;
    weir_stream b = wr_world_stream(&world);
    pthread_t thread;
    uint64_t first = begin(b), id = first + 1; /* the next one */
    end(b);
    assert_int_equal(pthread_create(&thread, NULL, own_stream_alloc, &x), 0);
    pthread_join(thread, NULL);
    assert_int_not_equal(x, 0);
    release(first);
    assert_int_equal(settled_bytes(), 2 * WR_MIB);
    release(id);
    assert_int_equal(settled_bytes(), 0);
}

/* ---- policies ---------------------------------------------------------------------------------------- */

static void check_capture_under(weir_reuse reuse)
{
    wr_world_open(&world,
        &(struct wr_world_options){
            .limit_bytes = 16 * WR_MIB, .grow_bytes = 1, .pool.reuse = reuse, .pool.deadline_ns = -1});
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 8 * WR_MIB, b), y = 0;
    struct wr_sim_gate *g = wr_world_stall(&world, b);
    wr_world_write(&world, b, x, 8 * WR_MIB, MS);
    wr_world_free(&world, x, b);
    uint64_t id = begin(a);
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = reuse, .deadline_ns = -1};
    assert_int_equal(weir_alloc(world.pool, 12 * WR_MIB, a, &y), WEIR_NOT_YET); /* and at once */
    assert_int_equal(weir_alloc_with(world.pool, 12 * WR_MIB, a, &o, &y), WEIR_NOT_YET);
    assert_int_equal(weir_alloc_with(world.pool, 8 * WR_MIB, a, &o, &y), WEIR_OK);
    wr_world_free(&world, y, a);
    wr_world_let_go(&world, g);
    end(a);
    wr_sim_drain(world.sim);
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    wr_sim_drain(world.sim);
    assert_int_equal(settled_bytes(), 8 * WR_MIB); /* the graph's */
    assert_int_equal(
        weir_alloc(world.pool, 12 * WR_MIB, b, &x), WEIR_OUT_OF_MEMORY); /* nor is it waited for */
    char *json;
    assert_int_equal(weir_pool_snapshot(world.pool, &json), WEIR_OK);
    free(json);
    wr_world_check(&world);
    assert_int_equal(wr_world_stats(&world).stream_waits + wr_world_stats(&world).host_waits, 0);
    release(id);
    assert_int_equal(settled_bytes(), 0);
    (void)tear_down(NULL);
}

static void test_no_policy_makes_a_capture_wait_or_lets_others_have_its_memory(void **state)
{
    (void)state;
    check_capture_under(WEIR_REUSE_COMPLETED);
    check_capture_under(WEIR_REUSE_OWNER);
    check_capture_under(WEIR_REUSE_DEVICE_WAIT);
    check_capture_under(WEIR_REUSE_HOST_WAIT);
}

/* The capture is of a stream that the pool has never met, but another pool has. */
static void test_an_owners_memory_stays_put_while_another_pools_stream_captures(void **state)
{
    (void)state;
    weir_pool *owners, *fixture = world.pool;
    weir_pool_options o = {
        .struct_size = sizeof o, .reuse = WEIR_REUSE_OWNER, .limit_bytes = 8 * WR_MIB, .grow_bytes = 1};
    assert_int_equal(wr_pool_open(world.device, &o, &owners), WEIR_OK);
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world), graph = wr_world_stream(&world);
    uint64_t id = begin(graph);
    world.pool = owners;
    weir_dptr x = wr_world_alloc(&world, 8 * WR_MIB, a), y;
    wr_world_free(&world, x, a);
    wr_sim_drain(world.sim);
    assert_int_equal(weir_alloc(owners, 8 * WR_MIB, b, &y), WEIR_NOT_YET);
    world.pool = fixture;
    end(graph);
    release(id);
    world.pool = owners;
    for (int i = 0; i < 2 && weir_alloc(owners, 8 * WR_MIB, b, &y) != WEIR_OK; i++)
        wr_sim_drain(world.sim);
    wr_world_free(&world, y, b);
    wr_world_close_pool(&world, owners);
    world.pool = fixture;
}

#define TEST(name)       cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define TEST_LARGE(name) cmocka_unit_test_setup_teardown(name, set_up_large, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_LARGE(test_P01_a_block_freed_on_another_captured_stream_is_not_reused_in_the_graph),
        TEST_LARGE(test_P01_three_times_alloc_and_free_on_one_captured_stream_peak_at_one_block),
        TEST(test_P01_the_streams_own_memory_from_before_is_not_touched_by_its_capture),
        TEST(test_P01_a_block_of_before_freed_by_its_capturing_home_is_kept_for_the_graph),
        TEST(test_P01_a_block_of_one_graph_freed_in_the_next_ones_capture_is_kept_for_both),
        TEST(test_frees_after_a_capture_are_at_home_again_while_its_graph_lives),
        TEST(test_P02_nothing_that_a_capture_forbids_is_done_meanwhile),
        TEST(test_P02_a_growth_that_fails_half_way_in_a_capture_unmaps_nothing_before_its_end),
        TEST(test_P06_a_capture_aborted_at_any_step_gives_everything_back),
        TEST(test_P06_a_capture_whose_nth_driver_call_fails_gives_everything_back),
        TEST(test_memory_of_a_graph_stays_until_the_graph_is_released),
        TEST(test_a_released_graphs_memory_waits_for_the_launches_that_are_queued),
        TEST(test_a_block_that_captured_work_uses_stays_until_the_graph_is_released),
        TEST(test_two_captures_of_one_stream_share_nothing),
        TEST(test_a_pool_closes_once_its_graphs_are_released),
        TEST(test_a_graph_outlives_the_thread_that_captured_it),
        cmocka_unit_test(test_no_policy_makes_a_capture_wait_or_lets_others_have_its_memory),
        TEST(test_an_owners_memory_stays_put_while_another_pools_stream_captures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
