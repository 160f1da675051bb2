/* SPDX-License-Identifier: Apache-2.0
 *
 * One copy, from the call to its ticket. transfer.c: the call, and what it waits for. locate.c: where its memory lies.
 * stage.c: what goes through slabs.
 */
#ifndef WR_TRANSFER_H
#define WR_TRANSFER_H

#include "engine.h"

enum { WR_TRANSFER_FEW = 64 };

struct wr_transfer {
    weir_engine *engine;
    enum weir_direction direction;
    const weir_copy_options *options;
    struct wr_move *moves; /* those in place, then those that are staged; and as much room again */
    size_t n, n_in_place, bytes, staged_bytes, packed_bytes;
    size_t promised;            /* slabs that it may hold behind `after` */
    const struct wr_link *link; /* ON_DEVICE: to another device */
    bool to_peer;
    struct wr_mark *marks; /* `after`, as far as it has not passed */
    size_t n_marks;
    bool unmapped; /* some of its memory is such that no kernel reaches it */
    struct wr_move few_moves[2 * WR_TRANSFER_FEW];
    struct wr_mark few_marks[WR_TRANSFER_FEW];
};

/* Sorts the moves by where their memory lies. Errors: INVALID_POINTER, INVALID_ARGUMENT, the driver's. */
weir_status wr_locate_moves(struct wr_transfer *t);

/* Where staged moves are queued: one lane; or the source's and then the destination's, of devices that don't reach
 * each other. */
struct wr_route {
    struct wr_lane *lane, *onward; /* onward NULL: the first lane is the whole way */
};

/* Brings the staged moves on their way. *landing names what ends on the host. After an error some may be queued. */
weir_status wr_stage_moves(
    struct wr_transfer *t, const struct wr_route *route, uint64_t *landing, struct wr_move_tally *tally);

/* The most slabs that staging may need. */
size_t wr_stage_slabs(const struct wr_transfer *t);

#endif
