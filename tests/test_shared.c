/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared pool of a process that sets it up itself: of the simulated device that WEIR_DEVICE names, once.
 */
#include "harness.h"
#include "pool.h"
#include "weir_shared.h"

/* What another thread does while a pool is being opened: the linker puts this in the place of weir_pool_open. */
static void (*meanwhile)(void);
weir_status __real_weir_pool_open(const weir_pool_options *options, weir_pool **out);
weir_status __wrap_weir_pool_open(const weir_pool_options *options, weir_pool **out);

weir_status __wrap_weir_pool_open(const weir_pool_options *options, weir_pool **out)
{
    if (meanwhile != NULL) meanwhile();
    return __real_weir_pool_open(options, out);
}

static weir_pool *open_it(void)
{
    weir_pool *pool;
    assert_int_equal(weir_shared_pool(0, &pool), WEIR_OK);
    return pool;
}

static uint64_t limit_of(weir_pool *pool)
{
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(pool, &s), WEIR_OK);
    return s.limit_bytes;
}

static void test_what_was_set_before_is_what_the_first_caller_opens(void **state)
{
    (void)state;
    assert_int_equal(weir_shared_reuse(WEIR_REUSE_COMPLETED), WEIR_OK);
    assert_int_equal(weir_shared_limit(0, 8 * WR_MIB, 0), WEIR_OK);
    weir_pool *pool = open_it();
    assert_int_equal(pool->terms.reuse, WEIR_REUSE_COMPLETED);
    assert_int_equal(limit_of(pool), 8 * WR_MIB);
}

static void test_an_open_pools_policy_stays(void **state)
{
    (void)state;
    weir_pool *pool = open_it();
    assert_int_equal(weir_shared_reuse(WEIR_REUSE_OWNER), WEIR_IN_USE);
    assert_int_equal(pool->terms.reuse, WEIR_REUSE_COMPLETED);
}

static void test_an_open_pools_limit_can_be_any_up_to_the_devices_memory(void **state)
{
    (void)state;
    weir_pool *pool = open_it();
    assert_int_equal(weir_shared_limit(0, 512 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(limit_of(pool), 512 * WR_MIB);
    assert_int_equal(weir_shared_limit(0, 0, 1.0), WEIR_OK);
    assert_int_equal(limit_of(pool), pool->pages.device->total_bytes);
    assert_int_equal(weir_shared_limit(0, 4 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(limit_of(pool), 4 * WR_MIB);
}

static void limit_device_1(void)
{
    assert_int_equal(weir_shared_limit(1, 16 * WR_MIB, 0), WEIR_OK);
}

static void test_a_limit_that_is_set_while_the_pool_is_being_opened_is_in_force(void **state)
{
    (void)state;
    weir_pool *pool;
    meanwhile = limit_device_1;
    assert_int_equal(weir_shared_pool(1, &pool), WEIR_OK);
    meanwhile = NULL;
    assert_int_equal(limit_of(pool), 16 * WR_MIB);
}

int main(void)
{
    setenv("WEIR_DEVICE", "sim", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_set_before_is_what_the_first_caller_opens),
        cmocka_unit_test(test_an_open_pools_policy_stays),
        cmocka_unit_test(test_an_open_pools_limit_can_be_any_up_to_the_devices_memory),
        cmocka_unit_test(test_a_limit_that_is_set_while_the_pool_is_being_opened_is_in_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
