/* SPDX-License-Identifier: Apache-2.0
 *
 * NVTX ranges, seen by a tool that listens.
 *
 *   test_nvtx LISTENER      the library of nvtx_listener.c; exits 77 where there is none
 */
#include "nvtx.h"
#include "pool_world.h"
#include "weir_queue.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB WR_MIB

static const int *depth, *strangers;
static unsigned (*count)(const char *name, uint64_t *bytes);

static unsigned count_of(const char *name)
{
    uint64_t bytes;
    return count(name, &bytes);
}

static void test_growth_and_trim_are_ranges_and_warm_calls_are_not(void **state)
{
    (void)state;
    struct wr_world w;
    uint64_t bytes = 0;
    size_t freed;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * MIB});
    assert_true(atomic_load(&wr_nvtx_on));
    weir_stream a = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, a), a);
    unsigned grown = count("grow", &bytes);
    assert_true(grown > 0);
    assert_int_equal(bytes, 8 * MIB);
    assert_true(count_of("stitch") > 0); /* was tried first */
    for (int i = 0; i < 100; i++)
        wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, a), a);
    assert_int_equal(count_of("grow"), grown);
    wr_sim_drain(w.sim);
    assert_int_equal(count_of("trim"), 0);
    assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
    assert_int_equal(count_of("trim"), 1);
    assert_int_equal(*depth, 0);
    wr_world_close(&w);
}

static size_t evict_nothing(void *context, size_t bytes)
{
    (void)bytes;
    assert_int_equal(*depth, 1); /* inside the range */
    ++*(int *)context;
    return 0;
}

static void test_eviction_and_waits_are_ranges(void **state)
{
    (void)state;
    struct wr_world w;
    int asked = 0;
    weir_dptr x;
    weir_alloc_options wait = {.struct_size = sizeof wait, .reuse = WEIR_REUSE_DEVICE_WAIT};
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * MIB,
                          .pool = {.evict = evict_nothing, .evict_context = &asked}});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 64 * MIB, a), a);
    wr_sim_drain(w.sim);
    weir_dptr y = wr_world_alloc(&w, 64 * MIB, a);
    wr_world_spin(&w, a, 1000000);
    wr_world_free(&w, y, a);
    assert_int_equal(weir_alloc_with(w.pool, 64 * MIB, b, &wait, &x), WEIR_OK);
    assert_true(asked > 0);
    assert_int_equal(count_of("evict"), asked);
    assert_int_equal(count_of("device wait"), 1);
    wr_world_spin(&w, b, 1000000);
    wr_world_free(&w, x, b);
    wait.reuse = WEIR_REUSE_HOST_WAIT;
    wait.deadline_ns = -1;
    assert_int_equal(weir_alloc_with(w.pool, 64 * MIB, a, &wait, &x), WEIR_OK);
    assert_true(count_of("host wait") > 0);
    wr_world_free(&w, x, a);
    assert_int_equal(*depth, 0);
    assert_int_equal(*strangers, 0);
    wr_world_close(&w);
}

static void test_a_queues_calls_are_ranges_and_what_is_slow_in_them(void **state)
{
    (void)state;
    struct wr_world w;
    weir_queue *q;
    weir_item item;
    char batch[4096] = {0};
    uint64_t bytes = 0;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = sizeof batch};
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_stream a = wr_world_stream(&w);
    assert_int_equal(weir_queue_open(w.pool, &o, &q), WEIR_OK);
    for (int i = 0; i < 10; i++) {
        weir_span span = {batch, sizeof batch};
        assert_int_equal(weir_queue_push(q, &span, 1, WEIR_PUSH_COPY, -1, NULL), WEIR_OK);
        assert_int_equal(weir_queue_acquire(q, a, -1, &item), WEIR_OK);
        assert_int_equal(weir_queue_release(q, &item, NULL, 0), WEIR_OK);
        wr_sim_drain(w.sim);
    }
    assert_int_equal(weir_queue_reserve(q, 100, -1, &item), WEIR_OK);
    assert_int_equal(weir_queue_abort(q, &item), WEIR_OK);
    assert_int_equal(count("push", &bytes), 10);
    assert_int_equal(bytes, sizeof batch);
    assert_int_equal(count("stage", &bytes), 10);
    assert_int_equal(bytes, sizeof batch);
    assert_int_equal(count_of("acquire"), 10);
    assert_int_equal(count("reserve", &bytes), 1);
    assert_int_equal(bytes, 100);
    assert_in_range(count_of("device slot"), 1, 2); /* warm after that */
    assert_in_range(count_of("pinned slot"), 1, 2);
    assert_int_equal(*depth, 0);
    assert_int_equal(weir_queue_destroy(q), WEIR_OK);
    wr_world_close(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth_and_trim_are_ranges_and_warm_calls_are_not),
        cmocka_unit_test(test_eviction_and_waits_are_ranges),
        cmocka_unit_test(test_a_queues_calls_are_ranges_and_what_is_slow_in_them),
    };
    void *listener = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (listener == NULL) {
        printf("skipped: no listener: the build had no nvtx3 headers\n");
        return 77;
    }
    *(void **)&count = dlsym(listener, "listener_count");
    depth = dlsym(listener, "listener_depth");
    strangers = dlsym(listener, "listener_strangers");
    if (!count || !depth || !strangers || setenv("NVTX_INJECTION64_PATH", argv[1], 1) != 0) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
