/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA filling's memory: mapped by the page, plain, and of the host. See device_cuda.c.
 */
#include "device_cuda.h"

/* ---- virtual memory ---------------------------------------------------------------------------------- */

weir_status wr_cuda_va_reserve(struct wr_device *d, size_t bytes, uint64_t *out)
{
    CUdeviceptr va;
    weir_status s = CALL(d, cuMemAddressReserve, &va, bytes, d->granularity, 0, 0);
    if (s == WEIR_OK) *out = va;
    return s;
}

weir_status wr_cuda_va_free(struct wr_device *d, uint64_t va, size_t bytes)
{
    return CALL(d, cuMemAddressFree, va, bytes);
}

weir_status wr_cuda_mem_create(struct wr_device *d, size_t bytes, wr_memory *out)
{
    CUmemGenericAllocationHandle handle;
    weir_status s = CALL(d, cuMemCreate, &handle, bytes, &cuda(d)->memory, 0);
    if (s == WEIR_OK) *out = handle;
    return s;
}

weir_status wr_cuda_mem_release(struct wr_device *d, wr_memory m)
{
    return CALL(d, cuMemRelease, m);
}

weir_status wr_cuda_mem_map(struct wr_device *d, uint64_t va, size_t bytes, wr_memory m)
{
    return CALL(d, cuMemMap, va, bytes, 0, m, 0);
}

weir_status wr_cuda_mem_access(struct wr_device *d, uint64_t va, size_t bytes)
{
    CUmemAccessDesc access = {
        .location = cuda(d)->memory.location,
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return CALL(d, cuMemSetAccess, va, bytes, &access, 1);
}

weir_status wr_cuda_mem_unmap(struct wr_device *d, uint64_t va, size_t bytes)
{
    return CALL(d, cuMemUnmap, va, bytes);
}

weir_status wr_cuda_mem_export(struct wr_device *d, wr_memory m, int *fd)
{
    int exported = -1;
    weir_status s =
        CALL(d, cuMemExportToShareableHandle, &exported, m, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (s == WEIR_OK) *fd = exported;
    return s;
}

weir_status wr_cuda_mem_import(struct wr_device *d, int fd, size_t bytes, wr_memory *out)
{
    (void)bytes; /* mapping it checks them */
    CUmemGenericAllocationHandle handle;
    weir_status s = CALL(d, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (s == WEIR_OK) *out = handle;
    return s;
}

weir_status wr_cuda_mem_info(struct wr_device *d, size_t *free_bytes, size_t *total_bytes)
{
    size_t free_now, total;
    weir_status s = CALL(d, cuMemGetInfo, &free_now, &total);
    if (s != WEIR_OK) return s;
    *free_bytes = free_now;
    *total_bytes = total;
    return WEIR_OK;
}

/* ---- plain memory ------------------------------------------------------------------------------------ */

weir_status wr_cuda_plain_alloc(struct wr_device *d, size_t bytes, uint64_t *out)
{
    CUdeviceptr address;
    weir_status s = CALL(d, cuMemAlloc, &address, bytes);
    if (s == WEIR_OK) *out = address;
    return s;
}

weir_status wr_cuda_plain_free(struct wr_device *d, uint64_t address)
{
    return CALL(d, cuMemFree, address);
}

static CUresult enable_peer(CUcontext owner)
{
    CUresult r = wr_cuda.cuCtxEnablePeerAccess(owner, 0);
    return r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : r; /* by whomever */
}

weir_status wr_cuda_plain_access(struct wr_device *d, struct wr_device *owner)
{
    return IN_CONTEXT(d, "cuCtxEnablePeerAccess", enable_peer(cuda(owner)->context));
}

/* ---- host memory ------------------------------------------------------------------------------------- */

weir_status wr_cuda_host_register(struct wr_device *d, void *host, size_t bytes)
{
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    weir_status s = CALL(d, cuMemHostRegister, host, bytes, flags);
    return s == WEIR_OUT_OF_MEMORY ? WEIR_NO_HOST_MEMORY
                                   : s; /* it was the host's, which the text can't tell */
}

weir_status wr_cuda_host_unregister(struct wr_device *d, void *host)
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
weir_status wr_cuda_locate(struct wr_device *d, uint64_t address, struct wr_location *out)
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
