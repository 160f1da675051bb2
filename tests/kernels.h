/* SPDX-License-Identifier: Apache-2.0
 *
 * Three kernels for tests and benches, in PTX for real devices and in C for simulated ones.
 */
#ifndef WR_KERNELS_H
#define WR_KERNELS_H

#include "device.h"

/* Keeps the stream busy for `ns` of the device's time. Touches no memory. */
weir_status wr_kernels_spin(struct wr_device *d, weir_stream s, uint64_t ns);

/* Writes `tag` into each 32-bit word of the span; `bytes` is a multiple of 4. */
weir_status wr_kernels_fill(struct wr_device *d, weir_stream s, uint64_t dst, size_t bytes, uint32_t tag);

/* Adds to the 64-bit counter at `counter`, in device memory, how many words of the span differ from `tag`.
 * The adding is atomic, but the oracle takes it for the write that it is: streams that run side by side need
 * a counter each. */
weir_status wr_kernels_verify(
    struct wr_device *d, weir_stream s, uint64_t src, size_t bytes, uint32_t tag, uint64_t counter);

#endif
