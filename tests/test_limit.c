/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool's limit is changed while it serves.
 */
#include "harness.h"
#include "pool_world.h"

static int set_up(void **state)
{
    (void)state;
    wr_world_open(
        &world, &(struct wr_world_options){
                    .limit_bytes = 64 * WR_MIB, .grow_bytes = 1, .pool.most_limit_bytes = 256 * WR_MIB});
    return 0;
}

static uint64_t limit_now(void)
{
    return wr_world_stats(&world).limit_bytes;
}

static weir_status alloc(size_t bytes, weir_stream s, weir_dptr *out)
{
    return weir_alloc(world.pool, bytes, s, out);
}

static void test_a_lower_limit_gives_idle_memory_back_at_once_and_holds(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 48 * WR_MIB, a), y;
    wr_world_free(&world, x, a);
    assert_int_equal(weir_pool_set_limit(world.pool, 16 * WR_MIB, 0), WEIR_OK);
    assert_true(wr_world_stats(&world).reserved_bytes <= 16 * WR_MIB);
    assert_int_equal(limit_now(), 16 * WR_MIB);
    assert_int_equal(alloc(17 * WR_MIB, a, &y), WEIR_TOO_LARGE);
    x = wr_world_alloc(&world, 16 * WR_MIB, a);
    assert_int_equal(alloc(2 * WR_MIB, a, &y), WEIR_OUT_OF_MEMORY);
    wr_world_free(&world, x, a);
}

static void test_a_limit_below_what_lives_becomes_what_is_in_use_and_goes_on_after_frees(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 32 * WR_MIB, a), y = wr_world_alloc(&world, 16 * WR_MIB, a), z;
    assert_int_equal(weir_pool_set_limit(world.pool, 8 * WR_MIB, 0), WEIR_NOT_YET);
    assert_non_null(strstr(weir_error_text(), "in use or pending"));
    assert_int_equal(limit_now(), 48 * WR_MIB);
    assert_int_equal(alloc(2 * WR_MIB, a, &z), WEIR_OUT_OF_MEMORY);
    wr_world_free(&world, x, a);
    wr_world_free(&world, y, a);
    assert_int_equal(weir_pool_set_limit(world.pool, 8 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(limit_now(), 8 * WR_MIB);
}

static void test_pending_memory_is_not_waited_for(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 32 * WR_MIB, a);
    struct wr_sim_gate *gate = wr_world_stall(&world, b);
    wr_world_touch(&world, x, b);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_pool_set_limit(world.pool, 8 * WR_MIB, 0), WEIR_NOT_YET);
    assert_int_equal(wr_world_stats(&world).pending_bytes, 32 * WR_MIB);
    wr_world_let_go(&world, gate);
    assert_int_equal(weir_pool_set_limit(world.pool, 8 * WR_MIB, 0), WEIR_OK);
    assert_true(wr_world_stats(&world).reserved_bytes <= 8 * WR_MIB);
    assert_int_equal(wr_world_stats(&world).host_waits, 0);
}

static void test_a_higher_limit_is_in_force_at_once_and_zero_is_the_first_one(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x;
    assert_int_equal(alloc(200 * WR_MIB, a, &x), WEIR_TOO_LARGE);
    assert_int_equal(weir_pool_set_limit(world.pool, 256 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(alloc(200 * WR_MIB, a, &x), WEIR_OK);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_pool_set_limit(world.pool, 0, 0), WEIR_OK);
    assert_int_equal(limit_now(), 64 * WR_MIB);
}

static void test_the_smaller_of_bytes_and_fraction_counts(void **state)
{
    (void)state;
    double part = 32.0 * WR_MIB / (double)world.device->total_bytes;
    assert_int_equal(weir_pool_set_limit(world.pool, 48 * WR_MIB, part), WEIR_OK);
    assert_int_equal(limit_now(), 32 * WR_MIB);
    assert_int_equal(weir_pool_set_limit(world.pool, 16 * WR_MIB, part), WEIR_OK);
    assert_int_equal(limit_now(), 16 * WR_MIB);
}

static void test_limits_out_of_range_change_nothing(void **state)
{
    (void)state;
    assert_int_equal(weir_pool_set_limit(NULL, 8 * WR_MIB, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_set_limit(world.pool, 258 * WR_MIB, 0), WEIR_INVALID_ARGUMENT);
    assert_non_null(strstr(weir_error_text(), "268435456"));
    assert_int_equal(weir_pool_set_limit(world.pool, 2 * WR_MIB - 1, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_set_limit(world.pool, 0, 1.5), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_set_limit(world.pool, 0, -0.5), WEIR_INVALID_ARGUMENT);
    assert_int_equal(limit_now(), 64 * WR_MIB);
}

static void test_a_plain_pools_limit_stays_and_a_closed_pool_has_none(void **state)
{
    (void)state;
    weir_pool *plain;
    weir_pool_options o = {
        .struct_size = sizeof o, .limit_bytes = 16 * WR_MIB, .backing = WEIR_BACKING_PLAIN};
    assert_int_equal(wr_pool_open(world.device, &o, &plain), WEIR_OK);
    assert_int_equal(weir_pool_set_limit(plain, 8 * WR_MIB, 0), WEIR_INVALID_ARGUMENT);
    wr_world_close_pool(&world, plain);
    assert_int_equal(weir_pool_set_limit(plain, 8 * WR_MIB, 0), WEIR_CLOSED);
    o.most_limit_bytes = 32 * WR_MIB;
    assert_int_equal(wr_pool_open(world.device, &o, &plain), WEIR_INVALID_ARGUMENT);
}

static void test_a_soft_limit_counts_below_the_new_limit_too(void **state)
{
    (void)state;
    weir_pool *soft;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x, y;
    weir_pool_options o = {.struct_size = sizeof o,
        .limit_bytes = 16 * WR_MIB,
        .most_limit_bytes = 64 * WR_MIB,
        .soft_limit_bytes = 24 * WR_MIB,
        .grow_bytes = 1};
    assert_int_equal(wr_pool_open(world.device, &o, &soft), WEIR_OK);
    assert_int_equal(weir_alloc(soft, 16 * WR_MIB, a, &x), WEIR_OK);
    assert_int_equal(weir_alloc(soft, 16 * WR_MIB, a, &y), WEIR_OUT_OF_MEMORY);
    assert_int_equal(weir_pool_set_limit(soft, 64 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(
        weir_alloc(soft, 16 * WR_MIB, a, &y), WEIR_OK); /* above the soft limit: nothing to evict */
    assert_int_equal(weir_free(soft, x, a), WEIR_OK);
    assert_int_equal(weir_free(soft, y, a), WEIR_OK);
    wr_world_close_pool(&world, soft);
}

/* ---- beside other threads ----------------------------------------------------------------------------- */

enum { ROUNDS = 300 };

static _Atomic bool over;

static void *alloc_and_free(void *stream)
{
    while (!atomic_load(&over)) {
        weir_dptr x;
        weir_status s = alloc(6 * WR_MIB, stream, &x);
        if (s == WEIR_OK) s = weir_free(world.pool, x, stream);
        if (s != WEIR_OK && s != WEIR_NOT_YET && s != WEIR_OUT_OF_MEMORY && s != WEIR_TOO_LARGE)
            return "an error that a limit does not explain";
    }
    return NULL;
}

static void test_the_limit_in_force_holds_at_every_moment_beside_allocs(void **state)
{
    (void)state;
    pthread_t threads[2];
    atomic_store(&over, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, alloc_and_free, wr_world_stream(&world)), 0);
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = (i % 2 == 0 ? 4 : 64) * WR_MIB;
        weir_status s = weir_pool_set_limit(world.pool, bytes, 0);
        weir_stats now = {.struct_size = sizeof now};
        assert_true(s == WEIR_OK || (s == WEIR_NOT_YET && i % 2 == 0));
        assert_int_equal(weir_pool_stats(world.pool, &now), WEIR_OK);
        assert_true(now.reserved_bytes <= now.limit_bytes);
        assert_int_equal(weir_pool_check(world.pool), WEIR_OK);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++) {
        void *error;
        assert_int_equal(pthread_join(threads[i], &error), 0);
        assert_null(error);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, wr_world_close_one)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_lower_limit_gives_idle_memory_back_at_once_and_holds),
        TEST(test_a_limit_below_what_lives_becomes_what_is_in_use_and_goes_on_after_frees),
        TEST(test_pending_memory_is_not_waited_for),
        TEST(test_a_higher_limit_is_in_force_at_once_and_zero_is_the_first_one),
        TEST(test_the_smaller_of_bytes_and_fraction_counts),
        TEST(test_limits_out_of_range_change_nothing),
        TEST(test_a_plain_pools_limit_stays_and_a_closed_pool_has_none),
        TEST(test_a_soft_limit_counts_below_the_new_limit_too),
        TEST(test_the_limit_in_force_holds_at_every_moment_beside_allocs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
