/* SPDX-License-Identifier: Apache-2.0
 *
 * The crew: a few threads that help to copy host memory. One thread fills pinned memory at 9 GB/s, eight at 49, sixteen
 * at 68; the bus takes 55 (measured on an H200's host; bench/staging.c).
 */
#ifndef WR_CREW_H
#define WR_CREW_H

#include "base.h"

struct wr_haul { /* one copy on the host, or rows of it */
    void *to;
    const void *from;
    size_t bytes, rows, to_pitch, from_pitch;
};

/* Copies all of them; they don't overlap. The calling thread works, too: it would go on without helpers, and
 * waits for none that is not in the middle of a copy. `fresh`: they may be the first to touch what they write. No
 * lock is held. */
void wr_crew_haul(const struct wr_haul *hauls, size_t n, bool fresh);

/* The same in two steps, for an owner who has more: from begin on helpers may work, until end they may still, and the
 * job and the hauls stay where they are. PAIRS: each begin has its end. */
struct wr_crew_job { /* crew.c's */
    struct wr_crew_job *next;
    const struct wr_haul *hauls;
    size_t n, slice_bytes;
    _Atomic size_t taken; /* slices */
    unsigned helpers;     /* in it; guarded by the crew's lock */
    bool shared;          /* helpers know of it */
};
void wr_crew_begin(struct wr_crew_job *j, const struct wr_haul *hauls, size_t n, bool fresh);
void wr_crew_end(struct wr_crew_job *j);

/* Advice for fresh pageable memory that will be written: huge pages, a fault for each 2 MiB. */
void wr_crew_advise(void *to, size_t bytes);

/* At most so many hands from now on, for measuring what each brings. */
void wr_crew_restrict(unsigned hands);

unsigned wr_crew_hands(void); /* threads that a large haul may have, the caller's own included */

#endif
