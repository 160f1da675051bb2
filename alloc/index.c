/* SPDX-License-Identifier: Apache-2.0 */
#include "index.h"

#include <stdlib.h>
#include <string.h>

/* The bucket where a walk from `home` finds the key, and where in it; false: there is none. INVARIANT: passed[b]
 * is the number of entries that stand behind b and whose way from home leads over it. */
static bool find(const struct wr_index *x, uint32_t key, uint32_t *bucket, uint32_t *at)
{
    const uint32_t mask = (UINT32_C(1) << x->n_buckets_log2) - 1;
    uint32_t b = wr_index_home(x, key);
    for (uint32_t walked = 0; walked <= mask; walked++, b = (b + 1) & mask) { /* all may be passed by some */
        uint32_t match = wr_bucket_match(&x->buckets[b], key);
        if (match != 0) {
            *bucket = b;
            *at = (uint32_t)__builtin_ctz(match);
            return true;
        }
        if (x->passed[b] == 0) return false;
    }
    return false;
}

uint32_t wr_index_get_slow(const struct wr_index *x, uint32_t key)
{
    uint32_t b, at;
    return find(x, key, &b, &at) ? x->buckets[b].values[at] : 0;
}

uint32_t wr_index_remove_slow(struct wr_index *x, uint32_t key)
{
    const uint32_t mask = (UINT32_C(1) << x->n_buckets_log2) - 1;
    uint32_t past, at;
    if (!find(x, key, &past, &at)) return 0;
    for (uint32_t b = wr_index_home(x, key); b != past; b = (b + 1) & mask)
        x->passed[b]--;
    x->buckets[past].keys[at] = WR_INDEX_NO_KEY;
    x->used--;
    return x->buckets[past].values[at];
}

void wr_index_put_slow(struct wr_index *x, uint32_t key, uint32_t value)
{
    const uint32_t mask = (UINT32_C(1) << x->n_buckets_log2) - 1;
    uint32_t b = wr_index_home(x, key), spare;
    while ((spare = wr_bucket_match(&x->buckets[b], WR_INDEX_NO_KEY)) == 0) {
        x->passed[b]++;
        b = (b + 1) & mask;
    }
    uint32_t at = (uint32_t)__builtin_ctz(spare);
    x->buckets[b].keys[at] = key;
    x->buckets[b].values[at] = value;
}

bool wr_index_grow_slow(struct wr_index *x)
{
    enum { FIRST_LOG2 = 1, MOST_LOG2 = 28 };
    uint32_t log2 = x->buckets == NULL ? FIRST_LOG2 : x->n_buckets_log2 + 1;
    if (log2 > MOST_LOG2) return false;
    const size_t n = (size_t)1 << log2;
    struct wr_index bigger = {.buckets = wr_array_new(n * sizeof *bigger.buckets),
        .passed = calloc(n, sizeof *bigger.passed),
        .n_buckets_log2 = log2};
    if (bigger.buckets == NULL || bigger.passed == NULL) {
        free(bigger.buckets);
        free(bigger.passed);
        return false;
    }
    memset(bigger.buckets, 0xff, n * sizeof *bigger.buckets);
    for (size_t b = 0; x->buckets != NULL && b < n / 2; b++)
        for (uint32_t i = 0; i < WR_BUCKET_ENTRIES; i++)
            if (x->buckets[b].keys[i] != WR_INDEX_NO_KEY)
                wr_index_put(&bigger, x->buckets[b].keys[i], x->buckets[b].values[i]);
    wr_index_fini(x);
    *x = bigger;
    return true;
}

void wr_index_fini(struct wr_index *x)
{
    free(x->buckets);
    free(x->passed);
    *x = (struct wr_index){0};
}
