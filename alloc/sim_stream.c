/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated streams and events: handles, marks, captures.
 *
 * Handles are small numbers, never pointers, so that a dead one can be named without harm: it is reported and
 * refused. A destroyed stream loses its handle at once, and goes when its last op has ended. An event is a
 * reference to a mark; recording it again takes a new mark, and whoever waits for the old one goes on waiting
 * for that.
 */
#include "sim.h"
#include "edges.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- streams ----------------------------------------------------------------------------------------- */

struct sim_stream *wr_sim_stream_new(struct sim_device *d, uint64_t thread)
{
    static _Atomic uint64_t last_id; /* one count for all worlds: ids are of the process */
    struct wr_sim *w = d->world;
    struct sim_stream *s = wr_sim_alloc(NULL, sizeof *s);
    *s = (struct sim_stream){.device = d,
        .id = atomic_fetch_add(&last_id, 1) + 1,
        .thread = thread,
        .index = w->n_streams,
        .tail = &s->head};
    wr_sim_oracle_stream_open(s);
    w->streams = wr_sim_grow(w->streams, w->n_streams, &w->streams_capacity, sizeof(void *));
    w->streams[w->n_streams++] = s;
    return s;
}

void wr_sim_stream_free(struct sim_stream *s)
{
    struct wr_sim *w = s->device->world;
    assert(!s->head && w->streams[s->index] == s);
    w->streams[s->index] = w->streams[--w->n_streams];
    w->streams[s->index]->index = s->index;
    wr_sim_oracle_stream_close(s);
    if (s->graph) wr_sim_graph_free(s->graph);
    free(s);
}

static struct sim_stream *find_per_thread(struct sim_device *d)
{
    struct wr_sim *w = d->world;
    uint64_t thread = wr_sim_thread();
    for (size_t i = 0; i < w->n_streams; i++)
        if (w->streams[i]->thread == thread && w->streams[i]->device == d) return w->streams[i];
    return wr_sim_stream_new(d, thread);
}

static weir_status refuse_dead(struct wr_sim *w, const char *op, const char *what, uintptr_t handle)
{
    w->counts.dead_handle_uses++;
    wr_sim_oracle_report(w, "dead handle: %s names %s 0x%" PRIxPTR ", which is not alive", op, what, handle);
    return wr_fail(
        WEIR_INVALID_ARGUMENT, "%s: no %s 0x%" PRIxPTR " on the simulated device", op, what, handle);
}

struct sim_stream *wr_sim_stream_at(struct sim_device *d, weir_stream handle)
{
    struct wr_sim *w = d->world;
    uintptr_t h = (uintptr_t)handle;
    if (h <= 1) return d->legacy;
    if (h == 2) return find_per_thread(d);
    bool known = h >= SIM_FIRST_HANDLE && h - SIM_FIRST_HANDLE < w->n_stream_handles;
    return known ? w->stream_handles[h - SIM_FIRST_HANDLE] : NULL;
}

weir_status wr_sim_stream_find(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out)
{
    struct sim_stream *s = wr_sim_stream_at(d, handle);
    if (!s) return refuse_dead(d->world, op, "stream", (uintptr_t)handle);
    *out = s;
    return WEIR_OK;
}

weir_status wr_sim_stream_find_free(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out)
{
    struct sim_stream *s = NULL;
    weir_status status = wr_sim_stream_find(d, handle, op, &s);
    if (status != WEIR_OK) return status;
    if (s->capturing) return wr_fail(WEIR_CAPTURING, "%s: the stream is capturing", op);
    *out = s;
    return WEIR_OK;
}

weir_status wr_sim_stream_find_work(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out)
{
    struct sim_stream *s = NULL;
    weir_status status = wr_sim_stream_find(d, handle, op, &s);
    if (status != WEIR_OK) return status;
    if (!s->graph) return wr_sim_stream_find_free(d, handle, op, out);
    *out = s;
    return WEIR_OK;
}

static size_t take_handle(struct wr_sim *w)
{
    if (w->options.reuse_handles && w->n_dead_handles) return w->dead_handles[--w->n_dead_handles];
    w->stream_handles =
        wr_sim_grow(w->stream_handles, w->n_stream_handles, &w->stream_handles_capacity, sizeof(void *));
    return w->n_stream_handles++;
}

static weir_status create_stream(struct wr_device *d, const char *op, weir_stream *out)
{
    weir_status s = wr_sim_enter(d, op);
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t handle = take_handle(w);
    w->stream_handles[handle] = wr_sim_stream_new(sim_device_of(d), 0);
    w->stream_handles[handle]->user = true;
    *out = (weir_stream)(uintptr_t)(handle + SIM_FIRST_HANDLE);
    return wr_sim_leave(d, WEIR_OK);
}

weir_status wr_sim_op_stream_create(struct wr_device *d, weir_stream *out)
{
    return create_stream(d, "stream_create", out);
}

/* Kernels of different streams run side by side here: none has to go first. */
weir_status wr_sim_op_stream_create_first(struct wr_device *d, weir_stream *out)
{
    return create_stream(d, "stream_create_first", out);
}

static void kill_handle(struct wr_sim *w, size_t handle)
{
    w->stream_handles[handle] = NULL;
    w->dead_handles =
        wr_sim_grow(w->dead_handles, w->n_dead_handles, &w->dead_handles_capacity, sizeof handle);
    w->dead_handles[w->n_dead_handles++] = handle;
}

weir_status wr_sim_op_stream_destroy(struct wr_device *d, weir_stream handle)
{
    weir_status status = wr_sim_enter(d, "stream_destroy");
    if (status != WEIR_OK) return status;
    struct sim_device *device = sim_device_of(d);
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find(device, handle, "stream_destroy", &s);
    if (status == WEIR_OK && !s->user)
        status = wr_fail(WEIR_INVALID_ARGUMENT, "stream_destroy: a default stream");
    if (status == WEIR_OK) {
        kill_handle(device->world, (uintptr_t)handle - SIM_FIRST_HANDLE);
        s->destroyed = true;
        if (!s->head) wr_sim_stream_free(s);
    }
    return wr_sim_leave(d, status);
}

/* Only reads: not counted, and never made to fail. OK: the world's lock is taken, for wr_sim_leave to give. */
static weir_status enter_to_read(
    struct wr_device *d, weir_stream handle, const char *op, struct sim_stream **out)
{
    struct sim_device *device = sim_device_of(d);
    wr_locks_assert_none();
    weir_status status = wr_edges_check_device(d);
    if (status != WEIR_OK) return status;
    pthread_mutex_lock(&device->world->mutex);
    status = wr_sim_stream_find(device, handle, op, out);
    return status == WEIR_OK ? status : wr_sim_leave(d, status);
}

weir_status wr_sim_op_stream_identify(struct wr_device *d, weir_stream handle, struct wr_stream_info *out)
{
    struct sim_stream *s = NULL;
    weir_status status = enter_to_read(d, handle, "stream_identify", &s);
    if (status != WEIR_OK) return status;
    *out = (struct wr_stream_info){.id = s->capturing ? 0 : s->id, .capturing = s->capturing};
    return wr_sim_leave(d, WEIR_OK);
}

weir_status wr_sim_op_stream_capture(struct wr_device *d, weir_stream handle, uint64_t *out)
{
    struct sim_stream *s = NULL;
    weir_status status = enter_to_read(d, handle, "stream_capture", &s);
    if (status != WEIR_OK) return status;
    *out = s->capturing ? s->capture_id : 0;
    return wr_sim_leave(d, WEIR_OK);
}

weir_status wr_sim_op_stream_device(struct wr_device *d, weir_stream handle, struct wr_device **out)
{
    weir_status status = wr_sim_enter(d, "stream_device");
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find(sim_device_of(d), handle, "stream_device", &s);
    if (status == WEIR_OK) *out = &s->device->base;
    return wr_sim_leave(d, status);
}

/* ---- marks ------------------------------------------------------------------------------------------- */

static struct sim_mark *new_mark(void)
{
    struct sim_mark *m = wr_sim_alloc(NULL, sizeof *m);
    *m = (struct sim_mark){.refs = 1};
    return m;
}

void wr_sim_mark_drop(struct sim_mark *m)
{
    assert(m->refs);
    if (--m->refs) return;
    free(m->clock.times);
    free(m);
}

/* Queues an op that is one more thing for the mark to wait for, or (WAIT) waits for the mark. */
static void queue_mark_op(struct sim_stream *s, enum sim_op_kind kind, struct sim_mark *m)
{
    struct sim_op *op = wr_sim_engine_op(s, kind, kind == SIM_MARK ? "record" : "wait", 0);
    op->mark = m;
    m->refs++;
    if (kind == SIM_MARK) m->pending++;
    wr_sim_engine_queue(op);
}

struct sim_mark *wr_sim_stream_mark(struct sim_stream *s)
{
    struct sim_mark *m = new_mark();
    wr_sim_oracle_mark(s, m);
    queue_mark_op(s, SIM_MARK, m);
    return m;
}

/* A mark behind all that is queued on the device. Idle streams have nothing to pass, but a past to be ordered
 * after, and so have those that are gone. */
static struct sim_mark *mark_device(struct sim_device *d)
{
    struct wr_sim *w = d->world;
    struct sim_mark *m = new_mark();
    m->done_ns = wr_sim_engine_now(w);
    wr_sim_oracle_join(&m->clock, &d->past);
    wr_sim_engine_settle(
        w); /* one step of a test may have left more that is due: it would run under the loop */
    for (size_t i = 0; i < w->n_streams; i++) {
        struct sim_stream *s = w->streams[i];
        if (s->device != d) continue;
        wr_sim_oracle_mark(s, m);
        /* INVARIANT: the stream is busy, so the op does not run at once, and streams stay as they are. */
        if (s->head) queue_mark_op(s, SIM_MARK, m);
        assert(w->streams[i] == s);
    }
    return m;
}

/* ---- events ------------------------------------------------------------------------------------------ */

weir_status wr_sim_event_find(struct wr_sim *w, wr_event handle, const char *op, struct sim_event **out)
{
    uintptr_t h = (uintptr_t)handle;
    struct sim_event *e = h >= 1 && h <= w->n_events ? w->events[h - 1] : NULL;
    if (!e) return refuse_dead(w, op, "event", h);
    *out = e;
    return WEIR_OK;
}

static weir_status create_event(struct wr_device *d, const char *op, bool timed, wr_event *out)
{
    weir_status s = wr_sim_enter(d, op);
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_event *e = wr_sim_alloc(NULL, sizeof *e);
    *e = (struct sim_event){.device = sim_device_of(d), .timed = timed};
    w->events = wr_sim_grow(w->events, w->n_events, &w->events_capacity, sizeof(void *));
    w->events[w->n_events++] = e;
    w->counts.events_created++;
    *out = (wr_event)(uintptr_t)w->n_events;
    return wr_sim_leave(d, WEIR_OK);
}

weir_status wr_sim_op_event_create(struct wr_device *d, wr_event *out)
{
    return create_event(d, "event_create", false, out);
}

weir_status wr_sim_op_event_create_timed(struct wr_device *d, wr_event *out)
{
    return create_event(d, "event_create_timed", true, out);
}

static void set_latest(struct sim_event *e, struct sim_mark *m)
{
    if (e->latest) wr_sim_mark_drop(e->latest);
    e->latest = m;
}

void wr_sim_event_clear(struct sim_event *e)
{
    set_latest(e, NULL);
}

void wr_sim_event_record(struct sim_event *e, struct sim_stream *s)
{
    set_latest(e, wr_sim_stream_mark(s));
}

void wr_sim_event_wait(const struct sim_event *e, struct sim_stream *s)
{
    if (!e->latest) return;
    s->device->world->counts.stream_waits++;
    wr_sim_oracle_wait(s, e->latest);
    if (e->latest->pending) queue_mark_op(s, SIM_WAIT, e->latest);
}

weir_status wr_sim_op_event_destroy(struct wr_device *d, wr_event handle)
{
    weir_status s = wr_sim_enter(d, "event_destroy");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_event *e = NULL;
    s = wr_sim_event_find(w, handle, "event_destroy", &e);
    if (s == WEIR_OK) {
        set_latest(e, NULL);
        w->events[(uintptr_t)handle - 1] = NULL;
        free(e);
    }
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_event_record(struct wr_device *d, wr_event handle, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "event_record");
    if (status != WEIR_OK) return status;
    struct sim_device *device = sim_device_of(d);
    struct sim_event *e = NULL;
    struct sim_stream *s = NULL;
    status = wr_sim_event_find(device->world, handle, "event_record", &e);
    if (status == WEIR_OK) status = wr_sim_stream_find_free(device, stream, "event_record", &s);
    if (status == WEIR_OK && s->device != e->device)
        status = wr_fail(WEIR_INVALID_ARGUMENT, "event_record: event and stream are of different devices");
    if (status == WEIR_OK) {
        wr_sim_event_record(e, s);
        device->world->counts.events_recorded++;
    }
    return wr_sim_leave(d, status);
}

weir_status wr_sim_stream_refuse_captured(const struct sim_device *d, const char *op)
{
    struct wr_sim *w = d->world;
    for (size_t i = 0; i < w->n_streams; i++) {
        if (!w->streams[i]->capturing || w->streams[i]->device != d) continue;
        w->counts.captures_broken++;
        if (w->streams[i]->graph) w->streams[i]->graph->broken = true;
        wr_sim_oracle_report(w, "capture broken: %s while a stream captures", op);
        return wr_fail(WEIR_CAPTURING, "%s: not while a stream is capturing; the capture is broken", op);
    }
    return WEIR_OK;
}

weir_status wr_sim_op_event_record_context(struct wr_device *d, wr_event handle)
{
    weir_status s = wr_sim_enter(d, "event_record_context");
    if (s != WEIR_OK) return s;
    struct sim_device *device = sim_device_of(d);
    struct sim_event *e = NULL;
    s = wr_sim_event_find(device->world, handle, "event_record_context", &e);
    if (s == WEIR_OK && e->device != device)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "event_record_context: the event is of another device");
    if (s == WEIR_OK) s = wr_sim_stream_refuse_captured(device, "event_record_context");
    if (s == WEIR_OK) {
        set_latest(e, mark_device(device));
        device->world->counts.events_recorded++;
    }
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_event_query(struct wr_device *d, wr_event handle, bool *done)
{
    weir_status s = wr_sim_enter(d, "event_query");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_event *e = NULL;
    wr_sim_engine_shuffle(w);
    s = wr_sim_event_find(w, handle, "event_query", &e);
    if (s == WEIR_OK) {
        *done = !e->latest || e->latest->pending == 0;
        if (*done && e->latest) wr_sim_oracle_seen(w, e->latest);
    }
    return wr_sim_leave(d, s);
}

static bool has_time(const struct sim_event *e)
{
    return e->timed && e->latest && e->latest->pending == 0;
}

weir_status wr_sim_op_event_elapsed(struct wr_device *d, wr_event first, wr_event second, int64_t *ns)
{
    weir_status s = wr_sim_enter(d, "event_elapsed");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_event *a = NULL, *b = NULL;
    s = wr_sim_event_find(w, first, "event_elapsed", &a);
    if (s == WEIR_OK) s = wr_sim_event_find(w, second, "event_elapsed", &b);
    if (s == WEIR_OK && !(has_time(a) && has_time(b) && a->device == b->device))
        s = wr_fail(WEIR_INVALID_ARGUMENT, "event_elapsed: an event without a time");
    if (s == WEIR_OK) *ns = (int64_t)(b->latest->done_ns - a->latest->done_ns);
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_stream_wait(struct wr_device *d, weir_stream stream, wr_event handle)
{
    weir_status status = wr_sim_enter(d, "stream_wait");
    if (status != WEIR_OK) return status;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_event *e = NULL;
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find_free(sim_device_of(d), stream, "stream_wait", &s);
    if (status == WEIR_OK) status = wr_sim_event_find(w, handle, "stream_wait", &e);
    if (status == WEIR_OK) wr_sim_event_wait(e, s);
    return wr_sim_leave(d, status);
}

weir_status wr_sim_op_stream_sync(struct wr_device *d, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "stream_sync");
    if (status != WEIR_OK) return status;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find_free(sim_device_of(d), stream, "stream_sync", &s);
    if (status == WEIR_OK) {
        w->counts.host_syncs++;
        wr_sim_stream_sync(s);
    }
    return wr_sim_leave(d, status);
}

void wr_sim_stream_sync(struct sim_stream *s)
{
    struct wr_sim *w = s->device->world;
    struct sim_mark *m = wr_sim_stream_mark(s);
    wr_sim_engine_wait(w, m);
    wr_sim_oracle_seen(w, m);
    wr_sim_mark_drop(m);
}

void wr_sim_device_sync(struct sim_device *d)
{
    struct sim_mark *m = mark_device(d);
    d->world->counts.host_syncs++;
    wr_sim_engine_wait(d->world, m);
    wr_sim_oracle_seen(d->world, m);
    wr_sim_mark_drop(m);
}

void wr_sim_set_capturing(struct wr_device *d, weir_stream handle, bool on)
{
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&w->mutex);
    if (wr_sim_stream_find(sim_device_of(d), handle, "set_capturing", &s) == WEIR_OK) {
        if (on && !s->capturing) s->capture_id = ++w->last_capture;
        s->capturing = on;
    }
    pthread_mutex_unlock(&w->mutex);
}

void wr_sim_join_capture(struct wr_device *d, weir_stream handle, weir_stream of)
{
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_stream *s = NULL, *first = NULL;
    pthread_mutex_lock(&w->mutex);
    if (wr_sim_stream_find(sim_device_of(d), handle, "join_capture", &s) == WEIR_OK &&
        wr_sim_stream_find(sim_device_of(d), of, "join_capture", &first) == WEIR_OK) {
        assert(first->capturing);
        s->capturing = true;
        s->capture_id = first->capture_id;
    }
    pthread_mutex_unlock(&w->mutex);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void drop_queue(struct sim_stream *s)
{
    while (s->head) {
        struct sim_op *op = s->head;
        s->head = op->next;
        wr_sim_engine_op_free(op);
    }
}

void wr_sim_stream_end(struct wr_sim *w)
{
    for (size_t i = 0; i < w->n_events; i++) {
        if (!w->events[i]) continue;
        set_latest(w->events[i], NULL);
        free(w->events[i]);
    }
    for (size_t i = 0; i < w->n_streams; i++)
        drop_queue(w->streams[i]);
    while (w->n_streams)
        wr_sim_stream_free(w->streams[0]);
    free(w->events);
    free(w->streams);
    free(w->stream_handles);
    free(w->dead_handles);
}
