/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A snapshot in two steps a stream: its pieces are noted down under its lock, into memory reserved
 * before, and printed after. So nothing is formatted, and no memory asked for, while a lock is held; and a
 * stream is kept from its own work for as long as a walk takes, no longer.
 */
#include "pool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- text -------------------------------------------------------------------------------------------- */

struct text {
    char *chars;
    size_t n, capacity;
    bool failed; /* the host has no memory: what follows is dropped */
};

static void print(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print(struct text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (t->n + (size_t)n >= t->capacity) {
        size_t capacity = (t->n + (size_t)n) * 2 + 4096;
        char *chars = t->failed ? NULL : realloc(t->chars, capacity);
        t->failed = chars == NULL;
        if (chars != NULL) {
            t->chars = chars;
            t->capacity = capacity;
        }
    }
    if (!t->failed) t->n += (size_t)vsnprintf(t->chars + t->n, t->capacity - t->n, format, again);
    va_end(again);
}

/* ---- notes ------------------------------------------------------------------------------------------- */

struct piece {
    uint32_t start, units;
    enum wr_kind kind;
    enum wr_piece_state state;
    uint32_t first_use; /* index into uses; 0: none */
};

struct use {
    uint64_t stream_id, point;
    bool passed;
    uint32_t next;
};

struct notes {
    struct piece *pieces;
    struct use *uses;
    uint32_t n_pieces, n_uses, pieces_capacity, uses_capacity;
    struct wr_heap_counts counts;
    uint64_t id, ticks;
    bool retired;
};

/* LOCK: h->lock. */
static bool fits(const struct notes *n, const struct wr_heap *h)
{
    return h->range[WR_SMALL].n_nodes + h->range[WR_LARGE].n_nodes <= n->pieces_capacity &&
           h->n_uses <= n->uses_capacity;
}

/* LOCK: h->lock. */
static void note_heap(struct notes *n, const struct wr_heap *h)
{
    n->counts = h->counts;
    n->id = h->id;
    n->ticks = atomic_load_explicit(&h->fence.n_ticks, memory_order_relaxed);
    n->retired = h->retired;
    n->n_pieces = 0;
    n->n_uses = h->n_uses;
    for (enum wr_kind kind = 0; kind < WR_KINDS; kind++)
        for (uint32_t id = 1; id < h->range[kind].n_nodes; id++) {
            const struct wr_node *node = &h->range[kind].nodes[id];
            if (node->state != WR_NODE_FREE && node->state != WR_NODE_TAKEN) continue;
            struct piece *piece = &n->pieces[n->n_pieces++];
            *piece = (struct piece){.start = node->start,
                .units = node->units,
                .kind = kind,
                .state = wr_stream_state(h, kind, id),
                .first_use = wr_stream_first_use(h, kind, id)};
            for (uint32_t u = piece->first_use; u != 0; u = h->uses[u].next)
                n->uses[u] = (struct use){.stream_id = wr_fence_id(h->uses[u].fence),
                    .point = h->uses[u].stamp,
                    .passed = wr_fence_passed(h->uses[u].fence, h->uses[u].stamp),
                    .next = h->uses[u].next};
        }
}

static bool reserve(struct notes *n, uint32_t pieces, uint32_t uses)
{
    struct piece *more_pieces = realloc(n->pieces, pieces * sizeof *more_pieces);
    if (more_pieces != NULL) n->pieces = more_pieces;
    struct use *more_uses = realloc(n->uses, uses * sizeof *more_uses);
    if (more_uses != NULL) n->uses = more_uses;
    if (more_pieces == NULL || more_uses == NULL) return false;
    n->pieces_capacity = pieces;
    n->uses_capacity = uses;
    return true;
}

/* False: no host memory. */
static bool take_notes(struct notes *n, struct wr_heap *h)
{
    for (;;) {
        wr_latch_take(&h->lock);
        bool enough = fits(n, h);
        uint32_t pieces = h->range[WR_SMALL].n_nodes + h->range[WR_LARGE].n_nodes, uses = h->n_uses;
        if (enough) note_heap(n, h);
        wr_latch_give(&h->lock);
        if (enough) return true;
        if (!reserve(n, pieces + pieces / 8 + 64, uses + uses / 8 + 64))
            return false; /* it may grow meanwhile */
    }
}

static int compare_pieces(const void *a, const void *b)
{
    uint32_t x = ((const struct piece *)a)->start, y = ((const struct piece *)b)->start;
    return (x > y) - (x < y);
}

/* ---- printing ---------------------------------------------------------------------------------------- */

static void print_piece(struct text *t, const weir_pool *p, const struct notes *n, const struct piece *piece)
{
    static const char *const states[] = {"free", "cached", "live", "pending"};
    print(t, "{\"address\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"state\": \"%s\", \"kind\": \"%s\"",
        wr_pages_address(&p->pages, piece->start), wr_size_bytes(piece->units), states[piece->state],
        piece->kind == WR_SMALL ? "small" : "large");
    if (piece->first_use != 0) print(t, ", \"uses\": [");
    for (uint32_t u = piece->first_use; u != 0; u = n->uses[u].next)
        print(t, "{\"stream\": %" PRIu64 ", \"point\": %" PRIu64 ", \"passed\": %s}%s", n->uses[u].stream_id,
            n->uses[u].point, n->uses[u].passed ? "true" : "false", n->uses[u].next != 0 ? ", " : "]");
    print(t, "}");
}

static void print_stream(struct text *t, const weir_pool *p, struct notes *n)
{
    const struct wr_heap_counts *c = &n->counts;
    if (n->n_pieces > 0) qsort(n->pieces, n->n_pieces, sizeof *n->pieces, compare_pieces);
    print(t,
        "{\"id\": %" PRIu64 ", \"retired\": %s, \"live_bytes\": %" PRIu64 ", \"pending_bytes\": %" PRIu64
        ", \"live_blocks\": %" PRIu64 ", \"pending_blocks\": %" PRIu64 ", \"allocs\": %" PRIu64
        ", \"frees\": %" PRIu64 ", \"ticks\": %" PRIu64 ",\n   \"blocks\": [",
        n->id, n->retired ? "true" : "false", c->live_units << WR_UNIT_LOG2, c->pending_units << WR_UNIT_LOG2,
        c->allocs - c->frees, c->pending_blocks, c->allocs, c->frees, n->ticks);
    for (uint32_t i = 0; i < n->n_pieces; i++) {
        print(t, i == 0 ? "\n    " : ",\n    ");
        print_piece(t, p, n, &n->pieces[i]);
    }
    print(t, "]}");
}

static void print_streams(struct text *t, weir_pool *p)
{
    struct notes n = {0};
    const char *between = "\n  ";
    for (uint32_t i = 0; i < atomic_load(&p->n_heaps) && !t->failed; i++) {
        struct wr_heap *h = wr_heaps_pin(p, i);
        if (h == NULL) continue;
        t->failed = !take_notes(&n, h);
        wr_heaps_unpin(p, h);
        if (t->failed) break;
        print(t, "%s", between);
        print_stream(t, p, &n);
        between = ",\n  ";
    }
    free(n.pieces);
    free(n.uses);
}

#define COUNTERS(X)                                                                                          \
    X(live_bytes)                                                                                            \
    X(pending_bytes)                                                                                         \
    X(cached_bytes)                                                                                          \
    X(idle_bytes)                                                                                            \
    X(reserved_bytes)                                                                                        \
    X(peak_live_bytes)                                                                                       \
    X(peak_reserved_bytes)                                                                                   \
    X(limit_bytes)                                                                                           \
    X(live_blocks)                                                                                           \
    X(pending_blocks)                                                                                        \
    X(streams)                                                                                               \
    X(allocs)                                                                                                \
    X(frees)                                                                                                 \
    X(touches)                                                                                               \
    X(hits)                                                                                                  \
    X(slow_allocs)                                                                                           \
    X(grows)                                                                                                 \
    X(trims)                                                                                                 \
    X(ticks)                                                                                                 \
    X(driver_calls)                                                                                          \
    X(host_waits)                                                                                            \
    X(stream_waits)                                                                                          \
    X(pinned_bytes)                                                                                          \
    X(pinned_live_bytes)                                                                                     \
    X(pinned_pending_bytes)

static void print_counters(struct text *t, weir_pool *p)
{
    weir_stats s = {.struct_size = sizeof s};
    const char *between = "";
    wr_stats_fill(p, &s);
#define PRINT_COUNTER(name)                                                                                  \
    print(t, "%s\"" #name "\": %" PRIu64, between, s.name);                                                  \
    between = ", ";
    COUNTERS(PRINT_COUNTER)
#undef PRINT_COUNTER
}

/* A copy of the segments. NULL: no host memory. */
static struct wr_segment *copy_segments(struct wr_pages *g, uint32_t *n)
{
    struct wr_segment *copy = NULL;
    uint32_t capacity = 0;
    for (;;) {
        wr_lock_take(&g->lock);
        bool enough = copy != NULL && g->n_segments <= capacity;
        *n = g->n_segments;
        for (uint32_t i = 0; enough && i < *n; i++)
            copy[i] = g->segments[i];
        wr_lock_give(&g->lock);
        if (enough) return copy;
        capacity = *n + *n / 8 + 64;
        free(copy);
        copy = malloc(capacity * sizeof *copy);
        if (copy == NULL) return NULL;
    }
}

static void print_segments(struct text *t, weir_pool *p)
{
    uint32_t n;
    struct wr_segment *segments = copy_segments(&p->pages, &n);
    const char *between = "\n  ";
    t->failed |= segments == NULL;
    for (uint32_t i = 0; i < n && !t->failed; i++) {
        const struct wr_segment *g = &segments[i];
        if (g->n_pages == 0) continue;
        print(t,
            "%s{\"address\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"granted_bytes\": %" PRIu64
            ", \"usable\": %s}",
            between, p->pages.base + (uint64_t)g->first_page * WR_PAGE_BYTES,
            (uint64_t)g->n_pages * WR_PAGE_BYTES, (uint64_t)g->granted_pages * WR_PAGE_BYTES,
            g->usable && !g->busy ? "true" : "false");
        between = ",\n  ";
    }
    free(segments);
}

weir_status wr_snapshot_take(weir_pool *p, char **out)
{
    struct text t = {0};
    print(&t, "{\"weir\": \"%d.%d.%d\", \"device\": \"%s\",\n \"counters\": {", WEIR_VERSION_MAJOR,
        WEIR_VERSION_MINOR, WEIR_VERSION_PATCH, p->pages.device->name);
    print_counters(&t, p);
    print(&t, "},\n \"segments\": [");
    print_segments(&t, p);
    print(&t, "],\n \"streams\": [");
    print_streams(&t, p);
    print(&t, "]}\n");
    if (!t.failed) {
        *out = t.chars;
        return WEIR_OK;
    }
    free(t.chars);
    return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a snapshot");
}
