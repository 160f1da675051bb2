/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_world.h"

#include <stdio.h>
#include <string.h>

void wr_world_open(struct wr_world *w, const struct wr_world_options *o)
{
    memset(w, 0, sizeof *w);
    const struct wr_sim_profile *known =
        wr_sim_profile_find(o->profile != NULL ? o->profile : "gtx1080-pcie3");
    assert_non_null(known);
    struct wr_sim_profile profile = *known;
    if (o->memory_bytes != 0) profile.memory_bytes = o->memory_bytes;
    struct wr_sim_options sim = {.profile = &profile,
        .adversary_seed = o->adversary_seed,
        .reuse_handles = o->reuse_handles,
        .wall_clock = o->wall_clock};
    assert_int_equal(wr_sim_open(&sim, &w->sim), WEIR_OK);
    w->device = wr_sim_device(w->sim, 0);
    weir_pool_options pool = o->pool;
    pool.struct_size = sizeof pool;
    pool.limit_bytes = o->limit_bytes;
    pool.grow_bytes = o->grow_bytes;
    assert_int_equal(wr_pool_open(w->device, &pool, &w->pool), WEIR_OK);
}

void wr_world_check(struct wr_world *w)
{
    for (unsigned i = 0; i < wr_sim_reports(w->sim) && i < 4; i++)
        fprintf(stderr, "oracle: %s\n", wr_sim_report(w->sim, i));
    assert_int_equal(wr_sim_reports(w->sim), 0);
    assert_int_equal(atomic_load(&w->mismatches), 0);
    assert_int_equal(weir_pool_check(w->pool), WEIR_OK);
}

/* A close records events; under an adversary it takes a few looks until they have passed. */
void wr_world_close_pool(struct wr_world *w, weir_pool *pool)
{
    enum { LOOKS = 100 };
    weir_status st = WEIR_NOT_YET;
    for (int i = 0; i < LOOKS && st == WEIR_NOT_YET; i++) {
        wr_sim_drain(w->sim);
        st = weir_pool_close(pool);
    }
    assert_int_equal(st, WEIR_OK);
}

void wr_world_close(struct wr_world *w)
{
    while (w->n_gates > 0)
        wr_world_let_go(w, w->gates[0]);
    wr_sim_drain(w->sim);
    wr_world_check(w);
    assert_int_equal(wr_world_stats(w).live_blocks, 0);
    wr_world_close_pool(w, w->pool);
    while (w->n_streams > 0)
        wr_world_destroy_stream(w, w->streams[0]);
    assert_int_equal(wr_sim_reports(w->sim), 0);
    assert_int_equal(wr_sim_close(w->sim), 0);
}

struct wr_world world;

int wr_world_open_one(void **state)
{
    (void)state;
    wr_world_open(&world, &(struct wr_world_options){0});
    return 0;
}

int wr_world_close_one(void **state)
{
    (void)state;
    wr_world_close(&world);
    return 0;
}

weir_stream wr_world_stream(struct wr_world *w)
{
    assert_true(w->n_streams < WR_WORLD_STREAMS);
    weir_stream s;
    assert_int_equal(w->device->ops->stream_create(w->device, &s), WEIR_OK);
    w->streams[w->n_streams++] = s;
    return s;
}

void wr_world_destroy_stream(struct wr_world *w, weir_stream s)
{
    unsigned i = 0;
    while (i < w->n_streams && w->streams[i] != s)
        i++;
    assert_true(i < w->n_streams);
    w->streams[i] = w->streams[--w->n_streams];
    assert_int_equal(w->device->ops->stream_destroy(w->device, s), WEIR_OK);
}

void wr_world_join(struct wr_world *w, weir_stream before, weir_stream after)
{
    const struct wr_device_ops *ops = w->device->ops;
    wr_event e;
    assert_int_equal(ops->event_create(w->device, &e), WEIR_OK);
    assert_int_equal(ops->event_record(w->device, e, before), WEIR_OK);
    assert_int_equal(ops->stream_wait(w->device, after, e), WEIR_OK);
    assert_int_equal(ops->event_destroy(w->device, e), WEIR_OK);
}

struct wr_sim_gate *wr_world_stall(struct wr_world *w, weir_stream s)
{
    assert_true(w->n_gates < WR_WORLD_GATES);
    struct wr_sim_gate *g;
    assert_int_equal(wr_sim_stall(w->device, s, &g), WEIR_OK);
    w->gates[w->n_gates++] = g;
    return g;
}

void wr_world_open_gate(struct wr_world *w, struct wr_sim_gate *g)
{
    unsigned i = 0;
    while (i < w->n_gates && w->gates[i] != g)
        i++;
    assert_true(i < w->n_gates);
    w->gates[i] = w->gates[--w->n_gates];
    wr_sim_gate_open(g);
}

void wr_world_let_go(struct wr_world *w, struct wr_sim_gate *g)
{
    wr_world_open_gate(w, g);
    wr_sim_drain(w->sim);
}

weir_dptr wr_world_try_alloc(struct wr_world *w, size_t bytes, weir_stream s)
{
    weir_dptr block = 0;
    weir_status st = weir_alloc(w->pool, bytes, s, &block);
    if (st != WEIR_OK && st != WEIR_NOT_YET)
        fail_msg("alloc of %zu bytes: %s: %s", bytes, weir_status_name(st), weir_error_text());
    assert_int_equal(st == WEIR_OK, block != 0);
    assert_int_equal(block % 512, 0);
    return block;
}

weir_dptr wr_world_alloc(struct wr_world *w, size_t bytes, weir_stream s)
{
    weir_dptr block = wr_world_try_alloc(w, bytes, s);
    if (block == 0) fail_msg("alloc of %zu bytes: %s", bytes, weir_error_text());
    return block;
}

void wr_world_touch(struct wr_world *w, weir_dptr block, weir_stream s)
{
    assert_int_equal(weir_touch(w->pool, block, s, 0), WEIR_OK);
}

void wr_world_free(struct wr_world *w, weir_dptr block, weir_stream s)
{
    assert_int_equal(weir_free(w->pool, block, s), WEIR_OK);
}

void wr_world_fill(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag)
{
    assert_int_equal(wr_kernels_fill(w->device, s, block, bytes, tag), WEIR_OK);
}

void wr_world_spin(struct wr_world *w, weir_stream s, uint64_t ns)
{
    assert_int_equal(wr_kernels_spin(w->device, s, ns), WEIR_OK);
}

static void launch_use(struct wr_world *w, weir_stream s, struct wr_use use, uint64_t ns)
{
    static const struct wr_kernel no_bytes = {.name = "use"};
    struct wr_launch l = {.blocks = 1, .threads = 1, .uses = &use, .n_uses = 1, .sim_duration_ns = ns};
    assert_int_equal(w->device->ops->launch(w->device, &no_bytes, &l, s), WEIR_OK);
}

void wr_world_write(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint64_t ns)
{
    launch_use(w, s, (struct wr_use){.address = block, .bytes = bytes, .writes = true}, ns);
}

void wr_world_read(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint64_t ns)
{
    launch_use(w, s, (struct wr_use){.address = block, .bytes = bytes, .writes = false}, ns);
}

/* ---- tags -------------------------------------------------------------------------------------------- */

enum { PROBE_BYTES = 64 << 10 };

/* The n-th probed word of a block; NULL: no more. */
static uint32_t *probe(void *const *params, uint64_t n)
{
    uint64_t block = *(const uint64_t *)params[0], words = *(const uint64_t *)params[1] / sizeof(uint32_t);
    uint64_t step = PROBE_BYTES / sizeof(uint32_t), probes = (words + step - 1) / step;
    if (words == 0 || n > probes) return NULL;
    return (uint32_t *)(uintptr_t)block + (n < probes ? n * step : words - 1);
}

static void mark_body(void *const *params)
{
    uint32_t *word;
    for (uint64_t n = 0; (word = probe(params, n)) != NULL; n++)
        *word = *(const uint32_t *)params[2];
}

static void verify_body(void *const *params)
{
    const uint32_t *word;
    _Atomic uint64_t *mismatches = *(_Atomic uint64_t *const *)params[3];
    for (uint64_t n = 0; (word = probe(params, n)) != NULL; n++)
        if (*word != *(const uint32_t *)params[2]) atomic_fetch_add(mismatches, 1);
}

static const struct wr_kernel mark_kernel = {
    .name = "mark", .body = mark_body, .n_params = 3, .param_bytes = {8, 8, 4}};
static const struct wr_kernel verify_kernel = {
    .name = "verify", .body = verify_body, .n_params = 4, .param_bytes = {8, 8, 4, 8}};

static void launch_tag(
    struct wr_world *w, const struct wr_kernel *k, weir_stream s, struct wr_use use, uint32_t tag)
{
    uint64_t bytes = use.bytes;
    _Atomic uint64_t *mismatches = &w->mismatches;
    void *params[] = {&use.address, &bytes, &tag, &mismatches};
    struct wr_launch l = {.blocks = 1,
        .threads = 1,
        .params = params,
        .uses = &use,
        .n_uses = 1,
        .sim_duration_ns = 1000 + bytes / 1000};
    assert_int_equal(w->device->ops->launch(w->device, k, &l, s), WEIR_OK);
}

void wr_world_mark(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag)
{
    launch_tag(w, &mark_kernel, s, (struct wr_use){.address = block, .bytes = bytes, .writes = true}, tag);
}

void wr_world_verify(struct wr_world *w, weir_stream s, weir_dptr block, size_t bytes, uint32_t tag)
{
    launch_tag(w, &verify_kernel, s, (struct wr_use){.address = block, .bytes = bytes, .writes = false}, tag);
}

uint32_t wr_world_peek(struct wr_world *w, weir_dptr block)
{
    uint32_t word;
    wr_sim_peek(w->sim, block, &word, sizeof word);
    return word;
}

weir_stats wr_world_stats(struct wr_world *w)
{
    weir_stats s = {.struct_size = sizeof s};
    assert_int_equal(weir_pool_stats(w->pool, &s), WEIR_OK);
    assert_int_equal(s.live_bytes + s.pending_bytes + s.cached_bytes + s.idle_bytes, s.reserved_bytes);
    assert_true(s.reserved_bytes <= s.limit_bytes &&
                s.peak_reserved_bytes <= w->pool->pages.most_pages * WR_PAGE_BYTES);
    return s;
}

struct wr_sim_counts wr_world_counts(struct wr_world *w)
{
    struct wr_sim_counts c;
    wr_sim_get_counts(w->sim, &c);
    return c;
}
