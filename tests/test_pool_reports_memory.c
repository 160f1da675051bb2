/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other allocators met: memory that runs out, fails to come, or lies in pieces. The names are
 * the reports' ids.
 */
#include "pool_world.h"

#include <stdio.h>
#include <string.h>

#define MS ((uint64_t)1000000)

/* ---- A18 --------------------------------------------------------------------------------------------- */

/* Freed on `home`, pending on `reader`. */
static weir_dptr free_under_a_reader(struct wr_world *w, size_t bytes, weir_stream home, weir_stream reader)
{
    weir_dptr x = wr_world_alloc(w, bytes, home);
    wr_world_read(w, reader, x, bytes, MS);
    wr_world_touch(w, x, reader);
    wr_world_free(w, x, home);
    return x;
}

static void test_A18_a_block_whose_fence_is_done_is_found_by_one_call(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    size_t all = w.device->total_bytes;
    weir_dptr x = free_under_a_reader(&w, all, a, b);
    wr_sim_drain(w.sim);
    assert_int_equal(wr_world_alloc(&w, all, c), x);
    wr_world_write(&w, c, x, all, MS);
    wr_world_free(&w, x, c);
    wr_world_close(&w);
}

static void test_A18_a_block_whose_fence_runs_is_not_yet_and_named(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    struct wr_stream_info info;
    assert_int_equal(w.device->ops->stream_identify(w.device, b, &info), WEIR_OK);
    size_t all = w.device->total_bytes;
    struct wr_sim_gate *gate = wr_world_stall(&w, b);
    weir_dptr x = free_under_a_reader(&w, all, a, b);
    assert_int_equal(wr_world_try_alloc(&w, WR_MIB, c), 0);
    char stream[64], bytes[64];
    snprintf(stream, sizeof stream, "stream id %llu", (unsigned long long)info.id);
    snprintf(bytes, sizeof bytes, "%zu", all);
    assert_non_null(strstr(weir_error_text(), stream));
    assert_non_null(strstr(weir_error_text(), bytes));
    wr_world_let_go(&w, gate);
    assert_int_equal(wr_world_alloc(&w, all, c), x);
    wr_world_free(&w, x, c);
    wr_world_close(&w);
}

/* Another user of the device has the rest of it: the limit is not what is in the way. */
static void test_A18_a_full_device_is_served_from_what_the_pool_has(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.memory_bytes = WR_GIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x[2], y;
    wr_memory others;
    for (int i = 0; i < 2; i++)
        x[i] = wr_world_alloc(&w, 256 * WR_MIB, a);
    assert_int_equal(w.device->ops->mem_create(w.device, 512 * WR_MIB, &others), WEIR_OK);
    assert_int_equal(weir_alloc(w.pool, 384 * WR_MIB, b, &y), WEIR_OUT_OF_MEMORY);
    for (int i = 0; i < 2; i++)
        wr_world_free(&w, x[i], a);
    y = wr_world_alloc(&w, 384 * WR_MIB, b);
    wr_world_free(&w, y, b);
    assert_int_equal(w.device->ops->mem_release(w.device, others), WEIR_OK);
    wr_world_close(&w);
}

/* An adversary lets work end between any two looks of one call: what passes behind its back is there for the
 * next call, so it is not yet, and not out of memory. Found by fuzz_pool. */
static void test_A18_what_passes_during_the_call_is_not_out_of_memory(void **state)
{
    (void)state;
    enum { SEEDS = 300, LOOKS = 100 };
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct wr_world w;
        wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB, .adversary_seed = seed});
        weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
        weir_dptr y = wr_world_alloc(&w, 4 * WR_MIB, b), all = 0;
        free_under_a_reader(&w, 4 * WR_MIB, a, b);
        wr_world_write(&w, b, y, 4 * WR_MIB, MS);
        wr_world_free(&w, y, b);
        for (int i = 0; i < LOOKS && all == 0; i++)
            all = wr_world_try_alloc(&w, 8 * WR_MIB, a); /* nothing but NOT_YET may fail it */
        wr_world_free(&w, all, a);
        wr_world_close(&w);
    }
}

/* ---- A19 --------------------------------------------------------------------------------------------- */

static void test_A19_out_of_memory_never_waits_for_a_stream(void **state)
{
    (void)state;
    enum { STREAMS = 8, CALLS_PER_STREAM = 8 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = STREAMS * 8 * WR_MIB});
    weir_stream s[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        s[i] = wr_world_stream(&w);
        weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, s[i]);
        wr_world_stall(&w, s[i]);
        wr_world_write(&w, s[i], x, 8 * WR_MIB, MS);
        wr_world_free(&w, x, s[i]);
    }
    uint64_t calls = wr_sim_calls(w.sim);
    assert_int_equal(wr_world_try_alloc(&w, 16 * WR_MIB, s[0]), 0);
    assert_in_range(wr_sim_calls(w.sim) - calls, 0, STREAMS * CALLS_PER_STREAM);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    assert_int_equal(wr_world_counts(&w).stream_waits, 0);
    while (w.n_gates > 0)
        wr_world_let_go(&w, w.gates[0]);
    wr_world_free(&w, wr_world_alloc(&w, STREAMS * 8 * WR_MIB, s[0]), s[0]);
    wr_world_close(&w);
}

/* ---- A21 --------------------------------------------------------------------------------------------- */

static bool fail_one_call_of_growth(struct wr_world *w, weir_stream s, uint64_t n, weir_status error)
{
    const size_t big = 300 * WR_MIB, smaller = 4 * WR_MIB;
    weir_stats before = wr_world_stats(w);
    uint64_t calls = wr_sim_calls(w->sim);
    weir_dptr x = 0;
    wr_sim_fail_nth(w->sim, n, error);
    weir_status st = weir_alloc(w->pool, big, s, &x);
    bool failed = wr_sim_calls(w->sim) - calls >= n;
    wr_sim_fail_nth(w->sim, 0, WEIR_OK);
    if (st == WEIR_OK) {
        wr_world_free(w, x, s);
        assert_int_equal(weir_trim(w->pool, before.reserved_bytes, NULL), WEIR_OK);
    } else {
        assert_int_equal(st, error);
    }
    assert_int_equal(wr_world_stats(w).reserved_bytes, before.reserved_bytes);
    wr_world_check(w);
    wr_world_free(w, wr_world_alloc(w, smaller, s), s);
    wr_world_free(w, wr_world_alloc(w, big, s), s);
    return failed;
}

/* Which pages were there before decides how the growth is made: each k blocks in turn. */
static void test_A21_a_growth_that_fails_half_way_leaves_nothing(void **state)
{
    (void)state;
    const weir_status errors[] = {WEIR_DRIVER_ERROR, WEIR_OUT_OF_MEMORY};
    for (int i = 0; i < 2; i++) {
        bool failed = true;
        for (uint64_t n = 1; failed; n++) {
            struct wr_world w;
            wr_world_open(
                &w, &(struct wr_world_options){.limit_bytes = 512 * WR_MIB, .grow_bytes = 2 * WR_MIB});
            weir_stream s = wr_world_stream(&w);
            weir_dptr kept = wr_world_alloc(&w, 4 * WR_MIB, s);
            failed = fail_one_call_of_growth(&w, s, n, errors[i]);
            assert_true(n < 1000);
            wr_world_free(&w, kept, s);
            wr_world_close(&w);
        }
    }
}

/* ---- A23 --------------------------------------------------------------------------------------------- */

enum { A23_MOST = 300 };

static void keep_pieces_of(size_t piece_bytes, int n)
{
    const size_t big = 11 * WR_GIB;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.profile = "h200-pcie5", .limit_bytes = 16 * WR_GIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr pieces[A23_MOST];
    wr_world_free(&w, wr_world_alloc(&w, big, s), s);
    for (int i = 0; i < n; i++)
        pieces[i] = wr_world_alloc(&w, piece_bytes, s);
    weir_dptr again = wr_world_alloc(&w, big, s);
    assert_true(wr_world_stats(&w).peak_reserved_bytes <= big + (uint64_t)n * piece_bytes + 64 * WR_MIB);
    wr_world_free(&w, again, s);
    for (int i = 0; i < n; i++)
        wr_world_free(&w, pieces[i], s);
    wr_world_close(&w);
}

static void test_A23_pieces_cut_from_a_big_block_do_not_hold_it_back(void **state)
{
    (void)state;
    keep_pieces_of(17 * WR_MIB, 30);
    keep_pieces_of(WR_MIB, 300);
}

/* ---- A24 --------------------------------------------------------------------------------------------- */

#define A24_LIMIT ((uint64_t)84500 * 1000 * 1000)
#define A24_LIVE  ((uint64_t)53500 * 1000 * 1000)
enum { A24_MOST = 4096, A24_STEPS = 2000 };

struct crowd {
    weir_dptr blocks[A24_MOST];
    size_t bytes[A24_MOST];
    unsigned n;
    uint64_t live, random;
};

static uint64_t draw(uint64_t *state) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void join_crowd(struct wr_world *w, weir_stream s, struct crowd *c, size_t bytes)
{
    assert_true(c->n < A24_MOST);
    c->blocks[c->n] = wr_world_alloc(w, bytes, s);
    c->bytes[c->n++] = bytes;
    c->live += bytes;
}

static void leave_crowd(struct wr_world *w, weir_stream s, struct crowd *c)
{
    unsigned i = (unsigned)(draw(&c->random) % c->n);
    wr_world_free(w, c->blocks[i], s);
    c->live -= c->bytes[i];
    c->n--;
    c->blocks[i] = c->blocks[c->n];
    c->bytes[i] = c->bytes[c->n];
}

static void ask_in_a_crowd(uint64_t seed)
{
    const size_t asked[] = {132870728, 256 * WR_MIB, 512 * WR_MIB, WR_GIB};
    static struct crowd c;
    c = (struct crowd){.random = seed};
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.profile = "h200-pcie5", .limit_bytes = A24_LIMIT});
    weir_stream s = wr_world_stream(&w);
    for (int i = 0; i < A24_STEPS; i++) {
        while (c.live >= A24_LIVE)
            leave_crowd(&w, s, &c);
        join_crowd(&w, s, &c, WR_MIB + draw(&c.random) % (255 * WR_MIB));
    }
    for (size_t i = 0; i < WR_ARRAY_LEN(asked); i++)
        wr_world_free(&w, wr_world_alloc(&w, asked[i], s), s);
    for (size_t bytes = WR_GIB; c.live + bytes <= A24_LIMIT / 100 * 95;
         bytes = WR_MIB + draw(&c.random) % WR_GIB)
        join_crowd(&w, s, &c, bytes);
    while (c.n > 0)
        leave_crowd(&w, s, &c);
    wr_world_close(&w);
}

static void test_A24_a_steady_crowd_leaves_room_for_a_big_block(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++)
        ask_in_a_crowd(seed);
}

/* ---- A25 --------------------------------------------------------------------------------------------- */

static void test_A25_a_finished_segment_goes_back_when_the_limit_is_in_the_way(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 1000 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 512 * WR_MIB, s), s);
    weir_dptr x = wr_world_alloc(&w, 768 * WR_MIB, s);
    assert_true(wr_world_stats(&w).peak_reserved_bytes <= 1000 * WR_MIB);
    wr_world_free(&w, x, s);
    wr_world_close(&w);
}

/* ---- A26 --------------------------------------------------------------------------------------------- */

/* A working set of 3 GB in blocks of one size, used on the stream and freed. */
static void run_model(struct wr_world *w, weir_stream s, size_t block_bytes)
{
    enum { MOST = 300 };
    weir_dptr blocks[MOST];
    unsigned n = (unsigned)(3 * WR_GIB / block_bytes);
    assert_true(n <= MOST);
    for (unsigned i = 0; i < n; i++) {
        blocks[i] = wr_world_alloc(w, block_bytes, s);
        wr_world_write(w, s, blocks[i], block_bytes, MS);
    }
    for (unsigned i = 0; i < n; i++)
        wr_world_free(w, blocks[i], s);
    wr_sim_drain(w->sim);
}

static void test_A26_two_models_in_turn_do_not_add_up(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    uint64_t steady = 0;
    for (int round = 1; round <= 50; round++) {
        run_model(&w, a, 37 * WR_MIB);
        run_model(&w, b, 11 * WR_MIB + 4096);
        uint64_t reserved = wr_world_stats(&w).reserved_bytes;
        if (round <= 3) steady = reserved;
        assert_int_equal(reserved, steady);
    }
    weir_stats before = wr_world_stats(&w);
    size_t freed;
    assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
    assert_int_equal(freed, before.reserved_bytes);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, 0);
    wr_world_close(&w);
}

struct allocating_thread {
    struct wr_world *world;
    weir_stream stream;
    _Atomic bool *over;
    uint64_t rounds;
};

static void *keep_allocating(void *arg)
{
    struct allocating_thread *t = arg;
    while (!atomic_load(t->over)) {
        weir_dptr small = wr_world_alloc(t->world, 4096, t->stream);
        weir_dptr large = wr_world_alloc(t->world, 2 * WR_MIB, t->stream);
        wr_world_free(t->world, small, t->stream);
        wr_world_free(t->world, large, t->stream);
        t->rounds++;
    }
    return NULL;
}

/* With a stream stalled, trim returns what is finished, at once, while threads go on allocating. */
static void test_A26_trim_waits_for_nothing_and_stops_nobody(void **state)
{
    (void)state;
    enum { THREADS = 8, TRIMS = 200 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.grow_bytes = 2 * WR_MIB});
    weir_stream k = wr_world_stream(&w), idle = wr_world_stream(&w);
    weir_dptr held = wr_world_alloc(&w, 64 * WR_MIB, k), done = wr_world_alloc(&w, 64 * WR_MIB, idle);
    wr_world_stall(&w, k);
    wr_world_write(&w, k, held, 64 * WR_MIB, MS);
    wr_world_free(&w, held, k);
    wr_world_free(&w, done, idle);
    size_t freed;
    assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
    assert_int_equal(freed, 64 * WR_MIB);

    struct allocating_thread threads[THREADS];
    pthread_t ids[THREADS];
    _Atomic bool over = false;
    for (int i = 0; i < THREADS; i++) {
        threads[i] = (struct allocating_thread){.world = &w, .stream = wr_world_stream(&w), .over = &over};
        assert_int_equal(pthread_create(&ids[i], NULL, keep_allocating, &threads[i]), 0);
    }
    for (int i = 0; i < TRIMS; i++)
        assert_int_equal(weir_trim(w.pool, 0, NULL), WEIR_OK);
    atomic_store(&over, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    assert_true(wr_world_stats(&w).reserved_bytes >= 64 * WR_MIB);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_A18_a_block_whose_fence_is_done_is_found_by_one_call),
        cmocka_unit_test(test_A18_a_block_whose_fence_runs_is_not_yet_and_named),
        cmocka_unit_test(test_A18_a_full_device_is_served_from_what_the_pool_has),
        cmocka_unit_test(test_A18_what_passes_during_the_call_is_not_out_of_memory),
        cmocka_unit_test(test_A19_out_of_memory_never_waits_for_a_stream),
        cmocka_unit_test(test_A21_a_growth_that_fails_half_way_leaves_nothing),
        cmocka_unit_test(test_A23_pieces_cut_from_a_big_block_do_not_hold_it_back),
        cmocka_unit_test(test_A24_a_steady_crowd_leaves_room_for_a_big_block),
        cmocka_unit_test(test_A25_a_finished_segment_goes_back_when_the_limit_is_in_the_way),
        cmocka_unit_test(test_A26_two_models_in_turn_do_not_add_up),
        cmocka_unit_test(test_A26_trim_waits_for_nothing_and_stops_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
