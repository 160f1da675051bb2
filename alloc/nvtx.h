/* SPDX-License-Identifier: Apache-2.0
 *
 * NVTX ranges, domain "weir", around what is slow, for Nsight and the like: "grow", "stitch", "trim", "evict", "device
 * wait", "host wait", with the bytes that are wanted. A range is an attempt: it may have found nothing. Of a queue:
 * "reserve", "push", "acquire", which may wait for somebody; in them "stage", copying on the host, and "device slot",
 * "pinned slot", allocating. See nvtx.c.
 */
#ifndef WR_NVTX_H
#define WR_NVTX_H

#include "base.h"

/* Does a tool listen? Constant once the first pool is open. */
extern _Atomic bool wr_nvtx_on;

void wr_nvtx_open(void); /* asks for a tool, once */

void wr_nvtx_push(const char *name, uint64_t bytes) __attribute__((cold));
void wr_nvtx_pop(void) __attribute__((cold));

static inline bool wr_nvtx_begin(const char *name, uint64_t bytes)
{
    bool on = WR_UNLIKELY(atomic_load_explicit(&wr_nvtx_on, memory_order_acquire));
    if (on) wr_nvtx_push(name, bytes);
    return on;
}

static inline void wr_nvtx_end(const bool *began)
{
    if (WR_UNLIKELY(*began)) wr_nvtx_pop();
}

/* From here to the end of the block. Not under a lock: a tool does what it likes. */
#define WR_NVTX_RANGE(name, bytes)                                                                           \
    __attribute__((cleanup(wr_nvtx_end), unused)) const bool nvtx_range_ = wr_nvtx_begin(name, bytes)

#endif
