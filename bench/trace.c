/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"
#include "record.h"
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool add_event(struct wr_trace *t, struct wr_trace_event e)
{
    if (t->n_events == t->capacity) {
        size_t capacity = t->capacity == 0 ? 4096 : t->capacity * 2;
        struct wr_trace_event *events = realloc(t->events, capacity * sizeof *events);
        if (events == NULL) return false;
        t->events = events;
        t->capacity = capacity;
    }
    t->events[t->n_events++] = e;
    return true;
}

static const char *add_checked(struct wr_trace *t, struct wr_trace_event e)
{
    t->n_ids += e.is_alloc;
    if (e.stream >= t->n_streams) t->n_streams = e.stream + 1;
    return add_event(t, e) ? NULL : "no host memory";
}

/* ---- the text format --------------------------------------------------------------------------------- */

static const char *read_line(struct wr_trace *t, const char *line)
{
    char op[8];
    double t_us;
    struct wr_trace_event e;
    if (sscanf(line, "%lf,%7[a-z],%" SCNu32 ",%" SCNu64 ",%" SCNu32, &t_us, op, &e.id, &e.bytes, &e.stream) !=
        5)
        return "a line is not t_us,op,id,bytes,stream";
    e.is_alloc = strcmp(op, "alloc") == 0;
    if (!e.is_alloc && strcmp(op, "free") != 0) return "an op is neither alloc nor free";
    if (e.is_alloc && e.id != t->n_ids) return "the ids of allocs do not count up";
    if (e.id >= t->n_ids + e.is_alloc) return "a free comes before its alloc";
    return add_checked(t, e);
}

static const char *read_lines(struct wr_trace *t, FILE *f, const char *start)
{
    char line[256];
    strcpy(line, start);
    if (fgets(line + strlen(start), sizeof line / 2, f) == NULL ||
        strcmp(line, "t_us,op,id,bytes,stream\n") != 0)
        return "the first line is not t_us,op,id,bytes,stream, nor is it a recording";
    const char *wrong = NULL;
    while (wrong == NULL && fgets(line, sizeof line, f) != NULL)
        wrong = read_line(t, line);
    return wrong == NULL && ferror(f) ? "it can't be read to its end" : wrong;
}

/* ---- recordings -------------------------------------------------------------------------------------- */

/* The recording in the order of its calls, read into one piece. */
struct recording {
    struct wr_record_event *events;
    size_t n;
    struct wr_table live;    /* address -> index + 1 of its alloc in the trace */
    struct wr_table streams; /* handle + 1 -> number + 1, in the order in which they appear */
};

static int compare_order(const void *a, const void *b)
{
    uint64_t x = ((const struct wr_record_event *)a)->order, y = ((const struct wr_record_event *)b)->order;
    return (x > y) - (x < y);
}

static const char *read_events(struct recording *r, FILE *f)
{
    size_t capacity = 0, got;
    do {
        if (r->n == capacity) {
            capacity = capacity == 0 ? 4096 : capacity * 2;
            struct wr_record_event *events = realloc(r->events, capacity * sizeof *events);
            if (events == NULL) return "no host memory";
            r->events = events;
        }
        got = fread(r->events + r->n, sizeof *r->events, capacity - r->n, f);
        r->n += got;
    } while (got > 0);
    qsort(r->events, r->n, sizeof *r->events, compare_order);
    return ferror(f) ? "it can't be read to its end" : NULL;
}

static uint32_t number_of(struct recording *r, uint64_t handle)
{
    uint32_t number = wr_table_get(&r->streams, handle + 1);
    if (number == 0) wr_table_put(&r->streams, handle + 1, number = r->streams.used + 1);
    return number - 1;
}

static const char *add_recorded(struct wr_trace *t, struct recording *r, const struct wr_record_event *e)
{
    if (!wr_table_reserve(&r->live, 1) || !wr_table_reserve(&r->streams, 1)) return "no host memory";
    uint32_t at = wr_table_remove(&r->live, e->address); /* before an alloc: of a pool that has ended since */
    if (e->bytes == 0) {
        if (at == 0) return NULL; /* of no block: it was refused */
        struct wr_trace_event freed = t->events[at - 1];
        freed.is_alloc = false;
        return add_checked(t, freed);
    }
    wr_table_put(&r->live, e->address, (uint32_t)t->n_events + 1);
    return add_checked(
        t, (struct wr_trace_event){
               .bytes = e->bytes, .id = t->n_ids, .stream = number_of(r, e->stream), .is_alloc = true});
}

static const char *read_recording(struct wr_trace *t, FILE *f)
{
    struct recording r = {0};
    const char *wrong = read_events(&r, f);
    for (size_t i = 0; i < r.n && wrong == NULL; i++)
        wrong = add_recorded(t, &r, &r.events[i]);
    wr_table_fini(&r.live);
    wr_table_fini(&r.streams);
    free(r.events);
    return wrong;
}

static const char *read_either(struct wr_trace *t, FILE *f)
{
    char start[sizeof WR_RECORD_MAGIC] = "";
    size_t n = fread(start, 1, sizeof start - 1, f);
    start[n] = 0;
    return strcmp(start, WR_RECORD_MAGIC) == 0 ? read_recording(t, f) : read_lines(t, f, start);
}

/* ---- files ------------------------------------------------------------------------------------------- */

/* Runs gzip with the path as an argument of its own: no shell reads it. */
static FILE *open_gzip(const char *path, pid_t *child)
{
    int ends[2];
    if (pipe(ends) != 0) return NULL;
    *child = fork();
    if (*child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execlp("gzip", "gzip", "-dc", "--", path, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *f = *child > 0 ? fdopen(ends[0], "r") : NULL;
    if (f == NULL) close(ends[0]);
    return f;
}

static void find_max_load(struct wr_trace *t)
{
    uint64_t load = 0;
    for (size_t i = 0; i < t->n_events; i++) {
        load += t->events[i].is_alloc ? t->events[i].bytes : -t->events[i].bytes;
        if (load > t->max_load) t->max_load = load;
    }
}

const char *wr_trace_read(const char *path, struct wr_trace *out)
{
    const char *dot = strrchr(path, '.');
    pid_t child = -1;
    int status = 0;
    *out = (struct wr_trace){0};
    FILE *f = dot != NULL && strcmp(dot, ".gz") == 0 ? open_gzip(path, &child) : fopen(path, "r");
    if (f == NULL) return "it can't be opened";
    const char *wrong = read_either(out, f);
    fclose(f);
    if (child > 0 && waitpid(child, &status, 0) == child && status != 0 && wrong == NULL)
        wrong = "gzip failed";
    find_max_load(out);
    if (wrong != NULL) wr_trace_fini(out);
    return wrong;
}

void wr_trace_fini(struct wr_trace *t)
{
    free(t->events);
    *t = (struct wr_trace){0};
}
