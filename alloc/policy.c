/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. What callers may ask for beyond COMPLETED, the rule that stream.c keeps by itself.
 *
 * OWNER. A heap's free pieces carry stamps of its *gate*: the stream's own fence, or under OWNER the pool's
 * context fence, which is of no stream and whose ticks cover all that is queued in the device's context. So
 * the home stream reuses at once, as ever, and everybody else asks the gate, as ever; nothing else differs. A
 * tick comes later than the frees it covers, so it may cover more than was queued at the free, never less.
 * The driver ends every capture of the context when its event is recorded during one, and has no call to ask
 * whether there is any; the captures noted, and the streams known to the pool, are asked one by one.
 *
 * The two waits are those that a caller asked for: on the device, by one event of the stream that holds the
 * memory; on the host, by asking for one fence again and again, ever more slowly. Neither holds a lock.
 */
#include "pool.h"
#include "captures.h"
#include "nvtx.h"

/* ---- OWNER ------------------------------------------------------------------------------------------- */

/* A stream of another device is not in this context: its own fence is the better rule for it. A capture's memory
 * waits for its own fence alone, which the graph's release lets go. */
void wr_policy_own(weir_pool *p, struct wr_heap *h)
{
    bool captured = atomic_load(&h->fence.captured);
    if (!captured && h->fence.events->device == p->pages.device) wr_stream_own(h, &p->context);
}

void wr_policy_choose(weir_pool *p, struct wr_heap *h, weir_reuse reuse)
{
    if (reuse == WEIR_REUSE_OWNER) wr_policy_own(p, h);
    if (reuse == WEIR_REUSE_COMPLETED) wr_stream_disown(h);
}

/* Any capture noted on the device, or one that a stream of this pool has begun unnoted. */
static bool any_captures(weir_pool *p)
{
    bool any = wr_captures_any(p->pages.device);
    for (uint32_t i = 0; !any && i < atomic_load(&p->n_heaps); i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        any = wr_fence_captures(&h->fence);
        wr_heaps_unpin(p, h);
    }
    return any;
}

weir_status wr_policy_cover(weir_pool *p, struct wr_fence *f, uint64_t stamp)
{
    if (f == &p->context && !wr_fence_passed(f, stamp) && any_captures(p))
        return wr_fail(WEIR_CAPTURING, "a stream captures: what the whole context has passed can't be asked");
    return wr_fence_cover(f, stamp);
}

/* ---- waits ------------------------------------------------------------------------------------------- */

/* Keeps the fence's heap, if it is a heap's, from ending. False: it has ended, and the fence has passed. */
static bool pin_holder(weir_pool *p, const struct wr_holder *by, struct wr_heap **out)
{
    *out = by->fence != &p->context ? wr_heaps_pin_fence(p, by->fence) : NULL;
    return *out != NULL || by->fence == &p->context;
}

static void unpin_holder(weir_pool *p, struct wr_heap *h)
{
    if (h != NULL) wr_heaps_unpin(p, h);
}

weir_status wr_policy_device_wait(weir_pool *p, struct wr_heap *h, const struct wr_holder *by)
{
    WR_NVTX_RANGE("device wait", wr_size_bytes(by->units));
    struct wr_heap *pinned;
    if (!pin_holder(p, by, &pinned)) return WEIR_OK;
    wr_fence_poll(by->fence);
    weir_status st = wr_policy_cover(p, by->fence, by->stamp);
    bool passed = wr_fence_passed(by->fence, by->stamp);
    if (st == WEIR_OK && !passed && !WR_FAULT(DEVICE_WAIT_FORGOTTEN)) {
        st = wr_fence_wait_on(by->fence, by->stamp, h->fence.stream);
        if (st == WEIR_OK) atomic_fetch_add(&p->stream_waits, 1);
    }
    unpin_holder(p, pinned);
    return st;
}

/* OK: passed. NOT_YET; or the driver's. A capture that is in the way will end. */
static weir_status look(weir_pool *p, const struct wr_holder *by)
{
    struct wr_heap *pinned;
    if (!pin_holder(p, by, &pinned)) return WEIR_OK;
    weir_status st = wr_policy_cover(p, by->fence, by->stamp);
    wr_fence_poll(by->fence);
    if (st == WEIR_OK || st == WEIR_CAPTURING)
        st = wr_fence_passed(by->fence, by->stamp) ? WEIR_OK : WEIR_NOT_YET;
    unpin_holder(p, pinned);
    return st;
}

weir_status wr_policy_host_wait(weir_pool *p, const struct wr_holder *by, uint64_t until_ns)
{
    WR_NVTX_RANGE("host wait", wr_size_bytes(by->units));
    const uint64_t shortest_nap_ns = 5000, longest_nap_ns = 500000;
    struct wr_device *d = p->pages.device;
    pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
    struct wr_lock lock;
    weir_status st;
    wr_lock_init(&lock, WR_RANK_POOL); /* the doze's own: no other is held */
    uint64_t nap_ns = shortest_nap_ns;
    for (bool first = true; (st = look(p, by)) == WEIR_NOT_YET; first = false) {
        uint64_t now_ns = d->ops->now_ns(d);
        if (now_ns >= until_ns) st = WEIR_TIMEOUT;
        if (atomic_load(&p->state) != WR_POOL_OPEN) st = wr_fail(WEIR_CLOSED, "the pool is closed");
        if (st != WEIR_NOT_YET) break;
        if (first) atomic_fetch_add(&p->host_waits, 1);
        wr_lock_take(&lock);
        d->ops->doze(d, &nobody, &lock, wr_min(nap_ns, until_ns - now_ns));
        wr_lock_give(&lock);
        nap_ns = wr_min(nap_ns * 2, longest_nap_ns);
    }
    wr_lock_fini(&lock);
    pthread_cond_destroy(&nobody);
    return st;
}
