/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the PTX that the library carries, for check_ptx.sh.
 */
#include "gather.h"

#include <stdio.h>

int main(void)
{
    return fputs(wr_gather_kernel.ptx, stdout) < 0;
}
