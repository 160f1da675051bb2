/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_copy on real GPUs: what the simulated device can't vouch for. Exits 77 where there is none; copies between
 * devices need two.
 */
#include "close_pool.h"
#include "copy_world.h"

#define MS         ((uint64_t)1000000)
#define SPIN_NS    (200 * MS)
#define SOON_NS    (20 * MS) /* far below the kernel's 200 ms; a host may be slow */
#define OKAY(call) okay((call), #call)

static struct wr_device *device, *second; /* second NULL: one device */
static weir_pool *pool;
static weir_engine *engine;
static weir_stream home;

static void okay(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

static int open_engine(void **state)
{
    (void)state;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 4 * WR_GIB};
    OKAY(weir_pool_open(&o, &pool));
    OKAY(weir_engine_open(pool, NULL, &engine));
    home = weir_engine_stream(engine);
    return 0;
}

/* The last ticks are events like any other: the GPU takes its time to pass them. */
static int close_engine(void **state)
{
    (void)state;
    OKAY(weir_engine_close(engine));
    OKAY(close_pool_within(pool, WR_NS_PER_SEC));
    return 0;
}

static weir_dptr new_block(size_t bytes)
{
    weir_dptr block;
    OKAY(weir_alloc(pool, bytes, home, &block));
    return block;
}

static void *new_pinned(size_t bytes, unsigned seed)
{
    void *host;
    OKAY(weir_host_alloc(pool, bytes, &host));
    make_pattern(host, bytes, seed);
    return host;
}

static void copy_now(weir_direction d, const weir_piece *pieces, size_t n)
{
    weir_ticket t;
    OKAY(weir_copy(engine, d, pieces, n, NULL, &t));
    OKAY(weir_copy_wait(engine, t, 20 * (int64_t)WR_NS_PER_SEC));
}

static void copy_whole(weir_direction d, uint64_t to, uint64_t from, size_t bytes)
{
    weir_piece p = piece(to, from, bytes);
    copy_now(d, &p, 1);
}

static weir_engine_stats read_stats(void)
{
    weir_engine_stats s = {.struct_size = sizeof s};
    OKAY(weir_engine_get_stats(engine, &s));
    return s;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static void round_trip(unsigned char *from, unsigned char *back, size_t bytes)
{
    weir_dptr a = new_block(bytes), b = new_block(bytes);
    copy_whole(WEIR_TO_DEVICE, a, host_address(from), bytes);
    copy_whole(WEIR_ON_DEVICE, b, a, bytes);
    copy_whole(WEIR_TO_HOST, host_address(back), b, bytes);
    assert_memory_equal(back, from, bytes);
    OKAY(weir_free(pool, a, home));
    OKAY(weir_free(pool, b, home));
}

static void test_bytes_survive_every_direction_and_kind_of_memory(void **state)
{
    (void)state;
    size_t bytes = 200 * WR_MIB + 77;
    unsigned char *pinned = new_pinned(bytes, 1), *back = new_pinned(bytes, 2);
    unsigned char *pageable = pageable_pattern(bytes, 3), *fresh = malloc(bytes);
    assert_non_null(fresh);
    round_trip(pinned, back, bytes);
    round_trip(pageable, back, bytes);
    round_trip(pageable, fresh, bytes);
    OKAY(weir_host_free(pool, pinned, WEIR_NO_STREAM));
    OKAY(weir_host_free(pool, back, WEIR_NO_STREAM));
    free(pageable);
    free(fresh);
}

/* Pieces at every alignment, of sizes around the kernel's steps, up and down. */
static void gather_at(size_t piece_bytes, size_t shift)
{
    enum { N = 300 };
    size_t stride = piece_bytes + 64, bytes = N * stride;
    unsigned char *from = new_pinned(bytes, 4), *back = new_pinned(bytes, 5);
    weir_dptr block = new_block(2 * bytes);
    weir_piece pieces[N];
    for (size_t i = 0; i < N; i++) {
        size_t at = i * stride + shift * (i % 3);
        pieces[i] = piece(block + i * 2 * stride + shift * (i % 5), host_address(from) + at, piece_bytes);
    }
    copy_now(WEIR_TO_DEVICE, pieces, N);
    for (size_t i = 0; i < N; i++) {
        uint64_t there = pieces[i].to;
        pieces[i].to = host_address(back) + (pieces[i].from - host_address(from));
        pieces[i].from = there;
    }
    copy_now(WEIR_TO_HOST, pieces, N);
    for (size_t i = 0; i < N; i++) {
        size_t at = i * stride + shift * (i % 3);
        assert_memory_equal(back + at, from + at, piece_bytes);
        assert_int_equal(back[at + piece_bytes], pattern_at(at + piece_bytes, 5));
    }
    OKAY(weir_free(pool, block, home));
    OKAY(weir_host_free(pool, from, WEIR_NO_STREAM));
    OKAY(weir_host_free(pool, back, WEIR_NO_STREAM));
}

static void test_the_gather_kernel_copies_any_size_at_any_alignment(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 3, 16, 127, 2048, 8192, 8195, 40000};
    uint64_t before = read_stats().gather_bytes;
    for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++)
        for (size_t shift = 0; shift <= 8; shift = shift ? 2 * shift : 1)
            gather_at(sizes[i], shift);
    assert_true(read_stats().gather_bytes > before);
}

static void test_rows_keep_to_their_pitches(void **state)
{
    (void)state;
    enum { ROW = 1000, ROWS = 5000, WIDE = 1536, NARROW = 1100 };
    for (int pinned = 0; pinned <= 1; pinned++) {
        size_t bytes = (size_t)ROWS * WIDE;
        unsigned char *from = pinned ? new_pinned(bytes, 6) : pageable_pattern(bytes, 6);
        unsigned char *back = pinned ? new_pinned(bytes, 7) : pageable_pattern(bytes, 7);
        weir_dptr block = new_block((size_t)ROWS * NARROW);
        weir_piece up = {block, host_address(from), ROW, ROWS, NARROW, WIDE};
        weir_piece down = {host_address(back), block, ROW, ROWS, WIDE, NARROW};
        copy_now(WEIR_TO_DEVICE, &up, 1);
        copy_now(WEIR_TO_HOST, &down, 1);
        for (size_t i = 0; i < ROWS; i++) {
            assert_memory_equal(back + i * WIDE, from + i * WIDE, ROW);
            assert_int_equal(back[i * WIDE + ROW], pattern_at(i * WIDE + ROW, 7));
        }
        OKAY(weir_free(pool, block, home));
        if (pinned) {
            OKAY(weir_host_free(pool, from, WEIR_NO_STREAM));
            OKAY(weir_host_free(pool, back, WEIR_NO_STREAM));
        } else {
            free(from);
            free(back);
        }
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

static void test_promise_1_no_copy_waits_for_a_running_kernel(void **state)
{
    (void)state;
    weir_stream busy;
    size_t bytes = 16 * WR_MIB;
    unsigned char *pinned = new_pinned(bytes, 8), *pageable = pageable_pattern(bytes, 9);
    weir_dptr block = new_block(bytes), held = new_block(bytes);
    OKAY(device->ops->stream_create(device, &busy));
    OKAY(wr_kernels_spin(device, busy, 1));                           /* loads it */
    copy_whole(WEIR_TO_DEVICE, block, host_address(pageable), bytes); /* slabs are there */
    OKAY(device->ops->stream_sync(device, busy));
    OKAY(wr_kernels_spin(device, busy, SPIN_NS));
    uint64_t start = device->ops->now_ns(device);
    weir_copy_options o = after(&busy);
    weir_piece behind = piece(held, host_address(pinned), bytes);
    weir_ticket t;
    OKAY(weir_copy(engine, WEIR_TO_DEVICE, &behind, 1, &o, &t));
    copy_whole(WEIR_TO_DEVICE, block, host_address(pinned), bytes);
    copy_whole(WEIR_TO_HOST, host_address(pinned), block, bytes);
    copy_whole(WEIR_TO_DEVICE, block, host_address(pageable), bytes);
    assert_true(device->ops->now_ns(device) - start < SPIN_NS / 2);
    assert_int_equal(weir_copy_wait(engine, t, 0), WEIR_WOULD_BLOCK);
    OKAY(weir_copy_wait(engine, t, -1));
    assert_true(device->ops->now_ns(device) - start >= SPIN_NS / 2);
    OKAY(weir_stream_retire(pool, busy));
    OKAY(device->ops->stream_destroy(device, busy));
    OKAY(weir_free(pool, block, home));
    OKAY(weir_free(pool, held, home));
    OKAY(weir_host_free(pool, pinned, WEIR_NO_STREAM));
    free(pageable);
}

/* ---- two devices ------------------------------------------------------------------------------------- */

static void test_linked_devices_copy_past_a_busy_destination(void **state)
{
    (void)state;
    if (!second) skip();
    weir_pool *there;
    weir_stream busy;
    weir_dptr other, own;
    size_t bytes = 64 * WR_MIB + 5;
    weir_pool_options o = {.struct_size = sizeof o, .device = 1, .limit_bytes = WR_GIB};
    OKAY(weir_pool_open(&o, &there));
    OKAY(weir_engine_link(engine, there));
    OKAY(second->ops->stream_create(second, &busy));
    OKAY(weir_alloc(there, bytes, busy, &other));
    own = new_block(bytes);
    unsigned char *from = new_pinned(bytes, 10), *back = new_pinned(bytes, 11);
    copy_whole(WEIR_TO_DEVICE, own, host_address(from), bytes);
    OKAY(wr_kernels_spin(second, busy, 1));
    OKAY(second->ops->stream_sync(second, busy));
    OKAY(wr_kernels_spin(second, busy, SPIN_NS));
    uint64_t start = device->ops->now_ns(device);
    copy_whole(WEIR_ON_DEVICE, other, own, bytes);
    assert_true(device->ops->now_ns(device) - start < SPIN_NS / 2);
    copy_whole(WEIR_TO_DEVICE, own, host_address(back), bytes);
    copy_whole(WEIR_ON_DEVICE, own, other, bytes);
    copy_whole(WEIR_TO_HOST, host_address(back), own, bytes);
    assert_memory_equal(back, from, bytes);
    print_message("the link is %s\n", read_stats().links_staged ? "staged" : "direct");
    OKAY(second->ops->stream_sync(second, busy));
    OKAY(weir_free(pool, own, home));
    OKAY(weir_free(there, other, busy));
    OKAY(weir_host_free(pool, from, WEIR_NO_STREAM));
    OKAY(weir_host_free(pool, back, WEIR_NO_STREAM));
    OKAY(weir_stream_retire(there, busy));
    OKAY(second->ops->stream_sync(second, busy));
    OKAY(second->ops->stream_destroy(second, busy));
    OKAY(close_pool_within(there, 9 * WR_NS_PER_SEC));
}

int main(void)
{
    enum { SKIPPED = 77 };
    weir_status s = wr_device_get("cuda", 0, &device);
    if (s == WEIR_NO_DRIVER || s == WEIR_NO_DEVICE) {
        print_message("skipped: %s\n", weir_error_text());
        return SKIPPED;
    }
    OKAY(s);
    if (wr_device_get("cuda", 1, &second) != WEIR_OK) second = NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_survive_every_direction_and_kind_of_memory),
        cmocka_unit_test(test_the_gather_kernel_copies_any_size_at_any_alignment),
        cmocka_unit_test(test_rows_keep_to_their_pitches),
        cmocka_unit_test(test_promise_1_no_copy_waits_for_a_running_kernel),
        cmocka_unit_test(test_linked_devices_copy_past_a_busy_destination),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
