/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A two-level segregated fit (Masmano et al., "TLSF", ECRTS 2004) over offsets instead of memory. An
 * *extent* is a run of addresses added as a whole; its pieces form a list in address order that ends in an
 * END node of no size. The table of edges finds the first piece and the END of every extent, so that an
 * extent added next to another joins it.
 *
 * Ids are stable where it matters: a split leaves the id with the left part, a join with the left piece. So
 * the first piece of an extent keeps its id, and the edges change only in add and remove.
 *
 * A free piece is filed under its size rounded down to a bin. A request is served from its own bin if one of
 * the first few there is large enough, else from the next bin that has any, whose pieces all are. Without the
 * look into its own bin, a freed block of a size that is no bin boundary could never serve the same size
 * again.
 *
 * The same structure holds a stream's blocks (units of 512 bytes), and the pool's idle pages and unmapped
 * addresses.
 */
#include "range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBES = 8, NODES_PER_CALL = 4, EDGES_PER_CALL = 4 };

static uint32_t end_of(const struct wr_node *n)
{
    return n->start + n->units;
}

void wr_range_init(struct wr_range *r)
{
    *r = (struct wr_range){.n_nodes = 1};
}

void wr_range_fini(struct wr_range *r)
{
    free(r->nodes);
    wr_table_fini(&r->edges);
    wr_range_init(r);
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

static uint32_t node_room(const struct wr_range *r)
{
    return r->n_spare + (r->capacity > r->n_nodes ? r->capacity - r->n_nodes : 0);
}

static bool grow_nodes(struct wr_range *r, uint32_t capacity)
{
    struct wr_node *nodes = wr_array_new(capacity * sizeof *nodes);
    if (nodes == NULL) return false;
    if (r->nodes != NULL) memcpy(nodes, r->nodes, r->n_nodes * sizeof *nodes);
    free(r->nodes);
    r->nodes = nodes;
    r->capacity = capacity;
    return true;
}

bool wr_range_reserve_nodes_slow(struct wr_range *r)
{
    while (node_room(r) < NODES_PER_CALL * (1 + r->promised))
        if (!grow_nodes(r, r->capacity == 0 ? 64 : r->capacity * 2)) return false;
    return true;
}

bool wr_range_reserve(struct wr_range *r)
{
    return wr_range_reserve_nodes_slow(r) && wr_table_reserve(&r->edges, EDGES_PER_CALL * (1 + r->promised));
}

bool wr_range_promise(struct wr_range *r)
{
    bool room = wr_range_reserve(r);
    r->promised += room;
    return room;
}

void wr_range_keep(struct wr_range *r)
{
    assert(r->promised > 0);
    r->promised--;
}

/* A piece costs a node and at most an END; an extent, which has at least one piece, two edges. */
bool wr_range_reserve_pieces(struct wr_range *r, uint32_t pieces)
{
    assert(r->n_nodes == 1);
    return grow_nodes(r, 2 * pieces + 1 + NODES_PER_CALL) &&
           wr_table_reserve(&r->edges, 2 * pieces + EDGES_PER_CALL);
}

static uint32_t new_node(struct wr_range *r, struct wr_node value)
{
    uint32_t id = r->spare;
    if (id != 0) {
        r->spare = r->nodes[id].bin_next;
        r->n_spare--;
    } else {
        assert(r->n_nodes < r->capacity);
        id = r->n_nodes++;
    }
    r->nodes[id] = value;
    return id;
}

static void drop_node(struct wr_range *r, uint32_t id)
{
    r->nodes[id] = (struct wr_node){.state = WR_NODE_UNUSED, .bin_next = r->spare};
    r->spare = id;
    r->n_spare++;
}

/* ---- bins -------------------------------------------------------------------------------------------- */
/* HOT, and without branches: whether a piece is alone in its bin is anybody's guess, a wrong one costs more than
 * the stores. Node 0, which is none, takes those that have no other to go to. */

static void file_free(struct wr_range *r, uint32_t id)
{
    struct wr_node *n = &r->nodes[id];
    uint32_t bin = wr_size_bin(n->units), row = bin / WR_BINS_PER_ROW;
    n->state = WR_NODE_FREE;
    n->bin_prev = 0;
    n->bin_next = r->bins[bin];
    r->nodes[n->bin_next].bin_prev = id;
    r->bins[bin] = id;
    r->row_bins[row] |= 1u << bin % WR_BINS_PER_ROW;
    r->rows |= 1u << row;
    r->free_units += n->units;
}

static void unfile_free(struct wr_range *r, uint32_t id)
{
    struct wr_node *n = &r->nodes[id];
    assert(n->state == WR_NODE_FREE);
    uint32_t bin = wr_size_bin(n->units), row = bin / WR_BINS_PER_ROW;
    r->nodes[n->bin_next].bin_prev = n->bin_prev;
    *(n->bin_prev != 0 ? &r->nodes[n->bin_prev].bin_next : &r->bins[bin]) = n->bin_next;
    r->row_bins[row] &= ~((uint32_t)(r->bins[bin] == 0) << bin % WR_BINS_PER_ROW);
    r->rows &= ~((uint32_t)(r->row_bins[row] == 0) << row);
    r->free_units -= n->units;
}

/* The first bin from `bin` on that is not empty; WR_BINS: none. */
static uint32_t next_bin(const struct wr_range *r, uint32_t bin)
{
    if (bin >= WR_BINS) return WR_BINS;
    uint32_t row = bin / WR_BINS_PER_ROW;
    uint32_t in_row = r->row_bins[row] & ~0u << bin % WR_BINS_PER_ROW;
    if (in_row == 0) {
        uint32_t rows = r->rows & (uint32_t)(~UINT64_C(0) << (row + 1));
        if (rows == 0) return WR_BINS;
        row = (uint32_t)__builtin_ctz(rows);
        in_row = r->row_bins[row];
    }
    return row * WR_BINS_PER_ROW + (uint32_t)__builtin_ctz(in_row);
}

/* The tightest of the first few of a bin that hold `units`. */
static uint32_t probe_bin(const struct wr_range *r, uint32_t bin, uint32_t units)
{
    uint32_t best = 0;
    uint32_t id = r->bins[bin];
    for (int i = 0; id != 0 && i < PROBES; i++, id = r->nodes[id].bin_next) {
        uint32_t size = r->nodes[id].units;
        if (size == units) return id;
        if (size > units && (best == 0 || size < r->nodes[best].units)) best = id;
    }
    return best;
}

uint32_t wr_range_find(const struct wr_range *r, uint32_t units)
{
    uint32_t own = wr_size_bin(units);
    uint32_t id = probe_bin(r, own, units);
    if (id != 0) return id;
    uint32_t bin = next_bin(r, own + 1);
    return bin == WR_BINS ? 0 : r->bins[bin];
}

uint32_t wr_range_next_free(const struct wr_range *r, uint32_t id, uint32_t units)
{
    uint32_t bin = wr_size_bin(units);
    if (id != 0) {
        bin = wr_size_bin(r->nodes[id].units) + 1;
        id = r->nodes[id].bin_next;
    }
    for (;;) {
        while (id != 0 && r->nodes[id].units < units)
            id = r->nodes[id].bin_next;
        if (id != 0) return id;
        bin = next_bin(r, bin);
        if (bin == WR_BINS) return 0;
        id = r->bins[bin++];
    }
}

/* Where an aligned block would begin in the piece; false: it does not fit. */
static bool fits_aligned(
    const struct wr_node *n, uint32_t units, uint32_t align, uint32_t phase, uint32_t *at)
{
    uint64_t aligned = (((uint64_t)n->start + phase + align - 1) & ~((uint64_t)align - 1)) - phase;
    if (aligned + units > end_of(n)) return false;
    *at = (uint32_t)aligned;
    return true;
}

/* A piece that was freed by just such a block lies in its own bin; one of units + align - 1 always fits; and
 * of those in between some may, by luck. */
uint32_t wr_range_find_aligned(
    const struct wr_range *r, uint32_t units, uint32_t align, uint32_t phase, uint32_t *at)
{
    assert(align > 0 && (align & (align - 1)) == 0);
    uint32_t id = r->bins[wr_size_bin(units)];
    for (int i = 0; id != 0 && i < PROBES; i++, id = r->nodes[id].bin_next)
        if (fits_aligned(&r->nodes[id], units, align, phase, at)) return id;
    id = wr_range_find(r, units + align - 1);
    if (id == 0) {
        id = wr_range_next_free(r, 0, units);
        while (id != 0 && !fits_aligned(&r->nodes[id], units, align, phase, at))
            id = wr_range_next_free(r, id, units);
    }
    bool fits = id != 0 && fits_aligned(&r->nodes[id], units, align, phase, at);
    assert(fits == (id != 0));
    return fits ? id : 0;
}

uint32_t wr_range_find_at(const struct wr_range *r, uint32_t at)
{
    uint32_t id = wr_range_next_free(r, 0, 1);
    while (id != 0 && (at < r->nodes[id].start || at >= end_of(&r->nodes[id])))
        id = wr_range_next_free(r, id, 1);
    assert(id != 0);
    return id;
}

uint32_t wr_range_free_from(const struct wr_range *r, uint32_t start)
{
    uint32_t id = wr_table_get(&r->edges, start); /* of an extent, or the END of another */
    return id != 0 && r->nodes[id].state == WR_NODE_FREE ? id : 0;
}

uint32_t wr_range_free_to(const struct wr_range *r, uint32_t stop)
{
    uint32_t end = wr_table_get(&r->edges, stop);
    if (end == 0 || r->nodes[end].state != WR_NODE_END) return 0;
    uint32_t id = r->nodes[end].prev;
    return r->nodes[id].state == WR_NODE_FREE ? id : 0;
}

uint32_t wr_range_largest_free(const struct wr_range *r)
{
    if (r->rows == 0) return 0;
    uint32_t row = 31u - (uint32_t)__builtin_clz(r->rows);
    uint32_t bin = row * WR_BINS_PER_ROW + 31u - (uint32_t)__builtin_clz(r->row_bins[row]);
    uint32_t largest = 0;
    for (uint32_t id = r->bins[bin]; id != 0; id = r->nodes[id].bin_next)
        largest = r->nodes[id].units > largest ? r->nodes[id].units : largest;
    return largest;
}

/* ---- pieces ------------------------------------------------------------------------------------------ */

/* Cuts `id` after `units`; the right part, unfiled and TAKEN, is returned. */
static uint32_t split_after(struct wr_range *r, uint32_t id, uint32_t units)
{
    struct wr_node left = r->nodes[id];
    assert(units > 0 && units < left.units);
    uint32_t right = new_node(r, (struct wr_node){.start = left.start + units,
                                     .units = left.units - units,
                                     .prev = id,
                                     .next = left.next,
                                     .state = WR_NODE_TAKEN,
                                     .stamp = WR_FAULT(SPLIT_DROPS_STAMP) ? 0 : left.stamp});
    r->nodes[left.next].prev = right;
    r->nodes[id].next = right;
    r->nodes[id].units = units;
    return right;
}

static uint64_t later_stamp(uint64_t a, uint64_t b)
{
    return WR_FAULT(MERGE_KEEPS_OLD_FENCE) ? wr_min(a, b) : wr_max(a, b);
}

/* INVARIANT: a joint piece carries the fences of all its parts (A04). */
static void join_right(struct wr_range *r, uint32_t id)
{
    uint32_t right = r->nodes[id].next;
    struct wr_node gone = r->nodes[right];
    r->nodes[id].units += gone.units;
    r->nodes[id].stamp = later_stamp(r->nodes[id].stamp, gone.stamp);
    r->nodes[id].next = gone.next;
    r->nodes[gone.next].prev = id;
    drop_node(r, right);
}

void wr_range_take(struct wr_range *r, uint32_t id, uint32_t units)
{
    unfile_free(r, id);
    if (r->nodes[id].units > units) file_free(r, split_after(r, id, units));
    r->nodes[id].state = WR_NODE_TAKEN;
    r->nodes[id].owner_data = 0;
    r->taken_units += units;
}

uint32_t wr_range_take_at(struct wr_range *r, uint32_t id, uint32_t at, uint32_t units)
{
    uint32_t before = at - r->nodes[id].start;
    if (before > 0) {
        unfile_free(r, id);
        uint32_t middle = split_after(r, id, before);
        file_free(r, id);
        file_free(r, middle);
        id = middle;
    }
    wr_range_take(r, id, units);
    return id;
}

void wr_range_give(struct wr_range *r, uint32_t id, uint64_t stamp)
{
    assert(r->nodes[id].state == WR_NODE_TAKEN);
    r->taken_units -= r->nodes[id].units;
    r->nodes[id].stamp = stamp;
    uint32_t next = r->nodes[id].next;
    if (r->nodes[next].state == WR_NODE_FREE) {
        unfile_free(r, next);
        join_right(r, id);
    }
    uint32_t prev = r->nodes[id].prev;
    if (prev != 0 && r->nodes[prev].state == WR_NODE_FREE) {
        unfile_free(r, prev);
        join_right(r, prev);
        id = prev;
    }
    file_free(r, id);
}

/* ---- extents ----------------------------------------------------------------------------------------- */

static uint32_t put_end(struct wr_range *r, uint32_t at, uint32_t last)
{
    uint32_t end = new_node(r, (struct wr_node){.start = at, .prev = last, .state = WR_NODE_END});
    wr_table_put(&r->edges, at, end);
    return end;
}

void wr_range_add(struct wr_range *r, uint32_t start, uint32_t units, uint64_t stamp)
{
    assert(units > 0);
    uint32_t stop = start + units, prev = 0, id;
    uint32_t left_end = wr_table_get(&r->edges, start);
    if (left_end != 0) { /* the left extent's END becomes the new piece */
        assert(r->nodes[left_end].state == WR_NODE_END);
        wr_table_remove(&r->edges, start);
        prev = r->nodes[left_end].prev;
        id = left_end;
    } else {
        id = new_node(r, (struct wr_node){0});
        wr_table_put(&r->edges, start, id);
    }
    r->nodes[id] = (struct wr_node){.start = start, .units = units, .prev = prev, .state = WR_NODE_TAKEN};
    uint32_t right = wr_table_remove(&r->edges, stop);
    if (right != 0) {
        assert(r->nodes[right].state != WR_NODE_END);
        r->nodes[right].prev = id;
    } else {
        right = put_end(r, stop, id);
    }
    r->nodes[id].next = right;
    r->taken_units += units;
    wr_range_give(r, id, stamp);
}

void wr_range_remove(struct wr_range *r, uint32_t id, uint32_t start, uint32_t units)
{
    uint32_t stop = start + units;
    assert(start >= r->nodes[id].start && stop <= end_of(&r->nodes[id]));
    unfile_free(r, id);
    if (start > r->nodes[id].start) {
        uint32_t middle = split_after(r, id, start - r->nodes[id].start);
        file_free(r, id);
        id = middle;
    }
    if (stop < end_of(&r->nodes[id])) file_free(r, split_after(r, id, units));
    struct wr_node gone = r->nodes[id]; /* now exactly [start, stop) */

    if (gone.prev == 0)
        wr_table_remove(&r->edges, start);
    else
        r->nodes[gone.prev].next = put_end(r, start, gone.prev);

    if (r->nodes[gone.next].state == WR_NODE_END) {
        wr_table_remove(&r->edges, stop);
        drop_node(r, gone.next);
    } else {
        r->nodes[gone.next].prev = 0;
        wr_table_put(&r->edges, stop, gone.next);
    }
    drop_node(r, id);
}

/* ---- validator --------------------------------------------------------------------------------------- */

static void require(bool holds, const char *invariant)
{
    if (holds) return;
    fprintf(stderr, "weir: range: broken invariant: %s\n", invariant);
    abort();
}

static void check_bins(const struct wr_range *r)
{
    uint64_t units = 0;
    for (uint32_t bin = 0; bin < WR_BINS; bin++) {
        bool marked = r->row_bins[bin / WR_BINS_PER_ROW] >> bin % WR_BINS_PER_ROW & 1;
        require(marked == (r->bins[bin] != 0), "a bin's bit says whether it is empty");
        uint32_t prev = 0;
        for (uint32_t id = r->bins[bin]; id != 0; prev = id, id = r->nodes[id].bin_next) {
            require(r->nodes[id].state == WR_NODE_FREE, "only free pieces are in bins");
            require(wr_size_bin(r->nodes[id].units) == bin, "a free piece is in the bin of its size");
            require(r->nodes[id].bin_prev == prev, "a bin's list links back");
            units += r->nodes[id].units;
        }
    }
    for (uint32_t row = 0; row < WR_BIN_ROWS; row++)
        require((r->rows >> row & 1) == (r->row_bins[row] != 0), "a row's bit says whether it is empty");
    require(units == r->free_units, "the bins hold all free units");
}

static void check_piece(const struct wr_range *r, uint32_t id, uint32_t *edges)
{
    const struct wr_node *n = &r->nodes[id];
    if (n->state == WR_NODE_END) {
        require(wr_table_get(&r->edges, n->start) == id && n->units == 0, "an END is found by its address");
        require(end_of(&r->nodes[n->prev]) == n->start, "an END follows its extent's last piece");
        ++*edges;
        return;
    }
    require(n->units > 0, "a piece is not empty");
    require(r->nodes[n->next].prev == id && r->nodes[n->next].start == end_of(n), "neighbours touch");
    require(
        n->state != WR_NODE_FREE || r->nodes[n->next].state != WR_NODE_FREE, "free neighbours are joined");
    if (n->prev != 0) return;
    require(wr_table_get(&r->edges, n->start) == id, "a first piece is found by its address");
    ++*edges;
}

void wr_range_check(const struct wr_range *r)
{
    uint64_t free_units = 0, taken_units = 0;
    uint32_t edges = 0, spares = 0;
    for (uint32_t id = 1; id < r->n_nodes; id++) {
        if (r->nodes[id].state == WR_NODE_UNUSED) {
            spares++;
            continue;
        }
        check_piece(r, id, &edges);
        if (r->nodes[id].state == WR_NODE_FREE) free_units += r->nodes[id].units;
        if (r->nodes[id].state == WR_NODE_TAKEN) taken_units += r->nodes[id].units;
    }
    require(spares == r->n_spare, "unused nodes are spares");
    require(edges == r->edges.used, "the edges are those of the extents");
    require(free_units == r->free_units && taken_units == r->taken_units,
        "the unit counts are those of the pieces");
    check_bins(r);
}
