/* SPDX-License-Identifier: Apache-2.0
 *
 * Ledgers: what an adapter has allocated on a device and not freed, and how much that was, where its framework frees
 * by address alone or counts.
 *
 * LOCK: a ledger's latch is taken inside each call, and nothing is called under it but the growth of its table. A
 * forked child may never get it: wr_edges_check comes first.
 */
#ifndef WR_LEDGER_H
#define WR_LEDGER_H

#include "base.h"
#include "weir_shared.h"

struct wr_ledger {
    _Alignas(WR_CACHE_LINE) struct wr_latch latch; /* guards all but the addresses' bounds */
    weir_shared_counts counts;
    weir_shared_block *places; /* address 0: free */
    size_t n_places, n_used;   /* n_places: 0, or a power of two */
    _Atomic weir_dptr least, greatest;
};

#define WR_LEDGER_INIT                                                                                       \
    {                                                                                                        \
        .latch = {.rank = WR_RANK_REGISTRY }                                                                 \
    }

/* A block that was just allocated, not 0. NO_HOST_MEMORY: it is not entered. */
weir_status wr_ledger_enter(struct wr_ledger *l, const weir_shared_block *block);

/* Strikes the live block at that address out. False: there is none. */
bool wr_ledger_strike(struct wr_ledger *l, weir_dptr address, weir_shared_block *out);

/* The same, but the block stays. */
bool wr_ledger_find(struct wr_ledger *l, weir_dptr address, weir_shared_block *out);

/* False: no block there was ever entered. The addresses of several ledgers' pools are apart, so this tells whose a
 * block is without a look at the tables. */
static inline bool wr_ledger_may_have(const struct wr_ledger *l, weir_dptr address)
{
    return address <= atomic_load_explicit(&l->greatest, memory_order_relaxed) &&
           address >= atomic_load_explicit(&l->least, memory_order_relaxed);
}

weir_shared_counts wr_ledger_count(struct wr_ledger *l);
void wr_ledger_reset_peaks(struct wr_ledger *l);

/* Writes up to `most` live blocks, in no order. How many there are. */
size_t wr_ledger_list(struct wr_ledger *l, weir_shared_block *out, size_t most);

#endif
