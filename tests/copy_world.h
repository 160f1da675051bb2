/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the transfer engine share: a simulated world with a pool and an engine, patterns in memory of
 * each kind, and an end that finds leaks and oracle reports.
 */
#ifndef COPY_WORLD_H
#define COPY_WORLD_H

#include "queue_world.h"
#include "weir_copy.h"

struct copy_world {
    struct world w;
    weir_engine *engine;
    weir_stream home;
};

static inline void open_copies_with(
    struct copy_world *c, const struct wr_sim_options *sim, const weir_engine_options *o)
{
    open_world(&c->w, sim, 0, NULL);
    OK(weir_engine_open(c->w.pool, o, &c->engine));
    c->home = weir_engine_stream(c->engine);
    assert_non_null(c->home);
}

/* Chunks of 64 KiB, eight slabs: small, so that what is staged needs many. */
static inline weir_engine_options small_engine(void)
{
    return (weir_engine_options){
        .struct_size = sizeof(weir_engine_options), .chunk_bytes = 64 << 10, .staging_bytes = 512 << 10};
}

static inline void open_copies(struct copy_world *c)
{
    struct wr_sim_options sim = world_options();
    weir_engine_options o = small_engine();
    open_copies_with(c, &sim, &o);
}

static inline weir_engine_stats engine_stats(struct copy_world *c)
{
    weir_engine_stats s = {.struct_size = sizeof s};
    OK(weir_engine_get_stats(c->engine, &s));
    return s;
}

static inline void close_copies(struct copy_world *c)
{
    assert_int_equal(engine_stats(c).host_syncs, 0);
    wr_sim_drain(c->w.sim);
    weir_status s = weir_engine_close(c->engine);
    for (int i = 0; i < 100 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(c->w.sim);
        s = weir_engine_close(c->engine);
    }
    OK(s);
    assert_int_equal(counts_of(&c->w).host_syncs, 0);
    assert_int_equal(wrong_words(&c->w), 0);
    assert_no_reports(&c->w);
    assert_int_equal(end_world(&c->w), 0);
}

/* ---- patterns ---------------------------------------------------------------------------------------- */

static inline unsigned char pattern_at(size_t i, unsigned seed)
{
    return (unsigned char)(i * 31 + (i >> 9) * 7 + seed * 101 + 1);
}

static inline void make_pattern(void *to, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] = pattern_at(i, seed);
}

static inline void assert_pattern(const void *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)at)[i] != pattern_at(i, seed))
            fail_msg("byte %zu of %zu is wrong", i, bytes);
}

static inline void assert_device_pattern(struct copy_world *c, weir_dptr at, size_t bytes, unsigned seed)
{
    unsigned char *seen = malloc(bytes);
    assert_non_null(seen);
    wr_sim_peek(c->w.sim, at, seen, bytes);
    assert_pattern(seen, bytes, seed);
    free(seen);
}

static inline void *pinned_pattern(struct copy_world *c, size_t bytes, unsigned seed)
{
    void *host;
    OK(weir_host_alloc(c->w.pool, bytes, &host));
    make_pattern(host, bytes, seed);
    return host;
}

static inline void *pageable_pattern(size_t bytes, unsigned seed)
{
    void *host = malloc(bytes);
    assert_non_null(host);
    make_pattern(host, bytes, seed);
    return host;
}

static inline weir_dptr device_block(struct copy_world *c, size_t bytes)
{
    weir_dptr block;
    OK(weir_alloc(c->w.pool, bytes, c->home, &block));
    return block;
}

/* ---- copies ------------------------------------------------------------------------------------------ */

static inline weir_piece piece(uint64_t to, uint64_t from, size_t bytes)
{
    return (weir_piece){.to = to, .from = from, .bytes = bytes};
}

static inline uint64_t host_address(const void *p)
{
    return (uintptr_t)p;
}

static inline weir_ticket copy_one(
    struct copy_world *c, weir_direction direction, weir_piece p, const weir_copy_options *o)
{
    weir_ticket t = {0};
    OK(weir_copy(c->engine, direction, &p, 1, o, &t));
    return t;
}

static inline void copy_and_wait(struct copy_world *c, weir_direction direction, weir_piece p)
{
    OK(weir_copy_wait(c->engine, copy_one(c, direction, p, NULL), -1));
}

static inline weir_copy_options after(const weir_stream *stream)
{
    return (weir_copy_options){.struct_size = sizeof(weir_copy_options), .after = stream, .n_after = 1};
}

#endif
