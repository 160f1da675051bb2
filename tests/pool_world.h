/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the pool share: a simulated world, a pool on its device 0, streams, stalls. Every call here
 * asserts that it succeeds, unless it says otherwise; and whatever a test is about, closing its world asserts
 * that the oracle is silent, the pool sound, and nothing left behind.
 */
#ifndef WR_POOL_WORLD_H
#define WR_POOL_WORLD_H

#include "device_sim.h"
#include "kernels.h"
#include "pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { WR_WORLD_STREAMS = 64, WR_WORLD_GATES = 64 };

/* Zero in a field means its default. */
struct wr_world_options {
    const char *profile;            /* "gtx1080-pcie3" */
    size_t memory_bytes;            /* per device: the profile's */
    size_t limit_bytes, grow_bytes; /* of the pool: see weir_pool_options */
    weir_pool_options pool;         /* what else is asked of it */
    uint64_t adversary_seed;
    bool reuse_handles, wall_clock;
};

struct wr_world {
    struct wr_sim *sim;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream streams[WR_WORLD_STREAMS];     /* those that are alive */
    struct wr_sim_gate *gates[WR_WORLD_GATES]; /* those that are closed */
    unsigned n_streams, n_gates;
    _Atomic uint64_t mismatches; /* found by wr_world_verify; checked with the rest */
};

void wr_world_open(struct wr_world *w, const struct wr_world_options *o);
/* Opens the gates, lets all work end, closes everything. All blocks must have been freed. */
void wr_world_close(struct wr_world *w);

/* The one world of a program whose tests have one each; WR_IN_WORLD: of no special options. */
extern struct wr_world world;
int wr_world_open_one(void **state);
int wr_world_close_one(void **state);
#define WR_IN_WORLD(test) cmocka_unit_test_setup_teardown(test, wr_world_open_one, wr_world_close_one)

void wr_world_check(struct wr_world *w);                       /* the pool is sound, and the oracle silent */
void wr_world_close_pool(struct wr_world *w, weir_pool *pool); /* its blocks freed, no gate closed */

weir_stream wr_world_stream(struct wr_world *w);
void wr_world_destroy_stream(struct wr_world *w, weir_stream s); /* not announced to the pool */
void wr_world_join(
    struct wr_world *w, weir_stream before, weir_stream after); /* `after` waits for what is queued */

struct wr_sim_gate *wr_world_stall(struct wr_world *w, weir_stream s);
void wr_world_open_gate(struct wr_world *w, struct wr_sim_gate *g);
void wr_world_let_go(struct wr_world *w, struct wr_sim_gate *g); /* opens it, and lets all end that may */

weir_dptr wr_world_alloc(struct wr_world *w, size_t bytes, weir_stream s);
/* 0: the pool says NOT_YET, the one failure that is allowed here. */
weir_dptr wr_world_try_alloc(struct wr_world *w, size_t bytes, weir_stream s);
void wr_world_touch(struct wr_world *w, weir_dptr block, weir_stream s);
void wr_world_free(struct wr_world *w, weir_dptr block, weir_stream s);

/* Kernels. Fill writes the tag all over; peek reads one word as it is now. */
void wr_world_fill(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag);
void wr_world_spin(struct wr_world *w, weir_stream s, uint64_t ns);
/* Declares that it writes the block, or reads it, and takes `ns`; moves no byte. */
void wr_world_write(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint64_t ns);
void wr_world_read(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint64_t ns);
/* Declares the whole block, but moves a word in each 64 KiB, and the last: for blocks of any size. */
void wr_world_mark(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag);
void wr_world_verify(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag);
uint32_t wr_world_peek(struct wr_world *w, weir_dptr block);

weir_stats wr_world_stats(struct wr_world *w); /* live + pending + cached + idle == reserved, always */
struct wr_sim_counts wr_world_counts(struct wr_world *w);

#endif
