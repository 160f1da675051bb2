/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch keeps each block's size, device and stream, and brings them back with the free. What it does not bring
 * back are the streams of record_stream: they are noted until then. A touch when the stream is recorded finds the
 * block's pool and covers the work so far; one at the free covers the rest.
 *
 * Built with -fexceptions: what weir_torch_on_failure names throws through alloc.
 */
#include "weir_torch.h"
#include "failure.h"
#include "graphs.h"
#include "notes.h"

#include <stdio.h>

static struct wr_notes recorded = WR_NOTES_INIT;
static _Atomic(weir_torch_failure) on_failure;
static _Atomic uint64_t pools_seen; /* bit n: device n has served */

void weir_torch_on_failure(weir_torch_failure f)
{
    atomic_store(&on_failure, f);
}

/* Says on stderr, once a place, what a hook without a result can't return. */
static void say_once(atomic_flag *said, const char *what)
{
    if (!atomic_flag_test_and_set(said)) fprintf(stderr, "weir: %s: %s\n", what, weir_error_text());
}

static bool is_refused(weir_status st) /* by a process, or a device, that ends */
{
    return st == WEIR_CLOSED || st == WEIR_AFTER_FORK || st == WEIR_CONTEXT_LOST;
}

static void note_device(int device)
{
    uint64_t bit = UINT64_C(1) << device;
    if ((atomic_load_explicit(&pools_seen, memory_order_relaxed) & bit) == 0)
        atomic_fetch_or(&pools_seen, bit);
}

/* Never waits. A capture that goes on while a private pool is open belongs to that from here on. */
static weir_status alloc(size_t bytes, int device, weir_stream s, weir_dptr *out)
{
    weir_pool *pool;
    weir_status st = weir_shared_pool(device, &pool);
    if (WR_UNLIKELY(st != WEIR_OK)) return st;
    note_device(device);
    if (WR_UNLIKELY(atomic_load_explicit(&wr_graphs_n_open, memory_order_acquire) != 0))
        wr_graphs_note(pool, device, s);
    return weir_alloc(pool, bytes, s, out);
}

static bool is_want_of_memory(weir_status st)
{
    return st == WEIR_OUT_OF_MEMORY || st == WEIR_NOT_YET || st == WEIR_TIMEOUT || st == WEIR_TOO_LARGE;
}

void wr_torch_fail(weir_status st, size_t bytes, int device)
{
    weir_torch_failure tell = atomic_load(&on_failure);
    if (tell == NULL) return;
    char reason[512], text[1024];
    snprintf(reason, sizeof reason, "%s: %s", weir_status_name(st), weir_error_text());
    weir_pool *pool;
    weir_stats s = {.struct_size = sizeof s};
    if (is_want_of_memory(st) && weir_shared_pool(device, &pool) == WEIR_OK &&
        weir_pool_stats(pool, &s) == WEIR_OK)
        snprintf(text, sizeof text,
            "CUDA out of memory. Tried to allocate %zu bytes on GPU %d, of which weir has reserved %llu, "
            "%llu of them pending, under a limit of %llu. %s",
            bytes, device, (unsigned long long)s.reserved_bytes, (unsigned long long)s.pending_bytes,
            (unsigned long long)s.limit_bytes, reason);
    else
        snprintf(text, sizeof text, "weir could not allocate %zu bytes on GPU %d. %s", bytes, device, reason);
    tell("weir_torch_alloc", "weir", (uint32_t)st, text);
}

void *weir_torch_alloc(size_t bytes, int device, weir_stream stream)
{
    weir_dptr block;
    weir_status st = alloc(bytes, device, stream, &block);
    if (WR_UNLIKELY(st == WEIR_NOT_YET))
        st = weir_shared_alloc(device, bytes, stream, WEIR_SHARED_PATIENCE_NS, &block);
    if (WR_LIKELY(st == WEIR_OK)) return (void *)(uintptr_t)block;
    wr_torch_fail(st, bytes, device);
    return NULL;
}

void *weir_torch_segment_alloc(size_t bytes, int device, weir_stream stream)
{
    weir_dptr block;
    return alloc(bytes, device, stream, &block) == WEIR_OK ? (void *)(uintptr_t)block : NULL;
}

void weir_torch_record_stream(void *pointer, weir_stream stream)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    weir_dptr block = (uintptr_t)pointer;
    if (block == 0) return;
    weir_status st = WEIR_INVALID_POINTER;
    uint64_t seen = atomic_load(&pools_seen);
    for (int device = 0; seen != 0 && st == WEIR_INVALID_POINTER; device++, seen >>= 1) {
        weir_pool *pool;
        if ((seen & 1) != 0 && weir_shared_pool(device, &pool) == WEIR_OK)
            st = weir_touch(pool, block, stream, 0);
    }
    if (st == WEIR_OK) st = wr_notes_add(&recorded, block, stream);
    if (st != WEIR_OK && !is_refused(st)) say_once(&said, "record_stream declared nothing");
}

void weir_torch_free(void *pointer, size_t bytes, int device, weir_stream stream)
{
    static atomic_flag said_kept = ATOMIC_FLAG_INIT, said_failed = ATOMIC_FLAG_INIT;
    (void)bytes;
    weir_dptr block = (uintptr_t)pointer;
    weir_pool *pool;
    if (block == 0 || weir_shared_pool(device, &pool) != WEIR_OK) return;
    struct wr_note *users = wr_notes_take(&recorded, block);
    weir_status st = WR_UNLIKELY(users != NULL) ? wr_notes_declare(users, pool, stream) : WEIR_OK;
    if (WR_UNLIKELY(st != WEIR_OK)) {
        if (!is_refused(st)) say_once(&said_kept, "a block is kept for good, whose recorded stream is gone");
        return;
    }
    st = weir_free(pool, block, stream);
    /* Its stream is gone: what ran there is among what the pool knows of the block's home. */
    if (st == WEIR_INVALID_ARGUMENT || st == WEIR_DRIVER_ERROR) st = weir_free(pool, block, NULL);
    if (st != WEIR_OK && !is_refused(st)) say_once(&said_failed, "a free changed nothing");
}

void weir_torch_memory_fraction(double fraction, int device)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (weir_shared_limit(device, 0, fraction) != WEIR_OK) say_once(&said, "the memory fraction");
}
