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
    size_t most_live; /* more are not worth the time */
    void *pool;
    weir_stream streams[WR_SUBJECT_STREAMS];
    uint64_t (*alloc)(const struct wr_subject *s, size_t bytes, weir_stream stream); /* 0: it failed */
    bool (*free)(const struct wr_subject *s, uint64_t block, weir_stream stream);
    /* In each thread, before its first call and after another subject's, false: it failed; NULL: nothing to do.
     * The thread keeps to this stream, but for its frees. */
    bool (*enter_thread)(const struct wr_subject *s, weir_stream stream);
    struct wr_bfc bfc;
    struct wr_bench_driver driver;
    const struct wr_peer *peer; /* NULL: none of those of peer.h */
};

/* What a thread does first. False: it failed. */
static inline bool wr_subject_enter(const struct wr_subject *s, weir_stream stream)
{
    return s->enter_thread == NULL || s->enter_thread(s, stream);
}

/* `streams` are of the device; copied. The pool is the caller's to close. */
void wr_subject_weir(struct wr_subject *out, weir_pool *pool, const weir_stream *streams);

/* tsl::BFCAllocator over addresses, one region of 128 GiB; it knows no streams. False: it is not there. */
bool wr_subject_bfc(struct wr_subject *out);

/* cuMemAllocAsync and cuMemFreeAsync. The device is a real one. */
void wr_subject_driver(
    struct wr_subject *out, const struct wr_harness *h, struct wr_device *d, const weir_stream *streams);

#endif
