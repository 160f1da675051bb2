/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook beside other adapters: one pool for each device, one budget, one limit. A pool is opened once in a process,
 * so that each argument is a process with other limits.
 *
 *   test_pjrt_shared told      by the program for device 0, by WEIR_JAX_LIMIT for both
 *   test_pjrt_shared untold    by nobody; device 1 is in use before
 */
#include "pjrt_world.h"
#include "weir_shared.h"

#define MIB ((size_t)1 << 20)
#define MS  ((int64_t)1000000)

static size_t limit_of(int d)
{
    weir_pool *pool;
    weir_stats s = {.struct_size = sizeof s};
    destroy(put_bytes(d, 1000, 1)); /* the hook's first use of the device */
    OK(weir_shared_pool(d, &pool));
    OK(weir_pool_stats(pool, &s));
    return s.limit_bytes;
}

static void test_the_hook_and_other_adapters_draw_on_one_pool(void **state)
{
    (void)state;
    weir_pool *pool;
    weir_dptr others;
    weir_stream theirs = device(0)->compute;
    destroy(put_bytes(0, 1000, 1));
    OK(weir_shared_pool(0, &pool));
    assert_ptr_equal(pool, wr_pjrt_ground_at(0)->pool);
    uint64_t before = served(WR_PJRT_FROM_HOST), full = forwarded(WR_PJRT_NO_ROOM);
    OK(weir_shared_alloc(0, 40 * MIB, theirs, 0, &others));
    struct pjrt_buffer *b = put_bytes(0, 40 * MIB, 1); /* no room beside theirs */
    assert_int_equal(forwarded(WR_PJRT_NO_ROOM), full + 1);
    assert_bytes(b, 1);
    destroy(b);
    OK(weir_free(pool, others, theirs));
    struct pjrt_buffer *c = put_bytes(0, 40 * MIB, 2);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    assert_int_equal(weir_shared_alloc(0, 40 * MIB, theirs, 0, &others), WEIR_OUT_OF_MEMORY);
    assert_bytes(c, 2);
    destroy(c);
}

/* What the device computes has nothing to do with it, and XLA may be capturing there. */
static void test_memory_of_the_hooks_goes_to_other_adapters_while_the_device_computes(void **state)
{
    (void)state;
    char text[4096];
    weir_pool *pool;
    weir_dptr others;
    weir_stream theirs = device(0)->copies;
    struct pjrt_buffer *b = put_bytes(0, 40 * MIB, 1);
    await(b);
    stall(0);
    destroy(b);
    mini_settle();
    (void)weir_pjrt_status(text, sizeof text); /* gives back what was deleted */
    OK(weir_shared_alloc(0, 40 * MIB, theirs, 20000 * MS, &others));
    OK(weir_shared_pool(0, &pool));
    OK(weir_free(pool, others, theirs));
}

static void test_the_programs_limit_comes_before_that_of_the_environment(void **state)
{
    (void)state;
    assert_int_equal(limit_of(0), 64 * MIB);
    assert_int_equal(limit_of(1), 32 * MIB);
    OK(weir_shared_limit(0, 128 * MIB, 0)); /* of an open pool, too */
    assert_int_equal(limit_of(0), 128 * MIB);
    OK(weir_shared_limit(0, 0, 0));
    assert_int_equal(limit_of(0), 64 * MIB);
}

static void test_without_a_limit_most_of_what_xla_leaves_is_one(void **state)
{
    (void)state;
    size_t whole = limit_of(1); /* opened by another, with no limit */
    size_t rest = limit_of(0);
    assert_true(rest > whole / 100 * 39 && rest < whole / 100 * 41); /* four fifths of the half */
}

static int run_told(void)
{
    const struct CMUnitTest tests[] = {
        HOOKED(test_the_programs_limit_comes_before_that_of_the_environment),
        HOOKED(test_the_hook_and_other_adapters_draw_on_one_pool),
        HOOKED(test_memory_of_the_hooks_goes_to_other_adapters_while_the_device_computes),
    };
    install_in_miniature("32M");
    OK(weir_shared_limit(0, 64 * MIB, 0));
    return cmocka_run_group_tests_name("told", tests, NULL, NULL);
}

static int run_untold(void)
{
    const struct CMUnitTest tests[] = {HOOKED(test_without_a_limit_most_of_what_xla_leaves_is_one)};
    weir_pool *others;
    install_in_miniature("nonsense");
    setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5", 1);
    if (weir_shared_pool(1, &others) != WEIR_OK) return 1;
    return cmocka_run_group_tests_name("untold", tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "untold") == 0 ? run_untold() : run_told();
}
