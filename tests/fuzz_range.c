/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the range against a map with a cell for each unit: outside, free or taken, and the stamp that the
 * cell's free piece must carry. The map knows that free neighbours are one piece with the latest stamp of its
 * parts, and nothing of bins, nodes and extents.
 */
#include "fuzz.h"
#include "range.h"

enum { SPACE = 2048, MOST_UNITS = 300, LIVE = 64, CHECK_EVERY = 8 };
enum cell_state { OUTSIDE, FREE, TAKEN };

static struct cell {
    uint64_t stamp; /* of a free cell */
    unsigned char state;
} map[SPACE];

static uint32_t live[LIVE]; /* ids of taken pieces, 0: none */

static bool all_are(uint32_t start, uint32_t units, enum cell_state s)
{
    for (uint32_t i = start; i < start + units; i++)
        if (map[i].state != s) return false;
    return true;
}

static void paint(uint32_t start, uint32_t units, enum cell_state from, enum cell_state to)
{
    EXPECT(units <= SPACE && start <= SPACE - units && all_are(start, units, from));
    for (uint32_t i = start; i < start + units; i++)
        map[i].state = (unsigned char)to;
}

static uint32_t run_start(uint32_t at)
{
    while (at > 0 && map[at - 1].state == FREE)
        at--;
    return at;
}

static uint32_t run_units(uint32_t start)
{
    uint32_t stop = start;
    while (stop < SPACE && map[stop].state == FREE)
        stop++;
    return stop - start;
}

/* The cells have become free: their whole run is one piece now. */
static void paint_free(uint32_t start, uint32_t units, enum cell_state from, uint64_t stamp)
{
    paint(start, units, from, FREE);
    for (uint32_t i = start; i < start + units; i++)
        map[i].stamp = stamp;
    uint32_t first = run_start(start), n = run_units(first);
    for (uint32_t i = first; i < first + n; i++)
        stamp = wr_max(stamp, map[i].stamp);
    for (uint32_t i = first; i < first + n; i++)
        map[i].stamp = stamp;
}

static uint32_t longest_run(void)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < SPACE; i++)
        if (map[i].state == FREE && (i == 0 || map[i - 1].state != FREE))
            longest = run_units(i) > longest ? run_units(i) : longest;
    return longest;
}

/* ---- calls ------------------------------------------------------------------------------------------- */

static void add(struct wr_range *r, struct fuzz_input *in)
{
    uint32_t start = fuzz_number(in, SPACE), units = 1 + fuzz_number(in, MOST_UNITS);
    uint64_t stamp = fuzz_number(in, 16);
    if (units > SPACE - start || !all_are(start, units, OUTSIDE)) return;
    EXPECT(wr_range_reserve(r));
    wr_range_add(r, start, units, stamp);
    paint_free(start, units, OUTSIDE, stamp);
}

static void remove_some(struct wr_range *r, struct fuzz_input *in)
{
    uint32_t at = fuzz_number(in, SPACE), units = 1 + fuzz_number(in, MOST_UNITS);
    if (map[at].state != FREE) return;
    uint32_t id = wr_range_find_at(r, at), room = run_units(at);
    if (units > room) units = room;
    EXPECT(r->nodes[id].start == run_start(at));
    EXPECT(wr_range_reserve(r));
    wr_range_remove(r, id, at, units);
    paint(at, units, FREE, OUTSIDE);
}

/* A find may miss what is in the request's own bin alone: it looks at the first few there. */
static void take(struct wr_range *r, struct fuzz_input *in)
{
    uint32_t slot = fuzz_number(in, LIVE), units = 1 + fuzz_number(in, MOST_UNITS);
    if (live[slot] != 0) return;
    uint32_t id = wr_range_find(r, units);
    if (id == 0) {
        uint32_t longest = longest_run();
        EXPECT(longest < units || wr_size_bin(longest) == wr_size_bin(units));
        return;
    }
    EXPECT(r->nodes[id].state == WR_NODE_FREE && r->nodes[id].units >= units);
    EXPECT(wr_range_reserve(r));
    wr_range_take(r, id, units);
    EXPECT(r->nodes[id].units == units);
    EXPECT(r->nodes[id].stamp == map[r->nodes[id].start].stamp); /* the taker learns what it is to wait for */
    paint(r->nodes[id].start, units, FREE, TAKEN);
    live[slot] = id;
}

static void give(struct wr_range *r, struct fuzz_input *in)
{
    uint32_t slot = fuzz_number(in, LIVE), id = live[slot];
    uint64_t stamp = fuzz_number(in, 16);
    if (id == 0) return;
    uint32_t start = r->nodes[id].start, units = r->nodes[id].units;
    wr_range_give(r, id, stamp);
    paint_free(start, units, TAKEN, stamp);
    live[slot] = 0;
}

/* ---- comparison -------------------------------------------------------------------------------------- */

/* The walk meets each run of at least `units` once, and nothing else. */
static void compare_walk(const struct wr_range *r, uint32_t units)
{
    uint32_t runs = 0;
    for (uint32_t i = 0; i < SPACE; i++)
        runs += map[i].state == FREE && (i == 0 || map[i - 1].state != FREE) && run_units(i) >= units;
    for (uint32_t id = wr_range_next_free(r, 0, units); id != 0; id = wr_range_next_free(r, id, units)) {
        const struct wr_node *n = &r->nodes[id];
        EXPECT(
            n->state == WR_NODE_FREE && run_start(n->start) == n->start && run_units(n->start) == n->units);
        EXPECT(n->units >= units && n->stamp == map[n->start].stamp);
        EXPECT(runs-- > 0);
    }
    EXPECT(runs == 0);
}

static void compare(const struct wr_range *r, uint32_t units)
{
    uint32_t n_free = 0, n_taken = 0;
    for (uint32_t i = 0; i < SPACE; i++) {
        n_free += map[i].state == FREE;
        n_taken += map[i].state == TAKEN;
    }
    EXPECT(r->free_units == n_free && r->taken_units == n_taken);
    EXPECT(wr_range_largest_free(r) == longest_run());
    compare_walk(r, units);
    wr_range_check(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const calls[])(struct wr_range *, struct fuzz_input *) = {add, remove_some, take, give};
    struct fuzz_input in = {data, data + bytes};
    struct wr_range r;
    wr_range_init(&r);
    for (uint32_t i = 0; i < SPACE; i++)
        map[i] = (struct cell){0};
    for (uint32_t i = 0; i < LIVE; i++)
        live[i] = 0;
    for (uint32_t n = 1; fuzz_more(&in); n++) {
        calls[fuzz_number(&in, WR_ARRAY_LEN(calls))](&r, &in);
        if (n % CHECK_EVERY == 0) compare(&r, 1 + n % MOST_UNITS);
    }
    compare(&r, 1);
    wr_range_fini(&r);
    return 0;
}
