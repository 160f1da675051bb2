/* SPDX-License-Identifier: Apache-2.0
 *
 * The happens-before oracle.
 *
 * Each stream is a component of vector clocks, and each op with accesses is one tick of its stream's
 * component. An op's clock is what was known to come before it *when it was queued*: its stream's past, the
 * host's knowledge, and the marks that its stream was made to wait for. So a race is found in every run that
 * queues it, whatever order the ops then happen to run in. The host has no component: its accesses are over
 * when it goes on, and all that is queued later starts from its clock.
 *
 * Bytes remember their last writer and the readers since, as (component, time) pairs: an op is ordered after
 * such an access if its clock has reached that time. A reader that a later one is ordered after is forgotten,
 * since whoever is ordered after the later one is so after it, too; and bytes whose accesses the host knows
 * to be over are forgotten altogether, since nothing can come before what the host knows any more.
 *
 * Bytes are known by address: two mappings of one physical handle are two places here.
 */
#include "sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_LEAST = 1024 };

/* ---- reports ----------------------------------------------------------------------------------------- */

void wr_sim_oracle_report(struct wr_sim *w, const char *format, ...)
{
    struct sim_oracle *o = &w->oracle;
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t bytes = strlen(n < 0 ? strcpy(text, "?") : text) + 1;
    if ((o->n_texts & (o->n_texts - 1)) == 0) /* grows at powers of two */
        o->texts = wr_sim_alloc(o->texts, (o->n_texts ? 2 * o->n_texts : 1) * sizeof *o->texts);
    o->texts[o->n_texts++] = memcpy(wr_sim_alloc(NULL, bytes), text, bytes);
    if (o->prints) fprintf(stderr, "weir: %s\n", text);
}

unsigned wr_sim_reports(struct wr_sim *w)
{
    pthread_mutex_lock(&w->mutex);
    unsigned n = (unsigned)(w->oracle.n_texts - w->oracle.n_cleared);
    pthread_mutex_unlock(&w->mutex);
    return n;
}

const char *wr_sim_report(struct wr_sim *w, unsigned i)
{
    pthread_mutex_lock(&w->mutex);
    size_t at = w->oracle.n_cleared + i;
    const char *text = at < w->oracle.n_texts ? w->oracle.texts[at] : NULL;
    pthread_mutex_unlock(&w->mutex);
    return text;
}

void wr_sim_reports_clear(struct wr_sim *w)
{
    pthread_mutex_lock(&w->mutex);
    w->oracle.n_cleared = w->oracle.n_texts;
    pthread_mutex_unlock(&w->mutex);
}

/* ---- clocks ------------------------------------------------------------------------------------------ */

static uint64_t *clock_entry(struct sim_clock *c, uint32_t component)
{
    if (component >= c->n) {
        c->times = wr_sim_alloc(c->times, (component + 1) * sizeof *c->times);
        memset(c->times + c->n, 0, (component + 1 - c->n) * sizeof *c->times);
        c->n = component + 1;
    }
    return &c->times[component];
}

bool wr_sim_oracle_join(struct sim_clock *into, const struct sim_clock *from)
{
    bool added = false;
    if (from->n) clock_entry(into, from->n - 1);
    for (uint32_t i = 0; i < from->n; i++) {
        if (from->times[i] <= into->times[i]) continue;
        into->times[i] = from->times[i];
        added = true;
    }
    return added;
}

static bool is_after(const struct sim_clock *c, const struct sim_access *a)
{
    return a->time == 0 || (a->component < c->n && c->times[a->component] >= a->time);
}

static void join_host(struct sim_stream *s)
{
    struct sim_oracle *o = &s->device->world->oracle;
    if (s->host_version == o->host_version) return;
    wr_sim_oracle_join(&s->clock, &o->host);
    s->host_version = o->host_version;
}

/* A component whose whole past the host has seen serves a new stream: all that one does comes after it. */
void wr_sim_oracle_stream_open(struct sim_stream *s)
{
    struct sim_oracle *o = &s->device->world->oracle;
    uint32_t c = 0;
    while (
        c < o->n_components && (o->components[c].taken || *clock_entry(&o->host, c) < o->components[c].time))
        c++;
    if (c == o->n_components) {
        o->components = wr_sim_alloc(o->components, (c + 1) * sizeof *o->components);
        o->components[o->n_components++].time = 0;
    }
    o->components[c].taken = true;
    s->component = c;
    s->host_version = 0; /* older than any: the host's clock is joined at the first op */
}

void wr_sim_oracle_stream_close(struct sim_stream *s)
{
    wr_sim_oracle_join(&s->device->past, &s->clock);
    s->device->world->oracle.components[s->component].taken = false;
    free(s->clock.times);
}

void wr_sim_oracle_mark(struct sim_stream *s, struct sim_mark *m)
{
    join_host(s);
    wr_sim_oracle_join(&m->clock, &s->clock);
}

void wr_sim_oracle_wait(struct sim_stream *s, const struct sim_mark *m)
{
    wr_sim_oracle_join(&s->clock, &m->clock);
}

void wr_sim_oracle_seen(struct wr_sim *w, const struct sim_mark *m)
{
    if (wr_sim_oracle_join(&w->oracle.host, &m->clock)) w->oracle.host_version++;
}

/* ---- the bytes' history ------------------------------------------------------------------------------ */

/* The first interval that ends past `address`. */
static size_t find_interval(const struct sim_oracle *o, uint64_t address)
{
    size_t low = 0, high = o->n_intervals;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (o->intervals[middle]->end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void insert_interval(struct sim_oracle *o, size_t at, struct sim_interval i)
{
    assert(i.start < i.end);
    assert(at == 0 || o->intervals[at - 1]->end <= i.start);
    assert(at == o->n_intervals || i.end <= o->intervals[at]->start);
    o->intervals = wr_sim_grow(o->intervals, o->n_intervals, &o->capacity, sizeof *o->intervals);
    memmove(o->intervals + at + 1, o->intervals + at, (o->n_intervals - at) * sizeof *o->intervals);
    o->intervals[at] = wr_sim_alloc(NULL, sizeof i);
    *o->intervals[at] = i;
    o->n_intervals++;
}

static void free_interval(struct sim_interval *i)
{
    free(i->readers);
    free(i);
}

static void remove_intervals(struct sim_oracle *o, size_t from, size_t to)
{
    if (from == to) return;
    for (size_t i = from; i < to; i++)
        free_interval(o->intervals[i]);
    memmove(o->intervals + from, o->intervals + to, (o->n_intervals - to) * sizeof *o->intervals);
    o->n_intervals -= to - from;
}

/* Makes `address` a boundary between intervals. */
static void split_interval(struct sim_oracle *o, uint64_t address)
{
    size_t at = find_interval(o, address);
    if (at == o->n_intervals || o->intervals[at]->start >= address) return;
    struct sim_interval right = *o->intervals[at];
    size_t bytes = right.n_readers * sizeof *right.readers;
    if (bytes) right.readers = memcpy(wr_sim_alloc(NULL, bytes), right.readers, bytes);
    right.start = o->intervals[at]->end = address;
    insert_interval(o, at + 1, right);
}

static bool interval_is_over(const struct sim_oracle *o, const struct sim_interval *i)
{
    for (uint32_t r = 0; r < i->n_readers; r++)
        if (!is_after(&o->host, &i->readers[r])) return false;
    return is_after(&o->host, &i->writer);
}

/* Forgets what the host knows to be over. The next sweep comes once there are twice as many intervals. */
static void sweep_intervals(struct sim_oracle *o)
{
    size_t kept = 0;
    for (size_t i = 0; i < o->n_intervals; i++) {
        if (interval_is_over(o, o->intervals[i]))
            free_interval(o->intervals[i]);
        else
            o->intervals[kept++] = o->intervals[i];
    }
    o->n_intervals = kept;
    o->sweep_at = 2 * kept + SWEEP_LEAST;
}

static void add_reader(struct sim_interval *i, const struct sim_clock *clock, struct sim_access reader)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < i->n_readers; r++)
        if (!is_after(clock, &i->readers[r])) i->readers[kept++] = i->readers[r];
    i->readers = wr_sim_alloc(i->readers, (kept + 1) * sizeof reader);
    i->readers[kept] = reader;
    i->n_readers = kept + 1;
}

/* ---- checks ------------------------------------------------------------------------------------------ */

/* Who accesses, for the words of a report. */
struct accessor {
    struct wr_sim *world;
    const struct sim_clock *clock;
    struct sim_access access; /* op 0: the host */
    const char *verb;         /* "writes", "reads", "unmaps" */
    bool writes;
};

/* Notes that the present access races with the op. False: that was said for some other of their bytes. */
static bool is_news(struct sim_oracle *o, uint64_t op)
{
    for (size_t i = 0; i < o->n_reported; i++)
        if (o->reported[i] == op) return false;
    o->reported = wr_sim_grow(o->reported, o->n_reported, &o->reported_capacity, sizeof op);
    o->reported[o->n_reported++] = op;
    return true;
}

static void report_race(const struct accessor *by, const struct sim_interval *i, const struct sim_access *old,
    const char *old_verb)
{
    if (!is_news(&by->world->oracle, old->op)) return;
    char who[128];
    if (by->access.op)
        snprintf(who, sizeof who, "op %" PRIu64 " (%s, stream %" PRIu64 ")", by->access.op, by->access.what,
            by->access.stream_id);
    else
        snprintf(who, sizeof who, "the host");
    wr_sim_oracle_report(by->world,
        "race: %s %s [0x%" PRIx64 ", 0x%" PRIx64 ") not ordered after op %" PRIu64 " (%s, stream %" PRIu64
        "), which %s it",
        who, by->verb, i->start, i->end, old->op, old->what, old->stream_id, old_verb);
}

static void check_interval(const struct accessor *by, const struct sim_interval *i)
{
    if (!is_after(by->clock, &i->writer)) report_race(by, i, &i->writer, "writes");
    if (!by->writes) return;
    for (uint32_t r = 0; r < i->n_readers; r++)
        if (!is_after(by->clock, &i->readers[r])) report_race(by, i, &i->readers[r], "reads");
}

/* One interval takes the place of all in [from, to): the first of them, where there is one, since most writes
 * hit just the bytes of an earlier one. */
static void note_write(
    struct sim_oracle *o, size_t from, size_t to, uint64_t start, uint64_t end, struct sim_access access)
{
    if (from == to) {
        insert_interval(o, from, (struct sim_interval){.start = start, .end = end, .writer = access});
        return;
    }
    remove_intervals(o, from + 1, to);
    struct sim_interval *i = o->intervals[from];
    free(i->readers);
    *i = (struct sim_interval){.start = start, .end = end, .writer = access};
}

/* Adds the reader to each interval, and fills the gaps between them. */
static void note_read(
    struct sim_oracle *o, size_t at, uint64_t start, uint64_t end, const struct accessor *by)
{
    while (start < end) {
        bool gap = at == o->n_intervals || o->intervals[at]->start > start;
        if (gap) {
            uint64_t until = at == o->n_intervals ? end : wr_min(end, o->intervals[at]->start);
            insert_interval(o, at, (struct sim_interval){.start = start, .end = until});
        }
        add_reader(o->intervals[at], by->clock, by->access);
        start = o->intervals[at++]->end;
    }
}

static void access_bytes(const struct accessor *by, uint64_t start, uint64_t end)
{
    struct sim_oracle *o = &by->world->oracle;
    split_interval(o, start);
    split_interval(o, end);
    size_t from = find_interval(o, start), to = from;
    for (; to < o->n_intervals && o->intervals[to]->start < end; to++)
        check_interval(by, o->intervals[to]);
    if (by->writes)
        note_write(o, from, to, start, end, by->access);
    else
        note_read(o, from, start, end, by);
}

void wr_sim_oracle_op(struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    struct wr_sim *w = s->device->world;
    struct sim_oracle *o = &w->oracle;
    join_host(s);
    uint64_t time = ++o->components[s->component].time;
    *clock_entry(&s->clock, s->component) = time;
    o->n_reported = 0;
    struct sim_access access = {
        .time = time, .op = op->number, .stream_id = s->id, .what = op->what, .component = s->component};
    for (unsigned i = 0; i < op->n_spans; i++) {
        const struct sim_span *span = &op->spans[i];
        if (span->pageable || span->bytes == 0) continue;
        bool writes = span->writes;
        struct accessor by = {w, &s->clock, access, writes ? "writes" : "reads", writes};
        access_bytes(&by, span->address, span->address + span->bytes);
    }
    if (o->n_intervals > o->sweep_at) sweep_intervals(o);
}

/* Checks the host against all that touches the bytes. */
static void check_host(struct wr_sim *w, uint64_t start, uint64_t end, bool writes, const char *verb)
{
    struct accessor by = {w, &w->oracle.host, {.op = 0}, verb, writes};
    w->oracle.n_reported = 0;
    for (size_t i = find_interval(&w->oracle, start);
         i < w->oracle.n_intervals && w->oracle.intervals[i]->start < end; i++)
        check_interval(&by, w->oracle.intervals[i]);
}

void wr_sim_host_access(struct wr_sim *w, const void *host, size_t bytes, bool writes)
{
    uint64_t start = (uintptr_t)host;
    pthread_mutex_lock(&w->mutex);
    check_host(w, start, start + bytes, writes, writes ? "writes" : "reads");
    pthread_mutex_unlock(&w->mutex);
}

/* ---- declared uses ----------------------------------------------------------------------------------- */

static bool is_declared(const struct wr_freed *f, uint64_t stream_id)
{
    bool declared = stream_id == f->home;
    for (unsigned i = 0; i < f->n_declared; i++)
        declared |= f->declared[i] == stream_id;
    return declared;
}

/* `s`: the stream that the block is freed on. */
static void check_use(
    const struct sim_stream *s, const struct wr_freed *f, const struct sim_access *use, const char *verb)
{
    struct wr_sim *w = s->device->world;
    if (is_after(&s->clock, use) || is_declared(f, use->stream_id) || !is_news(&w->oracle, use->op)) return;
    wr_sim_oracle_report(w,
        "undeclared use: the block [0x%" PRIx64 ", 0x%" PRIx64 ") of stream %" PRIu64
        " is freed on stream %" PRIu64 ", which is not ordered after op %" PRIu64 " (%s, stream %" PRIu64
        "), which %s it and was not declared by weir_touch",
        f->address, f->address + f->bytes, f->home, s->id, use->op, use->what, use->stream_id, verb);
}

/* What is reused by order and declared uses alone may be so under whoever is neither ordered nor declared: said
 * here before anybody gets it, for whom it would be a race. */
void wr_sim_watch_free(struct wr_device *d, const struct wr_freed *f)
{
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_oracle *o = &w->oracle;
    pthread_mutex_lock(&w->mutex);
    struct sim_stream *s = wr_sim_stream_at(sim_device_of(d), f->stream);
    if (s) { /* a destroyed stream may be named by a free (A09): its place in the order is not known any more */
        join_host(s);
        o->n_reported = 0;
        for (size_t i = find_interval(o, f->address);
             i < o->n_intervals && o->intervals[i]->start < f->address + f->bytes; i++) {
            const struct sim_interval *bytes = o->intervals[i];
            check_use(s, f, &bytes->writer, "writes");
            for (uint32_t r = 0; r < bytes->n_readers; r++)
                check_use(s, f, &bytes->readers[r], "reads");
        }
    }
    pthread_mutex_unlock(&w->mutex);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void wr_sim_oracle_end_bytes(struct wr_sim *w, uint64_t start, uint64_t bytes, const char *what)
{
    struct sim_oracle *o = &w->oracle;
    check_host(w, start, start + bytes, true, what);
    split_interval(o, start);
    split_interval(o, start + bytes);
    remove_intervals(o, find_interval(o, start), find_interval(o, start + bytes));
}

void wr_sim_oracle_end(struct wr_sim *w)
{
    struct sim_oracle *o = &w->oracle;
    remove_intervals(o, 0, o->n_intervals);
    for (size_t i = 0; i < o->n_texts; i++)
        free(o->texts[i]);
    free(o->texts);
    free(o->intervals);
    free(o->reported);
    free(o->components);
    free(o->host.times);
}
