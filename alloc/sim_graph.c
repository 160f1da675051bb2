/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated graphs.
 *
 * A stream that captures puts work into its graph instead of its queue. A launch queues copies of that work, in the
 * order of the capture, onto one stream, and does there and then to events what the graph's nodes say: as the driver's
 * launch "will record event to capture execution of the node's dependencies" (cuGraphAddEventRecordNode). So a node
 * that waits waits for what the event holds at the launch, and to the oracle a launch is a row of ops like any others.
 *
 * Events are known by handle: a graph launched after an event of its own was destroyed is refused, and reported.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* ---- capture ----------------------------------------------------------------------------------------- */

static void add_node(struct sim_graph *g, struct sim_node n)
{
    g->nodes = wr_sim_grow(g->nodes, g->n_nodes, &g->capacity, sizeof n);
    g->nodes[g->n_nodes++] = n;
}

void wr_sim_graph_queue(struct sim_op *op)
{
    if (op->stream->graph)
        add_node(op->stream->graph, (struct sim_node){.work = op});
    else
        wr_sim_engine_queue(op);
}

void wr_sim_graph_free(struct sim_graph *g)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].work) wr_sim_engine_op_free(g->nodes[i].work);
    wr_sim_event_clear(&g->last);
    free(g->nodes);
    free(g);
}

weir_status wr_sim_op_graph_begin(struct wr_device *d, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "graph_begin");
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = wr_sim_stream_find_free(sim_device_of(d), stream, "graph_begin", &s);
    if (status == WEIR_OK && s == s->device->legacy)
        status = wr_fail(WEIR_CAPTURING, "graph_begin: the legacy stream can't capture");
    if (status == WEIR_OK) {
        s->graph = wr_sim_alloc(NULL, sizeof *s->graph);
        *s->graph = (struct sim_graph){.device = s->device};
        s->capturing = true;
        s->capture_id = ++s->device->world->last_capture;
    }
    return wr_sim_leave(d, status);
}

/* The stream, which must be capturing a graph. */
static weir_status find_capture(
    struct wr_device *d, weir_stream stream, const char *op, struct sim_stream **out)
{
    struct sim_stream *s = NULL;
    weir_status status = wr_sim_stream_find(sim_device_of(d), stream, op, &s);
    if (status != WEIR_OK) return status;
    if (!s->graph) return wr_fail(WEIR_INVALID_ARGUMENT, "%s: the stream captures no graph", op);
    *out = s;
    return WEIR_OK;
}

static wr_graph name_graph(struct wr_sim *w, struct sim_graph *g)
{
    w->graphs = wr_sim_grow(w->graphs, w->n_graphs, &w->graphs_capacity, sizeof g);
    w->graphs[w->n_graphs++] = g;
    return (wr_graph)(uintptr_t)w->n_graphs;
}

/* The capture is over in either way. */
weir_status wr_sim_op_graph_end(struct wr_device *d, weir_stream stream, wr_graph *out)
{
    weir_status status = wr_sim_enter(d, "graph_end");
    if (status != WEIR_OK) return status;
    struct sim_stream *s = NULL;
    status = find_capture(d, stream, "graph_end", &s);
    if (status != WEIR_OK) return wr_sim_leave(d, status);
    struct sim_graph *g = s->graph;
    s->graph = NULL;
    s->capturing = false;
    if (g->broken) {
        wr_sim_graph_free(g);
        return wr_sim_leave(d, wr_fail(WEIR_CAPTURING, "graph_end: the capture was broken"));
    }
    *out = name_graph(s->device->world, g);
    return wr_sim_leave(d, WEIR_OK);
}

static weir_status add_event(
    struct wr_device *d, const char *op, wr_event handle, weir_stream stream, bool records)
{
    weir_status status = wr_sim_enter(d, op);
    if (status != WEIR_OK) return status;
    struct sim_event *e = NULL;
    struct sim_stream *s = NULL;
    status = wr_sim_event_find(sim_device_of(d)->world, handle, op, &e);
    if (status == WEIR_OK) status = find_capture(d, stream, op, &s);
    if (status == WEIR_OK && records && s->device != e->device)
        status = wr_fail(WEIR_INVALID_ARGUMENT, "%s: event and stream are of different devices", op);
    if (status == WEIR_OK) add_node(s->graph, (struct sim_node){.event = handle, .records = records});
    return wr_sim_leave(d, status);
}

weir_status wr_sim_op_event_record_external(struct wr_device *d, wr_event e, weir_stream s)
{
    return add_event(d, "event_record_external", e, s, true);
}

weir_status wr_sim_op_stream_wait_external(struct wr_device *d, weir_stream s, wr_event e)
{
    return add_event(d, "stream_wait_external", e, s, false);
}

/* ---- launch ------------------------------------------------------------------------------------------ */

static weir_status find_graph(struct wr_sim *w, wr_graph handle, const char *op, struct sim_graph **out)
{
    uintptr_t h = (uintptr_t)handle;
    struct sim_graph *g = h >= 1 && h <= w->n_graphs ? w->graphs[h - 1] : NULL;
    if (!g) return wr_fail(WEIR_INVALID_ARGUMENT, "%s: no such graph on the simulated device", op);
    *out = g;
    return WEIR_OK;
}

/* A launch that fails has queued nothing. */
static weir_status check_events(struct wr_sim *w, const struct sim_graph *g)
{
    struct sim_event *e;
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < g->n_nodes && s == WEIR_OK; i++)
        if (!g->nodes[i].work) s = wr_sim_event_find(w, g->nodes[i].event, "graph_launch", &e);
    return s;
}

static struct sim_op *copy_work(const struct sim_op *work, struct sim_stream *s)
{
    struct sim_op *op = wr_sim_engine_op(s, work->kind, work->what, work->n_spans);
    op->engine = work->engine;
    op->duration_ns = work->duration_ns;
    op->garbles = work->garbles;
    op->byte = work->byte;
    op->kernel = work->kernel;
    if (work->kernel) wr_sim_copy_params(op, work->kernel, work->params);
    memcpy(op->spans, work->spans, work->n_spans * sizeof *work->spans);
    return op;
}

static void run_node(const struct sim_node *n, struct sim_stream *s)
{
    struct sim_event *e = NULL;
    if (n->work)
        wr_sim_engine_queue(copy_work(n->work, s));
    else if (wr_sim_event_find(s->device->world, n->event, "graph_launch", &e) != WEIR_OK)
        return; /* can't be: check_events has found it */
    else if (n->records)
        wr_sim_event_record(e, s);
    else
        wr_sim_event_wait(e, s);
}

weir_status wr_sim_op_graph_launch(struct wr_device *d, wr_graph handle, weir_stream stream)
{
    weir_status status = wr_sim_enter(d, "graph_launch");
    if (status != WEIR_OK) return status;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_graph *g = NULL;
    struct sim_stream *s = NULL;
    status = find_graph(w, handle, "graph_launch", &g);
    if (status == WEIR_OK) status = wr_sim_stream_find_free(sim_device_of(d), stream, "graph_launch", &s);
    if (status == WEIR_OK) status = check_events(w, g);
    if (status == WEIR_OK) {
        wr_sim_event_wait(&g->last, s);
        for (size_t i = 0; i < g->n_nodes; i++)
            run_node(&g->nodes[i], s);
        wr_sim_event_record(&g->last, s);
    }
    return wr_sim_leave(d, status);
}

weir_status wr_sim_op_graph_destroy(struct wr_device *d, wr_graph handle)
{
    weir_status status = wr_sim_enter(d, "graph_destroy");
    if (status != WEIR_OK) return status;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_graph *g = NULL;
    status = find_graph(w, handle, "graph_destroy", &g);
    if (status == WEIR_OK) {
        w->graphs[(uintptr_t)handle - 1] = NULL;
        wr_sim_graph_free(g);
    }
    return wr_sim_leave(d, status);
}

void wr_sim_graph_end(struct wr_sim *w)
{
    for (size_t i = 0; i < w->n_graphs; i++)
        if (w->graphs[i]) wr_sim_graph_free(w->graphs[i]);
    free(w->graphs);
}
