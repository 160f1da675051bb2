/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"
#include "table.h"

static void test_an_empty_table_has_nothing(void **state)
{
    (void)state;
    struct wr_table t = {0};
    assert_int_equal(wr_table_get(&t, 7), 0);
    assert_int_equal(wr_table_remove(&t, 7), 0);
    wr_table_fini(&t);
}

static void test_keys_are_found_until_removed(void **state)
{
    (void)state;
    struct wr_table t = {0};
    assert_true(wr_table_reserve(&t, 2));
    wr_table_put(&t, 0, 5);
    wr_table_put(&t, UINT64_MAX, 6);
    assert_int_equal(wr_table_get(&t, 0), 5);
    assert_int_equal(wr_table_get(&t, UINT64_MAX), 6);
    assert_int_equal(wr_table_get(&t, 1), 0);
    assert_int_equal(wr_table_remove(&t, 0), 5);
    assert_int_equal(wr_table_get(&t, 0), 0);
    assert_int_equal(wr_table_get(&t, UINT64_MAX), 6);
    assert_int_equal(t.used, 1);
    wr_table_fini(&t);
}

/* Against an array: few distinct keys, so that runs are long and removals close holes inside them. */
static void test_a_long_random_life_matches_an_array(void **state)
{
    (void)state;
    enum { KEYS = 3000, STEPS = 400000 };
    static uint32_t model[KEYS];
    struct wr_table t = {0};
    uint64_t random = 42;
    uint32_t used = 0;
    for (int step = 0; step < STEPS; step++) {
        uint32_t key = (uint32_t)(next_random(&random) % KEYS), stride = 4096; /* like addresses */
        assert_int_equal(wr_table_get(&t, (uint64_t)key * stride), model[key]);
        if (model[key] == 0) {
            assert_true(wr_table_reserve(&t, 1));
            model[key] = (uint32_t)step + 1;
            wr_table_put(&t, (uint64_t)key * stride, model[key]);
            used++;
        } else if (step % 3 != 0) {
            assert_int_equal(wr_table_remove(&t, (uint64_t)key * stride), model[key]);
            model[key] = 0;
            used--;
        }
        assert_int_equal(t.used, used);
    }
    wr_table_fini(&t);
}

static void test_reserve_makes_room_at_once(void **state)
{
    (void)state;
    struct wr_table t = {0};
    assert_true(wr_table_reserve(&t, 1000));
    struct wr_table_slot *slots = t.slots;
    for (uint32_t i = 0; i < 1000; i++)
        wr_table_put(&t, i, i + 1);
    assert_ptr_equal(t.slots, slots); /* no growth, so no allocation, in put */
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(wr_table_get(&t, i), i + 1);
    wr_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_table_has_nothing),
        cmocka_unit_test(test_keys_are_found_until_removed),
        cmocka_unit_test(test_a_long_random_life_matches_an_array),
        cmocka_unit_test(test_reserve_makes_room_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
