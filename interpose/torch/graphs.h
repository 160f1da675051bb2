/* SPDX-License-Identifier: Apache-2.0
 *
 * Which captures belong to which of PyTorch's private pools. The interface names pools at begin, end and release, and
 * streams at each alloc; what captures are is for weir to ask.
 */
#ifndef WR_TORCH_GRAPHS_H
#define WR_TORCH_GRAPHS_H

#include "weir_torch.h"

#include <stdatomic.h>

extern _Atomic unsigned wr_graphs_n_open; /* pools between begin and end */

/* An alloc on `s` is to come, while pools are open: if it captures, the capture belongs to all of them. */
void wr_graphs_note(weir_pool *pool, int device, weir_stream s);

#endif
