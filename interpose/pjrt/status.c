/* SPDX-License-Identifier: Apache-2.0
 *
 * What is hooked and was served, as JSON.
 */
#include "hook.h"
#include "weir_pjrt.h"

#include <stdarg.h>
#include <stdio.h>

static void add(struct pjrt_figure *f, uint64_t bytes)
{
    if (f->known) f->bytes += (int64_t)bytes;
}

/* The device's memory is the plug-in's and the pool's. A peak is the sum of both peaks: what it was at most. Counts of
 * allocs, and the largest free block, are the plug-in's alone: what XLA itself could still get. */
struct pjrt_error *wr_pjrt_memory_stats(void *args)
{
    struct pjrt_memory_stats *a = args;
    struct pjrt_error *e = wr_pjrt_hook.original[PJRT_DEVICE_MEMORY_STATS](args);
    struct wr_pjrt_site *site = wr_pjrt_site_of_device(a->device);
    weir_stats s = {.struct_size = sizeof s};
    if (e || a->struct_size < PJRT_MEMORY_STATS_BYTES || !site || !wr_pjrt_is_open(site->ground)) return e;
    wr_pjrt_sweep(site->ground);
    if (weir_pool_stats(site->ground->pool, &s) != WEIR_OK) return NULL;
    a->in_use += (int64_t)s.live_bytes;
    add(&a->peak_in_use, s.peak_live_bytes);
    add(&a->limit, s.limit_bytes);
    add(&a->pool, s.reserved_bytes);
    add(&a->peak_pool, s.peak_reserved_bytes);
    return NULL;
}

struct text {
    char *at;
    size_t room, length; /* length: as if there were room without end */
};

static void __attribute__((format(printf, 2, 3))) put(struct text *t, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    size_t left = t->length < t->room ? t->room - t->length : 0;
    int n = vsnprintf(left ? t->at + t->length : NULL, left, format, list);
    va_end(list);
    if (n > 0) t->length += (size_t)n;
}

static void put_devices(struct text *t)
{
    const char *comma = "";
    put(t, "\"devices\": [");
    for (int i = 0; i < WR_PJRT_DEVICES_MOST; i++) {
        struct wr_pjrt_ground *g = wr_pjrt_ground_at(i);
        weir_stats s = {.struct_size = sizeof s};
        if (!g || !wr_pjrt_is_open(g)) continue;
        wr_pjrt_sweep(g);
        if (weir_pool_stats(g->pool, &s) != WEIR_OK) continue;
        put(t, "%s{\"device\": %d, \"live_bytes\": %llu, \"reserved_bytes\": %llu, \"limit_bytes\": %llu}",
            comma, i, (unsigned long long)s.live_bytes, (unsigned long long)s.reserved_bytes,
            (unsigned long long)s.limit_bytes);
        comma = ", ";
    }
    put(t, "]");
}

static void put_served(struct text *t)
{
    static const char *const names[] = {
#define KIND_NAME(name, text) text,
        WR_PJRT_KINDS(KIND_NAME)
#undef KIND_NAME
    };
    const struct wr_pjrt_counters *c = &wr_pjrt_hook.counters;
    put(t, "\"served\": {");
    for (int i = 0; i < WR_PJRT_N_KINDS; i++)
        put(t, "%s\"%s\": {\"count\": %llu, \"bytes\": %llu, \"ns\": %llu}", i ? ", " : "", names[i],
            (unsigned long long)atomic_load(&c->served[i]), (unsigned long long)atomic_load(&c->bytes[i]),
            (unsigned long long)atomic_load(&c->ns[i]));
    put(t, "}");
}

static void put_forwarded(struct text *t)
{
    static const char *const names[] = {
#define REASON_NAME(name, text) text,
        WR_PJRT_REASONS(REASON_NAME)
#undef REASON_NAME
    };
    const char *comma = "";
    put(t, "\"forwarded\": {");
    for (int i = 0; i < WR_PJRT_N_REASONS; i++) {
        unsigned long long n = atomic_load(&wr_pjrt_hook.counters.forwarded[i]);
        if (n == 0) continue;
        put(t, "%s\"%s\": %llu", comma, names[i], n);
        comma = ", ";
    }
    put(t, "}");
}

size_t weir_pjrt_status(char *json, size_t bytes)
{
    struct text t = {json, bytes, 0};
    const struct pjrt_api *api = wr_pjrt_hook.api;
    put(&t, "{\"installed\": %s, \"version\": \"0.%d\", \"clients\": %u, ",
        api && atomic_load(&wr_pjrt_hook.serving) ? "true" : "false", api ? api->version.minor : 0,
        wr_pjrt_count_clients());
    put_devices(&t);
    put(&t, ", ");
    put_served(&t);
    put(&t, ", ");
    put_forwarded(&t);
    put(&t, ", \"execute_waits\": %llu}",
        (unsigned long long)atomic_load(&wr_pjrt_hook.counters.execute_waits));
    return t.length;
}
