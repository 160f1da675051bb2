/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzzers share: an input is a list of bytes from which a program of calls is read. libFuzzer changes
 * it wherever that reaches new code. Any violated expectation aborts.
 */
#ifndef WR_TESTS_FUZZ_H
#define WR_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz_input {
    const uint8_t *at, *end;
};

static inline bool fuzz_more(const struct fuzz_input *in)
{
    return in->at < in->end;
}

/* A number below `below`, at most 65,536, from one or two bytes; past the end all are 0. */
static inline uint32_t fuzz_number(struct fuzz_input *in, uint32_t below)
{
    uint32_t n = 0;
    for (uint32_t span = 1; span < below; span <<= 8)
        n = n << 8 | (in->at < in->end ? *in->at++ : 0);
    return n % below;
}

#define EXPECT(holds)                                                                                        \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "%s:%d: expected: %s\n", __FILE__, __LINE__, #holds);                            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

#endif
