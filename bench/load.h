/* SPDX-License-Identifier: Apache-2.0
 *
 * What bench/alloc asks of an allocator, each measured the same way for all: pairs by one and by many threads,
 * a random mix, frees by another thread. Times are wall clock nanoseconds, medians of repeats.
 */
#ifndef WR_BENCH_LOAD_H
#define WR_BENCH_LOAD_H

#include "subject.h"

/* A warm alloc and free of `bytes`: of an empty pool, so that an allocator that merges what is free at once
 * cuts the block off and joins it again each time; or in a hole of just that size between live blocks. */
double wr_load_pair_ns(const struct wr_harness *h, const struct wr_subject *s, size_t bytes, bool in_hole);

/* The same by `n` threads at once, each on its own stream or all on one; the wall time of one thread's pair. */
double wr_load_pair_threads_ns(
    const struct wr_harness *h, const struct wr_subject *s, unsigned n, bool one_stream);

/* One thread allocs, another frees, on one stream; per pair. */
double wr_load_cross_thread_ns(const struct wr_harness *h, const struct wr_subject *s);

/* Blocks live at once, of sizes drawn log-uniformly. */
struct wr_mix {
    const struct wr_subject *subject;
    uint64_t *blocks;
    uint32_t *sizes; /* a drawn sequence, gone through in a ring */
    size_t n_live, least_bytes, most_bytes, at;
    uint64_t random;
};

void wr_mix_open(const struct wr_harness *h, struct wr_mix *m, const struct wr_subject *s, size_t n_live,
    size_t least_bytes, size_t most_bytes);
void wr_mix_close(const struct wr_harness *h, struct wr_mix *m);

/* Random blocks are freed, and others of random sizes take their place; per call of the allocator. */
double wr_mix_op_ns(const struct wr_harness *h, struct wr_mix *m);

/* The 99.9th percentile of an alloc and a free of a random size beside the live blocks. */
double wr_mix_pair_p999_ns(const struct wr_harness *h, struct wr_mix *m);

#endif
