/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <string.h>

static void add_waiting(const struct wr_waiter *line, uint64_t now, weir_queue_stats *out)
{
    for (; line; line = line->next) {
        out->waiting_slot += line->cause == WR_CAUSE_SLOT;
        out->waiting_pinned += line->cause == WR_CAUSE_PINNED;
        out->waiting_item += line->cause == WR_CAUSE_ITEM || line->cause == WR_CAUSE_TURN;
        out->longest_wait_ns = wr_max(out->longest_wait_ns, now - line->since);
    }
}

static void add_items(const weir_queue *q, weir_queue_stats *out)
{
    for (unsigned i = 0; i < q->slots.n; i++) {
        out->items_filling += q->places[i].state == WR_PLACE_FILLING && !q->places[i].cancelled;
        out->items_ready += q->places[i].state == WR_PLACE_READY && q->places[i].listed;
    }
    out->consumers = (uint64_t)__builtin_popcountll(q->joined);
}

static void add_rates(const weir_queue *q, uint64_t now, weir_queue_stats *out)
{
    out->age_ns = now - q->opened_ns;
    if (out->age_ns == 0) return;
    out->items_per_s = (double)out->items_pushed * 1e9 / (double)out->age_ns;
    out->bytes_per_s = (double)out->bytes_copied * 1e9 / (double)out->age_ns;
}

static void add_allocations(weir_queue *q, weir_queue_stats *out)
{
    out->slot_allocations = atomic_load(&q->slots.n_allocated) + atomic_load(&q->pinned.n_allocated);
    out->host_allocations += wr_slots_grown(&q->slots) + wr_slots_grown(&q->pinned);
}

weir_status weir_queue_get_stats(weir_queue *q, weir_queue_stats *out)
{
    if (!out || out->struct_size < sizeof out->struct_size)
        return wr_fail(WEIR_INVALID_ARGUMENT, "stats with struct_size = %zu are needed", sizeof *out);
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    weir_queue_stats now = q->stats;
    now.struct_size = out->struct_size;
    now.slots = q->slots.n;
    now.slots_in_use = wr_slots_in_use(&q->slots);
    const struct wr_slots *pinned = wr_queue_lands(q) ? &q->slots : &q->pinned;
    now.device_bytes = wr_queue_lands(q) ? 0 : q->slots.used;
    now.peak_device_bytes = wr_queue_lands(q) ? 0 : q->slots.peak;
    now.pinned_bytes = pinned->used;
    now.peak_pinned_bytes = pinned->peak;
    now.peer_staged = q->origin.staged;
    uint64_t now_ns = q->device->ops->now_ns(q->device);
    add_waiting(q->producers, now_ns, &now);
    add_waiting(q->consumers, now_ns, &now);
    add_items(q, &now);
    add_allocations(q, &now);
    add_rates(q, now_ns, &now);
    memcpy(out, &now, wr_min(out->struct_size, sizeof now));
    return wr_queue_leave(q, WEIR_OK);
}
