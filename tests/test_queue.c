/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue on the simulated device: order, bounds, waits and pushes.
 */
#include "queue_world.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

static const int64_t SECOND = 1000000000, MILLISECOND = 1000000;

/* ---- arguments --------------------------------------------------------------------------------------- */

static void refuses(
    weir_pool *pool, size_t struct_size, size_t item_bytes, unsigned items, size_t device, size_t pinned)
{
    weir_queue_options o = {.struct_size = struct_size,
        .item_bytes = item_bytes,
        .items = items,
        .device_bytes = device,
        .pinned_bytes = pinned};
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
    refuses(w.pool, ours + 1, 4096, 2, 0, 0);
    refuses(w.pool, offsetof(weir_queue_options, item_bytes), 4096, 2, 0, 0);
    refuses(w.pool, ours, 0, 2, 0, 0);
    refuses(w.pool, ours, 4096, 1025, 0, 0);
    refuses(w.pool, ours, SIZE_MAX / 2 + 1, 2, 0, 0);
    refuses(w.pool, ours, SIZE_MAX, 1, 0, 0);
    refuses(w.pool, ours, 4096, 2, 4095, 0);
    refuses(w.pool, ours, 4096, 2, 0, 4095);
    weir_queue_options good = queue_options(4096, 1), older = good;
    weir_queue *q;
    older.struct_size = offsetof(weir_queue_options, order);
    older.consumers = (weir_consumers)99; /* not known to that caller */
    OK(weir_queue_open(w.pool, &older, &q));
    OK(weir_queue_destroy(q));
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

static void test_another_stream_that_awaits_an_item_reads_behind_its_copy(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 8 * MIB, 2);
    OK(feed(&w, 8 * MIB, 9, 0));
    weir_item item, stranger;
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    stranger = item;
    stranger.handle++;
    assert_int_equal(weir_queue_await(w.queue, NULL, w.stream[1]), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_await(w.queue, &stranger, w.stream[1]), WEIR_STALE_HANDLE);
    wr_sim_set_capturing(w.device, w.stream[1], true);
    assert_int_equal(weir_queue_await(w.queue, &item, w.stream[1]), WEIR_CAPTURING);
    wr_sim_set_capturing(w.device, w.stream[1], false);
    OK(weir_queue_await(w.queue, &item, w.stream[1]));
    assert_int_equal(stats_of(w.queue).stream_waits_copy, 2);
    read_item_on(&w, &item, 9, 1);
    OK(weir_queue_release(w.queue, &item, &w.stream[1], 1));
    assert_int_equal(weir_queue_await(w.queue, &item, w.stream[1]), WEIR_STALE_HANDLE);
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
        cmocka_unit_test(test_another_stream_that_awaits_an_item_reads_behind_its_copy),
        cmocka_unit_test(test_a_capturing_stream_is_refused_and_nothing_is_lost),
        cmocka_unit_test(test_a_gathered_push_is_one_copy_of_all_spans),
        cmocka_unit_test(test_borrowed_spans_are_read_in_place),
        cmocka_unit_test(test_a_wait_for_lent_spans_has_a_deadline),
        cmocka_unit_test(test_a_byte_limit_holds_few_large_items_or_many_small_ones),
        cmocka_unit_test(test_pinned_memory_has_a_limit_of_its_own),
        cmocka_unit_test(test_sizes_that_come_back_find_their_slots_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
