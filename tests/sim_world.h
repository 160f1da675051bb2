/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the simulated device share: a world with some memory, and short words for the seam's ops.
 */
#ifndef WR_SIM_WORLD_H
#define WR_SIM_WORLD_H

#include "sim.h"
#include "kernels.h"
#include "harness.h"

#define MIB  WR_MIB
#define MS   ((uint64_t)1000000)
#define SLAB (4 * MIB)

/* A world with one slab of device memory and one of pinned host memory. */
struct fixture {
    struct wr_sim *world;
    struct wr_device *d;
    const struct wr_device_ops *ops;
    uint64_t slab;
    wr_memory handle;
    unsigned char *host;
};

static inline uint64_t map_slab(struct wr_device *d, wr_memory *handle)
{
    uint64_t va;
    assert_int_equal(d->ops->va_reserve(d, SLAB, &va), WEIR_OK);
    assert_int_equal(d->ops->mem_create(d, SLAB, handle), WEIR_OK);
    assert_int_equal(d->ops->mem_map(d, va, SLAB, *handle), WEIR_OK);
    assert_int_equal(d->ops->mem_access(d, va, SLAB), WEIR_OK);
    return va;
}

static inline void unmap_slab(struct wr_device *d, uint64_t va, wr_memory handle)
{
    assert_int_equal(d->ops->mem_unmap(d, va, SLAB), WEIR_OK);
    assert_int_equal(d->ops->mem_release(d, handle), WEIR_OK);
    assert_int_equal(d->ops->va_free(d, va, SLAB), WEIR_OK);
}

static inline struct fixture open_world_with(struct wr_sim_options o)
{
    struct fixture f = {0};
    if (!o.profile) o.profile = wr_sim_profile_find("gtx1080-pcie3x2");
    assert_int_equal(wr_sim_open(&o, &f.world), WEIR_OK);
    f.d = wr_sim_device(f.world, 0);
    f.ops = f.d->ops;
    f.slab = map_slab(f.d, &f.handle);
    f.host = aligned_alloc(4096, SLAB);
    assert_non_null(f.host);
    memset(f.host, 0, SLAB);
    assert_int_equal(f.ops->host_register(f.d, f.host, SLAB), WEIR_OK);
    return f;
}

static inline struct fixture open_world(void)
{
    return open_world_with((struct wr_sim_options){0});
}

/* The host waits for all that runs, so that giving the memory back is in order. */
static inline void sync_device(struct fixture *f)
{
    wr_event e;
    bool done = false;
    assert_int_equal(f->ops->event_create(f->d, &e), WEIR_OK);
    assert_int_equal(f->ops->event_record_context(f->d, e), WEIR_OK);
    wr_sim_drain(f->world);
    assert_int_equal(f->ops->event_query(f->d, e, &done), WEIR_OK);
    assert_true(done);
    assert_int_equal(f->ops->event_destroy(f->d, e), WEIR_OK);
}

static inline void close_world(struct fixture *f)
{
    sync_device(f);
    unsigned reports = wr_sim_reports(f->world);
    unmap_slab(f->d, f->slab, f->handle);
    assert_int_equal(f->ops->host_unregister(f->d, f->host), WEIR_OK);
    assert_int_equal(wr_sim_reports(f->world), reports);
    assert_int_equal(wr_sim_close(f->world), 0);
    free(f->host);
}

/* Ends a test that expects no report. */
static inline void close_clean(struct fixture *f)
{
    if (wr_sim_reports(f->world)) print_error("%s\n", wr_sim_report(f->world, 0));
    assert_int_equal(wr_sim_reports(f->world), 0);
    close_world(f);
}

/* Ends a test that expects one report, with `words` in it. */
static inline void close_reported(struct fixture *f, const char *words)
{
    assert_int_equal(wr_sim_reports(f->world), 1);
    if (!strstr(wr_sim_report(f->world, 0), words)) print_error("%s\n", wr_sim_report(f->world, 0));
    assert_non_null(strstr(wr_sim_report(f->world, 0), words));
    close_world(f);
}

static inline weir_stream new_stream(struct wr_device *d)
{
    weir_stream s;
    assert_int_equal(d->ops->stream_create(d, &s), WEIR_OK);
    return s;
}

static inline wr_event new_event(struct wr_device *d)
{
    wr_event e;
    assert_int_equal(d->ops->event_create(d, &e), WEIR_OK);
    return e;
}

static inline wr_event record(struct wr_device *d, weir_stream s)
{
    wr_event e = new_event(d);
    assert_int_equal(d->ops->event_record(d, e, s), WEIR_OK);
    return e;
}

static inline bool is_done(struct wr_device *d, wr_event e)
{
    bool done;
    assert_int_equal(d->ops->event_query(d, e, &done), WEIR_OK);
    return done;
}

static inline void drop(struct wr_device *d, weir_stream s, wr_event e)
{
    if (s) assert_int_equal(d->ops->stream_destroy(d, s), WEIR_OK);
    if (e) assert_int_equal(d->ops->event_destroy(d, e), WEIR_OK);
}

static inline void fill(struct fixture *f, weir_stream s, uint64_t offset, size_t bytes, unsigned char byte)
{
    assert_int_equal(f->ops->fill(f->d, f->slab + offset, byte, bytes, s), WEIR_OK);
}

static inline void upload(struct fixture *f, weir_stream s, size_t bytes)
{
    assert_int_equal(f->ops->copy(f->d, WR_COPY_H2D, f->slab, (uintptr_t)f->host, bytes, s), WEIR_OK);
}

static inline void download(struct fixture *f, weir_stream s, size_t bytes)
{
    assert_int_equal(f->ops->copy(f->d, WR_COPY_D2H, (uintptr_t)f->host, f->slab, bytes, s), WEIR_OK);
}

static inline void spin(struct fixture *f, weir_stream s, uint64_t ns)
{
    assert_int_equal(wr_kernels_spin(f->d, s, ns), WEIR_OK);
}

static inline unsigned char peek(struct fixture *f, uint64_t offset)
{
    unsigned char byte;
    wr_sim_peek(f->world, f->slab + offset, &byte, 1);
    return byte;
}

/* Moves time until the event is done, and says when that was, in steps of the events themselves. */
static inline uint64_t finish_time(struct fixture *f, wr_event e)
{
    while (!is_done(f->d, e))
        assert_true(wr_sim_step(f->world));
    return f->ops->now_ns(f->d);
}

static inline uint64_t identify(struct wr_device *d, weir_stream s)
{
    struct wr_stream_info info;
    assert_int_equal(d->ops->stream_identify(d, s, &info), WEIR_OK);
    return info.id;
}

#endif
