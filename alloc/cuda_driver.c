/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda.so.1: finding it, and what its error codes mean to us.
 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

/* ---- the driver's library ---------------------------------------------------------------------------- */

/* Written once, under load_lock, before the first device exists; constant afterwards. */
struct wr_cuda_driver wr_cuda;
static bool loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct symbol {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL_ROW(name) {WR_CUDA_SYMBOL(name), offsetof(struct wr_cuda_driver, name)},
    WR_CUDA_DRIVER_MAP(SYMBOL_ROW)
#undef SYMBOL_ROW
};

static weir_status find_symbols(void *library, struct wr_cuda_driver *out)
{
    for (size_t i = 0; i < WR_ARRAY_LEN(symbols); i++) {
        void *f = dlsym(library, symbols[i].name);
        if (!f)
            return wr_fail(WEIR_DRIVER_TOO_OLD, "libcuda.so.1 has no %s: weir needs a driver for CUDA %d.%d",
                symbols[i].name, WR_CUDA_DRIVER_MIN / 1000, WR_CUDA_DRIVER_MIN % 1000 / 10);
        memcpy((char *)out + symbols[i].offset, &f, sizeof f);
    }
    return WEIR_OK;
}

static weir_status load_locked(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return wr_fail(WEIR_NO_DRIVER, "no CUDA driver: %s", dlerror());
    struct wr_cuda_driver found;
    weir_status s = find_symbols(library, &found);
    if (s != WEIR_OK) {
        dlclose(library);
        return s;
    }
    wr_cuda = found;
    loaded = true;
    return WEIR_OK;
}

/* LOCK: load_lock is held while the library is opened and searched, during no call of the driver. */
weir_status wr_cuda_load(void)
{
    pthread_mutex_lock(&load_lock);
    weir_status s = loaded ? WEIR_OK : load_locked();
    pthread_mutex_unlock(&load_lock);
    return s;
}

/* ---- failures ---------------------------------------------------------------------------------------- */

weir_status wr_cuda_classify(CUresult r)
{
    switch ((int)r) {
    case CUDA_SUCCESS:
        return WEIR_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return WEIR_OUT_OF_MEMORY;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_ALREADY_MAPPED:
    case CUDA_ERROR_NOT_MAPPED:
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
        return WEIR_INVALID_ARGUMENT;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_CAPTURED_EVENT:
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
        return WEIR_CAPTURING;
    case CUDA_ERROR_STUB_LIBRARY:
        return WEIR_NO_DRIVER;
    case 36: /* CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, not in the headers of 12.5 */
        return WEIR_DRIVER_TOO_OLD;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
        return WEIR_NO_DEVICE;
    case CUDA_ERROR_NOT_INITIALIZED: /* in a child of fork, too */
    case CUDA_ERROR_DEINITIALIZED:   /* at exit */
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    /* From here on: sticky, every later call fails with the same. */
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case 226: /* CUDA_ERROR_CONTAINED, likewise */
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case 721: /* CUDA_ERROR_TENSOR_MEMORY_LEAK, likewise */
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
        return WEIR_CONTEXT_LOST;
    default:
        return WEIR_DRIVER_ERROR;
    }
}

weir_status wr_cuda_fail(CUresult r, const char *call, int ordinal)
{
    assert(r != CUDA_SUCCESS);
    const char *name = NULL;
    wr_cuda.cuGetErrorName(r, &name); /* leaves NULL for a number that it does not know */
    return wr_fail(wr_cuda_classify(r), "%s on device %d: %s (%d)", call, ordinal,
        name ? name : "unknown error", (int)r);
}
