/* SPDX-License-Identifier: Apache-2.0
 *
 * Gates: streams on which nothing runs, lent to a stranger who can only say "this stream waits for it". What the
 * stranger queued on a gate holds back the copies that name it in `after`, and nothing else: a gate is lent again
 * only when all that was queued on it has passed.
 */
#include "engine.h"

#include <stdlib.h>

/* LOCK: held. One that is not lent and on which nothing is left. */
static struct wr_gate *find_gate(weir_engine *e)
{
    for (unsigned i = 0; i < e->n_gates; i++) {
        struct wr_gate *g = e->gates[i];
        if (!g->lent && wr_fence_passed(g->copier.fence, g->newest)) return g;
    }
    return NULL;
}

static void poll_gates(weir_engine *e)
{
    wr_lock_take(&e->lock);
    unsigned n = e->n_gates;
    wr_lock_give(&e->lock);
    for (unsigned i = 0; i < n; i++) { /* gates are added, never removed */
        struct wr_gate *g = e->gates[i];
        wr_lock_take(&e->lock);
        uint64_t newest = g->lent ? 0 : g->newest;
        wr_lock_give(&e->lock);
        if (!wr_fence_passed(g->copier.fence, newest)) wr_copy_poll(&g->copier, newest);
    }
}

/* LOCK: not held. */
static weir_status make_gate(weir_engine *e, struct wr_gate **out)
{
    struct wr_gate *g = calloc(1, sizeof *g);
    if (!g) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a gate");
    weir_status s = wr_copy_open(&g->copier, e->pool);
    if (s != WEIR_OK) {
        free(g);
        return s;
    }
    wr_lock_take(&e->lock);
    bool room = e->n_gates < WR_GATES_MOST;
    if (room) e->gates[e->n_gates++] = g;
    g->lent = room;
    wr_lock_give(&e->lock);
    if (room) {
        *out = g;
        return WEIR_OK;
    }
    wr_copy_close(&g->copier);
    free(g);
    return wr_fail(WEIR_WOULD_BLOCK, "all %d gates are lent or waited on", WR_GATES_MOST);
}

weir_status weir_engine_take_gate(weir_engine *e, weir_stream *out)
{
    if (!out) return wr_fail(WEIR_INVALID_ARGUMENT, "the place for the gate is NULL");
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    wr_lock_give(&e->lock);
    poll_gates(e);
    wr_lock_take(&e->lock);
    struct wr_gate *g = find_gate(e);
    if (g) g->lent = true;
    bool full = e->n_gates == WR_GATES_MOST;
    wr_lock_give(&e->lock);
    if (!g && full) s = wr_fail(WEIR_WOULD_BLOCK, "all %d gates are lent or waited on", WR_GATES_MOST);
    if (!g && !full) s = make_gate(e, &g);
    if (s == WEIR_OK) *out = g->copier.stream;
    wr_lock_take(&e->lock);
    return wr_engine_leave(e, s);
}

weir_status weir_engine_give_gate(weir_engine *e, weir_stream gate)
{
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    struct wr_gate *g = NULL;
    for (unsigned i = 0; i < e->n_gates && !g; i++)
        if (e->gates[i]->lent && e->gates[i]->copier.stream == gate) g = e->gates[i];
    wr_lock_give(&e->lock);
    uint64_t stamp = g ? wr_fence_stamp(g->copier.fence) : 0;
    if (g) wr_copy_cover(&g->copier, stamp);
    wr_lock_take(&e->lock);
    if (g) {
        g->newest = stamp;
        g->lent = false;
    }
    if (!g) s = wr_fail(WEIR_INVALID_ARGUMENT, "no gate that is lent");
    return wr_engine_leave(e, s);
}

void wr_gates_fini(weir_engine *e)
{
    for (unsigned i = 0; i < e->n_gates; i++) {
        wr_copy_close(&e->gates[i]->copier);
        free(e->gates[i]);
    }
    e->n_gates = 0;
}
