/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WR_TORCH_FAILURE_H
#define WR_TORCH_FAILURE_H

#include "weir_torch.h"

/* Tells weir_torch_on_failure of an alloc that failed, in the words that callers of PyTorch look for, and what weir
 * knows of the reason. May not return. */
void wr_torch_fail(weir_status st, size_t bytes, int device) __attribute__((cold));

#endif
