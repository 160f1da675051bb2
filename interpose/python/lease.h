/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_python: what the Python package can't do in Python. A consumer of DLPack frees a tensor on any thread, with or
 * without the interpreter's lock, in the middle of an exception or after the interpreter has ended. So the
 * right to read a piece of device memory is counted here, and given back here.
 *
 * A lease is that right: to an item of a queue, or to a block of a pool. Python objects and DLPack tensors each hold a
 * reference. Readers' streams are named while it lasts; the last reference to go gives the memory back, ordered
 * behind all that those streams have queued by then.
 *
 * No call waits for the GPU. Any thread, any time.
 */
#ifndef WEIR_PYTHON_LEASE_H
#define WEIR_PYTHON_LEASE_H

#include "weir_queue.h"

/* ---- queues ------------------------------------------------------------------------------------------ */

/* A queue that is destroyed when its owner and all leases of its items have gone: memory that somebody reads
 * outlives the `with` block. */
typedef struct weir_house weir_house;

/* NULL: no host memory. */
WEIR_API weir_house *weir_house_new(weir_queue *q);
/* By its owner, once. No more items; who waits in a call wakes. */
WEIR_API void weir_house_leave(weir_house *h);

/* ---- leases ------------------------------------------------------------------------------------------ */

typedef struct weir_lease weir_lease;

/* The item must be held (acquired on `stream`). NULL: no host memory, and it still is the caller's. */
WEIR_API weir_lease *weir_lease_item(weir_house *h, const weir_item *item, weir_stream stream);
/* A live block, allocated on `stream`. The pool must outlive it. NULL likewise. */
WEIR_API weir_lease *weir_lease_block(weir_pool *pool, weir_dptr block, weir_stream stream);

/* `stream` may read from now on. Of an item: it waits for the copy. A block's contents are the caller's to order.
 * Errors: those of weir_queue_await; INVALID_ARGUMENT: CU_STREAM_PER_THREAD, which no other thread can name, for an
 * item that was not acquired on it, by this thread. */
WEIR_API weir_status weir_lease_read_on(weir_lease *l, weir_stream stream);

/* The last one gives the memory back. A stream that captures a graph can't be asked now: then it is tried again
 * whenever another lease begins or ends. */
WEIR_API void weir_lease_drop(weir_lease *l);

/* Leases that could not be given back yet, for tests and the curious. */
WEIR_API size_t weir_lease_late(void);

/* ---- DLPack ------------------------------------------------------------------------------------------ */

/* A dense array in the memory of a lease. */
typedef struct weir_form {
    uint64_t address;
    int32_t device_type, device; /* DLPack's: 2 CUDA, 1 CPU */
    uint8_t code, bits;          /* DLPack's of the type */
    int32_t n_dims;
    const int64_t *shape; /* read during the call */
} weir_form;

/* A managed tensor that holds a reference of its own; `versioned`: of DLPack 1, else of 0. NULL: no host memory. */
WEIR_API void *weir_lease_export(weir_lease *l, const weir_form *form, int versioned);
/* Of one of DLPack 0 that nobody got: gives its reference back. */
WEIR_API void weir_tensor_delete(void *tensor);

/* The interpreter's functions of those names, before any capsule is made. */
WEIR_API void weir_capsule_set_up(
    int (*is_valid)(void *, const char *), void *(*pointer)(void *, const char *));
/* Of a capsule with an exported tensor in it: one that nobody has consumed gives its reference back. */
WEIR_API void weir_capsule_destroy(void *capsule);

#endif
