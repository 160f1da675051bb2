/* SPDX-License-Identifier: Apache-2.0
 *
 * Two treaps over the same nodes: search trees that are heaps by random weights, and so balanced whatever the
 * order of calls. One holds all pieces by address, the other what is free by size (then address).
 *
 * Best fit, for first fit would cut the only 8 MiB piece for a request of 3 MiB that has a piece of its own
 * size (Q23).
 *
 * The pieces of a region tile it, and no two neighbours in one region are both free. Regions may touch, and
 * still never join: a block across two registrations is not pinned memory to the driver.
 */
#include "spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

static uint64_t end_of(const struct wr_span *n)
{
    return n->start + n->bytes;
}

static bool comes_before(const struct wr_spans *s, enum wr_span_order order, uint32_t a, uint32_t b)
{
    const struct wr_span *x = &s->nodes[a], *y = &s->nodes[b];
    if (order == WR_SPAN_BY_SIZE && x->bytes != y->bytes) return x->bytes < y->bytes;
    return x->start < y->start;
}

static struct wr_span_links *links_of(struct wr_spans *s, enum wr_span_order order, uint32_t t)
{
    assert(t != 0);
    return &s->nodes[t].links[order];
}

/* Parts tree t: *low gets what comes before `pivot`, *high the rest. */
static void split_tree(
    struct wr_spans *s, enum wr_span_order order, uint32_t t, uint32_t pivot, uint32_t *low, uint32_t *high)
{
    if (t == 0) {
        *low = *high = 0;
    } else if (comes_before(s, order, t, pivot)) {
        *low = t;
        uint32_t *rest = &links_of(s, order, t)->right;
        split_tree(s, order, *rest, pivot, rest, high);
    } else {
        *high = t;
        uint32_t *rest = &links_of(s, order, t)->left;
        split_tree(s, order, *rest, pivot, low, rest);
    }
}

/* All of `low` comes before all of `high`. */
static uint32_t merge_trees(struct wr_spans *s, enum wr_span_order order, uint32_t low, uint32_t high)
{
    if (low == 0 || high == 0) return low + high;
    if (s->nodes[low].weight >= s->nodes[high].weight) {
        uint32_t *rest = &links_of(s, order, low)->right;
        *rest = merge_trees(s, order, *rest, high);
        return low;
    }
    uint32_t *rest = &links_of(s, order, high)->left;
    *rest = merge_trees(s, order, low, *rest);
    return high;
}

static void link_piece(struct wr_spans *s, enum wr_span_order order, uint32_t id)
{
    uint32_t *at = &s->roots[order];
    while (*at != 0 && s->nodes[*at].weight >= s->nodes[id].weight) {
        struct wr_span_links *links = links_of(s, order, *at);
        at = comes_before(s, order, id, *at) ? &links->left : &links->right;
    }
    struct wr_span_links *own = links_of(s, order, id);
    split_tree(s, order, *at, id, &own->left, &own->right);
    *at = id;
}

static void unlink_piece(struct wr_spans *s, enum wr_span_order order, uint32_t id)
{
    uint32_t *at = &s->roots[order];
    while (*at != id) {
        struct wr_span_links *links = links_of(s, order, *at);
        at = comes_before(s, order, id, *at) ? &links->left : &links->right;
    }
    struct wr_span_links *own = links_of(s, order, id);
    *at = merge_trees(s, order, own->left, own->right);
    *own = (struct wr_span_links){0};
}

static uint32_t draw_weight(struct wr_spans *s)
{
    uint64_t x = ++s->draws * 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

static uint32_t insert_piece(struct wr_spans *s, uint64_t start, uint64_t bytes, enum wr_span_state state)
{
    assert(s->spare != 0 && bytes > 0 && start + bytes > start);
    uint32_t id = s->spare;
    s->spare = s->nodes[id].links[0].left;
    s->n_used++;
    s->nodes[id] = (struct wr_span){
        .start = start, .bytes = bytes, .asked_bytes = bytes, .state = state, .weight = draw_weight(s)};
    link_piece(s, WR_SPAN_BY_ADDRESS, id);
    if (state == WR_SPAN_FREE) link_piece(s, WR_SPAN_BY_SIZE, id);
    return id;
}

static void remove_piece(struct wr_spans *s, uint32_t id)
{
    if (s->nodes[id].state == WR_SPAN_FREE) unlink_piece(s, WR_SPAN_BY_SIZE, id);
    unlink_piece(s, WR_SPAN_BY_ADDRESS, id);
    s->nodes[id] = (struct wr_span){.state = WR_SPAN_UNUSED, .links[0].left = s->spare};
    s->spare = id;
    s->n_used--;
}

void wr_spans_fini(struct wr_spans *s)
{
    free(s->nodes);
    *s = (struct wr_spans){0};
}

bool wr_spans_reserve(struct wr_spans *s, uint32_t more)
{
    uint64_t needed = 1 + (uint64_t)s->n_used + more; /* node 0 is none */
    if (needed <= s->capacity) return true;
    uint64_t capacity = wr_max(needed, wr_max(FIRST_CAPACITY, (uint64_t)s->capacity * 2));
    if (capacity > UINT32_MAX) return false;
    struct wr_span *nodes = realloc(s->nodes, capacity * sizeof *nodes);
    if (nodes == NULL) return false;
    memset(nodes + s->capacity, 0, (capacity - s->capacity) * sizeof *nodes);
    for (uint32_t id = (uint32_t)capacity - 1; id >= wr_max(s->capacity, 1); id--) {
        nodes[id].links[0].left = s->spare;
        s->spare = id;
    }
    s->nodes = nodes;
    s->capacity = (uint32_t)capacity;
    return true;
}

uint32_t wr_spans_find(const struct wr_spans *s, uint64_t address)
{
    uint32_t t = s->roots[WR_SPAN_BY_ADDRESS];
    while (t != 0) {
        const struct wr_span *n = &s->nodes[t];
        if (address < n->start) {
            t = n->links[WR_SPAN_BY_ADDRESS].left;
        } else if (address - n->start >= n->bytes) {
            t = n->links[WR_SPAN_BY_ADDRESS].right;
        } else {
            break;
        }
    }
    return t;
}

uint32_t wr_spans_add_region(struct wr_spans *s, uint64_t start, uint64_t bytes)
{
    uint32_t id = insert_piece(s, start, bytes, WR_SPAN_FREE);
    s->nodes[id].first = true;
    return id;
}

uint32_t wr_spans_add_whole(struct wr_spans *s, uint64_t start, uint64_t bytes)
{
    uint32_t id = insert_piece(s, start, bytes, WR_SPAN_LIVE);
    s->nodes[id].whole = true;
    return id;
}

static uint32_t best_fit(const struct wr_spans *s, uint64_t bytes)
{
    uint32_t best = 0;
    for (uint32_t t = s->roots[WR_SPAN_BY_SIZE]; t != 0;) {
        bool fits = s->nodes[t].bytes >= bytes;
        struct wr_span_links links = s->nodes[t].links[WR_SPAN_BY_SIZE];
        if (fits) best = t;
        t = fits ? links.left : links.right;
    }
    return best;
}

uint32_t wr_spans_take(struct wr_spans *s, uint64_t bytes)
{
    uint32_t id = best_fit(s, bytes);
    if (id == 0) return 0;
    struct wr_span *n = &s->nodes[id];
    uint64_t rest = n->bytes - bytes;
    unlink_piece(s, WR_SPAN_BY_SIZE, id);
    n->state = WR_SPAN_LIVE;
    n->bytes = n->asked_bytes = bytes;
    if (rest > 0) insert_piece(s, end_of(n), rest, WR_SPAN_FREE);
    return id;
}

/* Are these two neighbours, free, and of one region? */
static bool can_join(const struct wr_spans *s, uint32_t low, uint32_t high)
{
    if (low == 0 || high == 0) return false;
    const struct wr_span *a = &s->nodes[low], *b = &s->nodes[high];
    return a->state == WR_SPAN_FREE && b->state == WR_SPAN_FREE && end_of(a) == b->start && !b->first;
}

/* The higher of the two goes. A piece's place by address is the same after it; its place by size is not. */
static void join(struct wr_spans *s, uint32_t low, uint32_t high)
{
    uint64_t bytes = s->nodes[high].bytes;
    remove_piece(s, high);
    unlink_piece(s, WR_SPAN_BY_SIZE, low);
    s->nodes[low].bytes += bytes;
    link_piece(s, WR_SPAN_BY_SIZE, low);
}

void wr_spans_give(struct wr_spans *s, uint32_t id)
{
    struct wr_span *n = &s->nodes[id];
    assert(n->state == WR_SPAN_LIVE || n->state == WR_SPAN_PENDING);
    if (n->whole) {
        remove_piece(s, id);
        return;
    }
    n->state = WR_SPAN_FREE;
    link_piece(s, WR_SPAN_BY_SIZE, id);
    uint32_t next = wr_spans_find(s, end_of(n)), previous = wr_spans_find(s, n->start - 1);
    if (can_join(s, id, next)) join(s, id, next);
    if (can_join(s, previous, id)) join(s, previous, id);
}

static void require(bool holds, const char *text)
{
    if (holds) return;
    fprintf(stderr, "weir: spans: broken invariant: %s\n", text);
    abort();
}

static void check_piece(const struct wr_spans *s, uint32_t t, uint32_t before)
{
    const struct wr_span *n = &s->nodes[t];
    require(n->state != WR_SPAN_UNUSED && n->bytes >= n->asked_bytes && n->bytes > 0,
        "a piece in the tree is used");
    require(!n->whole || n->state != WR_SPAN_FREE, "a whole piece is never free");
    if (before == 0) return;
    require(end_of(&s->nodes[before]) <= n->start, "pieces do not overlap");
    require(!can_join(s, before, t), "free neighbours of a region are joined");
}

/* Walks a subtree in its order; *before is the piece visited last. Returns the pieces seen. */
static uint32_t check_tree(const struct wr_spans *s, enum wr_span_order order, uint32_t t, uint32_t *before)
{
    if (t == 0) return 0;
    const struct wr_span *n = &s->nodes[t];
    struct wr_span_links links = n->links[order];
    uint32_t seen = 1 + check_tree(s, order, links.left, before);
    require(*before == 0 || comes_before(s, order, *before, t), "a tree is in order");
    require(n->weight >= s->nodes[links.left].weight && n->weight >= s->nodes[links.right].weight,
        "weights fall towards the leaves");
    if (order == WR_SPAN_BY_ADDRESS) check_piece(s, t, *before);
    if (order == WR_SPAN_BY_SIZE) require(n->state == WR_SPAN_FREE, "what is in the tree by size is free");
    *before = t;
    return seen + check_tree(s, order, links.right, before);
}

void wr_spans_check(const struct wr_spans *s)
{
    uint32_t n_seen[WR_SPAN_ORDERS], n_free = 0, n_spare = 0;
    for (int order = 0; order < WR_SPAN_ORDERS; order++) {
        uint32_t before = 0;
        n_seen[order] = check_tree(s, (enum wr_span_order)order, s->roots[order], &before);
    }
    for (uint32_t id = 1; id < s->capacity; id++) {
        n_free += s->nodes[id].state == WR_SPAN_FREE;
        n_spare += s->nodes[id].state == WR_SPAN_UNUSED;
    }
    require(n_seen[WR_SPAN_BY_ADDRESS] == s->n_used, "every used piece is in the tree by address");
    require(n_seen[WR_SPAN_BY_SIZE] == n_free, "every free piece is in the tree by size");
    for (uint32_t id = s->spare; id != 0; id = s->nodes[id].links[0].left) {
        require(s->nodes[id].state == WR_SPAN_UNUSED && n_spare > 0, "a spare node is unused");
        n_spare--;
    }
    require(n_spare == 0, "every unused node is a spare");
}
