/* SPDX-License-Identifier: Apache-2.0
 *
 * The peer: the real tsl::BFCAllocator over mere addresses, where bench/peers.sh has built it.
 */
#ifndef WR_BENCH_BFC_H
#define WR_BENCH_BFC_H

#include <stdbool.h>
#include <stddef.h>

struct wr_bfc {
    void *(*open)(size_t limit_bytes, int growing); /* a pool */
    void (*close)(void *pool);
    void *(*alloc)(void *pool, size_t bytes); /* NULL: no memory */
    void (*free)(void *pool, void *block);
    size_t (*peak)(void *pool); /* bytes ever reserved at once */
};

/* Finds it under $WEIR_PEERS, else ~/.cache/weir/peers. False: it is not there, which is said on stderr. */
bool wr_bfc_find(struct wr_bfc *out);

#endif
