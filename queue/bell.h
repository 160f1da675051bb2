/* SPDX-License-Identifier: Apache-2.0
 *
 * Bells: what pollers see of a queue. A bell is an eventfd that is readable while something is so. It is opened
 * when somebody asks for it, and looked after at the end of each call: see wr_bell_update.
 *
 * The queue keeps one descriptor, and gives out duplicates, which outlive it: a poller must not find another
 * file under its number one day.
 */
#ifndef WR_BELL_H
#define WR_BELL_H

#include "weir_queue.h"

#include <stdbool.h>

struct wr_bell {
    bool open, rings;
    int fd;
};

/* LOCK of all: the queue's. No driver call: a write to an eventfd that nobody reads never blocks. */
weir_status wr_bell_give_out(struct wr_bell *b, int *out);
void wr_bell_ring(struct wr_bell *b, bool rings);
void wr_bell_close(struct wr_bell *b); /* rings for good */

/* Every bell of the queue rings, or not, as things stand. */
void wr_bell_update(weir_queue *q);
void wr_bell_close_all(weir_queue *q);

#endif
