/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine under random copies: first one thread under an adversary that completes them in any legal order, then
 * several threads on the wall clock. Each round moves a pattern up, across and down again, through memory of any kind,
 * behind streams or not; every byte is compared.
 *
 *   stress_copy [ROUNDS [SEED]]
 */
#include "copy_world.h"

enum { THREADS = 4, LARGEST = 700 << 10, MOST_PIECES = 60 };

struct actor {
    struct copy_world *c;
    uint64_t random;
    unsigned rounds;
    weir_stream stream;
    weir_dptr a, b;
    unsigned char *pinned, *pageable, *back;
};

/* A thread can't fail a test of CMocka's: the program ends. */
static void must(weir_status s, const char *what)
{
    if (s == WEIR_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, weir_status_name(s), weir_error_text());
    abort();
}

static size_t cut_pieces(struct actor *a, weir_piece *pieces, uint64_t to, uint64_t from, size_t bytes)
{
    size_t n = 0, at = 0, most = next_random(&a->random) % 3 == 0 ? MOST_PIECES : 3;
    while (at < bytes) {
        size_t part =
            n + 1 == most ? bytes - at : wr_min(bytes - at, 1 + next_random(&a->random) % (2 * bytes / most));
        pieces[n++] = piece(to + at, from + at, part);
        at += part;
    }
    for (size_t i = n - 1; i > 0; i--) { /* in any order */
        size_t j = next_random(&a->random) % (i + 1);
        weir_piece p = pieces[i];
        pieces[i] = pieces[j];
        pieces[j] = p;
    }
    return n;
}

/* The copy, behind what is queued on the actor's stream or nothing, and the stream behind the copy where it can be. */
static void copy_randomly(struct actor *a, weir_direction d, uint64_t to, uint64_t from, size_t bytes)
{
    weir_piece pieces[MOST_PIECES];
    size_t n = cut_pieces(a, pieces, to, from, bytes);
    weir_copy_options o = after(&a->stream);
    o.timeout_ns = -1;
    o.flags = next_random(&a->random) % 2 ? WEIR_COPY_URGENT : 0;
    weir_ticket t;
    must(weir_copy(a->c->engine, d, pieces, n, &o, &t), "copy");
    weir_status s = weir_copy_join(a->c->engine, t, a->stream);
    if (s == WEIR_WOULD_BLOCK) s = weir_copy_wait(a->c->engine, t, -1);
    must(s, "join");
    if (next_random(&a->random) % 2) must(weir_copy_wait(a->c->engine, t, -1), "wait");
}

static void play_round(struct actor *a)
{
    size_t bytes = 1 + next_random(&a->random) % LARGEST;
    unsigned seed = (unsigned)next_random(&a->random) % 200;
    unsigned char *from = next_random(&a->random) % 2 ? a->pinned : a->pageable;
    unsigned char *back = next_random(&a->random) % 2 ? a->pinned : a->back;
    make_pattern(from, bytes, seed);
    copy_randomly(a, WEIR_TO_DEVICE, a->a, host_address(from), bytes);
    copy_randomly(a, WEIR_ON_DEVICE, a->b, a->a, bytes);
    weir_piece all = piece(host_address(back), a->b, bytes);
    weir_copy_options o = after(&a->stream);
    o.timeout_ns = -1;
    weir_ticket t;
    must(weir_copy(a->c->engine, WEIR_TO_HOST, &all, 1, &o, &t), "copy down");
    must(weir_copy_wait(a->c->engine, t, -1), "wait");
    for (size_t i = 0; i < bytes; i++)
        if (back[i] != pattern_at(i, seed)) {
            fprintf(stderr, "byte %zu of %zu came back wrong\n", i, bytes);
            abort();
        }
}

static void *act(void *arg)
{
    struct actor *a = arg;
    for (unsigned i = 0; i < a->rounds; i++)
        play_round(a);
    return NULL;
}

static void open_actor(struct actor *a, struct copy_world *c, int i, uint64_t seed, unsigned rounds)
{
    *a = (struct actor){
        .c = c, .random = seed * 1000 + (uint64_t)i + 1, .rounds = rounds, .stream = c->w.stream[i]};
    a->a = device_block(c, LARGEST);
    a->b = device_block(c, LARGEST);
    a->pinned = pinned_pattern(c, LARGEST, 0);
    a->pageable = pageable_pattern(LARGEST, 0);
    a->back = pageable_pattern(LARGEST, 0);
}

static void close_actor(struct actor *a)
{
    OK(weir_free(a->c->w.pool, a->a, a->c->home));
    OK(weir_free(a->c->w.pool, a->b, a->c->home));
    free(a->pageable);
    free(a->back);
}

static unsigned rounds = 200;
static uint64_t first_seed = 1;

static void test_any_legal_order_of_completions_moves_the_same_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + 4; seed++) {
        struct copy_world c;
        struct actor a;
        struct wr_sim_options sim = world_options();
        weir_engine_options o = small_engine();
        sim.adversary_seed = seed;
        open_copies_with(&c, &sim, &o);
        open_actor(&a, &c, 0, seed, rounds / 8 + 1);
        act(&a);
        close_actor(&a);
        close_copies(&c);
    }
}

static void test_threads_share_an_engine(void **state)
{
    (void)state;
    struct copy_world c;
    struct actor actors[THREADS];
    pthread_t threads[THREADS];
    struct wr_sim_options sim = world_options();
    weir_engine_options o = small_engine();
    sim.wall_clock = true;
    open_copies_with(&c, &sim, &o);
    for (int i = 0; i < THREADS; i++) {
        open_actor(&actors[i], &c, i, first_seed, rounds / 4 + 1);
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        close_actor(&actors[i]);
    close_copies(&c);
}

struct stager_thread {
    struct copy_world *c;
    weir_dptr block;
    unsigned seed;
};

static void *stage_again_and_again(void *argument)
{
    struct stager_thread *t = argument;
    unsigned char *from = pageable_pattern(LARGEST, t->seed), *back = pageable_pattern(LARGEST, t->seed + 1);
    for (unsigned i = 0; i < rounds / 4 + 1; i++) {
        weir_piece up = piece(t->block, host_address(from), LARGEST);
        weir_piece down = piece(host_address(back), t->block, LARGEST);
        OK(weir_copy_wait(t->c->engine, copy_one(t->c, WEIR_TO_DEVICE, up, NULL), -1));
        OK(weir_copy_wait(t->c->engine, copy_one(t->c, WEIR_TO_HOST, down, NULL), -1));
        assert_memory_equal(from, back, LARGEST);
    }
    free(from);
    free(back);
    return NULL;
}

/* Whoever waits for a slab must hold none. */
static void test_more_threads_than_slabs_do_not_wait_for_each_other(void **state)
{
    (void)state;
    enum { MANY = 8 };
    struct copy_world c;
    struct stager_thread stagers[MANY];
    pthread_t threads[MANY];
    struct wr_sim_options sim = world_options();
    weir_engine_options o = small_engine();
    sim.wall_clock = true;
    o.staging_bytes = 4 * o.chunk_bytes;
    open_copies_with(&c, &sim, &o);
    for (unsigned i = 0; i < MANY; i++) {
        stagers[i] = (struct stager_thread){&c, device_block(&c, LARGEST), i};
        assert_int_equal(pthread_create(&threads[i], NULL, stage_again_and_again, &stagers[i]), 0);
    }
    for (unsigned i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < MANY; i++)
        OK(weir_free(c.w.pool, stagers[i].block, c.home));
    close_copies(&c);
}

int main(int argc, char **argv)
{
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_legal_order_of_completions_moves_the_same_bytes),
        cmocka_unit_test(test_threads_share_an_engine),
        cmocka_unit_test(test_more_threads_than_slabs_do_not_wait_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
