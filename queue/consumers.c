/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered consumers of SHARED and BROADCAST queues: they join and leave, and may die in between, which
 * somebody else finds out and says by leave.
 */
#include "queue.h"
#include "nvtx.h"

/* A consumer's handle: queue, generation, number. */
static weir_consumer handle_of(const weir_queue *q, unsigned number)
{
    return (uint64_t)q->serial << 40 | (uint64_t)(q->consumer[number - 1].generation & UINT32_MAX) << 8 |
           number;
}

unsigned wr_consumers_find(const weir_queue *q, weir_consumer c)
{
    unsigned number = c & 0xff;
    if (number == 0 || number > WR_QUEUE_CONSUMERS || !q->consumer[number - 1].joined) return 0;
    return handle_of(q, number) == c ? number : 0;
}

static bool registers(const weir_queue *q)
{
    return q->sharing == WEIR_CONSUMERS_SHARED || q->sharing == WEIR_CONSUMERS_BROADCAST;
}

/* ---- join -------------------------------------------------------------------------------------------- */

/* Items committed while nobody was there are for the first one. */
static void owe_unread(weir_queue *q, uint64_t bit)
{
    for (struct wr_place *p = q->order; p; p = p->next)
        if (p->state == WR_PLACE_READY && p->owed == 0) p->owed = bit;
}

weir_status weir_queue_join(weir_queue *q, weir_consumer *out)
{
    if (!out) return wr_fail(WEIR_INVALID_ARGUMENT, "no place for the consumer");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    unsigned i = 0;
    while (i < WR_QUEUE_CONSUMERS && q->consumer[i].joined)
        i++;
    if (!registers(q))
        s = wr_fail(WEIR_INVALID_ARGUMENT, "consumers register with SHARED and BROADCAST queues alone");
    else if (i == WR_QUEUE_CONSUMERS)
        s = wr_fail(WEIR_TOO_LARGE, "%d consumers are registered, and no more can be", WR_QUEUE_CONSUMERS);
    if (s != WEIR_OK) return wr_queue_leave(q, s);
    q->consumer[i] = (struct wr_consumer){.joined = true, .generation = q->consumer[i].generation + 1};
    q->joined |= (uint64_t)1 << i;
    if (q->sharing == WEIR_CONSUMERS_BROADCAST) owe_unread(q, (uint64_t)1 << i);
    *out = handle_of(q, i + 1);
    return wr_queue_leave(q, WEIR_OK);
}

weir_status weir_queue_acquire_as(
    weir_queue *q, weir_consumer consumer, weir_stream stream, int64_t timeout_ns, weir_item *item)
{
    if (!item) return wr_fail(WEIR_INVALID_ARGUMENT, "the item is NULL");
    WR_NVTX_RANGE("acquire", 0);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    struct wr_want want = {.consumer = wr_consumers_find(q, consumer)};
    if (want.consumer == 0)
        s = wr_fail(WEIR_STALE_HANDLE, "no registered consumer, or it has left");
    else
        s = wr_consume_acquire(q, &want, stream, timeout_ns, item);
    return wr_queue_leave(q, s);
}

/* ---- leave ------------------------------------------------------------------------------------------- */

/* LOCK: held, given up meanwhile; so each search begins anew. False: it holds nothing. */
static bool find_held_by(weir_queue *q, unsigned number, struct wr_place **place, struct wr_hold **hold)
{
    for (unsigned i = 0; i < q->slots.n; i++)
        for (unsigned k = 0; k < WR_QUEUE_HOLDS && q->places[i].n_holds > 0; k++) {
            struct wr_hold *h = &q->places[i].holds[k];
            if (h->state != WR_HOLD_HELD || h->consumer != number) continue;
            *place = &q->places[i];
            *hold = h;
            return true;
        }
    return false;
}

static void forgive(weir_queue *q, unsigned number)
{
    uint64_t bit = (uint64_t)1 << (number - 1);
    for (struct wr_place *p = q->order, *next; p; p = next) {
        next = p->next;
        if (p->state != WR_PLACE_READY || !(p->owed & bit)) continue;
        p->owed &= ~bit;
        if (p->owed == 0) wr_order_drop(q, p);
    }
}

weir_status weir_queue_leave(weir_queue *q, weir_consumer consumer)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    unsigned number = wr_consumers_find(q, consumer);
    if (number == 0)
        return wr_queue_leave(q, wr_fail(WEIR_STALE_HANDLE, "no registered consumer, or it has left"));
    struct wr_place *p;
    struct wr_hold *h;
    q->joined &= ~((uint64_t)1 << (number - 1)); /* its acquires return; what is on its way comes back */
    forgive(q, number);
    wr_line_wake_all(q->consumers);
    while (s == WEIR_OK && find_held_by(q, number, &p, &h))
        s = wr_consume_release(q, p, h, NULL, 0);
    if (s == WEIR_OK && wr_consumers_find(q, consumer) == number) {
        wr_bell_close(&q->consumer[number - 1].bell);
        q->consumer[number - 1].joined = false;
    }
    return wr_queue_leave(q, s);
}
