/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue on the simulated device: order, bounds, waits, lives and failures.
 */
#include "queue_world.h"

#include <pthread.h>
#include <time.h>

enum { KIB = 1024, MIB = 1024 * 1024 };

static const int64_t SECOND = 1000000000, MILLISECOND = 1000000;

/* ---- arguments --------------------------------------------------------------------------------------- */

static void refuses(
    weir_pool *pool, size_t struct_size, size_t item_bytes, unsigned items, size_t device, size_t pinned)
{
    weir_queue_options o = {struct_size, item_bytes, items, device, pinned};
    weir_queue *q = NULL;
    assert_int_equal(weir_queue_open(pool, &o, &q), WEIR_INVALID_ARGUMENT);
    assert_null(q);
}

static void test_open_refuses_what_is_no_queue(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    const size_t ours = sizeof(weir_queue_options);
    refuses(w.pool, 0, 4096, 2, 0, 0);
    refuses(w.pool, ours - 1, 4096, 2, 0, 0);
    refuses(w.pool, ours, 0, 2, 0, 0);
    refuses(w.pool, ours, 4096, 1025, 0, 0);
    refuses(w.pool, ours, SIZE_MAX / 2 + 1, 2, 0, 0);
    refuses(w.pool, ours, SIZE_MAX, 1, 0, 0);
    refuses(w.pool, ours, 4096, 2, 4095, 0);
    refuses(w.pool, ours, 4096, 2, 0, 4095);
    weir_queue_options good = queue_options(4096, 1);
    weir_queue *q;
    assert_int_equal(weir_queue_open(NULL, &good, &q), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_open(w.pool, NULL, &q), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_open(w.pool, &good, NULL), WEIR_INVALID_ARGUMENT);
    close_world(&w);
}

static void test_an_item_may_be_committed_shorter_than_reserved_and_never_longer(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_item item;
    OK(weir_queue_reserve(w.queue, 2 * KIB, 0, &item));
    write_item(&w, &item, 7);
    item.bytes = 2 * KIB + 1;
    assert_int_equal(weir_queue_commit(w.queue, &item), WEIR_INVALID_ARGUMENT);
    item.bytes = 0;
    assert_int_equal(weir_queue_commit(w.queue, &item), WEIR_INVALID_ARGUMENT);
    item.bytes = KIB;
    OK(weir_queue_commit(w.queue, &item));
    assert_int_equal(stats_of(w.queue).bytes_copied, KIB);
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    assert_int_equal(item.bytes, KIB);
    read_item_on(&w, &item, 7, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    close_world(&w);
}

static void test_calls_refuse_bad_arguments(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_item item = {0};
    char bytes[4];
    weir_span null = {NULL, 4}, empty = {NULL, 0}, huge[2] = {{bytes, SIZE_MAX - 2}, {bytes, 4}};
    weir_span wide = {bytes, 4 * KIB + 1};
    assert_int_equal(weir_queue_reserve(w.queue, 0, 0, &item), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_reserve(w.queue, 8, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_reserve(NULL, 8, 0, &item), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_reserve(w.queue, 4 * KIB + 1, 0, &item), WEIR_TOO_LARGE);
    assert_int_equal(weir_queue_reserve(w.queue, SIZE_MAX, 0, &item), WEIR_TOO_LARGE);
    assert_int_equal(weir_queue_push(w.queue, NULL, 1, 0, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_push(w.queue, &null, 1, 0, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_push(w.queue, &empty, 1, 0, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_push(w.queue, &wide, 0, 0, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_push(w.queue, &wide, 1, 2, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_push(w.queue, &wide, 1, 0, 0, NULL), WEIR_TOO_LARGE);
    assert_int_equal(weir_queue_push(w.queue, huge, 2, 0, 0, NULL), WEIR_TOO_LARGE);
    assert_int_equal(weir_queue_commit(w.queue, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_abort(w.queue, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_acquire(w.queue, NULL, 0, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_use(w.queue, NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_release(w.queue, NULL, NULL, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_release(w.queue, &item, NULL, 1), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_borrowed(w.queue, 1, 0), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_get_stats(w.queue, NULL), WEIR_INVALID_ARGUMENT);
    weir_queue_stats unsized = {0};
    assert_int_equal(weir_queue_get_stats(w.queue, &unsized), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_close(NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_destroy(NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(stats_of(w.queue).slots_in_use, 0);
    close_world(&w);
}

static void test_stats_fill_only_the_callers_struct(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 3);
    OK(feed(&w, 4 * KIB, 7, 0));
    weir_queue_stats s;
    memset(&s, 0xff, sizeof s);
    s.struct_size = offsetof(weir_queue_stats, items_delivered);
    OK(weir_queue_get_stats(w.queue, &s));
    assert_int_equal(s.items_pushed, 1);
    assert_true(s.items_delivered == UINT64_MAX);
    eat(&w, 7, 0);
    close_world(&w);
}

/* ---- order and bytes --------------------------------------------------------------------------------- */

static void test_items_come_out_in_order_with_their_bytes(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 64 * KIB, 3);
    for (uint32_t i = 0; i < 100; i++) {
        OK(feed(&w, 4 * (1 + i * 163), i, SECOND));
        if (i >= 1) eat(&w, i - 1, (int)(i % 2));
    }
    eat(&w, 99, 0);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.items_pushed, 100);
    assert_int_equal(s.items_delivered, 100);
    assert_int_equal(s.items_released, 100);
    assert_int_equal(s.copies, 100);
    close_world(&w);
}

static void test_an_aborted_item_leaves_no_hole(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 3);
    weir_item first, second, third, got;
    OK(weir_queue_reserve(w.queue, 16, 0, &first));
    OK(weir_queue_reserve(w.queue, 16, 0, &second));
    OK(weir_queue_reserve(w.queue, 16, 0, &third));
    write_item(&w, &third, 3);
    OK(weir_queue_commit(w.queue, &third));
    assert_int_equal(
        weir_queue_acquire(w.queue, w.stream[0], 0, &got), WEIR_WOULD_BLOCK); /* first is not there */
    OK(weir_queue_abort(w.queue, &second));
    write_item(&w, &first, 1);
    OK(weir_queue_commit(w.queue, &first));
    eat(&w, 1, 0);
    eat(&w, 3, 0);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &got), WEIR_WOULD_BLOCK);
    assert_int_equal(stats_of(w.queue).items_aborted, 1);
    close_world(&w);
}

static void test_old_handles_are_stale(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_item item, copy;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    write_item(&w, &item, 5);
    copy = item;
    assert_int_equal(weir_queue_release(w.queue, &copy, NULL, 0), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_use(w.queue, &copy, w.stream[0]), WEIR_STALE_HANDLE);
    OK(weir_queue_commit(w.queue, &item));
    assert_null(item.host);
    assert_int_equal(weir_queue_commit(w.queue, &copy), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_abort(w.queue, &copy), WEIR_STALE_HANDLE);
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    assert_int_equal(item.ticket, copy.ticket);
    read_item_on(&w, &item, 5, 0);
    assert_int_equal(weir_queue_commit(w.queue, &item), WEIR_STALE_HANDLE);
    copy = item;
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    assert_int_equal(item.device, 0);
    assert_int_equal(weir_queue_release(w.queue, &copy, NULL, 0), WEIR_STALE_HANDLE);
    assert_int_equal(weir_queue_use(w.queue, &copy, w.stream[0]), WEIR_STALE_HANDLE);
    weir_item nothing = {0};
    assert_int_equal(weir_queue_commit(w.queue, &nothing), WEIR_STALE_HANDLE);
    close_world(&w);
}

/* ---- what waits for what ----------------------------------------------------------------------------- */

static void test_timeouts_are_deadlines_on_the_devices_clock(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    weir_item item;
    uint64_t start = w.device->ops->now_ns(w.device);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &item), WEIR_WOULD_BLOCK);
    assert_int_equal(w.device->ops->now_ns(w.device) - start, 0);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 1234567, &item), WEIR_TIMEOUT);
    assert_int_equal(w.device->ops->now_ns(w.device) - start, 1234567);
    OK(feed(&w, 16, 1, 0));
    assert_int_equal(weir_queue_reserve(w.queue, 16, 0, &item), WEIR_WOULD_BLOCK);
    start = w.device->ops->now_ns(w.device);
    assert_int_equal(weir_queue_reserve(w.queue, 16, 5 * MILLISECOND, &item), WEIR_TIMEOUT);
    assert_int_equal(w.device->ops->now_ns(w.device) - start, 5 * MILLISECOND);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.consumer_waits_item, 1);
    assert_int_equal(s.consumer_wait_ns, 1234567);
    assert_int_equal(s.producer_waits_slot, 1);
    assert_int_equal(s.producer_wait_ns, 5 * MILLISECOND);
    eat(&w, 1, 0);
    close_world(&w);
}

static void test_a_released_slot_is_refilled_behind_its_reader_without_a_host_wait(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 4 * KIB, 1, 0));
    wr_sim_drain(w.sim);
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0); /* its kernel is stuck */
    weir_item got;
    OK(weir_queue_reserve(w.queue, 4 * KIB, 0, &got));
    write_item(&w, &got, 2);
    OK(weir_queue_commit(w.queue, &got));
    assert_int_equal(stats_of(w.queue).stream_waits_slot, 1);
    OK(weir_queue_acquire(w.queue, w.stream[1], 0, &got));
    uint32_t word;
    wr_sim_drain(w.sim);
    wr_sim_peek(w.sim, got.device, &word, sizeof word);
    assert_int_equal(word, 1); /* not overwritten while it is read */
    read_item_on(&w, &got, 2, 1);
    wr_sim_gate_open(gate);
    OK(weir_queue_release(w.queue, &got, NULL, 0));
    close_world(&w);
}

static void test_an_empty_slot_is_preferred_to_one_that_drains_for_longer(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    OK(feed(&w, 16, 1, 0));
    OK(feed(&w, 16, 2, 0));
    wr_sim_drain(w.sim);
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0); /* its reader is stuck */
    eat(&w, 2, 1);
    wr_sim_drain(w.sim);
    OK(feed(&w, 16, 3, 0));
    wr_sim_drain(w.sim);
    weir_item third;
    OK(weir_queue_acquire(w.queue, w.stream[1], 0, &third));
    uint32_t word;
    wr_sim_peek(w.sim, third.device, &word, sizeof word);
    assert_int_equal(word, 3);
    assert_int_equal(stats_of(w.queue).stream_waits_slot, 0);
    read_item_on(&w, &third, 3, 1);
    OK(feed(&w, 16, 4, 0)); /* the other is better than none */
    assert_int_equal(stats_of(w.queue).stream_waits_slot, 1);
    OK(weir_queue_release(w.queue, &third, NULL, 0));
    wr_sim_gate_open(gate);
    eat(&w, 4, 0);
    close_world(&w);
}

static void test_acquire_waits_on_the_stream_alone(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 8 * MIB, 2);
    OK(feed(&w, 8 * MIB, 9, 0));
    uint64_t start = w.device->ops->now_ns(w.device);
    eat(&w, 9, 0);
    assert_int_equal(w.device->ops->now_ns(w.device), start);
    assert_int_equal(stats_of(w.queue).stream_waits_copy, 1);
    wr_sim_drain(w.sim);
    OK(feed(&w, 8 * MIB, 10, -1));
    wr_sim_drain(w.sim);
    OK(feed(&w, 8 * MIB, 11, -1)); /* on its way it learns that the copy is done */
    eat(&w, 10, 0);
    assert_int_equal(stats_of(w.queue).stream_waits_copy, 1);
    eat(&w, 11, 0);
    close_world(&w);
}

static void test_a_capturing_stream_is_refused_and_nothing_is_lost(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    OK(feed(&w, 16, 1, 0));
    weir_item item;
    wr_sim_set_capturing(w.device, w.stream[0], true);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], 0, &item), WEIR_CAPTURING);
    OK(weir_queue_acquire(w.queue, w.stream[1], 0, &item));
    read_item_on(&w, &item, 1, 1);
    assert_int_equal(weir_queue_use(w.queue, &item, w.stream[0]), WEIR_CAPTURING);
    weir_stream both[] = {w.stream[1], w.stream[0]};
    assert_int_equal(weir_queue_release(w.queue, &item, both, 2), WEIR_CAPTURING);
    wr_sim_set_capturing(w.device, w.stream[0], false);
    OK(weir_queue_release(w.queue, &item, both, 2));
    assert_int_equal(counts_of(&w).captures_broken, 0);
    close_world(&w);
}

/* ---- push -------------------------------------------------------------------------------------------- */

static void test_a_gathered_push_is_one_copy_of_all_spans(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 64 * KIB, 2);
    uint32_t *words = malloc(64 * KIB);
    weir_span spans[300];
    size_t n = 0;
    for (uint32_t i = 0; i < 100;
         i++) { /* backwards, so that no two are neighbours, with empty ones between */
        words[99 - i] = 42;
        spans[n++] = (weir_span){&words[99 - i], 4};
        spans[n++] = (weir_span){NULL, 0};
        spans[n++] = (weir_span){&words[0], 0};
    }
    uint64_t ticket = 0;
    OK(weir_queue_push(w.queue, spans, n, WEIR_PUSH_COPY, 0, &ticket));
    assert_int_equal(ticket, 1);
    memset(words, 0, 64 * KIB); /* it was copied */
    assert_int_equal(stats_of(w.queue).copies, 1);
    OK(weir_queue_borrowed(w.queue, ticket, 0));
    eat(&w, 42, 0);
    free(words);
    close_world(&w);
}

static void test_borrowed_spans_are_read_in_place(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 64 * KIB, 2);
    void *pinned;
    OK(weir_host_alloc(w.pool, 64 * KIB, &pinned));
    char *host = pinned;
    write_words(host, 64 * KIB, 6);
    uint32_t pageable[4] = {6, 6, 6, 6};
    /* Two neighbours, a stray one, and one that is not pinned: three copies. */
    weir_span spans[] = {{host, 4 * KIB}, {host + 4 * KIB, 4 * KIB}, {host + 16 * KIB, 512}, {pageable, 16}};
    uint64_t ticket;
    OK(weir_queue_push(w.queue, spans, 4, WEIR_PUSH_BORROW, 0, &ticket));
    memset(pageable, 0, sizeof pageable);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.copies, 3);
    assert_int_equal(s.borrowed_bytes, 8 * KIB + 512);
    assert_int_equal(s.staged_pageable_bytes, 16);
    assert_int_equal(weir_queue_borrowed(w.queue, ticket, 0), WEIR_WOULD_BLOCK);
    assert_int_equal(weir_queue_borrowed(w.queue, 0, 0), WEIR_WOULD_BLOCK);
    assert_int_equal(weir_queue_borrowed(w.queue, ticket + 1, 0), WEIR_INVALID_ARGUMENT);
    OK(weir_queue_borrowed(w.queue, ticket, -1));
    wr_sim_host_access(w.sim, host, 64 * KIB, true);
    memset(host, 0, 64 * KIB);
    eat(&w, 6, 0);
    /* All in place: no staging is taken, however many are lent while nothing moves. */
    uint64_t staged = stats_of(w.queue).pinned_bytes;
    write_words(host, 64 * KIB, 7);
    for (int i = 0; i < 300; i++) {
        weir_span whole = {host, 64 * KIB};
        OK(weir_queue_push(w.queue, &whole, 1, WEIR_PUSH_BORROW, 0, &ticket));
        eat(&w, 7, 0);
    }
    assert_int_equal(stats_of(w.queue).pinned_bytes, staged);
    assert_int_equal(weir_queue_borrowed(w.queue, 2, 0), WEIR_WOULD_BLOCK); /* forgotten, and so still lent */
    wr_sim_drain(w.sim);
    OK(weir_queue_borrowed(w.queue, 2, 0));
    OK(weir_queue_borrowed(w.queue, ticket, 0));
    OK(weir_queue_borrowed(w.queue, 0, 0));
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    close_world(&w);
}

static void test_a_wait_for_lent_spans_has_a_deadline(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    struct wr_sim_gate *gate;
    OK(feed(&w, 16, 1, 0));
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0);
    void *pinned;
    OK(weir_host_alloc(w.pool, 4 * KIB, &pinned));
    write_words(pinned, 4 * KIB, 2);
    uint64_t ticket, start = w.device->ops->now_ns(w.device);
    OK(weir_queue_push(w.queue, &(weir_span){pinned, 4 * KIB}, 1, WEIR_PUSH_BORROW, 0, &ticket));
    assert_int_equal(weir_queue_borrowed(w.queue, ticket, 3 * MILLISECOND), WEIR_TIMEOUT);
    assert_int_equal(w.device->ops->now_ns(w.device) - start, 3 * MILLISECOND);
    wr_sim_gate_open(gate);
    OK(weir_queue_borrowed(w.queue, ticket, SECOND));
    eat(&w, 2, 0);
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    close_world(&w);
}

/* ---- limits ------------------------------------------------------------------------------------------ */

static void open_limited(struct world *w, size_t item, unsigned items, size_t device, size_t pinned)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(item, items);
    q.device_bytes = device;
    q.pinned_bytes = pinned;
    open_world(w, &o, 0, &q);
}

static void test_a_byte_limit_holds_few_large_items_or_many_small_ones(void **state)
{
    (void)state;
    struct world w;
    open_limited(&w, 1 * MIB, 8, 2 * MIB, 2 * MIB);
    weir_item item;
    for (uint32_t i = 0; i < 8; i++)
        OK(feed(&w, 256 * KIB, i, 0));
    assert_int_equal(stats_of(w.queue).device_bytes, 2 * MIB);
    assert_int_equal(weir_queue_reserve(w.queue, 4, 0, &item), WEIR_WOULD_BLOCK); /* eight items */
    for (uint32_t i = 0; i < 8; i++)
        eat(&w, i, 0);
    /* A large item needs room that draining slots hold: it waits for the GPU, and evicts no more than it
     * must. */
    assert_int_equal(weir_queue_reserve(w.queue, 1 * MIB, 0, &item), WEIR_WOULD_BLOCK);
    OK(feed(&w, 1 * MIB, 8, SECOND));
    OK(feed(&w, 1 * MIB, 9, SECOND));
    assert_int_equal(weir_queue_reserve(w.queue, 4, 0, &item), WEIR_WOULD_BLOCK); /* two megabytes */
    eat(&w, 8, 0);
    eat(&w, 9, 1);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.peak_device_bytes, 2 * MIB);
    assert_int_equal(s.peak_pinned_bytes, 2 * MIB);
    assert_true(s.producer_waits_slot + s.producer_waits_pinned >= 1);
    close_world(&w);
}

static void test_pinned_memory_has_a_limit_of_its_own(void **state)
{
    (void)state;
    struct world w;
    open_limited(&w, 1 * MIB, 4, 0, 1 * MIB);
    weir_item item, other;
    OK(weir_queue_reserve(w.queue, 1 * MIB, 0, &item));
    assert_int_equal(weir_queue_reserve(w.queue, 4, 0, &other), WEIR_WOULD_BLOCK);
    write_item(&w, &item, 1);
    OK(weir_queue_commit(w.queue, &item));
    assert_int_equal(weir_queue_reserve(w.queue, 1 * MIB, 0, &other), WEIR_WOULD_BLOCK); /* its copy runs */
    OK(feed(&w, 1 * MIB, 2, SECOND));
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.peak_pinned_bytes, 1 * MIB);
    assert_int_equal(s.producer_waits_pinned, 1);
    assert_true(s.producer_wait_ns < 200000); /* the copy takes 97 us */
    eat(&w, 1, 0);
    eat(&w, 2, 0);
    close_world(&w);
}

static void test_sizes_that_come_back_find_their_slots_again(void **state)
{
    (void)state;
    struct world w;
    open_limited(&w, 1 * MIB, 4, 3 * MIB, 3 * MIB);
    uint64_t random = 1;
    for (uint32_t i = 0; i < 400; i++) {
        size_t bytes = 4 * (1 + next_random(&random) % (256 * KIB));
        OK(feed(&w, bytes, i, SECOND));
        if (i % 3 == 2)
            for (uint32_t j = i - 2; j <= i; j++)
                eat(&w, j, (int)(j % WORLD_STREAMS));
    }
    eat(&w, 399, 0);
    weir_queue_stats s = stats_of(w.queue);
    assert_true(s.peak_device_bytes <= 3 * MIB && s.peak_pinned_bytes <= 3 * MIB);
    OK(weir_pool_check(w.pool));
    close_world(&w);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void test_close_delivers_what_there_is(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 3);
    weir_item filling, other;
    OK(feed(&w, 16, 1, 0));
    OK(weir_queue_reserve(w.queue, 16, 0, &filling));
    OK(weir_queue_close(w.queue));
    assert_int_equal(weir_queue_close(w.queue), WEIR_CLOSED);
    assert_int_equal(weir_queue_reserve(w.queue, 16, -1, &other), WEIR_CLOSED);
    eat(&w, 1, 0);
    assert_int_equal(
        weir_queue_acquire(w.queue, w.stream[0], 0, &other), WEIR_WOULD_BLOCK); /* one may come */
    write_item(&w, &filling, 2);
    OK(weir_queue_commit(w.queue, &filling));
    eat(&w, 2, 0);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], -1, &other), WEIR_CLOSED);
    close_world(&w);
}

static void assert_all_closed(struct world *w, weir_item *item)
{
    weir_queue_stats s = {.struct_size = sizeof s};
    weir_span span = {item, sizeof *item};
    assert_int_equal(weir_queue_reserve(w->queue, 16, -1, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_commit(w->queue, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_abort(w->queue, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_push(w->queue, &span, 1, 0, -1, NULL), WEIR_CLOSED);
    assert_int_equal(weir_queue_borrowed(w->queue, 1, -1), WEIR_CLOSED);
    assert_int_equal(weir_queue_acquire(w->queue, w->stream[0], -1, item), WEIR_CLOSED);
    assert_int_equal(weir_queue_use(w->queue, item, w->stream[0]), WEIR_CLOSED);
    assert_int_equal(weir_queue_release(w->queue, item, NULL, 0), WEIR_CLOSED);
    assert_int_equal(weir_queue_close(w->queue), WEIR_CLOSED);
    assert_int_equal(weir_queue_get_stats(w->queue, &s), WEIR_CLOSED);
    assert_int_equal(weir_queue_destroy(w->queue), WEIR_CLOSED);
}

static void test_destroy_never_waits_and_frees_nothing_early(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * MIB, 4);
    OK(feed(&w, 4 * MIB, 1, 0));
    OK(feed(&w, 4 * MIB, 2, 0));
    OK(feed(&w, 4 * MIB, 3, 0));
    struct wr_sim_gate *gate, *other;
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    OK(wr_sim_stall(w.device, w.stream[1], &other));
    weir_item held, filling;
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    eat(&w, 2, 1);
    OK(weir_queue_reserve(w.queue, 4 * MIB, 0, &filling));
    uint64_t start = w.device->ops->now_ns(w.device);
    read_item_on(&w, &held, 1, 0);
    OK(weir_queue_destroy(w.queue));
    assert_int_equal(w.device->ops->now_ns(w.device), start);
    assert_all_closed(&w, &held);

    /* What streams 0 and 1 still read serves nobody; the other two slots do, once their copies are done. */
    wr_sim_drain(w.sim);
    weir_stats s = {.struct_size = sizeof s};
    OK(weir_pool_stats(w.pool, &s));
    assert_true(s.pending_bytes >= 4 * MIB);
    weir_dptr block[4];
    for (int i = 0; i < 4; i++) {
        OK(weir_alloc(w.pool, 4 * MIB, w.stream[2], &block[i]));
        OK(wr_kernels_fill(w.device, w.stream[2], block[i], 4 * MIB, 77));
    }
    wr_sim_drain(w.sim);
    assert_no_reports(&w);
    for (int i = 0; i < 4; i++)
        OK(weir_free(w.pool, block[i], w.stream[2]));
    wr_sim_gate_open(gate);
    wr_sim_gate_open(other);
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    OK(weir_pool_check(w.pool));
    assert_int_equal(end_world(&w), 0);
}

static void test_a_pool_closed_first_ends_with_its_queue(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    assert_int_equal(weir_pool_close(w.pool), WEIR_NOT_YET);
    weir_queue_options o = queue_options(16, 1);
    weir_queue *other;
    assert_int_equal(weir_queue_open(w.pool, &o, &other), WEIR_CLOSED);
    eat(&w, 1, 0);
    OK(feed(&w, 16, 2, -1)); /* the slot that it has, it keeps */
    eat(&w, 2, 0);
    close_world(&w);
}

static void test_a_held_item_outlives_the_stream_that_acquired_it(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * MIB, 1);
    OK(feed(&w, 4 * MIB, 1, 0));
    wr_sim_drain(w.sim);
    weir_stream gone;
    weir_item item;
    OK(w.device->ops->stream_create(w.device, &gone));
    OK(weir_queue_acquire(w.queue, gone, 0, &item));
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(w.device, gone, &gate));
    uint32_t *copy;
    OK(weir_host_alloc(w.pool, 4 * MIB, (void **)&copy));
    OK(w.device->ops->copy(w.device, WR_COPY_D2H, (uintptr_t)copy, item.device, 4 * MIB, gone));
    OK(weir_stream_retire(w.pool, gone));
    OK(w.device->ops->stream_destroy(w.device, gone));
    OK(weir_queue_destroy(w.queue));
    weir_dptr block;
    OK(weir_alloc(w.pool, 4 * MIB, w.stream[0], &block));
    OK(wr_kernels_fill(w.device, w.stream[0], block, 4 * MIB, 2));
    OK(weir_free(w.pool, block, w.stream[0]));
    wr_sim_drain(w.sim);
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    assert_int_equal(copy[0], 1);
    OK(weir_host_free(w.pool, copy, WEIR_NO_STREAM));
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static unsigned eat_all(struct world *w, int stream)
{
    unsigned n = 0;
    weir_item item;
    while (weir_queue_acquire(w->queue, w->stream[stream], 0, &item) == WEIR_OK) {
        weir_queue_use(w->queue, &item, w->stream[3]);
        while (wr_kernels_verify(
                   w->device, w->stream[stream], item.device, item.bytes, 1, w->counter[stream]) != WEIR_OK) {
        }
        while (weir_queue_release(w->queue, &item, NULL, 0) != WEIR_OK) {
        }
        n++;
    }
    return n;
}

/* A producer and a consumer that go on whatever fails: once. Returns the items delivered. */
static unsigned run_whatever_fails(struct world *w)
{
    unsigned delivered = 0;
    void *pinned = NULL;
    while (weir_host_alloc(w->pool, 4 * KIB, &pinned) != WEIR_OK) {
    }
    write_words(pinned, 4 * KIB, 1);
    weir_span span[2] = {{pinned, 2 * KIB}, {(char *)pinned + 3 * KIB, 1 * KIB}};
    for (int i = 0; i < 4; i++) {
        weir_item item;
        if (weir_queue_reserve(w->queue, 4 * KIB, SECOND, &item) == WEIR_OK) {
            write_item(w, &item, 1);
            if (i == 2)
                weir_queue_abort(w->queue, &item);
            else
                weir_queue_commit(w->queue, &item);
        }
        weir_queue_push(w->queue, span, 2, WEIR_PUSH_BORROW, 0, NULL);
        delivered += eat_all(w, i);
        delivered += eat_all(w, i); /* what an acquire that failed has left */
    }
    weir_queue_borrowed(w->queue, 0, SECOND);
    wr_sim_drain(w->sim);
    OK(weir_host_free(w->pool, pinned, WEIR_NO_STREAM));
    return delivered;
}

static void test_any_failing_call_loses_nothing(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct world w;
        struct wr_sim_options o = world_options();
        open_world(&w, &o, 0, NULL);
        uint64_t before = wr_sim_calls(w.sim);
        wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
        weir_queue_options q = queue_options(4 * KIB, 2);
        weir_status s = weir_queue_open(w.pool, &q, &w.queue);
        if (s != WEIR_OK) OK(weir_queue_open(w.pool, &q, &w.queue));
        unsigned delivered = run_whatever_fails(&w);
        assert_in_range(delivered, 6, 7);
        OK(weir_queue_destroy(w.queue));
        bool over = wr_sim_calls(w.sim) - before < n;
        wr_sim_fail_nth(w.sim, 0, WEIR_OK);
        wr_sim_drain(w.sim);
        assert_int_equal(wrong_words(&w), 0);
        assert_no_reports(&w);
        OK(weir_pool_check(w.pool));
        assert_int_equal(end_world(&w), 0);
        if (over) break;
        assert_true(n < 1000);
    }
}

static void test_an_item_whose_fence_failed_still_arrives(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    eat(&w, 1, 0);
    wr_sim_drain(w.sim);
    weir_item item, next;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    write_item(&w, &item, 2);
    struct wr_sim_counts before = counts_of(&w), after;
    wr_sim_fail_nth(w.sim, 2, WEIR_DRIVER_ERROR); /* the first is the copy, the second the record behind it */
    OK(weir_queue_commit(w.queue, &item));
    after = counts_of(&w);
    assert_int_equal(after.copies - before.copies, 1);
    assert_int_equal(after.events_recorded - before.events_recorded, 0);
    assert_int_equal(weir_queue_reserve(w.queue, 16, 0, &next), WEIR_WOULD_BLOCK);
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    read_item_on(&w, &item, 2, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    OK(feed(&w, 16, 3, SECOND)); /* the staging came back, too */
    eat(&w, 3, 0);
    close_world(&w);
}

static void test_an_item_without_memory_takes_no_place(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    open_world(&w, &o, 0, NULL);
    weir_pool_options small = {.struct_size = sizeof small, .limit_bytes = 4 * MIB};
    weir_pool *pool;
    OK(wr_pool_open(w.device, &small, &pool));
    weir_queue_options q = queue_options(4 * MIB, 2);
    OK(weir_queue_open(pool, &q, &w.queue));
    OK(feed(&w, 4 * MIB, 1, 0));
    weir_item item;
    assert_int_equal(weir_queue_reserve(w.queue, 4 * MIB, 0, &item), WEIR_OUT_OF_MEMORY);
    assert_int_equal(stats_of(w.queue).device_bytes, 4 * MIB);
    eat(&w, 1, 0);
    wr_sim_drain(w.sim);
    OK(weir_queue_destroy(w.queue));
    wr_sim_drain(w.sim);
    if (weir_pool_close(pool) == WEIR_NOT_YET) OK(weir_pool_close(pool));
    weir_queue_options again = queue_options(4 * KIB, 1);
    OK(weir_queue_open(w.pool, &again, &w.queue));
    close_world(&w);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

struct caller {
    struct world *w;
    pthread_t thread;
    size_t bytes;
    uint32_t tag;
    weir_status got;
    uint64_t ticket;
    _Atomic bool back;
};

static void *call_reserve(void *arg)
{
    struct caller *c = arg;
    weir_item item;
    c->got = weir_queue_reserve(c->w->queue, c->bytes, -1, &item);
    c->ticket = c->got == WEIR_OK ? item.ticket : 0;
    if (c->got == WEIR_OK) {
        write_item(c->w, &item, c->tag);
        c->got = weir_queue_commit(c->w->queue, &item);
    }
    c->back = true;
    return NULL;
}

static void *call_acquire(void *arg)
{
    struct caller *c = arg;
    weir_item item;
    c->got = weir_queue_acquire(c->w->queue, c->w->stream[0], -1, &item);
    c->back = true;
    return NULL;
}

static void *call_borrowed(void *arg)
{
    struct caller *c = arg;
    c->got = weir_queue_borrowed(c->w->queue, c->ticket, -1);
    c->back = true;
    return NULL;
}

static void start(struct caller *c, struct world *w, void *(*call)(void *))
{
    c->w = w;
    c->back = false;
    assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void await_blocked(struct world *w, uint64_t producers, uint64_t consumers)
{
    for (;;) {
        weir_queue_stats s = stats_of(w->queue);
        if (s.waiting_slot + s.waiting_pinned == producers && s.waiting_item == consumers) return;
        nap();
    }
}

static void test_blocked_producers_are_served_in_their_order(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(1 * MIB, 4);
    q.device_bytes = 1 * MIB;
    open_world(&w, &o, 0, &q);
    weir_item small;
    OK(feed(&w, 64 * KIB, 1, 0));
    OK(weir_queue_reserve(w.queue, 64 * KIB, 0, &small));
    /* The large one comes first and must wait for both; the small one would fit now, but came later. */
    struct caller large = {.bytes = 1 * MIB, .tag = 3}, late = {.bytes = 64 * KIB, .tag = 4};
    start(&large, &w, call_reserve);
    await_blocked(&w, 1, 0);
    start(&late, &w, call_reserve);
    await_blocked(&w, 2, 0);
    weir_item item;
    assert_int_equal(weir_queue_reserve(w.queue, 4, 0, &item), WEIR_WOULD_BLOCK);
    eat(&w, 1, 0);
    nap();
    assert_false(large.back || late.back);
    assert_true(stats_of(w.queue).longest_wait_ns > 0);
    write_item(&w, &small, 2);
    OK(weir_queue_commit(w.queue, &small));
    eat(&w, 2, 0);
    pthread_join(large.thread, NULL);
    OK(large.got);
    eat(&w, 3, 0);
    pthread_join(late.thread, NULL);
    OK(late.got);
    assert_int_equal(late.ticket, large.ticket + 1);
    eat(&w, 4, 0);
    assert_int_equal(stats_of(w.queue).peak_device_bytes, 1 * MIB);
    close_world(&w);
}

static void test_close_wakes_blocked_producers_and_consumers(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, 4 * KIB, 1);
    struct caller producer[3] = {{.bytes = 16}, {.bytes = 16}, {.bytes = 16}}, consumer[3] = {{0}};
    for (int i = 0; i < 3; i++)
        start(&consumer[i], &w, call_acquire);
    await_blocked(&w, 0, 3);
    weir_item item;
    OK(weir_queue_reserve(w.queue, 16, 0, &item));
    for (int i = 0; i < 3; i++)
        start(&producer[i], &w, call_reserve);
    await_blocked(&w, 3, 3);
    OK(weir_queue_close(w.queue));
    for (int i = 0; i < 3; i++) {
        pthread_join(producer[i].thread, NULL);
        assert_int_equal(producer[i].got, WEIR_CLOSED);
    }
    assert_int_equal(stats_of(w.queue).waiting_item, 3); /* one item may still come */
    OK(weir_queue_abort(w.queue, &item));
    for (int i = 0; i < 3; i++) {
        pthread_join(consumer[i].thread, NULL);
        assert_int_equal(consumer[i].got, WEIR_CLOSED);
    }
    close_world(&w);
}

static void test_destroy_wakes_everyone(void **state)
{
    (void)state;
    struct world w;
    open_wall(&w, 4 * KIB, 2);
    struct wr_sim_gate *gate;
    OK(feed(&w, 16, 1, 0));
    OK(feed(&w, 16, 1, 0));
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 1, 0);
    eat(&w, 1, 0);
    void *pinned;
    OK(weir_host_alloc(w.pool, 4 * KIB, &pinned));
    write_words(pinned, 4 * KIB, 1);
    struct caller lender = {0}, producer = {.bytes = 16}, consumer = {0};
    OK(weir_queue_push(w.queue, &(weir_span){pinned, 16}, 1, WEIR_PUSH_BORROW, 0, &lender.ticket));
    start(&lender, &w, call_borrowed);
    weir_item held, filling;
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &held));
    OK(weir_queue_reserve(w.queue, 16, -1, &filling));
    start(&producer, &w, call_reserve);
    start(&consumer, &w, call_acquire);
    await_blocked(&w, 1, 1);
    OK(weir_queue_destroy(w.queue));
    pthread_join(lender.thread, NULL);
    pthread_join(producer.thread, NULL);
    pthread_join(consumer.thread, NULL);
    assert_int_equal(lender.got, WEIR_CLOSED);
    assert_int_equal(producer.got, WEIR_CLOSED);
    assert_int_equal(consumer.got, WEIR_CLOSED);
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    OK(weir_host_free(w.pool, pinned, WEIR_NO_STREAM));
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

/* `to` comes after what `from` has queued. */
static void order_streams(struct world *w, weir_stream from, weir_stream to)
{
    struct wr_mark m;
    OK(wr_pool_mark(w->pool, from, &m));
    OK(wr_mark_wait(m, to));
}

struct per_thread {
    struct world *w;
    weir_item item;
};

static void *acquire_on_own_stream(void *arg)
{
    struct per_thread *t = arg;
    struct world *w = t->w;
    weir_stream mine = (weir_stream)2;
    order_streams(w, w->stream[3], mine); /* whose counter it is */
    OK(weir_queue_acquire(w->queue, mine, 0, &t->item));
    OK(wr_kernels_spin(w->device, mine, 20 * MILLISECOND));
    OK(wr_kernels_verify(w->device, mine, t->item.device, t->item.bytes, 1, w->counter[3]));
    order_streams(w, mine, w->stream[3]);
    return NULL;
}

static void test_a_per_thread_stream_is_known_in_other_threads_and_after_its_own(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 1);
    OK(feed(&w, 16, 1, 0));
    struct per_thread t = {.w = &w};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, acquire_on_own_stream, &t), 0);
    pthread_join(thread, NULL);
    OK(weir_queue_release(w.queue, &t.item, NULL, 0)); /* of that thread's stream, not of this one's */
    OK(feed(&w, 16, 2, -1));
    eat(&w, 2, 0);
    wr_sim_drain(w.sim);
    assert_no_reports(&w);

    OK(feed(&w, 16, 1, -1));
    assert_int_equal(pthread_create(&thread, NULL, acquire_on_own_stream, &t), 0);
    pthread_join(thread, NULL);
    OK(weir_queue_destroy(w.queue));
    weir_dptr block;
    OK(weir_alloc(w.pool, 4 * KIB, w.stream[0], &block));
    OK(wr_kernels_fill(w.device, w.stream[0], block, 4 * KIB, 3));
    OK(weir_free(w.pool, block, w.stream[0]));
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses_what_is_no_queue),
        cmocka_unit_test(test_an_item_may_be_committed_shorter_than_reserved_and_never_longer),
        cmocka_unit_test(test_calls_refuse_bad_arguments),
        cmocka_unit_test(test_stats_fill_only_the_callers_struct),
        cmocka_unit_test(test_items_come_out_in_order_with_their_bytes),
        cmocka_unit_test(test_an_aborted_item_leaves_no_hole),
        cmocka_unit_test(test_old_handles_are_stale),
        cmocka_unit_test(test_timeouts_are_deadlines_on_the_devices_clock),
        cmocka_unit_test(test_a_released_slot_is_refilled_behind_its_reader_without_a_host_wait),
        cmocka_unit_test(test_an_empty_slot_is_preferred_to_one_that_drains_for_longer),
        cmocka_unit_test(test_acquire_waits_on_the_stream_alone),
        cmocka_unit_test(test_a_capturing_stream_is_refused_and_nothing_is_lost),
        cmocka_unit_test(test_a_gathered_push_is_one_copy_of_all_spans),
        cmocka_unit_test(test_borrowed_spans_are_read_in_place),
        cmocka_unit_test(test_a_wait_for_lent_spans_has_a_deadline),
        cmocka_unit_test(test_a_byte_limit_holds_few_large_items_or_many_small_ones),
        cmocka_unit_test(test_pinned_memory_has_a_limit_of_its_own),
        cmocka_unit_test(test_sizes_that_come_back_find_their_slots_again),
        cmocka_unit_test(test_close_delivers_what_there_is),
        cmocka_unit_test(test_destroy_never_waits_and_frees_nothing_early),
        cmocka_unit_test(test_a_held_item_outlives_the_stream_that_acquired_it),
        cmocka_unit_test(test_a_pool_closed_first_ends_with_its_queue),
        cmocka_unit_test(test_any_failing_call_loses_nothing),
        cmocka_unit_test(test_an_item_whose_fence_failed_still_arrives),
        cmocka_unit_test(test_an_item_without_memory_takes_no_place),
        cmocka_unit_test(test_blocked_producers_are_served_in_their_order),
        cmocka_unit_test(test_close_wakes_blocked_producers_and_consumers),
        cmocka_unit_test(test_destroy_wakes_everyone),
        cmocka_unit_test(test_a_per_thread_stream_is_known_in_other_threads_and_after_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
