/* SPDX-License-Identifier: Apache-2.0
 *
 * What the conformance suites share. They hold every filling of the seam to its contract (device.h):
 *
 *   conformance_NAME         simulated devices, on the virtual and on the wall clock
 *   conformance_NAME cuda    the real device 0, and 1 where there is one; exits 77 without
 *
 * A test knows no filling: it keeps a stream busy by a kernel of some milliseconds, and waits by querying and
 * dozing.
 */
#ifndef WR_CONFORMANCE_H
#define WR_CONFORMANCE_H

#include "device_sim.h"
#include "kernels.h"
#include "harness.h"

#define MS    ((uint64_t)1000000)
#define SLAB  (4 * WR_MIB)
#define BUSY  (40 * MS)            /* how long a busy stream is busy */
#define SOON  (BUSY / 2)           /* what does not wait for it is done by then */
#define GIVEN (20 * WR_NS_PER_SEC) /* what is not done by then never will be */

/* Device memory as the pool makes it. */
struct slab {
    struct wr_device *d;
    wr_memory handle;
    uint64_t va;
};

static struct wr_device *dev, *peer; /* peer NULL: there is one device only */
static struct slab slab;
static unsigned char *host;
static weir_stream stream, other;

static inline void ok(weir_status s)
{
    if (s != WEIR_OK) fail_msg("%s: %s", weir_status_name(s), weir_error_text());
}

static inline struct slab map_slab(struct wr_device *d)
{
    struct slab s = {.d = d};
    ok(d->ops->va_reserve(d, SLAB, &s.va));
    ok(d->ops->mem_create(d, SLAB, &s.handle));
    ok(d->ops->mem_map(d, s.va, SLAB, s.handle));
    ok(d->ops->mem_access(d, s.va, SLAB));
    return s;
}

static inline void unmap_slab(struct slab s)
{
    ok(s.d->ops->mem_unmap(s.d, s.va, SLAB));
    ok(s.d->ops->mem_release(s.d, s.handle));
    ok(s.d->ops->va_free(s.d, s.va, SLAB));
}

static inline weir_stream new_stream(struct wr_device *d)
{
    weir_stream s;
    ok(d->ops->stream_create(d, &s));
    return s;
}

static inline wr_event new_event(struct wr_device *d)
{
    wr_event e;
    ok(d->ops->event_create(d, &e));
    return e;
}

static inline wr_event record(struct wr_device *d, weir_stream s)
{
    wr_event e = new_event(d);
    ok(d->ops->event_record(d, e, s));
    return e;
}

static inline bool is_done(struct wr_device *d, wr_event e)
{
    bool done;
    ok(d->ops->event_query(d, e, &done));
    return done;
}

static inline void doze(uint64_t ns)
{
    struct wr_lock lock;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    wr_lock_init(&lock, WR_RANK_QUEUE);
    wr_lock_take(&lock);
    dev->ops->doze(dev, &never, &lock, ns);
    wr_lock_give(&lock);
    wr_lock_fini(&lock);
}

/* Waits for the event, and ends its life. */
static inline void finish(struct wr_device *d, wr_event e)
{
    uint64_t start = d->ops->now_ns(d);
    while (!is_done(d, e)) {
        assert_true(d->ops->now_ns(d) - start < GIVEN);
        doze(20000);
    }
    ok(d->ops->event_destroy(d, e));
}

static inline void drop_event(wr_event e)
{
    ok(dev->ops->event_destroy(dev, e));
}

static inline void sync_all(void)
{
    finish(dev, record(dev, stream));
    finish(dev, record(dev, other));
}

static inline void make_busy(weir_stream s)
{
    ok(wr_kernels_spin(dev, s, BUSY));
}

static inline void upload(uint64_t dst, const void *src, size_t n, weir_stream s)
{
    ok(dev->ops->copy(dev, WR_COPY_H2D, dst, (uintptr_t)src, n, s));
}

static inline void download(void *dst, uint64_t src, size_t n, weir_stream s)
{
    ok(dev->ops->copy(dev, WR_COPY_D2H, (uintptr_t)dst, src, n, s));
}

/* The byte at the slab's offset, once all that is queued on `stream` has run. */
static inline unsigned char read_byte(uint64_t offset)
{
    unsigned char *last = host + SLAB - 1;
    *last = 0xee;
    download(last, slab.va + offset, 1, stream);
    finish(dev, record(dev, stream));
    return *last;
}

static inline uint64_t identify(weir_stream s)
{
    struct wr_stream_info info;
    ok(dev->ops->stream_identify(dev, s, &info));
    assert_false(info.capturing);
    uint64_t capture = 1;
    ok(dev->ops->stream_capture(dev, s, &capture));
    assert_int_equal(capture, 0);
    return info.id;
}

/* ---- running it ---------------------------------------------------------------------------------------- */

static inline void warm_up(void)
{
    ok(dev->ops->fill(dev, slab.va, 0, SLAB, stream));
    ok(wr_kernels_spin(dev, stream, 1));
    ok(wr_kernels_fill(dev, stream, slab.va, 4, 0)); /* the first launch loads a kernel, and may wait */
    ok(wr_kernels_verify(dev, stream, slab.va, 4, 0, slab.va + 8));
    sync_all();
}

static inline int set_up(void **state)
{
    (void)state;
    host = aligned_alloc(4096, SLAB);
    assert_non_null(host);
    memset(host, 0, SLAB);
    ok(dev->ops->host_register(dev, host, SLAB));
    slab = map_slab(dev);
    stream = new_stream(dev);
    other = new_stream(dev);
    warm_up();
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    ok(dev->ops->stream_sync(dev, stream));
    ok(dev->ops->stream_sync(dev, other));
    ok(dev->ops->stream_destroy(dev, stream));
    ok(dev->ops->stream_destroy(dev, other));
    unmap_slab(slab);
    ok(dev->ops->host_unregister(dev, host));
    free(host);
    return 0;
}

static inline int run_suite(const char *name, const struct CMUnitTest *tests, size_t n_tests)
{
    print_message("conformance of %s\n", name);
    return _cmocka_run_group_tests(name, tests, n_tests, set_up, tear_down);
}

/* Returns how many tests failed; a report or a leak counts as one. */
static inline int run_simulated(
    const char *name, bool wall_clock, const struct CMUnitTest *tests, size_t n_tests)
{
    struct wr_sim_options o = {.profile = wr_sim_profile_find("h200-pcie5x2"), .wall_clock = wall_clock};
    struct wr_sim *world;
    if (wr_sim_open(&o, &world) != WEIR_OK) return 1;
    dev = wr_sim_device(world, 0);
    peer = wr_sim_device(world, 1);
    int failed = run_suite(name, tests, n_tests);
    for (unsigned i = 0; i < wr_sim_reports(world); i++)
        print_error("%s\n", wr_sim_report(world, i));
    failed += wr_sim_reports(world) != 0;
    return failed + (wr_sim_close(world) != 0);
}

static inline int run_real(const struct CMUnitTest *tests, size_t n_tests)
{
    enum { SKIPPED = 77 };
    weir_status s = wr_device_get("cuda", 0, &dev);
    if (s == WEIR_NO_DRIVER || s == WEIR_NO_DEVICE) {
        print_message("skipped: %s\n", weir_error_text());
        return SKIPPED;
    }
    if (s != WEIR_OK) {
        print_error("%s: %s\n", weir_status_name(s), weir_error_text());
        return 1;
    }
    if (wr_device_get("cuda", 1, &peer) != WEIR_OK) peer = NULL;
    return run_suite(dev->name, tests, n_tests) != 0;
}

/* Runs the tests over the fillings that the command line names, and returns the program's exit status. */
static inline int run_conformance(int argc, char **argv, const struct CMUnitTest *tests, size_t n_tests)
{
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) return run_real(tests, n_tests);
    int failed = run_simulated("simulated devices, virtual clock", false, tests, n_tests);
    failed += run_simulated("simulated devices, wall clock", true, tests, n_tests);
    return failed != 0;
}

#endif
