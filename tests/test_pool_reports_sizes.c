/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other allocators met: sizes, pointers, address space. The names are the reports' ids.
 */
#include "pool_world.h"
#include "weir_queue.h"

#include <string.h>

#define UNIT ((size_t)512)

static void assert_same_stats(const weir_stats *a, const weir_stats *b)
{
    assert_memory_equal(a, b, sizeof *a);
}

/* ---- A01 --------------------------------------------------------------------------------------------- */

static void assert_refused(struct wr_world *w, size_t bytes, weir_stream s)
{
    weir_dptr out = 1;
    assert_int_equal(weir_alloc(w->pool, bytes, s, &out), WEIR_TOO_LARGE);
    assert_int_equal(out, 1);
}

static void test_A01_a_size_that_would_wrap_is_refused_before_it_is_rounded(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr small = wr_world_alloc(&w, 1, s);
    weir_stats before = wr_world_stats(&w);
    uint64_t calls = wr_sim_calls(w.sim);

    for (size_t less = 0; less <= 4096; less++)
        assert_refused(&w, SIZE_MAX - less, s);
    const size_t huge[] = {(size_t)1 << 63, ((size_t)1 << 63) - 1, SIZE_MAX - 1117952, 64 * WR_MIB + 1};
    for (size_t i = 0; i < WR_ARRAY_LEN(huge); i++)
        assert_refused(&w, huge[i], s);

    weir_stats after = wr_world_stats(&w);
    assert_same_stats(&before, &after);
    assert_int_equal(wr_sim_calls(w.sim), calls);
    wr_world_check(&w);
    weir_dptr next = wr_world_alloc(&w, UNIT, s);
    assert_true(next >= small + UNIT || next + UNIT <= small);
    wr_world_free(&w, small, s);
    wr_world_free(&w, next, s);
    wr_world_close(&w);
}

static void test_A01_a_pinned_size_that_would_wrap_is_refused(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    void *out = &w;
    uint64_t calls = wr_sim_calls(w.sim);
    for (size_t less = 0; less <= 4096; less++)
        assert_int_equal(weir_host_alloc(w.pool, SIZE_MAX - less, &out), WEIR_TOO_LARGE);
    assert_ptr_equal(out, &w);
    assert_int_equal(wr_sim_calls(w.sim), calls);
    wr_world_close(&w);
}

static void assert_wrapping_items_are_refused(struct wr_world *w)
{
    weir_queue *q = NULL;
    const size_t products[][2] = {
        {SIZE_MAX, 2}, {SIZE_MAX / 2 + 2, 2}, {(size_t)1 << 62, 4}, {SIZE_MAX / 3 + 1, 3}};
    for (size_t i = 0; i < WR_ARRAY_LEN(products); i++) {
        weir_queue_options o = {
            .struct_size = sizeof o, .item_bytes = products[i][0], .items = (unsigned)products[i][1]};
        assert_int_equal(weir_queue_open(w->pool, &o, &q), WEIR_INVALID_ARGUMENT);
    }
    assert_null(q);
}

/* count * size of the options, the size of an item, and the sum of a push's spans. */
static void test_A01_a_queues_byte_counts_that_would_wrap_are_refused(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_queue *q;
    weir_item item;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = 4096, .items = 2};
    uint64_t calls = wr_sim_calls(w.sim);
    assert_wrapping_items_are_refused(&w);
    assert_int_equal(wr_sim_calls(w.sim), calls);

    static const char text[4] = "abc";
    assert_int_equal(weir_queue_open(w.pool, &o, &q), WEIR_OK);
    calls = wr_sim_calls(w.sim);
    for (size_t less = 0; less <= 4096; less++) {
        const weir_span spans[] = {{text, SIZE_MAX - less}, {text, less + 5}}; /* their sum wraps to 4 */
        assert_int_equal(weir_queue_reserve(q, SIZE_MAX - less, 0, &item), WEIR_TOO_LARGE);
        assert_int_equal(weir_queue_push(q, spans, 2, WEIR_PUSH_COPY, 0, NULL), WEIR_TOO_LARGE);
    }
    assert_int_equal(wr_sim_calls(w.sim), calls);
    const weir_span small = {text, sizeof text};
    assert_int_equal(weir_queue_push(q, &small, 1, WEIR_PUSH_COPY, 0, NULL), WEIR_OK);
    assert_int_equal(weir_queue_destroy(q), WEIR_OK);
    wr_world_close(&w);
}

/* The limit itself is no wrap: all of it can be one block, and one byte more than is left can not. */
static void test_A01_the_whole_limit_is_one_block(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr all = wr_world_alloc(&w, 64 * WR_MIB, s), more;
    assert_int_equal(weir_alloc(w.pool, 1, s, &more), WEIR_OUT_OF_MEMORY);
    wr_world_free(&w, all, s);
    wr_world_close(&w);
}

/* ---- A03 --------------------------------------------------------------------------------------------- */

static void test_A03_size_0_is_address_0_and_its_free_is_nothing(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream s = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, UNIT, s), s);
    weir_stats before = wr_world_stats(&w);
    uint64_t calls = wr_sim_calls(w.sim);
    for (int twice = 0; twice < 2; twice++) {
        weir_dptr block = 1;
        void *host = &w;
        assert_int_equal(weir_alloc(w.pool, 0, s, &block), WEIR_OK);
        assert_int_equal(block, 0);
        assert_int_equal(weir_free(w.pool, block, s), WEIR_OK);
        assert_int_equal(weir_host_alloc(w.pool, 0, &host), WEIR_OK);
        assert_null(host);
        assert_int_equal(weir_host_free(w.pool, host, s), WEIR_OK);
    }
    weir_stats after = wr_world_stats(&w);
    assert_same_stats(&before, &after);
    assert_int_equal(wr_sim_calls(w.sim), calls);
    wr_world_close(&w);
}

/* ---- A15 --------------------------------------------------------------------------------------------- */

static void assert_not_a_block(struct wr_world *w, weir_dptr block, weir_stream s)
{
    assert_int_equal(weir_free(w->pool, block, s), WEIR_INVALID_POINTER);
    assert_int_equal(weir_touch(w->pool, block, s, 0), WEIR_INVALID_POINTER);
}

static void free_wild_pointers(struct wr_world *w, weir_dptr live, weir_stream s)
{
    const weir_dptr wild[] = {1, 255, UNIT, UINT64_MAX, UINT64_MAX - UNIT + 1, live + 256, live + UNIT,
        live - UNIT, live + WR_PAGE_BYTES, live + 64 * WR_GIB};
    for (size_t i = 0; i < WR_ARRAY_LEN(wild); i++)
        assert_not_a_block(w, wild[i], s);
}

static void test_A15_a_pointer_that_is_no_live_block_is_told_and_changes_nothing(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_pool *other;
    assert_int_equal(
        wr_pool_open(w.device, &(weir_pool_options){.limit_bytes = 64 * WR_MIB}, &other), WEIR_OK);
    weir_dptr x = wr_world_alloc(&w, 4 * UNIT, a), foreign;
    assert_int_equal(weir_alloc(other, 4 * UNIT, a, &foreign), WEIR_OK);

    free_wild_pointers(&w, x, a);
    free_wild_pointers(&w, x, b);
    assert_not_a_block(&w, foreign, a);
    wr_world_free(&w, x, a);
    weir_stats before = wr_world_stats(&w);
    assert_not_a_block(&w, x, a);
    assert_not_a_block(&w, x, b);
    weir_stats after = wr_world_stats(&w);
    assert_int_equal(before.frees, after.frees);
    assert_int_equal(before.cached_bytes, after.cached_bytes);
    wr_world_check(&w);

    weir_dptr again = wr_world_alloc(&w, 4 * UNIT, a), second = wr_world_alloc(&w, 4 * UNIT, a);
    assert_int_equal(again, x);
    assert_int_not_equal(second, x);
    wr_world_free(&w, again, a);
    wr_world_free(&w, second, a);
    assert_int_equal(weir_free(other, foreign, a), WEIR_OK);
    wr_world_close_pool(&w, other);
    wr_world_close(&w);
}

/* A block that waits for another stream was freed, too. */
static void test_A15_a_second_free_of_a_pending_block_is_told(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 3 * WR_MIB, a);
    wr_world_stall(&w, b);
    wr_world_fill(&w, b, x, 3 * WR_MIB, 1);
    wr_world_touch(&w, x, b);
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_stats(&w).pending_blocks, 1);
    assert_not_a_block(&w, x, a);
    assert_not_a_block(&w, x, b);
    assert_int_equal(wr_world_stats(&w).pending_blocks, 1);
    wr_world_close(&w);
}

static void test_A15_calls_on_a_closed_pool_say_so(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream s = wr_world_stream(&w);
    weir_pool *other;
    weir_dptr block;
    weir_stats stats = {.struct_size = sizeof stats};
    void *host;
    assert_int_equal(wr_pool_open(w.device, &(weir_pool_options){0}, &other), WEIR_OK);
    assert_int_equal(weir_alloc(other, UNIT, s, &block), WEIR_OK);
    assert_int_equal(weir_pool_close(other), WEIR_NOT_YET);
    assert_int_equal(weir_alloc(other, UNIT, s, &block), WEIR_CLOSED);
    assert_int_equal(weir_free(other, block, s), WEIR_OK); /* the last free finishes it */
    assert_int_equal(weir_free(other, block, s), WEIR_CLOSED);
    assert_int_equal(weir_touch(other, block, s, 0), WEIR_CLOSED);
    assert_int_equal(weir_stream_retire(other, s), WEIR_CLOSED);
    assert_int_equal(weir_trim(other, 0, NULL), WEIR_CLOSED);
    assert_int_equal(weir_pool_stats(other, &stats), WEIR_CLOSED);
    assert_int_equal(weir_pool_check(other), WEIR_CLOSED);
    assert_int_equal(weir_host_alloc(other, UNIT, &host), WEIR_CLOSED);
    assert_int_equal(weir_host_free(other, &block, s), WEIR_CLOSED);
    assert_int_equal(weir_pool_close(other), WEIR_CLOSED);
    wr_world_close(&w);
}

/* ---- A27 --------------------------------------------------------------------------------------------- */

static const struct wr_device_ops *plain_ops;
static uint64_t reserved_addresses;

static weir_status count_va_reserve(struct wr_device *d, size_t bytes, uint64_t *out)
{
    weir_status s = plain_ops->va_reserve(d, bytes, out);
    if (s == WEIR_OK) reserved_addresses += bytes;
    return s;
}

static weir_status count_va_free(struct wr_device *d, uint64_t va, size_t bytes)
{
    weir_status s = plain_ops->va_free(d, va, bytes);
    if (s == WEIR_OK) reserved_addresses -= bytes;
    return s;
}

static void alloc_and_free_once(weir_pool *pool, weir_stream s)
{
    weir_dptr block;
    assert_int_equal(weir_alloc(pool, 4 * WR_MIB, s, &block), WEIR_OK);
    assert_int_equal(weir_free(pool, block, s), WEIR_OK);
}

static void test_A27_address_space_does_not_grow_with_streams_or_pools(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.memory_bytes = 2 * WR_GIB});
    plain_ops = w.device->ops;
    reserved_addresses = 0;
    struct wr_device_ops counting = *plain_ops;
    counting.va_reserve = count_va_reserve;
    counting.va_free = count_va_free;
    w.device->ops = &counting;

    for (int i = 0; i < WR_WORLD_STREAMS; i++)
        alloc_and_free_once(w.pool, wr_world_stream(&w));
    assert_int_equal(reserved_addresses, 0);
    for (int i = 0; i < 100; i++) {
        weir_pool *pool;
        assert_int_equal(wr_pool_open(w.device, &(weir_pool_options){0}, &pool), WEIR_OK);
        alloc_and_free_once(pool, w.streams[i % WR_WORLD_STREAMS]);
        assert_true(reserved_addresses > 0);
        wr_world_close_pool(&w, pool);
        assert_int_equal(reserved_addresses, 0);
    }
    w.device->ops = plain_ops;
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_A01_a_size_that_would_wrap_is_refused_before_it_is_rounded),
        cmocka_unit_test(test_A01_a_pinned_size_that_would_wrap_is_refused),
        cmocka_unit_test(test_A01_a_queues_byte_counts_that_would_wrap_are_refused),
        cmocka_unit_test(test_A01_the_whole_limit_is_one_block),
        cmocka_unit_test(test_A03_size_0_is_address_0_and_its_free_is_nothing),
        cmocka_unit_test(test_A15_a_pointer_that_is_no_live_block_is_told_and_changes_nothing),
        cmocka_unit_test(test_A15_a_second_free_of_a_pending_block_is_told),
        cmocka_unit_test(test_A15_calls_on_a_closed_pool_say_so),
        cmocka_unit_test(test_A27_address_space_does_not_grow_with_streams_or_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
