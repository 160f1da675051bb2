/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <fcntl.h>
#include <unistd.h>

static weir_status fail_errno(const char *what)
{
    return wr_fail(WEIR_NO_HOST_MEMORY, "no file descriptor: %s failed with errno %d", what, errno);
}

weir_status wr_bell_give_out(struct wr_bell *b, int *out)
{
    if (!b->open) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0) return fail_errno("eventfd");
        *b = (struct wr_bell){.open = true, .fd = fd};
    }
    int copy = fcntl(b->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return fail_errno("dup");
    *out = copy;
    return WEIR_OK;
}

void wr_bell_ring(struct wr_bell *b, bool rings)
{
    eventfd_t count;
    if (!b->open || b->rings == rings) return;
    int error = rings ? eventfd_write(b->fd, 1) : eventfd_read(b->fd, &count);
    if (error && errno != EAGAIN) return; /* somebody closed it under us: nobody to tell */
    b->rings = rings;
}

void wr_bell_close(struct wr_bell *b)
{
    if (!b->open) return;
    wr_bell_ring(b, true);
    close(b->fd);
    *b = (struct wr_bell){0};
}

/* ---- the queue's ------------------------------------------------------------------------------------- */

static bool would_acquire(const weir_queue *q, unsigned consumer)
{
    struct wr_want want = {.consumer = consumer};
    if (q->destroyed || wr_ends_over(q, &want)) return true;
    bool turn = q->sharing != WEIR_CONSUMERS_STRICT || q->n_held == 0;
    return turn && wr_order_next(q, &want);
}

static bool has_room(const weir_queue *q)
{
    if (q->destroyed || !wr_queue_takes(q)) return true;
    if (q->n_used >= q->high) return false;
    return q->room.rings || q->n_used < q->low;
}

void wr_bell_update(weir_queue *q)
{
    if (q->room.open) wr_bell_ring(&q->room, has_room(q));
    if (q->items.open) wr_bell_ring(&q->items, would_acquire(q, 0));
    for (unsigned i = 0; i < WR_QUEUE_CONSUMERS && q->joined >> i; i++)
        if (q->consumer[i].bell.open) wr_bell_ring(&q->consumer[i].bell, would_acquire(q, i + 1));
}

void wr_bell_close_all(weir_queue *q)
{
    wr_bell_close(&q->room);
    wr_bell_close(&q->items);
    for (unsigned i = 0; i < WR_QUEUE_CONSUMERS; i++)
        wr_bell_close(&q->consumer[i].bell);
}

weir_status weir_queue_eventfd(weir_queue *q, weir_poll what, weir_consumer consumer, int *out)
{
    if (!out || (what != WEIR_POLL_ITEM && what != WEIR_POLL_ROOM) || (consumer && what == WEIR_POLL_ROOM))
        return wr_fail(WEIR_INVALID_ARGUMENT, "no such thing to poll, or no place for the descriptor");
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    bool registered = q->sharing == WEIR_CONSUMERS_SHARED || q->sharing == WEIR_CONSUMERS_BROADCAST;
    unsigned number = wr_consumers_find(q, consumer);
    struct wr_bell *bell = what == WEIR_POLL_ROOM ? &q->room : &q->items;
    if (what == WEIR_POLL_ITEM && registered != (consumer != 0))
        s = wr_fail(WEIR_INVALID_ARGUMENT, "a consumer is named if consumers of the queue are registered");
    else if (consumer && number == 0)
        s = wr_fail(WEIR_STALE_HANDLE, "the consumer has left");
    else if (number > 0)
        bell = &q->consumer[number - 1].bell;
    if (s == WEIR_OK) s = wr_bell_give_out(bell, out);
    return wr_queue_leave(q, s);
}
