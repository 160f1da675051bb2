/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs over one pool from many threads.  stress_pool_threads [operations of each thread] [seed]
 *
 * Each thread has streams and blocks of its own, which change hands over a board: see board.h. Tags as in
 * stress_pool. Once on the wall clock, where a thread of the simulation ends the work, once under an adversary.
 */
#include "board.h"
#include "pool_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, CROWD = 8, OWN_STREAMS = 2, OWN_BLOCKS = 32, PLACES = 16 };

#define LIMIT       (96 * WR_MIB)
#define SMALL_LIMIT (24 * WR_MIB)

struct run {
    struct wr_world w;
    struct board board;
    uint64_t n_operations, limit;
};

struct worker {
    struct run *run;
    pthread_t thread;
    uint64_t random;
    struct hands hands;
    uint64_t n_served, n_refused, n_taken;
};

static uint64_t draw(struct worker *t, uint64_t below) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (t->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static struct block *draw_block(struct worker *t) /* NULL: there is none */
{
    return t->hands.n_blocks > 0 ? &t->hands.blocks[draw(t, t->hands.n_blocks)] : NULL;
}

static struct place *draw_place(struct worker *t)
{
    return &t->run->board.places[draw(t, t->run->board.n_places)];
}

static void mark(struct worker *t, struct block *b)
{
    b->tag = board_new_tag(&t->run->board);
    wr_world_mark(&t->run->w, t->hands.streams[b->last], b->address, b->bytes, b->tag);
}

static void verify(struct worker *t, const struct block *b)
{
    wr_world_verify(&t->run->w, t->hands.streams[b->last], b->address, b->bytes, b->tag);
}

/* ---- operations -------------------------------------------------------------------------------------- */

static void run_alloc(struct worker *t)
{
    static const unsigned most_log2[] = {9, 12, 16, 20, 21, 22, 24};
    if (t->hands.n_blocks == OWN_BLOCKS) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    struct block b = {.last = s, .home = (int)s};
    b.bytes = 1 + draw(t, (uint64_t)1 << most_log2[draw(t, WR_ARRAY_LEN(most_log2))]);
    static const weir_reuse policies[] = {WEIR_REUSE_DEFAULT, WEIR_REUSE_DEVICE_WAIT, WEIR_REUSE_HOST_WAIT};
    weir_alloc_options o = {.struct_size = sizeof o, .deadline_ns = 100000};
    o.reuse = draw(t, 200) == 0 ? WEIR_REUSE_OWNER : policies[draw(t, WR_ARRAY_LEN(policies))];
    weir_status st = weir_alloc_with(t->run->w.pool, b.bytes, t->hands.streams[s], &o, &b.address);
    assert_true(st == WEIR_OK || st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY || st == WEIR_TIMEOUT);
    t->n_served += st == WEIR_OK;
    t->n_refused += st != WEIR_OK;
    if (st != WEIR_OK) return;
    mark(t, &b);
    t->hands.blocks[t->hands.n_blocks++] = b;
}

static void run_use(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    hands_join(&t->hands, b->last, s);
    b->last = s;
    verify(t, b);
    if (draw(t, 2) == 0) mark(t, b);
    if (b->home != (int)s) wr_world_touch(&t->run->w, b->address, t->hands.streams[s]);
}

static void run_free(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    verify(t, b); /* not declared: the free covers it */
    wr_world_free(&t->run->w, b->address, t->hands.streams[b->last]);
    hands_drop(&t->hands, b);
}

static void run_give(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b != NULL) hands_give(&t->hands, b, draw_place(t));
}

static void run_take(struct worker *t)
{
    if (t->hands.n_blocks == OWN_BLOCKS) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    struct block *b = hands_take(&t->hands, s, draw_place(t));
    if (b == NULL) return;
    verify(t, b);
    wr_world_touch(&t->run->w, b->address, t->hands.streams[s]);
    t->n_taken++;
}

static void run_copy(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    struct wr_device *d = t->run->w.device;
    size_t bytes = wr_min(b->bytes, 4096);
    weir_stream s = t->hands.streams[b->last];
    void *host;
    assert_int_equal(weir_host_alloc(t->run->w.pool, bytes, &host), WEIR_OK);
    assert_int_equal(d->ops->copy(d, WR_COPY_D2H, (uintptr_t)host, b->address, bytes, s), WEIR_OK);
    assert_int_equal(weir_host_free(t->run->w.pool, host, s), WEIR_OK);
    if (b->home != (int)b->last) wr_world_touch(&t->run->w, b->address, s);
}

static void run_trim(struct worker *t)
{
    assert_int_equal(weir_trim(t->run->w.pool, draw(t, t->run->limit), NULL), WEIR_OK);
}

static void run_stats(struct worker *t)
{
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(t->run->w.pool, &s), WEIR_OK);
    assert_true(s.reserved_bytes <= t->run->limit && s.peak_reserved_bytes <= t->run->limit);
    /* Whatever the others are in the middle of. */
    assert_int_equal(weir_pool_check(t->run->w.pool), WEIR_OK);
}

static void run_end_stream(struct worker *t)
{
    hands_end_stream(&t->hands, (unsigned)draw(t, OWN_STREAMS));
}

static const struct {
    unsigned weight;
    void (*run)(struct worker *);
} operations[] = {{300, run_alloc}, {220, run_free}, {150, run_use}, {100, run_give}, {100, run_take},
    {50, run_copy}, {10, run_trim}, {10, run_stats}, {10, run_end_stream}};

/* ---- a run ------------------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct worker *t = arg;
    unsigned sum = 0;
    for (size_t i = 0; i < WR_ARRAY_LEN(operations); i++)
        sum += operations[i].weight;
    for (uint64_t n = 0; n < t->run->n_operations; n++) {
        uint64_t at = draw(t, sum);
        size_t i = 0;
        for (; at >= operations[i].weight; i++)
            at -= operations[i].weight;
        operations[i].run(t);
    }
    return NULL;
}

static void open_worker(struct worker *t, struct run *r, uint64_t seed)
{
    *t = (struct worker){.run = r, .random = seed};
    hands_open(&t->hands, &r->board, OWN_STREAMS);
}

static void close_worker(struct worker *t)
{
    struct wr_device *d = t->run->w.device;
    while (t->hands.n_blocks > 0)
        run_free(t);
    for (int i = 0; i < OWN_STREAMS; i++) {
        assert_int_equal(weir_stream_retire(t->run->w.pool, t->hands.streams[i]), WEIR_OK);
        assert_int_equal(d->ops->stream_destroy(d, t->hands.streams[i]), WEIR_OK);
    }
    assert_int_equal(d->ops->event_destroy(d, t->hands.event), WEIR_OK);
    printf("  %llu allocs served, %llu refused, %llu blocks taken over\n", (unsigned long long)t->n_served,
        (unsigned long long)t->n_refused, (unsigned long long)t->n_taken);
}

static void run_threads(struct wr_world_options options, int n_threads, uint64_t n, uint64_t seed)
{
    static struct worker workers[CROWD];
    static struct run r;
    memset(&r, 0, sizeof r);
    if (options.limit_bytes == 0) options.limit_bytes = LIMIT;
    options.grow_bytes = 4 * WR_MIB;
    wr_world_open(&r.w, &options);
    board_open(&r.board, r.w.device, r.w.pool, PLACES);
    r.n_operations = n;
    r.limit = options.limit_bytes;
    printf("%s, %d threads of %llu operations, seed %llu\n", options.wall_clock ? "wall clock" : "adversary",
        n_threads, (unsigned long long)n, (unsigned long long)seed);
    for (int i = 0; i < n_threads; i++)
        open_worker(&workers[i], &r, seed * CROWD + (uint64_t)i);
    for (int i = 0; i < n_threads; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < n_threads; i++)
        pthread_join(workers[i].thread, NULL);
    board_close(&r.board, workers[0].hands.streams[0]);
    for (int i = 0; i < n_threads; i++)
        close_worker(&workers[i]);
    assert_int_equal(wr_world_counts(&r.w).host_syncs, 0);
    wr_world_close(&r.w);
}

static uint64_t n_operations = 10000, first_seed = 1;

static void test_on_the_wall_clock(void **state)
{
    (void)state;
    run_threads((struct wr_world_options){.wall_clock = true}, THREADS, n_operations, first_seed);
}

static void test_under_an_adversary(void **state)
{
    (void)state;
    run_threads((struct wr_world_options){.adversary_seed = first_seed}, THREADS, n_operations, first_seed);
}

/* Every alloc finds the pool full: memory goes from heap to heap, and segments come and go all the time. */
static void test_a_crowd_that_wants_one_small_pool(void **state)
{
    (void)state;
    run_threads((struct wr_world_options){.wall_clock = true, .limit_bytes = SMALL_LIMIT}, CROWD,
        n_operations / 2, first_seed);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_operations = strtoull(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    setenv("CMOCKA_TEST_ABORT", "1",
        1); /* an assertion in a thread can't jump to the test: it says what, and ends */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_wall_clock),
        cmocka_unit_test(test_under_an_adversary),
        cmocka_unit_test(test_a_crowd_that_wants_one_small_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
