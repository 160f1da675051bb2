/* SPDX-License-Identifier: Apache-2.0
 *
 * The recorder looks at the environment once in a process, so the tests share one file, and read what it got since.
 * Those of its end run in a child, before the parent's recorder opens.
 */
#include "../bench/trace.h"
#include "forks.h"
#include "pool_world.h"
#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[] = "/tmp/weir_trace_XXXXXX";

static struct wr_trace read_trace(void)
{
    struct wr_trace t;
    wr_record_flush();
    const char *wrong = wr_trace_read(path, &t);
    if (wrong != NULL) fail_msg("%s", wrong);
    return t;
}

static size_t count_events(void)
{
    struct wr_trace t = read_trace();
    size_t n = t.n_events;
    wr_trace_fini(&t);
    return n;
}

static void expect(
    const struct wr_trace_event *e, bool is_alloc, uint32_t id, uint64_t bytes, uint32_t stream)
{
    assert_int_equal(e->is_alloc, is_alloc);
    assert_int_equal(e->id, id);
    assert_int_equal(e->bytes, bytes);
    assert_int_equal(e->stream, stream);
}

/* Runs it in a process of its own, which records to `file`. Returns its exit status. */
static int run_child(const char *file, void (*run)(void))
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        setenv("WEIR_TRACE", file, 1);
        run();
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void make_three_calls(void)
{
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 1000, a), y = wr_world_alloc(&w, 2000, a);
    wr_world_free(&w, x, a);
    if (y == 0) _exit(1);
}

static void test_what_is_buffered_at_the_exit_reaches_the_file(void **state)
{
    (void)state;
    struct wr_trace t;
    assert_int_equal(run_child(path, make_three_calls), 0);
    const char *wrong = wr_trace_read(path, &t);
    if (wrong != NULL) fail_msg("%s", wrong);
    assert_int_equal(t.n_events, 3);
    assert_int_equal(t.max_load, 3000);
    wr_trace_fini(&t);
}

static void go_on_without(void)
{
    make_three_calls();
    wr_record_flush();
    if (wr_record_is_on()) _exit(1);
    make_three_calls();
}

static void test_a_file_that_takes_no_more_ends_the_recording_and_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(run_child("/dev/full", go_on_without), 0);
    assert_int_equal(run_child("/no/such/folder/file", go_on_without), 0);
}

/* The first here: ids and streams begin at 0. */
static void test_calls_are_recorded_in_their_order(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 1000, a), y = wr_world_alloc(&w, 3 * WR_MIB, b);
    wr_world_free(&w, x, a);
    wr_world_free(&w, wr_world_alloc(&w, 1000, a), a); /* the same address, another id */
    wr_world_free(&w, y, b);
    wr_world_close(&w);
    struct wr_trace t = read_trace();
    assert_int_equal(t.n_events, 6);
    expect(&t.events[0], true, 0, 1000, 0);
    expect(&t.events[1], true, 1, 3 * WR_MIB, 1);
    expect(&t.events[2], false, 0, 1000, 0);
    expect(&t.events[3], true, 2, 1000, 0);
    expect(&t.events[4], false, 2, 1000, 0);
    expect(&t.events[5], false, 1, 3 * WR_MIB, 1);
    assert_int_equal(t.max_load, 1000 + 3 * WR_MIB);
    wr_trace_fini(&t);
}

static void test_calls_that_fail_or_do_nothing_are_not_recorded(void **state)
{
    (void)state;
    struct wr_world w;
    size_t before = count_events();
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w);
    weir_dptr x;
    assert_int_equal(weir_alloc(w.pool, SIZE_MAX, a, &x), WEIR_TOO_LARGE);
    assert_int_equal(weir_alloc(w.pool, 0, a, &x), WEIR_OK);
    assert_int_equal(weir_free(w.pool, x, a), WEIR_OK);
    assert_int_equal(weir_free(w.pool, 512, a), WEIR_INVALID_POINTER);
    assert_int_equal(count_events(), before);
    wr_world_close(&w);
}

enum { THREADS = 4, ROUNDS = 2000 };

static void *churn(void *arg)
{
    struct wr_world *w = ((void **)arg)[0];
    weir_stream s = ((void **)arg)[1];
    for (int i = 0; i < ROUNDS; i++) {
        weir_dptr x = wr_world_alloc(w, 512u << i % 8, s);
        wr_world_free(w, x, s);
    }
    return NULL;
}

/* The reader refuses a free before its alloc and ids out of turn; here, that no address is live twice. */
static void test_threads_leave_a_trace_that_can_be_replayed(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t threads[THREADS];
    void *args[THREADS][2];
    size_t before = count_events();
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream s = wr_world_stream(&w);
    for (int i = 0; i < THREADS; i++) {
        args[i][0] = &w;
        args[i][1] = s; /* shared: addresses go from thread to thread */
        assert_int_equal(pthread_create(&threads[i], NULL, churn, args[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    wr_world_close(&w);
    struct wr_trace t = read_trace();
    assert_int_equal(t.n_events - before, 2 * THREADS * ROUNDS);
    bool *live = calloc(t.n_ids, sizeof *live);
    assert_non_null(live);
    for (size_t i = 0; i < t.n_events; i++) {
        assert_int_equal(live[t.events[i].id], !t.events[i].is_alloc);
        live[t.events[i].id] = t.events[i].is_alloc;
    }
    for (uint32_t i = 0; i < t.n_ids; i++)
        assert_false(live[i]);
    free(live);
    wr_trace_fini(&t);
}

static void test_a_forked_child_leaves_the_file_to_its_parent(void **state)
{
    (void)state;
    struct wr_world w;
    size_t before = count_events();
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 1000, a); /* in the buffer, of which the child has a copy */
    pid_t child = fork();
    if (child == 0) {
        wr_record_flush();
        _exit(wr_record_is_on() ? 1 : 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
    assert_int_equal(count_events(), before + 2);
}

int main(void)
{
    int file = mkstemp(path);
    if (file < 0 || close(file) != 0 || setenv("WEIR_TRACE", path, 1) != 0) {
        perror(path);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_buffered_at_the_exit_reaches_the_file),
        cmocka_unit_test(test_a_file_that_takes_no_more_ends_the_recording_and_nothing_else),
        cmocka_unit_test(test_calls_are_recorded_in_their_order),
        cmocka_unit_test(test_calls_that_fail_or_do_nothing_are_not_recorded),
        cmocka_unit_test(test_threads_leave_a_trace_that_can_be_replayed),
        cmocka_unit_test(test_a_forked_child_leaves_the_file_to_its_parent),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
