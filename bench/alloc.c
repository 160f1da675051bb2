/* SPDX-License-Identifier: Apache-2.0
 *
 * What alloc and free cost, beside peers that do the same in the same run: tsl::BFCAllocator where
 * bench/peers.sh has built it, and on a GPU the driver's stream-ordered allocator; bench/peers.py adds those that
 * Python packages bring (peer.h). Without a GPU weir runs over a
 * device that does nothing (null_device.c), so that what is timed is weir itself; BFC hands out mere addresses on
 * either machine.
 */
#include "load.h"
#include "null_device.h"
#include "peer.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

enum { MOST_SUBJECTS = 8, SMALL_BYTES = 512, MIX_BYTES = 16 << 20, CROWD_BYTES = 32 << 10 };

struct bench {
    struct wr_harness h;
    struct wr_device null, *device;
    weir_pool *pool, *checked; /* one knows its streams by announcement, one by asking: see weir_streams */
    weir_stream streams[WR_SUBJECT_STREAMS];
    struct wr_subject subjects[MOST_SUBJECTS];
    unsigned n_subjects;
};

static void print_figure(
    struct bench *b, const struct wr_subject *s, const char *figure, double value, const char *unit)
{
    printf("| %s | %s | %.1f %s |\n", figure, s->name, value, unit);
    fflush(stdout);
    wr_harness_result(&b->h, figure, s->name, value, unit);
}

/* The turn of another subject. */
static const struct wr_subject *enter(struct bench *b, unsigned i)
{
    const struct wr_subject *s = &b->subjects[i];
    if (!wr_subject_enter(s, s->streams[0]))
        wr_harness_end(&b->h, WR_HARNESS_FAILED, "%s: no turn for this thread", s->name);
    return s;
}

/* BFC's time over weir's. */
static void print_ratio(struct bench *b, const char *figure, const double *ns)
{
    for (unsigned i = 0; i < b->n_subjects; i++)
        if (b->subjects[i].bfc.open != NULL) print_figure(b, &b->subjects[0], figure, ns[i] / ns[0], "");
}

/* ---- figures ----------------------------------------------------------------------------------------- */

static void measure_pairs(struct bench *b, bool in_hole)
{
    static const size_t sizes[] = {SMALL_BYTES, 64 << 10, 4 << 20};
    double ns[MOST_SUBJECTS] = {0};
    for (unsigned i = 0; i < b->n_subjects; i++) {
        const struct wr_subject *s = enter(b, i);
        for (size_t k = 0; k < WR_ARRAY_LEN(sizes); k++) {
            double one = wr_load_pair_ns(&b->h, s, sizes[k], in_hole);
            ns[i] = one > ns[i] ? one : ns[i];
        }
        print_figure(b, s, in_hole ? "alloc.pair_hole_ns" : "alloc.pair_ns", ns[i], "ns");
    }
    print_ratio(b, in_hole ? "alloc.pair_hole_vs_bfc" : "alloc.pair_vs_bfc", ns);
}

static void measure_mix(struct bench *b)
{
    double ns[MOST_SUBJECTS] = {0};
    for (unsigned i = 0; i < b->n_subjects; i++) {
        const struct wr_subject *s = enter(b, i);
        struct wr_mix m;
        wr_mix_open(&b->h, &m, s, 512, SMALL_BYTES, MIX_BYTES);
        ns[i] = wr_mix_op_ns(&b->h, &m);
        wr_mix_close(&b->h, &m);
        print_figure(b, s, "alloc.mix_op_ns", ns[i], "ns");
    }
    print_ratio(b, "alloc.mix_vs_bfc", ns);
}

static void measure_threads(struct bench *b)
{
    for (unsigned i = 0; i < b->n_subjects; i++) {
        const struct wr_subject *s = enter(b, i);
        double alone = wr_load_pair_threads_ns(&b->h, s, 1, false);
        double many = wr_load_pair_threads_ns(&b->h, s, WR_SUBJECT_STREAMS, false);
        print_figure(b, s, "alloc.pair_16t_ns", many, "ns");
        print_figure(b, s, "alloc.pair_16t_ratio", many / alone, "");
        print_figure(b, s, "alloc.pair_shared_8t_ns", wr_load_pair_threads_ns(&b->h, s, 8, true), "ns");
        print_figure(b, s, "alloc.cross_thread_pair_ns", wr_load_cross_thread_ns(&b->h, s), "ns");
    }
}

static size_t host_bytes(void)
{
    struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

static double measure_crowd(struct bench *b, const struct wr_subject *s, size_t n_live)
{
    struct wr_mix m;
    wr_mix_open(&b->h, &m, s, n_live, SMALL_BYTES, CROWD_BYTES);
    double ns = wr_mix_op_ns(&b->h, &m);
    if (n_live == 100000) print_figure(b, s, "alloc.p999_us", wr_mix_pair_p999_ns(&b->h, &m) / 1e3, "us");
    wr_mix_close(&b->h, &m);
    return ns;
}

static void measure_crowds(struct bench *b)
{
    for (unsigned i = 0; i < b->n_subjects; i++) {
        const struct wr_subject *s = enter(b, i);
        double few = measure_crowd(b, s, 1000);
        if (s->most_live < 1000000) continue;
        measure_crowd(b, s, 100000);
        print_figure(b, s, "alloc.growth_ratio", measure_crowd(b, s, 1000000) / few, "");
    }
}

/* In a pool of its own: what an earlier crowd left would be used again. */
static void measure_metadata(struct bench *b)
{
    enum { LIVE = 1000000 };
    struct wr_subject s;
    struct wr_mix m;
    weir_pool *pool;
    const weir_pool_options o = {.struct_size = sizeof o};
    wr_harness_must(&b->h, wr_pool_open(b->device, &o, &pool), "opening a pool");
    wr_subject_weir(&s, pool, b->streams);
    size_t before = host_bytes();
    wr_mix_open(&b->h, &m, &s, LIVE, SMALL_BYTES, CROWD_BYTES);
    size_t own = LIVE * sizeof *m.blocks; /* the mix's: its sizes are too few to matter */
    print_figure(b, &s, "memory.metadata_bytes", (double)(host_bytes() - before - own) / LIVE, "B");
    wr_mix_close(&b->h, &m);
    for (unsigned i = 0; i < WR_SUBJECT_STREAMS; i++)
        wr_harness_must(&b->h, weir_stream_retire(pool, b->streams[i]), "retiring a stream");
    wr_harness_close_pool(&b->h, pool);
}

static void measure_driver_calls(struct bench *b)
{
    enum { FIFTIES = 2000 };
    const struct wr_subject *s = &b->subjects[0];
    uint64_t before = 0;
    for (int i = -10; i < FIFTIES; i++) { /* the first are to warm it up */
        if (i == 0) before = atomic_load(&b->device->calls);
        for (int k = 0; k < 25; k++) {
            uint64_t block = s->alloc(s, (size_t)(k + 1) << 14, s->streams[0]);
            if (block == 0 || !s->free(s, block, s->streams[0]))
                wr_harness_end(&b->h, WR_HARNESS_FAILED, "a pair failed: %s", weir_error_text());
        }
    }
    print_figure(
        b, s, "alloc.driver_calls_per_50", (double)(atomic_load(&b->device->calls) - before) / FIFTIES, "");
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void open_device(struct bench *b)
{
    weir_status s = wr_device_get("cuda", 0, &b->device);
    if (s == WEIR_OK) {
        b->h.n_devices = 1;
        wr_harness_open(&b->h, "h200-pcie5", false);
        return;
    }
    if (b->h.device_kind != NULL && strcmp(b->h.device_kind, "cuda") == 0)
        wr_harness_must(&b->h, s, "opening the device");
    fprintf(stderr, "bench/%s: %s; addresses without memory instead\n", b->h.bench, weir_error_text());
    wr_null_device_init(&b->null, (size_t)128 << 30);
    b->device = &b->null;
    wr_harness_describe_cpu(&b->h);
}

static void open_bench(struct bench *b, int argc, char **argv, const struct wr_peer *peers, unsigned n_peers)
{
    wr_harness_parse(
        &b->h, "alloc", "times alloc and free beside BFC and the driver's allocator", argc, argv, NULL, 0);
    open_device(b);
    weir_pool_options o = {.struct_size = sizeof o};
    wr_harness_must(&b->h, wr_pool_open(b->device, &o, &b->checked), "opening a pool");
    o.streams = WEIR_STREAMS_ANNOUNCED;
    wr_harness_must(&b->h, wr_pool_open(b->device, &o, &b->pool), "opening a pool");
    for (unsigned i = 0; i < WR_SUBJECT_STREAMS; i++)
        wr_harness_must(&b->h, b->device->ops->stream_create(b->device, &b->streams[i]), "creating a stream");
    wr_subject_weir(&b->subjects[b->n_subjects++], b->pool, b->streams);
    wr_subject_weir(&b->subjects[b->n_subjects++], b->checked, b->streams);
    b->subjects[1].name = "weir, asking for streams";
    if (wr_subject_bfc(&b->subjects[b->n_subjects])) b->n_subjects++;
    if (b->device != &b->null) wr_subject_driver(&b->subjects[b->n_subjects++], &b->h, b->device, b->streams);
    for (unsigned i = 0; i < n_peers && b->n_subjects < MOST_SUBJECTS; i++)
        wr_subject_peer(&b->subjects[b->n_subjects++], &peers[i], b->streams);
}

static unsigned close_bench(struct bench *b)
{
    for (unsigned i = 0; i < WR_SUBJECT_STREAMS; i++) {
        wr_harness_must(&b->h, weir_stream_retire(b->pool, b->streams[i]), "retiring a stream");
        wr_harness_must(&b->h, weir_stream_retire(b->checked, b->streams[i]), "retiring a stream");
        wr_harness_must(&b->h, b->device->ops->stream_destroy(b->device, b->streams[i]), "destroying it");
    }
    wr_harness_close_pool(&b->h, b->pool);
    wr_harness_close_pool(&b->h, b->checked);
    return wr_harness_close(&b->h);
}

int wr_alloc_run(int argc, char **argv, const struct wr_peer *peers, unsigned n_peers)
{
    static struct bench b;
    open_bench(&b, argc, argv, peers, n_peers);
    printf("Device: %s; driver %s; medians\n\n| figure | subject | value |\n|---|---|---|\n", b.h.label,
        b.h.driver);
    measure_pairs(&b, false);
    measure_pairs(&b, true);
    measure_mix(&b);
    measure_threads(&b);
    measure_metadata(&b);
    measure_crowds(&b);
    measure_driver_calls(&b);
    return close_bench(&b) ? WR_HARNESS_FAILED : 0;
}

int main(int argc, char **argv)
{
    return wr_alloc_run(argc, argv, NULL, 0);
}
