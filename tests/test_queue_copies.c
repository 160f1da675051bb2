/* SPDX-License-Identifier: Apache-2.0
 *
 * How a queue's items get onto the bus: chunks, many small spans, spans of every kind together.
 */
#include "queue_world.h"

enum { SPANS = 2000, SPAN = 1000, GAP = 8 };

static void test_many_small_borrowed_spans_are_few_transfers(void **state)
{
    (void)state;
    struct world w;
    static weir_span spans[SPANS];
    unsigned char *host;
    open_virtual(&w, SPANS * SPAN, 2);
    OK(weir_host_alloc(w.pool, SPANS * (SPAN + GAP), (void **)&host));
    for (size_t i = 0; i < SPANS * (SPAN + GAP); i++)
        host[i] = (unsigned char)(i * 7 + (i >> 10));
    for (size_t i = 0; i < SPANS; i++)
        spans[i] = (weir_span){host + i * (SPAN + GAP), SPAN};
    OK(weir_queue_push(w.queue, spans, SPANS, WEIR_PUSH_BORROW, -1, NULL));
    weir_item item;
    OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item));
    wr_sim_drain(w.sim);
    for (size_t i = 0; i < SPANS; i++) {
        unsigned char seen[SPAN];
        wr_sim_peek(w.sim, item.device + i * SPAN, seen, SPAN);
        assert_memory_equal(seen, spans[i].host, SPAN);
    }
    assert_int_equal(stats_of(w.queue).bytes_copied, SPANS * SPAN);
    assert_true(stats_of(w.queue).copies <= 2);
    assert_true(counts_of(&w).launches > 0);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    close_world(&w);
}

/* Pageable and pinned, empty and larger than a chunk, one after the other as they were given. */
static void test_spans_of_every_kind_arrive_in_their_order(void **state)
{
    (void)state;
    struct world w;
    size_t large = 20 * WR_MIB, sum = 0, n = 60;
    open_virtual(&w, 64 * WR_MIB, 2);
    unsigned char *pinned, *pageable = malloc(large);
    assert_non_null(pageable);
    OK(weir_host_alloc(w.pool, large, (void **)&pinned));
    for (size_t i = 0; i < large; i++) {
        pinned[i] = (unsigned char)(i * 5 + (i >> 12));
        pageable[i] = (unsigned char)(i * 11 + (i >> 9));
    }
    weir_span spans[60];
    for (size_t i = 0; i < n; i++) {
        size_t bytes = i % 7 == 0 ? 0 : i % 20 == 1 ? 9 * WR_MIB + i : 3000 + i;
        spans[i] = (weir_span){(i % 3 == 0 ? pinned : pageable) + i * 4099, bytes};
        sum += bytes;
    }
    OK(weir_queue_push(w.queue, spans, n, WEIR_PUSH_BORROW, -1, NULL));
    weir_item item;
    OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item));
    assert_int_equal(item.bytes, sum);
    wr_sim_drain(w.sim);
    unsigned char *seen = malloc(sum);
    assert_non_null(seen);
    wr_sim_peek(w.sim, item.device, seen, sum);
    size_t at = 0;
    for (size_t i = 0; i < n; at += spans[i++].bytes)
        assert_memory_equal(seen + at, spans[i].host, spans[i].bytes);
    free(seen);
    OK(weir_queue_release(w.queue, &item, NULL, 0));
    close_world(&w);
    free(pageable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_small_borrowed_spans_are_few_transfers),
        cmocka_unit_test(test_spans_of_every_kind_arrive_in_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
