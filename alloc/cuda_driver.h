/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's entry points, each named once and typed by cuda.h. cuda.h's own macros turn a name into the
 * versioned symbol that its prototype belongs to (cuMemHostRegister -> cuMemHostRegister_v2), so the symbol
 * looked up always has the type it is called with, whatever CUDA's headers the build used.
 */
#ifndef WR_CUDA_DRIVER_H
#define WR_CUDA_DRIVER_H

#include "base.h"

#include <cuda.h>

#if CUDA_VERSION < 12050
#error "weir needs the CUDA headers 12.5 or newer: cuCtxRecordEvent"
#endif

/* Headers of 12.8 name a second version, which differs in its errors alone and is not in older drivers. */
typedef __typeof__(cuEventElapsedTime) wr_cuda_elapsed;
#undef cuEventElapsedTime
extern wr_cuda_elapsed cuEventElapsedTime;
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#error "the names below would get another meaning of the NULL stream than device.h promises"
#endif

#define WR_CUDA_DRIVER_MIN 12050 /* as cuDriverGetVersion counts: 12.5 */

#define WR_CUDA_DRIVER_MAP(X)                                                                                \
    X(cuInit)                                                                                                \
    X(cuDriverGetVersion)                                                                                    \
    X(cuGetErrorName)                                                                                        \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGet)                                                                                           \
    X(cuDeviceGetName)                                                                                       \
    X(cuDeviceTotalMem)                                                                                      \
    X(cuDeviceGetAttribute)                                                                                  \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxRelease)                                                                             \
    X(cuCtxPushCurrent)                                                                                      \
    X(cuCtxPopCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuCtxRecordEvent)                                                                                      \
    X(cuCtxEnablePeerAccess)                                                                                 \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuMemAddressReserve)                                                                                   \
    X(cuMemAddressFree)                                                                                      \
    X(cuMemGetAllocationGranularity)                                                                         \
    X(cuMemCreate)                                                                                           \
    X(cuMemRelease)                                                                                          \
    X(cuMemMap)                                                                                              \
    X(cuMemSetAccess)                                                                                        \
    X(cuMemUnmap)                                                                                            \
    X(cuMemExportToShareableHandle)                                                                          \
    X(cuMemImportFromShareableHandle)                                                                        \
    X(cuMemGetInfo)                                                                                          \
    X(cuMemAlloc)                                                                                            \
    X(cuMemFree)                                                                                             \
    X(cuMemHostRegister)                                                                                     \
    X(cuMemHostUnregister)                                                                                   \
    X(cuPointerGetAttributes)                                                                                \
    X(cuStreamCreate)                                                                                        \
    X(cuStreamCreateWithPriority)                                                                            \
    X(cuStreamDestroy)                                                                                       \
    X(cuStreamGetCtx)                                                                                        \
    X(cuStreamGetId)                                                                                         \
    X(cuStreamGetCaptureInfo)                                                                                \
    X(cuStreamIsCapturing)                                                                                   \
    X(cuStreamWaitEvent)                                                                                     \
    X(cuStreamSynchronize)                                                                                   \
    X(cuEventCreate)                                                                                         \
    X(cuEventDestroy)                                                                                        \
    X(cuEventRecord)                                                                                         \
    X(cuEventQuery)                                                                                          \
    X(cuEventElapsedTime)                                                                                    \
    X(cuEventRecordWithFlags)                                                                                \
    X(cuStreamBeginCapture)                                                                                  \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiate)                                                                                    \
    X(cuGraphDestroy)                                                                                        \
    X(cuGraphLaunch)                                                                                         \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuMemcpyHtoDAsync)                                                                                     \
    X(cuMemcpyDtoHAsync)                                                                                     \
    X(cuMemcpyDtoDAsync)                                                                                     \
    X(cuMemcpyAsync)                                                                                         \
    X(cuMemcpy2DAsync)                                                                                       \
    X(cuDeviceCanAccessPeer)                                                                                 \
    X(cuMemsetD8Async)                                                                                       \
    X(cuModuleLoadDataEx)                                                                                    \
    X(cuModuleGetFunction)                                                                                   \
    X(cuModuleUnload)                                                                                        \
    X(cuLaunchKernel)

struct wr_cuda_driver {
#define WR_CUDA_DRIVER_FIELD(name) __typeof__(name) *name;
    WR_CUDA_DRIVER_MAP(WR_CUDA_DRIVER_FIELD)
#undef WR_CUDA_DRIVER_FIELD
};

/* The symbol of a name, its macro replaced first. */
#define WR_CUDA_SYMBOL(name)         WR_CUDA_SYMBOL_LITERAL(name)
#define WR_CUDA_SYMBOL_LITERAL(name) #name

/* Constant once wr_cuda_load has said OK. */
extern struct wr_cuda_driver wr_cuda;

/* Opens the library and finds every symbol, once; a failure is not remembered. Errors: NO_DRIVER,
 * DRIVER_TOO_OLD. */
weir_status wr_cuda_load(void);

weir_status wr_cuda_classify(CUresult r);

/* Words the failure of `call` with the driver's own name for it. */
weir_status wr_cuda_fail(CUresult r, const char *call, int ordinal) __attribute__((cold));

static inline weir_status wr_cuda_status(CUresult r, const char *call, int ordinal)
{
    return WR_LIKELY(r == CUDA_SUCCESS) ? WEIR_OK : wr_cuda_fail(r, call, ordinal);
}

#endif
