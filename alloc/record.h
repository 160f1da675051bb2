/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace recorder. WEIR_TRACE=FILE in the environment when the process's first pool opens: every alloc and
 * free of the process goes to FILE, which bench/replay reads. See record.c.
 */
#ifndef WR_RECORD_H
#define WR_RECORD_H

#include "base.h"

/* The file: WR_RECORD_MAGIC, then events of the machine's own byte order, each thread's in its order but all
 * together in none: the reader sorts them by `order`. */
#define WR_RECORD_MAGIC "weirtrc\1"

struct wr_record_event {
    uint64_t order; /* over all threads: of calls about one address, that of the calls */
    uint64_t t_ns;  /* since the recording began */
    uint64_t address;
    uint64_t bytes;  /* as asked; 0: a free, of whatever the address holds, or of nothing if it was refused */
    uint64_t stream; /* handle; of allocs */
};

/* Off: one read, of a line that nobody writes. */
extern _Atomic bool wr_record_on;

static inline bool wr_record_is_on(void)
{
    return WR_UNLIKELY(atomic_load_explicit(&wr_record_on, memory_order_relaxed));
}

void wr_record_open(void); /* looks at the environment, once */

/* After an alloc that succeeded, before its address is given out. */
void wr_record_alloc(weir_dptr block, size_t bytes, weir_stream s);
/* Before a free: after it another thread may get the address. */
void wr_record_free(weir_dptr block);

void wr_record_flush(void); /* what is buffered goes to the file; at exit it does by itself */

#endif
