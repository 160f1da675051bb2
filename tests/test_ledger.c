/* SPDX-License-Identifier: Apache-2.0
 *
 * What PyTorch's own allocator interface calls, on the simulated device: frees by address alone, and counts.
 */
#include "forks.h"
#include "harness.h"
#include "pool_world.h"
#include "weir_torch.h"

#include <sys/wait.h>
#include <unistd.h>

static int set_up(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){
                              .limit_bytes = 64 * WR_MIB, .grow_bytes = 1, .pool.reuse = WEIR_REUSE_OWNER});
    assert_int_equal(weir_shared_adopt(0, world.pool), WEIR_OK);
    return 0;
}

static weir_shared_counts counts_of(int device)
{
    weir_shared_counts c;
    weir_torch_count(device, &c);
    return c;
}

/* 0: not live. */
static size_t bytes_of(void *block)
{
    weir_shared_block found;
    return weir_torch_find(block, &found) ? found.bytes : 0;
}

static void test_a_block_freed_by_address_serves_its_own_stream_at_once(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    struct wr_sim_gate *stall = wr_world_stall(&world, a);
    void *x = weir_torch_native_alloc(WR_MIB, 0, a);
    assert_non_null(x);
    weir_torch_native_free(x);
    assert_ptr_not_equal(weir_torch_native_alloc(WR_MIB, 0, b), x);
    assert_ptr_equal(weir_torch_native_alloc(WR_MIB, 0, a), x);
    weir_shared_block all[4];
    size_t n = weir_torch_list(0, all, 4);
    assert_int_equal(n, 2);
    while (n > 0)
        weir_torch_native_free((void *)(uintptr_t)all[--n].address);
    assert_int_equal(wr_world_stats(&world).live_blocks, 0);
    wr_world_let_go(&world, stall);
}

static void test_a_recorded_stream_holds_a_block_that_is_freed_by_address(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    void *x = weir_torch_native_alloc(WR_MIB, 0, a);
    struct wr_sim_gate *gate = wr_world_stall(&world, b);
    weir_torch_record_stream(x, b);
    weir_torch_native_free(x);
    void *y = weir_torch_native_alloc(WR_MIB, 0, a);
    assert_ptr_not_equal(y, x);
    weir_torch_native_free(y);
    wr_world_let_go(&world, gate);
}

static void test_T01_counts_follow_each_alloc_and_free_and_peaks_stay_until_they_are_reset(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_shared_counts before = counts_of(0);
    weir_torch_reset_peaks(0);
    void *x = weir_torch_native_alloc(1000, 0, a), *y = weir_torch_native_alloc(512, 0, a);
    assert_int_equal(bytes_of(x), 1000);
    weir_torch_native_free(x);
    assert_int_equal(bytes_of(x), 0);
    weir_shared_counts c = counts_of(0);
    assert_int_equal(c.live_bytes, 512);
    assert_int_equal(c.live_blocks, 1);
    assert_int_equal(c.requested_bytes, 512);
    assert_int_equal(c.peak_bytes, 1024 + 512);
    assert_int_equal(c.peak_blocks, 2);
    assert_int_equal(c.allocated_bytes - before.allocated_bytes, 1024 + 512);
    assert_int_equal(c.allocated_blocks - before.allocated_blocks, 2);
    weir_torch_reset_peaks(0);
    assert_int_equal(counts_of(0).peak_bytes, 512);
    assert_int_equal(counts_of(0).peak_blocks, 1);
    weir_torch_native_free(y);
}

static void test_what_is_not_live_is_left_alone(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    assert_null(weir_torch_native_alloc(0, 0, a));
    weir_torch_native_free(NULL);
    void *x = weir_torch_native_alloc(WR_MIB, 0, a);
    weir_shared_counts before = counts_of(0);
    weir_torch_native_free((char *)x + 512);
    weir_torch_native_free((void *)&before);
    assert_memory_equal(&(weir_shared_counts[]){counts_of(0)}[0], &before, sizeof before);
    weir_torch_native_free(x);
    weir_torch_native_free(x);
    assert_int_equal(counts_of(0).live_blocks, 0);
    assert_int_equal(counts_of(-1).allocated_blocks, 0);
    assert_int_equal(weir_torch_list(WEIR_SHARED_DEVICES, NULL, 0), 0);
}

static void test_an_alloc_that_fails_counts_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_shared_counts before = counts_of(0);
    assert_null(weir_torch_native_alloc(65 * WR_MIB, 0, a));
    assert_memory_equal(&(weir_shared_counts[]){counts_of(0)}[0], &before, sizeof before);
}

/* Two pools that serve as two devices: a free finds its own. */
static void test_each_device_has_its_own_blocks(void **state)
{
    (void)state;
    weir_pool *other;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 4 * WR_MIB};
    assert_int_equal(wr_pool_open(world.device, &o, &other), WEIR_OK);
    assert_int_equal(weir_shared_adopt(1, other), WEIR_OK);
    weir_stream a = wr_world_stream(&world);
    void *x = weir_torch_native_alloc(WR_MIB, 0, a), *y = weir_torch_native_alloc(1000, 1, a);
    assert_int_equal(counts_of(0).live_blocks, 1);
    assert_int_equal(counts_of(1).live_bytes, 1024);
    weir_torch_native_free(y);
    assert_int_equal(counts_of(1).live_blocks, 0);
    assert_int_equal(counts_of(0).live_bytes, WR_MIB);
    weir_torch_native_free(x);
    wr_world_close_pool(&world, other);
}

/* ---- against a plain list of what is live ------------------------------------------------------------- */

enum { MODEL_BLOCKS = 3000, MODEL_STEPS = 60000 }; /* the table grows twice, and wraps around */

struct model {
    void *blocks[MODEL_BLOCKS];
    size_t bytes[MODEL_BLOCKS];
    unsigned n;
    uint64_t requested;
};

static void model_step(struct model *m, uint64_t *random, weir_stream s)
{
    uint64_t draw = next_random(random);
    if (m->n == MODEL_BLOCKS || (m->n > 0 && draw % 100 < 48)) {
        unsigned i = (unsigned)(draw >> 32) % m->n;
        assert_int_equal(bytes_of(m->blocks[i]), m->bytes[i]);
        weir_torch_native_free(m->blocks[i]);
        m->requested -= m->bytes[i];
        m->blocks[i] = m->blocks[--m->n];
        m->bytes[i] = m->bytes[m->n];
    } else {
        size_t bytes = 1 + (draw >> 32) % 4000;
        m->blocks[m->n] = weir_torch_native_alloc(bytes, 0, s);
        assert_non_null(m->blocks[m->n]);
        m->bytes[m->n++] = bytes;
        m->requested += bytes;
    }
}

static int by_address(const void *a, const void *b)
{
    weir_dptr x = ((const weir_shared_block *)a)->address, y = ((const weir_shared_block *)b)->address;
    return (x > y) - (x < y);
}

static void check_list(const struct model *m, weir_stream s)
{
    static weir_shared_block listed[MODEL_BLOCKS];
    size_t n = weir_torch_list(0, listed, MODEL_BLOCKS);
    assert_int_equal(n, m->n);
    qsort(listed, n, sizeof *listed, by_address);
    for (unsigned i = 0; i < m->n; i++) {
        weir_shared_block key = {.address = (uintptr_t)m->blocks[i]};
        const weir_shared_block *found = bsearch(&key, listed, n, sizeof key, by_address);
        assert_non_null(found);
        assert_int_equal(found->bytes, m->bytes[i]);
        assert_ptr_equal(found->stream, s);
    }
}

static void test_the_list_is_what_a_model_says_after_any_allocs_and_frees(void **state)
{
    (void)state;
    static struct model m;
    uint64_t random = 11;
    weir_stream a = wr_world_stream(&world);
    for (int i = 0; i < MODEL_STEPS; i++)
        model_step(&m, &random, a);
    check_list(&m, a);
    weir_shared_counts c = counts_of(0);
    assert_int_equal(c.live_blocks, m.n);
    assert_int_equal(c.requested_bytes, m.requested);
    assert_int_equal(c.live_bytes, wr_world_stats(&world).live_bytes);
    while (m.n > 0)
        weir_torch_native_free(m.blocks[--m.n]);
    assert_int_equal(weir_torch_list(0, NULL, 0), 0);
    assert_int_equal(counts_of(0).requested_bytes, 0);
}

/* ---- threads, and a child of fork --------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 2000 };

static void *alloc_and_free(void *stream)
{
    void *kept[16] = {NULL};
    for (int i = 0; i < ROUNDS; i++) {
        void **slot = &kept[i % WR_ARRAY_LEN(kept)];
        weir_torch_native_free(*slot);
        *slot = weir_torch_native_alloc(1000, 0, stream);
        if (*slot == NULL) return "no block";
    }
    for (size_t i = 0; i < WR_ARRAY_LEN(kept); i++)
        weir_torch_native_free(kept[i]);
    return NULL;
}

static void test_threads_allocate_and_free_side_by_side(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    weir_shared_counts before = counts_of(0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, alloc_and_free, wr_world_stream(&world)), 0);
    for (int i = 0; i < THREADS; i++) {
        void *error;
        assert_int_equal(pthread_join(threads[i], &error), 0);
        assert_null(error);
    }
    assert_int_equal(counts_of(0).live_blocks, 0);
    assert_int_equal(counts_of(0).allocated_blocks - before.allocated_blocks, THREADS * ROUNDS);
}

static void test_P04_a_forked_childs_frees_and_questions_do_nothing(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    void *x = weir_torch_native_alloc(WR_MIB, 0, a);
    uint64_t calls = wr_sim_calls(world.sim);
    pid_t child = fork();
    if (child == 0) {
        weir_torch_native_free(x);
        bool nothing = weir_torch_native_alloc(WR_MIB, 0, a) == NULL && bytes_of(x) == 0 &&
                       weir_torch_list(0, NULL, 0) == 0;
        _exit(nothing && wr_sim_calls(world.sim) == calls ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(counts_of(0).live_blocks, 1);
    weir_torch_native_free(x);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, wr_world_close_one)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_block_freed_by_address_serves_its_own_stream_at_once),
        TEST(test_a_recorded_stream_holds_a_block_that_is_freed_by_address),
        TEST(test_T01_counts_follow_each_alloc_and_free_and_peaks_stay_until_they_are_reset),
        TEST(test_what_is_not_live_is_left_alone),
        TEST(test_an_alloc_that_fails_counts_nothing),
        TEST(test_each_device_has_its_own_blocks),
        TEST(test_the_list_is_what_a_model_says_after_any_allocs_and_frees),
        TEST(test_threads_allocate_and_free_side_by_side),
        TEST(test_P04_a_forked_childs_frees_and_questions_do_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
