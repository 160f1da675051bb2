/* SPDX-License-Identifier: Apache-2.0
 *
 * The edges of a process and of a device: exit, fork, a context that is lost. See edges.c.
 */
#ifndef WR_EDGES_H
#define WR_EDGES_H

#include "device.h"

/* A weir_status: OK while the process lives; CLOSED once it exits; AFTER_FORK in a forked child. */
extern _Atomic int wr_edges_over;

weir_status wr_edges_refuse(weir_status s) __attribute__((cold)); /* words it */

/* May weir still do anything in this process? One relaxed load. */
static inline weir_status wr_edges_check(void)
{
    int s = atomic_load_explicit(&wr_edges_over, memory_order_relaxed);
    return WR_LIKELY(s == WEIR_OK) ? WEIR_OK : wr_edges_refuse((weir_status)s);
}

/* And on this device? The fillings ask at each op's entry, so that no path whatever reaches the driver. */
static inline weir_status wr_edges_check_device(struct wr_device *d)
{
    weir_status s = wr_edges_check();
    if (WR_UNLIKELY(s != WEIR_OK) || WR_FAULT(EDGE_LOST_IGNORED)) return s;
    s = (weir_status)atomic_load_explicit(&d->gone, memory_order_relaxed);
    return WR_LIKELY(s == WEIR_OK) ? WEIR_OK : wr_edges_refuse(s);
}

/* Has the handlers of exit and fork registered. Called before a device is opened and after: handlers run last
 * registered first, so that ours come before the driver's own. */
void wr_edges_arm(void);

/* For the fillings: the device's context is gone, for good; a new struct wr_device may take its place. No
 * lock is held. */
void wr_edges_lose(struct wr_device *d);

/* Who wants to be told, once, of each edge. `d`: that device is lost; NULL: the process is over. In the
 * second case other threads may hold any lock, and in a forked child will hold it for ever: take none then. */
struct wr_edges_watcher {
    void (*over)(struct wr_device *d);
    struct wr_edges_watcher *next;
    _Atomic bool watching;
};
void wr_edges_watch(struct wr_edges_watcher *w);

#endif
