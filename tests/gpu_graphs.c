/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures on a real GPU: what happens meanwhile, and the memory of graphs. A reset (P05) is not tried here: it would
 * take the device from every test of the process.
 */
#include "gpu_world.h"

static void test_an_owners_frees_leave_a_capture_alone(void **state)
{
    (void)state;
    enum { PAIRS = 1000 }; /* so many that ticks fall due */
    weir_stream captured = new_stream(), a = new_stream(), b = new_stream();
    weir_dptr x, y;
    CUgraph graph;
    const size_t size = 1500 * MIB;
    OK(weir_alloc(pool, MIB, captured, &x)); /* the pool knows it */
    OK(weir_free(pool, x, captured));
    OK(alloc_with(size, a, WEIR_REUSE_OWNER, 0, &x));
    assert_int_equal(cu.begin_capture(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    for (int i = 0; i < PAIRS; i++) {
        OK(weir_free(pool, x, a));
        OK(weir_alloc(pool, size, a, &x));
    }
    OK(weir_free(pool, x, a));
    assert_int_equal(weir_alloc(pool, size, b, &y), WEIR_NOT_YET);
    assert_int_equal(cu.end_capture(captured, &graph), CUDA_SUCCESS);
    assert_int_equal(cu.graph_destroy(graph), CUDA_SUCCESS);
    OK(device->ops->stream_sync(device, a));
    OK(alloc_with(size, b, WEIR_REUSE_HOST_WAIT, WR_NS_PER_SEC, &y));
    OK(weir_free(pool, y, b));
    end_stream(captured);
    end_stream(a);
    end_stream(b);
}

static void test_a_capture_survives_everything_that_weir_does_meanwhile(void **state)
{
    (void)state;
    weir_stream captured = new_stream(), other = new_stream();
    weir_dptr x, y, z;
    uint64_t id;
    CUgraph graph;
    OK(weir_alloc(pool, MIB, captured, &x));
    assert_int_equal(cu.begin_capture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    OK(weir_graph_id(pool, captured, &id));
    OK(weir_alloc(pool, MIB, captured, &y));
    OK(weir_free(pool, y, captured));
    OK(weir_touch(pool, x, captured, 0));
    assert_int_equal(weir_graph_release(pool, id), WEIR_CAPTURING);
    OK(weir_alloc(pool, 300 * MIB, other, &y)); /* grows, polls, ticks */
    OK(weir_touch(pool, x, other, 0));
    OK(weir_free(pool, y, other));
    OK(weir_free(pool, x, captured));
    OK(weir_trim(pool, 0, NULL));
    OK(weir_alloc(pool, MIB, other, &z));
    OK(weir_free(pool, z, other));
    assert_int_equal(cu.end_capture(captured, &graph), CUDA_SUCCESS);
    assert_int_equal(cu.graph_destroy(graph), CUDA_SUCCESS);
    OK(weir_graph_release(pool, id));
    end_stream(other);
    end_stream(captured);
}

/* Words that differ from the tag, as counted by a kernel on `s`. */
static uint64_t count_wrong(weir_stream s, weir_dptr counter)
{
    uint64_t wrong = UINT64_MAX;
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)&wrong, counter, sizeof wrong, s));
    OK(device->ops->stream_sync(device, s));
    return wrong;
}

/* Ends the capture whatever has happened in it, so that the stream is fit for the tests that follow. */
static void test_P01_a_captured_graph_reuses_one_block_and_replays_right(void **state)
{
    (void)state;
    enum { ROUNDS = 3, LAUNCHES = 3 };
    const size_t bytes = 1024 * MIB, written = 64 * MIB;
    weir_stream s = new_stream(), other = new_stream();
    weir_dptr x[ROUNDS] = {0}, counter, y;
    CUgraph graph = NULL;
    CUgraphExec launchable;
    uint64_t id = 0;
    OK(weir_alloc(pool, sizeof(uint64_t), other, &counter));
    OK(device->ops->fill(device, counter, 0, sizeof(uint64_t), other));
    OK(wr_kernels_fill(
        device, other, counter, sizeof(uint64_t), 0)); /* kernels are loaded now, not captured */
    OK(wr_kernels_verify(device, other, counter, sizeof(uint32_t), 0, counter));
    OK(device->ops->stream_sync(device, other));
    assert_int_equal(cu.begin_capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    weir_status st = weir_graph_id(pool, s, &id);
    for (uint32_t i = 0; i < ROUNDS && st == WEIR_OK; i++) {
        st = weir_alloc(pool, bytes, s, &x[i]);
        if (st == WEIR_OK) st = wr_kernels_fill(device, s, x[i], written, i + 1);
        if (st == WEIR_OK) st = wr_kernels_verify(device, s, x[i], written, i + 1, counter);
        if (st == WEIR_OK) st = weir_free(pool, x[i], s);
    }
    CUresult ended = cu.end_capture(s, &graph);
    OK(st);
    assert_int_equal(ended, CUDA_SUCCESS);
    weir_stats stats = {.struct_size = sizeof stats};
    OK(weir_pool_stats(pool, &stats));
    assert_true(x[0] == x[1] && x[1] == x[2] && stats.peak_live_bytes <= bytes + MIB);
    CUcontext primary;
    CUdevice number;
    assert_int_equal(wr_cuda.cuDeviceGet(&number, 0), CUDA_SUCCESS);
    assert_int_equal(wr_cuda.cuDevicePrimaryCtxRetain(&primary, number), CUDA_SUCCESS);
    assert_int_equal(cu.set_current(primary), CUDA_SUCCESS); /* graphs are made in the current context */
    assert_int_equal(cu.graph_instantiate(&launchable, graph, 0), CUDA_SUCCESS);
    for (int i = 0; i < LAUNCHES; i++) {
        assert_int_equal(cu.graph_launch(launchable, s), CUDA_SUCCESS);
        if (weir_alloc(pool, 512 * MIB, other, &y) == WEIR_OK) { /* never the graph's */
            assert_true(y >= x[0] + bytes || y + 512 * MIB <= x[0]);
            OK(wr_kernels_fill(device, other, y, written, 99));
            OK(weir_free(pool, y, other));
        }
    }
    OK(device->ops->stream_sync(device, other));
    assert_int_equal(count_wrong(s, counter), 0);
    assert_int_equal(cu.graph_exec_destroy(launchable), CUDA_SUCCESS);
    assert_int_equal(cu.graph_destroy(graph), CUDA_SUCCESS);
    assert_int_equal(cu.set_current(NULL), CUDA_SUCCESS);
    wr_cuda.cuDevicePrimaryCtxRelease(number);
    OK(weir_graph_release(pool, id));
    OK(weir_free(pool, counter, other));
    end_stream(other);
    end_stream(s);
}

static void test_P01_a_block_of_before_freed_by_its_capturing_home_is_kept_for_the_graph(void **state)
{
    (void)state;
    const size_t size = 1500 * MIB; /* of 2048: only x's own memory can serve it again */
    weir_stream s = new_stream(), other = new_stream();
    weir_dptr x, y;
    CUgraph graph = NULL;
    uint64_t id = 0;
    OK(weir_alloc(pool, size, s, &x));
    OK(wr_kernels_fill(device, s, x, MIB, 1)); /* the kernel is loaded now, not captured */
    OK(device->ops->stream_sync(device, s));
    assert_int_equal(cu.begin_capture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    weir_status st = weir_graph_id(pool, s, &id);
    if (st == WEIR_OK) st = wr_kernels_fill(device, s, x, MIB, 2);
    if (st == WEIR_OK) st = weir_free(pool, x, s);
    CUresult ended = cu.end_capture(s, &graph);
    OK(st);
    assert_int_equal(ended, CUDA_SUCCESS);
    assert_int_not_equal(weir_alloc(pool, size, s, &y), WEIR_OK);
    assert_int_not_equal(weir_alloc(pool, size, other, &y), WEIR_OK);
    assert_int_equal(cu.graph_destroy(graph), CUDA_SUCCESS);
    OK(weir_graph_release(pool, id));
    OK(alloc_with(size, other, WEIR_REUSE_HOST_WAIT, WR_NS_PER_SEC, &y));
    OK(weir_free(pool, y, other));
    end_stream(other);
    end_stream(s);
}

/* P06, on the real driver: the capture is broken from outside, and all comes back. */
static void test_P06_a_broken_capture_gives_its_memory_back(void **state)
{
    (void)state;
    weir_stream s = new_stream();
    weir_dptr x;
    CUgraph graph = NULL;
    uint64_t id = 0;
    assert_int_equal(cu.begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    weir_status st = weir_alloc(pool, 256 * MIB, s, &x);
    if (st == WEIR_OK) st = weir_graph_id(pool, s, &id);
    wr_cuda.cuStreamSynchronize(s); /* forbidden: it breaks the capture */
    assert_int_not_equal(cu.end_capture(s, &graph), CUDA_SUCCESS);
    OK(st);
    OK(weir_graph_release(pool, id));
    OK(weir_free(pool, x, s));
    end_stream(s);
    size_t freed, all = 0;
    for (uint64_t start = now_ns(); all < 256 * MIB && now_ns() - start < WR_NS_PER_SEC; all += freed)
        OK(weir_trim(pool, 0, &freed));
    assert_true(all >= 256 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_an_owners_frees_leave_a_capture_alone),
        TEST(test_a_capture_survives_everything_that_weir_does_meanwhile),
        TEST(test_P01_a_captured_graph_reuses_one_block_and_replays_right),
        TEST(test_P01_a_block_of_before_freed_by_its_capturing_home_is_kept_for_the_graph),
        TEST(test_P06_a_broken_capture_gives_its_memory_back),
    };
    if (!find_gpu()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
