/* SPDX-License-Identifier: Apache-2.0
 *
 * Importing what weir_export gave, in one process; share_processes.c is about two.
 */
#include "harness.h"
#include "import.h"
#include "pool_world.h"

#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK_BYTES = 5 << 20, MOST_PARTS = 8 };

/* A world with a block over several segments, exported. */
struct shared {
    struct wr_world w;
    weir_stream a;
    weir_dptr block;
    weir_exported parts[MOST_PARTS];
    size_t n;
};

static void open_shared(struct shared *s)
{
    wr_world_open(&s->w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    s->a = wr_world_stream(&s->w);
    weir_dptr odd = wr_world_alloc(&s->w, WR_MIB + 512, s->a);
    s->block = wr_world_alloc(&s->w, BLOCK_BYTES, s->a);
    wr_world_free(&s->w, odd, s->a);
    wr_world_fill(&s->w, s->a, s->block, BLOCK_BYTES, 7);
    wr_sim_drain(s->w.sim);
    s->n = 0;
    for (size_t from = 0; from < BLOCK_BYTES; from += s->parts[s->n++].bytes) {
        assert_true(s->n < MOST_PARTS);
        s->parts[s->n] = (weir_exported){.struct_size = sizeof s->parts[0]};
        assert_int_equal(weir_export(s->w.pool, s->block, from, &s->parts[s->n]), WEIR_OK);
    }
    assert_true(s->n > 1);
}

static void close_fds(struct shared *s)
{
    for (size_t i = 0; i < s->n; i++)
        assert_int_equal(close(s->parts[i].fd), 0);
    s->n = 0;
}

/* The host knows that all has passed, as it must before something is unmapped. */
static void sync_stream(struct shared *s)
{
    assert_int_equal(s->w.device->ops->stream_sync(s->w.device, s->a), WEIR_OK);
}

static void close_shared(struct shared *s)
{
    close_fds(s);
    wr_world_free(&s->w, s->block, s->a);
    wr_world_close(&s->w);
}

static weir_status open_import(struct shared *s, weir_dptr *here, weir_imported **in)
{
    weir_status checked = wr_import_check(s->parts, s->n);
    return checked == WEIR_OK ? wr_import_open(s->w.device, s->parts, s->n, here, in) : checked;
}

static void test_I05_a_block_of_several_segments_is_one_range_and_the_same_memory(void **state)
{
    (void)state;
    struct shared s;
    weir_dptr here = 0;
    weir_imported *in;
    open_shared(&s);
    assert_int_equal(open_import(&s, &here, &in), WEIR_OK);
    close_fds(&s); /* are the caller's, and not needed any more */
    assert_int_not_equal(here, s.block);
    wr_world_verify(&s.w, s.a, here, BLOCK_BYTES, 7);
    wr_world_fill(&s.w, s.a, here, BLOCK_BYTES, 8);
    wr_sim_drain(s.w.sim);
    assert_int_equal(wr_world_peek(&s.w, s.block), 8);
    assert_int_equal(wr_world_peek(&s.w, s.block + BLOCK_BYTES - 4), 8);
    sync_stream(&s);
    assert_int_equal(wr_import_close(in), WEIR_OK);
    close_shared(&s); /* counts leaks */
}

static void test_an_import_that_fails_at_any_call_leaves_nothing(void **state)
{
    (void)state;
    struct shared s;
    weir_dptr here = 42;
    weir_imported *in = NULL;
    weir_status st = WEIR_DRIVER_ERROR;
    uint64_t n = 1;
    open_shared(&s);
    for (; st != WEIR_OK; n++) {
        wr_sim_fail_nth(s.w.sim, n, WEIR_DRIVER_ERROR);
        st = open_import(&s, &here, &in);
        wr_sim_fail_nth(s.w.sim, 0, WEIR_OK);
        if (st != WEIR_OK) {
            assert_int_equal(st, WEIR_DRIVER_ERROR);
            assert_int_equal(here, 42);
            assert_null(in);
        }
    }
    assert_true(n > 2 * s.n + 2);
    assert_int_equal(wr_import_close(in), WEIR_OK);
    close_shared(&s); /* counts leaks */
}

static void test_a_close_that_fails_at_any_call_can_be_repeated(void **state)
{
    (void)state;
    struct shared s;
    weir_dptr here;
    weir_imported *in;
    weir_status st = WEIR_DRIVER_ERROR;
    open_shared(&s);
    assert_int_equal(open_import(&s, &here, &in), WEIR_OK);
    for (uint64_t n = 2; st != WEIR_OK; n++) { /* the first goes through, each time */
        wr_sim_fail_nth(s.w.sim, n, WEIR_DRIVER_ERROR);
        st = wr_import_close(in);
        wr_sim_fail_nth(s.w.sim, 0, WEIR_OK);
    }
    close_shared(&s);
}

static void test_parts_that_do_not_follow_each_other_are_invalid(void **state)
{
    (void)state;
    struct shared s;
    weir_exported good[MOST_PARTS];
    open_shared(&s);
    memcpy(good, s.parts, sizeof good);
#define WRONG(change)                                                                                        \
    do {                                                                                                     \
        memcpy(s.parts, good, sizeof good);                                                                  \
        change;                                                                                              \
        assert_int_equal(wr_import_check(s.parts, s.n), WEIR_INVALID_ARGUMENT);                              \
    } while (0)
    WRONG(s.parts[0].struct_size = 8);
    WRONG(s.parts[0].fd = -1);
    WRONG(s.parts[0].segment_bytes = 0);
    WRONG(s.parts[0].segment_bytes += 4096);
    WRONG(s.parts[0].bytes -= 512);
    WRONG(s.parts[1].offset = 512);
    WRONG(s.parts[s.n - 1].bytes = s.parts[s.n - 1].segment_bytes + 1);
    WRONG(s.parts[s.n - 1].offset = s.parts[s.n - 1].segment_bytes);
    WRONG(s.parts[s.n - 1].segment_bytes = SIZE_MAX - 2 * WR_MIB + 1);
#undef WRONG
    memcpy(s.parts, good, sizeof good);
    assert_int_equal(wr_import_check(s.parts, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(wr_import_check(s.parts, s.n), WEIR_OK);
    close_shared(&s);
}

static void test_a_descriptor_of_something_else_is_invalid(void **state)
{
    (void)state;
    struct shared s;
    int ends[2];
    weir_dptr here;
    weir_imported *in;
    open_shared(&s);
    assert_int_equal(pipe(ends), 0);
    int fd = s.parts[1].fd;
    s.parts[1].fd = ends[0];
    assert_int_equal(open_import(&s, &here, &in), WEIR_INVALID_ARGUMENT);
    s.parts[1].fd = 1 << 20; /* is not open */
    assert_int_equal(open_import(&s, &here, &in), WEIR_INVALID_ARGUMENT);
    s.parts[1].fd = fd;
    assert_int_equal(close(ends[0]) + close(ends[1]), 0);
    close_shared(&s);
}

static void test_P02_an_import_is_not_unmapped_while_a_stream_captures(void **state)
{
    (void)state;
    struct shared s;
    weir_dptr here;
    weir_imported *in;
    uint64_t id;
    open_shared(&s);
    assert_int_equal(open_import(&s, &here, &in), WEIR_OK);
    wr_sim_set_capturing(s.w.device, s.a, true);
    assert_int_equal(weir_graph_id(s.w.pool, s.a, &id), WEIR_OK);
    assert_int_equal(wr_import_close(in), WEIR_CAPTURING);
    wr_sim_set_capturing(s.w.device, s.a, false);
    assert_int_equal(wr_import_close(in), WEIR_OK);
    assert_int_equal(weir_graph_release(s.w.pool, id), WEIR_OK);
    close_shared(&s);
}

static void test_arguments_are_checked_before_a_device_is_opened(void **state)
{
    (void)state;
    weir_import_options o = {.struct_size = 4096};
    weir_exported part = {.struct_size = sizeof part, .segment_bytes = 2 * WR_MIB, .bytes = 1};
    weir_dptr here;
    weir_imported *in;
    assert_int_equal(weir_import(NULL, NULL, 1, &here, &in), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_import(&o, &part, 1, &here, &in), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_import_close(NULL), WEIR_INVALID_ARGUMENT);
    o = (weir_import_options){.struct_size = sizeof o, .device_kind = "sim:none"};
    assert_int_equal(weir_import(&o, &part, 1, &here, &in), WEIR_NO_DEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_I05_a_block_of_several_segments_is_one_range_and_the_same_memory),
        cmocka_unit_test(test_an_import_that_fails_at_any_call_leaves_nothing),
        cmocka_unit_test(test_a_close_that_fails_at_any_call_can_be_repeated),
        cmocka_unit_test(test_parts_that_do_not_follow_each_other_are_invalid),
        cmocka_unit_test(test_a_descriptor_of_something_else_is_invalid),
        cmocka_unit_test(test_P02_an_import_is_not_unmapped_while_a_stream_captures),
        cmocka_unit_test(test_arguments_are_checked_before_a_device_is_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
