/* SPDX-License-Identifier: Apache-2.0
 *
 * One copy: weir_copy. What is asked is checked, then where its memory lies, then what it has to wait for; only then
 * is anything queued, so that an error before that copied nothing.
 */
#include "edges.h"
#include "pieces.h"
#include "transfer.h"

#include <stdlib.h>

/* ---- what it waits for ------------------------------------------------------------------------------- */

static weir_status mark_after(struct wr_transfer *t)
{
    for (size_t i = 0; i < t->options->n_after; i++) {
        struct wr_mark mark;
        weir_status s = wr_pool_mark(t->engine->pool, t->options->after[i], &mark);
        if (s != WEIR_OK) return s;
        if (!wr_mark_poll(mark)) t->marks[t->n_marks++] = mark;
    }
    return WEIR_OK;
}

static bool all_passed(struct wr_transfer *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n_marks; i++)
        if (!wr_mark_poll(t->marks[i])) t->marks[kept++] = t->marks[i];
    t->n_marks = kept;
    return kept == 0;
}

/* What is to be staged, and more than the slabs that may stand behind `after`, waits for it here, as long as the
 * caller allows. */
static weir_status await_after(struct wr_transfer *t)
{
    weir_engine *e = t->engine;
    struct wr_waiter me;
    weir_status s = WEIR_OK;
    if (t->staged_bytes == 0 || t->n_marks == 0) return WEIR_OK;
    if (wr_slabs_promise(e, wr_stage_slabs(t))) {
        t->promised = wr_stage_slabs(t);
        return WEIR_OK;
    }
    wr_lock_take(&e->lock);
    wr_line_join(&e->waiters, &me, t->options->timeout_ns);
    for (;;) {
        wr_lock_give(&e->lock);
        bool passed = all_passed(t);
        wr_lock_take(&e->lock);
        if (passed) break;
        s = wr_line_doze(&me, e->device, &e->lock, WR_CAUSE_AFTER, true);
        if (s != WEIR_OK) break;
    }
    wr_line_leave(&e->waiters, &me);
    wr_lock_give(&e->lock);
    return s;
}

static weir_status queue_waits(struct wr_transfer *t, const struct wr_lane *lane)
{
    for (size_t i = 0; i < t->n_marks && !WR_FAULT(COPY_SKIPS_AFTER); i++) {
        weir_status s = wr_mark_wait(t->marks[i], lane->copier.stream);
        if (s != WEIR_OK) return s;
    }
    return WEIR_OK;
}

/* ---- the copy ---------------------------------------------------------------------------------------- */

static weir_status prepare(struct wr_transfer *t, const weir_piece *pieces, size_t n_pieces)
{
    weir_status s = wr_pieces_check(pieces, n_pieces, t->moves, &t->n, &t->bytes);
    if (s != WEIR_OK || t->n == 0) return s;
    s = wr_locate_moves(t);
    if (s != WEIR_OK) return s;
    s = mark_after(t);
    return s == WEIR_OK ? await_after(t) : s;
}

static enum wr_copy_kind kind_of(const struct wr_transfer *t)
{
    if (t->direction == WEIR_TO_DEVICE) return WR_COPY_H2D;
    if (t->direction == WEIR_TO_HOST) return WR_COPY_D2H;
    return t->link ? WR_COPY_PEER : WR_COPY_D2D;
}

/* LOCK: taken. */
static void add_stats(struct wr_transfer *t, const struct wr_move_tally *tally)
{
    weir_engine_stats *stats = &t->engine->stats;
    wr_lock_take(&t->engine->lock);
    stats->copies[t->direction]++;
    stats->bytes[t->direction] += t->bytes;
    stats->direct_bytes += tally->direct_bytes;
    stats->gather_bytes += tally->gather_bytes;
    stats->packed_bytes += t->packed_bytes;
    stats->peer_staged_bytes += t->direction == WEIR_ON_DEVICE ? t->staged_bytes : 0;
    stats->staged_bytes += t->direction == WEIR_ON_DEVICE ? 0 : t->staged_bytes - t->packed_bytes;
    stats->transfers += tally->transfers;
    stats->stream_waits += t->n_marks;
    wr_lock_give(&t->engine->lock);
}

/* Lanes for the route. Onward is not gated itself, but behind one that is. */
static weir_status take_route(struct wr_transfer *t, struct wr_route *r)
{
    weir_engine *e = t->engine;
    bool gated = t->n_marks > 0, urgent = t->options->flags & WEIR_COPY_URGENT;
    if (t->n_in_place > 0 || !t->link)
        return wr_engine_take_lane(e, e->device, t->direction, urgent, gated, &r->lane);
    struct wr_device *from = t->to_peer ? e->device : t->link->device;
    struct wr_device *to = t->to_peer ? t->link->device : e->device;
    weir_status s = wr_engine_take_lane(e, from, WEIR_TO_HOST, urgent, gated, &r->lane);
    if (s != WEIR_OK) return s;
    s = wr_engine_take_lane(e, to, WEIR_TO_DEVICE, urgent, gated, &r->onward);
    if (s != WEIR_OK) wr_engine_release_lane(e, r->lane, gated, false);
    return s;
}

/* After an error the ticket tells of what was queued before it. */
static weir_status run(struct wr_transfer *t, weir_ticket *ticket)
{
    weir_engine *e = t->engine;
    struct wr_move_tally tally = {0};
    struct wr_route route = {0};
    uint64_t landing = 0;
    bool gated = t->n_marks > 0;
    weir_status s = take_route(t, &route);
    if (s != WEIR_OK) return s;
    struct wr_mover mover = wr_engine_mover(e, route.lane);
    mover.urgent = t->options->flags & WEIR_COPY_URGENT;
    if (t->unmapped || t->link) mover.ways = NULL;
    s = queue_waits(t, route.lane);
    if (s == WEIR_OK) s = wr_move_queue(&mover, kind_of(t), t->moves, t->n_in_place, &tally);
    if (s == WEIR_OK) s = wr_stage_moves(t, &route, &landing, &tally);
    bool launched = tally.gather_bytes > 0;
    uint64_t stamp = wr_engine_release_lane(e, route.lane, gated, launched);
    struct wr_lane *last = route.lane;
    if (route.onward) {
        last = route.onward;
        stamp = wr_engine_release_lane(e, last, gated, launched);
    }
    add_stats(t, &tally);
    *ticket = (weir_ticket){last->number, stamp, landing};
    return s;
}

static weir_status make_room(struct wr_transfer *t, size_t n_pieces)
{
    t->moves = n_pieces <= WR_TRANSFER_FEW ? t->few_moves : calloc(n_pieces, 2 * sizeof *t->moves);
    t->marks =
        t->options->n_after <= WR_TRANSFER_FEW ? t->few_marks : calloc(t->options->n_after, sizeof *t->marks);
    if (t->moves && t->marks) return WEIR_OK;
    return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a copy of %zu pieces", n_pieces);
}

static void give_room(struct wr_transfer *t)
{
    if (t->moves != t->few_moves) free(t->moves);
    if (t->marks != t->few_marks) free(t->marks);
}

static weir_status check_arguments(
    weir_direction direction, const weir_piece *pieces, size_t n_pieces, const weir_copy_options *o)
{
    if ((unsigned)direction > WEIR_ON_DEVICE)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no direction %d", (int)direction);
    if (!pieces && n_pieces > 0) return wr_fail(WEIR_INVALID_ARGUMENT, "the pieces are NULL");
    const unsigned known = WEIR_COPY_URGENT | WEIR_COPY_IN_PLACE | WEIR_COPY_DURING_CALL;
    if (o->struct_size != sizeof *o || (o->flags & ~known))
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "options with struct_size = %zu and known flags are needed", sizeof *o);
    if ((o->flags & WEIR_COPY_DURING_CALL) &&
        (direction != WEIR_TO_DEVICE || (o->flags & WEIR_COPY_IN_PLACE)))
        return wr_fail(WEIR_INVALID_ARGUMENT, "DURING_CALL is for copies to a device, and not with IN_PLACE");
    if (!o->after && o->n_after > 0) return wr_fail(WEIR_INVALID_ARGUMENT, "the list of streams is NULL");
    return WEIR_OK;
}

weir_status weir_copy(weir_engine *e, weir_direction direction, const weir_piece *pieces, size_t n_pieces,
    const weir_copy_options *options, weir_ticket *ticket)
{
    const weir_copy_options defaults = {.struct_size = sizeof defaults};
    struct wr_transfer t = {.engine = e, .direction = direction, .options = options ? options : &defaults};
    weir_ticket made = {0};
    weir_status s = check_arguments(direction, pieces, n_pieces, t.options);
    if (s == WEIR_OK) s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    wr_lock_give(&e->lock);
    s = make_room(&t, n_pieces);
    if (s == WEIR_OK) s = prepare(&t, pieces, n_pieces);
    if (s == WEIR_OK && t.n > 0) s = run(&t, &made);
    wr_slabs_unpromise(e, t.promised);
    give_room(&t);
    if (ticket && (s == WEIR_OK || made.lane > 0)) *ticket = made;
    wr_lock_take(&e->lock);
    return wr_engine_leave(e, s);
}
