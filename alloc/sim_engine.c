/* SPDX-License-Identifier: Apache-2.0
 *
 * When simulated ops run.
 *
 * An op is started once it heads its stream and what it waits for is done: then its end is known (ready +
 * duration; a copy first queues for its engine), and it enters the heap of running ops. Ops are finished in
 * the order of their ends, and only finishing one starts others, so an op's start never depends on how late
 * it is looked at: times come out of the ops alone, on both clocks. Bytes move when an op finishes.
 *
 * Virtual clock: whoever moves time runs what falls due, up to the new time, one end after the other. Under
 * an adversary the heap is a set, and a step finishes any of its ops.
 *
 * Wall clock: one worker thread finishes ops as they fall due. It moves bytes outside the mutex, so that
 * queries do not wait for a long copy; who unmaps the bytes meanwhile waits for it (keep_off).
 */
#define _GNU_SOURCE 1 /* pthread_cond_clockwait */
#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the running ops --------------------------------------------------------------------------------- */

static bool runs_before(const struct sim_op *a, const struct sim_op *b)
{
    return a->end_ns != b->end_ns ? a->end_ns < b->end_ns : a->number < b->number;
}

static void swap_running(struct wr_sim *w, size_t i, size_t j)
{
    struct sim_op *op = w->running[i];
    w->running[i] = w->running[j];
    w->running[j] = op;
}

static void add_running(struct wr_sim *w, struct sim_op *op)
{
    w->running = wr_sim_grow(w->running, w->n_running, &w->running_capacity, sizeof op);
    size_t i = w->n_running++;
    w->running[i] = op;
    for (; i && runs_before(w->running[i], w->running[(i - 1) / 2]); i = (i - 1) / 2)
        swap_running(w, i, (i - 1) / 2);
}

static void sift_down(struct wr_sim *w, size_t i)
{
    for (;;) {
        size_t least = i, left = 2 * i + 1;
        for (size_t child = left; child < w->n_running && child <= left + 1; child++)
            if (runs_before(w->running[child], w->running[least])) least = child;
        if (least == i) return;
        swap_running(w, i, least);
        i = least;
    }
}

static struct sim_op *take_first(struct wr_sim *w)
{
    struct sim_op *op = w->running[0];
    w->running[0] = w->running[--w->n_running];
    sift_down(w, 0);
    return op;
}

static struct sim_op *take_any(struct wr_sim *w, size_t i)
{
    struct sim_op *op = w->running[i];
    w->running[i] = w->running[--w->n_running];
    return op;
}

/* ---- starting and finishing -------------------------------------------------------------------------- */

/* Starts the first op of a stream unless something is still in its way; then whoever removes that calls
 * again. */
static void start_head(struct sim_stream *s)
{
    struct wr_sim *w = s->device->world;
    struct sim_op *op = s->head;
    if (!op || op->gate) return;
    assert(!op->started);
    if (op->kind == SIM_WAIT && op->mark->pending) {
        s->next_blocked = op->mark->blocked;
        op->mark->blocked = s;
        return;
    }
    uint64_t start = wr_max(op->ready_ns, s->idle_ns);
    if (op->kind == SIM_WAIT) start = wr_max(start, op->mark->done_ns);
    if (op->engine) start = wr_max(start, op->engine->free_ns);
    op->end_ns = start + op->duration_ns;
    if (op->engine) op->engine->free_ns = op->end_ns;
    op->started = true;
    add_running(w, op);
}

static void pass_mark(struct sim_mark *m, uint64_t now)
{
    assert(m->pending);
    m->done_ns = wr_max(m->done_ns, now);
    if (--m->pending) return;
    while (m->blocked) {
        struct sim_stream *s = m->blocked;
        m->blocked = s->next_blocked;
        start_head(s);
    }
}

static void finish_op(struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    struct wr_sim *w = s->device->world;
    assert(s->head == op && op->started);
    s->head = op->next;
    if (!s->head) s->tail = &s->head;
    s->idle_ns = op->end_ns;
    if (op->kind == SIM_MARK) pass_mark(op->mark, op->end_ns);
    wr_sim_engine_op_free(op);
    start_head(s);
    if (s->destroyed && !s->head) wr_sim_stream_free(s);
    pthread_cond_broadcast(&w->changed);
}

static bool moves_bytes(const struct sim_op *op)
{
    return op->kind == SIM_COPY || op->kind == SIM_FILL || op->kind == SIM_KERNEL;
}

/* May the op run? If it would touch what is not there, it is reported, and runs as if it touched nothing. */
static bool check_spans(const struct sim_op *op)
{
    struct wr_sim *w = op->stream->device->world;
    for (unsigned i = 0; i < op->n_spans; i++) {
        const struct sim_span *s = &op->spans[i];
        if (s->bytes == 0 || wr_sim_memory_reached(w, s)) continue;
        wr_sim_oracle_report(w,
            "unmapped: op %" PRIu64 " (%s, stream %" PRIu64 ") %s [0x%" PRIx64 ", 0x%" PRIx64
            "), not all mapped with access, or registered; skipped",
            op->number, op->what, op->stream->id, s->writes ? "writes" : "reads", s->address,
            s->address + s->bytes);
        return false;
    }
    return true;
}

static void move_rows(const struct sim_op *op)
{
    for (unsigned i = 0; i < op->n_spans; i += 2) {
        void *to = (void *)(uintptr_t)op->spans[i].address;
        memmove(to, (const void *)(uintptr_t)op->spans[i + 1].address, op->spans[i].bytes);
        if (op->garbles) ((unsigned char *)to)[op->spans[i].bytes / 2] ^= 1;
    }
}

static void move_bytes(const struct sim_op *op)
{
    void *to = op->n_spans ? (void *)(uintptr_t)op->spans[0].address : NULL;
    if (op->kind == SIM_COPY)
        move_rows(op);
    else if (op->kind == SIM_FILL)
        memset(to, op->byte, op->spans[0].bytes);
    else if (op->kernel->body)
        op->kernel->body(op->params);
}

static void run_op(struct sim_op *op)
{
    if (moves_bytes(op) && check_spans(op)) move_bytes(op);
    finish_op(op);
}

/* ---- the virtual clock and the adversary ------------------------------------------------------------- */

static bool is_adversarial(const struct wr_sim *w)
{
    return w->options.adversary_seed != 0;
}

static uint64_t draw(struct wr_sim *w) /* splitmix64 */
{
    uint64_t z = (w->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Finishes the next op that ends by `limit_ns`, and moves time to its end. */
static bool run_next(struct wr_sim *w, uint64_t limit_ns)
{
    if (w->n_running == 0 || w->running[0]->end_ns > limit_ns) return false;
    struct sim_op *op = take_first(w);
    w->now = wr_max(w->now, op->end_ns);
    run_op(op);
    return true;
}

static bool step(struct wr_sim *w)
{
    assert(!w->options.wall_clock);
    if (!is_adversarial(w)) return run_next(w, UINT64_MAX);
    if (w->n_running == 0) return false;
    struct sim_op *op = take_any(w, draw(w) % w->n_running);
    op->end_ns = w->now;
    run_op(op);
    return true;
}

void wr_sim_engine_shuffle(struct wr_sim *w)
{
    if (!is_adversarial(w)) return;
    for (uint64_t n = draw(w) % 4; n && step(w); n--)
        ;
}

/* Runs what is due at this moment. On the wall clock, and under an adversary, others do. */
void wr_sim_engine_settle(struct wr_sim *w)
{
    if (w->options.wall_clock)
        pthread_cond_signal(&w->work);
    else if (!is_adversarial(w))
        while (run_next(w, w->now))
            ;
}

void wr_sim_engine_advance(struct wr_sim *w, uint64_t ns)
{
    uint64_t until = w->now + wr_min(ns, UINT64_MAX / 4);
    if (is_adversarial(w)) {
        step(w); /* who waits gets on, in the end */
        wr_sim_engine_shuffle(w);
    } else {
        while (run_next(w, until))
            ;
    }
    w->now = until;
}

/* ---- ops --------------------------------------------------------------------------------------------- */

uint64_t wr_sim_engine_now(struct wr_sim *w)
{
    return w->options.wall_clock ? wr_device_wall_ns() : w->now;
}

struct sim_op *wr_sim_engine_op(
    struct sim_stream *s, enum sim_op_kind kind, const char *what, unsigned n_spans)
{
    size_t bytes = sizeof(struct sim_op) + n_spans * sizeof(struct sim_span);
    struct sim_op *op = wr_sim_alloc(NULL, bytes);
    memset(op, 0, bytes);
    op->stream = s;
    op->kind = kind;
    op->what = what;
    op->n_spans = n_spans;
    return op;
}

void wr_sim_engine_op_free(struct sim_op *op)
{
    if (op->mark) wr_sim_mark_drop(op->mark);
    free(op->gate); /* only where the world ends with a closed gate */
    free(op->storage);
    free(op);
}

void wr_sim_engine_queue(struct sim_op *op)
{
    struct sim_stream *s = op->stream;
    struct wr_sim *w = s->device->world;
    op->number = ++w->n_ops;
    op->ready_ns = wr_sim_engine_now(w);
    if (op->n_spans) wr_sim_oracle_op(op);
    *s->tail = op;
    s->tail = &op->next;
    if (s->head == op) start_head(s);
    wr_sim_engine_settle(w);
}

void wr_sim_engine_wait(struct wr_sim *w, struct sim_mark *m)
{
    while (m->pending)
        if (w->options.wall_clock || !step(w)) pthread_cond_wait(&w->changed, &w->mutex);
}

weir_status wr_sim_stall(struct wr_device *d, weir_stream handle, struct wr_sim_gate **out)
{
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_stream *s = NULL;
    pthread_mutex_lock(&w->mutex);
    weir_status status = wr_sim_stream_find_free(sim_device_of(d), handle, "stall", &s);
    if (status == WEIR_OK) {
        struct sim_op *op = wr_sim_engine_op(s, SIM_GATE, "stall", 0);
        op->gate = wr_sim_alloc(NULL, sizeof *op->gate);
        *op->gate = (struct wr_sim_gate){w, op};
        *out = op->gate;
        wr_sim_engine_queue(op);
    }
    pthread_mutex_unlock(&w->mutex);
    return status;
}

void wr_sim_gate_open(struct wr_sim_gate *g)
{
    struct wr_sim *w = g->world;
    pthread_mutex_lock(&w->mutex);
    struct sim_op *op = g->op;
    assert(op->gate == g);
    op->gate = NULL;
    op->ready_ns = wr_sim_engine_now(w);
    if (op->stream->head == op) start_head(op->stream);
    wr_sim_engine_settle(w);
    pthread_cond_broadcast(&w->changed); /* a blocked stream_sync may go on moving time */
    pthread_mutex_unlock(&w->mutex);
    free(g);
}

/* ---- time as tests move it --------------------------------------------------------------------------- */

void wr_sim_advance(struct wr_sim *w, uint64_t ns)
{
    assert(!w->options.wall_clock);
    pthread_mutex_lock(&w->mutex);
    wr_sim_engine_advance(w, ns);
    pthread_mutex_unlock(&w->mutex);
}

bool wr_sim_step(struct wr_sim *w)
{
    assert(!w->options.wall_clock);
    pthread_mutex_lock(&w->mutex);
    bool stepped = step(w);
    pthread_mutex_unlock(&w->mutex);
    return stepped;
}

void wr_sim_drain(struct wr_sim *w)
{
    pthread_mutex_lock(&w->mutex);
    if (w->options.wall_clock)
        while (w->n_running || w->moving)
            pthread_cond_wait(&w->changed, &w->mutex);
    else
        while (step(w))
            ;
    pthread_mutex_unlock(&w->mutex);
}

/* ---- the wall clock ---------------------------------------------------------------------------------- */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / WR_NS_PER_SEC), (long)(ns % WR_NS_PER_SEC)};
}

static void run_op_unlocked(struct wr_sim *w, struct sim_op *op)
{
    if (moves_bytes(op) && check_spans(op)) {
        w->moving = op;
        pthread_mutex_unlock(&w->mutex);
        move_bytes(op);
        pthread_mutex_lock(&w->mutex);
        w->moving = NULL;
    }
    finish_op(op);
}

static void *work(void *world)
{
    struct wr_sim *w = world;
    pthread_mutex_lock(&w->mutex);
    while (!w->closing) {
        if (w->n_running == 0) {
            pthread_cond_wait(&w->work, &w->mutex);
        } else if (w->running[0]->end_ns > wr_device_wall_ns()) {
            struct timespec until = timespec_of(w->running[0]->end_ns);
            pthread_cond_clockwait(&w->work, &w->mutex, CLOCK_MONOTONIC, &until);
        } else {
            run_op_unlocked(w, take_first(w));
        }
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

bool wr_sim_engine_start(struct wr_sim *w)
{
    return pthread_create(&w->worker, NULL, work, w) == 0;
}

void wr_sim_engine_stop(struct wr_sim *w)
{
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->worker, NULL);
}

static bool op_touches(const struct sim_op *op, uint64_t start, uint64_t bytes)
{
    for (unsigned i = 0; i < op->n_spans; i++) {
        const struct sim_span *s = &op->spans[i];
        if (s->address < start + bytes && start < s->address + s->bytes) return true;
    }
    return false;
}

void wr_sim_engine_keep_off(struct wr_sim *w, uint64_t start, uint64_t bytes)
{
    while (w->moving && op_touches(w->moving, start, bytes))
        pthread_cond_wait(&w->changed, &w->mutex);
}
