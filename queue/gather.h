/* SPDX-License-Identifier: Apache-2.0
 *
 * The gather kernel: many small pieces in one launch, a block of threads a piece. It reads and writes memory of
 * its device and pinned memory alike, so it serves every direction.
 */
#ifndef WR_GATHER_H
#define WR_GATHER_H

#include "move.h"

/* Queues them all: rows are 1. *bytes is what they hold. Errors: NO_HOST_MEMORY, the driver's; some may be
 * queued then. */
weir_status wr_gather_queue(
    const struct wr_mover *m, const struct wr_move *moves, size_t n, struct wr_move_tally *t);

/* Loads the kernel, so that no later call has to: it may wait for the context's lock. Runs it over no piece. */
weir_status wr_gather_warm_up(const struct wr_mover *m);

extern const struct wr_kernel wr_gather_kernel; /* for its test */

#endif
