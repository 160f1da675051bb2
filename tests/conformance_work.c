/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam's contract: copies, kernels, several devices, what may wait, the clock. See conformance.h.
 */
#include "conformance.h"

/* ---- work -------------------------------------------------------------------------------------------- */

static void test_copies_move_the_bytes(void **state)
{
    (void)state;
    unsigned char *source = host, *back = host + SLAB / 2;
    for (size_t i = 0; i < WR_MIB; i++)
        source[i] = (unsigned char)(i * 7 + (i >> 8));
    memset(back, 0, WR_MIB);
    upload(slab.va + 3, source, WR_MIB, stream);
    ok(dev->ops->copy(dev, WR_COPY_D2D, slab.va + 2 * WR_MIB, slab.va + 3, WR_MIB, stream));
    download(back, slab.va + 2 * WR_MIB, WR_MIB, stream);
    sync_all();
    assert_memory_equal(source, back, WR_MIB);
}

/* Bytes between the rows stay as they are, on either side. */
static void test_rows_are_copied_each_to_its_place(void **state)
{
    (void)state;
    enum { ROW = 100, ROWS = 37, NARROW = 128, WIDE = 300 };
    unsigned char *back = host + SLAB / 2;
    for (size_t i = 0; i < ROWS * WIDE; i++)
        host[i] = (unsigned char)(i * 13 + (i >> 8));
    memset(back, 0xaa, ROWS * NARROW);
    ok(dev->ops->fill(dev, slab.va, 0x55, SLAB, stream));
    uint64_t there = slab.va + WR_MIB + 1, again = slab.va + 2 * WR_MIB;
    struct wr_rows up = {there, (uintptr_t)host, ROW, ROWS, NARROW, WIDE};
    struct wr_rows across = {again, there, ROW, ROWS, WIDE, NARROW};
    struct wr_rows down = {(uintptr_t)back, again, ROW, ROWS, NARROW, WIDE};
    ok(dev->ops->copy_rows(dev, WR_COPY_H2D, &up, stream));
    ok(dev->ops->copy_rows(dev, WR_COPY_D2D, &across, stream));
    ok(dev->ops->copy_rows(dev, WR_COPY_D2H, &down, stream));
    assert_int_equal(read_byte(2 * WR_MIB + ROW), 0x55);
    for (size_t row = 0; row < ROWS; row++) {
        assert_memory_equal(back + row * NARROW, host + row * WIDE, ROW);
        assert_int_equal(back[row * NARROW + ROW], 0xaa);
    }
}

static void test_a_pitch_below_the_row_is_refused(void **state)
{
    (void)state;
    struct wr_rows narrow = {slab.va, (uintptr_t)host, 100, 2, 99, 100};
    assert_int_equal(dev->ops->copy_rows(dev, WR_COPY_H2D, &narrow, stream), WEIR_INVALID_ARGUMENT);
}

static void test_a_copy_reads_its_source_when_it_runs(void **state)
{
    (void)state;
    host[0] = 1;
    make_busy(stream);
    upload(slab.va, host, 1, stream);
    host[0] = 2;
    assert_int_equal(read_byte(0), 2);
}

static void test_pageable_memory_is_copied_right(void **state)
{
    (void)state;
    enum { N = 300000 };
    unsigned char *source = malloc(N), *back = calloc(1, N);
    assert_true(source && back);
    for (size_t i = 0; i < N; i++)
        source[i] = (unsigned char)(i ^ (i >> 7));
    upload(slab.va, source, N, stream);
    download(back, slab.va, N, stream);
    ok(dev->ops->stream_sync(dev, stream));
    assert_memory_equal(source, back, N);
    free(source);
    free(back);
}

static void test_kernels_run_with_the_parameters_of_their_launch(void **state)
{
    (void)state;
    uint64_t counter = slab.va + SLAB - 8, at = slab.va;
    ok(dev->ops->fill(dev, counter, 0, 8, stream));
    make_busy(stream); /* so that the launches return before they run */
    for (uint32_t i = 1; i <= 3; i++)
        ok(wr_kernels_fill(dev, stream, at + 4096 * i, 4096, i));
    for (uint32_t i = 1; i <= 3; i++)
        ok(wr_kernels_verify(dev, stream, at + 4096 * i, 4096, i, counter));
    ok(wr_kernels_verify(dev, stream, at + 4096, 4096 + 8, 1, counter)); /* two words are of the second */
    uint64_t *mismatches = (uint64_t *)(void *)host;
    *mismatches = 99;
    download(mismatches, counter, 8, stream);
    sync_all();
    assert_int_equal(*mismatches, 2);
}

static void test_work_of_no_bytes_is_fine(void **state)
{
    (void)state;
    upload(slab.va, host, 0, stream);
    ok(dev->ops->fill(dev, slab.va, 1, 0, stream));
    ok(wr_kernels_fill(dev, stream, slab.va, 0, 1));
    sync_all();
}

/* ---- several devices --------------------------------------------------------------------------------- */

static void test_events_order_streams_of_different_devices(void **state)
{
    (void)state;
    if (!peer) skip();
    weir_stream theirs = new_stream(peer);
    make_busy(stream);
    wr_event e = record(dev, stream);
    ok(peer->ops->stream_wait(peer, theirs, e));
    wr_event waited = record(peer, theirs);
    assert_false(is_done(peer, waited));
    finish(peer, waited);
    assert_true(is_done(dev, e));
    drop_event(e);
    ok(peer->ops->stream_destroy(peer, theirs));
}

static wr_event record_time(weir_stream s)
{
    wr_event e;
    ok(dev->ops->event_create_timed(dev, &e));
    ok(dev->ops->event_record(dev, e, s));
    return e;
}

static void test_the_time_between_events_is_that_of_the_work_between_them(void **state)
{
    (void)state;
    int64_t whole = 0, none = 0, untouched = -7;
    const int64_t spin_ns = 20 * 1000 * 1000;
    ok(wr_kernels_spin(dev, stream, 1)); /* loads it */
    sync_all();
    wr_event before = record_time(stream);
    ok(wr_kernels_spin(dev, stream, spin_ns));
    wr_event after = record_time(stream), later = record_time(stream), plain = record(dev, stream);
    assert_int_equal(dev->ops->event_elapsed(dev, before, after, &untouched), WEIR_INVALID_ARGUMENT);
    sync_all();
    ok(dev->ops->event_elapsed(dev, before, after, &whole));
    ok(dev->ops->event_elapsed(dev, after, later, &none));
    assert_in_range(whole, spin_ns * 9 / 10, spin_ns * 2);
    assert_in_range(none, 0, spin_ns / 10);
    assert_int_equal(dev->ops->event_elapsed(dev, before, plain, &untouched), WEIR_INVALID_ARGUMENT);
    assert_int_equal(untouched, -7);
    drop_event(before);
    drop_event(after);
    drop_event(later);
    drop_event(plain);
}

static void test_bytes_move_between_devices(void **state)
{
    (void)state;
    if (!peer) skip();
    struct slab there = map_slab(peer);
    ok(dev->ops->mem_access(dev, there.va, SLAB));
    ok(peer->ops->mem_access(peer, slab.va, SLAB));
    bool reached = false;
    ok(dev->ops->peer_access(dev, peer, &reached));
    assert_true(reached);
    ok(wr_kernels_fill(dev, stream, slab.va, SLAB / 2, 0x01020304));
    struct wr_rows rows = {there.va, slab.va, 4096, SLAB / 2 / 4096, 4096, 4096};
    ok(dev->ops->copy_rows(dev, WR_COPY_PEER, &rows, stream));
    ok(dev->ops->copy(dev, WR_COPY_PEER, slab.va + SLAB / 2, there.va, SLAB / 2, stream));
    download(host, slab.va + SLAB / 2, SLAB / 2, stream);
    sync_all();
    assert_int_equal(host[0], 4);
    assert_int_equal(host[SLAB / 2 - 1], 1);
    unmap_slab(there);
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

static uint64_t worst_ns;
static const char *worst_op;

static void time_op(const char *name, weir_status s, uint64_t start)
{
    uint64_t took = dev->ops->now_ns(dev) - start;
    if (s != WEIR_OK) fail_msg("%s: %s", name, weir_error_text());
    if (took < worst_ns && worst_op) return;
    worst_ns = took;
    worst_op = name;
}

/* Makes each call that must not wait, once. */
static void make_every_call(void *memory)
{
    size_t free_bytes, total;
    uint64_t va;
    wr_memory handle;
    weir_stream s, first;
    wr_event e, timed;
    bool flag;
    struct wr_stream_info info;
#define CALL(name, ...)                                                                                      \
    do {                                                                                                     \
        uint64_t start_ = dev->ops->now_ns(dev);                                                             \
        weir_status status_ = dev->ops->name(dev, __VA_ARGS__);                                              \
        time_op(#name, status_, start_);                                                                     \
    } while (0)
    CALL(va_reserve, SLAB, &va);
    CALL(mem_create, SLAB, &handle);
    CALL(mem_map, va, SLAB, handle);
    CALL(mem_access, va, SLAB);
    CALL(mem_info, &free_bytes, &total);
    CALL(host_register, memory, WR_MIB);
    struct wr_location location;
    CALL(locate, (uintptr_t)memory, &location);
    CALL(stream_create_first, &first);
    CALL(stream_create, &s);
    CALL(stream_identify, s, &info);
    CALL(event_create, &e);
    CALL(event_create_timed, &timed);
    CALL(event_record, e, stream);
    CALL(event_record, timed, stream);
    struct wr_device *owner;
    CALL(stream_device, s, &owner);
    CALL(stream_wait, s, e);
    CALL(event_query, e, &flag);
    CALL(event_record_context, e);
    CALL(copy, WR_COPY_H2D, slab.va, (uintptr_t)host, 4096, stream);
    CALL(copy_rows, WR_COPY_H2D, &(struct wr_rows){slab.va, (uintptr_t)host, 64, 8, 64, 128}, stream);
    if (peer) CALL(peer_access, peer, &flag);
    CALL(fill, slab.va, 1, 4096, stream);
    CALL(event_destroy, e);
    CALL(event_destroy, timed);
    CALL(stream_destroy, s);
    CALL(stream_destroy, first);
    CALL(mem_unmap, va, SLAB);
    CALL(mem_release, handle);
    CALL(va_free, va, SLAB);
#undef CALL
}

static void test_no_op_but_the_named_ones_waits_for_running_work(void **state)
{
    (void)state;
    void *memory = aligned_alloc(4096, WR_MIB);
    assert_non_null(memory);
    memset(memory, 0, WR_MIB);
    worst_ns = 0;
    worst_op = NULL;
    for (int i = 0; i < 5; i++) /* longer than all the calls together */
        make_busy(stream);
    wr_event busy = record(dev, stream);
    make_every_call(memory);
    assert_false(is_done(dev, busy));
    if (worst_ns >= SOON) fail_msg("%s took %llu ns", worst_op, (unsigned long long)worst_ns);
    finish(dev, busy);
    sync_all();
    ok(dev->ops->host_unregister(dev, memory));
    free(memory);
}

static void test_calls_are_counted_but_for_reading_a_stream(void **state)
{
    (void)state;
    uint64_t before = atomic_load(&dev->calls);
    identify(stream);
    dev->ops->now_ns(dev);
    assert_int_equal(atomic_load(&dev->calls), before);
    ok(dev->ops->fill(dev, slab.va, 1, 1, stream));
    assert_int_equal(atomic_load(&dev->calls), before + 1);
    sync_all();
}

/* ---- the clock --------------------------------------------------------------------------------------- */

static void test_a_doze_ends_in_time_and_the_clock_never_goes_back(void **state)
{
    (void)state;
    uint64_t last = dev->ops->now_ns(dev), start = last;
    while (last - start < 5 * MS) {
        doze(MS);
        uint64_t now = dev->ops->now_ns(dev);
        assert_true(now >= last);
        last = now;
    }
    assert_true(last - start < GIVEN);
}

struct bell {
    struct wr_lock lock;
    pthread_cond_t wake;
    bool rung;
};

static void *ring(void *arg)
{
    struct bell *b = arg;
    wr_lock_take(&b->lock);
    b->rung = true;
    pthread_cond_signal(&b->wake);
    wr_lock_give(&b->lock);
    return NULL;
}

static void test_a_doze_gives_the_lock_up_and_a_signal_ends_it(void **state)
{
    (void)state;
    struct bell b = {.wake = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    wr_lock_init(&b.lock, WR_RANK_QUEUE);
    wr_lock_take(&b.lock);
    uint64_t start = wr_device_wall_ns();
    assert_int_equal(pthread_create(&thread, NULL, ring, &b), 0);
    while (!b.rung) { /* the ringer needs the lock */
        assert_true(wr_device_wall_ns() - start < GIVEN);
        dev->ops->doze(dev, &b.wake, &b.lock, 2 * GIVEN);
    }
    wr_lock_give(&b.lock);
    pthread_join(thread, NULL);
    wr_lock_fini(&b.lock);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_move_the_bytes),
        cmocka_unit_test(test_rows_are_copied_each_to_its_place),
        cmocka_unit_test(test_a_pitch_below_the_row_is_refused),
        cmocka_unit_test(test_a_copy_reads_its_source_when_it_runs),
        cmocka_unit_test(test_pageable_memory_is_copied_right),
        cmocka_unit_test(test_kernels_run_with_the_parameters_of_their_launch),
        cmocka_unit_test(test_work_of_no_bytes_is_fine),
        cmocka_unit_test(test_events_order_streams_of_different_devices),
        cmocka_unit_test(test_the_time_between_events_is_that_of_the_work_between_them),
        cmocka_unit_test(test_bytes_move_between_devices),
        cmocka_unit_test(test_no_op_but_the_named_ones_waits_for_running_work),
        cmocka_unit_test(test_calls_are_counted_but_for_reading_a_stream),
        cmocka_unit_test(test_a_doze_ends_in_time_and_the_clock_never_goes_back),
        cmocka_unit_test(test_a_doze_gives_the_lock_up_and_a_signal_ends_it),
    };
    return run_conformance(argc, argv, tests, WR_ARRAY_LEN(tests));
}
