/* SPDX-License-Identifier: Apache-2.0
 *
 * The benches' peers: an allocator of another library is called with what it expects, in either shape.
 */
#include "../bench/peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

enum { STREAM = 0x40 };
#define ADDRESS ((void *)0x7fff12345600)

static struct {
    size_t bytes;
    void *block, *stream, *answer;
    int device;
    unsigned selections;
    int status;
} seen;

static int32_t alloc_current(uint64_t bytes, void **block)
{
    seen.bytes = bytes;
    *block = ADDRESS;
    return seen.status;
}

static int32_t free_current(void *block)
{
    seen.block = block;
    return seen.status;
}

static int32_t set_stream(void *stream, int32_t device, void **guard)
{
    seen.stream = stream;
    seen.device = device;
    *guard = NULL;
    return seen.status;
}

static void *alloc_on(size_t bytes, int device, void *stream)
{
    seen.bytes = bytes;
    seen.device = device;
    seen.stream = stream;
    return seen.answer;
}

static void free_on(void *block, size_t bytes, int device, void *stream)
{
    seen.block = block;
    alloc_on(bytes, device, stream);
}

static void count_selection(void)
{
    seen.selections++;
}

static const struct wr_peer current_peer = {.name = "current",
    .alloc_current = alloc_current,
    .free_current = free_current,
    .set_stream = set_stream};
static const struct wr_peer stream_peer = {
    .name = "stream", .alloc_on = alloc_on, .free_on = free_on, .select = count_selection};

static struct wr_subject open_subject(const struct wr_peer *peer)
{
    struct wr_subject s;
    weir_stream streams[WR_SUBJECT_STREAMS] = {(weir_stream)(uintptr_t)STREAM};
    memset(&seen, 0, sizeof seen);
    seen.device = -1;
    seen.answer = ADDRESS;
    wr_subject_peer(&s, peer, streams);
    assert_ptr_equal(s.streams[0], streams[0]);
    return s;
}

static void test_a_peer_of_current_streams_gets_the_threads_stream_once_and_then_bare_calls(void **state)
{
    (void)state;
    struct wr_subject s = open_subject(&current_peer);
    assert_true(wr_subject_enter(&s, s.streams[0]));
    assert_ptr_equal(seen.stream, s.streams[0]);
    assert_int_equal(seen.device, 0);
    uint64_t block = s.alloc(&s, 1000, s.streams[0]);
    assert_int_equal(seen.bytes, 1000);
    assert_true(s.free(&s, block, s.streams[0]));
    assert_ptr_equal(seen.block, ADDRESS);
}

static void test_a_peers_refusal_is_a_failure(void **state)
{
    (void)state;
    struct wr_subject s = open_subject(&current_peer);
    seen.status = 1;
    assert_false(wr_subject_enter(&s, s.streams[0]));
    assert_int_equal(s.alloc(&s, 1000, s.streams[0]), 0);
    assert_false(s.free(&s, 1, s.streams[0]));
    s = open_subject(&stream_peer);
    seen.answer = NULL;
    assert_int_equal(s.alloc(&s, 1000, s.streams[0]), 0);
}

static void test_a_peer_that_wants_sizes_gets_the_allocs_at_the_free(void **state)
{
    (void)state;
    struct wr_subject s = open_subject(&stream_peer);
    static const size_t sizes[] = {1, 256, 1000, 64 << 10, (16 << 20) - 1};
    assert_true(wr_subject_enter(&s, s.streams[0]));
    assert_int_equal(seen.selections, 1);
    for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++) {
        uint64_t block = s.alloc(&s, sizes[i], s.streams[0]);
        size_t asked = seen.bytes;
        assert_true(asked >= sizes[i] && asked < sizes[i] + 256);
        memset(&seen, 0, sizeof seen);
        seen.answer = ADDRESS;
        assert_true(s.free(&s, block, s.streams[0]));
        assert_ptr_equal(seen.block, ADDRESS);
        assert_int_equal(seen.bytes, asked);
        assert_ptr_equal(seen.stream, s.streams[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_peer_of_current_streams_gets_the_threads_stream_once_and_then_bare_calls),
        cmocka_unit_test(test_a_peers_refusal_is_a_failure),
        cmocka_unit_test(test_a_peer_that_wants_sizes_gets_the_allocs_at_the_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
