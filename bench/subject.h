/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator under measurement, behind the same three calls for all: what one costs more than another is its
 * own.
 */
#ifndef WR_BENCH_SUBJECT_H
#define WR_BENCH_SUBJECT_H

#include "bfc.h"
#include "driver.h"
#include "harness.h"
#include "pool.h"

enum { WR_SUBJECT_STREAMS = 16 };

struct wr_subject {
    const char *name;
    unsigned most_threads; /* more are not worth the time */
    size_t most_live;
    void *pool;
    weir_stream streams[WR_SUBJECT_STREAMS];
    uint64_t (*alloc)(const struct wr_subject *s, size_t bytes, weir_stream stream); /* 0: it failed */
    bool (*free)(const struct wr_subject *s, uint64_t block, weir_stream stream);
    void (*enter_thread)(const struct wr_subject *s); /* once in each thread; NULL: nothing to do */
    struct wr_bfc bfc;
    struct wr_bench_driver driver;
};

/* `streams` are of the device; copied. The pool is the caller's to close. */
void wr_subject_weir(struct wr_subject *out, weir_pool *pool, const weir_stream *streams);

/* tsl::BFCAllocator over addresses, one region of 128 GiB; it knows no streams. False: it is not there. */
bool wr_subject_bfc(struct wr_subject *out);

/* cuMemAllocAsync and cuMemFreeAsync. The device is a real one. */
void wr_subject_driver(
    struct wr_subject *out, const struct wr_harness *h, struct wr_device *d, const weir_stream *streams);

#endif
