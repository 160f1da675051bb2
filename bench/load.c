/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>

enum { REPEATS = 21, PAIRS = 10000, SIZES = 1 << 16, RING = 256, SAMPLES = 200000 };

static void must(const struct wr_harness *h, bool ok, const struct wr_subject *s)
{
    if (!ok) wr_harness_end(h, WR_HARNESS_FAILED, "%s failed a call: %s", s->name, weir_error_text());
}

static bool run_pairs(const struct wr_subject *s, size_t bytes, weir_stream stream, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t block = s->alloc(s, bytes, stream);
        if (block == 0 || !s->free(s, block, stream)) return false;
    }
    return true;
}

double wr_load_pair_ns(const struct wr_harness *h, const struct wr_subject *s, size_t bytes, bool in_hole)
{
    double ns[REPEATS];
    uint64_t row[3] = {0}; /* neighbours, as those who place blocks in order lay them out */
    for (unsigned i = 0; i < 3 && in_hole; i++)
        must(h, (row[i] = s->alloc(s, bytes, s->streams[0])) != 0, s);
    must(h, !in_hole || s->free(s, row[1], s->streams[0]), s);
    must(h, run_pairs(s, bytes, s->streams[0], PAIRS), s);
    for (unsigned i = 0; i < REPEATS; i++) {
        uint64_t start = wr_device_wall_ns();
        bool ok = run_pairs(s, bytes, s->streams[0], PAIRS);
        ns[i] = (double)(wr_device_wall_ns() - start) / PAIRS;
        must(h, ok, s);
    }
    for (unsigned i = 0; i < 3 && in_hole; i += 2)
        must(h, s->free(s, row[i], s->streams[0]), s);
    return wr_harness_median(ns, REPEATS);
}

/* ---- many threads ------------------------------------------------------------------------------------ */

struct team {
    const struct wr_subject *subject;
    pthread_barrier_t barrier;
    bool one_stream;
    _Atomic bool failed;
};

struct member {
    struct team *team;
    unsigned index;
    pthread_t thread;
    uint64_t ns;
};

static void *run_member(void *arg)
{
    struct member *m = arg;
    const struct wr_subject *s = m->team->subject;
    weir_stream stream = s->streams[m->team->one_stream ? 0 : m->index];
    bool ok = wr_subject_enter(s, stream) && run_pairs(s, 64 << 10, stream, 100);
    pthread_barrier_wait(&m->team->barrier);
    uint64_t start = wr_device_wall_ns();
    ok &= run_pairs(s, 64 << 10, stream, PAIRS);
    m->ns = wr_device_wall_ns() - start;
    if (!ok) atomic_store(&m->team->failed, true);
    return NULL;
}

static double run_team(const struct wr_harness *h, const struct wr_subject *s, unsigned n, bool one_stream)
{
    struct team team = {.subject = s, .one_stream = one_stream};
    struct member members[WR_SUBJECT_STREAMS] = {{0}};
    double ns = 0;
    pthread_barrier_init(&team.barrier, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        members[i] = (struct member){.team = &team, .index = i};
        if (pthread_create(&members[i].thread, NULL, run_member, &members[i]) != 0)
            wr_harness_end(h, WR_HARNESS_FAILED, "no more threads");
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(members[i].thread, NULL);
        ns += (double)members[i].ns / PAIRS / n;
    }
    pthread_barrier_destroy(&team.barrier);
    must(h, !atomic_load(&team.failed), s);
    return ns;
}

double wr_load_pair_threads_ns(
    const struct wr_harness *h, const struct wr_subject *s, unsigned n, bool one_stream)
{
    enum { TEAMS = 5 };
    double ns[TEAMS];
    assert(n <= WR_SUBJECT_STREAMS);
    for (unsigned i = 0; i < TEAMS; i++)
        ns[i] = run_team(h, s, n, one_stream);
    return wr_harness_median(ns, TEAMS);
}

/* ---- frees by another thread ------------------------------------------------------------------------- */

/* PAIRS: what the producer wrote before it moved `written` on, the consumer sees after it has read that; and
 * the other way round for `read`. */
struct ring {
    const struct wr_subject *subject;
    uint64_t blocks[RING];
    _Alignas(64) _Atomic unsigned written;
    _Alignas(64) _Atomic unsigned read;
    _Atomic bool failed;
};

static void *consume(void *arg)
{
    struct ring *r = arg;
    const struct wr_subject *s = r->subject;
    if (!wr_subject_enter(s, s->streams[0])) atomic_store(&r->failed, true);
    for (unsigned i = 0; i < PAIRS; i++) {
        while (atomic_load_explicit(&r->written, memory_order_acquire) == i)
            sched_yield();
        uint64_t block = r->blocks[i % RING];
        if (block == 0 || !s->free(s, block, s->streams[0])) atomic_store(&r->failed, true);
        atomic_store_explicit(&r->read, i + 1, memory_order_release);
    }
    return NULL;
}

static double run_ring(const struct wr_harness *h, const struct wr_subject *s)
{
    static struct ring r;
    pthread_t consumer;
    r = (struct ring){.subject = s};
    if (pthread_create(&consumer, NULL, consume, &r) != 0)
        wr_harness_end(h, WR_HARNESS_FAILED, "no more threads");
    uint64_t start = wr_device_wall_ns();
    for (unsigned i = 0; i < PAIRS; i++) {
        while (i - atomic_load_explicit(&r.read, memory_order_acquire) == RING)
            sched_yield();
        r.blocks[i % RING] = s->alloc(s, 64 << 10, s->streams[0]);
        atomic_store_explicit(&r.written, i + 1, memory_order_release);
    }
    pthread_join(consumer, NULL);
    must(h, !atomic_load(&r.failed), s);
    return (double)(wr_device_wall_ns() - start) / PAIRS;
}

double wr_load_cross_thread_ns(const struct wr_harness *h, const struct wr_subject *s)
{
    double ns[REPEATS];
    for (unsigned i = 0; i < REPEATS; i++)
        ns[i] = run_ring(h, s);
    return wr_harness_median(ns, REPEATS);
}

/* ---- the mix ----------------------------------------------------------------------------------------- */

static uint64_t draw(struct wr_mix *m) /* splitmix64 (Steele et al., OOPSLA 2014) */
{
    uint64_t z = (m->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sizes are drawn before, so that no logarithm is timed. */
static size_t next_size(struct wr_mix *m)
{
    return m->sizes[m->at++ % SIZES];
}

void wr_mix_open(const struct wr_harness *h, struct wr_mix *m, const struct wr_subject *s, size_t n_live,
    size_t least_bytes, size_t most_bytes)
{
    *m = (struct wr_mix){
        .subject = s, .n_live = n_live, .least_bytes = least_bytes, .most_bytes = most_bytes, .random = 1};
    m->blocks = calloc(n_live, sizeof *m->blocks);
    m->sizes = calloc(SIZES, sizeof *m->sizes);
    if (m->blocks == NULL || m->sizes == NULL) wr_harness_end(h, WR_HARNESS_FAILED, "no host memory");
    double octaves = log2((double)most_bytes / (double)least_bytes);
    for (size_t i = 0; i < SIZES; i++)
        m->sizes[i] = (uint32_t)((double)least_bytes * exp2(octaves * (double)(draw(m) >> 11) * 0x1p-53));
    for (size_t i = 0; i < n_live; i++)
        must(h, (m->blocks[i] = s->alloc(s, next_size(m), s->streams[0])) != 0, s);
}

void wr_mix_close(const struct wr_harness *h, struct wr_mix *m)
{
    const struct wr_subject *s = m->subject;
    for (size_t i = 0; i < m->n_live; i++)
        must(h, s->free(s, m->blocks[i], s->streams[0]), s);
    free(m->blocks);
    free(m->sizes);
}

static bool run_mix(struct wr_mix *m, size_t n)
{
    const struct wr_subject *s = m->subject;
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++) {
        uint64_t *block = &m->blocks[draw(m) % m->n_live];
        ok = s->free(s, *block, s->streams[0]);
        *block = s->alloc(s, next_size(m), s->streams[0]);
        ok &= *block != 0;
    }
    return ok;
}

double wr_mix_op_ns(const struct wr_harness *h, struct wr_mix *m)
{
    double ns[REPEATS];
    size_t n = m->n_live > PAIRS ? m->n_live / 10 : PAIRS;
    must(h, run_mix(m, 2 * m->n_live), m->subject); /* as after some time: not as they were laid out first */
    for (unsigned i = 0; i < REPEATS; i++) {
        uint64_t start = wr_device_wall_ns();
        bool ok = run_mix(m, n);
        ns[i] = (double)(wr_device_wall_ns() - start) / (double)(2 * n);
        must(h, ok, m->subject);
    }
    return wr_harness_median(ns, REPEATS);
}

static int compare_times(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

double wr_mix_pair_p999_ns(const struct wr_harness *h, struct wr_mix *m)
{
    const struct wr_subject *s = m->subject;
    uint32_t *ns = calloc(SAMPLES, sizeof *ns);
    if (ns == NULL) wr_harness_end(h, WR_HARNESS_FAILED, "no host memory");
    bool ok = true;
    for (size_t i = 0; i < SAMPLES && ok; i++) {
        size_t bytes = next_size(m);
        uint64_t start = wr_device_wall_ns();
        uint64_t block = s->alloc(s, bytes, s->streams[0]);
        ok = block != 0 && s->free(s, block, s->streams[0]);
        ns[i] = (uint32_t)(wr_device_wall_ns() - start);
    }
    must(h, ok, s);
    qsort(ns, SAMPLES, sizeof *ns, compare_times);
    double p999 = ns[SAMPLES - SAMPLES / 1000];
    free(ns);
    return p999;
}
