/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam's contract: memory, streams, events. See conformance.h.
 */
#include "conformance.h"

#include <unistd.h>

/* ---- virtual memory ---------------------------------------------------------------------------------- */

static void test_address_space_is_larger_than_memory_and_aligned(void **state)
{
    (void)state;
    uint64_t va = 0;
    size_t bytes = 256 * WR_GIB;
    ok(dev->ops->va_reserve(dev, bytes, &va));
    assert_true(va != 0 && va % dev->granularity == 0);
    ok(dev->ops->va_free(dev, va, bytes));
}

static void test_bytes_survive_being_mapped_elsewhere(void **state)
{
    (void)state;
    struct slab a = map_slab(dev);
    uint64_t elsewhere;
    ok(dev->ops->fill(dev, a.va, 0x5a, SLAB, stream));
    sync_all();
    ok(dev->ops->va_reserve(dev, SLAB, &elsewhere));
    ok(dev->ops->mem_unmap(dev, a.va, SLAB));
    ok(dev->ops->mem_map(dev, elsewhere, SLAB, a.handle));
    ok(dev->ops->mem_access(dev, elsewhere, SLAB));
    download(host, elsewhere, SLAB, stream);
    sync_all();
    assert_int_equal(host[0], 0x5a);
    assert_int_equal(host[SLAB - 1], 0x5a);
    ok(dev->ops->va_free(dev, a.va, SLAB));
    a.va = elsewhere;
    unmap_slab(a);
}

static void test_only_whole_mappings_are_unmapped(void **state)
{
    (void)state;
    assert_int_not_equal(dev->ops->mem_unmap(dev, slab.va, SLAB / 2), WEIR_OK);
    assert_string_not_equal(weir_error_text(), "");
    ok(dev->ops->fill(dev, slab.va, 3, 1, stream)); /* nothing changed */
    assert_int_equal(read_byte(0), 3);
}

static void test_an_address_is_mapped_once(void **state)
{
    (void)state;
    wr_memory handle;
    ok(dev->ops->mem_create(dev, SLAB, &handle));
    assert_int_not_equal(dev->ops->mem_map(dev, slab.va, SLAB, handle), WEIR_OK);
    ok(dev->ops->mem_release(dev, handle));
}

static void test_more_than_the_memory_is_out_of_memory(void **state)
{
    (void)state;
    wr_memory handle = 42;
    size_t bytes = wr_round_up(dev->total_bytes, dev->granularity) + dev->granularity;
    assert_int_equal(dev->ops->mem_create(dev, bytes, &handle), WEIR_OUT_OF_MEMORY);
    assert_int_equal(handle, 42); /* outputs are written on success only */
}

/* A machine may lack them, which is an error of its own. */
static void test_each_export_is_a_descriptor_of_its_own_and_waits_for_nothing(void **state)
{
    (void)state;
    int fds[2] = {-1, -1};
    make_busy(stream);
    wr_event e = record(dev, stream);
    weir_status s = dev->ops->mem_export(dev, slab.handle, &fds[0]);
    if (s == WEIR_OK) {
        ok(dev->ops->mem_export(dev, slab.handle, &fds[1]));
        assert_false(is_done(dev, e));
        assert_true(fds[0] >= 0 && fds[1] >= 0 && fds[0] != fds[1]);
        assert_int_equal(close(fds[0]) + close(fds[1]), 0);
    } else {
        assert_int_equal(s, WEIR_DRIVER_ERROR);
        assert_int_equal(fds[0], -1);
    }
    finish(dev, e);
}

static void test_imported_memory_is_the_same_memory(void **state)
{
    (void)state;
    int fd;
    wr_memory imported;
    struct slab b = {.d = dev};
    weir_status s = dev->ops->mem_export(dev, slab.handle, &fd);
    assert_true(s == WEIR_OK || s == WEIR_DRIVER_ERROR);
    if (s != WEIR_OK) skip();
    ok(dev->ops->mem_import(dev, fd, SLAB, &imported));
    assert_int_equal(close(fd), 0);
    b.handle = imported;
    ok(dev->ops->va_reserve(dev, SLAB, &b.va));
    ok(dev->ops->mem_map(dev, b.va, SLAB, b.handle));
    ok(dev->ops->mem_access(dev, b.va, SLAB));
    ok(dev->ops->fill(dev, b.va, 0x6b, SLAB, stream));
    assert_int_equal(read_byte(0), 0x6b);
    assert_int_equal(read_byte(SLAB - 2), 0x6b);
    sync_all();
    unmap_slab(b);
    assert_int_equal(read_byte(0), 0x6b);
}

static void test_a_descriptor_of_something_else_is_not_imported(void **state)
{
    (void)state;
    int ends[2];
    wr_memory imported = 42;
    assert_int_equal(pipe(ends), 0);
    assert_int_not_equal(dev->ops->mem_import(dev, ends[0], SLAB, &imported), WEIR_OK);
    assert_int_equal(imported, 42);
    assert_int_equal(close(ends[0]) + close(ends[1]), 0);
}

static void test_mem_info_counts_what_is_created(void **state)
{
    (void)state;
    size_t before, during, after, total;
    wr_memory handle;
    size_t bytes = 256 * WR_MIB; /* enough to show beside what others of the machine take meanwhile */
    ok(dev->ops->mem_info(dev, &before, &total));
    assert_int_equal(total, dev->total_bytes);
    ok(dev->ops->mem_create(dev, bytes, &handle));
    ok(dev->ops->mem_info(dev, &during, &total));
    ok(dev->ops->mem_release(dev, handle));
    ok(dev->ops->mem_info(dev, &after, &total));
    assert_true(during + bytes / 2 < before);
    assert_true(after > during + bytes / 2);
}

/* ---- plain memory ------------------------------------------------------------------------------------ */

static void test_plain_memory_takes_work_all_over(void **state)
{
    (void)state;
    uint64_t x = 0, y = 0;
    ok(dev->ops->plain_alloc(dev, SLAB, &x));
    ok(dev->ops->plain_alloc(dev, 512, &y));
    assert_true(x != 0 && x % 256 == 0 && y % 256 == 0 && (y + 512 <= x || y >= x + SLAB));
    ok(dev->ops->fill(dev, x, 0x5a, SLAB, stream));
    download(host, x, SLAB, stream);
    sync_all();
    assert_int_equal(host[0], 0x5a);
    assert_int_equal(host[SLAB - 1], 0x5a);
    ok(dev->ops->plain_free(dev, x));
    ok(dev->ops->plain_free(dev, y));
    assert_int_not_equal(dev->ops->plain_free(dev, x), WEIR_OK);
}

/* Why a pool of it gives nothing back while it is open. */
static void test_freeing_plain_memory_waits_for_all_work(void **state)
{
    (void)state;
    uint64_t x;
    ok(dev->ops->plain_alloc(dev, SLAB, &x));
    make_busy(stream);
    wr_event e = record(dev, stream);
    ok(dev->ops->plain_free(dev, x));
    assert_true(is_done(dev, e));
    drop_event(e);
}

static void test_more_plain_memory_than_there_is_is_out_of_memory(void **state)
{
    (void)state;
    uint64_t x = 42;
    assert_int_equal(dev->ops->plain_alloc(dev, dev->total_bytes + SLAB, &x), WEIR_OUT_OF_MEMORY);
    assert_int_equal(x, 42);
}

/* A machine may lack peer access, which is an error of its own. */
static void test_plain_memory_is_shared_with_a_peer_as_a_whole(void **state)
{
    (void)state;
    uint64_t before, after;
    if (!peer) skip();
    ok(dev->ops->plain_alloc(dev, SLAB, &before));
    weir_status s = peer->ops->plain_access(peer, dev);
    ok(dev->ops->plain_alloc(dev, SLAB, &after));
    if (s == WEIR_OK) {
        weir_stream far = new_stream(peer);
        ok(peer->ops->plain_access(peer, dev)); /* again */
        ok(peer->ops->fill(peer, before, 7, SLAB, far));
        ok(peer->ops->fill(peer, after, 8, SLAB, far));
        finish(peer, record(peer, far));
        download(host, before + SLAB - 1, 1, stream);
        download(host + 1, after + SLAB - 1, 1, stream);
        sync_all();
        assert_int_equal(host[0], 7);
        assert_int_equal(host[1], 8);
        ok(peer->ops->stream_destroy(peer, far));
    } else {
        assert_int_equal(s, WEIR_DRIVER_ERROR);
    }
    ok(dev->ops->plain_free(dev, before));
    ok(dev->ops->plain_free(dev, after));
}

/* ---- host memory ------------------------------------------------------------------------------------- */

static struct wr_location locate(struct wr_device *d, const void *address)
{
    struct wr_location found;
    ok(d->ops->locate(d, (uintptr_t)address, &found));
    uint64_t before = (uintptr_t)address - found.start;
    assert_true(found.kind == WR_MEMORY_UNKNOWN ? found.bytes == 0 : before < found.bytes);
    return found;
}

static void test_device_memory_says_whose_it_is(void **state)
{
    (void)state;
    struct wr_location at = locate(dev, (void *)(uintptr_t)(slab.va + SLAB - 1));
    assert_int_equal(at.kind, WR_MEMORY_DEVICE);
    assert_int_equal(at.ordinal, dev->ordinal);
    if (!peer) return;
    struct slab theirs = map_slab(peer);
    at = locate(dev, (void *)(uintptr_t)theirs.va);
    assert_int_equal(at.kind, WR_MEMORY_DEVICE);
    assert_int_equal(at.ordinal, peer->ordinal);
    unmap_slab(theirs);
    assert_int_equal(locate(dev, (void *)(uintptr_t)theirs.va).kind, WR_MEMORY_UNKNOWN);
}

static void test_registered_memory_is_pinned_until_unregistered(void **state)
{
    (void)state;
    void *memory = aligned_alloc(4096, 65536);
    assert_non_null(memory);
    assert_int_equal(locate(dev, memory).kind, WR_MEMORY_UNKNOWN);
    ok(dev->ops->host_register(dev, memory, 65536));
    assert_int_equal(locate(dev, (char *)memory + 65535).kind, WR_MEMORY_PINNED);
    assert_true(locate(dev, memory).mapped == dev->reads_host);
    assert_int_not_equal(dev->ops->host_register(dev, memory, 65536), WEIR_OK); /* once only */
    ok(dev->ops->host_unregister(dev, memory));
    assert_int_equal(locate(dev, memory).kind, WR_MEMORY_UNKNOWN);
    free(memory);
}

static void test_pinned_memory_is_pinned_for_every_device(void **state)
{
    (void)state;
    if (!peer) skip();
    assert_int_equal(locate(peer, host).kind, WR_MEMORY_PINNED);
}

/* ---- streams ----------------------------------------------------------------------------------------- */

static void test_stream_ids_are_never_used_again(void **state)
{
    (void)state;
    uint64_t ids[20];
    for (int i = 0; i < 20; i++) {
        weir_stream s = new_stream(dev);
        ids[i] = identify(s);
        ok(dev->ops->stream_destroy(dev, s));
        for (int j = 0; j < i; j++)
            assert_int_not_equal(ids[i], ids[j]);
    }
}

static void *identify_per_thread(void *out)
{
    *(uint64_t *)out = identify((weir_stream)(uintptr_t)2);
    return NULL;
}

static void test_default_streams_are_one_legacy_and_one_for_each_thread(void **state)
{
    (void)state;
    uint64_t legacy = identify(NULL), mine = identify((weir_stream)(uintptr_t)2), theirs;
    pthread_t thread;
    assert_int_equal(identify((weir_stream)(uintptr_t)1), legacy);
    assert_int_equal(identify((weir_stream)(uintptr_t)2), mine);
    assert_int_equal(pthread_create(&thread, NULL, identify_per_thread, &theirs), 0);
    pthread_join(thread, NULL);
    assert_int_not_equal(mine, legacy);
    assert_int_not_equal(theirs, mine);
    assert_int_not_equal(theirs, legacy);
}

static void test_a_stream_says_whose_it_is_whichever_device_is_asked(void **state)
{
    (void)state;
    struct wr_device *owner = NULL;
    weir_stream far;
    ok(dev->ops->stream_device(dev, stream, &owner));
    assert_ptr_equal(owner, dev);
    ok(dev->ops->stream_device(dev, NULL, &owner));
    assert_ptr_equal(owner, dev);
    if (peer == NULL) return;
    far = new_stream(peer);
    ok(dev->ops->stream_device(dev, far, &owner));
    assert_ptr_equal(owner, peer);
    ok(peer->ops->stream_destroy(peer, far));
}

static void test_default_streams_take_work(void **state)
{
    (void)state;
    for (uintptr_t s = 0; s <= 2; s++) {
        ok(dev->ops->fill(dev, slab.va, (unsigned char)(10 + s), 1, (weir_stream)s));
        finish(dev, record(dev, (weir_stream)s));
        assert_int_equal(read_byte(0), 10 + s);
    }
}

static void test_streams_do_not_wait_for_the_legacy_default_stream(void **state)
{
    (void)state;
    uint64_t start = dev->ops->now_ns(dev);
    make_busy(NULL);
    wr_event slow = record(dev, NULL);
    ok(dev->ops->fill(dev, slab.va, 1, 64, stream));
    finish(dev, record(dev, stream));
    assert_true(dev->ops->now_ns(dev) - start < SOON);
    assert_false(is_done(dev, slow));
    finish(dev, slow);
}

static void test_work_on_one_stream_runs_in_order(void **state)
{
    (void)state;
    make_busy(stream);
    ok(dev->ops->fill(dev, slab.va, 1, SLAB, stream));
    ok(wr_kernels_fill(dev, stream, slab.va + 4096, 4096, 0x02020202));
    ok(dev->ops->copy(dev, WR_COPY_D2D, slab.va, slab.va + 4096, 4096, stream));
    assert_int_equal(read_byte(4095), 2);
    assert_int_equal(read_byte(8192), 1);
}

static void test_a_busy_stream_is_destroyed_at_once_and_its_work_still_runs(void **state)
{
    (void)state;
    weir_stream doomed = new_stream(dev);
    uint64_t start = dev->ops->now_ns(dev);
    ok(dev->ops->fill(dev, slab.va, 0, 1, doomed));
    make_busy(doomed);
    ok(dev->ops->fill(dev, slab.va, 77, 1, doomed));
    wr_event e = record(dev, doomed);
    ok(dev->ops->stream_destroy(dev, doomed));
    assert_true(dev->ops->now_ns(dev) - start < SOON);
    assert_false(is_done(dev, e));
    finish(dev, e);
    assert_int_equal(read_byte(0), 77);
}

static void test_stream_sync_waits_for_its_stream(void **state)
{
    (void)state;
    uint64_t start = dev->ops->now_ns(dev);
    make_busy(stream);
    wr_event e = record(dev, stream);
    ok(dev->ops->stream_sync(dev, stream));
    assert_true(dev->ops->now_ns(dev) - start >= BUSY / 2);
    assert_true(is_done(dev, e));
    drop_event(e);
}

/* ---- events ------------------------------------------------------------------------------------------ */

static void test_an_event_never_recorded_reads_as_done_and_holds_nothing_up(void **state)
{
    (void)state;
    wr_event e = new_event(dev);
    assert_true(is_done(dev, e));
    ok(dev->ops->stream_wait(dev, stream, e));
    finish(dev, record(dev, stream));
    drop_event(e);
}

static void test_an_event_is_pending_until_its_work_has_passed(void **state)
{
    (void)state;
    make_busy(stream);
    wr_event e = record(dev, stream);
    assert_false(is_done(dev, e));
    wr_event unrelated = record(dev, other);
    finish(dev, unrelated);
    assert_false(is_done(dev, e));
    uint64_t start = dev->ops->now_ns(dev);
    finish(dev, e);
    assert_true(dev->ops->now_ns(dev) - start < 10 * BUSY);
}

static void test_a_stream_wait_holds_later_work_and_only_that(void **state)
{
    (void)state;
    make_busy(stream);
    ok(dev->ops->fill(dev, slab.va, 8, 1, stream));
    wr_event e = record(dev, stream), before = record(dev, other);
    ok(dev->ops->stream_wait(dev, other, e));
    ok(dev->ops->copy(dev, WR_COPY_D2D, slab.va + 1, slab.va, 1, other));
    wr_event after = record(dev, other);
    finish(dev, before);
    assert_false(is_done(dev, after));
    finish(dev, after);
    assert_true(is_done(dev, e));
    assert_int_equal(read_byte(1), 8);
    drop_event(e);
}

static void test_waiters_wait_for_the_record_that_was_latest_when_they_were_queued(void **state)
{
    (void)state;
    weir_stream third = new_stream(dev);
    make_busy(stream);
    wr_event e = record(dev, stream);
    ok(dev->ops->stream_wait(dev, other, e));
    wr_event waited = record(dev, other);
    /* Recorded again where nothing runs: the event is done, its waiter still waits. */
    ok(dev->ops->event_record(dev, e, third));
    uint64_t start = dev->ops->now_ns(dev);
    while (!is_done(dev, e))
        doze(20000);
    assert_true(dev->ops->now_ns(dev) - start < SOON);
    assert_false(is_done(dev, waited));
    finish(dev, waited);
    drop_event(e);
    ok(dev->ops->stream_destroy(dev, third));
}

static void test_a_destroyed_event_still_holds_its_waiters(void **state)
{
    (void)state;
    make_busy(stream);
    wr_event e = record(dev, stream);
    ok(dev->ops->stream_wait(dev, other, e));
    drop_event(e);
    wr_event waited = record(dev, other);
    assert_false(is_done(dev, waited));
    finish(dev, waited);
}

static void test_a_context_record_waits_for_every_stream_and_not_for_later_work(void **state)
{
    (void)state;
    weir_stream third = new_stream(dev);
    make_busy(stream);
    ok(wr_kernels_spin(dev, other, BUSY / 4));
    wr_event e = new_event(dev), first = record(dev, stream);
    ok(dev->ops->event_record_context(dev, e));
    ok(wr_kernels_spin(dev, third, 3 * BUSY)); /* queued later */
    wr_event later = record(dev, third);
    finish(dev, record(dev, other));
    assert_false(is_done(dev, e));
    finish(dev, e);
    assert_true(is_done(dev, first));
    assert_false(is_done(dev, later));
    drop_event(first);
    finish(dev, later);
    ok(dev->ops->stream_destroy(dev, third));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address_space_is_larger_than_memory_and_aligned),
        cmocka_unit_test(test_bytes_survive_being_mapped_elsewhere),
        cmocka_unit_test(test_only_whole_mappings_are_unmapped),
        cmocka_unit_test(test_an_address_is_mapped_once),
        cmocka_unit_test(test_more_than_the_memory_is_out_of_memory),
        cmocka_unit_test(test_each_export_is_a_descriptor_of_its_own_and_waits_for_nothing),
        cmocka_unit_test(test_imported_memory_is_the_same_memory),
        cmocka_unit_test(test_a_descriptor_of_something_else_is_not_imported),
        cmocka_unit_test(test_mem_info_counts_what_is_created),
        cmocka_unit_test(test_plain_memory_takes_work_all_over),
        cmocka_unit_test(test_freeing_plain_memory_waits_for_all_work),
        cmocka_unit_test(test_more_plain_memory_than_there_is_is_out_of_memory),
        cmocka_unit_test(test_plain_memory_is_shared_with_a_peer_as_a_whole),
        cmocka_unit_test(test_device_memory_says_whose_it_is),
        cmocka_unit_test(test_registered_memory_is_pinned_until_unregistered),
        cmocka_unit_test(test_pinned_memory_is_pinned_for_every_device),
        cmocka_unit_test(test_stream_ids_are_never_used_again),
        cmocka_unit_test(test_default_streams_are_one_legacy_and_one_for_each_thread),
        cmocka_unit_test(test_a_stream_says_whose_it_is_whichever_device_is_asked),
        cmocka_unit_test(test_default_streams_take_work),
        cmocka_unit_test(test_streams_do_not_wait_for_the_legacy_default_stream),
        cmocka_unit_test(test_work_on_one_stream_runs_in_order),
        cmocka_unit_test(test_a_busy_stream_is_destroyed_at_once_and_its_work_still_runs),
        cmocka_unit_test(test_stream_sync_waits_for_its_stream),
        cmocka_unit_test(test_an_event_never_recorded_reads_as_done_and_holds_nothing_up),
        cmocka_unit_test(test_an_event_is_pending_until_its_work_has_passed),
        cmocka_unit_test(test_a_stream_wait_holds_later_work_and_only_that),
        cmocka_unit_test(test_waiters_wait_for_the_record_that_was_latest_when_they_were_queued),
        cmocka_unit_test(test_a_destroyed_event_still_holds_its_waiters),
        cmocka_unit_test(test_a_context_record_waits_for_every_stream_and_not_for_later_work),
    };
    return run_conformance(argc, argv, tests, WR_ARRAY_LEN(tests));
}
