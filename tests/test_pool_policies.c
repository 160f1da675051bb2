/* SPDX-License-Identifier: Apache-2.0
 *
 * Reuse policies: what each lets others have, what each waits for, and that none waits for more (A06, A18,
 * A19).
 */
#include "pool_world.h"

#define MS  ((uint64_t)1000000)
#define MIB WR_MIB

static weir_status alloc_with(
    struct wr_world *w, size_t bytes, weir_stream s, weir_reuse reuse, int64_t deadline_ns, weir_dptr *out)
{
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = reuse, .deadline_ns = deadline_ns};
    return weir_alloc_with(w->pool, bytes, s, &o, out);
}

static weir_dptr must_alloc_with(struct wr_world *w, size_t bytes, weir_stream s, weir_reuse reuse)
{
    weir_dptr x = 0;
    assert_int_equal(alloc_with(w, bytes, s, reuse, -1, &x), WEIR_OK);
    return x;
}

static uint64_t served_by(struct wr_world *w, enum wr_rung rung)
{
    return atomic_load(&w->pool->served[rung]);
}

static uint64_t id_of(struct wr_world *w, weir_stream s)
{
    struct wr_stream_info info;
    assert_int_equal(w->device->ops->stream_identify(w->device, s, &info), WEIR_OK);
    return info.id;
}

/* ---- OWNER ------------------------------------------------------------------------------------------- */

/* X of `a` is read by `b`, which nobody has declared, and dropped before `a` waits for `b`. */
static weir_dptr drop_under_a_secret_reader(
    struct wr_world *w, size_t bytes, weir_stream a, weir_stream b, weir_reuse reuse)
{
    weir_dptr x = must_alloc_with(w, bytes, a, reuse);
    wr_world_stall(w, b);
    wr_world_read(w, b, x, bytes, MS);
    wr_world_free(w, x, a);
    return x;
}

static void test_A06_an_owners_block_moves_when_the_whole_context_has_passed(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = drop_under_a_secret_reader(&w, 8 * MIB, a, b, WEIR_REUSE_DEFAULT);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, c), 0);
    size_t freed = 1;
    assert_int_equal(weir_trim(w.pool, 0, &freed), WEIR_OK);
    assert_int_equal(freed, 0);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, 8 * MIB);

    assert_int_equal(wr_world_alloc(&w, 8 * MIB, a), x); /* the owner may at once */
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, c), 0);
    wr_world_let_go(&w, w.gates[0]);
    assert_int_equal(wr_world_alloc(&w, 8 * MIB, c), x);
    wr_world_write(&w, c, x, 8 * MIB, MS);
    wr_world_free(&w, x, c);
    assert_int_equal(wr_world_stats(&w).stream_waits + wr_world_stats(&w).host_waits, 0);
    wr_world_close(&w);
}

static void test_A06_another_stream_gets_another_address(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 16 * MIB, .grow_bytes = 2 * MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = drop_under_a_secret_reader(&w, 8 * MIB, a, b, WEIR_REUSE_OWNER);
    weir_dptr y = wr_world_alloc(&w, 8 * MIB, c);
    assert_int_not_equal(x, y);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

/* As those do whose users are all declared, beside others in one pool. */
static void test_a_stream_that_first_asks_for_completed_reuse_has_it_in_a_pool_of_owners(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w), busy = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = must_alloc_with(&w, 8 * MIB, a, WEIR_REUSE_COMPLETED);
    wr_world_free(&w, x, a);
    wr_world_stall(&w, busy); /* it has nothing to do with it */
    assert_int_equal(wr_world_alloc(&w, 8 * MIB, c), x);
    wr_world_free(&w, x, c);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, a), 0); /* c has said nothing: it is an owner */
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_COMPLETED, -1, &x), WEIR_OK);
    wr_world_free(&w, x, c);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, a), 0); /* and remains one */
    wr_world_let_go(&w, w.gates[0]);
    wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, a), a);
    wr_world_close(&w);
}

/* Whoever says nothing counts on the pool's word. */
static void test_a_stream_of_completed_reuse_is_an_owner_again_once_an_alloc_says_nothing(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w), busy = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = must_alloc_with(&w, 8 * MIB, a, WEIR_REUSE_COMPLETED);
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_alloc(&w, 8 * MIB, a), x);
    wr_world_stall(&w, busy); /* it may use the block: nobody has said so */
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, c), 0);
    wr_world_let_go(&w, w.gates[0]);
    wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, c), c);
    wr_world_close(&w);
}

static void test_declared_users_hold_an_owners_block_from_its_owner_too(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a);
    wr_world_stall(&w, b);
    wr_world_read(&w, b, x, 8 * MIB, MS);
    wr_world_touch(&w, x, b);
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, a), 0);
    wr_world_let_go(&w, w.gates[0]);
    wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, a), a);
    wr_world_close(&w);
}

struct capture {
    struct wr_world *world;
    weir_stream stream;
    bool on;
};

static void *set_capturing(void *arg)
{
    const struct capture *c = arg;
    wr_sim_set_capturing(c->world->device, c->stream, c->on);
    return NULL;
}

/* By another thread: what its capture forbids the others is the context's event alone. */
static void capture_elsewhere(struct wr_world *w, weir_stream s, bool on)
{
    pthread_t thread;
    struct capture c = {.world = w, .stream = s, .on = on};
    assert_int_equal(pthread_create(&thread, NULL, set_capturing, &c), 0);
    pthread_join(thread, NULL);
}

/* A stream that captures would lose its capture to an event of the context. */
static void test_an_owners_memory_stays_put_while_a_stream_captures(void **state)
{
    (void)state;
    enum { FREES = 600 }; /* so many that ticks fall due by weight */
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), graph = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 512, graph), graph);
    wr_sim_drain(w.sim);
    assert_int_equal(weir_trim(w.pool, 0, NULL), WEIR_OK);
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a);
    capture_elsewhere(&w, graph, true);
    for (int i = 0; i < FREES; i++) {
        wr_world_free(&w, x, a);
        x = wr_world_alloc(&w, 8 * MIB, a);
    }
    wr_world_free(&w, x, a);
    assert_int_equal(wr_world_try_alloc(&w, 8 * MIB, b), 0);
    capture_elsewhere(&w, graph, false);
    assert_int_equal(wr_world_counts(&w).captures_broken, 0);
    wr_world_free(&w, wr_world_alloc(&w, 8 * MIB, b), b);
    wr_world_close(&w);
}

static void test_an_owners_warm_pairs_make_next_to_no_driver_call(void **state)
{
    (void)state;
    enum { PAIRS = 5000 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.pool.reuse = WEIR_REUSE_OWNER});
    weir_stream a = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 4096, a), a);
    uint64_t calls = wr_sim_calls(w.sim);
    for (int i = 0; i < PAIRS; i++)
        wr_world_free(&w, wr_world_alloc(&w, 4096, a), a);
    assert_in_range(wr_sim_calls(w.sim) - calls, 0, PAIRS * 2 / 50);
    wr_world_close(&w);
}

/* ---- DEVICE_WAIT ------------------------------------------------------------------------------------- */

static weir_dptr free_unpassed(struct wr_world *w, size_t bytes, weir_stream s, unsigned ticks)
{
    weir_dptr x = wr_world_alloc(w, bytes, s);
    wr_world_stall(w, s);
    wr_world_write(w, s, x, bytes, MS);
    for (unsigned i = 0; i < ticks; i++)
        wr_world_touch(w, x, s); /* at home it declares nothing, but it ticks */
    wr_world_free(w, x, s);
    return x;
}

static void test_device_wait_takes_a_donors_pages_for_one_stream_wait(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = free_unpassed(&w, 8 * MIB, a, 0);
    assert_int_equal(must_alloc_with(&w, 8 * MIB, c, WEIR_REUSE_DEVICE_WAIT), x);
    assert_int_equal(served_by(&w, WR_RUNG_device_wait), 1);
    assert_int_equal(wr_world_stats(&w).stream_waits, 1);
    assert_int_equal(wr_world_counts(&w).stream_waits, 1);
    assert_int_equal(wr_world_stats(&w).host_waits, 0);
    wr_world_check(&w);
    wr_world_write(&w, c, x, 8 * MIB, MS);
    wr_world_free(&w, x, c);
    wr_world_close(&w);
}

static void test_what_a_device_wait_took_moves_on_only_after_the_wait(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), c = wr_world_stream(&w), d = wr_world_stream(&w);
    free_unpassed(&w, 8 * MIB, a, 0);
    weir_dptr x = must_alloc_with(&w, 3 * MIB, c, WEIR_REUSE_DEVICE_WAIT);
    wr_world_free(&w, x, c);
    assert_int_equal(wr_world_try_alloc(&w, 4 * MIB, d), 0);
    wr_world_let_go(&w, w.gates[0]);
    weir_dptr y = wr_world_alloc(&w, 8 * MIB, d);
    wr_world_write(&w, d, y, 8 * MIB, MS);
    wr_world_free(&w, y, d);
    wr_world_close(&w);
}

static void test_device_wait_goes_to_the_cheapest_donor(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .grow_bytes = 2 * MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 4 * MIB, a, 5);
    weir_dptr y = free_unpassed(&w, 4 * MIB, b, 1);
    assert_int_equal(must_alloc_with(&w, 4 * MIB, c, WEIR_REUSE_DEVICE_WAIT), y);
    assert_int_equal(wr_world_stats(&w).stream_waits, 1);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

static void test_device_wait_serves_a_stream_from_what_its_own_users_hold(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), readers[2] = {wr_world_stream(&w), wr_world_stream(&w)};
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a);
    for (int i = 0; i < 2; i++) {
        wr_world_stall(&w, readers[i]);
        wr_world_read(&w, readers[i], x, 8 * MIB, MS);
        wr_world_touch(&w, x, readers[i]);
    }
    wr_world_free(&w, x, a);
    assert_int_equal(must_alloc_with(&w, 8 * MIB, a, WEIR_REUSE_DEVICE_WAIT), x);
    assert_int_equal(wr_world_stats(&w).stream_waits, 2);
    assert_int_equal(wr_world_stats(&w).pending_bytes, 0);
    wr_world_write(&w, a, x, 8 * MIB, MS);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
}

static void test_device_wait_is_not_taken_where_passed_memory_is_enough(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .grow_bytes = 2 * MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 4 * MIB, a, 0);
    wr_world_free(&w, wr_world_alloc(&w, 4 * MIB, b), b);
    weir_dptr y = must_alloc_with(&w, 4 * MIB, c, WEIR_REUSE_DEVICE_WAIT);
    assert_int_equal(wr_world_counts(&w).stream_waits, 0);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

static void test_device_wait_that_no_single_donor_can_end_puts_no_wait(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .grow_bytes = 2 * MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 4 * MIB, a, 0);
    free_unpassed(&w, 4 * MIB, b, 0);
    weir_dptr y = 1;
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_DEVICE_WAIT, 0, &y), WEIR_NOT_YET);
    assert_int_equal(y, 1);
    assert_int_equal(wr_world_counts(&w).stream_waits, 0);
    wr_world_close(&w);
}

static void test_device_wait_takes_an_owners_memory_behind_the_whole_context(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = drop_under_a_secret_reader(&w, 8 * MIB, a, b, WEIR_REUSE_OWNER);
    assert_int_equal(must_alloc_with(&w, 8 * MIB, c, WEIR_REUSE_DEVICE_WAIT), x);
    wr_world_write(&w, c, x, 8 * MIB, MS); /* the oracle sees whether it is behind b's read */
    wr_world_free(&w, x, c);
    wr_world_close(&w);
}

/* ---- HOST_WAIT --------------------------------------------------------------------------------------- */

/* `k` is stalled for good over 4 MiB; `b` passes at 10 ms. */
static void test_A18_a_host_wait_is_for_the_one_fence_that_helps(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 12 * MIB, .grow_bytes = 2 * MIB});
    weir_stream k = wr_world_stream(&w), b = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 4 * MIB, k, 0);
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, b), y;
    wr_world_write(&w, b, x, 8 * MIB, 10 * MS);
    wr_world_free(&w, x, b);
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_HOST_WAIT, 100 * MS, &y), WEIR_OK);
    assert_int_equal(y, x);
    assert_in_range(w.device->ops->now_ns(w.device), 10 * MS, 11 * MS);
    assert_int_equal(served_by(&w, WR_RUNG_host_wait), 1);
    assert_int_equal(wr_world_stats(&w).host_waits, 1);
    assert_int_equal(wr_world_counts(&w).host_syncs + wr_world_counts(&w).stream_waits, 0);
    wr_world_write(&w, c, y, 8 * MIB, MS);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

static void test_A18_a_host_wait_goes_on_from_fence_to_fence(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB, .grow_bytes = 2 * MIB});
    weir_stream s[2], c = wr_world_stream(&w);
    for (uint64_t i = 0; i < 2; i++) { /* the pieces touch: both are needed */
        s[i] = wr_world_stream(&w);
        weir_dptr x = wr_world_alloc(&w, 4 * MIB, s[i]);
        wr_world_write(&w, s[i], x, 4 * MIB, (i + 1) * 2 * MS);
        wr_world_free(&w, x, s[i]);
    }
    weir_dptr y = must_alloc_with(&w, 8 * MIB, c, WEIR_REUSE_HOST_WAIT);
    assert_in_range(w.device->ops->now_ns(w.device), 4 * MS, 5 * MS);
    wr_world_write(&w, c, y, 8 * MIB, MS);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

/* A block that two streams use, of another heap: three fences in a row. */
static void test_a_host_wait_is_for_each_user_of_a_block(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), users[2] = {wr_world_stream(&w), wr_world_stream(&w)};
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a);
    for (uint64_t i = 0; i < 2; i++) {
        wr_world_read(&w, users[i], x, 8 * MIB, (i + 1) * MS);
        wr_world_touch(&w, x, users[i]);
    }
    wr_world_read(&w, a, x, 8 * MIB, 3 * MS);
    wr_world_free(&w, x, a);
    weir_stream c = wr_world_stream(&w);
    weir_dptr y = must_alloc_with(&w, 8 * MIB, c, WEIR_REUSE_HOST_WAIT);
    assert_in_range(w.device->ops->now_ns(w.device), 3 * MS, 4 * MS);
    wr_world_write(&w, c, y, 8 * MIB, MS);
    wr_world_free(&w, y, c);
    wr_world_close(&w);
}

static void test_A19_a_host_wait_ends_at_its_deadline(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream k = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 8 * MIB, k, 0);
    weir_dptr y = 1;
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_HOST_WAIT, 5 * MS, &y), WEIR_TIMEOUT);
    assert_int_equal(y, 1);
    assert_int_equal(w.device->ops->now_ns(w.device), 5 * MS);
    assert_int_equal(wr_world_stats(&w).host_waits, 1);
    assert_int_equal(wr_world_counts(&w).host_syncs, 0);
    weir_failure f = {.struct_size = sizeof f};
    assert_int_equal(weir_last_failure(&f), WEIR_OK);
    assert_int_equal(f.status, WEIR_TIMEOUT);
    assert_int_equal(f.fence_stream, id_of(&w, k));
    assert_int_equal(f.pending_bytes, 8 * MIB);
    wr_world_close(&w);
}

static void test_a_host_wait_for_nothing_fails_at_once(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream a = wr_world_stream(&w), c = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * MIB, a), y;
    wr_world_stall(&w, a);
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_HOST_WAIT, -1, &y), WEIR_OUT_OF_MEMORY);
    assert_int_equal(w.device->ops->now_ns(w.device), 0);
    assert_int_equal(wr_world_stats(&w).host_waits, 0);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
}

/* ---- per pool and per call --------------------------------------------------------------------------- */

static void test_a_call_goes_by_the_pools_policy_unless_it_names_one(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB,
                          .pool = {.reuse = WEIR_REUSE_HOST_WAIT, .deadline_ns = 5 * MS}});
    weir_stream k = wr_world_stream(&w), c = wr_world_stream(&w);
    free_unpassed(&w, 8 * MIB, k, 0);
    weir_dptr y;
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_COMPLETED, 0, &y), WEIR_NOT_YET);
    assert_int_equal(w.device->ops->now_ns(w.device), 0);
    assert_int_equal(weir_alloc(w.pool, 8 * MIB, c, &y), WEIR_TIMEOUT);
    assert_int_equal(w.device->ops->now_ns(w.device), 5 * MS);
    assert_int_equal(alloc_with(&w, 8 * MIB, c, WEIR_REUSE_DEFAULT, 2 * MS, &y), WEIR_TIMEOUT);
    assert_int_equal(w.device->ops->now_ns(w.device), 7 * MS);
    wr_world_free(&w, must_alloc_with(&w, 8 * MIB, c, WEIR_REUSE_DEVICE_WAIT), c);
    wr_world_close(&w);
}

static void test_policies_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr y = 1;
    assert_int_equal(alloc_with(&w, 512, s, WEIR_REUSE_HOST_WAIT, 0, &y), WEIR_INVALID_ARGUMENT);
    assert_int_equal(alloc_with(&w, 512, s, WEIR_REUSE_HOST_WAIT, -2, &y), WEIR_INVALID_ARGUMENT);
    assert_int_equal(
        alloc_with(&w, 512, s, (weir_reuse)(WEIR_REUSE_HOST_WAIT + 1), 1, &y), WEIR_INVALID_ARGUMENT);
    assert_int_equal(y, 1);
    const weir_pool_options bad[] = {{.reuse = WEIR_REUSE_HOST_WAIT}, {.reuse = (weir_reuse)9},
        {.reuse = WEIR_REUSE_HOST_WAIT, .deadline_ns = INT64_MIN}};
    for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
        weir_pool *p = NULL;
        assert_int_equal(wr_pool_open(w.device, &bad[i], &p), WEIR_INVALID_ARGUMENT);
        assert_null(p);
    }
    wr_world_close(&w);
}

/* Random life under an adversary: whatever the policy, the oracle sees no early reuse. */
static void test_no_policy_reuses_early(void **state)
{
    (void)state;
    enum { STREAMS = 4, LIVE = 24, STEPS = 4000 };
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct wr_world w;
        struct {
            weir_dptr block;
            size_t bytes;
            weir_stream home;
        } live[LIVE] = {0};
        weir_stream s[STREAMS];
        uint64_t random = seed * 77;
        wr_world_open(&w, &(struct wr_world_options){
                              .limit_bytes = 32 * MIB, .grow_bytes = 2 * MIB, .adversary_seed = seed});
        for (int i = 0; i < STREAMS; i++)
            s[i] = wr_world_stream(&w);
        for (int step = 0; step < STEPS; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t r = random >> 20;
            unsigned slot = r % LIVE, on = r / LIVE % STREAMS, kind = r / 1024 % 8;
            if (live[slot].block == 0) {
                weir_alloc_options o = {.struct_size = sizeof o,
                    .alignment = (size_t)512 << r / 8192 % 13,
                    .reuse = kind % 2 == 0 ? WEIR_REUSE_DEVICE_WAIT : WEIR_REUSE_HOST_WAIT,
                    .deadline_ns = 20000};
                if (kind == 7 && seed == 3 && on == 0) o.reuse = WEIR_REUSE_OWNER;
                live[slot].bytes = kind < 4 ? 512 + r % 60000 : 512 + r % (5 * MIB);
                live[slot].home = s[on];
                weir_status st = weir_alloc_with(w.pool, live[slot].bytes, s[on], &o, &live[slot].block);
                assert_true(
                    st == WEIR_OK || st == WEIR_NOT_YET || st == WEIR_TIMEOUT || st == WEIR_OUT_OF_MEMORY);
                if (st == WEIR_OK) wr_world_write(&w, s[on], live[slot].block, live[slot].bytes, MS);
                continue;
            }
            if (kind < 3 && s[on] != live[slot].home) {
                wr_world_join(&w, live[slot].home, s[on]);
                wr_world_read(&w, s[on], live[slot].block, live[slot].bytes, MS);
                wr_world_touch(&w, live[slot].block, s[on]);
            }
            wr_world_free(&w, live[slot].block, live[slot].home);
            live[slot].block = 0;
            if (step % 200 == 0) wr_world_check(&w);
        }
        for (int i = 0; i < LIVE; i++)
            wr_world_free(&w, live[i].block, live[i].home);
        assert_true(wr_world_stats(&w).stream_waits > 0 && wr_world_stats(&w).host_waits > 0);
        wr_world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_A06_an_owners_block_moves_when_the_whole_context_has_passed),
        cmocka_unit_test(test_A06_another_stream_gets_another_address),
        cmocka_unit_test(test_a_stream_that_first_asks_for_completed_reuse_has_it_in_a_pool_of_owners),
        cmocka_unit_test(test_a_stream_of_completed_reuse_is_an_owner_again_once_an_alloc_says_nothing),
        cmocka_unit_test(test_declared_users_hold_an_owners_block_from_its_owner_too),
        cmocka_unit_test(test_an_owners_memory_stays_put_while_a_stream_captures),
        cmocka_unit_test(test_an_owners_warm_pairs_make_next_to_no_driver_call),
        cmocka_unit_test(test_device_wait_takes_a_donors_pages_for_one_stream_wait),
        cmocka_unit_test(test_what_a_device_wait_took_moves_on_only_after_the_wait),
        cmocka_unit_test(test_device_wait_goes_to_the_cheapest_donor),
        cmocka_unit_test(test_device_wait_serves_a_stream_from_what_its_own_users_hold),
        cmocka_unit_test(test_device_wait_is_not_taken_where_passed_memory_is_enough),
        cmocka_unit_test(test_device_wait_that_no_single_donor_can_end_puts_no_wait),
        cmocka_unit_test(test_device_wait_takes_an_owners_memory_behind_the_whole_context),
        cmocka_unit_test(test_A18_a_host_wait_is_for_the_one_fence_that_helps),
        cmocka_unit_test(test_A18_a_host_wait_goes_on_from_fence_to_fence),
        cmocka_unit_test(test_a_host_wait_is_for_each_user_of_a_block),
        cmocka_unit_test(test_A19_a_host_wait_ends_at_its_deadline),
        cmocka_unit_test(test_a_host_wait_for_nothing_fails_at_once),
        cmocka_unit_test(test_a_call_goes_by_the_pools_policy_unless_it_names_one),
        cmocka_unit_test(test_policies_that_make_no_sense_are_refused),
        cmocka_unit_test(test_no_policy_reuses_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
