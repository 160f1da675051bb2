/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the CUDA filling share: device_cuda.c (ops, work, opening), device_cuda_memory.c,
 * device_cuda_stream.c, device_cuda_graph.c.
 */
#ifndef WR_DEVICE_CUDA_H
#define WR_DEVICE_CUDA_H

#include "cuda_driver.h"
#include "device.h"
#include "edges.h"

struct loaded_kernel;

struct cuda_device {
    struct wr_device base;
    CUdevice device;
    CUcontext context;
    CUmemAllocationProp memory; /* what mem_create asks for */
    _Atomic(struct loaded_kernel *) kernels;
};

static inline struct cuda_device *cuda(struct wr_device *d)
{
    return WR_CONTAINER_OF(d, struct cuda_device, base);
}

/* ---- the length of an op ----------------------------------------------------------------------------- */

struct wr_cuda_scope {
    CUstreamCaptureMode mode; /* the caller's */
};

CUresult wr_cuda_enter(struct wr_device *d, struct wr_cuda_scope *scope);
void wr_cuda_leave(struct wr_cuda_scope *scope);
/* Words a failure; and finds out whether the context is lost with it. */
weir_status wr_cuda_finish(struct wr_device *d, CUresult r, const char *call);

/* An op whose work is `expression`, a CUresult; `call` names it where it fails. */
#define IN_CONTEXT(d, call, expression)                                                                      \
    ({                                                                                                       \
        struct wr_cuda_scope scope_;                                                                         \
        weir_status s_ = wr_edges_check_device(d);                                                           \
        if (WR_LIKELY(s_ == WEIR_OK)) {                                                                      \
            CUresult r_ = wr_cuda_enter(d, &scope_);                                                         \
            if (WR_LIKELY(r_ == CUDA_SUCCESS)) {                                                             \
                r_ = (expression);                                                                           \
                wr_cuda_leave(&scope_);                                                                      \
            }                                                                                                \
            s_ = wr_cuda_finish(d, r_, call);                                                                \
        }                                                                                                    \
        s_;                                                                                                  \
    })

/* An op that is one driver function. */
#define CALL(d, f, ...) IN_CONTEXT(d, #f, wr_cuda.f(__VA_ARGS__))

/* Refuses a stream that captures, or one that does not: see CAPTURE in device_cuda.c. */
CUresult wr_cuda_require_capture(CUstream s, bool captures);

/* Rows of the table. */
#define CUDA_OP_DECLARE(name, args) weir_status wr_cuda_##name args;
WR_DEVICE_OPS(CUDA_OP_DECLARE)
#undef CUDA_OP_DECLARE

#endif
