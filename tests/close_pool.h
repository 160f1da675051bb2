/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a pool that a real clock runs for: its last ticks are events like any other, and the GPU takes its time to
 * pass them.
 */
#ifndef WR_TESTS_CLOSE_POOL_H
#define WR_TESTS_CLOSE_POOL_H

#include "pool.h"

static inline weir_status close_pool_within(weir_pool *p, uint64_t ns)
{
    uint64_t start = wr_device_wall_ns();
    weir_status s;
    do
        s = weir_pool_close(p);
    while (s == WEIR_NOT_YET && wr_device_wall_ns() - start < ns);
    return s;
}

#endif
