/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_seat: items of a queue for a step that is captured once, as a CUDA graph, and launched many times. A graph has
 * the addresses of its batch baked in; each launch is to find the next item there. Conventions: see weir.h.
 *
 *   once       open;  begin capture;  enter(stream) -> work on the address -> leave(stream);  end capture
 *   each step  next(the item)  ->  launch the graph
 *
 * The same step runs without a capture, too, as a warm-up does: next, then enter, work, leave on a stream that captures
 * nothing. weir_queue_acquire on a capturing stream stays CAPTURING, and harms no capture: an item taken once would be
 * read by every launch.
 *
 * TWO KINDS
 *   copied     (the default) The seat has memory of its own, of the queue's item_bytes. next copies the item there, on
 *              the device, and gives the slot back. One graph for all items; it costs a copy on the device.
 *   IN_PLACE   Items are read in their slots: no copy. Each slot has an address of its own, and so needs a graph of its
 *              own: look your graph up by item.device, and capture one where there is none yet. The slots are of full
 *              size (device_bytes not below items * item_bytes), or their addresses would change.
 *
 * WHAT WAITS FOR WHAT
 *   - A launch waits at enter's place for the item that next has given out before, and nothing else of it does.
 *   - What is copied over an item waits for leave's place of the launch made last: by a stream of the seat's own. So
 *     the rest of that launch goes on beside the copy.
 *   - The host waits for nothing but, in next, an item to be committed, as long as the timeout allows.
 *
 * WHAT THAT RESTS ON
 *   - An event recorded by a node: "Each launch of the graph will record event to capture execution of the node's
 *     dependencies" (CUDA driver API, cuGraphAddEventRecordNode). Waits queued after the launch are for that launch.
 *   - A node that waits takes the event as it stands at the launch, like cuStreamWaitEvent called in its place. The
 *     API's reference says "all work captured in event" and no more: conformance_graph tests it on each device.
 *   - Launches of one graph follow each other (cuGraphLaunch). Launches of several that share a seat are to be ordered
 *     by the caller: one stream is enough.
 *
 * YOURS TO KEEP
 *   - One launch for each next, after it and before the one that follows. The driver tells nobody of launches: an item
 *     that none has read is overwritten, or given back, by the next next; a launch without a next reads the item of the
 *     launch before (copied), or what may be under a copy (in place).
 *   - What is entered in a capture is left in it. Neither stands in the body of a conditional node, where the driver
 *     allows no event ("may not be used in loops or conditionals", cudaGraphAddEventWaitNode).
 *   - A graph is not launched after the seat is closed: its events are gone. (Destroy the graph first.)
 *   - One thread at a time calls a seat, as is so for a graph. A second is refused: INVALID_ARGUMENT. Producers and
 *     other consumers of the queue are not concerned.
 *
 * ENDS. A queue that is closed or poisoned says so in next; so does one destroyed, CLOSED. Its slots stay where they
 * are until the seat is closed, so that graphs may still be launched.
 */
#ifndef WEIR_GRAPH_H
#define WEIR_GRAPH_H

#include "weir_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_seat weir_seat;

enum { WEIR_SEAT_IN_PLACE = 1 << 0 };

typedef struct weir_seat_options {
    size_t struct_size;
    unsigned flags;
    weir_consumer consumer; /* as whom items are acquired, where consumers are registered; else 0. It
                             * leaves the queue after the seat is closed */
} weir_seat_options;

/* Opens a seat for items of that queue; a queue may have several, and each next takes an item for one. NULL options are
 * all defaults. Errors: INVALID_ARGUMENT (items go to the host; IN_PLACE: see there), CLOSED, OUT_OF_MEMORY, NOT_YET,
 * NO_HOST_MEMORY, DRIVER_ERROR. */
WEIR_API weir_status weir_seat_open(weir_queue *q, const weir_seat_options *options, weir_seat **out);

/* The next item takes the seat. *item says which it is, how many bytes it has and, in `device`, where; it is the seat's
 * to release. In place, the item before is given back first, whatever comes of the rest. After an error an item that
 * was taken is kept for the next call: none is lost.
 * Errors: those of weir_queue_acquire; INVALID_ARGUMENT (entered, and not left); DRIVER_ERROR, CONTEXT_LOST,
 * NO_HOST_MEMORY. */
WEIR_API weir_status weir_seat_next(weir_seat *s, int64_t timeout_ns, weir_item *item);

/* What `stream` does from here on reads the item, at *device: captured, the item of each launch; else the item there
 * is. More streams of the step follow by events of yours, or by an enter each. Errors: INVALID_ARGUMENT (no item has
 * the seat; captured and copied, it needs none yet; or it was entered outside of this capture, and not left),
 * CAPTURING (a capture that was broken), DRIVER_ERROR, CLOSED. */
WEIR_API weir_status weir_seat_enter(weir_seat *s, weir_stream stream, weir_dptr *device);

/* What `stream` has done so far was all that reads the item: put what other streams of the step do before it by events.
 * In a capture it is the one that was entered in. Errors: INVALID_ARGUMENT (not entered, or not in that capture),
 * DRIVER_ERROR, CLOSED. After an error it is still to be left. */
WEIR_API weir_status weir_seat_leave(weir_seat *s, weir_stream stream);

/* "Start copies here": marks this place of the step, captured or not; of several the last to be launched counts.
 * Errors: CAPTURING (a capture that was broken), DRIVER_ERROR, CLOSED. */
WEIR_API weir_status weir_seat_mark(weir_seat *s, weir_stream stream);

/* A stream of the seat's own that waits, from now on, for the place marked in the step that was launched last: for
 * weir_push_options.after, so that a copy begins there. Nothing else is to be queued on it. Errors: INVALID_ARGUMENT
 * (nothing is marked), DRIVER_ERROR, CLOSED. */
WEIR_API weir_status weir_seat_marked(weir_seat *s, weir_stream *after);

/* Gives back the item in hand, and the memory, to whomever it serves next behind leave's place of the last launch.
 * Never waits. Errors: INVALID_ARGUMENT (entered outside of a capture, and not left); CAPTURING (entered in one that
 * goes on); CLOSED; those of weir_queue_release: call again, but after CONTEXT_LOST. Later calls return CLOSED. */
WEIR_API weir_status weir_seat_close(weir_seat *s);

#ifdef __cplusplus
}
#endif
#endif
