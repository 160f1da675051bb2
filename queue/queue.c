/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue's life, its lock and its lines. See queue.h.
 */
#include "queue.h"
#include "edges.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS_DEFAULT = 2, ITEMS_MOST = 1024, PINNED_PER_ITEM = 4 };

/* LOCK: guards the list of all queues ever opened. It keeps them reachable, for leak checkers. */
static struct wr_lock shells_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static _Atomic(struct weir_queue *) shells;
static uint32_t n_shells;

/* ---- calls in and out -------------------------------------------------------------------------------- */

/* LOCK: taken on OK. PAIRS: leave. On a lost device, too: for destroy. */
static weir_status enter_lost_or_not(weir_queue *q)
{
    if (!q) return wr_fail(WEIR_INVALID_ARGUMENT, "the queue is NULL");
    weir_status over =
        wr_edges_check(); /* before the lock: in a forked child nobody may be left to give it */
    if (over != WEIR_OK) return over;
    wr_lock_take(&q->lock);
    bool destroyed = q->destroyed;
    q->inside += !destroyed;
    if (!destroyed) return WEIR_OK;
    wr_lock_give(&q->lock);
    return wr_fail(WEIR_CLOSED, "the queue is destroyed");
}

/* LOCK: taken on OK. PAIRS: leave. */
weir_status wr_queue_enter(weir_queue *q)
{
    weir_status s = enter_lost_or_not(q);
    if (s != WEIR_OK) return s;
    s = wr_edges_check_device(q->device);
    if (s == WEIR_OK) s = wr_edges_check_device(q->origin.device);
    return s == WEIR_OK ? WEIR_OK : wr_queue_leave(q, s);
}

static void tear_down(weir_queue *q);

/* LOCK: gives it. Passes on the status of the call. */
weir_status wr_queue_leave(weir_queue *q, weir_status s)
{
    assert(q->inside > 0);
    wr_bell_update(q);
    bool last = --q->inside == 0 && q->destroyed;
    wr_lock_give(&q->lock);
    if (last) tear_down(q);
    return s;
}

/* ---- what the sides share (under the lock) ----------------------------------------------------------- */

enum { PLACE_BITS = 10, GENERATION_BITS = 24 };

uint64_t wr_queue_handle(const weir_queue *q, const struct wr_place *p, unsigned hold, uint32_t generation)
{
    const uint64_t mask = ((uint64_t)1 << GENERATION_BITS) - 1;
    uint64_t place = (uint64_t)(p - q->places),
             high = (q->serial & mask) << GENERATION_BITS | (generation & mask);
    return (high << PLACE_BITS | place) * WR_QUEUE_HOLDS + hold;
}

struct wr_place *wr_queue_find(const weir_queue *q, const weir_item *item)
{
    uint64_t place = item->handle / WR_QUEUE_HOLDS % (1u << PLACE_BITS);
    if (place >= q->slots.n) return NULL;
    struct wr_place *p = &q->places[place];
    uint64_t serial_of = (uint64_t)1 << (64 - GENERATION_BITS);
    bool ours = item->handle / serial_of == wr_queue_handle(q, p, 0, 0) / serial_of;
    return ours && p->ticket == item->ticket ? p : NULL;
}

weir_status wr_queue_fail_stale(uint64_t ticket, const char *what)
{
    return wr_fail(WEIR_STALE_HANDLE, "item %llu is not %s (any more)", (unsigned long long)ticket, what);
}

void wr_queue_give_slot(weir_queue *q, struct wr_place *p)
{
    assert(p->n_holds == 0 && !p->listed);
    wr_slots_give(&q->slots, p->slot);
    *p = (struct wr_place){.state = WR_PLACE_FREE, .holds = p->holds};
    q->n_used--;
    wr_line_wake(q->producers);
    if (q->n_used == 0) wr_line_wake_all(q->idlers);
}

void wr_queue_wake_consumers(weir_queue *q)
{
    if (wr_queue_wants_differ(q))
        wr_line_wake_all(q->consumers);
    else
        wr_line_wake(q->consumers);
}

void wr_queue_wake_all(weir_queue *q)
{
    wr_line_wake_all(q->producers);
    wr_line_wake_all(q->consumers);
    wr_line_wake_all(q->lenders);
    wr_line_wake_all(q->idlers);
}

/* ---- asking the GPU (LOCK: held, given up for each question) ----------------------------------------- */

void wr_queue_poll_copies(weir_queue *q)
{
    uint64_t newest = q->newest_copy;
    wr_lock_give(&q->lock);
    if (q->origin.staged) wr_copy_poll(&q->origin.hop, wr_fence_stamp(q->origin.hop.fence));
    wr_copy_poll(&q->copier, newest);
    wr_lock_take(&q->lock);
}

/* The copy stream is among them: of items that nobody read. A slot whose first mark has passed may have more. */
void wr_queue_poll_readers(weir_queue *q)
{
    const struct wr_fence *last = NULL;
    for (unsigned i = 0; i < q->slots.n; i++) {
        struct wr_fence *f;
        while ((f = wr_slots_pending(&q->slots.at[i])) && f != last) {
            last = f;
            if (f == q->copier.fence) { /* its last tick may have failed */
                wr_queue_poll_copies(q);
                continue;
            }
            wr_lock_give(&q->lock);
            wr_fence_poll(f);
            wr_lock_take(&q->lock);
        }
    }
}

/* ---- waiting (under the lock) ------------------------------------------------------------------------ */

weir_status wr_queue_doze(weir_queue *q, struct wr_waiter *w, enum wr_cause cause, bool polls)
{
    return wr_line_doze(w, q->device, &q->lock, cause, polls);
}

static void add_cause(weir_queue_stats *s, enum wr_cause cause, uint64_t waited)
{
    s->wait_slot_ns += cause == WR_CAUSE_SLOT ? waited : 0;
    s->wait_pinned_ns += cause == WR_CAUSE_PINNED ? waited : 0;
    s->wait_turn_ns += cause == WR_CAUSE_TURN ? waited : 0;
    s->waits_turn += cause == WR_CAUSE_TURN;
    s->waits_borrowed += cause == WR_CAUSE_COPY;
    s->wait_borrowed_ns += cause == WR_CAUSE_COPY ? waited : 0;
    s->waits_idle += cause == WR_CAUSE_IDLE;
    s->wait_idle_ns += cause == WR_CAUSE_IDLE ? waited : 0;
}

void wr_queue_leave_line(weir_queue *q, struct wr_waiter **line, struct wr_waiter *w)
{
    uint64_t waited = w->cause == WR_CAUSE_NOTHING ? 0 : q->device->ops->now_ns(q->device) - w->since;
    bool slot = w->cause == WR_CAUSE_SLOT, pinned = w->cause == WR_CAUSE_PINNED,
         item = w->cause == WR_CAUSE_ITEM || w->cause == WR_CAUSE_TURN, copy = w->cause == WR_CAUSE_TRANSFER;
    q->stats.producer_waits_slot += slot;
    q->stats.producer_waits_pinned += pinned;
    q->stats.consumer_waits_item += item;
    q->stats.consumer_waits_copy += copy;
    if (slot || pinned) q->stats.producer_wait_ns += waited;
    if (item || copy) q->stats.consumer_wait_ns += waited;
    add_cause(&q->stats, w->cause, waited);
    wr_line_leave(line, w);
}

/* ---- open and destroy -------------------------------------------------------------------------------- */

static weir_status check_kinds(const weir_queue_options *o, unsigned items)
{
    if ((unsigned)o->order > WEIR_ORDER_PRIORITY || (unsigned)o->consumers > WEIR_CONSUMERS_LATEST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no order %d, or no consumers %d", o->order, o->consumers);
    if (o->consumers >= WEIR_CONSUMERS_BROADCAST && o->order != WEIR_ORDER_FIFO)
        return wr_fail(WEIR_INVALID_ARGUMENT, "BROADCAST and LATEST are for items in the order of reserve");
    if (o->high_items > items || o->low_items > (o->high_items ? o->high_items : items))
        return wr_fail(WEIR_INVALID_ARGUMENT, "watermarks must be low <= high <= %u items", items);
    return WEIR_OK;
}

/* A caller compiled with an older header knows fewer fields. */
static weir_status copy_options(weir_queue_options *to, const weir_queue_options *from)
{
    if (!from || from->struct_size < sizeof from->struct_size || from->struct_size > sizeof *from)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *from);
    *to = (weir_queue_options){0};
    memcpy(to, from, from->struct_size);
    return WEIR_OK;
}

static weir_status check_options(const weir_queue_options *o)
{
    if (o->item_bytes == 0 || o->items > ITEMS_MOST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "item_bytes must be given, and items be 1 to %d", ITEMS_MOST);
    size_t sum, items = o->items ? o->items : ITEMS_DEFAULT;
    if (__builtin_mul_overflow(items, o->item_bytes, &sum) || sum > SIZE_MAX / 2)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%zu items of %zu bytes are no size", items, o->item_bytes);
    if ((o->device_bytes && o->device_bytes < o->item_bytes) ||
        (o->pinned_bytes && o->pinned_bytes < o->item_bytes))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a limit below one item of %zu bytes", o->item_bytes);
    if (o->flags & ~(unsigned)WEIR_QUEUE_NO_KERNELS)
        return wr_fail(WEIR_INVALID_ARGUMENT, "unknown flags %#x", o->flags);
    return check_kinds(o, (unsigned)items);
}

/* An option that would do nothing is refused. */
static weir_status check_direction(const weir_queue_options *o)
{
    if ((unsigned)o->direction > WEIR_ON_DEVICE)
        return wr_fail(WEIR_INVALID_ARGUMENT, "no direction %d", (int)o->direction);
    if (o->source && o->direction != WEIR_ON_DEVICE)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a source's pool is for ON_DEVICE");
    if (o->device_bytes && o->direction == WEIR_TO_HOST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a queue to the host has no device memory to limit");
    return WEIR_OK;
}

static weir_status make_places(weir_queue *q, unsigned items)
{
    q->places = calloc(items, sizeof *q->places);
    q->holds = calloc((size_t)items * WR_QUEUE_HOLDS, sizeof *q->holds);
    if (!q->places || !q->holds) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %u items", items);
    for (unsigned i = 0; i < items; i++)
        q->places[i].holds = &q->holds[(size_t)i * WR_QUEUE_HOLDS];
    return WEIR_OK;
}

/* More pinned slots than items serve a host that is far ahead: of slots refilled while their readers run. */
static weir_status make_slots(weir_queue *q, const weir_queue_options *o)
{
    unsigned items = o->items ? o->items : ITEMS_DEFAULT;
    size_t product = items * o->item_bytes;
    size_t pinned = o->pinned_bytes ? o->pinned_bytes : product;
    unsigned n_pinned = (unsigned)wr_max(items, wr_min(pinned / o->item_bytes, items * PINNED_PER_ITEM));
    q->item_bytes = o->item_bytes;
    q->kind = o->order;
    q->sharing = o->consumers;
    q->high = o->high_items ? o->high_items : items;
    q->low = o->low_items ? o->low_items : q->high;
    bool lands = o->direction == WEIR_TO_HOST;
    size_t limit = lands ? pinned : o->device_bytes ? o->device_bytes : product;
    enum wr_slots_kind kind = lands ? WR_SLOTS_LANDING : WR_SLOTS_DEVICE;
    weir_status s = wr_slots_init(&q->slots, kind, items, o->item_bytes, limit);
    if (s == WEIR_OK) s = wr_slots_init(&q->pinned, WR_SLOTS_PINNED, n_pinned, o->item_bytes, pinned);
    if (s == WEIR_OK) s = make_places(q, items);
    return s;
}

static void unmake_slots(weir_queue *q)
{
    wr_slots_fini(&q->slots);
    wr_slots_fini(&q->pinned);
    free(q->places);
    free(q->holds);
    q->places = NULL;
    q->holds = NULL;
}

static weir_status attach(weir_queue *q, weir_pool *pool, const weir_queue_options *o)
{
    weir_status s = wr_pool_hold(pool);
    if (s != WEIR_OK) return s;
    q->device = wr_pool_device(pool);
    s = wr_fetch_open(&q->origin, o->direction, pool, o->source);
    if (s == WEIR_OK) {
        s = wr_copy_open(&q->copier, pool);
        q->copier.no_kernels = o->flags & WEIR_QUEUE_NO_KERNELS;
        if (s == WEIR_OK) {
            s = wr_timeline_open(q->device, q->copier.stream, o->timeline, &q->copier.timeline);
            if (s != WEIR_OK) wr_copy_close(&q->copier);
        }
        if (s != WEIR_OK) wr_fetch_close(&q->origin);
    }
    if (s != WEIR_OK) wr_pool_unhold(pool);
    q->slots.pool = q->pinned.pool = pool;
    q->slots.stream = q->pinned.stream = q->copier.stream;
    q->opened_ns = q->device->ops->now_ns(q->device);
    return s;
}

/* Who sleeps in a queue of a lost device is woken, and finds out. */
static void wake_lost(struct wr_device *d)
{
    if (d == NULL) return; /* the process is over: see wr_edges_watcher */
    for (weir_queue *q = atomic_load(&shells); q; q = q->next_shell) {
        if (q->device != d && q->origin.device != d) continue;
        wr_lock_take(&q->lock);
        wr_queue_wake_all(q);
        wr_bell_close_all(q);
        wr_lock_give(&q->lock);
    }
}

static void keep_shell(weir_queue *q)
{
    static struct wr_edges_watcher watcher = {.over = wake_lost};
    wr_lock_init(&q->lock, WR_RANK_QUEUE);
    wr_lock_take(&shells_lock);
    q->serial = ++n_shells;
    q->next_shell = atomic_load(&shells);
    atomic_store(&shells, q);
    wr_lock_give(&shells_lock);
    wr_edges_watch(&watcher);
}

weir_status weir_queue_open(weir_pool *pool, const weir_queue_options *options, weir_queue **out)
{
    if (!pool || !out) return wr_fail(WEIR_INVALID_ARGUMENT, "the pool or the place for the queue is NULL");
    weir_queue_options o;
    weir_status s = copy_options(&o, options);
    if (s == WEIR_OK) s = check_options(&o);
    if (s == WEIR_OK) s = check_direction(&o);
    if (s != WEIR_OK) return s;
    weir_queue *q = calloc(1, sizeof *q);
    if (!q) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a queue");
    s = make_slots(q, &o);
    if (s == WEIR_OK) s = attach(q, pool, &o);
    if (s != WEIR_OK) {
        unmake_slots(q);
        free(q);
        return s;
    }
    keep_shell(q);
    *out = q;
    return WEIR_OK;
}

weir_status weir_queue_destroy(weir_queue *q)
{
    weir_status s = enter_lost_or_not(q);
    if (s != WEIR_OK) return s;
    q->closed = q->destroyed = true;
    wr_queue_wake_all(q);
    return wr_queue_leave(q, WEIR_OK);
}

/* A held item's memory stays until the acquiring stream has passed what it has queued by now. A stamp says so
 * without a call that could fail. */
static void keep_held(weir_queue *q, struct wr_place *p)
{
    for (unsigned i = 0; i < WR_QUEUE_HOLDS && p->n_holds > 0; i++) {
        struct wr_hold *h = &p->holds[i];
        if (h->state != WR_HOLD_HELD || !h->reader) continue;
        struct wr_fence *f = &h->reader->fence;
        wr_slots_keep(&q->slots, p->slot, (struct wr_mark){f, wr_fence_lend(f)});
        wr_heaps_unpin(q->copier.pool, h->reader);
        p->n_holds--;
    }
}

/* The last one out. No lock: nobody else comes here, and all that look see `destroyed`. */
static void tear_down(weir_queue *q)
{
    assert(!q->producers && !q->consumers && !q->lenders && !q->idlers);
    for (unsigned i = 0; i < q->slots.n; i++) {
        struct wr_place *p = &q->places[i];
        assert(p->state != WR_PLACE_TAKEN && p->state != WR_PLACE_COPYING);
        if (p->state == WR_PLACE_READY && !p->delivered) wr_slots_keep(&q->slots, p->slot, p->copied);
        keep_held(q, p);
        wr_slots_drop(&q->slots, &q->slots.at[i]);
    }
    for (unsigned i = 0; i < q->pinned.n; i++)
        wr_slots_drop(&q->pinned, &q->pinned.at[i]);
    wr_bell_close_all(q);
    wr_timeline_close(q->copier.timeline);
    wr_copy_close(&q->copier);
    wr_fetch_close(&q->origin);
    unmake_slots(q);
    wr_pool_unhold(q->copier.pool);
}
