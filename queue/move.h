/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves: copies between places that the GPU reaches by itself (its own memory, pinned memory, a peer's), and how
 * they are given to the driver: neighbours joined, big ones in chunks, many small ones by the gather kernel.
 */
#ifndef WR_MOVE_H
#define WR_MOVE_H

#include "pool.h"
#include "weir_copy.h"

struct wr_move {
    uint64_t to, from;
    size_t bytes; /* of a row */
    size_t rows;  /* 1 at least */
    size_t to_pitch, from_pitch;
};

/* What a way of copying small pieces costs, by their size: see ways.c. */
struct wr_ways {
    weir_way best[WEIR_SMALL_CLASSES];
    double us[WEIR_SMALL_CLASSES][WEIR_WAYS];
};

enum { WR_SMALL_MOST = 128 << 10, WR_SMALL_FEW = 4 }; /* bytes of a small piece; below so many: one by one */

extern const struct wr_ways wr_ways_guess;                                /* of an H200, not measured */
weir_way wr_ways_choose(const struct wr_ways *w, size_t n, size_t bytes); /* n pieces of `bytes` together */

/* A stream to queue on. */
struct wr_mover {
    weir_pool *pool;
    struct wr_device *device;
    weir_stream stream;
    struct wr_fence *fence; /* the stream's */
    size_t chunk_bytes;
    const struct wr_ways *ways; /* NULL: no kernels */
    bool urgent;                /* small ones by the kernel, however few: see move.c */
};

struct wr_move_tally {
    uint64_t transfers, direct_bytes, gather_bytes;
    uint64_t gathers; /* of the transfers: launches */
};

/* Joins neighbours, in place; rows without a gap become one. Returns how many are left: empty ones go. */
size_t wr_move_join(struct wr_move *moves, size_t n);

/* Queues them, in no order. The list is changed. After an error some may be queued. */
weir_status wr_move_queue(const struct wr_mover *m, enum wr_copy_kind kind, struct wr_move *moves, size_t n,
    struct wr_move_tally *t);

static inline bool wr_move_is_small(const struct wr_move *m)
{
    return m->rows == 1 && m->bytes <= WR_SMALL_MOST;
}

#endif
