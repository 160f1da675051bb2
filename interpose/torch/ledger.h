/* SPDX-License-Identifier: Apache-2.0
 *
 * What PyTorch has allocated and not freed, by device. Its own allocator interface frees by address alone and counts
 * PyTorch's blocks apart from those of others who share the pool.
 */
#ifndef WR_TORCH_LEDGER_H
#define WR_TORCH_LEDGER_H

#include "weir_torch.h"

#include <stdbool.h>

/* A block that was just allocated, not 0. NO_HOST_MEMORY: it is not entered. */
weir_status wr_ledger_enter(int device, const weir_torch_block *block);

/* Strikes the live block at that address out. False: there is none. */
bool wr_ledger_strike(weir_dptr address, weir_torch_block *out, int *device);

#endif
