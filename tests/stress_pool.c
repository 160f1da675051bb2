/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs over the pool, one thread, everything deterministic.  stress_pool [operations] [first seed]
 *
 * A program knows for each block who wrote it last and who has read it since, and orders its own uses as CUDA
 * asks: a reader's stream is joined to the writer's, a writer's to all of theirs. What it leaves to the pool
 * is that memory comes back only when all that is over. The oracle must stay silent; and each block carries a
 * tag, verified by every read, so that a block given to two owners shows in its bytes, too.
 *
 * Each seed is a world of its own: under an adversary that ends ops in any legal order, or (seed 0) by
 * duration.
 */
#include "pool_world.h"

#include <stdio.h>
#include <stdlib.h>

enum { STREAMS = 6, BLOCKS = 256, GATES = 2, CHECK_EVERY = 1000, RUNS = 5, NOBODY = STREAMS };
enum { ALL_RUNGS = 50000 /* so many operations use each rung of the ladder */ };

#define LIMIT      (192 * WR_MIB)
#define SOFT_LIMIT (160 * WR_MIB)
#define COPY_BYTES (64 * WR_KIB)
#define US         ((uint64_t)1000)

struct block {
    weir_dptr address;
    size_t bytes;
    uint32_t tag;     /* 0: never written */
    unsigned home;    /* NOBODY: its stream is gone */
    unsigned writer;  /* to begin with the home, whose past the memory may have */
    unsigned readers; /* since it was written: bit per stream */
};

struct stress {
    struct wr_world w;
    uint64_t seed, random;
    weir_stream streams[STREAMS];
    struct block blocks[BLOCKS];
    unsigned n_blocks;
    uint32_t last_tag;
    uint64_t n_not_yet, n_out_of_memory, n_timeouts, n_copies, n_retired, n_abandoned;
};

static uint64_t draw(struct stress *t, uint64_t below) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (t->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static unsigned draw_stream(struct stress *t)
{
    return (unsigned)draw(t, STREAMS);
}

/* NULL: there is none. */
static struct block *draw_block(struct stress *t)
{
    return t->n_blocks != 0 ? &t->blocks[draw(t, t->n_blocks)] : NULL;
}

/* From 1 byte to 64 MiB, small ones most often, and half of all from a few sizes that come again and again.
 */
static size_t draw_size(struct stress *t)
{
    static const size_t usual[] = {
        1, 512, 700, 4096, 65536, 1000000, 2 * WR_MIB - 512, 2 * WR_MIB, 5 * WR_MIB};
    if (draw(t, 2) == 0) return usual[draw(t, WR_ARRAY_LEN(usual))];
    static const unsigned most_log2[] = {9, 12, 12, 16, 16, 20, 21, 23, 24, 26};
    return 1 + draw(t, (uint64_t)1 << most_log2[draw(t, WR_ARRAY_LEN(most_log2))]);
}

/* ---- uses -------------------------------------------------------------------------------------------- */

static void join(struct stress *t, unsigned before, unsigned after)
{
    if (before != after && before != NOBODY) wr_world_join(&t->w, t->streams[before], t->streams[after]);
}

static void begin_read(struct stress *t, struct block *b, unsigned s)
{
    join(t, b->writer, s);
    b->readers |= 1u << s;
}

static void begin_write(struct stress *t, struct block *b, unsigned s)
{
    join(t, b->writer, s);
    for (unsigned r = 0; r < STREAMS; r++)
        if (b->readers >> r & 1) join(t, r, s);
    b->writer = s;
    b->readers = 0;
    b->tag = ++t->last_tag;
}

/* What was queued on a stream other than the home is declared. */
static void end_use(struct stress *t, struct block *b, unsigned s)
{
    if (s != b->home) wr_world_touch(&t->w, b->address, t->streams[s]);
}

static void run_read(struct stress *t)
{
    struct block *b = draw_block(t);
    if (b == NULL || b->tag == 0) return;
    unsigned s = draw_stream(t);
    begin_read(t, b, s);
    wr_world_verify(&t->w, t->streams[s], b->address, b->bytes, b->tag);
    end_use(t, b, s);
}

static void run_write(struct stress *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    unsigned s = draw_stream(t);
    begin_write(t, b, s);
    wr_world_mark(&t->w, t->streams[s], b->address, b->bytes, b->tag);
    end_use(t, b, s);
}

/* ---- copies: from or to pinned memory, freed behind the copy ------------------------------------------ */

static void fill_host(struct stress *t, uint32_t *host, size_t bytes, uint32_t tag)
{
    wr_sim_host_access(t->w.sim, host, bytes, true);
    for (size_t i = 0; i < bytes / sizeof *host; i++)
        host[i] = tag;
}

static void run_copy(struct stress *t)
{
    struct block *b = draw_block(t);
    if (b == NULL || b->bytes > COPY_BYTES) return;
    struct wr_device *d = t->w.device;
    unsigned s = draw_stream(t);
    bool to_device = draw(t, 2) == 0;
    void *host;
    assert_int_equal(weir_host_alloc(t->w.pool, b->bytes, &host), WEIR_OK);
    if (to_device)
        begin_write(t, b, s);
    else
        begin_read(t, b, s);
    fill_host(t, host, b->bytes, b->tag);
    enum wr_copy_kind kind = to_device ? WR_COPY_H2D : WR_COPY_D2H;
    uint64_t at_host = (uintptr_t)host, dst = to_device ? b->address : at_host;
    assert_int_equal(
        d->ops->copy(d, kind, dst, to_device ? at_host : b->address, b->bytes, t->streams[s]), WEIR_OK);
    end_use(t, b, s);
    assert_int_equal(weir_host_free(t->w.pool, host, t->streams[s]), WEIR_OK);
    t->n_copies++;
}

/* ---- alloc and free ---------------------------------------------------------------------------------- */

/* Most go by the pool's policy. OWNER is rare: a stream keeps it. */
static weir_alloc_options draw_options(struct stress *t)
{
    weir_alloc_options o = {.struct_size = sizeof o, .deadline_ns = (int64_t)(20 * US)};
    if (draw(t, 4) == 0) o.alignment = (size_t)1 << draw(t, 22);
    if (draw(t, 3) != 0) o.reuse = draw(t, 2) == 0 ? WEIR_REUSE_DEVICE_WAIT : WEIR_REUSE_HOST_WAIT;
    if (draw(t, 100) == 0) o.reuse = WEIR_REUSE_OWNER;
    return o;
}

static weir_status alloc_somehow(struct stress *t, struct block *b)
{
    if (draw(t, 2) == 0) return weir_alloc(t->w.pool, b->bytes, t->streams[b->home], &b->address);
    weir_alloc_options o = draw_options(t);
    weir_status st = weir_alloc_with(t->w.pool, b->bytes, t->streams[b->home], &o, &b->address);
    if (st == WEIR_OK && o.alignment != 0) assert_int_equal(b->address % o.alignment, 0);
    return st;
}

static void run_alloc(struct stress *t)
{
    if (t->n_blocks == BLOCKS) return;
    unsigned s = draw_stream(t);
    struct block b = {.bytes = draw_size(t), .home = s, .writer = s};
    weir_status st = alloc_somehow(t, &b);
    t->n_not_yet += st == WEIR_NOT_YET;
    t->n_out_of_memory += st == WEIR_OUT_OF_MEMORY;
    t->n_timeouts += st == WEIR_TIMEOUT;
    if (st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY || st == WEIR_TIMEOUT) return;
    assert_int_equal(st, WEIR_OK);
    t->blocks[t->n_blocks++] = b;
    if (draw(t, 8) == 0) return; /* some are freed unused */
    struct block *added = &t->blocks[t->n_blocks - 1];
    begin_write(t, added, s);
    wr_world_mark(&t->w, t->streams[s], added->address, added->bytes, added->tag);
}

/* The last user's free: its own use is not declared, but queued before, and after all others. */
static void free_elsewhere(struct stress *t, struct block *b)
{
    unsigned s = draw_stream(t);
    uint32_t tag = b->tag;
    join(t, b->home, s);
    begin_write(t, b, s);
    if (tag != 0) wr_world_verify(&t->w, t->streams[s], b->address, b->bytes, tag);
    wr_world_mark(&t->w, t->streams[s], b->address, b->bytes, b->tag);
    wr_world_free(&t->w, b->address, t->streams[s]);
}

static void free_one(struct stress *t, struct block *b)
{
    if (b->home == NOBODY || draw(t, 3) == 0)
        free_elsewhere(t, b);
    else
        wr_world_free(&t->w, b->address, t->streams[b->home]);
    *b = t->blocks[--t->n_blocks];
}

static void run_free(struct stress *t)
{
    struct block *b = draw_block(t);
    if (b != NULL) free_one(t, b);
}

/* Asked for memory, the program gives up a block, or claims to. */
static size_t evict_one(void *context, size_t bytes)
{
    struct stress *t = context;
    if (draw(t, 4) == 0) return bytes;
    struct block *b = draw_block(t);
    size_t freed = b != NULL ? b->bytes : 0;
    if (b != NULL) free_one(t, b);
    return freed;
}

/* Now and then a program ends most of what it holds. */
static void run_free_most(struct stress *t)
{
    for (uint64_t n = draw(t, t->n_blocks + 1); n > 0; n--)
        run_free(t);
}

static void run_trim(struct stress *t)
{
    assert_int_equal(weir_trim(t->w.pool, draw(t, LIMIT), NULL), WEIR_OK);
}

/* ---- ends of streams --------------------------------------------------------------------------------- */

/* All that the stream did is before what the heir does from now on: the heir stands for it. */
static void inherit(struct stress *t, unsigned gone, unsigned heir)
{
    join(t, gone, heir);
    for (unsigned i = 0; i < t->n_blocks; i++) {
        struct block *b = &t->blocks[i];
        if (b->home == gone) b->home = NOBODY;
        if (b->writer == gone) b->writer = heir;
        if (b->readers >> gone & 1) b->readers = (b->readers & ~(1u << gone)) | 1u << heir;
    }
}

/* With a word to the pool or without; in both cases the next stream gets the dead one's handle. */
static void run_end_stream(struct stress *t)
{
    unsigned gone = draw_stream(t), heir = (gone + 1) % STREAMS;
    weir_stream handle = t->streams[gone];
    bool announced = draw(t, 2) == 0;
    inherit(t, gone, heir);
    if (announced) assert_int_equal(weir_stream_retire(t->w.pool, handle), WEIR_OK);
    t->n_retired += announced;
    t->n_abandoned += !announced;
    wr_world_destroy_stream(&t->w, handle);
    t->streams[gone] = wr_world_stream(&t->w);
    assert_ptr_equal(t->streams[gone], handle);
}

/* ---- time -------------------------------------------------------------------------------------------- */

static void run_stall(struct stress *t)
{
    if (t->w.n_gates < GATES) wr_world_stall(&t->w, t->streams[draw_stream(t)]);
}

static void run_open_gate(struct stress *t)
{
    if (t->w.n_gates > 0) wr_world_open_gate(&t->w, t->w.gates[draw(t, t->w.n_gates)]);
}

static void run_time(struct stress *t)
{
    if (t->seed == 0) wr_sim_advance(t->w.sim, draw(t, 100 * US));
    for (uint64_t n = draw(t, 8); t->seed != 0 && n > 0; n--)
        wr_sim_step(t->w.sim);
}

static void run_drain(struct stress *t)
{
    wr_sim_drain(t->w.sim);
}

/* ---- programs ---------------------------------------------------------------------------------------- */

static const struct {
    unsigned weight;
    void (*run)(struct stress *);
} operations[] = {
    {300, run_alloc},
    {240, run_free},
    {3, run_free_most},
    {100, run_read},
    {100, run_write},
    {60, run_copy},
    {20, run_trim},
    {10, run_end_stream},
    {20, run_stall},
    {60, run_open_gate},
    {200, run_time},
    {5, run_drain},
};

static void run_one(struct stress *t)
{
    unsigned sum = 0;
    for (size_t i = 0; i < WR_ARRAY_LEN(operations); i++)
        sum += operations[i].weight;
    uint64_t at = draw(t, sum);
    size_t i = 0;
    for (; at >= operations[i].weight; i++)
        at -= operations[i].weight;
    operations[i].run(t);
}

static uint64_t served[WR_RUNGS]; /* in all programs */

static void print_statistics(struct stress *t)
{
    static const char *const rungs[] = {
#define RUNG_NAME(name) #name,
        WR_RUNG_MAP(RUNG_NAME)
#undef RUNG_NAME
    };
    weir_stats s = wr_world_stats(&t->w);
    printf("  %llu allocs (%llu slow), %llu frees, %llu touches, %llu ticks, %llu segments mapped, %llu "
           "unmapped\n",
        (unsigned long long)s.allocs, (unsigned long long)s.slow_allocs, (unsigned long long)s.frees,
        (unsigned long long)s.touches, (unsigned long long)s.ticks, (unsigned long long)s.grows,
        (unsigned long long)s.trims);
    printf("  not yet %llu, out of memory %llu, timeouts %llu; waits %llu of hosts, %llu of streams; %llu "
           "copies; streams retired %llu, abandoned %llu\n  served by",
        (unsigned long long)t->n_not_yet, (unsigned long long)t->n_out_of_memory,
        (unsigned long long)t->n_timeouts, (unsigned long long)s.host_waits,
        (unsigned long long)s.stream_waits, (unsigned long long)t->n_copies, (unsigned long long)t->n_retired,
        (unsigned long long)t->n_abandoned);
    for (int i = 0; i < WR_RUNGS; i++)
        printf(" %s %llu", rungs[i], (unsigned long long)atomic_load(&t->w.pool->served[i]));
    printf("\n");
    for (int i = 0; i < WR_RUNGS; i++)
        served[i] += atomic_load(&t->w.pool->served[i]);
}

static void run_program(uint64_t seed, uint64_t n)
{
    static struct stress t;
    printf("seed %llu: %llu operations\n", (unsigned long long)seed, (unsigned long long)n);
    fflush(stdout);
    t = (struct stress){.seed = seed, .random = seed};
    wr_world_open(&t.w, &(struct wr_world_options){.limit_bytes = LIMIT,
                            .grow_bytes = 8 * WR_MIB,
                            .pool = {.soft_limit_bytes = SOFT_LIMIT, .evict = evict_one, .evict_context = &t},
                            .adversary_seed = seed,
                            .reuse_handles = true});
    for (unsigned i = 0; i < STREAMS; i++)
        t.streams[i] = wr_world_stream(&t.w);
    for (uint64_t i = 1; i <= n; i++) {
        run_one(&t);
        if (i % CHECK_EVERY == 0) wr_world_check(&t.w);
    }
    print_statistics(&t);
    assert_int_equal(wr_world_counts(&t.w).host_syncs, 0);
    assert_int_equal(wr_world_counts(&t.w).dead_handle_uses, 0);
    while (t.n_blocks > 0)
        free_one(&t, &t.blocks[0]);
    wr_world_close(&t.w);
}

static uint64_t n_operations = 100000, first_seed = 0;

/* A nearly full device, a second pool, a callback, a soft limit: test_segments and test_pool_ladder have them. */
static bool needs_a_set_up(int rung)
{
    return rung == WR_RUNG_make_room || rung == WR_RUNG_ask_others || rung == WR_RUNG_evict ||
           rung == WR_RUNG_overgrow;
}

static void test_random_programs(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + RUNS; seed++)
        run_program(seed, n_operations / RUNS);
    for (int i = 0; i < WR_RUNGS && n_operations >= ALL_RUNGS; i++)
        assert_true(served[i] > 0 || needs_a_set_up(i));
}

int main(int argc, char **argv)
{
    if (argc > 1) n_operations = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_programs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
