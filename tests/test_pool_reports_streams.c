/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other allocators met: several streams, and the ends of streams. The names are the reports'
 * ids.
 */
#include "pool_world.h"

#define MS          ((uint64_t)1000000)
#define US          ((uint64_t)1000)
#define LEGACY      ((weir_stream)0)
#define PER_THREAD  ((weir_stream)2)
#define SMALL_BLOCK (64 * WR_KIB)

/* ---- A04 --------------------------------------------------------------------------------------------- */

enum { A04_STREAMS = 3, A04_PARTS = 3, A04_PATTERN = 0xC };
#define A04_X (4 * WR_MIB)

/* C takes and writes all that it gets of X's size. */
static unsigned take_all(struct wr_world *w, weir_stream c, weir_dptr blocks[A04_PARTS])
{
    unsigned n = 0;
    while (n < A04_PARTS && (blocks[n] = wr_world_try_alloc(w, A04_X, c)) != 0)
        wr_world_fill(w, c, blocks[n++], A04_X, A04_PATTERN);
    return n;
}

/* X lies between two pieces that were freed before A's late write was queued. */
static weir_dptr free_merged(struct wr_world *w, weir_stream a)
{
    weir_dptr left = wr_world_alloc(w, A04_X, a), x = wr_world_alloc(w, A04_X, a);
    weir_dptr right = wr_world_alloc(w, A04_X, a);
    wr_world_free(w, left, a);
    wr_world_free(w, right, a);
    wr_world_fill(w, a, x, A04_X, 0xA);
    wr_world_free(w, x, a);
    return x;
}

static void let_go_in_order(const int order[A04_STREAMS])
{
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){.limit_bytes = A04_PARTS * A04_X, .grow_bytes = A04_PARTS * A04_X});
    weir_stream s[A04_STREAMS];
    struct wr_sim_gate *gates[A04_STREAMS];
    for (int i = 0; i < A04_STREAMS; i++) {
        s[i] = wr_world_stream(&w);
        gates[i] = wr_world_stall(&w, s[i]);
    }
    weir_dptr x = free_merged(&w, s[0]), blocks[A04_PARTS];
    assert_int_equal(wr_world_try_alloc(&w, 2 * A04_X, s[1]), 0);
    unsigned n = take_all(&w, s[2], blocks);
    assert_int_equal(n, 0);
    for (int i = 0; i < A04_STREAMS; i++) {
        wr_world_let_go(&w, gates[order[i]]);
        if (n == 0) n = take_all(&w, s[2], blocks);
        if (order[i] == 0) assert_int_equal(n, A04_PARTS);
    }
    wr_sim_drain(w.sim);
    assert_int_equal(wr_world_peek(&w, x), A04_PATTERN);
    for (unsigned i = 0; i < n; i++)
        wr_world_free(&w, blocks[i], s[2]);
    wr_world_close(&w);
}

static void test_A04_a_merged_block_carries_the_fences_of_its_parts(void **state)
{
    (void)state;
    const int orders[][A04_STREAMS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t i = 0; i < WR_ARRAY_LEN(orders); i++)
        let_go_in_order(orders[i]);
}

/* ---- A07 --------------------------------------------------------------------------------------------- */

struct per_thread_user {
    struct wr_world *world;
    weir_dptr block;
    struct wr_sim_gate *gate;
};

static void *free_under_a_kernel(void *arg)
{
    struct per_thread_user *u = arg;
    u->block = wr_world_alloc(u->world, WR_MIB, PER_THREAD);
    u->gate = wr_world_stall(u->world, PER_THREAD);
    wr_world_fill(u->world, PER_THREAD, u->block, WR_MIB, 1);
    wr_world_free(u->world, u->block, PER_THREAD);
    return NULL;
}

static void test_A07_the_per_thread_stream_is_each_threads_own(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){.limit_bytes = 3 * WR_PAGE_BYTES, .grow_bytes = WR_PAGE_BYTES});
    struct per_thread_user u = {.world = &w};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, free_under_a_kernel, &u), 0);
    pthread_join(thread, NULL);

    weir_dptr mine = wr_world_alloc(&w, WR_MIB, PER_THREAD), legacy = wr_world_alloc(&w, WR_MIB, LEGACY);
    wr_world_fill(&w, PER_THREAD, mine, WR_MIB, 2);
    wr_world_fill(&w, LEGACY, legacy, WR_MIB, 3);
    assert_true(mine != u.block && legacy != u.block && mine != legacy);
    assert_int_equal(wr_world_stats(&w).streams, 3);
    weir_stream other = wr_world_stream(&w);
    assert_int_equal(wr_world_try_alloc(&w, WR_MIB, other), 0);
    wr_world_let_go(&w, u.gate);
    weir_dptr again = wr_world_alloc(&w, WR_MIB, other); /* the thread is gone, its block serves on */
    assert_int_equal(again, u.block);
    wr_world_fill(&w, other, again, WR_MIB, 4);

    wr_world_free(&w, again, other);
    wr_world_free(&w, mine, PER_THREAD);
    wr_world_free(&w, legacy, LEGACY);
    wr_world_close(&w);
}

/* ---- A08 --------------------------------------------------------------------------------------------- */

static void test_A08_a_handle_that_comes_back_is_another_stream(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB, .reuse_handles = true});
    weir_stream first = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, first);
    struct wr_sim_gate *gate = wr_world_stall(&w, first);
    wr_world_fill(&w, first, x, 8 * WR_MIB, 1);
    wr_world_free(&w, x, first);
    wr_world_destroy_stream(&w, first);

    weir_stream second = wr_world_stream(&w);
    assert_ptr_equal(second, first);
    assert_int_equal(wr_world_try_alloc(&w, 8 * WR_MIB, second), 0);
    assert_int_equal(wr_world_stats(&w).streams, 2);
    wr_world_let_go(&w, gate);
    assert_int_equal(wr_world_alloc(&w, 8 * WR_MIB, second), x);
    wr_world_fill(&w, second, x, 8 * WR_MIB, 2);
    wr_world_free(&w, x, second);
    assert_int_equal(wr_world_counts(&w).dead_handle_uses, 0);
    wr_world_close(&w);
}

/* ---- A09 --------------------------------------------------------------------------------------------- */

enum { A09_STREAMS = 8 };

/* Every other block is freed only after its stream is gone. */
static void test_A09_blocks_outlive_the_stream_that_used_them(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream s[A09_STREAMS];
    weir_dptr blocks[A09_STREAMS];
    for (int i = 0; i < A09_STREAMS; i++) {
        s[i] = wr_world_stream(&w);
        blocks[i] = wr_world_alloc(&w, 64 * WR_MIB, s[i]);
        wr_world_write(&w, s[i], blocks[i], 64 * WR_MIB, MS);
        if (i % 2 == 0) wr_world_free(&w, blocks[i], s[i]);
    }
    for (int i = 0; i < A09_STREAMS; i++) {
        assert_int_equal(weir_stream_retire(w.pool, s[i]), WEIR_OK);
        wr_world_join(&w, s[i], LEGACY);
        wr_world_destroy_stream(&w, s[i]);
        if (i % 2 != 0) wr_world_free(&w, blocks[i], LEGACY);
    }
    wr_sim_drain(w.sim);
    weir_dptr all = wr_world_alloc(&w, A09_STREAMS * 64 * WR_MIB, LEGACY);
    wr_world_write(&w, LEGACY, all, A09_STREAMS * 64 * WR_MIB, MS);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, A09_STREAMS * 64 * WR_MIB);
    assert_int_equal(wr_world_stats(&w).streams, 1);
    assert_int_equal(wr_world_counts(&w).dead_handle_uses, 0);
    wr_world_free(&w, all, LEGACY);
    wr_world_close(&w);
}

static void test_A09_a_dead_streams_last_work_is_waited_for(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB});
    weir_stream home = wr_world_stream(&w), reader = wr_world_stream(&w), next = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, home);
    struct wr_sim_gate *gate = wr_world_stall(&w, reader);
    wr_world_read(&w, reader, x, 8 * WR_MIB, MS);
    wr_world_touch(&w, x, reader);
    assert_int_equal(weir_stream_retire(w.pool, reader), WEIR_OK);
    wr_world_destroy_stream(&w, reader);
    wr_world_free(&w, x, home);
    assert_int_equal(wr_world_try_alloc(&w, 8 * WR_MIB, home), 0);
    assert_int_equal(wr_world_try_alloc(&w, 8 * WR_MIB, next), 0);
    wr_world_let_go(&w, gate);
    assert_int_equal(wr_world_alloc(&w, 8 * WR_MIB, next), x);
    wr_world_write(&w, next, x, 8 * WR_MIB, MS);
    wr_world_free(&w, x, next);
    assert_int_equal(wr_world_counts(&w).dead_handle_uses, 0);
    wr_world_close(&w);
}

/* ---- A10 --------------------------------------------------------------------------------------------- */

enum { A10_BLOCKS = 1000 };

static void alloc_many(struct wr_world *w, weir_stream s, weir_dptr *blocks)
{
    for (int i = 0; i < A10_BLOCKS; i++)
        blocks[i] = wr_world_alloc(w, SMALL_BLOCK, s);
}

static void test_A10_a_stalled_stream_holds_back_its_own_blocks_only(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.grow_bytes = WR_PAGE_BYTES});
    weir_stream home = wr_world_stream(&w), b = wr_world_stream(&w), n = wr_world_stream(&w);
    weir_dptr held = wr_world_alloc(&w, SMALL_BLOCK, home), blocks[A10_BLOCKS];
    alloc_many(&w, home, blocks);
    wr_world_stall(&w, n);
    wr_world_read(&w, n, held, SMALL_BLOCK, MS);
    wr_world_touch(&w, held, n);
    wr_world_free(&w, held, home);
    for (int i = 0; i < A10_BLOCKS; i++) {
        wr_world_read(&w, b, blocks[i], SMALL_BLOCK, US);
        wr_world_free(&w, blocks[i], b);
    }
    wr_sim_drain(w.sim);

    uint64_t reserved = wr_world_stats(&w).reserved_bytes;
    alloc_many(&w, home, blocks);
    weir_stats after = wr_world_stats(&w);
    assert_int_equal(after.reserved_bytes, reserved);
    assert_int_equal(after.pending_bytes, SMALL_BLOCK);
    assert_true(after.reserved_bytes < after.live_bytes + SMALL_BLOCK + WR_PAGE_BYTES);
    for (int i = 0; i < A10_BLOCKS; i++) {
        wr_world_write(&w, home, blocks[i], SMALL_BLOCK, US);
        wr_world_free(&w, blocks[i], home);
    }
    wr_world_close(&w);
}

/* ---- A11 --------------------------------------------------------------------------------------------- */

static void test_A11_memory_does_not_grow_while_the_cpu_runs_ahead(void **state)
{
    (void)state;
    enum { ROUNDS = 50 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 512 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    for (int i = 0; i < ROUNDS; i++) {
        weir_dptr x = wr_world_try_alloc(&w, 256 * WR_MIB, a);
        assert_int_equal(
            x != 0, i < 2); /* at t = 0 two fit; each later one when B's oldest kernel has ended */
        if (x == 0) {
            wr_sim_advance(w.sim, 10 * MS);
            x = wr_world_alloc(&w, 256 * WR_MIB, a);
        }
        wr_world_write(&w, b, x, 256 * WR_MIB, 10 * MS);
        wr_world_touch(&w, x, b);
        wr_world_free(&w, x, a);
    }
    assert_int_equal(w.device->ops->now_ns(w.device), (ROUNDS - 2) * 10 * MS);
    assert_int_equal(wr_world_stats(&w).peak_reserved_bytes, 512 * WR_MIB);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    assert_int_equal(wr_world_counts(&w).stream_waits, 0);
    wr_world_close(&w);
}

static void test_A11_a_use_ends_where_it_was_declared(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 256 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 256 * WR_MIB, a);
    wr_world_write(&w, b, x, 256 * WR_MIB, 10 * MS);
    wr_world_touch(&w, x, b);
    wr_world_spin(&w, b, 1000 * MS);
    wr_world_free(&w, x, a);
    wr_sim_advance(w.sim, 10 * MS - 1);
    assert_int_equal(wr_world_try_alloc(&w, 256 * WR_MIB, a), 0);
    wr_sim_advance(w.sim, 1);
    assert_int_equal(wr_world_alloc(&w, 256 * WR_MIB, a), x);
    wr_world_write(&w, a, x, 256 * WR_MIB, MS);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
}

/* ---- A13 --------------------------------------------------------------------------------------------- */

static void test_A13_streams_in_rotation_are_not_made_to_wait_for_each_other(void **state)
{
    (void)state;
    enum { STREAMS = 4, ROUNDS = 100 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream s[STREAMS];
    for (int i = 0; i < STREAMS; i++)
        s[i] = wr_world_stream(&w);
    for (int i = 0; i < ROUNDS * STREAMS; i++) {
        weir_dptr x = wr_world_alloc(&w, 256 + (size_t)i, s[i % STREAMS]);
        wr_world_write(&w, s[i % STREAMS], x, 256, 500 * US / ROUNDS);
        wr_world_free(&w, x, s[i % STREAMS]);
    }
    wr_sim_drain(w.sim);
    assert_true(w.device->ops->now_ns(w.device) <= 550 * US);
    assert_int_equal(wr_world_counts(&w).stream_waits, 0);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    wr_world_close(&w);
}

/* ---- A14 --------------------------------------------------------------------------------------------- */

static void run_epoch(struct wr_world *w, weir_stream compute, size_t batch_bytes)
{
    weir_stream prefetch = wr_world_stream(w);
    for (int i = 0; i < 2; i++) {
        weir_dptr batch = wr_world_alloc(w, batch_bytes, prefetch);
        wr_world_write(w, prefetch, batch, batch_bytes, MS);
        wr_world_join(w, prefetch, compute);
        wr_world_read(w, compute, batch, batch_bytes, 5 * MS);
        wr_world_free(w, batch, compute);
    }
    assert_int_equal(weir_stream_retire(w->pool, prefetch), WEIR_OK);
    wr_world_destroy_stream(w, prefetch);
    wr_sim_drain(w->sim);
}

static void test_A14_dead_streams_keep_nothing(void **state)
{
    (void)state;
    const size_t batch = 512 * WR_MIB;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream compute = wr_world_stream(&w);
    for (int epoch = 0; epoch < 10; epoch++)
        run_epoch(&w, compute, batch);
    assert_true(wr_world_stats(&w).peak_reserved_bytes <= WR_GIB + batch);
    wr_world_close(&w);
}

static void test_A14_what_a_side_stream_has_finished_with_serves_the_main_one(void **state)
{
    (void)state;
    enum { BLOCKS = 20 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.profile = "h200-pcie5"});
    weir_stream side = wr_world_stream(&w), compute = wr_world_stream(&w), s = side;
    weir_dptr blocks[BLOCKS];
    for (int turn = 0; turn < 2; turn++, s = compute) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = wr_world_alloc(&w, WR_GIB, s);
            wr_world_write(&w, s, blocks[i], WR_GIB, MS);
        }
        for (int i = 0; i < BLOCKS; i++)
            wr_world_free(&w, blocks[i], s);
        wr_sim_drain(w.sim);
    }
    assert_int_equal(wr_world_stats(&w).grows, BLOCKS);
    assert_int_equal(wr_world_stats(&w).peak_reserved_bytes, BLOCKS * WR_GIB);
    wr_world_close(&w);
}

/* ---- A16 --------------------------------------------------------------------------------------------- */

/* Each pool's events and memory are its own device's: the simulation refuses one that meets another device's
 * stream. */
static void test_A16_pools_of_two_devices_keep_to_their_own(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.profile = "gtx1080-pcie3x2", .limit_bytes = 8 * WR_MIB});
    struct wr_device *second = wr_sim_device(w.sim, 1);
    weir_stream here = wr_world_stream(&w), there;
    weir_pool *other;
    assert_int_equal(second->ops->stream_create(second, &there), WEIR_OK);
    assert_int_equal(wr_pool_open(second, &(weir_pool_options){.limit_bytes = 8 * WR_MIB}, &other), WEIR_OK);
    for (int i = 0; i < 10; i++) {
        weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, here), y;
        size_t freed;
        assert_int_equal(weir_alloc(other, 8 * WR_MIB, there, &y), WEIR_OK);
        wr_world_free(&w, x, here);
        assert_int_equal(weir_free(other, y, there), WEIR_OK);
        assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
        assert_int_equal(freed, 8 * WR_MIB);
        assert_int_equal(weir_trim(other, 0, &freed), WEIR_OK);
        assert_int_equal(freed, 8 * WR_MIB);
    }
    assert_int_equal(weir_stream_retire(other, there), WEIR_OK);
    assert_int_equal(second->ops->stream_destroy(second, there), WEIR_OK);
    wr_world_close_pool(&w, other);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_A04_a_merged_block_carries_the_fences_of_its_parts),
        cmocka_unit_test(test_A07_the_per_thread_stream_is_each_threads_own),
        cmocka_unit_test(test_A08_a_handle_that_comes_back_is_another_stream),
        cmocka_unit_test(test_A09_blocks_outlive_the_stream_that_used_them),
        cmocka_unit_test(test_A09_a_dead_streams_last_work_is_waited_for),
        cmocka_unit_test(test_A10_a_stalled_stream_holds_back_its_own_blocks_only),
        cmocka_unit_test(test_A11_memory_does_not_grow_while_the_cpu_runs_ahead),
        cmocka_unit_test(test_A11_a_use_ends_where_it_was_declared),
        cmocka_unit_test(test_A13_streams_in_rotation_are_not_made_to_wait_for_each_other),
        cmocka_unit_test(test_A14_dead_streams_keep_nothing),
        cmocka_unit_test(test_A14_what_a_side_stream_has_finished_with_serves_the_main_one),
        cmocka_unit_test(test_A16_pools_of_two_devices_keep_to_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
