/* SPDX-License-Identifier: Apache-2.0
 *
 * The transfer engine from inside. engine.c: its life, lanes and tickets. slabs.c: pinned memory that pageable
 * copies go through. transfer.c: one copy. peers.c: links to other devices. gates.c: streams
 * for the waits of strangers. ways.c: what small pieces cost.
 * Beneath: move.c queues, gather.c is the kernel, crew.c copies on the host, pieces.c checks.
 *
 * LANES. A lane is a stream of the engine's own. Copies of one lane run one after the other, so a copy that waits
 * for the work named in `after` would hold up those behind it. So a lane on which a copy waits is BLOCKED until
 * that copy has passed, and takes no other; a kernel needs room beside what computes, so a launch blocks its lane,
 * too. A copy gets a lane that is not blocked, made where there is none. Lanes go by
 * device, direction and urgency: copy engines know no priorities, but take turns between streams, chunk by chunk.
 * With WR_LANES_OF_A_KIND of them blocked, a copy takes the one that the fewest calls use.
 *
 * SLABS. FREE -> TAKEN (a call's) -> COPYING -> FREE, or -> LANDING -> FREE: the bytes are on their way from the
 * device, and must then be hauled to where they belong. Any call of the engine does that for any other, so no
 * thread of the engine's is needed. Copies behind `after` may hold half of the slabs at most: the other half comes
 * back as fast as copies run.
 *
 * LOCK: one lock guards the engine. No driver call, no call of the pool and no haul under it. A TAKEN slab and a
 * lane's users are their call's.
 *
 * ENDS, as of the queue: calls are counted in, the last one out of a closed engine tears it down, and the struct
 * stays for ever.
 */
#ifndef WR_ENGINE_H
#define WR_ENGINE_H

#include "copy.h"
#include "crew.h"
#include "line.h"
#include "move.h"

enum {
    WR_LANES_MOST = 64,
    WR_LANES_OF_A_KIND = 8,
    WR_LINKS_MOST = 16,
    WR_GATES_MOST = 32,
    WR_SLAB_PARTS = 1024
};

struct wr_lane {
    struct wr_copier copier; /* constant: stream, fence, device */
    unsigned number;         /* from 1 */
    enum weir_direction direction;
    bool urgent;
    unsigned users, gated_users; /* calls that queue on it now; gated: some of them wait for `after` */
    uint64_t newest, blocked; /* stamps: of the last copy; of the last that waited for `after` or a launch */
};

/* A copy to pageable memory that is not all there yet. */
struct wr_landing {
    struct wr_landing *next;
    uint64_t number;
    unsigned slabs;
    bool complete; /* no slab will be added */
};

enum wr_slab_state { WR_SLAB_FREE, WR_SLAB_TAKEN, WR_SLAB_COPYING, WR_SLAB_LANDING };

struct wr_slab {
    enum wr_slab_state state;
    char *memory;
    bool gated;
    struct wr_mark until; /* COPYING, LANDING: its copies */
    struct wr_landing *landing;
    size_t used, n; /* bytes; parts */
    struct wr_haul hauls[WR_SLAB_PARTS];
    struct wr_move moves[WR_SLAB_PARTS];
};

struct wr_link {
    struct wr_device *device;
    bool direct;
};

struct wr_gate {
    struct wr_copier copier; /* constant */
    bool lent;
    uint64_t newest; /* stamp of all that was queued when it last came back */
};

struct weir_engine {
    struct wr_lock lock; /* guards all below but the constants */
    struct weir_engine *next_shell;

    weir_pool *pool; /* constant from open to the end, down to ways */
    struct wr_device *device;
    size_t chunk_bytes;
    unsigned slabs_most;
    bool kernels;
    struct wr_copier home; /* nothing runs there */
    struct wr_ways ways;

    unsigned inside; /* calls */
    bool closed, torn_down;
    _Atomic unsigned n_lanes; /* written under the lock; lanes are added, never removed */
    struct wr_lane *lanes[WR_LANES_MOST];
    unsigned n_slabs, n_making; /* allocated; being allocated */
    struct wr_slab **slabs;     /* slabs_most places */
    size_t promised;            /* slabs */
    struct wr_landing *landings;
    uint64_t n_landings;
    unsigned n_links;
    struct wr_link links[WR_LINKS_MOST];
    unsigned n_gates;
    struct wr_gate *gates[WR_GATES_MOST];
    struct wr_waiter *waiters;
    weir_engine_stats stats; /* the counters in it */
};

/* Calls in and out. LOCK: enter takes it on OK, leave gives it and passes on the status. */
weir_status wr_engine_enter(weir_engine *e);
weir_status wr_engine_leave(weir_engine *e, weir_status s);

/* A lane to queue on, in use until released. `gated`: it will wait for `after`.
 * LOCK: not held. */
weir_status wr_engine_take_lane(weir_engine *e, struct wr_device *d, enum weir_direction direction,
    bool urgent, bool gated, struct wr_lane **out);
uint64_t wr_engine_release_lane(
    weir_engine *e, struct wr_lane *lane, bool gated, bool launched); /* the stamp of all of it */

struct wr_mover wr_engine_mover(const weir_engine *e, const struct wr_lane *lane);
void wr_engine_poll_lanes(weir_engine *e);                                    /* LOCK: not held */
const struct wr_link *wr_engine_find_link(const weir_engine *e, int ordinal); /* NULL: none. LOCK: held */

/* ---- slabs.c (LOCK: not held) ------------------------------------------------------------------------ */

/* May a copy hold `n` slabs behind `after`? PAIRS: unpromise, once it is queued. */
bool wr_slabs_promise(weir_engine *e, size_t n);
void wr_slabs_unpromise(weir_engine *e, size_t n);

/* A slab that is free, or can be made; NULL: none. */
weir_status wr_slabs_try(weir_engine *e, bool gated, struct wr_slab **out);
/* A slab, waited for if need be: only for copies that nothing holds up. */
weir_status wr_slabs_take(weir_engine *e, bool gated, struct wr_slab **out);
/* Its copies are queued on the lane: FREE once they have passed; with a landing, once its hauls are done. */
void wr_slabs_give(weir_engine *e, struct wr_slab *slab, struct wr_lane *lane, struct wr_landing *landing);

/* Hauls what has arrived to where it belongs. True if there was something. */
bool wr_slabs_land(weir_engine *e);
bool wr_slabs_landed(const weir_engine *e, uint64_t number); /* LOCK: held */
weir_status wr_slabs_open_landing(weir_engine *e, struct wr_landing **out, uint64_t *number);
void wr_slabs_complete_landing(weir_engine *e, struct wr_landing *l);
void wr_slabs_fini(weir_engine *e);

/* ---- gates.c ----------------------------------------------------------------------------------------- */

void wr_gates_fini(weir_engine *e);

/* ---- ways.c ------------------------------------------------------------------------------------------ */

/* Measures, on an idle engine. What can't be measured keeps a guess. */
void wr_ways_measure(weir_engine *e);

#endif
