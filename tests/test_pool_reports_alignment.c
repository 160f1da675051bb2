/* SPDX-License-Identifier: Apache-2.0
 *
 * A02: alignment. What it costs, what it gives, and what is no alignment at all.
 */
#include "pool_world.h"

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    return 0;
}

static weir_status alloc_aligned(size_t bytes, size_t alignment, weir_stream s, weir_dptr *out)
{
    weir_alloc_options o = {.struct_size = sizeof o, .alignment = alignment};
    return weir_alloc_with(world.pool, bytes, s, &o, out);
}

static weir_dptr must_alloc_aligned(size_t bytes, size_t alignment, weir_stream s)
{
    weir_dptr x = 0;
    assert_int_equal(alloc_aligned(bytes, alignment, s, &x), WEIR_OK);
    assert_true(x != 0);
    assert_int_equal(x % 512, 0);
    if (alignment != 0) assert_int_equal(x % alignment, 0);
    return x;
}

static void test_A02_an_alignment_up_to_the_natural_one_costs_nothing(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    for (size_t alignment = 1; alignment <= 512; alignment *= 2) {
        weir_dptr x = must_alloc_aligned(32, alignment, s);
        assert_int_equal(wr_world_stats(&world).live_bytes, 512);
        wr_world_free(&world, x, s);
    }
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 2 * WR_MIB);
}

/* A block of 512 goes before each, so that no alignment comes by luck. */
static void test_A02_powers_of_two_up_to_2_mib_are_kept(void **state)
{
    (void)state;
    enum { SIZES = 4 };
    const size_t sizes[SIZES] = {1, 4096, 700 * WR_KIB, 5 * WR_MIB};
    weir_stream s = wr_world_stream(&world);
    for (size_t alignment = 1; alignment <= 2 * WR_MIB; alignment *= 2) {
        weir_dptr odd[SIZES], x[SIZES];
        for (int i = 0; i < SIZES; i++) {
            odd[i] = wr_world_alloc(&world, 512, s);
            x[i] = must_alloc_aligned(sizes[i], alignment, s);
            wr_world_mark(&world, s, x[i], sizes[i] < 4 ? 4 : sizes[i], (uint32_t)i);
        }
        wr_world_check(&world);
        for (int i = 0; i < SIZES; i++) {
            wr_world_free(&world, odd[i], s);
            wr_world_free(&world, x[i], s);
        }
    }
}

static void test_A02_what_lies_around_an_aligned_block_serves_others(void **state)
{
    (void)state;
    enum { BLOCKS = 32 };
    weir_stream s = wr_world_stream(&world);
    weir_dptr aligned[BLOCKS], between[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        aligned[i] = must_alloc_aligned(4 * WR_KIB, 64 * WR_KIB, s);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 2 * WR_MIB);
    for (int i = 0; i < BLOCKS; i++)
        between[i] = wr_world_alloc(&world, 60 * WR_KIB, s);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 2 * WR_MIB);
    assert_int_equal(wr_world_stats(&world).cached_bytes, 0);
    for (int i = 0; i < BLOCKS; i++) {
        wr_world_free(&world, aligned[i], s);
        wr_world_free(&world, between[i], s);
    }
    wr_world_free(&world, wr_world_alloc(&world, 2 * WR_MIB - 512, s), s);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 2 * WR_MIB);
}

static void test_A02_the_whole_limit_can_be_had_in_the_widest_alignment(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr x[32];
    for (int i = 0; i < 32; i++)
        x[i] = must_alloc_aligned(2 * WR_MIB, 2 * WR_MIB, s);
    weir_dptr y;
    assert_int_equal(alloc_aligned(1, 2 * WR_MIB, s, &y), WEIR_OUT_OF_MEMORY);
    for (int i = 0; i < 32; i++)
        wr_world_free(&world, x[i], s);
}

static void test_A02_a_warm_aligned_alloc_makes_no_driver_call(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr odd = wr_world_alloc(&world, 512, s), x = must_alloc_aligned(8 * WR_KIB, 8 * WR_KIB, s);
    wr_world_free(&world, x, s);
    uint64_t calls = wr_sim_calls(world.sim);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(must_alloc_aligned(8 * WR_KIB, 8 * WR_KIB, s), x);
        wr_world_free(&world, x, s);
    }
    assert_int_equal(wr_sim_calls(world.sim), calls);
    wr_world_free(&world, odd, s);
}

/* In an options struct 0 is the default, so it can't be an alignment asked for. */
static void test_A02_what_is_no_alignment_is_refused(void **state)
{
    (void)state;
    const size_t bad[] = {3, 513, 4 * WR_MIB, SIZE_MAX, (size_t)1 << 63};
    weir_stream s = wr_world_stream(&world);
    weir_dptr out = 1;
    for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++)
        assert_int_equal(alloc_aligned(512, bad[i], s, &out), WEIR_INVALID_ARGUMENT);
    assert_int_equal(out, 1);
    wr_world_free(&world, must_alloc_aligned(512, 0, s), s);
}

static void test_options_of_an_alloc_are_checked(void **state)
{
    (void)state;
    weir_stream s = wr_world_stream(&world);
    weir_dptr x = 1;
    weir_alloc_options o = {.struct_size = sizeof o};
    assert_int_equal(weir_alloc_with(NULL, 512, s, &o, &x), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_alloc_with(world.pool, 512, s, &o, NULL), WEIR_INVALID_ARGUMENT);
    o.struct_size = sizeof o + 1;
    assert_int_equal(weir_alloc_with(world.pool, 512, s, &o, &x), WEIR_INVALID_ARGUMENT);
    o.struct_size = 0;
    assert_int_equal(weir_alloc_with(world.pool, 512, s, &o, &x), WEIR_INVALID_ARGUMENT);
    assert_int_equal(x, 1);
    o.struct_size = sizeof o.struct_size; /* of a caller built before there was anything to choose */
    assert_int_equal(weir_alloc_with(world.pool, 512, s, &o, &x), WEIR_OK);
    wr_world_free(&world, x, s);
    assert_int_equal(weir_alloc_with(world.pool, 512, s, NULL, &x), WEIR_OK);
    wr_world_free(&world, x, s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, wr_world_close_one)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_A02_an_alignment_up_to_the_natural_one_costs_nothing),
        TEST(test_A02_powers_of_two_up_to_2_mib_are_kept),
        TEST(test_A02_what_lies_around_an_aligned_block_serves_others),
        TEST(test_A02_the_whole_limit_can_be_had_in_the_widest_alignment),
        TEST(test_A02_a_warm_aligned_alloc_makes_no_driver_call),
        TEST(test_A02_what_is_no_alignment_is_refused),
        TEST(test_options_of_an_alloc_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
