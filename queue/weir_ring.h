/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_ring: a replay ring. Rows live in device memory; lists of their indices are gathered into items of a queue.
 * Conventions: see weir.h.
 *
 *   writers    weir_ring_insert(rows from the host)        samplers   weir_ring_sample(indices) into the queue
 *   consumers  weir_queue_acquire -> a batch, row after row, in the order of the indices -> weir_queue_release
 *
 * The queue is of direction ON_DEVICE, without a source, and its items hold the largest batch. What else it is
 * (order, consumers, limits, ends) is its own affair: a batch is an item like any other.
 *
 * WHAT WAITS FOR WHAT, on the GPU: a row is written behind the gathers that read it, and a gather reads behind the
 * rows written before it. The host waits for a batch's place in the queue, and for the ratio, as long as the timeout
 * allows; a writer for pageable rows alone, as weir_copy says.
 *
 * THE RATIO. A sampled row counts as one sample, a written one as one insert. Samplers wait where that would make
 * more samples than inserts * samples_per_insert + slack, and where fewer than min_rows were written. They are served
 * in the order of their calls, so that a large batch does not wait for ever while small ones take each row written.
 */
#ifndef WEIR_RING_H
#define WEIR_RING_H

#include "weir_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_ring weir_ring;

typedef struct weir_ring_options {
    size_t struct_size;
    size_t rows, row_bytes;           /* must be given */
    size_t min_rows;                  /* written before the first sample. 0: 1 */
    double samples_per_insert, slack; /* 0: no limit */
} weir_ring_options;

/* Allocates the rows of `pool`; `batches` is a queue of that pool. Both must stay open as long as the ring.
 * Errors: INVALID_ARGUMENT (also a queue of another direction or pool), CLOSED, OUT_OF_MEMORY, NOT_YET,
 * NO_HOST_MEMORY, DRIVER_ERROR. */
WEIR_API weir_status weir_ring_open(
    weir_pool *pool, weir_queue *batches, const weir_ring_options *options, weir_ring **out);

/* Writes n rows, one after the other in host memory, to the ring's oldest places: *first (may be NULL) is the index of
 * the first, the others follow it, around the end. Pinned rows are read in place: until weir_ring_written says OK they
 * must stay as they are. Errors: INVALID_ARGUMENT (0 rows, NULL, more rows than the ring has); CLOSED; those of
 * weir_copy. After an error the places hold nothing until they are written again: insert starts there anew. */
WEIR_API weir_status weir_ring_insert(
    weir_ring *r, const void *rows, size_t n, int64_t timeout_ns, size_t *first);

/* Have all rows inserted so far been read? Errors: WOULD_BLOCK, TIMEOUT, CLOSED, CONTEXT_LOST. */
WEIR_API weir_status weir_ring_written(weir_ring *r, int64_t timeout_ns);

/* Gathers those rows into the queue's next item, whose key and ticket are as of weir_queue_put.
 * Errors: INVALID_ARGUMENT (no index, or one of a row that does not hold anything); WOULD_BLOCK, TIMEOUT (the ratio,
 * the queue's limits, or a sampler before this one); TOO_LARGE (over the queue's item_bytes); CLOSED; those of
 * weir_queue_push_after. */
WEIR_API weir_status weir_ring_sample(
    weir_ring *r, int64_t key, const size_t *indices, size_t n, int64_t timeout_ns, uint64_t *ticket);

typedef struct weir_ring_stats {
    size_t struct_size;
    uint64_t inserts, samples; /* rows */
    uint64_t rows_held;        /* fit to be sampled */
    uint64_t ratio_waits; /* calls of sample that found it exceeded, for themselves or for one before them */
    uint64_t samplers_waiting; /* at this moment */
} weir_ring_stats;

/* Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_ring_get_stats(weir_ring *r, weir_ring_stats *out);

/* Wakes samplers with CLOSED, and gives the rows back to the pool, which keeps them until the GPU has passed them.
 * Batches that are in the queue stay there. (Should the queue be gone, the rows stay with nobody.)
 * Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_ring_close(weir_ring *r);

#ifdef __cplusplus
}
#endif
#endif
