/* SPDX-License-Identifier: Apache-2.0
 *
 * The coarse clock on a kernel whose tick is long.
 */
#include "device.h"
#include "harness.h"

#include <time.h>

/* In place of the C library's: a kernel of 100 ticks a second. */
int clock_getres(clockid_t clock, struct timespec *out)
{
    (void)clock;
    *out = (struct timespec){.tv_nsec = 10000000};
    return 0;
}

/* Or a call of the driver that lasts no time might seem to last a tick, and to be a slow one. */
static void test_a_coarse_clock_that_stands_still_for_too_long_is_not_used(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t before = wr_device_wall_ns(), coarse = wr_device_coarse_ns(), after = wr_device_wall_ns();
        assert_true(before <= coarse && coarse <= after);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_coarse_clock_that_stands_still_for_too_long_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
