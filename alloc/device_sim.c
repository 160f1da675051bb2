/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated GPUs as a filling of the seam: the table, the work that it queues, worlds and their profiles.
 */
#include "sim.h"
#include "edges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- profiles ---------------------------------------------------------------------------------------- */

#define GTX1080_PCIE3                                                                                        \
    .memory_bytes = 8 * WR_GIB, .h2d_gbps = 12.0, .d2h_gbps = 12.0, .pageable_gbps = 3.1, .peer_gbps = 9.0,  \
    .d2d_gbps = 240.0, .copy_latency_ns = 10000, .copy_engines = 2

/* Measured; a copy on the device reads and writes, so it runs at half the memory's 4 TB/s. */
#define H200_PCIE5                                                                                           \
    .memory_bytes = 139 * WR_GIB, .h2d_gbps = 55.4, .d2h_gbps = 55.4, .pageable_gbps = 9.0,                  \
    .peer_gbps = 280.0, .d2d_gbps = 2000.0, .copy_latency_ns = 2600, .copy_engines = 3

static const struct wr_sim_profile profiles[] = {
    {.name = "gtx1080-pcie3", .devices = 1, GTX1080_PCIE3},
    {.name = "gtx1080-pcie3x2", .devices = 2, GTX1080_PCIE3},
    {.name = "h200-pcie5", .devices = 1, H200_PCIE5},
    {.name = "h200-pcie5x2", .devices = 2, H200_PCIE5},
};

const struct wr_sim_profile *wr_sim_profile_find(const char *name)
{
    for (size_t i = 0; i < WR_ARRAY_LEN(profiles); i++)
        if (strcmp(profiles[i].name, name) == 0) return &profiles[i];
    return NULL;
}

/* ---- what every file of the simulation uses ---------------------------------------------------------- */

void *wr_sim_alloc(void *old, size_t bytes)
{
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "weir: no host memory left for the simulated device's own records\n");
        abort();
    }
    return p;
}

void *wr_sim_grow(void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    if (n < *capacity) return array;
    *capacity = *capacity ? 2 * *capacity : 16;
    return wr_sim_alloc(array, *capacity * item_bytes);
}

uint64_t wr_sim_thread(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t mine;
    if (!mine) mine = atomic_fetch_add(&last, 1) + 1;
    return mine;
}

weir_status wr_sim_enter(struct wr_device *d, const char *op)
{
    struct wr_sim *w = sim_device_of(d)->world;
    wr_locks_assert_none();
    weir_status over = wr_edges_check_device(d);
    if (over != WEIR_OK) return over;
    atomic_fetch_add(&d->calls, 1);
    if (atomic_load(&sim_device_of(d)->was_reset)) {
        wr_edges_lose(d);
        return wr_fail(WEIR_CONTEXT_LOST, "%s: the simulated device was reset", op);
    }
    pthread_mutex_lock(&w->mutex);
    if (++w->calls != w->fail_at) return WEIR_OK;
    weir_status s = w->fail_status;
    pthread_mutex_unlock(&w->mutex);
    return wr_fail(s, "%s: made to fail on the simulated device", op);
}

weir_status wr_sim_leave(struct wr_device *d, weir_status s)
{
    pthread_mutex_unlock(&sim_device_of(d)->world->mutex);
    return s;
}

/* ---- work -------------------------------------------------------------------------------------------- */

/* 10^9 bytes a second are a byte a nanosecond. */
static uint64_t transfer_ns(size_t bytes, double gbps)
{
    double exact = (double)bytes / gbps;
    uint64_t whole = (uint64_t)exact;
    return whole + ((double)whole < exact);
}

/* Rate and engine of a copy of stream s; the engine is NULL where the device's own cores copy. */
static double choose_engine(
    struct sim_stream *s, enum wr_copy_kind kind, bool pageable, struct sim_engine **engine)
{
    const struct wr_sim_profile *p = &s->device->world->profile;
    struct sim_engine *engines = s->device->engines;
    *engine = NULL;
    switch (kind) {
    case WR_COPY_H2D:
        *engine = &engines[SIM_ENGINE_H2D];
        return pageable ? p->pageable_gbps : p->h2d_gbps;
    case WR_COPY_D2H:
        *engine = &engines[SIM_ENGINE_D2H];
        return pageable ? p->pageable_gbps : p->d2h_gbps;
    case WR_COPY_PEER:
        *engine = &engines[SIM_ENGINE_PEER];
        return p->peer_gbps;
    case WR_COPY_D2D:
        break;
    }
    return p->d2d_gbps;
}

static struct sim_span span_of(struct sim_device *d, uint64_t address, size_t bytes, bool writes)
{
    return (struct sim_span){
        .address = address, .bytes = bytes, .writes = writes, .from = 1u << d->base.ordinal};
}

static const char *name_copy(enum wr_copy_kind kind)
{
    static const char *const names[] = {[WR_COPY_H2D] = "copy to device",
        [WR_COPY_D2H] = "copy to host",
        [WR_COPY_D2D] = "copy on device",
        [WR_COPY_PEER] = "copy to peer"};
    return names[kind];
}

/* Declares what a row reads and writes. True: its host side is pageable. */
static bool fill_row(struct sim_stream *s, enum wr_copy_kind kind, const struct wr_rows *r, size_t row,
    struct sim_span span[2])
{
    struct wr_sim *w = s->device->world;
    span[0] = span_of(s->device, r->to + row * r->to_pitch, r->row_bytes, true);
    span[1] = span_of(s->device, r->from + row * r->from_pitch, r->row_bytes, false);
    if (kind == WR_COPY_PEER) span[0].from = span[1].from = 0;
    if (kind == WR_COPY_PEER || kind == WR_COPY_D2D) return false;
    struct sim_span *host = &span[kind == WR_COPY_H2D ? 1 : 0];
    return host->pageable = !wr_sim_memory_is_pinned(w, host->address, r->row_bytes);
}

/* Queues the copy. True: its host side is pageable, so the caller is to wait, as the driver makes it. */
static bool queue_copy(struct sim_stream *s, enum wr_copy_kind kind, const struct wr_rows *r)
{
    struct wr_sim *w = s->device->world;
    struct sim_op *op = wr_sim_engine_op(s, SIM_COPY, name_copy(kind), 2 * (unsigned)r->rows);
    bool pageable = false;
    for (size_t row = 0; row < r->rows; row++)
        pageable |= fill_row(s, kind, r, row, &op->spans[2 * row]);
    double gbps = choose_engine(s, kind, pageable, &op->engine);
    op->duration_ns = w->profile.copy_latency_ns + transfer_ns(r->row_bytes * r->rows, gbps);
    op->garbles = kind == WR_COPY_PEER && w->options.peers_garble;
    w->counts.copies++;
    wr_sim_graph_queue(op);
    return pageable && !s->graph;
}

static weir_status copy_as(
    struct wr_device *d, const char *op, enum wr_copy_kind kind, const struct wr_rows *r, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, op);
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find_work(sim_device_of(d), stream, op, &s);
    if (status == WEIR_OK && r->rows > 1 && wr_min(r->to_pitch, r->from_pitch) < r->row_bytes)
        status = wr_fail(WEIR_INVALID_ARGUMENT, "%s: a pitch below the rows' %zu bytes", op, r->row_bytes);
    if (status == WEIR_OK && r->row_bytes && r->rows && queue_copy(s, kind, r)) {
        s->device->world->counts.host_syncs++;
        wr_sim_stream_sync(s);
    }
    return wr_sim_leave(d, status);
}

weir_status wr_sim_op_copy(
    struct wr_device *d, enum wr_copy_kind kind, uint64_t dst, uint64_t src, size_t n, weir_stream stream)
{
    struct wr_rows whole = {.to = dst, .from = src, .row_bytes = n, .rows = 1};
    return copy_as(d, "copy", kind, &whole, stream);
}

weir_status wr_sim_op_copy_rows(
    struct wr_device *d, enum wr_copy_kind kind, const struct wr_rows *r, weir_stream stream)
{
    return copy_as(d, "copy_rows", kind, r, stream);
}

weir_status wr_sim_op_peer_access(struct wr_device *d, struct wr_device *other, bool *out)
{
    weir_status s = wr_sim_enter(d, "peer_access");
    if (s != WEIR_OK) return s;
    *out = d != other && !sim_device_of(d)->world->options.no_peer_access;
    return wr_sim_leave(d, WEIR_OK);
}

/* The stream, if it is of device d: what runs on a device's cores must be. */
static weir_status find_own_stream(
    struct wr_device *d, weir_stream stream, const char *op, struct sim_stream **out)
{
    weir_status s = wr_sim_stream_find_work(sim_device_of(d), stream, op, out);
    if (s == WEIR_OK && &(*out)->device->base != d)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%s: the stream is of another device", op);
    return s;
}

weir_status wr_sim_op_fill(
    struct wr_device *d, uint64_t dst, unsigned char byte, size_t n, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "fill");
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = find_own_stream(d, stream, "fill", &s);
    if (status == WEIR_OK && n) {
        struct sim_op *op = wr_sim_engine_op(s, SIM_FILL, "fill", 1);
        op->spans[0] = span_of(s->device, dst, n, true);
        op->byte = byte;
        op->duration_ns = transfer_ns(n, s->device->world->profile.d2d_gbps);
        wr_sim_graph_queue(op);
    }
    return wr_sim_leave(d, status);
}

/* Each aligned for any type. */
void wr_sim_copy_params(struct sim_op *op, const struct wr_kernel *k, void *const *params)
{
    enum { ALIGN = 16 };
    size_t bytes = 0;
    for (unsigned i = 0; i < k->n_params; i++)
        bytes += wr_round_up(k->param_bytes[i], ALIGN);
    unsigned char *to = op->storage = wr_sim_alloc(NULL, bytes);
    for (unsigned i = 0; i < k->n_params; i++) {
        op->params[i] = memcpy(to, params[i], k->param_bytes[i]);
        to += wr_round_up(k->param_bytes[i], ALIGN);
    }
}

static void queue_launch(struct sim_stream *s, const struct wr_kernel *k, const struct wr_launch *l)
{
    struct sim_op *op = wr_sim_engine_op(s, SIM_KERNEL, k->name, l->n_uses);
    op->kernel = k;
    wr_sim_copy_params(op, k, l->params);
    for (unsigned i = 0; i < l->n_uses; i++)
        op->spans[i] = span_of(s->device, l->uses[i].address, l->uses[i].bytes, l->uses[i].writes);
    op->duration_ns = l->sim_duration_ns;
    s->device->world->counts.launches++;
    wr_sim_graph_queue(op);
}

/* LOCK: w->mutex is held all the while: nobody else calls anything. */
static void load_kernel(struct wr_sim *w, const struct wr_kernel *k)
{
    uint64_t ns = w->options.lazy_load_ns;
    for (size_t i = 0; i < w->n_loaded; i++)
        if (w->loaded[i] == k) return;
    w->loaded = wr_sim_grow(w->loaded, w->n_loaded, &w->loaded_capacity, sizeof k);
    w->loaded[w->n_loaded++] = k;
    const struct timespec pause = {(time_t)(ns / WR_NS_PER_SEC), (long)(ns % WR_NS_PER_SEC)};
    if (w->options.wall_clock)
        nanosleep(&pause, NULL);
    else
        wr_sim_engine_advance(w, ns);
}

weir_status wr_sim_op_launch(
    struct wr_device *d, const struct wr_kernel *k, const struct wr_launch *l, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "launch");
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = find_own_stream(d, stream, "launch", &s);
    if (status == WEIR_OK &&
        (l->blocks == 0 || l->threads == 0 || k->n_params > WR_ARRAY_LEN(k->param_bytes)))
        status = wr_fail(WEIR_INVALID_ARGUMENT, "launch: an empty grid, or too many parameters");
    if (status == WEIR_OK && s->device->world->options.lazy_load_ns) load_kernel(s->device->world, k);
    if (status == WEIR_OK) queue_launch(s, k, l);
    return wr_sim_leave(d, status);
}

/* ---- the clock, and the table ------------------------------------------------------------------------ */

static weir_status find_sibling(struct wr_device *d, int ordinal, struct wr_device **out)
{
    struct wr_sim *w = sim_device_of(d)->world;
    struct wr_device *found = ordinal >= 0 ? wr_sim_device(w, (unsigned)ordinal) : NULL;
    if (!found)
        return wr_fail(
            WEIR_NO_DEVICE, "sim:%s has no device %d, only %u", w->profile.name, ordinal, w->profile.devices);
    *out = found;
    return WEIR_OK;
}

static uint64_t read_clock(struct wr_device *d)
{
    struct wr_sim *w = sim_device_of(d)->world;
    if (w->options.wall_clock) return wr_device_wall_ns();
    pthread_mutex_lock(&w->mutex);
    uint64_t now = w->now;
    pthread_mutex_unlock(&w->mutex);
    return now;
}

static const struct wr_device_ops sim_ops = {
#define SIM_OP_FIELD(name, args) .name = wr_sim_op_##name,
    WR_DEVICE_OPS(SIM_OP_FIELD)
#undef SIM_OP_FIELD
        .sibling = find_sibling,
    .watch_free = wr_sim_watch_free,
    .now_ns = read_clock,
    .now_coarse_ns = read_clock,
    .doze = wr_sim_doze,
};

/* ---- worlds ------------------------------------------------------------------------------------------ */

/* NULL: no memory file for it. */
static struct sim_device *new_device(struct wr_sim *w, unsigned ordinal)
{
    struct sim_device *d = wr_sim_alloc(NULL, sizeof *d);
    memset(d, 0, sizeof *d);
    d->world = w;
    d->base.ops = &sim_ops;
    d->base.ordinal = (int)ordinal;
    snprintf(d->base.name, sizeof d->base.name, "sim:%s", w->profile.name);
    d->base.total_bytes = w->profile.memory_bytes;
    d->base.granularity = 2 * WR_MIB;
    d->base.copy_engines = w->profile.copy_engines;
    d->base.reads_host = true;
    if (!wr_sim_memory_open(d)) {
        free(d);
        return NULL;
    }
    d->legacy = wr_sim_stream_new(d, 0);
    return d;
}

static bool open_devices(struct wr_sim *w)
{
    w->devices = wr_sim_alloc(NULL, w->profile.devices * sizeof(void *));
    for (unsigned i = 0; i < w->profile.devices; i++) {
        if ((w->devices[i] = new_device(w, i)) == NULL) return false;
        w->n_devices++;
    }
    return true;
}

void wr_sim_reset_device(struct wr_device *d)
{
    struct sim_device *old = sim_device_of(d);
    struct wr_sim *w = old->world;
    pthread_mutex_lock(&w->mutex);
    struct sim_device *fresh = new_device(w, (unsigned)d->ordinal);
    if (!fresh) abort(); /* a simulation that can't go on: see wr_sim_alloc */
    assert(w->devices[d->ordinal] == old);
    w->devices = wr_sim_alloc(w->devices, (w->n_devices + 1) * sizeof(void *));
    w->devices[w->n_devices++] = old;
    w->devices[d->ordinal] = fresh;
    atomic_store(&old->was_reset, true);
    pthread_mutex_unlock(&w->mutex);
}

/* Frees a world whose worker has stopped. */
static void free_world(struct wr_sim *w)
{
    wr_sim_graph_end(w);
    wr_sim_stream_end(w);
    for (size_t i = 0; i < w->n_devices; i++) {
        wr_sim_memory_close(w->devices[i]);
        free(w->devices[i]->past.times);
    }
    wr_sim_memory_end(w);
    wr_sim_oracle_end(w);
    free(w->running);
    free(w->loaded);
    free(w->sleepers);
    for (size_t i = 0; i < w->n_devices; i++)
        free(w->devices[i]);
    free(w->devices);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

static weir_status check_options(const struct wr_sim_options *o)
{
    const struct wr_sim_profile *p = o->profile;
    if (!p || p->devices < 1 || p->devices > 32)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a simulated world needs a profile of 1 to 32 devices");
    if (!(p->h2d_gbps > 0 && p->d2h_gbps > 0 && p->pageable_gbps > 0 && p->peer_gbps > 0 && p->d2d_gbps > 0))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a simulated world needs rates above 0");
    if (o->wall_clock && (o->adversary_seed || o->sleepers > 1))
        return wr_fail(WEIR_INVALID_ARGUMENT, "an adversary and sleepers need the virtual clock");
    return WEIR_OK;
}

weir_status wr_sim_open(const struct wr_sim_options *o, struct wr_sim **out)
{
    weir_status s = check_options(o);
    if (s != WEIR_OK) return s;
    struct wr_sim *w = calloc(1, sizeof *w);
    if (!w) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a simulated world");
    w->options = *o;
    w->profile = *o->profile;
    w->options.profile = &w->profile;
    w->random = o->adversary_seed;
    w->oracle.host_version = 1;
    w->oracle.prints = getenv("WEIR_CHECK_USES") != NULL;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    pthread_cond_init(&w->work, NULL);
    if (!open_devices(w) || (o->wall_clock && !wr_sim_engine_start(w))) {
        free_world(w);
        return wr_fail(WEIR_NO_HOST_MEMORY, "no memory file or thread for a simulated world");
    }
    *out = w;
    return WEIR_OK;
}

struct wr_device *wr_sim_device(struct wr_sim *w, unsigned ordinal)
{
    pthread_mutex_lock(&w->mutex);
    struct wr_device *d = ordinal < w->profile.devices ? &w->devices[ordinal]->base : NULL;
    pthread_mutex_unlock(&w->mutex);
    return d;
}

/* The host learns that all is over, so that what the arenas unregister now is in order. */
static void see_everything(struct wr_sim *w)
{
    wr_sim_drain(w);
    pthread_mutex_lock(&w->mutex);
    w->fail_at = 0;
    for (size_t i = 0; i < w->n_streams; i++)
        wr_sim_oracle_join(&w->oracle.host, &w->streams[i]->clock);
    for (size_t i = 0; i < w->n_devices; i++)
        wr_sim_oracle_join(&w->oracle.host, &w->devices[i]->past);
    w->oracle.host_version++;
    pthread_mutex_unlock(&w->mutex);
}

static unsigned count_kept(const struct sim_ranges *r)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->n; i++)
        n += !r->items[i].owner->was_reset;
    return n;
}

/* What went with a context that was reset is no leak. */
static unsigned count_leaks(struct wr_sim *w)
{
    unsigned streams = 0, events = 0, graphs = 0, handles = 0;
    for (size_t i = 0; i < w->n_streams; i++)
        streams += w->streams[i]->user && !w->streams[i]->destroyed && !w->streams[i]->device->was_reset;
    for (size_t i = 0; i < w->n_events; i++)
        events += w->events[i] && !w->events[i]->device->was_reset;
    for (size_t i = 0; i < w->n_graphs; i++)
        graphs += w->graphs[i] && !w->graphs[i]->device->was_reset;
    for (size_t i = 0; i < w->n_memories; i++)
        handles += w->memories[i] && !w->memories[i]->released && !w->memories[i]->device->was_reset;
    unsigned reserved = count_kept(&w->reservations), mapped = count_kept(&w->mappings);
    unsigned registered = count_kept(&w->registrations);
    unsigned n = streams + events + graphs + handles + reserved + mapped + registered;
    if (n)
        fprintf(stderr,
            "sim:%s leaks %u streams, %u events, %u graphs, %u memory handles, %u reservations, %u mappings, "
            "%u registrations\n",
            w->profile.name, streams, events, graphs, handles, reserved, mapped, registered);
    return n;
}

unsigned wr_sim_close(struct wr_sim *w)
{
    see_everything(w);
    for (size_t i = 0; i < w->n_devices; i++) {
        struct wr_device *d = &w->devices[i]->base;
        bool was_reset = atomic_exchange(&w->devices[i]->was_reset, false);
        atomic_store(&d->gone, WEIR_OK); /* for the arena to give back what is the host's own */
        void *pinned = atomic_exchange(&d->pinned, NULL);
        if (pinned && d->pinned_fini) d->pinned_fini(pinned);
        atomic_store(&w->devices[i]->was_reset, was_reset);
    }
    if (w->options.wall_clock) wr_sim_engine_stop(w);
    unsigned leaks = count_leaks(w);
    free_world(w);
    return leaks;
}

/* The worlds behind wr_device_get, one for each profile, never closed. */
static weir_status find_default_world(const struct wr_sim_profile *p, struct wr_sim **out)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct wr_sim *worlds[WR_ARRAY_LEN(profiles)];
    struct wr_sim **world = &worlds[p - profiles];
    struct wr_sim_options o = {.profile = p, .wall_clock = true};
    pthread_mutex_lock(&mutex);
    weir_status s = *world ? WEIR_OK : wr_sim_open(&o, world);
    if (s == WEIR_OK) *out = *world;
    pthread_mutex_unlock(&mutex);
    return s;
}

weir_status wr_device_sim_open(const char *profile, int ordinal, struct wr_device **out)
{
    const struct wr_sim_profile *p = wr_sim_profile_find(profile ? profile : WR_SIM_DEFAULT_PROFILE);
    if (!p) return wr_fail(WEIR_NO_DEVICE, "no simulated device \"%s\"", profile);
    if (ordinal < 0 || (unsigned)ordinal >= p->devices)
        return wr_fail(WEIR_NO_DEVICE, "sim:%s has no device %d, only %u", p->name, ordinal, p->devices);
    struct wr_sim *w;
    weir_status s = find_default_world(p, &w);
    if (s == WEIR_OK) *out = wr_sim_device(w, (unsigned)ordinal);
    return s;
}

/* ---- a test's hand in it ----------------------------------------------------------------------------- */

void wr_sim_fail_nth(struct wr_sim *w, uint64_t n, weir_status status)
{
    pthread_mutex_lock(&w->mutex);
    w->fail_at = n ? w->calls + n : 0; /* calls starts at 1: 0 never comes */
    w->fail_status = status;
    pthread_mutex_unlock(&w->mutex);
}

uint64_t wr_sim_calls(struct wr_sim *w)
{
    pthread_mutex_lock(&w->mutex);
    uint64_t n = w->calls;
    pthread_mutex_unlock(&w->mutex);
    return n;
}

void wr_sim_get_counts(struct wr_sim *w, struct wr_sim_counts *out)
{
    pthread_mutex_lock(&w->mutex);
    *out = w->counts;
    pthread_mutex_unlock(&w->mutex);
}
