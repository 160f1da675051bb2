/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook of PJRT plug-ins: copies of buffers, to other devices, to pinned memory and to the host.
 */
#include "pjrt_world.h"
int main(void){return 0;}
