/* SPDX-License-Identifier: Apache-2.0
 *
 * The ladder: each rung is reached, and serves, when those before it can't; the limits; the caller's eviction
 * (A20); and what a failure reports.
 */
#include "pool_world.h"

#include <string.h>

#define MS ((uint64_t)1000000)

/* ---- each rung --------------------------------------------------------------------------------------- */

struct rung_counts {
    uint64_t served[WR_RUNGS];
};

static struct rung_counts rungs_of(struct wr_world *w)
{
    struct rung_counts c;
    for (int i = 0; i < WR_RUNGS; i++)
        c.served[i] = atomic_load(&w->pool->served[i]);
    return c;
}

/* An alloc that this rung serves, and no other. */
static weir_dptr alloc_by_rung(struct wr_world *w, size_t bytes, weir_stream s, enum wr_rung rung)
{
    struct rung_counts before = rungs_of(w);
    weir_dptr x = wr_world_alloc(w, bytes, s);
    struct rung_counts after = rungs_of(w);
    for (int i = 0; i < WR_RUNGS; i++)
        assert_int_equal(after.served[i] - before.served[i], i == (int)rung);
    assert_int_equal(wr_world_counts(w).host_syncs, 0);
    return x;
}

static void test_rung_flush_joins_what_the_front_cache_holds(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 4 * WR_MIB, s), y = wr_world_alloc(&w, 4 * WR_MIB, s);
    wr_world_free(&w, x, s);
    wr_world_free(&w, y, s);
    wr_world_free(&w, alloc_by_rung(&w, 8 * WR_MIB, s, WR_RUNG_flush), s);
    wr_world_close(&w);
}

static void test_rung_reap_takes_blocks_whose_users_have_passed(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB});
    weir_stream s = wr_world_stream(&w), reader = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, s);
    wr_world_read(&w, reader, x, 8 * WR_MIB, MS);
    wr_world_touch(&w, x, reader);
    wr_world_free(&w, x, s);
    wr_sim_drain(w.sim);
    wr_world_free(&w, alloc_by_rung(&w, 8 * WR_MIB, s, WR_RUNG_reap), s);
    wr_world_close(&w);
}

static void test_rung_exchange_moves_pages_between_small_and_large(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 2 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    wr_world_stall(&w, s); /* stream order is enough */
    wr_world_free(&w, wr_world_alloc(&w, 512, s), s);
    wr_world_free(&w, alloc_by_rung(&w, 2 * WR_MIB, s, WR_RUNG_exchange), s);
    wr_world_free(&w, alloc_by_rung(&w, 512, s, WR_RUNG_exchange), s);
    wr_world_close(&w);
}

static void test_rung_take_idle_takes_what_no_stream_owns(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 32 * WR_MIB, .grow_bytes = 32 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, a);
    weir_dptr y = alloc_by_rung(&w, 8 * WR_MIB, b, WR_RUNG_take_idle);
    wr_world_free(&w, x, a);
    wr_world_free(&w, y, b);
    wr_world_close(&w);
}

static void test_rung_gather_takes_what_other_streams_have_passed(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    wr_world_free(&w, wr_world_alloc(&w, 8 * WR_MIB, a), a);
    wr_world_free(&w, alloc_by_rung(&w, 8 * WR_MIB, b, WR_RUNG_gather), b);
    wr_world_close(&w);
}

static void test_rung_grow_maps_new_memory(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    wr_world_free(&w, alloc_by_rung(&w, 8 * WR_MIB, s, WR_RUNG_grow), s);
    wr_world_close(&w);
}

static void test_rung_grow_moves_a_finished_segment_where_the_limit_is_in_the_way(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 10 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 4 * WR_MIB, s), wall = wr_world_alloc(&w, 2 * WR_MIB, s);
    wr_world_free(&w, x, s);
    weir_dptr y = alloc_by_rung(&w, 6 * WR_MIB, s, WR_RUNG_grow);
    assert_int_equal(wr_world_stats(&w).peak_reserved_bytes <= 10 * WR_MIB, 1);
    wr_world_free(&w, y, s);
    wr_world_free(&w, wall, s);
    wr_world_close(&w);
}

/* ---- limits ------------------------------------------------------------------------------------------ */

static void test_rung_overgrow_passes_the_soft_limit_last(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){
                .limit_bytes = 16 * WR_MIB, .grow_bytes = 2 * WR_MIB, .pool.soft_limit_bytes = 8 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 8 * WR_MIB, s);
    weir_dptr y = alloc_by_rung(&w, 8 * WR_MIB, s, WR_RUNG_overgrow), z;
    assert_int_equal(weir_alloc(w.pool, 512, s, &z), WEIR_OUT_OF_MEMORY);
    wr_world_free(&w, x, s);
    wr_world_free(&w, y, s);
    wr_world_close(&w);
}

static void test_growth_in_chunks_stays_below_the_soft_limit(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){.limit_bytes = 256 * WR_MIB, .pool.soft_limit_bytes = 8 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 512, s);
    assert_in_range(wr_world_stats(&w).reserved_bytes, 1, 8 * WR_MIB);
    wr_world_free(&w, x, s);
    wr_world_close(&w);
}

/* 4 MiB are finished and in the way: they go back before the pool passes its soft limit. */
static void test_below_the_soft_limit_finished_segments_make_room(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(
        &w, &(struct wr_world_options){
                .limit_bytes = 64 * WR_MIB, .grow_bytes = 2 * WR_MIB, .pool.soft_limit_bytes = 10 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 4 * WR_MIB, s), wall = wr_world_alloc(&w, 2 * WR_MIB, s);
    wr_world_free(&w, x, s);
    weir_dptr y = alloc_by_rung(&w, 6 * WR_MIB, s, WR_RUNG_grow);
    assert_in_range(wr_world_stats(&w).peak_reserved_bytes, 1, 10 * WR_MIB);
    wr_world_free(&w, y, s);
    wr_world_free(&w, wall, s);
    wr_world_close(&w);
}

static void test_a_limit_may_be_a_fraction_of_the_device(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.memory_bytes = WR_GIB, .pool.limit_fraction = 0.25});
    assert_int_equal(wr_world_stats(&w).limit_bytes, 256 * WR_MIB);
    wr_world_close(&w);
    wr_world_open(&w, &(struct wr_world_options){
                          .memory_bytes = WR_GIB, .limit_bytes = 64 * WR_MIB, .pool.limit_fraction = 0.25});
    assert_int_equal(wr_world_stats(&w).limit_bytes, 64 * WR_MIB);
    const double bad[] = {-0.5, 1.5, 0.0001, 0.0 / 0.0};
    for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
        weir_pool *p = NULL;
        weir_pool_options o = {.struct_size = sizeof o, .limit_fraction = bad[i]};
        assert_int_equal(wr_pool_open(w.device, &o, &p), WEIR_INVALID_ARGUMENT);
        assert_null(p);
    }
    wr_world_close(&w);
}

/* ---- eviction ---------------------------------------------------------------------------------------- */

enum { SPARES = 8 };

/* What the caller can do without. */
struct spares {
    struct wr_world *world;
    weir_stream stream;
    weir_dptr blocks[SPARES];
    unsigned n, calls;
    size_t asked, claim;
    bool allocates;
};

static void own_spares(struct spares *sp, struct wr_world *w, unsigned n, size_t bytes)
{
    sp->world = w;
    sp->stream = wr_world_stream(w);
    while (sp->n < n)
        sp->blocks[sp->n++] = wr_world_alloc(w, bytes, sp->stream);
}

/* Frees one block, the last, and claims what it is told to. */
static size_t evict_one(void *context, size_t bytes)
{
    struct spares *sp = context;
    sp->calls++;
    sp->asked = bytes;
    if (sp->n > 0) wr_world_free(sp->world, sp->blocks[--sp->n], sp->stream);
    if (sp->allocates) {
        weir_dptr none;
        weir_status st = weir_alloc(sp->world->pool, 64 * WR_MIB, sp->stream, &none);
        assert_int_equal(st, WEIR_OUT_OF_MEMORY);
    }
    return sp->claim;
}

static struct wr_world_options with_evict(struct spares *sp, size_t limit)
{
    return (struct wr_world_options){
        .limit_bytes = limit, .grow_bytes = 2 * WR_MIB, .pool = {.evict = evict_one, .evict_context = sp}};
}

static void test_rung_evict_asks_until_it_is_enough(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 2 * WR_MIB};
    struct wr_world_options o = with_evict(&sp, 16 * WR_MIB);
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    own_spares(&sp, &w, 8, 2 * WR_MIB);
    weir_dptr x = alloc_by_rung(&w, 6 * WR_MIB, s, WR_RUNG_evict);
    assert_int_equal(sp.calls, 3);
    assert_int_equal(sp.asked, 6 * WR_MIB);
    while (sp.n > 0)
        evict_one(&sp, 0);
    wr_world_free(&w, x, s);
    wr_world_close(&w);
}

static void test_A20_two_calls_that_free_nothing_end_it_whatever_they_claim(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 64 * WR_MIB};
    struct wr_world_options o = with_evict(&sp, 64 * WR_MIB);
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    weir_dptr wall = wr_world_alloc(&w, 60 * WR_MIB, s), x = 1;
    assert_int_equal(weir_alloc(w.pool, 8 * WR_MIB, s, &x), WEIR_OUT_OF_MEMORY);
    assert_int_equal(sp.calls, 2);
    assert_int_equal(x, 1);
    weir_failure f = {.struct_size = sizeof f};
    assert_int_equal(weir_last_failure(&f), WEIR_OK);
    assert_int_equal(f.status, WEIR_OUT_OF_MEMORY);
    assert_int_equal(f.pending_bytes, 0);
    wr_world_free(&w, wall, s);
    wr_world_close(&w);
}

/* One that frees, and says it did not, is taken at its word: it has no more to give. */
static void test_A20_a_claim_of_nothing_counts_as_nothing(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 0};
    struct wr_world_options o = with_evict(&sp, 16 * WR_MIB);
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    own_spares(&sp, &w, 8, 2 * WR_MIB);
    weir_dptr x;
    assert_int_equal(weir_alloc(w.pool, 16 * WR_MIB, s, &x), WEIR_OUT_OF_MEMORY);
    assert_int_equal(sp.calls, 2);
    while (sp.n > 0)
        evict_one(&sp, 0);
    wr_world_close(&w);
}

static void test_eviction_ends_where_waiting_would_be_enough(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 4 * WR_MIB};
    struct wr_world_options o = with_evict(&sp, 16 * WR_MIB);
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    own_spares(&sp, &w, 4, 4 * WR_MIB);
    struct wr_sim_gate *gate = wr_world_stall(&w, sp.stream);
    assert_int_equal(wr_world_try_alloc(&w, 4 * WR_MIB, s), 0);
    assert_int_equal(sp.calls, 1);
    wr_world_let_go(&w, gate);
    weir_dptr x = wr_world_alloc(&w, 4 * WR_MIB, s);
    while (sp.n > 0)
        evict_one(&sp, 0);
    wr_world_free(&w, x, s);
    wr_world_close(&w);
}

static void test_eviction_does_not_ask_itself(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 2 * WR_MIB, .allocates = true};
    struct wr_world_options o = with_evict(&sp, 64 * WR_MIB);
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    weir_dptr wall = wr_world_alloc(&w, 62 * WR_MIB, s);
    own_spares(&sp, &w, 1, 2 * WR_MIB);
    weir_dptr x = alloc_by_rung(&w, 2 * WR_MIB, s, WR_RUNG_evict);
    assert_int_equal(sp.calls, 1);
    wr_world_free(&w, x, s);
    wr_world_free(&w, wall, s);
    wr_world_close(&w);
}

static void test_the_soft_limit_is_passed_only_after_eviction(void **state)
{
    (void)state;
    struct wr_world w;
    struct spares sp = {.claim = 4 * WR_MIB};
    struct wr_world_options o = with_evict(&sp, 64 * WR_MIB);
    o.pool.soft_limit_bytes = 8 * WR_MIB;
    wr_world_open(&w, &o);
    weir_stream s = wr_world_stream(&w);
    own_spares(&sp, &w, 2, 4 * WR_MIB);
    weir_dptr x = alloc_by_rung(&w, 8 * WR_MIB, s, WR_RUNG_evict);
    assert_int_equal(wr_world_stats(&w).peak_reserved_bytes, 8 * WR_MIB);
    assert_int_equal(sp.calls, 2);
    weir_dptr y = alloc_by_rung(&w, 4 * WR_MIB, s, WR_RUNG_overgrow);
    assert_int_equal(sp.calls, 4); /* it had no more */
    wr_world_free(&w, x, s);
    wr_world_free(&w, y, s);
    wr_world_close(&w);
}

/* ---- the report -------------------------------------------------------------------------------------- */

static uint64_t id_of(struct wr_world *w, weir_stream s)
{
    struct wr_stream_info info;
    assert_int_equal(w->device->ops->stream_identify(w->device, s, &info), WEIR_OK);
    return info.id;
}

static weir_failure last_failure(void)
{
    weir_failure f = {.struct_size = sizeof f};
    assert_int_equal(weir_last_failure(&f), WEIR_OK);
    assert_int_equal(f.struct_size, sizeof f);
    return f;
}

/* Three streams are stalled over 2, 4 and 6 MiB that they have freed. */
static void test_a_failure_names_what_pends_by_stream_and_the_fence_that_would_help(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 16 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream s[3], me = wr_world_stream(&w);
    weir_dptr wall = wr_world_alloc(&w, 2 * WR_MIB, me), x;
    for (size_t i = 0; i < 3; i++) {
        s[i] = wr_world_stream(&w);
        x = wr_world_alloc(&w, (i + 1) * 2 * WR_MIB, s[i]);
        wr_world_stall(&w, s[i]);
        wr_world_free(&w, x, s[i]);
    }
    assert_int_equal(wr_world_try_alloc(&w, 4 * WR_MIB, me), 0);
    weir_failure f = last_failure();
    assert_int_equal(f.status, WEIR_NOT_YET);
    assert_int_equal(f.asked_bytes, 4 * WR_MIB);
    assert_int_equal(f.limit_bytes, 16 * WR_MIB);
    assert_int_equal(f.reserved_bytes, 14 * WR_MIB);
    assert_int_equal(f.largest_free_bytes, 2 * WR_MIB); /* by growth */
    assert_int_equal(f.pending_bytes, 12 * WR_MIB);
    assert_int_equal(f.device_is_full, 0);
    assert_int_equal(f.n_streams, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(f.streams[i].id, id_of(&w, s[2 - i]));
        assert_int_equal(f.streams[i].bytes, (3 - i) * 2 * WR_MIB);
    }
    assert_int_equal(f.fence_stream, id_of(&w, s[1])); /* the least that is enough */

    wr_world_let_go(&w, w.gates[1]);
    wr_world_free(&w, wr_world_alloc(&w, 4 * WR_MIB, me), me);
    wr_world_free(&w, wall, me);
    wr_world_close(&w);
}

/* 512 bytes do not need what ten streams hold; they do if all the rest is live. */
static void test_a_failure_lists_the_eight_streams_that_hold_most(void **state)
{
    (void)state;
    enum { STREAMS = 10 };
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 110 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream s[STREAMS];
    for (size_t i = 0; i < STREAMS; i++) {
        s[i] = wr_world_stream(&w);
        weir_dptr x = wr_world_alloc(&w, (i + 1) * 2 * WR_MIB, s[i]);
        wr_world_stall(&w, s[i]);
        wr_world_free(&w, x, s[i]);
    }
    weir_stream me = wr_world_stream(&w);
    assert_int_equal(wr_world_try_alloc(&w, 512, me), 0);
    weir_failure f = last_failure();
    assert_int_equal(f.pending_bytes, 110 * WR_MIB);
    assert_int_equal(f.n_streams, WEIR_FAILURE_STREAMS);
    for (size_t i = 0; i < WEIR_FAILURE_STREAMS; i++) {
        assert_int_equal(f.streams[i].id, id_of(&w, s[STREAMS - 1 - i]));
        assert_int_equal(f.streams[i].bytes, (STREAMS - i) * 2 * WR_MIB);
    }
    assert_int_equal(f.fence_stream, id_of(&w, s[0]));
    wr_world_close(&w);
}

static void test_a_failure_that_nothing_would_help_names_no_fence(void **state)
{
    (void)state;
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 16 * WR_MIB, .grow_bytes = 2 * WR_MIB});
    weir_stream s = wr_world_stream(&w), idle = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, 12 * WR_MIB, s), y;
    wr_world_free(&w, wr_world_alloc(&w, 4 * WR_MIB, idle), idle);
    assert_int_equal(weir_alloc(w.pool, 6 * WR_MIB, s, &y), WEIR_OUT_OF_MEMORY);
    weir_failure f = last_failure();
    assert_int_equal(f.status, WEIR_OUT_OF_MEMORY);
    assert_int_equal(f.fence_stream, 0);
    assert_int_equal(f.n_streams, 0);
    assert_int_equal(f.largest_free_bytes, 4 * WR_MIB);

    assert_int_equal(weir_alloc(w.pool, 17 * WR_MIB, s, &y), WEIR_TOO_LARGE);
    f = last_failure();
    assert_int_equal(f.status, WEIR_TOO_LARGE);
    assert_int_equal(f.asked_bytes, 17 * WR_MIB);
    assert_int_equal(f.limit_bytes, 16 * WR_MIB);
    wr_world_free(&w, x, s);
    wr_world_close(&w);
}

static void *read_last_failure(void *arg)
{
    *(weir_failure *)arg = last_failure();
    return NULL;
}

static void test_a_failure_is_its_own_threads_and_reads_into_older_structs(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t thread;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = 2 * WR_MIB});
    weir_stream s = wr_world_stream(&w);
    weir_dptr x;
    assert_int_equal(weir_alloc(w.pool, 3 * WR_MIB, s, &x), WEIR_TOO_LARGE);
    weir_failure others;
    assert_int_equal(pthread_create(&thread, NULL, read_last_failure, &others), 0);
    pthread_join(thread, NULL);
    assert_int_equal(others.status, WEIR_OK);
    assert_int_equal(others.asked_bytes, 0);

    weir_failure old = {.struct_size = offsetof(weir_failure, limit_bytes), .limit_bytes = 7};
    assert_int_equal(weir_last_failure(&old), WEIR_OK);
    assert_int_equal(old.asked_bytes, 3 * WR_MIB);
    assert_int_equal(old.limit_bytes, 7);
    old.struct_size = sizeof old + 1;
    assert_int_equal(weir_last_failure(&old), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_last_failure(NULL), WEIR_INVALID_ARGUMENT);
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rung_flush_joins_what_the_front_cache_holds),
        cmocka_unit_test(test_rung_reap_takes_blocks_whose_users_have_passed),
        cmocka_unit_test(test_rung_exchange_moves_pages_between_small_and_large),
        cmocka_unit_test(test_rung_take_idle_takes_what_no_stream_owns),
        cmocka_unit_test(test_rung_gather_takes_what_other_streams_have_passed),
        cmocka_unit_test(test_rung_grow_maps_new_memory),
        cmocka_unit_test(test_rung_grow_moves_a_finished_segment_where_the_limit_is_in_the_way),
        cmocka_unit_test(test_rung_overgrow_passes_the_soft_limit_last),
        cmocka_unit_test(test_growth_in_chunks_stays_below_the_soft_limit),
        cmocka_unit_test(test_below_the_soft_limit_finished_segments_make_room),
        cmocka_unit_test(test_a_limit_may_be_a_fraction_of_the_device),
        cmocka_unit_test(test_rung_evict_asks_until_it_is_enough),
        cmocka_unit_test(test_A20_two_calls_that_free_nothing_end_it_whatever_they_claim),
        cmocka_unit_test(test_A20_a_claim_of_nothing_counts_as_nothing),
        cmocka_unit_test(test_eviction_ends_where_waiting_would_be_enough),
        cmocka_unit_test(test_eviction_does_not_ask_itself),
        cmocka_unit_test(test_the_soft_limit_is_passed_only_after_eviction),
        cmocka_unit_test(test_a_failure_names_what_pends_by_stream_and_the_fence_that_would_help),
        cmocka_unit_test(test_a_failure_lists_the_eight_streams_that_hold_most),
        cmocka_unit_test(test_a_failure_that_nothing_would_help_names_no_fence),
        cmocka_unit_test(test_a_failure_is_its_own_threads_and_reads_into_older_structs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
