/* SPDX-License-Identifier: Apache-2.0
 *
 * See fence.h for the idea. A tick's life: begun (its number is taken, the event not recorded) -> recorded ->
 * passed, or begun -> failed. The ring holds them in the order of their numbers, without gaps, so that a
 * number finds its tick by subtraction. A begun or failed tick never advances done, whatever its event says:
 * an event that was not recorded for *this* tick still reads as complete from its last round (A05).
 */
#include "fence.h"
#include "captures.h"
#include "edges.h"

#include <sched.h>
#include <stdlib.h>

#ifdef WEIR_FAULTS
void (*wr_fence_before_record)(struct wr_fence *f);
#endif

static const void *this_thread(void)
{
    static _Thread_local char self;
    return &self;
}

/* ---- events ------------------------------------------------------------------------------------------ */

void wr_events_init(struct wr_events *e, struct wr_device *d)
{
    *e = (struct wr_events){.device = d};
    wr_lock_init(&e->lock, WR_RANK_EVENTS);
}

weir_status wr_events_trim(struct wr_events *e)
{
    weir_status s = WEIR_OK;
    wr_lock_take(&e->lock);
    while (s == WEIR_OK && e->n_free > 0) {
        wr_event event = e->free[--e->n_free];
        wr_lock_give(&e->lock);
        s = e->device->ops->event_destroy(e->device, event);
        wr_lock_take(&e->lock);
        if (s == WEIR_OK)
            e->n_created--;
        else
            e->free[e->n_free++] = event; /* its place was kept: see reserve_event */
    }
    wr_lock_give(&e->lock);
    return s;
}

void wr_events_fini(struct wr_events *e)
{
    assert(e->n_free == e->n_created);
    wr_events_trim(e);
    free(e->free);
    wr_lock_fini(&e->lock);
}

/* Room for every event that exists: giving one back can then not fail. */
static bool reserve_event(struct wr_events *e)
{
    if (e->n_created < e->capacity) return true;
    size_t capacity = e->capacity == 0 ? 64 : e->capacity * 2;
    wr_event *events = realloc(e->free, capacity * sizeof *events);
    if (events == NULL) return false;
    e->free = events;
    e->capacity = capacity;
    return true;
}

static weir_status create_event(struct wr_events *e, wr_event *out)
{
    wr_lock_take(&e->lock);
    bool room = reserve_event(e);
    e->n_created += room;
    wr_lock_give(&e->lock);
    if (!room) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an event");

    weir_status s = e->device->ops->event_create(e->device, out);
    if (s == WEIR_OK) return WEIR_OK;
    wr_lock_take(&e->lock);
    e->n_created--;
    wr_lock_give(&e->lock);
    return s;
}

static weir_status take_event(struct wr_events *e, wr_event *out)
{
    wr_lock_take(&e->lock);
    bool found = e->n_free > 0;
    if (found) *out = e->free[--e->n_free];
    wr_lock_give(&e->lock);
    return found ? WEIR_OK : create_event(e, out);
}

static void give_event(struct wr_events *e, wr_event event)
{
    wr_lock_take(&e->lock);
    assert(e->n_free < e->n_created);
    e->free[e->n_free++] = event;
    wr_lock_give(&e->lock);
}

/* ---- the ring, under the lock ------------------------------------------------------------------------ */

static struct wr_tick *tick_at(struct wr_fence *f, uint32_t i)
{
    return &f->ring[(f->head + i) & (f->capacity - 1)];
}

static struct wr_tick *find_tick(struct wr_fence *f, uint64_t number)
{
    if (f->n == 0 || number < tick_at(f, 0)->number) return NULL;
    uint64_t i = number - tick_at(f, 0)->number;
    return i < f->n ? tick_at(f, (uint32_t)i) : NULL;
}

static bool reserve_tick(struct wr_fence *f)
{
    if (f->n < f->capacity) return true;
    uint32_t capacity = f->capacity == 0 ? 16 : f->capacity * 2;
    struct wr_tick *ring = malloc(capacity * sizeof *ring);
    if (ring == NULL) return false;
    for (uint32_t i = 0; i < f->n; i++)
        ring[i] = *tick_at(f, i);
    free(f->ring);
    f->ring = ring;
    f->capacity = capacity;
    f->head = 0;
    return true;
}

static void keep_event(struct wr_fence *f, wr_event event)
{
    if (f->n_spare < WR_FENCE_SPARE)
        f->spare[f->n_spare++] = event;
    else
        give_event(f->events, event);
}

static void give_spares(struct wr_fence *f)
{
    while (f->n_spare > 0)
        give_event(f->events, f->spare[--f->n_spare]);
}

static void pop_oldest(struct wr_fence *f)
{
    keep_event(f, tick_at(f, 0)->event);
    f->head = (f->head + 1) & (f->capacity - 1);
    f->n--;
}

/* The oldest tick that covers the stamp and can be waited for; NULL: none yet. */
static struct wr_tick *find_cover(struct wr_fence *f, uint64_t stamp)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct wr_tick *t = tick_at(f, i);
        if ((t->number >= stamp || WR_FAULT(WAIT_TAKES_OLDER_TICK)) && t->recorded) return t;
    }
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------------- */

void wr_fence_init(struct wr_fence *f)
{
    *f = (struct wr_fence){0};
    wr_lock_init(&f->lock, WR_RANK_FENCE);
}

void wr_fence_open(struct wr_fence *f, struct wr_events *e, weir_stream s, uint64_t id)
{
    wr_lock_take(&f->lock);
    assert(f->n == 0);
    uint64_t enq = atomic_load(&f->enq);
    atomic_store(&f->done, enq);
    f->events = e;
    f->stream = s;
    f->id = id;
    f->owner = s == WR_FENCE_PER_THREAD ? this_thread() : NULL;
    f->retired = false;
    atomic_store(&f->captured, false);
    atomic_store(&f->n_ticks, 0);
    wr_lock_give(&f->lock);
}

void wr_fence_hold(struct wr_fence *f)
{
    atomic_store(&f->captured, true);
}

void wr_fence_release(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    f->retired = true;
    atomic_store(&f->captured, false);
    wr_lock_give(&f->lock);
}

void wr_fence_close(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    while (f->n > 0)
        pop_oldest(f);
    give_spares(f);
    /* One past the last number: a stamp taken after the last tick is over too. */
    uint64_t enq = atomic_fetch_add(&f->enq, 1) + 1;
    atomic_store(&f->done, enq);
    f->retired = true;
    free(f->ring);
    f->ring = NULL;
    f->capacity = f->head = 0;
    wr_lock_give(&f->lock);
}

uint64_t wr_fence_lend(struct wr_fence *f)
{
    uint64_t stamp = wr_fence_stamp(f), lent = atomic_load(&f->lent);
    while (lent < stamp && !atomic_compare_exchange_weak(&f->lent, &lent, stamp)) {
    }
    return stamp;
}

/* ---- ticks ------------------------------------------------------------------------------------------- */

/* The ring is to stay short, though nobody may ask: every so many ticks we do. */
enum { TICKS_MANY = 16 };

struct record_order {
    uint64_t number;
    wr_event event;
    weir_stream stream;
    uint64_t id;
    bool whole_context; /* the stream's handle can't be used by this thread, or by none any more */
};

enum begun { TICK_BEGUN, TICK_LACKS_EVENT, TICK_LACKS_ROOM };

/* Takes the next number. The store to enq comes before the record: see PAIRS in fence.h. */
static enum begun begin_tick(struct wr_fence *f, struct record_order *o)
{
    wr_lock_take(&f->lock);
    enum begun b = !reserve_tick(f) ? TICK_LACKS_ROOM : f->n_spare == 0 ? TICK_LACKS_EVENT : TICK_BEGUN;
    if (b == TICK_BEGUN) {
        o->event = f->spare[--f->n_spare];
        o->number = atomic_load(&f->enq) + 1;
        o->stream = f->stream;
        o->id = f->id;
        o->whole_context = f->retired || (f->owner != NULL && f->owner != this_thread());
        f->n++;
        *tick_at(f, f->n - 1) = (struct wr_tick){.number = o->number, .event = o->event};
        atomic_store(&f->enq, o->number);
    }
    wr_lock_give(&f->lock);
    return b;
}

/* SLOW: until as many events are with the fence as it has ticks under way. */
static weir_status fetch_event_slow(struct wr_fence *f)
{
    wr_event event;
    weir_status s = take_event(f->events, &event);
    if (s != WEIR_OK) return s;
    wr_lock_take(&f->lock);
    keep_event(f, event);
    wr_lock_give(&f->lock);
    return WEIR_OK;
}

/* True: it is time to ask, for nobody else may have. */
static bool end_tick(struct wr_fence *f, uint64_t number, bool recorded)
{
    wr_lock_take(&f->lock);
    struct wr_tick *t = find_tick(f, number);
    if (WR_FAULT(UNRECORDED_IS_DONE) && t == NULL) { /* a poll has taken it for passed */
        wr_lock_give(&f->lock);
        return false;
    }
    assert(t != NULL && !t->recorded);
    t->recorded = recorded;
    t->failed = !recorded;
    bool many = f->n % TICKS_MANY == 0;
    wr_lock_give(&f->lock);
    return many;
}

/* A record on a capturing stream would become part of the graph, and one on a handle that now names another
 * stream, or none, would say nothing about this one (A08): the driver is asked first. What can't be said of
 * the stream is said of the whole context. */
static weir_status record(struct wr_fence *f, const struct record_order *o)
{
    struct wr_device *d = f->events->device;
    struct wr_stream_info info = {0};
    weir_status over = wr_edges_check_device(d); /* the stream may be gone with it: not even to be asked */
    if (over != WEIR_OK) return over;
    bool known = !o->whole_context && d->ops->stream_identify(d, o->stream, &info) == WEIR_OK;
    if (info.capturing) return wr_fail(WEIR_CAPTURING, "stream %llu is capturing", (unsigned long long)o->id);
    bool same = info.id == o->id || WR_FAULT(HANDLE_IS_IDENTITY);
    if (known && same) return d->ops->event_record(d, o->event, o->stream);
    if (wr_captures_any(d))
        return wr_fail(WEIR_CAPTURING, "a stream captures: no event can be recorded on the context");
    return d->ops->event_record_context(d, o->event);
}

weir_status wr_fence_tick(struct wr_fence *f, uint64_t *number)
{
    if (atomic_load(&f->captured) && !WR_FAULT(CAPTURE_MEMORY_REUSED))
        return wr_fail(WEIR_CAPTURING, "memory of a graph stays until the graph is released");
    struct record_order o = {0};
    enum begun b;
    while ((b = begin_tick(f, &o)) == TICK_LACKS_EVENT) {
        weir_status s = fetch_event_slow(f);
        if (s != WEIR_OK) return s;
    }
    if (b == TICK_LACKS_ROOM) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a tick");
#ifdef WEIR_FAULTS
    if (wr_fence_before_record != NULL) wr_fence_before_record(f);
#endif
    weir_status s = record(f, &o);
    bool many = end_tick(f, o.number, s == WEIR_OK || WR_FAULT(FAILED_TICK_COUNTS));
    if (s != WEIR_OK) return s;
    if (many) wr_fence_poll(f);
    atomic_fetch_add_explicit(&f->n_ticks, 1, memory_order_relaxed);
    if (number != NULL) *number = o.number;
    return WEIR_OK;
}

weir_status wr_fence_cover(struct wr_fence *f, uint64_t stamp)
{
    if (wr_fence_passed(f, stamp)) return WEIR_OK;
    if (stamp > atomic_load(&f->enq)) return wr_fence_tick(f, NULL);
    wr_lock_take(&f->lock);
    struct wr_tick *newest = f->n > 0 ? tick_at(f, f->n - 1) : NULL;
    bool covered = newest != NULL && newest->number >= stamp && !newest->failed;
    wr_lock_give(&f->lock);
    return covered ? WEIR_OK : wr_fence_tick(f, NULL);
}

static bool can_be_asked(const struct wr_tick *t)
{
    return t->recorded || (!t->failed && WR_FAULT(UNRECORDED_IS_DONE));
}

/* Of the ticks that are recorded and not known to have passed: the oldest; the newest up to a number. */
static struct wr_tick *oldest_pending(struct wr_fence *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        struct wr_tick *t = tick_at(f, i);
        if (can_be_asked(t) && t->number > atomic_load(&f->done)) return t;
    }
    return NULL;
}

static struct wr_tick *newest_pending(struct wr_fence *f, uint64_t number)
{
    for (uint32_t i = f->n; i-- > 0;) {
        struct wr_tick *t = tick_at(f, i);
        if (t->number <= atomic_load(&f->done)) return NULL;
        if (can_be_asked(t) && t->number <= number) return t;
    }
    return NULL;
}

/* Has it passed? Then all before it have. LOCK: given up for the question. */
static bool ask(struct wr_fence *f, struct wr_tick *t)
{
    struct wr_device *d = f->events->device;
    uint64_t number = t->number;
    wr_event event = t->event;
    bool done = false;
    t->pins++;
    wr_lock_give(&f->lock);
    weir_status s = d->ops->event_query(d, event, &done);
    wr_lock_take(&f->lock);
    find_tick(f, number)->pins--; /* the ring may have moved, but only the polling thread pops */
    bool passed = (s == WEIR_OK && done) || WR_FAULT(POLL_SKIPS_QUERY);
    if (passed) atomic_store_explicit(&f->done, number, memory_order_release);
    return passed;
}

/* One below `pending`: the newest up to `middle`; where none of those can be asked about, the oldest behind it. */
static struct wr_tick *choose_asked(struct wr_fence *f, uint64_t middle, uint64_t pending)
{
    struct wr_tick *t = newest_pending(f, middle);
    if (t == NULL) t = oldest_pending(f);
    return t != NULL && t->number < pending ? t : NULL;
}

/* Most often the oldest is pending still, or all have passed: a question, or two. Else halves are asked for. */
static void advance(struct wr_fence *f)
{
    struct wr_tick *t = oldest_pending(f);
    if (t == NULL || !ask(f, t)) return;
    uint64_t pending = atomic_load(&f->enq) + 1; /* that number has not passed, as far as is known */
    uint64_t middle = pending - 1;
    while ((t = choose_asked(f, middle, pending)) != NULL) {
        uint64_t number = t->number; /* the ring may move */
        if (!ask(f, t)) pending = number;
        uint64_t done = atomic_load(&f->done);
        middle = done + (pending - done) / 2;
    }
}

/* A tick being recorded stays, though a later one has passed: its event is in use. */
static void pop_passed(struct wr_fence *f)
{
    while (f->n > 0) {
        struct wr_tick *t = tick_at(f, 0);
        bool passed = can_be_asked(t) && t->number <= atomic_load(&f->done) && t->pins == 0;
        if (!t->failed && !passed) return;
        pop_oldest(f);
    }
}

bool wr_fence_poll(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    uint64_t before = atomic_load(&f->done);
    if (!f->polling) {
        f->polling = true;
        advance(f);
        pop_passed(f);
        f->polling = false;
    }
    uint64_t after = atomic_load(&f->done);
    wr_lock_give(&f->lock);
    return after != before;
}

void wr_fence_settle(struct wr_fence *f)
{
    wr_fence_poll(f);
    wr_lock_take(&f->lock);
    give_spares(f);
    wr_lock_give(&f->lock);
}

/* SLOW: the stamp has no recorded tick yet (a free's, or one whose tick failed). */
static weir_status wait_on_slow(struct wr_fence *f, weir_stream waiter)
{
    uint64_t number;
    weir_status s = wr_fence_tick(f, &number);
    return s != WEIR_OK ? s : wr_fence_wait_on(f, number, waiter);
}

weir_status wr_fence_wait_on(struct wr_fence *f, uint64_t stamp, weir_stream waiter)
{
    if (wr_fence_passed(f, stamp)) return WEIR_OK;
    wr_lock_take(&f->lock);
    struct wr_tick *t = find_cover(f, stamp);
    uint64_t number = t != NULL ? t->number : 0;
    wr_event event = t != NULL ? t->event : NULL;
    if (t != NULL) t->pins++;
    bool passed = wr_fence_passed(f, stamp);
    wr_lock_give(&f->lock);
    if (t == NULL) return passed ? WEIR_OK : wait_on_slow(f, waiter);

    struct wr_device *d = f->events->device;
    weir_status s = d->ops->stream_wait(d, waiter, event);
    wr_lock_take(&f->lock);
    find_tick(f, number)->pins--; /* pinned: still on the ring */
    wr_lock_give(&f->lock);
    return s;
}

bool wr_fence_captures(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    bool usable = !f->retired && !f->captured && (f->owner == NULL || f->owner == this_thread());
    f->asking += usable;
    wr_lock_give(&f->lock);
    if (!usable) return false;
    struct wr_device *d = f->events->device;
    struct wr_stream_info info = {0};
    bool known = d->ops->stream_identify(d, f->stream, &info) == WEIR_OK;
    wr_lock_take(&f->lock);
    f->asking--;
    wr_lock_give(&f->lock);
    return known && info.capturing;
}

/* ---- ends -------------------------------------------------------------------------------------------- */

/* Or asking: naming the handle to the driver in any way. */
static bool is_recording(struct wr_fence *f, uint64_t up_to)
{
    wr_lock_take(&f->lock);
    bool any = f->asking > 0;
    for (uint32_t i = 0; i < f->n && tick_at(f, i)->number <= up_to; i++)
        any |= !tick_at(f, i)->recorded && !tick_at(f, i)->failed;
    wr_lock_give(&f->lock);
    return any;
}

weir_status wr_fence_retire(struct wr_fence *f)
{
    weir_status s = WR_FAULT(RETIRE_SKIPS_TICK) ? WEIR_OK : wr_fence_tick(f, NULL);
    if (s != WEIR_OK) return s;
    if (WR_FAULT(RETIRE_SKIPS_TICK)) atomic_store(&f->done, wr_fence_stamp(f));
    wr_lock_take(&f->lock);
    f->retired = true;
    uint64_t last = atomic_load(&f->enq);
    wr_lock_give(&f->lock);
    /* Another thread may be about to name the handle, in a tick or a question begun before: the caller is not
     * to destroy the stream under that driver call. The GPU is not waited for. */
    while (is_recording(f, last))
        sched_yield();
    return WEIR_OK;
}

bool wr_fence_is_own_slow(const struct wr_fence *f)
{
    return f->owner == this_thread();
}

bool wr_fence_orphan_if(struct wr_fence *f, weir_stream handle)
{
    wr_lock_take(&f->lock);
    bool orphan = f->stream == handle && !f->retired && !f->captured;
    f->retired |= orphan;
    wr_lock_give(&f->lock);
    return orphan;
}

bool wr_fence_orphan_own(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    bool own = f->owner == this_thread() && !f->retired && !f->captured;
    f->retired |= own;
    wr_lock_give(&f->lock);
    return own;
}

uint64_t wr_fence_id(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    uint64_t id = f->id;
    wr_lock_give(&f->lock);
    return id;
}

bool wr_fence_is_quiet(struct wr_fence *f)
{
    wr_lock_take(&f->lock);
    uint64_t done = atomic_load(&f->done);
    bool quiet = f->n == 0 && done >= atomic_load(&f->enq) && done >= atomic_load(&f->lent);
    wr_lock_give(&f->lock);
    return quiet;
}
