/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_copy: the transfer engine by itself, for adapters and for programs without a queue. Conventions: see
 * weir.h.
 *
 *   weir_engine_open -> weir_copy(pieces) -> weir_copy_join(stream) | weir_copy_wait(host) -> weir_engine_close
 *
 * A copy runs on streams of the engine's own, and waits for the work named in `after` and for nothing else: no
 * other copy, no kernel. Two copies are in no order, unless one names a stream that was joined to the other. In
 * one copy the pieces are in no order either.
 *
 * Each way of copying is found by looking at the memory: pinned memory and memory of GPUs is read and written in
 * place, in chunks, so that other copies slip between; many small pieces by one kernel where that was measured to
 * be faster; pageable memory through pinned slabs of the engine's, filled and emptied by several threads while
 * the chunks before are under way.
 *
 * WHAT WAITS FOR WHAT
 *   - Where no pageable memory takes part, weir_copy only queues.
 *   - Pageable memory is read during the call: it may be overwritten when weir_copy returns. The call lasts as
 *     long as that takes, and for a copy beyond staging_bytes about as long as the copy itself.
 *   - Pageable memory is written by whichever thread is in a call of the engine, last by weir_copy_wait.
 *   - A copy of pageable memory that is larger than half of staging_bytes can't be queued behind `after`: the
 *     call waits for that work as long as timeout_ns allows, before anything is copied.
 *
 * Blocks: allocate them on weir_engine_stream, where nothing ever runs, and a copy may use them at once. A block
 * of another stream needs that stream in `after`. Free them on the stream that was joined to the ticket.
 */
#ifndef WEIR_COPY_H
#define WEIR_COPY_H

#include "weir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_engine weir_engine;

enum {
    WEIR_ENGINE_NO_KERNELS = 1 << 0 /* copy engines alone: a kernel needs room between those that compute */
};

typedef struct weir_engine_options {
    size_t struct_size;
    size_t chunk_bytes;   /* the most that other copies wait for: 64 KiB to 64 MiB. 0: 8 MiB */
    size_t staging_bytes; /* pinned memory for pageable copies, 4 chunks at least. 0: 16 chunks */
    unsigned flags;
} weir_engine_options;

/* Opens an engine that copies to and from memory of the pool's device. Measures, for some milliseconds at most,
 * how small pieces go fastest (weir_engine_stats). NULL options are all defaults. The pool must stay open.
 * Errors: INVALID_ARGUMENT, CLOSED, DRIVER_ERROR, CONTEXT_LOST, NO_HOST_MEMORY. */
WEIR_API weir_status weir_engine_open(weir_pool *pool, const weir_engine_options *options, weir_engine **out);

/* Makes copies between the engine's device and the one of `peer` possible. Each reaches the other's memory
 * directly if the driver says so and a pattern copied either way arrives; else copies go through pinned memory,
 * and weir_engine_stats says so. Waits for those few kilobytes alone. Done before: OK at once.
 * Errors: INVALID_ARGUMENT (the same device), CLOSED, OUT_OF_MEMORY, NOT_YET, NO_HOST_MEMORY, DRIVER_ERROR. */
WEIR_API weir_status weir_engine_link(weir_engine *e, weir_pool *peer);

/* Errors: INVALID_ARGUMENT, CLOSED; NOT_YET: pageable memory is still to be written, and tickets to be waited
 * for. Copies that are queued still run; never waits. */
WEIR_API weir_status weir_engine_close(weir_engine *e);

/* The stream on which nothing runs, to allocate blocks on. NULL: e is NULL or closed. */
WEIR_API weir_stream weir_engine_stream(weir_engine *e);

/* A stream of the engine's for a wait that somebody else queues, who can only be told "on this stream": have it
 * queued, name the gate in `after` of a copy, and give the gate back, at once. Copies that don't name it are not held
 * up. Nothing else may be queued there. Errors: INVALID_ARGUMENT, CLOSED, NO_HOST_MEMORY, DRIVER_ERROR; of take
 * WOULD_BLOCK: 32 are lent, or waited on by copies; of give INVALID_ARGUMENT: not lent. */
WEIR_API weir_status weir_engine_take_gate(weir_engine *e, weir_stream *out);
WEIR_API weir_status weir_engine_give_gate(weir_engine *e, weir_stream gate);

typedef enum weir_direction {
    WEIR_TO_DEVICE, /* from host memory to the engine's device */
    WEIR_TO_HOST,   /* from the engine's device */
    WEIR_ON_DEVICE, /* on the engine's device, or between it and one it was linked to */
} weir_direction;

/* `bytes` from one address to another; with rows > 1 so many times, a pitch apart. 0 rows count as one. */
typedef struct weir_piece {
    uint64_t to, from; /* host pointers are (uintptr_t)p */
    size_t bytes;
    size_t rows, to_pitch, from_pitch;
} weir_piece;

enum {
    /* Pieces up to 128 KiB in memory that kernels reach go past queued copies of the same direction, by a kernel;
     * others behind what is queued on the copy engine. */
    WEIR_COPY_URGENT = 1 << 0,
    /* Host memory is read and written when the copy runs, never during the call: for a source that the work named in
     * `after` is to fill. Pageable memory is INVALID_POINTER. */
    WEIR_COPY_IN_PLACE = 1 << 1,
    /* To a device: host memory is read during the call, pinned memory too, and may be overwritten when weir_copy
     * returns. Not with IN_PLACE. */
    WEIR_COPY_DURING_CALL = 1 << 2
};

typedef struct weir_copy_options {
    size_t struct_size;
    const weir_stream *after; /* the copy begins after the work queued on them by now */
    size_t n_after;
    unsigned flags;
    int64_t timeout_ns; /* see WHAT WAITS FOR WHAT */
} weir_copy_options;

/* Names a copy. All zero: a copy of no bytes, which is complete. */
typedef struct weir_ticket {
    uint64_t lane, stamp, landing;
} weir_ticket;

/* Copies. Empty pieces are fine. NULL options are all defaults. *ticket (may be NULL) names the copy.
 * Errors, before anything is copied: INVALID_ARGUMENT (bytes at NULL, a pitch below the row, an address that
 * wraps, destinations that overlap, a piece that overlaps itself, a device without a link); INVALID_POINTER (not
 * memory of a GPU where that is asked for, or the other way round, or managed memory); TOO_LARGE (sizes that
 * add up to more than SIZE_MAX); WOULD_BLOCK, TIMEOUT; CAPTURING (a stream of `after`); CLOSED.
 * DRIVER_ERROR, CONTEXT_LOST, NO_HOST_MEMORY may come with a part copied: *ticket is written then, too, and says
 * when the memory is at rest. */
WEIR_API weir_status weir_copy(weir_engine *e, weir_direction direction, const weir_piece *pieces,
    size_t n_pieces, const weir_copy_options *options, weir_ticket *ticket);

/* `stream` waits for the copy, and the host for nothing. Errors: WOULD_BLOCK (pageable memory is still to be
 * written: use weir_copy_wait); INVALID_ARGUMENT (no ticket of this engine), CLOSED, CAPTURING, DRIVER_ERROR. */
WEIR_API weir_status weir_copy_join(weir_engine *e, weir_ticket ticket, weir_stream stream);

/* The host waits for the copy. Errors: WOULD_BLOCK, TIMEOUT, INVALID_ARGUMENT, CLOSED, CONTEXT_LOST. */
WEIR_API weir_status weir_copy_wait(weir_engine *e, weir_ticket ticket, int64_t timeout_ns);

enum { WEIR_SMALL_CLASSES = 4 }; /* pieces up to 2, 8, 32, 128 KiB */
typedef enum weir_way { WEIR_WAY_DIRECT, WEIR_WAY_GATHER, WEIR_WAY_PACKED, WEIR_WAYS } weir_way;

typedef struct weir_engine_stats {
    size_t struct_size;
    uint64_t copies[3], bytes[3];      /* calls, and what they moved, by weir_direction */
    uint64_t direct_bytes;             /* by the copy engines, in place */
    uint64_t gather_bytes;             /* by the kernel: small pieces */
    uint64_t staged_bytes;             /* of pageable memory, through slabs */
    uint64_t packed_bytes;             /* small pinned pieces, through slabs */
    uint64_t peer_staged_bytes;        /* between devices, through slabs: no peer access */
    uint64_t transfers;                /* given to the driver: chunks, launches */
    uint64_t stream_waits;             /* put on the engine's streams, for `after` */
    uint64_t slab_waits, slab_wait_ns; /* calls that waited for a slab: for copies, never for compute */
    uint64_t host_syncs;          /* host waits for a stream that computes, but for timeout_ns: 0, always */
    uint64_t lanes, slabs;        /* streams made; slabs allocated */
    uint64_t links, links_staged; /* devices linked; those of them without direct access */
    weir_way small_way[WEIR_SMALL_CLASSES]; /* what was found fastest */
    double small_us[WEIR_SMALL_CLASSES]
                   [WEIR_WAYS]; /* a piece, measured at open; 0: that way is not possible */
} weir_engine_stats;

/* Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_engine_get_stats(weir_engine *e, weir_engine_stats *out);

#ifdef __cplusplus
}
#endif
#endif
