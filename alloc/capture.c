/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. What a stream does while it captures runs later, and again at each launch of the graph, in the order
 * that was captured. So memory asked for meanwhile comes from a heap of that capture and that stream alone:
 * what is freed there may serve the same stream in the same capture, where the order is the stream's, and
 * nobody else until the graph is released: not even after the capture, for a launch would write it again.
 *
 * The heap is like any other but for its fence, which never ticks before the release: nothing freed in the
 * capture is ever seen to have passed, whoever asks (P01: during a capture events look finished at once). A
 * block that a captured stream uses without being its home waits, likewise, for that stream's fence in the
 * capture, and so for the release.
 *
 * Is that stream the block's home from before, its fence would let the block serve the stream's later work, which
 * launches run beside. So a free on a stream whose capture is known (captures.h) is at home in the capture's heap
 * alone; anywhere else it is one by another stream.
 *
 * A release ends the exception. The heap becomes one of a stream that is gone: its next tick covers all that
 * is queued in the context by then, launches of the graph included.
 */
#include "pool.h"
#include "captures.h"

/* The heap of that capture and stream, pinned; NULL: none. */
static struct wr_heap *find_heap(weir_pool *p, weir_stream s, uint64_t id)
{
    if (atomic_load(&p->n_captures) == 0) return NULL;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        if (atomic_load(&h->capture) == id && wr_fence_is_of(&h->fence, s)) return h;
        wr_heaps_unpin(p, h);
    }
    return NULL;
}

/* A capturing stream can't be asked for its context: it was met before, or it is of the pool's device. */
static struct wr_device *device_of(weir_pool *p, weir_stream s)
{
    struct wr_heap *known = wr_heaps_find_handle(p, s);
    if (known == NULL) return p->pages.device;
    struct wr_device *d = known->fence.events->device;
    wr_heaps_unpin(p, known);
    return d;
}

/* SLOW: the first call on this stream in this capture. */
static weir_status open_heap(weir_pool *p, weir_stream s, uint64_t id, struct wr_heap **out)
{
    struct wr_device *d = device_of(p, s);
    if (!wr_captures_note(d, s, id)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to note a capture");
    weir_status st = wr_heaps_open_captured(p, s, id, d, out);
    if (st != WEIR_OK) wr_captures_forget(d, s, id);
    return st;
}

static weir_status identify(weir_pool *p, weir_stream s, uint64_t *id)
{
    *id = 0;
    weir_status st = p->pages.device->ops->stream_capture(p->pages.device, s, id);
    if (st != WEIR_OK) return st;
    return *id != 0 ? WEIR_OK : wr_fail(WEIR_CAPTURING, "the stream is part of no capture that has an id");
}

weir_status wr_capture_pin(weir_pool *p, weir_stream s, struct wr_heap **out)
{
    uint64_t id;
    weir_status st = identify(p, s, &id);
    if (st != WEIR_OK) return st;
    *out = find_heap(p, s, id);
    return *out != NULL ? WEIR_OK : open_heap(p, s, id, out);
}

static weir_status alloc_inside(
    weir_pool *p, uint32_t units, weir_stream s, const struct wr_terms *terms, uint32_t *start)
{
    struct wr_heap *h;
    weir_status st = wr_capture_pin(p, s, &h);
    if (st != WEIR_OK) return st;
    wr_latch_take(&h->lock);
    st = wr_stream_alloc_aligned(h, units, terms->align, wr_pages_phase(&p->pages), start);
    wr_latch_give(&h->lock);
    if (st == WEIR_NOT_YET) st = wr_ladder_alloc(p, h, units, terms, start);
    wr_heaps_unpin(p, h);
    return st;
}

weir_status wr_capture_alloc(
    weir_pool *p, uint32_t units, weir_stream s, const struct wr_terms *terms, weir_dptr *out)
{
    /* A wait would become part of the graph, or be for work that only a launch does. */
    struct wr_terms captured = {.align = terms->align, .reuse = WEIR_REUSE_COMPLETED};
    uint32_t start;
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    bool open = atomic_load(&p->state) == WR_POOL_OPEN;
    st = open ? alloc_inside(p, units, s, &captured, &start) : wr_pool_refuse(p);
    if (st == WEIR_OK) *out = wr_pages_address(&p->pages, start);
    wr_pool_leave(p);
    return st;
}

weir_status wr_capture_id(weir_pool *p, weir_stream s, uint64_t *out)
{
    struct wr_heap *h;
    uint64_t id;
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    st = identify(p, s, &id);
    if (st == WEIR_OK) st = wr_capture_pin(p, s, &h);
    if (st == WEIR_OK) {
        wr_heaps_unpin(p, h);
        *out = id;
    }
    wr_pool_leave(p);
    return st;
}

/* Does any stream still take part? */
static bool goes_on(weir_pool *p, uint64_t id)
{
    bool on = false;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        if (atomic_load(&h->capture) == id)
            on |= wr_captures_goes_on(h->fence.events->device, h->fence.stream, id);
        wr_heaps_unpin(p, h);
    }
    return on;
}

static unsigned release_inside(weir_pool *p, uint64_t id)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        uint64_t was = id;
        if (atomic_compare_exchange_strong(&h->capture, &was, 0)) {
            wr_captures_forget(h->fence.events->device, h->fence.stream, id);
            wr_fence_release(&h->fence);
            wr_heaps_retire(p, h);
            atomic_fetch_sub(&p->n_captures, 1);
            n++;
        }
        wr_heaps_unpin(p, h);
    }
    return n;
}

weir_status wr_capture_release(weir_pool *p, uint64_t id)
{
    weir_status st = wr_pool_enter(p);
    if (st != WEIR_OK) return st;
    if (goes_on(p, id))
        st = wr_fail(WEIR_CAPTURING, "capture %llu has not ended", (unsigned long long)id);
    else if (id == 0 || release_inside(p, id) == 0)
        st = wr_fail(WEIR_INVALID_ARGUMENT, "no capture %llu is known here", (unsigned long long)id);
    wr_pool_leave(p);
    return st;
}
