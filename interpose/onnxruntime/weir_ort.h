/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_ort: ONNX Runtime's two ways to bring memory, served from the process's shared pool. No part of ONNX Runtime
 * is needed to build it. Neither way waits: want of memory is NULL, which ONNX Runtime reports in its own form.
 */
#ifndef WEIR_ORT_H
#define WEIR_ORT_H

#include "weir_shared.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An OrtAllocator with AllocOnStream (1.23 and later; RegisterAllocator, CreateAndRegisterAllocatorV2, a plug-in's). */
typedef struct weir_ort_options {
    size_t struct_size;
    int device;
    const void *memory_info; /* the OrtMemoryInfo that the allocator shows; the caller's, and must live on */
    void *(*stream_handle)(void *stream); /* OrtApi's SyncStream_GetHandle */
    weir_stream stream; /* of Alloc and Reserve, which name none: on which the session computes
                                           * (its user_compute_stream). NULL: the legacy default stream */
} weir_ort_options;

/* *out is an OrtAllocator *. Errors: INVALID_ARGUMENT, NO_HOST_MEMORY, and those of weir_shared_pool. */
WEIR_API weir_status weir_ort_open(const weir_ort_options *options, void **out);
/* Its blocks must have been freed. NULL is a no-op. */
WEIR_API void weir_ort_close(void *allocator);

/* The provider options gpu_external_alloc, gpu_external_free and gpu_external_empty_cache, whose functions know
 * neither device nor stream: these are the device's own, and `stream` is the one on which all sessions that use them
 * compute (their user_compute_stream); the last one set counts. */
enum { WEIR_ORT_EXTERNAL_DEVICES = 16 };
typedef struct weir_ort_external_functions {
    void *(*alloc)(size_t bytes);
    void (*free)(void *block);
    void (*empty_cache)(void);
} weir_ort_external_functions;

/* Errors: INVALID_ARGUMENT; NO_DEVICE: not one of 0 to 15. */
WEIR_API weir_status weir_ort_external(int device, weir_stream stream, weir_ort_external_functions *out);

#ifdef __cplusplus
}
#endif
#endif
