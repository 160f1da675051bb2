/* SPDX-License-Identifier: Apache-2.0
 *
 * Which item is next, and for whom. All of it under the queue's lock.
 *
 * The list has every place that somebody is still to be delivered to, in the order of reserve, those included
 * that are being filled. A choice walks it: there are 1024 places at most, and a handful as a rule.
 */
#include "queue.h"

/* ---- the list ---------------------------------------------------------------------------------------- */

void wr_order_insert(weir_queue *q, struct wr_place *p)
{
    assert(!p->listed);
    struct wr_place **link = &q->order;
    while (*link && (*link)->ticket < p->ticket)
        link = &(*link)->next;
    p->next = *link;
    p->listed = true;
    *link = p;
}

void wr_order_remove(weir_queue *q, struct wr_place *p)
{
    assert(p->listed);
    struct wr_place **link = &q->order;
    while (*link != p)
        link = &(*link)->next;
    *link = p->next;
    p->next = NULL;
    p->listed = false;
}

/* ---- choosing ---------------------------------------------------------------------------------------- */

static uint64_t bit_of(unsigned consumer)
{
    return (uint64_t)1 << (consumer - 1);
}

/* Would the item be for such a consumer, once it is committed? */
static bool concerns(const weir_queue *q, const struct wr_place *p, const struct wr_want *want)
{
    if (want->by_key && p->key != want->which) return false;
    if (q->sharing != WEIR_CONSUMERS_BROADCAST || p->state != WR_PLACE_READY) return true;
    return want->consumer && (p->owed & bit_of(want->consumer));
}

/* Of two that are READY, the second of them reserved later. */
static bool goes_before(const weir_queue *q, const struct wr_place *later, const struct wr_place *first)
{
    if (q->sharing == WEIR_CONSUMERS_LATEST) return true;
    if (q->kind == WEIR_ORDER_PRIORITY) return later->key > first->key;
    return later->committed < first->committed;
}

/* In these orders an item that is being filled holds back those behind it: unless its producer's source is
 * known to have failed. */
static bool keeps_order(const weir_queue *q, const struct wr_want *want)
{
    if (q->poisoned || q->sharing == WEIR_CONSUMERS_LATEST) return false;
    return q->kind == WEIR_ORDER_FIFO || want->by_key;
}

struct wr_place *wr_order_next(const weir_queue *q, const struct wr_want *want)
{
    bool first_wins = q->sharing != WEIR_CONSUMERS_LATEST && (q->kind == WEIR_ORDER_FIFO || want->by_key);
    int64_t skip = want->peeks && !want->by_key ? want->which : 0;
    struct wr_place *best = NULL;
    for (struct wr_place *p = q->order; p; p = p->next) {
        if (!concerns(q, p, want)) continue;
        if (p->state != WR_PLACE_READY) {
            if (keeps_order(q, want)) return NULL;
            continue;
        }
        if (first_wins && skip-- == 0) return p;
        if (!first_wins && (!best || goes_before(q, p, best))) best = p;
    }
    return best;
}

bool wr_order_expects(const weir_queue *q, const struct wr_want *want)
{
    int64_t skip = want->peeks && !want->by_key ? want->which : 0;
    for (const struct wr_place *p = q->order; p; p = p->next)
        if (concerns(q, p, want) && skip-- == 0) return true;
    return false;
}

bool wr_order_claimed(const weir_queue *q, const struct wr_consumer_waiter *me, const struct wr_place *p)
{
    for (const struct wr_waiter *w = q->consumers; w != &me->line; w = w->next) {
        const struct wr_want *other = WR_CONTAINER_OF(w, const struct wr_consumer_waiter, line)->want;
        if (!other->peeks && concerns(q, p, other)) return true;
    }
    return false;
}

bool wr_order_has_key(const weir_queue *q, int64_t key)
{
    for (unsigned i = 0; i < q->slots.n; i++)
        if (q->places[i].state != WR_PLACE_FREE && q->places[i].key == key) return true;
    return false;
}

/* ---- commits and ends of items ----------------------------------------------------------------------- */

void wr_order_end_if_over(weir_queue *q, struct wr_place *p)
{
    if (p->state != WR_PLACE_READY || p->listed || p->n_holds > 0) return;
    if (!p->delivered) { /* no reader's mark says that the copy is over */
        weir_status added = wr_slots_add_mark(p->slot, p->copied);
        assert(added == WEIR_OK); /* it is the only one */
        (void)added;
    }
    wr_queue_give_slot(q, p);
}

void wr_order_drop(weir_queue *q, struct wr_place *p)
{
    assert(p->state == WR_PLACE_READY && p->listed);
    wr_order_remove(q, p);
    p->owed = 0;
    wr_order_end_if_over(q, p);
}

/* The newest stays, whatever the order of the commits. */
static void replace_unread(weir_queue *q, struct wr_place *newer)
{
    if (newer->ticket < q->newest) {
        q->stats.items_replaced++;
        wr_order_drop(q, newer);
        return;
    }
    q->newest = newer->ticket;
    for (struct wr_place *p = q->order, *next; p != newer; p = next) {
        next = p->next;
        if (p->state != WR_PLACE_READY) continue;
        q->stats.items_replaced++;
        wr_order_drop(q, p);
    }
}

void wr_order_commit(weir_queue *q, struct wr_place *p)
{
    p->state = WR_PLACE_READY;
    p->committed = ++q->n_commits;
    if (q->sharing == WEIR_CONSUMERS_BROADCAST) p->owed = q->joined; /* none: the first to join */
    if (q->sharing == WEIR_CONSUMERS_LATEST) replace_unread(q, p);
    wr_queue_wake_consumers(q);
}

bool wr_order_drop_unread(weir_queue *q)
{
    for (struct wr_place *p = q->order; p; p = p->next) {
        if (p->state != WR_PLACE_READY || p->n_holds > 0) continue;
        q->stats.items_replaced++;
        wr_order_drop(q, p);
        return true;
    }
    return false;
}
