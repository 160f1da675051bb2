/* SPDX-License-Identifier: Apache-2.0 */
#include "weir_ort.h"
#include "base.h"

#include <stdlib.h>

/* OrtAllocator as version 25 of the C interface lays it out; older ones end sooner. */
struct ort_allocator {
    uint32_t version;
    void *(*alloc)(struct ort_allocator *a, size_t bytes);
    void (*free)(struct ort_allocator *a, void *block);
    const void *(*info)(const struct ort_allocator *a);
    void *(*reserve)(struct ort_allocator *a, size_t bytes);
    void *(*get_stats)(const struct ort_allocator *a, void **out); /* optional: NULL */
    void *(*alloc_on_stream)(struct ort_allocator *a, size_t bytes, void *stream);
    void *(*shrink)(struct ort_allocator *a); /* an OrtStatus: NULL is success */
};

enum { ORT_VERSION = 25 };

struct allocator {
    struct ort_allocator face; /* first: what ONNX Runtime holds */
    weir_ort_options options;
};

static void *lend(int device, size_t bytes, weir_stream s)
{
    weir_dptr block;
    return weir_shared_lend(device, bytes, s, 0, &block) == WEIR_OK ? (void *)(uintptr_t)block : NULL;
}

static void shrink_pool(int device)
{
    weir_pool *pool;
    if (weir_shared_pool(device, &pool) == WEIR_OK) weir_trim(pool, 0, NULL);
}

static void *ort_alloc(struct ort_allocator *a, size_t bytes)
{
    const struct allocator *own = (struct allocator *)a;
    return lend(own->options.device, bytes, own->options.stream);
}

static void *ort_alloc_on_stream(struct ort_allocator *a, size_t bytes, void *stream)
{
    const struct allocator *own = (struct allocator *)a;
    if (stream == NULL) return ort_alloc(a, bytes);
    return lend(own->options.device, bytes, own->options.stream_handle(stream));
}

static void ort_free(struct ort_allocator *a, void *block)
{
    weir_shared_return(((struct allocator *)a)->options.device, (uintptr_t)block);
}

static const void *ort_info(const struct ort_allocator *a)
{
    return ((const struct allocator *)a)->options.memory_info;
}

static void *ort_shrink(struct ort_allocator *a)
{
    shrink_pool(((struct allocator *)a)->options.device);
    return NULL;
}

weir_status weir_ort_open(const weir_ort_options *options, void **out)
{
    if (options == NULL || out == NULL || options->struct_size != sizeof *options ||
        options->stream_handle == NULL)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options, their stream_handle or out are missing");
    weir_pool *pool;
    weir_status st = weir_shared_pool(options->device, &pool);
    if (st != WEIR_OK) return st;
    struct allocator *a = malloc(sizeof *a);
    if (a == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an allocator of ONNX Runtime");
    *a = (struct allocator){.face = {.version = ORT_VERSION,
                                .alloc = ort_alloc,
                                .free = ort_free,
                                .info = ort_info,
                                .reserve = ort_alloc,
                                .alloc_on_stream = ort_alloc_on_stream,
                                .shrink = ort_shrink},
        .options = *options};
    *out = a;
    return WEIR_OK;
}

void weir_ort_close(void *allocator)
{
    free(allocator);
}

/* ---- external functions: a set for each device ------------------------------------------------------- */

static _Atomic(weir_stream) external_streams[WEIR_ORT_EXTERNAL_DEVICES];

#define ORT_DEVICES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

#define EXTERNAL_FUNCTIONS(n)                                                                                \
    static void *external_alloc_##n(size_t bytes)                                                            \
    {                                                                                                        \
        return lend(n, bytes, atomic_load(&external_streams[n]));                                            \
    }                                                                                                        \
    static void external_free_##n(void *block)                                                               \
    {                                                                                                        \
        weir_shared_return(n, (uintptr_t)block);                                                             \
    }                                                                                                        \
    static void external_empty_cache_##n(void)                                                               \
    {                                                                                                        \
        shrink_pool(n);                                                                                      \
    }
ORT_DEVICES(EXTERNAL_FUNCTIONS)

#define EXTERNAL_ROW(n) {external_alloc_##n, external_free_##n, external_empty_cache_##n},
static const weir_ort_external_functions external_functions[WEIR_ORT_EXTERNAL_DEVICES] = {
    ORT_DEVICES(EXTERNAL_ROW)};

weir_status weir_ort_external(int device, weir_stream stream, weir_ort_external_functions *out)
{
    if (out == NULL) return wr_fail(WEIR_INVALID_ARGUMENT, "out is NULL");
    if (device < 0 || device >= WEIR_ORT_EXTERNAL_DEVICES)
        return wr_fail(
            WEIR_NO_DEVICE, "device %d is not one of 0 to %d", device, WEIR_ORT_EXTERNAL_DEVICES - 1);
    atomic_store(&external_streams[device], stream);
    *out = external_functions[device];
    return WEIR_OK;
}
