/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel reads a table of pieces in pinned memory. Each block copies one entry by the widest step that both of
 * its addresses allow: 16 bytes, 4, 1. Entries are cut, so that no block has much more to do than the others.
 *
 * A table is freed behind its launch. The tables of one push are some 24 bytes a piece; memory for them comes from
 * the pool's pinned arena, whose warm allocs make no driver call.
 */
#include "gather.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS = 128, ENTRY_MOST = 16 << 10, TABLE_MOST = 4096 };

/* Where simulated: a launch, a block, and what the bus carries. */
enum { SIM_LAUNCH_NS = 3000, SIM_BLOCK_NS = 5, SIM_BYTES_PER_NS = 48 };

struct entry {
    uint64_t to, from, bytes;
};

/* Copies from byte %rd8 on in steps of STEP, as many as there are whole ones, if both addresses are multiples of
 * it; %rd8 is what has been copied then. %rd3, %rd4: to, from; %rd5: bytes; %rd6: this thread. */
#define PTX_COPY_BY(STEP, ALL_THREADS, LOAD, STORE)                                                          \
    "    or.b64 %rd7, %rd3, %rd4;\n"                                                                         \
    "    and.b64 %rd7, %rd7, " #STEP "-1;\n"                                                                 \
    "    setp.ne.u64 %p1, %rd7, 0;\n"                                                                        \
    "    @%p1 bra past" #STEP ";\n"                                                                          \
    "    mul.lo.u64 %rd9, %rd6, " #STEP ";\n"                                                                \
    "    add.u64 %rd9, %rd9, %rd8;\n"                                                                        \
    "    and.b64 %rd8, %rd5, -" #STEP ";\n"                                                                  \
    "by" #STEP ":\n"                                                                                         \
    "    setp.ge.u64 %p2, %rd9, %rd8;\n"                                                                     \
    "    @%p2 bra past" #STEP ";\n"                                                                          \
    "    add.u64 %rd10, %rd4, %rd9;\n"                                                                       \
    "    add.u64 %rd11, %rd3, %rd9;\n"                                                                       \
    "    " LOAD "\n"                                                                                         \
    "    " STORE "\n"                                                                                        \
    "    add.u64 %rd9, %rd9, " #ALL_THREADS ";\n"                                                            \
    "    bra by" #STEP ";\n"                                                                                 \
    "past" #STEP ":\n"

static const char gather_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                 ".visible .entry wr_gather(.param .u64 p_table)\n"
                                 "{\n"
                                 "    .reg .pred %p<3>;\n"
                                 "    .reg .u32 %r<7>;\n"
                                 "    .reg .u64 %rd<12>;\n"
                                 "    ld.param.u64 %rd1, [p_table];\n"
                                 "    cvta.to.global.u64 %rd1, %rd1;\n"
                                 "    mov.u32 %r1, %ctaid.x;\n"
                                 "    mul.wide.u32 %rd2, %r1, 24;\n"
                                 "    add.u64 %rd1, %rd1, %rd2;\n"
                                 "    ld.global.u64 %rd3, [%rd1];\n"
                                 "    ld.global.u64 %rd4, [%rd1+8];\n"
                                 "    ld.global.u64 %rd5, [%rd1+16];\n"
                                 "    cvta.to.global.u64 %rd3, %rd3;\n"
                                 "    cvta.to.global.u64 %rd4, %rd4;\n"
                                 "    mov.u32 %r2, %tid.x;\n"
                                 "    cvt.u64.u32 %rd6, %r2;\n"
                                 "    mov.u64 %rd8, 0;\n" /* clang-format off */
    PTX_COPY_BY(16, 2048, "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd10];",
        "st.global.v4.u32 [%rd11], {%r3, %r4, %r5, %r6};")
    PTX_COPY_BY(4, 512, "ld.global.u32 %r3, [%rd10];", "st.global.u32 [%rd11], %r3;")
    PTX_COPY_BY(1, 128, "ld.global.u8 %r3, [%rd10];", "st.global.u8 [%rd11], %r3;") /* clang-format on */
    "    ret;\n"
    "}\n";

/* The same for the simulated device, whose kernels know no blocks: the table ends with an entry of 0 bytes. */
static void gather_body(void *const *params)
{
    const struct entry *e = (const void *)(uintptr_t) * (const uint64_t *)params[0];
    for (; e->bytes; e++)
        memcpy((void *)(uintptr_t)e->to, (const void *)(uintptr_t)e->from, e->bytes);
}

const struct wr_kernel wr_gather_kernel = {
    .name = "wr_gather", .ptx = gather_ptx, .body = gather_body, .n_params = 1, .param_bytes = {8}};

/* ---- the table --------------------------------------------------------------------------------------- */

/* Where in the moves a table ends that has begun with *at. */
struct cursor {
    size_t move, done; /* bytes of it that earlier entries copy */
};

static uint32_t fill_table(const struct wr_move *moves, size_t n, struct cursor *at, struct entry *table)
{
    uint32_t used = 0;
    while (at->move < n && used < TABLE_MOST) {
        const struct wr_move *m = &moves[at->move];
        assert(m->rows == 1);
        size_t bytes = wr_min(m->bytes - at->done, ENTRY_MOST);
        if (bytes) table[used++] = (struct entry){m->to + at->done, m->from + at->done, bytes};
        at->done += bytes;
        if (at->done < m->bytes) continue;
        at->move++;
        at->done = 0;
    }
    table[used] = (struct entry){0};
    return used;
}

static size_t count_entries(const struct wr_move *moves, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n && sum < TABLE_MOST; i++)
        sum += (moves[i].bytes + ENTRY_MOST - 1) / ENTRY_MOST;
    return wr_min(sum, TABLE_MOST);
}

/* What a simulated launch reads and writes. */
static struct wr_use *declare(const struct entry *table, uint32_t n)
{
    struct wr_use *uses = malloc((2 * (size_t)n + 1) * sizeof *uses);
    if (!uses) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        uses[2 * i] = (struct wr_use){table[i].to, table[i].bytes, true};
        uses[2 * i + 1] = (struct wr_use){table[i].from, table[i].bytes, false};
    }
    uses[2 * n] = (struct wr_use){(uintptr_t)table, (n + 1) * sizeof *table, false};
    return uses;
}

static weir_status launch(const struct wr_mover *m, const struct entry *table, uint32_t n)
{
    uint64_t address = (uintptr_t)table, bytes = 0;
    void *params[] = {&address};
    struct wr_use *uses = NULL;
    struct wr_launch l = {.blocks = n, .threads = THREADS, .params = params};
    if (wr_device_is_simulated(m->device)) {
        uses = declare(table, n);
        if (!uses) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to declare %u pieces", n);
        for (uint32_t i = 0; i < n; i++)
            bytes += table[i].bytes;
        l.uses = uses;
        l.n_uses = 2 * n + 1;
        l.sim_duration_ns = SIM_LAUNCH_NS + n * SIM_BLOCK_NS + bytes / SIM_BYTES_PER_NS;
    }
    weir_status s = m->device->ops->launch(m->device, &wr_gather_kernel, &l, m->stream);
    free(uses);
    return s;
}

/* One table of at most `room` entries and its launch; *at moves on. The table is pending until the launch has
 * passed; where there was none it is free at once. */
static weir_status queue_table(
    const struct wr_mover *m, const struct wr_move *moves, size_t n, size_t room, struct cursor *at)
{
    void *table;
    weir_status s = wr_pool_host_alloc(m->pool, (room + 1) * sizeof(struct entry), &table);
    if (s != WEIR_OK) return s;
    uint32_t used = fill_table(moves, n, at, table);
    if (used) s = launch(m, table, used);
    struct wr_fence *behind = used && s == WEIR_OK ? m->fence : NULL;
    weir_status freed =
        wr_pinned_free(wr_pool_pinned(m->pool), table, behind, behind ? wr_fence_stamp(m->fence) : 0);
    assert(freed == WEIR_OK);
    (void)freed;
    return s;
}

weir_status wr_gather_queue(
    const struct wr_mover *m, const struct wr_move *moves, size_t n, struct wr_move_tally *t)
{
    struct cursor at = {0};
    weir_status s = WEIR_OK;
    while (at.move < n && s == WEIR_OK) {
        size_t first = at.move;
        s = queue_table(m, moves, n, count_entries(moves + first, n - first), &at);
        t->transfers += s == WEIR_OK;
        t->gathers += s == WEIR_OK;
    }
    for (size_t i = 0; i < n && s == WEIR_OK; i++)
        t->gather_bytes += moves[i].bytes;
    return s;
}

weir_status wr_gather_warm_up(const struct wr_mover *m)
{
    struct entry *table;
    weir_status s = wr_pool_host_alloc(m->pool, 2 * sizeof *table, (void **)&table);
    if (s != WEIR_OK) return s;
    memset(table, 0, 2 * sizeof *table);
    s = launch(m, table, 1);
    struct wr_fence *behind = s == WEIR_OK ? m->fence : NULL;
    (void)wr_pinned_free(wr_pool_pinned(m->pool), table, behind, behind ? wr_fence_stamp(m->fence) : 0);
    return s;
}
