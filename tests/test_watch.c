/* SPDX-License-Identifier: Apache-2.0
 *
 * Uses that nobody declared, found at the free (A06). The environment is looked at once in a process: main sets it.
 */
#include "harness.h"
#include "pool_world.h"
#include "watch.h"

#define MS ((uint64_t)1000000)

enum { BYTES = 1 << 20 };

static weir_stream a, b;

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){0});
    a = wr_world_stream(&world);
    b = wr_world_stream(&world);
    return 0;
}

/* What nobody declared the host must wait for itself, before the memory goes. */
static int tear_down(void **state)
{
    (void)state;
    wr_sim_drain(world.sim);
    assert_int_equal(world.device->ops->stream_sync(world.device, b), WEIR_OK);
    wr_world_close(&world);
    return 0;
}

static uint64_t id_of(weir_stream s)
{
    struct wr_stream_info info;
    assert_int_equal(world.device->ops->stream_identify(world.device, s, &info), WEIR_OK);
    return info.id;
}

static void expect_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void expect_report(const char *format, ...)
{
    char words[256];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    assert_int_equal(wr_sim_reports(world.sim), 1);
    if (strstr(wr_sim_report(world.sim, 0), words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, wr_sim_report(world.sim, 0));
}

static void test_A06_a_reader_that_nobody_declared_is_named_at_the_free(void **state)
{
    (void)state;
    weir_dptr x = wr_world_alloc(&world, BYTES, a);
    wr_world_write(&world, a, x, BYTES, MS);
    wr_world_join(&world, a, b);
    wr_world_read(&world, b, x + 4096, 4096, MS);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_OK);
    expect_report("undeclared use: the block [0x%llx, 0x%llx) of stream %llu is freed on stream %llu",
        (unsigned long long)x, (unsigned long long)x + BYTES, (unsigned long long)id_of(a),
        (unsigned long long)id_of(a));
    expect_report("stream %llu), which reads it", (unsigned long long)id_of(b));
    wr_sim_reports_clear(world.sim);
}

static void test_A06_a_writer_is_named_once_whatever_it_did(void **state)
{
    (void)state;
    weir_dptr x = wr_world_alloc(&world, BYTES, a);
    wr_world_write(&world, b, x, 512, MS);
    wr_world_write(&world, a, x + 8192, 512, MS);
    wr_world_read(&world, a, x + 16384, 512, MS);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_OK);
    expect_report("stream %llu), which writes it", (unsigned long long)id_of(b));
    wr_sim_reports_clear(world.sim);
}

static void test_uses_that_are_declared_joined_or_seen_to_be_over_are_fine(void **state)
{
    (void)state;
    weir_dptr x = wr_world_alloc(&world, BYTES, a);
    wr_world_read(&world, b, x, BYTES, MS);
    wr_world_touch(&world, x, b);
    wr_world_free(&world, x, a);

    x = wr_world_alloc(&world, BYTES, a);
    wr_world_read(&world, b, x, BYTES, MS);
    wr_world_join(&world, b, a);
    wr_world_free(&world, x, a);

    x = wr_world_alloc(&world, BYTES, a);
    wr_world_read(&world, b, x, BYTES, MS);
    wr_sim_drain(world.sim);
    assert_int_equal(world.device->ops->stream_sync(world.device, b), WEIR_OK);
    wr_world_free(&world, x, a);

    x = wr_world_alloc(&world, BYTES, a);
    wr_world_read(&world, a, x, BYTES, MS);
    wr_world_read(&world, b, x, BYTES, MS);
    wr_world_free(&world, x, b); /* the last user's; the home is known */
    assert_int_equal(wr_sim_reports(world.sim), 0);
}

static void test_an_owners_block_is_for_users_that_are_joined_later(void **state)
{
    (void)state;
    weir_dptr x;
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = WEIR_REUSE_OWNER};
    assert_int_equal(weir_alloc_with(world.pool, BYTES, a, &o, &x), WEIR_OK);
    wr_world_read(&world, b, x, BYTES, MS);
    wr_world_free(&world, x, a);
    assert_int_equal(wr_sim_reports(world.sim), 0);
}

static void test_A09_a_free_may_name_a_stream_that_is_gone(void **state)
{
    (void)state;
    weir_stream gone = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, BYTES, gone);
    wr_world_write(&world, gone, x, BYTES, MS);
    assert_int_equal(weir_stream_retire(world.pool, gone), WEIR_OK);
    wr_world_destroy_stream(&world, gone);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_OK);
    wr_sim_drain(world.sim);
    x = wr_world_alloc(&world, BYTES, a);
    wr_watch_free(world.pool, x, gone);
    wr_world_free(&world, x, a);
    assert_int_equal(wr_world_counts(&world).dead_handle_uses, 0);
    wr_sim_drain(world.sim);
}

static void test_frees_of_what_is_no_block_are_the_frees_to_refuse(void **state)
{
    (void)state;
    weir_dptr x = wr_world_alloc(&world, BYTES, a);
    assert_int_equal(weir_free(world.pool, x + 512, a), WEIR_INVALID_POINTER);
    assert_int_equal(weir_free(world.pool, 512, a), WEIR_INVALID_POINTER);
    assert_int_equal(weir_free(world.pool, 0, a), WEIR_OK);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_free(world.pool, x, a), WEIR_INVALID_POINTER);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_A06_a_reader_that_nobody_declared_is_named_at_the_free),
        TEST(test_A06_a_writer_is_named_once_whatever_it_did),
        TEST(test_uses_that_are_declared_joined_or_seen_to_be_over_are_fine),
        TEST(test_an_owners_block_is_for_users_that_are_joined_later),
        TEST(test_A09_a_free_may_name_a_stream_that_is_gone),
        TEST(test_frees_of_what_is_no_block_are_the_frees_to_refuse),
    };
    if (setenv("WEIR_CHECK_USES", "1", 1) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
