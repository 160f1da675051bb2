/* SPDX-License-Identifier: Apache-2.0
 *
 * Links to other devices. What the driver says of peer access is not the whole truth: there are machines where copies
 * between devices are accepted, and arrive wrong or not at all (virtual machines, IOMMU settings). So a link is direct
 * only if a pattern came back right from a block of the other device, written and read at different places.
 */
#include "edges.h"
#include "engine.h"

#include <string.h>

enum { PATTERN_BYTES = 64 << 10, SHIFT = 4096 + 256, POLL_NS = 20000 };
static const uint64_t given_ns = 10 * WR_NS_PER_SEC;

/* What the trial uses. */
struct trial {
    weir_engine *engine;
    weir_pool *peer;
    struct wr_copier there; /* a stream of the peer's own, for its block */
    weir_dptr own, other;
    unsigned char *sent, *came; /* pinned */
};

static weir_status open_trial(struct trial *t)
{
    weir_engine *e = t->engine;
    void *sent = NULL, *came = NULL;
    weir_status s = wr_copy_open(&t->there, t->peer);
    if (s != WEIR_OK) {
        t->there = (struct wr_copier){0}; /* it is closed */
        return s;
    }
    s = wr_copy_alloc(&t->there, PATTERN_BYTES + SHIFT, &t->other);
    if (s == WEIR_OK) s = wr_copy_alloc(&e->home, 2 * PATTERN_BYTES, &t->own);
    if (s == WEIR_OK) s = wr_pool_host_alloc(e->pool, PATTERN_BYTES, &sent);
    if (s == WEIR_OK) s = wr_pool_host_alloc(e->pool, PATTERN_BYTES, &came);
    t->sent = sent;
    t->came = came;
    return s;
}

/* All queued copies, up to the mark, are waited for by whoever reuses the memory. */
static void close_trial(struct trial *t, struct wr_mark until)
{
    struct wr_pinned *pinned = wr_pool_pinned(t->engine->pool);
    if (t->sent) (void)wr_pinned_free(pinned, t->sent, until.fence, until.number);
    if (t->came) (void)wr_pinned_free(pinned, t->came, until.fence, until.number);
    if (t->own && wr_pool_use(t->engine->pool, t->own, until) == WEIR_OK)
        (void)weir_free(t->engine->pool, t->own, t->engine->home.stream);
    /* The peer's pool does not know the engine's lanes: its own stream waits for them. */
    if (t->other && wr_mark_wait(until, t->there.stream) == WEIR_OK)
        (void)weir_free(t->peer, t->other, t->there.stream);
    wr_copy_close(&t->there);
}

static weir_status queue_round_trip(struct trial *t, const struct wr_lane *lane)
{
    struct wr_device *d = t->engine->device;
    weir_stream s = lane->copier.stream;
    uint64_t back = t->own + PATTERN_BYTES;
    weir_status st = d->ops->copy(d, WR_COPY_H2D, t->own, (uintptr_t)t->sent, PATTERN_BYTES, s);
    if (st == WEIR_OK) st = d->ops->copy(d, WR_COPY_H2D, back, (uintptr_t)t->came, PATTERN_BYTES, s);
    if (st == WEIR_OK) st = d->ops->copy(d, WR_COPY_PEER, t->other + SHIFT, t->own, PATTERN_BYTES, s);
    for (size_t at = 0; at < PATTERN_BYTES && st == WEIR_OK; at += PATTERN_BYTES / 4)
        st = d->ops->copy(d, WR_COPY_PEER, back + at, t->other + SHIFT + at, PATTERN_BYTES / 4, s);
    if (st == WEIR_OK) st = d->ops->copy(d, WR_COPY_D2H, (uintptr_t)t->came, back, PATTERN_BYTES, s);
    return st;
}

/* The host waits for the lane alone: nothing there waits for compute. */
static weir_status await_mark(weir_engine *e, struct wr_mark until)
{
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct wr_device *d = e->device;
    uint64_t end = d->ops->now_ns(d) + given_ns;
    while (!wr_mark_poll(until)) {
        weir_status s = wr_edges_check_device(d);
        if (s != WEIR_OK) return s;
        if (d->ops->now_ns(d) > end)
            return wr_fail(WEIR_TIMEOUT, "the pattern between two devices does not arrive");
        wr_lock_take(&e->lock);
        d->ops->doze(d, &never, &e->lock, POLL_NS);
        wr_lock_give(&e->lock);
    }
    return WEIR_OK;
}

static bool patterns_agree(struct trial *t, struct wr_lane *lane, struct wr_mark *until)
{
    for (unsigned i = 0; i < PATTERN_BYTES; i++) {
        t->sent[i] = (unsigned char)(i * 37 + (i >> 8) * 11 + 1);
        t->came[i] = (unsigned char)~t->sent[i];
    }
    weir_status s = queue_round_trip(t, lane);
    *until = (struct wr_mark){lane->copier.fence, wr_fence_stamp(lane->copier.fence)};
    if (s == WEIR_OK) s = wr_fence_cover(until->fence, until->number);
    if (s == WEIR_OK) s = await_mark(t->engine, *until);
    if (WR_FAULT(COPY_TRUSTS_PEERS)) return s == WEIR_OK;
    return s == WEIR_OK && memcmp(t->sent, t->came, PATTERN_BYTES) == 0;
}

/* Maps either pool for the other's device, and tries. Errors are those of the trial's own memory: a machine that
 * refuses access only has no direct link. */
static weir_status try_direct(weir_engine *e, weir_pool *peer, struct wr_device *other, bool *direct)
{
    bool there = false, back = false;
    weir_status s = e->device->ops->peer_access(e->device, other, &there);
    if (s == WEIR_OK) s = other->ops->peer_access(other, e->device, &back);
    *direct = false;
    if (s != WEIR_OK || !there || !back) return s;
    if (weir_pool_peer_enable(e->pool, other->ordinal) != WEIR_OK) return WEIR_OK;
    if (weir_pool_peer_enable(peer, e->device->ordinal) != WEIR_OK) return WEIR_OK;
    struct trial t = {.engine = e, .peer = peer};
    struct wr_lane *lane;
    s = wr_engine_take_lane(e, e->device, WEIR_ON_DEVICE, false, false, &lane);
    if (s != WEIR_OK) return s;
    struct wr_mark until = {lane->copier.fence, 0};
    s = open_trial(&t);
    if (s == WEIR_OK) *direct = patterns_agree(&t, lane, &until);
    if (t.there.fence) close_trial(&t, until);
    (void)wr_engine_release_lane(e, lane, false, false);
    return s;
}

/* LOCK: held. */
static weir_status add_link(weir_engine *e, struct wr_device *other, bool direct)
{
    if (wr_engine_find_link(e, other->ordinal)) return WEIR_OK; /* another thread was faster */
    if (e->n_links == WR_LINKS_MOST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "an engine has %d links at most", WR_LINKS_MOST);
    e->links[e->n_links++] = (struct wr_link){other, direct};
    return WEIR_OK;
}

weir_status weir_engine_link(weir_engine *e, weir_pool *peer)
{
    if (!peer) return wr_fail(WEIR_INVALID_ARGUMENT, "the peer's pool is NULL");
    weir_status s = wr_engine_enter(e);
    if (s != WEIR_OK) return s;
    struct wr_device *other = wr_pool_device(peer);
    bool known = wr_engine_find_link(e, other->ordinal) != NULL, direct = false;
    if (other == e->device)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "the peer's pool is of the engine's own device");
    if (s != WEIR_OK || known) return wr_engine_leave(e, s);
    wr_lock_give(&e->lock);
    s = wr_pool_hold(peer);
    if (s == WEIR_OK) {
        s = try_direct(e, peer, other, &direct);
        wr_pool_unhold(peer);
    }
    wr_lock_take(&e->lock);
    if (s == WEIR_OK) s = add_link(e, other, direct);
    return wr_engine_leave(e, s);
}
