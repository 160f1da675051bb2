/* SPDX-License-Identifier: Apache-2.0
 *
 * The main job: streams a file into device memory, batch by batch, while the device computes on the batch
 * before. Four ways of feeding run the same loop on the same data (feed.h), and a table shows what each step
 * took.
 *
 * Measured in one run, so that the ratios compare like with like: compute alone on a batch that stays, copies
 * alone from pinned memory, each way, and weir once more with almost no compute, where only the copies
 * count. What a timed step read is checked on the device itself (compute.h); beside that, the source goes
 * through each way once untimed, is copied back and compared byte for byte by checksum.
 *
 * On a simulated device time is virtual: the one host thread runs ahead, and time moves where it waits.
 */
#include "deck.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPUTE_PER_COPY 1.5 /* length of a step where nothing else is asked for */

enum { MOST_REPEATS = 64 };

/* Settings that a simulated profile stands for, used where the options don't say otherwise. */
static const struct setting {
    const char *profile;
    unsigned devices;
    size_t batch_bytes;
    double
        pageable_share; /* compute's share of the time when fed the plain way, which sets the step's length */
    const char *text;
} settings[] = {
    {"gtx1080-pcie3x2", 2, (size_t)1024 * 3 * 224 * 224 * sizeof(float), 0.26,
        "AlexNet, batch 1024 of 3x224x224 float32 a GPU, two GTX 1080; compute is given the length that "
        "makes its "
        "share 26 % when fed from pageable memory on the same stream"},
};

struct rig { /* one device */
    weir_pool *pool;
    weir_stream stream;
    struct wr_compute compute;
    struct wr_feed feed; /* the way being measured */
    /* fed last, and where it is */
    const struct wr_batch *batch;
    weir_dptr at;
};

struct outcome { /* a step of one pass, the mean over the devices */
    double ms, host_ms, stream_waits;
};

struct bench {
    struct wr_harness h;
    const char *file;
    unsigned steps, repeats, depth, batch_mib, queue_mib;
    double compute_ms;
    const struct setting *setting; /* NULL: none */
    size_t batch_bytes;
    size_t fed_bytes; /* what a timed step feeds: a batch, or the source where that is shorter */
    struct wr_source source;
    struct wr_deck deck;
    struct rig rigs[WR_HARNESS_DEVICES];
    size_t checked[WR_FEED_WAYS];
    struct outcome compute_alone, copy_alone, fed[WR_FEED_WAYS];
    struct outcome copy_bound; /* weir, with almost no compute */
};

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

/* ---- setting up -------------------------------------------------------------------------------------- */

static void parse(struct bench *b, int argc, char **argv)
{
    struct wr_harness_option options[] = {
        {"--file", WR_OPTION_TEXT, &b->file,
            "what to stream; else installed shared libraries, 512 MiB of them"},
        {"--batch-mib", WR_OPTION_COUNT, &b->batch_mib, "size of a batch; else 64, or the setting's"},
        {"--steps", WR_OPTION_COUNT, &b->steps,
            "steps of a timed pass; else 200, or 20 or less where simulated"},
        {"--repeats", WR_OPTION_COUNT, &b->repeats, "timed passes, whose median counts; else 5, or 1"},
        {"--compute-ms", WR_OPTION_NUMBER, &b->compute_ms,
            "compute of a step; else 1.5 copies, or the setting's"},
        {"--depth", WR_OPTION_COUNT, &b->depth, "slots of weir's queue; else 2"},
        {"--queue-mib", WR_OPTION_COUNT, &b->queue_mib,
            "limit of the queue's device memory; else depth batches"},
    };
    wr_harness_parse(&b->h, "overlap", "streams a file into device memory while the device computes", argc,
        argv, options, WR_ARRAY_LEN(options));
}

static void choose_setting(struct bench *b)
{
    for (size_t i = 0; b->h.profile && i < WR_ARRAY_LEN(settings); i++)
        if (strcmp(b->h.profile, settings[i].profile) == 0) b->setting = &settings[i];
    if (b->setting && b->h.n_devices == 0) b->h.n_devices = b->setting->devices;
    b->batch_bytes = b->batch_mib ? b->batch_mib * WR_MIB
                     : b->setting ? b->setting->batch_bytes
                                  : 64 * WR_MIB;
    if (!b->depth) b->depth = 2;
}

static void open_source(struct bench *b)
{
    enum wr_source_error e = wr_source_open(&b->source, b->file, wr_max(512 * WR_MIB, b->batch_bytes));
    if (e != WR_SOURCE_OK)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "%s: %s", wr_source_error_name(e), b->source.error);
}

static void open_rig(struct bench *b, unsigned i)
{
    struct rig *r = &b->rigs[i];
    struct wr_device *d = b->h.devices[i];
    weir_pool_options o = {.struct_size = sizeof o, .device = (int)i};
    must(b, wr_pool_open(d, &o, &r->pool), "opening the pool");
    must(b, d->ops->stream_create(d, &r->stream), "creating the compute stream");
    must(b, wr_compute_open(&r->compute, d, r->stream, b->h.world != NULL), "preparing the compute");
}

static void close_rig(struct bench *b, unsigned i)
{
    struct rig *r = &b->rigs[i];
    struct wr_device *d = b->h.devices[i];
    must(b, wr_compute_close(&r->compute), "ending the compute");
    must(b, weir_stream_retire(r->pool, r->stream), "retiring the compute stream");
    must(b, d->ops->stream_destroy(d, r->stream), "destroying the compute stream");
    wr_harness_close_pool(&b->h, r->pool);
}

static void open_bench(struct bench *b)
{
    choose_setting(b);
    open_source(b);
    wr_harness_open(&b->h, "h200-pcie5", false);
    if (!b->steps) b->steps = !b->h.world ? 200 : b->setting ? 12 : 20; /* simulated bytes are copied, too */
    if (!b->repeats) b->repeats = b->h.world ? 1 : 5;
    if (b->repeats > MOST_REPEATS)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "--repeats: %d at most", MOST_REPEATS);
    for (unsigned i = 0; i < b->h.n_devices; i++)
        open_rig(b, i);
    wr_deck_open(&b->deck, &b->h, &b->source, b->rigs[0].pool, b->batch_bytes);
    b->fed_bytes = b->deck.batches[0].bytes;
}

static unsigned close_bench(struct bench *b)
{
    wr_deck_close(&b->deck);
    for (unsigned i = 0; i < b->h.n_devices; i++)
        close_rig(b, i);
    wr_source_close(&b->source);
    return wr_harness_close(&b->h);
}

static void open_feeds(struct bench *b, unsigned way)
{
    for (unsigned i = 0; i < b->h.n_devices; i++) {
        struct rig *r = &b->rigs[i];
        r->feed = (struct wr_feed){
            .way = wr_feed_ways[way],
            .device = b->h.devices[i],
            .pool = r->pool,
            .compute = r->stream,
            .batch_bytes = b->batch_bytes,
            .depth = b->depth,
            .queue_bytes = b->queue_mib * WR_MIB,
        };
        must(b, r->feed.way->open(&r->feed), r->feed.way->name);
    }
}

static void close_feeds(struct bench *b)
{
    for (unsigned i = 0; i < b->h.n_devices; i++) {
        struct rig *r = &b->rigs[i];
        must(b, r->feed.device->ops->stream_sync(r->feed.device, r->stream), "waiting for the end");
        must(b, r->feed.way->close(&r->feed), r->feed.way->name);
        must(b, weir_trim(r->pool, 0, NULL), "trim");
    }
}

/* ---- a pass ------------------------------------------------------------------------------------------ */

enum pass { COMPUTE_ALONE, COPY_ALONE, BOTH };

static weir_status put_batch(struct bench *b, struct rig *r, unsigned step)
{
    r->batch = &b->deck.batches[step % b->deck.n];
    const void *host = r->feed.way->pageable ? r->batch->pageable : r->batch->pinned;
    return r->feed.way->put(&r->feed, host, r->batch->bytes, &r->at);
}

/* One step on one device. Returns the host's time in put and done, in ns. */
static uint64_t run_step(struct bench *b, struct rig *r, enum pass pass, unsigned step)
{
    struct wr_device *d = r->feed.device;
    uint64_t start = d->ops->now_ns(d), between = 0;
    if (pass != COMPUTE_ALONE) must(b, put_batch(b, r, step), r->feed.way->name);
    if (pass != COPY_ALONE) {
        uint64_t put = d->ops->now_ns(d);
        must(b, wr_compute_step(&r->compute, r->at, r->batch->bytes), "a step of compute");
        between = d->ops->now_ns(d) - put;
    }
    if (pass != COMPUTE_ALONE) must(b, r->feed.way->done(&r->feed), r->feed.way->name);
    return d->ops->now_ns(d) - start - between;
}

/* What a device's checksum must be after a pass: each step has read the batch it was fed, twice, and nothing
 * else. */
static uint64_t expected_sum(const struct bench *b, const struct rig *r, enum pass pass, unsigned steps)
{
    uint64_t sum = 0;
    for (unsigned k = 0; k < steps && pass == BOTH; k++)
        sum += WR_COMPUTE_READS * b->deck.batches[k % b->deck.n].word_sum;
    return pass == COMPUTE_ALONE ? steps * WR_COMPUTE_READS * r->batch->word_sum : sum;
}

static void check_sums(struct bench *b, enum pass pass, unsigned steps)
{
    for (unsigned i = 0; i < b->h.n_devices; i++) {
        struct rig *r = &b->rigs[i];
        uint64_t sum = 0;
        must(b, wr_compute_take_sum(&r->compute, &sum), "reading the checksum");
        if (sum != expected_sum(b, r, pass, steps))
            wr_harness_end(&b->h, WR_HARNESS_FAILED, "%s: device %u read wrong bytes in a timed pass",
                r->feed.way->name, i);
    }
}

static uint64_t sum_waits(struct bench *b)
{
    uint64_t sum = 0, one = 0;
    for (unsigned i = 0; i < b->h.n_devices; i++) {
        struct wr_feed *f = &b->rigs[i].feed;
        must(b, f->way->count_waits(f, &one), "counting waits");
        sum += one;
    }
    return sum;
}

static struct outcome run_pass(struct bench *b, enum pass pass, unsigned steps, const char *what)
{
    unsigned n = b->h.n_devices;
    struct wr_device *d = b->h.devices[0];
    uint64_t host_ns = 0, all_ns = 0, waits = sum_waits(b), start = d->ops->now_ns(d);
    for (unsigned k = 0; k < steps; k++) {
        for (unsigned i = 0; i < n; i++)
            host_ns += run_step(b, &b->rigs[i], pass, k);
        wr_harness_progress(&b->h, what, k, steps);
    }
    for (unsigned i = 0; i < n; i++) {
        must(b, d->ops->stream_sync(b->h.devices[i], b->rigs[i].stream), "waiting for a pass");
        all_ns += d->ops->now_ns(d) - start;
    }
    double per_step = (double)steps * n;
    waits = sum_waits(b) - waits;
    check_sums(b, pass, steps);
    return (struct outcome){
        (double)all_ns / per_step / 1e6, (double)host_ns / per_step / 1e6, (double)waits / per_step};
}

static int compare_outcomes(const void *a, const void *b)
{
    double x = ((const struct outcome *)a)->ms, y = ((const struct outcome *)b)->ms;
    return (x > y) - (x < y);
}

/* The pass with the median time. */
static struct outcome measure(struct bench *b, enum pass pass, const char *what)
{
    struct outcome all[MOST_REPEATS];
    run_pass(b, BOTH, b->h.world ? 1 : 3, what); /* memory is there, clocks are up */
    for (unsigned i = 0; i < b->repeats; i++)
        all[i] = run_pass(b, pass, b->steps, what);
    qsort(all, b->repeats, sizeof *all, compare_outcomes);
    return all[b->repeats / 2];
}

/* ---- the measurements -------------------------------------------------------------------------------- */

static void set_step(struct bench *b, double ns)
{
    for (unsigned i = 0; i < b->h.n_devices; i++)
        wr_compute_set_step(&b->rigs[i].compute, (uint64_t)ns);
}

/* The one host thread copies pageable memory for n devices in turn, c ns each. Where compute, k ns, is over
 * before the thread comes back, a step takes n * c and the share is k / (n * c); else it takes c + k. */
static double step_for_share(double share, double c, unsigned n)
{
    return share * n <= n - 1 ? share * n * c : share * c / (1 - share);
}

static double choose_step_ns(struct bench *b)
{
    if (b->compute_ms > 0) return b->compute_ms * 1e6;
    if (!b->setting) return COMPUTE_PER_COPY * b->copy_alone.ms * 1e6;
    double copy_ns = (double)b->batch_bytes / wr_sim_profile_find(b->setting->profile)->pageable_gbps;
    return step_for_share(b->setting->pageable_share, copy_ns, b->h.n_devices);
}

static double measure_alone(struct bench *b)
{
    open_feeds(b, WR_FEED_PINNED);
    b->copy_alone = measure(b, COPY_ALONE, "copies alone");
    double step_ns = choose_step_ns(b);
    set_step(b, step_ns);
    b->compute_alone = measure(b, COMPUTE_ALONE, "compute alone");
    close_feeds(b);
    return step_ns;
}

/* weir carries the whole source, the others a sample of it. */
static void measure_way(struct bench *b, unsigned way, double step_ns)
{
    const char *name = wr_feed_ways[way]->name;
    open_feeds(b, way);
    set_step(b, 0);
    for (unsigned i = 0; i < b->h.n_devices; i++) {
        struct rig *r = &b->rigs[i];
        uint64_t ignored;
        b->checked[way] = wr_deck_check(&b->deck, &r->feed, &r->compute, way == WR_FEED_WEIR ? SIZE_MAX : 3);
        must(b, wr_compute_take_sum(&r->compute, &ignored), "reading the checksum");
    }
    if (way == WR_FEED_WEIR) b->copy_bound = measure(b, BOTH, name);
    set_step(b, step_ns);
    b->fed[way] = measure(b, BOTH, name);
    close_feeds(b);
}

/* ---- telling ----------------------------------------------------------------------------------------- */

static double gbps(const struct bench *b, double ms)
{
    return (double)b->fed_bytes / ms / 1e6;
}

static double wall_ratio(const struct bench *b, unsigned way)
{
    double copy = b->copy_alone.ms, compute = b->compute_alone.ms;
    return b->fed[way].ms / (copy > compute ? copy : compute);
}

static double rate_ratio(const struct bench *b)
{
    return b->copy_alone.ms / b->copy_bound.ms;
}

static void print_setting(const struct bench *b)
{
    const char *clock = b->h.world ? ", SIMULATED on a virtual clock" : "";
    printf("Device: %u x %s%s; driver %s\n", b->h.n_devices, b->h.label, clock, b->h.driver);
    if (b->setting) printf("Setting: %s\n", b->setting->text);
    printf("Data: %.1f MiB, %s; batches of %.1f MiB, %zu held in pinned memory\n",
        (double)b->source.bytes / WR_MIB, b->source.label, (double)b->batch_bytes / WR_MIB, b->deck.n);
    printf("Compute: %s; %.3f ms a step alone\n", b->rigs[0].compute.name, b->compute_alone.ms);
    printf("Copies alone, from pinned memory: %.3f ms a batch, %.1f GB/s\n\n", b->copy_alone.ms,
        gbps(b, b->copy_alone.ms));
}

static void print_table(const struct bench *b)
{
    printf("| way of feeding | ms per step | compute share | copy rate | waits |\n|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WR_FEED_WAYS; i++) {
        const struct outcome *o = &b->fed[i];
        printf("| %s | %.3f | %.2f | %.1f GB/s | host %.3f ms, streams %.1f |\n", wr_feed_ways[i]->name,
            o->ms, b->compute_alone.ms / o->ms, gbps(b, o->ms), o->host_ms, o->stream_waits);
    }
    printf("\nPer device, the mean of %u steps%s. Waits, a step: the host's time inside the feeding calls, "
           "and waits "
           "put on streams.\n",
        b->steps, b->h.n_devices > 1 ? " and of the devices" : "");
}

static void print_verdict(const struct bench *b)
{
    printf("Bytes: all %zu batches came back through weir as they were read (of each other way, %zu).\n"
           "Every timed step read the right ones.\n",
        b->checked[WR_FEED_WEIR], b->checked[WR_FEED_PINNED]);
    printf("overlap.wall_ratio %.3f (weir's step / the longer of copy and compute)\n",
        wall_ratio(b, WR_FEED_WEIR));
    printf("overlap.rate_ratio %.3f (weir's copy rate with almost no compute, %.1f GB/s / copies alone)\n",
        rate_ratio(b), gbps(b, b->copy_bound.ms));
}

static void record(struct bench *b)
{
    for (unsigned i = 0; i < WR_FEED_WAYS; i++) {
        const char *name = wr_feed_ways[i]->name;
        wr_harness_result(&b->h, "overlap.wall_ratio", name, wall_ratio(b, i), "ratio");
        wr_harness_result(&b->h, "overlap.step_ms", name, b->fed[i].ms, "ms");
        wr_harness_result(&b->h, "overlap.compute_share", name, b->compute_alone.ms / b->fed[i].ms, "share");
        wr_harness_result(&b->h, "overlap.copy_rate", name, gbps(b, b->fed[i].ms), "GB/s");
    }
    wr_harness_result(&b->h, "overlap.rate_ratio", "weir", rate_ratio(b), "ratio");
    wr_harness_result(&b->h, "overlap.copy_rate", "copies alone", gbps(b, b->copy_alone.ms), "GB/s");
    wr_harness_result(&b->h, "overlap.step_ms", "compute alone", b->compute_alone.ms, "ms");
    wr_harness_result(&b->h, "overlap.step_ms", "copies alone", b->copy_alone.ms, "ms");
}

int main(int argc, char **argv)
{
    static struct bench b;
    parse(&b, argc, argv);
    open_bench(&b);
    double step_ns = measure_alone(&b);
    for (unsigned way = 0; way < WR_FEED_WAYS; way++)
        measure_way(&b, way, step_ns);
    print_setting(&b);
    print_table(&b);
    print_verdict(&b);
    bool simulated = b.h.world != NULL;
    unsigned reports = close_bench(&b);
    if (simulated) printf("The simulated device's oracle: %u accesses out of order or leaks\n", reports);
    if (reports == 0) record(&b);
    return reports ? WR_HARNESS_FAILED : 0;
}
