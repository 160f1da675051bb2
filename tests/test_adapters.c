/* SPDX-License-Identifier: Apache-2.0
 *
 * The adapters' C side on the simulated device: the shared pool and what PyTorch, CuPy and ONNX Runtime call.
 */
#include "forks.h"
#include "harness.h"
#include "pool_world.h"
#include "weir_cupy.h"
#include "weir_ort.h"
#include "weir_torch.h"

#include <sys/wait.h>
#include <unistd.h>

#define MS ((uint64_t)1000000)

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){
                              .limit_bytes = 64 * WR_MIB, .grow_bytes = 1, .pool.reuse = WEIR_REUSE_OWNER});
    assert_int_equal(weir_shared_adopt(0, world.pool), WEIR_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    weir_torch_on_failure(NULL);
    assert_int_equal(wr_world_counts(&world).captures_broken, 0);
    wr_world_close(&world);
    return 0;
}

static weir_dptr torch_alloc(size_t bytes, weir_stream s)
{
    void *block = weir_torch_alloc(bytes, 0, s);
    assert_non_null(block);
    return (uintptr_t)block;
}

static void torch_free(weir_dptr block, weir_stream s)
{
    weir_torch_free((void *)(uintptr_t)block, 0, 0, s);
}

static void record_stream(weir_dptr block, weir_stream s)
{
    weir_torch_record_stream((void *)(uintptr_t)block, s);
}

static void end_stream(weir_stream s)
{
    assert_int_equal(weir_stream_retire(world.pool, s), WEIR_OK);
    wr_world_destroy_stream(&world, s);
}

/* ---- the shared pool --------------------------------------------------------------------------------- */

static void test_one_pool_serves_all_who_ask_for_the_device(void **state)
{
    (void)state;
    weir_pool *first, *second;
    assert_int_equal(weir_shared_pool(0, &first), WEIR_OK);
    assert_int_equal(weir_shared_pool(0, &second), WEIR_OK);
    assert_ptr_equal(first, world.pool);
    assert_ptr_equal(second, first);
}

static void test_a_shared_pool_is_not_replaced_while_it_is_open(void **state)
{
    (void)state;
    weir_pool *other;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 4 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &other), WEIR_OK);
    assert_int_equal(weir_shared_adopt(0, other), WEIR_IN_USE);
    assert_int_equal(weir_shared_adopt(0, world.pool), WEIR_OK);
    assert_int_equal(weir_pool_close(other), WEIR_OK);
    assert_int_equal(weir_shared_adopt(1, other), WEIR_CLOSED);
    assert_int_equal(weir_shared_adopt(1, NULL), WEIR_INVALID_ARGUMENT);
}

static void test_devices_and_limits_out_of_range_are_refused(void **state)
{
    (void)state;
    weir_pool *pool = NULL;
    assert_int_equal(weir_shared_pool(-1, &pool), WEIR_NO_DEVICE);
    assert_int_equal(weir_shared_pool(WEIR_SHARED_DEVICES, &pool), WEIR_NO_DEVICE);
    assert_null(pool);
    assert_int_equal(weir_shared_pool(0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_shared_limit(0, WR_MIB, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_shared_limit(1, 0, 1.5), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_shared_limit(WEIR_SHARED_DEVICES, 0, 0), WEIR_NO_DEVICE);
    assert_int_equal(weir_shared_suggest_limit(0, WR_MIB, 0), WEIR_IN_USE);
    assert_int_equal(weir_shared_suggest_limit(1, 0, -1), WEIR_INVALID_ARGUMENT);
}

static void test_the_policy_of_shared_pools_is_one_of_two_and_stays_once_one_is_open(void **state)
{
    (void)state;
    assert_int_equal(weir_shared_reuse(WEIR_REUSE_HOST_WAIT), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_shared_reuse(WEIR_REUSE_DEFAULT), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_shared_reuse(WEIR_REUSE_COMPLETED), WEIR_IN_USE);
}

/* On a device of its own, which the process keeps: the one that WEIR_DEVICE names. */
static void test_the_first_caller_opens_the_pool_with_the_limit_and_owner_reuse(void **state)
{
    (void)state;
    weir_pool *pool;
    setenv("WEIR_DEVICE", "sim", 1);
    assert_int_equal(weir_shared_suggest_limit(1, 4 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(
        weir_shared_suggest_limit(1, 2 * WR_MIB, 0), WEIR_IN_USE); /* the first one has said something */
    assert_int_equal(weir_shared_limit(1, 8 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(weir_shared_suggest_limit(1, 4 * WR_MIB, 0), WEIR_IN_USE);
    assert_int_equal(weir_shared_pool(1, &pool), WEIR_OK);
    weir_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(weir_pool_stats(pool, &stats), WEIR_OK);
    assert_int_equal(stats.limit_bytes, 8 * WR_MIB);
    assert_int_equal(pool->terms.reuse, WEIR_REUSE_OWNER);
    assert_int_equal(weir_shared_limit(1, 512 * WR_MIB, 0), WEIR_OK);
    assert_int_equal(weir_pool_stats(pool, &stats), WEIR_OK);
    assert_int_equal(stats.limit_bytes, 512 * WR_MIB);
}

/* ---- PyTorch ----------------------------------------------------------------------------------------- */

static void test_A03_no_bytes_are_null_and_freeing_null_does_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    assert_null(weir_torch_alloc(0, 0, a));
    assert_null(weir_torch_segment_alloc(0, 0, a));
    weir_torch_free(NULL, 0, 0, a);
    weir_torch_free(NULL, 0, 0, a);
    weir_torch_record_stream(NULL, a);
    assert_int_equal(wr_world_stats(&world).frees, 0);
}

static void test_a_block_is_reused_on_its_own_stream_at_once(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    struct wr_sim_gate *stall = wr_world_stall(&world, a);
    weir_dptr x = torch_alloc(4 * WR_MIB, a);
    torch_free(x, a);
    assert_int_equal(torch_alloc(4 * WR_MIB, a), x);
    torch_free(x, a);
    wr_world_let_go(&world, stall);
}

/* The side stream's kernel was queued after record_stream: only the wider meaning covers it. */
static void test_record_stream_covers_work_queued_until_the_free(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(4 * WR_MIB, a);
    record_stream(x, b);
    record_stream(x, b);
    wr_world_join(&world, a, b);
    struct wr_sim_gate *stall = wr_world_stall(&world, b);
    wr_world_write(&world, b, x, 4 * WR_MIB, MS);
    torch_free(x, a);
    weir_dptr y = torch_alloc(4 * WR_MIB, a);
    assert_int_not_equal(y, x);
    wr_world_write(&world, a, y, 4 * WR_MIB, MS);
    assert_int_equal(wr_world_counts(&world).host_syncs, 0);
    torch_free(y, a);
    wr_world_let_go(&world, stall);
}

static void test_a_recorded_stream_that_has_passed_holds_nothing_back(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(60 * WR_MIB, a);
    record_stream(x, b);
    torch_free(x, a);
    wr_sim_drain(world.sim);
    weir_dptr y = torch_alloc(60 * WR_MIB, a);
    torch_free(y, a);
    assert_int_equal(wr_world_stats(&world).peak_reserved_bytes, wr_world_stats(&world).reserved_bytes);
}

/* A new block at an old one's address has none of its streams. */
static void test_recorded_streams_are_forgotten_with_the_free(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(WR_MIB, a);
    record_stream(x, b);
    torch_free(x, a);
    wr_sim_drain(world.sim);
    uint64_t touches = wr_world_stats(&world).touches;
    for (int i = 0; i < 8; i++)
        torch_free(torch_alloc(WR_MIB, a), a);
    assert_int_equal(wr_world_stats(&world).touches, touches);
}

static void test_a_block_recorded_for_a_dead_stream_is_not_handed_out_again(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(4 * WR_MIB, a);
    record_stream(x, b);
    struct wr_sim_gate *stall = wr_world_stall(&world, b);
    end_stream(b);
    torch_free(x, a);
    assert_int_equal(wr_world_stats(&world).live_blocks, 1);
    wr_world_let_go(&world, stall);
    wr_sim_reports_clear(world.sim); /* naming a dead stream is reported */
    wr_world_free(&world, x, a);
}

/* A06: a kernel of a stream that nobody named reads the block; its home may have it, nobody else. */
static void test_A06_an_undeclared_user_keeps_the_block_from_other_streams(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world), c = wr_world_stream(&world);
    weir_dptr x = torch_alloc(60 * WR_MIB, a);
    wr_world_join(&world, a, b);
    struct wr_sim_gate *stall = wr_world_stall(&world, b);
    wr_world_read(&world, b, x, 60 * WR_MIB, MS);
    torch_free(x, a);
    assert_null(weir_torch_segment_alloc(60 * WR_MIB, 0, c));
    wr_world_let_go(&world, stall);
    wr_sim_drain(world.sim);
    void *y = weir_torch_segment_alloc(60 * WR_MIB, 0, c);
    assert_non_null(y);
    wr_world_write(&world, c, (uintptr_t)y, 60 * WR_MIB, MS);
    weir_torch_free(y, 0, 0, c);
}

/* Where PyTorch's own allocator would wait for the GPU before it gives up, so does this. */
static void test_T02_memory_that_is_still_pending_is_waited_for_before_failing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(48 * WR_MIB, a);
    wr_world_write(&world, a, x, 48 * WR_MIB, 10 * MS);
    torch_free(x, a);
    weir_dptr y = torch_alloc(56 * WR_MIB, b);
    wr_world_write(&world, b, y, 56 * WR_MIB, MS);
    torch_free(y, b);
    assert_int_equal(wr_world_stats(&world).host_waits, 1);
}

static void test_T02_a_segment_that_can_not_be_had_is_null_and_can_be_had_later(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    void *x = weir_torch_segment_alloc(48 * WR_MIB, 0, a);
    assert_null(weir_torch_segment_alloc(56 * WR_MIB, 0, b));
    weir_torch_free(x, 0, 0, a);
    wr_sim_drain(world.sim);
    void *y = weir_torch_segment_alloc(56 * WR_MIB, 0, b);
    assert_non_null(y);
    weir_torch_free(y, 0, 0, b);
    assert_int_equal(wr_world_stats(&world).host_waits, 0);
}

static jmp_buf thrown;
static char thrown_text[2048];
static uint32_t thrown_code;

static void throw_it(const char *function, const char *file, uint32_t code, const char *text)
{
    assert_string_equal(function, "weir_torch_alloc");
    assert_string_equal(file, "weir");
    snprintf(thrown_text, sizeof thrown_text, "%s", text);
    thrown_code = code;
    longjmp(thrown, 1);
}

static bool throws(size_t bytes, int device, weir_stream s)
{
    weir_torch_on_failure(throw_it);
    if (setjmp(thrown) != 0) return true;
    weir_torch_alloc(bytes, device, s);
    return false;
}

static void test_T03_what_can_not_be_had_throws_with_size_reserved_and_pending(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    torch_free(torch_alloc(2 * WR_MIB, a), a);
    assert_true(throws(65 * WR_MIB, 0, a));
    assert_int_equal(thrown_code, WEIR_TOO_LARGE);
    assert_non_null(strstr(thrown_text, "CUDA out of memory. Tried to allocate 68157440 bytes on GPU 0"));
    assert_non_null(strstr(thrown_text, "reserved 2097152, 0 of them pending"));
    assert_true(throws(SIZE_MAX - 510, 0, a));
    assert_int_equal(thrown_code, WEIR_TOO_LARGE);
}

static void test_T03_a_device_that_is_none_throws_and_is_not_called_out_of_memory(void **state)
{
    (void)state;
    assert_true(throws(512, WEIR_SHARED_DEVICES, NULL));
    assert_int_equal(thrown_code, WEIR_NO_DEVICE);
    assert_null(strstr(thrown_text, "out of memory"));
}

static void test_T04_a_segment_comes_back_once_without_waiting_for_its_stalled_stream(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    void *x = weir_torch_segment_alloc(20 * WR_MIB, 0, a);
    struct wr_sim_gate *stall = wr_world_stall(&world, a);
    wr_world_write(&world, a, (uintptr_t)x, 20 * WR_MIB, MS);
    weir_torch_free(x, 20 * WR_MIB, 0, a);
    assert_int_equal(wr_world_stats(&world).frees, 1);
    assert_int_equal(wr_world_counts(&world).host_syncs, 0);
    weir_torch_free(x, 20 * WR_MIB, 0, a); /* a stranger by now */
    assert_int_equal(wr_world_stats(&world).frees, 1);
    wr_world_let_go(&world, stall);
    wr_sim_drain(world.sim);
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    wr_sim_drain(world.sim);
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 0);
}

static void test_A09_a_block_whose_stream_was_destroyed_can_be_freed(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = torch_alloc(4 * WR_MIB, a);
    wr_world_write(&world, a, x, 4 * WR_MIB, MS);
    end_stream(a);
    torch_free(x, a);
    assert_int_equal(wr_world_stats(&world).live_blocks, 0);
    wr_sim_reports_clear(world.sim); /* naming a dead stream is reported */
}

static void test_the_memory_fraction_of_an_open_pool_can_be_lowered(void **state)
{
    (void)state;
    double eighth = 8.0 * WR_MIB / (double)world.device->total_bytes;
    weir_torch_memory_fraction(eighth, 0);
    assert_int_equal(wr_world_stats(&world).limit_bytes, 8 * WR_MIB);
}

static const weir_torch_pool_id first_pool = {0, 1}, second_pool = {0, 2};

/* What the pool holds after all has passed and been trimmed: a few looks, for ticks must pass, too. */
static uint64_t settled_bytes(void)
{
    for (int i = 0; i < 4; i++) {
        assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
        wr_sim_drain(world.sim);
    }
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    return wr_world_stats(&world).reserved_bytes;
}

static void capture_one_block(weir_torch_pool_id id, weir_stream s)
{
    weir_torch_begin_pool(0, id, NULL);
    wr_sim_set_capturing(world.device, s, true);
    weir_dptr x = torch_alloc(4 * WR_MIB, s);
    torch_free(x, s);
    wr_sim_set_capturing(world.device, s, false);
    weir_torch_end_pool(0, id);
}

static void test_P06_a_graphs_memory_serves_others_once_its_pool_is_released(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    capture_one_block(first_pool, a);
    assert_int_equal(settled_bytes(), 4 * WR_MIB);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(settled_bytes(), 0);
}

static void test_graphs_that_share_a_pool_keep_their_memory_until_the_last_release(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    capture_one_block(first_pool, a);
    capture_one_block(first_pool, a);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(settled_bytes(), 8 * WR_MIB);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(settled_bytes(), 0);
}

static void test_a_held_pool_keeps_its_graphs_memory_and_counts_its_holds(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    assert_int_equal(weir_torch_pool_holds(0, first_pool), 0);
    weir_torch_hold_pool(0, first_pool);
    capture_one_block(first_pool, a);
    assert_int_equal(weir_torch_pool_holds(0, first_pool), 2);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(weir_torch_pool_holds(0, first_pool), 1);
    assert_int_equal(settled_bytes(), 4 * WR_MIB);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(settled_bytes(), 0);
}

/* T06: which of the nested pools it belongs to is not said, so it stays while either lives. */
static void test_T06_memory_of_nested_pools_stays_until_both_are_released(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_torch_begin_pool(0, second_pool, NULL);
    capture_one_block(first_pool, a);
    weir_torch_end_pool(0, second_pool);
    weir_torch_release_pool(0, first_pool);
    assert_int_equal(settled_bytes(), 4 * WR_MIB);
    weir_torch_release_pool(0, second_pool);
    assert_int_equal(settled_bytes(), 0);
}

static void test_P06_a_pool_released_while_its_capture_goes_on_is_released_with_a_later_one(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_torch_begin_pool(0, first_pool, NULL);
    wr_sim_set_capturing(world.device, a, true);
    torch_free(torch_alloc(4 * WR_MIB, a), a);
    weir_torch_end_pool(0, first_pool);
    weir_torch_release_pool(0, first_pool);
    wr_sim_set_capturing(world.device, a, false);
    assert_int_equal(settled_bytes(), 4 * WR_MIB);
    capture_one_block(second_pool, b);
    weir_torch_release_pool(0, second_pool);
    assert_int_equal(settled_bytes(), 0);
}

static void test_releases_of_pools_that_never_began_do_nothing(void **state)
{
    (void)state;
    weir_torch_end_pool(0, first_pool);
    weir_torch_release_pool(0, first_pool);
    weir_stream a = wr_world_stream(&world);
    torch_free(torch_alloc(WR_MIB, a), a);
}

static void test_P04_a_forked_child_allocates_nothing_and_frees_do_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = torch_alloc(WR_MIB, a);
    record_stream(x, b);
    uint64_t calls = wr_sim_calls(world.sim);
    pid_t child = fork();
    if (child == 0) {
        record_stream(x, a);
        torch_free(x, a);
        weir_torch_release_pool(0, first_pool);
        bool null = weir_torch_alloc(WR_MIB, 0, a) == NULL;
        _exit(null && wr_sim_calls(world.sim) == calls ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    torch_free(x, a);
    assert_int_equal(wr_world_stats(&world).live_blocks, 0);
}

/* ---- blocks whose free names no stream: CuPy, ONNX Runtime ------------------------------------------- */

static weir_stream current;

static intptr_t current_stream(void)
{
    return (intptr_t)current;
}

static void *cupy_malloc(size_t bytes, weir_stream s)
{
    weir_cupy_current_stream ask = current_stream;
    void *parameter;
    memcpy(&parameter, &ask, sizeof parameter);
    current = s;
    return weir_cupy_malloc(parameter, bytes, 0);
}

/* Whatever stream is current when the array is dropped. */
static void test_C02_a_cupy_block_goes_back_to_the_stream_that_was_current_when_it_came(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    void *x = cupy_malloc(40 * WR_MIB, a);
    struct wr_sim_gate *stall = wr_world_stall(&world, a);
    wr_world_write(&world, a, (uintptr_t)x, 40 * WR_MIB, MS);
    current = b;
    weir_cupy_free(NULL, x, 0);
    void *y = cupy_malloc(40 * WR_MIB, a);
    assert_ptr_equal(y, x);
    weir_cupy_free(NULL, y, 0);
    wr_world_let_go(&world, stall);
}

static void test_C02_a_declared_user_keeps_a_lent_block_until_it_has_passed(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    void *x = cupy_malloc(4 * WR_MIB, a);
    assert_int_equal(weir_shared_use(0, (uintptr_t)x, b), WEIR_OK);
    wr_world_join(&world, a, b);
    struct wr_sim_gate *stall = wr_world_stall(&world, b);
    wr_world_read(&world, b, (uintptr_t)x, 4 * WR_MIB, MS);
    weir_cupy_free(NULL, x, 0);
    void *y = cupy_malloc(4 * WR_MIB, a);
    assert_ptr_not_equal(y, x);
    wr_world_write(&world, a, (uintptr_t)y, 4 * WR_MIB, MS);
    weir_cupy_free(NULL, y, 0);
    wr_world_let_go(&world, stall);
}

/* C02 scaled: a stream that was used once keeps no memory from those that follow. */
static void test_C02_memory_of_streams_that_are_gone_serves_new_ones(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        weir_stream s = wr_world_stream(&world);
        void *x = cupy_malloc(40 * WR_MIB, s);
        assert_non_null(x);
        wr_world_write(&world, s, (uintptr_t)x, 40 * WR_MIB, MS);
        weir_cupy_free(NULL, x, 0);
        end_stream(s);
    }
    assert_true(wr_world_stats(&world).reserved_bytes <= 64 * WR_MIB);
}

static void test_no_bytes_and_too_many_are_null_and_what_was_not_lent_does_not_come_back(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    assert_null(cupy_malloc(0, a));
    assert_null(cupy_malloc(65 * WR_MIB, a));
    assert_int_equal(weir_shared_return(0, 0), WEIR_OK);
    weir_dptr x = wr_world_alloc(&world, WR_MIB, a);
    assert_int_equal(weir_shared_return(0, x), WEIR_INVALID_POINTER);
    wr_world_free(&world, x, a);
}

enum { T05_BLOCKS = 10000, T05_KEPT = 64 };

struct t05_thread {
    pthread_t thread;
    weir_stream own, other;
    weir_dptr kept[T05_KEPT]; /* the last ones, for the other thread to return */
};

static void *lend_and_return(void *arg)
{
    struct t05_thread *t = arg;
    for (int i = 0; i < T05_BLOCKS; i++) {
        weir_dptr *slot = &t->kept[i % T05_KEPT];
        if (weir_shared_return(0, *slot) != WEIR_OK) return "a block was not lent";
        if (weir_shared_lend(0, 4096, t->own, 0, slot) != WEIR_OK) return "no block";
        if (i % 16 == 0 && weir_shared_use(0, *slot, t->other) != WEIR_OK) return "no use";
        weir_torch_begin_pool(0, first_pool, NULL);
        void *torchs = weir_torch_alloc(8192, 0, t->own);
        if (torchs == NULL) return "no block for PyTorch";
        weir_torch_record_stream(torchs, t->other);
        weir_torch_free(torchs, 8192, 0, t->own);
        weir_torch_end_pool(0, first_pool);
        weir_torch_release_pool(0, first_pool);
    }
    return NULL;
}

/* T05: whichever thread asks or gives back, each block has one owner, and goes back once. */
static void test_T05_threads_lend_and_return_side_by_side(void **state)
{
    (void)state;
    struct t05_thread t[2] = {{.own = wr_world_stream(&world)}, {.own = wr_world_stream(&world)}};
    for (int i = 0; i < 2; i++) {
        t[i].other = t[1 - i].own;
        assert_int_equal(pthread_create(&t[i].thread, NULL, lend_and_return, &t[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        void *trouble;
        assert_int_equal(pthread_join(t[i].thread, &trouble), 0);
        if (trouble != NULL) fail_msg("%s", (const char *)trouble);
    }
    assert_int_equal(wr_world_stats(&world).live_blocks, 2 * T05_KEPT);
    for (int i = 0; i < 2 * T05_KEPT; i++)
        assert_int_equal(weir_shared_return(0, t[i % 2].kept[i / 2]), WEIR_OK);
    assert_int_equal(weir_torch_pool_holds(0, first_pool), 0);
}

/* As Numba's memory is: of a stream where nothing runs, and freed on the legacy default stream. */
static void test_a_block_of_an_idle_stream_is_not_reused_before_the_stream_it_is_freed_on_has_passed(
    void **state)
{
    (void)state;
    weir_stream idle = wr_world_stream(&world), legacy = NULL;
    weir_dptr x, y;
    assert_int_equal(weir_shared_alloc(0, 4 * WR_MIB, idle, 0, &x), WEIR_OK);
    struct wr_sim_gate *stall = wr_world_stall(&world, legacy);
    wr_world_write(&world, legacy, x, 4 * WR_MIB, MS);
    wr_world_free(&world, x, legacy);
    assert_int_equal(weir_shared_alloc(0, 4 * WR_MIB, idle, 0, &y), WEIR_OK);
    assert_int_not_equal(y, x);
    wr_world_let_go(&world, stall);
    wr_sim_drain(world.sim);
    wr_world_free(&world, y, legacy);
}

static void test_an_alloc_without_patience_never_waits(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 48 * WR_MIB, a), y;
    wr_world_write(&world, a, x, 48 * WR_MIB, 10 * MS);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_shared_alloc(0, 56 * WR_MIB, b, 0, &y), WEIR_NOT_YET);
    assert_int_equal(wr_world_counts(&world).host_syncs, 0);
    assert_int_equal(weir_shared_alloc(0, 56 * WR_MIB, b, WEIR_SHARED_PATIENCE_NS, &y), WEIR_OK);
    wr_world_free(&world, y, b);
}

/* OrtAllocator as ONNX Runtime sees it. */
struct ort {
    uint32_t version;
    void *(*alloc)(struct ort *, size_t);
    void (*free)(struct ort *, void *);
    const void *(*info)(const struct ort *);
    void *(*reserve)(struct ort *, size_t);
    void *(*get_stats)(const struct ort *, void **);
    void *(*alloc_on_stream)(struct ort *, size_t, void *);
    void *(*shrink)(struct ort *);
};

static void *handle_of(void *ort_stream)
{
    return *(weir_stream *)ort_stream;
}

static struct ort *open_ort(weir_stream computes)
{
    void *out;
    weir_ort_options o = {
        .struct_size = sizeof o, .memory_info = &world, .stream_handle = handle_of, .stream = computes};
    assert_int_equal(weir_ort_open(&o, &out), WEIR_OK);
    return out;
}

static void test_C04_another_streams_finished_memory_serves_within_the_cap(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    struct ort *ort = open_ort(a);
    void *x = ort->alloc_on_stream(ort, 32 * WR_MIB, &a);
    wr_world_write(&world, a, (uintptr_t)x, 32 * WR_MIB, MS);
    ort->free(ort, x);
    assert_null(ort->alloc_on_stream(ort, 48 * WR_MIB, &b));
    wr_sim_drain(world.sim);
    void *y = ort->alloc_on_stream(ort, 48 * WR_MIB, &b);
    assert_non_null(y);
    wr_world_write(&world, b, (uintptr_t)y, 48 * WR_MIB, MS);
    ort->free(ort, y);
    assert_int_equal(wr_world_counts(&world).host_syncs, 0);
    weir_ort_close(ort);
}

static void test_ort_allocs_without_a_stream_are_of_the_sessions_and_shrink_gives_memory_back(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    struct ort *ort = open_ort(a);
    assert_true(ort->version >= 23);
    assert_ptr_equal(ort->info(ort), &world);
    void *x = ort->alloc(ort, WR_MIB), *y = ort->reserve(ort, WR_MIB),
         *z = ort->alloc_on_stream(ort, WR_MIB, NULL);
    struct wr_sim_gate *stall = wr_world_stall(&world, a);
    ort->free(ort, x);
    assert_ptr_equal(ort->alloc(ort, WR_MIB), x); /* in the order of its stream */
    wr_world_let_go(&world, stall);
    ort->free(ort, x);
    ort->free(ort, y);
    ort->free(ort, z);
    for (int i = 0; i < 4; i++) {
        assert_null(ort->shrink(ort));
        wr_sim_drain(world.sim);
    }
    assert_int_equal(wr_world_stats(&world).reserved_bytes, 0);
    weir_ort_close(ort);
}

static void test_ort_external_functions_are_the_devices_own(void **state)
{
    (void)state;
    weir_ort_external_functions f, g;
    weir_stream a = wr_world_stream(&world);
    assert_int_equal(weir_ort_external(0, a, &f), WEIR_OK);
    assert_int_equal(weir_ort_external(1, a, &g), WEIR_OK);
    assert_true(f.alloc != g.alloc && f.free != g.free);
    void *x = f.alloc(WR_MIB);
    assert_non_null(x);
    assert_int_equal(wr_world_stats(&world).live_bytes, WR_MIB);
    f.free(x);
    f.empty_cache();
    assert_int_equal(wr_world_stats(&world).live_blocks, 0);
    assert_int_equal(weir_ort_external(WEIR_ORT_EXTERNAL_DEVICES, a, &f), WEIR_NO_DEVICE);
    assert_int_equal(weir_ort_external(0, a, NULL), WEIR_INVALID_ARGUMENT);
    void *out;
    assert_int_equal(weir_ort_open(NULL, &out), WEIR_INVALID_ARGUMENT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_one_pool_serves_all_who_ask_for_the_device),
        TEST(test_a_shared_pool_is_not_replaced_while_it_is_open),
        TEST(test_devices_and_limits_out_of_range_are_refused),
        TEST(test_the_policy_of_shared_pools_is_one_of_two_and_stays_once_one_is_open),
        TEST(test_the_first_caller_opens_the_pool_with_the_limit_and_owner_reuse),
        TEST(test_A03_no_bytes_are_null_and_freeing_null_does_nothing),
        TEST(test_a_block_is_reused_on_its_own_stream_at_once),
        TEST(test_record_stream_covers_work_queued_until_the_free),
        TEST(test_a_recorded_stream_that_has_passed_holds_nothing_back),
        TEST(test_recorded_streams_are_forgotten_with_the_free),
        TEST(test_a_block_recorded_for_a_dead_stream_is_not_handed_out_again),
        TEST(test_A06_an_undeclared_user_keeps_the_block_from_other_streams),
        TEST(test_T02_memory_that_is_still_pending_is_waited_for_before_failing),
        TEST(test_T02_a_segment_that_can_not_be_had_is_null_and_can_be_had_later),
        TEST(test_T03_what_can_not_be_had_throws_with_size_reserved_and_pending),
        TEST(test_T03_a_device_that_is_none_throws_and_is_not_called_out_of_memory),
        TEST(test_T04_a_segment_comes_back_once_without_waiting_for_its_stalled_stream),
        TEST(test_A09_a_block_whose_stream_was_destroyed_can_be_freed),
        TEST(test_the_memory_fraction_of_an_open_pool_can_be_lowered),
        TEST(test_P06_a_graphs_memory_serves_others_once_its_pool_is_released),
        TEST(test_graphs_that_share_a_pool_keep_their_memory_until_the_last_release),
        TEST(test_a_held_pool_keeps_its_graphs_memory_and_counts_its_holds),
        TEST(test_T06_memory_of_nested_pools_stays_until_both_are_released),
        TEST(test_P06_a_pool_released_while_its_capture_goes_on_is_released_with_a_later_one),
        TEST(test_releases_of_pools_that_never_began_do_nothing),
        TEST(test_C02_a_cupy_block_goes_back_to_the_stream_that_was_current_when_it_came),
        TEST(test_C02_a_declared_user_keeps_a_lent_block_until_it_has_passed),
        TEST(test_C02_memory_of_streams_that_are_gone_serves_new_ones),
        TEST(test_no_bytes_and_too_many_are_null_and_what_was_not_lent_does_not_come_back),
        TEST(test_T05_threads_lend_and_return_side_by_side),
        TEST(test_a_block_of_an_idle_stream_is_not_reused_before_the_stream_it_is_freed_on_has_passed),
        TEST(test_an_alloc_without_patience_never_waits),
        TEST(test_C04_another_streams_finished_memory_serves_within_the_cap),
        TEST(test_ort_allocs_without_a_stream_are_of_the_sessions_and_shrink_gives_memory_back),
        TEST(test_ort_external_functions_are_the_devices_own),
        TEST(test_P04_a_forked_child_allocates_nothing_and_frees_do_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
