/* SPDX-License-Identifier: Apache-2.0
 *
 * How a queue ends, and how it empties: close, poison, cancel, wait_idle. See queue.h. (Destroy is queue.c's.)
 */
#include "queue.h"

#include <stdio.h>

weir_status wr_ends_refuse(const weir_queue *q)
{
    if (q->destroyed) return wr_fail(WEIR_CLOSED, "the queue is destroyed");
    if (q->poisoned)
        return wr_fail(
            WEIR_POISONED, "the source failed with %lld: %s", (long long)q->poison, q->poison_text);
    return wr_fail(WEIR_CLOSED, "the queue is closed");
}

bool wr_ends_over(const weir_queue *q, const struct wr_want *want)
{
    if (q->destroyed) return true;
    if (q->n_delivering > 0) return false; /* it may come back */
    if (q->poisoned) return !wr_order_next(q, want);
    return q->closed && !wr_order_expects(q, want);
}

weir_status weir_queue_close(weir_queue *q)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->closed) return wr_queue_leave(q, wr_fail(WEIR_CLOSED, "the queue was closed before"));
    q->closed = true;
    wr_queue_wake_all(q);
    return wr_queue_leave(q, WEIR_OK);
}

/* ---- poison ------------------------------------------------------------------------------------------ */

weir_status weir_queue_poison(weir_queue *q, int64_t code, const char *text)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->poisoned) return wr_queue_leave(q, wr_ends_refuse(q));
    snprintf(q->poison_text, sizeof q->poison_text, "%s", text ? text : "");
    q->poison = code;
    q->poisoned = true;
    wr_queue_wake_all(q);
    return wr_queue_leave(q, WEIR_OK);
}

/* The text is written once, before anybody is told of it. */
weir_status weir_queue_poisoned(weir_queue *q, int64_t *code, const char **text)
{
    if (!q) return wr_fail(WEIR_INVALID_ARGUMENT, "the queue is NULL");
    wr_lock_take(&q->lock);
    bool poisoned = q->poisoned;
    wr_lock_give(&q->lock);
    if (!poisoned) return wr_fail(WEIR_INVALID_ARGUMENT, "the queue is not poisoned");
    if (code) *code = q->poison;
    if (text) *text = q->poison_text;
    return WEIR_OK;
}

/* ---- cancel ------------------------------------------------------------------------------------------ */

/* True: it was one to cancel. A COPYING one is dropped by its commit, which is under way. */
static bool cancel(weir_queue *q, struct wr_place *p)
{
    if (p->cancelled || !p->listed || p->state == WR_PLACE_TAKEN) return false;
    q->stats.items_cancelled++;
    if (p->state == WR_PLACE_READY) {
        wr_order_drop(q, p);
    } else {
        wr_order_remove(q, p);
        p->cancelled = true;
        if (WR_FAULT(QUEUE_CANCEL_TAKES_STAGING)) wr_produce_drop(q, p);
    }
    return true;
}

weir_status weir_queue_cancel(weir_queue *q, uint64_t ticket)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    bool any = ticket == 0;
    for (struct wr_place *p = q->order, *next; p; p = next) {
        next = p->next;
        if (ticket == 0 || p->ticket == ticket) any |= cancel(q, p);
    }
    wr_queue_wake_consumers(q); /* the next one may be READY, or there is none to come */
    return wr_queue_leave(q, any ? WEIR_OK : wr_queue_fail_stale(ticket, "waiting for a consumer"));
}

weir_status weir_queue_clear(weir_queue *q)
{
    return weir_queue_cancel(q, 0);
}

/* ---- idle -------------------------------------------------------------------------------------------- */

static bool drains(const struct wr_slots *s)
{
    for (unsigned i = 0; i < s->n; i++)
        if (wr_slots_pending(&s->at[i])) return true;
    return false;
}

weir_status weir_queue_wait_idle(weir_queue *q, int64_t timeout_ns)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_waiter me;
    wr_line_join(&q->idlers, &me, timeout_ns);
    while (s == WEIR_OK) {
        if (drains(&q->pinned)) wr_queue_poll_copies(q);
        if (drains(&q->slots)) wr_queue_poll_readers(q);
        bool polls = drains(&q->pinned) || drains(&q->slots);
        if (q->destroyed)
            s = wr_ends_refuse(q);
        else if (q->n_used == 0 && !polls)
            break;
        else
            s = wr_queue_doze(q, &me, WR_CAUSE_IDLE, polls);
    }
    wr_queue_leave_line(q, &q->idlers, &me);
    return wr_queue_leave(q, s);
}
