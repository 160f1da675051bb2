/* SPDX-License-Identifier: Apache-2.0 */
#include "device_sim.h"
#include "fence.h"
#include "harness.h"

static struct wr_sim *world;
static struct wr_device *device;
static struct wr_events events;
static struct wr_fence fence;
static weir_stream stream, other;

static uint64_t id_of(weir_stream s)
{
    struct wr_stream_info info;
    assert_int_equal(device->ops->stream_identify(device, s, &info), WEIR_OK);
    return info.id;
}

static int set_up(void **state)
{
    (void)state;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("h200-pcie5"), .reuse_handles = true};
    assert_int_equal(wr_sim_open(&o, &world), WEIR_OK);
    device = wr_sim_device(world, 0);
    assert_int_equal(device->ops->stream_create(device, &stream), WEIR_OK);
    assert_int_equal(device->ops->stream_create(device, &other), WEIR_OK);
    wr_events_init(&events, device);
    wr_fence_init(&fence);
    wr_fence_open(&fence, &events, stream, id_of(stream));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    wr_sim_drain(world);
    wr_fence_close(&fence);
    wr_lock_fini(&fence.lock);
    wr_events_fini(&events);
    if (stream != NULL) device->ops->stream_destroy(device, stream);
    device->ops->stream_destroy(device, other);
    assert_int_equal(wr_sim_reports(world), 0);
    assert_int_equal(wr_sim_close(world), 0);
    return 0;
}

static struct wr_sim_gate *stall(weir_stream s)
{
    struct wr_sim_gate *gate;
    assert_int_equal(wr_sim_stall(device, s, &gate), WEIR_OK);
    return gate;
}

static void test_a_stamp_is_pending_until_a_later_tick_has_passed(void **state)
{
    (void)state;
    uint64_t early, number;
    assert_int_equal(wr_fence_tick(&fence, &early), WEIR_OK);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    uint64_t stamp = wr_fence_stamp(&fence);
    assert_true(wr_fence_passed(&fence, early));
    assert_false(wr_fence_passed(&fence, stamp)); /* the tick was before it */
    assert_int_equal(wr_fence_tick(&fence, &number), WEIR_OK);
    assert_true(number >= stamp);
    wr_sim_drain(world);
    assert_false(wr_fence_passed(&fence, stamp)); /* nobody has asked */
    assert_true(wr_fence_poll(&fence));
    assert_true(wr_fence_passed(&fence, stamp));
}

static void test_a_tick_behind_a_stalled_stream_stays_pending(void **state)
{
    (void)state;
    struct wr_sim_gate *gate = stall(stream);
    uint64_t number;
    assert_int_equal(wr_fence_tick(&fence, &number), WEIR_OK);
    wr_sim_drain(world);
    assert_false(wr_fence_poll(&fence));
    assert_false(wr_fence_passed(&fence, number));
    wr_sim_gate_open(gate);
    wr_sim_drain(world);
    assert_true(wr_fence_poll(&fence));
    assert_true(wr_fence_passed(&fence, number));
}

static void test_ticks_pass_oldest_first_and_their_events_are_used_again(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct wr_sim_gate *gate = stall(stream);
        for (int i = 0; i < 40; i++)
            assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
        wr_sim_gate_open(gate);
        wr_sim_drain(world);
        wr_fence_poll(&fence);
        assert_int_equal(fence.n, 0);
    }
    assert_int_equal(events.n_created, 40);
    assert_int_equal(atomic_load(&fence.done), 4000);
}

static void test_a_poll_asks_once_where_nothing_and_twice_where_all_has_passed(void **state)
{
    (void)state;
    struct wr_sim_gate *gate = stall(stream);
    for (int i = 0; i < 15; i++)
        assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    wr_sim_drain(world);
    uint64_t before = atomic_load(&device->calls);
    assert_false(wr_fence_poll(&fence));
    assert_int_equal(atomic_load(&device->calls) - before, 1);
    wr_sim_gate_open(gate);
    wr_sim_drain(world);
    before = atomic_load(&device->calls);
    assert_true(wr_fence_poll(&fence));
    assert_int_equal(atomic_load(&device->calls) - before, 2);
    assert_int_equal(atomic_load(&fence.done), 15);
    assert_int_equal(fence.n, 0);
}

static void test_a_poll_finds_the_newest_that_has_passed_by_halves(void **state)
{
    (void)state;
    uint64_t passed = 0;
    for (uint64_t last = 1; last < 15; last++) {
        for (uint64_t i = 1; i <= last; i++)
            assert_int_equal(wr_fence_tick(&fence, &passed), WEIR_OK);
        struct wr_sim_gate *gate = stall(stream);
        for (uint64_t i = last; i < 15; i++)
            assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
        wr_sim_drain(world);
        uint64_t before = atomic_load(&device->calls);
        assert_true(wr_fence_poll(&fence));
        assert_int_equal(atomic_load(&fence.done), passed);
        assert_true(atomic_load(&device->calls) - before <= 6);
        wr_sim_gate_open(gate);
        wr_sim_drain(world);
        wr_fence_poll(&fence);
        assert_int_equal(fence.n, 0);
    }
}

/* One has passed, those behind it failed, the next has passed, and the last is pending. */
static void test_a_poll_finds_the_newest_that_has_passed_behind_ticks_that_failed(void **state)
{
    (void)state;
    uint64_t passed;
    for (int i = 0; i < 9; i++) /* their events exist from here on */
        assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    for (int i = 0; i < 6; i++) {
        wr_sim_fail_nth(world, 1, WEIR_DRIVER_ERROR);
        assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_DRIVER_ERROR);
    }
    wr_sim_fail_nth(world, 0, WEIR_OK);
    assert_int_equal(wr_fence_tick(&fence, &passed), WEIR_OK);
    struct wr_sim_gate *gate = stall(stream);
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    wr_sim_drain(world);
    assert_true(wr_fence_poll(&fence));
    assert_int_equal(atomic_load(&fence.done), passed);
    wr_sim_gate_open(gate);
}

static void test_ticks_are_given_back_though_nobody_polls(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
        wr_sim_drain(world);
    }
    assert_in_range(fence.n, 0, 16);
    assert_in_range(events.n_created, 1, 17);
}

static void test_cover_ticks_once_for_stamps_that_no_tick_covers(void **state)
{
    (void)state;
    uint64_t stamp = wr_fence_stamp(&fence);
    assert_int_equal(wr_fence_cover(&fence, stamp), WEIR_OK);
    assert_int_equal(wr_fence_cover(&fence, stamp), WEIR_OK);
    assert_int_equal(atomic_load(&fence.n_ticks), 1);
    assert_int_equal(wr_fence_cover(&fence, wr_fence_stamp(&fence)), WEIR_OK);
    assert_int_equal(atomic_load(&fence.n_ticks), 2);
}

static void test_a_failed_tick_covers_nothing(void **state)
{
    (void)state;
    uint64_t number;
    assert_int_equal(wr_fence_tick(&fence, &number), WEIR_OK); /* the event exists from here on */
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    uint64_t stamp = wr_fence_stamp(&fence);
    wr_sim_fail_nth(world, 1, WEIR_DRIVER_ERROR);
    assert_int_equal(wr_fence_tick(&fence, &number), WEIR_DRIVER_ERROR);
    wr_sim_fail_nth(world, 0, WEIR_OK);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    assert_false(wr_fence_passed(&fence, stamp));
    assert_int_equal(wr_fence_cover(&fence, stamp), WEIR_OK); /* so this ticks again */
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    assert_true(wr_fence_passed(&fence, stamp));
}

static void test_a_waiter_waits_for_a_pending_stamp_and_not_for_a_passed_one(void **state)
{
    (void)state;
    struct wr_sim_counts before, after;
    struct wr_sim_gate *gate = stall(stream);
    uint64_t number;
    assert_int_equal(wr_fence_tick(&fence, &number), WEIR_OK);
    wr_sim_get_counts(world, &before);
    assert_int_equal(wr_fence_wait_on(&fence, number, other), WEIR_OK);
    wr_sim_get_counts(world, &after);
    assert_int_equal(after.stream_waits, before.stream_waits + 1);
    wr_event done;
    bool passed = true;
    device->ops->event_create(device, &done);
    device->ops->event_record(device, done, other);
    wr_sim_drain(world);
    assert_int_equal(device->ops->event_query(device, done, &passed), WEIR_OK);
    assert_false(passed); /* `other` waits */
    wr_sim_gate_open(gate);
    wr_sim_drain(world);
    assert_int_equal(device->ops->event_query(device, done, &passed), WEIR_OK);
    assert_true(passed);
    device->ops->event_destroy(device, done);
    wr_fence_poll(&fence);
    assert_int_equal(wr_fence_wait_on(&fence, number, other), WEIR_OK);
    wr_sim_get_counts(world, &before);
    assert_int_equal(after.stream_waits, before.stream_waits);
}

static void test_no_tick_is_recorded_on_a_capturing_stream(void **state)
{
    (void)state;
    wr_sim_set_capturing(device, stream, true);
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_CAPTURING);
    wr_sim_set_capturing(device, stream, false);
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
}

static void test_A08_a_handle_that_came_back_does_not_speak_for_the_stream_before(void **state)
{
    (void)state;
    struct wr_sim_gate *gate = stall(stream);
    uint64_t stamp = wr_fence_stamp(&fence);
    weir_stream again;
    device->ops->stream_destroy(device, stream);
    assert_int_equal(device->ops->stream_create(device, &again), WEIR_OK);
    assert_ptr_equal(again, stream);
    assert_int_equal(wr_fence_cover(&fence, stamp), WEIR_OK);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    assert_false(wr_fence_passed(&fence, stamp)); /* the new stream is idle, the old one's work is not over */
    wr_sim_gate_open(gate);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    assert_true(wr_fence_passed(&fence, stamp));
}

static void test_A09_a_retired_fence_never_names_its_stream_again(void **state)
{
    (void)state;
    struct wr_sim_counts counts;
    assert_int_equal(wr_fence_retire(&fence), WEIR_OK);
    device->ops->stream_destroy(device, stream);
    stream = NULL;
    assert_int_equal(wr_fence_tick(&fence, NULL), WEIR_OK);
    wr_sim_drain(world);
    assert_true(wr_fence_poll(&fence));
    assert_true(wr_fence_is_quiet(&fence));
    wr_sim_get_counts(world, &counts);
    assert_int_equal(counts.dead_handle_uses, 0);
}

static void test_numbers_go_on_when_a_fence_gets_another_stream(void **state)
{
    (void)state;
    uint64_t old_number, new_number;
    assert_int_equal(wr_fence_tick(&fence, &old_number), WEIR_OK);
    wr_sim_drain(world);
    wr_fence_poll(&fence);
    wr_fence_close(&fence);
    wr_fence_open(&fence, &events, other, id_of(other));
    assert_true(wr_fence_passed(&fence, old_number));
    struct wr_sim_gate *gate = stall(other);
    assert_int_equal(wr_fence_tick(&fence, &new_number), WEIR_OK);
    assert_true(new_number > old_number);
    assert_true(wr_fence_passed(&fence, old_number));
    assert_false(wr_fence_passed(&fence, new_number));
    wr_sim_gate_open(gate);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_stamp_is_pending_until_a_later_tick_has_passed),
        TEST(test_a_tick_behind_a_stalled_stream_stays_pending),
        TEST(test_ticks_pass_oldest_first_and_their_events_are_used_again),
        TEST(test_a_poll_asks_once_where_nothing_and_twice_where_all_has_passed),
        TEST(test_a_poll_finds_the_newest_that_has_passed_by_halves),
        TEST(test_a_poll_finds_the_newest_that_has_passed_behind_ticks_that_failed),
        TEST(test_ticks_are_given_back_though_nobody_polls),
        TEST(test_cover_ticks_once_for_stamps_that_no_tick_covers),
        TEST(test_a_failed_tick_covers_nothing),
        TEST(test_a_waiter_waits_for_a_pending_stamp_and_not_for_a_passed_one),
        TEST(test_no_tick_is_recorded_on_a_capturing_stream),
        TEST(test_A08_a_handle_that_came_back_does_not_speak_for_the_stream_before),
        TEST(test_A09_a_retired_fence_never_names_its_stream_again),
        TEST(test_numbers_go_on_when_a_fence_gets_another_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
