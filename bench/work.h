/* SPDX-License-Identifier: Apache-2.0
 *
 * The benches' kernels, for both kinds of device, and the host's version of the checksum.
 *
 * The checksum of a span is the sum, over its 64-bit words, of a mix of word and position: one number for any
 * order of summing, so that a GPU's threads may add to it as they please; and a wrong, missing or misplaced
 * word changes it.
 */
#ifndef WR_WORK_H
#define WR_WORK_H

#include "device.h"

/* *sum += the checksum of the span's whole 64-bit words; both in device memory. */
weir_status wr_work_checksum(
    struct wr_device *d, weir_stream s, uint64_t data, size_t bytes, uint64_t sum, uint64_t sim_duration_ns);

/* Fused multiply-adds for `rounds` rounds; each thread writes its result to out[thread]. */
weir_status wr_work_fma(struct wr_device *d, weir_stream s, uint64_t out, unsigned blocks, uint32_t rounds);

enum { WR_WORK_THREADS = 256 }; /* in each block of the launches above */

/* The same checksum on the host. Bytes behind the last whole word count as a word filled up with zeros. */
uint64_t wr_work_checksum_host(const void *data, size_t bytes);

#endif
