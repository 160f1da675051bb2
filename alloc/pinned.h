/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned host memory: one jemalloc arena per device of the process, over huge pages registered with the
 * driver. See pinned.c for why nothing is ever unregistered.
 */
#ifndef WR_PINNED_H
#define WR_PINNED_H

#include "fence.h"

struct wr_pinned;

struct wr_pinned_stats {
    uint64_t reserved_bytes, live_bytes, pending_bytes;
};

/* The device's arena, made at first use. */
weir_status wr_pinned_get(struct wr_device *d, struct wr_pinned **out);

/* From what is free, else from the system. Frees nothing of its own accord: reap first. 0 bytes give NULL.
 * Errors: TOO_LARGE (more than the machine has), NO_HOST_MEMORY, those of host_register. */
weir_status wr_pinned_alloc(struct wr_pinned *p, size_t bytes, void **out);

/* Frees a block once `fence` has passed `stamp`; fence NULL: at once. Polls nothing: see reap.
 * INVALID_POINTER where `host` is not the start of a live block. The fence must outlive the block's pending
 * time (pool.c keeps it). */
weir_status wr_pinned_free(struct wr_pinned *p, void *host, struct wr_fence *fence, uint64_t stamp);

/* Frees what has passed (fences must have been polled). Returns the bytes freed. */
uint64_t wr_pinned_reap(struct wr_pinned *p);

/* Is the whole span inside memory of this arena, in the caller's hands? */
bool wr_pinned_owns(struct wr_pinned *p, const void *host, size_t bytes);

void wr_pinned_get_stats(struct wr_pinned *p, struct wr_pinned_stats *out);

/* For tests: every structure's invariants. Aborts with the broken one's name. */
void wr_pinned_check(struct wr_pinned *p);

#endif
