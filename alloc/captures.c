/* SPDX-License-Identifier: Apache-2.0 */
#include "captures.h"

#include <stdlib.h>

#define STREAM_PER_THREAD ((weir_stream)2) /* CU_STREAM_PER_THREAD */

struct capture {
    struct capture *next;
    struct wr_device *device;
    weir_stream stream;
    pthread_t thread; /* that noted it */
    uint64_t id, number;
    unsigned notes; /* by several pools */
    bool ended;     /* seen to have ended: the handle is not named again */
};

/* LOCK: a leaf; guards the list and its entries. */
static struct wr_lock lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static struct capture *captures; /* newest first, numbers falling */
_Atomic uint32_t wr_captures_going;

/* LOCK: held, as for all with that ending. */
static void end_locked(struct capture *c)
{
    if (!c->ended) atomic_fetch_sub(&wr_captures_going, 1);
    c->ended = true;
}

static struct capture **find_locked(struct wr_device *d, weir_stream s, uint64_t id)
{
    struct capture **link = &captures;
    while (*link != NULL && !((*link)->device == d && (*link)->stream == s && (*link)->id == id))
        link = &(*link)->next;
    return link;
}

bool wr_captures_note(struct wr_device *d, weir_stream s, uint64_t id)
{
    static uint64_t last_number;
    wr_lock_take(&lock);
    struct capture *c = *find_locked(d, s, id);
    if (c == NULL && (c = calloc(1, sizeof *c)) != NULL) {
        *c = (struct capture){.next = captures,
            .device = d,
            .stream = s,
            .thread = pthread_self(),
            .id = id,
            .number = ++last_number};
        captures = c;
        atomic_fetch_add(&wr_captures_going, 1);
    }
    if (c != NULL) c->notes++;
    wr_lock_give(&lock);
    return c != NULL;
}

void wr_captures_forget(struct wr_device *d, weir_stream s, uint64_t id)
{
    wr_lock_take(&lock);
    struct capture **link = find_locked(d, s, id), *c = *link;
    if (c != NULL && --c->notes == 0) {
        *link = c->next;
        end_locked(c);
        free(c);
    }
    wr_lock_give(&lock);
}

void wr_captures_forget_stream(struct wr_device *d, weir_stream s)
{
    wr_lock_take(&lock);
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (c->device == d && c->stream == s) end_locked(c);
    wr_lock_give(&lock);
}

static bool is_foreign(const struct capture *c)
{
    return c->stream == STREAM_PER_THREAD && !pthread_equal(c->thread, pthread_self());
}

void wr_captures_end_thread(void)
{
    wr_lock_take(&lock);
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (c->stream == STREAM_PER_THREAD && !is_foreign(c)) end_locked(c);
    wr_lock_give(&lock);
}

static void note_end(const struct capture *gone)
{
    wr_lock_take(&lock);
    struct capture *c = *find_locked(gone->device, gone->stream, gone->id);
    if (c != NULL) end_locked(c);
    wr_lock_give(&lock);
}

/* Off the lock. A stream that can't be asked any more captures nothing. */
static bool goes_on(const struct capture *c)
{
    uint64_t id = 0;
    if (is_foreign(c)) return true;
    if (c->device->ops->stream_capture(c->device, c->stream, &id) == WEIR_OK && id == c->id) return true;
    note_end(c);
    return false;
}

/* The newest of the device older than `number` that is not known to have ended. */
static bool next_of(struct wr_device *d, uint64_t number, struct capture *out)
{
    wr_lock_take(&lock);
    struct capture *c = captures;
    while (c != NULL && (c->device != d || c->ended || c->number >= number))
        c = c->next;
    if (c != NULL) *out = *c;
    wr_lock_give(&lock);
    return c != NULL;
}

bool wr_captures_any(struct wr_device *d)
{
    if (!wr_captures_maybe() || WR_FAULT(CAPTURE_UNHEEDED)) return false;
    struct capture c = {.number = UINT64_MAX};
    while (next_of(d, c.number, &c))
        if (goes_on(&c)) return true;
    return false;
}

bool wr_captures_goes_on(struct wr_device *d, weir_stream s, uint64_t id)
{
    wr_lock_take(&lock);
    struct capture *found = *find_locked(d, s, id), c = {0};
    bool known = found != NULL && !found->ended && !is_foreign(found);
    if (known) c = *found;
    wr_lock_give(&lock);
    return known && goes_on(&c);
}

/* Of two that name the stream, by pools of two devices, either will do: the driver says whether it goes on. */
uint64_t wr_captures_of(weir_stream s)
{
    wr_lock_take(&lock);
    struct capture *found = captures, c = {0};
    while (found != NULL && (found->stream != s || found->ended || is_foreign(found)))
        found = found->next;
    if (found != NULL) c = *found;
    wr_lock_give(&lock);
    return c.id != 0 && goes_on(&c) ? c.id : 0;
}
