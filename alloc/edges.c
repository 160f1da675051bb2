/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. Three things end weir's right to call the driver, each at a moment that nobody here chooses:
 *
 *   exit        the driver's own handlers tear it down; static objects and other threads may still call us
 *   fork        the child has the tables but not the driver, nor the threads that held locks
 *   lost        a device was reset, or is in a sticky error: every handle on it is dead
 *
 * Each sets one flag, read in two places. The seam's fillings look before every op, so no path reaches the
 * driver: whatever it was doing fails, and nothing is undone. And the pools are told, which take on a state
 * that turns calls away before they take a lock: the hot path pays nothing, for it looks at that state
 * anyway. What is left is leaked on purpose.
 *
 * An op that was inside the driver when the flag was set ends there. Nobody waits for it: at exit that could
 * be for ever.
 */
#include "edges.h"

#include <stdlib.h>

_Atomic int wr_edges_over;

static _Atomic(struct wr_edges_watcher *) watchers;

weir_status wr_edges_refuse(weir_status s)
{
    if (s == WEIR_AFTER_FORK)
        return wr_fail(s, "a child of fork can't use what its parent opened: exec, or spawn instead");
    if (s == WEIR_CLOSED) return wr_fail(s, "the process is exiting");
    return wr_fail(s, "the device was reset or failed: close its pools, and open new ones");
}

static void tell(struct wr_device *d)
{
    for (struct wr_edges_watcher *w = atomic_load(&watchers); w != NULL; w = w->next)
        w->over(d);
}

static void note_exit(void)
{
    int alive = WEIR_OK;
    if (WR_FAULT(EDGE_EXIT_IGNORED)) return;
    if (atomic_compare_exchange_strong(&wr_edges_over, &alive, WEIR_CLOSED)) tell(NULL);
}

static void note_fork(void)
{
    if (WR_FAULT(EDGE_FORK_IGNORED)) return;
    atomic_store(&wr_edges_over, WEIR_AFTER_FORK);
    tell(NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

void wr_edges_arm(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    atexit(note_exit); /* again and again: the latest comes first */
}

void wr_edges_lose(struct wr_device *d)
{
    int alive = WEIR_OK;
    if (atomic_compare_exchange_strong(&d->gone, &alive, WEIR_CONTEXT_LOST)) tell(d);
}

void wr_edges_watch(struct wr_edges_watcher *w)
{
    if (atomic_exchange(&w->watching, true)) return;
    w->next = atomic_load(&watchers);
    while (!atomic_compare_exchange_weak(&watchers, &w->next, w)) {
    }
}
