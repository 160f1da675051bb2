/* SPDX-License-Identifier: Apache-2.0
 *
 * Commits that come after work which fills the buffer: a stream writes item.host, and the host waits for nothing.
 */
#include "queue_world.h"

#define MS ((int64_t)1000000)

enum { BYTES = 64 * 1024, MANY = 20 };

/* A queue, and a block of device memory that a producer's stream fills and copies to the host. */
struct source {
    struct world w;
    weir_dptr block;
};

static void open_source(struct source *f, unsigned items, size_t pinned_bytes)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(BYTES, items);
    q.pinned_bytes = pinned_bytes;
    open_world(&f->w, &o, 0, &q);
    OK(weir_alloc(f->w.pool, BYTES, f->w.stream[1], &f->block));
}

static void close_source(struct source *f)
{
    OK(weir_free(f->w.pool, f->block, f->w.stream[1]));
    close_world(&f->w);
}

/* Queues what writes the item's buffer, slowly. */
static weir_status fill_later(struct source *f, const weir_item *item, uint32_t tag)
{
    const struct wr_device_ops *ops = f->w.device->ops;
    weir_stream stream = f->w.stream[1];
    weir_status s = wr_kernels_spin(f->w.device, stream, 200000);
    if (s == WEIR_OK) s = wr_kernels_fill(f->w.device, stream, f->block, BYTES, tag);
    if (s != WEIR_OK) return s;
    return ops->copy(f->w.device, WR_COPY_D2H, (uintptr_t)item->host, f->block, BYTES, stream);
}

static weir_status commit_after_it(struct source *f, weir_item *item)
{
    return weir_queue_commit_after(f->w.queue, item, &f->w.stream[1], 1);
}

static void test_a_commit_may_come_before_what_fills_its_buffer_has_run(void **state)
{
    (void)state;
    struct source f;
    open_source(&f, 2, 0);
    for (uint32_t i = 1; i <= 20; i++) {
        weir_item item;
        OK(weir_queue_reserve(f.w.queue, BYTES, -1, &item));
        OK(fill_later(&f, &item, i));
        OK(commit_after_it(&f, &item));
        assert_null(item.host);
        eat(&f.w, i, 0);
    }
    close_source(&f);
}

static void test_a_commit_after_work_that_is_stuck_holds_up_no_host(void **state)
{
    (void)state;
    struct source f;
    struct wr_sim_gate *gate;
    weir_item item;
    open_source(&f, 2, 0);
    OK(wr_sim_stall(f.w.device, f.w.stream[1], &gate));
    OK(weir_queue_reserve(f.w.queue, BYTES, 0, &item));
    OK(fill_later(&f, &item, 7));
    OK(commit_after_it(&f, &item));
    eat(&f.w, 7, 0);
    assert_int_equal(weir_queue_wait_idle(f.w.queue, 50 * MS), WEIR_TIMEOUT);
    wr_sim_gate_open(gate);
    OK(weir_queue_wait_idle(f.w.queue, -1));
    close_source(&f);
}

static void test_a_commit_comes_after_all_streams_of_a_long_list(void **state)
{
    (void)state;
    struct source f;
    struct wr_sim_gate *gate;
    weir_stream after[MANY];
    weir_item item;
    open_source(&f, 2, 0);
    for (int i = 0; i < MANY; i++)
        after[i] = f.w.stream[i < MANY - 1 ? 2 : 1];
    OK(wr_sim_stall(f.w.device, f.w.stream[1], &gate));
    OK(weir_queue_reserve(f.w.queue, BYTES, 0, &item));
    OK(fill_later(&f, &item, 7));
    OK(weir_queue_commit_after(f.w.queue, &item, after, MANY));
    assert_int_equal(stats_of(f.w.queue).host_allocations, 1);
    eat(&f.w, 7, 0);
    wr_sim_gate_open(gate);
    close_source(&f);
}

/* Of a cancelled item, and of one whose queue was poisoned. */
static void test_a_refused_items_buffer_serves_nobody_before_it_is_written(void **state)
{
    (void)state;
    for (int poisons = 0; poisons < 2; poisons++) {
        struct source f;
        struct wr_sim_gate *gate;
        weir_item item, next;
        open_source(&f, 2, BYTES);
        OK(wr_sim_stall(f.w.device, f.w.stream[1], &gate));
        OK(weir_queue_reserve(f.w.queue, BYTES, 0, &item));
        OK(fill_later(&f, &item, 7));
        OK(poisons ? weir_queue_poison(f.w.queue, 1, "over") : weir_queue_cancel(f.w.queue, item.ticket));
        assert_int_equal(commit_after_it(&f, &item), poisons ? WEIR_POISONED : WEIR_STALE_HANDLE);
        assert_null(item.host);
        assert_int_equal(weir_queue_wait_idle(f.w.queue, 0), WEIR_WOULD_BLOCK);
        if (!poisons) assert_int_equal(weir_queue_reserve(f.w.queue, BYTES, 0, &next), WEIR_WOULD_BLOCK);
        wr_sim_gate_open(gate);
        OK(weir_queue_wait_idle(f.w.queue, -1));
        assert_int_equal(stats_of(f.w.queue).items_aborted, 1);
        close_source(&f);
    }
}

static void test_bad_input_leaves_the_item_as_it_was(void **state)
{
    (void)state;
    struct source f;
    weir_item item, stale;
    open_source(&f, 2, 0);
    weir_queue *q = f.w.queue;
    OK(weir_queue_reserve(q, BYTES, 0, &item));
    void *host = item.host;
    assert_int_equal(weir_queue_commit_after(q, NULL, f.w.stream, 1), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_commit_after(q, &item, NULL, 1), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_queue_commit_after(NULL, &item, f.w.stream, 1), WEIR_INVALID_ARGUMENT);
    item.bytes = BYTES + 1;
    assert_int_equal(commit_after_it(&f, &item), WEIR_INVALID_ARGUMENT);
    item.bytes = BYTES;
    wr_sim_set_capturing(f.w.device, f.w.stream[2], true);
    assert_int_equal(weir_queue_commit_after(q, &item, &f.w.stream[2], 1), WEIR_CAPTURING);
    wr_sim_set_capturing(f.w.device, f.w.stream[2], false);
    wr_sim_fail_nth(f.w.sim, 1, WEIR_DRIVER_ERROR);
    assert_int_equal(commit_after_it(&f, &item), WEIR_DRIVER_ERROR); /* the stream's mark was not made */
    assert_ptr_equal(item.host, host);
    stale = item;
    write_item(&f.w, &item, 3);
    OK(commit_after_it(&f, &item));
    assert_int_equal(commit_after_it(&f, &stale), WEIR_STALE_HANDLE);
    eat(&f.w, 3, 0);
    OK(weir_queue_destroy(q));
    assert_int_equal(commit_after_it(&f, &stale), WEIR_CLOSED);
    wr_sim_drain(f.w.sim);
    assert_int_equal(wrong_words(&f.w), 0);
    assert_no_reports(&f.w);
    OK(weir_free(f.w.pool, f.block, f.w.stream[1]));
    assert_int_equal(end_world(&f.w), 0);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

/* There is one buffer, and the host writes the next item into it: the oracle tells if that is too soon. */
static bool run_with_failure(uint64_t n)
{
    struct source f;
    open_source(&f, 2, BYTES);
    uint64_t before = wr_sim_calls(f.w.sim);
    wr_sim_fail_nth(f.w.sim, n, WEIR_DRIVER_ERROR);
    for (uint32_t i = 1; i <= 6; i++) {
        weir_item item;
        weir_status s = WEIR_DRIVER_ERROR;
        while (weir_queue_reserve(f.w.queue, BYTES, 1000 * MS, &item) != WEIR_OK) {
        }
        write_item(&f.w, &item, 0);
        while (fill_later(&f, &item, i) != WEIR_OK) {
        }
        while (s != WEIR_OK && item.host)
            s = commit_after_it(&f, &item);
        if (s != WEIR_OK) continue;
        while (weir_queue_acquire(f.w.queue, f.w.stream[0], 1000 * MS, &item) != WEIR_OK) {
        }
        while (wr_kernels_verify(f.w.device, f.w.stream[0], item.device, item.bytes, i, f.w.counter[0]) !=
               WEIR_OK) {
        }
        while (weir_queue_release(f.w.queue, &item, NULL, 0) != WEIR_OK) {
        }
    }
    bool over = wr_sim_calls(f.w.sim) - before < n;
    wr_sim_fail_nth(f.w.sim, 0, WEIR_OK);
    assert_in_range(stats_of(f.w.queue).items_pushed, 5, 6);
    close_source(&f);
    return over;
}

static void test_any_failing_call_leaves_the_buffer_to_who_writes_it(void **state)
{
    (void)state;
    for (uint64_t n = 1; !run_with_failure(n); n++)
        assert_true(n < 2000);
}

static weir_status refuse_wait(struct wr_device *d, weir_stream stream, wr_event event)
{
    (void)d, (void)stream, (void)event;
    return WEIR_DRIVER_ERROR;
}

/* A second try fails, too, so that no copy tells when the buffer is written: it is not used again. */
static void test_a_buffer_that_nothing_tells_of_is_not_used_again(void **state)
{
    (void)state;
    struct source f;
    struct wr_sim_gate *gate;
    weir_item item;
    open_source(&f, 2, BYTES);
    OK(wr_sim_stall(f.w.device, f.w.stream[1], &gate));
    OK(weir_queue_reserve(f.w.queue, BYTES, 0, &item));
    void *lost = item.host;
    OK(fill_later(&f, &item, 7));
    const struct wr_device_ops *ops = f.w.device->ops;
    struct wr_device_ops broken = *ops;
    broken.stream_wait = refuse_wait;
    f.w.device->ops = &broken;
    assert_int_equal(commit_after_it(&f, &item), WEIR_DRIVER_ERROR);
    f.w.device->ops = ops;
    assert_null(item.host);
    OK(weir_queue_reserve(f.w.queue, BYTES, 0, &item));
    assert_ptr_not_equal(item.host, lost);
    write_item(&f.w, &item, 3);
    OK(weir_queue_commit(f.w.queue, &item));
    eat(&f.w, 3, 0);
    wr_sim_gate_open(gate);
    close_source(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_commit_may_come_before_what_fills_its_buffer_has_run),
        cmocka_unit_test(test_a_commit_after_work_that_is_stuck_holds_up_no_host),
        cmocka_unit_test(test_a_commit_comes_after_all_streams_of_a_long_list),
        cmocka_unit_test(test_a_refused_items_buffer_serves_nobody_before_it_is_written),
        cmocka_unit_test(test_bad_input_leaves_the_item_as_it_was),
        cmocka_unit_test(test_any_failing_call_leaves_the_buffer_to_who_writes_it),
        cmocka_unit_test(test_a_buffer_that_nothing_tells_of_is_not_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
