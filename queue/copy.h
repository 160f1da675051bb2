/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies: a stream of the queue's own, and how items get onto it.
 *
 * Copies run in the order in which they were queued, on one stream, and nothing else runs there. So one
 * number tells how far they are: a copy has the stamp that the stream's fence gives right after it was queued
 * (fence.h). A tick that fails loses nothing: its stamp stays pending until a later tick covers it.
 */
#ifndef WR_COPY_H
#define WR_COPY_H

#include "slots.h"
#include "timeline.h"
#include "weir_queue.h"

enum { WR_COPY_LENT_REMEMBERED = 256 };

/* Which pushes lent their spans, and the stamps of the copies that read them. Guarded by the queue's lock. */
struct wr_copy_lent {
    struct {
        uint64_t ticket, stamp;
    } recent[WR_COPY_LENT_REMEMBERED]; /* by ticket modulo their number */
    uint64_t older, newest;            /* the greatest stamp of those no longer in `recent`; of all */
};

struct wr_copier { /* constant from open to close */
    weir_pool *pool;
    struct wr_device *device;
    weir_stream stream;
    struct wr_fence *fence;
    struct wr_timeline *timeline; /* NULL: none */
    bool no_kernels;              /* copy engines alone */
};

/* The pool is held by the caller. */
weir_status wr_copy_open(struct wr_copier *c, weir_pool *pool);
weir_status wr_copy_open_on(
    struct wr_copier *c, weir_pool *pool, struct wr_device *d); /* on another device */
void wr_copy_close(struct wr_copier *c);

/* Memory on the copier's stream, all of whose users will be declared: COMPLETED reuse, whatever the pool's. */
weir_status wr_copy_alloc(const struct wr_copier *c, size_t bytes, weir_dptr *out);

struct wr_origin;

/* What an item is copied from. */
struct wr_gather {
    const weir_span *spans;
    size_t n_spans;
    const unsigned char *in_place; /* for each span: not staged. NULL: none is staged */
    uint64_t ticket, bytes;        /* of the item */
    const struct wr_mark *after;   /* the copy begins behind these */
    size_t n_after;
    bool written_after;             /* the work before these marks may write the staging */
    const struct wr_origin *origin; /* NULL: host memory. Else see fetch.h */
};

/* The copier's stream waits for marks that have not passed: what is queued on it later comes after them. */
weir_status wr_copy_wait_for(const struct wr_copier *c, const struct wr_mark *marks, size_t n);

/* Which spans are read in place (in_place[i] > 0), and how many bytes are staged. Not lent: none, and all. */
weir_status wr_copy_sort(struct wr_copier *c, const weir_span *spans, size_t n_spans, bool lent,
    unsigned char *in_place, size_t *staged);

struct wr_copy_tally {
    uint64_t copies, bytes, reader_waits;
    uint64_t gathers, gathered_bytes, fallbacks; /* as in weir_queue_stats */
    uint64_t peer_staged_bytes;
};

/* Fills the slot, after its marks have passed. *done is the mark of all that was queued, after an error too.
 */
weir_status wr_copy_start(struct wr_copier *c, const struct wr_slot *slot, struct wr_slot *staging,
    const struct wr_gather *g, struct wr_mark *done, struct wr_copy_tally *t);

/* An event stands behind all that was queued up to the stamp `newest`. */
void wr_copy_cover(struct wr_copier *c, uint64_t newest);

/* Asks the driver how far the copies are; `newest` is the last stamp given out. */
void wr_copy_poll(struct wr_copier *c, uint64_t newest);

/* The copies up to `stamp` read what the push of `ticket` has lent. */
void wr_copy_lend(struct wr_copy_lent *l, uint64_t ticket, uint64_t stamp);

/* The stamp that makes a ticket's spans free again; of ticket 0: all. Tickets no longer remembered have that
 * of the newest among them: later than need be, never sooner. */
uint64_t wr_copy_lent_until(const struct wr_copy_lent *l, uint64_t ticket);

#endif
