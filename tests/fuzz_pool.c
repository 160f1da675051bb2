/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the pool over a simulated device, whose adversary the input seeds. The naive model is a list of live
 * blocks: none overlaps another, the pool's live bytes are theirs, and what is not the start of one can't be
 * freed. A block is written once, on its home, and read by any stream that has joined it and says so; so the
 * oracle must stay silent. At the end all is freed, and the whole limit must be there again in one piece.
 */
#include "pool_world.h"

#include "fuzz.h"

enum { STREAMS = 4, BLOCKS = 24, GATES = 3, MOST_CALLS = 300, CHECK_EVERY = 32, LOOKS = 100 };

#define LIMIT (16 * WR_MIB)

struct block {
    weir_dptr address;
    size_t bytes;
    uint32_t tag;
    unsigned writer; /* the stream that stands for the write */
};

static struct fuzzed {
    struct wr_world w;
    weir_stream streams[STREAMS];
    struct block blocks[BLOCKS];
    unsigned n_blocks;
    uint32_t last_tag;
} t;

/* NULL: there is none. */
static struct block *choose_block(struct fuzz_input *in)
{
    return t.n_blocks != 0 ? &t.blocks[fuzz_number(in, t.n_blocks)] : NULL;
}

static uint64_t rounded(size_t bytes)
{
    return wr_round_up(bytes, WR_UNIT_BYTES);
}

static void join(unsigned before, unsigned after)
{
    if (before != after) wr_world_join(&t.w, t.streams[before], t.streams[after]);
}

/* ---- calls ------------------------------------------------------------------------------------------- */

static void expect_disjoint(const struct block *b)
{
    for (unsigned i = 0; i < t.n_blocks; i++)
        EXPECT(b->address + rounded(b->bytes) <= t.blocks[i].address ||
               t.blocks[i].address + rounded(t.blocks[i].bytes) <= b->address);
}

/* Sizes of a power of two and around it, from 1 byte to beyond the limit. */
static size_t choose_size(struct fuzz_input *in)
{
    size_t base = (size_t)1 << fuzz_number(in, 26);
    return base + (base >> 4) * fuzz_number(in, 16);
}

/* `alignment` 0: a plain alloc. */
static void alloc_block(unsigned s, size_t bytes, size_t alignment)
{
    struct block b = {.bytes = bytes, .writer = s};
    weir_alloc_options o = {.struct_size = sizeof o, .alignment = alignment};
    weir_status st = alignment == 0 ? weir_alloc(t.w.pool, bytes, t.streams[s], &b.address)
                                    : weir_alloc_with(t.w.pool, bytes, t.streams[s], &o, &b.address);
    EXPECT((st == WEIR_TOO_LARGE) == (bytes > LIMIT));
    EXPECT(st == WEIR_OK || st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY || st == WEIR_TOO_LARGE);
    if (st != WEIR_OK) return;
    EXPECT(b.address % WR_UNIT_BYTES == 0 && (alignment == 0 || b.address % alignment == 0));
    expect_disjoint(&b);
    b.tag = ++t.last_tag;
    wr_world_mark(&t.w, t.streams[s], b.address, b.bytes, b.tag);
    t.blocks[t.n_blocks++] = b;
}

static void call_alloc(struct fuzz_input *in)
{
    unsigned s = fuzz_number(in, STREAMS);
    size_t bytes = choose_size(in);
    if (t.n_blocks < BLOCKS) alloc_block(s, bytes, 0);
}

/* Alignments from 1 byte to a page. */
static void call_alloc_aligned(struct fuzz_input *in)
{
    unsigned s = fuzz_number(in, STREAMS);
    size_t bytes = choose_size(in), alignment = (size_t)1 << fuzz_number(in, WR_PAGE_LOG2 + 1);
    if (t.n_blocks < BLOCKS) alloc_block(s, bytes, alignment);
}

static void read_on(const struct block *b, unsigned s)
{
    join(b->writer, s);
    wr_world_verify(&t.w, t.streams[s], b->address, b->bytes, b->tag);
}

static void call_read(struct fuzz_input *in)
{
    unsigned s = fuzz_number(in, STREAMS);
    const struct block *b = choose_block(in);
    if (b == NULL) return;
    read_on(b, s);
    wr_world_touch(&t.w, b->address, t.streams[s]);
}

static void free_on(struct block *b, unsigned s)
{
    read_on(b, s); /* not declared: the free covers it */
    wr_world_free(&t.w, b->address, t.streams[s]);
    *b = t.blocks[--t.n_blocks];
}

static void call_free(struct fuzz_input *in)
{
    struct block *b = choose_block(in);
    if (b != NULL) free_on(b, b->writer);
}

static void call_free_elsewhere(struct fuzz_input *in)
{
    unsigned s = fuzz_number(in, STREAMS);
    struct block *b = choose_block(in);
    if (b != NULL) free_on(b, s);
}

/* Freed before, inside of a block, off the grid, or never ours. */
static void call_free_wrong(struct fuzz_input *in)
{
    weir_stream s = t.streams[fuzz_number(in, STREAMS)];
    weir_dptr at = t.w.pool->pages.base + fuzz_number(in, 65536) * WR_UNIT_BYTES * 4 + fuzz_number(in, 2);
    for (unsigned i = 0; i < t.n_blocks; i++)
        if (t.blocks[i].address == at) return;
    EXPECT(weir_free(t.w.pool, at, s) == WEIR_INVALID_POINTER);
    EXPECT(weir_touch(t.w.pool, at, s, 0) == WEIR_INVALID_POINTER);
}

static void call_trim(struct fuzz_input *in)
{
    size_t keep = (size_t)fuzz_number(in, 16) * WR_MIB, freed;
    uint64_t before = wr_world_stats(&t.w).reserved_bytes;
    EXPECT(weir_trim(t.w.pool, keep, &freed) == WEIR_OK);
    EXPECT(wr_world_stats(&t.w).reserved_bytes == before - freed);
}

/* Announced or not, and the next stream gets the handle. The heir stands for what it wrote. */
static void call_end_stream(struct fuzz_input *in)
{
    unsigned gone = fuzz_number(in, STREAMS), heir = (gone + 1) % STREAMS;
    bool announced = fuzz_number(in, 2) == 0;
    join(gone, heir);
    for (unsigned i = 0; i < t.n_blocks; i++)
        if (t.blocks[i].writer == gone) t.blocks[i].writer = heir;
    if (announced) EXPECT(weir_stream_retire(t.w.pool, t.streams[gone]) == WEIR_OK);
    wr_world_destroy_stream(&t.w, t.streams[gone]);
    t.streams[gone] = wr_world_stream(&t.w);
}

static void call_stall(struct fuzz_input *in)
{
    weir_stream s = t.streams[fuzz_number(in, STREAMS)];
    if (t.w.n_gates < GATES) wr_world_stall(&t.w, s);
}

static void call_open_gate(struct fuzz_input *in)
{
    if (t.w.n_gates > 0) wr_world_open_gate(&t.w, t.w.gates[fuzz_number(in, t.w.n_gates)]);
}

static void call_time(struct fuzz_input *in)
{
    for (uint32_t n = fuzz_number(in, 16); n > 0; n--)
        wr_sim_step(t.w.sim);
}

static void (*const calls[])(struct fuzz_input *) = {call_alloc, call_alloc, call_alloc_aligned, call_read,
    call_free, call_free, call_free_elsewhere, call_free_wrong, call_trim, call_end_stream, call_stall,
    call_open_gate, call_time, call_time};

/* ---- programs ---------------------------------------------------------------------------------------- */

static void compare(void)
{
    uint64_t live = 0;
    for (unsigned i = 0; i < t.n_blocks; i++)
        live += rounded(t.blocks[i].bytes);
    weir_stats s = wr_world_stats(&t.w);
    EXPECT(s.live_bytes == live && s.live_blocks == t.n_blocks && s.host_waits == 0 && s.stream_waits == 0);
    wr_world_check(&t.w);
}

/* Nothing is lost: when all has passed, one block may be as large as the pool. */
static void take_all(void)
{
    weir_dptr all = 0;
    for (int i = 0; i < LOOKS && all == 0; i++) {
        wr_sim_drain(t.w.sim);
        all = wr_world_try_alloc(&t.w, LIMIT, t.streams[0]);
    }
    EXPECT(all != 0);
    wr_world_free(&t.w, all, t.streams[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {data, data + bytes};
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* the world's assertions abort, too */
    t = (struct fuzzed){0};
    wr_world_open(&t.w, &(struct wr_world_options){.limit_bytes = LIMIT,
                            .grow_bytes = 2 * WR_MIB,
                            .adversary_seed = fuzz_number(&in, 256),
                            .reuse_handles = true});
    for (unsigned i = 0; i < STREAMS; i++)
        t.streams[i] = wr_world_stream(&t.w);
    for (int n = 1; n <= MOST_CALLS && fuzz_more(&in); n++) {
        calls[fuzz_number(&in, WR_ARRAY_LEN(calls))](&in);
        if (n % CHECK_EVERY == 0) compare();
    }
    compare();
    while (t.n_blocks > 0)
        free_on(&t.blocks[0], t.blocks[0].writer);
    while (t.w.n_gates > 0)
        wr_world_open_gate(&t.w, t.w.gates[0]);
    take_all();
    wr_world_close(&t.w);
    return 0;
}
