/* SPDX-License-Identifier: Apache-2.0
 *
 * URGENT. The copy engine of a direction takes copies in the order in which they were submitted, whatever their
 * streams and priorities are: 64 KiB submitted after 1 GiB in chunks, on streams of their own, arrived after 19 ms
 * on an H200, like on plain streams. Only a kernel gets past: it reads pinned memory over the bus beside the engine.
 */
#include "move.h"
#include "gather.h"

/* ---- joining ----------------------------------------------------------------------------------------- */

static void flatten_rows(struct wr_move *m)
{
    if (m->rows > 1 && m->to_pitch == m->bytes && m->from_pitch == m->bytes) {
        m->bytes *= m->rows; /* no overflow: the sum of all was checked */
        m->rows = 1;
    }
}

static bool continues(const struct wr_move *a, const struct wr_move *b)
{
    return a->rows == 1 && b->rows == 1 && a->to + a->bytes == b->to && a->from + a->bytes == b->from;
}

size_t wr_move_join(struct wr_move *moves, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct wr_move m = moves[i];
        if (m.bytes == 0 || m.rows == 0) continue;
        flatten_rows(&m);
        if (kept > 0 && continues(&moves[kept - 1], &m))
            moves[kept - 1].bytes += m.bytes;
        else
            moves[kept++] = m;
    }
    return kept;
}

/* ---- queueing ---------------------------------------------------------------------------------------- */

static weir_status queue_bytes(
    const struct wr_mover *m, enum wr_copy_kind kind, const struct wr_move *move, struct wr_move_tally *t)
{
    weir_status s = WEIR_OK;
    for (size_t at = 0; at < move->bytes && s == WEIR_OK; at += m->chunk_bytes) {
        size_t bytes = wr_min(m->chunk_bytes, move->bytes - at);
        s = m->device->ops->copy(m->device, kind, move->to + at, move->from + at, bytes, m->stream);
        if (s != WEIR_OK) return s;
        t->transfers++;
        t->direct_bytes += bytes;
    }
    return s;
}

/* A row above a chunk is copied by itself. */
static weir_status queue_rows(
    const struct wr_mover *m, enum wr_copy_kind kind, const struct wr_move *move, struct wr_move_tally *t)
{
    size_t step = wr_max(1, m->chunk_bytes / move->bytes);
    weir_status s = WEIR_OK;
    for (size_t row = 0; row < move->rows && s == WEIR_OK; row += step) {
        struct wr_move part = *move;
        part.rows = wr_min(step, move->rows - row);
        part.to += row * move->to_pitch;
        part.from += row * move->from_pitch;
        if (part.rows == 1) {
            s = queue_bytes(m, kind, &part, t);
            continue;
        }
        struct wr_rows r = {part.to, part.from, part.bytes, part.rows, part.to_pitch, part.from_pitch};
        s = m->device->ops->copy_rows(m->device, kind, &r, m->stream);
        t->transfers += s == WEIR_OK;
        if (s == WEIR_OK) t->direct_bytes += part.bytes * part.rows;
    }
    return s;
}

static weir_status queue_direct(
    const struct wr_mover *m, enum wr_copy_kind kind, const struct wr_move *move, struct wr_move_tally *t)
{
    return move->rows == 1 ? queue_bytes(m, kind, move, t) : queue_rows(m, kind, move, t);
}

/* Brings the small ones to the front. */
static size_t part_small(struct wr_move *moves, size_t n, size_t *bytes)
{
    size_t n_small = 0;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (!wr_move_is_small(&moves[i])) continue;
        struct wr_move small = moves[i];
        moves[i] = moves[n_small];
        moves[n_small++] = small;
        *bytes += small.bytes;
    }
    return n_small;
}

weir_status wr_move_queue(const struct wr_mover *m, enum wr_copy_kind kind, struct wr_move *moves, size_t n,
    struct wr_move_tally *t)
{
    size_t bytes, first = 0;
    weir_status s = WEIR_OK;
    n = wr_move_join(moves, n);
    if (m->ways && (n >= WR_SMALL_FEW || m->urgent)) {
        size_t n_small = part_small(moves, n, &bytes);
        if (m->urgent || wr_ways_choose(m->ways, n_small, bytes) == WEIR_WAY_GATHER) {
            s = wr_gather_queue(m, moves, n_small, t);
            first = n_small;
        }
    }
    for (size_t i = first; i < n && s == WEIR_OK; i++)
        s = queue_direct(m, kind, &moves[i], t);
    return s;
}
