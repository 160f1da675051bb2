/* SPDX-License-Identifier: Apache-2.0
 *
 * A range: free and taken pieces of an address space, in whole units, with a fence stamp on what is free.
 * Pure: offsets and indices, metadata out of band, no locks, no driver. See range.c.
 */
#ifndef WR_RANGE_H
#define WR_RANGE_H

#include "size.h"
#include "table.h"

enum wr_node_state { WR_NODE_UNUSED, WR_NODE_FREE, WR_NODE_TAKEN, WR_NODE_END };

/* One piece. Ids are indices into range->nodes; 0 is none. Half a cache line. */
struct wr_node {
    uint32_t start;
    uint32_t units : 30, state : 2; /* state: enum wr_node_state */
    uint32_t prev, next;            /* neighbours in address order; prev 0: the first of its extent */
    uint32_t bin_next;              /* FREE: in the bin's list. UNUSED: chains spares. TAKEN: the owner's */
    union {
        uint32_t bin_prev;   /* FREE */
        uint32_t owner_data; /* TAKEN: whatever the owner keeps */
    };
    uint64_t stamp; /* FREE: the fence that covers every part of the piece */
};

struct wr_range {
    struct wr_node *nodes;
    uint32_t n_nodes, capacity, spare, n_spare, promised;
    struct wr_table edges; /* start of an extent -> its first node; end of an extent -> its END node */
    uint64_t free_units, taken_units;
    uint32_t rows; /* bit r: some bin of row r is not empty */
    uint32_t row_bins[WR_BIN_ROWS];
    uint32_t bins[WR_BINS]; /* heads */
};

void wr_range_init(struct wr_range *r);
void wr_range_fini(struct wr_range *r);

/* Makes the next add, remove or take certain to succeed, or all that ever come while there are at most
 * `pieces` pieces. False: the host is out of memory, nothing changed. */
bool wr_range_reserve(struct wr_range *r);
bool wr_range_reserve_pieces(struct wr_range *r, uint32_t pieces);

/* Makes the next take certain to succeed: all that it needs is a node or two. */
bool wr_range_reserve_nodes_slow(struct wr_range *r);
static inline bool wr_range_reserve_split(struct wr_range *r)
{
    enum { NODES = 2 };
    return WR_LIKELY(r->n_spare >= NODES && r->promised == 0) || wr_range_reserve_nodes_slow(r);
}

/* One add that is certain to succeed, whatever is reserved and used meanwhile. False: host out of memory.
 * Kept right before that add, or where it is not wanted any more. */
bool wr_range_promise(struct wr_range *r);
void wr_range_keep(struct wr_range *r);

/* Adds the free extent [start, start + units); it joins what it touches. Disjoint from all that is there. */
void wr_range_add(struct wr_range *r, uint32_t start, uint32_t units, uint64_t stamp);

/* Takes [start, start + units) out of the range altogether; it lies within the free piece `id`. */
void wr_range_remove(struct wr_range *r, uint32_t id, uint32_t start, uint32_t units);

/* A free piece that holds `units`, nearest in size; 0: none. */
uint32_t wr_range_find(const struct wr_range *r, uint32_t units);

/* The same for a block that begins where (start + phase) is a multiple of `align`, a power of two: *at is
 * that start, within the piece. Slow where no near size will do: then it looks at every piece that is smaller
 * than units + align - 1. */
uint32_t wr_range_find_aligned(
    const struct wr_range *r, uint32_t units, uint32_t align, uint32_t phase, uint32_t *at);

/* The free piece that holds the unit at `at`, which is in one; slow, for ranges of few extents. */
uint32_t wr_range_find_at(const struct wr_range *r, uint32_t at);

/* The free piece that begins an extent at `start`, or ends one at `stop`; 0: there is none. */
uint32_t wr_range_free_from(const struct wr_range *r, uint32_t start);
uint32_t wr_range_free_to(const struct wr_range *r, uint32_t stop);

static inline uint32_t wr_range_units(const struct wr_range *r, uint32_t id) /* 0 of none */
{
    return id == 0 ? 0 : r->nodes[id].units;
}

/* Takes `units` from the front of the free piece `id`, which keeps its id; the rest stays free under another.
 */
void wr_range_take(struct wr_range *r, uint32_t id, uint32_t units);

/* Takes [at, at + units) out of the middle of the free piece `id`; what lies before and after stays free.
 * Returns the taken piece's id: `id` itself where nothing lies before. */
uint32_t wr_range_take_at(struct wr_range *r, uint32_t id, uint32_t at, uint32_t units);

/* Frees a taken piece; it joins its free neighbours, and the joint piece gets the latest stamp of its parts.
 */
void wr_range_give(struct wr_range *r, uint32_t id, uint64_t stamp);

/* The free pieces of at least `units`, in no order: start with id 0; 0 ends. The range must not change
 * meanwhile. */
uint32_t wr_range_next_free(const struct wr_range *r, uint32_t id, uint32_t units);

uint32_t wr_range_largest_free(const struct wr_range *r); /* units */

void wr_range_check(const struct wr_range *r); /* all invariants; aborts with the broken one's text */

#endif
