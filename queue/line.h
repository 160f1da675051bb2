/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of callers that wait their turn, in the order of arrival. Only the head of a line acts; whoever
 * leaves the head wakes the next. A waiter lives on its caller's stack.
 *
 * Waiting for another caller is a long sleep with a wake-up. Waiting for the GPU is a sleep that grows with
 * the time waited so far, since nobody wakes us there: weir has no thread of its own and no callbacks in the
 * driver.
 *
 * LOCK: the lock given to doze guards the line; every call here is made under it.
 */
#ifndef WR_LINE_H
#define WR_LINE_H

#include "device.h"

/* name, what a caller that gives up would have needed */
#define WR_CAUSE_MAP(X)                                                                                      \
    X(NOTHING, "nothing")                                                                                    \
    X(SLOT, "a slot that no consumer holds")                                                                 \
    X(PINNED, "a pinned buffer whose copy is done")                                                          \
    X(ITEM, "a committed item")                                                                              \
    X(COPY, "the end of the copies that read the lent spans")                                                \
    X(TURN, "the release of the item before")                                                                \
    X(IDLE, "every item over, and the GPU past its last use")                                                \
    X(TRANSFER, "the end of the copy")                                                                       \
    X(RATIO, "rows written, for the ratio of samples")                                                       \
    X(AFTER, "the end of the work that the copy comes after")

enum wr_cause {
#define WR_CAUSE_ENUM(name, text) WR_CAUSE_##name,
    WR_CAUSE_MAP(WR_CAUSE_ENUM)
#undef WR_CAUSE_ENUM
};

struct wr_waiter {
    struct wr_waiter *next;
    pthread_cond_t wake;
    int64_t timeout_ns;
    uint64_t since, deadline; /* from the first sleep on: who needs none needs no clock */
    uint64_t polls_since;     /* 0: it waits for another caller, not for the GPU */
    enum wr_cause cause;      /* what it slept for last; NOTHING: it has not slept */
};

/* PAIRS: join, leave. */
void wr_line_join(struct wr_waiter **line, struct wr_waiter *w, int64_t timeout_ns);
void wr_line_leave(struct wr_waiter **line, struct wr_waiter *w);

void wr_line_wake(struct wr_waiter *line); /* the head */
void wr_line_wake_all(struct wr_waiter *line);

/* Sleeps a while. OK: look again. Errors: WOULD_BLOCK, TIMEOUT. LOCK: given up while asleep. */
weir_status wr_line_doze(
    struct wr_waiter *w, struct wr_device *d, struct wr_lock *held, enum wr_cause cause, bool polls);

#endif
