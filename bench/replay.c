/* SPDX-License-Identifier: Apache-2.0
 *
 * How tight an allocator is: replays traces of real programs, and prints by how much the smallest limit that
 * lets one through (how it is searched: find_min_limit), and the memory taken where there is no limit, exceed
 * the greatest sum of live bytes. Over a device that does nothing, as the outcome is one of arithmetic;
 * beside it the real BFC, over addresses too.
 */
#include "bfc.h"
#include "harness.h"
#include "null_device.h"
#include "pool.h"
#include "trace.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TRACES = 256, STEP_LOG2 = 21 }; /* limits are tried in steps of 2 MiB */

#define MOST_BYTES ((uint64_t)256 << 30)

struct ratios {
    double min_limit, peak;
};

struct totals {
    double log_min_limit, log_peak, worst;
    unsigned n;
};

struct bench {
    struct wr_harness h;
    const char *traces;
    struct wr_device device;
    struct wr_bfc bfc;
    bool has_bfc;
    char names[MAX_TRACES][256];
    size_t n_names;
};

/* One allocator under replay: what the two have in common. */
struct subject {
    const char *name;
    /* Replays under a limit. 0: some alloc failed; else the most bytes that were reserved. */
    uint64_t (*replay)(struct bench *b, const struct wr_trace *t, uint64_t limit_bytes, bool growing);
    bool look_above; /* see find_min_limit */
};

/* ---- weir -------------------------------------------------------------------------------------------- */

static weir_status run_weir(
    weir_pool *pool, const struct wr_trace *t, weir_stream *streams, weir_dptr *blocks)
{
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < t->n_events && s == WEIR_OK; i++) {
        const struct wr_trace_event *e = &t->events[i];
        if (e->is_alloc) {
            s = weir_alloc(pool, e->bytes, streams[e->stream], &blocks[e->id]);
        } else {
            s = weir_free(pool, blocks[e->id], streams[e->stream]);
            blocks[e->id] = 0;
        }
    }
    return s;
}

static void open_streams(struct bench *b, weir_stream *streams, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        wr_harness_must(&b->h, b->device.ops->stream_create(&b->device, &streams[i]), "creating a stream");
}

static void close_weir(
    struct bench *b, weir_pool *pool, const struct wr_trace *t, weir_stream *streams, const weir_dptr *blocks)
{
    for (uint32_t i = 0; i < t->n_ids; i++)
        wr_harness_must(&b->h, weir_free(pool, blocks[i], streams[0]), "freeing what is left");
    for (uint32_t i = 0; i < t->n_streams; i++)
        wr_harness_must(&b->h, weir_stream_retire(pool, streams[i]), "retiring a stream");
    wr_harness_close_pool(&b->h, pool);
}

static uint64_t replay_weir(struct bench *b, const struct wr_trace *t, uint64_t limit_bytes, bool growing)
{
    (void)growing; /* it always does */
    weir_pool *pool;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = limit_bytes};
    wr_harness_must(&b->h, wr_pool_open(&b->device, &o, &pool), "opening a pool");
    weir_stream *streams = calloc(t->n_streams + 1, sizeof *streams);
    weir_dptr *blocks = calloc(t->n_ids + 1, sizeof *blocks);
    if (streams == NULL || blocks == NULL) wr_harness_end(&b->h, WR_HARNESS_FAILED, "no host memory");
    open_streams(b, streams, t->n_streams);
    weir_status s = run_weir(pool, t, streams, blocks);
    weir_stats stats = {.struct_size = sizeof stats};
    wr_harness_must(&b->h, weir_pool_stats(pool, &stats), "reading the counters");
    if (s != WEIR_OK && s != WEIR_OUT_OF_MEMORY && s != WEIR_NOT_YET && s != WEIR_TOO_LARGE)
        wr_harness_must(&b->h, s, "a replay");
    close_weir(b, pool, t, streams, blocks);
    free(streams);
    free(blocks);
    return s == WEIR_OK ? stats.peak_reserved_bytes : 0;
}

/* ---- BFC --------------------------------------------------------------------------------------------- */

static uint64_t replay_bfc(struct bench *b, const struct wr_trace *t, uint64_t limit_bytes, bool growing)
{
    void *pool = b->bfc.open(limit_bytes, growing);
    void **blocks = calloc(t->n_ids + 1, sizeof *blocks);
    if (blocks == NULL) wr_harness_end(&b->h, WR_HARNESS_FAILED, "no host memory");
    bool fits = true;
    for (size_t i = 0; i < t->n_events && fits; i++) {
        const struct wr_trace_event *e = &t->events[i];
        if (e->is_alloc) {
            blocks[e->id] = b->bfc.alloc(pool, e->bytes);
            fits = blocks[e->id] != NULL || e->bytes == 0;
        } else if (blocks[e->id] != NULL) {
            b->bfc.free(pool, blocks[e->id]);
            blocks[e->id] = NULL;
        }
    }
    uint64_t peak = fits ? b->bfc.peak(pool) : 0;
    for (uint32_t i = 0; i < t->n_ids; i++)
        if (blocks[i] != NULL) b->bfc.free(pool, blocks[i]);
    free(blocks);
    b->bfc.close(pool);
    return peak;
}

/* ---- ratios ------------------------------------------------------------------------------------------ */

/* By bisection, as if every limit above one that is enough were, too. */
static uint64_t bisect_limit(struct bench *b, const struct subject *s, const struct wr_trace *t)
{
    uint64_t too_small = (t->max_load - 1) >> STEP_LOG2, enough = MOST_BYTES >> STEP_LOG2;
    for (uint64_t step = 1; too_small + step < enough; step *= 2) /* most need little more than the load */
        if (s->replay(b, t, (too_small + step) << STEP_LOG2, false) != 0) enough = too_small + step;
    while (enough - too_small > 1) {
        uint64_t middle = too_small + (enough - too_small) / 2;
        if (s->replay(b, t, middle << STEP_LOG2, false) != 0)
            enough = middle;
        else
            too_small = middle;
    }
    return enough << STEP_LOG2;
}

/* The smallest limit from which on all are enough that are tried: the bisected one may have been luck, as with a
 * little more memory blocks come to lie elsewhere. Limits up to 5 % above it are looked through, in 20 parts, and
 * anew from each that is too small after all. A smaller one that would do by luck is not looked for. The peer is
 * spared that, in its favour: its replays take minutes. */
static uint64_t find_min_limit(struct bench *b, const struct subject *s, const struct wr_trace *t)
{
    uint64_t found = bisect_limit(b, s, t), step = UINT64_C(1) << STEP_LOG2;
    uint64_t part = wr_max(wr_round_down(t->max_load / 400, step), step);
    if (!s->look_above) return found;
    for (uint64_t limit = found + part; limit <= found + 20 * part; limit += part)
        if (s->replay(b, t, limit, false) == 0) found = limit + part;
    return found;
}

static struct ratios measure(struct bench *b, const struct subject *s, const struct wr_trace *t)
{
    uint64_t peak = s->replay(b, t, MOST_BYTES, true);
    if (peak == 0) wr_harness_end(&b->h, WR_HARNESS_FAILED, "%s fails without a limit", s->name);
    return (struct ratios){.min_limit = (double)find_min_limit(b, s, t) / (double)t->max_load,
        .peak = (double)peak / (double)t->max_load};
}

static void add_to(struct totals *sum, struct ratios r)
{
    sum->log_min_limit += log(r.min_limit);
    sum->log_peak += log(r.peak);
    if (r.min_limit > sum->worst) sum->worst = r.min_limit;
    sum->n++;
}

/* "torch_bcrafton" of torch_bcrafton.csv.gz. */
static void name_trace(char *out, size_t size, const char *file)
{
    snprintf(out, size, "%.*s", (int)(strstr(file, ".csv") - file), file);
}

static void report_trace(struct bench *b, const struct subject *s, const char *trace, struct ratios r)
{
    char figure[300];
    printf(" %.4f | %.4f |", r.min_limit, r.peak);
    snprintf(figure, sizeof figure, "memory.min_limit:%s", trace);
    wr_harness_result(&b->h, figure, s->name, r.min_limit, "");
    snprintf(figure, sizeof figure, "memory.peak_ratio:%s", trace);
    wr_harness_result(&b->h, figure, s->name, r.peak, "");
}

static void report(struct bench *b, const struct subject *s, const struct totals *sum)
{
    double min_limit = exp(sum->log_min_limit / sum->n), peak = exp(sum->log_peak / sum->n);
    printf(
        "\n%s: memory.min_limit_geomean %.4f, memory.min_limit_worst %.4f, memory.peak_ratio_geomean %.4f\n",
        s->name, min_limit, sum->worst, peak);
    wr_harness_result(&b->h, "memory.min_limit_geomean", s->name, min_limit, "");
    wr_harness_result(&b->h, "memory.min_limit_worst", s->name, sum->worst, "");
    wr_harness_result(&b->h, "memory.peak_ratio_geomean", s->name, peak, "");
}

/* ---- the run ----------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* minimalloc's units are not bytes of a GPU's memory, and azure's traces are not of allocations. */
static bool is_ours(const char *name)
{
    static const char *const kinds[] = {"torch_", "somas_", "iopddl_", "weir_"};
    for (size_t i = 0; i < WR_ARRAY_LEN(kinds); i++)
        if (strncmp(name, kinds[i], strlen(kinds[i])) == 0) return strstr(name, ".csv") != NULL;
    return false;
}

static void list_traces(struct bench *b)
{
    DIR *d = opendir(b->traces);
    if (d == NULL) wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "no folder %s", b->traces);
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL && b->n_names < MAX_TRACES)
        if (is_ours(entry->d_name)) snprintf(b->names[b->n_names++], sizeof b->names[0], "%s", entry->d_name);
    closedir(d);
    if (b->n_names == 0) wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "%s has no trace", b->traces);
    qsort(b->names, b->n_names, sizeof b->names[0], compare_names);
}

static void open_bench(struct bench *b, int argc, char **argv)
{
    b->traces = getenv("WEIR_TRACES");
    const struct wr_harness_option options[] = {{"--traces", WR_OPTION_TEXT, &b->traces,
        "folder of traces, $WEIR_TRACES: t_us,op,id,bytes,stream; torch_*, somas_*, iopddl_*, weir_*"}};
    wr_harness_parse(&b->h, "replay", "replays allocation traces, and says how much memory they need", argc,
        argv, options, WR_ARRAY_LEN(options));
    if (b->traces == NULL)
        wr_harness_end(&b->h, WR_HARNESS_BAD_INPUT, "give --traces FOLDER or $WEIR_TRACES");
    wr_null_device_init(&b->device, MOST_BYTES);
    wr_harness_describe_cpu(&b->h);
    b->has_bfc = wr_bfc_find(&b->bfc);
    list_traces(b);
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const struct subject subjects[] = {{"weir", replay_weir, true}, {"BFC", replay_bfc, false}};
    struct totals totals[WR_ARRAY_LEN(subjects)] = {{0}};
    open_bench(&b, argc, argv);
    size_t n_subjects = b.has_bfc ? 2 : 1;
    printf("Over the max load: the smallest limit that replays the trace; peak reserved without a limit\n\n");
    printf("| trace | max load, MB | weir limit | weir peak | BFC limit | BFC growing "
           "|\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < b.n_names; i++) {
        char path[4096], name[256];
        struct wr_trace t;
        snprintf(path, sizeof path, "%s/%s", b.traces, b.names[i]);
        const char *wrong = wr_trace_read(path, &t);
        if (wrong != NULL) wr_harness_end(&b.h, WR_HARNESS_BAD_INPUT, "%s: %s", path, wrong);
        wr_harness_progress(&b.h, b.names[i], i, b.n_names);
        name_trace(name, sizeof name, b.names[i]);
        printf("| %s | %.1f |", name, (double)t.max_load / 1e6);
        for (size_t s = 0; s < n_subjects; s++) {
            struct ratios r = measure(&b, &subjects[s], &t);
            add_to(&totals[s], r);
            report_trace(&b, &subjects[s], name, r);
        }
        printf("%s\n", b.has_bfc ? "" : " - | - |");
        fflush(stdout);
        wr_trace_fini(&t);
    }
    for (size_t s = 0; s < n_subjects; s++)
        report(&b, &subjects[s], &totals[s]);
    return 0;
}
