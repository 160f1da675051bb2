/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments: growth, moving idle ones side by side, and what is left when a step of it fails.
 */
#include "pool_world.h"

#include <sys/mman.h>
#include <unistd.h>

#define MS ((uint64_t)1000000)

static uint64_t served(enum wr_rung rung)
{
    return atomic_load(&world.pool->served[rung]);
}

/* ---- re-stitching ------------------------------------------------------------------------------------ */

enum { BLOCKS = 8 };

/* Eight blocks, each grown for itself, every other one freed: half of their bytes, and no two touch. */
static void make_holes_of(struct wr_world *w, weir_stream s, weir_dptr blocks[BLOCKS], size_t bytes)
{
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = wr_world_alloc(w, bytes, s);
        wr_world_mark(w, s, blocks[i], bytes, (uint32_t)i);
    }
    for (int i = 0; i < BLOCKS; i += 2)
        wr_world_free(w, blocks[i], s);
    wr_sim_drain(w->sim);
}

static void verify_and_free(struct wr_world *w, weir_stream s, weir_dptr blocks[BLOCKS], size_t bytes)
{
    for (int i = 1; i < BLOCKS; i += 2) {
        wr_world_verify(w, s, blocks[i], bytes, (uint32_t)i);
        wr_world_free(w, blocks[i], s);
    }
    wr_sim_drain(w->sim);
}

static void test_passed_pages_that_lie_apart_serve_a_long_block_without_growth(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr blocks[BLOCKS];
    make_holes_of(&world, a, blocks, 64 * WR_MIB);
    weir_stats before = wr_world_stats(&world);
    weir_dptr x = wr_world_alloc(&world, 256 * WR_MIB, b);
    wr_world_mark(&world, b, x, 256 * WR_MIB, 100);
    wr_world_verify(&world, b, x, 256 * WR_MIB, 100);
    weir_stats after = wr_world_stats(&world);
    assert_int_equal(after.reserved_bytes, before.reserved_bytes);
    assert_int_equal(after.peak_reserved_bytes, before.peak_reserved_bytes);
    assert_int_equal(after.grows, before.grows);
    assert_int_equal(after.trims, before.trims);
    assert_int_equal(served(WR_RUNG_stitch), 1);
    assert_int_equal(wr_world_counts(&world).host_syncs + wr_world_counts(&world).stream_waits, 0);
    wr_world_free(&world, x, b);
    verify_and_free(&world, a, blocks, 64 * WR_MIB);
}

static void test_a_stream_stitches_its_own_passed_pages_too(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr blocks[BLOCKS];
    make_holes_of(&world, a, blocks, 64 * WR_MIB);
    uint64_t reserved = wr_world_stats(&world).reserved_bytes;
    weir_dptr x = wr_world_alloc(&world, 256 * WR_MIB, a);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, reserved);
    wr_world_free(&world, x, a);
    verify_and_free(&world, a, blocks, 64 * WR_MIB);
}

static void test_pages_that_have_not_passed_are_not_moved(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr blocks[BLOCKS];
    make_holes_of(&world, a, blocks, 64 * WR_MIB);
    for (int i = 0; i < BLOCKS; i += 2) /* once more: in use by a stream that is stalled */
        blocks[i] = wr_world_alloc(&world, 64 * WR_MIB, a);
    struct wr_sim_gate *gate = wr_world_stall(&world, a);
    for (int i = 0; i < BLOCKS; i += 2) {
        wr_world_write(&world, a, blocks[i], 64 * WR_MIB, MS);
        wr_world_free(&world, blocks[i], a);
    }
    weir_stats before = wr_world_stats(&world);
    weir_dptr x = wr_world_alloc(&world, 256 * WR_MIB, b);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, before.reserved_bytes + 256 * WR_MIB);
    assert_int_equal(served(WR_RUNG_stitch), 0);
    assert_int_equal(wr_world_counts(&world).host_syncs + wr_world_counts(&world).stream_waits, 0);
    wr_world_let_go(&world, gate);
    wr_world_free(&world, x, b);
    verify_and_free(&world, a, blocks, 64 * WR_MIB);
}

static void test_a_growth_takes_only_what_idle_segments_lack(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr blocks[BLOCKS];
    make_holes_of(&world, a, blocks, 64 * WR_MIB);
    uint64_t reserved = wr_world_stats(&world).reserved_bytes;
    weir_dptr x = wr_world_alloc(&world, 300 * WR_MIB, b);
    wr_world_mark(&world, b, x, 300 * WR_MIB, 100);
    wr_world_verify(&world, b, x, 300 * WR_MIB, 100);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, reserved + 44 * WR_MIB);
    wr_world_free(&world, x, b);
    verify_and_free(&world, a, blocks, 64 * WR_MIB);
}

static void test_stitching_again_and_again_needs_no_more_addresses(void **state)
{
    (void)state;
    enum { ROUNDS = 30 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 640 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    for (int round = 0; round < ROUNDS; round++) {
        weir_dptr blocks[BLOCKS];
        make_holes_of(&w, a, blocks, 64 * WR_MIB);
        wr_world_free(&w, wr_world_alloc(&w, 256 * WR_MIB, b), b);
        verify_and_free(&w, a, blocks, 64 * WR_MIB);
    }
    assert_true(atomic_load(&w.pool->served[WR_RUNG_stitch]) >= ROUNDS / 2);
    wr_world_close(&w);
}

/* The own page is too little to be asked for before the growth, and what is missing at the limit. */
static void test_a_few_own_pages_are_asked_for_when_the_limit_is_in_the_way(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr own = wr_world_alloc(&w, 2 * WR_MIB, a), wall = wr_world_alloc(&w, 2 * WR_MIB, b);
    weir_dptr rest = wr_world_alloc(&w, 60 * WR_MIB, b);
    wr_world_free(&w, own, a);
    wr_world_free(&w, rest, b);
    wr_sim_drain(w.sim);
    wr_world_free(&w, wr_world_alloc(&w, 62 * WR_MIB, a), a);
    assert_int_equal(atomic_load(&w.pool->served[WR_RUNG_make_room]), 1);
    wr_world_free(&w, wall, b);
    wr_world_close(&w);
}

/* 256 MiB of 2 GiB are free: to move them would leave a hole, for which the next such block would have to
 * grow. */
static void test_little_free_memory_is_not_moved_as_long_as_the_pool_may_grow(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = wr_world_alloc(&world, 256 * WR_MIB, a);
    wr_world_free(&world, blocks[3], a);
    wr_sim_drain(world.sim);
    uint64_t reserved = wr_world_stats(&world).reserved_bytes;
    weir_dptr x = wr_world_alloc(&world, 512 * WR_MIB, a);
    assert_int_equal(wr_world_stats(&world).reserved_bytes, reserved + 512 * WR_MIB);
    assert_int_equal(wr_world_alloc(&world, 256 * WR_MIB, a), blocks[3]);
    for (int i = 0; i < BLOCKS; i++)
        wr_world_free(&world, blocks[i], a);
    wr_world_free(&world, x, a);
}

/* ---- places ------------------------------------------------------------------------------------------ */

static void test_a_growth_asks_only_for_what_the_end_of_the_heap_lacks(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream a = wr_world_stream(&w);
    weir_dptr blocks[8];
    for (uint32_t i = 0; i < 8; i++) {
        blocks[i] = wr_world_alloc(&w, 3 * WR_MIB, a);
        wr_world_mark(&w, a, blocks[i], 3 * WR_MIB, i);
        assert_int_equal(blocks[i], blocks[0] + i * 3 * WR_MIB); /* side by side */
        assert_in_range(
            wr_world_stats(&w).reserved_bytes, (i + 1) * 3 * WR_MIB, (i + 1) * 3 * WR_MIB + WR_MIB);
    }
    for (uint32_t i = 0; i < 8; i++) {
        wr_world_verify(&w, a, blocks[i], 3 * WR_MIB, i);
        wr_world_free(&w, blocks[i], a);
    }
    wr_world_close(&w);
}

/* Each step of 8 MiB leaves 2 idle behind the first block, 4 behind the second. Its segment can't move: a
 * part of it is in use. */
static void test_a_growth_begins_with_the_idle_pages_that_the_last_one_left(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = WR_GIB, .grow_bytes = 8 * WR_MIB});
    weir_stream a = wr_world_stream(&w);
    weir_dptr blocks[4];
    for (uint32_t i = 0; i < 4; i++)
        blocks[i] = wr_world_alloc(&w, 6 * WR_MIB, a);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, 24 * WR_MIB);
    for (uint32_t i = 0; i < 4; i++)
        wr_world_free(&w, blocks[i], a);
    wr_world_close(&w);
}

/* The n-th call of such a growth fails; true: it came. */
static bool fail_one_call_behind_idle_pages(uint64_t n)
{
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 64 * WR_MIB, .grow_bytes = 8 * WR_MIB});
    weir_stream a = wr_world_stream(&w);
    weir_dptr first = wr_world_alloc(&w, 6 * WR_MIB, a), x = 0;
    uint64_t calls = wr_sim_calls(w.sim);
    wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
    weir_status st = weir_alloc(w.pool, 6 * WR_MIB, a, &x);
    bool came = wr_sim_calls(w.sim) - calls >= n;
    wr_sim_fail_nth(w.sim, 0, WEIR_OK);
    assert_int_equal(st, came ? WEIR_DRIVER_ERROR : WEIR_OK);
    if (came) {
        assert_int_equal(wr_world_stats(&w).idle_bytes, 2 * WR_MIB);
        wr_world_check(&w);
        x = wr_world_alloc(&w, 6 * WR_MIB, a);
    }
    wr_world_free(&w, first, a);
    wr_world_free(&w, x, a);
    wr_world_close(&w);
    return came;
}

static void test_A21_a_growth_behind_idle_pages_that_fails_leaves_them_idle(void **state)
{
    (void)state;
    uint64_t n = 1;
    while (fail_one_call_behind_idle_pages(n))
        n++;
    assert_in_range(n, 4, 100);
}

/* a: 1 MiB, 6, 5, of which the 6 are freed. Their two whole pages move into a block of b, 8 MiB of which 4
 * stay; the limit is reached. The 4 that are left come back between the halves of pages that a has kept. */
static void test_a_hole_whose_pages_have_moved_away_is_filled_by_just_these(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 16 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr first = wr_world_alloc(&w, WR_MIB, a), hole = wr_world_alloc(&w, 6 * WR_MIB, a);
    weir_dptr last = wr_world_alloc(&w, 5 * WR_MIB, a);
    assert_true(hole == first + WR_MIB && last == hole + 6 * WR_MIB);
    wr_world_free(&w, hole, a);
    wr_sim_drain(w.sim);
    wr_world_free(&w, wr_world_alloc(&w, 8 * WR_MIB, b), b);
    weir_dptr wall = wr_world_alloc(&w, 4 * WR_MIB, b);
    wr_sim_drain(w.sim);
    assert_int_equal(wr_world_stats(&w).reserved_bytes, 16 * WR_MIB);
    weir_dptr again = wr_world_alloc(&w, 6 * WR_MIB, a);
    assert_int_equal(again, hole);
    wr_world_mark(&w, a, again, 6 * WR_MIB, 1);
    wr_world_verify(&w, a, again, 6 * WR_MIB, 1);
    wr_world_free(&w, again, a);
    wr_world_free(&w, first, a);
    wr_world_free(&w, last, a);
    wr_world_free(&w, wall, b);
    wr_world_close(&w);
}

/* A21 for moves. The n-th call of an alloc that has to move segments fails; true: it came. */
static bool fail_one_call_of_stitching(uint64_t n, size_t bytes, weir_status error)
{
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 80 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr blocks[BLOCKS], x = 0;
    make_holes_of(&w, a, blocks, 8 * WR_MIB);
    weir_stats before = wr_world_stats(&w);
    uint64_t calls = wr_sim_calls(w.sim);
    wr_sim_fail_nth(w.sim, n, error);
    weir_status st = weir_alloc(w.pool, bytes, b, &x);
    bool came = wr_sim_calls(w.sim) - calls >= n;
    wr_sim_fail_nth(w.sim, 0, WEIR_OK);
    uint64_t reserved = wr_world_stats(&w).reserved_bytes;
    if (st == WEIR_OK)
        wr_world_free(&w, x, b);
    else if (st == WEIR_DRIVER_ERROR)
        assert_int_equal(reserved, before.reserved_bytes);
    else /* where a query failed, the last rung may have given idle memory back */
        assert_true((st == error || st == WEIR_NOT_YET) && reserved <= before.reserved_bytes);
    wr_world_check(&w);
    wr_world_free(&w, wr_world_alloc(&w, 6 * WR_MIB, b), b);
    wr_world_free(&w, wr_world_alloc(&w, bytes, b), b);
    verify_and_free(&w, a, blocks, 8 * WR_MIB);
    wr_world_close(&w);
    return came;
}

static void test_A21_a_move_that_fails_half_way_loses_nothing(void **state)
{
    (void)state;
    const size_t sizes[] = {32 * WR_MIB, 38 * WR_MIB}; /* moved alone; moved beside new memory */
    const weir_status errors[] = {WEIR_DRIVER_ERROR, WEIR_OUT_OF_MEMORY};
    for (unsigned i = 0; i < 4; i++) {
        uint64_t n = 1;
        while (fail_one_call_of_stitching(n, sizes[i / 2], errors[i % 2]))
            n++;
        assert_in_range(n, 20, 1000);
    }
}

/* ---- peers ------------------------------------------------------------------------------------------- */

static const struct wr_world_options two_devices = {.profile = "gtx1080-pcie3x2"};

/* Work of device 1 writes the last word of the block; the oracle reports what it has no access to. */
static void write_from_peer(struct wr_world *w, weir_dptr block, size_t bytes, uint32_t tag)
{
    struct wr_device *peer = wr_sim_device(w->sim, 1);
    weir_stream s;
    weir_dptr last = block + bytes - sizeof tag;
    assert_int_equal(peer->ops->stream_create(peer, &s), WEIR_OK);
    assert_int_equal(wr_kernels_fill(peer, s, last, sizeof tag, tag), WEIR_OK);
    wr_world_touch(w, block, s);
    wr_sim_drain(w->sim);
    assert_int_equal(wr_world_peek(w, last), tag);
    assert_int_equal(weir_stream_retire(w->pool, s), WEIR_OK);
    assert_int_equal(peer->ops->stream_destroy(peer, s), WEIR_OK);
}

static void test_A17_memory_mapped_after_a_peer_was_enabled_is_its_own_too(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &two_devices);
    weir_stream a = wr_world_stream(&w);
    weir_dptr before = wr_world_alloc(&w, 40 * WR_MIB, a);
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    assert_int_equal(weir_pool_peer_enable(w.pool, 0), WEIR_OK);
    weir_dptr after = wr_world_alloc(&w, WR_GIB, a);
    write_from_peer(&w, before, 40 * WR_MIB, 1);
    write_from_peer(&w, after, WR_GIB, 2);
    wr_world_free(&w, before, a);
    wr_world_free(&w, after, a);
    assert_int_equal(weir_pool_peer_enable(w.pool, 2), WEIR_NO_DEVICE);
    assert_int_equal(weir_pool_peer_enable(w.pool, -1), WEIR_NO_DEVICE);
    wr_world_close(&w);
}

static void test_A17_what_has_moved_is_still_the_peers(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &two_devices);
    weir_stream a = wr_world_stream(&w);
    weir_dptr blocks[BLOCKS];
    make_holes_of(&w, a, blocks, 64 * WR_MIB);
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    weir_dptr x = wr_world_alloc(&w, 256 * WR_MIB, a);
    assert_true(atomic_load(&w.pool->served[WR_RUNG_stitch]) == 1);
    write_from_peer(&w, x, 256 * WR_MIB, 3);
    wr_world_free(&w, x, a);
    verify_and_free(&w, a, blocks, 64 * WR_MIB);
    wr_world_close(&w);
}

/* The n-th call of a growth with a peer fails; true: it came. */
static bool fail_one_call_with_a_peer(uint64_t n)
{
    struct wr_world w;
    wr_world_open(&w, &two_devices);
    weir_stream a = wr_world_stream(&w);
    weir_dptr first = wr_world_alloc(&w, 40 * WR_MIB, a), x = 0;
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    uint64_t reserved = wr_world_stats(&w).reserved_bytes, calls = wr_sim_calls(w.sim);
    wr_sim_fail_nth(w.sim, n, WEIR_DRIVER_ERROR);
    weir_status st = weir_alloc(w.pool, 100 * WR_MIB, a, &x);
    bool came = wr_sim_calls(w.sim) - calls >= n;
    wr_sim_fail_nth(w.sim, 0, WEIR_OK);
    assert_int_equal(st, came ? WEIR_DRIVER_ERROR : WEIR_OK);
    if (came) {
        assert_int_equal(wr_world_stats(&w).reserved_bytes, reserved);
        x = wr_world_alloc(&w, 100 * WR_MIB, a);
    }
    write_from_peer(&w, x, 100 * WR_MIB, 4);
    wr_world_free(&w, x, a);
    wr_world_free(&w, first, a);
    wr_world_close(&w);
    return came;
}

static void test_A17_a_grant_that_fails_undoes_the_growth(void **state)
{
    (void)state;
    uint64_t n = 1;
    while (fail_one_call_with_a_peer(n))
        n++;
    assert_in_range(n, 10, 200);
}

static void test_a_peer_that_can_not_be_enabled_is_not_asked_again_by_a_growth(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &two_devices);
    weir_stream a = wr_world_stream(&w);
    weir_dptr first = wr_world_alloc(&w, 40 * WR_MIB, a);
    struct wr_device *peer = wr_sim_device(w.sim, 1);
    wr_sim_fail_nth(w.sim, 2, WEIR_DRIVER_ERROR); /* with half of the segments done */
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_DRIVER_ERROR);
    uint64_t peer_calls = atomic_load(&peer->calls);
    weir_dptr x = wr_world_alloc(&w, 100 * WR_MIB, a);
    assert_int_equal(atomic_load(&peer->calls), peer_calls);
    assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
    write_from_peer(&w, first, 40 * WR_MIB, 5);
    write_from_peer(&w, x, 100 * WR_MIB, 6);
    wr_world_free(&w, x, a);
    wr_world_free(&w, first, a);
    wr_world_close(&w);
}

/* ---- export ------------------------------------------------------------------------------------------ */

/* What an importer does with the driver, with the simulated device's files: all segments of the block, mapped
 * one behind the other. */
struct import {
    char *base;
    size_t mapped_bytes, first_offset;
};

enum { MOST_IMPORTED = 256 << 20 };

static struct import import_block(weir_pool *pool, weir_dptr block, size_t bytes)
{
    struct import in = {.mapped_bytes = 0};
    in.base = mmap(NULL, MOST_IMPORTED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(in.base, MAP_FAILED);
    for (size_t from = 0; from < bytes;) {
        weir_exported part = {.struct_size = sizeof part};
        assert_int_equal(weir_export(pool, block, from, &part), WEIR_OK);
        assert_true(part.bytes > 0 && part.offset + part.bytes <= part.segment_bytes);
        assert_int_equal(part.segment_bytes % (2 * WR_MIB), 0);
        assert_true(in.mapped_bytes + part.segment_bytes <= MOST_IMPORTED);
        off_t at = lseek(part.fd, 0, SEEK_CUR);
        assert_ptr_not_equal(mmap(in.base + in.mapped_bytes, part.segment_bytes, PROT_READ,
                                 MAP_SHARED | MAP_FIXED, part.fd, at),
            MAP_FAILED);
        if (from == 0) in.first_offset = part.offset;
        assert_int_equal(in.first_offset + from, in.mapped_bytes + part.offset); /* no gap between them */
        in.mapped_bytes += part.segment_bytes;
        from += part.bytes;
        assert_int_equal(close(part.fd), 0);
    }
    return in;
}

static void test_I05_exported_blocks_are_at_base_and_offset_at_odd_places_too(void **state)
{
    (void)state;
    const size_t sizes[] = {WR_MIB, 3 * WR_MIB + 512, 100 * WR_MIB, WR_MIB, 5 * WR_MIB - 512, 4096};
    enum { N = WR_ARRAY_LEN(sizes) };
    weir_stream a = wr_world_stream(&world);
    weir_dptr blocks[N];
    for (uint32_t i = 0; i < N; i++) {
        blocks[i] = wr_world_alloc(&world, sizes[i], a);
        wr_world_fill(&world, a, blocks[i], sizes[i], i + 1);
    }
    wr_sim_drain(world.sim);
    for (uint32_t i = 0; i < N; i++) {
        struct import in = import_block(world.pool, blocks[i], sizes[i]);
        const uint32_t *words = (const uint32_t *)(in.base + in.first_offset);
        for (size_t n = 0; n < sizes[i] / sizeof *words; n++)
            if (words[n] != i + 1) fail_msg("block %u, word %zu is %u", i, n, words[n]);
        assert_int_equal(munmap(in.base, MOST_IMPORTED), 0);
        wr_world_free(&world, blocks[i], a);
    }
}

static void test_only_bytes_of_a_live_block_are_exported(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, 1000, a);
    weir_exported part = {.struct_size = sizeof part, .fd = -1};
    assert_int_equal(weir_export(world.pool, x, 1024, &part), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_export(world.pool, x + 512, 0, &part), WEIR_INVALID_POINTER);
    assert_int_equal(weir_export(world.pool, 0, 0, &part), WEIR_INVALID_POINTER);
    assert_int_equal(weir_export(world.pool, x, 0, NULL), WEIR_INVALID_ARGUMENT);
    wr_sim_fail_nth(world.sim, 1, WEIR_DRIVER_ERROR);
    assert_int_equal(weir_export(world.pool, x, 0, &part), WEIR_DRIVER_ERROR);
    wr_world_free(&world, x, a);
    assert_int_equal(weir_export(world.pool, x, 0, &part), WEIR_INVALID_POINTER);
    assert_int_equal(part.fd, -1);
}

/* ---- two pools on one device ------------------------------------------------------------------------- */

static const struct wr_world_options small_device = {.memory_bytes = WR_GIB};

static weir_pool *open_second_pool(struct wr_world *w)
{
    weir_pool *second;
    weir_pool_options o = {.struct_size = sizeof o};
    assert_int_equal(wr_pool_open(w->device, &o, &second), WEIR_OK);
    return second;
}

static weir_dptr alloc_from(weir_pool *pool, size_t bytes, weir_stream s)
{
    weir_dptr x = 0;
    assert_int_equal(weir_alloc(pool, bytes, s, &x), WEIR_OK);
    return x;
}

static void test_a_full_device_is_served_by_what_another_pool_has_finished(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &small_device);
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_pool *second = open_second_pool(&w);
    weir_dptr kept = alloc_from(second, 100 * WR_MIB, b), gone = alloc_from(second, 700 * WR_MIB, b);
    wr_world_mark(&w, b, kept, 100 * WR_MIB, 1);
    wr_world_write(&w, b, gone, 700 * WR_MIB, MS);
    assert_int_equal(weir_free(second, gone, b), WEIR_OK);
    weir_dptr x = 0; /* while the other pool's memory is in use the answer is a failure, and no wait */
    assert_int_equal(weir_alloc(w.pool, 600 * WR_MIB, a, &x), WEIR_OUT_OF_MEMORY);
    assert_int_equal(wr_world_counts(&w).host_syncs + wr_world_counts(&w).stream_waits, 0);
    wr_sim_drain(w.sim);
    x = wr_world_alloc(&w, 600 * WR_MIB, a);
    wr_world_mark(&w, a, x, 600 * WR_MIB, 2);
    assert_int_equal(atomic_load(&w.pool->served[WR_RUNG_ask_others]), 1);
    wr_world_verify(&w, b, kept, 100 * WR_MIB, 1);
    assert_int_equal(weir_free(second, kept, b), WEIR_OK);
    wr_world_free(&w, x, a);
    wr_world_close_pool(&w, second);
    wr_world_close(&w);
}

static void test_a_pool_that_is_closing_is_finished_by_whom_it_serves(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &small_device);
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_pool *second = open_second_pool(&w);
    weir_dptr y = alloc_from(second, 700 * WR_MIB, b);
    struct wr_sim_gate *gate = wr_world_stall(&w, b);
    assert_int_equal(weir_free(second, y, b), WEIR_OK);
    assert_int_equal(weir_pool_close(second), WEIR_NOT_YET);
    wr_world_let_go(&w, gate);
    wr_world_free(&w, wr_world_alloc(&w, 600 * WR_MIB, a), a);
    assert_int_equal(weir_pool_close(second), WEIR_CLOSED);
    wr_world_close(&w);
}

/* A limit that is in the way is no reason to take from others. */
static void test_a_pool_at_its_limit_leaves_others_alone(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.memory_bytes = WR_GIB, .limit_bytes = 64 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_pool *second = open_second_pool(&w);
    assert_int_equal(weir_free(second, alloc_from(second, 700 * WR_MIB, b), b), WEIR_OK);
    weir_dptr x = wr_world_alloc(&w, 40 * WR_MIB, a), y = 0;
    assert_int_equal(weir_alloc(w.pool, 40 * WR_MIB, a, &y), WEIR_OUT_OF_MEMORY);
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(second, &s), WEIR_OK);
    assert_int_equal(s.reserved_bytes, 700 * WR_MIB);
    wr_world_free(&w, x, a);
    wr_world_close_pool(&w, second);
    wr_world_close(&w);
}

/* Two threads, a pool each, take turns with most of the device: nobody fails for good, and nothing hangs. */
static struct turns {
    struct wr_world *world;
    weir_pool *pool;
    weir_stream stream;
    unsigned served;
} turns[2];

static void *take_turns(void *arg)
{
    struct turns *t = arg;
    while (t->served < 50) {
        weir_dptr x = 0;
        weir_status st = weir_alloc(t->pool, 600 * WR_MIB, t->stream, &x);
        assert_true(st == WEIR_OK || st == WEIR_OUT_OF_MEMORY || st == WEIR_NOT_YET);
        if (st != WEIR_OK) continue;
        t->served++;
        assert_int_equal(weir_free(t->pool, x, t->stream), WEIR_OK);
    }
    return NULL;
}

static void test_two_pools_take_turns_with_a_device_that_is_too_small_for_both(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t threads[2];
    wr_world_open(&w, &small_device);
    weir_pool *second = open_second_pool(&w);
    for (int i = 0; i < 2; i++) {
        turns[i] =
            (struct turns){.world = &w, .pool = i == 0 ? w.pool : second, .stream = wr_world_stream(&w)};
        assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &turns[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    wr_world_close_pool(&w, second);
    wr_world_close(&w);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

enum { CROWD = 3, CROWD_ROUNDS = 80 };

static struct crowd {
    struct wr_world *world;
    weir_stream stream;
    uint64_t random;
} crowd[CROWD];

static uint64_t draw(uint64_t *state) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Blocks of any size, three at a time, so that holes come and go: growth, moves and trims run into each other. */
static void *crowd_in(void *arg)
{
    struct crowd *c = arg;
    weir_dptr blocks[3] = {0};
    for (int round = 0; round < CROWD_ROUNDS; round++) {
        weir_dptr *x = &blocks[draw(&c->random) % WR_ARRAY_LEN(blocks)];
        assert_int_equal(weir_free(c->world->pool, *x, c->stream), WEIR_OK);
        *x = 0;
        weir_status st = weir_alloc(c->world->pool, WR_MIB + draw(&c->random) % (150 * WR_MIB), c->stream, x);
        assert_true(st == WEIR_OK || st == WEIR_OUT_OF_MEMORY || st == WEIR_NOT_YET);
    }
    for (unsigned i = 0; i < WR_ARRAY_LEN(blocks); i++)
        assert_int_equal(weir_free(c->world->pool, blocks[i], c->stream), WEIR_OK);
    return NULL;
}

static void test_threads_grow_move_trim_and_share_at_once(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t threads[CROWD];
    wr_world_open(&w, &(struct wr_world_options){.profile = "gtx1080-pcie3x2", .limit_bytes = 700 * WR_MIB});
    for (int i = 0; i < CROWD; i++) {
        crowd[i] = (struct crowd){.world = &w, .stream = wr_world_stream(&w), .random = (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_in, &crowd[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        assert_int_equal(weir_trim(w.pool, 300 * WR_MIB, NULL), WEIR_OK);
        if (i == 20) assert_int_equal(weir_pool_peer_enable(w.pool, 1), WEIR_OK);
        wr_lock_take(&w.pool->pages.lock);
        wr_pages_check(&w.pool->pages);
        wr_lock_give(&w.pool->pages.lock);
    }
    for (int i = 0; i < CROWD; i++)
        pthread_join(threads[i], NULL);
    weir_dptr x = wr_world_alloc(&w, 700 * WR_MIB, crowd[0].stream); /* nothing was lost */
    write_from_peer(&w, x, 700 * WR_MIB, 7);
    wr_world_free(&w, x, crowd[0].stream);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WR_IN_WORLD(test_passed_pages_that_lie_apart_serve_a_long_block_without_growth),
        WR_IN_WORLD(test_a_stream_stitches_its_own_passed_pages_too),
        WR_IN_WORLD(test_pages_that_have_not_passed_are_not_moved),
        WR_IN_WORLD(test_a_growth_takes_only_what_idle_segments_lack),
        cmocka_unit_test(test_stitching_again_and_again_needs_no_more_addresses),
        cmocka_unit_test(test_a_few_own_pages_are_asked_for_when_the_limit_is_in_the_way),
        WR_IN_WORLD(test_little_free_memory_is_not_moved_as_long_as_the_pool_may_grow),
        cmocka_unit_test(test_a_growth_asks_only_for_what_the_end_of_the_heap_lacks),
        cmocka_unit_test(test_a_growth_begins_with_the_idle_pages_that_the_last_one_left),
        cmocka_unit_test(test_A21_a_growth_behind_idle_pages_that_fails_leaves_them_idle),
        cmocka_unit_test(test_a_hole_whose_pages_have_moved_away_is_filled_by_just_these),
        cmocka_unit_test(test_A21_a_move_that_fails_half_way_loses_nothing),
        WR_IN_WORLD(test_I05_exported_blocks_are_at_base_and_offset_at_odd_places_too),
        WR_IN_WORLD(test_only_bytes_of_a_live_block_are_exported),
        cmocka_unit_test(test_a_full_device_is_served_by_what_another_pool_has_finished),
        cmocka_unit_test(test_a_pool_that_is_closing_is_finished_by_whom_it_serves),
        cmocka_unit_test(test_a_pool_at_its_limit_leaves_others_alone),
        cmocka_unit_test(test_two_pools_take_turns_with_a_device_that_is_too_small_for_both),
        cmocka_unit_test(test_threads_grow_move_trim_and_share_at_once),
        cmocka_unit_test(test_A17_memory_mapped_after_a_peer_was_enabled_is_its_own_too),
        cmocka_unit_test(test_A17_what_has_moved_is_still_the_peers),
        cmocka_unit_test(test_A17_a_grant_that_fails_undoes_the_growth),
        cmocka_unit_test(test_a_peer_that_can_not_be_enabled_is_not_asked_again_by_a_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
