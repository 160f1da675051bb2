/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

enum { THREADS = 256, MOST_BLOCKS = 1024 };

/* Where simulated: how long a pass over memory takes. */
enum { SIM_LAUNCH_NS = 2000, SIM_BYTES_PER_NS = 1000 };

#define PTX_HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"

/* %rd1: this thread's first word; %rd2: how many words all threads together take a step. */
#define PTX_GRID_STRIDE                                                                                      \
    "    mov.u32 %r1, %ctaid.x;\n"                                                                           \
    "    mov.u32 %r2, %ntid.x;\n"                                                                            \
    "    mov.u32 %r3, %tid.x;\n"                                                                             \
    "    mov.u32 %r4, %nctaid.x;\n"                                                                          \
    "    mul.wide.u32 %rd1, %r1, %r2;\n"                                                                     \
    "    cvt.u64.u32 %rd3, %r3;\n"                                                                           \
    "    add.u64 %rd1, %rd1, %rd3;\n"                                                                        \
    "    mul.wide.u32 %rd2, %r4, %r2;\n"

/* ---- spin -------------------------------------------------------------------------------------------- */

static const char spin_ptx[] = PTX_HEAD ".visible .entry wr_spin(.param .u64 p_ns)\n"
                                        "{\n"
                                        "    .reg .pred %p<2>;\n"
                                        "    .reg .u64 %rd<5>;\n"
                                        "    ld.param.u64 %rd1, [p_ns];\n"
                                        "    mov.u64 %rd2, %globaltimer;\n"
                                        "again:\n"
                                        "    mov.u64 %rd3, %globaltimer;\n"
                                        "    sub.u64 %rd4, %rd3, %rd2;\n"
                                        "    setp.lt.u64 %p1, %rd4, %rd1;\n"
                                        "    @%p1 bra again;\n"
                                        "    ret;\n"
                                        "}\n";

static void spin_body(void *const *params)
{
    (void)params; /* its duration is the device's affair */
}

static const struct wr_kernel spin_kernel = {
    .name = "wr_spin", .ptx = spin_ptx, .body = spin_body, .n_params = 1, .param_bytes = {8}};

weir_status wr_kernels_spin(struct wr_device *d, weir_stream s, uint64_t ns)
{
    void *params[] = {&ns};
    struct wr_launch l = {.blocks = 1, .threads = 1, .params = params, .sim_duration_ns = ns};
    return d->ops->launch(d, &spin_kernel, &l, s);
}

/* ---- fill -------------------------------------------------------------------------------------------- */

static const char fill_ptx[] =
    PTX_HEAD ".visible .entry wr_fill(.param .u64 p_dst, .param .u64 p_words, .param .u32 p_tag)\n"
             "{\n"
             "    .reg .pred %p<2>;\n"
             "    .reg .u32 %r<6>;\n"
             "    .reg .u64 %rd<8>;\n" PTX_GRID_STRIDE "    ld.param.u64 %rd4, [p_dst];\n"
             "    ld.param.u64 %rd5, [p_words];\n"
             "    ld.param.u32 %r5, [p_tag];\n"
             "    cvta.to.global.u64 %rd4, %rd4;\n"
             "again:\n"
             "    setp.ge.u64 %p1, %rd1, %rd5;\n"
             "    @%p1 bra done;\n"
             "    shl.b64 %rd6, %rd1, 2;\n"
             "    add.u64 %rd7, %rd4, %rd6;\n"
             "    st.global.u32 [%rd7], %r5;\n"
             "    add.u64 %rd1, %rd1, %rd2;\n"
             "    bra again;\n"
             "done:\n"
             "    ret;\n"
             "}\n";

static void fill_body(void *const *params)
{
    uint32_t *dst = (uint32_t *)(uintptr_t) * (const uint64_t *)params[0];
    uint64_t words = *(const uint64_t *)params[1];
    uint32_t tag = *(const uint32_t *)params[2];
    for (uint64_t i = 0; i < words; i++)
        dst[i] = tag;
}

static const struct wr_kernel fill_kernel = {
    .name = "wr_fill", .ptx = fill_ptx, .body = fill_body, .n_params = 3, .param_bytes = {8, 8, 4}};

/* A launch over `words` words, enough blocks to fill a device. */
static struct wr_launch launch_over(uint64_t words, void *const *params)
{
    uint64_t blocks = wr_min((words + THREADS - 1) / THREADS, MOST_BLOCKS);
    return (struct wr_launch){.blocks = (unsigned)wr_max(blocks, 1),
        .threads = THREADS,
        .params = params,
        .sim_duration_ns = SIM_LAUNCH_NS + words * sizeof(uint32_t) / SIM_BYTES_PER_NS};
}

weir_status wr_kernels_fill(struct wr_device *d, weir_stream s, uint64_t dst, size_t bytes, uint32_t tag)
{
    assert(bytes % sizeof tag == 0);
    uint64_t words = bytes / sizeof tag;
    void *params[] = {&dst, &words, &tag};
    struct wr_use uses[] = {{.address = dst, .bytes = bytes, .writes = true}};
    struct wr_launch l = launch_over(words, params);
    l.uses = uses;
    l.n_uses = WR_ARRAY_LEN(uses);
    return d->ops->launch(d, &fill_kernel, &l, s);
}

/* ---- verify ------------------------------------------------------------------------------------------ */

static const char verify_ptx[] =
    PTX_HEAD ".visible .entry wr_verify(\n"
             "    .param .u64 p_src, .param .u64 p_words, .param .u32 p_tag, .param .u64 p_counter)\n"
             "{\n"
             "    .reg .pred %p<4>;\n"
             "    .reg .u32 %r<7>;\n"
             "    .reg .u64 %rd<11>;\n" PTX_GRID_STRIDE "    ld.param.u64 %rd4, [p_src];\n"
             "    ld.param.u64 %rd5, [p_words];\n"
             "    ld.param.u32 %r5, [p_tag];\n"
             "    ld.param.u64 %rd8, [p_counter];\n"
             "    cvta.to.global.u64 %rd4, %rd4;\n"
             "    cvta.to.global.u64 %rd8, %rd8;\n"
             "    mov.u64 %rd9, 0;\n"
             "again:\n"
             "    setp.ge.u64 %p1, %rd1, %rd5;\n"
             "    @%p1 bra counted;\n"
             "    shl.b64 %rd6, %rd1, 2;\n"
             "    add.u64 %rd7, %rd4, %rd6;\n"
             "    ld.global.u32 %r6, [%rd7];\n"
             "    setp.ne.u32 %p2, %r6, %r5;\n"
             "    @%p2 add.u64 %rd9, %rd9, 1;\n"
             "    add.u64 %rd1, %rd1, %rd2;\n"
             "    bra again;\n"
             "counted:\n"
             "    setp.eq.u64 %p3, %rd9, 0;\n"
             "    @%p3 bra done;\n"
             "    atom.global.add.u64 %rd10, [%rd8], %rd9;\n"
             "done:\n"
             "    ret;\n"
             "}\n";

static void verify_body(void *const *params)
{
    const uint32_t *src = (const uint32_t *)(uintptr_t) * (const uint64_t *)params[0];
    uint64_t words = *(const uint64_t *)params[1], mismatches = 0;
    uint32_t tag = *(const uint32_t *)params[2];
    for (uint64_t i = 0; i < words; i++)
        mismatches += src[i] != tag;
    _Atomic uint64_t *counter = (_Atomic uint64_t *)(uintptr_t) * (const uint64_t *)params[3];
    atomic_fetch_add(counter, mismatches);
}

static const struct wr_kernel verify_kernel = {
    .name = "wr_verify", .ptx = verify_ptx, .body = verify_body, .n_params = 4, .param_bytes = {8, 8, 4, 8}};

weir_status wr_kernels_verify(
    struct wr_device *d, weir_stream s, uint64_t src, size_t bytes, uint32_t tag, uint64_t counter)
{
    assert(bytes % sizeof tag == 0);
    uint64_t words = bytes / sizeof tag;
    void *params[] = {&src, &words, &tag, &counter};
    struct wr_use uses[] = {
        {.address = src, .bytes = bytes, .writes = false},
        {.address = counter, .bytes = sizeof counter, .writes = true},
    };
    struct wr_launch l = launch_over(words, params);
    l.uses = uses;
    l.n_uses = WR_ARRAY_LEN(uses);
    return d->ops->launch(d, &verify_kernel, &l, s);
}
