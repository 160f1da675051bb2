/* SPDX-License-Identifier: Apache-2.0
 *
 * What is the CUDA filling's own, tested without a GPU: against no driver at all, and against a fake
 * libcuda.so.1 that the test compiles. A library loaded before under that soname is the one that dlopen
 * finds, so the fake stands in even where there is a real driver. The fake counts its calls and the pushes
 * and pops of contexts, and fails where told.
 */
#include "cuda_driver.h"
#include "device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char fake_source[] =
    "#include <string.h>\n"
    "#include <stddef.h>\n"
    "char fake_failing[64]; int fake_result, fake_version = 13000, fake_capture, fake_refused_creates, "
    "fake_total;\n"
    "long fake_context, fake_depth, fake_retains; char fake_prop[64]; char fake_called[64]; int "
    "fake_called_n;\n"
    "int fake_mode, fake_attribute = 1;\n"
    "int fake_answer(const char *name) {\n"
    "    fake_total++;\n"
    "    if (strcmp(name, fake_called) == 0) fake_called_n++;\n"
    "    return strcmp(name, fake_failing) == 0 ? fake_result : 0;\n"
    "}\n"
    "#define A if (fake_answer(__func__)) return fake_result;\n"
    "int cuDriverGetVersion(int *v) { A *v = fake_version; return 0; }\n"
    "int cuGetErrorName(int r, const char **n) { (void)r; *n = \"CUDA_ERROR_FAKE\"; return 0; }\n"
    "int cuDeviceGetCount(int *n) { A *n = 2; return 0; }\n"
    "int cuDeviceGet(int *d, int o) { A *d = o; return 0; }\n"
    "int cuDeviceGetName(char *s, int n, int d) { A (void)d; strncpy(s, \"Fake\", n); return 0; }\n"
    "int cuDeviceTotalMem_v2(size_t *b, int d) { A (void)d; *b = (size_t)1 << 30; return 0; }\n"
    "int cuDeviceGetAttribute(int *v, int a, int d) { A (void)a; (void)d; *v = fake_attribute; return 0; }\n"
    "int cuDevicePrimaryCtxRetain(long *c, int d) { A fake_retains++; *c = 1000 + d; return 0; }\n"
    "int cuDevicePrimaryCtxRelease_v2(int d) { A (void)d; fake_retains--; return 0; }\n"
    "int cuCtxPushCurrent_v2(long c) { A fake_context = c; fake_depth++; return 0; }\n"
    "int cuCtxPopCurrent_v2(long *c) { A *c = fake_context; fake_context = 0; fake_depth--; return 0; }\n"
    "int cuThreadExchangeStreamCaptureMode(int *m) { A int o = fake_mode; fake_mode = *m; *m = o; return 0; "
    "}\n"
    "int cuMemGetAllocationGranularity(size_t *g, void *p, int o) { A (void)p; (void)o; *g = 2 << 20; return "
    "0; }\n"
    "int cuMemAddressReserve(long *v, size_t n, size_t a, long w, long f) { A *v = 1L << 40; return 0; }\n"
    "int cuMemCreate(long *h, size_t n, void *p, long f) {\n"
    "    A if (fake_refused_creates && fake_refused_creates--) return 801;\n"
    "    *h = 7; memcpy(fake_prop, p, 32); return 0;\n"
    "}\n"
    "int cuMemGetInfo_v2(size_t *f, size_t *t) { A *f = 1; *t = 2; return 0; }\n"
    "int cuStreamCreate(long *s, int f) { A *s = 0x5000; return 0; }\n"
    "int cuStreamGetId(long s, long *id) { A *id = s + 100; return 0; }\n"
    "int cuStreamIsCapturing(long s, int *c) { A *c = fake_capture; return 0; }\n"
    "int cuEventCreate(long *e, int f) { A *e = 0x6000; return 0; }\n"
    "int cuModuleGetFunction(long *f, long m, const char *n) { A *f = 0x7000; return 0; }\n";

static char directory[] = "/tmp/weir_fake_XXXXXX";
static void *fake; /* dlopen's handle */

/* Everything that the source above does not answer by itself: counted, and OK. */
static void write_generic(FILE *f, const char *omitted)
{
    static const char *names[] = {
#define NAME_ROW(name) WR_CUDA_SYMBOL(name),
        WR_CUDA_DRIVER_MAP(NAME_ROW)
#undef NAME_ROW
    };
    fprintf(f, "int fake_answer(const char *);\n");
    for (size_t i = 0; i < WR_ARRAY_LEN(names); i++)
        if (strcmp(names[i], omitted) != 0)
            fprintf(f, "__attribute__((weak)) int %s(void) { return fake_answer(\"%s\"); }\n", names[i],
                names[i]);
}

static void write_text(const char *name, const char *text, const char *omitted)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    if (text) fputs(text, f);
    if (omitted) write_generic(f, omitted);
    fclose(f);
}

/* Compiles the fake, without the symbol `omitted` if that is not "", and loads it. */
static void load_fake(const char *omitted)
{
    char command[512], path[128];
    if (fake) dlclose(fake);
    write_text("special.c", fake_source, NULL);
    write_text("generic.c", NULL, omitted);
    snprintf(path, sizeof path, "%s/fake%s.so", directory, omitted);
    snprintf(command, sizeof command,
        "cd %s && ${CC:-cc} -w -shared -fPIC -Wl,-soname,libcuda.so.1 -o %s special.c generic.c", directory,
        path);
    assert_int_equal(system(command), 0);
    fake = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(fake);
}

#define FAKE(type, name) (*(type *)find_fake(#name))
static void *find_fake(const char *name)
{
    void *p = dlsym(fake, name);
    assert_non_null(p);
    return p;
}

static void fail_in(const char *call, int result)
{
    strcpy(find_fake("fake_failing"), call);
    FAKE(int, fake_result) = result;
}

static void count_calls_of(const char *call)
{
    strcpy(find_fake("fake_called"), call);
    FAKE(int, fake_called_n) = 0;
}

static void assert_balanced(void)
{
    assert_int_equal(FAKE(long, fake_depth), 0);
    assert_int_equal(FAKE(int, fake_mode), 0);
}

static struct wr_device *open_fake(int ordinal)
{
    struct wr_device *d = NULL;
    assert_int_equal(wr_device_cuda_open(ordinal, &d), WEIR_OK);
    assert_non_null(d);
    return d;
}

/* Devices live as long as the process: a test parts with its own, and nothing counts as leaked. */
static void drop(struct wr_device *d)
{
    static struct wr_device *dropped[64];
    static size_t n_dropped;
    assert_true(n_dropped < WR_ARRAY_LEN(dropped));
    dropped[n_dropped++] = d;
    FAKE(long, fake_retains) -= 1;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

static void test_without_libcuda_open_says_no_driver(void **state)
{
    (void)state;
    void *real = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (real) {
        dlclose(real);
        skip();
    }
    struct wr_device *d = NULL;
    assert_int_equal(wr_device_cuda_open(0, &d), WEIR_NO_DRIVER);
    assert_null(d);
    assert_non_null(strstr(weir_error_text(), "libcuda.so.1"));
}

static void test_a_missing_symbol_is_driver_too_old_and_named(void **state)
{
    (void)state;
    static const char *missing[] = {"cuCtxRecordEvent", "cuMemHostRegister_v2", "cuLaunchKernel", "cuInit"};
    for (size_t i = 0; i < WR_ARRAY_LEN(missing); i++) {
        struct wr_device *d = NULL;
        load_fake(missing[i]);
        assert_int_equal(wr_device_cuda_open(0, &d), WEIR_DRIVER_TOO_OLD);
        assert_null(d);
        assert_non_null(strstr(weir_error_text(), missing[i]));
        assert_int_equal(FAKE(int, fake_total), 0); /* nothing was called in half a driver */
    }
}

static void test_an_old_version_is_driver_too_old(void **state)
{
    (void)state;
    struct wr_device *d = NULL;
    load_fake("");
    FAKE(int, fake_version) = 12040;
    assert_int_equal(wr_device_cuda_open(0, &d), WEIR_DRIVER_TOO_OLD);
    assert_null(d);
    assert_non_null(strstr(weir_error_text(), "12.4"));
    assert_non_null(strstr(weir_error_text(), "12.5"));
    FAKE(int, fake_version) = 12050;
    drop(open_fake(0));
}

static void test_an_ordinal_that_does_not_exist_is_no_device(void **state)
{
    (void)state;
    struct wr_device *d = NULL;
    drop(open_fake(1));
    assert_int_equal(wr_device_cuda_open(2, &d), WEIR_NO_DEVICE);
    assert_int_equal(wr_device_cuda_open(-1, &d), WEIR_NO_DEVICE);
    fail_in("cuInit", CUDA_ERROR_NO_DEVICE);
    assert_int_equal(wr_device_cuda_open(0, &d), WEIR_NO_DEVICE);
    fail_in("cuInit", CUDA_ERROR_STUB_LIBRARY);
    assert_int_equal(wr_device_cuda_open(0, &d), WEIR_NO_DRIVER);
    fail_in("", 0);
    assert_null(d);
}

static void test_a_failed_open_leaves_nothing_behind(void **state)
{
    (void)state;
    static const char *calls[] = {"cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "cuDeviceGet",
        "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain", "cuDeviceGetAttribute",
        "cuCtxPushCurrent_v2", "cuMemGetAllocationGranularity"};
    for (size_t i = 0; i < WR_ARRAY_LEN(calls); i++) {
        struct wr_device *d = NULL;
        fail_in(calls[i], CUDA_ERROR_UNKNOWN);
        assert_int_equal(wr_device_cuda_open(0, &d), WEIR_DRIVER_ERROR);
        assert_null(d);
        assert_int_equal(FAKE(long, fake_retains), 0);
        assert_balanced();
    }
    fail_in("", 0);
}

static void test_an_opened_device_describes_itself(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(1);
    assert_string_equal(d->name, "Fake");
    assert_int_equal(d->ordinal, 1);
    assert_int_equal(d->driver_version, 12050);
    assert_int_equal(d->total_bytes, 1 << 30);
    assert_int_equal(d->granularity, 2 << 20);
    assert_int_equal(atomic_load(&d->calls), 0);
    drop(d);
}

static void test_a_device_without_virtual_memory_opens_and_says_so(void **state)
{
    (void)state;
    FAKE(int, fake_attribute) = 0;
    struct wr_device *d = open_fake(0);
    assert_int_equal(d->granularity, 0);
    FAKE(int, fake_attribute) = 1;
    drop(d);
}

static void test_memory_gives_up_what_the_machine_refuses(void **state)
{
    (void)state;
    for (int refused = 0; refused <= 2; refused++) {
        wr_memory m = 0;
        FAKE(int, fake_refused_creates) = refused;
        struct wr_device *d = open_fake(0);
        assert_int_equal(d->ops->mem_create(d, d->granularity, &m), WEIR_OK);
        CUmemAllocationProp p;
        memcpy(&p, find_fake("fake_prop"), sizeof p);
        assert_int_equal(p.allocFlags.gpuDirectRDMACapable, refused < 1);
        assert_int_equal(p.requestedHandleTypes, refused < 2 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0);
        drop(d);
    }
}

/* ---- ops --------------------------------------------------------------------------------------------- */

#define STREAM ((weir_stream)(uintptr_t)0x5000)
#define EVENT  ((wr_event)(uintptr_t)0x6000)

static const struct wr_kernel some_kernel = {.name = "some", .ptx = "", .n_params = 0};
static const struct wr_kernel other_kernel = {.name = "other", .ptx = "", .n_params = 0};
static const struct wr_rows some_rows = {1, 2, 3, 4, 5, 6};

/* Every op of the seam that may fail: the driver function behind it, and a call. Outputs are left in `sink`.
 */
static union {
    uint64_t word;
    weir_stream stream;
    wr_event event;
    bool yes;
    int fd;
    size_t sizes[2];
    struct wr_location location;
    int64_t ns;
} sink;

#define OPS(X)                                                                                               \
    X(va_reserve, "cuMemAddressReserve", va_reserve(d, 4096, &sink.word))                                    \
    X(va_free, "cuMemAddressFree", va_free(d, 4096, 4096))                                                   \
    X(mem_create, "cuMemCreate", mem_create(d, 4096, &sink.word))                                            \
    X(mem_release, "cuMemRelease", mem_release(d, 7))                                                        \
    X(mem_map, "cuMemMap", mem_map(d, 4096, 4096, 7))                                                        \
    X(mem_access, "cuMemSetAccess", mem_access(d, 4096, 4096))                                               \
    X(mem_unmap, "cuMemUnmap", mem_unmap(d, 4096, 4096))                                                     \
    X(mem_export, "cuMemExportToShareableHandle", mem_export(d, 7, &sink.fd))                                \
    X(mem_import, "cuMemImportFromShareableHandle", mem_import(d, 7, 4096, &sink.word))                      \
    X(plain_alloc, "cuMemAlloc_v2", plain_alloc(d, 4096, &sink.word))                                        \
    X(plain_free, "cuMemFree_v2", plain_free(d, 4096))                                                       \
    X(plain_access, "cuCtxEnablePeerAccess", plain_access(d, d))                                             \
    X(mem_info, "cuMemGetInfo_v2", mem_info(d, &sink.sizes[0], &sink.sizes[1]))                              \
    X(host_register, "cuMemHostRegister_v2", host_register(d, &sink, 4096))                                  \
    X(host_unregister, "cuMemHostUnregister", host_unregister(d, &sink))                                     \
    X(locate, "cuPointerGetAttributes", locate(d, 4096, &sink.location))                                     \
    X(stream_create, "cuStreamCreate", stream_create(d, &sink.stream))                                       \
    X(stream_create_first, "cuStreamCreateWithPriority", stream_create_first(d, &sink.stream))               \
    X(stream_destroy, "cuStreamDestroy_v2", stream_destroy(d, STREAM))                                       \
    X(stream_wait, "cuStreamWaitEvent", stream_wait(d, STREAM, EVENT))                                       \
    X(stream_sync, "cuStreamSynchronize", stream_sync(d, STREAM))                                            \
    X(event_create, "cuEventCreate", event_create(d, &sink.event))                                           \
    X(event_create_timed, "cuEventCreate", event_create_timed(d, &sink.event))                               \
    X(event_elapsed, "cuEventElapsedTime", event_elapsed(d, EVENT, EVENT, &sink.ns))                         \
    X(event_destroy, "cuEventDestroy_v2", event_destroy(d, EVENT))                                           \
    X(event_record, "cuEventRecord", event_record(d, EVENT, STREAM))                                         \
    X(record_context, "cuCtxRecordEvent", event_record_context(d, EVENT))                                    \
    X(event_query, "cuEventQuery", event_query(d, EVENT, &sink.yes))                                         \
    X(h2d, "cuMemcpyHtoDAsync_v2", copy(d, WR_COPY_H2D, 1, 2, 3, STREAM))                                    \
    X(d2h, "cuMemcpyDtoHAsync_v2", copy(d, WR_COPY_D2H, 1, 2, 3, STREAM))                                    \
    X(d2d, "cuMemcpyDtoDAsync_v2", copy(d, WR_COPY_D2D, 1, 2, 3, STREAM))                                    \
    X(peer, "cuMemcpyAsync", copy(d, WR_COPY_PEER, 1, 2, 3, STREAM))                                         \
    X(rows, "cuMemcpy2DAsync_v2", copy_rows(d, WR_COPY_H2D, &some_rows, STREAM))                             \
    X(peer_access, "cuDeviceCanAccessPeer", peer_access(d, d, &sink.yes))                                    \
    X(fill, "cuMemsetD8Async", fill(d, 1, 2, 3, STREAM))                                                     \
    X(launch, "cuLaunchKernel",                                                                              \
        launch(d, &some_kernel, &(struct wr_launch){.blocks = 1, .threads = 1}, STREAM))

#define OP_FUNCTION(tag, call, expression)                                                                   \
    static weir_status run_##tag(struct wr_device *d)                                                        \
    {                                                                                                        \
        return d->ops->expression;                                                                           \
    }
OPS(OP_FUNCTION)

static const struct {
    const char *call;
    weir_status (*run)(struct wr_device *d);
} ops[] = {
#define OP_ROW(tag, call, expression) {call, run_##tag},
    OPS(OP_ROW)};

static void test_each_op_is_one_driver_call_in_the_devices_context(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(1);
    for (size_t i = 0; i < WR_ARRAY_LEN(ops); i++) {
        count_calls_of(ops[i].call);
        assert_int_equal(ops[i].run(d), WEIR_OK);
        assert_int_equal(FAKE(int, fake_called_n), 1);
        assert_int_equal(atomic_load(&d->calls), i + 1);
        assert_balanced();
        count_calls_of("cuCtxPushCurrent_v2");
        ops[i].run(d);
        assert_int_equal(FAKE(int, fake_called_n), 1);
        atomic_fetch_sub(&d->calls, 1);
    }
    drop(d);
}

static void test_each_failure_is_typed_named_and_writes_nothing(void **state)
{
    (void)state;
    static const struct {
        CUresult result;
        weir_status status;
    } failures[] = {
        {CUDA_ERROR_OUT_OF_MEMORY, WEIR_OUT_OF_MEMORY},
        {CUDA_ERROR_INVALID_VALUE, WEIR_INVALID_ARGUMENT},
        {CUDA_ERROR_ILLEGAL_ADDRESS, WEIR_CONTEXT_LOST},
        {CUDA_ERROR_CONTEXT_IS_DESTROYED, WEIR_CONTEXT_LOST},
        {CUDA_ERROR_DEINITIALIZED, WEIR_CONTEXT_LOST},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, WEIR_CAPTURING},
        {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, WEIR_CAPTURING},
        {CUDA_ERROR_UNKNOWN, WEIR_DRIVER_ERROR},
    };
    struct wr_device *d = open_fake(0);
    for (size_t i = 0; i < WR_ARRAY_LEN(ops); i++)
        for (size_t j = 0; j < WR_ARRAY_LEN(failures); j++) {
            memset(&sink, 0x5a, sizeof sink);
            fail_in(ops[i].call, (int)failures[j].result);
            weir_status expected = failures[j].status;
            if (expected == WEIR_OUT_OF_MEMORY && ops[i].run == run_host_register)
                expected = WEIR_NO_HOST_MEMORY;
            assert_int_equal(ops[i].run(d), expected);
            assert_int_equal(sink.word, 0x5a5a5a5a5a5a5a5a);
            assert_int_equal(sink.sizes[1], 0x5a5a5a5a5a5a5a5a);
            assert_non_null(strstr(weir_error_text(), "CUDA_ERROR_FAKE"));
            assert_balanced();
            atomic_store(&d->gone, WEIR_OK); /* cuMemGetInfo is the question that a loss is confirmed by */
        }
    fail_in("", 0);
    drop(d);
}

/* P05: a context that fails weir's own question as well is lost for good. */
static void test_P05_a_lost_device_makes_no_driver_call_any_more(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(0);
    fail_in("cuStreamCreate", CUDA_ERROR_CONTEXT_IS_DESTROYED);
    weir_stream s;
    assert_int_equal(d->ops->stream_create(d, &s), WEIR_CONTEXT_LOST);
    assert_int_equal(atomic_load(&d->gone), WEIR_OK); /* somebody else's context, perhaps */
    fail_in("cuCtxPushCurrent_v2", CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(d->ops->stream_create(d, &s), WEIR_CONTEXT_LOST);
    fail_in("", 0);
    int calls = FAKE(int, fake_total);
    for (size_t i = 0; i < WR_ARRAY_LEN(ops); i++)
        assert_int_equal(ops[i].run(d), WEIR_CONTEXT_LOST);
    assert_int_equal(FAKE(int, fake_total), calls);
    drop(d);
}

static void test_a_lost_context_fails_before_the_call(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(0);
    fail_in("cuCtxPushCurrent_v2", CUDA_ERROR_CONTEXT_IS_DESTROYED);
    for (size_t i = 0; i < WR_ARRAY_LEN(ops); i++) {
        count_calls_of(ops[i].call);
        assert_int_equal(ops[i].run(d), WEIR_CONTEXT_LOST);
        assert_int_equal(FAKE(int, fake_called_n), 0);
        assert_balanced();
    }
    fail_in("", 0);
    drop(d);
}

static void test_an_event_not_ready_is_no_failure(void **state)
{
    (void)state;
    bool done = true;
    struct wr_device *d = open_fake(0);
    fail_in("cuEventQuery", CUDA_ERROR_NOT_READY);
    assert_int_equal(d->ops->event_query(d, EVENT, &done), WEIR_OK);
    assert_false(done);
    fail_in("", 0);
    assert_int_equal(d->ops->event_query(d, EVENT, &done), WEIR_OK);
    assert_true(done);
    drop(d);
}

/* ---- streams and captures ---------------------------------------------------------------------------- */

static void test_identify_of_a_real_stream_is_two_reads(void **state)
{
    (void)state;
    struct wr_stream_info info;
    struct wr_device *d = open_fake(0);
    FAKE(int, fake_total) = 0;
    assert_int_equal(d->ops->stream_identify(d, STREAM, &info), WEIR_OK);
    assert_int_equal(FAKE(int, fake_total), 2);
    assert_int_equal(info.id, 0x5000 + 100);
    assert_false(info.capturing);
    drop(d);
}

static void test_identify_of_a_default_stream_reads_it_in_the_devices_context(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(0);
    for (uintptr_t handle = 0; handle <= 2; handle++) {
        struct wr_stream_info info;
        count_calls_of("cuCtxPushCurrent_v2");
        assert_int_equal(d->ops->stream_identify(d, (weir_stream)handle, &info), WEIR_OK);
        assert_int_equal(info.id, handle + 100);
        assert_int_equal(FAKE(int, fake_called_n), 1);
        assert_balanced();
    }
    drop(d);
}

static void test_identify_says_capturing(void **state)
{
    (void)state;
    struct wr_stream_info info;
    struct wr_device *d = open_fake(0);
    for (int status = CU_STREAM_CAPTURE_STATUS_ACTIVE; status <= CU_STREAM_CAPTURE_STATUS_INVALIDATED;
         status++) {
        FAKE(int, fake_capture) = status;
        assert_int_equal(d->ops->stream_identify(d, STREAM, &info), WEIR_OK);
        assert_true(info.capturing);
    }
    FAKE(int, fake_capture) = 0;
    fail_in("cuStreamIsCapturing", CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(d->ops->stream_identify(d, NULL, &info), WEIR_OK);
    assert_true(info.capturing);
    fail_in("", 0);
    drop(d);
}

/* An event recorded there would never complete; a wait there would spoil the capture. */
static void test_a_capturing_stream_is_refused_before_the_driver_sees_it(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(0);
    FAKE(int, fake_capture) = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    count_calls_of("cuEventRecord");
    assert_int_equal(d->ops->event_record(d, EVENT, STREAM), WEIR_CAPTURING);
    assert_int_equal(FAKE(int, fake_called_n), 0);
    count_calls_of("cuStreamWaitEvent");
    assert_int_equal(d->ops->stream_wait(d, STREAM, EVENT), WEIR_CAPTURING);
    assert_int_equal(FAKE(int, fake_called_n), 0);
    FAKE(int, fake_capture) = 0;
    assert_balanced();
    drop(d);
}

/* The flag that makes a node is invalid elsewhere. */
static void test_a_node_is_asked_for_only_where_the_stream_captures(void **state)
{
    (void)state;
    struct wr_device *d = open_fake(0);
    for (int captures = 0; captures < 2; captures++) {
        weir_status expected = captures ? WEIR_OK : WEIR_INVALID_ARGUMENT;
        FAKE(int, fake_capture) = captures;
        count_calls_of("cuEventRecordWithFlags");
        assert_int_equal(d->ops->event_record_external(d, EVENT, STREAM), expected);
        assert_int_equal(FAKE(int, fake_called_n), captures);
        count_calls_of("cuStreamWaitEvent");
        assert_int_equal(d->ops->stream_wait_external(d, STREAM, EVENT), expected);
        assert_int_equal(FAKE(int, fake_called_n), captures);
    }
    FAKE(int, fake_capture) = 0;
    assert_balanced();
    drop(d);
}

static void test_a_kernel_is_loaded_once(void **state)
{
    (void)state;
    struct wr_launch l = {.blocks = 1, .threads = 1};
    struct wr_device *d = open_fake(0);
    count_calls_of("cuModuleLoadDataEx");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(d->ops->launch(d, &some_kernel, &l, STREAM), WEIR_OK);
        assert_int_equal(d->ops->launch(d, &other_kernel, &l, STREAM), WEIR_OK);
    }
    assert_int_equal(FAKE(int, fake_called_n), 2);
    count_calls_of("cuLaunchKernel");
    assert_int_equal(d->ops->launch(d, &some_kernel, &l, STREAM), WEIR_OK);
    assert_int_equal(FAKE(int, fake_called_n), 1);
    drop(d);
}

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_libcuda_open_says_no_driver), /* first: the fakes stay loaded */
        cmocka_unit_test(test_a_missing_symbol_is_driver_too_old_and_named),
        cmocka_unit_test(
            test_an_old_version_is_driver_too_old), /* loads the whole fake, for all that follow */
        cmocka_unit_test(test_an_ordinal_that_does_not_exist_is_no_device),
        cmocka_unit_test(test_a_failed_open_leaves_nothing_behind),
        cmocka_unit_test(test_an_opened_device_describes_itself),
        cmocka_unit_test(test_a_device_without_virtual_memory_opens_and_says_so),
        cmocka_unit_test(test_memory_gives_up_what_the_machine_refuses),
        cmocka_unit_test(test_each_op_is_one_driver_call_in_the_devices_context),
        cmocka_unit_test(test_each_failure_is_typed_named_and_writes_nothing),
        cmocka_unit_test(test_P05_a_lost_device_makes_no_driver_call_any_more),
        cmocka_unit_test(test_a_lost_context_fails_before_the_call),
        cmocka_unit_test(test_an_event_not_ready_is_no_failure),
        cmocka_unit_test(test_identify_of_a_real_stream_is_two_reads),
        cmocka_unit_test(test_identify_of_a_default_stream_reads_it_in_the_devices_context),
        cmocka_unit_test(test_identify_says_capturing),
        cmocka_unit_test(test_a_capturing_stream_is_refused_before_the_driver_sees_it),
        cmocka_unit_test(test_a_node_is_asked_for_only_where_the_stream_captures),
        cmocka_unit_test(test_a_kernel_is_loaded_once),
    };
    if (system("command -v ${CC:-cc} >/dev/null 2>&1") != 0) {
        fprintf(stderr, "no C compiler to build the fake driver with\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
