/* SPDX-License-Identifier: Apache-2.0
 *
 * The words of a staging area, over the queue: see the table in weir_queue.h.
 */
#include "queue.h"
#include "nvtx.h"

weir_status weir_queue_put(weir_queue *q, int64_t key, const weir_span *spans, size_t n_spans, unsigned flags,
    int64_t timeout_ns, uint64_t *ticket)
{
    const weir_push_options o = {
        .struct_size = sizeof o, .key = key, .flags = flags, .timeout_ns = timeout_ns};
    return wr_produce_push(q, spans, n_spans, &o, ticket);
}

weir_status weir_queue_get(
    weir_queue *q, int64_t key, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    WR_NVTX_RANGE("acquire", 0);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_want want = {.by_key = true, .which = key};
    if (q->kind != WEIR_ORDER_KEYED || q->sharing == WEIR_CONSUMERS_SHARED)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "get asks for a key: the queue has none, or registered consumers");
    else
        s = wr_consume_acquire(q, &want, stream, timeout_ns, item);
    return wr_queue_leave(q, s);
}

static weir_status check_peek(const weir_queue *q, int64_t which)
{
    if (q->sharing == WEIR_CONSUMERS_BROADCAST)
        return wr_fail(WEIR_INVALID_ARGUMENT, "peek is not for BROADCAST queues: all get all items");
    if (q->kind == WEIR_ORDER_KEYED) return WEIR_OK;
    bool one = q->kind != WEIR_ORDER_FIFO || q->sharing == WEIR_CONSUMERS_LATEST;
    if (which < 0 || which >= (int64_t)(one ? 1 : q->slots.n))
        return wr_fail(WEIR_INVALID_ARGUMENT, "no item can be number %lld", (long long)which);
    return WEIR_OK;
}

weir_status weir_queue_peek(
    weir_queue *q, int64_t which, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    WR_NVTX_RANGE("acquire", 0);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_want want = {.peeks = true, .by_key = q->kind == WEIR_ORDER_KEYED, .which = which};
    s = check_peek(q, which);
    if (s == WEIR_OK) s = wr_consume_acquire(q, &want, stream, timeout_ns, item);
    return wr_queue_leave(q, s);
}

weir_status weir_queue_size(weir_queue *q, size_t *out)
{
    if (!out) return wr_fail(WEIR_INVALID_ARGUMENT, "no place for the size");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    size_t n = 0;
    for (const struct wr_place *p = q->order; p; p = p->next)
        n += p->state == WR_PLACE_READY;
    *out = n;
    return wr_queue_leave(q, WEIR_OK);
}
