/* SPDX-License-Identifier: Apache-2.0
 *
 * A heap's index: the start of a block -> its node. Pure: no locks, no driver. Grows only in
 * wr_index_reserve, so that put and remove neither allocate nor fail.
 *
 * HOT. Eight entries stand in one cache line, and a lookup compares the eight keys at once: no loop whose end the
 * processor has to guess, and one line to fetch. (The general table, table.h, costs 200 instructions and four
 * wrong guesses a pair of alloc and free; this one 50 and almost none.) An entry whose bucket is full stands in
 * one of the next buckets, and each that it passes counts it: so a lookup knows where to stop (as in Facebook's
 * F14), and a removal moves nothing.
 */
#ifndef WR_INDEX_H
#define WR_INDEX_H

#include "base.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { WR_BUCKET_ENTRIES = 8 };
#define WR_INDEX_NO_KEY UINT32_MAX /* an entry with it is free */

struct wr_bucket {
    uint32_t keys[WR_BUCKET_ENTRIES];
    uint32_t values[WR_BUCKET_ENTRIES];
};

struct wr_index {
    struct wr_bucket *buckets; /* NULL before the first reserve */
    uint32_t *passed;          /* per bucket: entries that stand further on, and would have stood here */
    uint32_t n_buckets_log2;
    uint32_t used;
};

void wr_index_fini(struct wr_index *x); /* a zeroed struct is an empty index */

/* Room for one more put. False: the host is out of memory, nothing changed. */
bool wr_index_grow_slow(struct wr_index *x);
static inline bool wr_index_reserve(struct wr_index *x)
{
    /* Filled to 3/4 at most: then one entry in seven stands outside its own bucket. */
    bool room = x->used < (uint32_t)(WR_BUCKET_ENTRIES / 4 * 3) << x->n_buckets_log2;
    return WR_LIKELY(x->buckets != NULL && room) || wr_index_grow_slow(x);
}

/* 2^32 divided by the golden ratio (Knuth, TAOCP 3, 6.4) spreads keys in arithmetic progression, which starts
 * of blocks are. */
static inline uint32_t wr_index_home(const struct wr_index *x, uint32_t key)
{
    return (uint32_t)((uint64_t)(key * UINT32_C(0x9E3779B1)) << x->n_buckets_log2 >> 32);
}

/* Bit i: keys[i] is `key`. */
static inline uint32_t wr_bucket_match(const struct wr_bucket *b, uint32_t key)
{
#ifdef __SSE2__
    const __m128i wanted = _mm_set1_epi32((int)key), *keys = (const __m128i *)b->keys;
    __m128i low = _mm_cmpeq_epi32(keys[0], wanted), high = _mm_cmpeq_epi32(keys[1], wanted);
    __m128i both = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
    return (uint32_t)_mm_movemask_epi8(both);
#else
    uint32_t match = 0;
    for (uint32_t i = 0; i < WR_BUCKET_ENTRIES; i++)
        match |= (uint32_t)(b->keys[i] == key) << i;
    return match;
#endif
}

/* The value of a key that does not stand in its own bucket; 0: there is none. */
uint32_t wr_index_get_slow(const struct wr_index *x, uint32_t key);
uint32_t wr_index_remove_slow(struct wr_index *x, uint32_t key);
void wr_index_put_slow(struct wr_index *x, uint32_t key, uint32_t value);

/* The value of a key, 0 where there is none. */
static inline uint32_t wr_index_get(const struct wr_index *x, uint32_t key)
{
    if (WR_UNLIKELY(x->buckets == NULL)) return 0;
    const struct wr_bucket *b = &x->buckets[wr_index_home(x, key)];
    uint32_t match = wr_bucket_match(b, key);
    return WR_LIKELY(match != 0) ? b->values[__builtin_ctz(match)] : wr_index_get_slow(x, key);
}

/* The key is new and not WR_INDEX_NO_KEY, the value not 0, and there is room. */
static inline void wr_index_put(struct wr_index *x, uint32_t key, uint32_t value)
{
    struct wr_bucket *b = &x->buckets[wr_index_home(x, key)];
    uint32_t spare = wr_bucket_match(b, WR_INDEX_NO_KEY);
    x->used++;
    if (WR_UNLIKELY(spare == 0)) {
        wr_index_put_slow(x, key, value);
        return;
    }
    uint32_t at = (uint32_t)__builtin_ctz(spare);
    b->keys[at] = key;
    b->values[at] = value;
}

/* Its value, 0 where there was none. */
static inline uint32_t wr_index_remove(struct wr_index *x, uint32_t key)
{
    if (WR_UNLIKELY(x->buckets == NULL)) return 0;
    struct wr_bucket *b = &x->buckets[wr_index_home(x, key)];
    uint32_t match = wr_bucket_match(b, key);
    if (WR_UNLIKELY(match == 0)) return wr_index_remove_slow(x, key);
    uint32_t at = (uint32_t)__builtin_ctz(match);
    b->keys[at] = WR_INDEX_NO_KEY;
    x->used--;
    return b->values[at];
}

#endif
