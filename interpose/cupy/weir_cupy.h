/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_cupy: CuPy's C interface (CFunctionAllocator), served from the process's shared pool. The interface names no
 * stream: CuPy's own function for the current one, given as its parameter, is asked at each alloc.
 */
#ifndef WEIR_CUPY_H
#define WEIR_CUPY_H

#include "weir_shared.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cupy_backends.cuda.stream.get_current_stream_ptr, as other modules of CuPy call it. */
typedef intptr_t (*weir_cupy_current_stream)(void);

/* `parameter` is a weir_cupy_current_stream. NULL: no memory, or 0 bytes; weir_error_text() says more. */
WEIR_API void *weir_cupy_malloc(void *parameter, size_t bytes, int device);
WEIR_API void weir_cupy_free(void *parameter, void *block, int device);

#ifdef __cplusplus
}
#endif
#endif
