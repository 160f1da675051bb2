/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue on a real GPU: pushes and commits that wait for no kernel, from any thread, and what its timeline says.
 */
#include "gpu_world.h"
#include "weir_queue.h"

#include <unistd.h>

static void check_item(weir_queue *q, weir_stream s, const unsigned char *expected, size_t bytes)
{
    weir_item item;
    OK(weir_queue_acquire(q, s, -1, &item));
    assert_int_equal(item.bytes, bytes);
    unsigned char *back = malloc(bytes);
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)back, item.device, bytes, s));
    OK(device->ops->stream_sync(device, s));
    assert_memory_equal(back, expected, bytes);
    free(back);
    OK(weir_queue_release(q, &item, NULL, 0));
}

static void test_Q02_a_push_of_pageable_memory_does_not_wait_for_a_kernel(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    weir_stream compute = new_stream();
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = BYTES};
    OK(weir_queue_open(pool, &o, &q));
    unsigned char *data = malloc(BYTES);
    uint64_t random = 5;
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)next_random(&random);
    weir_span spans[] = {{data, 1000}, {data + 1000, 0}, {data + 1000, BYTES - 1000}};
    OK(weir_queue_push(q, spans, 3, WEIR_PUSH_COPY, -1, NULL)); /* warm: slots and staging exist */
    check_item(q, compute, data, BYTES);
    OK(wr_kernels_spin(device, compute, SPIN_NS));
    uint64_t start = now_ns();
    OK(weir_queue_push(q, spans, 3, WEIR_PUSH_COPY, -1, NULL));
    assert_true(now_ns() - start < SOON_NS);
    unsigned char *copy_of_data = malloc(BYTES);
    memcpy(copy_of_data, data, BYTES);
    memset(data, 0, BYTES); /* J03: what was pushed is what was there at the call */
    check_item(q, compute, copy_of_data, BYTES);
    free(copy_of_data);
    free(data);
    OK(weir_queue_destroy(q));
    end_stream(compute);
}

static void *push_from_a_fresh_thread(void *queue)
{
    CUcontext context;
    static const char text[] = "from a thread without a context";
    weir_span span = {text, sizeof text};
    assert_int_equal(cu.get_current(&context), CUDA_SUCCESS);
    assert_null(context);
    OK(weir_queue_push(queue, &span, 1, WEIR_PUSH_COPY, -1, NULL));
    assert_int_equal(cu.get_current(&context), CUDA_SUCCESS);
    assert_null(context);
    return NULL;
}

static void test_Q20_a_thread_without_a_context_can_push_and_still_has_none(void **state)
{
    (void)state;
    weir_stream compute = new_stream();
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = 4096};
    pthread_t thread;
    OK(weir_queue_open(pool, &o, &q));
    assert_int_equal(pthread_create(&thread, NULL, push_from_a_fresh_thread, q), 0);
    pthread_join(thread, NULL);
    check_item(q, compute, (const unsigned char *)"from a thread without a context", 32);
    OK(weir_queue_destroy(q));
    end_stream(compute);
}

/* The buffer of a reserved item is filled by a stream that a kernel of 200 ms holds up. */
static void test_a_commit_may_come_before_what_fills_its_buffer_has_run(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    weir_stream source = new_stream(), compute = new_stream();
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = BYTES};
    weir_item item;
    weir_dptr block;
    unsigned char *expected = malloc(BYTES);
    memset(expected, 7, BYTES);
    OK(weir_alloc(pool, BYTES, source, &block));
    OK(weir_queue_open(pool, &o, &q));
    OK(weir_queue_reserve(q, BYTES, -1, &item));
    memset(item.host, 0, BYTES);
    OK(device->ops->fill(device, block, 7, BYTES, source));
    OK(device->ops->stream_sync(device, source));
    uint64_t start = now_ns();
    OK(wr_kernels_spin(device, source, SPIN_NS));
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)item.host, block, BYTES, source));
    OK(weir_queue_commit_after(q, &item, &source, 1));
    assert_true(now_ns() - start < SOON_NS);
    check_item(q, compute, expected, BYTES);
    assert_true(now_ns() - start >= SPIN_NS / 2);
    OK(weir_queue_destroy(q));
    OK(weir_free(pool, block, source));
    free(expected);
    end_stream(source);
    end_stream(compute);
}

/* In us; the file tells of one copy. */
static double length_of_the_copy(const char *path)
{
    char line[512];
    double us = -1;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *length = strstr(line, "\"dur\": ");
        if (length && strstr(line, "\"cat\": \"copy\"")) us = strtod(length + strlen("\"dur\": "), NULL);
    }
    fclose(f);
    return us;
}

static void test_a_copy_behind_a_kernel_is_short_in_the_timeline(void **state)
{
    (void)state;
    static const char words[] = "a few words";
    char path[] = "/tmp/weir_timeline_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    weir_stream compute = new_stream();
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = sizeof words, .timeline = path};
    weir_span span = {words, sizeof words};
    weir_push_options after = {.struct_size = sizeof after, .after = &compute, .n_after = 1};
    OK(weir_queue_open(pool, &o, &q));
    OK(wr_kernels_spin(device, compute, SPIN_NS));
    OK(weir_queue_push_after(q, &span, 1, &after, NULL));
    check_item(q, compute, (const unsigned char *)words, sizeof words);
    OK(weir_queue_wait_idle(q, (int64_t)(10 * WR_NS_PER_SEC)));
    OK(weir_queue_destroy(q));
    double us = length_of_the_copy(path);
    assert_int_equal(unlink(path), 0);
    assert_true(us > 0 && us * 1000 < (double)SOON_NS);
    end_stream(compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_Q02_a_push_of_pageable_memory_does_not_wait_for_a_kernel),
        TEST(test_Q20_a_thread_without_a_context_can_push_and_still_has_none),
        TEST(test_a_commit_may_come_before_what_fills_its_buffer_has_run),
        TEST(test_a_copy_behind_a_kernel_is_short_in_the_timeline),
    };
    if (!find_gpu()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
