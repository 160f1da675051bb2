/* SPDX-License-Identifier: Apache-2.0
 *
 * What simulated addresses are: ranges in the order of their addresses, what ops reach of them, and host memory, of
 * which no more is known than that it is registered. See sim_memory.c.
 */
#include "sim.h"

#include <string.h>

/* ---- sorted ranges ----------------------------------------------------------------------------------- */

size_t wr_sim_ranges_find(const struct sim_ranges *r, uint64_t address)
{
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->items[middle].start + r->items[middle].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

size_t wr_sim_ranges_find_start(const struct sim_ranges *r, uint64_t start)
{
    size_t at = wr_sim_ranges_find(r, start);
    return at < r->n && r->items[at].start == start ? at : r->n;
}

bool wr_sim_ranges_overlap(const struct sim_ranges *r, uint64_t start, uint64_t bytes)
{
    size_t at = wr_sim_ranges_find(r, start);
    return at < r->n && r->items[at].start < start + bytes;
}

void wr_sim_ranges_insert(struct sim_ranges *r, struct sim_range item)
{
    assert(!wr_sim_ranges_overlap(r, item.start, item.bytes));
    size_t at = wr_sim_ranges_find(r, item.start);
    r->items = wr_sim_grow(r->items, r->n, &r->capacity, sizeof item);
    memmove(r->items + at + 1, r->items + at, (r->n - at) * sizeof item);
    r->items[at] = item;
    r->n++;
}

void wr_sim_ranges_remove(struct sim_ranges *r, size_t from, size_t to)
{
    assert(from < to && to <= r->n);
    memmove(r->items + from, r->items + to, (r->n - to) * sizeof *r->items);
    r->n -= to - from;
}

bool wr_sim_ranges_cover(const struct sim_ranges *r, uint64_t start, uint64_t bytes, uint32_t accessible)
{
    uint64_t end = start + bytes;
    if (end < start) return false;
    for (size_t at = wr_sim_ranges_find(r, start); start < end; at++) {
        if (at == r->n || r->items[at].start > start) return false;
        if ((r->items[at].accessible & accessible) != accessible) return false;
        start = r->items[at].start + r->items[at].bytes;
    }
    return true;
}

/* ---- what ops reach ---------------------------------------------------------------------------------- */

bool wr_sim_memory_is_device(struct wr_sim *w, uint64_t address)
{
    return wr_sim_ranges_cover(&w->reservations, address, 1, 0);
}

bool wr_sim_memory_is_pinned(struct wr_sim *w, uint64_t address, size_t bytes)
{
    return wr_sim_ranges_cover(&w->registrations, address, bytes, 0);
}

/* A copy between devices reaches each side from the device that owns it. */
static bool is_owner_reached(struct wr_sim *w, const struct sim_span *s)
{
    size_t at = wr_sim_ranges_find(&w->mappings, s->address);
    if (at == w->mappings.n) return false;
    const struct sim_memory *m = w->memories[w->mappings.items[at].memory - 1];
    return wr_sim_ranges_cover(&w->mappings, s->address, s->bytes, 1u << m->device->base.ordinal);
}

bool wr_sim_memory_reached(struct wr_sim *w, const struct sim_span *s)
{
    if (s->pageable) return true;
    if (!wr_sim_memory_is_device(w, s->address)) return wr_sim_memory_is_pinned(w, s->address, s->bytes);
    return s->from ? wr_sim_ranges_cover(&w->mappings, s->address, s->bytes, s->from)
                   : is_owner_reached(w, s);
}

void wr_sim_peek(struct wr_sim *w, uint64_t address, void *out, size_t bytes)
{
    pthread_mutex_lock(&w->mutex);
    bool mapped = wr_sim_ranges_cover(&w->mappings, address, bytes, 0);
    if (mapped)
        memcpy(out, (const void *)(uintptr_t)address, bytes);
    else
        wr_sim_oracle_report(w, "unmapped: peek reads %zu bytes at 0x%llx", bytes, (long long)address);
    pthread_mutex_unlock(&w->mutex);
    if (!mapped) memset(out, 0, bytes);
}

/* ---- host memory ------------------------------------------------------------------------------------- */

weir_status wr_sim_op_host_register(struct wr_device *d, void *host, size_t bytes)
{
    weir_status s = wr_sim_enter(d, "host_register");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    uint64_t start = (uintptr_t)host;
    if (!host || bytes == 0 || start + bytes < start)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "host_register: no memory named");
    else if (wr_sim_ranges_overlap(&w->registrations, start, bytes))
        s = wr_fail(WEIR_INVALID_ARGUMENT, "host_register: some of it is registered already");
    if (s == WEIR_OK) {
        struct sim_range r = {.start = start, .bytes = bytes, .owner = sim_device_of(d)};
        wr_sim_ranges_insert(&w->registrations, r);
        w->counts.registrations++;
    }
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_host_unregister(struct wr_device *d, void *host)
{
    weir_status s = wr_sim_enter(d, "host_unregister");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t at = wr_sim_ranges_find_start(&w->registrations, (uintptr_t)host);
    if (at < w->registrations.n) {
        struct sim_range r = w->registrations.items[at];
        wr_sim_oracle_end_bytes(w, r.start, r.bytes, "unregisters");
        wr_sim_ranges_remove(&w->registrations, at, at + 1);
        wr_sim_engine_keep_off(w, r.start, r.bytes); /* the caller may free it next */
    } else {
        s = wr_fail(WEIR_INVALID_ARGUMENT, "host_unregister: not the start of registered memory");
    }
    return wr_sim_leave(d, s);
}

static const struct sim_range *range_around(const struct sim_ranges *r, uint64_t address)
{
    size_t at = wr_sim_ranges_find(r, address);
    return at < r->n && r->items[at].start <= address ? &r->items[at] : NULL;
}

weir_status wr_sim_op_locate(struct wr_device *d, uint64_t address, struct wr_location *out)
{
    weir_status s = wr_sim_enter(d, "locate");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct wr_location at = {.start = address};
    const struct sim_range *r = range_around(&w->mappings, address);
    if (r) {
        at.kind = WR_MEMORY_DEVICE;
        at.ordinal = w->memories[r->memory - 1]->device->base.ordinal;
    } else if ((r = range_around(&w->registrations, address)) != NULL) {
        at.kind = WR_MEMORY_PINNED;
        at.mapped = true;
    }
    if (r) {
        at.start = r->start;
        at.bytes = r->bytes;
    }
    *out = at;
    return wr_sim_leave(d, WEIR_OK);
}
