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
