/* SPDX-License-Identifier: Apache-2.0
 *
 * THE SEAM. Everything that weir asks of a GPU, and the clock, goes through this table. Two fillings:
 * device_cuda.c (the driver) and device_sim.c (simulated GPUs). tests/conformance_*.c run over both.
 *
 * CONTRACT
 *   Context    An op makes the device's primary context current for its own length and restores the caller's.
 *   Threads    Any op from any thread. No lock of weir is held by the caller (asserted in debug builds).
 *   Waiting    Ops return without waiting for queued work: destroying a busy stream or event, too. Three wait:
 *              stream_sync and host_unregister, which are for tests, benches and a simulated device's end; and
 *              plain_free, for all work of the device, which only the close of a PLAIN pool calls.
 *   Ordering   Work on one stream runs in order. A copy reads its source when it runs, not when it is queued.
 *   Fences     event_query says done only when the work recorded before has completed; an event that was never
 *              recorded reads as done, as in CUDA (cuEventQuery). Callers keep track, the fillings don't.
 *   Failures   Typed, with the driver's own name in weir_error_text(). A failed op changed nothing, and outputs
 *              are written on success only. A sticky error or a destroyed context is CONTEXT_LOST.
 *   Streams    `s` may be NULL (legacy), CU_STREAM_LEGACY (1) or CU_STREAM_PER_THREAD (2).
 */
#ifndef WR_DEVICE_H
#define WR_DEVICE_H

#include "base.h"

struct wr_device;
typedef struct wr_event_opaque *wr_event;
typedef struct wr_graph_opaque *wr_graph;
typedef uint64_t wr_memory; /* physical memory: a CUmemGenericAllocationHandle */

enum { WR_COARSE_MOST_NS = 4000000 };

enum wr_copy_kind { WR_COPY_H2D, WR_COPY_D2H, WR_COPY_D2D, WR_COPY_PEER };

/* Rows of a copy. A pitch is the distance between two rows' first bytes, row_bytes at least. */
struct wr_rows {
    uint64_t to, from;
    size_t row_bytes, rows, to_pitch, from_pitch;
};

/* Where an address lies, as far as the driver knows. UNKNOWN: pageable host memory, or none at all. */
enum wr_memory_kind { WR_MEMORY_UNKNOWN, WR_MEMORY_PINNED, WR_MEMORY_DEVICE, WR_MEMORY_MANAGED };
struct wr_location {
    enum wr_memory_kind kind;
    int ordinal;           /* DEVICE: whose memory */
    bool mapped;           /* PINNED: kernels reach it by its host address */
    uint64_t start, bytes; /* a range around the address that is all of that kind; 1 byte where the driver
                            * knows no more; UNKNOWN: 0 bytes */
};

struct wr_stream_info {
    uint64_t id;    /* never used again in this process, unlike the handle (cuStreamGetId); 0: it captures */
    bool capturing; /* it is part of a graph capture (cuStreamIsCapturing), which asking for its id would
                     * kill: measured, in every capture mode */
};

/* A memory access that a kernel makes. The simulated device checks and orders by them; the real one needs
 * none. */
struct wr_use {
    uint64_t address;
    size_t bytes;
    bool writes;
};

/* One kernel in both languages: PTX for the driver's compiler, C for the simulated device. `body` gets what
 * the PTX entry gets: pointers to the parameters. Static storage: fillings key their caches by address. */
struct wr_kernel {
    const char *name; /* the PTX entry */
    const char *ptx;
    void (*body)(void *const *params);
    unsigned n_params;
    unsigned char param_bytes[8];
};

struct wr_launch {
    unsigned blocks, threads;
    void *const *params; /* copied before launch returns */
    const struct wr_use *uses;
    unsigned n_uses;
    uint64_t sim_duration_ns; /* how long it takes where it is simulated */
};

/* A block that is about to be freed, for a device that sees what is touched. */
struct wr_freed {
    uint64_t address, bytes;
    uint64_t home; /* the stream it is of, by id */
    weir_stream stream;
    const uint64_t *declared; /* ids of the other streams whose uses were declared */
    unsigned n_declared;
};

#define WR_DEVICE_PLAIN_OPS(X)                                                                                     \
    /* Virtual memory. `bytes` and addresses are multiples of device->granularity. */                              \
    X(va_reserve, (struct wr_device * d, size_t bytes, uint64_t * out))                                            \
    X(va_free, (struct wr_device * d, uint64_t va, size_t bytes))                                                  \
    X(mem_create, (struct wr_device * d, size_t bytes, wr_memory * out)) /* OUT_OF_MEMORY when full */             \
    X(mem_release, (struct wr_device * d, wr_memory m))                                                            \
    X(mem_map, (struct wr_device * d, uint64_t va, size_t bytes, wr_memory m))                                     \
    X(mem_access, (struct wr_device * d, uint64_t va, size_t bytes)) /* read-write for work of d */                \
    X(mem_unmap, (struct wr_device * d, uint64_t va, size_t bytes))  /* whole mappings only */                     \
    /* A file descriptor for another process, the caller's to close. Simulated: its offset says where the   \
     * memory begins. DRIVER_ERROR: this machine has none. */      \
    X(mem_export, (struct wr_device * d, wr_memory m, int *fd))                                                    \
    /* The other side, of `bytes`. INVALID_ARGUMENT: the descriptor is of something else. */                       \
    X(mem_import, (struct wr_device * d, int fd, size_t bytes, wr_memory *out))                                    \
    X(mem_info, (struct wr_device * d, size_t * free_bytes, size_t * total_bytes))                                 \
    /* Plain memory: at an address of the driver's choice, a multiple of 256. Read-write for work of d, and of  \
     * devices with plain_access: to all of the owner's, made before or after. OUT_OF_MEMORY when full. */  \
    X(plain_alloc, (struct wr_device * d, size_t bytes, uint64_t * out))                                           \
    X(plain_free, (struct wr_device * d, uint64_t address))                                                        \
    X(plain_access, (struct wr_device * d, struct wr_device * owner)) /* for work of d; again is fine */           \
    /* Host memory, page-locked for every device of the process. */                                                \
    X(host_register, (struct wr_device * d, void *host, size_t bytes))                                             \
    X(host_unregister, (struct wr_device * d, void *host))                                                         \
    X(locate, (struct wr_device * d, uint64_t address, struct wr_location * out))                                  \
    /* Streams, all non-blocking with regard to the legacy default stream. */                                      \
    X(stream_create, (struct wr_device * d, weir_stream * out))                                                    \
    /* One whose kernels go before those of other streams, wherever a block of threads ends: for transfers. */     \
    X(stream_create_first, (struct wr_device * d, weir_stream * out))                                              \
    X(stream_destroy, (struct wr_device * d, weir_stream s)) /* queued work still runs */                          \
    /* Only reads, takes no lock, is on the hot path: 24 ns for each of the two. */                                \
    X(stream_identify, (struct wr_device * d, weir_stream s, struct wr_stream_info * out))                         \
    /* The capture that the stream is part of, by the driver's number, never used again; 0: none, or one that    \
     * can't be named. Only reads, and harms no capture. */ \
    X(stream_capture, (struct wr_device * d, weir_stream s, uint64_t * out))                                       \
    /* Whose stream it is: d's own for a default stream's handle. Slow: for a stream's first time.           \
     * INVALID_ARGUMENT: the stream is of a context that is no device's primary one. */     \
    X(stream_device, (struct wr_device * d, weir_stream s, struct wr_device * *out))                               \
    X(stream_wait, (struct wr_device * d, weir_stream s, wr_event e)) /* later work of s after e */                \
    X(stream_sync, (struct wr_device * d, weir_stream s))                                                          \
    /* Events. */                                                                                                  \
    X(event_create, (struct wr_device * d, wr_event * out))                                                        \
    X(event_destroy, (struct wr_device * d, wr_event e))                                                           \
    X(event_record, (struct wr_device * d, wr_event e, weir_stream s))                                             \
    X(event_record_context, (struct wr_device * d, wr_event e)) /* after all queued in the context now */          \
    X(event_query, (struct wr_device * d, wr_event e, bool *done))                                                 \
    /* With timing, for measuring: the time from one that has passed to another, both of d. INVALID_ARGUMENT:  \
     * one has not passed, or has no timing. */   \
    X(event_create_timed, (struct wr_device * d, wr_event * out))                                                  \
    X(event_elapsed, (struct wr_device * d, wr_event first, wr_event second, int64_t * ns))                        \
    /* Work. H2D and D2H addresses are host pointers on their host side. A pageable host side may wait for   \
     * the stream: weir itself only copies from and to pinned memory. */     \
    X(copy,                                                                                                        \
        (struct wr_device * d, enum wr_copy_kind k, uint64_t dst, uint64_t src, size_t n, weir_stream s))          \
    X(copy_rows, (struct wr_device * d, enum wr_copy_kind k, const struct wr_rows *r, weir_stream s))              \
    /* May work of d reach memory of `other`, once that is mapped for it? */                                       \
    X(peer_access, (struct wr_device * d, struct wr_device * other, bool *out))                                    \
    X(fill, (struct wr_device * d, uint64_t dst, unsigned char byte, size_t n, weir_stream s))                     \
    X(launch, (struct wr_device * d, const struct wr_kernel *k, const struct wr_launch *l, weir_stream s))

#define WR_DEVICE_GRAPH_OPS(X)                                                                                    \
    /* Nodes, on a stream that captures. Each launch of the graph does, once, what event_record and stream_wait \
     * would do if they were called at the moment of the launch. INVALID_ARGUMENT: the stream captures nothing. */ \
    X(event_record_external, (struct wr_device * d, wr_event e, weir_stream s))                                   \
    X(stream_wait_external, (struct wr_device * d, weir_stream s, wr_event e))                                    \
    /* Graphs: for tests and benches, since the library captures nothing itself. Between begin and end the work \
     * queued on `s` becomes the graph's. Launches of one graph run one after the other. */ \
    X(graph_begin, (struct wr_device * d, weir_stream s))                                                         \
    X(graph_end,                                                                                                  \
        (struct wr_device * d, weir_stream s, wr_graph * out)) /* CAPTURING: the capture was broken */            \
    X(graph_launch, (struct wr_device * d, wr_graph g, weir_stream s))                                            \
    X(graph_destroy, (struct wr_device * d, wr_graph g)) /* what was launched still runs */

#define WR_DEVICE_OPS(X) WR_DEVICE_PLAIN_OPS(X) WR_DEVICE_GRAPH_OPS(X)

struct wr_device_ops {
#define WR_DEVICE_OP_FIELD(name, args) weir_status(*name) args;
    WR_DEVICE_OPS(WR_DEVICE_OP_FIELD)
#undef WR_DEVICE_OP_FIELD
    /* Another device of the same kind, and where simulated of the same world; opened at need, no work done on
     * it. NO_DEVICE, and what wr_device_get says. */
    weir_status (*sibling)(struct wr_device *d, int ordinal, struct wr_device **out);
    /* Reports the block's uses that nobody declared. NULL: the device does not see them. */
    void (*watch_free)(struct wr_device *d, const struct wr_freed *f);
    /* The clock: monotonic, of the machine or of the simulation. */
    uint64_t (*now_ns)(struct wr_device *d);
    /* The same, at a tenth of the price, but standing still for up to WR_COARSE_MOST_NS; where the kernel's own coarse
     * clock does so for longer, the price is the same. */
    uint64_t (*now_coarse_ns)(struct wr_device *d);
    /* Sleeps up to `ns`, sooner if `wake` is signalled. `held` is the lock that guards the waiter's
     * condition: given up while asleep, held again on return. On a virtual clock the sleep moves time instead
     * (device_sim.h). */
    void (*doze)(struct wr_device *d, pthread_cond_t *wake, struct wr_lock *held, uint64_t ns);
};

struct wr_device {
    const struct wr_device_ops *ops;
    int ordinal;
    char name[128];     /* "NVIDIA H200", "sim:h200-pcie5" */
    int driver_version; /* as cuDriverGetVersion counts; 0 where simulated */
    size_t total_bytes;
    size_t granularity; /* of virtual memory; 2 MiB on every GPU seen. 0: the device has none */
    unsigned copy_engines;
    bool reads_host; /* kernels reach pinned memory by its host address */
    /* The process's pinned arena over this device; pinned.c owns it. It outlives pools: see there. */
    _Atomic(void *) pinned;
    void (*pinned_fini)(void *pinned); /* run by a simulated device when its world ends */
    _Atomic int gone; /* a weir_status: CONTEXT_LOST once found to be lost, for good; see edges.h */
    struct wr_device *next_lost;
    _Atomic uint64_t calls; /* ops made; those that only read not counted */
};

static inline bool wr_location_holds(const struct wr_location *l, uint64_t address, size_t bytes)
{
    return address >= l->start && address - l->start < l->bytes && bytes <= l->bytes - (address - l->start);
}

static inline bool wr_device_is_simulated(const struct wr_device *d)
{
    return d->driver_version == 0;
}

/* The device of a kind ("cuda", "sim[:PROFILE]", NULL: $WEIR_DEVICE or "cuda") and ordinal, opened at first
 * use and kept until the process ends. Errors: NO_DRIVER, DRIVER_TOO_OLD, NO_DEVICE, DRIVER_ERROR,
 * NO_HOST_MEMORY. */
weir_status wr_device_get(const char *kind, int ordinal, struct wr_device **out);

/* The fillings' own doors; device.c calls them. A simulated device got this way runs on the wall clock. */
weir_status wr_device_cuda_open(int ordinal, struct wr_device **out);
weir_status wr_device_sim_open(const char *profile, int ordinal, struct wr_device **out);

/* For the fillings: waits on the machine's clock, as `doze` promises. */
void wr_device_doze_wall(pthread_cond_t *wake, struct wr_lock *held, uint64_t ns);
uint64_t wr_device_wall_ns(void);
uint64_t wr_device_coarse_ns(void);

#endif
