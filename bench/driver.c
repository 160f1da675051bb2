/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

static weir_status find_symbols(struct wr_bench_driver *out)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {
#define SYMBOL_ROW(name) {WR_CUDA_SYMBOL(name), offsetof(struct wr_bench_driver, name)},
        WR_BENCH_DRIVER_MAP(SYMBOL_ROW)
#undef SYMBOL_ROW
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return wr_fail(WEIR_NO_DRIVER, "no CUDA driver: %s", dlerror());
    for (size_t i = 0; i < WR_ARRAY_LEN(symbols); i++) {
        void *f = dlsym(library, symbols[i].name);
        if (!f) return wr_fail(WEIR_DRIVER_TOO_OLD, "libcuda.so.1 has no %s", symbols[i].name);
        memcpy((char *)out + symbols[i].offset, &f, sizeof f);
    }
    return WEIR_OK;
}

/* By default the pool gives its memory back whenever a stream is waited for, and the peer would look slower
 * than it is where it is used well. */
static CUresult keep_pool(struct wr_bench_driver *b, CUdevice device)
{
    CUmemoryPool pool;
    cuuint64_t all = UINT64_MAX;
    CUresult r = b->cuDeviceGetDefaultMemPool(&pool, device);
    return r == CUDA_SUCCESS ? b->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) : r;
}

static weir_status bind_device(struct wr_bench_driver *b, int ordinal)
{
    CUdevice device;
    const char *call = "cuDeviceGet";
    CUresult r = wr_cuda.cuDeviceGet(&device, ordinal);
    if (r == CUDA_SUCCESS) {
        call = "cuDevicePrimaryCtxRetain";
        r = wr_cuda.cuDevicePrimaryCtxRetain(&b->context, device);
    }
    if (r == CUDA_SUCCESS) {
        call = "cuCtxSetCurrent";
        r = b->cuCtxSetCurrent(b->context);
    }
    if (r == CUDA_SUCCESS) {
        call = "cuMemPoolSetAttribute";
        r = keep_pool(b, device);
    }
    return wr_cuda_status(r, call, ordinal);
}

weir_status wr_driver_bind(const struct wr_device *d, struct wr_bench_driver *out)
{
    weir_status s = wr_cuda_load();
    if (s == WEIR_OK) s = find_symbols(out);
    return s == WEIR_OK ? bind_device(out, d->ordinal) : s;
}
