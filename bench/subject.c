/* SPDX-License-Identifier: Apache-2.0 */
#include "subject.h"

#include <string.h>

static uint64_t alloc_weir(const struct wr_subject *s, size_t bytes, weir_stream stream)
{
    weir_dptr block;
    return weir_alloc(s->pool, bytes, stream, &block) == WEIR_OK ? block : 0;
}

static bool free_weir(const struct wr_subject *s, uint64_t block, weir_stream stream)
{
    return weir_free(s->pool, block, stream) == WEIR_OK;
}

void wr_subject_weir(struct wr_subject *out, weir_pool *pool, const weir_stream *streams)
{
    *out = (struct wr_subject){
        .name = "weir", .most_live = 1000000, .pool = pool, .alloc = alloc_weir, .free = free_weir};
    memcpy(out->streams, streams, sizeof out->streams);
}

static uint64_t alloc_bfc(const struct wr_subject *s, size_t bytes, weir_stream stream)
{
    (void)stream;
    return (uint64_t)(uintptr_t)s->bfc.alloc(s->pool, bytes);
}

static bool free_bfc(const struct wr_subject *s, uint64_t block, weir_stream stream)
{
    (void)stream;
    s->bfc.free(s->pool, (void *)(uintptr_t)block);
    return true;
}

bool wr_subject_bfc(struct wr_subject *out)
{
    *out = (struct wr_subject){.name = "BFC", .most_live = 1000000, .alloc = alloc_bfc, .free = free_bfc};
    if (!wr_bfc_find(&out->bfc)) return false;
    out->pool = out->bfc.open((size_t)128 << 30, 0);
    return out->pool != NULL;
}

static uint64_t alloc_driver(const struct wr_subject *s, size_t bytes, weir_stream stream)
{
    CUdeviceptr block;
    return s->driver.cuMemAllocAsync(&block, bytes, stream) == CUDA_SUCCESS ? block : 0;
}

static bool free_driver(const struct wr_subject *s, uint64_t block, weir_stream stream)
{
    return s->driver.cuMemFreeAsync(block, stream) == CUDA_SUCCESS;
}

static bool enter_driver(const struct wr_subject *s, weir_stream stream)
{
    (void)stream;
    return s->driver.cuCtxSetCurrent(s->driver.context) == CUDA_SUCCESS;
}

void wr_subject_driver(
    struct wr_subject *out, const struct wr_harness *h, struct wr_device *d, const weir_stream *streams)
{
    *out = (struct wr_subject){.name = "cuMemAllocAsync+cuMemFreeAsync",
        .most_live = 1000, /* slower by orders of magnitude, which takes minutes to show */
        .alloc = alloc_driver,
        .free = free_driver,
        .enter_thread = enter_driver};
    memcpy(out->streams, streams, sizeof out->streams);
    wr_harness_must(h, wr_driver_bind(d, &out->driver), "finding the driver's allocator");
}
