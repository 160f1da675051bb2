/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. The third filling of the seam, for benches. A simulated device takes a lock per op and keeps books
 * for its oracle, which costs more than what is measured here. A copy moves nothing; fills and launches are
 * refused.
 */
#include "null_device.h"

#include <stdio.h>

enum { BASE_LOG2 = 44 }; /* addresses begin here, each reservation in a stripe of its own */

static _Atomic uint64_t last_name; /* stripes, streams, events and memory: all but numbers */

static uint64_t new_name(struct wr_device *d)
{
    atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed);
    return atomic_fetch_add_explicit(&last_name, 1, memory_order_relaxed) + 1;
}

static weir_status done(struct wr_device *d)
{
    wr_locks_assert_none();
    atomic_fetch_add_explicit(&d->calls, 1, memory_order_relaxed);
    return WEIR_OK;
}

static weir_status refuse(void)
{
    return wr_fail(WEIR_DRIVER_ERROR, "the null device has no bytes");
}

static weir_status va_reserve(struct wr_device *d, size_t bytes, uint64_t *out)
{
    (void)bytes;
    *out = (UINT64_C(1) << BASE_LOG2) * (1 + new_name(d) % 1024);
    return WEIR_OK;
}

static weir_status va_free(struct wr_device *d, uint64_t va, size_t bytes)
{
    (void)va, (void)bytes;
    return done(d);
}

static weir_status mem_create(struct wr_device *d, size_t bytes, wr_memory *out)
{
    (void)bytes;
    wr_locks_assert_none();
    *out = new_name(d);
    return WEIR_OK;
}

static weir_status mem_release(struct wr_device *d, wr_memory m)
{
    (void)m;
    return done(d);
}

static weir_status mem_map(struct wr_device *d, uint64_t va, size_t bytes, wr_memory m)
{
    (void)va, (void)bytes, (void)m;
    return done(d);
}

static weir_status mem_access(struct wr_device *d, uint64_t va, size_t bytes)
{
    (void)va, (void)bytes;
    return done(d);
}

static weir_status mem_info(struct wr_device *d, size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = d->total_bytes;
    return done(d);
}

static weir_status host_register(struct wr_device *d, void *host, size_t bytes)
{
    (void)host, (void)bytes;
    return done(d);
}

static weir_status host_unregister(struct wr_device *d, void *host)
{
    (void)host;
    return done(d);
}

static weir_status locate(struct wr_device *d, uint64_t address, struct wr_location *out)
{
    *out = (struct wr_location){.start = address};
    return done(d);
}

static weir_status stream_create(struct wr_device *d, weir_stream *out)
{
    *out = (weir_stream)(uintptr_t)(new_name(d) + 64); /* clear of the default streams' handles */
    return WEIR_OK;
}

static weir_status stream_destroy(struct wr_device *d, weir_stream s)
{
    (void)s;
    return done(d);
}

static weir_status stream_identify(struct wr_device *d, weir_stream s, struct wr_stream_info *out)
{
    (void)d;
    *out = (struct wr_stream_info){.id = (uint64_t)(uintptr_t)s + 1};
    return WEIR_OK;
}

static weir_status stream_device(struct wr_device *d, weir_stream s, struct wr_device **out)
{
    (void)s;
    *out = d;
    return WEIR_OK;
}

static weir_status stream_wait(struct wr_device *d, weir_stream s, wr_event e)
{
    (void)s, (void)e;
    return done(d);
}

static weir_status stream_sync(struct wr_device *d, weir_stream s)
{
    (void)s;
    return done(d);
}

static weir_status event_create(struct wr_device *d, wr_event *out)
{
    *out = (wr_event)(uintptr_t)new_name(d);
    return WEIR_OK;
}

static weir_status event_destroy(struct wr_device *d, wr_event e)
{
    (void)e;
    return done(d);
}

static weir_status event_elapsed(struct wr_device *d, wr_event first, wr_event second, int64_t *ns)
{
    (void)first, (void)second;
    *ns = 0;
    return done(d);
}

static weir_status event_record(struct wr_device *d, wr_event e, weir_stream s)
{
    (void)e, (void)s;
    return done(d);
}

static weir_status event_record_context(struct wr_device *d, wr_event e)
{
    (void)e;
    return done(d);
}

static weir_status event_query(struct wr_device *d, wr_event e, bool *passed)
{
    (void)e;
    *passed = true;
    return done(d);
}

static weir_status copy(
    struct wr_device *d, enum wr_copy_kind k, uint64_t dst, uint64_t src, size_t n, weir_stream s)
{
    (void)k, (void)dst, (void)src, (void)n, (void)s;
    return done(d);
}

static weir_status fill(struct wr_device *d, uint64_t dst, unsigned char byte, size_t n, weir_stream s)
{
    (void)d, (void)dst, (void)byte, (void)n, (void)s;
    return refuse();
}

static weir_status launch(
    struct wr_device *d, const struct wr_kernel *k, const struct wr_launch *l, weir_stream s)
{
    (void)d, (void)k, (void)l, (void)s;
    return refuse();
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

void wr_null_device_init(struct wr_device *d, size_t total_bytes)
{
    static const struct wr_device_ops ops = {.va_reserve = va_reserve,
        .va_free = va_free,
        .mem_create = mem_create,
        .mem_release = mem_release,
        .mem_map = mem_map,
        .mem_access = mem_access,
        .mem_unmap = mem_access,
        .mem_info = mem_info,
        .host_register = host_register,
        .host_unregister = host_unregister,
        .locate = locate,
        .stream_create = stream_create,
        .stream_create_first = stream_create,
        .stream_destroy = stream_destroy,
        .stream_identify = stream_identify,
        .stream_device = stream_device,
        .stream_wait = stream_wait,
        .stream_sync = stream_sync,
        .event_create = event_create,
        .event_create_timed = event_create,
        .event_elapsed = event_elapsed,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_record_context = event_record_context,
        .event_query = event_query,
        .copy = copy,
        .fill = fill,
        .launch = launch,
        .now_ns = now_ns,
        .now_coarse_ns = now_coarse_ns,
        .doze = doze};
    *d = (struct wr_device){
        .ops = &ops, .total_bytes = total_bytes, .granularity = (size_t)2 << 20, .copy_engines = 1};
    snprintf(d->name, sizeof d->name, "null");
}
