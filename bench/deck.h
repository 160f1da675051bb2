/* SPDX-License-Identifier: Apache-2.0
 *
 * A source cut into batches: some of them held in host memory for timed runs, and the checksums of all, to
 * compare with what comes back from a device.
 */
#ifndef WR_BENCH_DECK_H
#define WR_BENCH_DECK_H

#include "compute.h"
#include "feed.h"
#include "harness.h"
#include "source.h"

struct wr_batch {
    void *pinned, *pageable; /* the same bytes twice */
    size_t bytes;
    uint64_t word_sum; /* of its whole words, as the device sees it */
};

struct wr_deck {
    struct wr_harness *harness;
    struct wr_source *source;
    weir_pool *pool; /* of the pinned copies */
    size_t batch_bytes;
    /* Whole source; the last batch may be shorter. */
    size_t n_all;
    uint64_t *sums;
    /* Held: whole batches, a GiB of them at most; or the only one, however short. */
    size_t n;
    struct wr_batch *batches;
    void *back; /* pinned, for a batch copied back */
};

/* Reads the whole source once. Ends the program on an error. */
void wr_deck_open(
    struct wr_deck *k, struct wr_harness *h, struct wr_source *s, weir_pool *pool, size_t batch_bytes);
void wr_deck_close(struct wr_deck *k);

/* Streams the source from the disk through `f`, copies each batch back behind the step of compute that reads
 * it, and compares. At most `most` batches, spread evenly, the last one among them. Returns how many it
 * checked; ends the program on a difference, and says where. */
size_t wr_deck_check(struct wr_deck *k, struct wr_feed *f, struct wr_compute *c, size_t most);

#endif
