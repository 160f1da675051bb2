/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans: pieces of host memory by address. Finds the piece that holds an address, and the first free piece
 * that is large enough, both in O(log n). Pure: metadata out of band, no locks, no driver. See spans.c.
 */
#ifndef WR_SPANS_H
#define WR_SPANS_H

#include "base.h"

enum wr_span_state {
    WR_SPAN_UNUSED,  /* a spare node */
    WR_SPAN_FREE,    /* can be taken */
    WR_SPAN_LIVE,    /* in the caller's hands */
    WR_SPAN_PENDING, /* given back, still read by a GPU */
};

enum wr_span_order { WR_SPAN_BY_ADDRESS, WR_SPAN_BY_SIZE, WR_SPAN_ORDERS }; /* by size: only what is FREE */

struct wr_span_links {
    uint32_t left, right;
};

struct wr_fence; /* spans only carry it */

struct wr_span {
    uint64_t start, bytes;
    uint64_t asked_bytes; /* of these, what the caller may touch */
    enum wr_span_state state;
    bool first;             /* first of its region: never joined to what lies before it */
    bool whole;             /* not cut from a region: vanishes when given back */
    uint32_t next_pending;  /* the owner's list; 0 ends it */
    uint64_t stamp;         /* PENDING: waits for this point of ... */
    struct wr_fence *fence; /* ... this fence */

    struct wr_span_links links[WR_SPAN_ORDERS]; /* UNUSED: the first left chains the spares */
    uint32_t weight;                            /* a parent's is never less than its children's */
};

/* Ids are indices into `nodes`; 0 is none, and stands for the empty tree. */
struct wr_spans {
    struct wr_span *nodes;
    uint32_t roots[WR_SPAN_ORDERS];
    uint32_t capacity, n_used;
    uint32_t spare; /* the first of them */
    uint32_t draws; /* weights drawn so far */
};

void wr_spans_fini(struct wr_spans *s); /* a zeroed struct is an empty set */

/* Nodes for `more` adds and takes, each of which needs one at most. False: the host is out of memory, nothing
 * changed. */
bool wr_spans_reserve(struct wr_spans *s, uint32_t more);

/* The piece that holds `address`, in any state; 0: none. */
uint32_t wr_spans_find(const struct wr_spans *s, uint64_t address);

/* A region of its own, free as a whole: [start, start + bytes) overlaps nothing that is there. */
uint32_t wr_spans_add_region(struct wr_spans *s, uint64_t start, uint64_t bytes);

/* A live piece of memory that comes from elsewhere and is given back as one. */
uint32_t wr_spans_add_whole(struct wr_spans *s, uint64_t start, uint64_t bytes);

/* Takes `bytes` from the front of the smallest free piece that holds them, the lowest of equals; 0: none
 * does. */
uint32_t wr_spans_take(struct wr_spans *s, uint64_t bytes);

/* Gives a LIVE or PENDING piece back: one cut from a region joins its free neighbours there, a whole one is
 * dropped. */
void wr_spans_give(struct wr_spans *s, uint32_t id);

void wr_spans_check(const struct wr_spans *s); /* all invariants; aborts with the broken one's text */

#endif
