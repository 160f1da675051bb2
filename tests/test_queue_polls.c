/* SPDX-License-Identifier: Apache-2.0
 *
 * What pollers see of a queue, and the words of a staging area.
 */
#include "queue_world.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

enum { ITEM = 4096 };

static const int64_t MILLISECOND = 1000000;

static void open_kind(struct world *w, unsigned items, weir_order order, weir_consumers consumers)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, items);
    q.order = order;
    q.consumers = consumers;
    open_world(w, &o, 0, &q);
}

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN);
}

static int eventfd_of(struct world *w, weir_poll what, weir_consumer c)
{
    int fd = -1;
    OK(weir_queue_eventfd(w->queue, what, c, &fd));
    return fd;
}

/* ---- items ------------------------------------------------------------------------------------------- */

static void test_an_eventfd_is_readable_while_an_acquire_would_succeed(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, ITEM, 3);
    int fd = eventfd_of(&w, WEIR_POLL_ITEM, 0), second = eventfd_of(&w, WEIR_POLL_ITEM, 0);
    assert_true(fd != second);
    weir_item first, next;
    OK(weir_queue_reserve(w.queue, 64, 0, &first));
    OK(feed(&w, 64, 2, 0));
    assert_false(readable(fd)); /* the first in order is still being filled */
    write_item(&w, &first, 1);
    OK(weir_queue_commit(w.queue, &first));
    assert_true(readable(fd) && readable(second));
    eat(&w, 1, 0);
    assert_true(readable(fd));
    close(second);
    eat(&w, 2, 0);
    assert_false(readable(fd));
    OK(weir_queue_reserve(w.queue, 64, MILLISECOND, &next));
    OK(weir_queue_close(w.queue));
    assert_false(readable(fd)); /* one may come */
    OK(weir_queue_abort(w.queue, &next));
    assert_true(readable(fd));
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &next), WEIR_CLOSED);
    OK(weir_queue_destroy(w.queue));
    assert_true(readable(fd)); /* for good */
    close(fd);
    assert_int_equal(weir_queue_eventfd(w.queue, WEIR_POLL_ITEM, 0, &fd), WEIR_CLOSED);
    wr_sim_drain(w.sim);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

static void test_every_end_rings_all_eventfds(void **state)
{
    (void)state;
    for (int end = 0; end < 3; end++) {
        struct world w;
        open_virtual(&w, ITEM, 1);
        OK(feed(&w, 64, 1, 0));
        eat(&w, 1, 0);
        weir_item item;
        OK(weir_queue_reserve(w.queue, 64, MILLISECOND, &item));
        int items = eventfd_of(&w, WEIR_POLL_ITEM, 0), room = eventfd_of(&w, WEIR_POLL_ROOM, 0);
        assert_false(readable(items) || readable(room));
        if (end == 0) OK(weir_queue_poison(w.queue, 1, "no more"));
        if (end == 1) OK(weir_queue_destroy(w.queue));
        if (end == 2) wr_sim_reset_device(w.device);
        weir_dptr block;
        if (end == 2) assert_int_equal(weir_alloc(w.pool, 64 << 20, w.stream[0], &block), WEIR_CONTEXT_LOST);
        assert_true(readable(items) && readable(room));
        close(items);
        close(room);
        weir_queue_destroy(w.queue);
        weir_pool_close(w.pool);
        if (end == 2) {
            wr_sim_close(w.sim);
            continue;
        }
        wr_sim_drain(w.sim);
        end_world(&w);
    }
}

static void test_strict_and_registered_consumers_have_eventfds_of_their_own(void **state)
{
    (void)state;
    struct world w;
    weir_item item;
    open_kind(&w, 2, WEIR_ORDER_FIFO, WEIR_CONSUMERS_STRICT);
    int fd = eventfd_of(&w, WEIR_POLL_ITEM, 0);
    OK(feed(&w, 64, 1, 0));
    OK(feed(&w, 64, 2, 0));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    assert_false(readable(fd)); /* one at a time */
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    assert_true(readable(fd));
    close(fd);
    close_world(&w);

    open_kind(&w, 2, WEIR_ORDER_FIFO, WEIR_CONSUMERS_BROADCAST);
    weir_consumer c[2];
    int fds[2];
    for (int i = 0; i < 2; i++) {
        OK(weir_queue_join(w.queue, &c[i]));
        fds[i] = eventfd_of(&w, WEIR_POLL_ITEM, c[i]);
    }
    assert_int_equal(weir_queue_eventfd(w.queue, WEIR_POLL_ITEM, 0, &fd), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_eventfd(w.queue, WEIR_POLL_ITEM, 77, &fd), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_eventfd(w.queue, WEIR_POLL_ROOM, c[0], &fd), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_eventfd(w.queue, (weir_poll)2, 0, &fd), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_eventfd(w.queue, WEIR_POLL_ITEM, c[0], NULL), WEIR_INVALID_ARGUMENT);
    OK(feed(&w, 64, 1, 0));
    assert_true(readable(fds[0]) && readable(fds[1]));
    OK(weir_queue_acquire_as(w.queue, c[0], w.stream[0], 0, &item));
    assert_false(readable(fds[0]));
    assert_true(readable(fds[1]));
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(weir_queue_leave(w.queue, c[0]));
    assert_true(readable(fds[0])); /* it has ended */
    close(fds[0]);
    close(fds[1]);
    close_world(&w);
}

/* ---- watermarks -------------------------------------------------------------------------------------- */

static void test_room_is_told_between_the_watermarks(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, 6);
    q.low_items = 2;
    q.high_items = 5;
    open_world(&w, &o, 0, &q);
    int fd = eventfd_of(&w, WEIR_POLL_ROOM, 0);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(readable(fd));
        OK(feed(&w, 64, i, 0));
    }
    assert_false(readable(fd)); /* five: full */
    for (uint32_t i = 0; i < 4; i++) {
        assert_false(readable(fd));
        eat(&w, i, 0);
    }
    assert_true(readable(fd)); /* fewer than two */
    OK(feed(&w, 64, 5, MILLISECOND));
    assert_true(readable(fd));
    eat(&w, 4, 0);
    eat(&w, 5, 0);
    close(fd);
    q.low_items = 6;
    weir_queue *other;
    assert_int_equal(weir_queue_open(w.pool, &q, &other), WEIR_INVALID_ARGUMENT);
    q.low_items = 0;
    q.high_items = 7;
    assert_int_equal(weir_queue_open(w.pool, &q, &other), WEIR_INVALID_ARGUMENT);
    close_world(&w);
}

/* ---- a staging area's words -------------------------------------------------------------------------- */

static weir_status put(struct world *w, int64_t key, uint32_t tag, unsigned flags)
{
    uint32_t words[16];
    write_words(words, sizeof words, tag);
    return weir_queue_put(w->queue, key, &(weir_span){words, sizeof words}, 1, flags, MILLISECOND, NULL);
}

static void peek(struct world *w, int64_t which, uint32_t tag)
{
    weir_item item;
    OK(weir_queue_peek(w->queue, which, w->stream[1], 0, &item));
    read_item_on(w, &item, tag, 1);
    OK(weir_queue_release(w->queue, &item, NULL, 0));
}

static size_t size_of(struct world *w)
{
    size_t n;
    OK(weir_queue_size(w->queue, &n));
    return n;
}

static void test_put_get_peek_size_and_clear_by_key(void **state)
{
    (void)state;
    struct world w;
    open_kind(&w, 3, WEIR_ORDER_KEYED, WEIR_CONSUMERS_LOOSE);
    weir_item item;
    OK(put(&w, 5, 50, WEIR_PUSH_NEW_KEY));
    OK(put(&w, -6, 60, WEIR_PUSH_NEW_KEY));
    assert_int_equal(put(&w, 5, 51, WEIR_PUSH_NEW_KEY), WEIR_IN_USE);
    assert_int_equal(size_of(&w), 2);
    peek(&w, -6, 60);
    peek(&w, -6, 60);
    assert_int_equal(weir_queue_peek(w.queue, 7, w.stream[0], 0, &item), WEIR_WOULD_BLOCK);
    assert_int_equal(size_of(&w), 2);
    OK(weir_queue_get(w.queue, 5, w.stream[0], 0, &item));
    assert_int_equal(put(&w, 5, 51, WEIR_PUSH_NEW_KEY), WEIR_IN_USE); /* it is in use, indeed */
    read_item_on(&w, &item, 50, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(put(&w, 5, 51, WEIR_PUSH_NEW_KEY));
    OK(weir_queue_clear(w.queue));
    OK(weir_queue_clear(w.queue));
    assert_int_equal(size_of(&w), 0);
    OK(weir_queue_wait_idle(w.queue, MILLISECOND));
    assert_int_equal(stats_of(w.queue).slots_in_use, 0);
    assert_int_equal(
        weir_queue_push(w.queue, &(weir_span){"x", 1}, 1, WEIR_PUSH_NEW_KEY, 0, NULL), WEIR_INVALID_ARGUMENT);
    close_world(&w);
}

static void test_peek_by_index_takes_nothing_away(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, ITEM, 3);
    weir_item peeked, item, none;
    for (uint32_t tag = 0; tag < 3; tag++)
        OK(feed(&w, 64, tag, MILLISECOND));
    for (int64_t i = 2; i >= 0; i--)
        peek(&w, i, (uint32_t)i);
    assert_int_equal(weir_queue_peek(w.queue, 3, w.stream[0], 0, &none), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_peek(w.queue, -1, w.stream[0], 0, &none), WEIR_INVALID_ARGUMENT);
    /* Who peeks has the item in use after its consumer has given it back. */
    OK(weir_queue_peek(w.queue, 0, w.stream[1], 0, &peeked));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    assert_true(item.ticket == peeked.ticket && item.handle != peeked.handle);
    read_item_on(&w, &item, 0, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    assert_int_equal(weir_queue_reserve(w.queue, 64, MILLISECOND, &none), WEIR_TIMEOUT);
    read_item_on(&w, &peeked, 0, 1);
    OK(weir_queue_release(w.queue, &peeked, NULL, 0));
    OK(feed(&w, 64, 3, MILLISECOND));
    OK(weir_queue_close(w.queue));
    for (uint32_t tag = 1; tag <= 3; tag++)
        eat(&w, tag, 0);
    assert_int_equal(weir_queue_peek(w.queue, 0, w.stream[0], -1, &none), WEIR_CLOSED);
    close_world(&w);
}

struct peeker {
    struct world *w;
    pthread_t thread;
    int64_t index;
};

static void *peek_or_wait(void *arg)
{
    struct peeker *p = arg;
    weir_item item;
    OK(weir_queue_peek(p->w->queue, p->index, p->w->stream[1], -1, &item));
    read_item_on(p->w, &item, (uint32_t)p->index, 1);
    OK(weir_queue_release(p->w->queue, &item, NULL, 0));
    return NULL;
}

/* It waits for the second item, at the head of the line, while others come and go. */
static void test_a_blocked_peek_holds_nobody_up(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, ITEM, 3);
    struct peeker p = {.w = &w, .index = 1};
    assert_int_equal(pthread_create(&p.thread, NULL, peek_or_wait, &p), 0);
    while (stats_of(w.queue).waiting_item != 1)
        usleep(500);
    OK(feed(&w, 64, 7, -1));
    eat(&w, 7, 0);
    OK(feed(&w, 64, 0, -1));
    OK(feed(&w, 64, 1, -1));
    pthread_join(p.thread, NULL);
    eat(&w, 0, 0);
    eat(&w, 1, 0);
    close_world(&w);
}

static void test_capacity_and_memory_limit_are_the_queues_own(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(ITEM, 4);
    q.device_bytes = ITEM + 512;
    open_world(&w, &o, 0, &q);
    assert_int_equal(stats_of(w.queue).slots, 4);
    weir_item item, more;
    OK(weir_queue_reserve(w.queue, ITEM, 0, &item));
    OK(weir_queue_reserve(w.queue, 512, 0, &more));
    assert_int_equal(weir_queue_reserve(w.queue, 512, 0, &(weir_item){0}), WEIR_WOULD_BLOCK);
    assert_int_equal(put(&w, 0, 1, WEIR_PUSH_COPY), WEIR_TIMEOUT);
    OK(weir_queue_abort(w.queue, &item));
    OK(weir_queue_abort(w.queue, &more));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_eventfd_is_readable_while_an_acquire_would_succeed),
        cmocka_unit_test(test_every_end_rings_all_eventfds),
        cmocka_unit_test(test_strict_and_registered_consumers_have_eventfds_of_their_own),
        cmocka_unit_test(test_room_is_told_between_the_watermarks),
        cmocka_unit_test(test_put_get_peek_size_and_clear_by_key),
        cmocka_unit_test(test_peek_by_index_takes_nothing_away),
        cmocka_unit_test(test_a_blocked_peek_holds_nobody_up),
        cmocka_unit_test(test_capacity_and_memory_limit_are_the_queues_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
