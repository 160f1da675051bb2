/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_shared: the pool that all adapters of a process share, one for each device, so that frameworks side by
 * side draw on one budget. Conventions: see weir.h.
 */
#ifndef WEIR_SHARED_H
#define WEIR_SHARED_H

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIR_SHARED_DEVICES = 64 };

/* The pool of the device, opened by its first caller: OWNER reuse (or that of weir_shared_reuse), since users of
 * frameworks drop buffers before they join the streams that use them, and the limit of weir_shared_limit. Don't close
 * it: others use it.
 * Errors: those of weir_pool_open; NO_DEVICE also for a device beyond WEIR_SHARED_DEVICES. */
WEIR_API weir_status weir_shared_pool(int device, weir_pool **out);

/* The most for all adapters together: bytes, or a fraction of the device's memory, the smaller of the two; 0: no such
 * limit. Of an open pool as weir_pool_set_limit. Errors: NO_DEVICE; INVALID_ARGUMENT (a fraction that is not between 0
 * and 1); those of weir_pool_set_limit. */
WEIR_API weir_status weir_shared_limit(int device, size_t bytes, double fraction);

/* The same, for an adapter that would leave room for others: only before the pool is opened, and where nobody has set a
 * limit, else IN_USE. */
WEIR_API weir_status weir_shared_suggest_limit(int device, size_t bytes, double fraction);

/* The policy of all pools that are opened here from now on: OWNER, or COMPLETED for programs that declare every use
 * on a further stream, or join it before they free. Errors: INVALID_ARGUMENT: another policy; IN_USE: a pool is
 * open, and no policy changes. */
WEIR_API weir_status weir_shared_reuse(weir_reuse reuse);

/* Makes a pool that the caller has opened, with options of its own, the device's shared one. It takes the place
 * of one that is closed. Errors: INVALID_ARGUMENT, NO_DEVICE; CLOSED: `pool` is; IN_USE: another is in use. */
WEIR_API weir_status weir_shared_adopt(int device, weir_pool *pool);

/* What a framework expects before it reports want of memory: its own allocator would have waited for the GPU. */
#define WEIR_SHARED_PATIENCE_NS ((int64_t)60000000000)

/* weir_alloc from the device's shared pool. Where no memory can be had before work that is queued has passed, it waits
 * for that work, at most so long; 0: never. Errors: those of weir_shared_pool, and of weir_alloc with HOST_WAIT. */
WEIR_API weir_status weir_shared_alloc(
    int device, size_t bytes, weir_stream stream, int64_t patience_ns, weir_dptr *out);

/* For frameworks that name no stream when they free: the stream of the alloc is kept with the block, and is the
 * one of the free. CU_STREAM_PER_THREAD is for threads that free their own blocks alone. */
WEIR_API weir_status weir_shared_lend(
    int device, size_t bytes, weir_stream stream, int64_t patience_ns, weir_dptr *out);

/* What is queued on `stream` until the lent block comes back uses it, too. Errors: those of weir_touch;
 * NO_HOST_MEMORY. */
WEIR_API weir_status weir_shared_use(int device, weir_dptr block, weir_stream stream);

/* Frees a lent block. Address 0 is a no-op. Errors: those of weir_free; INVALID_POINTER: it was not lent; those
 * of weir_touch, where a stream that used it can't be asked any more: the block is kept for good. */
WEIR_API weir_status weir_shared_return(int device, weir_dptr block);

/* What adapters tell of the blocks that their framework has in use. */
typedef struct weir_shared_block {
    weir_dptr address;
    size_t bytes; /* as they were asked for */
    weir_stream stream;
} weir_shared_block;

typedef struct weir_shared_counts {
    uint64_t live_bytes, live_blocks; /* bytes: rounded to 512 */
    uint64_t peak_bytes, peak_blocks;
    uint64_t allocated_bytes, allocated_blocks;
    uint64_t requested_bytes; /* of live blocks, as they were asked for */
} weir_shared_counts;

#ifdef __cplusplus
}
#endif
#endif
