/* SPDX-License-Identifier: Apache-2.0
 *
 * When the spans lent to a push are their owner's again.
 */
#include "queue.h"

/* The copies that read what that push lent. A hop's are followed by the copy stream's; should that have failed, the
 * hop tells by itself. */
struct loan {
    uint64_t copy, hop; /* stamps */
};

static weir_status find_loan(const weir_queue *q, uint64_t ticket, struct loan *out)
{
    if (ticket > q->n_tickets)
        return wr_fail(WEIR_INVALID_ARGUMENT, "ticket %llu was never given out", (unsigned long long)ticket);
    out->copy = wr_copy_lent_until(&q->lent, ticket);
    out->hop = q->origin.staged ? wr_fence_stamp(q->origin.hop.fence) : 0;
    return WEIR_OK;
}

static bool is_over(const weir_queue *q, struct loan l)
{
    bool hop = !q->origin.staged || wr_fence_passed(q->origin.hop.fence, l.hop);
    return hop && wr_fence_passed(q->copier.fence, l.copy);
}

weir_status weir_queue_borrowed(weir_queue *q, uint64_t ticket, int64_t timeout_ns)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct loan l = {0};
    s = find_loan(q, ticket, &l);
    if (s != WEIR_OK) return wr_queue_leave(q, s);
    struct wr_waiter me;
    wr_line_join(&q->lenders, &me, timeout_ns);
    while (s == WEIR_OK) {
        if (!is_over(q, l)) wr_queue_poll_copies(q);
        if (is_over(q, l)) break;
        s = q->destroyed ? wr_ends_refuse(q) : wr_queue_doze(q, &me, WR_CAUSE_COPY, true);
    }
    wr_queue_leave_line(q, &q->lenders, &me);
    return wr_queue_leave(q, s);
}

static weir_status wait_for_copies(const struct wr_copier *c, uint64_t stamp, weir_stream stream)
{
    weir_status s = wr_fence_cover(c->fence, stamp);
    return s == WEIR_OK ? wr_mark_wait((struct wr_mark){c->fence, stamp}, stream) : s;
}

weir_status weir_queue_borrowed_by(weir_queue *q, uint64_t ticket, weir_stream stream)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct loan l = {0};
    s = find_loan(q, ticket, &l);
    if (s != WEIR_OK || WR_FAULT(QUEUE_BORROWED_SKIPS_WAIT)) return wr_queue_leave(q, s);
    wr_lock_give(&q->lock);
    if (q->origin.staged) s = wait_for_copies(&q->origin.hop, l.hop, stream);
    if (s == WEIR_OK) s = wait_for_copies(&q->copier, l.copy, stream);
    wr_lock_take(&q->lock);
    return wr_queue_leave(q, s);
}
