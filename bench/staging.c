/* SPDX-License-Identifier: Apache-2.0
 *
 * What pageable memory costs on its way through the transfer engine, by chunk and by hands of the crew, in GB/s:
 *
 *   queue.staging_up_gbs     warm memory to the device
 *   queue.staging_down_gbs   the device to memory that is warm, fresh from the kernel and given back each time, or
 *                            fresh and kept, as results of a program are: in a virtual machine the host pays for those
 *                            again
 *
 * On a simulated device copies take the machine's own time, and say nothing of a bus.
 */
#include "crew.h"
#include "harness.h"
#include "pool.h"
#include "weir_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MOST_ROUNDS = 100 };

struct bench {
    struct wr_harness h;
    unsigned rounds, mb;
    size_t bytes;
    weir_pool *pool;
    weir_engine *engine;
    char *warm;
    char *kept[MOST_ROUNDS + 1];
    unsigned n_kept;
    weir_dptr block;
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static char *map_fresh(struct bench *b)
{
    char *memory = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) wr_harness_end(&b->h, WR_HARNESS_FAILED, "no host memory");
    return memory;
}

/* Milliseconds of one copy between `host` and the device. */
static double time_copy(struct bench *b, weir_direction direction, char *host)
{
    bool up = direction == WEIR_TO_DEVICE;
    weir_piece p = {
        .to = up ? b->block : (uintptr_t)host, .from = up ? (uintptr_t)host : b->block, .bytes = b->bytes};
    weir_ticket t;
    double start = now_ms();
    must(b, weir_copy(b->engine, direction, &p, 1, NULL, &t), "weir_copy");
    must(b, weir_copy_wait(b->engine, t, -1), "waiting for a copy");
    return now_ms() - start;
}

static double up_warm(struct bench *b)
{
    return time_copy(b, WEIR_TO_DEVICE, b->warm);
}

static double down_warm(struct bench *b)
{
    return time_copy(b, WEIR_TO_HOST, b->warm);
}

static double down_fresh(struct bench *b)
{
    char *memory = map_fresh(b);
    double ms = time_copy(b, WEIR_TO_HOST, memory);
    munmap(memory, b->bytes);
    return ms;
}

static double down_kept(struct bench *b)
{
    char *memory = b->kept[b->n_kept++] = map_fresh(b);
    return time_copy(b, WEIR_TO_HOST, memory);
}

static void measure(struct bench *b, const char *figure, const char *memory, double (*way)(struct bench *),
    size_t chunk, unsigned hands)
{
    double gbs[MOST_ROUNDS];
    char subject[64];
    (void)way(b);
    for (unsigned i = 0; i < b->rounds; i++)
        gbs[i] = (double)b->bytes / way(b) / 1e6;
    while (b->n_kept > 0)
        munmap(b->kept[--b->n_kept], b->bytes);
    double median = wr_harness_median(gbs, b->rounds);
    (void)snprintf(subject, sizeof subject, "%s memory, %zu KiB, %u hands", memory, chunk >> 10, hands);
    printf("| %s | %s | %.1f GB/s | %.2f ms |\n", figure, subject, median, (double)b->bytes / median / 1e6);
    fflush(stdout);
    wr_harness_result(&b->h, figure, subject, median, "GB/s");
}

static void measure_engine(struct bench *b, size_t chunk)
{
    weir_engine_options o = {.struct_size = sizeof o,
        .chunk_bytes = chunk,
        .staging_bytes = 128 << 20,
        .flags = WEIR_ENGINE_NO_KERNELS};
    must(b, weir_engine_open(b->pool, &o, &b->engine), "opening an engine");
    must(b, weir_alloc(b->pool, b->bytes, weir_engine_stream(b->engine), &b->block), "device memory");
    wr_crew_restrict(UINT32_MAX);
    unsigned most = wr_crew_hands();
    for (unsigned hands = 1; hands <= most; hands = hands < most && 2 * hands > most ? most : 2 * hands) {
        wr_crew_restrict(hands);
        measure(b, "queue.staging_up_gbs", "warm", up_warm, chunk, hands);
        measure(b, "queue.staging_down_gbs", "warm", down_warm, chunk, hands);
        measure(b, "queue.staging_down_gbs", "fresh", down_fresh, chunk, hands);
        measure(b, "queue.staging_down_gbs", "kept", down_kept, chunk, hands);
    }
    must(b, weir_free(b->pool, b->block, weir_engine_stream(b->engine)), "giving device memory back");
    must(b, weir_engine_close(b->engine), "closing the engine");
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const size_t chunks[] = {1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20};
    const struct wr_harness_option options[] = {
        {"--rounds", WR_OPTION_COUNT, &b.rounds, "copies of each kind; 9 unless told, 1 simulated"},
        {"--mb", WR_OPTION_COUNT, &b.mb, "of each copy; 64 unless told, 8 simulated"},
    };
    wr_harness_parse(&b.h, "staging", "times pageable copies by chunk and by hands", argc, argv, options,
        WR_ARRAY_LEN(options));
    wr_harness_open(&b.h, "h200-pcie5", true);
    if (!b.rounds) b.rounds = b.h.world ? 1 : 9;
    if (!b.mb) b.mb = b.h.world ? 8 : 64;
    if (b.rounds > MOST_ROUNDS)
        wr_harness_end(&b.h, WR_HARNESS_BAD_INPUT, "--rounds: %d at most", MOST_ROUNDS);
    b.bytes = (size_t)b.mb << 20;
    weir_pool_options o = {.struct_size = sizeof o};
    must(&b, wr_pool_open(b.h.devices[0], &o, &b.pool), "opening the pool");
    b.warm = map_fresh(&b);
    memset(b.warm, 1, b.bytes);
    printf("Device: %s%s; driver %s\n| figure | subject | rate | %u MiB take |\n|---|---|---|---|\n",
        b.h.label, b.h.world ? ", SIMULATED" : "", b.h.driver, b.mb);
    for (size_t i = 0; i < WR_ARRAY_LEN(chunks); i++)
        measure_engine(&b, chunks[i]);
    munmap(b.warm, b.bytes);
    wr_harness_close_pool(&b.h, b.pool);
    return wr_harness_close(&b.h) ? WR_HARNESS_FAILED : 0;
}
