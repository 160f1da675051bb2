/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A thread finds a heap by the stream's id, which the driver never gives twice, while a handle can
 * come back as another stream: so the id is read at every call (two lock-free reads of the driver, 24 ns
 * each), and the heap found by it is remembered per thread. A pool whose user announces what happens to its
 * streams (WEIR_STREAMS_ANNOUNCED) needs no such reads: there the handle is as good, while no graph is kept.
 *
 * Heaps are never freed, only reused: a thread late with a pointer finds a struct that says, under its lock,
 * that it serves another stream or none. A heap ends when its stream is retired, its memory is back and its
 * ticks have passed.
 *
 * What is read without a lock, and why it may be: the remembered heap, the directory, and a page's owner tag
 * are hints of where to look. Each leads to a heap struct, which is always one; what the struct is now, it
 * says under its lock, and it changes its stream under its lock only. A hint about a live block or a pinned
 * heap can't be stale: either keeps the heap from ending. PAIRS: an entry and a row are stored with release
 * after what they lead to is made, and read with acquire. Checked by tests/test_model_heap.c.
 */
#include "pool.h"
#include "captures.h"

#include <stdlib.h>
#include <string.h>

/* Heaps between two lives; a leaf lock. */
static struct {
    pthread_mutex_t mutex;
    struct wr_heap *heaps;
} spare = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct wr_heap *obtain_heap(void)
{
    pthread_mutex_lock(&spare.mutex);
    struct wr_heap *h = spare.heaps;
    if (h != NULL) spare.heaps = h->next_spare;
    pthread_mutex_unlock(&spare.mutex);
    if (h != NULL) return h;
    h = aligned_alloc(WR_CACHE_LINE, sizeof *h);
    if (h == NULL) return NULL;
    memset(h, 0, sizeof *h);
    wr_fence_init(&h->fence);
    wr_latch_init(&h->lock, WR_RANK_STREAM);
    return h;
}

static void return_heap(struct wr_heap *h)
{
    pthread_mutex_lock(&spare.mutex);
    h->next_spare = spare.heaps;
    spare.heaps = h;
    pthread_mutex_unlock(&spare.mutex);
}

static _Atomic(struct wr_heap *) *heap_entry(weir_pool *p, uint32_t index)
{
    _Atomic(struct wr_heap *) *row =
        atomic_load_explicit(&p->rows[index / WR_HEAPS_PER_ROW], memory_order_acquire);
    return &row[index % WR_HEAPS_PER_ROW];
}

struct wr_heap *wr_heaps_at(weir_pool *p, uint32_t index)
{
    if (index >= atomic_load_explicit(&p->n_heaps, memory_order_acquire)) return NULL;
    return atomic_load_explicit(heap_entry(p, index), memory_order_acquire);
}

/* LOCK: p->lock. An index with an empty entry; UINT32_MAX: no host memory, or 65,536 streams at once. */
static uint32_t spare_index(weir_pool *p)
{
    uint32_t n = atomic_load(&p->n_heaps);
    for (uint32_t i = 0; i < n; i++)
        if (atomic_load(heap_entry(p, i)) == NULL) return i;
    if (n == WR_HEAP_ROWS * WR_HEAPS_PER_ROW) return UINT32_MAX;
    if (n % WR_HEAPS_PER_ROW == 0) {
        _Atomic(struct wr_heap *) *row = calloc(WR_HEAPS_PER_ROW, sizeof *row);
        if (row == NULL) return UINT32_MAX;
        atomic_store_explicit(&p->rows[n / WR_HEAPS_PER_ROW], row, memory_order_release);
    }
    atomic_store_explicit(&p->n_heaps, n + 1, memory_order_release);
    return n;
}

/* A stream ticks by itself when a 64th of the pool, but at least 128 MiB, was freed on it since the last
 * tick. */
static uint64_t tick_units(const weir_pool *p)
{
    uint64_t pages = wr_max(p->pages.limit_pages / 64, 128 * WR_MIB >> WR_PAGE_LOG2);
    return pages << WR_UNITS_PER_PAGE_LOG2;
}

/* LOCK: p->lock. The events of a device's streams; NULL: no host memory. */
static struct wr_events *events_of(weir_pool *p, struct wr_device *d)
{
    struct wr_events *e = &p->events;
    while (e != NULL && e->device != d)
        e = e->next;
    if (e != NULL || (e = malloc(sizeof *e)) == NULL) return e;
    wr_events_init(e, d);
    e->next = p->events.next;
    p->events.next = e;
    return e;
}

/* LOCK: p->lock. */
static weir_status open_heap_locked(
    weir_pool *p, struct wr_heap *h, weir_stream s, uint64_t id, uint64_t capture, struct wr_device *device)
{
    uint32_t index = UINT32_MAX;
    struct wr_events *events = events_of(p, device);
    if (events != NULL && wr_table_reserve(&p->heap_of_id, 1)) index = spare_index(p);
    if (index == UINT32_MAX) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a stream's entry");
    wr_stream_open(h, p, id, index, tick_units(p));
    wr_fence_open(&h->fence, events, s, id);
    if (capture != 0) {
        atomic_store(&h->capture, capture);
        wr_fence_hold(&h->fence);
        atomic_fetch_add(&p->n_captures, 1);
    } else if (p->terms.reuse == WEIR_REUSE_OWNER) {
        wr_policy_own(p, h);
    }
    wr_table_put(&p->heap_of_id, id, index + 1);
    atomic_store_explicit(heap_entry(p, index), h, memory_order_release);
    return WEIR_OK;
}

weir_status wr_heaps_identify(weir_pool *p, weir_stream s, struct wr_stream_info *info)
{
    weir_status st = p->pages.device->ops->stream_identify(p->pages.device, s, info);
    if (WR_FAULT(HANDLE_IS_IDENTITY)) info->id = (uint64_t)(uintptr_t)s;
    return st;
}

_Thread_local struct wr_last_heap wr_last_heap;

static weir_status open_heap_slow(weir_pool *p, weir_stream s, uint64_t id, struct wr_heap **out);

struct wr_heap *wr_heaps_find(weir_pool *p, uint64_t id)
{
    wr_lock_take(&p->lock);
    uint32_t found = wr_table_get(&p->heap_of_id, id);
    struct wr_heap *h = found != 0 ? wr_heaps_at(p, found - 1) : NULL;
    wr_lock_give(&p->lock);
    return h;
}

struct wr_heap *wr_heaps_find_handle(weir_pool *p, weir_stream s)
{
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        if (!h->retired && wr_fence_is_of(&h->fence, s)) return h;
        wr_heaps_unpin(p, h);
    }
    return NULL;
}

weir_status wr_heaps_lock_id_slow(weir_pool *p, weir_stream s, uint64_t id, struct wr_heap **out)
{
    for (;;) {
        struct wr_heap *h = wr_heaps_find(p, id);
        weir_status st = h == NULL ? open_heap_slow(p, s, id, &h) : WEIR_OK;
        if (st != WEIR_OK) return st;
        wr_latch_take(&h->lock);
        if (WR_LIKELY(wr_heaps_serves(h, p, id))) {
            wr_last_heap = (struct wr_last_heap){
                .pool_uid = p->uid, .id = id, .stream = s, .heap = h, .index = h->index};
            *out = h;
            return WEIR_OK;
        }
        wr_latch_give(&h->lock);
    }
}

/* Takes the lock of the heap that this thread used last. False: it has ended since. */
static inline bool lock_last(const weir_pool *p, const struct wr_last_heap *last, struct wr_heap **out)
{
    wr_latch_take(&last->heap->lock);
    *out = last->heap;
    if (WR_LIKELY(wr_heaps_serves(last->heap, p, last->id))) return true;
    wr_latch_give(&last->heap->lock);
    return false;
}

weir_status wr_heaps_lock(weir_pool *p, weir_stream s, struct wr_heap **out)
{
    struct wr_last_heap *last = &wr_last_heap;
    if (last->stream == s && last->pool_uid == p->uid && wr_heaps_trusts(p, s) && lock_last(p, last, out))
        return WEIR_OK;
    struct wr_stream_info info;
    weir_status st = wr_heaps_identify(p, s, &info);
    if (WR_UNLIKELY(st != WEIR_OK)) return st;
    if (WR_UNLIKELY(info.capturing)) return WEIR_CAPTURING;
    if (WR_LIKELY(last->id == info.id && last->pool_uid == p->uid) && lock_last(p, last, out)) return WEIR_OK;
    return wr_heaps_lock_id_slow(p, s, info.id, out);
}

weir_status wr_heaps_pin_stream(weir_pool *p, weir_stream s, struct wr_heap **out)
{
    struct wr_heap *h;
    weir_status st = wr_heaps_lock(p, s, &h);
    if (st == WEIR_CAPTURING) return wr_fail(st, "the stream captures a graph");
    if (st != WEIR_OK) return st;
    h->users++;
    wr_latch_give(&h->lock);
    *out = h;
    return WEIR_OK;
}

struct wr_heap *wr_heaps_pin(weir_pool *p, uint32_t index)
{
    struct wr_heap *h = wr_heaps_at(p, index);
    if (h == NULL) return NULL;
    wr_latch_take(&h->lock);
    bool here = h->pool == p && h->index == index;
    if (here) h->users++;
    wr_latch_give(&h->lock);
    return here ? h : NULL;
}

struct wr_heap *wr_heaps_pin_fence(weir_pool *p, struct wr_fence *f)
{
    struct wr_heap *h = WR_CONTAINER_OF(f, struct wr_heap, fence);
    wr_latch_take(&h->lock);
    bool here = h->pool == p;
    if (here) h->users++;
    wr_latch_give(&h->lock);
    return here ? h : NULL;
}

static void add_counts(struct wr_heap_counts *sum, const struct wr_heap_counts *c)
{
    sum->allocs += c->allocs;
    sum->slow_allocs += c->slow_allocs;
    sum->frees += c->frees;
    sum->touches += c->touches;
}

/* LOCK: h->lock. Takes the heap off the pool; the caller returns it. */
static void close_heap_locked(weir_pool *p, struct wr_heap *h)
{
    wr_lock_take(&p->lock);
    atomic_store(heap_entry(p, h->index), NULL);
    if (!h->retired) wr_table_remove(&p->heap_of_id, h->id);
    uint64_t capture = atomic_exchange(&h->capture, 0);
    if (capture != 0) {
        wr_captures_forget(h->fence.events->device, h->fence.stream, capture);
        atomic_fetch_sub(&p->n_captures, 1);
    }
    add_counts(&p->gone, &h->counts);
    p->gone_ticks += atomic_load(&h->fence.n_ticks);
    wr_lock_give(&p->lock);
    wr_stream_close(h);
    wr_fence_close(&h->fence);
}

void wr_heaps_unpin(weir_pool *p, struct wr_heap *h)
{
    wr_latch_take(&h->lock);
    h->users--;
    bool over = h->retired && h->users == 0 && wr_stream_is_empty(h) &&
                (wr_fence_is_quiet(&h->fence) || WR_FAULT(HEAP_ENDS_UNPASSED));
    if (over) close_heap_locked(p, h);
    wr_latch_give(&h->lock);
    if (over) return_heap(h);
}

void wr_heaps_retire(weir_pool *p, struct wr_heap *h)
{
    wr_latch_take(&h->lock);
    wr_lock_take(&p->lock);
    if (!h->retired) wr_table_remove(&p->heap_of_id, h->id);
    wr_lock_give(&p->lock);
    h->retired = true;
    wr_latch_give(&h->lock);
}

/* A handle that now names another stream: the one before was destroyed without a word. What it has freed is
 * covered by ticks on the whole context from now on. Default streams' handles (0, 1, 2) always mean several.
 */
static void retire_predecessor(weir_pool *p, weir_stream s, uint64_t id)
{
    if ((uintptr_t)s <= 2) return;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        if (h->id != id && wr_fence_orphan_if(&h->fence, s)) wr_heaps_retire(p, h);
        wr_heaps_unpin(p, h);
    }
}

/* ---- threads that end ---------------------------------------------------------------------------------
 *
 * A per-thread default stream goes with its thread, and the next thread's own marks may stand at the same
 * address: so its fences are orphaned then, by a destructor of thread-specific data. It makes no driver call,
 * as the driver's own state of the thread may be gone by then: the next tick, anybody's, covers the context.
 */
static pthread_key_t thread_key;
static bool have_thread_key;

static void end_thread(void *unused)
{
    (void)unused;
    wr_pool_end_thread();
}

static void make_thread_key(void)
{
    have_thread_key = pthread_key_create(&thread_key, end_thread) == 0;
}

static weir_status watch_thread(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_thread_key);
    if (have_thread_key && pthread_setspecific(thread_key, &thread_key) == 0) return WEIR_OK;
    return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to learn of the thread's end");
}

/* SLOW: a stream not seen before. */
static weir_status open_heap_slow(weir_pool *p, weir_stream s, uint64_t id, struct wr_heap **out)
{
    struct wr_device *device;
    weir_status st = p->pages.device->ops->stream_device(p->pages.device, s, &device);
    if (st == WEIR_OK && s == WR_FENCE_PER_THREAD) st = watch_thread();
    if (st != WEIR_OK) return st;
    struct wr_heap *fresh = obtain_heap();
    if (fresh == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a stream's heap");
    wr_latch_take(&fresh->lock); /* a thread late with this struct must not see it half made */
    wr_lock_take(&p->lock);
    uint32_t found = wr_table_get(&p->heap_of_id, id);
    if (atomic_load(&p->state) >= WR_POOL_CLOSED)
        st = wr_pool_refuse(p);
    else if (found == 0)
        st = open_heap_locked(p, fresh, s, id, 0, device);
    *out = found != 0 ? wr_heaps_at(p, found - 1) : fresh;
    wr_lock_give(&p->lock);
    wr_latch_give(&fresh->lock);
    if (found != 0 || st != WEIR_OK)
        return_heap(fresh);
    else
        retire_predecessor(p, s, id);
    return st;
}

bool wr_heaps_forget(weir_pool *p)
{
    bool all = true;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_at(p, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        bool here = h->pool == p && h->index == i, idle = here && h->users == 0;
        if (idle) {
            wr_stream_forget(h);
            close_heap_locked(p, h);
        }
        wr_latch_give(&h->lock);
        if (idle) return_heap(h);
        all &= idle || !here;
    }
    return all;
}

weir_status wr_heaps_open_captured(
    weir_pool *p, weir_stream s, uint64_t capture, struct wr_device *device, struct wr_heap **out)
{
    static _Atomic uint64_t last_id = (uint64_t)1 << 63; /* the driver counts from 1 */
    weir_status st = s == WR_FENCE_PER_THREAD ? watch_thread() : WEIR_OK;
    if (st != WEIR_OK) return st;
    struct wr_heap *h = obtain_heap();
    if (h == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a capture's heap");
    wr_latch_take(&h->lock);
    wr_lock_take(&p->lock);
    st = open_heap_locked(p, h, s, atomic_fetch_add(&last_id, 1), capture, device);
    wr_lock_give(&p->lock);
    if (st == WEIR_OK) h->users++;
    wr_latch_give(&h->lock);
    if (st == WEIR_OK)
        *out = h;
    else
        return_heap(h);
    return st;
}

void wr_heaps_fini(weir_pool *p)
{
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_at(p, i);
        if (h == NULL) continue;
        wr_latch_take(&h->lock);
        close_heap_locked(p, h);
        wr_latch_give(&h->lock);
        return_heap(h);
    }
    wr_table_fini(&p->heap_of_id);
    atomic_store(&p->n_heaps, 0);
    for (int i = 0; i < WR_HEAP_ROWS; i++)
        free((void *)atomic_exchange(&p->rows[i], NULL));
}
