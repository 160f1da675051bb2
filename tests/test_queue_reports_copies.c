/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other prefetchers ran into, each by its number in the list of reports: those about copies between
 * the host and devices, in every direction, by weir_copy. Sizes are scaled down where the simulation would have to
 * move real gigabytes.
 */
#include "copy_pair.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

#define MS ((uint64_t)1000000)

static uint64_t now(struct copy_world *c)
{
    return c->w.device->ops->now_ns(c->w.device);
}

/* Moves time in small steps until the copy is over. */
static uint64_t end_of(struct copy_world *c, weir_ticket t)
{
    const uint64_t step_ns = 1000;
    while (weir_copy_wait(c->engine, t, 0) != WEIR_OK)
        wr_sim_advance(c->w.sim, step_ns);
    return now(c);
}

/* ---- Q03: a small copy behind a large one ------------------------------------------------------------ */

enum { BULK = 192 * MIB, CHUNK = 8 * MIB, URGENT = 64 * KIB };

static const double gbps_50 = 50;

/* How long the bulk takes, and the urgent copy beside it, where there is one. */
static void time_bulk(bool beside, uint64_t *bulk_ns, uint64_t *urgent_ns)
{
    struct copy_world c;
    struct wr_sim_profile profile = *wr_sim_profile_find("h200-pcie5");
    struct wr_sim_options sim = {.profile = &profile};
    void *from;
    profile.h2d_gbps = gbps_50;
    open_copies_with(&c, &sim, NULL);
    OK(weir_host_alloc(c.w.pool, BULK, &from));
    weir_dptr a = device_block(&c, BULK), b = device_block(&c, URGENT);
    weir_copy_options urgent = {.struct_size = sizeof urgent, .flags = WEIR_COPY_URGENT};
    uint64_t start = now(&c);
    weir_ticket bulk = copy_one(&c, WEIR_TO_DEVICE, piece(a, host_address(from), BULK), NULL);
    if (beside) {
        weir_ticket t = copy_one(&c, WEIR_TO_DEVICE, piece(b, host_address(from), URGENT), &urgent);
        *urgent_ns = end_of(&c, t) - start;
    }
    *bulk_ns = end_of(&c, bulk) - start;
    OK(weir_free(c.w.pool, a, c.home));
    OK(weir_free(c.w.pool, b, c.home));
    close_copies(&c);
}

static void test_Q03_a_small_copy_starts_within_two_chunks_of_a_large_one(void **state)
{
    (void)state;
    uint64_t alone, beside, urgent, unused;
    const uint64_t chunk_ns = CHUNK / 50, own_ns = URGENT / 50 + 10000;
    time_bulk(false, &alone, &unused);
    time_bulk(true, &beside, &urgent);
    assert_in_range(alone, BULK / 50, BULK / 50 * 12 / 10);
    assert_in_range(urgent, 1, 2 * chunk_ns + own_ns);
    assert_in_range(beside, alone, alone + alone / 20);
}

/* ---- Q05: four bytes to the host in each step -------------------------------------------------------- */

static void test_Q05_four_bytes_to_the_host_wait_for_their_kernel_alone_and_nobody_for_them(void **state)
{
    (void)state;
    struct copy_world c;
    struct wr_sim_gate *gate;
    open_copies(&c);
    uint32_t *loss = pinned_pattern(&c, sizeof *loss, 1);
    void *up = pinned_pattern(&c, 16 * MIB, 2), *down = pinned_pattern(&c, 16 * MIB, 3);
    weir_dptr value = device_block(&c, sizeof *loss), bulk = device_block(&c, 32 * MIB);
    weir_ticket others[2];
    others[0] = copy_one(&c, WEIR_TO_DEVICE, piece(bulk, host_address(up), 16 * MIB), NULL);
    others[1] = copy_one(&c, WEIR_TO_HOST, piece(host_address(down), bulk + 16 * MIB, 16 * MIB), NULL);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &gate));
    OK(wr_kernels_fill(c.w.device, c.w.stream[0], value, sizeof *loss, 42));
    weir_copy_options o = after(&c.w.stream[0]);
    uint64_t start = now(&c), waits = counts_of(&c.w).stream_waits;
    weir_ticket read = copy_one(&c, WEIR_TO_HOST, piece(host_address(loss), value, sizeof *loss), &o);
    assert_int_equal(now(&c), start);
    assert_int_equal(counts_of(&c.w).stream_waits, waits + 1); /* the copy's own, for the kernel */
    OK(weir_copy_wait(c.engine, others[0], -1));               /* the stalled read holds up neither */
    OK(weir_copy_wait(c.engine, others[1], -1));
    OK(wr_kernels_spin(c.w.device, c.w.stream[1], 1));
    wr_event e;
    bool done = false;
    OK(c.w.device->ops->event_create(c.w.device, &e));
    OK(c.w.device->ops->event_record(c.w.device, e, c.w.stream[1]));
    wr_sim_advance(c.w.sim, 100000);
    OK(c.w.device->ops->event_query(c.w.device, e, &done));
    assert_true(done); /* another stream computes on */
    OK(c.w.device->ops->event_destroy(c.w.device, e));
    assert_int_equal(weir_copy_wait(c.engine, read, 0), WEIR_WOULD_BLOCK);
    assert_pattern(loss, sizeof *loss, 1); /* not before */
    wr_sim_gate_open(gate);
    OK(weir_copy_wait(c.engine, read, -1));
    wr_sim_host_access(c.w.sim, loss, sizeof *loss, false);
    assert_int_equal(*loss, 42);
    OK(weir_free(c.w.pool, value, c.home));
    OK(weir_free(c.w.pool, bulk, c.home));
    close_copies(&c);
}

/* ---- Q06: thousands of scattered pieces -------------------------------------------------------------- */

enum { PIECES = 4096 };

/* A source that no two pieces share, each with a gap behind it but for every eighth, whose neighbour follows. */
struct scattered {
    weir_piece pieces[PIECES];
    weir_span spans[PIECES];
    size_t from_bytes, bytes;
};

/* Pieces of a size, or where that is 0 of 1 byte to 128 KiB, all lengths of numbers alike; some are empty. */
static void scatter(struct scattered *s, size_t piece_bytes)
{
    uint64_t random = 12345;
    size_t from = 0, to = 0;
    for (size_t i = 0; i < PIECES; i++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        size_t most = (size_t)1 << (random >> 33) % 18;
        size_t bytes = piece_bytes ? piece_bytes : most / 2 + (random >> 40) % (most / 2 + 1);
        if (i % 100 == 50) bytes = 0;
        s->pieces[i] = piece(to, from, bytes);
        to += bytes;
        from += bytes + (i % 8 == 0 ? 0 : 1 + i % 61);
    }
    s->bytes = to;
    s->from_bytes = from;
}

static uint64_t calls_of(struct copy_world *c)
{
    return atomic_load(&c->w.device->calls);
}

static void assert_pieces(struct copy_world *c, const struct scattered *s, uint64_t from, weir_dptr at)
{
    unsigned char *seen = malloc(s->bytes);
    assert_non_null(seen);
    wr_sim_peek(c->w.sim, at, seen, s->bytes);
    size_t to = 0;
    for (size_t i = 0; i < PIECES; to += s->pieces[i++].bytes)
        assert_memory_equal(seen + to,
            (const char *)(uintptr_t)(s->pieces[i].from ? s->pieces[i].from : from), s->pieces[i].bytes);
    free(seen);
}

/* By the engine, then by a queue that the same pieces are pushed into. */
static void copy_scattered(struct copy_world *c, struct scattered *s)
{
    unsigned char *from = pinned_pattern(c, s->from_bytes, 4);
    weir_dptr block = device_block(c, s->bytes);
    weir_queue_options o = queue_options(s->bytes, 2);
    weir_item item;
    for (size_t i = 0; i < PIECES; i++) {
        s->pieces[i].from += host_address(from);
        s->pieces[i].to += block;
        s->spans[i] = (weir_span){(const void *)(uintptr_t)s->pieces[i].from, s->pieces[i].bytes};
    }
    uint64_t before = calls_of(c);
    weir_ticket t;
    OK(weir_copy(c->engine, WEIR_TO_DEVICE, s->pieces, PIECES, NULL, &t));
    assert_in_range(calls_of(c) - before, 1, 256);
    OK(weir_copy_wait(c->engine, t, -1));
    assert_pieces(c, s, host_address(from), block);
    OK(weir_queue_open(c->w.pool, &o, &c->w.queue));
    before = calls_of(c);
    OK(weir_queue_push(c->w.queue, s->spans, PIECES, WEIR_PUSH_BORROW, -1, NULL));
    assert_in_range(calls_of(c) - before, 1, 256);
    OK(weir_queue_acquire(c->w.queue, c->w.stream[0], -1, &item));
    wr_sim_drain(c->w.sim);
    assert_pieces(c, s, host_address(from), item.device);
    OK(weir_queue_release(c->w.queue, &item, NULL, 0));
    OK(weir_queue_destroy(c->w.queue));
    OK(weir_free(c->w.pool, block, c->home));
    OK(weir_host_free(c->w.pool, from, WEIR_NO_STREAM));
}

static void test_Q06_thousands_of_pieces_are_few_calls_and_stats_name_the_way(void **state)
{
    (void)state;
    static struct scattered s;
    const size_t sizes[] = {1, 7, 1 * KIB, 2 * KIB + 3, 8 * KIB, 0};
    struct copy_world c;
    struct wr_sim_options sim = world_options();
    open_copies_with(&c, &sim, NULL);
    for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++) {
        scatter(&s, sizes[i]);
        copy_scattered(&c, &s);
    }
    weir_engine_stats stats = engine_stats(&c);
    for (int class = 0; class < WEIR_SMALL_CLASSES; class ++) {
        weir_way way = stats.small_way[class];
        assert_in_range(way, WEIR_WAY_DIRECT, WEIR_WAY_PACKED);
        for (int other = 0; other < WEIR_WAYS; other++) /* the fastest of those measured at open */
            assert_true(
                stats.small_us[class][way] > 0 && stats.small_us[class][way] <= stats.small_us[class][other]);
    }
    assert_true(stats.gather_bytes > 0);
    close_copies(&c);
}

/* ---- Q09: a copy into memory that the other device still writes -------------------------------------- */

static void close_small_pool(struct pair *p, weir_pool *pool)
{
    weir_status s;
    do {
        wr_sim_drain(p->c.w.sim);
        s = weir_pool_close(pool);
    } while (s == WEIR_NOT_YET);
    OK(s);
}

/* The only block of a pool is freed on the target's stalled stream, and given to a stream of its own for the copy, by
 * a wait on the device. No stream that computes, of either device, gets one. */
static void test_Q09_memory_freed_under_a_kernel_of_the_target_is_not_overwritten_by_a_side_stream(
    void **state)
{
    (void)state;
    enum { BYTES = 32 * MIB };
    struct pair p;
    struct wr_sim_gate *gate;
    weir_pool *small;
    weir_stream side;
    weir_dptr freed, taken;
    uint32_t word = 0;
    weir_ticket t;
    open_pair(&p, false, false);
    struct wr_device *target = wr_sim_device(p.c.w.sim, 1);
    weir_pool_options limited = {.struct_size = sizeof limited, .limit_bytes = BYTES};
    OK(wr_pool_open(target, &limited, &small));
    OK(target->ops->stream_create(target, &side));
    OK(weir_engine_link(p.c.engine, small));
    OK(wr_kernels_fill(p.c.w.device, p.c.w.stream[0], p.own, 4096, 7)); /* the producer */
    OK(weir_alloc(small, BYTES, p.there, &freed));
    OK(wr_sim_stall(target, p.there, &gate));
    OK(wr_kernels_fill(target, p.there, freed, 4096, 1)); /* writes late */
    OK(weir_free(small, freed, p.there));
    weir_alloc_options reuse = {.struct_size = sizeof reuse, .reuse = WEIR_REUSE_DEVICE_WAIT};
    uint64_t waits = counts_of(&p.c.w).stream_waits;
    OK(weir_alloc_with(small, BYTES, side, &reuse, &taken));
    assert_int_equal(taken, freed);
    assert_int_equal(counts_of(&p.c.w).stream_waits, waits + 1); /* the side stream's */
    const weir_stream both[] = {p.c.w.stream[0], side};
    weir_copy_options o = {.struct_size = sizeof o, .after = both, .n_after = 2};
    weir_piece there = piece(taken, p.own, 4096);
    OK(weir_copy(p.c.engine, WEIR_ON_DEVICE, &there, 1, &o, &t));
    assert_int_equal(counts_of(&p.c.w).stream_waits, waits + 3); /* the copy's: for producer and block */
    OK(weir_copy_join(p.c.engine, t, side));
    assert_int_equal(counts_of(&p.c.w).stream_waits, waits + 4); /* the consumer's own */
    wr_sim_advance(p.c.w.sim, 10 * MS);
    assert_int_equal(weir_copy_wait(p.c.engine, t, 0), WEIR_WOULD_BLOCK);
    wr_sim_gate_open(gate);
    OK(weir_copy_wait(p.c.engine, t, -1));
    wr_sim_peek(p.c.w.sim, taken, &word, sizeof word);
    assert_int_equal(word, 7);
    OK(weir_free(small, taken, side));
    wr_sim_drain(p.c.w.sim);
    OK(weir_stream_retire(small, side));
    OK(weir_stream_retire(small, p.there));
    OK(target->ops->stream_destroy(target, side));
    close_small_pool(&p, small);
    close_pair(&p);
}

/* ---- Q11: the host reads too early ------------------------------------------------------------------- */

static void read_back(bool pageable)
{
    struct copy_world c;
    enum { N = 1000, BYTES = N * sizeof(uint32_t) };
    uint32_t numbers[N];
    open_copies(&c);
    uint32_t *from = pinned_pattern(&c, BYTES, 1);
    uint32_t *seen = pageable ? pageable_pattern(BYTES, 2) : pinned_pattern(&c, BYTES, 2); /* poison */
    weir_dptr block = device_block(&c, BYTES);
    for (uint32_t i = 0; i < N; i++)
        from[i] = numbers[i] = i;
    copy_and_wait(&c, WEIR_TO_DEVICE, piece(block, host_address(from), BYTES));
    weir_ticket t = copy_one(&c, WEIR_TO_HOST, piece(host_address(seen), block, BYTES), NULL);
    assert_int_equal(weir_copy_wait(c.engine, t, 0), WEIR_WOULD_BLOCK);
    assert_pattern(seen, BYTES, 2);
    OK(weir_copy_wait(c.engine, t, -1));
    wr_sim_host_access(c.w.sim, seen, BYTES, false);
    assert_memory_equal(seen, numbers, BYTES);
    OK(weir_free(c.w.pool, block, c.home));
    if (pageable) free(seen);
    close_copies(&c);
}

static void test_Q11_a_copy_to_the_host_says_would_block_until_every_byte_is_there(void **state)
{
    (void)state;
    read_back(false);
    read_back(true);
}

/* ---- Q14: peer access that does not work ------------------------------------------------------------- */

static void copy_each_way(bool garble)
{
    struct pair p;
    open_pair(&p, false, garble);
    OK(weir_engine_link(p.c.engine, p.peer));
    unsigned char *from = pinned_pattern(&p.c, p.bytes, 1), *cleared = pinned_pattern(&p.c, p.bytes, 2);
    copy_and_wait(&p.c, WEIR_TO_DEVICE, piece(p.own, host_address(from), p.bytes));
    copy_and_wait(&p.c, WEIR_ON_DEVICE, piece(p.other, p.own, p.bytes));
    assert_device_pattern(&p.c, p.other, p.bytes, 1);
    copy_and_wait(&p.c, WEIR_TO_DEVICE, piece(p.own, host_address(cleared), p.bytes));
    copy_and_wait(&p.c, WEIR_ON_DEVICE, piece(p.own, p.other, p.bytes));
    assert_device_pattern(&p.c, p.own, p.bytes, 1);
    weir_engine_stats s = engine_stats(&p.c);
    assert_int_equal(s.links, 1);
    assert_int_equal(s.links_staged, garble);
    assert_int_equal(s.peer_staged_bytes, garble ? 2 * p.bytes : 0);
    close_pair(&p);
}

static void test_Q14_peers_that_lose_bytes_are_found_at_open_and_served_through_the_host(void **state)
{
    (void)state;
    copy_each_way(false);
    copy_each_way(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_Q03_a_small_copy_starts_within_two_chunks_of_a_large_one),
        cmocka_unit_test(test_Q05_four_bytes_to_the_host_wait_for_their_kernel_alone_and_nobody_for_them),
        cmocka_unit_test(test_Q06_thousands_of_pieces_are_few_calls_and_stats_name_the_way),
        cmocka_unit_test(
            test_Q09_memory_freed_under_a_kernel_of_the_target_is_not_overwritten_by_a_side_stream),
        cmocka_unit_test(test_Q11_a_copy_to_the_host_says_would_block_until_every_byte_is_there),
        cmocka_unit_test(test_Q14_peers_that_lose_bytes_are_found_at_open_and_served_through_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
