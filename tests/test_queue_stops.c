/* SPDX-License-Identifier: Apache-2.0
 *
 * How a queue is poisoned, emptied and waited for; and that whoever dies, nobody hangs.
 */
#include "queue_world.h"

#include <pthread.h>
#include <time.h>

enum { KIB = 1024 };

static const int64_t SECOND = 1000000000, MILLISECOND = 1000000;

static uint64_t now(struct world *w)
{
    return w->device->ops->now_ns(w->device);
}

/* ---- poison ------------------------------------------------------------------------------------------ */

static void assert_poisoned(struct world *w, weir_status got, const char *text)
{
    int64_t code;
    const char *reason;
    assert_int_equal(got, WEIR_POISONED);
    assert_non_null(strstr(weir_error_text(), text));
    OK(weir_queue_poisoned(w->queue, &code, &reason));
    assert_int_equal(code, -42);
    assert_string_equal(reason, text);
}

static void test_Q15_consumers_get_the_good_items_then_the_reason(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 4);
    weir_item filling, item;
    OK(feed(&w, 16, 1, 0));
    OK(weir_queue_reserve(w.queue, 16, 0, &filling)); /* its producer is not heard of again */
    OK(feed(&w, 16, 2, 0));
    assert_int_equal(weir_queue_poisoned(w.queue, NULL, NULL), WEIR_INVALID_ARGUMENT);
    OK(weir_queue_poison(w.queue, -42, "no such file: /data/3"));
    assert_int_equal(weir_queue_poison(w.queue, 1, "later"), WEIR_POISONED);
    eat(&w, 1, 0);
    eat(&w, 2, 0);
    for (int i = 0; i < 3; i++) {
        weir_status s = weir_queue_acquire(w.queue, w.stream[0], -1, &item);
        assert_poisoned(&w, s, "no such file: /data/3");
    }
    assert_poisoned(&w, weir_queue_reserve(w.queue, 16, -1, &item), "no such file: /data/3");
    assert_poisoned(&w, weir_queue_commit(w.queue, &filling), "no such file: /data/3");
    assert_null(filling.host);
    assert_int_equal(weir_queue_commit(w.queue, &filling), WEIR_STALE_HANDLE);
    OK(weir_queue_close(w.queue));
    assert_poisoned(&w, weir_queue_acquire(w.queue, w.stream[0], -1, &item), "no such file: /data/3");
    close_world(&w);
    OK(weir_queue_poisoned(w.queue, NULL, NULL)); /* after destroy, too */
}

static void test_a_long_reason_is_cut_and_none_is_fine(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    char text[1000];
    const char *kept;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    OK(weir_queue_poison(w.queue, 0, text));
    OK(weir_queue_poisoned(w.queue, NULL, &kept));
    assert_int_equal(strlen(kept), 255);
    close_world(&w);
    open_virtual(&w, 4 * KIB, 1);
    OK(weir_queue_poison(w.queue, 0, NULL));
    OK(weir_queue_poisoned(w.queue, NULL, &kept));
    assert_string_equal(kept, "");
    close_world(&w);
}

/* ---- cancel ------------------------------------------------------------------------------------------ */

static void test_a_cancelled_item_goes_whatever_it_was(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 4);
    weir_item filling, held;
    OK(feed(&w, 16, 1, 0));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    OK(weir_queue_reserve(w.queue, 16, 0, &filling));
    OK(feed(&w, 16, 3, 0));
    wr_sim_drain(w.sim);
    OK(feed(&w, 16, 4, SECOND));
    assert_int_equal(weir_queue_cancel(w.queue, held.ticket), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_cancel(w.queue, 99), WEIR_STALE_HANDLE);
    OK(weir_queue_cancel(w.queue, 3));
    assert_int_equal(weir_queue_cancel(w.queue, 3), WEIR_STALE_HANDLE);
    OK(weir_queue_cancel(w.queue, filling.ticket)); /* so it holds back number 4 no more */
    assert_int_equal(weir_queue_cancel(w.queue, filling.ticket), WEIR_STALE_HANDLE);
    eat(&w, 4, 1);
    write_item(&w, &filling, 2); /* its producer may still be writing: the memory is its own until now */
    assert_int_equal(weir_queue_commit(w.queue, &filling), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_abort(w.queue, &filling), WEIR_STALE_HANDLE);
    read_item_on(&w, &held, 1, 0);
    OK(weir_queue_release(w.queue, &held, NULL, 0));
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.items_cancelled, 2);
    assert_int_equal(s.copies, 3);
    OK(weir_queue_wait_idle(w.queue, SECOND));
    close_world(&w);
}

/* Its copy still runs, into a slot that the next item takes at once. */
static void test_a_cancelled_items_slot_is_refilled_behind_its_copy(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(256 * KIB, 1);
    q.pinned_bytes = 512 * KIB;
    open_world(&w, &o, 0, &q);
    for (uint32_t tag = 0; tag < 8; tag++) {
        OK(feed(&w, 256 * KIB, tag, SECOND));
        OK(weir_queue_clear(w.queue));
    }
    OK(feed(&w, 256 * KIB, 9, SECOND));
    eat(&w, 9, 0);
    close_world(&w);
}

static void test_any_thread_may_abort_a_dead_producers_item(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    weir_item item;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    weir_item known = {.ticket = item.ticket, .handle = item.handle};
    OK(weir_queue_abort(w.queue, &known));
    assert_int_equal(weir_queue_commit(w.queue, &item), WEIR_STALE_HANDLE);
    OK(feed(&w, 16, 1, 0));
    eat(&w, 1, 0);
    close_world(&w);
}

/* ---- idle -------------------------------------------------------------------------------------------- */

static void test_wait_idle_waits_for_items_copies_and_last_uses(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    struct wr_sim_gate *gate;
    weir_item item;
    OK(weir_queue_wait_idle(w.queue, 0));
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    assert_int_equal(weir_queue_wait_idle(w.queue, 0), WEIR_WOULD_BLOCK);
    write_item(&w, &item, 1);
    OK(weir_queue_commit(w.queue, &item));
    assert_int_equal(weir_queue_wait_idle(w.queue, MILLISECOND), WEIR_TIMEOUT); /* nobody takes it */
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0);
    assert_int_equal(weir_queue_wait_idle(w.queue, MILLISECOND), WEIR_TIMEOUT); /* it is being read */
    wr_sim_gate_open(gate);
    OK(weir_queue_wait_idle(w.queue, SECOND));
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.slots_in_use, 0);
    void *pinned; /* read in place: the slot alone knows of the copy */
    OK(weir_host_alloc(w.pool, 4 * KIB, &pinned));
    write_words(pinned, 4 * KIB, 2);
    uint64_t start = now(&w);
    OK(weir_queue_push(w.queue, &(weir_span){pinned, 4 * KIB}, 1, WEIR_PUSH_BORROW, 0, NULL));
    OK(weir_queue_clear(w.queue));
    OK(weir_queue_wait_idle(w.queue, SECOND));
    assert_true(now(&w) > start); /* the copy's time */
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    close_world(&w);
}

/* ---- blocked callers --------------------------------------------------------------------------------- */

enum { WAITERS = 4 };
struct waiter {
    struct world *w;
    pthread_t thread;
    int what;
    weir_status got;
    _Atomic bool back;
};

static void *wait_for_ever(void *arg)
{
    struct waiter *m = arg;
    weir_item item;
    if (m->what == 0) m->got = weir_queue_reserve(m->w->queue, 16, -1, &item);
    if (m->what == 1) m->got = weir_queue_acquire(m->w->queue, m->w->stream[0], -1, &item);
    if (m->what == 2) m->got = weir_queue_peek(m->w->queue, 0, m->w->stream[0], -1, &item);
    if (m->what == 3) m->got = weir_queue_wait_idle(m->w->queue, -1);
    m->back = true;
    return NULL;
}

/* A producer, a consumer, one that peeks and one that waits for idle, blocked behind an item that a thread
 * reserved which has ended. */
static void block_all(struct world *w, struct waiter *m)
{
    weir_item left;
    OK(weir_queue_reserve(w->queue, 16, -1, &left));
    for (int i = 0; i < WAITERS; i++) {
        m[i] = (struct waiter){.w = w, .what = i};
        assert_int_equal(pthread_create(&m[i].thread, NULL, wait_for_ever, &m[i]), 0);
    }
    weir_queue_stats s;
    do {
        nanosleep(&(struct timespec){0, 200000}, NULL);
        s = stats_of(w->queue);
    } while (s.waiting_slot != 1 || s.waiting_item != 2);
}

static void join_all(struct waiter *m, const weir_status *expected)
{
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(m[i].thread, NULL);
        assert_int_equal(m[i].got, expected[i]);
    }
}

static void test_every_end_wakes_every_kind_of_waiter(void **state)
{
    (void)state;
    for (int end = 0; end < 3; end++) {
        struct world w;
        struct waiter m[WAITERS];
        open_wall(&w, 4 * KIB, 1);
        block_all(&w, m);
        if (end == 0) OK(weir_queue_poison(w.queue, 5, "gone"));
        if (end == 1) OK(weir_queue_close(w.queue));
        if (end <= 1) {
            pthread_join(m[0].thread, NULL);
            assert_int_equal(m[0].got, end ? WEIR_CLOSED : WEIR_POISONED);
        }
        if (end == 1) { /* what was reserved could still come: closed alone, consumers wait for it */
            assert_false(m[1].back || m[2].back || m[3].back);
            OK(weir_queue_clear(w.queue));
        }
        if (end <= 1) {
            for (int i = 1; i < 3; i++) {
                pthread_join(m[i].thread, NULL);
                assert_int_equal(m[i].got, end ? WEIR_CLOSED : WEIR_POISONED);
            }
            assert_false(m[3].back); /* that one waits for the producer's memory */
        }
        OK(weir_queue_destroy(w.queue));
        const weir_status closed = WEIR_CLOSED;
        if (end == 2) join_all(m, (weir_status[]){closed, closed, closed, closed});
        if (end <= 1) pthread_join(m[3].thread, NULL);
        assert_int_equal(m[3].got, closed);
        wr_sim_drain(w.sim);
        assert_no_reports(&w);
        assert_int_equal(end_world(&w), 0);
    }
}

struct mortal {
    struct world *w;
    uint64_t random;
};

/* Ends at a random point, perhaps with an item reserved, and does not say so. */
static void *produce_and_die(void *arg)
{
    struct mortal *m = arg;
    struct world *w = m->w;
    weir_item item;
    for (uint64_t left = next_random(&m->random) % 12; left > 0; left--) {
        uint64_t what = next_random(&m->random) % 3;
        if (weir_queue_reserve(w->queue, 16, 0, &item) != WEIR_OK) continue;
        if (left == 1 && what == 0) return NULL;
        write_item(w, &item, 1);
        OK(what == 1 ? weir_queue_abort(w->queue, &item) : weir_queue_commit(w->queue, &item));
    }
    return NULL;
}

static void test_Q17_a_producer_that_ends_without_a_word_leaves_nobody_hanging(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        struct world w;
        open_virtual(&w, 4 * KIB, 1 + seed % 4);
        struct mortal m = {&w, seed};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, produce_and_die, &m), 0);
        pthread_join(thread, NULL);
        weir_item item;
        weir_status s;
        uint64_t start = now(&w);
        while ((s = weir_queue_acquire(w.queue, w.stream[0], MILLISECOND, &item)) == WEIR_OK) {
            read_item_on(&w, &item, 1, 0);
            OK(weir_queue_release(w.queue, &item, NULL, 0));
            start = now(&w);
        }
        assert_int_equal(s, WEIR_TIMEOUT);
        assert_int_equal(now(&w) - start, MILLISECOND);
        if (seed % 3 == 0) OK(weir_queue_poison(w.queue, 1, "the producer is dead"));
        if (seed % 3 == 1) {
            OK(weir_queue_close(w.queue));
            OK(weir_queue_clear(w.queue));
        }
        if (seed % 3 < 2) {
            s = weir_queue_acquire(w.queue, w.stream[0], -1, &item);
            assert_int_equal(s, seed % 3 ? WEIR_CLOSED : WEIR_POISONED);
        }
        close_world(&w); /* destroys it, with the item that was left reserved */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_Q15_consumers_get_the_good_items_then_the_reason),
        cmocka_unit_test(test_a_long_reason_is_cut_and_none_is_fine),
        cmocka_unit_test(test_a_cancelled_item_goes_whatever_it_was),
        cmocka_unit_test(test_a_cancelled_items_slot_is_refilled_behind_its_copy),
        cmocka_unit_test(test_any_thread_may_abort_a_dead_producers_item),
        cmocka_unit_test(test_wait_idle_waits_for_items_copies_and_last_uses),
        cmocka_unit_test(test_every_end_wakes_every_kind_of_waiter),
        cmocka_unit_test(test_Q17_a_producer_that_ends_without_a_word_leaves_nobody_hanging),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
