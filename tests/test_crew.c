/* SPDX-License-Identifier: Apache-2.0
 *
 * The crew's hauls, by one thread and by several. What they are for: test_copy.
 */
#include "crew.h"
#include "harness.h"

#include <unistd.h>

#ifdef COUNTS_SYSCONF
static unsigned n_asked;

long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name)
{
    n_asked += name == _SC_NPROCESSORS_ONLN;
    return __real_sysconf(name);
}
#endif

static unsigned char *pattern(size_t bytes, unsigned seed)
{
    unsigned char *p = malloc(bytes);
    assert_non_null(p);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(i * 7 + i / 251 + seed);
    return p;
}

static struct wr_haul haul(void *to, const void *from, size_t bytes)
{
    return (struct wr_haul){.to = to, .from = from, .bytes = bytes, .rows = 1};
}

static void test_hauls_of_any_size_arrive_whole_with_any_number_of_hands(void **state)
{
    (void)state;
    enum { LARGE = (3 << 20) + 77, SMALL = 100 };
    unsigned char *from = pattern(LARGE + SMALL, 1);
    for (unsigned hands = 1; hands <= 12; hands += 11) {
        unsigned char *to = pattern(LARGE + SMALL, 2);
        const struct wr_haul hauls[] = {
            haul(to + LARGE, from + LARGE, SMALL), haul(to, from, LARGE), {.to = NULL, .rows = 1}};
        wr_crew_restrict(hands);
        assert_in_range(wr_crew_hands(), 1, hands);
        wr_crew_haul(hauls, 3, false);
        assert_memory_equal(to, from, LARGE + SMALL);
        free(to);
    }
    free(from);
}

/* As staging has it: the next job is begun before this one is ended. */
static void test_a_job_is_begun_before_the_one_before_it_is_ended(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, JOBS = 20 };
    struct wr_crew_job jobs[2];
    struct wr_haul hauls[2];
    unsigned char *from = pattern(JOBS * BYTES, 3), *to = pattern(JOBS * BYTES, 4);
    for (size_t i = 0; i <= JOBS; i++) {
        if (i < JOBS) hauls[i % 2] = haul(to + i * BYTES, from + i * BYTES, BYTES);
        if (i < JOBS) wr_crew_begin(&jobs[i % 2], &hauls[i % 2], 1, false);
        if (i > 0) wr_crew_end(&jobs[(i - 1) % 2]);
        if (i > 0) assert_memory_equal(to + (i - 1) * BYTES, from + (i - 1) * BYTES, BYTES);
    }
    free(from);
    free(to);
}

#ifdef COUNTS_SYSCONF
/* The C library opens, reads and closes a file for each answer. */
static void test_hauls_do_not_ask_for_the_number_of_processors_each_time(void **state)
{
    (void)state;
    char from[64] = "a small one", to[64];
    for (int i = 0; i < 100; i++)
        wr_crew_haul(&(struct wr_haul){.to = to, .from = from, .bytes = sizeof to, .rows = 1}, 1, false);
    assert_memory_equal(to, from, sizeof to);
    assert_in_range(n_asked, 0, 1);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hauls_of_any_size_arrive_whole_with_any_number_of_hands),
        cmocka_unit_test(test_a_job_is_begun_before_the_one_before_it_is_ended),
#ifdef COUNTS_SYSCONF
        cmocka_unit_test(test_hauls_do_not_ask_for_the_number_of_processors_each_time),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
