/* SPDX-License-Identifier: Apache-2.0
 *
 * Base: words for failures, and locks that know their rank.
 */
#include "base.h"
#include "harness.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_every_status_has_a_name_and_a_meaning(void **state)
{
    (void)state;
    for (unsigned s = 0; s < WEIR_STATUS_COUNT; s++) {
        assert_ptr_equal(strstr(weir_status_name(s), "WEIR_"), weir_status_name(s));
        assert_true(strlen(weir_status_text(s)) > 0);
    }
    assert_string_equal(weir_status_name(WEIR_NOT_YET), "WEIR_NOT_YET");
    assert_string_equal(weir_status_text(WEIR_OK), "success");
    assert_string_equal(weir_status_name(WEIR_STATUS_COUNT), "unknown");
    assert_string_equal(weir_status_text((weir_status)-1), "unknown");
}

static void test_the_version_is_that_of_the_header(void **state)
{
    (void)state;
    unsigned major, minor, patch;
    assert_int_equal(sscanf(weir_version(), "%u.%u.%u", &major, &minor, &patch), 3);
    assert_int_equal(major, WEIR_VERSION_MAJOR);
    assert_int_equal(minor, WEIR_VERSION_MINOR);
    assert_int_equal(patch, WEIR_VERSION_PATCH);
}

static void *fail_here(void *texts)
{
    const char **out = texts;
    out[0] = strdup(weir_error_text());
    wr_fail(WEIR_TIMEOUT, "of another thread");
    out[1] = strdup(weir_error_text());
    return NULL;
}

static void test_the_error_text_is_the_threads_own_last_failure(void **state)
{
    (void)state;
    const char *texts[2];
    pthread_t thread;
    assert_int_equal(wr_fail(WEIR_NOT_YET, "%d bytes", 5), WEIR_NOT_YET);
    assert_int_equal(pthread_create(&thread, NULL, fail_here, texts), 0);
    pthread_join(thread, NULL);
    assert_string_equal(texts[0], "");
    assert_string_equal(texts[1], "of another thread");
    assert_string_equal(weir_error_text(), "5 bytes");
    wr_fail(WEIR_CLOSED, "again: %s", weir_error_text()); /* its own text may be an argument */
    assert_string_equal(weir_error_text(), "again: 5 bytes");
    free((void *)texts[0]);
    free((void *)texts[1]);
}

static void test_an_error_text_too_long_is_cut(void **state)
{
    (void)state;
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    wr_fail(WEIR_CLOSED, "%s", longest);
    size_t n = strlen(weir_error_text());
    assert_true(n >= 255 && n < sizeof longest - 1);
}

static void test_sizes_round_to_units(void **state)
{
    (void)state;
    assert_int_equal(wr_round_up(0, 512), 0);
    assert_int_equal(wr_round_up(1, 512), 512);
    assert_int_equal(wr_round_up(512, 512), 512);
    assert_int_equal(wr_round_down(1023, 512), 512);
    assert_int_equal(wr_round_down(511, 512), 0);
}

static struct wr_lock stream_lock, stream_lock_2, pool_lock;

static void take_in_falling_rank(void)
{
    wr_lock_take(&pool_lock);
    wr_lock_take(&stream_lock);
}

static void take_two_of_a_rank(void)
{
    wr_lock_take(&stream_lock);
    wr_lock_take(&stream_lock_2);
}

static void call_the_driver_with_a_lock(void)
{
    wr_lock_take(&stream_lock);
    wr_locks_assert_none();
}

static void give_what_is_not_held(void)
{
    wr_locks_note_given(WR_RANK_POOL);
}

/* Runs the mistake in a child, without its last words. Under a sanitizer an abort may end as an exit. */
static bool dies(void (*mistake)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        mistake();
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_locks_are_taken_in_rising_rank_and_given_in_any_order(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        wr_lock_take(&stream_lock);
        wr_lock_take(&pool_lock);
        wr_lock_give(&stream_lock);
        wr_lock_give(&pool_lock);
        wr_locks_assert_none();
    }
}

static void test_a_try_is_free_of_ranks(void **state)
{
    (void)state;
    wr_lock_take(&stream_lock);
    assert_true(wr_lock_try(&stream_lock_2));
    assert_false(wr_lock_try(&stream_lock_2));
    wr_lock_give_tried(&stream_lock_2);
    wr_lock_give(&stream_lock);
    wr_locks_assert_none();
}

static void test_mistakes_with_locks_end_a_debug_build(void **state)
{
    (void)state;
#ifdef NDEBUG
    (void)take_in_falling_rank, (void)take_two_of_a_rank, (void)call_the_driver_with_a_lock;
    (void)give_what_is_not_held, (void)dies;
    skip();
#else
    assert_true(dies(take_in_falling_rank));
    assert_true(dies(take_two_of_a_rank));
    assert_true(dies(call_the_driver_with_a_lock));
    assert_true(dies(give_what_is_not_held));
#endif
}

int main(void)
{
    wr_lock_init(&stream_lock, WR_RANK_STREAM);
    wr_lock_init(&stream_lock_2, WR_RANK_STREAM);
    wr_lock_init(&pool_lock, WR_RANK_POOL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status_has_a_name_and_a_meaning),
        cmocka_unit_test(test_the_version_is_that_of_the_header),
        cmocka_unit_test(test_the_error_text_is_the_threads_own_last_failure),
        cmocka_unit_test(test_an_error_text_too_long_is_cut),
        cmocka_unit_test(test_sizes_round_to_units),
        cmocka_unit_test(test_locks_are_taken_in_rising_rank_and_given_in_any_order),
        cmocka_unit_test(test_a_try_is_free_of_ranks),
        cmocka_unit_test(test_mistakes_with_locks_end_a_debug_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
