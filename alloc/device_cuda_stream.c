/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA filling's streams and events. See device_cuda.c.
 */
#include "device_cuda.h"

/* ---- streams ----------------------------------------------------------------------------------------- */

weir_status wr_cuda_stream_create(struct wr_device *d, weir_stream *out)
{
    CUstream stream;
    weir_status s = CALL(d, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (s == WEIR_OK) *out = stream;
    return s;
}

weir_status wr_cuda_stream_create_first(struct wr_device *d, weir_stream *out)
{
    enum { FIRST = -1000 }; /* the driver takes the nearest that there is */
    CUstream stream;
    weir_status s = CALL(d, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, FIRST);
    if (s == WEIR_OK) *out = stream;
    return s;
}

weir_status wr_cuda_stream_destroy(struct wr_device *d, weir_stream s)
{
    return CALL(d, cuStreamDestroy, s);
}

/* The capture comes first: see wr_stream_info. */
static CUresult read_stream(CUstream s, struct wr_stream_info *out)
{
    CUstreamCaptureStatus capture;
    unsigned long long id = 0;
    CUresult r = wr_cuda.cuStreamIsCapturing(s, &capture);
    if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
        /* The legacy stream, while a stream that synchronises with it captures: work on it is just as
         * forbidden. */
        capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        r = CUDA_SUCCESS;
    }
    bool capturing = r == CUDA_SUCCESS && capture != CU_STREAM_CAPTURE_STATUS_NONE;
    if (WR_LIKELY(r == CUDA_SUCCESS && !capturing)) r = wr_cuda.cuStreamGetId(s, &id);
    if (WR_LIKELY(r == CUDA_SUCCESS)) *out = (struct wr_stream_info){.id = id, .capturing = capturing};
    return r;
}

/* SLOW: the default streams are those of the current context. */
static CUresult read_stream_in_context_slow(struct cuda_device *c, CUstream s, struct wr_stream_info *out)
{
    CUcontext popped;
    CUresult r = wr_cuda.cuCtxPushCurrent(c->context);
    if (r != CUDA_SUCCESS) return r;
    r = read_stream(s, out);
    wr_cuda.cuCtxPopCurrent(&popped);
    return r;
}

/* HOT: two reads for a real handle, 24 ns each. */
weir_status wr_cuda_stream_identify(struct wr_device *d, weir_stream s, struct wr_stream_info *out)
{
    wr_locks_assert_none();
    weir_status over = wr_edges_check();
    if (WR_UNLIKELY(over != WEIR_OK)) return over;
    bool is_default = (uintptr_t)s <= (uintptr_t)CU_STREAM_PER_THREAD; /* NULL, legacy, per thread: 0, 1, 2 */
    CUresult r = is_default ? CUDA_ERROR_INVALID_CONTEXT : read_stream(s, out);
    if (WR_UNLIKELY(r == CUDA_ERROR_INVALID_CONTEXT)) r = read_stream_in_context_slow(cuda(d), s, out);
    return wr_cuda_finish(d, r, "cuStreamGetId");
}

static CUresult read_capture(CUstream s, uint64_t *out)
{
    CUstreamCaptureStatus capture;
    cuuint64_t id = 0;
#if CUDA_VERSION >= 13000
    CUresult r = wr_cuda.cuStreamGetCaptureInfo(s, &capture, &id, NULL, NULL, NULL, NULL);
#else
    CUresult r = wr_cuda.cuStreamGetCaptureInfo(s, &capture, &id, NULL, NULL, NULL);
#endif
    if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return CUDA_SUCCESS; /* no capture of its own: see read_stream */
    if (r == CUDA_SUCCESS) *out = capture != CU_STREAM_CAPTURE_STATUS_NONE ? id : 0;
    return r;
}

weir_status wr_cuda_stream_capture(struct wr_device *d, weir_stream s, uint64_t *out)
{
    CUcontext popped;
    uint64_t id = 0;
    wr_locks_assert_none();
    CUresult r = wr_cuda.cuCtxPushCurrent(cuda(d)->context); /* reading is not counted */
    if (r == CUDA_SUCCESS) {
        r = read_capture(s, &id);
        wr_cuda.cuCtxPopCurrent(&popped);
    }
    if (r == CUDA_SUCCESS) *out = id;
    return wr_cuda_status(r, "cuStreamGetCaptureInfo", d->ordinal);
}

static CUresult read_device_of(CUcontext context, CUdevice *out)
{
    CUcontext popped;
    CUresult r = wr_cuda.cuCtxPushCurrent(context);
    if (r != CUDA_SUCCESS) return r;
    r = wr_cuda.cuCtxGetDevice(out);
    wr_cuda.cuCtxPopCurrent(&popped);
    return r;
}

weir_status wr_cuda_stream_device(struct wr_device *d, weir_stream s, struct wr_device **out)
{
    CUcontext context = NULL;
    CUdevice number = 0;
    weir_status status = CALL(d, cuStreamGetCtx, s, &context);
    if (status != WEIR_OK) return status;
    struct wr_device *owner = d;
    if (context != cuda(d)->context) {
        status = wr_cuda_status(read_device_of(context, &number), "cuCtxGetDevice", d->ordinal);
        if (status == WEIR_OK) status = wr_device_get("cuda", number, &owner);
        if (status == WEIR_OK && cuda(owner)->context != context)
            status = wr_fail(WEIR_INVALID_ARGUMENT,
                "a stream of a context that is not device %d's primary one", (int)number);
    }
    if (status == WEIR_OK) *out = owner;
    return status;
}

CUresult wr_cuda_require_capture(CUstream s, bool captures)
{
    CUstreamCaptureStatus now;
    CUresult r = wr_cuda.cuStreamIsCapturing(s, &now);
    if (r != CUDA_SUCCESS || (now != CU_STREAM_CAPTURE_STATUS_NONE) == captures) return r;
    return captures ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult wait_uncaptured(CUstream s, CUevent e)
{
    CUresult r = wr_cuda_require_capture(s, false);
    return r == CUDA_SUCCESS ? wr_cuda.cuStreamWaitEvent(s, e, 0) : r;
}

weir_status wr_cuda_stream_wait(struct wr_device *d, weir_stream s, wr_event e)
{
    return IN_CONTEXT(d, "cuStreamWaitEvent", wait_uncaptured(s, (CUevent)e));
}

weir_status wr_cuda_stream_sync(struct wr_device *d, weir_stream s)
{
    return CALL(d, cuStreamSynchronize, s);
}

/* ---- events ------------------------------------------------------------------------------------------ */

static weir_status create_event(struct wr_device *d, unsigned flags, wr_event *out)
{
    CUevent event;
    weir_status s = CALL(d, cuEventCreate, &event, flags);
    if (s == WEIR_OK) *out = (wr_event)event;
    return s;
}

weir_status wr_cuda_event_create(struct wr_device *d, wr_event *out)
{
    return create_event(d, CU_EVENT_DISABLE_TIMING, out);
}

weir_status wr_cuda_event_create_timed(struct wr_device *d, wr_event *out)
{
    return create_event(d, CU_EVENT_DEFAULT, out);
}

weir_status wr_cuda_event_destroy(struct wr_device *d, wr_event e)
{
    return CALL(d, cuEventDestroy, (CUevent)e);
}

static CUresult record_uncaptured(CUevent e, CUstream s)
{
    CUresult r = wr_cuda_require_capture(s, false);
    return r == CUDA_SUCCESS ? wr_cuda.cuEventRecord(e, s) : r;
}

weir_status wr_cuda_event_record(struct wr_device *d, wr_event e, weir_stream s)
{
    return IN_CONTEXT(d, "cuEventRecord", record_uncaptured((CUevent)e, s));
}

/* The legacy stream tells of captures by streams that synchronise with it; of others the caller must know. */
static CUresult record_context_uncaptured(CUcontext c, CUevent e)
{
    CUresult r = wr_cuda_require_capture(CU_STREAM_LEGACY, false);
    return r == CUDA_SUCCESS ? wr_cuda.cuCtxRecordEvent(c, e) : r;
}

weir_status wr_cuda_event_record_context(struct wr_device *d, wr_event e)
{
    return IN_CONTEXT(d, "cuCtxRecordEvent", record_context_uncaptured(cuda(d)->context, (CUevent)e));
}

static CUresult query_event(CUevent e, bool *done)
{
    CUresult r = wr_cuda.cuEventQuery(e);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY) return r;
    *done = r == CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

weir_status wr_cuda_event_query(struct wr_device *d, wr_event e, bool *done)
{
    return IN_CONTEXT(d, "cuEventQuery", query_event((CUevent)e, done));
}

static CUresult read_elapsed(CUevent first, CUevent second, int64_t *ns)
{
    float ms;
    CUresult r = wr_cuda.cuEventElapsedTime(&ms, first, second);
    if (r == CUDA_ERROR_NOT_READY) return CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) *ns = (int64_t)((double)ms * 1e6);
    return r;
}

weir_status wr_cuda_event_elapsed(struct wr_device *d, wr_event first, wr_event second, int64_t *ns)
{
    return IN_CONTEXT(d, "cuEventElapsedTime", read_elapsed((CUevent)first, (CUevent)second, ns));
}
