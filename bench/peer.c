/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <string.h>

/* ---- PyTorch's shape --------------------------------------------------------------------------------- */

static uint64_t alloc_current(const struct wr_subject *s, size_t bytes, weir_stream stream)
{
    void *block;
    (void)stream;
    return s->peer->alloc_current(bytes, &block) == 0 ? (uint64_t)(uintptr_t)block : 0;
}

static bool free_current(const struct wr_subject *s, uint64_t block, weir_stream stream)
{
    (void)stream;
    return s->peer->free_current((void *)(uintptr_t)block) == 0;
}

/* The guard would set the thread's earlier stream again: it is not wanted back. */
static bool enter_stream(const struct wr_subject *s, weir_stream stream)
{
    void *guard;
    return s->peer->set_stream(stream, 0, &guard) == 0;
}

/* ---- a pluggable allocator's shape ------------------------------------------------------------------- */

/* It must be told a block's size when it is freed, which no load remembers: the name of a block is its address and
 * its size, both in units, and both exact, as sizes are rounded up to units by RMM anyway. */
enum { UNIT_LOG2 = 8, UNITS_BITS = 24 };

static uint64_t alloc_on(const struct wr_subject *s, size_t bytes, weir_stream stream)
{
    size_t units = (bytes + (1u << UNIT_LOG2) - 1) >> UNIT_LOG2;
    assert(units < (size_t)1 << UNITS_BITS);
    uint64_t address = (uintptr_t)s->peer->alloc_on(units << UNIT_LOG2, 0, stream);
    if (address == 0) return 0;
    assert(address % (1u << UNIT_LOG2) == 0 && address >> (64 - UNITS_BITS + UNIT_LOG2) == 0);
    return address >> UNIT_LOG2 << UNITS_BITS | units;
}

static bool free_on(const struct wr_subject *s, uint64_t block, weir_stream stream)
{
    size_t bytes = (block & (((uint64_t)1 << UNITS_BITS) - 1)) << UNIT_LOG2;
    s->peer->free_on((void *)(uintptr_t)(block >> UNITS_BITS << UNIT_LOG2), bytes, 0, stream);
    return true;
}

static bool enter_selection(const struct wr_subject *s, weir_stream stream)
{
    (void)stream;
    s->peer->select();
    return true;
}

void wr_subject_peer(struct wr_subject *out, const struct wr_peer *peer, const weir_stream *streams)
{
    bool current = peer->alloc_current != NULL;
    *out = (struct wr_subject){.name = peer->name,
        .most_live = current ? 1000000 : 1000, /* RMM's pool searches a list: hours */
        .peer = peer,
        .alloc = current ? alloc_current : alloc_on,
        .free = current ? free_current : free_on,
        .enter_thread = current ? enter_stream : enter_selection};
    memcpy(out->streams, streams, sizeof out->streams);
}
