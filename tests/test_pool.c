/* SPDX-License-Identifier: Apache-2.0
 *
 * The three promises, each by name; what an allocation costs; pools' lives; and every wrong input.
 * Linked with -Wl,--wrap for the host's allocation calls, so that they can be counted.
 */
#include "harness.h"
#include "pool_world.h"

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 512 * WR_MIB, .reuse_handles = true});
    return 0;
}

/* ---- counting malloc --------------------------------------------------------------------------------- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
static _Atomic unsigned long n_mallocs;

void *__wrap_malloc(size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&n_mallocs, 1);
    return __real_aligned_alloc(align, n);
}

/* ---- promises ---------------------------------------------------------------------------------------- */

static void test_promise_1_no_call_waits_while_every_stream_is_stalled(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 64 * WR_MIB, a);
    void *host;
    assert_int_equal(weir_host_alloc(world.pool, WR_MIB, &host), WEIR_OK);
    struct wr_sim_gate *ga = wr_world_stall(&world, a), *gb = wr_world_stall(&world, b);
    uint64_t before = world.device->ops->now_ns(world.device);
    wr_world_touch(&world, x, b);
    wr_world_free(&world, x, a);
    weir_dptr y = wr_world_alloc(&world, 64 * WR_MIB, b), z = wr_world_alloc(&world, 300 * WR_MIB, a), none;
    assert_int_equal(
        weir_alloc(world.pool, 200 * WR_MIB, b, &none), WEIR_OUT_OF_MEMORY); /* 148 MiB would be left */
    assert_int_equal(weir_alloc(world.pool, 140 * WR_MIB, b, &none), WEIR_NOT_YET);
    size_t freed;
    assert_int_equal(weir_trim(world.pool, 0, &freed), WEIR_OK);
    assert_int_equal(weir_host_free(world.pool, host, b), WEIR_OK);
    assert_int_equal(weir_stream_retire(world.pool, b), WEIR_OK);
    assert_int_equal(world.device->ops->now_ns(world.device), before);
    struct wr_sim_counts c = wr_world_counts(&world);
    assert_int_equal(c.stream_waits, 0);
    assert_int_equal(c.host_syncs, 0);
    assert_int_equal(wr_world_stats(&world).host_waits, 0);
    wr_world_free(&world, y, a);
    wr_world_free(&world, z, a);
    wr_world_let_go(&world, ga);
    wr_world_let_go(&world, gb);
}

static void test_promise_2_a_block_comes_back_only_when_every_user_has_passed(void **state)
{
    (void)state;
    weir_stream home = wr_world_stream(&world), b = wr_world_stream(&world), c = wr_world_stream(&world);
    size_t size = 400 * WR_MIB; /* of 512: only this block's own memory can serve the size again */
    weir_dptr x = wr_world_alloc(&world, size, home);
    struct wr_sim_gate *gb = wr_world_stall(&world, b), *gc = wr_world_stall(&world, c);
    wr_world_read(&world, b, x, size, 0);
    wr_world_read(&world, c, x, size, 0);
    wr_world_touch(&world, x, b);
    wr_world_touch(&world, x, c);
    wr_world_free(&world, x, home);
    assert_int_equal(wr_world_try_alloc(&world, size, home), 0);
    wr_world_let_go(&world, gb);
    assert_int_equal(wr_world_try_alloc(&world, size, home), 0);
    wr_world_let_go(&world, gc);
    weir_dptr y = wr_world_try_alloc(&world, size, home);
    assert_int_equal(y, x);
    wr_world_fill(&world, home, y, size, 7);
    wr_world_free(&world, y, home);
}

static void test_promise_2_at_home_stream_order_is_enough(void **state)
{
    (void)state;
    weir_stream home = wr_world_stream(&world);
    struct wr_sim_gate *g = wr_world_stall(&world, home);
    weir_dptr x = wr_world_alloc(&world, WR_MIB, home);
    wr_world_fill(&world, home, x, WR_MIB, 1);
    wr_world_free(&world, x, home);
    weir_dptr y = wr_world_alloc(&world, WR_MIB, home);
    assert_int_equal(x, y);
    wr_world_fill(&world, home, y, WR_MIB, 2);
    wr_world_let_go(&world, g);
    assert_int_equal(wr_world_peek(&world, y), 2);
    wr_world_free(&world, y, home);
}

static void test_promise_3_every_byte_is_in_one_place(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    struct wr_sim_gate *g = wr_world_stall(&world, b);
    weir_dptr live = wr_world_alloc(&world, 3 * WR_MIB, a), pending = wr_world_alloc(&world, 5 * WR_MIB, a);
    weir_dptr cached = wr_world_alloc(&world, 700, a);
    wr_world_touch(&world, pending, b);
    wr_world_free(&world, pending, a);
    wr_world_free(&world, cached, a);
    weir_stats s = wr_world_stats(&world);
    assert_int_equal(s.live_bytes, 3 * WR_MIB);
    assert_int_equal(s.pending_bytes, 5 * WR_MIB);
    assert_true(s.cached_bytes >= 1024);
    assert_int_equal(s.live_bytes + s.pending_bytes + s.cached_bytes + s.idle_bytes, s.reserved_bytes);
    assert_int_equal(weir_pool_check(world.pool), WEIR_OK);
    wr_world_let_go(&world, g);
    wr_world_free(&world, live, a);
}

static void test_promise_3_a_failed_call_says_what_would_help_and_changes_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    struct wr_sim_gate *g = wr_world_stall(&world, b);
    weir_dptr x = wr_world_alloc(&world, 400 * WR_MIB, a), untouched = 42;
    wr_world_touch(&world, x, b);
    wr_world_free(&world, x, a);
    weir_stats before = wr_world_stats(&world);
    assert_int_equal(weir_alloc(world.pool, 300 * WR_MIB, a, &untouched), WEIR_NOT_YET);
    assert_int_equal(untouched, 42);
    assert_non_null(strstr(weir_error_text(), "419430400 freed but not passed"));
    weir_stats after = wr_world_stats(&world);
    assert_int_equal(after.reserved_bytes, before.reserved_bytes);
    assert_int_equal(after.pending_bytes, before.pending_bytes);
    wr_world_let_go(&world, g);
}

/* ---- what an allocation costs ------------------------------------------------------------------------ */

static void test_a_warm_hit_makes_no_driver_call_and_no_malloc(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    static const size_t sizes[] = {1, 512, 70000, 3 * WR_MIB};
    weir_dptr x[WR_ARRAY_LEN(sizes)];
    for (int round = 0; round < 20; round++) { /* less than the weight of a tick */
        uint64_t calls = wr_sim_calls(world.sim);
        unsigned long mallocs = atomic_load(&n_mallocs);
        for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++)
            assert_int_equal(weir_alloc(world.pool, sizes[i], a, &x[i]), WEIR_OK);
        for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++)
            assert_int_equal(weir_free(world.pool, x[i], a), WEIR_OK);
        if (round == 0) continue;
        assert_int_equal(wr_sim_calls(world.sim), calls);
        assert_int_equal(atomic_load(&n_mallocs), mallocs);
    }
    assert_int_equal(wr_world_stats(&world).slow_allocs, 2); /* the first of each kind */
}

static void test_many_frees_share_one_tick(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    for (int i = 0; i < 10000; i++)
        wr_world_free(&world, wr_world_alloc(&world, 4096, a), a);
    uint64_t ticks = wr_world_stats(&world).ticks;
    assert_true(ticks >= 1 && ticks <= 10000 / 100);
    assert_int_equal(
        wr_heaps_at(world.pool, 0)->fence.n, 1); /* those before have passed and were taken off */
}

static void test_growth_makes_two_driver_calls_a_segment_and_one_for_all(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.grow_bytes = 2 * WR_MIB});
    weir_stream a = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 1, a), a); /* the stream is known */
    uint64_t calls = wr_sim_calls(w.sim);
    weir_dptr x = wr_world_alloc(&w, 512 * WR_MIB, a);
    assert_int_equal(wr_sim_calls(w.sim) - calls, 3 * 2 + 1); /* 240, 240, 32 MiB: create, map; access */
    wr_world_free(&w, x, a);
    wr_world_close(&w);
}

/* ---- sizes and places -------------------------------------------------------------------------------- */

static void test_blocks_are_512_aligned_and_disjoint(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x[300];
    uint64_t random = 3;
    for (int i = 0; i < 300; i++) {
        size_t bytes = 1 + next_random(&random) % (i % 10 == 0 ? 4 * WR_MIB : 100000);
        x[i] = wr_world_alloc(&world, bytes, a);
        assert_int_equal(x[i] % 512, 0);
        wr_world_fill(&world, a, x[i], wr_round_up(bytes, 4), (uint32_t)i); /* overlaps would overwrite */
    }
    wr_sim_drain(world.sim);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(wr_world_peek(&world, x[i]), i);
        wr_world_free(&world, x[i], a);
    }
}

static void test_small_blocks_do_not_pin_large_pages(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr large = wr_world_alloc(&world, 400 * WR_MIB, a);
    weir_dptr small = wr_world_alloc(&world, 1000, a);
    wr_world_free(&world, large, a);
    weir_dptr again = wr_world_alloc(&world, 400 * WR_MIB, b);
    wr_world_free(&world, again, b);
    wr_world_free(&world, small, a);
}

static void test_pages_move_between_the_small_and_the_large_range_of_a_stream(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    struct wr_sim_gate *g = wr_world_stall(&world, a); /* nothing passes: only stream order can serve */
    weir_dptr x = wr_world_alloc(&world, 512 * WR_MIB, a);
    wr_world_free(&world, x, a);
    weir_dptr small[16];
    for (int i = 0; i < 16; i++)
        small[i] = wr_world_alloc(&world, WR_MIB, a);
    for (int i = 0; i < 16; i++)
        wr_world_free(&world, small[i], a);
    weir_dptr y = wr_world_alloc(&world, 512 * WR_MIB, a);
    assert_int_equal(x, y);
    wr_world_let_go(&world, g);
    wr_world_free(&world, y, a);
}

/* ---- lives ------------------------------------------------------------------------------------------- */

static void test_closing_with_live_blocks_is_finished_by_the_last_free(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_pool *p;
    weir_dptr x, y;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 64 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &p), WEIR_OK);
    assert_int_equal(weir_alloc(p, WR_MIB, a, &x), WEIR_OK);
    assert_int_equal(weir_pool_close(p), WEIR_NOT_YET);
    assert_int_equal(weir_alloc(p, WR_MIB, a, &y), WEIR_CLOSED);
    assert_int_equal(weir_free(p, x, a), WEIR_OK);
    wr_sim_drain(world.sim);
    weir_pool_close(p); /* the free's own tick may not have passed at once */
    assert_int_equal(weir_pool_close(p), WEIR_CLOSED);
}

static void test_closing_leaves_memory_alone_that_the_gpu_still_uses(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_pool *p;
    weir_dptr x;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 64 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &p), WEIR_OK);
    assert_int_equal(weir_alloc(p, WR_MIB, a, &x), WEIR_OK);
    struct wr_sim_gate *g = wr_world_stall(&world, a);
    wr_world_fill(&world, a, x, WR_MIB, 1);
    assert_int_equal(weir_free(p, x, a), WEIR_OK);
    assert_int_equal(weir_pool_close(p), WEIR_NOT_YET);
    wr_world_let_go(&world, g);
    assert_int_equal(weir_pool_close(p), WEIR_OK);
}

static void test_a_retired_stream_ends_and_its_memory_serves_others(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 400 * WR_MIB, a);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_stream_retire(world.pool, a), WEIR_OK);
    wr_world_destroy_stream(&world, a);
    wr_sim_drain(world.sim);
    weir_dptr y = wr_world_alloc(&world, 400 * WR_MIB, b);
    assert_int_equal(wr_world_stats(&world).streams, 1);
    wr_world_free(&world, y, b);
}

/* A heap outlives its stream as long as a block of it lives, and no longer. */
static void test_ten_thousand_short_streams_leave_nothing_behind(void **state)
{
    (void)state;
    weir_stats s = {0};
    for (int i = 0; i < 10000; i++) {
        weir_stream a = wr_world_stream(&world);
        weir_dptr x = wr_world_alloc(&world, 100000, a);
        wr_world_free(&world, x, a);
        assert_int_equal(weir_stream_retire(world.pool, a), WEIR_OK);
        wr_world_destroy_stream(&world, a);
        wr_sim_drain(world.sim);
        if (i % 1000 == 0) s = wr_world_stats(&world);
    }
    assert_true(atomic_load(&world.pool->n_heaps) <=
                17); /* 16 pages of a segment are handed out before anyone looks */
    assert_true(s.reserved_bytes <= 32 * WR_MIB);
}

/* ---- wrong input ------------------------------------------------------------------------------------- */

static void test_size_0_is_ok_and_address_0(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = 42;
    assert_int_equal(weir_alloc(world.pool, 0, a, &x), WEIR_OK);
    assert_int_equal(x, 0);
    assert_int_equal(weir_free(world.pool, 0, a), WEIR_OK);
    assert_int_equal(wr_world_stats(&world).allocs, 0);
}

static void test_null_arguments_are_refused(void **state)
{
    (void)state;
    weir_dptr x;
    void *host;
    weir_stats s = {.struct_size = 1};
    assert_int_equal(weir_pool_open(NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_close(NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_alloc(NULL, 1, NULL, &x), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_alloc(world.pool, 1, NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_free(NULL, 512, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_touch(NULL, 512, NULL, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_touch(world.pool, 512, NULL, 1), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_stream_retire(NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_trim(NULL, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_stats(world.pool, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_stats(world.pool, &s), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_check(NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_host_alloc(world.pool, 1, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_host_alloc(NULL, 1, &host), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_host_free(NULL, &x, NULL), WEIR_INVALID_ARGUMENT);
}

static void test_wild_interior_freed_and_foreign_pointers_are_refused_and_lose_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_pool *other;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 64 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &other), WEIR_OK);
    weir_dptr x = wr_world_alloc(&world, 2000, a);
    const weir_dptr wrong[] = {
        1, 512, x + 1, x + 256, x + 512, x - 512, x + 64 * WR_MIB, UINT64_MAX, UINT64_MAX - 511};
    for (size_t i = 0; i < WR_ARRAY_LEN(wrong); i++) {
        assert_int_equal(weir_free(world.pool, wrong[i], a), WEIR_INVALID_POINTER);
        assert_int_equal(weir_touch(world.pool, wrong[i], a, 0), WEIR_INVALID_POINTER);
    }
    assert_int_equal(weir_free(other, x, a), WEIR_INVALID_POINTER);
    assert_int_equal(wr_world_stats(&world).live_blocks, 1);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_INVALID_POINTER);
    assert_int_equal(weir_touch(world.pool, x, a, 0), WEIR_INVALID_POINTER);
    weir_dptr y = wr_world_alloc(&world, 2000, a), z = wr_world_alloc(&world, 2000, a);
    assert_int_not_equal(y, z);
    wr_world_free(&world, y, a);
    wr_world_free(&world, z, a);
    wr_world_close_pool(&world, other);
}

static void test_a_closed_pool_says_so(void **state)
{
    (void)state;
    weir_pool *p;
    weir_dptr x;
    void *host = &x;
    weir_stats s = {.struct_size = sizeof s};
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 64 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &p), WEIR_OK);
    assert_int_equal(weir_pool_close(p), WEIR_OK);
    assert_int_equal(weir_pool_close(p), WEIR_CLOSED);
    assert_int_equal(weir_alloc(p, 1, NULL, &x), WEIR_CLOSED);
    assert_int_equal(weir_free(p, 512, NULL), WEIR_CLOSED);
    assert_int_equal(weir_touch(p, 512, NULL, 0), WEIR_CLOSED);
    assert_int_equal(weir_stream_retire(p, NULL), WEIR_CLOSED);
    assert_int_equal(weir_trim(p, 0, NULL), WEIR_CLOSED);
    assert_int_equal(weir_pool_stats(p, &s), WEIR_CLOSED);
    assert_int_equal(weir_pool_check(p), WEIR_CLOSED);
    assert_int_equal(weir_host_alloc(p, 1, &host), WEIR_CLOSED);
    assert_int_equal(weir_host_free(p, host, NULL), WEIR_CLOSED);
}

static void test_options_outside_their_range_are_refused(void **state)
{
    (void)state;
    weir_pool *p = NULL;
    weir_pool_options o = {.struct_size = 0};
    assert_int_equal(weir_pool_open(&o, &p), WEIR_INVALID_ARGUMENT);
    o.struct_size = sizeof o + 1;
    assert_int_equal(weir_pool_open(&o, &p), WEIR_INVALID_ARGUMENT);
    o = (weir_pool_options){.struct_size = sizeof o, .device_kind = "sim:h200-pcie5", .device = 1};
    assert_int_equal(weir_pool_open(&o, &p), WEIR_NO_DEVICE);
    o.device = -1;
    assert_int_equal(weir_pool_open(&o, &p), WEIR_NO_DEVICE);
    o = (weir_pool_options){.struct_size = sizeof o, .device_kind = "sim:no-such-profile"};
    assert_int_equal(weir_pool_open(&o, &p), WEIR_NO_DEVICE);
    o = (weir_pool_options){.struct_size = sizeof o, .device_kind = "abacus"};
    assert_int_equal(weir_pool_open(&o, &p), WEIR_NO_DEVICE);
    o = (weir_pool_options){.struct_size = sizeof o, .device_kind = "sim:h200-pcie5", .limit_bytes = 4096};
    assert_int_equal(weir_pool_open(&o, &p), WEIR_INVALID_ARGUMENT);
    assert_null(p);
}

static void test_options_of_an_older_caller_are_a_prefix(void **state)
{
    (void)state;
    weir_pool *p;
    weir_pool_options o = {.struct_size = offsetof(weir_pool_options, limit_bytes),
        .device_kind = "sim:h200-pcie5",
        .limit_bytes = 1}; /* beyond what the caller says that it knows */
    assert_int_equal(weir_pool_open(&o, &p), WEIR_OK);
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(p, &s), WEIR_OK);
    assert_true(s.limit_bytes > WR_GIB);
    assert_int_equal(weir_pool_close(p), WEIR_OK);
}

static void test_a_block_freed_on_its_capturing_home_waits_for_the_capture_to_end(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 400 * WR_MIB, a), y;
    wr_sim_set_capturing(world.device, a, true);
    assert_int_equal(weir_stream_retire(world.pool, a), WEIR_CAPTURING);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_OK);
    assert_int_equal(wr_world_try_alloc(&world, 400 * WR_MIB, b), 0);
    wr_sim_set_capturing(world.device, a, false);
    wr_sim_drain(world.sim);
    y = wr_world_try_alloc(&world, 400 * WR_MIB, b); /* ticks a now */
    if (y == 0) {
        wr_sim_drain(world.sim);
        y = wr_world_alloc(&world, 400 * WR_MIB, b);
    }
    wr_world_free(&world, y, b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, wr_world_close_one)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_promise_1_no_call_waits_while_every_stream_is_stalled),
        TEST(test_promise_2_a_block_comes_back_only_when_every_user_has_passed),
        TEST(test_promise_2_at_home_stream_order_is_enough),
        TEST(test_promise_3_every_byte_is_in_one_place),
        TEST(test_promise_3_a_failed_call_says_what_would_help_and_changes_nothing),
        TEST(test_a_warm_hit_makes_no_driver_call_and_no_malloc),
        TEST(test_many_frees_share_one_tick),
        TEST(test_growth_makes_two_driver_calls_a_segment_and_one_for_all),
        TEST(test_blocks_are_512_aligned_and_disjoint),
        TEST(test_small_blocks_do_not_pin_large_pages),
        TEST(test_pages_move_between_the_small_and_the_large_range_of_a_stream),
        TEST(test_closing_with_live_blocks_is_finished_by_the_last_free),
        TEST(test_closing_leaves_memory_alone_that_the_gpu_still_uses),
        TEST(test_a_retired_stream_ends_and_its_memory_serves_others),
        TEST(test_ten_thousand_short_streams_leave_nothing_behind),
        TEST(test_size_0_is_ok_and_address_0),
        TEST(test_null_arguments_are_refused),
        TEST(test_wild_interior_freed_and_foreign_pointers_are_refused_and_lose_nothing),
        TEST(test_a_closed_pool_says_so),
        TEST(test_options_outside_their_range_are_refused),
        TEST(test_options_of_an_older_caller_are_a_prefix),
        TEST(test_a_block_freed_on_its_capturing_home_waits_for_the_capture_to_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
