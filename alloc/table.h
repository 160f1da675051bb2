/* SPDX-License-Identifier: Apache-2.0
 *
 * A map from 64-bit keys to 32-bit values: open addressing, linear probes, no tombstones. Pure: no locks, no
 * driver. Grows only in wr_table_reserve, so that put and remove neither allocate nor fail.
 */
#ifndef WR_TABLE_H
#define WR_TABLE_H

#include "base.h"

struct wr_table_slot {
    uint64_t key;
    uint32_t value; /* 0: the slot is free, so 0 is no value */
};

struct wr_table {
    struct wr_table_slot *slots;
    uint32_t mask; /* capacity - 1, capacity a power of two; 0 before the first reserve */
    uint32_t used;
};

void wr_table_fini(struct wr_table *t); /* a zeroed struct is an empty table */

/* Room for `more` puts. False: the host is out of memory, nothing changed. */
bool wr_table_reserve(struct wr_table *t, uint32_t more);

/* The value of a key, 0 where there is none. */
uint32_t wr_table_get(const struct wr_table *t, uint64_t key);

void wr_table_put(struct wr_table *t, uint64_t key, uint32_t value); /* the key is new, the value not 0 */
uint32_t wr_table_remove(struct wr_table *t, uint64_t key);          /* its value, 0 where there was none */

#endif
