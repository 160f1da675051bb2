/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of weir on a real GPU share: a device, a pool for each test, streams, and entry points of the driver
 * that weir itself does not need. Their programs exit 77 where there is no GPU.
 */
#ifndef GPU_WORLD_H
#define GPU_WORLD_H

#include "close_pool.h"
#include "cuda_driver.h"
#include "harness.h"
#include "kernels.h"
#include "pool.h"

#include <dlfcn.h>

#define MIB      ((size_t)1 << 20)
#define SPIN_NS  (200 * UINT64_C(1000000))
#define SOON_NS  (20 * UINT64_C(1000000)) /* far below the kernel's 200 ms; a host may be slow */
#define OK(call) ok((call), #call)

static struct wr_device *device;
static weir_pool *pool;

/* Entry points that only these tests need. */
static struct {
    __typeof__(cuCtxGetCurrent) *get_current;
    __typeof__(cuCtxSetCurrent) *set_current;
    __typeof__(cuStreamBeginCapture_v2) *begin_capture;
    __typeof__(cuStreamEndCapture) *end_capture;
    __typeof__(cuGraphDestroy) *graph_destroy;
    __typeof__(cuMemImportFromShareableHandle) *import;
    CUresult (*graph_instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    __typeof__(cuGraphLaunch) *graph_launch;
    __typeof__(cuGraphExecDestroy) *graph_exec_destroy;
} cu;

static inline void ok(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

static inline bool find_entry_points(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return false;
    *(void **)&cu.get_current = dlsym(driver, "cuCtxGetCurrent");
    *(void **)&cu.set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&cu.begin_capture = dlsym(driver, "cuStreamBeginCapture_v2");
    *(void **)&cu.end_capture = dlsym(driver, "cuStreamEndCapture");
    *(void **)&cu.graph_destroy = dlsym(driver, "cuGraphDestroy");
    *(void **)&cu.import = dlsym(driver, "cuMemImportFromShareableHandle");
    *(void **)&cu.graph_instantiate = dlsym(driver, "cuGraphInstantiateWithFlags");
    *(void **)&cu.graph_launch = dlsym(driver, "cuGraphLaunch");
    *(void **)&cu.graph_exec_destroy = dlsym(driver, "cuGraphExecDestroy");
    return cu.graph_instantiate && cu.graph_launch && cu.graph_exec_destroy && cu.import && cu.get_current &&
           cu.set_current && cu.begin_capture && cu.end_capture && cu.graph_destroy;
}

/* False: there is none, which is said. */
static inline bool find_gpu(void)
{
    if (wr_device_get("cuda", 0, &device) == WEIR_OK && find_entry_points()) return true;
    printf("skipped: %s\n", weir_error_text());
    return false;
}

static inline int open_pool(void **state)
{
    (void)state;
    weir_pool_options o = {.struct_size = sizeof o, .limit_bytes = 2048 * MIB};
    OK(weir_pool_open(&o, &pool));
    return 0;
}

/* Everything that ran has ended by now. */
static inline int close_pool(void **state)
{
    (void)state;
    weir_stats s = {.struct_size = sizeof s};
    OK(weir_pool_check(pool));
    OK(weir_pool_stats(pool, &s));
    assert_int_equal(s.live_blocks, 0);
    OK(close_pool_within(pool, WR_NS_PER_SEC));
    return 0;
}

static inline weir_stream new_stream(void)
{
    weir_stream s;
    OK(device->ops->stream_create(device, &s));
    return s;
}

static inline void end_stream(weir_stream s)
{
    OK(device->ops->stream_sync(device, s));
    OK(weir_stream_retire(pool, s));
    OK(device->ops->stream_sync(device, s));
    OK(device->ops->stream_destroy(device, s));
}

static inline uint64_t now_ns(void)
{
    return device->ops->now_ns(device);
}

static inline weir_status alloc_with(
    size_t bytes, weir_stream s, weir_reuse reuse, uint64_t deadline_ns, weir_dptr *out)
{
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = reuse, .deadline_ns = (int64_t)deadline_ns};
    return weir_alloc_with(pool, bytes, s, &o, out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pool, close_pool)

#endif
