/* SPDX-License-Identifier: Apache-2.0
 *
 * Driver functions that the benches call beside weir's seam: the peers to compare with, and a context for
 * cuBLAS.
 */
#ifndef WR_BENCH_DRIVER_H
#define WR_BENCH_DRIVER_H

#include "cuda_driver.h"
#include "device.h"

#define WR_BENCH_DRIVER_MAP(X)                                                                               \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuDeviceGetDefaultMemPool)                                                                             \
    X(cuMemPoolSetAttribute)                                                                                 \
    X(cuMemAllocAsync)                                                                                       \
    X(cuMemFreeAsync)

struct wr_bench_driver {
#define WR_BENCH_DRIVER_FIELD(name) __typeof__(name) *name;
    WR_BENCH_DRIVER_MAP(WR_BENCH_DRIVER_FIELD)
#undef WR_BENCH_DRIVER_FIELD
    CUcontext context; /* the device's primary one */
};

/* Finds them, makes the device's primary context current on the calling thread, for good, and tells the
 * driver's own pool to keep what it has, as weir's does. The device is a real one, and open. */
weir_status wr_driver_bind(const struct wr_device *d, struct wr_bench_driver *out);

#endif
