/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the hook share: a hooked plug-in in miniature with a client, calls through its table as a program
 * makes them, and an end that finds leaks and oracle reports.
 */
#ifndef PJRT_WORLD_H
#define PJRT_WORLD_H

#include "harness.h"
#include "hook.h"
#include "kernels.h"
#include "pjrt_mini.h"
#include "weir_pjrt.h"

#include <unistd.h>

#define OK(call) assert_int_equal(call, WEIR_OK)

enum { U8 = 6, F32 = 11, BF16 = 13, S4 = 21 };

static struct pjrt_client *client;

static inline struct pjrt_device *device(int i)
{
    return &client->device[i];
}

static inline struct pjrt_error *call(int place, void *args)
{
    return mini.api->entries[place](args);
}

static inline void drop(int place, void *subject)
{
    struct pjrt_one args = {.struct_size = sizeof args, .subject = subject};
    assert_null(call(place, &args));
}

static inline void destroy(struct pjrt_buffer *b)
{
    drop(PJRT_BUFFER_DESTROY, b);
}

static inline uint64_t served(enum wr_pjrt_kind kind)
{
    return atomic_load(&wr_pjrt_hook.counters.served[kind]);
}

static inline uint64_t forwarded(enum wr_pjrt_reason why)
{
    return atomic_load(&wr_pjrt_hook.counters.forwarded[why]);
}

/* ---- events ------------------------------------------------------------------------------------------ */

static inline bool is_ready(struct pjrt_event *e)
{
    struct pjrt_get_number args = {.struct_size = sizeof args, .subject = e};
    assert_null(call(PJRT_EVENT_IS_READY, &args));
    return args.value.yes;
}

/* Soon, even on a slow machine with much to do; and destroyed then. */
static inline bool becomes_ready(struct pjrt_event *e)
{
    bool ready = false;
    for (int i = 0; i < 300000 && !ready; i++) {
        ready = is_ready(e);
        if (!ready) usleep(100);
    }
    drop(PJRT_EVENT_DESTROY, e);
    return ready;
}

static inline struct pjrt_event *ready_event_of(struct pjrt_buffer *b)
{
    struct pjrt_get args = {.struct_size = sizeof args, .subject = b};
    assert_null(call(PJRT_BUFFER_READY_EVENT, &args));
    return args.value;
}

static inline void await(struct pjrt_buffer *b)
{
    assert_true(becomes_ready(ready_event_of(b)));
}

static inline bool is_pending(struct pjrt_buffer *b)
{
    struct pjrt_event *e = ready_event_of(b);
    usleep(2000);
    bool ready = is_ready(e);
    drop(PJRT_EVENT_DESTROY, e);
    return !ready;
}

/* ---- host arrays ------------------------------------------------------------------------------------- */

static inline unsigned char byte_at(size_t i, unsigned seed)
{
    return (unsigned char)(i * 31 + (i >> 9) * 7 + seed * 101 + 1);
}

static inline unsigned char *host_bytes(size_t n, unsigned seed)
{
    unsigned char *host = malloc(n ? n : 1);
    for (size_t i = 0; i < n; i++)
        host[i] = byte_at(i, seed);
    return host;
}

static inline void assert_bytes(struct pjrt_buffer *b, unsigned seed)
{
    unsigned char *seen = malloc(b->bytes);
    await(b);
    if (b->memory->kind[0] == 'd')
        wr_sim_peek(mini.world, b->address, seen, b->bytes);
    else
        memcpy(seen, (void *)(uintptr_t)b->address, b->bytes);
    for (size_t i = 0; i < b->bytes; i++)
        if (seen[i] != byte_at(i, seed)) fail_msg("byte %zu of %zu is wrong", i, b->bytes);
    free(seen);
}

static inline struct pjrt_from_host from_args(
    int d, const void *data, int type, const int64_t *dims, size_t n_dims)
{
    return (struct pjrt_from_host){.struct_size = sizeof(struct pjrt_from_host),
        .client = client,
        .data = data,
        .type = type,
        .dims = dims,
        .n_dims = n_dims,
        .semantics = PJRT_HOST_ZERO_COPY,
        .memory = &device(d)->memory};
}

/* The array is the caller's again when this returns. */
static inline struct pjrt_buffer *put(struct pjrt_from_host args)
{
    assert_null(call(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &args));
    assert_non_null(args.done_with_host_buffer);
    assert_true(becomes_ready(args.done_with_host_buffer));
    return args.buffer;
}

static inline struct pjrt_buffer *put_bytes(int d, size_t n, unsigned seed)
{
    int64_t dims[1] = {(int64_t)n};
    unsigned char *host = host_bytes(n, seed);
    struct pjrt_buffer *b = put(from_args(d, host, U8, dims, 1));
    free(host);
    return b;
}

static inline struct pjrt_buffer *copy_to_memory(struct pjrt_buffer *b, struct pjrt_memory *m)
{
    struct pjrt_copy_to_memory args = {.struct_size = sizeof args, .from = b, .memory = m};
    assert_null(call(PJRT_BUFFER_COPY_TO_MEMORY, &args));
    return args.to;
}

static inline struct pjrt_error *execute(struct pjrt_executable *x, struct pjrt_buffer *b)
{
    struct pjrt_buffer *const list[1] = {b}, *const *const lists[1] = {list};
    struct pjrt_execute args = {
        .struct_size = sizeof args, .executable = x, .arguments = lists, .n_devices = 1, .n_arguments = 1};
    return call(PJRT_LOADED_EXECUTABLE_EXECUTE, &args);
}

/* The device computes until it is let go: by the end of the test at the latest. */
static struct wr_sim_gate *stalls[MINI_DEVICES];

static inline void stall(int d)
{
    OK(wr_sim_stall(device(d)->sim, device(d)->compute, &stalls[d]));
}

static inline void let_go(int d)
{
    if (stalls[d]) wr_sim_gate_open(stalls[d]);
    stalls[d] = NULL;
}

/* ---- begin and end ----------------------------------------------------------------------------------- */

static inline int open_hooked(void **state)
{
    (void)state;
    client = mini_client("cuda");
    return client ? 0 : 1;
}

/* Nothing is left of the test, in the plug-in or in the pool. */
static inline int close_hooked(void **state)
{
    (void)state;
    char text[4096];
    for (int i = 0; i < MINI_DEVICES; i++)
        let_go(i);
    mini_fail(-1, 0);
    wr_pjrt_drain_workers();
    mini_settle();
    (void)weir_pjrt_status(text, sizeof text); /* gives back what was deleted */
    for (int i = 0; i < MINI_DEVICES; i++) {
        struct wr_pjrt_ground *g = wr_pjrt_ground_at(i);
        weir_stats s = {.struct_size = sizeof s};
        if (!g || !wr_pjrt_is_open(g)) continue;
        OK(weir_pool_check(g->pool));
        OK(weir_pool_stats(g->pool, &s));
        assert_int_equal(s.live_blocks, 0);
    }
    mini_destroy_client(client);
    assert_int_equal(mini.n_buffers, 0);
    assert_int_equal(mini.n_events, 0);
    assert_int_equal(mini.n_errors, 0);
    assert_int_equal(mini.crashes, 0);
    for (unsigned i = 0; mini.world && i < wr_sim_reports(mini.world); i++)
        fail_msg("%s", wr_sim_report(mini.world, i));
    return 0;
}

#define HOOKED(test) cmocka_unit_test_setup_teardown(test, open_hooked, close_hooked)

static inline void install_in_miniature(const char *limit)
{
    static const char *const kind = "sim:gtx1080-pcie3x2";
    setenv("WEIR_DEVICE", kind, 1);
    setenv("WEIR_JAX_LIMIT", limit, 1);
    if (weir_pjrt_install(mini_open(kind)) != 0) abort();
}

#endif
