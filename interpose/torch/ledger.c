/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. One latch a device guards its table and its counters, so that an alloc, and a free, pay one atomic
 * operation for both. The table is open addressing with linear probing, at most half full; a removal moves later entries
 * up, so that no marks stay behind.
 *
 * A free does not know its device. The pools' addresses are apart, so the least and the greatest that a device has had
 * tell which table to look into.
 *
 * LOCK: a ledger's latch; nothing is called under it but the growth of its table.
 */
#include "ledger.h"
#include "edges.h"
#include "size.h"

#include <stdlib.h>

struct ledger {
    _Alignas(WR_CACHE_LINE) struct wr_latch latch; /* guards all but the addresses' bounds */
    weir_torch_counts counts;
    weir_torch_block *places; /* address 0: free */
    size_t n_places, n_used;  /* n_places: 0, or a power of two */
    _Atomic weir_dptr least, greatest;
};

static struct ledger ledgers[WEIR_SHARED_DEVICES] = {
    [0 ... WEIR_SHARED_DEVICES - 1] = {.latch = {.rank = WR_RANK_REGISTRY}}};
static _Atomic int n_ledgers; /* devices below it may have one */

static size_t home_of(const struct ledger *l, weir_dptr address)
{
    return (address / WR_UNIT_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (l->n_places - 1);
}

static size_t next_place(const struct ledger *l, size_t at)
{
    return (at + 1) & (l->n_places - 1);
}

static void insert(struct ledger *l, const weir_torch_block *block)
{
    size_t at = home_of(l, block->address);
    while (l->places[at].address != 0)
        at = next_place(l, at);
    l->places[at] = *block;
}

/* SLOW. */
static bool grow(struct ledger *l)
{
    weir_torch_block *old = l->places;
    size_t n_old = l->n_places, n = n_old == 0 ? 1024 : 2 * n_old;
    weir_torch_block *fresh = calloc(n, sizeof *fresh);
    if (fresh == NULL) return false;
    l->places = fresh;
    l->n_places = n;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].address != 0) insert(l, &old[i]);
    free(old);
    return true;
}

/* Entries behind the gap that may stand in it, as seen from their homes, move up. */
static void close_gap(struct ledger *l, size_t gap)
{
    for (size_t at = next_place(l, gap); l->places[at].address != 0; at = next_place(l, at)) {
        size_t from = home_of(l, l->places[at].address), mask = l->n_places - 1;
        if (((at - from) & mask) < ((at - gap) & mask)) continue; /* its home lies behind the gap */
        l->places[gap] = l->places[at];
        gap = at;
    }
    l->places[gap].address = 0;
}

static void count_in(weir_torch_counts *c, size_t bytes)
{
    c->allocated_blocks++;
    c->allocated_bytes += wr_round_up(bytes, WR_UNIT_BYTES);
    c->requested_bytes += bytes;
    c->live_bytes += wr_round_up(bytes, WR_UNIT_BYTES);
    c->live_blocks++;
    c->peak_bytes = wr_max(c->peak_bytes, c->live_bytes);
    c->peak_blocks = wr_max(c->peak_blocks, c->live_blocks);
}

static void count_out(weir_torch_counts *c, size_t bytes)
{
    c->requested_bytes -= bytes;
    c->live_bytes -= wr_round_up(bytes, WR_UNIT_BYTES);
    c->live_blocks--;
}

/* LOCK: l->latch, so that there is one writer. A free that looks for the block comes after its alloc. */
static void widen(struct ledger *l, weir_dptr address)
{
    weir_dptr least = atomic_load_explicit(&l->least, memory_order_relaxed);
    if (WR_UNLIKELY(least == 0 || address < least)) atomic_store(&l->least, address);
    if (WR_UNLIKELY(address > atomic_load_explicit(&l->greatest, memory_order_relaxed)))
        atomic_store(&l->greatest, address);
}

/* SLOW: once a device. */
static void note_device(int device)
{
    int n = atomic_load(&n_ledgers);
    while (n <= device && !atomic_compare_exchange_weak(&n_ledgers, &n, device + 1)) {
    }
}

weir_status wr_ledger_enter(int device, const weir_torch_block *block)
{
    struct ledger *l = &ledgers[device];
    if (WR_UNLIKELY(atomic_load_explicit(&n_ledgers, memory_order_relaxed) <= device)) note_device(device);
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

/* NULL: no device has had that address. */
static struct ledger *ledger_of(weir_dptr address)
{
    int n = atomic_load_explicit(&n_ledgers, memory_order_relaxed);
    for (struct ledger *l = ledgers; l < ledgers + n; l++)
        if (address <= atomic_load_explicit(&l->greatest, memory_order_relaxed) &&
            address >= atomic_load_explicit(&l->least, memory_order_relaxed))
            return l;
    return NULL;
}

/* LOCK: l->latch. n_places: there is none. */
static size_t find(const struct ledger *l, weir_dptr address)
{
    size_t at = home_of(l, address);
    while (l->places[at].address != address) {
        if (l->places[at].address == 0) return l->n_places;
        at = next_place(l, at);
    }
    return at;
}

bool wr_ledger_strike(weir_dptr address, weir_torch_block *out, int *device)
{
    struct ledger *l = ledger_of(address);
    if (WR_UNLIKELY(l == NULL || address == 0)) return false;
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
    *device = (int)(l - ledgers);
    return found;
}

/* ---- questions ---------------------------------------------------------------------------------------- */

static struct ledger *checked(int device)
{
    bool is_one = device >= 0 && device < WEIR_SHARED_DEVICES;
    return is_one && wr_edges_check() == WEIR_OK ? &ledgers[device] : NULL;
}

size_t weir_torch_block_bytes(void *block)
{
    weir_dptr address = (uintptr_t)block;
    struct ledger *l = wr_edges_check() == WEIR_OK ? ledger_of(address) : NULL;
    if (l == NULL) return 0;
    wr_latch_take(&l->latch);
    size_t at = find(l, address), bytes = at < l->n_places ? l->places[at].bytes : 0;
    wr_latch_give(&l->latch);
    return bytes;
}

void weir_torch_count(int device, weir_torch_counts *out)
{
    struct ledger *l = checked(device);
    *out = (weir_torch_counts){0};
    if (l == NULL) return;
    wr_latch_take(&l->latch);
    *out = l->counts;
    wr_latch_give(&l->latch);
}

void weir_torch_reset_peaks(int device)
{
    struct ledger *l = checked(device);
    if (l == NULL) return;
    wr_latch_take(&l->latch);
    l->counts.peak_bytes = l->counts.live_bytes;
    l->counts.peak_blocks = l->counts.live_blocks;
    wr_latch_give(&l->latch);
}

size_t weir_torch_list(int device, weir_torch_block *out, size_t most)
{
    struct ledger *l = checked(device);
    size_t n = 0;
    if (l == NULL) return 0;
    wr_latch_take(&l->latch);
    for (size_t i = 0; i < l->n_places; i++)
        if (l->places[i].address != 0 && n++ < most) out[n - 1] = l->places[i];
    wr_latch_give(&l->latch);
    return n;
}
