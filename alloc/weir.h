/* SPDX-License-Identifier: Apache-2.0
 *
 * weir: GPU memory and transfers that do not wait for compute.
 *
 * CONVENTIONS, written once
 *   Status     Every call that can fail returns weir_status; WEIR_OK is 0. Outputs are written only on WEIR_OK.
 *              weir_error_text() says, for the calling thread, what the last failed call would have needed.
 *   Units      Sizes in bytes, times in nanoseconds. A timeout of 0 tries once, -1 waits without end.
 *   Options    Structs start with struct_size = sizeof(the struct); zero in any other field means its default.
 *   Threads    Every call may be made from any thread at any time, unless it says otherwise.
 *   Waiting    No call here waits for the GPU, and none makes a stream wait, but an alloc that was told to by
 *              DEVICE_WAIT or HOST_WAIT (weir_reuse), and the close of a PLAIN pool (weir_backing). No lock of
 *              weir is held during a driver call. The caller's current CUDA context is the same after each call,
 *              errors included.
 *   Handles    A closed pool's handle stays valid to pass: calls on it return WEIR_CLOSED.
 *   Edges      Once the process exits (an atexit handler, registered when a device is opened) every call returns
 *              WEIR_CLOSED, and in a child of fork WEIR_AFTER_FORK: no driver call, no lock, frees do nothing.
 *              When a device was reset or is in a sticky error, calls on its pools and queues return
 *              WEIR_CONTEXT_LOST without driver calls, and who waits in one wakes. weir_queue_destroy and
 *              weir_pool_close then drop the tables; a pool opened afterwards is on the device as it is then.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#else
#define WEIR_API
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0

/* name, what it means to the caller */
#define WEIR_STATUS_MAP(X)                                                                                   \
    X(OK, "success")                                                                                         \
    X(INVALID_ARGUMENT, "an argument is outside its documented range")                                       \
    X(INVALID_POINTER, "not the start of a live block of this pool: wild, interior, freed, or of another")   \
    X(TOO_LARGE, "larger than the limit: can never succeed here")                                            \
    X(OUT_OF_MEMORY, "no memory, and none will come back by itself")                                         \
    X(NOT_YET, "would fit once pending frees have passed on the GPU")                                        \
    X(WOULD_BLOCK, "not now: the call was asked not to wait")                                                \
    X(TIMEOUT, "the deadline passed first")                                                                  \
    X(CLOSED, "the pool or queue is closed")                                                                 \
    X(STALE_HANDLE, "the item was committed, aborted, released or cancelled before, or is no item here")     \
    X(CAPTURING, "the stream is capturing a graph, where this call is not possible")                         \
    X(NO_DRIVER, "no CUDA driver (libcuda.so.1) on this machine")                                            \
    X(DRIVER_TOO_OLD, "the CUDA driver lacks a function that weir needs")                                    \
    X(NO_DEVICE, "no device of that number or name")                                                         \
    X(DRIVER_ERROR, "the driver refused; weir_error_text() has its own code")                                \
    X(CONTEXT_LOST, "the device's context is gone or in a sticky error state")                               \
    X(NO_HOST_MEMORY, "the host has no memory left")                                                         \
    X(AFTER_FORK, "a child of fork can't use what its parent opened")                                        \
    X(POISONED, "the source has failed; weir_error_text() has its words, weir_queue_poisoned its code")      \
    X(IN_USE, "an item of that key is in the queue already")

typedef enum weir_status {
#define WEIR_STATUS_ENUM(name, text) WEIR_##name,
    WEIR_STATUS_MAP(WEIR_STATUS_ENUM)
#undef WEIR_STATUS_ENUM
        WEIR_STATUS_COUNT
} weir_status;

/* "WEIR_NOT_YET"; the one-line meaning; both static strings, "unknown" for a number that is no status. */
WEIR_API const char *weir_status_name(weir_status s);
WEIR_API const char *weir_status_text(weir_status s);

/* What the last failed call of this thread would have needed, in words. Valid until the thread's next failing
 * call; "" before the first. */
WEIR_API const char *weir_error_text(void);

WEIR_API const char *weir_version(void); /* "0.1.0" */

typedef uint64_t weir_dptr; /* a device address, a CUdeviceptr */

/* A CUstream. NULL and CU_STREAM_LEGACY are the legacy default stream, CU_STREAM_PER_THREAD means the calling
 * thread's own (CUDA driver API, "Stream synchronization behavior"). */
typedef void *weir_stream;

/* For weir_host_free alone: no stream ever used the block. */
#define WEIR_NO_STREAM ((weir_stream)(intptr_t)-1)

typedef struct weir_pool weir_pool;

/* ---- pools ------------------------------------------------------------------------------------------- */

/* Asked for memory that the caller could do without, when an alloc of `bytes` is about to fail, or to grow
 * the pool above its soft limit. It frees through the normal calls and returns the bytes it has freed.
 * Believed is only what really became free: two zeros running, whatever it claims, and the alloc goes on
 * without; so it does when what was freed would be enough but has not passed yet. Called on the allocating
 * thread, off all locks of weir, by several threads at once where several allocate; it may call anything of
 * weir, and what it allocates itself does not come back to it. */
typedef size_t (*weir_evict)(void *context, size_t bytes);

/* Which freed memory may serve another stream than the one it was allocated on, and what an alloc does when
 * none may and there is no more. */
typedef enum weir_reuse {
    WEIR_REUSE_DEFAULT, /* of a call: the pool's; of a pool: COMPLETED */
    /* What its home stream, and all declared users, have passed. No alloc waits. In a pool of OWNER reuse it holds for
     * a stream whose first alloc says so, until one says OWNER or nothing. */
    WEIR_REUSE_COMPLETED,
    /* What all work queued in the device's context at the free has passed, whichever stream's; its home
     * stream may use it at once. For callers that free before the users they did not declare are joined to
     * the home stream. It holds for all memory of a stream from its first such alloc on, whatever later calls
     * say; a stream of another device keeps COMPLETED. While a stream that the pool knows captures, nothing
     * more becomes known to have passed. */
    WEIR_REUSE_OWNER,
    /* As COMPLETED; and when all else has failed the stream, on the device, is made to wait for the other
     * that holds what it needs, and takes its pages. Only memory that waits for its home stream alone is
     * taken from others; from the stream's own, also what waits for declared users. */
    WEIR_REUSE_DEVICE_WAIT,
    /* As COMPLETED; and when all else has failed the call waits, up to its deadline, for the fence that would
     * satisfy it, and for no other work. */
    WEIR_REUSE_HOST_WAIT
} weir_reuse;

/* How a pool knows streams. CHECKED: by asking the driver at each alloc for the stream's id and whether it
 * captures, since a handle can come back as another stream (two reads, 24 ns each on an H200). ANNOUNCED: the
 * caller promises to call weir_stream_retire before it destroys a stream, and weir_graph_id on a stream that begins
 * to capture before the next call with that stream; then a thread's call for the stream that it used last asks
 * nothing. Default streams are asked about in either way, and so are all while the memory of a graph is kept. A
 * promise broken is memory reused early. */
typedef enum weir_streams { WEIR_STREAMS_CHECKED, WEIR_STREAMS_ANNOUNCED } weir_streams;

/* What a pool's memory is made of. */
typedef enum weir_backing {
    /* Virtual memory: segments (cuMemCreate, cuMemMap) that come as they are needed, move, and go back. */
    WEIR_BACKING_VIRTUAL,
    /* One cuMemAlloc of the whole limit, at the opening. For what knows no other memory: legacy CUDA IPC (the
     * block's allocation, by cuMemGetAddressRange, is what cuIpcGetMemHandle takes; the block is at its offset
     * there) and devices without virtual memory. The price: reserved is the limit from the opening to the close;
     * nothing grows, moves or goes back, so weir_trim frees 0, other processes get none of it, and what lies apart
     * stays apart. weir_export is refused. Peers are enabled for all plain memory of the device
     * (cuCtxEnablePeerAccess). And since cuMemFree waits for all work of the device, the weir_pool_close that gives
     * it back does, too; a free never does, so a pool closed too early is finished by another close alone. */
    WEIR_BACKING_PLAIN
} weir_backing;

typedef struct weir_pool_options {
    size_t struct_size;
    int device;              /* ordinal, as CUDA counts them */
    const char *device_kind; /* NULL: $WEIR_DEVICE, else "cuda". "cuda", or "sim[:PROFILE]", see README */
    size_t limit_bytes;      /* reserved never exceeds it. 0: the device's total memory */
    size_t grow_bytes;       /* least growth, rounded up to 2 MiB. 0: a 2048th of the limit, 2 to 32 MiB */
    double limit_fraction;   /* of the device's total memory, above 0 up to 1; the smaller of the two limits
                              * counts. 0: no such limit */
    size_t soft_limit_bytes; /* above it the pool grows only when nothing else that needs no waiting helps:
                              * other streams' passed memory, finished segments given back, `evict`. 0: none */
    weir_evict evict;        /* NULL: none */
    void *evict_context;
    weir_reuse reuse;    /* of plain allocs */
    int64_t deadline_ns; /* of HOST_WAIT, from the call's start; -1: none. HOST_WAIT without one is invalid */
    weir_streams streams;
    weir_backing backing; /* PLAIN needs a limit, of either kind; and growth options with it are invalid:
                           * grow_bytes, soft_limit_bytes, most_limit_bytes */
    /* What weir_pool_set_limit may raise the limit to, up to the device's total memory: addresses are reserved for it.
     * Below the limit, as 0 is: the limit itself. */
    size_t most_limit_bytes;
} weir_pool_options;

/* Opens a pool on a device. Reserves address space, no memory (PLAIN: all of it). A real device is never replaced
 * by a simulated one in silence: with no driver this returns WEIR_NO_DRIVER. NULL options are all defaults.
 * Errors: INVALID_ARGUMENT, NO_DRIVER, DRIVER_TOO_OLD, NO_DEVICE, DRIVER_ERROR, NO_HOST_MEMORY; OUT_OF_MEMORY
 * (PLAIN: the device has not as much). */
WEIR_API weir_status weir_pool_open(const weir_pool_options *options, weir_pool **out);

/* Changes the limit, meant as in the options: the smaller of both, 0: no such limit; both 0: the limit of the
 * opening. A higher one is in force at once. For a lower one finished, idle memory goes back to the driver; where more
 * stays reserved than that, the limit becomes what stays and is NOT_YET: weir_pool_stats has it, and another call,
 * after frees, or when pending work has passed, goes on. Never waits. Allocs of other threads hold the limit that is
 * in force, at every moment. Errors: INVALID_ARGUMENT (below 2 MiB, above most_limit_bytes, a fraction that is none,
 * a PLAIN pool), NOT_YET, CLOSED. */
WEIR_API weir_status weir_pool_set_limit(weir_pool *pool, size_t bytes, double fraction);

/* Closes: no more allocs; frees of blocks still live are accepted. OK when all memory has gone back to the
 * driver; NOT_YET when live or pending blocks, or graphs, still hold some, or a stream captures. Then the last
 * free, or another close, finishes it. Never waits, but to give PLAIN memory back. Errors: INVALID_ARGUMENT,
 * CLOSED (finished before). */
WEIR_API weir_status weir_pool_close(weir_pool *pool);

/* Allocates `bytes`, 512-byte aligned, for use on `stream` in stream order: work queued on that stream from
 * now on may use the block at once, other streams after joining it as CUDA asks. 0 bytes give OK and address
 * 0. A warm hit takes one lock, and of the driver only reads the stream's id and capture state. Errors:
 * OUT_OF_MEMORY; NOT_YET (retry once the work named in weir_error_text() has passed); TIMEOUT (a HOST_WAIT's
 * deadline); TOO_LARGE; CAPTURING (see graphs); CLOSED; INVALID_ARGUMENT; DRIVER_ERROR, CONTEXT_LOST,
 * NO_HOST_MEMORY. */
WEIR_API weir_status weir_alloc(weir_pool *pool, size_t bytes, weir_stream stream, weir_dptr *out);

typedef struct weir_alloc_options {
    size_t struct_size;
    size_t alignment; /* of the address: a power of two up to 2 MiB; up to 512 costs nothing. 0: 512 */
    weir_reuse reuse;
    int64_t deadline_ns; /* of HOST_WAIT: -1 waits without end. 0: the pool's */
} weir_alloc_options;

/* weir_alloc with options of its own; NULL options are all defaults. What lies before and after an aligned
 * block stays free for others. Errors: those of weir_alloc; TIMEOUT (a HOST_WAIT's deadline);
 * INVALID_ARGUMENT also for an alignment that is no power of two (3) or above 2 MiB, and for a HOST_WAIT that
 * has no deadline. */
WEIR_API weir_status weir_alloc_with(
    weir_pool *pool, size_t bytes, weir_stream stream, const weir_alloc_options *options, weir_dptr *out);

/* Why the calling thread's last alloc that failed for want of memory did, in numbers. */
enum { WEIR_FAILURE_STREAMS = 8 };
typedef struct weir_failure {
    size_t struct_size;
    weir_status status; /* OUT_OF_MEMORY, NOT_YET, TIMEOUT, TOO_LARGE. OK: none failed so far */
    uint64_t asked_bytes, limit_bytes, reserved_bytes;
    uint64_t largest_free_bytes; /* that the stream could get now, growth within the limit included */
    uint64_t pending_bytes;      /* freed but not passed, of all streams */
    uint64_t fence_stream;       /* id (cuStreamGetId) of the stream that lets the request succeed, or brings
                                  * it nearest, by passing what is queued on it; 0: none would help */
    uint32_t n_streams;          /* entries below: those that hold most, most first */
    uint32_t device_is_full;     /* 1: the driver refused memory that the limit allows */
    struct weir_failure_stream {
        uint64_t id, bytes;
    } streams[WEIR_FAILURE_STREAMS];
} weir_failure;

/* Fills *out up to out->struct_size bytes. Errors: INVALID_ARGUMENT. */
WEIR_API weir_status weir_last_failure(weir_failure *out);

/* Declares that the work queued on `stream` so far uses the block too. The block is not reused before that
 * work has passed; work queued later on that stream does not hold it back. `flags` must be 0. Costs one event
 * record on the stream. Errors: INVALID_POINTER, INVALID_ARGUMENT, CLOSED, CAPTURING. */
WEIR_API weir_status weir_touch(weir_pool *pool, weir_dptr block, weir_stream stream, unsigned flags);

/* Frees. `stream` is the block's home (where it was allocated) or its last user: all uses not declared by
 * touch must be ordered before this point of `stream`. Freed on its home stream and used by no other, the
 * block is at once reusable there; else when every stream that used it has passed. Address 0 is a no-op.
 * Two threads racing to free one block: one gets INVALID_POINTER.
 * Errors, each leaving the block as it was: INVALID_POINTER, INVALID_ARGUMENT, NO_HOST_MEMORY, DRIVER_ERROR,
 * CONTEXT_LOST; CAPTURING (see graphs); CLOSED (the pool is gone, and so is the block). */
WEIR_API weir_status weir_free(weir_pool *pool, weir_dptr block, weir_stream stream);

/* Announces that `stream` will be destroyed: its last fence is taken, its handle not used again, and its free
 * memory serves other streams once passed. Call it before cuStreamDestroy. Unknown streams are fine.
 * Errors: INVALID_ARGUMENT, CLOSED, CAPTURING. */
WEIR_API weir_status weir_stream_retire(weir_pool *pool, weir_stream stream);

/* Gives finished, idle memory back to the driver until at most `keep_bytes` stay reserved, or no more is
 * idle. *freed_bytes (may be NULL) is what went back. Never waits: what the GPU still uses stays, and while a
 * stream captures (see graphs) all does. Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_trim(weir_pool *pool, size_t keep_bytes, size_t *freed_bytes);

/* Makes all memory of the pool, what it has and what it will get, readable and writable for work of another
 * device, before a block of it leaves. `device` is an ordinal of the pool's own kind of device. Calls after the
 * first are free; it can't be undone. An error leaves the pool as it was. One driver call for each segment
 * that there is, and one more for each growth from now on. Errors: NO_DEVICE, DRIVER_ERROR (no such peer
 * access on this machine), INVALID_ARGUMENT, CLOSED, CONTEXT_LOST, NO_DRIVER. */
WEIR_API weir_status weir_pool_peer_enable(weir_pool *pool, int device);

/* A block's physical memory, for another process or interface. It is made of segments, each with a file
 * descriptor of its own; a block may begin inside one and reach into the next. */
typedef struct weir_exported {
    size_t struct_size;
    int fd;               /* POSIX, of one segment, the caller's to close */
    size_t segment_bytes; /* the segment's size: a multiple of 2 MiB */
    size_t offset;        /* where the block's byte `from` lies in the segment */
    size_t bytes;         /* how many of the block's bytes follow there, in this segment */
} weir_exported;

/* Exports the segment that holds byte `from` of the live block, which is below its size rounded up to 512. Start
 * with 0, add `bytes` each time, and stop at the block's size. weir_import is the other side; without weir an
 * importer reserves addresses for the sum of segment_bytes, imports each descriptor
 * (cuMemImportFromShareableHandle, POSIX_FILE_DESCRIPTOR) and maps them one behind the other (cuMemMap,
 * cuMemSetAccess): the block is at the reservation + the first offset, whole.
 * What else lies in the segments is readable to it, too. Keep the block live until the importer is done with it:
 * afterwards the memory serves others, in their segment or, once it has moved, anywhere. Errors:
 * INVALID_POINTER, INVALID_ARGUMENT (also: a PLAIN pool), CLOSED; DRIVER_ERROR where the machine has no such
 * descriptors. */
WEIR_API weir_status weir_export(weir_pool *pool, weir_dptr block, size_t from, weir_exported *out);

typedef struct weir_import_options {
    size_t struct_size;
    int device; /* that is to read and write it, as CUDA counts them here; device_kind as for a pool */
    const char *device_kind;
} weir_import_options;

typedef struct weir_imported weir_imported;

/* Maps a block that another process has exported: `parts` are what its calls of weir_export filled, all of them and
 * in their order, each fd replaced by the one that came through a Unix socket. The descriptors stay the caller's,
 * who may close them after this call. *block is the address here of the block's first byte (of byte `from`, where
 * the first part was another one). Nothing orders the processes: whoever writes must have passed, and have said
 * so, before the other reads; and the exporter must keep the block live until weir_import_close has returned
 * here. NULL options are all defaults. One driver call a part, and four more. Errors: INVALID_ARGUMENT (parts
 * that don't follow each other, a descriptor of something else, a segment_bytes that is not its size); NO_DRIVER,
 * DRIVER_TOO_OLD, NO_DEVICE, DRIVER_ERROR, OUT_OF_MEMORY (addresses), NO_HOST_MEMORY, CONTEXT_LOST. */
WEIR_API weir_status weir_import(const weir_import_options *options, const weir_exported *parts,
    size_t n_parts, weir_dptr *block, weir_imported **out);

/* Unmaps it. The GPU's work on it must have ended: this neither waits nor looks. Errors, which leave it to be
 * closed again: INVALID_ARGUMENT; CAPTURING (see graphs: nothing is unmapped); DRIVER_ERROR. After the device
 * was lost it is OK, and drops the record of what is gone. */
WEIR_API weir_status weir_import_close(weir_imported *imported);

/* ---- graphs --------------------------------------------------------------------------------------------
 *
 * A stream that captures a graph gets memory from a heap of that capture and that stream. What is freed there
 * serves the same stream in the same capture again, and nothing else, until the graph is released; a block of
 * elsewhere that captured work uses (touch, or free, on the capturing stream) stays, too. No event is recorded
 * or queried on a capturing stream. A free asks the driver nothing: a block of before the capture that is freed at
 * home, on the stream that captures, stays if the capture was met before, and is taken for one freed outside of it
 * if not; so where captured work uses such blocks call weir_graph_id first. While a capture goes on that weir has
 * met - by any of these calls on its stream - no memory is unmapped and no event recorded on its context, which
 * would break it. Allocs on a capturing stream are COMPLETED, whatever policy is asked: nothing waits there. */

/* Says the number of the capture that `stream` is part of (as cuStreamGetCaptureInfo does), and makes the
 * capture known here: call it at its beginning if the stream's first alloc comes late, or never.
 * A stream of another device than the pool's must have been used with the pool before it captures.
 * Errors: INVALID_ARGUMENT; CAPTURING (no capture that has a number); CLOSED; NO_HOST_MEMORY; DRIVER_ERROR. */
WEIR_API weir_status weir_graph_id(weir_pool *pool, weir_stream stream, uint64_t *id);

/* The graph of that capture will not be launched again, or the capture was aborted: its memory serves others
 * once all that is queued on the device by now has passed. Blocks still live remain so. Never waits. Errors:
 * INVALID_ARGUMENT (no such capture here, or released before); CAPTURING (it has not ended); CLOSED. */
WEIR_API weir_status weir_graph_release(weir_pool *pool, uint64_t id);

/* INVARIANT: live + pending + cached + idle == reserved, all in bytes of device memory. */
typedef struct weir_stats {
    size_t struct_size;
    uint64_t live_bytes;     /* in the caller's hands, rounded to 512 */
    uint64_t pending_bytes;  /* freed, waiting for another stream to pass */
    uint64_t cached_bytes;   /* free in a stream's heap */
    uint64_t idle_bytes;     /* mapped, owned by no stream */
    uint64_t reserved_bytes; /* taken from the driver */
    uint64_t peak_live_bytes, peak_reserved_bytes;
    uint64_t limit_bytes;
    uint64_t live_blocks, pending_blocks;
    uint64_t streams; /* with a heap now */
    uint64_t allocs, frees, touches;
    uint64_t slow_allocs;  /* allocs that the stream's own heap could not serve at once */
    uint64_t grows, trims; /* segments mapped, unmapped */
    uint64_t ticks;        /* events recorded */
    uint64_t host_waits;   /* times an alloc waited for the GPU: 0 but for HOST_WAIT */
    uint64_t stream_waits; /* waits put on a stream by the allocator: 0 but for DEVICE_WAIT */
    uint64_t pinned_bytes; /* pinned host memory taken from the system, all pools of the device */
    uint64_t pinned_live_bytes, pinned_pending_bytes;
    uint64_t hits;         /* allocs that the stream's own heap served at once; slow_allocs are the misses */
    uint64_t driver_calls; /* on the device so far, by all of weir: pools, queues, transfers */
} weir_stats;

/* Fills *out up to out->struct_size bytes. A moment's picture: each stream is read under its own lock.
 * Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_pool_stats(weir_pool *pool, weir_stats *out);

/* Writes down where every byte is, as JSON: the counters, the segments mapped, and by stream its pieces of memory
 * with state, size, and the streams whose declared uses they carry: a pending block waits for those. *json is
 * 0-terminated and the caller's, who gives it back with free(). A moment's picture stream by stream: each is
 * held while its pieces are noted, some 50 ns each. Errors: INVALID_ARGUMENT, CLOSED, NO_HOST_MEMORY. */
WEIR_API weir_status weir_pool_snapshot(weir_pool *pool, char **json);

/* Walks every structure of the pool and compares the counters; for tests and debugging, takes every lock
 * in turn. The sum over all of them is compared only if no other thread mapped or moved memory meanwhile.
 * Errors: INVALID_ARGUMENT, CLOSED; DRIVER_ERROR never. A broken invariant aborts with its name. */
WEIR_API weir_status weir_pool_check(weir_pool *pool);

/* ---- pinned host memory ------------------------------------------------------------------------------ */

/* Allocates page-locked host memory that every device of the process can read and write, 64-byte aligned.
 * Growth registers new memory with the driver (milliseconds per 64 MiB, never behind a kernel); reuse makes
 * no driver call. Memory is never unregistered: cuMemHostUnregister waits for every running kernel. 0 bytes
 * give OK and NULL. Errors: NO_HOST_MEMORY, TOO_LARGE, INVALID_ARGUMENT, CLOSED, DRIVER_ERROR. */
WEIR_API weir_status weir_host_alloc(weir_pool *pool, size_t bytes, void **out);

/* Frees it once `stream` has passed all that is queued on it now; WEIR_NO_STREAM: at once. NULL is a no-op.
 * Errors: INVALID_POINTER (not the start of a live block), INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_host_free(weir_pool *pool, void *host, weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif
