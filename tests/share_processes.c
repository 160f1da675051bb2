/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes share blocks: the parent exports, a child that was forked before either opened a device imports.
 *
 *   share_processes sim     simulated devices, one world in each process
 *   share_processes cuda    the real device 0; exits 77 without
 *
 * By weir_export and weir_import; and on the real device, for a block of a PLAIN pool, by legacy CUDA IPC.
 */
#include "cuda_driver.h"
#include "device.h"
#include "harness.h"
#include "kernels.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK_BYTES = 24 << 20, MOST_PARTS = 64, PARENTS_TAG = 0x11223344, CHILDS_TAG = 0x55667788 };

/* What the parent says of a block, with the parts' descriptors beside it. */
struct message {
    uint32_t n_parts; /* 0: a block of legacy IPC */
    weir_exported parts[MOST_PARTS];
    CUipcMemHandle ipc;
    uint64_t ipc_offset;
};

static const char *kind;
static int channel;
static struct wr_device *device;
static weir_stream stream;

#define OK(call) ok((call), #call)

/* In both processes: the child has no test around it. */
static void ok(weir_status s, const char *call)
{
    if (s == WEIR_OK) return;
    fprintf(stderr, "%s: %s: %s\n", call, weir_status_name(s), weir_error_text());
    exit(1);
}

static void require(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* ---- the channel --------------------------------------------------------------------------------------- */

union descriptors {
    char bytes[CMSG_SPACE(MOST_PARTS * sizeof(int))];
    struct cmsghdr header;
};

static void send_message(const struct message *m)
{
    union descriptors beside = {0};
    struct iovec data = {(void *)m, sizeof *m};
    struct msghdr h = {.msg_iov = &data, .msg_iovlen = 1};
    if (m->n_parts > 0) {
        h.msg_control = &beside;
        h.msg_controllen = CMSG_SPACE(m->n_parts * sizeof(int));
        *CMSG_FIRSTHDR(&h) = (struct cmsghdr){.cmsg_len = CMSG_LEN(m->n_parts * sizeof(int)),
            .cmsg_level = SOL_SOCKET,
            .cmsg_type = SCM_RIGHTS};
        for (uint32_t i = 0; i < m->n_parts; i++)
            memcpy(CMSG_DATA(&beside.header) + i * sizeof(int), &m->parts[i].fd, sizeof(int));
    }
    require(sendmsg(channel, &h, 0) == sizeof *m, "a message is not sent");
}

/* False: the parent has nothing more to say. */
static bool receive_message(struct message *m)
{
    union descriptors beside = {0};
    struct iovec data = {m, sizeof *m};
    struct msghdr h = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
    ssize_t n = recvmsg(channel, &h, 0);
    if (n <= 0) return false;
    require(n == sizeof *m && !(h.msg_flags & MSG_CTRUNC), "half a message");
    for (uint32_t i = 0; i < m->n_parts; i++)
        memcpy(&m->parts[i].fd, CMSG_DATA(&beside.header) + i * sizeof(int), sizeof(int));
    return true;
}

static void wait_for_answer(void)
{
    char answer = 0;
    require(read(channel, &answer, 1) == 1, "the child has gone");
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

static void open_device(void)
{
    OK(wr_device_get(kind, 0, &device));
    OK(device->ops->stream_create(device, &stream));
}

static void write_block(weir_dptr block, uint32_t tag)
{
    OK(wr_kernels_fill(device, stream, block, BLOCK_BYTES, tag));
    OK(device->ops->stream_sync(device, stream));
}

static void expect_block(weir_dptr block, uint32_t tag)
{
    uint32_t *words = malloc(BLOCK_BYTES);
    require(words != NULL, "no memory");
    OK(device->ops->copy(device, WR_COPY_D2H, (uintptr_t)words, block, BLOCK_BYTES, stream));
    OK(device->ops->stream_sync(device, stream));
    for (size_t i = 0; i < BLOCK_BYTES / sizeof *words; i++)
        require(words[i] == tag, "a block has the wrong bytes");
    free(words);
}

/* ---- legacy IPC -------------------------------------------------------------------------------------- */

/* The driver's functions for it; the library has no use for them. */
static struct {
    __typeof__(cuIpcGetMemHandle) *get_handle;
    __typeof__(cuIpcOpenMemHandle) *open_handle;
    __typeof__(cuIpcCloseMemHandle) *close_handle;
    __typeof__(cuMemGetAddressRange) *get_range;
} ipc;

static bool find_ipc(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) return false;
    *(void **)&ipc.get_handle = dlsym(driver, "cuIpcGetMemHandle");
    *(void **)&ipc.open_handle = dlsym(driver, "cuIpcOpenMemHandle_v2");
    *(void **)&ipc.close_handle = dlsym(driver, "cuIpcCloseMemHandle");
    *(void **)&ipc.get_range = dlsym(driver, "cuMemGetAddressRange_v2");
    return ipc.get_handle && ipc.open_handle && ipc.close_handle && ipc.get_range;
}

static void enter_context(void)
{
    CUcontext context;
    require(wr_cuda.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                wr_cuda.cuCtxPushCurrent(context) == CUDA_SUCCESS,
        "no primary context");
}

/* ---- the child --------------------------------------------------------------------------------------- */

static void import_parts(struct message *m)
{
    weir_import_options o = {.struct_size = sizeof o, .device_kind = kind};
    weir_imported *in;
    weir_dptr block;
    OK(weir_import(&o, m->parts, m->n_parts, &block, &in));
    for (uint32_t i = 0; i < m->n_parts; i++)
        require(close(m->parts[i].fd) == 0, "a descriptor is not open any more");
    expect_block(block, PARENTS_TAG);
    write_block(block, CHILDS_TAG);
    OK(weir_import_close(in));
}

static void import_ipc(const struct message *m)
{
    CUdeviceptr base;
    require(find_ipc(), "no legacy IPC");
    enter_context();
    require(ipc.open_handle(&base, m->ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS,
        "cuIpcOpenMemHandle");
    expect_block(base + m->ipc_offset, PARENTS_TAG);
    write_block(base + m->ipc_offset, CHILDS_TAG);
    require(ipc.close_handle(base) == CUDA_SUCCESS, "cuIpcCloseMemHandle");
}

static int run_child(void)
{
    struct message m;
    while (receive_message(&m)) {
        if (device == NULL) open_device();
        if (m.n_parts > 0)
            import_parts(&m);
        else
            import_ipc(&m);
        require(write(channel, "", 1) == 1, "the parent has gone");
    }
    return 0;
}

/* ---- the parent -------------------------------------------------------------------------------------- */

static weir_pool *open_pool(weir_backing backing)
{
    weir_pool *pool;
    weir_pool_options o = {.struct_size = sizeof o,
        .device_kind = kind,
        .limit_bytes = 256 << 20,
        .grow_bytes = backing == WEIR_BACKING_VIRTUAL ? 8 << 20 : 0,
        .backing = backing};
    OK(weir_pool_open(&o, &pool));
    return pool;
}

static void close_pool(weir_pool *pool)
{
    weir_status s;
    OK(device->ops->stream_sync(device, stream));
    while ((s = weir_pool_close(pool)) == WEIR_NOT_YET) /* an event takes its time to be seen */
        usleep(1000);
    OK(s);
}

static void test_a_block_is_shared_by_descriptors(void **state)
{
    (void)state;
    static struct message m;
    weir_pool *pool = open_pool(WEIR_BACKING_VIRTUAL);
    weir_dptr odd, block;
    weir_status s = WEIR_OK;
    OK(weir_alloc(pool, (3 << 20) + 512, stream, &odd));
    OK(weir_alloc(pool, BLOCK_BYTES, stream, &block));
    write_block(block, PARENTS_TAG);
    for (size_t from = 0; from < BLOCK_BYTES && s == WEIR_OK; from += m.parts[m.n_parts++].bytes) {
        require(m.n_parts < MOST_PARTS, "more segments than expected");
        m.parts[m.n_parts] = (weir_exported){.struct_size = sizeof m.parts[0]};
        s = weir_export(pool, block, from, &m.parts[m.n_parts]);
    }
    bool refused = s == WEIR_DRIVER_ERROR; /* a container may lack them */
    if (!refused) {
        OK(s);
        send_message(&m);
        for (uint32_t i = 0; i < m.n_parts; i++)
            close(m.parts[i].fd);
        wait_for_answer();
        expect_block(block, CHILDS_TAG);
    }
    OK(weir_free(pool, block, stream));
    OK(weir_free(pool, odd, stream));
    close_pool(pool);
    if (refused) skip();
}

static void test_a_plain_block_is_shared_by_legacy_ipc(void **state)
{
    (void)state;
    if (strcmp(kind, "cuda") != 0) skip();
    static struct message m;
    weir_pool *pool = open_pool(WEIR_BACKING_PLAIN);
    weir_dptr odd, block;
    CUdeviceptr base;
    size_t bytes;
    OK(weir_alloc(pool, 3 << 20, stream, &odd));
    OK(weir_alloc(pool, BLOCK_BYTES, stream, &block));
    write_block(block, PARENTS_TAG);
    require(find_ipc(), "no legacy IPC");
    enter_context();
    assert_int_equal(ipc.get_range(&base, &bytes, block), CUDA_SUCCESS);
    assert_int_equal(ipc.get_handle(&m.ipc, base), CUDA_SUCCESS);
    m.ipc_offset = block - base;
    send_message(&m);
    wait_for_answer();
    expect_block(block, CHILDS_TAG);
    OK(weir_free(pool, block, stream));
    OK(weir_free(pool, odd, stream));
    close_pool(pool);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_is_shared_by_descriptors),
        cmocka_unit_test(test_a_plain_block_is_shared_by_legacy_ipc),
    };
    int ends[2], status = -1;
    kind = argc > 1 ? argv[1] : "cuda";
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
    pid_t child = fork(); /* before either knows a device */
    channel = ends[child != 0];
    close(ends[child == 0]);
    if (child == 0) return run_child();
    weir_status s = wr_device_get(kind, 0, &device);
    int failed = 77;
    if (s == WEIR_OK) {
        OK(device->ops->stream_create(device, &stream));
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    } else {
        printf("skipped: %s\n", weir_error_text());
    }
    close(channel);
    waitpid(child, &status, 0);
    return status == 0 ? failed : 1;
}
