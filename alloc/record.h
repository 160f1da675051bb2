/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace recorder. WEIR_TRACE=FILE in the environment when the process's first pool opens: every alloc and
 * free of the process goes to FILE, as lines t_us,op,id,bytes,stream in the order of the calls; bench/replay
 * reads it.
 */
#ifndef WR_RECORD_H
#define WR_RECORD_H

#include "base.h"

/* Off: one read, of a line that nobody writes. */
extern _Atomic bool wr_record_on;

static inline bool wr_record_is_on(void)
{
    return WR_UNLIKELY(atomic_load_explicit(&wr_record_on, memory_order_relaxed));
}

void wr_record_open(void); /* looks at the environment, once */

/* After an alloc that succeeded, before its address is given out. */
void wr_record_alloc(weir_dptr block, size_t bytes, weir_stream s);
/* Before a free: after it another thread may get the address. Unknown addresses are ignored. */
void wr_record_free(weir_dptr block);

void wr_record_flush(void); /* what is buffered goes to the file; at exit it does by itself */

#endif
