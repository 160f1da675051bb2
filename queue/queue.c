/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue's life, its lock and the order of its items. See queue.h.
 */
#include "queue.h"
#include "edges.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS_DEFAULT = 2, ITEMS_MOST = 1024, PINNED_PER_ITEM = 4 };

/* LOCK: guards the list of all queues ever opened. It keeps them reachable, for leak checkers. */
static struct wr_lock shells_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static _Atomic(struct weir_queue *) shells;

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
    return s == WEIR_OK ? WEIR_OK : wr_queue_leave(q, s);
}

static void tear_down(weir_queue *q);

/* LOCK: gives it. Passes on the status of the call. */
weir_status wr_queue_leave(weir_queue *q, weir_status s)
{
    assert(q->inside > 0);
    bool last = --q->inside == 0 && q->destroyed;
    wr_lock_give(&q->lock);
    if (last) tear_down(q);
    return s;
}

/* ---- the order of items (under the lock) ------------------------------------------------------------- */

void wr_queue_insert(weir_queue *q, struct wr_place *p)
{
    struct wr_place **link = &q->order;
    while (*link && (*link)->ticket < p->ticket)
        link = &(*link)->next;
    p->next = *link;
    *link = p;
}

void wr_queue_remove(weir_queue *q, struct wr_place *p)
{
    struct wr_place **link = &q->order;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    p->next = NULL;
}

struct wr_place *wr_queue_find(const weir_queue *q, uint64_t ticket, enum wr_place_state state)
{
    for (unsigned i = 0; i < q->slots.n; i++)
        if (q->places[i].ticket == ticket && q->places[i].state == state) return &q->places[i];
    return NULL;
}

weir_status wr_queue_fail_stale(uint64_t ticket, const char *what)
{
    return wr_fail(WEIR_STALE_HANDLE, "item %llu is not %s (any more)", (unsigned long long)ticket, what);
}

void wr_queue_give_slot(weir_queue *q, struct wr_place *p)
{
    wr_slots_give(&q->slots, p->slot);
    *p = (struct wr_place){.state = WR_PLACE_FREE};
    wr_line_wake(q->producers);
}

/* ---- waiting (under the lock) ------------------------------------------------------------------------ */

weir_status wr_queue_doze(weir_queue *q, struct wr_waiter *w, enum wr_cause cause, bool polls)
{
    return wr_line_doze(w, q->device, &q->lock, cause, polls);
}

void wr_queue_leave_line(weir_queue *q, struct wr_waiter **line, struct wr_waiter *w)
{
    uint64_t waited = q->device->ops->now_ns(q->device) - w->since;
    bool slot = w->cause == WR_CAUSE_SLOT, pinned = w->cause == WR_CAUSE_PINNED,
         item = w->cause == WR_CAUSE_ITEM;
    q->stats.producer_waits_slot += slot;
    q->stats.producer_waits_pinned += pinned;
    q->stats.consumer_waits_item += item;
    if (slot || pinned) q->stats.producer_wait_ns += waited;
    if (item) q->stats.consumer_wait_ns += waited;
    wr_line_leave(line, w);
}

/* ---- open and destroy -------------------------------------------------------------------------------- */

static weir_status check_options(const weir_queue_options *o)
{
    if (!o || o->struct_size != sizeof *o)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *o);
    if (o->item_bytes == 0 || o->items > ITEMS_MOST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "item_bytes must be given, and items be 1 to %d", ITEMS_MOST);
    size_t sum, items = o->items ? o->items : ITEMS_DEFAULT;
    if (__builtin_mul_overflow(items, o->item_bytes, &sum) || sum > SIZE_MAX / 2)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%zu items of %zu bytes are no size", items, o->item_bytes);
    if ((o->device_bytes && o->device_bytes < o->item_bytes) ||
        (o->pinned_bytes && o->pinned_bytes < o->item_bytes))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a limit below one item of %zu bytes", o->item_bytes);
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
    size_t device = o->device_bytes ? o->device_bytes : product;
    weir_status s = wr_slots_init(&q->slots, WR_SLOTS_DEVICE, items, o->item_bytes, device);
    if (s == WEIR_OK) s = wr_slots_init(&q->pinned, WR_SLOTS_PINNED, n_pinned, o->item_bytes, pinned);
    if (s == WEIR_OK && !(q->places = calloc(items, sizeof *q->places)))
        s = wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %u items", items);
    return s;
}

static void unmake_slots(weir_queue *q)
{
    wr_slots_fini(&q->slots);
    wr_slots_fini(&q->pinned);
    free(q->places);
    q->places = NULL;
}

static weir_status attach(weir_queue *q, weir_pool *pool)
{
    weir_status s = wr_pool_hold(pool);
    if (s != WEIR_OK) return s;
    q->device = wr_pool_device(pool);
    s = wr_copy_open(&q->copier, pool);
    if (s != WEIR_OK) wr_pool_unhold(pool);
    q->slots.pool = q->pinned.pool = pool;
    q->slots.stream = q->pinned.stream = q->copier.stream;
    return s;
}

/* Who sleeps in a queue of a lost device is woken, and finds out. */
static void wake_lost(struct wr_device *d)
{
    if (d == NULL) return; /* the process is over: see wr_edges_watcher */
    for (weir_queue *q = atomic_load(&shells); q; q = q->next_shell) {
        if (q->device != d) continue;
        wr_lock_take(&q->lock);
        wr_line_wake_all(q->producers);
        wr_line_wake_all(q->consumers);
        wr_line_wake_all(q->lenders);
        wr_lock_give(&q->lock);
    }
}

static void keep_shell(weir_queue *q)
{
    static struct wr_edges_watcher watcher = {.over = wake_lost};
    wr_lock_init(&q->lock, WR_RANK_QUEUE);
    wr_lock_take(&shells_lock);
    q->next_shell = atomic_load(&shells);
    atomic_store(&shells, q);
    wr_lock_give(&shells_lock);
    wr_edges_watch(&watcher);
}

weir_status weir_queue_open(weir_pool *pool, const weir_queue_options *options, weir_queue **out)
{
    if (!pool || !out) return wr_fail(WEIR_INVALID_ARGUMENT, "the pool or the place for the queue is NULL");
    weir_status s = check_options(options);
    if (s != WEIR_OK) return s;
    weir_queue *q = calloc(1, sizeof *q);
    if (!q) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a queue");
    s = make_slots(q, options);
    if (s == WEIR_OK) s = attach(q, pool);
    if (s != WEIR_OK) {
        unmake_slots(q);
        free(q);
        return s;
    }
    keep_shell(q);
    *out = q;
    return WEIR_OK;
}

weir_status weir_queue_close(weir_queue *q)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->closed) return wr_queue_leave(q, wr_fail(WEIR_CLOSED, "the queue was closed before"));
    q->closed = true;
    wr_line_wake_all(q->producers);
    wr_line_wake_all(q->consumers);
    return wr_queue_leave(q, WEIR_OK);
}

weir_status weir_queue_destroy(weir_queue *q)
{
    weir_status s = enter_lost_or_not(q);
    if (s != WEIR_OK) return s;
    q->closed = q->destroyed = true;
    wr_line_wake_all(q->producers);
    wr_line_wake_all(q->consumers);
    wr_line_wake_all(q->lenders);
    return wr_queue_leave(q, WEIR_OK);
}

/* A held item's memory stays until the acquiring stream has passed what it has queued by now. A stamp says so
 * without a call that could fail. */
static void drop_held(weir_queue *q, struct wr_place *p)
{
    struct wr_fence *f = &p->reader->fence;
    wr_slots_drop(&q->slots, p->slot, &(struct wr_mark){f, wr_fence_lend(f)});
    wr_heaps_unpin(q->copier.pool, p->reader);
}

/* The last one out. No lock: nobody else comes here, and all that look see `destroyed`. */
static void tear_down(weir_queue *q)
{
    assert(!q->producers && !q->consumers && !q->lenders);
    for (unsigned i = 0; i < q->slots.n; i++) {
        assert(q->places[i].state != WR_PLACE_BUSY);
        if (q->places[i].state == WR_PLACE_HELD) drop_held(q, &q->places[i]);
        wr_slots_drop(&q->slots, &q->slots.at[i], NULL);
    }
    for (unsigned i = 0; i < q->pinned.n; i++)
        wr_slots_drop(&q->pinned, &q->pinned.at[i], NULL);
    wr_copy_close(&q->copier);
    unmake_slots(q);
    wr_pool_unhold(q->copier.pool);
}

/* ---- stats ------------------------------------------------------------------------------------------- */

static void add_waiting(const struct wr_waiter *line, uint64_t now, weir_queue_stats *out)
{
    for (; line; line = line->next) {
        out->waiting_slot += line->cause == WR_CAUSE_SLOT;
        out->waiting_pinned += line->cause == WR_CAUSE_PINNED;
        out->waiting_item += line->cause == WR_CAUSE_ITEM;
        out->longest_wait_ns = wr_max(out->longest_wait_ns, now - line->since);
    }
}

weir_status weir_queue_get_stats(weir_queue *q, weir_queue_stats *out)
{
    if (!out || out->struct_size < sizeof out->struct_size)
        return wr_fail(WEIR_INVALID_ARGUMENT, "stats with struct_size = %zu are needed", sizeof *out);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    weir_queue_stats now = q->stats;
    now.struct_size = out->struct_size;
    now.slots = q->slots.n;
    now.slots_in_use = wr_slots_in_use(&q->slots);
    now.device_bytes = q->slots.used;
    now.peak_device_bytes = q->slots.peak;
    now.pinned_bytes = q->pinned.used;
    now.peak_pinned_bytes = q->pinned.peak;
    uint64_t now_ns = q->device->ops->now_ns(q->device);
    add_waiting(q->producers, now_ns, &now);
    add_waiting(q->consumers, now_ns, &now);
    memcpy(out, &now, wr_min(out->struct_size, sizeof now));
    return wr_queue_leave(q, WEIR_OK);
}
