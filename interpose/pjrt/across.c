/* SPDX-License-Identifier: Apache-2.0
 *
 * A buffer of the plug-in's to another device, or between a device and its pinned host memory. The copy is queued at
 * once behind what computes the source; the source is released when the copy has passed, by a worker.
 */
#include "hook.h"

#include <stdlib.h>

struct passage {
    enum wr_pjrt_kind kind;
    struct wr_pjrt_site *from_site, *to_site;
    bool to_pinned;
    weir_direction direction;
    weir_engine *engine;
    struct wr_pjrt_array array;
};

/* What is left to do once the copy has passed. */
struct settling {
    struct wr_pjrt_job job;
    struct pjrt_buffer *source;
    struct pjrt_event *ready;  /* NULL: nobody tells when, so the worker waits */
    struct wr_pjrt_view *view; /* that became no buffer. NULL: it did */
    weir_engine *engine;
    weir_ticket ticket;
};

static void settle(struct wr_pjrt_job *job)
{
    struct settling *s = (struct settling *)job;
    if (s->ready)
        wr_pjrt_do(PJRT_EVENT_DESTROY, s->ready);
    else
        (void)weir_copy_wait(s->engine, s->ticket, -1);
    if (s->view) wr_pjrt_view_close(s->view);
    wr_pjrt_release_source(s->source);
    free(s);
}

static void submit_settling(struct pjrt_error *error, void *argument)
{
    wr_pjrt_drop_error(error);
    struct settling *s = argument;
    wr_pjrt_submit(&s->job);
}

/* `to` is NULL where no buffer was made. */
static void settle_later(struct settling *s, struct pjrt_buffer *to)
{
    wr_pjrt_expect_job();
    s->ready = to ? wr_pjrt_ready_event(to) : NULL;
    if (s->ready && wr_pjrt_on_ready(s->ready, submit_settling, s)) return;
    if (s->ready) wr_pjrt_do(PJRT_EVENT_DESTROY, s->ready);
    s->ready = NULL;
    wr_pjrt_submit(&s->job);
}

/* ---- where from, where to ---------------------------------------------------------------------------- */

static enum wr_pjrt_reason choose_direction(struct passage *p, bool from_pinned)
{
    if (from_pinned && p->to_pinned) return WR_PJRT_MEMORY;
    if (!from_pinned && !p->to_pinned) {
        if (p->from_site->ground == p->to_site->ground) return WR_PJRT_SAME_DEVICE;
        p->kind = WR_PJRT_ACROSS;
        p->direction = WEIR_ON_DEVICE;
        return WR_PJRT_SERVED;
    }
    if (p->from_site != p->to_site) return WR_PJRT_MEMORY;
    if (p->to_pinned && atomic_load(&p->to_site->no_pinned_views)) return WR_PJRT_REFUSED;
    p->kind = p->to_pinned ? WR_PJRT_TO_PINNED : WR_PJRT_FROM_PINNED;
    p->direction = p->to_pinned ? WEIR_TO_HOST : WEIR_TO_DEVICE;
    return WR_PJRT_SERVED;
}

static enum wr_pjrt_reason find_ends(struct passage *p, struct pjrt_buffer *from)
{
    bool from_pinned = false;
    p->from_site = wr_pjrt_site_of_memory(wr_pjrt_get(PJRT_BUFFER_MEMORY, from), &from_pinned);
    if (!p->from_site || !p->to_site) return WR_PJRT_UNKNOWN;
    if (atomic_load(&p->from_site->client) != atomic_load(&p->to_site->client)) return WR_PJRT_UNKNOWN;
    enum wr_pjrt_reason why = choose_direction(p, from_pinned);
    return why == WR_PJRT_SERVED ? wr_pjrt_describe_buffer(&p->array, from) : why;
}

static enum wr_pjrt_reason open_engines(struct passage *p)
{
    if (!wr_pjrt_site_open(p->from_site) || !wr_pjrt_site_open(p->to_site)) return WR_PJRT_FAILED;
    if (!wr_pjrt_start_workers()) return WR_PJRT_FAILED;
    p->engine = p->to_site->ground->engine;
    if (p->kind != WR_PJRT_ACROSS) return WR_PJRT_SERVED;
    return weir_engine_link(p->engine, p->from_site->ground->pool) == WEIR_OK ? WR_PJRT_SERVED
                                                                              : WR_PJRT_FAILED;
}

/* ---- the copy ---------------------------------------------------------------------------------------- */

static bool wait_on_gate(weir_stream gate, struct pjrt_buffer *source)
{
    struct pjrt_wait_stream args = {.struct_size = sizeof args, .stream = (intptr_t)gate, .buffer = source};
    struct pjrt_error *e = wr_pjrt_hook.streams->wait_stream(&args);
    wr_pjrt_drop_error(e);
    return !e;
}

/* Behind what computes the source. OK: queued, and *ticket is written. */
static weir_status copy_gated(
    const struct passage *p, struct pjrt_buffer *source, const weir_piece *piece, weir_ticket *ticket)
{
    weir_stream gate;
    weir_status s = weir_engine_take_gate(p->engine, &gate);
    if (s != WEIR_OK) return s;
    weir_copy_options after = {
        .struct_size = sizeof after, .after = &gate, .n_after = 1, .flags = WEIR_COPY_IN_PLACE};
    s = wait_on_gate(gate, source) ? weir_copy(p->engine, p->direction, piece, 1, &after, ticket)
                                   : WEIR_INVALID_ARGUMENT;
    (void)weir_engine_give_gate(p->engine, gate);
    return s;
}

static enum wr_pjrt_reason copy_and_deliver(struct passage *p, struct settling *s, uint64_t address,
    struct wr_pjrt_view *view, struct pjrt_buffer **out)
{
    weir_piece piece = {.to = view->address, .from = address, .bytes = p->array.bytes};
    enum wr_pjrt_state state = wr_pjrt_state_of(s->source);
    bool gated = state == WR_PJRT_PENDING;
    weir_status status = WEIR_INVALID_ARGUMENT;
    s->engine = p->engine;
    if (gated)
        status = copy_gated(p, s->source, &piece, &s->ticket);
    else if (state == WR_PJRT_READY)
        status = weir_copy(p->engine, p->direction, &piece, 1, NULL, &s->ticket);
    enum wr_pjrt_reason why = WR_PJRT_FAILED;
    if (status == WEIR_OK) why = wr_pjrt_deliver(view, &p->array, p->engine, s->ticket, gated, out);
    if (why != WR_PJRT_SERVED) s->view = view;
    settle_later(s, why == WR_PJRT_SERVED ? *out : NULL);
    return state == WR_PJRT_BROKEN ? WR_PJRT_SOURCE : why;
}

static enum wr_pjrt_reason pass(struct passage *p, struct pjrt_buffer *from, struct pjrt_buffer **out)
{
    struct wr_pjrt_view *view;
    uint64_t address, began_ns = wr_pjrt_now_ns();
    enum wr_pjrt_reason why = find_ends(p, from);
    if (why == WR_PJRT_SERVED) why = open_engines(p);
    if (why == WR_PJRT_SERVED) why = wr_pjrt_view_open(p->to_site, p->to_pinned, p->array.bytes, &view);
    if (why != WR_PJRT_SERVED) return why;
    struct settling *s = calloc(1, sizeof *s);
    if (!s || !wr_pjrt_hold_source(from, &address)) {
        free(s);
        wr_pjrt_view_close(view);
        return WR_PJRT_REFUSED;
    }
    s->job.run = settle;
    s->source = from;
    why = copy_and_deliver(p, s, address, view, out);
    if (why == WR_PJRT_SERVED) wr_pjrt_count_served(p->kind, p->array.bytes, began_ns);
    return why;
}

struct pjrt_error *wr_pjrt_copy_to_device(void *args)
{
    struct pjrt_copy_to_device *a = args;
    struct passage p = {.to_site = wr_pjrt_site_of_device(a->device)};
    enum wr_pjrt_reason why = a->struct_size < sizeof *a ? WR_PJRT_UNKNOWN : pass(&p, a->from, &a->to);
    return why == WR_PJRT_SERVED ? NULL : wr_pjrt_forward(PJRT_BUFFER_COPY_TO_DEVICE, args, why);
}

struct pjrt_error *wr_pjrt_copy_to_memory(void *args)
{
    struct pjrt_copy_to_memory *a = args;
    struct passage p = {0};
    p.to_site = wr_pjrt_site_of_memory(a->memory, &p.to_pinned);
    enum wr_pjrt_reason why = a->struct_size < sizeof *a ? WR_PJRT_UNKNOWN : pass(&p, a->from, &a->to);
    return why == WR_PJRT_SERVED ? NULL : wr_pjrt_forward(PJRT_BUFFER_COPY_TO_MEMORY, args, why);
}
