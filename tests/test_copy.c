/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_copy on the simulated device: every direction and kind of memory, what waits for what, and bad input.
 */
#include "copy_world.h"
#include "engine.h"

#define MIB WR_MIB
#define MS  ((uint64_t)1000000)

/* ---- directions -------------------------------------------------------------------------------------- */

static void test_pinned_bytes_go_up_across_and_down(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    size_t bytes = MIB + 77; /* many chunks, and a rest */
    void *from = pinned_pattern(&c, bytes, 1), *back = pinned_pattern(&c, bytes, 2);
    weir_dptr a = device_block(&c, bytes), b = device_block(&c, bytes);
    copy_and_wait(&c, WEIR_TO_DEVICE, piece(a, host_address(from), bytes));
    copy_and_wait(&c, WEIR_ON_DEVICE, piece(b, a, bytes));
    copy_and_wait(&c, WEIR_TO_HOST, piece(host_address(back), b, bytes));
    assert_pattern(back, bytes, 1);
    weir_engine_stats s = engine_stats(&c);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s.copies[i], 1);
        assert_int_equal(s.bytes[i], bytes);
    }
    assert_int_equal(s.direct_bytes, 3 * bytes);
    assert_int_equal(s.staged_bytes, 0);
    OK(weir_free(c.w.pool, a, c.home));
    OK(weir_free(c.w.pool, b, c.home));
    close_copies(&c);
}

static void test_pageable_bytes_go_up_and_down_through_fewer_slabs_than_they_need(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    size_t bytes = 3 * MIB + 5;
    unsigned char *from = pageable_pattern(bytes, 3), *back = pageable_pattern(bytes, 4);
    weir_dptr block = device_block(&c, bytes);
    weir_ticket up = copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), bytes), NULL);
    memset(from, 0, bytes); /* it was read during the call */
    OK(weir_copy_wait(c.engine, up, -1));
    weir_ticket down = copy_one(&c, WEIR_TO_HOST, piece(host_address(back), block, bytes), NULL);
    assert_int_equal(weir_copy_join(c.engine, down, c.w.stream[0]), WEIR_WOULD_BLOCK);
    OK(weir_copy_wait(c.engine, down, -1));
    OK(weir_copy_join(c.engine, down, c.w.stream[0]));
    assert_pattern(back, bytes, 3);
    weir_engine_stats s = engine_stats(&c);
    assert_int_equal(s.staged_bytes, 2 * bytes);
    assert_int_equal(s.slabs, 8);
    assert_true(s.slab_waits > 0);
    OK(weir_free(c.w.pool, block, c.home));
    free(from);
    free(back);
    close_copies(&c);
}

/* Rows narrower and wider than a slab, from either kind of host memory, to a block with another pitch. */
static void copy_rows_of(bool pinned, size_t row, size_t rows)
{
    struct copy_world c;
    open_copies(&c);
    size_t wide = row + 300, narrow = row + 12;
    unsigned char *from = pinned ? pinned_pattern(&c, rows * wide, 5) : pageable_pattern(rows * wide, 5);
    unsigned char *back = pinned ? pinned_pattern(&c, rows * wide, 6) : pageable_pattern(rows * wide, 6);
    weir_dptr block = device_block(&c, rows * narrow);
    weir_piece up = {block, host_address(from), row, rows, narrow, wide};
    weir_piece down = {host_address(back), block, row, rows, wide, narrow};
    copy_and_wait(&c, WEIR_TO_DEVICE, up);
    copy_and_wait(&c, WEIR_TO_HOST, down);
    for (size_t i = 0; i < rows; i++) {
        assert_memory_equal(back + i * wide, from + i * wide, row);
        assert_int_equal(
            back[i * wide + row], pattern_at(i * wide + row, 6)); /* between the rows: as it was */
    }
    OK(weir_free(c.w.pool, block, c.home));
    if (!pinned) {
        free(from);
        free(back);
    }
    close_copies(&c);
}

static void test_rows_keep_to_their_pitches(void **state)
{
    (void)state;
    for (int pinned = 0; pinned <= 1; pinned++) {
        copy_rows_of(pinned, 100, 3000);
        copy_rows_of(pinned, 40000, 17);
        copy_rows_of(pinned, 100000, 5);
    }
}

/* ---- small pieces ------------------------------------------------------------------------------------ */

enum { PIECES = 2000, PIECE = 1000, GAP = 24 };

/* To every other place of the block, so that no two can be joined. */
static void list_small(weir_piece *pieces, weir_dptr block, const unsigned char *host, bool up)
{
    for (size_t i = 0; i < PIECES; i++) {
        uint64_t there = block + i * (PIECE + GAP), here = host_address(host) + i * PIECE;
        pieces[i] = up ? piece(there, here, PIECE) : piece(here, there, PIECE);
    }
}

static void copy_small_pieces(bool pinned, unsigned flags, weir_engine_stats *stats, uint64_t *launches)
{
    struct copy_world c;
    struct wr_sim_options sim = world_options();
    weir_engine_options o = small_engine();
    o.flags = flags;
    open_copies_with(&c, &sim, &o);
    static weir_piece pieces[PIECES];
    size_t bytes = PIECES * PIECE;
    unsigned char *from = pinned ? pinned_pattern(&c, bytes, 7) : pageable_pattern(bytes, 7);
    unsigned char *back = pinned ? pinned_pattern(&c, bytes, 8) : pageable_pattern(bytes, 8);
    weir_dptr block = device_block(&c, PIECES * (PIECE + GAP));
    uint64_t before = counts_of(&c.w).launches;
    weir_ticket up, down;
    list_small(pieces, block, from, true);
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, pieces, PIECES, NULL, &up));
    OK(weir_copy_wait(c.engine, up, -1));
    list_small(pieces, block, back, false);
    OK(weir_copy(c.engine, WEIR_TO_HOST, pieces, PIECES, NULL, &down));
    OK(weir_copy_wait(c.engine, down, -1));
    assert_pattern(back, bytes, 7);
    *launches = counts_of(&c.w).launches - before;
    *stats = engine_stats(&c);
    OK(weir_free(c.w.pool, block, c.home));
    if (!pinned) {
        free(from);
        free(back);
    }
    close_copies(&c);
}

static void test_many_small_pieces_are_one_launch(void **state)
{
    (void)state;
    weir_engine_stats s;
    uint64_t launches;
    copy_small_pieces(true, 0, &s, &launches);
    assert_int_equal(s.small_way[0], WEIR_WAY_GATHER);
    assert_true(s.small_us[0][WEIR_WAY_GATHER] < s.small_us[0][WEIR_WAY_DIRECT]);
    assert_int_equal(s.gather_bytes, 2 * PIECES * PIECE);
    assert_int_equal(launches, 2);
}

/* A launch may have to wait for room beside a kernel; a plain copy need not. */
static void test_a_copy_does_not_queue_behind_a_launch(void **state)
{
    (void)state;
    struct copy_world c;
    static weir_piece pieces[PIECES];
    open_copies(&c);
    unsigned char *from = pinned_pattern(&c, PIECES * PIECE, 20);
    weir_dptr block = device_block(&c, PIECES * (PIECE + GAP)), other = device_block(&c, PIECE);
    weir_ticket small, plain;
    list_small(pieces, block, from, true);
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, pieces, PIECES, NULL, &small));
    plain = copy_one(&c, WEIR_TO_DEVICE, piece(other, host_address(from), PIECE), NULL);
    assert_int_not_equal(small.lane, plain.lane);
    OK(weir_copy_wait(c.engine, small, -1));
    OK(weir_copy_wait(c.engine, plain, -1));
    OK(weir_free(c.w.pool, block, c.home));
    OK(weir_free(c.w.pool, other, c.home));
    close_copies(&c);
}

static void test_small_pageable_pieces_are_gathered_from_slabs(void **state)
{
    (void)state;
    weir_engine_stats s;
    uint64_t launches;
    copy_small_pieces(false, 0, &s, &launches);
    assert_int_equal(s.staged_bytes, 2 * PIECES * PIECE);
    assert_int_equal(s.gather_bytes, 2 * PIECES * PIECE);
    assert_true(launches < PIECES / 10);
}

static void test_an_engine_without_kernels_launches_none(void **state)
{
    (void)state;
    weir_engine_stats s;
    uint64_t launches;
    copy_small_pieces(true, WEIR_ENGINE_NO_KERNELS, &s, &launches);
    assert_int_equal(launches, 0);
    assert_int_equal(s.gather_bytes, 0);
    assert_true(s.small_us[0][WEIR_WAY_GATHER] == 0);
}

static void test_pieces_that_lie_together_on_the_device_are_packed_where_no_kernel_may_be(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_options sim = world_options();
    weir_engine_options o = small_engine();
    o.flags = WEIR_ENGINE_NO_KERNELS;
    open_copies_with(&c, &sim, &o);
    unsigned char *from = pinned_pattern(&c, 400 * 200, 9);
    weir_dptr block = device_block(&c, 400 * 100);
    weir_piece pieces[400];
    for (size_t i = 0; i < 400; i++)
        pieces[i] = piece(block + i * 100, host_address(from) + i * 200, 100);
    weir_ticket t;
    uint64_t before = engine_stats(&c).transfers;
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, pieces, 400, NULL, &t));
    OK(weir_copy_wait(c.engine, t, -1));
    unsigned char seen[100];
    wr_sim_peek(c.w.sim, block + 399 * 100, seen, 100);
    assert_memory_equal(seen, from + 399 * 200, 100);
    assert_int_equal(engine_stats(&c).packed_bytes, 400 * 100);
    assert_int_equal(engine_stats(&c).transfers - before, 1);
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c);
}

static void test_neighbours_are_one_transfer(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    char *from = pinned_pattern(&c, 4000, 10);
    weir_dptr block = device_block(&c, 4000);
    weir_piece pieces[] = {piece(block, host_address(from), 1000),
        piece(block + 1000, host_address(from) + 1000, 1000),
        {block + 2000, host_address(from) + 2000, 500, 4, 500, 500}};
    weir_ticket t;
    uint64_t before = engine_stats(&c).transfers;
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, pieces, 3, NULL, &t));
    OK(weir_copy_wait(c.engine, t, -1));
    assert_int_equal(engine_stats(&c).transfers - before, 1);
    assert_device_pattern(&c, block, 4000, 10);
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c);
}

/* ---- what waits for what ----------------------------------------------------------------------------- */

static void test_a_stream_joined_to_the_ticket_reads_what_was_copied(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    uint32_t *from = pinned_pattern(&c, MIB, 0);
    write_words(from, MIB, 77);
    weir_dptr block = device_block(&c, MIB);
    for (int round = 0; round < 3; round++) {
        weir_stream s = c.w.stream[round];
        weir_copy_options o = after(&c.w.stream[(round + 2) % 3]); /* the readers of the round before */
        weir_ticket t = copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), MIB), &o);
        OK(weir_copy_join(c.engine, t, s));
        OK(wr_kernels_verify(c.w.device, s, block, MIB, 77, c.w.counter[round]));
    }
    wr_sim_drain(c.w.sim);
    OK(weir_free(c.w.pool, block, c.w.stream[2]));
    close_copies(&c);
}

/* The oracle is told of the kernel's writes; the copy must be ordered after them, and is not without `after`. */
static void test_a_copy_comes_after_the_streams_it_names_and_the_oracle_sees_one_that_does_not(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    uint32_t *to = pinned_pattern(&c, MIB, 0);
    weir_dptr block = device_block(&c, MIB);
    OK(wr_kernels_spin(c.w.device, c.w.stream[1], 5 * MS));
    OK(wr_kernels_fill(c.w.device, c.w.stream[1], block, MIB, 1234));
    weir_copy_options o = after(&c.w.stream[1]);
    OK(weir_copy_wait(c.engine, copy_one(&c, WEIR_TO_HOST, piece(host_address(to), block, MIB), &o), -1));
    assert_int_equal(to[0], 1234);
    assert_int_equal(to[MIB / 4 - 1], 1234);
    assert_no_reports(&c.w);
    OK(wr_kernels_fill(c.w.device, c.w.stream[1], block, MIB, 5));
    copy_one(&c, WEIR_TO_HOST, piece(host_address(to), block, MIB), NULL);
    assert_true(wr_sim_reports(c.w.sim) > 0);
    wr_sim_reports_clear(c.w.sim);
    wr_sim_drain(c.w.sim);
    OK(weir_free(c.w.pool, block, c.w.stream[1]));
    close_copies(&c);
}

static void test_a_copy_that_waits_for_compute_holds_up_no_other(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    void *from = pinned_pattern(&c, 16 * MIB, 11);
    weir_dptr block = device_block(&c, 16 * MIB);
    struct wr_sim_gate *gates[3];
    weir_ticket held[3];
    for (int i = 0; i < 3; i++) {
        OK(wr_sim_stall(c.w.device, c.w.stream[i], &gates[i]));
        weir_copy_options o = after(&c.w.stream[i]);
        uint64_t at = (uint64_t)i * MIB;
        held[i] = copy_one(&c, WEIR_TO_DEVICE, piece(block + at, host_address(from) + at, MIB), &o);
        weir_ticket next =
            copy_one(&c, WEIR_TO_DEVICE, piece(block + 8 * MIB, host_address(from) + 8 * MIB, MIB), NULL);
        OK(weir_copy_wait(c.engine, next, 100 * (int64_t)MS));
        assert_int_equal(weir_copy_wait(c.engine, held[i], 0), WEIR_WOULD_BLOCK);
    }
    wr_sim_gate_open(gates[2]); /* the last one first: they hold up each other as little */
    OK(weir_copy_wait(c.engine, held[2], 100 * (int64_t)MS));
    assert_int_equal(weir_copy_wait(c.engine, held[0], MS), WEIR_TIMEOUT);
    wr_sim_gate_open(gates[0]);
    wr_sim_gate_open(gates[1]);
    for (int i = 0; i < 3; i++)
        OK(weir_copy_wait(c.engine, held[i], -1));
    assert_device_pattern(&c, block, 3 * MIB, 11);
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c);
}

static void test_an_urgent_copy_waits_for_one_chunk_of_a_large_one_at_most(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_options sim = {.profile = wr_sim_profile_find("h200-pcie5")};
    open_copies_with(&c, &sim, NULL);
    size_t large = 256 * MIB, small = 64 << 10;
    void *from;
    OK(weir_host_alloc(c.w.pool, large, &from));
    weir_dptr a = device_block(&c, large), b = device_block(&c, small);
    weir_copy_options urgent = {.struct_size = sizeof urgent, .flags = WEIR_COPY_URGENT};
    weir_ticket bulk = copy_one(&c, WEIR_TO_DEVICE, piece(a, host_address(from), large), NULL);
    uint64_t start = c.w.device->ops->now_ns(c.w.device);
    weir_ticket quick = copy_one(&c, WEIR_TO_DEVICE, piece(b, host_address(from), small), &urgent);
    OK(weir_copy_wait(c.engine, quick, -1));
    assert_true(c.w.device->ops->now_ns(c.w.device) - start < 3 * MS / 2);
    assert_int_equal(weir_copy_wait(c.engine, bulk, 0), WEIR_WOULD_BLOCK);
    assert_int_equal(engine_stats(&c).gather_bytes, small); /* a real copy engine would have taken it last */
    OK(weir_copy_wait(c.engine, bulk, -1));
    OK(weir_free(c.w.pool, a, c.home));
    OK(weir_free(c.w.pool, b, c.home));
    close_copies(&c);
}

/* ---- pageable memory behind compute ------------------------------------------------------------------ */

static void test_pageable_memory_behind_compute_is_staged_up_to_half_of_the_slabs(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    void *from = pageable_pattern(MIB, 12);
    weir_dptr block = device_block(&c, MIB);
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &gate));
    weir_copy_options o = after(&c.w.stream[0]);
    weir_piece large = piece(block, host_address(from), MIB), small = piece(block, host_address(from), 60000);
    weir_ticket t = {7, 7, 7}, held;
    assert_int_equal(weir_copy(c.engine, WEIR_TO_DEVICE, &large, 1, &o, &t), WEIR_WOULD_BLOCK);
    assert_int_equal(t.lane, 7); /* nothing was copied, so there is nothing to wait for */
    o.timeout_ns = MS;
    assert_int_equal(weir_copy(c.engine, WEIR_TO_DEVICE, &large, 1, &o, &t), WEIR_TIMEOUT);
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, &small, 1, &o, &held));
    large = piece(block + 65536, host_address(from) + 65536, MIB - 65536);
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, &large, 1, NULL, &t)); /* the other half of the slabs is enough */
    OK(weir_copy_wait(c.engine, t, -1));
    assert_int_equal(weir_copy_wait(c.engine, held, 0), WEIR_WOULD_BLOCK);
    wr_sim_gate_open(gate);
    OK(weir_copy_wait(c.engine, held, -1));
    assert_device_pattern(&c, block, 60000, 12);
    OK(weir_free(c.w.pool, block, c.home));
    free(from);
    close_copies(&c);
}

static void test_an_engine_does_not_close_before_pageable_memory_is_written(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    weir_dptr block = device_block(&c, 1000);
    unsigned char *from = pinned_pattern(&c, 1000, 13), *to = pageable_pattern(1000, 14);
    copy_and_wait(&c, WEIR_TO_DEVICE, piece(block, host_address(from), 1000));
    struct wr_sim_gate *gate;
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &gate));
    weir_copy_options o = after(&c.w.stream[0]);
    copy_one(&c, WEIR_TO_HOST, piece(host_address(to), block, 1000), &o);
    assert_int_equal(weir_engine_close(c.engine), WEIR_NOT_YET);
    wr_sim_gate_open(gate);
    wr_sim_drain(c.w.sim);
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c); /* whose first close lands it */
    assert_pattern(to, 1000, 13);
    free(to);
}

/* ---- bad input --------------------------------------------------------------------------------------- */

static void refuse(
    struct copy_world *c, weir_direction d, const weir_piece *pieces, size_t n, weir_status expected)
{
    weir_ticket t = {9, 9, 9};
    weir_status s = weir_copy(c->engine, d, pieces, n, NULL, &t);
    if (s != expected) fail_msg("%s: %s", weir_status_name(s), weir_error_text());
    assert_int_equal(t.lane, 9);
}

static void test_bad_pieces_are_typed_errors_and_copy_nothing(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    char *pinned = pinned_pattern(&c, 8192, 15), *pageable = pageable_pattern(8192, 16);
    weir_dptr block = device_block(&c, 8192);
    uint64_t h = host_address(pinned), before = counts_of(&c.w).copies;
    struct {
        weir_direction direction;
        weir_piece pieces[2];
        weir_status expected;
    } bad[] = {
        {WEIR_TO_DEVICE, {piece(0, h, 1)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {piece(block, 0, 1)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {{block, h, 100, 2, 99, 100}}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {{block, h, 100, 2, 100, 99}}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {piece(UINT64_MAX - 10, h, 100)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {{block, h, 8, 3, SIZE_MAX / 2 + 1, 8}}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {{block, h, SIZE_MAX / 2, 3, SIZE_MAX / 2, SIZE_MAX / 2}}, WEIR_TOO_LARGE},
        {WEIR_TO_DEVICE, {piece(block, h, SIZE_MAX - 5), piece(block, h, 6)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {piece(block, h, 100), piece(block + 99, h + 500, 10)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {piece(block + 99, h, 100), piece(block, h + 500, 100)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {{block, h, 10, 5, 20, 10}, {block + 15, h + 500, 10, 5, 20, 10}},
            WEIR_INVALID_ARGUMENT},
        {WEIR_ON_DEVICE, {piece(block, block + 50, 100)}, WEIR_INVALID_ARGUMENT},
        {WEIR_TO_DEVICE, {piece(h, h + 4096, 10)}, WEIR_INVALID_POINTER},
        {WEIR_TO_DEVICE, {piece(host_address(pageable), h, 10)}, WEIR_INVALID_POINTER},
        {WEIR_TO_DEVICE, {piece(block, block + 4096, 10)}, WEIR_INVALID_POINTER},
        {WEIR_TO_HOST, {piece(h, h + 4096, 10)}, WEIR_INVALID_POINTER},
        {WEIR_TO_HOST, {piece(h, host_address(pageable), 10)}, WEIR_INVALID_POINTER},
        {WEIR_ON_DEVICE, {piece(block, h, 10)}, WEIR_INVALID_POINTER},
        {WEIR_TO_DEVICE, {piece(block, h, 1), piece(block + 100, h, 4 * WR_GIB)}, WEIR_INVALID_POINTER},
        {(weir_direction)3, {piece(block, h, 10)}, WEIR_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++)
        refuse(&c, bad[i].direction, bad[i].pieces, bad[i].pieces[1].bytes ? 2 : 1, bad[i].expected);
    refuse(&c, WEIR_TO_DEVICE, NULL, 1, WEIR_INVALID_ARGUMENT);
    assert_int_equal(counts_of(&c.w).copies, before);
    OK(weir_free(c.w.pool, block, c.home));
    free(pageable);
    close_copies(&c);
}

static void test_empty_pieces_and_columns_of_one_matrix_are_fine(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    unsigned char *from = pinned_pattern(&c, 2000, 17), seen[2000];
    weir_dptr block = device_block(&c, 2000);
    weir_ticket t = {9, 9, 9};
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, NULL, 0, NULL, &t));
    assert_int_equal(t.lane, 0);
    OK(weir_copy_wait(c.engine, t, 0));
    OK(weir_copy_join(c.engine, t, c.w.stream[0]));
    weir_piece columns[] = {{block + 8, host_address(from) + 1000, 12, 50, 20, 20}, piece(0, 0, 0),
        {block, host_address(from), 8, 50, 20, 8}};
    OK(weir_copy(c.engine, WEIR_TO_DEVICE, columns, 3, NULL, &t));
    OK(weir_copy_wait(c.engine, t, -1));
    wr_sim_peek(c.w.sim, block, seen, 1000);
    for (size_t i = 0; i < 50; i++) {
        assert_memory_equal(seen + i * 20, from + i * 8, 8);
        assert_memory_equal(seen + i * 20 + 8, from + 1000 + i * 20, 12);
    }
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c);
}

static void test_bad_options_and_tickets_are_refused(void **state)
{
    (void)state;
    struct copy_world c;
    open_copies(&c);
    weir_engine *e = NULL;
    weir_engine_options o = {.struct_size = sizeof o, .chunk_bytes = 1000};
    assert_int_equal(weir_engine_open(c.w.pool, &o, &e), WEIR_INVALID_ARGUMENT);
    o = (weir_engine_options){.struct_size = sizeof o, .staging_bytes = 1000};
    assert_int_equal(weir_engine_open(c.w.pool, &o, &e), WEIR_INVALID_ARGUMENT);
    o = (weir_engine_options){.struct_size = sizeof o, .flags = 8};
    assert_int_equal(weir_engine_open(c.w.pool, &o, &e), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_engine_open(NULL, NULL, &e), WEIR_INVALID_ARGUMENT);
    assert_null(e);
    const weir_ticket wrong[] = {
        {.lane = 99, .stamp = 1}, {.lane = 1, .stamp = UINT64_MAX}, {.landing = 5}, {.stamp = 1}};
    for (size_t i = 0; i < WR_ARRAY_LEN(wrong); i++) {
        assert_int_equal(weir_copy_wait(c.engine, wrong[i], 0), WEIR_INVALID_ARGUMENT);
        assert_int_equal(weir_copy_join(c.engine, wrong[i], c.w.stream[0]), WEIR_INVALID_ARGUMENT);
    }
    assert_int_equal(weir_engine_link(c.engine, c.w.pool), WEIR_INVALID_ARGUMENT);
    weir_engine *closed = c.engine;
    close_copies(&c);
    assert_int_equal(weir_engine_close(closed), WEIR_CLOSED);
    assert_int_equal(weir_copy(closed, WEIR_TO_DEVICE, NULL, 0, NULL, NULL), WEIR_CLOSED);
    assert_null(weir_engine_stream(closed));
}

/* P05: whoever is in a call comes back, and the engine ends. */
static void test_P05_a_lost_device_ends_every_call_and_the_engine_closes(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_gate *gate;
    open_copies(&c);
    weir_dptr block = device_block(&c, 1000);
    void *from = pinned_pattern(&c, 1000, 18), *to = pageable_pattern(1000, 19);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &gate));
    weir_copy_options o = after(&c.w.stream[0]);
    weir_ticket up = copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), 1000), &o);
    weir_ticket down = copy_one(&c, WEIR_TO_HOST, piece(host_address(to), block, 1000), &o);
    wr_sim_reset_device(c.w.device);
    weir_piece p = piece(block, host_address(from), 1000);
    assert_int_equal(weir_copy(c.engine, WEIR_TO_DEVICE, &p, 1, NULL, NULL), WEIR_CONTEXT_LOST);
    assert_int_equal(weir_copy_wait(c.engine, up, -1), WEIR_CONTEXT_LOST);
    assert_int_equal(weir_copy_wait(c.engine, down, -1), WEIR_CONTEXT_LOST);
    assert_int_equal(weir_copy_join(c.engine, up, c.w.stream[1]), WEIR_CONTEXT_LOST);
    OK(weir_engine_close(c.engine));
    assert_int_equal(weir_engine_close(c.engine), WEIR_CLOSED);
    (void)weir_pool_close(c.w.pool);
    wr_sim_gate_open(gate);
    wr_sim_drain(c.w.sim);
    wr_sim_reports_clear(c.w.sim);
    assert_int_equal(wr_sim_close(c.w.sim), 0);
    free(to);
}

/* ---- gates ------------------------------------------------------------------------------------------- */

/* As somebody does who was told "this stream waits". */
static void wait_on(struct copy_world *c, weir_stream waits, weir_stream for_stream)
{
    wr_event e;
    OK(c->w.device->ops->event_create(c->w.device, &e));
    OK(c->w.device->ops->event_record(c->w.device, e, for_stream));
    OK(c->w.device->ops->stream_wait(c->w.device, waits, e));
    OK(c->w.device->ops->event_destroy(c->w.device, e));
}

static void test_what_is_queued_on_a_gate_holds_up_the_copies_that_name_it_and_the_gate_is_not_lent_again(
    void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_gate *stall;
    weir_stream gate, other;
    open_copies(&c);
    weir_dptr a = device_block(&c, 1000), b = device_block(&c, 1000);
    void *from = pinned_pattern(&c, 1000, 20);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &stall));
    OK(weir_engine_take_gate(c.engine, &gate));
    wait_on(&c, gate, c.w.stream[0]);
    weir_copy_options o = after(&gate);
    weir_ticket behind = copy_one(&c, WEIR_TO_DEVICE, piece(a, host_address(from), 1000), &o);
    OK(weir_engine_give_gate(c.engine, gate));
    copy_and_wait(&c, WEIR_TO_DEVICE, piece(b, host_address(from), 1000));
    assert_int_equal(weir_copy_wait(c.engine, behind, 0), WEIR_WOULD_BLOCK);
    OK(weir_engine_take_gate(c.engine, &other));
    assert_ptr_not_equal(other, gate);
    wr_sim_gate_open(stall);
    OK(weir_copy_wait(c.engine, behind, -1));
    OK(weir_engine_give_gate(c.engine, other));
    weir_stream again[2];
    for (int i = 0; i < 2; i++) /* both have passed: no third is made */
        OK(weir_engine_take_gate(c.engine, &again[i]));
    assert_true((again[0] == gate && again[1] == other) || (again[0] == other && again[1] == gate));
    for (int i = 0; i < 2; i++)
        OK(weir_engine_give_gate(c.engine, again[i]));
    OK(weir_free(c.w.pool, a, c.home));
    OK(weir_free(c.w.pool, b, c.home));
    close_copies(&c);
}

static void test_a_copy_in_place_reads_pinned_memory_when_it_runs_and_refuses_pageable_memory(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_gate *stall;
    open_copies(&c);
    weir_dptr first = device_block(&c, 1000), second = device_block(&c, 1000);
    void *pinned = pinned_pattern(&c, 1000, 21), *pageable = pageable_pattern(1000, 22);
    weir_piece fill = piece(first, host_address(pinned), 1000);
    copy_and_wait(&c, WEIR_TO_DEVICE, fill);
    memset(pinned, 0, 1000);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &stall));
    OK(c.w.device->ops->copy(
        c.w.device, WR_COPY_D2H, host_address(pinned), first, 1000, c.w.stream[0])); /* fills it again */
    weir_copy_options o = after(&c.w.stream[0]);
    o.flags = WEIR_COPY_IN_PLACE;
    weir_piece p = piece(second, host_address(pageable), 1000);
    assert_int_equal(weir_copy(c.engine, WEIR_TO_DEVICE, &p, 1, &o, NULL), WEIR_INVALID_POINTER);
    weir_ticket t = copy_one(&c, WEIR_TO_DEVICE, piece(second, host_address(pinned), 1000), &o);
    wr_sim_gate_open(stall);
    OK(weir_copy_wait(c.engine, t, -1));
    assert_device_pattern(&c, second, 1000, 21);
    OK(weir_free(c.w.pool, first, c.home));
    OK(weir_free(c.w.pool, second, c.home));
    free(pageable);
    close_copies(&c);
}

static void test_a_copy_reads_pinned_memory_during_the_call_where_it_is_told_to(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_gate *stall;
    open_copies(&c);
    weir_dptr block = device_block(&c, 1000);
    void *pinned = pinned_pattern(&c, 1000, 23);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &stall));
    weir_copy_options o = after(&c.w.stream[0]);
    o.flags = WEIR_COPY_DURING_CALL;
    weir_ticket t = copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(pinned), 1000), &o);
    memset(pinned, 0, 1000); /* long before the copy runs */
    wr_sim_gate_open(stall);
    OK(weir_copy_wait(c.engine, t, -1));
    assert_device_pattern(&c, block, 1000, 23);
    weir_piece p = piece(host_address(pinned), block, 1000);
    assert_int_equal(weir_copy(c.engine, WEIR_TO_HOST, &p, 1, &o, NULL), WEIR_INVALID_ARGUMENT);
    p = piece(block, host_address(pinned), 1000);
    o.flags |= WEIR_COPY_IN_PLACE;
    assert_int_equal(weir_copy(c.engine, WEIR_TO_DEVICE, &p, 1, &o, NULL), WEIR_INVALID_ARGUMENT);
    OK(weir_free(c.w.pool, block, c.home));
    close_copies(&c);
}

static void test_gates_are_few_and_strangers_are_none(void **state)
{
    (void)state;
    struct copy_world c;
    weir_stream gates[WR_GATES_MOST], one;
    open_copies(&c);
    for (int i = 0; i < WR_GATES_MOST; i++)
        OK(weir_engine_take_gate(c.engine, &gates[i]));
    assert_int_equal(weir_engine_take_gate(c.engine, &one), WEIR_WOULD_BLOCK);
    for (int i = 0; i < WR_GATES_MOST; i++)
        OK(weir_engine_give_gate(c.engine, gates[i]));
    assert_int_equal(weir_engine_give_gate(c.engine, gates[0]), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_engine_give_gate(c.engine, c.w.stream[0]), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_engine_take_gate(NULL, &one), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_engine_take_gate(c.engine, NULL), WEIR_INVALID_ARGUMENT);
    close_copies(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned_bytes_go_up_across_and_down),
        cmocka_unit_test(test_pageable_bytes_go_up_and_down_through_fewer_slabs_than_they_need),
        cmocka_unit_test(test_rows_keep_to_their_pitches),
        cmocka_unit_test(test_many_small_pieces_are_one_launch),
        cmocka_unit_test(test_a_copy_does_not_queue_behind_a_launch),
        cmocka_unit_test(test_small_pageable_pieces_are_gathered_from_slabs),
        cmocka_unit_test(test_an_engine_without_kernels_launches_none),
        cmocka_unit_test(test_pieces_that_lie_together_on_the_device_are_packed_where_no_kernel_may_be),
        cmocka_unit_test(test_neighbours_are_one_transfer),
        cmocka_unit_test(test_a_stream_joined_to_the_ticket_reads_what_was_copied),
        cmocka_unit_test(test_a_copy_comes_after_the_streams_it_names_and_the_oracle_sees_one_that_does_not),
        cmocka_unit_test(test_a_copy_that_waits_for_compute_holds_up_no_other),
        cmocka_unit_test(test_an_urgent_copy_waits_for_one_chunk_of_a_large_one_at_most),
        cmocka_unit_test(test_pageable_memory_behind_compute_is_staged_up_to_half_of_the_slabs),
        cmocka_unit_test(test_an_engine_does_not_close_before_pageable_memory_is_written),
        cmocka_unit_test(test_bad_pieces_are_typed_errors_and_copy_nothing),
        cmocka_unit_test(test_empty_pieces_and_columns_of_one_matrix_are_fine),
        cmocka_unit_test(test_bad_options_and_tickets_are_refused),
        cmocka_unit_test(
            test_what_is_queued_on_a_gate_holds_up_the_copies_that_name_it_and_the_gate_is_not_lent_again),
        cmocka_unit_test(test_a_copy_in_place_reads_pinned_memory_when_it_runs_and_refuses_pageable_memory),
        cmocka_unit_test(test_a_copy_reads_pinned_memory_during_the_call_where_it_is_told_to),
        cmocka_unit_test(test_gates_are_few_and_strangers_are_none),
        cmocka_unit_test(test_P05_a_lost_device_ends_every_call_and_the_engine_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
