/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"
#include "index.h"

static void test_an_empty_index_has_nothing(void **state)
{
    (void)state;
    struct wr_index x = {0};
    assert_int_equal(wr_index_get(&x, 7), 0);
    assert_int_equal(wr_index_remove(&x, 7), 0);
    wr_index_fini(&x);
}

/* Against an array. Keys of few homes make entries stand several buckets from home, and leave holes before them. */
static void live_long(uint32_t n_keys, uint32_t (*key_of)(uint32_t i))
{
    enum { MOST_KEYS = 3000, STEPS = 400000 };
    static uint32_t model[MOST_KEYS];
    memset(model, 0, sizeof model);
    struct wr_index x = {0};
    uint64_t random = 42;
    uint32_t used = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t i = (uint32_t)(next_random(&random) % n_keys), key = key_of(i);
        assert_int_equal(wr_index_get(&x, key), model[i]);
        if (model[i] == 0) {
            assert_true(wr_index_reserve(&x));
            wr_index_put(&x, key, model[i] = step + 1);
            used++;
        } else if (step % 3 != 0) {
            assert_int_equal(wr_index_remove(&x, key), model[i]);
            model[i] = 0;
            used--;
        }
        assert_int_equal(x.used, used);
    }
    for (uint32_t i = 0; i < n_keys; i++)
        assert_int_equal(wr_index_remove(&x, key_of(i)), model[i]);
    for (uint32_t b = 0; b < 1u << x.n_buckets_log2; b++)
        assert_int_equal(x.passed[b], 0); /* what an empty index would stop a lookup by */
    wr_index_fini(&x);
}

static uint32_t like_addresses(uint32_t i)
{
    return i * 128;
}

/* The key that the multiplier brings to `product`, whose highest bits are its home. */
static uint32_t key_of_product(uint32_t product)
{
    uint32_t inverse = UINT32_C(0x9E3779B1);
    for (int round = 0; round < 5; round++) /* Newton's, modulo 2^32: each round doubles the right bits */
        inverse *= 2 - UINT32_C(0x9E3779B1) * inverse;
    return product * inverse;
}

/* The last home of any index up to 2^16 buckets. */
static uint32_t of_one_home(uint32_t i)
{
    return key_of_product(UINT32_C(0xFFFF0000) + i);
}

static void test_a_long_life_of_addresses_matches_an_array(void **state)
{
    (void)state;
    live_long(3000, like_addresses);
}

static void test_a_long_life_of_colliding_keys_matches_an_array(void **state)
{
    (void)state;
    live_long(60, of_one_home);
}

/* Of two buckets each holds an entry of the other: no bucket stops the walk. */
static void test_a_lookup_ends_where_every_bucket_is_passed(void **state)
{
    (void)state;
    struct wr_index x = {0};
    assert_true(wr_index_reserve(&x));
    assert_int_equal(x.n_buckets_log2, 1);
    for (uint32_t i = 0; i < 9; i++)
        wr_index_put(&x, of_one_home(i), 1);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(wr_index_remove(&x, of_one_home(i)), 1);
    for (uint32_t i = 0; i < 8; i++)
        wr_index_put(&x, key_of_product(i), 2);
    assert_true(x.passed[0] > 0 && x.passed[1] > 0);
    assert_int_equal(wr_index_get(&x, of_one_home(0)), 0);
    assert_int_equal(wr_index_remove(&x, key_of_product(8)), 0);
    assert_int_equal(wr_index_get(&x, of_one_home(8)), 1);
    assert_int_equal(wr_index_get(&x, key_of_product(7)), 2);
    wr_index_fini(&x);
}

static void test_put_after_reserve_moves_nothing(void **state)
{
    (void)state;
    struct wr_index x = {0};
    assert_true(wr_index_reserve(&x));
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(wr_index_reserve(&x));
        const struct wr_bucket *buckets = x.buckets;
        wr_index_put(&x, of_one_home(i), i + 1);
        assert_ptr_equal(x.buckets, buckets);
    }
    wr_index_fini(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_index_has_nothing),
        cmocka_unit_test(test_a_long_life_of_addresses_matches_an_array),
        cmocka_unit_test(test_a_long_life_of_colliding_keys_matches_an_array),
        cmocka_unit_test(test_a_lookup_ends_where_every_bucket_is_passed),
        cmocka_unit_test(test_put_after_reserve_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
