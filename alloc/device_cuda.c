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

/* ---- work -------------------------------------------------------------------------------------------- */

weir_status wr_cuda_copy(
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
weir_status wr_cuda_copy_rows(
    struct wr_device *d, enum wr_copy_kind k, const struct wr_rows *r, weir_stream s)
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

weir_status wr_cuda_peer_access(struct wr_device *d, struct wr_device *other, bool *out)
{
    int yes = 0;
    weir_status s = CALL(d, cuDeviceCanAccessPeer, &yes, cuda(d)->device, cuda(other)->device);
    if (s == WEIR_OK) *out = yes != 0;
    return s;
}

weir_status wr_cuda_fill(struct wr_device *d, uint64_t dst, unsigned char byte, size_t n, weir_stream s)
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

weir_status wr_cuda_launch(
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
#define OP_ROW(name, args) .name = wr_cuda_##name,
    WR_DEVICE_OPS(OP_ROW)
#undef OP_ROW
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
