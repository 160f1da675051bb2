/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include <string.h>

#define WORD_MIX                                                                                             \
    UINT64_C(0x9e3779b97f4a7c15) /* the golden ratio, and an odd number: both only have to mix well */
#define POSITION_MIX UINT64_C(0xd6e8feb86659fd93)

static inline uint64_t mix_word(uint64_t word, uint64_t position)
{
    uint64_t x = (word ^ (position * POSITION_MIX)) * WORD_MIX;
    return x ^ (x >> 32);
}

uint64_t wr_work_checksum_host(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t sum = 0, word;
    size_t words = bytes / sizeof word;
    for (size_t i = 0; i < words; i++) {
        memcpy(&word, p + i * sizeof word, sizeof word);
        sum += mix_word(word, i);
    }
    if (bytes % sizeof word) {
        word = 0;
        memcpy(&word, p + words * sizeof word, bytes % sizeof word);
        sum += mix_word(word, words);
    }
    return sum;
}

static void run_checksum(void *const *params)
{
    uint64_t data = *(uint64_t *)params[0], words = *(uint64_t *)params[1], sum = *(uint64_t *)params[2];
    *(uint64_t *)(uintptr_t)sum += wr_work_checksum_host((void *)(uintptr_t)data, words * sizeof(uint64_t));
}

/* Each thread sums the words at its own number, and those a whole grid further on. */
static const struct wr_kernel checksum_kernel = {
    .name = "wr_checksum",
    .body = run_checksum,
    .n_params = 3,
    .param_bytes = {8, 8, 8},
    .ptx = ".version 7.0\n"
           ".target sm_70\n"
           ".address_size 64\n"
           ".visible .entry wr_checksum(.param .u64 data, .param .u64 words, .param .u64 sum)\n"
           "{\n"
           "    .reg .pred %done;\n"
           "    .reg .u32 %thread, %threads, %block, %blocks;\n"
           "    .reg .u64 %data, %words, %sum, %i, %stride, %at, %x, %y, %acc;\n"
           "    ld.param.u64 %data, [data];\n"
           "    ld.param.u64 %words, [words];\n"
           "    ld.param.u64 %sum, [sum];\n"
           "    mov.u32 %thread, %tid.x;\n"
           "    mov.u32 %threads, %ntid.x;\n"
           "    mov.u32 %block, %ctaid.x;\n"
           "    mov.u32 %blocks, %nctaid.x;\n"
           "    mul.wide.u32 %i, %block, %threads;\n"
           "    cvt.u64.u32 %x, %thread;\n"
           "    add.u64 %i, %i, %x;\n"
           "    mul.wide.u32 %stride, %blocks, %threads;\n"
           "    mov.u64 %acc, 0;\n"
           "next:\n"
           "    setp.ge.u64 %done, %i, %words;\n"
           "    @%done bra last;\n"
           "    shl.b64 %at, %i, 3;\n"
           "    add.u64 %at, %data, %at;\n"
           "    ld.global.u64 %x, [%at];\n"
           "    mul.lo.u64 %y, %i, 0xd6e8feb86659fd93;\n"
           "    xor.b64 %x, %x, %y;\n"
           "    mul.lo.u64 %x, %x, 0x9e3779b97f4a7c15;\n"
           "    shr.u64 %y, %x, 32;\n"
           "    xor.b64 %x, %x, %y;\n"
           "    add.u64 %acc, %acc, %x;\n"
           "    add.u64 %i, %i, %stride;\n"
           "    bra next;\n"
           "last:\n"
           "    red.global.add.u64 [%sum], %acc;\n"
           "    ret;\n"
           "}\n",
};

static void run_fma(void *const *params)
{
    *(float *)(uintptr_t)(*(uint64_t *)params[0]) =
        1.0f; /* its time is what matters, and the launch says that */
}

/* Four independent chains a thread, seeded by its number, x = x * 0.9999 + y: no two values alike, none zero.
 */
static const struct wr_kernel fma_kernel = {
    .name = "wr_fma",
    .body = run_fma,
    .n_params = 2,
    .param_bytes = {8, 4},
    .ptx = ".version 7.0\n"
           ".target sm_70\n"
           ".address_size 64\n"
           ".visible .entry wr_fma(.param .u64 out, .param .u32 rounds)\n"
           "{\n"
           "    .reg .pred %done;\n"
           "    .reg .u32 %thread, %threads, %block, %i, %rounds;\n"
           "    .reg .u64 %out, %at;\n"
           "    .reg .f32 %a, %b, %c, %d, %k, %y;\n"
           "    ld.param.u64 %out, [out];\n"
           "    ld.param.u32 %rounds, [rounds];\n"
           "    mov.u32 %thread, %tid.x;\n"
           "    mov.u32 %threads, %ntid.x;\n"
           "    mov.u32 %block, %ctaid.x;\n"
           "    mad.lo.u32 %i, %block, %threads, %thread;\n"
           "    mul.wide.u32 %at, %i, 4;\n"
           "    add.u64 %at, %out, %at;\n"
           "    cvt.rn.f32.u32 %y, %i;\n"
           "    add.f32 %y, %y, 0f3F800000;\n" /* 1.0 */
           "    mov.f32 %k, 0f3F7FF972;\n"     /* 0.9999 */
           "    mov.f32 %a, %y;\n"
           "    add.f32 %b, %a, %y;\n"
           "    add.f32 %c, %b, %y;\n"
           "    add.f32 %d, %c, %y;\n"
           "    mov.u32 %i, 0;\n"
           "next:\n"
           "    setp.ge.u32 %done, %i, %rounds;\n"
           "    @%done bra last;\n"
           "    fma.rn.f32 %a, %a, %k, %y;\n"
           "    fma.rn.f32 %b, %b, %k, %y;\n"
           "    fma.rn.f32 %c, %c, %k, %y;\n"
           "    fma.rn.f32 %d, %d, %k, %y;\n"
           "    add.u32 %i, %i, 1;\n"
           "    bra next;\n"
           "last:\n"
           "    add.f32 %a, %a, %b;\n"
           "    add.f32 %c, %c, %d;\n"
           "    add.f32 %a, %a, %c;\n"
           "    st.global.f32 [%at], %a;\n"
           "    ret;\n"
           "}\n",
};

weir_status wr_work_checksum(
    struct wr_device *d, weir_stream s, uint64_t data, size_t bytes, uint64_t sum, uint64_t sim_duration_ns)
{
    uint64_t words = bytes / sizeof(uint64_t);
    void *params[] = {&data, &words, &sum};
    struct wr_use uses[] = {{data, words * sizeof(uint64_t), false}, {sum, sizeof(uint64_t), true}};
    struct wr_launch l = {
        .blocks = (unsigned)wr_max(1, wr_min(words / WR_WORK_THREADS, 2048)),
        .threads = WR_WORK_THREADS,
        .params = params,
        .uses = uses,
        .n_uses = WR_ARRAY_LEN(uses),
        .sim_duration_ns = sim_duration_ns,
    };
    return d->ops->launch(d, &checksum_kernel, &l, s);
}

weir_status wr_work_fma(struct wr_device *d, weir_stream s, uint64_t out, unsigned blocks, uint32_t rounds)
{
    void *params[] = {&out, &rounds};
    struct wr_use uses[] = {{out, (size_t)blocks * WR_WORK_THREADS * sizeof(float), true}};
    struct wr_launch l = {
        .blocks = blocks, .threads = WR_WORK_THREADS, .params = params, .uses = uses, .n_uses = 1};
    return d->ops->launch(d, &fma_kernel, &l, s);
}
