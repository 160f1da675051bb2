/* SPDX-License-Identifier: Apache-2.0
 *
 * The benches' data: bad files are typed errors that name the file, and good ones are read to the byte.
 */
#include "../bench/work.h"
#include "../bench/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 100003 };

static char path[32]; /* of the file that write_file made */
static unsigned char written[FILE_BYTES];

static int write_file(void **state)
{
    (void)state;
    int fd = mkstemp(strcpy(path, "/tmp/weir_source_XXXXXX"));
    for (size_t i = 0; i < FILE_BYTES; i++)
        written[i] = (unsigned char)(i * 2654435761u >> 16);
    ssize_t n = write(fd, written, FILE_BYTES);
    return fd < 0 || n != FILE_BYTES || close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void assert_names_the_file(const struct wr_source *s, const char *name)
{
    assert_non_null(strstr(s->error, name));
    assert_null(s->pieces); /* an error leaves nothing to close */
}

static void test_a_missing_file_says_so(void **state)
{
    (void)state;
    struct wr_source s;
    assert_int_equal(wr_source_open(&s, "/nonexistent/data", 1), WR_SOURCE_MISSING);
    assert_names_the_file(&s, "/nonexistent/data");
}

static void test_an_empty_file_says_so(void **state)
{
    (void)state;
    struct wr_source s;
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(wr_source_open(&s, path, 1), WR_SOURCE_EMPTY);
    assert_names_the_file(&s, path);
}

static void test_a_folder_is_unreadable(void **state)
{
    (void)state;
    struct wr_source s;
    assert_int_equal(wr_source_open(&s, "/tmp", 1), WR_SOURCE_UNREADABLE);
    assert_names_the_file(&s, "/tmp");
}

static void test_a_file_that_shrinks_while_it_is_read_says_so(void **state)
{
    (void)state;
    struct wr_source s;
    static unsigned char got[FILE_BYTES];
    assert_int_equal(wr_source_open(&s, path, 1), WR_SOURCE_OK);
    assert_int_equal(wr_source_read(&s, 0, got, FILE_BYTES), WR_SOURCE_OK);
    assert_int_equal(truncate(path, FILE_BYTES - 1), 0);
    assert_int_equal(wr_source_read(&s, 0, got, FILE_BYTES - 1), WR_SOURCE_OK);
    assert_int_equal(wr_source_read(&s, 1, got, FILE_BYTES - 1), WR_SOURCE_SHRANK);
    assert_non_null(strstr(s.error, path));
    wr_source_close(&s);
}

static void test_any_span_of_a_file_is_read_to_the_byte(void **state)
{
    (void)state;
    struct wr_source s;
    static unsigned char got[FILE_BYTES + 1];
    assert_int_equal(wr_source_open(&s, path, 1), WR_SOURCE_OK);
    assert_int_equal(s.bytes, FILE_BYTES);
    for (size_t at = 0; at < FILE_BYTES; at += 7919) {
        got[FILE_BYTES - at] = 0x5a;
        assert_int_equal(wr_source_read(&s, at, got, FILE_BYTES - at), WR_SOURCE_OK);
        assert_memory_equal(got, written + at, FILE_BYTES - at);
        assert_int_equal(got[FILE_BYTES - at], 0x5a);
    }
    wr_source_close(&s);
}

/* Read as one span, and piece by piece. */
static void test_libraries_follow_each_other_without_a_gap(void **state)
{
    (void)state;
    struct wr_source s;
    enum { LEAST = 8 << 20 };
    assert_int_equal(wr_source_open(&s, NULL, LEAST), WR_SOURCE_OK);
    assert_true(s.bytes >= LEAST);
    unsigned char *all = malloc(s.bytes), *one = malloc(s.bytes);
    assert_non_null(all);
    assert_non_null(one);
    assert_int_equal(wr_source_read(&s, 0, all, s.bytes), WR_SOURCE_OK);
    uint64_t start = 0;
    for (size_t i = 0; i < s.n; i++) {
        assert_int_equal(s.pieces[i].start, start);
        assert_int_equal(wr_source_read(&s, start, one, s.pieces[i].bytes), WR_SOURCE_OK);
        assert_memory_equal(one, all + start, s.pieces[i].bytes);
        start += s.pieces[i].bytes;
    }
    assert_int_equal(start, s.bytes);
    free(all);
    free(one);
    wr_source_close(&s);
}

static void test_the_checksum_sees_a_changed_moved_or_missing_word(void **state)
{
    (void)state;
    uint64_t words[64], sum;
    for (size_t i = 0; i < 64; i++)
        words[i] = i % 8; /* equal words abound */
    sum = wr_work_checksum_host(words, sizeof words);
    for (size_t bit = 0; bit < sizeof words * 8; bit++) {
        words[bit / 64] ^= UINT64_C(1) << bit % 64;
        assert_int_not_equal(wr_work_checksum_host(words, sizeof words), sum);
        words[bit / 64] ^= UINT64_C(1) << bit % 64;
    }
    uint64_t first = words[0];
    words[0] = words[1];
    words[1] = first;
    assert_int_not_equal(wr_work_checksum_host(words, sizeof words), sum);
    assert_int_not_equal(wr_work_checksum_host(words, sizeof words - 1), sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_file_says_so),
        cmocka_unit_test_setup_teardown(test_an_empty_file_says_so, write_file, remove_file),
        cmocka_unit_test(test_a_folder_is_unreadable),
        cmocka_unit_test_setup_teardown(
            test_a_file_that_shrinks_while_it_is_read_says_so, write_file, remove_file),
        cmocka_unit_test_setup_teardown(test_any_span_of_a_file_is_read_to_the_byte, write_file, remove_file),
        cmocka_unit_test(test_libraries_follow_each_other_without_a_gap),
        cmocka_unit_test(test_the_checksum_sees_a_changed_moved_or_missing_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
