/* SPDX-License-Identifier: Apache-2.0
 *
 * What a queue counts: waits by cause, gathers and what became of those that could not be, memory asked for, rates.
 */
#include "queue_world.h"

enum { BYTES = 120000, COPY_NS = 10000 + BYTES / 12, SPANS = 4096, SPAN = 100 };

static const uint64_t busy_ns = 1000000;

/* ---- waits ------------------------------------------------------------------------------------------- */

static void test_a_wait_for_a_buffer_is_told_apart_from_one_for_a_slot(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(BYTES, 4);
    q.pinned_bytes = BYTES; /* one buffer */
    open_world(&w, &o, 0, &q);
    OK(feed(&w, BYTES, 0, -1));
    OK(feed(&w, BYTES, 1, -1)); /* once the first copy is over */
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.producer_waits_pinned, 1);
    assert_in_range(s.wait_pinned_ns, COPY_NS / 2, 3 * COPY_NS);
    assert_int_equal(s.wait_slot_ns, 0);
    for (uint32_t i = 2; i < 4; i++)
        OK(feed(&w, BYTES, i, -1));
    wr_sim_drain(w.sim);
    assert_int_equal(feed(&w, BYTES, 4, busy_ns), WEIR_TIMEOUT); /* nobody eats */
    weir_queue_stats later = stats_of(w.queue);
    assert_int_equal(later.producer_waits_slot, 1);
    assert_in_range(later.wait_slot_ns, busy_ns, busy_ns + 1);
    assert_int_equal(later.wait_slot_ns + later.wait_pinned_ns, later.producer_wait_ns);
    for (uint32_t i = 0; i < 4; i++)
        eat(&w, i, 0);
    close_world(&w);
}

static void test_a_wait_for_ones_turn_is_told_apart_from_one_for_an_item(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(BYTES, 4);
    weir_item first, second;
    q.consumers = WEIR_CONSUMERS_STRICT;
    open_world(&w, &o, 0, &q);
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], busy_ns, &first), WEIR_TIMEOUT);
    assert_int_equal(stats_of(w.queue).waits_turn, 0);
    OK(feed(&w, BYTES, 0, -1));
    OK(feed(&w, BYTES, 1, -1));
    OK(weir_queue_acquire(w.queue, w.stream[0], -1, &first));
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[1], busy_ns, &second), WEIR_TIMEOUT);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.waits_turn, 1);
    assert_int_equal(s.consumer_waits_item, 2);
    assert_int_equal(s.wait_turn_ns, busy_ns);
    OK(weir_queue_release(w.queue, &first, NULL, 0));
    eat(&w, 1, 0);
    close_world(&w);
}

static void test_waits_for_lent_memory_and_for_the_end_are_counted(void **state)
{
    (void)state;
    struct world w;
    uint64_t ticket;
    void *batch;
    open_virtual(&w, BYTES, 2);
    OK(weir_host_alloc(w.pool, BYTES, &batch));
    write_words(batch, BYTES, 7);
    OK(weir_queue_push(w.queue, &(weir_span){batch, BYTES}, 1, WEIR_PUSH_BORROW, -1, &ticket));
    OK(weir_queue_borrowed(w.queue, ticket, -1));
    OK(weir_queue_borrowed(w.queue, ticket, -1)); /* does not block */
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.waits_borrowed, 1);
    assert_in_range(s.wait_borrowed_ns, COPY_NS / 2, 3 * COPY_NS);
    eat(&w, 7, 0);
    OK(wr_kernels_spin(w.device, w.stream[0], 1));
    OK(weir_queue_wait_idle(w.queue, -1));
    s = stats_of(w.queue);
    assert_int_equal(s.waits_idle, 1);
    assert_true(s.wait_idle_ns > 0);
    OK(weir_host_free(w.pool, batch, WEIR_NO_STREAM));
    close_world(&w);
}

/* ---- many small spans -------------------------------------------------------------------------------- */

static weir_span small_spans[SPANS];

static unsigned char *make_small_spans(struct world *w)
{
    unsigned char *host;
    OK(weir_host_alloc(w->pool, SPANS * (SPAN + 4), (void **)&host));
    write_words(host, SPANS * (SPAN + 4), 3);
    for (size_t i = 0; i < SPANS; i++)
        small_spans[i] = (weir_span){host + i * (SPAN + 4), SPAN};
    return host;
}

static void push_and_eat(struct world *w)
{
    OK(weir_queue_push(w->queue, small_spans, SPANS, WEIR_PUSH_BORROW, -1, NULL));
    eat(w, 3, 0);
    OK(weir_queue_wait_idle(w->queue, -1));
}

static void test_gathers_are_counted_and_so_are_those_that_no_kernel_could_make(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, SPANS * SPAN, 2);
    unsigned char *host = make_small_spans(&w);
    push_and_eat(&w);
    weir_queue_stats s = stats_of(w.queue);
    assert_in_range(s.gathers, 1, 8);
    assert_int_equal(s.gathered_bytes, SPANS * SPAN);
    assert_int_equal(s.gather_fallbacks, 0);
    w.device->reads_host = false;
    push_and_eat(&w);
    weir_queue_stats later = stats_of(w.queue);
    assert_int_equal(later.gathers, s.gathers);
    assert_in_range(later.gather_fallbacks, 1, 8);
    assert_int_equal(later.copies - s.copies, SPANS);
    w.device->reads_host = true;
    OK(weir_host_free(w.pool, host, WEIR_NO_STREAM));
    close_world(&w);
}

static void test_a_queue_without_kernels_launches_none(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(SPANS * SPAN, 2);
    weir_queue *none;
    q.flags = WEIR_QUEUE_NO_KERNELS;
    open_world(&w, &o, 0, &q);
    unsigned char *host = make_small_spans(&w);
    uint64_t before = counts_of(&w).launches;
    OK(weir_queue_push(w.queue, small_spans, SPANS, WEIR_PUSH_BORROW, -1, NULL));
    OK(weir_queue_borrowed(w.queue, 0, -1));
    assert_int_equal(counts_of(&w).launches, before);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.copies, SPANS);
    assert_int_equal(s.gathers, 0);
    assert_in_range(s.gather_fallbacks, 1, 8);
    eat(&w, 3, 0);
    q.flags = 1u << 31;
    assert_int_equal(weir_queue_open(w.pool, &q, &none), WEIR_INVALID_ARGUMENT);
    OK(weir_host_free(w.pool, host, WEIR_NO_STREAM));
    close_world(&w);
}

/* ---- memory and rates -------------------------------------------------------------------------------- */

static void test_memory_is_asked_for_until_the_queue_is_warm_and_not_after(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, SPANS * SPAN, 2);
    unsigned char *host = make_small_spans(&w);
    weir_item item;
    for (int i = 0; i < 4; i++)
        push_and_eat(&w);
    OK(feed(&w, SPAN, 4, -1));
    OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item)); /* more readers than a slot has room for */
    OK(weir_queue_release(w.queue, &item, w.stream, WORLD_STREAMS));
    OK(weir_queue_wait_idle(w.queue, -1));
    weir_queue_stats warm = stats_of(w.queue);
    assert_in_range(warm.slot_allocations, 2, 6);
    assert_int_equal(warm.host_allocations, 1);
    for (int i = 0; i < 20; i++)
        push_and_eat(&w);
    weir_queue_stats s = stats_of(w.queue);
    assert_int_equal(s.slot_allocations, warm.slot_allocations);
    assert_int_equal(s.host_allocations, warm.host_allocations);
    OK(weir_host_free(w.pool, host, WEIR_NO_STREAM));
    close_world(&w);
}

static void test_rates_are_of_the_time_since_open(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, BYTES, 2);
    assert_true(stats_of(w.queue).items_per_s == 0);
    for (uint32_t i = 0; i < 10; i++) {
        OK(feed(&w, BYTES, i, -1));
        eat(&w, i, 0);
    }
    wr_sim_advance(w.sim, 10 * busy_ns);
    weir_queue_stats s = stats_of(w.queue);
    assert_true(s.age_ns >= 10 * busy_ns);
    double seconds = (double)s.age_ns / 1e9;
    assert_in_range((uint64_t)(s.items_per_s * seconds * 1000 + 0.5), 9999, 10001);
    assert_in_range((uint64_t)(s.bytes_per_s * seconds + 0.5), 10 * BYTES - 1, 10 * BYTES + 1);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_for_a_buffer_is_told_apart_from_one_for_a_slot),
        cmocka_unit_test(test_a_wait_for_ones_turn_is_told_apart_from_one_for_an_item),
        cmocka_unit_test(test_waits_for_lent_memory_and_for_the_end_are_counted),
        cmocka_unit_test(test_gathers_are_counted_and_so_are_those_that_no_kernel_could_make),
        cmocka_unit_test(test_a_queue_without_kernels_launches_none),
        cmocka_unit_test(test_memory_is_asked_for_until_the_queue_is_warm_and_not_after),
        cmocka_unit_test(test_rates_are_of_the_time_since_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
