/* SPDX-License-Identifier: Apache-2.0
 *
 * What a caller asks to be copied, checked. Pure: no driver call, no lock.
 */
#ifndef WR_PIECES_H
#define WR_PIECES_H

#include "move.h"

/* The pieces as moves, empty ones left out. *n_moves and *bytes on OK only. Errors: INVALID_ARGUMENT, TOO_LARGE,
 * NO_HOST_MEMORY; see weir_copy. */
weir_status wr_pieces_check(
    const weir_piece *pieces, size_t n_pieces, struct wr_move *moves, size_t *n_moves, size_t *bytes);

/* From the first byte of a side to behind its last. */
static inline size_t wr_pieces_extent(const struct wr_move *m, size_t pitch)
{
    return (m->rows - 1) * pitch + m->bytes;
}

#endif
