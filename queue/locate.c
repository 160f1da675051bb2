/* SPDX-License-Identifier: Apache-2.0 */
#include "pieces.h"
#include "transfer.h"

#include <string.h>

/* What the driver said last of a side: pieces of one allocation cost one question. */
static weir_status ask(struct wr_device *d, struct wr_location *known, uint64_t address)
{
    return wr_location_holds(known, address, 1) ? WEIR_OK : d->ops->locate(d, address, known);
}

/* Where the side lies: all of it in memory of one kind. A range of the driver's may end inside it. */
static weir_status locate_side(
    struct wr_device *d, struct wr_location *known, uint64_t address, size_t bytes, struct wr_location *out)
{
    weir_status s = ask(d, known, address);
    if (s != WEIR_OK) return s;
    struct wr_location side = *known;
    uint64_t end = address + bytes;
    while (side.kind != WR_MEMORY_UNKNOWN && known->start + known->bytes < end) {
        /* Where the driver knows no range it vouches for one byte: then the last one is asked for. */
        uint64_t at = known->bytes > 1 ? known->start + known->bytes : end - 1;
        s = ask(d, known, at);
        if (s != WEIR_OK) return s;
        if (known->kind != side.kind || known->ordinal != side.ordinal)
            return wr_fail(WEIR_INVALID_POINTER, "memory of one kind ends at 0x%llx, inside a piece",
                (unsigned long long)at);
        side.mapped &= known->mapped;
    }
    *out = side;
    return WEIR_OK;
}

static weir_status fail_kind(uint64_t address, enum wr_memory_kind kind, const char *wanted)
{
    static const char *const names[] = {[WR_MEMORY_UNKNOWN] = "not known to the driver",
        [WR_MEMORY_PINNED] = "host memory",
        [WR_MEMORY_DEVICE] = "device memory",
        [WR_MEMORY_MANAGED] = "managed memory"};
    return wr_fail(WEIR_INVALID_POINTER, "0x%llx is %s: %s is needed there", (unsigned long long)address,
        names[kind], wanted);
}

static weir_status check_device_side(
    struct wr_transfer *t, struct wr_location *known, uint64_t address, size_t bytes, int *ordinal)
{
    struct wr_location at;
    weir_status s = locate_side(t->engine->device, known, address, bytes, &at);
    if (s == WEIR_OK && at.kind != WR_MEMORY_DEVICE) s = fail_kind(address, at.kind, "device memory");
    if (s == WEIR_OK) *ordinal = at.ordinal;
    return s;
}

static weir_status check_own_side(
    struct wr_transfer *t, struct wr_location *known, uint64_t address, size_t bytes)
{
    int ordinal;
    weir_status s = check_device_side(t, known, address, bytes, &ordinal);
    if (s == WEIR_OK && ordinal != t->engine->device->ordinal)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "0x%llx is memory of device %d, the engine is of device %d",
            (unsigned long long)address, ordinal, t->engine->device->ordinal);
    return s;
}

static bool is_in_place(const struct wr_transfer *t)
{
    return t->options->flags & WEIR_COPY_IN_PLACE;
}

/* Pageable memory is what the driver does not know: all of it, or none. */
static weir_status check_host_side(
    struct wr_transfer *t, struct wr_location *known, uint64_t address, size_t bytes, bool *pinned)
{
    struct wr_location at;
    weir_status s = locate_side(t->engine->device, known, address, bytes, &at);
    if (s == WEIR_OK && (at.kind == WR_MEMORY_DEVICE || at.kind == WR_MEMORY_MANAGED))
        s = fail_kind(address, at.kind, "plain host memory");
    if (s != WEIR_OK) return s;
    *pinned = at.kind == WR_MEMORY_PINNED;
    if (!*pinned && is_in_place(t)) return fail_kind(address, at.kind, "pinned memory");
    t->unmapped |= *pinned && !at.mapped;
    return WEIR_OK;
}

/* Sides of different devices must be linked, and one of them the engine's. */
static weir_status find_link(struct wr_transfer *t, int to, int from)
{
    int own = t->engine->device->ordinal;
    if (to == own && from == own) return WEIR_OK;
    wr_lock_take(&t->engine->lock);
    if (to == own || from == own) t->link = wr_engine_find_link(t->engine, to == own ? from : to);
    wr_lock_give(&t->engine->lock);
    t->to_peer = from == own;
    if (t->link) return WEIR_OK;
    return wr_fail(WEIR_INVALID_ARGUMENT,
        "a copy from device %d to device %d, and no weir_engine_link of the engine on device %d", from, to,
        own);
}

/* All pieces of a copy are alike. */
static weir_status locate_on_device(struct wr_transfer *t)
{
    struct wr_location to = {0}, from = {0};
    int first_to = -1, first_from = -1;
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < t->n && s == WEIR_OK; i++) {
        const struct wr_move *m = &t->moves[i];
        int to_ordinal = 0, from_ordinal = 0;
        s = check_device_side(t, &to, m->to, wr_pieces_extent(m, m->to_pitch), &to_ordinal);
        if (s == WEIR_OK)
            s = check_device_side(t, &from, m->from, wr_pieces_extent(m, m->from_pitch), &from_ordinal);
        if (s == WEIR_OK && i > 0 && (to_ordinal != first_to || from_ordinal != first_from))
            s = wr_fail(WEIR_INVALID_ARGUMENT, "the pieces of one copy are of different pairs of devices");
        first_to = to_ordinal;
        first_from = from_ordinal;
    }
    if (s == WEIR_OK) s = find_link(t, first_to, first_from);
    t->n_in_place = t->link && !t->link->direct ? 0 : t->n;
    return s;
}

/* Small pinned pieces that lie together on the device go faster as one copy, where no kernel gathers them. */
static bool is_packed(const struct wr_transfer *t, const struct wr_move *moves, size_t n)
{
    size_t bytes = 0, n_small = 0;
    for (size_t i = 0; i < n; i++) {
        bool joins = i == 0 || moves[i - 1].to + moves[i - 1].bytes == moves[i].to;
        if (!wr_move_is_small(&moves[i]) || !joins) return false;
        bytes += moves[i].bytes;
        n_small++;
    }
    return wr_ways_choose(&t->engine->ways, n_small, bytes) == WEIR_WAY_PACKED;
}

/* Those that are staged go to the end, in their order. */
static weir_status locate_with_host(struct wr_transfer *t)
{
    bool up = t->direction == WEIR_TO_DEVICE;
    struct wr_location host = {0}, own = {0};
    struct wr_move *staged = t->moves + t->n;
    weir_status s = WEIR_OK;
    size_t n_staged = 0;
    for (size_t i = 0; i < t->n && s == WEIR_OK; i++) {
        struct wr_move m = t->moves[i];
        size_t to = wr_pieces_extent(&m, m.to_pitch), from = wr_pieces_extent(&m, m.from_pitch);
        bool pinned = false;
        s = check_own_side(t, &own, up ? m.to : m.from, up ? to : from);
        if (s == WEIR_OK) s = check_host_side(t, &host, up ? m.from : m.to, up ? from : to, &pinned);
        if (pinned && !(t->options->flags & WEIR_COPY_DURING_CALL))
            t->moves[t->n_in_place++] = m;
        else
            staged[n_staged++] = m;
    }
    if (s == WEIR_OK && up && n_staged == 0 && !is_in_place(t) && is_packed(t, t->moves, t->n_in_place)) {
        t->packed_bytes = t->bytes;
        t->n_in_place = 0;
    } else if (s == WEIR_OK) {
        memmove(t->moves + t->n_in_place, staged, n_staged * sizeof *staged);
    }
    return s;
}

weir_status wr_locate_moves(struct wr_transfer *t)
{
    weir_status s = t->direction == WEIR_ON_DEVICE ? locate_on_device(t) : locate_with_host(t);
    for (size_t i = t->n_in_place; i < t->n && s == WEIR_OK; i++)
        t->staged_bytes += t->moves[i].bytes * t->moves[i].rows;
    return s;
}
