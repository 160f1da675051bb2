/* SPDX-License-Identifier: Apache-2.0
 *
 * What every test program starts with: CMocka and its headers in the order that it asks for, and a small
 * random source.
 */
#ifndef WR_TESTS_HARNESS_H
#define WR_TESTS_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* xorshift64*: the same numbers on every machine. The state must not be 0. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
