/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"
#include "range.h"

static struct wr_range r;

static int set_up(void **state)
{
    (void)state;
    wr_range_init(&r);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    wr_range_check(&r);
    wr_range_fini(&r);
    return 0;
}

static void add(uint32_t start, uint32_t units, uint64_t stamp)
{
    assert_true(wr_range_reserve(&r));
    wr_range_add(&r, start, units, stamp);
    wr_range_check(&r);
}

static uint32_t take(uint32_t units)
{
    uint32_t id = wr_range_find(&r, units);
    assert_true(wr_range_reserve(&r));
    if (id != 0) wr_range_take(&r, id, units);
    return id;
}

static void remove_at(uint32_t start, uint32_t units)
{
    assert_true(wr_range_reserve(&r));
    wr_range_remove(&r, wr_range_find_at(&r, start), start, units);
    wr_range_check(&r);
}

static void test_an_empty_range_serves_nothing(void **state)
{
    (void)state;
    assert_int_equal(wr_range_find(&r, 1), 0);
    assert_int_equal(wr_range_largest_free(&r), 0);
    assert_int_equal(wr_range_next_free(&r, 0, 1), 0);
}

static void test_taken_pieces_do_not_overlap_and_join_when_given(void **state)
{
    (void)state;
    add(100, 1000, 1);
    uint32_t a = take(10), b = take(20), c = take(30);
    assert_int_equal(r.nodes[a].start, 100);
    assert_int_equal(r.nodes[b].start, 110);
    assert_int_equal(r.nodes[c].start, 130);
    wr_range_give(&r, a, 1);
    wr_range_give(&r, c, 1);
    wr_range_check(&r);
    wr_range_give(&r, b, 1);
    assert_int_equal(wr_range_largest_free(&r), 1000);
}

static void test_A04_a_joined_piece_carries_the_latest_fence_of_its_parts(void **state)
{
    (void)state;
    add(0, 300, 1);
    uint32_t a = take(100), b = take(100), c = take(100);
    wr_range_give(&r, a, 9);
    wr_range_give(&r, c, 4);
    wr_range_give(&r, b, 2);
    assert_int_equal(r.nodes[wr_range_find(&r, 300)].stamp, 9);
}

static void test_a_split_leaves_the_fence_on_both_parts(void **state)
{
    (void)state;
    add(0, 300, 7);
    take(100);
    assert_int_equal(r.nodes[wr_range_find(&r, 200)].stamp, 7);
}

static void test_a_freed_size_that_is_no_bin_boundary_serves_the_same_size_again(void **state)
{
    (void)state;
    const uint32_t odd = 4096 + 129; /* within the first bin of its row */
    add(0, odd, 1);
    assert_int_equal(wr_size_bin(odd), wr_size_bin(4096 + 128));
    assert_int_not_equal(take(odd), 0);
}

static void test_the_tightest_of_the_own_bin_is_preferred(void **state)
{
    (void)state;
    add(0, 4096 + 100, 1);
    add(10000, 4096 + 40, 1);
    add(20000, 4096 + 120, 1);
    assert_int_equal(r.nodes[wr_range_find(&r, 4096 + 39)].start, 10000);
}

static void test_an_extent_added_beside_another_joins_it(void **state)
{
    (void)state;
    add(1000, 100, 3);
    add(1200, 100, 4);
    assert_int_equal(wr_range_largest_free(&r), 100);
    add(1100, 100, 5);
    assert_int_equal(wr_range_largest_free(&r), 300);
    assert_int_equal(r.nodes[wr_range_find(&r, 300)].stamp, 5);
}

static void test_removed_addresses_split_an_extent_and_can_come_back(void **state)
{
    (void)state;
    add(0, 1000, 1);
    remove_at(400, 200);
    assert_int_equal(wr_range_largest_free(&r), 400);
    assert_int_equal(r.free_units, 800);
    remove_at(0, 100);
    remove_at(900, 100);
    assert_int_equal(wr_range_largest_free(&r), 300);
    add(400, 200, 2);
    assert_int_equal(wr_range_largest_free(&r), 800);
    remove_at(100, 800);
    assert_int_equal(r.free_units, 0);
    assert_int_equal(r.edges.used, 0);
}

static void test_the_walk_meets_every_large_free_piece_once(void **state)
{
    (void)state;
    uint32_t expected = 0, met = 0;
    for (uint32_t i = 1; i <= 200; i++) {
        add(i * 10000, i * 13, 1);
        expected += i * 13 >= 1000;
    }
    for (uint32_t id = wr_range_next_free(&r, 0, 1000); id != 0; id = wr_range_next_free(&r, id, 1000)) {
        assert_true(r.nodes[id].units >= 1000);
        met++;
    }
    assert_int_equal(met, expected);
}

/* A map of units: 0 outside, 1 free, 2 taken. */
enum { SPACE = 4000, LIVE = 200 };
static unsigned char map[SPACE];

static void paint(uint32_t start, uint32_t units, unsigned char from, unsigned char to)
{
    for (uint32_t i = start; i < start + units; i++) {
        assert_int_equal(map[i], from);
        map[i] = to;
    }
}

static uint32_t longest_free_run(void)
{
    uint32_t longest = 0, run = 0;
    for (uint32_t i = 0; i < SPACE; i++) {
        run = map[i] == 1 ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static void test_a_long_random_life_matches_a_map_of_units(void **state)
{
    (void)state;
    static uint32_t live[LIVE];
    uint64_t random = 7;
    memset(map, 0, sizeof map);
    for (int step = 0; step < 60000; step++) {
        uint32_t slot = (uint32_t)(next_random(&random) % LIVE),
                 at = (uint32_t)(next_random(&random) % (SPACE - 100));
        uint32_t units = 1 + (uint32_t)(next_random(&random) % 100);
        switch (next_random(&random) % 4) {
        case 0: /* add, where all of it is outside */
            if (memchr(map + at, 1, units) == NULL && memchr(map + at, 2, units) == NULL) {
                add(at, units, 1);
                paint(at, units, 0, 1);
            }
            break;
        case 1: /* remove part of a free piece */
            if (map[at] == 1) {
                const struct wr_node *n = &r.nodes[wr_range_find_at(&r, at)];
                uint32_t room = n->start + n->units - at, some = units < room ? units : room;
                remove_at(at, some);
                paint(at, some, 1, 0);
            }
            break;
        default:
            if (live[slot] != 0) {
                paint(r.nodes[live[slot]].start, r.nodes[live[slot]].units, 2, 1);
                wr_range_give(&r, live[slot], 1);
                live[slot] = 0;
            } else if ((live[slot] = take(units)) != 0) {
                paint(r.nodes[live[slot]].start, units, 1, 2);
            } else {
                /* A miss is honest, but for a look at the first few of the own bin only. */
                assert_true(longest_free_run() <= units + units / 32 + 1);
            }
        }
        if (step % 50 == 0) {
            wr_range_check(&r);
            assert_int_equal(wr_range_largest_free(&r), longest_free_run());
        }
    }
}

/* A piece that an extent begins or ends with is found by where that is, and none anywhere else. */
static void test_free_pieces_at_the_ends_of_extents_are_found_by_their_place(void **state)
{
    (void)state;
    uint64_t random = 11;
    for (int round = 0; round < 200; round++) {
        memset(map, 0, sizeof map);
        wr_range_init(&r);
        for (int i = 0; i < 20; i++) {
            uint32_t at = 1 + (uint32_t)(next_random(&random) % 100);
            if (map[at] != 0) continue;
            add(at, 1, 1);
            paint(at, 1, 0, 1);
        }
        for (uint32_t id; next_random(&random) % 8 != 0 && (id = take(1)) != 0;)
            paint(r.nodes[id].start, 1, 1, 2);
        for (uint32_t at = 1; at < 110; at++) {
            uint32_t from = wr_range_free_from(&r, at), to = wr_range_free_to(&r, at);
            assert_int_equal(from != 0, map[at] == 1 && map[at - 1] == 0);
            assert_int_equal(to != 0, map[at - 1] == 1 && map[at] == 0);
            if (from != 0) assert_int_equal(r.nodes[from].start, at);
            if (to != 0) assert_int_equal(r.nodes[to].start + r.nodes[to].units, at);
        }
        if (round < 199) wr_range_fini(&r);
    }
}

static uint32_t take_aligned(uint32_t units, uint32_t align, uint32_t phase)
{
    uint32_t at, id = wr_range_find_aligned(&r, units, align, phase, &at);
    assert_true(wr_range_reserve(&r));
    if (id == 0) return 0;
    id = wr_range_take_at(&r, id, at, units);
    assert_int_equal(r.nodes[id].start, at);
    assert_int_equal((at + phase) % align, 0);
    wr_range_check(&r);
    return id;
}

static void test_an_aligned_piece_leaves_what_lies_before_and_after_free(void **state)
{
    (void)state;
    add(1, 1000, 3);
    uint32_t id = take_aligned(10, 64, 0);
    assert_int_equal(r.nodes[id].start, 64);
    assert_int_equal(r.free_units, 990);
    assert_int_equal(r.nodes[wr_range_find(&r, 63)].start, 1);
    assert_int_equal(r.nodes[r.nodes[id].next].stamp, 3);
    wr_range_give(&r, id, 3);
    assert_int_equal(wr_range_largest_free(&r), 1000);
}

static void test_an_aligned_piece_is_found_where_only_luck_makes_it_fit(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) /* off by one each, and all larger than what is asked */
        add(i * 1024 + 1, 512 + 255, 1);
    add(50 * 1024, 513, 1); /* smaller than they are, on the spot */
    uint32_t id = take_aligned(512, 512, 0);
    assert_int_equal(r.nodes[id].start, 50 * 1024);
    assert_int_equal(take_aligned(512, 512, 0), 0);
    id = take_aligned(512, 512, 511); /* where starts count from elsewhere, each is */
    assert_int_equal(r.nodes[id].start % 512, 1);
}

static void test_a_random_life_of_aligned_pieces_matches_a_map_of_units(void **state)
{
    (void)state;
    static uint32_t live[LIVE];
    uint64_t random = 11;
    memset(map, 0, sizeof map);
    memset(live, 0, sizeof live);
    add(3, SPACE - 3, 1);
    paint(3, SPACE - 3, 0, 1);
    for (int step = 0; step < 20000; step++) {
        uint32_t slot = (uint32_t)(next_random(&random) % LIVE);
        uint32_t units = 1 + (uint32_t)(next_random(&random) % 60);
        uint32_t align = 1u << next_random(&random) % 8, phase = (uint32_t)(next_random(&random) % 4096);
        if (live[slot] != 0) {
            paint(r.nodes[live[slot]].start, r.nodes[live[slot]].units, 2, 1);
            wr_range_give(&r, live[slot], 1);
            live[slot] = 0;
        } else if ((live[slot] = take_aligned(units, align, phase)) != 0) {
            paint(r.nodes[live[slot]].start, units, 1, 2);
        } else {
            assert_true(longest_free_run() < units + align - 1); /* a miss is always honest */
        }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_an_empty_range_serves_nothing),
        TEST(test_taken_pieces_do_not_overlap_and_join_when_given),
        TEST(test_A04_a_joined_piece_carries_the_latest_fence_of_its_parts),
        TEST(test_a_split_leaves_the_fence_on_both_parts),
        TEST(test_a_freed_size_that_is_no_bin_boundary_serves_the_same_size_again),
        TEST(test_the_tightest_of_the_own_bin_is_preferred),
        TEST(test_an_extent_added_beside_another_joins_it),
        TEST(test_removed_addresses_split_an_extent_and_can_come_back),
        TEST(test_the_walk_meets_every_large_free_piece_once),
        TEST(test_a_long_random_life_matches_a_map_of_units),
        TEST(test_free_pieces_at_the_ends_of_extents_are_found_by_their_place),
        TEST(test_an_aligned_piece_leaves_what_lies_before_and_after_free),
        TEST(test_an_aligned_piece_is_found_where_only_luck_makes_it_fit),
        TEST(test_a_random_life_of_aligned_pieces_matches_a_map_of_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
