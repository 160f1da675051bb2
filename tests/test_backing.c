/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools over plain memory: one cuMemAlloc of the whole limit, which the simulated device aligns to 256 only.
 */
#include "pool_world.h"

#include <string.h>

#define MIB WR_MIB
#define MS  ((uint64_t)1000000)

enum { LIMIT_MIB = 64 };

static const struct wr_world_options plain = {
    .limit_bytes = LIMIT_MIB * MIB, .pool = {.backing = WEIR_BACKING_PLAIN}};

static weir_status open_with(struct wr_world *w, weir_pool_options o)
{
    weir_pool *pool = NULL;
    o.struct_size = sizeof o;
    weir_status s = wr_pool_open(w->device, &o, &pool);
    assert_int_equal(pool != NULL, s == WEIR_OK);
    return s;
}

static void test_the_whole_limit_is_there_from_the_start_and_stays(void **state)
{
    (void)state;
    struct wr_world w;
    size_t freed = 1;
    wr_world_open(&w, &plain);
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_stats s = wr_world_stats(&w);
    assert_true(s.reserved_bytes >= (LIMIT_MIB - 2) * MIB); /* an odd base costs a page */
    assert_int_equal(s.reserved_bytes, s.limit_bytes);
    weir_dptr x = wr_world_alloc(&w, s.limit_bytes, a);
    wr_world_fill(&w, a, x, s.limit_bytes, 1);
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_try_alloc(&w, s.limit_bytes, b), 0); /* NOT_YET: a still writes it */
    wr_sim_drain(w.sim);
    x = wr_world_alloc(&w, s.limit_bytes, b);
    wr_world_fill(&w, b, x, s.limit_bytes, 2);
    wr_world_free(&w, x, b);
    wr_sim_drain(w.sim);
    assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
    assert_int_equal(freed, 0);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, s.reserved_bytes);
    assert_int_equal(wr_world_stats(&w).idle_bytes, s.reserved_bytes);
    assert_int_equal(wr_world_stats(&w).grows + wr_world_stats(&w).trims, 0);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    wr_world_close(&w);
}

static void test_A02_blocks_are_aligned_where_the_drivers_memory_is_not(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &plain);
    weir_stream a = wr_world_stream(&w);
    for (size_t align = 1; align <= 2 * MIB; align *= 2) {
        weir_alloc_options o = {.struct_size = sizeof o, .alignment = align};
        weir_dptr odd = wr_world_alloc(&w, 512, a), x;
        assert_int_equal(weir_alloc_with(w.pool, 3 * align, a, &o, &x), WEIR_OK);
        assert_int_equal(x % wr_max(align, 512), 0);
        wr_world_fill(&w, a, x, wr_round_up(3 * align, 4), 1); /* in bounds, says the oracle */
        wr_world_free(&w, x, a);
        wr_world_free(&w, odd, a);
    }
    wr_world_close(&w);
}

static void test_a_pool_that_does_not_fit_leaves_nothing_behind(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.memory_bytes = 256 * MIB});
    weir_pool_options o = {.limit_bytes = 256 * MIB, .backing = WEIR_BACKING_PLAIN};
    assert_int_equal(open_with(&w, o), WEIR_OUT_OF_MEMORY);
    wr_world_close(&w); /* counts leaks */
}

static void test_options_that_plain_memory_can_not_follow_are_invalid(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_pool_options good = {.limit_bytes = 64 * MIB, .backing = WEIR_BACKING_PLAIN}, o = good;
    o.limit_bytes = 0;
    assert_int_equal(open_with(&w, o), WEIR_INVALID_ARGUMENT);
    o = good;
    o.grow_bytes = 4 * MIB;
    assert_int_equal(open_with(&w, o), WEIR_INVALID_ARGUMENT);
    o = good;
    o.soft_limit_bytes = 4 * MIB;
    assert_int_equal(open_with(&w, o), WEIR_INVALID_ARGUMENT);
    o = good;
    o.backing = (weir_backing)2;
    assert_int_equal(open_with(&w, o), WEIR_INVALID_ARGUMENT);
    wr_world_close(&w);
}

static void test_a_device_without_virtual_memory_takes_plain_pools_alone(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &plain);
    weir_pool_options o = {.limit_bytes = 64 * MIB};
    w.device->granularity = 0;
    assert_int_equal(open_with(&w, o), WEIR_DRIVER_ERROR);
    assert_non_null(strstr(weir_error_text(), "PLAIN"));
    weir_stream a = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, MIB, a), a);
    wr_world_close(&w);
}

/* The driver's free waits for the device: the user's does not, so it leaves that to a close. */
static void test_only_a_close_waits_to_give_the_memory_back(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 64 * MIB, .backing = WEIR_BACKING_PLAIN};
    weir_pool *pool;
    weir_dptr x;
    weir_stream a = wr_world_stream(&w), other = wr_world_stream(&w);
    size_t free_before, free_after, total;
    assert_int_equal(w.device->ops->mem_info(w.device, &free_before, &total), WEIR_OK);
    assert_int_equal(wr_pool_open(w.device, &o, &pool), WEIR_OK);
    assert_int_equal(weir_alloc(pool, MIB, a, &x), WEIR_OK);
    wr_sim_drain(w.sim);
    wr_world_spin(&w, other, MS);
    assert_int_equal(weir_pool_close(pool), WEIR_NOT_YET);
    assert_int_equal(weir_free(pool, x, a), WEIR_OK);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    weir_status st = WEIR_NOT_YET;
    for (int i = 0; i < 100 && st == WEIR_NOT_YET; i++) {
        wr_sim_step(w.sim);
        wr_world_spin(&w, other, MS); /* of which the pool knows nothing */
        st = weir_pool_close(pool);
    }
    assert_int_equal(st, WEIR_OK);
    assert_int_equal(wr_world_counts(&w).host_syncs, 1);
    assert_int_equal(w.device->ops->mem_info(w.device, &free_after, &total), WEIR_OK);
    assert_int_equal(free_after, free_before);
    wr_world_close(&w);
}

static void test_a_close_that_the_driver_refuses_can_be_tried_again(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &plain);
    weir_stream a = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, MIB, a), a);
    wr_sim_drain(w.sim);
    weir_status st = WEIR_NOT_YET;
    for (uint64_t n = 1; st != WEIR_OK; n++) {
        wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
        st = weir_pool_close(w.pool);
        if (st != WEIR_OK && st != WEIR_NOT_YET) assert_int_equal(st, WEIR_DRIVER_ERROR);
        wr_sim_fail_nth(w.sim, 0, WEIR_OK);
        wr_sim_drain(w.sim);
    }
    assert_int_equal(weir_pool_close(w.pool), WEIR_CLOSED);
    wr_world_destroy_stream(&w, a);
    assert_int_equal(wr_sim_close(w.sim), 0);
}

static void test_P05_a_plain_pool_of_a_device_that_was_reset_is_dropped(void **state)
{
    (void)state;
    struct wr_world w;
    weir_dptr x;
    wr_world_open(&w, &plain);
    weir_stream a = wr_world_stream(&w);
    x = wr_world_alloc(&w, MIB, a);
    wr_sim_reset_device(w.device);
    size_t free_bytes, total;
    assert_int_equal(
        w.device->ops->mem_info(w.device, &free_bytes, &total), WEIR_CONTEXT_LOST); /* finds out */
    assert_int_equal(weir_free(w.pool, x, a), WEIR_CONTEXT_LOST);
    assert_int_equal(weir_pool_close(w.pool), WEIR_OK);
    assert_int_equal(wr_sim_close(w.sim), 0);
}

static void test_A17_a_peer_reads_and_writes_plain_memory(void **state)
{
    (void)state;
    struct wr_world w;
    struct wr_world_options o = plain;
    weir_stream far;
    o.profile = "gtx1080-pcie3x2";
    wr_world_open(&w, &o);
    weir_stream a = wr_world_stream(&w);
    struct wr_device *peer = wr_sim_device(w.sim, 1);
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a);
    assert_int_equal(peer->ops->stream_create(peer, &far), WEIR_OK);
    assert_int_equal(wr_kernels_fill(peer, far, x, 8 * MIB, 7), WEIR_OK);
    assert_int_equal(weir_free(w.pool, x, far), WEIR_OK);
    wr_sim_drain(w.sim);
    assert_int_equal(wr_world_peek(&w, x), 7);
    assert_int_equal(weir_stream_retire(w.pool, far), WEIR_OK);
    assert_int_equal(peer->ops->stream_destroy(peer, far), WEIR_OK);
    wr_world_close(&w);
}

static void test_plain_memory_has_no_descriptor_to_export(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &plain);
    weir_stream a = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, MIB, a);
    weir_exported part = {.struct_size = sizeof part, .fd = -1};
    assert_int_equal(weir_export(w.pool, x, 0, &part), WEIR_INVALID_ARGUMENT);
    assert_int_equal(part.fd, -1);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_whole_limit_is_there_from_the_start_and_stays),
        cmocka_unit_test(test_A02_blocks_are_aligned_where_the_drivers_memory_is_not),
        cmocka_unit_test(test_a_pool_that_does_not_fit_leaves_nothing_behind),
        cmocka_unit_test(test_options_that_plain_memory_can_not_follow_are_invalid),
        cmocka_unit_test(test_a_device_without_virtual_memory_takes_plain_pools_alone),
        cmocka_unit_test(test_only_a_close_waits_to_give_the_memory_back),
        cmocka_unit_test(test_a_close_that_the_driver_refuses_can_be_tried_again),
        cmocka_unit_test(test_P05_a_plain_pool_of_a_device_that_was_reset_is_dropped),
        cmocka_unit_test(test_A17_a_peer_reads_and_writes_plain_memory),
        cmocka_unit_test(test_plain_memory_has_no_descriptor_to_export),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
