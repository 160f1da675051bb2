/* SPDX-License-Identifier: Apache-2.0
 *
 * The planted fault of pinned memory: a block that is handed out again while a copy still reads it is
 * reported.
 */
#include "device_sim.h"
#include "pinned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define BLOCK_BYTES ((size_t)1 << 20)

static uint64_t make_device_block(struct wr_device *d, wr_memory *memory)
{
    uint64_t va;
    size_t bytes = d->granularity;
    assert_int_equal(d->ops->va_reserve(d, bytes, &va), WEIR_OK);
    assert_int_equal(d->ops->mem_create(d, bytes, memory), WEIR_OK);
    assert_int_equal(d->ops->mem_map(d, va, bytes, *memory), WEIR_OK);
    assert_int_equal(d->ops->mem_access(d, va, bytes), WEIR_OK);
    return va;
}

static void drop_device_block(struct wr_device *d, uint64_t va, wr_memory memory)
{
    assert_int_equal(d->ops->mem_unmap(d, va, d->granularity), WEIR_OK);
    assert_int_equal(d->ops->mem_release(d, memory), WEIR_OK);
    assert_int_equal(d->ops->va_free(d, va, d->granularity), WEIR_OK);
}

/* Copies from a pinned block behind a stalled stream, frees it, and writes what the next request gets. */
static unsigned reports_of_a_copy_then_free_then_reuse(void)
{
    struct wr_sim_options options = {.profile = wr_sim_profile_find("gtx1080-pcie3")};
    struct wr_sim *world;
    struct wr_pinned *p;
    struct wr_sim_gate *gate;
    struct wr_events events;
    struct wr_fence fence;
    struct wr_stream_info info;
    weir_stream s;
    void *host, *again;
    wr_memory memory;
    assert_int_equal(wr_sim_open(&options, &world), WEIR_OK);
    struct wr_device *d = wr_sim_device(world, 0);
    assert_int_equal(wr_pinned_get(d, &p), WEIR_OK);
    assert_int_equal(d->ops->stream_create(d, &s), WEIR_OK);
    assert_int_equal(d->ops->stream_identify(d, s, &info), WEIR_OK);
    wr_events_init(&events, d);
    wr_fence_init(&fence);
    wr_fence_open(&fence, &events, s, info.id);
    uint64_t va = make_device_block(d, &memory);

    assert_int_equal(wr_pinned_alloc(p, BLOCK_BYTES, &host), WEIR_OK);
    wr_sim_host_access(world, host, BLOCK_BYTES, true);
    assert_int_equal(wr_sim_stall(d, s, &gate), WEIR_OK);
    assert_int_equal(d->ops->copy(d, WR_COPY_H2D, va, (uintptr_t)host, BLOCK_BYTES, s), WEIR_OK);
    assert_int_equal(wr_pinned_free(p, host, &fence, wr_fence_stamp(&fence)), WEIR_OK);
    assert_int_equal(wr_pinned_alloc(p, BLOCK_BYTES, &again), WEIR_OK);
    wr_sim_host_access(world, again, BLOCK_BYTES, true);
    unsigned reports = wr_sim_reports(world);

    wr_sim_gate_open(gate);
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    assert_int_equal(d->ops->stream_sync(d, s), WEIR_OK);
    wr_fence_poll(&fence);
    wr_pinned_reap(p);
    wr_fence_close(&fence);
    wr_events_fini(&events);
    drop_device_block(d, va, memory);
    assert_int_equal(d->ops->stream_destroy(d, s), WEIR_OK);
    wr_sim_close(world);
    return reports;
}

static void test_reuse_behind_the_fence_is_clean(void **state)
{
    (void)state;
    wr_fault_on = -1;
    assert_int_equal(reports_of_a_copy_then_free_then_reuse(), 0);
}

static void test_HOST_FREE_SKIPS_FENCE_is_reported(void **state)
{
    (void)state;
    wr_fault_on = WR_FAULT_HOST_FREE_SKIPS_FENCE;
    assert_in_range(reports_of_a_copy_then_free_then_reuse(), 1, 100);
    wr_fault_on = -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reuse_behind_the_fence_is_clean),
        cmocka_unit_test(test_HOST_FREE_SKIPS_FENCE_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
