/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_torch: PyTorch's plain pluggable interface (CUDAPluggableAllocator), served from the process's shared
 * pool. No part of PyTorch is needed to build it: streams are handles, hooks are set by address.
 *
 *   alloc, free            CUDAPluggableAllocator(libweir.so, "weir_torch_alloc", "weir_torch_free")
 *   record_stream ...      allocator.allocator().set_record_stream_fn(address), and so on
 *
 * Every function may be called from any thread. After the process began to exit, and in a forked child, none makes a
 * driver call: allocs fail, the rest does nothing.
 */
#ifndef WEIR_TORCH_H
#define WEIR_TORCH_H

#include "weir_shared.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL for 0 bytes. Where no memory can be had before work that is queued has passed, waits for that, as PyTorch's
 * own allocator does before it gives up. What fails then is told to weir_torch_on_failure; NULL where none is set, or
 * it returns. */
WEIR_API void *weir_torch_alloc(size_t bytes, int device, weir_stream stream);

/* For the segments of a torch.cuda.MemPool, which PyTorch calls under its lock and retries by itself: never
 * waits, and a failure is NULL. */
WEIR_API void *weir_torch_segment_alloc(size_t bytes, int device, weir_stream stream);

/* `stream` is the one of the alloc. What is no block of the device's pool is left alone, which is said once.
 * So are, for good, blocks recorded for a stream that was destroyed before: its last use can't be found out. */
WEIR_API void weir_torch_free(void *block, size_t bytes, int device, weir_stream stream);

/* As Tensor.record_stream: all work that is queued on `stream` up to the free uses the block. The device's index
 * doesn't come with it: it is looked for. */
WEIR_API void weir_torch_record_stream(void *block, weir_stream stream);

/* As torch.cuda.set_per_process_memory_fraction. Says once where it is lowered to what is in use only. */
WEIR_API void weir_torch_memory_fraction(double fraction, int device);

/* ---- for PyTorch's own allocator interface ------------------------------------------------------------
 *
 * It frees by address alone, and counts: so what it has allocated is kept here, in a table for each device. */

/* weir_torch_alloc, and free, of a block that is counted. What is not live is left alone. */
WEIR_API void *weir_torch_native_alloc(size_t bytes, int device, weir_stream stream);
WEIR_API void weir_torch_native_free(void *block);

/* Zeros where the device has served nothing. Peaks are since the start, or the last reset. */
WEIR_API void weir_torch_count(int device, weir_shared_counts *out);
WEIR_API void weir_torch_reset_peaks(int device);

/* What is known of a live block. 0: it is none, and *out stays as it was. */
WEIR_API int weir_torch_find(void *block, weir_shared_block *out);

/* Writes up to `most` live blocks of the device, in no order. How many there are. */
WEIR_API size_t weir_torch_list(int device, weir_shared_block *out, size_t most);

/* PyTorch's numbers of a private pool, of a graph above all (c10::MempoolId_t). */
typedef struct weir_torch_pool_id {
    uint64_t first, second;
} weir_torch_pool_id;

/* Between begin and end, the captures in which memory is asked for belong to the pool; once it was released as
 * often as begun and held, their memory serves others. `filter`, a C++ object, is not looked at. */
WEIR_API void weir_torch_begin_pool(int device, weir_torch_pool_id id, void *filter);
WEIR_API void weir_torch_end_pool(int device, weir_torch_pool_id id);
WEIR_API void weir_torch_release_pool(int device, weir_torch_pool_id id);
WEIR_API void weir_torch_hold_pool(int device, weir_torch_pool_id id);
WEIR_API unsigned weir_torch_pool_holds(
    int device, weir_torch_pool_id id); /* begun and held, less released */

/* Called with an alloc that failed, to throw the framework's own exception through it: its code is a weir_status,
 * its text for users. The signature is that of c10::detail::torchCheckFail, which serves where nothing
 * better can be built. */
typedef void (*weir_torch_failure)(const char *function, const char *file, uint32_t code, const char *text);
WEIR_API void weir_torch_on_failure(weir_torch_failure f);

#ifdef __cplusplus
}
#endif
#endif
