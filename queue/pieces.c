/* SPDX-License-Identifier: Apache-2.0 */
#include "pieces.h"

#include <stdlib.h>

/* ---- one piece --------------------------------------------------------------------------------------- */

/* The bytes from the first to the last of one side; false: they wrap. */
static bool measure_side(uint64_t address, const struct wr_move *m, size_t pitch, size_t *extent)
{
    size_t sum;
    if (__builtin_mul_overflow(m->rows - 1, pitch, &sum)) return false;
    if (__builtin_add_overflow(sum, m->bytes, &sum) || address + sum < address) return false;
    *extent = sum;
    return true;
}

static bool ranges_meet(uint64_t a, size_t a_bytes, uint64_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static weir_status check_piece(size_t i, const struct wr_move *m)
{
    size_t to, from;
    if (m->to == 0 || m->from == 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "piece %zu has %zu bytes at NULL", i, m->bytes);
    if (m->rows > 1 && (m->to_pitch < m->bytes || m->from_pitch < m->bytes))
        return wr_fail(WEIR_INVALID_ARGUMENT, "piece %zu: a pitch below its rows' %zu bytes", i, m->bytes);
    if (!measure_side(m->to, m, m->to_pitch, &to) || !measure_side(m->from, m, m->from_pitch, &from))
        return wr_fail(WEIR_INVALID_ARGUMENT, "piece %zu: its addresses wrap", i);
    if (ranges_meet(m->to, to, m->from, from))
        return wr_fail(WEIR_INVALID_ARGUMENT, "piece %zu: source and destination overlap", i);
    return WEIR_OK;
}

static struct wr_move as_move(const weir_piece *p)
{
    size_t rows = p->rows ? p->rows : 1;
    return (struct wr_move){p->to, p->from, p->bytes, rows, rows > 1 ? p->to_pitch : p->bytes,
        rows > 1 ? p->from_pitch : p->bytes};
}

/* ---- destinations ------------------------------------------------------------------------------------ */

static bool rises(const struct wr_move *moves, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (moves[i - 1].to + wr_pieces_extent(&moves[i - 1], moves[i - 1].to_pitch) > moves[i].to)
            return false;
    return true;
}

static int compare_destinations(const void *a, const void *b)
{
    const struct wr_move *const *x = a, *const *y = b;
    return ((*x)->to > (*y)->to) - ((*x)->to < (*y)->to);
}

/* Rows of one pitch may stand between each other's: columns of one matrix. `a` begins first. */
static bool rows_interleave(const struct wr_move *a, const struct wr_move *b)
{
    size_t pitch = a->rows > 1 ? a->to_pitch : b->to_pitch;
    if ((a->rows > 1 && a->to_pitch != pitch) || (b->rows > 1 && b->to_pitch != pitch)) return false;
    uint64_t offset = (b->to - a->to) % pitch;
    return offset >= a->bytes && offset + b->bytes <= pitch;
}

/* By address; `open` are those that may still reach into what comes. */
static bool sorted_overlap(const struct wr_move **sorted, size_t n)
{
    size_t n_open = 0;
    for (size_t i = 0; i < n; i++) {
        const struct wr_move *m = sorted[i];
        size_t kept = 0;
        for (size_t j = 0; j < n_open; j++) {
            const struct wr_move *before = sorted[j];
            if (before->to + wr_pieces_extent(before, before->to_pitch) <= m->to) continue;
            if (!rows_interleave(before, m)) return true;
            sorted[kept++] = before;
        }
        sorted[kept++] = m; /* the front of the list serves again: kept <= i + 1 */
        n_open = kept;
    }
    return false;
}

static weir_status check_destinations(const struct wr_move *moves, size_t n)
{
    if (rises(moves, n)) return WEIR_OK;
    const struct wr_move **sorted = malloc(n * sizeof *sorted);
    if (!sorted) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to check %zu pieces", n);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &moves[i];
    qsort(sorted, n, sizeof *sorted, compare_destinations);
    bool overlap = sorted_overlap(sorted, n);
    free(sorted);
    return overlap ? wr_fail(WEIR_INVALID_ARGUMENT, "two pieces have a destination in common") : WEIR_OK;
}

weir_status wr_pieces_check(
    const weir_piece *pieces, size_t n_pieces, struct wr_move *moves, size_t *n_moves, size_t *bytes)
{
    size_t n = 0, sum = 0, all;
    for (size_t i = 0; i < n_pieces; i++) {
        struct wr_move m = as_move(&pieces[i]);
        if (m.bytes == 0) continue;
        if (__builtin_mul_overflow(m.bytes, m.rows, &all) || __builtin_add_overflow(sum, all, &sum))
            return wr_fail(WEIR_TOO_LARGE, "the pieces' sizes add up to more than SIZE_MAX");
        weir_status s = check_piece(i, &m);
        if (s != WEIR_OK) return s;
        moves[n++] = m;
    }
    weir_status s = check_destinations(moves, n);
    if (s != WEIR_OK) return s;
    *n_moves = n;
    *bytes = sum;
    return WEIR_OK;
}
