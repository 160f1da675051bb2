/* SPDX-License-Identifier: Apache-2.0
 *
 * Notes: streams that an adapter remembers for a block until it is freed, where its framework names them in
 * one call and frees in another. A block without notes costs its free one load.
 */
#ifndef WR_NOTES_H
#define WR_NOTES_H

#include "base.h"

enum { WR_NOTES_ROWS = 256 };

struct wr_note {
    struct wr_note *next;
    weir_dptr block;
    weir_stream stream;
};

struct wr_notes {
    _Atomic size_t n;
    struct wr_lock lock; /* guards the rows */
    struct wr_note *rows[WR_NOTES_ROWS];
};

#define WR_NOTES_INIT                                                                                        \
    {                                                                                                        \
        .lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = WR_RANK_REGISTRY }                              \
    }

/* Notes a stream of the block; one that is noted already is left. NO_HOST_MEMORY; CLOSED, AFTER_FORK. */
weir_status wr_notes_add(struct wr_notes *n, weir_dptr block, weir_stream s);

/* Takes the notes of the block out, in the order in which they were made; the caller's, to free one by one or to
 * declare. NULL: it has none. */
struct wr_note *wr_notes_take_slow(struct wr_notes *n, weir_dptr block);

static inline struct wr_note *wr_notes_take(struct wr_notes *n, weir_dptr block)
{
    bool any = atomic_load_explicit(&n->n, memory_order_acquire) != 0;
    return WR_UNLIKELY(any) ? wr_notes_take_slow(n, block) : NULL;
}

/* Declares the work that the noted streams have queued by now, but for the one that the block is freed on, and frees
 * the notes. Errors: those of weir_touch, of any of them. */
weir_status wr_notes_declare(struct wr_note *notes, weir_pool *pool, weir_stream freed_on);

#endif
