/* SPDX-License-Identifier: Apache-2.0
 *
 * Which item comes next, and who gets it: the queue's orders and its kinds of consumers.
 */
#include "queue_world.h"

#include <pthread.h>
#include <time.h>

enum { ITEM = 4096, MIB = 1024 * 1024 };

static const int64_t SECOND = 1000000000;

static void open_kind(
    struct world *w, unsigned items, weir_order order, weir_consumers consumers, bool wall_clock)
{
    struct wr_sim_options o = world_options();
    o.wall_clock = wall_clock;
    weir_queue_options q = queue_options(ITEM, items);
    q.order = order;
    q.consumers = consumers;
    open_world(w, &o, 0, &q);
}

static weir_status put_within(struct world *w, int64_t key, uint32_t tag, int64_t timeout_ns)
{
    uint32_t words[16];
    write_words(words, sizeof words, tag);
    weir_span span = {words, sizeof words};
    return weir_queue_put(w->queue, key, &span, 1, WEIR_PUSH_COPY, timeout_ns, NULL);
}

/* With time for the copy of an item before to end, whose staging is wanted. */
static weir_status put(struct world *w, int64_t key, uint32_t tag)
{
    return put_within(w, key, tag, SECOND / 1000);
}

static void finish(struct world *w, weir_item *item, uint32_t tag)
{
    read_item_on(w, item, tag, 0);
    OK(weir_queue_release(w->queue, item, NULL, 0));
}

static void get(struct world *w, int64_t key, uint32_t tag)
{
    weir_item item;
    OK(weir_queue_get(w->queue, key, w->stream[0], 0, &item));
    assert_int_equal(item.key, key);
    finish(w, &item, tag);
}

static void assert_none(struct world *w)
{
    weir_item item;
    assert_int_equal(weir_queue_acquire(w->queue, w->stream[0], 0, &item), WEIR_WOULD_BLOCK);
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void await_consumers(struct world *w, uint64_t n)
{
    while (stats_of(w->queue).waiting_item != n)
        nap();
}

/* ---- orders ------------------------------------------------------------------------------------------ */

static void test_ANY_gives_the_first_committed_and_holds_nobody_back(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_ANY, WEIR_CONSUMERS_LOOSE, false);
    weir_item first, second, third;
    OK(weir_queue_reserve(w.queue, 64, 0, &first));
    OK(weir_queue_reserve(w.queue, 64, 0, &second));
    OK(weir_queue_reserve(w.queue, 64, 0, &third));
    assert_none(&w);
    write_item(&w, &third, 3);
    OK(weir_queue_commit(w.queue, &third));
    write_item(&w, &second, 2);
    OK(weir_queue_commit(w.queue, &second));
    eat(&w, 3, 0);
    eat(&w, 2, 0);
    assert_none(&w);
    write_item(&w, &first, 1);
    OK(weir_queue_commit(w.queue, &first));
    eat(&w, 1, 0);
    close_world(&w);
}

static void test_PRIORITY_gives_the_greatest_and_of_equals_the_first(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 6, WEIR_ORDER_PRIORITY, WEIR_CONSUMERS_LOOSE, false);
    weir_item filling;
    OK(weir_queue_reserve_key(w.queue, INT64_MAX, 64, 0, &filling));
    OK(put(&w, -1, 4));
    OK(put(&w, 7, 2));
    OK(put(&w, 7, 3));
    OK(put(&w, INT64_MIN, 5));
    eat(&w, 2, 0);
    write_item(&w, &filling, 1);
    OK(weir_queue_commit(w.queue, &filling));
    for (uint32_t tag = 1; tag <= 5; tag++)
        if (tag != 2) eat(&w, tag, 0);
    assert_none(&w);
    close_world(&w);
}

static void test_KEYED_gives_each_key_its_own_in_the_order_of_reserve(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 5, WEIR_ORDER_KEYED, WEIR_CONSUMERS_LOOSE, false);
    weir_item item, filling;
    OK(put(&w, 1, 10));
    OK(weir_queue_reserve_key(w.queue, 2, 64, 0, &filling));
    OK(put(&w, 2, 20));
    OK(put(&w, -5, 50));
    OK(put(&w, 1, 11));
    get(&w, -5, 50);
    get(&w, 1, 10);
    assert_int_equal(weir_queue_get(w.queue, 9, w.stream[0], 0, &item), WEIR_WOULD_BLOCK);
    /* Of key 2 one is still being filled: it comes first. Of any key, the first committed. */
    assert_int_equal(weir_queue_get(w.queue, 2, w.stream[0], 0, &item), WEIR_WOULD_BLOCK);
    write_item(&w, &filling, 19);
    OK(weir_queue_commit(w.queue, &filling));
    get(&w, 2, 19);
    eat(&w, 20, 0);
    OK(weir_queue_close(w.queue));
    assert_int_equal(weir_queue_get(w.queue, 2, w.stream[0], -1, &item), WEIR_CLOSED);
    get(&w, 1, 11);
    close_world(&w);
}

struct getter {
    struct world *w;
    pthread_t thread;
    int64_t key;
    uint32_t tag;
};

static void *get_or_wait(void *arg)
{
    struct getter *g = arg;
    weir_item item;
    OK(weir_queue_get(g->w->queue, g->key, g->w->stream[g->key], -1, &item));
    read_item_on(g->w, &item, g->tag, (int)g->key);
    OK(weir_queue_release(g->w->queue, &item, NULL, 0));
    return NULL;
}

static void test_who_waits_for_one_key_does_not_hold_up_another(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_KEYED, WEIR_CONSUMERS_LOOSE, true);
    struct getter g[3];
    for (int i = 0; i < 3; i++) { /* in the line: 0, 1, 2; served: 2, 1, 0 */
        g[i] = (struct getter){.w = &w, .key = i, .tag = (uint32_t)i};
        assert_int_equal(pthread_create(&g[i].thread, NULL, get_or_wait, &g[i]), 0);
        await_consumers(&w, (uint64_t)i + 1);
    }
    for (int i = 2; i >= 0; i--) {
        OK(put(&w, i, (uint32_t)i));
        pthread_join(g[i].thread, NULL);
        assert_int_equal(stats_of(w.queue).waiting_item, i);
    }
    close_world(&w);
}

/* ---- consumers --------------------------------------------------------------------------------------- */

static void test_STRICT_has_one_item_out_at_a_time(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_FIFO, WEIR_CONSUMERS_STRICT, false);
    for (uint32_t tag = 0; tag < 3; tag++)
        OK(put(&w, 0, tag));
    for (uint32_t tag = 0; tag < 3; tag++) {
        weir_item item;
        OK(weir_queue_acquire(w.queue, w.stream[tag], 0, &item));
        assert_none(&w);
        read_item_on(&w, &item, tag, (int)tag);
        OK(weir_queue_release(w.queue, &item, NULL, 0));
    }
    close_world(&w);
}

static void test_SHARED_gives_each_item_to_one_and_takes_a_dead_ones_back(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 2, WEIR_ORDER_FIFO, WEIR_CONSUMERS_SHARED, false);
    weir_consumer a, b, none = 0;
    weir_item item, other;
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &item), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_acquire_as(w.queue, none, w.stream[0], 0, &item), WEIR_STALE_HANDLE);
    OK(weir_queue_join(w.queue, &a));
    OK(weir_queue_join(w.queue, &b));
    assert_int_equal(stats_of(w.queue).consumers, 2);
    OK(put(&w, 0, 1));
    OK(put(&w, 0, 2));
    OK(weir_queue_acquire_as(w.queue, a, w.stream[0], 0, &item));
    OK(weir_queue_acquire_as(w.queue, b, w.stream[1], 0, &other));
    assert_int_equal(other.ticket, item.ticket + 1);
    read_item_on(&w, &item, 1, 0);
    read_item_on(&w, &other, 2, 1);
    assert_int_equal(put(&w, 0, 3), WEIR_TIMEOUT);
    OK(weir_queue_leave(w.queue, a)); /* its thread ended with the item in its hands */
    assert_int_equal(weir_queue_leave(w.queue, a), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_acquire_as(w.queue, a, w.stream[0], 0, &item), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_release(w.queue, &item, NULL, 0), WEIR_STALE_HANDLE);
    wr_sim_drain(w.sim);
    OK(put(&w, 0, 3));
    OK(weir_queue_release(w.queue, &other, NULL, 0));
    OK(weir_queue_acquire_as(w.queue, b, w.stream[0], 0, &other));
    finish(&w, &other, 3);
    weir_consumer again;
    OK(weir_queue_join(w.queue, &again));
    assert_true(again != a);
    close_world(&w);
}

/* Four of them, one ten times slower than the others, who are to lose next to nothing: Q26. */
static void test_Q26_a_slow_one_of_four_does_not_hold_up_the_others(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 8, WEIR_ORDER_FIFO, WEIR_CONSUMERS_LOOSE, false);
    const uint64_t step = 1000000;
    uint64_t start = w.device->ops->now_ns(w.device), until[4] = {start, start, start, start};
    unsigned done[4] = {0};
    weir_item held[4] = {{0}};
    const uint64_t end = start + 100 * step;
    for (uint64_t now = start; now < end; now = w.device->ops->now_ns(w.device)) {
        while (put_within(&w, 0, 1, 0) == WEIR_OK) {
        }
        for (int i = 0; i < 4; i++) {
            if (until[i] > now) continue;
            if (held[i].device) OK(weir_queue_release(w.queue, &held[i], NULL, 0));
            if (weir_queue_acquire(w.queue, w.stream[i], 0, &held[i]) != WEIR_OK) continue;
            read_item_on(&w, &held[i], 1, i);
            OK(wr_kernels_spin(w.device, w.stream[i], (i == 3 ? 10 : 1) * step));
            until[i] = now + (i == 3 ? 10 : 1) * step;
            done[i]++;
        }
        wr_sim_advance(w.sim, step / 20);
    }
    for (int i = 0; i < 3; i++)
        assert_in_range(done[i], 97, 100);
    assert_in_range(done[3], 9, 10);
    close_world(&w);
}

static void test_Q26_two_queues_of_one_source_get_their_first_items_together(void **state)
{
    (void)state;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("gtx1080-pcie3x2")};
    struct wr_sim *sim;
    OK(wr_sim_open(&o, &sim));
    weir_pool *pool[2];
    weir_queue *queue[2];
    weir_stream stream[2];
    uint64_t arrived[2];
    uint32_t *batch = calloc(1, 1 * MIB);
    assert_non_null(batch);
    for (int i = 0; i < 2; i++) {
        weir_pool_options defaults = {.struct_size = sizeof defaults};
        weir_queue_options q = queue_options(1 * MIB, 2);
        struct wr_device *d = wr_sim_device(sim, (unsigned)i);
        OK(wr_pool_open(d, &defaults, &pool[i]));
        OK(weir_queue_open(pool[i], &q, &queue[i]));
        OK(d->ops->stream_create(d, &stream[i]));
    }
    uint64_t start = wr_sim_device(sim, 0)->ops->now_ns(wr_sim_device(sim, 0));
    for (int i = 0; i < 4; i++) /* one source, its batches in turn */
        OK(weir_queue_push(queue[i % 2], &(weir_span){batch, 1 * MIB}, 1, WEIR_PUSH_COPY, 0, NULL));
    for (int i = 0; i < 2; i++) {
        weir_item item;
        struct wr_device *d = wr_sim_device(sim, (unsigned)i);
        struct wr_mark read;
        OK(weir_queue_acquire(queue[i], stream[i], 0, &item));
        OK(wr_pool_mark(pool[i], stream[i], &read));
        while (!wr_mark_poll(read))
            assert_true(wr_sim_step(sim));
        arrived[i] = d->ops->now_ns(d);
        OK(weir_queue_release(queue[i], &item, NULL, 0));
    }
    uint64_t copy_ns = 10000 + 1 * MIB / 12 + 20000;
    assert_in_range(arrived[0] - start, 1, copy_ns);
    assert_in_range(arrived[1] - start, 1, 2 * copy_ns);
    for (int i = 0; i < 2; i++) {
        struct wr_device *d = wr_sim_device(sim, (unsigned)i);
        OK(weir_queue_destroy(queue[i]));
        wr_sim_drain(sim);
        OK(weir_stream_retire(pool[i], stream[i]));
        OK(d->ops->stream_destroy(d, stream[i]));
        while (weir_pool_close(pool[i]) == WEIR_NOT_YET)
            wr_sim_drain(sim);
    }
    free(batch);
    assert_int_equal(wr_sim_reports(sim), 0);
    assert_int_equal(wr_sim_close(sim), 0);
}

static void test_BROADCAST_frees_an_item_when_all_have_released_it(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 2, WEIR_ORDER_FIFO, WEIR_CONSUMERS_BROADCAST, false);
    weir_consumer c[3];
    weir_item item[3], none;
    OK(put(&w, 0, 1)); /* for the first to join */
    for (int i = 0; i < 2; i++)
        OK(weir_queue_join(w.queue, &c[i]));
    OK(put(&w, 0, 2)); /* for both */
    OK(weir_queue_join(w.queue, &c[2]));
    assert_int_equal(weir_queue_acquire_as(w.queue, c[2], w.stream[2], 0, &none), WEIR_WOULD_BLOCK);
    OK(weir_queue_acquire_as(w.queue, c[0], w.stream[0], 0, &item[0]));
    finish(&w, &item[0], 1);
    OK(put(&w, 0, 3)); /* for all three */
    for (int i = 0; i < 2; i++) {
        OK(weir_queue_acquire_as(w.queue, c[i], w.stream[i], 0, &item[i]));
        read_item_on(&w, &item[i], 2, i);
    }
    assert_int_equal(item[0].device, item[1].device);
    OK(weir_queue_release(w.queue, &item[0], NULL, 0));
    assert_int_equal(weir_queue_release(w.queue, &item[0], NULL, 0), WEIR_STALE_HANDLE);
    assert_int_equal(put(&w, 0, 4), WEIR_TIMEOUT); /* number 1 still has it */
    OK(weir_queue_release(w.queue, &item[1], NULL, 0));
    OK(put(&w, 0, 4));
    for (uint32_t tag = 3; tag <= 4; tag++)
        for (int i = 0; i < 3; i++) {
            OK(weir_queue_acquire_as(w.queue, c[i], w.stream[i], 0, &item[i]));
            read_item_on(&w, &item[i], tag, i);
            OK(weir_queue_release(w.queue, &item[i], NULL, 0));
        }
    assert_int_equal(stats_of(w.queue).items_delivered, 1 + 2 + 3 + 3);
    close_world(&w);
}

static void test_BROADCAST_does_not_wait_for_one_that_has_left(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 1, WEIR_ORDER_FIFO, WEIR_CONSUMERS_BROADCAST, false);
    weir_consumer stays, goes;
    weir_item item, other;
    OK(weir_queue_join(w.queue, &stays));
    OK(weir_queue_join(w.queue, &goes));
    OK(put(&w, 0, 1));
    OK(weir_queue_acquire_as(w.queue, stays, w.stream[0], 0, &item));
    finish(&w, &item, 1);
    assert_int_equal(put(&w, 0, 2), WEIR_TIMEOUT);
    OK(weir_queue_leave(w.queue, goes)); /* it never took the first */
    OK(put(&w, 0, 2));
    OK(weir_queue_join(w.queue, &goes));
    OK(weir_queue_acquire_as(w.queue, stays, w.stream[0], 0, &item));
    finish(&w, &item, 2);
    OK(put(&w, 0, 3));
    OK(weir_queue_acquire_as(w.queue, goes, w.stream[1], 0, &other));
    read_item_on(&w, &other, 3, 1);
    OK(weir_queue_acquire_as(w.queue, stays, w.stream[0], 0, &item));
    finish(&w, &item, 3);
    assert_int_equal(put(&w, 0, 4), WEIR_TIMEOUT);
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(w.device, w.stream[1], &gate));
    OK(wr_kernels_verify(w.device, w.stream[1], other.device, other.bytes, 3, w.counter[1]));
    OK(weir_queue_leave(w.queue, goes)); /* with the item in its hands, and its stream still reading */
    OK(put(&w, 0, 4));
    wr_sim_drain(w.sim);
    assert_no_reports(&w);
    wr_sim_gate_open(gate);
    OK(weir_queue_acquire_as(w.queue, stays, w.stream[0], 0, &item));
    finish(&w, &item, 4);
    close_world(&w);
}

static void test_at_most_64_consumers_register(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 1, WEIR_ORDER_FIFO, WEIR_CONSUMERS_BROADCAST, false);
    weir_consumer c[64], more;
    weir_item item;
    for (int i = 0; i < 64; i++)
        OK(weir_queue_join(w.queue, &c[i]));
    assert_int_equal(weir_queue_join(w.queue, &more), WEIR_TOO_LARGE);
    OK(put(&w, 0, 1));
    for (int i = 0; i < 64; i++) {
        OK(weir_queue_acquire_as(w.queue, c[i], w.stream[i % 4], 0, &item));
        read_item_on(&w, &item, 1, i % 4);
        if (i < 63) OK(weir_queue_release(w.queue, &item, NULL, 0));
    }
    assert_int_equal(put(&w, 0, 2), WEIR_TIMEOUT);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(put(&w, 0, 2));
    OK(weir_queue_clear(w.queue));
    OK(weir_queue_leave(w.queue, c[63]));
    OK(weir_queue_join(w.queue, &more));
    close_world(&w);
}

static void test_LATEST_gives_the_newest_and_never_blocks_for_what_nobody_reads(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_FIFO, WEIR_CONSUMERS_LATEST, false);
    weir_item held, early, late;
    for (uint32_t tag = 0; tag < 20; tag++)
        OK(put(&w, 0, tag));
    size_t size;
    OK(weir_queue_size(w.queue, &size));
    assert_int_equal(size, 1);
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    read_item_on(&w, &held, 19, 0);
    assert_none(&w);
    /* The order of the commits does not matter: what was reserved later is newer. */
    wr_sim_drain(w.sim);
    OK(weir_queue_reserve(w.queue, 64, 0, &early));
    OK(weir_queue_reserve(w.queue, 64, 0, &late));
    write_item(&w, &late, 31);
    OK(weir_queue_commit(w.queue, &late));
    write_item(&w, &early, 30);
    OK(weir_queue_commit(w.queue, &early));
    eat(&w, 31, 1);
    assert_none(&w);
    /* One held, one unread, and one that is being filled: the next takes the unread one's slot. */
    OK(put(&w, 0, 40));
    wr_sim_drain(w.sim);
    OK(weir_queue_reserve(w.queue, 64, 0, &early));
    OK(weir_queue_reserve(w.queue, 64, 0, &late));
    assert_none(&w);
    assert_int_equal(weir_queue_reserve(w.queue, 64, 0, &(weir_item){0}), WEIR_WOULD_BLOCK);
    OK(weir_queue_abort(w.queue, &late));
    write_item(&w, &early, 41);
    OK(weir_queue_commit(w.queue, &early));
    OK(weir_queue_release(w.queue, &held, NULL, 0));
    eat(&w, 41, 1);
    assert_int_equal(stats_of(w.queue).items_replaced, 19 + 1 + 1);
    close_world(&w);
}

/* ---- handles ----------------------------------------------------------------------------------------- */

static void test_a_strangers_item_is_refused_though_its_ticket_is_known(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, ITEM, 2);
    weir_queue *other;
    weir_queue_options o = queue_options(ITEM, 2);
    OK(weir_queue_open(w.pool, &o, &other));
    weir_item ours, theirs;
    OK(weir_queue_reserve(w.queue, 64, 0, &ours));
    OK(weir_queue_reserve(other, 64, 0, &theirs));
    assert_int_equal(ours.ticket, theirs.ticket);
    assert_int_equal(weir_queue_commit(w.queue, &theirs), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_abort(w.queue, &theirs), WEIR_STALE_HANDLE);
    write_item(&w, &ours, 1);
    OK(weir_queue_commit(w.queue, &ours));
    write_item(&w, &theirs, 2);
    OK(weir_queue_commit(other, &theirs));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &ours));
    OK(weir_queue_acquire(other, w.stream[0], 0, &theirs));
    assert_int_equal(weir_queue_release(w.queue, &theirs, NULL, 0), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_use(w.queue, &theirs, w.stream[1]), WEIR_STALE_HANDLE);
    finish(&w, &ours, 1);
    read_item_on(&w, &theirs, 2, 0);
    OK(weir_queue_release(other, &theirs, NULL, 0));
    OK(weir_queue_destroy(other));
    close_world(&w);
}

static void test_kinds_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, ITEM, 2);
    weir_queue *q;
    weir_consumer c;
    weir_item item;
    for (int consumers = WEIR_CONSUMERS_LOOSE; consumers <= WEIR_CONSUMERS_LATEST + 1; consumers++)
        for (int order = WEIR_ORDER_FIFO; order <= WEIR_ORDER_PRIORITY + 1; order++) {
            weir_queue_options o = queue_options(ITEM, 2);
            o.order = (weir_order)order;
            o.consumers = (weir_consumers)consumers;
            bool good = order <= WEIR_ORDER_PRIORITY && consumers <= WEIR_CONSUMERS_LATEST &&
                        (consumers < WEIR_CONSUMERS_BROADCAST || order == WEIR_ORDER_FIFO);
            assert_int_equal(weir_queue_open(w.pool, &o, &q), good ? WEIR_OK : WEIR_INVALID_ARGUMENT);
            if (good) OK(weir_queue_destroy(q));
        }
    assert_int_equal(weir_queue_join(w.queue, &c), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_get(w.queue, 0, w.stream[0], 0, &item), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_leave(w.queue, 0), WEIR_STALE_HANDLE);
    close_world(&w);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

struct actor {
    struct world *w;
    pthread_t thread;
    weir_consumer self;
    int stream;
    unsigned seen;
    weir_status end;
};

static void *read_all(void *arg)
{
    struct actor *a = arg;
    weir_item item;
    uint64_t last = 0;
    while ((a->end = weir_queue_acquire_as(
                a->w->queue, a->self, a->w->stream[a->stream], SECOND * 10, &item)) == WEIR_OK) {
        assert_true(item.ticket > last);
        last = item.ticket;
        read_item_on(a->w, &item, (uint32_t)item.key, a->stream);
        OK(weir_queue_release(a->w->queue, &item, NULL, 0));
        a->seen++;
    }
    return NULL;
}

static void run_actors(weir_consumers kind, unsigned *seen)
{
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_FIFO, kind, true);
    struct actor a[4];
    for (int i = 0; i < 4; i++) {
        a[i] = (struct actor){.w = &w, .stream = i};
        OK(weir_queue_join(w.queue, &a[i].self));
        assert_int_equal(pthread_create(&a[i].thread, NULL, read_all, &a[i]), 0);
    }
    for (uint32_t i = 0; i < 200; i++) {
        weir_item item;
        OK(weir_queue_reserve_key(w.queue, i, 64, 10 * SECOND, &item));
        write_item(&w, &item, i);
        OK(weir_queue_commit(w.queue, &item));
    }
    OK(weir_queue_close(w.queue));
    for (int i = 0; i < 4; i++) {
        pthread_join(a[i].thread, NULL);
        assert_int_equal(a[i].end, WEIR_CLOSED);
        seen[i] = a[i].seen;
    }
    close_world(&w);
}

static void test_threads_share_items_or_all_get_all(void **state)
{
    (void)state;
    unsigned seen[4];
    run_actors(WEIR_CONSUMERS_SHARED, seen);
    assert_int_equal(seen[0] + seen[1] + seen[2] + seen[3], 200);
    run_actors(WEIR_CONSUMERS_BROADCAST, seen);
    for (int i = 0; i < 4; i++)
        assert_int_equal(seen[i], 200);
}

static void test_a_consumer_that_leaves_wakes_its_own_thread(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 2, WEIR_ORDER_FIFO, WEIR_CONSUMERS_BROADCAST, true);
    struct actor a = {.w = &w};
    OK(weir_queue_join(w.queue, &a.self));
    assert_int_equal(pthread_create(&a.thread, NULL, read_all, &a), 0);
    await_consumers(&w, 1);
    OK(weir_queue_leave(w.queue, a.self));
    pthread_join(a.thread, NULL);
    assert_int_equal(a.end, WEIR_STALE_HANDLE);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ANY_gives_the_first_committed_and_holds_nobody_back),
        cmocka_unit_test(test_PRIORITY_gives_the_greatest_and_of_equals_the_first),
        cmocka_unit_test(test_KEYED_gives_each_key_its_own_in_the_order_of_reserve),
        cmocka_unit_test(test_who_waits_for_one_key_does_not_hold_up_another),
        cmocka_unit_test(test_STRICT_has_one_item_out_at_a_time),
        cmocka_unit_test(test_SHARED_gives_each_item_to_one_and_takes_a_dead_ones_back),
        cmocka_unit_test(test_Q26_a_slow_one_of_four_does_not_hold_up_the_others),
        cmocka_unit_test(test_Q26_two_queues_of_one_source_get_their_first_items_together),
        cmocka_unit_test(test_BROADCAST_frees_an_item_when_all_have_released_it),
        cmocka_unit_test(test_BROADCAST_does_not_wait_for_one_that_has_left),
        cmocka_unit_test(test_at_most_64_consumers_register),
        cmocka_unit_test(test_LATEST_gives_the_newest_and_never_blocks_for_what_nobody_reads),
        cmocka_unit_test(test_a_strangers_item_is_refused_though_its_ticket_is_known),
        cmocka_unit_test(test_kinds_that_do_not_go_together_are_refused),
        cmocka_unit_test(test_threads_share_items_or_all_get_all),
        cmocka_unit_test(test_a_consumer_that_leaves_wakes_its_own_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
