/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue in its other directions: from device memory to the host, and to a slot of this or of another device.
 */
#include "direction_world.h"

#define MS ((int64_t)1000000)

static void end_clean(struct flow *f)
{
    wr_sim_drain(f->w.sim);
    assert_int_equal(wrong_words(&f->w), 0);
    assert_int_equal(counts_of(&f->w).host_syncs, 0);
    assert_no_reports(&f->w);
    close_flow(f);
}

static void test_items_come_in_order_while_their_block_is_filled_anew(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++) {
        struct flow f;
        open_flow(&f, kind, queue_options(FLOW_BYTES, 2));
        for (uint32_t i = 1; i <= 2; i++)
            produce(&f, i);
        for (uint32_t i = 3; i < 20; i++) {
            assert_int_equal(consume(&f, i - 2), 0);
            produce(&f, i);
        }
        weir_queue_stats s = stats_of(f.w.queue);
        assert_int_equal(s.bytes_copied, 19 * FLOW_BYTES);
        assert_int_equal(s.borrowed_bytes, 19 * FLOW_BYTES);
        assert_int_equal(s.staged_pageable_bytes, 0);
        assert_int_equal(s.peer_staged, kind == FLOW_STAGED);
        assert_int_equal(s.peer_staged_bytes, kind == FLOW_STAGED ? 19 * FLOW_BYTES : 0);
        assert_int_equal(s.device_bytes, kind == FLOW_TO_HOST ? 0 : 2 * FLOW_BYTES);
        assert_int_equal(s.peak_pinned_bytes > 0, kind == FLOW_TO_HOST || kind == FLOW_STAGED);
        end_clean(&f);
    }
}

static void test_the_host_has_an_item_when_its_copy_has_landed_and_not_before(void **state)
{
    (void)state;
    struct flow f;
    struct wr_sim_gate *gate;
    weir_item item;
    open_flow(&f, FLOW_TO_HOST, queue_options(FLOW_BYTES, 2));
    OK(wr_sim_stall(f.from, f.there, &gate));
    produce(&f, 7);
    assert_int_equal(weir_queue_acquire(f.w.queue, NULL, 0, &item), WEIR_WOULD_BLOCK);
    assert_int_equal(weir_queue_acquire(f.w.queue, NULL, 5 * MS, &item), WEIR_TIMEOUT);
    assert_int_equal(stats_of(f.w.queue).consumer_waits_copy, 1); /* one that slept */
    wr_sim_gate_open(gate);
    assert_int_equal(consume(&f, 7), 0);
    end_clean(&f);
}

static void test_a_busy_producer_or_consumer_holds_up_no_push(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++) {
        struct flow f;
        struct wr_sim_gate *gate, *reader;
        open_flow(&f, kind, queue_options(FLOW_BYTES, 2));
        OK(wr_sim_stall(f.from, f.there, &gate));
        OK(wr_sim_stall(f.w.device, f.w.stream[0], &reader));
        OK(send(&f, 1, 0, NULL));
        OK(send(&f, 2, 0, NULL));
        assert_int_equal(send(&f, 3, 0, NULL), WEIR_WOULD_BLOCK);
        assert_int_equal(weir_queue_borrowed(f.w.queue, 0, 0), WEIR_WOULD_BLOCK);
        wr_sim_gate_open(gate);
        wr_sim_gate_open(reader);
        OK(weir_queue_borrowed(f.w.queue, 0, -1));
        end_clean(&f);
    }
}

static void test_an_upload_may_begin_at_a_chosen_place_of_a_step(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_gate *gate;
    uint32_t *host;
    weir_item item;
    open_virtual(&w, FLOW_BYTES, 2);
    OK(weir_host_alloc(w.pool, FLOW_BYTES, (void **)&host));
    write_words(host, FLOW_BYTES, 5);
    weir_span span = {host, FLOW_BYTES};
    const weir_push_options o = {.struct_size = sizeof o,
        .flags = WEIR_PUSH_BORROW,
        .after = &w.stream[1],
        .n_after = 1,
        .timeout_ns = -1};
    OK(wr_sim_stall(w.device, w.stream[1], &gate));
    OK(weir_queue_push_after(w.queue, &span, 1, &o, NULL));
    assert_int_equal(weir_queue_borrowed(w.queue, 0, 50 * MS), WEIR_TIMEOUT);
    wr_sim_gate_open(gate);
    OK(weir_queue_borrowed(w.queue, 0, 50 * MS));
    OK(weir_queue_acquire(w.queue, w.stream[0], 0, &item));
    read_item_on(&w, &item, 5, 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    close_world(&w);
}

static void test_the_newest_reaches_the_host_though_others_are_on_their_way(void **state)
{
    (void)state;
    struct flow f;
    weir_queue_options q = queue_options(FLOW_BYTES, 2);
    q.consumers = WEIR_CONSUMERS_LATEST;
    open_flow(&f, FLOW_TO_HOST, q);
    for (uint32_t i = 1; i <= 9; i++)
        produce(&f, i);
    assert_int_equal(consume(&f, 9), 0);
    assert_int_equal(stats_of(f.w.queue).items_replaced, 8);
    end_clean(&f);
}

/* The launches that this took. */
static uint64_t send_many_spans(enum flow_kind kind, unsigned flags)
{
    struct flow f;
    weir_span spans[300];
    weir_item item;
    size_t n = 300, bytes = 200;
    weir_queue_options q = queue_options(FLOW_BYTES, 2);
    q.flags = flags;
    open_flow(&f, kind, q);
    OK(wr_kernels_fill(f.from, f.there, f.block, FLOW_BYTES, 3));
    for (size_t i = 0; i < n; i++) /* from the block's end to its begin, some of them empty */
        spans[i] = (weir_span){(const void *)(uintptr_t)(f.block + (n - 1 - i) * bytes), i % 10 ? bytes : 0};
    weir_push_options o = send_options(&f, 3, -1);
    uint64_t before = counts_of(&f.w).launches;
    OK(weir_queue_push_after(f.w.queue, spans, n, &o, NULL));
    uint64_t launches = counts_of(&f.w).launches - before;
    OK(weir_queue_acquire(f.w.queue, f.w.stream[0], -1, &item));
    assert_int_equal(item.bytes, 270 * bytes);
    assert_int_equal(look_at(&f, &item), 0);
    OK(weir_queue_release(f.w.queue, &item, NULL, 0));
    end_clean(&f);
    return launches;
}

static void test_many_spans_of_device_memory_are_one_item(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_int_equal(send_many_spans(kind, 0) > 0, kind == FLOW_TO_HOST || kind == FLOW_ON_DEVICE);
}

static void test_many_spans_of_device_memory_need_no_kernel(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        assert_int_equal(send_many_spans(kind, WEIR_QUEUE_NO_KERNELS), 0);
}

static void test_bad_input_is_a_typed_error_and_takes_nothing(void **state)
{
    (void)state;
    static char pageable[FLOW_BYTES];
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++) {
        struct flow f;
        weir_item item;
        open_flow(&f, kind, queue_options(FLOW_BYTES, 2));
        weir_queue *q = f.w.queue;
        weir_span host = {pageable, sizeof pageable}, lent = span_of(&f);
        weir_span strange = {(const void *)(uintptr_t)f.w.counter[0], 8};
        assert_int_equal(weir_queue_reserve(q, 100, 0, &item), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_queue_push(q, &lent, 1, WEIR_PUSH_COPY, 0, NULL), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_queue_push(q, &host, 1, WEIR_PUSH_BORROW, 0, NULL), WEIR_INVALID_POINTER);
        if (f.from != f.w.device)
            assert_int_equal(
                weir_queue_push(q, &strange, 1, WEIR_PUSH_BORROW, 0, NULL), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_queue_push_after(q, &lent, 1, NULL, NULL), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_queue_borrowed_by(q, 99, f.there), WEIR_INVALID_ARGUMENT);
        assert_int_equal(stats_of(q).slots_in_use, 0);
        produce(&f, 1);
        OK(weir_queue_acquire(q, f.w.stream[0], -1, &item));
        weir_item again = item;
        if (kind == FLOW_TO_HOST) {
            assert_int_equal(weir_queue_use(q, &item, f.w.stream[0]), WEIR_INVALID_ARGUMENT);
            assert_int_equal(weir_queue_release(q, &item, f.w.stream, 1), WEIR_INVALID_ARGUMENT);
        }
        OK(weir_queue_release(q, &item, NULL, 0));
        assert_null(item.host);
        assert_int_equal(weir_queue_release(q, &again, NULL, 0), WEIR_STALE_HANDLE);
        end_clean(&f);
    }
}

static void test_options_that_would_do_nothing_are_refused(void **state)
{
    (void)state;
    struct flow f;
    weir_queue *q;
    open_flow(&f, FLOW_TO_HOST, queue_options(FLOW_BYTES, 2));
    weir_queue_options o = queue_options(FLOW_BYTES, 2);
    o.source = f.peer;
    assert_int_equal(weir_queue_open(f.w.pool, &o, &q), WEIR_INVALID_ARGUMENT);
    o.source = NULL;
    o.direction = WEIR_TO_HOST;
    o.device_bytes = FLOW_BYTES;
    assert_int_equal(weir_queue_open(f.w.pool, &o, &q), WEIR_INVALID_ARGUMENT);
    o.direction = (weir_direction)3;
    assert_int_equal(weir_queue_open(f.w.pool, &o, &q), WEIR_INVALID_ARGUMENT);
    end_clean(&f);
}

/* The copies are stuck behind the producer; items are cancelled, held, unread, and the queue is gone. */
static void test_a_queue_destroyed_behind_a_busy_producer_frees_nothing_too_early(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++) {
        struct flow f;
        struct wr_sim_gate *gate;
        open_flow(&f, kind, queue_options(FLOW_BYTES, 3));
        OK(wr_sim_stall(f.from, f.there, &gate));
        for (uint32_t i = 1; i <= 3; i++)
            OK(send(&f, i, 0, NULL));
        OK(weir_queue_cancel(f.w.queue, 2));
        OK(weir_queue_destroy(f.w.queue));
        void *host;
        OK(weir_host_alloc(f.w.pool, FLOW_BYTES, &host)); /* none of the queue's: its copies come yet */
        wr_sim_host_access(f.w.sim, host, FLOW_BYTES, true);
        wr_sim_gate_open(gate);
        wr_sim_drain(f.w.sim);
        OK(weir_host_free(f.w.pool, host, NULL));
        assert_no_reports(&f.w);
        f.w.queue = NULL;
        OK(weir_queue_open(f.w.pool,
            &(weir_queue_options){.struct_size = sizeof(weir_queue_options), .item_bytes = 1},
            &f.w.queue)); /* for the end to destroy */
        close_flow(&f);
    }
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static void run_whatever_fails(struct flow *f)
{
    for (uint32_t i = 1; i <= 4; i++) {
        weir_item item;
        if (wr_kernels_fill(f->from, f->there, f->block, FLOW_BYTES, i) != WEIR_OK) continue;
        if (send(f, i, 1000 * MS, NULL) != WEIR_OK) {
            while (weir_queue_borrowed(f->w.queue, 0, -1) != WEIR_OK) {
            }
            continue;
        }
        while (weir_queue_acquire(f->w.queue, f->w.stream[0], 1000 * MS, &item) != WEIR_OK) {
        }
        if (f->kind == FLOW_TO_HOST) assert_int_equal(wrong_on_host(f, &item), 0);
        while (f->kind != FLOW_TO_HOST && wr_kernels_verify(f->w.device, f->w.stream[0], item.device,
                                              item.bytes, i, f->w.counter[0]) != WEIR_OK) {
        }
        while (weir_queue_release(f->w.queue, &item, NULL, 0) != WEIR_OK) {
        }
        while (weir_queue_borrowed_by(f->w.queue, 0, f->there) != WEIR_OK) {
        }
    }
}

static bool run_with_failure(enum flow_kind kind, uint64_t n)
{
    struct flow f;
    open_flow(&f, kind, queue_options(FLOW_BYTES, 2));
    uint64_t before = wr_sim_calls(f.w.sim);
    wr_sim_fail_nth(f.w.sim, n, WEIR_DRIVER_ERROR);
    run_whatever_fails(&f);
    OK(weir_queue_wait_idle(f.w.queue, 1000 * MS));
    bool over = wr_sim_calls(f.w.sim) - before < n;
    wr_sim_fail_nth(f.w.sim, 0, WEIR_OK);
    weir_queue_stats s = stats_of(f.w.queue);
    assert_int_equal(s.items_pushed, s.items_released);
    assert_in_range(s.items_pushed, 3, 4);
    OK(weir_pool_check(f.w.pool));
    end_clean(&f);
    return over;
}

static void test_any_failing_call_leaves_every_direction_whole(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++)
        for (uint64_t n = 1; !run_with_failure(kind, n); n++)
            assert_true(n < 2000);
}

/* Open tries the way between the devices: nothing of it is left, whatever fails. */
static void test_any_failing_call_of_open_leaves_nothing(void **state)
{
    (void)state;
    bool over = false;
    for (uint64_t n = 1; !over; n++) {
        struct flow f;
        weir_queue *q;
        weir_queue_options o = queue_options(FLOW_BYTES, 2);
        open_flow(&f, FLOW_STAGED, o);
        o.direction = WEIR_ON_DEVICE;
        o.source = f.peer;
        uint64_t before = wr_sim_calls(f.w.sim);
        wr_sim_fail_nth(f.w.sim, n, WEIR_DRIVER_ERROR);
        if (weir_queue_open(f.w.pool, &o, &q) == WEIR_OK) OK(weir_queue_destroy(q));
        over = wr_sim_calls(f.w.sim) - before < n;
        wr_sim_fail_nth(f.w.sim, 0, WEIR_OK);
        end_clean(&f);
        assert_true(n < 2000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_items_come_in_order_while_their_block_is_filled_anew),
        cmocka_unit_test(test_the_host_has_an_item_when_its_copy_has_landed_and_not_before),
        cmocka_unit_test(test_a_busy_producer_or_consumer_holds_up_no_push),
        cmocka_unit_test(test_an_upload_may_begin_at_a_chosen_place_of_a_step),
        cmocka_unit_test(test_the_newest_reaches_the_host_though_others_are_on_their_way),
        cmocka_unit_test(test_many_spans_of_device_memory_are_one_item),
        cmocka_unit_test(test_many_spans_of_device_memory_need_no_kernel),
        cmocka_unit_test(test_bad_input_is_a_typed_error_and_takes_nothing),
        cmocka_unit_test(test_options_that_would_do_nothing_are_refused),
        cmocka_unit_test(test_a_queue_destroyed_behind_a_busy_producer_frees_nothing_too_early),
        cmocka_unit_test(test_any_failing_call_leaves_every_direction_whole),
        cmocka_unit_test(test_any_failing_call_of_open_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
