/* SPDX-License-Identifier: Apache-2.0
 *
 * What an alloc lacks where the pages are all taken: NOT_YET where that waits in a page of its own stream, and
 * OUT_OF_MEMORY where no wait would help.
 */
#include "pool_world.h"

enum { PIECE = 512 << 10, PIECES = 8 };
static const uint64_t MS = 1000000;

/* A pool that `s` has filled with small blocks; another stream has some of them in use, and is held up. */
struct full {
    struct wr_world w;
    weir_stream s, user;
    weir_dptr blocks[PIECES];
    struct wr_sim_gate *gate;
};

static void fill(struct full *f)
{
    wr_world_open(&f->w, &(struct wr_world_options){.limit_bytes = PIECES * PIECE, .grow_bytes = 2 * WR_MIB});
    f->s = wr_world_stream(&f->w);
    f->user = wr_world_stream(&f->w);
    for (int i = 0; i < PIECES; i++)
        f->blocks[i] = wr_world_alloc(&f->w, PIECE, f->s);
    f->gate = wr_world_stall(&f->w, f->user);
}

static void free_in_use(struct full *f, int i)
{
    wr_world_read(&f->w, f->user, f->blocks[i], PIECE, MS);
    wr_world_touch(&f->w, f->blocks[i], f->user);
    wr_world_free(&f->w, f->blocks[i], f->s);
    f->blocks[i] = 0;
}

static void empty(struct full *f)
{
    for (int i = 0; i < PIECES; i++)
        if (f->blocks[i]) wr_world_free(&f->w, f->blocks[i], f->s);
    wr_world_close(&f->w);
}

static weir_failure last_failure(void)
{
    weir_failure f = {.struct_size = sizeof f};
    assert_int_equal(weir_last_failure(&f), WEIR_OK);
    return f;
}

static weir_status alloc_waiting(struct full *f, size_t bytes, weir_dptr *out)
{
    weir_alloc_options o = {
        .struct_size = sizeof o, .reuse = WEIR_REUSE_HOST_WAIT, .deadline_ns = 10 * (int64_t)MS};
    return weir_alloc_with(f->w.pool, bytes, f->s, &o, out);
}

static void test_a_block_that_waits_is_enough_for_one_of_its_size(void **state)
{
    (void)state;
    struct full f;
    fill(&f);
    free_in_use(&f, 3);
    weir_dptr x;
    assert_int_equal(wr_world_try_alloc(&f.w, PIECE, f.s), 0); /* NOT_YET */
    assert_int_equal(last_failure().pending_bytes, PIECE);
    assert_int_not_equal(last_failure().fence_stream, 0);
    wr_world_open_gate(&f.w, f.gate);
    assert_int_equal(alloc_waiting(&f, PIECE, &x), WEIR_OK);
    f.blocks[3] = x;
    empty(&f);
}

static void test_neighbours_that_wait_or_are_free_are_enough_together(void **state)
{
    (void)state;
    struct full f;
    fill(&f);
    free_in_use(&f, 1);
    free_in_use(&f, 2);
    wr_world_free(&f.w, f.blocks[3], f.s);
    f.blocks[3] = 0;
    assert_int_equal(wr_world_try_alloc(&f.w, 3 * PIECE, f.s), 0);
    wr_world_let_go(&f.w, f.gate);
    f.blocks[3] = wr_world_alloc(&f.w, 3 * PIECE, f.s);
    empty(&f);
}

static void test_what_waits_in_another_streams_page_helps_nobody_else(void **state)
{
    (void)state;
    struct full f;
    weir_dptr x;
    fill(&f);
    free_in_use(&f, 3);
    weir_stream other = wr_world_stream(&f.w);
    assert_int_equal(weir_alloc(f.w.pool, PIECE, other, &x), WEIR_OUT_OF_MEMORY);
    assert_int_equal(weir_alloc(f.w.pool, 2 * PIECE, f.s, &x), WEIR_OUT_OF_MEMORY); /* nor a larger block */
    assert_int_equal(last_failure().fence_stream, 0);
    empty(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_that_waits_is_enough_for_one_of_its_size),
        cmocka_unit_test(test_neighbours_that_wait_or_are_free_are_enough_together),
        cmocka_unit_test(test_what_waits_in_another_streams_page_helps_nobody_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
