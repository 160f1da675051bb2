/* SPDX-License-Identifier: Apache-2.0
 *
 * The producers' side: credits, reserve, commit, abort, push. See queue.h.
 */
#include "queue.h"
#include "nvtx.h"

#include <stdlib.h>

enum { SPANS_FEW = 4096, AFTER_FEW = 8 }; /* spans: a byte each, on the stack */

/* ---- giving back (under the lock) -------------------------------------------------------------------- */

static void give_staging(weir_queue *q, struct wr_place *p)
{
    if (p->staging) wr_slots_give(&q->pinned, p->staging);
    p->staging = NULL;
    wr_line_wake(q->producers); /* even with a copy to come: there is something to poll now */
}

void wr_produce_drop(weir_queue *q, struct wr_place *p)
{
    if (p->listed) wr_order_remove(q, p);
    give_staging(q, p);
    wr_queue_give_slot(q, p);
    wr_queue_wake_consumers(q); /* the next item may be READY, or this was the last of a closed queue */
}

/* ---- credits (under the lock) ------------------------------------------------------------------------ */

/* What an item needs: device bytes, and of those how many go through pinned memory. And its key, which may have
 * to be new. */
struct need {
    size_t bytes, staged;
    int64_t key;
    bool new_key;
};

/* LOCK: held, given up while memory of other slots goes back to the pool. Choices stay valid meanwhile: only
 * the caller, at the head of the line, takes slots. */
static struct wr_slots_choice choose_slot(weir_queue *q, struct wr_slots *s, size_t bytes)
{
    struct wr_slots_choice c = wr_slots_choose(s, bytes);
    while (c.what == WR_SLOTS_EVICT) {
        wr_slots_take(s, c.slot, 0);
        wr_lock_give(&q->lock);
        (void)wr_slots_settle(s, c.slot); /* it only drops: no failure */
        wr_lock_take(&q->lock);
        wr_slots_give(s, c.slot);
        c = wr_slots_choose(s, bytes);
    }
    return c;
}

/* What a place would be made of. */
struct offer {
    struct wr_slots_choice slot, staging;
};

/* LATEST: an unread item's slot will do, if nothing else is lacking. */
static void take_unread(weir_queue *q, const struct need *need, struct offer *o)
{
    while (o->slot.what == WR_SLOTS_WAIT && q->sharing == WEIR_CONSUMERS_LATEST) {
        if (need->staged > 0) o->staging = wr_slots_choose(&q->pinned, need->staged);
        if (need->staged > 0 && o->staging.what == WR_SLOTS_WAIT) return;
        if (!wr_order_drop_unread(q)) return;
        o->slot = choose_slot(q, &q->slots, need->bytes);
    }
}

/* What the head of the line lacks. INVARIANT: since that was looked at the lock was not given up, so that no
 * wake-up is lost before the sleep. */
static enum wr_cause look(weir_queue *q, const struct need *need, struct offer *o)
{
    *o = (struct offer){.slot = choose_slot(q, &q->slots, need->bytes)};
    take_unread(q, need, o);
    if (o->slot.what == WR_SLOTS_WAIT) return WR_CAUSE_SLOT;
    if (need->staged > 0) o->staging = choose_slot(q, &q->pinned, need->staged);
    return need->staged > 0 && o->staging.what == WR_SLOTS_WAIT ? WR_CAUSE_PINNED : WR_CAUSE_NOTHING;
}

static struct wr_place *take_place(weir_queue *q, const struct need *need, const struct offer *o)
{
    wr_slots_take(&q->slots, o->slot.slot, o->slot.capacity);
    if (o->staging.slot) wr_slots_take(&q->pinned, o->staging.slot, o->staging.capacity);
    struct wr_place *p = &q->places[o->slot.slot - q->slots.at];
    assert(p->state == WR_PLACE_FREE);
    *p = (struct wr_place){.state = WR_PLACE_TAKEN,
        .ticket = ++q->n_tickets,
        .key = need->key,
        .bytes = need->bytes,
        .slot = o->slot.slot,
        .staging = o->staging.slot,
        .holds = p->holds};
    q->n_used++;
    wr_order_insert(q, p);
    return p;
}

/* At the head of the line. Where the GPU may have brought something back it is asked, once, before we sleep, give up,
 * or take a slot that still drains though another might fit better. Lacking something *out stays NULL, and *polls says
 * whether it is the GPU that may bring it. */
static enum wr_cause try_place(weir_queue *q, const struct need *need, struct wr_place **out, bool *polls)
{
    struct offer o;
    enum wr_cause lacks = look(q, need, &o);
    bool any_will_do = lacks == WR_CAUSE_NOTHING && q->slots.unit;
    if ((o.slot.draining || o.staging.draining) && !any_will_do) {
        if (o.staging.draining) wr_queue_poll_copies(q);
        if (o.slot.draining) wr_queue_poll_readers(q);
        lacks = look(q, need, &o);
    }
    *polls = o.slot.draining || o.staging.draining;
    if (lacks == WR_CAUSE_NOTHING && wr_queue_takes(q)) *out = take_place(q, need, &o);
    return lacks;
}

static weir_status await_place(
    weir_queue *q, const struct need *need, int64_t timeout_ns, struct wr_place **out)
{
    struct wr_waiter me;
    wr_line_join(&q->producers, &me, timeout_ns);
    weir_status s = WEIR_OK;
    for (*out = NULL; s == WEIR_OK;) {
        enum wr_cause lacks = q->producers->cause ? q->producers->cause : WR_CAUSE_SLOT;
        bool polls = false;
        bool in_use = need->new_key && wr_order_has_key(q, need->key);
        if (wr_queue_takes(q) && q->producers == &me && !in_use) lacks = try_place(q, need, out, &polls);
        if (*out) break;
        if (!wr_queue_takes(q))
            s = wr_ends_refuse(q);
        else if (in_use)
            s = wr_fail(WEIR_IN_USE, "an item of key %lld is in the queue", (long long)need->key);
        else
            s = wr_queue_doze(q, &me, lacks, polls);
    }
    wr_queue_leave_line(q, &q->producers, &me);
    return s;
}

/* Takes a place, and memory for it. The place is TAKEN. LOCK: held, given up meanwhile. */
static weir_status reserve(weir_queue *q, const struct need *need, int64_t timeout_ns, struct wr_place **out)
{
    if (need->bytes > q->item_bytes)
        return wr_fail(
            WEIR_TOO_LARGE, "an item of %zu bytes in a queue opened for %zu", need->bytes, q->item_bytes);
    struct wr_place *p;
    weir_status s = await_place(q, need, timeout_ns, &p);
    if (s != WEIR_OK) return s;
    if (!wr_slots_is_settled(p->slot) || (p->staging && !wr_slots_is_settled(p->staging))) {
        wr_lock_give(&q->lock);
        s = wr_slots_settle(&q->slots, p->slot);
        if (s == WEIR_OK && p->staging) s = wr_slots_settle(&q->pinned, p->staging);
        wr_lock_take(&q->lock);
    }
    if (s == WEIR_OK && (q->destroyed || q->poisoned)) s = wr_ends_refuse(q);
    if (s == WEIR_OK)
        *out = p;
    else
        wr_produce_drop(q, p);
    return s;
}

/* ---- what a copy comes after ------------------------------------------------------------------------- */

struct after {
    struct wr_mark few[AFTER_FEW], *marks;
    size_t n;
};

/* What is queued on the streams now. Off the lock. PAIRS: forget_after, also after an error. */
static weir_status mark_after(weir_queue *q, const weir_stream *streams, size_t n, struct after *out)
{
    weir_status s = WEIR_OK;
    out->n = n;
    out->marks = n <= AFTER_FEW ? out->few : calloc(n, sizeof *out->marks);
    if (!out->marks) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a list of %zu streams", n);
    for (size_t i = 0; i < n && s == WEIR_OK; i++)
        s = wr_pool_mark(q->origin.pool, streams[i], &out->marks[i]);
    return s;
}

static bool is_allocated(const struct after *a)
{
    return a->n > AFTER_FEW && a->marks;
}

static void forget_after(struct after *a)
{
    if (is_allocated(a)) free(a->marks);
}

/* ---- producers --------------------------------------------------------------------------------------- */

/* Passes on the status. */
static weir_status abort_item(weir_queue *q, struct wr_place *p, weir_status s)
{
    q->stats.items_aborted++;
    wr_produce_drop(q, p);
    return s;
}

/* Consumers are not to see it, though its copy is on the way. */
static weir_status refuse_item(const weir_queue *q, const struct wr_place *p)
{
    if (p->cancelled)
        return wr_fail(WEIR_STALE_HANDLE, "item %llu was cancelled", (unsigned long long)p->ticket);
    return q->poisoned ? wr_ends_refuse(q) : WEIR_OK;
}

/* COPYING becomes READY, or the item is dropped. LOCK: held, given up meanwhile. */
static weir_status fill(weir_queue *q, struct wr_place *p, struct wr_gather g, struct wr_mark *mark)
{
    struct wr_copy_tally t = {0};
    bool hauls = g.in_place && p->staging, first_gather = q->stats.gathers == 0;
    g.ticket = p->ticket;
    g.bytes = p->bytes;
    wr_diagnose_item(q, p);
    wr_lock_give(&q->lock);
    uint64_t start = wr_diagnose_clock(q);
    weir_status s = wr_copy_start(&q->copier, p->slot, p->staging, &g, mark, &t);
    uint64_t took = wr_diagnose_clock(q) - start;
    wr_lock_take(&q->lock);
    /* Hauls are the host's work; the first gather loads our own kernel; the first copies set the driver up. */
    if (!hauls && !(first_gather && t.gathers) && q->stats.items_delivered > 0) wr_diagnose_call(q, took);
    q->newest_copy = wr_max(q->newest_copy, mark->number);
    q->stats.copies += t.copies;
    q->stats.bytes_copied += t.bytes;
    q->stats.stream_waits_slot += t.reader_waits;
    q->stats.gathers += t.gathers;
    q->stats.gathered_bytes += t.gathered_bytes;
    q->stats.gather_fallbacks += t.fallbacks;
    q->stats.peer_staged_bytes += t.peer_staged_bytes;
    if (p->staging) {
        weir_status added = wr_slots_add_mark(p->staging, *mark);
        assert(added == WEIR_OK); /* its marks are all of one stream */
        (void)added;
    }
    if (s != WEIR_OK) return abort_item(q, p, s); /* the slot keeps the marks of its readers */
    p->slot->n_marks = 0;                         /* they come before the copy now */
    p->copied = *mark;
    s = refuse_item(q, p);
    if (s != WEIR_OK) {
        (void)wr_slots_add_mark(p->slot, *mark); /* the only one: there is room */
        return abort_item(q, p, s);
    }
    give_staging(q, p);
    q->stats.items_pushed++;
    wr_order_commit(q, p);
    return WEIR_OK;
}

weir_status weir_queue_reserve(weir_queue *q, size_t bytes, int64_t timeout_ns, weir_item *item)
{
    return weir_queue_reserve_key(q, 0, bytes, timeout_ns, item);
}

weir_status weir_queue_reserve_key(
    weir_queue *q, int64_t key, size_t bytes, int64_t timeout_ns, weir_item *item)
{
    if (!item || bytes == 0) return wr_fail(WEIR_INVALID_ARGUMENT, "no item to fill, or an item of 0 bytes");
    WR_NVTX_RANGE("reserve", bytes);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->origin.direction != WEIR_TO_DEVICE)
        return wr_queue_leave(
            q, wr_fail(WEIR_INVALID_ARGUMENT, "items of this queue come from device memory: push them"));
    struct wr_place *p;
    s = reserve(q, &(struct need){.bytes = bytes, .staged = bytes, .key = key}, timeout_ns, &p);
    if (s == WEIR_OK) {
        p->state = WR_PLACE_FILLING;
        *item = (weir_item){.ticket = p->ticket,
            .handle = wr_queue_handle(q, p, 0, 0),
            .key = key,
            .bytes = bytes,
            .host = (void *)(uintptr_t)p->staging->address};
    }
    return wr_queue_leave(q, s);
}

static struct wr_place *find_filling(const weir_queue *q, const weir_item *item)
{
    struct wr_place *p = wr_queue_find(q, item);
    return p && p->state == WR_PLACE_FILLING ? p : NULL;
}

/* Nobody is to see an item that is refused, but while work is queued that writes its buffer, a copy behind it is what
 * tells when that is free. LOCK: held, given up meanwhile. */
static weir_status copy_filled(weir_queue *q, struct wr_place *p, const struct after *after)
{
    weir_status s = after->n == 0 ? refuse_item(q, p) : WEIR_OK;
    if (s != WEIR_OK) return abort_item(q, p, s);
    p->state = WR_PLACE_COPYING;
    weir_span whole = {(void *)(uintptr_t)p->staging->address, p->bytes};
    struct wr_mark mark;
    struct wr_gather g = {.spans = &whole,
        .n_spans = 1,
        .after = after->marks,
        .n_after = after->n,
        .written_after = after->n > 0};
    return fill(q, p, g, &mark);
}

/* LOCK: held, given up meanwhile. */
static weir_status commit(weir_queue *q, weir_item *item, const struct after *after)
{
    struct wr_place *p = find_filling(q, item);
    if (!p) return wr_queue_fail_stale(item->ticket, "being filled");
    if (item->bytes == 0 || item->bytes > p->bytes)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%zu bytes committed of %zu reserved", item->bytes, p->bytes);
    p->bytes = item->bytes;
    item->host = NULL; /* the place changes hands, whatever the status */
    return copy_filled(q, p, after);
}

weir_status weir_queue_commit(weir_queue *q, weir_item *item)
{
    return weir_queue_commit_after(q, item, NULL, 0);
}

weir_status weir_queue_commit_after(weir_queue *q, weir_item *item, const weir_stream *after, size_t n_after)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    if (!after && n_after > 0) return wr_fail(WEIR_INVALID_ARGUMENT, "the list of streams is NULL");
    struct after work = {.n = 0};
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (n_after > 0) {
        wr_lock_give(&q->lock);
        s = mark_after(q, after, n_after, &work);
        wr_lock_take(&q->lock);
        q->stats.host_allocations += is_allocated(&work);
    }
    if (s == WEIR_OK) s = commit(q, item, &work);
    s = wr_queue_leave(q, s);
    forget_after(&work);
    return s;
}

weir_status weir_queue_abort(weir_queue *q, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_place *p = find_filling(q, item);
    if (!p) return wr_queue_leave(q, wr_queue_fail_stale(item->ticket, "being filled"));
    item->host = NULL;
    return wr_queue_leave(q, abort_item(q, p, WEIR_OK));
}

/* ---- push -------------------------------------------------------------------------------------------- */

static weir_status sum_spans(const weir_span *spans, size_t n_spans, size_t *out)
{
    size_t sum = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (!spans[i].host && spans[i].bytes > 0)
            return wr_fail(WEIR_INVALID_ARGUMENT, "span %zu has %zu bytes at NULL", i, spans[i].bytes);
        if (__builtin_add_overflow(sum, spans[i].bytes, &sum))
            return wr_fail(WEIR_TOO_LARGE, "the spans' sizes add up to more than SIZE_MAX");
    }
    if (sum == 0) return wr_fail(WEIR_INVALID_ARGUMENT, "the spans hold no byte");
    *out = sum;
    return WEIR_OK;
}

/* LOCK: held, given up meanwhile. */
static weir_status push(weir_queue *q, const struct need *need, const struct wr_gather *g, unsigned flags,
    int64_t timeout_ns, uint64_t *ticket)
{
    struct wr_place *p;
    weir_status s = reserve(q, need, timeout_ns, &p);
    if (s != WEIR_OK) return s;
    uint64_t number = p->ticket;
    struct wr_mark mark;
    p->state = WR_PLACE_COPYING;
    s = fill(q, p, *g, &mark);
    bool reads_in_place = g->origin || need->staged < need->bytes;
    if (reads_in_place) wr_copy_lend(&q->lent, number, mark.number);
    if (s != WEIR_OK) return s;
    if (flags & WEIR_PUSH_BORROW && !g->origin) q->stats.staged_pageable_bytes += need->staged;
    q->stats.borrowed_bytes += g->origin ? need->bytes : need->bytes - need->staged;
    if (ticket) *ticket = number;
    return WEIR_OK;
}

/* How each span travels, and what of the item goes through pinned memory. Off the lock. */
static weir_status sort_spans(weir_queue *q, const weir_span *spans, size_t n_spans, unsigned flags,
    unsigned char *in_place, struct need *need)
{
    bool lent = flags & WEIR_PUSH_BORROW;
    if (q->origin.direction == WEIR_TO_DEVICE)
        return wr_copy_sort(&q->copier, spans, n_spans, lent, in_place, &need->staged);
    if (!lent)
        return wr_fail(
            WEIR_INVALID_ARGUMENT, "device memory is read when its turn comes: lend it, by BORROW");
    need->staged = q->origin.staged ? need->bytes : 0;
    return wr_fetch_check(&q->origin, spans, n_spans);
}

/* LOCK: held, given up meanwhile. */
static weir_status sort_and_push(weir_queue *q, struct need *need, const weir_span *spans, size_t n_spans,
    const weir_push_options *o, uint64_t *ticket)
{
    unsigned char few[SPANS_FEW], *in_place = n_spans <= SPANS_FEW ? few : malloc(n_spans);
    struct after after = {.n = 0};
    weir_status s = in_place
                        ? sort_spans(q, spans, n_spans, o->flags, in_place, need)
                        : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a push of %zu spans", n_spans);
    if (s == WEIR_OK) s = mark_after(q, o->after, o->n_after, &after);
    wr_lock_take(&q->lock);
    q->stats.host_allocations += (in_place != few) + is_allocated(&after);
    struct wr_gather g = {.spans = spans,
        .n_spans = n_spans,
        .in_place = in_place,
        .after = after.marks,
        .n_after = after.n,
        .origin = q->origin.direction == WEIR_TO_DEVICE ? NULL : &q->origin};
    if (s == WEIR_OK) s = push(q, need, &g, o->flags, o->timeout_ns, ticket);
    wr_lock_give(&q->lock);
    forget_after(&after);
    if (in_place != few) free(in_place);
    return s;
}

weir_status wr_produce_push(
    weir_queue *q, const weir_span *spans, size_t n_spans, const weir_push_options *o, uint64_t *ticket)
{
    if (!spans || n_spans == 0 || (o->flags & ~(unsigned)(WEIR_PUSH_BORROW | WEIR_PUSH_NEW_KEY)))
        return wr_fail(WEIR_INVALID_ARGUMENT, "no spans, or unknown flags %#x", o->flags);
    if (!o->after && o->n_after > 0) return wr_fail(WEIR_INVALID_ARGUMENT, "the list of streams is NULL");
    struct need need = {.key = o->key, .new_key = o->flags & WEIR_PUSH_NEW_KEY};
    weir_status s = sum_spans(spans, n_spans, &need.bytes);
    WR_NVTX_RANGE("push", need.bytes);
    if (s == WEIR_OK) s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    wr_lock_give(&q->lock);
    s = sort_and_push(q, &need, spans, n_spans, o, ticket);
    wr_lock_take(&q->lock);
    return wr_queue_leave(q, s);
}

weir_status weir_queue_push(weir_queue *q, const weir_span *spans, size_t n_spans, unsigned flags,
    int64_t timeout_ns, uint64_t *ticket)
{
    const weir_push_options o = {.struct_size = sizeof o, .flags = flags, .timeout_ns = timeout_ns};
    if (flags & WEIR_PUSH_NEW_KEY) return wr_fail(WEIR_INVALID_ARGUMENT, "a push has no key: see put");
    return wr_produce_push(q, spans, n_spans, &o, ticket);
}

weir_status weir_queue_push_after(
    weir_queue *q, const weir_span *spans, size_t n_spans, const weir_push_options *options, uint64_t *ticket)
{
    if (!options || options->struct_size != sizeof *options)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *options);
    return wr_produce_push(q, spans, n_spans, options, ticket);
}
