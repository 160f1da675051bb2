/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_world.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading JSON ------------------------------------------------------------------------------------ */

/* Past one value, NULL where it is none. What a snapshot uses: no escapes, no fractions. */
static const char *skip_value(const char *c);

static const char *skip_blanks(const char *c)
{
    while (isspace((unsigned char)*c))
        c++;
    return c;
}

static const char *skip_text(const char *c)
{
    const char *end = *c == '"' ? strchr(c + 1, '"') : NULL;
    return end != NULL ? end + 1 : NULL;
}

static const char *skip_members(const char *c, char close)
{
    c = skip_blanks(c + 1);
    if (*c == close) return c + 1;
    for (;;) {
        if (close == '}') {
            c = skip_text(skip_blanks(c));
            if (c == NULL || *(c = skip_blanks(c)) != ':') return NULL;
            c++;
        }
        c = skip_value(c);
        if (c == NULL) return NULL;
        c = skip_blanks(c);
        if (*c == close) return c + 1;
        if (*c++ != ',') return NULL;
    }
}

static const char *skip_value(const char *c)
{
    c = skip_blanks(c);
    if (*c == '{') return skip_members(c, '}');
    if (*c == '[') return skip_members(c, ']');
    if (*c == '"') return skip_text(c);
    if (strncmp(c, "true", 4) == 0) return c + 4;
    if (strncmp(c, "false", 5) == 0) return c + 5;
    const char *start = c;
    while (isdigit((unsigned char)*c))
        c++;
    return c > start ? c : NULL;
}

static __attribute__((noinline)) char *take_snapshot(
    void) /* inlined, gcc 12 takes json for a dangling pointer */
{
    char *json;
    assert_int_equal(weir_pool_snapshot(world.pool, &json), WEIR_OK);
    const char *end = skip_value(json);
    assert_non_null(end);
    assert_string_equal(end, "\n");
    return json;
}

/* Sum of what follows each `name` from `from` on, where `where` follows it within its object; NULL: anywhere. */
static uint64_t sum_of(const char *from, const char *name, const char *where)
{
    uint64_t sum = 0;
    for (const char *c = strstr(from, name); c != NULL; c = strstr(c + 1, name)) {
        const char *object_end = strchr(c, '}'), *found = where != NULL ? strstr(c, where) : c;
        if (found != NULL && found < object_end) sum += strtoull(c + strlen(name), NULL, 10);
    }
    return sum;
}

static const char *streams_of(const char *json)
{
    return strstr(json, "\"streams\": [");
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static void test_a_snapshot_has_every_byte_in_one_place(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    wr_world_free(&world, wr_world_alloc(&world, 1000, a), a); /* a size that repeats is cached */
    weir_dptr live = wr_world_alloc(&world, 3 * WR_MIB, a), cached = wr_world_alloc(&world, 1000, a);
    weir_dptr pending = wr_world_alloc(&world, 700000, a), other = wr_world_alloc(&world, 5 * WR_MIB, b);
    struct wr_sim_gate *gate = wr_world_stall(&world, b);
    wr_world_touch(&world, pending, b);
    wr_world_free(&world, pending, a);
    wr_world_free(&world, cached, a);
    char *json = take_snapshot();
    const weir_stats s = wr_world_stats(&world);
    const char *streams = streams_of(json);
    assert_int_equal(sum_of(streams, "\"bytes\": ", "\"live\""), s.live_bytes);
    assert_int_equal(sum_of(streams, "\"bytes\": ", "\"pending\""), wr_round_up(700000, 512));
    assert_int_equal(sum_of(streams, "\"bytes\": ", "\"cached\""), 1024);
    assert_int_equal(sum_of(streams, "\"bytes\": ", NULL) + s.idle_bytes, s.reserved_bytes);
    uint64_t segments = sum_of(json, "\"bytes\": ", "granted_bytes");
    assert_int_equal(segments, s.reserved_bytes);
    free(json);
    wr_world_let_go(&world, gate);
    wr_world_free(&world, live, a);
    wr_world_free(&world, other, b);
}

static void test_a_snapshot_names_the_stream_that_a_block_waits_for(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    weir_dptr x = wr_world_alloc(&world, WR_MIB, a), of_b = wr_world_alloc(&world, WR_MIB, b);
    struct wr_stream_info info;
    assert_int_equal(world.device->ops->stream_identify(world.device, b, &info), WEIR_OK);
    struct wr_sim_gate *gate = wr_world_stall(&world, b);
    wr_world_touch(&world, x, b);
    wr_world_free(&world, x, a);
    char *json = take_snapshot(), wanted[64];
    snprintf(wanted, sizeof wanted, "\"uses\": [{\"stream\": %llu,", (unsigned long long)info.id);
    const char *pending = strstr(json, "\"pending\""), *uses = strstr(json, wanted);
    assert_non_null(pending);
    assert_non_null(uses);
    assert_ptr_equal(strchr(pending, '}'), strchr(uses, '}')); /* one and the same block's */
    assert_non_null(strstr(uses, "\"passed\": false"));
    free(json);
    wr_world_let_go(&world, gate);
    wr_world_free(&world, of_b, b);
}

static void test_a_snapshot_of_a_pool_never_used_is_sound(void **state)
{
    (void)state;
    char *json = take_snapshot();
    assert_non_null(strstr(json, "\"segments\": [],\n \"streams\": []"));
    free(json);
}

static void test_a_snapshot_of_nothing_is_refused(void **state)
{
    (void)state;
    char *json;
    assert_int_equal(weir_pool_snapshot(NULL, &json), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_pool_snapshot(world.pool, NULL), WEIR_INVALID_ARGUMENT);
    weir_pool *closed;
    assert_int_equal(wr_pool_open(world.device, &(weir_pool_options){0}, &closed), WEIR_OK);
    wr_world_close_pool(&world, closed);
    assert_int_equal(weir_pool_snapshot(closed, &json), WEIR_CLOSED);
}

static void test_hits_and_misses_are_told_apart(void **state)
{
    (void)state;
    weir_stream a = wr_world_stream(&world);
    uint64_t calls = wr_world_stats(&world).driver_calls;
    wr_world_free(&world, wr_world_alloc(&world, 4096, a), a);
    weir_stats s = wr_world_stats(&world);
    assert_int_equal(s.hits, 0);
    assert_int_equal(s.slow_allocs, 1);
    assert_true(s.driver_calls >= calls + 3); /* a segment */
    calls = s.driver_calls;
    for (int i = 0; i < 10; i++)
        wr_world_free(&world, wr_world_alloc(&world, 4096, a), a);
    s = wr_world_stats(&world);
    assert_int_equal(s.hits, 10);
    assert_int_equal(s.slow_allocs, 1);
    assert_int_equal(s.driver_calls, calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WR_IN_WORLD(test_a_snapshot_has_every_byte_in_one_place),
        WR_IN_WORLD(test_a_snapshot_names_the_stream_that_a_block_waits_for),
        WR_IN_WORLD(test_a_snapshot_of_a_pool_never_used_is_sound),
        WR_IN_WORLD(test_a_snapshot_of_nothing_is_refused),
        WR_IN_WORLD(test_hits_and_misses_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
