/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots: pieces of memory with a limit on their sum, lent to one item at a time and reused when the GPU has
 * passed the last use. A queue has two sets of them: device memory, and pinned staging memory.
 *
 *   TAKEN      an item's
 *   DRAINING   given back, though some mark on it has not passed
 *   EMPTY      given back, all its marks known to have passed
 *
 * The sets differ in one rule. A draining device slot may be taken: the copy into it waits, on its stream,
 * for the marks. A draining pinned slot may not: the host writes it, and the host does not wait. (Of the slots
 * of a queue to the host, LANDING, the copies write: they may.)
 *
 * Sizes. With `unit` every slot has that capacity, and the limit covers them all. Without, the limit covers
 * fewer large items or more small ones: a slot has its item's size, keeps it for later items that fit, and is
 * allocated anew when it must grow. Then only EMPTY slots change: the old memory of a draining one would
 * still be in use, but counted no more.
 *
 * INVARIANT: the sum of the capacities == used <= limit. Capacity is taken before memory is allocated.
 *
 * LOCK: the queue's lock guards all, but what a taken slot holds (memory, marks) is its taker's. Of an item with
 * its consumers, who may be several, the marks are added under the lock.
 */
#ifndef WR_SLOTS_H
#define WR_SLOTS_H

#include "pool.h"

struct wr_slot {
    uint64_t address; /* of device or host memory; 0: none */
    size_t allocated; /* its bytes */
    size_t capacity;  /* the bytes it counts with; differs from `allocated` only while taken */
    uint64_t given;   /* rises with each give: the longest-draining slot has the least */
    bool taken;
    struct wr_mark *marks; /* at most one for each stream */
    unsigned n_marks, marks_capacity;
};

enum wr_slots_kind {
    WR_SLOTS_DEVICE,
    WR_SLOTS_PINNED,
    WR_SLOTS_LANDING, /* pinned memory that the GPU writes, and the host reads */
};

struct wr_slots {
    struct wr_slot *at;
    unsigned n;
    enum wr_slots_kind kind;
    size_t item_bytes, unit; /* unit 0: sized by item */
    size_t limit, used, peak;
    uint64_t n_given;
    _Atomic uint64_t n_allocated; /* times that memory was asked for */
    weir_pool *pool;
    weir_stream stream; /* the copy stream: home of the memory */
};

/* `limit` is at least item_bytes. NO_HOST_MEMORY. */
weir_status wr_slots_init(
    struct wr_slots *s, enum wr_slots_kind kind, unsigned n, size_t item_bytes, size_t limit);
void wr_slots_fini(struct wr_slots *s); /* all memory dropped */

/* ---- under the queue's lock: decisions, no driver call ----------------------------------------------- */

struct wr_slots_choice {
    enum { WR_SLOTS_WAIT, WR_SLOTS_TAKE, WR_SLOTS_EVICT } what;
    struct wr_slot *slot; /* to take; to evict: its memory must go first to make room */
    size_t capacity;      /* of the slot, once taken */
    bool draining;        /* TAKE: this slot is. WAIT: some slot is, and the GPU alone brings it back */
};

/* Where would an item of `bytes` go now? */
struct wr_slots_choice wr_slots_choose(const struct wr_slots *s, size_t bytes);

/* Takes it, with its capacity counted; wr_slots_settle makes the memory agree. */
void wr_slots_take(struct wr_slots *s, struct wr_slot *slot, size_t capacity);

/* Gives it back, with its marks. Where settling failed, the capacity shrinks to what is allocated. */
void wr_slots_give(struct wr_slots *s, struct wr_slot *slot);

/* The slot's next user must wait for `m`, too. NO_HOST_MEMORY: nothing changed (never for the first mark). */
weir_status wr_slots_add_mark(struct wr_slot *slot, struct wr_mark m);

/* A fence to poll, so that a draining slot may become EMPTY; NULL: taken or EMPTY. */
struct wr_fence *wr_slots_pending(const struct wr_slot *slot);

unsigned wr_slots_in_use(const struct wr_slots *s); /* not EMPTY */
uint64_t wr_slots_grown(const struct wr_slots *s);  /* times that a list of marks grew */

/* ---- by the taker, off the lock ---------------------------------------------------------------------- */

/* Does the memory have the capacity? */
static inline bool wr_slots_is_settled(const struct wr_slot *slot)
{
    return WR_LIKELY(slot->allocated == slot->capacity);
}

/* Allocates, or allocates anew, so that the memory has the capacity. After an error the slot has none. */
weir_status wr_slots_settle(struct wr_slots *s, struct wr_slot *slot);

/* The memory that slot now has serves nobody before the mark has passed, once it is dropped. */
void wr_slots_keep(struct wr_slots *s, struct wr_slot *slot, struct wr_mark until);

/* Gives the memory back to the pool, which keeps it until its marks have passed. */
void wr_slots_drop(struct wr_slots *s, struct wr_slot *slot);

#endif
