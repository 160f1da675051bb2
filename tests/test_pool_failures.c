/* SPDX-License-Identifier: Apache-2.0
 *
 * A22: the n-th call of the driver fails, for each n of three scenarios: one that uses all of the pool, one in
 * which two streams take memory from each other under the limit, one of a queue. Every call returns, with a
 * status that it may return; the pool is sound; another thread's next call returns; and after the last close
 * nothing is left, whatever failed.
 */
#include "pool_world.h"
#include "weir_queue.h"

#include <string.h>

#define MS    ((uint64_t)1000000)
#define LIMIT (32 * WR_MIB)

enum { BLOCKS = 8, LOOKS = 100 };

/* What the scenario holds at the moment. */
struct play {
    struct wr_world *world;
    weir_status injected;
    weir_dptr blocks[BLOCKS];
    weir_stream home, side;
};

static void assert_may_return(const struct play *p, weir_status st, bool may_lack_memory)
{
    bool lack = st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY || st == WEIR_TIMEOUT;
    if (st != WEIR_OK && st != p->injected && !(may_lack_memory && lack))
        fail_msg("%s: %s", weir_status_name(st), weir_error_text());
}

static void play_alloc(struct play *p, int i, size_t bytes, weir_stream s)
{
    weir_dptr block = 0;
    weir_status st = weir_alloc(p->world->pool, bytes, s, &block);
    assert_may_return(p, st, true);
    assert_int_equal(st == WEIR_OK, block != 0);
    p->blocks[i] = block;
}

/* A free may be refused by the driver on the way; then the block is still the caller's. */
static void play_free(struct play *p, int i, weir_stream s)
{
    weir_status st = weir_free(p->world->pool, p->blocks[i], s);
    assert_may_return(p, st, false);
    if (st == WEIR_OK) p->blocks[i] = 0;
}

static void play_touch(struct play *p, int i, weir_stream s)
{
    if (p->blocks[i] == 0) return;
    assert_may_return(p, weir_touch(p->world->pool, p->blocks[i], s, 0), false);
}

/* Pinned memory is the device's: a closed pool would take no free any more. */
static void play_pinned(struct play *p)
{
    weir_pool *pool = p->world->pool;
    void *first = NULL, *second = NULL;
    assert_may_return(p, weir_host_alloc(pool, 4096, &first), false);
    weir_status st = weir_host_free(pool, first, p->side);
    assert_may_return(p, st, false);
    if (st != WEIR_OK) assert_int_equal(weir_host_free(pool, first, WEIR_NO_STREAM), WEIR_OK);
    assert_may_return(p, weir_host_alloc(pool, 4096, &second), false);
    assert_int_equal(weir_host_free(pool, second, WEIR_NO_STREAM), WEIR_OK);
}

/* DRIVER_ERROR: memory that the driver did not take back, whatever it said; the next close tries again. */
static void play_close(struct play *p)
{
    weir_status st = weir_pool_close(p->world->pool);
    if (st != WEIR_NOT_YET && st != WEIR_CLOSED && st != WEIR_DRIVER_ERROR) assert_may_return(p, st, false);
}

/* Work is left out on purpose: its queueing would be among the calls that fail. */
static void play_all(struct play *p)
{
    weir_pool *pool = p->world->pool;
    for (int i = 0; i < BLOCKS; i++)
        play_alloc(p, i, i % 2 == 0 ? 5 * WR_MIB : 300 * WR_KIB, i % 4 < 2 ? p->home : p->side);
    for (int i = 0; i < BLOCKS; i += 2)
        play_touch(p, i, i % 4 < 2 ? p->side : p->home);
    for (int i = 0; i < BLOCKS; i += 3)
        play_free(p, i, p->home);
    play_alloc(p, 0, 20 * WR_MIB, p->home);
    play_alloc(p, 3, 3 * WR_MIB, p->side);
    play_pinned(p);
    assert_may_return(p, weir_trim(pool, 0, NULL), false);
    assert_may_return(p, weir_stream_retire(pool, p->side), false);
    for (int i = 0; i < BLOCKS; i++)
        play_free(p, i, p->home);
    assert_may_return(p, weir_trim(pool, 0, NULL), false);
    play_close(p);
}

/* Two streams want most of the limit in turn: growth, pages taken from each other, segments given back for
 * segments of another size, small and large blocks, ends of streams. */
static void play_stealing(struct play *p)
{
    weir_pool *pool = p->world->pool;
    enum { ROUNDS = 3 };
    for (int round = 0; round < ROUNDS; round++) {
        weir_stream one = round % 2 == 0 ? p->home : p->side, other = round % 2 == 0 ? p->side : p->home;
        play_alloc(p, 0, 13 * WR_MIB, one);
        play_alloc(p, 1, 300 * WR_KIB, one);
        play_alloc(p, 2, 7 * WR_MIB, one);
        play_touch(p, 0, other);
        play_free(p, 2, one);
        play_free(p, 0, one);
        play_alloc(p, 3, 6 * WR_MIB, other); /* what `one` has passed */
        play_alloc(p, 4, 12 * WR_MIB, other);
        assert_may_return(p, weir_trim(pool, 4 * WR_MIB, NULL), false);
        play_free(p, 3, one);               /* far from home */
        play_alloc(p, 5, 18 * WR_MIB, one); /* segments of another size make room */
        play_free(p, 5, one);
        play_free(p, 4, other);
        play_free(p, 1, other);
        for (int i = 0; i < BLOCKS; i++)
            play_free(p, i, p->home); /* what was refused before */
    }
    assert_may_return(p, weir_stream_retire(pool, p->home), false);
    play_alloc(p, 6, 28 * WR_MIB, p->side);
    play_free(p, 6, p->side);
    play_close(p);
}

/* ---- a queue ----------------------------------------------------------------------------------------- */

enum { ITEM_BYTES = 64 << 10 };

/* A queue may also say that there is no place, or no item, now. */
static bool queue_call(const struct play *p, weir_status st)
{
    if (st != WEIR_WOULD_BLOCK) assert_may_return(p, st, true);
    return st == WEIR_OK;
}

static void play_reserved_item(struct play *p, weir_queue *q, bool aborts)
{
    weir_item item;
    if (!queue_call(p, weir_queue_reserve(q, ITEM_BYTES, 0, &item))) return;
    wr_sim_host_access(p->world->sim, item.host, item.bytes, true);
    memset(item.host, 1, item.bytes);
    queue_call(p, aborts ? weir_queue_abort(q, &item) : weir_queue_commit(q, &item));
}

static void play_pushed_item(struct play *p, weir_queue *q)
{
    static const char text[ITEM_BYTES / 2];
    const weir_span spans[] = {{text, sizeof text}, {text, 100}};
    queue_call(p, weir_queue_push(q, spans, 2, WEIR_PUSH_COPY, 0, NULL));
}

/* An item that can't be released now is still held: the second try may only be as unlucky as the first. */
static void play_delivered_item(struct play *p, weir_queue *q)
{
    weir_item item;
    const weir_stream both[] = {p->side, p->home};
    if (!queue_call(p, weir_queue_acquire(q, p->side, 0, &item))) return;
    queue_call(p, weir_queue_use(q, &item, p->home));
    if (!queue_call(p, weir_queue_release(q, &item, both, 2)))
        assert_int_equal(weir_queue_release(q, &item, both, 2), WEIR_OK);
}

static void play_queue(struct play *p)
{
    enum { ROUNDS = 4 };
    weir_queue *q;
    void *host = NULL;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = ITEM_BYTES, .items = 2};
    assert_may_return(p, weir_host_alloc(p->world->pool, 3 * WR_MIB, &host), false);
    if (queue_call(p, weir_queue_open(p->world->pool, &o, &q))) {
        for (int round = 0; round < ROUNDS; round++) {
            play_reserved_item(p, q, round == 1);
            play_pushed_item(p, q);
            play_delivered_item(p, q);
            wr_sim_drain(p->world->sim);
            play_delivered_item(p, q);
        }
        play_reserved_item(p, q, false); /* left in it */
        assert_int_equal(weir_queue_destroy(q), WEIR_OK);
    }
    weir_status st = weir_host_free(p->world->pool, host, p->home);
    assert_may_return(p, st, false);
    if (st != WEIR_OK) assert_int_equal(weir_host_free(p->world->pool, host, WEIR_NO_STREAM), WEIR_OK);
}

/* ---- the n-th call ----------------------------------------------------------------------------------- */

static void *call_from_another_thread(void *arg)
{
    struct play *p = arg;
    weir_stats stats = {.struct_size = sizeof stats};
    weir_status st = weir_pool_stats(p->world->pool, &stats);
    assert_true(st == WEIR_OK || st == WEIR_CLOSED);
    assert_int_equal(weir_pool_check(p->world->pool), st);
    assert_int_equal(weir_trim(p->world->pool, 0, NULL), st);
    return NULL;
}

/* What failed may be repeated, and succeeds. */
static void end_pool(struct play *p)
{
    weir_pool *pool = p->world->pool;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_from_another_thread, p), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < BLOCKS; i++) {
        weir_status st = weir_free(pool, p->blocks[i], p->home);
        if (p->blocks[i] != 0) assert_int_equal(st, WEIR_OK);
    }
    weir_status st = WEIR_NOT_YET;
    for (int i = 0; i < LOOKS && st != WEIR_OK && st != WEIR_CLOSED; i++) {
        wr_sim_drain(p->world->sim);
        st = weir_pool_close(pool);
    }
    assert_true(st == WEIR_OK || st == WEIR_CLOSED);
}

typedef void (*scenario)(struct play *p);

static uint64_t served[WR_RUNGS]; /* by each rung, in the last run */

/* True: the n-th call came. */
static bool play_with_failure(scenario run, uint64_t n, weir_status injected, weir_reuse reuse)
{
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){
                .limit_bytes = LIMIT, .grow_bytes = 2 * WR_MIB, .pool = {.reuse = reuse, .deadline_ns = MS}});
    struct play p = {
        .world = &w, .injected = injected, .home = wr_world_stream(&w), .side = wr_world_stream(&w)};
    uint64_t calls = wr_sim_calls(w.sim);
    wr_sim_fail_nth(w.sim, n, injected);
    run(&p);
    bool came = wr_sim_calls(w.sim) - calls >= n;
    wr_sim_fail_nth(w.sim, 0, WEIR_OK);
    for (int i = 0; i < WR_RUNGS; i++)
        served[i] = atomic_load(&w.pool->served[i]);
    end_pool(&p);
    while (w.n_streams > 0)
        wr_world_destroy_stream(&w, w.streams[0]);
    assert_int_equal(wr_sim_reports(w.sim), 0);
    assert_int_equal(wr_sim_close(w.sim), 0);
    return came;
}

static void fail_each_call_of(scenario run, weir_status injected, weir_reuse reuse)
{
    uint64_t n = 1;
    while (play_with_failure(run, n, injected, reuse))
        n++;
    assert_true(n > 50);
}

static void fail_each_call(scenario run)
{
    for (weir_reuse reuse = WEIR_REUSE_HOST_WAIT; reuse >= WEIR_REUSE_COMPLETED; reuse--) {
        fail_each_call_of(run, WEIR_DRIVER_ERROR, reuse);
        fail_each_call_of(run, WEIR_OUT_OF_MEMORY, reuse);
    }
}

static void test_A22_each_call_of_the_driver_may_fail(void **state)
{
    (void)state;
    fail_each_call(play_all);
}

static void test_A22_each_call_may_fail_while_two_streams_fight_for_the_limit(void **state)
{
    (void)state;
    fail_each_call(play_stealing);
    assert_true(served[WR_RUNG_grow] > 0);
    assert_true(served[WR_RUNG_gather] + served[WR_RUNG_stitch] + served[WR_RUNG_make_room] > 0);
}

static void test_A22_each_call_of_a_queue_may_fail(void **state)
{
    (void)state;
    fail_each_call(play_queue);
}

static void test_A22_a_pool_that_does_not_open_leaves_nothing(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){0});
    weir_pool *other = NULL;
    bool came = true;
    for (uint64_t n = 1; came; n++) {
        uint64_t calls = wr_sim_calls(w.sim);
        wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
        weir_status st = wr_pool_open(w.device, &(weir_pool_options){0}, &other);
        came = wr_sim_calls(w.sim) - calls >= n;
        assert_int_equal(st, came ? WEIR_DRIVER_ERROR : WEIR_OK);
        assert_int_equal(other == NULL, came);
    }
    wr_sim_fail_nth(w.sim, 0, WEIR_OK);
    wr_world_close_pool(&w, other);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_A22_each_call_of_the_driver_may_fail),
        cmocka_unit_test(test_A22_each_call_may_fail_while_two_streams_fight_for_the_limit),
        cmocka_unit_test(test_A22_each_call_of_a_queue_may_fail),
        cmocka_unit_test(test_A22_a_pool_that_does_not_open_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
