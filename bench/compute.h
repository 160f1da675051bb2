/* SPDX-License-Identifier: Apache-2.0
 *
 * A step of compute of about a given length on a stream, that reads the batch it was fed.
 *
 * A step checksums the batch, works, and checksums the batch again: a batch that came late fails the first
 * reading, one that was overwritten too early the second. Work is products of bf16 matrices by cuBLAS; where
 * that is missing, a kernel of multiply-adds; on a simulated device, time. It is queued in units of about a
 * fifth of a millisecond.
 */
#ifndef WR_BENCH_COMPUTE_H
#define WR_BENCH_COMPUTE_H

#include "cublas.h"
#include "driver.h"
#include "region.h"

struct wr_compute {
    struct wr_device *device;
    weir_stream stream;
    bool simulated;
    char name[320]; /* what does the work, for the output */
    /* The length of a step: units on a real device, ns on a simulated one. */
    unsigned units;
    uint64_t sim_ns;
    double unit_ns;
    struct wr_bench_driver driver;
    struct wr_cublas cublas;   /* handle NULL: multiply-adds instead */
    struct wr_region matrices; /* three of them, or the results of the multiply-adds */
    struct wr_region sum;
};

enum { WR_COMPUTE_READS = 2 }; /* times that a step adds its batch's checksum to the sum */

/* On a real device, opening and each step leave its context current on the calling thread: cuBLAS needs one.
 */
weir_status wr_compute_open(struct wr_compute *c, struct wr_device *d, weir_stream s, bool simulated);
weir_status wr_compute_close(struct wr_compute *c); /* waits for the stream */

/* Steps last about that long from now on; 0: as short as the readings of the batch. */
void wr_compute_set_step(struct wr_compute *c, uint64_t ns);

/* Queues a step. */
weir_status wr_compute_step(struct wr_compute *c, weir_dptr batch, size_t bytes);

/* Waits for the stream; the sum of all checksums since the last call, and 0 from here on. */
weir_status wr_compute_take_sum(struct wr_compute *c, uint64_t *out);

#endif
