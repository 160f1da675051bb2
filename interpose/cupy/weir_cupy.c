/* SPDX-License-Identifier: Apache-2.0 */
#include "weir_cupy.h"

#include <string.h>

void *weir_cupy_malloc(void *parameter, size_t bytes, int device)
{
    weir_cupy_current_stream current;
    memcpy(&current, &parameter, sizeof current); /* C has no cast from an object's pointer to a function's */
    weir_dptr block;
    weir_status st = weir_shared_lend(device, bytes, (weir_stream)current(), WEIR_SHARED_PATIENCE_NS, &block);
    return st == WEIR_OK ? (void *)(uintptr_t)block : NULL;
}

void weir_cupy_free(void *parameter, void *block, int device)
{
    (void)parameter;
    weir_shared_return(device, (uintptr_t)block); /* nobody to tell: a block that can't be freed stays */
}
