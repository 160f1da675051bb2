/* SPDX-License-Identifier: Apache-2.0
 *
 * Spans, beside a naive model: one byte per page says whose it is.
 */
#include "spans.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#define PAGE ((uint64_t)4096)
#define BASE (1000 * PAGE)

static void test_an_empty_set_finds_nothing(void **state)
{
    (void)state;
    struct wr_spans s = {0};
    assert_true(wr_spans_reserve(&s, 1));
    assert_int_equal(wr_spans_find(&s, BASE), 0);
    assert_int_equal(wr_spans_take(&s, 1), 0);
    wr_spans_check(&s);
    wr_spans_fini(&s);
}

static void test_a_piece_is_found_by_every_address_in_it_and_by_no_other(void **state)
{
    (void)state;
    struct wr_spans s = {0};
    assert_true(wr_spans_reserve(&s, 2));
    uint32_t a = wr_spans_add_whole(&s, BASE, 100), b = wr_spans_add_whole(&s, BASE + 200, 1);
    assert_int_equal(wr_spans_find(&s, BASE - 1), 0);
    assert_int_equal(wr_spans_find(&s, BASE), a);
    assert_int_equal(wr_spans_find(&s, BASE + 99), a);
    assert_int_equal(wr_spans_find(&s, BASE + 100), 0);
    assert_int_equal(wr_spans_find(&s, BASE + 200), b);
    assert_int_equal(wr_spans_find(&s, BASE + 201), 0);
    assert_int_equal(wr_spans_find(&s, UINT64_MAX), 0);
    wr_spans_fini(&s);
}

static void test_the_smallest_piece_that_fits_is_taken(void **state)
{
    (void)state;
    struct wr_spans s = {0};
    assert_true(wr_spans_reserve(&s, 8));
    wr_spans_add_region(&s, BASE, 9 * PAGE);
    wr_spans_add_region(&s, BASE + 100 * PAGE, 3 * PAGE);
    wr_spans_add_region(&s, BASE + 50 * PAGE, 5 * PAGE);
    assert_int_equal(s.nodes[wr_spans_take(&s, 3 * PAGE)].start, BASE + 100 * PAGE);
    assert_int_equal(s.nodes[wr_spans_take(&s, 3 * PAGE)].start, BASE + 50 * PAGE);
    assert_int_equal(s.nodes[wr_spans_take(&s, 1 * PAGE)].start, BASE + 53 * PAGE);
    assert_int_equal(wr_spans_take(&s, 10 * PAGE), 0);
    assert_int_equal(s.nodes[wr_spans_take(&s, 9 * PAGE)].start, BASE);
    assert_int_equal(s.nodes[wr_spans_take(&s, 1 * PAGE)].start, BASE + 54 * PAGE);
    assert_int_equal(wr_spans_take(&s, 1), 0);
    wr_spans_check(&s);
    wr_spans_fini(&s);
}

static void test_touching_regions_never_join(void **state)
{
    (void)state;
    struct wr_spans s = {0};
    assert_true(wr_spans_reserve(&s, 4));
    wr_spans_add_region(&s, BASE, 2 * PAGE);
    wr_spans_add_region(&s, BASE + 2 * PAGE, 2 * PAGE);
    uint32_t a = wr_spans_take(&s, 2 * PAGE), b = wr_spans_take(&s, 2 * PAGE);
    wr_spans_give(&s, b);
    wr_spans_give(&s, a);
    assert_int_equal(wr_spans_take(&s, 3 * PAGE), 0);
    wr_spans_check(&s);
    wr_spans_fini(&s);
}

enum { REGIONS = 4, REGION_PAGES = 128, PAGES = REGIONS * REGION_PAGES, MAX_TAKEN = 200 };

struct model {
    struct wr_spans spans;
    bool used[PAGES];
    uint64_t starts[MAX_TAKEN];
    uint64_t pages[MAX_TAKEN];
    uint32_t n_taken;
    uint32_t seed;
};

static uint32_t draw(struct model *m, uint32_t below)
{
    m->seed = m->seed * 1664525 + 1013904223;
    return (m->seed >> 8) % below;
}

/* The first page of the shortest free run of a region that holds `pages`, the first of equals; PAGES: none.
 */
static uint64_t best_fit(const struct model *m, uint64_t pages)
{
    uint64_t best = PAGES, best_run = PAGES + 1, run = 0;
    for (uint64_t i = 0; i < PAGES; i++) {
        run = m->used[i] ? 0 : run + 1;
        bool ends = i + 1 == PAGES || (i + 1) % REGION_PAGES == 0 || m->used[i + 1];
        if (!ends) continue;
        if (run >= pages && run < best_run) {
            best_run = run;
            best = i + 1 - run;
        }
        run = 0;
    }
    return best;
}

static void take_some(struct model *m)
{
    uint64_t pages = 1 + draw(m, 20), expected = best_fit(m, pages);
    assert_true(wr_spans_reserve(&m->spans, 1));
    uint32_t id = wr_spans_take(&m->spans, pages * PAGE);
    if (expected == PAGES) {
        assert_int_equal(id, 0);
        return;
    }
    assert_int_equal(m->spans.nodes[id].start, BASE + expected * PAGE);
    memset(&m->used[expected], true, pages);
    m->starts[m->n_taken] = BASE + expected * PAGE;
    m->pages[m->n_taken++] = pages;
}

static void give_one(struct model *m)
{
    uint32_t i = draw(m, m->n_taken);
    uint64_t middle = m->starts[i] + draw(m, (uint32_t)(m->pages[i] * PAGE));
    uint32_t id = wr_spans_find(&m->spans, middle);
    assert_int_equal(m->spans.nodes[id].start, m->starts[i]);
    assert_int_equal(m->spans.nodes[id].bytes, m->pages[i] * PAGE);
    wr_spans_give(&m->spans, id);
    memset(&m->used[(m->starts[i] - BASE) / PAGE], false, m->pages[i]);
    m->n_taken--;
    m->starts[i] = m->starts[m->n_taken];
    m->pages[i] = m->pages[m->n_taken];
}

static void test_random_takes_and_gives_agree_with_a_naive_model(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct model m = {.seed = seed};
        assert_true(wr_spans_reserve(&m.spans, REGIONS));
        for (uint64_t i = 0; i < REGIONS; i++)
            wr_spans_add_region(&m.spans, BASE + i * REGION_PAGES * PAGE, REGION_PAGES * PAGE);
        for (int step = 0; step < 2000; step++) {
            bool take = m.n_taken == 0 || (m.n_taken < MAX_TAKEN && draw(&m, 2) == 0);
            if (take) {
                take_some(&m);
            } else {
                give_one(&m);
            }
            if (step % 50 == 0) wr_spans_check(&m.spans);
        }
        while (m.n_taken > 0)
            give_one(&m);
        assert_int_equal(m.spans.n_used, REGIONS); /* all joined again */
        wr_spans_check(&m.spans);
        wr_spans_fini(&m.spans);
    }
}

static void test_order_of_arrival_does_not_unbalance_the_tree(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct wr_spans s = {0};
    assert_true(wr_spans_reserve(&s, N));
    for (uint64_t i = 0; i < N; i++)
        wr_spans_add_whole(&s, BASE + i * PAGE, PAGE);
    uint32_t deepest = 0;
    for (uint64_t i = 0; i < N; i += 97) {
        uint32_t t = s.roots[WR_SPAN_BY_ADDRESS], depth = 0;
        for (uint64_t at = BASE + i * PAGE; s.nodes[t].start != at; depth++)
            t = at < s.nodes[t].start ? s.nodes[t].links[0].left : s.nodes[t].links[0].right;
        deepest = depth > deepest ? depth : deepest;
    }
    assert_in_range(deepest, 1, 60); /* log2(N) is 14; a list's depth would be N */
    for (uint64_t i = 0; i < N; i++)
        wr_spans_give(&s, wr_spans_find(&s, BASE + i * PAGE));
    assert_int_equal(s.n_used, 0);
    wr_spans_check(&s);
    wr_spans_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_set_finds_nothing),
        cmocka_unit_test(test_a_piece_is_found_by_every_address_in_it_and_by_no_other),
        cmocka_unit_test(test_the_smallest_piece_that_fits_is_taken),
        cmocka_unit_test(test_touching_regions_never_join),
        cmocka_unit_test(test_random_takes_and_gives_agree_with_a_naive_model),
        cmocka_unit_test(test_order_of_arrival_does_not_unbalance_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
