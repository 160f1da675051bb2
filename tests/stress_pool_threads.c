/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs over one pool from many threads.  stress_pool_threads [operations of each thread] [seed]
 *
 * Each thread has streams and blocks of its own. A block's uses all lie before one point of one stream, its
 * `last`; who wants it on another stream joins that to it. Blocks change hands over a board, with an event
 * that marks where the giver had come; so most blocks die far from home, in a thread that their home's stream
 * never saw. Tags as in stress_pool. Once on the wall clock, where a thread of the simulation ends the work,
 * once under an adversary.
 */
#include "pool_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, CROWD = 8, OWN_STREAMS = 2, OWN_BLOCKS = 32, PLACES = 16 };

#define LIMIT       (96 * WR_MIB)
#define SMALL_LIMIT (24 * WR_MIB)

struct block {
    weir_dptr address;
    size_t bytes;
    uint32_t tag;
    unsigned last; /* the own stream that all its uses are before */
    int home;      /* the own stream where it was allocated; -1: another thread's, or gone */
};

/* A block between two threads. The event is the place's own. */
struct place {
    bool taken;
    struct block block;
    wr_event event;
};

struct board {
    struct wr_world w;
    pthread_mutex_t mutex; /* guards the places */
    struct place places[PLACES];
    _Atomic uint32_t last_tag;
    uint64_t n_operations, limit;
};

struct worker {
    struct board *board;
    pthread_t thread;
    uint64_t random;
    weir_stream streams[OWN_STREAMS];
    wr_event event;
    struct block blocks[OWN_BLOCKS];
    unsigned n_blocks;
    uint64_t n_served, n_refused, n_taken;
};

static uint64_t draw(struct worker *t, uint64_t below) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (t->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static struct wr_device *device_of(struct worker *t)
{
    return t->board->w.device;
}

static void join(struct worker *t, unsigned before, unsigned after)
{
    struct wr_device *d = device_of(t);
    if (before == after) return;
    assert_int_equal(d->ops->event_record(d, t->event, t->streams[before]), WEIR_OK);
    assert_int_equal(d->ops->stream_wait(d, t->streams[after], t->event), WEIR_OK);
}

static void mark(struct worker *t, struct block *b)
{
    b->tag = atomic_fetch_add(&t->board->last_tag, 1) + 1;
    wr_world_mark(&t->board->w, t->streams[b->last], b->address, b->bytes, b->tag);
}

static void verify(struct worker *t, const struct block *b)
{
    wr_world_verify(&t->board->w, t->streams[b->last], b->address, b->bytes, b->tag);
}

/* ---- operations -------------------------------------------------------------------------------------- */

static void run_alloc(struct worker *t)
{
    static const unsigned most_log2[] = {9, 12, 16, 20, 21, 22, 24};
    if (t->n_blocks == OWN_BLOCKS) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    struct block b = {.last = s, .home = (int)s};
    b.bytes = 1 + draw(t, (uint64_t)1 << most_log2[draw(t, WR_ARRAY_LEN(most_log2))]);
    static const weir_reuse policies[] = {WEIR_REUSE_DEFAULT, WEIR_REUSE_DEVICE_WAIT, WEIR_REUSE_HOST_WAIT};
    weir_alloc_options o = {.struct_size = sizeof o, .deadline_ns = 100000};
    o.reuse = draw(t, 200) == 0 ? WEIR_REUSE_OWNER : policies[draw(t, WR_ARRAY_LEN(policies))];
    weir_status st = weir_alloc_with(t->board->w.pool, b.bytes, t->streams[s], &o, &b.address);
    assert_true(st == WEIR_OK || st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY || st == WEIR_TIMEOUT);
    t->n_served += st == WEIR_OK;
    t->n_refused += st != WEIR_OK;
    if (st != WEIR_OK) return;
    mark(t, &b);
    t->blocks[t->n_blocks++] = b;
}

static void run_use(struct worker *t)
{
    if (t->n_blocks == 0) return;
    struct block *b = &t->blocks[draw(t, t->n_blocks)];
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    join(t, b->last, s);
    b->last = s;
    verify(t, b);
    if (draw(t, 2) == 0) mark(t, b);
    if (b->home != (int)s) wr_world_touch(&t->board->w, b->address, t->streams[s]);
}

static void run_free(struct worker *t)
{
    if (t->n_blocks == 0) return;
    struct block *b = &t->blocks[draw(t, t->n_blocks)];
    verify(t, b); /* not declared: the free covers it */
    wr_world_free(&t->board->w, b->address, t->streams[b->last]);
    *b = t->blocks[--t->n_blocks];
}

static void run_give(struct worker *t)
{
    if (t->n_blocks == 0) return;
    struct wr_device *d = device_of(t);
    struct block *b = &t->blocks[draw(t, t->n_blocks)];
    pthread_mutex_lock(&t->board->mutex);
    struct place *p = &t->board->places[draw(t, PLACES)];
    if (!p->taken) {
        assert_int_equal(d->ops->event_record(d, p->event, t->streams[b->last]), WEIR_OK);
        p->taken = true;
        p->block = *b;
        *b = t->blocks[--t->n_blocks];
    }
    pthread_mutex_unlock(&t->board->mutex);
}

static void run_take(struct worker *t)
{
    if (t->n_blocks == OWN_BLOCKS) return;
    struct wr_device *d = device_of(t);
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    pthread_mutex_lock(&t->board->mutex);
    struct place *p = &t->board->places[draw(t, PLACES)];
    bool taken = p->taken;
    if (taken) {
        assert_int_equal(d->ops->stream_wait(d, t->streams[s], p->event), WEIR_OK);
        t->blocks[t->n_blocks] = p->block;
        p->taken = false;
    }
    pthread_mutex_unlock(&t->board->mutex);
    if (!taken) return;
    struct block *b = &t->blocks[t->n_blocks++];
    b->last = s;
    b->home = -1;
    verify(t, b);
    wr_world_touch(&t->board->w, b->address, t->streams[s]);
    t->n_taken++;
}

static void run_copy(struct worker *t)
{
    if (t->n_blocks == 0) return;
    struct wr_device *d = device_of(t);
    struct block *b = &t->blocks[draw(t, t->n_blocks)];
    size_t bytes = wr_min(b->bytes, 4096);
    weir_stream s = t->streams[b->last];
    void *host;
    assert_int_equal(weir_host_alloc(t->board->w.pool, bytes, &host), WEIR_OK);
    assert_int_equal(d->ops->copy(d, WR_COPY_D2H, (uintptr_t)host, b->address, bytes, s), WEIR_OK);
    assert_int_equal(weir_host_free(t->board->w.pool, host, s), WEIR_OK);
    if (b->home != (int)b->last) wr_world_touch(&t->board->w, b->address, s);
}

static void run_trim(struct worker *t)
{
    assert_int_equal(weir_trim(t->board->w.pool, draw(t, t->board->limit), NULL), WEIR_OK);
}

static void run_stats(struct worker *t)
{
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(t->board->w.pool, &s), WEIR_OK);
    assert_true(s.reserved_bytes <= t->board->limit && s.peak_reserved_bytes <= t->board->limit);
    /* Whatever the others are in the middle of. */
    assert_int_equal(weir_pool_check(t->board->w.pool), WEIR_OK);
}

/* The other stream stands for the dead one from now on. */
static void run_end_stream(struct worker *t)
{
    struct wr_device *d = device_of(t);
    unsigned gone = (unsigned)draw(t, OWN_STREAMS), heir = (gone + 1) % OWN_STREAMS;
    join(t, gone, heir);
    for (unsigned i = 0; i < t->n_blocks; i++) {
        struct block *b = &t->blocks[i];
        if (b->home == (int)gone) b->home = -1;
        if (b->last == gone) b->last = heir;
    }
    assert_int_equal(weir_stream_retire(t->board->w.pool, t->streams[gone]), WEIR_OK);
    assert_int_equal(d->ops->stream_destroy(d, t->streams[gone]), WEIR_OK);
    assert_int_equal(d->ops->stream_create(d, &t->streams[gone]), WEIR_OK);
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
    for (uint64_t n = 0; n < t->board->n_operations; n++) {
        uint64_t at = draw(t, sum);
        size_t i = 0;
        for (; at >= operations[i].weight; i++)
            at -= operations[i].weight;
        operations[i].run(t);
    }
    return NULL;
}

static void open_worker(struct worker *t, struct board *b, uint64_t seed)
{
    *t = (struct worker){.board = b, .random = seed};
    for (int i = 0; i < OWN_STREAMS; i++)
        assert_int_equal(b->w.device->ops->stream_create(b->w.device, &t->streams[i]), WEIR_OK);
    assert_int_equal(b->w.device->ops->event_create(b->w.device, &t->event), WEIR_OK);
}

static void close_worker(struct worker *t)
{
    struct wr_device *d = device_of(t);
    while (t->n_blocks > 0)
        run_free(t);
    for (int i = 0; i < OWN_STREAMS; i++) {
        assert_int_equal(weir_stream_retire(t->board->w.pool, t->streams[i]), WEIR_OK);
        assert_int_equal(d->ops->stream_destroy(d, t->streams[i]), WEIR_OK);
    }
    assert_int_equal(d->ops->event_destroy(d, t->event), WEIR_OK);
    printf("  %llu allocs served, %llu refused, %llu blocks taken over\n", (unsigned long long)t->n_served,
        (unsigned long long)t->n_refused, (unsigned long long)t->n_taken);
}

static void clear_board(struct board *b, struct worker *t)
{
    struct wr_device *d = b->w.device;
    for (int i = 0; i < PLACES; i++) {
        struct place *p = &b->places[i];
        if (p->taken) {
            assert_int_equal(d->ops->stream_wait(d, t->streams[0], p->event), WEIR_OK);
            wr_world_free(&b->w, p->block.address, t->streams[0]);
        }
        assert_int_equal(d->ops->event_destroy(d, p->event), WEIR_OK);
    }
}

static void run_threads(struct wr_world_options options, int n_threads, uint64_t n, uint64_t seed)
{
    static struct worker workers[CROWD];
    static struct board b;
    memset(&b, 0, sizeof b);
    if (options.limit_bytes == 0) options.limit_bytes = LIMIT;
    options.grow_bytes = 4 * WR_MIB;
    wr_world_open(&b.w, &options);
    pthread_mutex_init(&b.mutex, NULL);
    b.n_operations = n;
    b.limit = options.limit_bytes;
    printf("%s, %d threads of %llu operations, seed %llu\n", options.wall_clock ? "wall clock" : "adversary",
        n_threads, (unsigned long long)n, (unsigned long long)seed);
    for (int i = 0; i < PLACES; i++)
        assert_int_equal(b.w.device->ops->event_create(b.w.device, &b.places[i].event), WEIR_OK);
    for (int i = 0; i < n_threads; i++)
        open_worker(&workers[i], &b, seed * CROWD + (uint64_t)i);
    for (int i = 0; i < n_threads; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < n_threads; i++)
        pthread_join(workers[i].thread, NULL);
    clear_board(&b, &workers[0]);
    for (int i = 0; i < n_threads; i++)
        close_worker(&workers[i]);
    assert_int_equal(wr_world_counts(&b.w).host_syncs, 0);
    pthread_mutex_destroy(&b.mutex);
    wr_world_close(&b.w);
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
