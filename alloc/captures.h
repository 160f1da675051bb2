/* SPDX-License-Identifier: Apache-2.0
 *
 * The graph captures in progress that weir knows of. The driver can't be asked whether any stream of a context
 * captures, and some calls would break the capture of a stream that they don't even name: recording an event
 * on the whole context does (measured), and freeing memory may. So each capture is noted when a call of ours
 * meets it, and asked about, stream by stream, before such a call. A capture that has met none of our calls is
 * not known here.
 */
#ifndef WR_CAPTURES_H
#define WR_CAPTURES_H

#include "device.h"

/* The stream `s` of `d` is part of capture `id`. False: no host memory. PAIRS: forget. */
bool wr_captures_note(struct wr_device *d, weir_stream s, uint64_t id);
void wr_captures_forget(struct wr_device *d, weir_stream s, uint64_t id);

/* Noted and not seen to have ended. 0 says for sure that none goes on that is known. */
extern _Atomic uint32_t wr_captures_going;

static inline bool wr_captures_maybe(void)
{
    return atomic_load_explicit(&wr_captures_going, memory_order_relaxed) != 0;
}

/* The capture that the stream is known to be part of; 0: none. Reads of the driver. */
uint64_t wr_captures_of(weir_stream s);

/* `s` will be destroyed: it is not asked about any more. */
void wr_captures_forget_stream(struct wr_device *d, weir_stream s);

/* The calling thread ends, and its default stream with it. */
void wr_captures_end_thread(void);

/* Does any capture go on, as far as known? Of a per-thread default stream of another thread, which nobody else
 * can ask about: yes, until it is forgotten. Reads of the driver, and no lock held meanwhile. */
bool wr_captures_any(struct wr_device *d);

/* Does this one? Where it can't be asked about, the caller is believed: no. */
bool wr_captures_goes_on(struct wr_device *d, weir_stream s, uint64_t id);

#endif
