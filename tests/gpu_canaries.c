/* SPDX-License-Identifier: Apache-2.0
 *
 * Canaries: does a block's data stay its owner's?  gpu_canaries [seconds] [device kind]
 *
 * Threads with streams of their own share one small pool. Kernels write a tag into each block, dawdle, and
 * verify it on whatever stream uses the block next; blocks change hands between threads with an event, are
 * freed at home or far from it, under trims and streams that are retired, destroyed and made again. A word
 * that is not its block's tag is a mismatch, and there must be none. Exits 77 where there is no GPU;
 * "sim" as kind runs the same on a simulated one.
 */
#include "board.h"
#include "close_pool.h"
#include "kernels.h"

enum { THREADS = 6, OWN_STREAMS = 3, OWN_BLOCKS = 48, PLACES = 24, SPIN_MOST_NS = 200000 };

#define LIMIT      ((size_t)768 << 20)
#define COPY_BYTES ((size_t)64 << 10)

struct counts {
    uint64_t served, refused, verified_bytes, taken, copies, trims, ended, mismatches;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    struct hands hands;
    weir_stream quiet;  /* where the counters live, never ended */
    weir_dptr counters; /* of wrong words, one for each stream */
    struct counts counts;
};

static struct wr_device *device;
static weir_pool *pool;
static uint64_t end_ns;
static struct board board;

static uint64_t draw(struct worker *t, uint64_t below)
{
    return next_random(&t->random) % below;
}

static struct block *draw_block(struct worker *t) /* NULL: there is none */
{
    return t->hands.n_blocks > 0 ? &t->hands.blocks[draw(t, t->hands.n_blocks)] : NULL;
}

/* ---- what streams do --------------------------------------------------------------------------------- */

static void dawdle(struct worker *t, unsigned s)
{
    if (draw(t, 4) == 0) OK(wr_kernels_spin(device, t->hands.streams[s], draw(t, SPIN_MOST_NS)));
}

static void write_tag(struct worker *t, struct block *b)
{
    b->tag = board_new_tag(&board);
    OK(wr_kernels_fill(device, t->hands.streams[b->last], b->address, b->bytes, b->tag));
    dawdle(t, b->last);
}

static void verify_tag(struct worker *t, const struct block *b)
{
    dawdle(t, b->last);
    OK(wr_kernels_verify(device, t->hands.streams[b->last], b->address, b->bytes, b->tag,
        t->counters + b->last * sizeof(uint64_t)));
    t->counts.verified_bytes += b->bytes;
}

static void declare(struct worker *t, const struct block *b)
{
    if (b->home != (int)b->last) OK(weir_touch(pool, b->address, t->hands.streams[b->last], 0));
}

/* ---- operations -------------------------------------------------------------------------------------- */

/* Half from a few sizes that come again and again, the rest of any size up to 64 MiB, small ones most often.
 */
static size_t draw_bytes(struct worker *t)
{
    static const size_t usual[] = {512, 4096, 100000, 1 << 20, 2 << 20, 5 << 20};
    static const unsigned most_log2[] = {9, 12, 16, 16, 20, 21, 22, 24, 26};
    if (draw(t, 2) == 0) return usual[draw(t, WR_ARRAY_LEN(usual))];
    return 4 + draw(t, (uint64_t)1 << most_log2[draw(t, WR_ARRAY_LEN(most_log2))]) / 4 * 4;
}

static void run_alloc(struct worker *t)
{
    if (t->hands.n_blocks == OWN_BLOCKS) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    struct block b = {.bytes = draw_bytes(t), .last = s, .home = (int)s};
    weir_status st = weir_alloc(pool, b.bytes, t->hands.streams[s], &b.address);
    bool refused = st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY;
    t->counts.served += st == WEIR_OK;
    t->counts.refused += refused;
    if (refused) return;
    ok(st, "weir_alloc");
    write_tag(t, &b);
    t->hands.blocks[t->hands.n_blocks++] = b;
}

static void run_use(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    hands_join(&t->hands, b->last, s);
    b->last = s;
    verify_tag(t, b);
    if (draw(t, 2) == 0) write_tag(t, b);
    declare(t, b);
}

/* Its last use is not declared: the free covers it. */
static void run_free(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL) return;
    verify_tag(t, b);
    OK(weir_free(pool, b->address, t->hands.streams[b->last]));
    hands_drop(&t->hands, b);
}

/* Pinned memory is freed behind its copy; who gets it next writes it at once. */
static void run_copy(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b == NULL || b->bytes > COPY_BYTES) return;
    uint32_t *host;
    OK(weir_host_alloc(pool, b->bytes, (void **)&host));
    b->tag = board_new_tag(&board);
    for (size_t i = 0; i < b->bytes / sizeof *host; i++)
        host[i] = b->tag;
    weir_stream s = t->hands.streams[b->last];
    OK(device->ops->copy(device, WR_COPY_H2D, b->address, (uintptr_t)host, b->bytes, s));
    OK(weir_host_free(pool, host, s));
    declare(t, b);
    t->counts.copies++;
}

static struct place *draw_place(struct worker *t)
{
    return &board.places[draw(t, board.n_places)];
}

static void run_give(struct worker *t)
{
    struct block *b = draw_block(t);
    if (b != NULL) hands_give(&t->hands, b, draw_place(t));
}

static void run_take(struct worker *t)
{
    if (t->hands.n_blocks == OWN_BLOCKS) return;
    unsigned s = (unsigned)draw(t, OWN_STREAMS);
    struct block *b = hands_take(&t->hands, s, draw_place(t));
    if (b == NULL) return;
    verify_tag(t, b);
    declare(t, b);
    t->counts.taken++;
}

static void run_trim(struct worker *t)
{
    OK(weir_trim(pool, draw(t, LIMIT), NULL));
    t->counts.trims++;
}

static void run_end_stream(struct worker *t)
{
    unsigned gone = (unsigned)draw(t, OWN_STREAMS), heir = hands_end_stream(&t->hands, gone);
    hands_join(&t->hands, heir, gone); /* both use the counter of that place */
    t->counts.ended++;
}

static const struct {
    unsigned weight;
    void (*run)(struct worker *);
} operations[] = {{300, run_alloc}, {230, run_free}, {150, run_use}, {80, run_give}, {80, run_take},
    {80, run_copy}, {3, run_trim}, {3, run_end_stream}};

/* ---- a run ------------------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct worker *t = arg;
    unsigned sum = 0;
    for (size_t i = 0; i < WR_ARRAY_LEN(operations); i++)
        sum += operations[i].weight;
    while (device->ops->now_ns(device) < end_ns) {
        uint64_t at = draw(t, sum);
        size_t i = 0;
        for (; at >= operations[i].weight; i++)
            at -= operations[i].weight;
        operations[i].run(t);
    }
    return NULL;
}

static void open_worker(struct worker *t, uint64_t seed)
{
    *t = (struct worker){.random = seed * UINT64_C(0x9e3779b97f4a7c15)};
    hands_open(&t->hands, &board, OWN_STREAMS);
    OK(device->ops->stream_create(device, &t->quiet));
    OK(weir_alloc(pool, sizeof(uint64_t) * OWN_STREAMS, t->quiet, &t->counters));
    OK(device->ops->fill(device, t->counters, 0, sizeof(uint64_t) * OWN_STREAMS, t->quiet));
    OK(device->ops->stream_sync(device, t->quiet));
}

static void end_stream(weir_stream s)
{
    OK(weir_stream_retire(pool, s));
    OK(device->ops->stream_sync(device, s));
    OK(device->ops->stream_destroy(device, s));
}

/* Verifies and frees what is left, and reads the counters. */
static void close_worker(struct worker *t, struct counts *sum)
{
    uint64_t wrong[OWN_STREAMS];
    while (t->hands.n_blocks > 0)
        run_free(t);
    for (int i = 0; i < OWN_STREAMS; i++)
        end_stream(t->hands.streams[i]);
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)wrong, t->counters, sizeof wrong, t->quiet));
    OK(device->ops->stream_sync(device, t->quiet));
    OK(weir_free(pool, t->counters, t->quiet));
    end_stream(t->quiet);
    OK(device->ops->event_destroy(device, t->hands.event));
    for (int i = 0; i < OWN_STREAMS; i++)
        sum->mismatches += wrong[i];
    sum->served += t->counts.served;
    sum->refused += t->counts.refused;
    sum->verified_bytes += t->counts.verified_bytes;
    sum->taken += t->counts.taken;
    sum->copies += t->counts.copies;
    sum->trims += t->counts.trims;
    sum->ended += t->counts.ended;
}

static void print_counts(const struct counts *c)
{
    weir_stats s = {.struct_size = sizeof s};
    OK(weir_pool_stats(pool, &s));
    printf(
        "  %llu allocs served (%llu slow), %llu refused; %llu blocks taken over; %llu copies; %llu trims\n",
        (unsigned long long)c->served, (unsigned long long)s.slow_allocs, (unsigned long long)c->refused,
        (unsigned long long)c->taken, (unsigned long long)c->copies, (unsigned long long)c->trims);
    printf("  %llu streams ended; %llu ticks; %llu segments mapped, %llu unmapped; %.1f GB verified\n",
        (unsigned long long)c->ended, (unsigned long long)s.ticks, (unsigned long long)s.grows,
        (unsigned long long)s.trims, (double)c->verified_bytes / 1e9);
    printf("  mismatches: %llu\n", (unsigned long long)c->mismatches);
    assert_int_equal(s.live_blocks, 0);
    assert_int_equal(s.host_waits + s.stream_waits, 0);
}

static void close_pool(void)
{
    OK(weir_pool_check(pool));
    OK(close_pool_within(pool, WR_NS_PER_SEC));
}

static unsigned seconds = 20;
static const char *kind = "cuda";

static void test_canaries_of_many_threads_find_no_wrong_word(void **state)
{
    (void)state;
    static struct worker workers[THREADS];
    struct counts sum = {0};
    weir_pool_options o = {.struct_size = sizeof o, .device_kind = kind, .limit_bytes = LIMIT};
    OK(weir_pool_open(&o, &pool));
    board_open(&board, device, pool, PLACES);
    for (int i = 0; i < THREADS; i++)
        open_worker(&workers[i], (uint64_t)i + 1);
    end_ns = device->ops->now_ns(device) + seconds * WR_NS_PER_SEC;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    board_close(&board, workers[0].hands.streams[0]);
    for (int i = 0; i < THREADS; i++)
        close_worker(&workers[i], &sum);
    print_counts(&sum);
    close_pool();
    assert_int_equal(sum.mismatches, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) seconds = (unsigned)strtoul(argv[1], NULL, 10);
    if (argc > 2) kind = argv[2];
    if (wr_device_get(kind, 0, &device) != WEIR_OK) {
        printf("skipped: %s\n", weir_error_text());
        return 77;
    }
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* an assertion in a thread can't jump to the test */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_canaries_of_many_threads_find_no_wrong_word)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
