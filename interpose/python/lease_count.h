/* SPDX-License-Identifier: Apache-2.0
 *
 * Between lease.c and dlpack.c: another reference. */
#ifndef WEIR_PYTHON_LEASE_COUNT_H
#define WEIR_PYTHON_LEASE_COUNT_H

#include "lease.h"

void wr_lease_keep(weir_lease *l);

#endif
