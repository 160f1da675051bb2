/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. One latch guards a ledger's table and its counters, so that an alloc, and a free, pay one atomic operation
 * for both. The table is open addressing with linear probing, at most half full; a removal moves later entries up, so
 * that no marks stay behind.
 */
#include "ledger.h"
#include "size.h"

#include <stdlib.h>

static size_t home_of(const struct wr_ledger *l, weir_dptr address)
{
    return (address / WR_UNIT_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (l->n_places - 1);
}

static size_t next_place(const struct wr_ledger *l, size_t at)
{
    return (at + 1) & (l->n_places - 1);
}

static void insert(struct wr_ledger *l, const weir_shared_block *block)
{
    size_t at = home_of(l, block->address);
    while (l->places[at].address != 0)
        at = next_place(l, at);
    l->places[at] = *block;
}

/* SLOW. */
static bool grow(struct wr_ledger *l)
{
    weir_shared_block *old = l->places;
    size_t n_old = l->n_places, n = n_old == 0 ? 1024 : 2 * n_old;
    weir_shared_block *fresh = calloc(n, sizeof *fresh);
    if (fresh == NULL) return false;
    l->places = fresh;
    l->n_places = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].address != 0) insert(l, &old[i]);
    free(old);
    return true;
}

/* Entries behind the gap that may stand in it, as seen from their homes, move up. */
static void close_gap(struct wr_ledger *l, size_t gap)
{
    for (size_t at = next_place(l, gap); l->places[at].address != 0; at = next_place(l, at)) {
        size_t from = home_of(l, l->places[at].address), mask = l->n_places - 1;
        if (((at - from) & mask) < ((at - gap) & mask)) continue; /* its home lies behind the gap */
        l->places[gap] = l->places[at];
        gap = at;
    }
    l->places[gap].address = 0;
}

static void count_in(weir_shared_counts *c, size_t bytes)
{
    c->allocated_blocks++;
    c->allocated_bytes += wr_round_up(bytes, WR_UNIT_BYTES);
    c->requested_bytes += bytes;
    c->live_bytes += wr_round_up(bytes, WR_UNIT_BYTES);
    c->live_blocks++;
    c->peak_bytes = wr_max(c->peak_bytes, c->live_bytes);
    c->peak_blocks = wr_max(c->peak_blocks, c->live_blocks);
}

static void count_out(weir_shared_counts *c, size_t bytes)
{
    c->requested_bytes -= bytes;
    c->live_bytes -= wr_round_up(bytes, WR_UNIT_BYTES);
    c->live_blocks--;
}

/* LOCK: l->latch, so that there is one writer. Whoever looks for the block does so after its alloc. */
static void widen(struct wr_ledger *l, weir_dptr address)
{
    weir_dptr least = atomic_load_explicit(&l->least, memory_order_relaxed);
    if (WR_UNLIKELY(least == 0 || address < least)) atomic_store(&l->least, address);
    if (WR_UNLIKELY(address > atomic_load_explicit(&l->greatest, memory_order_relaxed)))
        atomic_store(&l->greatest, address);
}

weir_status wr_ledger_enter(struct wr_ledger *l, const weir_shared_block *block)
{
    wr_latch_take(&l->latch);
    bool has_room = WR_LIKELY((l->n_used + 1) * 2 <= l->n_places) || grow(l);
    if (WR_LIKELY(has_room)) {
        insert(l, block);
        l->n_used++;
        widen(l, block->address);
        count_in(&l->counts, block->bytes);
    }
    wr_latch_give(&l->latch);
    return WR_LIKELY(has_room) ? WEIR_OK : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a block's entry");
}

/* LOCK: l->latch. n_places: there is none. */
static size_t find(const struct wr_ledger *l, weir_dptr address)
{
    size_t at = home_of(l, address);
    while (l->places[at].address != address) {
        if (l->places[at].address == 0) return l->n_places;
        at = next_place(l, at);
    }
    return at;
}

bool wr_ledger_strike(struct wr_ledger *l, weir_dptr address, weir_shared_block *out)
{
    if (WR_UNLIKELY(address == 0 || !wr_ledger_may_have(l, address))) return false;
    wr_latch_take(&l->latch);
    size_t at = find(l, address);
    bool found = at < l->n_places;
    if (WR_LIKELY(found)) {
        *out = l->places[at];
        close_gap(l, at);
        l->n_used--;
        count_out(&l->counts, out->bytes);
    }
    wr_latch_give(&l->latch);
    return found;
}

bool wr_ledger_find(struct wr_ledger *l, weir_dptr address, weir_shared_block *out)
{
    if (address == 0 || !wr_ledger_may_have(l, address)) return false;
    wr_latch_take(&l->latch);
    size_t at = find(l, address);
    bool found = at < l->n_places;
    if (found) *out = l->places[at];
    wr_latch_give(&l->latch);
    return found;
}

weir_shared_counts wr_ledger_count(struct wr_ledger *l)
{
    wr_latch_take(&l->latch);
    weir_shared_counts counts = l->counts;
    wr_latch_give(&l->latch);
    return counts;
}

void wr_ledger_reset_peaks(struct wr_ledger *l)
{
    wr_latch_take(&l->latch);
    l->counts.peak_bytes = l->counts.live_bytes;
    l->counts.peak_blocks = l->counts.live_blocks;
    wr_latch_give(&l->latch);
}

size_t wr_ledger_list(struct wr_ledger *l, weir_shared_block *out, size_t most)
{
    size_t n = 0;
    wr_latch_take(&l->latch);
    for (size_t i = 0; i < l->n_places; i++)
        if (l->places[i].address != 0 && n++ < most) out[n - 1] = l->places[i];
    wr_latch_give(&l->latch);
    return n;
}
