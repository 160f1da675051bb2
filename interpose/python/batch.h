/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_python: many arrays of numpy's to a device, and there as DLPack tensors, a few at a call. None of these calls
 * needs the interpreter's lock: other threads of the program run while the arrays are looked at, copied and wrapped.
 */
#ifndef WEIR_PYTHON_BATCH_H
#define WEIR_PYTHON_BATCH_H

#include "lease.h"
#include "weir_copy.h"

enum { WEIR_BATCH_SEND_MOST = 64 };

typedef struct weir_batch weir_batch;

/* Reads n arrays, which must be dense and row-major, and stay and keep their memory until the last send. `arrays`
 * are numpy's objects (PyArrayObject), `head_bytes` what precedes a Python object's own fields; `types` DLPack's code
 * << 8 | bits. NULL: no host memory. */
WEIR_API weir_batch *weir_batch_new(
    const void *const *arrays, const uint16_t *types, size_t n, size_t head_bytes);
WEIR_API void weir_batch_delete(weir_batch *b);

/* What a block must hold: each array begins at a multiple of 256 bytes. */
WEIR_API size_t weir_batch_bytes(const weir_batch *b);
/* What was read of array i. Its address is that in host memory; the shape is numpy's own. */
WEIR_API weir_form weir_batch_form(const weir_batch *b, size_t i);

/* Where to: a block of weir_batch_bytes, and the lease of it. */
typedef struct weir_batch_target {
    weir_lease *lease;
    uint64_t address;
    int32_t device_type, device; /* DLPack's */
} weir_batch_target;

/* Copies arrays first to first + n, n <= WEIR_BATCH_SEND_MOST, and exports a tensor of DLPack 0 of each. Arrays in
 * pageable memory may be overwritten when it returns, those in pinned memory when the copy has ended; a reader of the
 * tensors waits for the ticket. Errors: those of weir_copy, with the memory at rest and no tensor made. */
WEIR_API weir_status weir_batch_send(const weir_batch *b, size_t first, size_t n, weir_engine *e,
    const weir_batch_target *target, weir_ticket *ticket, void **tensors);

#endif
