/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

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
    t->n_ids += e.is_alloc;
    if (e.stream >= t->n_streams) t->n_streams = e.stream + 1;
    return add_event(t, e) ? NULL : "no host memory";
}

static const char *read_lines(struct wr_trace *t, FILE *f)
{
    char line[256];
    if (fgets(line, sizeof line, f) == NULL || strcmp(line, "t_us,op,id,bytes,stream\n") != 0)
        return "the first line is not t_us,op,id,bytes,stream";
    const char *wrong = NULL;
    while (wrong == NULL && fgets(line, sizeof line, f) != NULL)
        wrong = read_line(t, line);
    return wrong == NULL && ferror(f) ? "it can't be read to its end" : wrong;
}

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
    const char *wrong = read_lines(out, f);
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
