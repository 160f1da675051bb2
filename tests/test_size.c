/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"
#include "size.h"

static const uint64_t limit = (uint64_t)1 << 40;

static void test_sizes_round_up_to_512_bytes(void **state)
{
    (void)state;
    assert_int_equal(wr_size_units(1, limit), 1);
    assert_int_equal(wr_size_units(512, limit), 1);
    assert_int_equal(wr_size_units(513, limit), 2);
    assert_int_equal(wr_size_units(limit, limit), limit / 512);
}

static void test_A01_sizes_above_the_limit_are_refused_before_rounding(void **state)
{
    (void)state;
    assert_int_equal(wr_size_units(0, limit), 0);
    assert_int_equal(wr_size_units(limit + 1, limit), 0);
    for (size_t below = 0; below <= 4096; below++)
        assert_int_equal(wr_size_units(SIZE_MAX - below, limit), 0);
    assert_int_equal(wr_size_units((size_t)1 << 63, limit), 0);
    assert_int_equal(wr_size_units(((size_t)1 << 63) - 1, limit), 0);
    assert_int_equal(wr_size_units((size_t)0 - 1117953, limit), 0);
}

static void test_bins_grow_with_size_and_never_by_more_than_a_32nd(void **state)
{
    (void)state;
    uint32_t last_bin = 0, bin_start = 1;
    for (uint32_t units = 1; units < 1 << 22; units++) {
        uint32_t bin = wr_size_bin(units);
        assert_true(bin == last_bin || bin == last_bin + 1);
        if (bin != last_bin) bin_start = units;
        assert_true(units - bin_start <= bin_start / 32);
        last_bin = bin;
    }
    assert_true(wr_size_bin(UINT32_MAX) < WR_BINS);
}

static void test_blocks_below_a_quarter_mebibyte_are_small(void **state)
{
    (void)state;
    assert_int_equal(wr_size_kind(WR_LARGE_UNITS - 1), WR_SMALL);
    assert_int_equal(wr_size_kind(WR_LARGE_UNITS), WR_LARGE);
    assert_int_equal(wr_size_pages(1), 1);
    assert_int_equal(wr_size_pages(WR_UNITS_PER_PAGE), 1);
    assert_int_equal(wr_size_pages(WR_UNITS_PER_PAGE + 1), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_round_up_to_512_bytes),
        cmocka_unit_test(test_A01_sizes_above_the_limit_are_refused_before_rounding),
        cmocka_unit_test(test_bins_grow_with_size_and_never_by_more_than_a_32nd),
        cmocka_unit_test(test_blocks_below_a_quarter_mebibyte_are_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
