/* SPDX-License-Identifier: Apache-2.0
 *
 * A device that does nothing: addresses without memory behind them, streams that have always passed all their
 * work. What remains is weir's own time and its own use of space, beside peers that hand out mere addresses,
 * too.
 */
#ifndef WR_BENCH_NULL_DEVICE_H
#define WR_BENCH_NULL_DEVICE_H

#include "device.h"

/* Fills `d`, which must outlive every pool over it. */
void wr_null_device_init(struct wr_device *d, size_t total_bytes);

#endif
