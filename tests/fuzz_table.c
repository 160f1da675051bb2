/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the hash table against an array. A third of the keys are made to share a few homes at the end of any
 * small table, so that runs of probes are long, wrap around, and are closed up in their middle.
 */
#include "fuzz.h"
#include "table.h"

enum { FAMILIES = 3, KEYS = 64, CHECK_EVERY = 16 };

static uint32_t model[FAMILIES][KEYS]; /* the value of a key, 0: none */

/* The inverse of an odd number modulo 2^64; each round of Newton's doubles the right bits. */
static uint64_t inverse_of(uint64_t odd)
{
    uint64_t x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}

static uint64_t key_of(uint32_t family, uint32_t i)
{
    static uint64_t inverse;
    if (inverse == 0) inverse = inverse_of(UINT64_C(0x9E3779B97F4A7C15)); /* table.c's multiplier */
    switch (family) {
    case 0:
        return (uint64_t)i * 4096; /* like addresses */
    case 1:
        return UINT64_MAX - i; /* to the limit */
    default:
        return ((UINT64_C(0xFFFFFFFC) + i % 4) << 32 | i) * inverse; /* the last four homes */
    }
}

static uint32_t count_model(void)
{
    uint32_t n = 0;
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (uint32_t i = 0; i < KEYS; i++)
            n += model[f][i] != 0;
    return n;
}

static void compare_all(const struct wr_table *t)
{
    EXPECT(t->used == count_model());
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (uint32_t i = 0; i < KEYS; i++)
            EXPECT(wr_table_get(t, key_of(f, i)) == model[f][i]);
}

/* Room that was promised is there: the puts that follow move nothing. */
static void reserve_some(struct wr_table *t, struct fuzz_input *in)
{
    uint32_t more = fuzz_number(in, 200);
    EXPECT(wr_table_reserve(t, more));
    if (t->slots == NULL) return;
    EXPECT(((uint64_t)t->mask + 1) / 4 * 3 >= (uint64_t)t->used + more);
}

static void step(struct wr_table *t, struct fuzz_input *in, uint32_t number)
{
    uint32_t op = fuzz_number(in, 8), f = fuzz_number(in, FAMILIES), i = fuzz_number(in, KEYS);
    uint64_t key = key_of(f, i);
    if (op == 0) {
        reserve_some(t, in);
    } else if (op < 5 && model[f][i] == 0) {
        EXPECT(wr_table_reserve(t, 1));
        wr_table_put(t, key, model[f][i] = number);
    } else if (op < 7) {
        EXPECT(wr_table_remove(t, key) == model[f][i]);
        model[f][i] = 0;
    } else {
        EXPECT(wr_table_get(t, key) == model[f][i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {data, data + bytes};
    struct wr_table t = {0};
    for (uint32_t f = 0; f < FAMILIES; f++)
        for (uint32_t i = 0; i < KEYS; i++)
            model[f][i] = 0;
    for (uint32_t number = 1; fuzz_more(&in); number++) {
        step(&t, &in, number);
        if (number % CHECK_EVERY == 0) compare_all(&t);
    }
    compare_all(&t);
    wr_table_fini(&t);
    return 0;
}
