/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam over the CUDA driver: libcuda.so.1, opened at run time.
 *
 * CONTEXT. Each device holds its primary context, the one that the CUDA runtime uses too, from its opening to
 * the end of the process. An op pushes it and pops it again, so the caller's own context, or none, is current
 * afterwards. One op reads without: stream_identify of a real handle, which names its context by itself and
 * lies on the allocator's hot path.
 *
 * CAPTURE. Several calls that an op makes (cuEventQuery, cuMemHostRegister, memory calls) are forbidden to
 * every thread while any thread captures a graph in the global mode, and spoil that capture. An op has no
 * part in a capture, so it runs in the relaxed mode, which lifts that. An event recorded on a capturing
 * stream would become a node of the graph and never complete, and a wait there would spoil the capture: both
 * are refused before the driver sees them. What remains: event_record_context while a stream of the context
 * captures fails, and spoils that capture.
 *
 * KERNELS. A module is loaded at a kernel's first launch and kept in a list that only grows, so finding one
 * takes no lock. Two threads that launch a kernel for the first time at once may both load it: the later
 * entry is never found, and harms nothing.
 *
 * EDGES. Nothing here is ever closed: at exit the driver may be gone before us. No op reaches the driver once
 * the process exits, in a forked child, or after the context was found lost (edges.h). A device lost is opened
 * anew as another struct cuda_device; the old one keeps its retain of the primary context, which a reset has
 * ended.
 */
#include "device_cuda.h"

#include <stdlib.h>

struct loaded_kernel {
    const struct wr_kernel *kernel;
    CUfunction function;
    struct loaded_kernel *next;
};

/* ---- the length of an op ----------------------------------------------------------------------------- */

CUresult wr_cuda_enter(struct wr_device *d, struct wr_cuda_scope *scope)
{
    wr_locks_assert_none();
    atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed);
    CUresult r = wr_cuda.cuCtxPushCurrent(cuda(d)->context);
    if (r != CUDA_SUCCESS) return r;
    scope->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    wr_cuda.cuThreadExchangeStreamCaptureMode(&scope->mode); /* can't fail: the mode is a valid one */
    return CUDA_SUCCESS;
}

void wr_cuda_leave(struct wr_cuda_scope *scope)
{
    CUcontext popped;
    wr_cuda.cuThreadExchangeStreamCaptureMode(&scope->mode);
    wr_cuda.cuCtxPopCurrent(&popped);
}

/* One call may fail for a context that is somebody else's. Ours is lost if it fails a question of our own,
 * too. */
static bool is_lost_slow(struct wr_device *d)
{
    struct wr_cuda_scope scope;
    size_t free_bytes, total_bytes;
    CUresult r = wr_cuda_enter(d, &scope);
    if (r == CUDA_SUCCESS) {
        r = wr_cuda.cuMemGetInfo(&free_bytes, &total_bytes);
        wr_cuda_leave(&scope);
    }
    return wr_cuda_classify(r) == WEIR_CONTEXT_LOST;
}

weir_status wr_cuda_finish(struct wr_device *d, CUresult r, const char *call)
{
    if (WR_LIKELY(r == CUDA_SUCCESS)) return WEIR_OK;
    weir_status s = wr_cuda_fail(r, call, d->ordinal);
    if (s == WEIR_CONTEXT_LOST && is_lost_slow(d)) wr_edges_lose(d);
    return s;
}

/* ---- virtual memory ---------------------------------------------------------------------------------- */

static weir_status va_reserve(struct wr_device *d, size_t bytes, uint64_t *out)
{
    CUdeviceptr va;
    weir_status s = CALL(d, cuMemAddressReserve, &va, bytes, d->granularity, 0, 0);
    if (s == WEIR_OK) *out = va;
    return s;
}

static weir_status va_free(struct wr_device *d, uint64_t va, size_t bytes)
{
    return CALL(d, cuMemAddressFree, va, bytes);
}

static weir_status mem_create(struct wr_device *d, size_t bytes, wr_memory *out)
{
    CUmemGenericAllocationHandle handle;
    weir_status s = CALL(d, cuMemCreate, &handle, bytes, &cuda(d)->memory, 0);
    if (s == WEIR_OK) *out = handle;
    return s;
}

static weir_status mem_release(struct wr_device *d, wr_memory m)
{
    return CALL(d, cuMemRelease, m);
}

static weir_status mem_map(struct wr_device *d, uint64_t va, size_t bytes, wr_memory m)
{
    return CALL(d, cuMemMap, va, bytes, 0, m, 0);
}

static weir_status mem_access(struct wr_device *d, uint64_t va, size_t bytes)
{
    CUmemAccessDesc access = {
        .location = cuda(d)->memory.location,
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return CALL(d, cuMemSetAccess, va, bytes, &access, 1);
}

static weir_status mem_unmap(struct wr_device *d, uint64_t va, size_t bytes)
{
    return CALL(d, cuMemUnmap, va, bytes);
}

static weir_status mem_export(struct wr_device *d, wr_memory m, int *fd)
{
    int exported = -1;
    weir_status s =
        CALL(d, cuMemExportToShareableHandle, &exported, m, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (s == WEIR_OK) *fd = exported;
    return s;
}

static weir_status mem_import(struct wr_device *d, int fd, size_t bytes, wr_memory *out)
{
    (void)bytes; /* mapping it checks them */
    CUmemGenericAllocationHandle handle;
    weir_status s = CALL(d, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (s == WEIR_OK) *out = handle;
    return s;
}

static weir_status mem_info(struct wr_device *d, size_t *free_bytes, size_t *total_bytes)
{
    size_t free_now, total;
    weir_status s = CALL(d, cuMemGetInfo, &free_now, &total);
    if (s != WEIR_OK) return s;
    *free_bytes = free_now;
    *total_bytes = total;
    return WEIR_OK;
}

/* ---- plain memory ------------------------------------------------------------------------------------ */

static weir_status plain_alloc(struct wr_device *d, size_t bytes, uint64_t *out)
{
    CUdeviceptr address;
    weir_status s = CALL(d, cuMemAlloc, &address, bytes);
    if (s == WEIR_OK) *out = address;
    return s;
}

static weir_status plain_free(struct wr_device *d, uint64_t address)
{
    return CALL(d, cuMemFree, address);
}

static CUresult enable_peer(CUcontext owner)
{
    CUresult r = wr_cuda.cuCtxEnablePeerAccess(owner, 0);
    return r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : r; /* by whomever */
}

static weir_status plain_access(struct wr_device *d, struct wr_device *owner)
{
    return IN_CONTEXT(d, "cuCtxEnablePeerAccess", enable_peer(cuda(owner)->context));
}

/* ---- host memory ------------------------------------------------------------------------------------- */

static weir_status host_register(struct wr_device *d, void *host, size_t bytes)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    weir_status s = CALL(d, cuMemHostRegister, host, bytes, flags);
    return s == WEIR_OUT_OF_MEMORY ? WEIR_NO_HOST_MEMORY
                                   : s; /* it was the host's, which the text can't tell */
}

static weir_status host_unregister(struct wr_device *d, void *host)
{
    return CALL(d, cuMemHostUnregister, host);
}

static enum wr_memory_kind kind_of_memory(unsigned type, unsigned managed)
{
    if (managed) return WR_MEMORY_MANAGED;
    if (type == CU_MEMORYTYPE_HOST) return WR_MEMORY_PINNED;
    return type == CU_MEMORYTYPE_DEVICE ? WR_MEMORY_DEVICE : WR_MEMORY_UNKNOWN;
}

/* Unlike cuPointerGetAttribute, the plural takes addresses that CUDA does not know, and answers 0. Where the
 * range is none around the address, the address alone is vouched for. */
static weir_status locate(struct wr_device *d, uint64_t address, struct wr_location *out)
{
    unsigned type = 0, managed = 0;
    int ordinal = 0;
    CUdeviceptr start = 0, reached = 0;
    size_t bytes = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *answers[] = {&type, &managed, &ordinal, &start, &bytes, &reached};
    weir_status s = CALL(d, cuPointerGetAttributes, WR_ARRAY_LEN(asked), asked, answers, address);
    if (s != WEIR_OK) return s;
    struct wr_location at = {.kind = kind_of_memory(type, managed), .start = start, .bytes = bytes};
    if (at.kind == WR_MEMORY_UNKNOWN || address < start || address - start >= bytes) {
        at.start = address;
        at.bytes = at.kind != WR_MEMORY_UNKNOWN;
    }
    if (at.kind == WR_MEMORY_DEVICE) at.ordinal = ordinal;
    at.mapped = at.kind == WR_MEMORY_PINNED && reached == address;
    *out = at;
    return WEIR_OK;
}

/* ---- streams ----------------------------------------------------------------------------------------- */

static weir_status stream_create(struct wr_device *d, weir_stream *out)
{
    CUstream stream;
    weir_status s = CALL(d, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (s == WEIR_OK) *out = stream;
    return s;
}

static weir_status stream_create_first(struct wr_device *d, weir_stream *out)
{
    enum { FIRST = -1000 }; /* the driver takes the nearest that there is */
    CUstream stream;
    weir_status s = CALL(d, cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, FIRST);
    if (s == WEIR_OK) *out = stream;
    return s;
}

static weir_status stream_destroy(struct wr_device *d, weir_stream s)
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
static weir_status stream_identify(struct wr_device *d, weir_stream s, struct wr_stream_info *out)
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

static weir_status stream_capture(struct wr_device *d, weir_stream s, uint64_t *out)
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

static weir_status stream_device(struct wr_device *d, weir_stream s, struct wr_device **out)
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

/* See CAPTURE above. */
static CUresult refuse_capturing(CUstream s)
{
    CUstreamCaptureStatus capture;
    CUresult r = wr_cuda.cuStreamIsCapturing(s, &capture);
    if (r != CUDA_SUCCESS) return r;
    return capture == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult wait_uncaptured(CUstream s, CUevent e)
{
    CUresult r = refuse_capturing(s);
    return r == CUDA_SUCCESS ? wr_cuda.cuStreamWaitEvent(s, e, 0) : r;
}

static weir_status stream_wait(struct wr_device *d, weir_stream s, wr_event e)
{
    return IN_CONTEXT(d, "cuStreamWaitEvent", wait_uncaptured(s, (CUevent)e));
}

static weir_status stream_sync(struct wr_device *d, weir_stream s)
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

static weir_status event_create(struct wr_device *d, wr_event *out)
{
    return create_event(d, CU_EVENT_DISABLE_TIMING, out);
}

static weir_status event_create_timed(struct wr_device *d, wr_event *out)
{
    return create_event(d, CU_EVENT_DEFAULT, out);
}

static weir_status event_destroy(struct wr_device *d, wr_event e)
{
    return CALL(d, cuEventDestroy, (CUevent)e);
}

static CUresult record_uncaptured(CUevent e, CUstream s)
{
    CUresult r = refuse_capturing(s);
    return r == CUDA_SUCCESS ? wr_cuda.cuEventRecord(e, s) : r;
}

static weir_status event_record(struct wr_device *d, wr_event e, weir_stream s)
{
    return IN_CONTEXT(d, "cuEventRecord", record_uncaptured((CUevent)e, s));
}

/* The legacy stream tells of captures by streams that synchronise with it; of others the caller must know. */
static CUresult record_context_uncaptured(CUcontext c, CUevent e)
{
    CUresult r = refuse_capturing(CU_STREAM_LEGACY);
    return r == CUDA_SUCCESS ? wr_cuda.cuCtxRecordEvent(c, e) : r;
}

static weir_status event_record_context(struct wr_device *d, wr_event e)
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

static weir_status event_query(struct wr_device *d, wr_event e, bool *done)
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

static weir_status event_elapsed(struct wr_device *d, wr_event first, wr_event second, int64_t *ns)
{
    return IN_CONTEXT(d, "cuEventElapsedTime", read_elapsed((CUevent)first, (CUevent)second, ns));
}

/* ---- work -------------------------------------------------------------------------------------------- */

static weir_status copy(
    struct wr_device *d, enum wr_copy_kind k, uint64_t dst, uint64_t src, size_t n, weir_stream s)
{
    switch (k) {
    case WR_COPY_H2D:
        return CALL(d, cuMemcpyHtoDAsync, dst, (const void *)(uintptr_t)src, n, s);
    case WR_COPY_D2H:
        return CALL(d, cuMemcpyDtoHAsync, (void *)(uintptr_t)dst, src, n, s);
    case WR_COPY_D2D:
        return CALL(d, cuMemcpyDtoDAsync, dst, src, n, s);
    case WR_COPY_PEER: /* unified addresses say which devices */
        return CALL(d, cuMemcpyAsync, dst, src, n, s);
    }
    return wr_fail(WEIR_INVALID_ARGUMENT, "no copy kind %d", (int)k);
}

/* Unified addresses say which devices; host memory is told apart so that it may be pageable. */
static weir_status copy_rows(struct wr_device *d, enum wr_copy_kind k, const struct wr_rows *r, weir_stream s)
{
    CUDA_MEMCPY2D c = {
        .srcMemoryType = k == WR_COPY_H2D ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED,
        .srcHost = (const void *)(uintptr_t)r->from,
        .srcDevice = r->from,
        .srcPitch = r->from_pitch,
        .dstMemoryType = k == WR_COPY_D2H ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_UNIFIED,
        .dstHost = (void *)(uintptr_t)r->to,
        .dstDevice = r->to,
        .dstPitch = r->to_pitch,
        .WidthInBytes = r->row_bytes,
        .Height = r->rows,
    };
    return CALL(d, cuMemcpy2DAsync, &c, s);
}

static weir_status peer_access(struct wr_device *d, struct wr_device *other, bool *out)
{
    int yes = 0;
    weir_status s = CALL(d, cuDeviceCanAccessPeer, &yes, cuda(d)->device, cuda(other)->device);
    if (s == WEIR_OK) *out = yes != 0;
    return s;
}

static weir_status fill(struct wr_device *d, uint64_t dst, unsigned char byte, size_t n, weir_stream s)
{
    return CALL(d, cuMemsetD8Async, dst, byte, n, s);
}

static CUfunction find_kernel(struct cuda_device *c, const struct wr_kernel *k)
{
    for (struct loaded_kernel *l = atomic_load_explicit(&c->kernels, memory_order_acquire); l; l = l->next)
        if (l->kernel == k) return l->function;
    return NULL;
}

/* PAIRS: the release publishes the entry's fields to find_kernel's acquire. */
static weir_status remember_kernel(struct cuda_device *c, const struct wr_kernel *k, CUfunction f)
{
    struct loaded_kernel *l = malloc(sizeof *l);
    if (!l) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for the kernel %s", k->name);
    *l = (struct loaded_kernel){k, f, atomic_load(&c->kernels)};
    while (!atomic_compare_exchange_weak_explicit(
        &c->kernels, &l->next, l, memory_order_release, memory_order_relaxed))
        ;
    return WEIR_OK;
}

static weir_status load_kernel_slow(struct cuda_device *c, const struct wr_kernel *k, CUfunction *out)
{
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    CUmodule module;
    CUresult r = wr_cuda.cuModuleLoadDataEx(&module, k->ptx, WR_ARRAY_LEN(options), options, values);
    if (r != CUDA_SUCCESS && log[0])
        return wr_fail(wr_cuda_classify(r), "the PTX of %s: (%d) %s", k->name, (int)r, log);
    if (r != CUDA_SUCCESS) return wr_cuda_status(r, "cuModuleLoadDataEx", c->base.ordinal);
    r = wr_cuda.cuModuleGetFunction(out, module, k->name);
    weir_status s = wr_cuda_status(r, "cuModuleGetFunction", c->base.ordinal);
    if (s == WEIR_OK) s = remember_kernel(c, k, *out);
    if (s != WEIR_OK) wr_cuda.cuModuleUnload(module);
    return s;
}

static weir_status launch_in_context(
    struct cuda_device *c, const struct wr_kernel *k, const struct wr_launch *l, CUstream s)
{
    CUfunction f = find_kernel(c, k);
    weir_status status = f ? WEIR_OK : load_kernel_slow(c, k, &f);
    if (status != WEIR_OK) return status;
    CUresult r = wr_cuda.cuLaunchKernel(f, l->blocks, 1, 1, l->threads, 1, 1, 0, s, (void **)l->params, NULL);
    return wr_cuda_status(r, "cuLaunchKernel", c->base.ordinal);
}

static weir_status launch(
    struct wr_device *d, const struct wr_kernel *k, const struct wr_launch *l, weir_stream s)
{
    struct wr_cuda_scope scope;
    weir_status status = wr_edges_check_device(d);
    if (status != WEIR_OK) return status;
    CUresult r = wr_cuda_enter(d, &scope);
    if (r != CUDA_SUCCESS) return wr_cuda_finish(d, r, "cuCtxPushCurrent");
    status = launch_in_context(cuda(d), k, l, s);
    wr_cuda_leave(&scope);
    return status;
}

static weir_status sibling(struct wr_device *d, int ordinal, struct wr_device **out)
{
    (void)d;
    return wr_device_get("cuda", ordinal, out);
}

static uint64_t now_ns(struct wr_device *d)
{
    (void)d;
    return wr_device_wall_ns();
}

static uint64_t now_coarse_ns(struct wr_device *d)
{
    (void)d;
    return wr_device_coarse_ns();
}

static void doze(struct wr_device *d, pthread_cond_t *wake, struct wr_lock *held, uint64_t ns)
{
    (void)d;
    wr_device_doze_wall(wake, held, ns);
}

static const struct wr_device_ops cuda_ops = {
#define OP_ROW(name, args) .name = name,
    WR_DEVICE_PLAIN_OPS(OP_ROW)
#undef OP_ROW
#define GRAPH_ROW(name, args) .name = wr_cuda_##name,
        WR_DEVICE_GRAPH_OPS(GRAPH_ROW)
#undef GRAPH_ROW
            .sibling = sibling,
    .now_ns = now_ns,
    .now_coarse_ns = now_coarse_ns,
    .doze = doze,
};

/* ---- opening ----------------------------------------------------------------------------------------- */

static weir_status start_driver(int *version)
{
    weir_status s = wr_cuda_load();
    if (s == WEIR_OK) s = wr_cuda_status(wr_cuda.cuDriverGetVersion(version), "cuDriverGetVersion", 0);
    if (s != WEIR_OK) return s;
    if (*version < WR_CUDA_DRIVER_MIN)
        return wr_fail(WEIR_DRIVER_TOO_OLD, "the driver is for CUDA %d.%d: weir needs %d.%d", *version / 1000,
            *version % 1000 / 10, WR_CUDA_DRIVER_MIN / 1000, WR_CUDA_DRIVER_MIN % 1000 / 10);
    return wr_cuda_status(wr_cuda.cuInit(0), "cuInit", 0);
}

static weir_status find_device(int ordinal, CUdevice *out)
{
    int n = 0;
    weir_status s = wr_cuda_status(wr_cuda.cuDeviceGetCount(&n), "cuDeviceGetCount", ordinal);
    if (s != WEIR_OK) return s;
    if (ordinal < 0 || ordinal >= n)
        return wr_fail(WEIR_NO_DEVICE, "no device %d: the driver shows %d, counted from 0", ordinal, n);
    return wr_cuda_status(wr_cuda.cuDeviceGet(out, ordinal), "cuDeviceGet", ordinal);
}

static int read_attribute(const struct cuda_device *c, CUdevice_attribute a)
{
    int value = 0; /* an attribute that the driver does not know is not there */
    wr_cuda.cuDeviceGetAttribute(&value, a, c->device);
    return value;
}

static weir_status describe(struct cuda_device *c)
{
    struct wr_device *d = &c->base;
    weir_status s = wr_cuda_status(
        wr_cuda.cuDeviceGetName(d->name, sizeof d->name, c->device), "cuDeviceGetName", d->ordinal);
    if (s == WEIR_OK)
        s = wr_cuda_status(
            wr_cuda.cuDeviceTotalMem(&d->total_bytes, c->device), "cuDeviceTotalMem", d->ordinal);
    if (s != WEIR_OK) return s;
    d->copy_engines = (unsigned)read_attribute(c, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    d->reads_host = read_attribute(c, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0;
    return WEIR_OK;
}

static bool can_create(const struct cuda_device *c)
{
    CUmemGenericAllocationHandle probe;
    CUresult r = wr_cuda.cuMemCreate(&probe, c->base.granularity, &c->memory, 0);
    if (r == CUDA_SUCCESS) wr_cuda.cuMemRelease(probe);
    return r == CUDA_SUCCESS ||
           r == CUDA_ERROR_OUT_OF_MEMORY; /* a full device says nothing against the properties */
}

/* Memory that other processes and network cards can map, where this machine lets us: a container may refuse
 * what the device's attributes promise, so it is tried. */
static weir_status choose_memory(struct cuda_device *c)
{
    int has_virtual = 0;
    CUresult r = wr_cuda.cuDeviceGetAttribute(
        &has_virtual, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, c->device);
    if (r != CUDA_SUCCESS) return wr_cuda_status(r, "cuDeviceGetAttribute", c->base.ordinal);
    if (!has_virtual) return WEIR_OK; /* plain memory it has, all the same */
    c->memory = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = c->device},
    };
    if (read_attribute(c, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        c->memory.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (read_attribute(c, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        c->memory.allocFlags.gpuDirectRDMACapable = 1;
    r = wr_cuda.cuMemGetAllocationGranularity(
        &c->base.granularity, &c->memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r != CUDA_SUCCESS) return wr_cuda_status(r, "cuMemGetAllocationGranularity", c->base.ordinal);
    if (!can_create(c)) c->memory.allocFlags.gpuDirectRDMACapable = 0;
    if (!can_create(c)) c->memory.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return WEIR_OK;
}

/* The probes of choose_memory run in the context, as mem_create will. */
static weir_status set_up(struct cuda_device *c)
{
    weir_status s = describe(c);
    if (s != WEIR_OK) return s;
    CUresult r = wr_cuda.cuCtxPushCurrent(c->context);
    if (r != CUDA_SUCCESS) return wr_cuda_status(r, "cuCtxPushCurrent", c->base.ordinal);
    s = choose_memory(c);
    CUcontext popped;
    wr_cuda.cuCtxPopCurrent(&popped);
    return s;
}

weir_status wr_device_cuda_open(int ordinal, struct wr_device **out)
{
    int version = 0;
    CUdevice device = 0;
    weir_status s = start_driver(&version);
    if (s == WEIR_OK) s = find_device(ordinal, &device);
    if (s != WEIR_OK) return s;
    struct cuda_device *c = calloc(1, sizeof *c);
    if (!c) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for device %d", ordinal);
    c->device = device;
    c->base.ops = &cuda_ops;
    c->base.ordinal = ordinal;
    c->base.driver_version = version;
    s = wr_cuda_status(
        wr_cuda.cuDevicePrimaryCtxRetain(&c->context, device), "cuDevicePrimaryCtxRetain", ordinal);
    if (s == WEIR_OK) {
        s = set_up(c);
        if (s != WEIR_OK) wr_cuda.cuDevicePrimaryCtxRelease(device);
    }
    if (s != WEIR_OK) {
        free(c);
        return s;
    }
    *out = &c->base;
    return WEIR_OK;
}
