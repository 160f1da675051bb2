/* SPDX-License-Identifier: Apache-2.0
 *
 * Items whose spans lie in device memory: on their way into pinned memory, or into a slot of this or of another
 * device. See weir_queue_options.direction.
 *
 * All copies end on the queue's copy stream, so that its stamps tell of them. Between devices that don't reach each
 * other an item goes through its pinned staging: a stream of the source's device, the HOP, fills that chunk by
 * chunk, and the copy stream waits for each chunk and takes it on.
 */
#ifndef WR_FETCH_H
#define WR_FETCH_H

#include "copy.h"

struct wr_origin { /* constant from open to the end */
    weir_direction direction;
    weir_pool *pool; /* of the device that the spans are of, and the streams that write them */
    struct wr_device *device;
    bool peer, staged;    /* another device than the queue's; and no direct way from there */
    struct wr_copier hop; /* staged */
};

/* Holds the pool. `source` NULL: the queue's own, `own`. Between devices a pattern is copied both ways, to see
 * whether that works. */
weir_status wr_fetch_open(struct wr_origin *o, weir_direction direction, weir_pool *own, weir_pool *source);
void wr_fetch_close(struct wr_origin *o);

/* Are they all device memory of the origin? Errors: INVALID_POINTER, INVALID_ARGUMENT, the driver's. */
weir_status wr_fetch_check(const struct wr_origin *o, const weir_span *spans, size_t n_spans);

/* Queues the copies to `to`, on a copy stream that has waited for `after`: `staging` is there where the origin is
 * staged. After an error the copy stream is behind all that was queued; should that be impossible, the staging's
 * memory stays with nobody. */
weir_status wr_fetch_queue(struct wr_copier *c, const struct wr_origin *o, uint64_t to,
    struct wr_slot *staging, const struct wr_gather *g, struct wr_copy_tally *t);

#endif
