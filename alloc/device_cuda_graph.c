/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA filling: events as nodes of graphs, and graphs themselves. See device_cuda.c for what an op is.
 *
 * EXTERNAL EVENTS. A record or wait with the driver's flag EXTERNAL becomes a node, where one without it would be an
 * edge between captured streams. "Each launch of the graph will record event to capture execution of the node's
 * dependencies" (cuGraphAddEventRecordNode): from the launch on, not from when the node runs, the event means this
 * launch. That a wait node takes the event as it stands at the launch is said nowhere so plainly:
 * tests/conformance_graph.c measures it.
 *
 * The flag is "invalid when used outside of capture" (cuda.h): who captures nothing is refused before the driver.
 */
#include "device_cuda.h"

static CUresult record_node(CUevent e, CUstream s)
{
    CUresult r = wr_cuda_require_capture(s, true);
    return r == CUDA_SUCCESS ? wr_cuda.cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL) : r;
}

weir_status wr_cuda_event_record_external(struct wr_device *d, wr_event e, weir_stream s)
{
    return IN_CONTEXT(d, "cuEventRecordWithFlags", record_node((CUevent)e, s));
}

static CUresult wait_node(CUstream s, CUevent e)
{
    CUresult r = wr_cuda_require_capture(s, true);
    return r == CUDA_SUCCESS ? wr_cuda.cuStreamWaitEvent(s, e, CU_EVENT_WAIT_EXTERNAL) : r;
}

weir_status wr_cuda_stream_wait_external(struct wr_device *d, weir_stream s, wr_event e)
{
    return IN_CONTEXT(d, "cuStreamWaitEvent", wait_node(s, (CUevent)e));
}

/* The strictest mode, and the one that frameworks use. */
weir_status wr_cuda_graph_begin(struct wr_device *d, weir_stream s)
{
    return CALL(d, cuStreamBeginCapture, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* The template is not needed once it is instantiated. */
static CUresult instantiate(CUgraph graph, CUgraphExec *out)
{
    CUresult r = wr_cuda.cuGraphInstantiate(out, graph, 0);
    wr_cuda.cuGraphDestroy(graph);
    return r;
}

weir_status wr_cuda_graph_end(struct wr_device *d, weir_stream s, wr_graph *out)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    weir_status status = CALL(d, cuStreamEndCapture, s, &graph);
    if (status == WEIR_OK) status = IN_CONTEXT(d, "cuGraphInstantiate", instantiate(graph, &exec));
    if (status == WEIR_OK) *out = (wr_graph)exec;
    return status;
}

weir_status wr_cuda_graph_launch(struct wr_device *d, wr_graph g, weir_stream s)
{
    return CALL(d, cuGraphLaunch, (CUgraphExec)g, s);
}

weir_status wr_cuda_graph_destroy(struct wr_device *d, wr_graph g)
{
    return CALL(d, cuGraphExecDestroy, (CUgraphExec)g);
}
