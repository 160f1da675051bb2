/* SPDX-License-Identifier: Apache-2.0
 *
 * Any one call of the driver fails, in a run over each kind of queue whose users go on whatever happens: nothing
 * is lost, nothing is read too early, and at the end the queue is idle.
 */
#include "queue_world.h"

enum { ITEM = 4096, ROUNDS = 5 };

static const int64_t SECOND = 1000000000;

struct run {
    struct world w;
    weir_consumers kind;
    weir_consumer actor[2];
    unsigned committed, delivered;
};

static bool registers(const struct run *r)
{
    return r->kind == WEIR_CONSUMERS_SHARED || r->kind == WEIR_CONSUMERS_BROADCAST;
}

static void put(struct run *r, int64_t key)
{
    uint32_t words[64];
    write_words(words, sizeof words, 1);
    weir_span span = {words, sizeof words};
    r->committed += weir_queue_put(r->w.queue, key, &span, 1, WEIR_PUSH_NEW_KEY, SECOND, NULL) == WEIR_OK;
}

static weir_status acquire(struct run *r, int i, weir_item *item)
{
    if (registers(r)) return weir_queue_acquire_as(r->w.queue, r->actor[i], r->w.stream[i], 0, item);
    return weir_queue_acquire(r->w.queue, r->w.stream[i], 0, item);
}

static void read_item(struct run *r, int i, const weir_item *item)
{
    while (wr_kernels_verify(r->w.device, r->w.stream[i], item->device, item->bytes, 1, r->w.counter[i]) !=
           WEIR_OK) {
    }
}

static void finish(struct run *r, int i, weir_item *item)
{
    read_item(r, i, item);
    weir_queue_use(r->w.queue, item, r->w.stream[3]);
    while (weir_queue_release(r->w.queue, item, NULL, 0) != WEIR_OK) {
    }
}

/* An acquire that fails leaves the item to the next one. */
static void eat_all(struct run *r, int i)
{
    weir_item item;
    for (weir_status s = WEIR_OK; s != WEIR_WOULD_BLOCK;) {
        s = acquire(r, i, &item);
        assert_true(s == WEIR_OK || s == WEIR_WOULD_BLOCK || s == WEIR_DRIVER_ERROR);
        if (s != WEIR_OK) continue;
        r->delivered++;
        finish(r, i, &item);
    }
}

static void peek(struct run *r)
{
    weir_item item;
    if (r->kind == WEIR_CONSUMERS_BROADCAST) return;
    if (weir_queue_peek(r->w.queue, 0, r->w.stream[2], 0, &item) == WEIR_OK) finish(r, 2, &item);
}

/* A consumer dies with the item that it is reading, and another takes its place. */
static void replace_actor(struct run *r)
{
    weir_item item = {0};
    if (acquire(r, 0, &item) == WEIR_OK) {
        read_item(r, 0, &item);
        r->delivered++;
    }
    for (weir_status s = WEIR_DRIVER_ERROR; s != WEIR_OK;) {
        s = weir_queue_leave(r->w.queue, r->actor[0]);
        assert_true(s == WEIR_OK || s == WEIR_DRIVER_ERROR);
    }
    assert_int_equal(weir_queue_release(r->w.queue, &item, NULL, 0), WEIR_STALE_HANDLE);
    OK(weir_queue_join(r->w.queue, &r->actor[0]));
}

static void run_whatever_fails(struct run *r)
{
    for (int i = 0; i < 2 && registers(r); i++)
        OK(weir_queue_join(r->w.queue, &r->actor[i]));
    for (int i = 0; i < ROUNDS; i++) {
        weir_item item;
        put(r, 2 * i);
        if (weir_queue_reserve_key(r->w.queue, 2 * i + 1, ITEM, SECOND, &item) == WEIR_OK) {
            write_item(&r->w, &item, 1);
            r->committed += weir_queue_commit(r->w.queue, &item) == WEIR_OK;
        }
        peek(r);
        if (i == 1) OK(weir_queue_clear(r->w.queue));
        if (i == 2 && registers(r)) replace_actor(r);
        eat_all(r, 0);
        if (registers(r)) eat_all(r, 1);
    }
}

/* Each item goes to one, to both, or to one unless a newer one has come; those of one round are taken out. */
static void assert_nothing_lost(const struct run *r)
{
    weir_queue_stats s = stats_of(r->w.queue);
    assert_in_range(r->committed, 2 * ROUNDS - 1, 2 * ROUNDS);
    if (r->kind == WEIR_CONSUMERS_BROADCAST)
        assert_in_range(r->delivered, 2 * (r->committed - 2) - 2, 2 * r->committed); /* one joined late */
    else
        assert_int_equal(r->delivered, r->committed - s.items_cancelled - s.items_replaced);
    assert_int_equal(s.host_syncs, 0);
}

static bool run_with_failure(weir_consumers kind, uint64_t n)
{
    struct run r = {.kind = kind};
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, 3);
    q.consumers = kind;
    open_world(&r.w, &o, 0, &q);
    uint64_t before = wr_sim_calls(r.w.sim);
    wr_sim_fail_nth(r.w.sim, n, WEIR_DRIVER_ERROR);
    run_whatever_fails(&r);
    OK(weir_queue_wait_idle(r.w.queue, SECOND));
    bool over = wr_sim_calls(r.w.sim) - before < n;
    wr_sim_fail_nth(r.w.sim, 0, WEIR_OK);
    assert_nothing_lost(&r);
    OK(weir_pool_check(r.w.pool));
    close_world(&r.w);
    return over;
}

static void test_any_failing_call_leaves_every_kind_of_queue_whole(void **state)
{
    (void)state;
    for (int kind = WEIR_CONSUMERS_LOOSE; kind <= WEIR_CONSUMERS_LATEST; kind++)
        for (uint64_t n = 1; !run_with_failure((weir_consumers)kind, n); n++)
            assert_true(n < 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_failing_call_leaves_every_kind_of_queue_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
