/* SPDX-License-Identifier: Apache-2.0
 *
 * Timelines: when each item of a queue was copied, and when it was in use, by the device's own clock. Events with
 * timing stand before and behind; once the device has passed them, the span between is noted. Written as JSON in the
 * trace-event format, which Perfetto and chrome://tracing open: a track for each stream.
 *
 * Never waits, and never fails a call of the queue's: what can't be measured is counted as lost.
 *
 * LOCK: of its own. The queue's lock is not held here, since events are driver calls.
 */
#ifndef WR_TIMELINE_H
#define WR_TIMELINE_H

#include "device.h"

struct wr_timeline;
struct wr_span;

/* A file that is written at close. `path` NULL: $WEIR_TIMELINE; of a process's further queues .2, .3 and so on
 * behind it. *out NULL: neither is given. `stream` is idle. INVALID_ARGUMENT: `path` can't be written. */
weir_status wr_timeline_open(
    struct wr_device *d, weir_stream stream, const char *path, struct wr_timeline **out);

/* What the device has passed by now is written; the rest is lost. NULL is fine here and below. */
void wr_timeline_close(struct wr_timeline *t);

enum wr_span_kind { WR_SPAN_COPY, WR_SPAN_USE };

/* From this point of the stream on. NULL: not measured. */
struct wr_span *wr_timeline_begin(
    struct wr_timeline *t, enum wr_span_kind kind, uint64_t ticket, uint64_t bytes, weir_stream stream);
/* To this point. The span is not the caller's any more. PAIRS: begin, or forget. */
void wr_timeline_end(struct wr_timeline *t, struct wr_span *s, weir_stream stream);
void wr_timeline_forget(struct wr_timeline *t, struct wr_span *s);

#endif
