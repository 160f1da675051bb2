/* SPDX-License-Identifier: Apache-2.0
 *
 * A piece of device memory taken straight from the driver, for what must not go through an allocator.
 */
#ifndef WR_BENCH_REGION_H
#define WR_BENCH_REGION_H

#include "device.h"

struct wr_region {
    struct wr_device *device;
    uint64_t address;
    size_t bytes; /* a multiple of the device's granularity */
    wr_memory memory;
};

weir_status wr_region_open(struct wr_device *d, size_t bytes, struct wr_region *out);

/* All that used it must have been waited for. A region never opened (all zero) is a no-op. */
void wr_region_close(struct wr_region *r);

#endif
