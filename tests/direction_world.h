/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of a queue's directions share: two devices, a queue that takes spans of device memory, a producer
 * that fills a block, pushes it, and fills it anew, and a consumer that looks at what has come.
 */
#ifndef DIRECTION_WORLD_H
#define DIRECTION_WORLD_H

#include "queue_world.h"

enum flow_kind { FLOW_TO_HOST, FLOW_ON_DEVICE, FLOW_PEER, FLOW_STAGED, FLOW_KINDS };
enum { FLOW_BYTES = 64 * 1024 };

struct flow {
    struct world w;
    enum flow_kind kind;
    weir_pool *peer; /* of device 1; also where nothing comes from there */
    struct wr_device *from;
    weir_stream there; /* the producer's, of `from` */
    weir_dptr block;
};

static inline void open_flow(struct flow *f, enum flow_kind kind, weir_queue_options q)
{
    struct wr_sim_options o = {
        .profile = wr_sim_profile_find("gtx1080-pcie3x2"), .no_peer_access = kind == FLOW_STAGED};
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    *f = (struct flow){.kind = kind};
    open_world(&f->w, &o, 0, NULL);
    OK(wr_pool_open(wr_sim_device(f->w.sim, 1), &defaults, &f->peer));
    bool far = kind == FLOW_PEER || kind == FLOW_STAGED;
    q.direction = kind == FLOW_TO_HOST ? WEIR_TO_HOST : WEIR_ON_DEVICE;
    q.source = far ? f->peer : NULL;
    f->from = wr_sim_device(f->w.sim, far);
    OK(f->from->ops->stream_create(f->from, &f->there));
    OK(weir_alloc(far ? f->peer : f->w.pool, FLOW_BYTES, f->there, &f->block));
    OK(weir_queue_open(f->w.pool, &q, &f->w.queue));
}

static inline weir_pool *pool_of(struct flow *f)
{
    return f->from == f->w.device ? f->w.pool : f->peer;
}

/* The number of the oracle's reports is the caller's to judge. */
static inline void close_flow(struct flow *f)
{
    OK(weir_queue_destroy(f->w.queue));
    OK(weir_free(pool_of(f), f->block, f->there));
    wr_sim_drain(f->w.sim);
    OK(weir_stream_retire(pool_of(f), f->there));
    OK(f->from->ops->stream_destroy(f->from, f->there));
    weir_status s = WEIR_NOT_YET;
    for (int i = 0; i < 5 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(f->w.sim);
        s = weir_pool_close(f->peer);
    }
    OK(s);
    assert_int_equal(end_world(&f->w), 0);
}

static inline weir_span span_of(struct flow *f)
{
    return (weir_span){(const void *)(uintptr_t)f->block, FLOW_BYTES};
}

static inline weir_push_options send_options(const struct flow *f, uint32_t tag, int64_t timeout_ns)
{
    return (weir_push_options){.struct_size = sizeof(weir_push_options),
        .key = tag,
        .flags = WEIR_PUSH_BORROW,
        .after = &f->there,
        .n_after = 1,
        .timeout_ns = timeout_ns};
}

static inline weir_status send(struct flow *f, uint32_t tag, int64_t timeout_ns, uint64_t *ticket)
{
    weir_span span = span_of(f);
    weir_push_options o = send_options(f, tag, timeout_ns);
    return weir_queue_push_after(f->w.queue, &span, 1, &o, ticket);
}

/* Fills the block slowly and sends it; what comes next on the producer's stream may overwrite it. */
static inline void produce(struct flow *f, uint32_t tag)
{
    uint64_t ticket;
    OK(wr_kernels_spin(f->from, f->there, 200000));
    OK(wr_kernels_fill(f->from, f->there, f->block, FLOW_BYTES, tag));
    OK(send(f, tag, -1, &ticket));
    OK(weir_queue_borrowed_by(f->w.queue, ticket, f->there));
}

static inline unsigned wrong_on_host(struct flow *f, const weir_item *item)
{
    unsigned wrong = 0;
    wr_sim_host_access(f->w.sim, item->host, item->bytes, false);
    for (size_t i = 0; i < item->bytes / sizeof(uint32_t); i++)
        wrong += ((const uint32_t *)item->host)[i] != (uint32_t)item->key;
    return wrong;
}

/* Returns the words that are wrong by now: those that a stream counts are found at the end. */
static inline unsigned look_at(struct flow *f, const weir_item *item)
{
    if (f->kind == FLOW_TO_HOST) return wrong_on_host(f, item);
    read_item_on(&f->w, item, (uint32_t)item->key, 0);
    return 0;
}

static inline unsigned consume(struct flow *f, uint32_t tag)
{
    weir_item item;
    OK(weir_queue_acquire(f->w.queue, f->w.stream[0], -1, &item));
    assert_int_equal(item.bytes, FLOW_BYTES);
    assert_int_equal(item.key, tag);
    assert_true(f->kind == FLOW_TO_HOST ? item.host && !item.device : !item.host && item.device);
    unsigned wrong = look_at(f, &item);
    OK(weir_queue_release(f->w.queue, &item, NULL, 0));
    return wrong;
}

#endif
