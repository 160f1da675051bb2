/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. A span is OPEN (its caller's) -> PENDING (ended, in a line, oldest first) -> noted, and free for another.
 * Whoever begins a span asks for some that are pending, so that there are few. Times are distances from a base event;
 * drivers tell them as floats of milliseconds, so the base moves on each second, before digits are lost.
 */
#define _GNU_SOURCE 1 /* fopen's e */
#include "timeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { SPANS_MOST = 1 << 16, NOTES_MOST = 1 << 20, NOTES_FIRST = 1024, ASKED_EACH_TIME = 4 };

struct wr_span {
    struct wr_span *next, *next_made;
    enum wr_span_kind kind;
    uint64_t ticket, bytes, stream_id;
    wr_event begin, end;
};

struct note {
    enum wr_span_kind kind;
    unsigned track;
    uint64_t ticket, bytes, stream_id;
    int64_t begin_ns, end_ns;
};

struct wr_timeline {
    struct wr_lock lock; /* guards all below but the constants */
    struct wr_device *device;
    FILE *file;
    struct wr_span *made, *free, *pending, **last;
    unsigned n_made;
    bool asking; /* one thread asks at a time: it owns base and the head of pending meanwhile */
    bool base_passed;
    wr_event base;
    int64_t base_ns;
    struct note *notes;
    size_t n_notes, capacity;
    uint64_t lost;
};

/* ---- spans ------------------------------------------------------------------------------------------- */

static void lose(struct wr_timeline *t, struct wr_span *s)
{
    wr_lock_take(&t->lock);
    t->lost++;
    if (s) {
        s->next = t->free;
        t->free = s;
    }
    wr_lock_give(&t->lock);
}

static struct wr_span *make_span(struct wr_timeline *t)
{
    struct wr_span *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    const struct wr_device_ops *ops = t->device->ops;
    weir_status made = ops->event_create_timed(t->device, &s->begin);
    if (made == WEIR_OK) {
        made = ops->event_create_timed(t->device, &s->end);
        if (made != WEIR_OK) (void)ops->event_destroy(t->device, s->begin);
    }
    if (made != WEIR_OK) {
        free(s);
        return NULL;
    }
    wr_lock_take(&t->lock);
    s->next_made = t->made;
    t->made = s;
    wr_lock_give(&t->lock);
    return s;
}

static struct wr_span *take_span(struct wr_timeline *t)
{
    wr_lock_take(&t->lock);
    struct wr_span *s = t->free;
    if (s) t->free = s->next;
    bool makes = !s && t->n_made < SPANS_MOST;
    t->n_made += makes;
    wr_lock_give(&t->lock);
    return makes ? make_span(t) : s;
}

static bool identify(struct wr_timeline *t, weir_stream stream, uint64_t *id)
{
    struct wr_stream_info info;
    if (t->device->ops->stream_identify(t->device, stream, &info) != WEIR_OK || info.capturing) return false;
    *id = info.id;
    return true;
}

/* ---- asking the device ------------------------------------------------------------------------------- */

static bool has_passed(struct wr_timeline *t, wr_event e)
{
    bool done = false;
    return t->device->ops->event_query(t->device, e, &done) == WEIR_OK && done;
}

/* LOCK: held. */
static bool append(struct wr_timeline *t, const struct note *n)
{
    if (t->n_notes == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : NOTES_FIRST;
        struct note *notes = capacity <= NOTES_MOST ? realloc(t->notes, capacity * sizeof *notes) : NULL;
        if (!notes) return false;
        t->notes = notes;
        t->capacity = capacity;
    }
    t->notes[t->n_notes++] = *n;
    return true;
}

/* Only by the thread that asks. */
static bool measure(struct wr_timeline *t, struct wr_span *s, struct note *out)
{
    const struct wr_device_ops *ops = t->device->ops;
    int64_t offset, length;
    if (ops->event_elapsed(t->device, t->base, s->begin, &offset) != WEIR_OK) return false;
    if (ops->event_elapsed(t->device, s->begin, s->end, &length) != WEIR_OK || length < 0) return false;
    *out = (struct note){.kind = s->kind,
        .ticket = s->ticket,
        .bytes = s->bytes,
        .stream_id = s->stream_id,
        .begin_ns = t->base_ns + offset,
        .end_ns = t->base_ns + offset + length};
    if (offset > (int64_t)WR_NS_PER_SEC) {
        wr_event old = t->base;
        t->base = s->begin;
        t->base_ns += offset;
        s->begin = old;
    }
    return true;
}

static bool begin_asking(struct wr_timeline *t)
{
    wr_lock_take(&t->lock);
    bool mine = !t->asking && t->pending;
    t->asking |= mine;
    wr_lock_give(&t->lock);
    return mine;
}

static void end_asking(struct wr_timeline *t)
{
    wr_lock_take(&t->lock);
    t->asking = false;
    wr_lock_give(&t->lock);
}

/* LOCK: held. The head has been asked about. */
static void finish_head(struct wr_timeline *t, const struct note *n)
{
    struct wr_span *s = t->pending;
    t->pending = s->next;
    if (!t->pending) t->last = &t->pending;
    if (!n || !append(t, n)) t->lost++;
    s->next = t->free;
    t->free = s;
}

static void ask(struct wr_timeline *t, size_t most)
{
    if (!begin_asking(t)) return;
    if (!t->base_passed) t->base_passed = has_passed(t, t->base);
    for (bool more = t->base_passed; more && most > 0; most--) {
        struct note n;
        struct wr_span *s = t->pending; /* there is one, and nobody else takes it off */
        if (!has_passed(t, s->end)) break;
        bool measured = measure(t, s, &n);
        wr_lock_take(&t->lock);
        finish_head(t, measured ? &n : NULL);
        more = t->pending != NULL;
        wr_lock_give(&t->lock);
    }
    end_asking(t);
}

/* ---- what the queue calls ---------------------------------------------------------------------------- */

struct wr_span *wr_timeline_begin(
    struct wr_timeline *t, enum wr_span_kind kind, uint64_t ticket, uint64_t bytes, weir_stream stream)
{
    uint64_t id;
    if (WR_LIKELY(!t)) return NULL;
    ask(t, ASKED_EACH_TIME);
    struct wr_span *s = take_span(t);
    if (!s || !identify(t, stream, &id) ||
        t->device->ops->event_record(t->device, s->begin, stream) != WEIR_OK) {
        lose(t, s);
        return NULL;
    }
    s->kind = kind;
    s->ticket = ticket;
    s->bytes = bytes;
    s->stream_id = id;
    return s;
}

void wr_timeline_end(struct wr_timeline *t, struct wr_span *s, weir_stream stream)
{
    if (WR_LIKELY(!s)) return;
    if (t->device->ops->event_record(t->device, s->end, stream) != WEIR_OK) {
        lose(t, s);
        return;
    }
    s->next = NULL;
    wr_lock_take(&t->lock);
    *t->last = s;
    t->last = &s->next;
    wr_lock_give(&t->lock);
}

void wr_timeline_forget(struct wr_timeline *t, struct wr_span *s)
{
    if (s) lose(t, s);
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static int compare_notes(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->ticket < y->ticket ? -1 : x->ticket > y->ticket;
}

struct track {
    uint64_t stream_id;
    enum wr_span_kind kind;
    int64_t end_ns;
    unsigned twin; /* how many of that stream come before it */
};

/* Who holds two items at once, on one stream, needs two tracks: spans of a track do not overlap. */
static size_t find_track(struct track *tracks, size_t n, struct note *note)
{
    unsigned twins = 0;
    for (size_t i = 0; i < n; i++) {
        if (tracks[i].stream_id != note->stream_id || tracks[i].kind != note->kind) continue;
        if (tracks[i].end_ns <= note->begin_ns) return i;
        twins++;
    }
    tracks[n] = (struct track){.stream_id = note->stream_id, .kind = note->kind, .twin = twins};
    return n;
}

/* At most as many as spans were made at once, and streams seen: so one for each note is enough. */
static size_t assign_tracks(struct wr_timeline *t, struct track *tracks)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_notes; i++) {
        size_t at = find_track(tracks, n, &t->notes[i]);
        tracks[at].end_ns = t->notes[i].end_ns;
        t->notes[i].track = (unsigned)at + 1;
        n = wr_max(n, at + 1);
    }
    return n;
}

static void print_name(FILE *f, const char *name)
{
    for (; *name; name++)
        if (*name >= ' ' && *name != '"' && *name != '\\') fputc(*name, f);
}

static void print_track(struct wr_timeline *t, const struct track *track, size_t number)
{
    fprintf(t->file,
        ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %zu, \"args\": {\"name\": ",
        t->device->ordinal, number);
    fprintf(t->file, "\"%s, stream %" PRIu64, track->kind == WR_SPAN_COPY ? "copies" : "items in use",
        track->stream_id);
    if (track->twin) fprintf(t->file, " (%u)", track->twin + 1);
    fputs("\"}}", t->file);
}

static void print_us(FILE *f, const char *name, int64_t ns)
{
    fprintf(f, ", \"%s\": %" PRId64 ".%03d", name, ns / 1000, (int)(ns % 1000));
}

static void print_note(struct wr_timeline *t, const struct note *n)
{
    fprintf(t->file,
        ",\n{\"name\": \"item %" PRIu64 "\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %u",
        n->ticket, n->kind == WR_SPAN_COPY ? "copy" : "use", t->device->ordinal, n->track);
    print_us(t->file, "ts", n->begin_ns);
    print_us(t->file, "dur", n->end_ns - n->begin_ns);
    fprintf(t->file, ", \"args\": {\"ticket\": %" PRIu64 ", \"bytes\": %" PRIu64 "}}", n->ticket, n->bytes);
}

static void print_all(struct wr_timeline *t, const struct track *tracks, size_t n_tracks)
{
    fprintf(t->file,
        "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"lost\": %" PRIu64 "}, \"traceEvents\": [\n",
        t->lost);
    fprintf(t->file, "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"",
        t->device->ordinal);
    print_name(t->file, t->device->name);
    fprintf(t->file, ", device %d\"}}", t->device->ordinal);
    for (size_t i = 0; i < n_tracks; i++)
        print_track(t, &tracks[i], i + 1);
    for (size_t i = 0; i < t->n_notes; i++)
        print_note(t, &t->notes[i]);
    fputs("\n]}\n", t->file);
}

static void write_file(struct wr_timeline *t)
{
    struct track *tracks = calloc(t->n_notes + 1, sizeof *tracks);
    if (!tracks) { /* no room to tell the tracks apart */
        t->lost += t->n_notes;
        t->n_notes = 0;
    }
    if (t->n_notes) qsort(t->notes, t->n_notes, sizeof *t->notes, compare_notes);
    print_all(t, tracks, tracks ? assign_tracks(t, tracks) : 0);
    free(tracks);
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static FILE *open_named(void)
{
    static _Atomic unsigned n_opened;
    const char *name = getenv("WEIR_TIMELINE");
    char path[4096];
    if (!name || !*name) return NULL;
    unsigned number = atomic_fetch_add(&n_opened, 1) + 1;
    int n = number == 1 ? snprintf(path, sizeof path, "%s", name)
                        : snprintf(path, sizeof path, "%s.%u", name, number);
    return n > 0 && (size_t)n < sizeof path ? fopen(path, "we") : NULL;
}

static weir_status start(struct wr_timeline *t, weir_stream stream)
{
    weir_status s = t->device->ops->event_create_timed(t->device, &t->base);
    if (s != WEIR_OK) return s;
    t->base_ns = (int64_t)t->device->ops->now_ns(t->device);
    s = t->device->ops->event_record(t->device, t->base, stream);
    if (s != WEIR_OK) (void)t->device->ops->event_destroy(t->device, t->base);
    return s;
}

weir_status wr_timeline_open(
    struct wr_device *d, weir_stream stream, const char *path, struct wr_timeline **out)
{
    FILE *file = path ? fopen(path, "we") : open_named();
    *out = NULL;
    if (!file) return path ? wr_fail(WEIR_INVALID_ARGUMENT, "%s: can't be written", path) : WEIR_OK;
    struct wr_timeline *t = calloc(1, sizeof *t);
    weir_status s = t ? WEIR_OK : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a timeline");
    if (t) {
        t->device = d;
        t->file = file;
        t->last = &t->pending;
        s = start(t, stream);
    }
    if (s != WEIR_OK) {
        free(t);
        fclose(file);
        return s;
    }
    wr_lock_init(&t->lock, WR_RANK_QUEUE);
    *out = t;
    return WEIR_OK;
}

static uint64_t count_pending(const struct wr_timeline *t)
{
    uint64_t n = 0;
    for (const struct wr_span *s = t->pending; s; s = s->next)
        n++;
    return n;
}

/* Nobody else is here any more. Spans that callers still had are among those made. */
void wr_timeline_close(struct wr_timeline *t)
{
    if (!t) return;
    ask(t, SIZE_MAX);
    t->lost += count_pending(t);
    write_file(t);
    fclose(t->file);
    while (t->made) {
        struct wr_span *s = t->made;
        t->made = s->next_made;
        (void)t->device->ops->event_destroy(t->device, s->begin);
        (void)t->device->ops->event_destroy(t->device, s->end);
        free(s);
    }
    (void)t->device->ops->event_destroy(t->device, t->base);
    wr_lock_fini(&t->lock);
    free(t->notes);
    free(t);
}
