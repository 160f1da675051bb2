/* SPDX-License-Identifier: Apache-2.0
 *
 * The other side of an export: memory of another process, mapped here. weir.h has the contract.
 */
#ifndef WR_IMPORT_H
#define WR_IMPORT_H

#include "device.h"

/* Do the parts follow each other, as exported? INVALID_ARGUMENT. */
weir_status wr_import_check(const weir_exported *parts, size_t n);

/* Of parts that were checked. */
weir_status wr_import_open(
    struct wr_device *d, const weir_exported *parts, size_t n, weir_dptr *block, weir_imported **out);
weir_status wr_import_close(weir_imported *in);

#endif
