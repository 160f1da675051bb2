/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdlib.h>

/* Filled to 3/4 at most: a probe then looks at 2.5 slots on average for a hit. */
static uint32_t room(const struct wr_table *t)
{
    return t->slots == NULL ? 0 : (t->mask + 1) / 4 * 3 - t->used;
}

/* The multiplier is 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4): it spreads keys in arithmetic
 * progression, which addresses are. */
static uint32_t home_slot(const struct wr_table *t, uint64_t key)
{
    return (uint32_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & t->mask;
}

void wr_table_fini(struct wr_table *t)
{
    free(t->slots);
    *t = (struct wr_table){0};
}

static bool rehash(struct wr_table *t, uint32_t capacity)
{
    struct wr_table_slot *slots = calloc(capacity, sizeof *slots);
    if (slots == NULL) return false;
    struct wr_table old = *t;
    *t = (struct wr_table){.slots = slots, .mask = capacity - 1};
    for (uint32_t i = 0; old.slots != NULL && i <= old.mask; i++)
        if (old.slots[i].value != 0) wr_table_put(t, old.slots[i].key, old.slots[i].value);
    free(old.slots);
    return true;
}

bool wr_table_reserve(struct wr_table *t, uint32_t more)
{
    if (WR_LIKELY(room(t) >= more)) return true;
    uint64_t capacity = t->slots == NULL ? 16 : ((uint64_t)t->mask + 1) * 2;
    while (capacity / 4 * 3 < (uint64_t)t->used + more)
        capacity *= 2;
    return capacity <= (uint64_t)1 << 31 && rehash(t, (uint32_t)capacity);
}

/* The slot of the key, or the free one where a probe for it ends. */
static uint32_t find_slot(const struct wr_table *t, uint64_t key)
{
    uint32_t i = home_slot(t, key);
    while (t->slots[i].value != 0 && t->slots[i].key != key)
        i = (i + 1) & t->mask;
    return i;
}

uint32_t wr_table_get(const struct wr_table *t, uint64_t key)
{
    return t->slots == NULL ? 0 : t->slots[find_slot(t, key)].value;
}

void wr_table_put(struct wr_table *t, uint64_t key, uint32_t value)
{
    assert(value != 0 && room(t) > 0);
    uint32_t i = find_slot(t, key);
    assert(t->slots[i].value == 0);
    t->slots[i] = (struct wr_table_slot){.key = key, .value = value};
    t->used++;
}

/* INVARIANT: no free slot lies between a key's home and its place. So a removal moves back every later key of
 * the run whose home is not past the hole. */
static void close_hole(struct wr_table *t, uint32_t hole)
{
    for (uint32_t i = (hole + 1) & t->mask; t->slots[i].value != 0; i = (i + 1) & t->mask) {
        uint32_t from_home = (i - home_slot(t, t->slots[i].key)) & t->mask;
        if (from_home < ((i - hole) & t->mask)) continue;
        t->slots[hole] = t->slots[i];
        hole = i;
    }
    t->slots[hole].value = 0;
}

uint32_t wr_table_remove(struct wr_table *t, uint64_t key)
{
    if (t->slots == NULL) return 0;
    uint32_t i = find_slot(t, key), value = t->slots[i].value;
    if (value == 0) return 0;
    close_hole(t, i);
    t->used--;
    return value;
}
