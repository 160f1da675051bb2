/* SPDX-License-Identifier: Apache-2.0
 *
 * The public functions of the allocator, all of them: check the arguments, call, translate. weir.h has their
 * contracts.
 */
#include "import.h"
#include "pool.h"
#include "record.h"
#include "watch.h"

#include <string.h>

static weir_status invalid(const char *what)
{
    return wr_fail(WEIR_INVALID_ARGUMENT, "%s", what);
}

/* A struct from a caller built against this version or an older one, whose fields are a prefix. */
static bool is_options_size(size_t struct_size, size_t known)
{
    return struct_size >= sizeof(size_t) && struct_size <= known;
}

weir_status weir_pool_open(const weir_pool_options *options, weir_pool **out)
{
    if (out == NULL) return invalid("out is NULL");
    if (options != NULL && !is_options_size(options->struct_size, sizeof *options))
        return invalid("struct_size of weir_pool_options is unknown");
    weir_pool_options o = {.struct_size = sizeof o};
    if (options != NULL) memcpy(&o, options, options->struct_size);
    o.struct_size = sizeof o;
    struct wr_device *d;
    weir_status s = wr_device_get(o.device_kind, o.device, &d);
    return s == WEIR_OK ? wr_pool_open(d, &o, out) : s;
}

weir_status weir_pool_close(weir_pool *pool)
{
    return pool == NULL ? invalid("pool is NULL") : wr_pool_close(pool);
}

weir_status weir_alloc(weir_pool *pool, size_t bytes, weir_stream stream, weir_dptr *out)
{
    if (WR_UNLIKELY(pool == NULL || out == NULL)) return invalid("pool or out is NULL");
    weir_dptr block;
    weir_status s = wr_pool_alloc(pool, bytes, stream, &block);
    if (WR_UNLIKELY(s != WEIR_OK)) return s;
    if (wr_record_is_on()) wr_record_alloc(block, bytes, stream);
    *out = block;
    return WEIR_OK;
}

weir_status weir_alloc_with(
    weir_pool *pool, size_t bytes, weir_stream stream, const weir_alloc_options *options, weir_dptr *out)
{
    if (pool == NULL || out == NULL) return invalid("pool or out is NULL");
    if (options != NULL && !is_options_size(options->struct_size, sizeof *options))
        return invalid("struct_size of weir_alloc_options is unknown");
    weir_alloc_options o = {.struct_size = sizeof o};
    if (options != NULL) memcpy(&o, options, options->struct_size);
    weir_dptr block;
    weir_status s = wr_pool_alloc_with(pool, bytes, stream, &o, &block);
    if (s != WEIR_OK) return s;
    if (wr_record_is_on()) wr_record_alloc(block, bytes, stream);
    *out = block;
    return WEIR_OK;
}

weir_status weir_last_failure(weir_failure *out)
{
    if (out == NULL) return invalid("out is NULL");
    if (!is_options_size(out->struct_size, sizeof *out))
        return invalid("struct_size of weir_failure is unknown");
    weir_failure last = *wr_report_last();
    last.struct_size = out->struct_size;
    memcpy(out, &last, out->struct_size);
    return WEIR_OK;
}

weir_status weir_free(weir_pool *pool, weir_dptr block, weir_stream stream)
{
    if (WR_UNLIKELY(pool == NULL)) return invalid("pool is NULL");
    if (wr_record_is_on()) wr_record_free(block);
    if (wr_watch_is_on()) wr_watch_free(pool, block, stream);
    return wr_pool_free(pool, block, stream);
}

weir_status weir_touch(weir_pool *pool, weir_dptr block, weir_stream stream, unsigned flags)
{
    if (pool == NULL || flags != 0) return invalid("pool is NULL, or flags are not 0");
    return wr_pool_touch(pool, block, stream);
}

weir_status weir_stream_retire(weir_pool *pool, weir_stream stream)
{
    return pool == NULL ? invalid("pool is NULL") : wr_pool_retire(pool, stream);
}

weir_status weir_graph_id(weir_pool *pool, weir_stream stream, uint64_t *id)
{
    return pool == NULL || id == NULL ? invalid("pool or id is NULL") : wr_capture_id(pool, stream, id);
}

weir_status weir_graph_release(weir_pool *pool, uint64_t id)
{
    return pool == NULL ? invalid("pool is NULL") : wr_capture_release(pool, id);
}

weir_status weir_trim(weir_pool *pool, size_t keep_bytes, size_t *freed_bytes)
{
    if (pool == NULL) return invalid("pool is NULL");
    weir_status s = wr_pool_enter(pool);
    if (s != WEIR_OK) return s;
    uint64_t freed = wr_ladder_trim(pool, keep_bytes);
    wr_pool_leave(pool);
    if (freed_bytes != NULL) *freed_bytes = freed;
    return WEIR_OK;
}

weir_status weir_pool_set_limit(weir_pool *pool, size_t bytes, double fraction)
{
    return pool == NULL ? invalid("pool is NULL") : wr_pool_set_limit(pool, bytes, fraction);
}

weir_status weir_pool_peer_enable(weir_pool *pool, int device)
{
    return pool == NULL ? invalid("pool is NULL") : wr_pool_peer_enable(pool, device);
}

weir_status weir_export(weir_pool *pool, weir_dptr block, size_t from, weir_exported *out)
{
    if (pool == NULL || out == NULL) return invalid("pool or out is NULL");
    if (!is_options_size(out->struct_size, sizeof *out))
        return invalid("struct_size of weir_exported is unknown");
    weir_exported filled = {.struct_size = out->struct_size};
    weir_status s = wr_pool_export(pool, block, from, &filled);
    if (s == WEIR_OK) memcpy(out, &filled, out->struct_size);
    return s;
}

weir_status weir_import(const weir_import_options *options, const weir_exported *parts, size_t n_parts,
    weir_dptr *block, weir_imported **out)
{
    if (parts == NULL || block == NULL || out == NULL) return invalid("parts, block or out is NULL");
    if (options != NULL && !is_options_size(options->struct_size, sizeof *options))
        return invalid("struct_size of weir_import_options is unknown");
    weir_import_options o = {.struct_size = sizeof o};
    if (options != NULL) memcpy(&o, options, options->struct_size);
    struct wr_device *d;
    weir_status s = wr_import_check(parts, n_parts);
    if (s == WEIR_OK) s = wr_device_get(o.device_kind, o.device, &d);
    return s == WEIR_OK ? wr_import_open(d, parts, n_parts, block, out) : s;
}

weir_status weir_import_close(weir_imported *imported)
{
    return imported == NULL ? invalid("imported is NULL") : wr_import_close(imported);
}

weir_status weir_pool_stats(weir_pool *pool, weir_stats *out)
{
    if (pool == NULL || out == NULL) return invalid("pool or out is NULL");
    if (!is_options_size(out->struct_size, sizeof *out))
        return invalid("struct_size of weir_stats is unknown");
    weir_status s = wr_pool_enter(pool);
    if (s != WEIR_OK) return s;
    weir_stats filled = {.struct_size = out->struct_size};
    wr_stats_fill(pool, &filled);
    wr_pool_leave(pool);
    memcpy(out, &filled, out->struct_size);
    return WEIR_OK;
}

weir_status weir_pool_snapshot(weir_pool *pool, char **json)
{
    if (pool == NULL || json == NULL) return invalid("pool or json is NULL");
    weir_status s = wr_pool_enter(pool);
    if (s != WEIR_OK) return s;
    s = wr_snapshot_take(pool, json);
    wr_pool_leave(pool);
    return s;
}

weir_status weir_pool_check(weir_pool *pool)
{
    if (pool == NULL) return invalid("pool is NULL");
    weir_status s = wr_pool_enter(pool);
    if (s != WEIR_OK) return s;
    wr_stats_check(pool);
    wr_pool_leave(pool);
    return WEIR_OK;
}

weir_status weir_host_alloc(weir_pool *pool, size_t bytes, void **out)
{
    if (pool == NULL || out == NULL) return invalid("pool or out is NULL");
    return wr_pool_host_alloc(pool, bytes, out);
}

weir_status weir_host_free(weir_pool *pool, void *host, weir_stream stream)
{
    return pool == NULL ? invalid("pool is NULL") : wr_pool_host_free(pool, host, stream);
}
