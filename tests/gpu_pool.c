/* SPDX-License-Identifier: Apache-2.0
 *
 * A pool on a real GPU: its promises, its streams and its policies.
 */
#include "gpu_world.h"

/* ---- never wait -------------------------------------------------------------------------------------- */

static void test_promise_1_no_call_waits_for_a_running_kernel(void **state)
{
    (void)state;
    weir_stream busy = new_stream(), other = new_stream();
    weir_dptr x, y;
    size_t freed;
    OK(weir_alloc(pool, 64 * MIB, busy, &x));
    OK(wr_kernels_spin(device, busy, 1)); /* loads it */
    OK(device->ops->stream_sync(device, busy));
    OK(wr_kernels_spin(device, busy, SPIN_NS));
    uint64_t start = now_ns();
    OK(weir_alloc(pool, 512 * MIB, other, &y)); /* grows */
    OK(weir_touch(pool, y, busy, 0));
    OK(weir_free(pool, y, other));
    OK(weir_free(pool, x, busy));
    OK(weir_alloc(pool, 64 * MIB, busy, &x));
    OK(weir_free(pool, x, other));
    OK(weir_trim(pool, 0, &freed));
    assert_true(now_ns() - start < SOON_NS);
    end_stream(busy);
    end_stream(other);
}

/* ---- never reuse early ------------------------------------------------------------------------------- */

static void test_promise_2_a_touched_block_is_not_reused_under_a_running_kernel(void **state)
{
    (void)state;
    weir_stream home = new_stream(), user = new_stream();
    weir_dptr x, y;
    const size_t size = 1500 * MIB; /* of 2048: only x's own memory can serve it again */
    OK(weir_alloc(pool, size, home, &x));
    OK(wr_kernels_spin(device, user, SPIN_NS));
    OK(weir_touch(pool, x, user, 0));
    OK(weir_free(pool, x, home));
    assert_int_equal(weir_alloc(pool, size, home, &y), WEIR_NOT_YET);
    OK(device->ops->stream_sync(device, user));
    OK(weir_alloc(pool, size, home, &y));
    OK(weir_free(pool, y, home));
    end_stream(home);
    end_stream(user);
}

/* Kernels write a tag and verify it, over random streams and sizes, with declared uses and frees at once. */
static void test_canaries_find_no_wrong_word(void **state)
{
    (void)state;
    enum { STREAMS = 6, ROUNDS = 20000 };
    weir_stream s[STREAMS];
    weir_dptr counters[STREAMS], x;
    uint64_t random = 11, wrong[STREAMS], n_served = 0;
    for (int i = 0; i < STREAMS; i++) {
        s[i] = new_stream();
        OK(weir_alloc(pool, sizeof wrong[i], s[i], &counters[i]));
        OK(device->ops->fill(device, counters[i], 0, sizeof wrong[i], s[i]));
    }
    wr_event e;
    OK(device->ops->event_create(device, &e));
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        unsigned home = next_random(&random) % STREAMS, reader = next_random(&random) % STREAMS;
        size_t bytes = 4 * (1 + next_random(&random) % (round % 50 == 0 ? 4000000 : 20000));
        if (weir_alloc(pool, bytes, s[home], &x) != WEIR_OK) continue; /* the limit: NOT_YET */
        n_served++;
        OK(wr_kernels_fill(device, s[home], x, bytes, round));
        if (reader != home) {
            OK(device->ops->event_record(device, e, s[home]));
            OK(device->ops->stream_wait(device, s[reader], e));
        }
        if (round % 7 == 0) OK(wr_kernels_spin(device, s[reader], next_random(&random) % 100000));
        OK(wr_kernels_verify(device, s[reader], x, bytes, round, counters[reader]));
        if (reader != home && round % 2 == 0) OK(weir_touch(pool, x, s[reader], 0));
        OK(weir_free(pool, x, reader != home && round % 2 == 1 ? s[reader] : s[home]));
        if (round % 1000 == 0) OK(weir_pool_check(pool));
    }
    assert_true(n_served >= ROUNDS / 10);
    for (int i = 0; i < STREAMS; i++) {
        OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)&wrong[i], counters[i], sizeof wrong[i], s[i]));
        OK(device->ops->stream_sync(device, s[i]));
        assert_int_equal(wrong[i], 0);
        OK(weir_free(pool, counters[i], s[i]));
    }
    OK(device->ops->event_destroy(device, e));
    for (int i = 0; i < STREAMS; i++)
        end_stream(s[i]);
}

static void test_A08_a_stream_that_comes_back_with_an_old_handle_does_not_get_its_blocks(void **state)
{
    (void)state;
    weir_stream old = new_stream(), again;
    weir_dptr x, y;
    OK(weir_alloc(pool, MIB, old, &x));
    OK(wr_kernels_spin(device, old, SPIN_NS));
    OK(weir_free(pool, x, old));
    OK(weir_stream_retire(pool, old));
    OK(device->ops->stream_destroy(device, old)); /* the kernel still runs */
    again = new_stream();                         /* of the same handle, as a rule */
    OK(weir_alloc(pool, MIB, again, &y));
    assert_int_not_equal(x, y);
    OK(weir_free(pool, y, again));
    end_stream(again);
    wr_event e; /* the old stream can't be named any more: wait for all that ever ran */
    bool done = false;
    OK(device->ops->event_create(device, &e));
    OK(device->ops->event_record_context(device, e));
    while (!done)
        OK(device->ops->event_query(device, e, &done));
    OK(device->ops->event_destroy(device, e));
}

static void test_A12_a_use_by_a_stream_of_another_gpu_counts_like_any_other(void **state)
{
    (void)state;
    struct wr_device *peer;
    if (wr_device_get("cuda", 1, &peer) != WEIR_OK) skip();
    weir_stream home = new_stream(), far;
    weir_dptr x, y;
    const size_t size = 1500 * MIB;
    OK(peer->ops->stream_create(peer, &far));
    OK(weir_alloc(pool, size, home, &x));
    OK(wr_kernels_spin(peer, far, SPIN_NS));
    OK(weir_touch(pool, x, far, 0));
    OK(weir_free(pool, x, home));
    assert_int_equal(weir_alloc(pool, size, home, &y), WEIR_NOT_YET);
    OK(peer->ops->stream_sync(peer, far));
    OK(weir_alloc(pool, size, home, &y));
    OK(wr_kernels_spin(peer, far, SPIN_NS));
    OK(weir_free(pool, y, far));
    assert_int_equal(weir_alloc(pool, size, home, &y), WEIR_NOT_YET);
    OK(peer->ops->stream_sync(peer, far));
    OK(weir_stream_retire(pool, far));
    OK(peer->ops->stream_sync(peer, far));
    OK(peer->ops->stream_destroy(peer, far));
    end_stream(home);
}

static void *alloc_on_own_default_stream(void *out)
{
    OK(weir_alloc(pool, MIB, CU_STREAM_PER_THREAD, out));
    return NULL;
}

static void test_A07_the_per_thread_default_stream_is_another_in_each_thread(void **state)
{
    (void)state;
    weir_dptr x, y = 0;
    pthread_t thread;
    OK(weir_alloc(pool, MIB, CU_STREAM_PER_THREAD, &x));
    OK(wr_kernels_spin(device, CU_STREAM_PER_THREAD, SPIN_NS));
    OK(weir_free(pool, x, CU_STREAM_PER_THREAD));
    assert_int_equal(pthread_create(&thread, NULL, alloc_on_own_default_stream, &y), 0);
    pthread_join(thread, NULL);
    assert_int_not_equal(x, y);
    OK(device->ops->stream_sync(device, CU_STREAM_PER_THREAD));
    OK(weir_free(pool, y, CU_STREAM_PER_THREAD));
    OK(device->ops->stream_sync(device, CU_STREAM_PER_THREAD));
}

/* ---- policies ---------------------------------------------------------------------------------------- */

static void test_A06_an_owners_block_moves_when_the_whole_context_has_passed(void **state)
{
    (void)state;
    weir_stream home = new_stream(), secret = new_stream(), third = new_stream();
    weir_dptr x, y;
    const size_t size = 1500 * MIB;
    OK(alloc_with(size, home, WEIR_REUSE_OWNER, 0, &x));
    OK(wr_kernels_spin(device, secret, SPIN_NS));
    OK(weir_free(pool, x, home));
    assert_int_equal(weir_alloc(pool, size, third, &y), WEIR_NOT_YET);
    OK(weir_alloc(pool, size, home, &y));
    assert_int_equal(x, y);
    OK(weir_free(pool, y, home));
    OK(device->ops->stream_sync(device, secret));
    OK(alloc_with(size, third, WEIR_REUSE_HOST_WAIT, SOON_NS, &y)); /* an event takes its time to be seen */
    OK(weir_free(pool, y, third));
    end_stream(home);
    end_stream(secret);
    end_stream(third);
}

static void test_a_device_wait_orders_the_streams_and_returns_at_once(void **state)
{
    (void)state;
    enum { PROBE = 4096 };
    weir_stream busy = new_stream(), other = new_stream();
    weir_dptr x, y, count;
    uint64_t wrong = 1;
    weir_stats s = {.struct_size = sizeof s};
    const size_t size = 1500 * MIB;
    OK(weir_alloc(pool, sizeof wrong, other, &count));
    OK(device->ops->fill(device, count, 0, sizeof wrong, other));
    OK(weir_alloc(pool, size, busy, &x));
    OK(wr_kernels_spin(device, busy, SPIN_NS));
    OK(wr_kernels_fill(device, busy, x, PROBE, 1)); /* late: it must come before the new owner's */
    OK(weir_free(pool, x, busy));
    uint64_t start = now_ns();
    OK(alloc_with(size, other, WEIR_REUSE_DEVICE_WAIT, 0, &y));
    assert_true(now_ns() - start < SOON_NS);
    OK(wr_kernels_fill(device, other, y, PROBE, 2));
    OK(device->ops->stream_sync(device, busy));
    OK(wr_kernels_verify(device, other, y, PROBE, 2, count));
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)&wrong, count, sizeof wrong, other));
    OK(device->ops->stream_sync(device, other));
    assert_int_equal(wrong, 0);
    assert_true(now_ns() - start >= SPIN_NS / 2);
    OK(weir_pool_stats(pool, &s));
    assert_int_equal(s.stream_waits, 1);
    assert_int_equal(s.host_waits, 0);
    OK(weir_free(pool, y, other));
    OK(weir_free(pool, count, other));
    end_stream(busy);
    end_stream(other);
}

static void test_A19_a_host_wait_ends_at_its_deadline_or_when_the_fence_has_passed(void **state)
{
    (void)state;
    weir_stream busy = new_stream(), other = new_stream();
    weir_dptr x, y;
    const size_t size = 1500 * MIB;
    OK(weir_alloc(pool, size, busy, &x));
    OK(wr_kernels_spin(device, busy, SPIN_NS));
    OK(weir_free(pool, x, busy));
    uint64_t start = now_ns();
    assert_int_equal(alloc_with(size, other, WEIR_REUSE_HOST_WAIT, SPIN_NS / 10, &y), WEIR_TIMEOUT);
    uint64_t took = now_ns() - start;
    assert_true(took >= SPIN_NS / 10 && took < SPIN_NS / 10 + SOON_NS);
    OK(alloc_with(size, other, WEIR_REUSE_HOST_WAIT, 10 * SPIN_NS, &y));
    took = now_ns() - start;
    assert_true(took >= SPIN_NS / 2 && took < SPIN_NS + 2 * SOON_NS);
    OK(weir_free(pool, y, other));
    end_stream(busy);
    end_stream(other);
}

/* ---- contexts ---------------------------------------------------------------------------------------- */

static void make_calls_and_errors(void)
{
    weir_stream s = new_stream();
    weir_dptr x;
    void *host;
    OK(weir_alloc(pool, 100 * MIB, s, &x));
    OK(weir_touch(pool, x, NULL, 0));
    OK(weir_free(pool, x, NULL));
    assert_int_equal(weir_free(pool, x, s), WEIR_INVALID_POINTER);
    assert_int_equal(weir_alloc(pool, 4096 * MIB, s, &x), WEIR_TOO_LARGE);
    OK(weir_host_alloc(pool, MIB, &host));
    OK(weir_host_free(pool, host, s));
    OK(device->ops->stream_sync(device, NULL));
    OK(weir_trim(pool, 0, NULL));
    end_stream(s);
}

static void test_A16_the_callers_context_is_the_same_after_each_call(void **state)
{
    (void)state;
    CUcontext before, after, primary;
    CUdevice cuda_device;
    assert_int_equal(cu.get_current(&before), CUDA_SUCCESS);
    assert_null(before); /* this thread never had one */
    make_calls_and_errors();
    assert_int_equal(cu.get_current(&after), CUDA_SUCCESS);
    assert_null(after);
    assert_int_equal(wr_cuda.cuDeviceGet(&cuda_device, 0), CUDA_SUCCESS);
    assert_int_equal(wr_cuda.cuDevicePrimaryCtxRetain(&primary, cuda_device), CUDA_SUCCESS);
    assert_int_equal(cu.set_current(primary), CUDA_SUCCESS);
    make_calls_and_errors();
    assert_int_equal(cu.get_current(&after), CUDA_SUCCESS);
    assert_ptr_equal(after, primary);
    assert_int_equal(cu.set_current(NULL), CUDA_SUCCESS);
    wr_cuda.cuDevicePrimaryCtxRelease(cuda_device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_promise_1_no_call_waits_for_a_running_kernel),
        TEST(test_promise_2_a_touched_block_is_not_reused_under_a_running_kernel),
        TEST(test_canaries_find_no_wrong_word),
        TEST(test_A08_a_stream_that_comes_back_with_an_old_handle_does_not_get_its_blocks),
        TEST(test_A12_a_use_by_a_stream_of_another_gpu_counts_like_any_other),
        TEST(test_A07_the_per_thread_default_stream_is_another_in_each_thread),
        TEST(test_A06_an_owners_block_moves_when_the_whole_context_has_passed),
        TEST(test_a_device_wait_orders_the_streams_and_returns_at_once),
        TEST(test_A19_a_host_wait_ends_at_its_deadline_or_when_the_fence_has_passed),
        TEST(test_A16_the_callers_context_is_the_same_after_each_call),
    };
    if (!find_gpu()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
