/* SPDX-License-Identifier: Apache-2.0 */
#include "line.h"
#include "edges.h"

/* A poll is late by a sixteenth of the wait at most. A sleep costs up to 150 us of processor time on a loaded
 * virtual machine, whatever its length; ten seconds take some 190 of them. */
enum { POLL_SHARE = 16 };
static const uint64_t least_poll_ns = 20000, most_poll_ns = WR_NS_PER_SEC;
static const uint64_t host_nap_ns = WR_NS_PER_SEC; /* someone will wake us */

void wr_line_join(struct wr_waiter **line, struct wr_waiter *w, int64_t timeout_ns)
{
    *w = (struct wr_waiter){.timeout_ns = timeout_ns};
    pthread_cond_init(&w->wake, NULL);
    while (*line)
        line = &(*line)->next;
    *line = w;
}

void wr_line_leave(struct wr_waiter **line, struct wr_waiter *w)
{
    bool was_head = *line == w;
    struct wr_waiter **link = line;
    while (*link != w)
        link = &(*link)->next;
    *link = w->next;
    pthread_cond_destroy(&w->wake);
    if (was_head) wr_line_wake(*line);
}

void wr_line_wake(struct wr_waiter *line)
{
    if (line) pthread_cond_signal(&line->wake);
}

void wr_line_wake_all(struct wr_waiter *line)
{
    for (; line; line = line->next)
        pthread_cond_signal(&line->wake);
}

static const char *cause_text(enum wr_cause cause)
{
    static const char *const texts[] = {
#define CAUSE_TEXT(name, text) [WR_CAUSE_##name] = text,
        WR_CAUSE_MAP(CAUSE_TEXT)
#undef CAUSE_TEXT
    };
    return texts[cause];
}

static uint64_t nap_length(struct wr_waiter *w, uint64_t now, bool polls)
{
    if (!polls) {
        w->polls_since = 0;
        return host_nap_ns;
    }
    if (w->polls_since == 0) w->polls_since = now;
    uint64_t share = (now - w->polls_since) / POLL_SHARE;
    return wr_min(wr_max(share, least_poll_ns), most_poll_ns);
}

weir_status wr_line_doze(
    struct wr_waiter *w, struct wr_device *d, struct wr_lock *held, enum wr_cause cause, bool polls)
{
    assert(cause != WR_CAUSE_NOTHING);
    weir_status over = wr_edges_check_device(d);
    if (over != WEIR_OK) return over;
    uint64_t now = d->ops->now_ns(d);
    if (w->cause == WR_CAUSE_NOTHING) {
        w->since = now;
        w->deadline = w->timeout_ns < 0 ? UINT64_MAX : now + (uint64_t)w->timeout_ns;
    }
    if (now >= w->deadline) {
        weir_status s = w->timeout_ns == 0 ? WEIR_WOULD_BLOCK : WEIR_TIMEOUT;
        return wr_fail(s, "it would have needed %s", cause_text(cause));
    }
    w->cause = cause;
    d->ops->doze(d, &w->wake, held, wr_min(nap_length(w, now, polls), w->deadline - now));
    return WEIR_OK;
}
