/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned host memory comes from two houses, both built of registered huge pages.
 *
 * The small one serves up to SMALL_MAX: a jemalloc arena, whose extents are chunks of 2 MiB. It is good at
 * sizes, alignment and reuse.
 *
 * The large one serves the rest, from regions of its own that are cut and joined by page (spans.c). jemalloc
 * would round 129.5 MB up to a size class of 160 MiB, and would cut a cached 4 GB block for a request of 10
 * KB (Q23).
 *
 * So a large request grows the memory by at most itself and a page, or 2 MiB where it is smaller than that.
 *
 * Nothing is ever unregistered, since cuMemHostUnregister waits for every running kernel; the arena belongs
 * to the device and lives as long as the process. Reuse makes no driver call, and no system call.
 *
 * A freed block is PENDING until its fence has passed; until then it is neither in the free spans nor in
 * jemalloc's hands. All live blocks are pieces in `spans`, out of band: a wild pointer, an interior one and a
 * second free are told from a good one without reading the memory.
 *
 * LOCK: p->lock is a leaf. Neither jemalloc nor the driver is called under it. A growing chunk is registered
 * under jemalloc's own lock of this arena: other small requests that need to grow too wait for those
 * milliseconds, no one else.
 */
#include "pinned.h"
#include "spans.h"

#include <jemalloc/jemalloc.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HOST_PAGE  ((uint64_t)4096)
#define HUGE_PAGE  (2 * WR_MIB)
#define SMALL_MAX  WR_MIB
#define BLOCK_LINE 64 /* a block's alignment: no two share a cache line */

enum { REAP_BATCH = 64 };

struct registration {
    struct registration *next;
    void *base;
    size_t bytes;
};

struct wr_pinned {
    struct wr_device *device;
    extent_hooks_t hooks; /* jemalloc hands its address to each hook: see owner_of */
    unsigned arena;
    size_t host_bytes;   /* of memory in this machine */
    struct wr_lock lock; /* guards all below */
    struct registration *registrations;
    struct wr_spans spans;
    uint32_t n_growing; /* large requests that register memory now: nodes are kept for them */
    uint32_t pending;   /* list of PENDING pieces, newest first */
    uint64_t reserved_bytes, live_bytes;
    _Atomic uint64_t pending_bytes; /* written under the lock, read without: is there anything to reap? */
};

/* ---- memory from the system --------------------------------------------------------------------------- */

/* Page faults of fresh memory would cost more than its copy: all are taken here, in huge steps where the
 * kernel can. */
static bool populate(char *base, size_t bytes)
{
    madvise(base, bytes, MADV_HUGEPAGE);
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return true;
    if (errno != EINVAL) return false;
    for (size_t at = 0; at < bytes; at += HOST_PAGE)
        *(volatile char *)(base + at) = 0; /* an older kernel */
    return true;
}

/* Fresh memory, aligned to a huge page; NULL: the host has none. */
static void *map_populated(size_t bytes)
{
    size_t wide = bytes + HUGE_PAGE;
    char *all = mmap(NULL, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    char *base = (char *)wr_round_up((uintptr_t)all, HUGE_PAGE);
    if (base > all) munmap(all, (size_t)(base - all));
    munmap(base + bytes, wide - bytes - (size_t)(base - all));
    if (populate(base, bytes)) return base;
    munmap(base, bytes);
    return NULL;
}

static void note_registration(struct wr_pinned *p, struct registration *r)
{
    wr_lock_take(&p->lock);
    r->next = p->registrations;
    p->registrations = r;
    p->reserved_bytes += r->bytes;
    wr_lock_give(&p->lock);
}

/* SLOW: maps, touches and registers: milliseconds per 64 MiB, and behind no kernel. */
static weir_status grow(struct wr_pinned *p, size_t bytes, void **out)
{
    assert(bytes % HOST_PAGE == 0);
    struct registration *r = malloc(sizeof *r);
    void *base = r == NULL ? NULL : map_populated(bytes);
    if (base == NULL) {
        free(r);
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %zu more bytes to pin", bytes);
    }
    weir_status s = p->device->ops->host_register(p->device, base, bytes);
    if (s != WEIR_OK) {
        munmap(base, bytes);
        free(r);
        return s;
    }
    *r = (struct registration){.base = base, .bytes = bytes};
    note_registration(p, r);
    *out = base;
    return WEIR_OK;
}

/* ---- the small house: jemalloc's extents -------------------------------------------------------------- */

/* Why the last chunk of this thread could not be had: jemalloc's interface has no room for a reason. */
static _Thread_local weir_status chunk_failure;

static struct wr_pinned *owner_of(extent_hooks_t *hooks)
{
    return WR_CONTAINER_OF(hooks, struct wr_pinned, hooks);
}

/* retain_grow_limit keeps all chunks at one size. Where one could not be had, jemalloc asks again for the
 * bare request, which is refused: a registration of its own per slab would cost more than it saves. */
static void *chunk_alloc(
    extent_hooks_t *hooks, void *at, size_t bytes, size_t alignment, bool *zero, bool *commit, unsigned arena)
{
    (void)arena;
    if (at != NULL || bytes != HUGE_PAGE || alignment > HUGE_PAGE) return NULL;
    void *chunk;
    chunk_failure = grow(owner_of(hooks), bytes, &chunk);
    if (chunk_failure != WEIR_OK) return NULL;
    *zero = true;
    *commit = true;
    return chunk;
}

/* True: kept. The arena takes it up again as retained memory. */
static bool chunk_dalloc(extent_hooks_t *hooks, void *at, size_t bytes, bool committed, unsigned arena)
{
    (void)hooks, (void)at, (void)bytes, (void)committed, (void)arena;
    return true;
}

/* False: may be cut anywhere. */
static bool chunk_split(
    extent_hooks_t *hooks, void *at, size_t bytes, size_t a, size_t b, bool committed, unsigned arena)
{
    (void)hooks, (void)at, (void)bytes, (void)a, (void)b, (void)committed, (void)arena;
    return false;
}

/* False: the two become one. Never across chunks, for each is a registration of its own. */
static bool chunk_merge(
    extent_hooks_t *hooks, void *a, size_t a_bytes, void *b, size_t b_bytes, bool committed, unsigned arena)
{
    (void)hooks, (void)a_bytes, (void)b_bytes, (void)committed, (void)arena;
    return wr_round_down((uintptr_t)a, HUGE_PAGE) != wr_round_down((uintptr_t)b, HUGE_PAGE);
}

/* What jemalloc's experimental.arenas_create_ext takes. The second field keeps its own metadata out of pinned
 * memory. */
struct arena_config {
    extent_hooks_t *hooks;
    bool metadata_use_hooks;
};

static int set_arena(unsigned arena, const char *name, void *value, size_t bytes)
{
    char path[64];
    snprintf(path, sizeof path, "arena.%u.%s", arena, name);
    return wr_je_mallctl(path, NULL, NULL, value, bytes);
}

/* Decay of 0: what is freed becomes retained at once, where it joins its neighbours and serves any size. With
 * no purge hooks that moves it between jemalloc's lists, and nothing else. */
static bool create_arena(struct wr_pinned *p)
{
    p->hooks = (extent_hooks_t){
        .alloc = chunk_alloc, .dalloc = chunk_dalloc, .split = chunk_split, .merge = chunk_merge};
    struct arena_config config = {.hooks = &p->hooks, .metadata_use_hooks = false};
    size_t id_bytes = sizeof p->arena, limit = HUGE_PAGE;
    ssize_t decay_ms = 0;
    if (wr_je_mallctl("experimental.arenas_create_ext", &p->arena, &id_bytes, &config, sizeof config) != 0)
        return false;
    int error = set_arena(p->arena, "retain_grow_limit", &limit, sizeof limit);
    error |= set_arena(p->arena, "dirty_decay_ms", &decay_ms, sizeof decay_ms);
    error |= set_arena(p->arena, "muzzy_decay_ms", &decay_ms, sizeof decay_ms);
    if (error != 0) set_arena(p->arena, "destroy", NULL, 0);
    return error == 0;
}

static int arena_flags(const struct wr_pinned *p)
{
    return MALLOCX_ARENA(p->arena) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(BLOCK_LINE);
}

/* ---- the device's arena -------------------------------------------------------------------------------- */

/* For a simulated device, whose world ends before the process does. No caller may still use a block. */
static void fini_pinned(void *pinned)
{
    struct wr_pinned *p = pinned;
    set_arena(p->arena, "destroy", NULL, 0);
    while (p->registrations != NULL) {
        struct registration *r = p->registrations;
        p->registrations = r->next;
        p->device->ops->host_unregister(p->device, r->base);
        munmap(r->base, r->bytes);
        free(r);
    }
    wr_spans_fini(&p->spans);
    wr_lock_fini(&p->lock);
    free(p);
}

static struct wr_pinned *init_pinned(struct wr_device *d)
{
    struct wr_pinned *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->device = d;
    p->host_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (!wr_spans_reserve(&p->spans, 1) || !create_arena(p)) {
        wr_spans_fini(&p->spans);
        free(p);
        return NULL;
    }
    wr_lock_init(&p->lock, WR_RANK_REGISTRY);
    return p;
}

weir_status wr_pinned_get(struct wr_device *d, struct wr_pinned **out)
{
    static struct wr_lock making = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = WR_RANK_REGISTRY};
    struct wr_pinned *p = atomic_load(&d->pinned);
    if (p == NULL) {
        wr_lock_take(&making);
        p = atomic_load(&d->pinned);
        if (p == NULL && (p = init_pinned(d)) != NULL) {
            d->pinned_fini = fini_pinned;
            atomic_store(&d->pinned, p);
        }
        wr_lock_give(&making);
    }
    if (p == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an arena of pinned memory");
    *out = p;
    return WEIR_OK;
}

/* ---- alloc ------------------------------------------------------------------------------------------------
 */

/* Growing requests need two nodes each, after they have registered memory that can't be given back: kept for
 * them. */
static bool reserve_nodes(struct wr_pinned *p, uint32_t more)
{
    return wr_spans_reserve(&p->spans, more + 2 * p->n_growing);
}

static weir_status fail_nodes(void)
{
    return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to keep account of a pinned block");
}

static weir_status alloc_small(struct wr_pinned *p, size_t bytes, void **out)
{
    chunk_failure = WEIR_OK;
    void *host = wr_je_mallocx(bytes, arena_flags(p));
    if (host == NULL && chunk_failure != WEIR_OK) return chunk_failure;
    if (host == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %zu pinned bytes", bytes);
    wr_lock_take(&p->lock);
    bool room = reserve_nodes(p, 1);
    if (room) {
        wr_spans_add_whole(&p->spans, (uintptr_t)host, bytes);
        p->live_bytes += bytes;
    }
    wr_lock_give(&p->lock);
    if (!room) {
        wr_je_dallocx(host, arena_flags(p));
        return fail_nodes();
    }
    *out = host;
    return WEIR_OK;
}

static void *take_large_locked(struct wr_pinned *p, size_t bytes)
{
    uint32_t id = wr_spans_take(&p->spans, wr_round_up(bytes, HOST_PAGE));
    if (id == 0) return NULL;
    struct wr_span *n = &p->spans.nodes[id];
    n->asked_bytes = bytes;
    p->live_bytes += n->bytes;
    return (void *)(uintptr_t)n->start;
}

/* SLOW: the region is added and cut under one hold of the lock, or another thread could take it in between.
 */
static weir_status alloc_large_slow(struct wr_pinned *p, size_t bytes, void **out)
{
    size_t region_bytes = wr_max(wr_round_up(bytes, HOST_PAGE), HUGE_PAGE);
    void *region = NULL;
    weir_status s = grow(p, region_bytes, &region);
    wr_lock_take(&p->lock);
    p->n_growing--;
    if (s == WEIR_OK) {
        wr_spans_add_region(&p->spans, (uintptr_t)region, region_bytes);
        *out = take_large_locked(p, bytes);
    }
    wr_lock_give(&p->lock);
    return s;
}

static weir_status alloc_large(struct wr_pinned *p, size_t bytes, void **out)
{
    wr_lock_take(&p->lock);
    bool room = reserve_nodes(p, 2);
    void *host = room ? take_large_locked(p, bytes) : NULL;
    p->n_growing += room && host == NULL;
    wr_lock_give(&p->lock);
    if (!room) return fail_nodes();
    if (host == NULL) return alloc_large_slow(p, bytes, out);
    *out = host;
    return WEIR_OK;
}

weir_status wr_pinned_alloc(struct wr_pinned *p, size_t bytes, void **out)
{
    if (bytes == 0) {
        *out = NULL;
        return WEIR_OK;
    }
    if (bytes > p->host_bytes)
        return wr_fail(WEIR_TOO_LARGE, "%zu pinned bytes, on a machine with %zu", bytes, p->host_bytes);
    return bytes <= SMALL_MAX ? alloc_small(p, bytes, out) : alloc_large(p, bytes, out);
}

/* ---- free -------------------------------------------------------------------------------------------------
 */

/* True: the block is jemalloc's, and to be given to it once the lock is. */
static bool give_locked(struct wr_pinned *p, uint32_t id)
{
    bool whole = p->spans.nodes[id].whole;
    wr_spans_give(&p->spans, id);
    return whole;
}

static void live_to_pending(struct wr_pinned *p, uint32_t id, struct wr_fence *fence, uint64_t stamp)
{
    struct wr_span *n = &p->spans.nodes[id];
    n->state = WR_SPAN_PENDING;
    n->fence = fence;
    n->stamp = stamp;
    n->next_pending = p->pending;
    p->pending = id;
    p->pending_bytes += n->bytes;
}

static bool is_passed(struct wr_fence *fence, uint64_t stamp)
{
    return fence == NULL || WR_FAULT(HOST_FREE_SKIPS_FENCE) || wr_fence_passed(fence, stamp);
}

weir_status wr_pinned_free(struct wr_pinned *p, void *host, struct wr_fence *fence, uint64_t stamp)
{
    bool is_small = false;
    wr_lock_take(&p->lock);
    uint32_t id = wr_spans_find(&p->spans, (uintptr_t)host);
    struct wr_span *n = &p->spans.nodes[id];
    bool is_block = id != 0 && n->state == WR_SPAN_LIVE && n->start == (uintptr_t)host;
    if (is_block) {
        p->live_bytes -= n->bytes;
        if (is_passed(fence, stamp)) {
            is_small = give_locked(p, id);
        } else {
            live_to_pending(p, id, fence, stamp);
        }
    }
    wr_lock_give(&p->lock);
    if (is_small) wr_je_dallocx(host, arena_flags(p));
    return is_block ? WEIR_OK
                    : wr_fail(WEIR_INVALID_POINTER, "%p is not the start of a live pinned block", host);
}

/* Takes what has passed off the pending list, until `batch` is full of jemalloc's blocks. Returns their
 * number. */
static unsigned unlink_passed(struct wr_pinned *p, void **batch, uint64_t *freed)
{
    unsigned n_small = 0;
    wr_lock_take(&p->lock);
    uint32_t *link = &p->pending;
    while (*link != 0 && n_small < REAP_BATCH) {
        uint32_t id = *link;
        struct wr_span *n = &p->spans.nodes[id];
        if (!wr_fence_passed(n->fence, n->stamp) && !WR_FAULT(PINNED_REAPED_UNPASSED)) {
            link = &n->next_pending;
            continue;
        }
        *link = n->next_pending;
        p->pending_bytes -= n->bytes;
        *freed += n->bytes;
        void *host = (void *)(uintptr_t)n->start;
        if (give_locked(p, id)) batch[n_small++] = host;
    }
    wr_lock_give(&p->lock);
    return n_small;
}

uint64_t wr_pinned_reap(struct wr_pinned *p)
{
    uint64_t freed = 0;
    unsigned n_small = REAP_BATCH;
    while (n_small == REAP_BATCH && atomic_load_explicit(&p->pending_bytes, memory_order_relaxed) != 0) {
        void *batch[REAP_BATCH];
        n_small = unlink_passed(p, batch, &freed);
        for (unsigned i = 0; i < n_small; i++)
            wr_je_dallocx(batch[i], arena_flags(p));
    }
    return freed;
}

/* ---- questions --------------------------------------------------------------------------------------------
 */

bool wr_pinned_owns(struct wr_pinned *p, const void *host, size_t bytes)
{
    wr_lock_take(&p->lock);
    uint32_t id = wr_spans_find(&p->spans, (uintptr_t)host);
    const struct wr_span *n = &p->spans.nodes[id];
    bool owns = id != 0 && n->state == WR_SPAN_LIVE && bytes <= n->asked_bytes &&
                (uintptr_t)host - n->start <= n->asked_bytes - bytes;
    wr_lock_give(&p->lock);
    return owns;
}

void wr_pinned_get_stats(struct wr_pinned *p, struct wr_pinned_stats *out)
{
    wr_lock_take(&p->lock);
    *out = (struct wr_pinned_stats){
        .reserved_bytes = p->reserved_bytes, .live_bytes = p->live_bytes, .pending_bytes = p->pending_bytes};
    wr_lock_give(&p->lock);
}

static void require(bool holds, const char *text)
{
    if (holds) return;
    fprintf(stderr, "weir: pinned: broken invariant: %s\n", text);
    abort();
}

static void check_sums(struct wr_pinned *p)
{
    uint64_t live = 0, pending = 0, free_bytes = 0, listed = 0, registered = 0;
    for (uint32_t id = 1; id < p->spans.capacity; id++) {
        const struct wr_span *n = &p->spans.nodes[id];
        if (n->state == WR_SPAN_LIVE) live += n->bytes;
        if (n->state == WR_SPAN_PENDING) pending += n->bytes;
        if (n->state == WR_SPAN_FREE) free_bytes += n->bytes;
    }
    for (uint32_t id = p->pending; id != 0; id = p->spans.nodes[id].next_pending) {
        require(p->spans.nodes[id].state == WR_SPAN_PENDING, "what is on the pending list is pending");
        listed += p->spans.nodes[id].bytes;
    }
    for (const struct registration *r = p->registrations; r != NULL; r = r->next)
        registered += r->bytes;
    require(live == p->live_bytes && pending == p->pending_bytes, "the byte counts are those of the pieces");
    require(listed == pending, "every pending piece is on the list once");
    require(registered == p->reserved_bytes, "reserved is what is registered");
    require(live + pending + free_bytes <= registered, "no piece lies outside registered memory");
}

void wr_pinned_check(struct wr_pinned *p)
{
    wr_lock_take(&p->lock);
    wr_spans_check(&p->spans);
    check_sums(p);
    wr_lock_give(&p->lock);
}
