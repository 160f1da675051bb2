/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook of PJRT plug-ins: its table, and host memory to a device.
 */
#include "pjrt_world.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

/* ---- the table --------------------------------------------------------------------------------------- */

static void assert_declined(struct pjrt_api *api, const char *words)
{
    struct pjrt_api *before = malloc(4096);
    memcpy(before, api, 4096);
    assert_int_equal(weir_pjrt_install(api), 1);
    assert_memory_equal(api, before, 4096);
    if (!strstr(weir_pjrt_message(), words)) fail_msg("\"%s\" does not say %s", weir_pjrt_message(), words);
    free(before);
}

static void test_J04_a_table_that_does_not_fit_is_declined_and_left_as_it_is(void **state)
{
    (void)state;
    struct pjrt_api *api = mini_open("sim:gtx1080-pcie3x2");
    assert_int_equal(weir_pjrt_install(NULL), 1);
    api->struct_size -= 12 * sizeof(pjrt_function);
    assert_declined(api, "bytes");
    api->struct_size += 12 * sizeof(pjrt_function);
    api->version.minor = 114;
    assert_declined(api, "0.114");
    api->version.minor = 115;
    api->version.major = 1;
    assert_declined(api, "1.115");
    api->version.major = 0;
    struct pjrt_extension *streams = api->extensions->next;
    api->extensions->next = NULL;
    assert_declined(api, "stream extension");
    api->extensions->next = streams;
    pjrt_function view = api->entries[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER];
    api->entries[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER] = NULL;
    assert_declined(api, "CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER");
    api->entries[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER] = view;
    char text[1024];
    (void)weir_pjrt_status(text, sizeof text);
    assert_non_null(strstr(text, "\"installed\": false"));
    free(api);
}

static void test_installing_again_is_fine_and_another_table_is_declined(void **state)
{
    (void)state;
    struct pjrt_api *api = mini.api;
    pjrt_function hooked = api->entries[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER];
    assert_int_equal(weir_pjrt_install(api), 0);
    assert_ptr_equal(api->entries[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER], hooked);
    struct pjrt_api *other = mini_open("sim:gtx1080-pcie3x2");
    assert_declined(other, "another");
    free(other);
    mini.api = api;
}

static void test_J04_the_status_says_what_was_served_and_what_was_not_and_why(void **state)
{
    (void)state;
    char text[4096], little[10];
    size_t length = weir_pjrt_status(text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(weir_pjrt_status(little, sizeof little), length);
    assert_int_equal(strlen(little), sizeof little - 1);
    assert_non_null(strstr(text, "\"clients\": 1"));
    uint64_t before = served(WR_PJRT_FROM_HOST), other = forwarded(WR_PJRT_TYPE);
    destroy(put_bytes(0, 1000, 1));
    int64_t dims[1] = {100};
    unsigned char host[100] = {0};
    destroy(put(from_args(0, host, S4, dims, 1)));
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    assert_int_equal(forwarded(WR_PJRT_TYPE), other + 1);
    (void)weir_pjrt_status(text, sizeof text);
    assert_non_null(strstr(text, "\"limit_bytes\": 67108864")); /* 64M */
    assert_non_null(strstr(text, "\"ns\": "));
    assert_true(atomic_load(&wr_pjrt_hook.counters.ns[WR_PJRT_FROM_HOST]) > 0);
    assert_non_null(strstr(text, "an element type without whole bytes"));
}

static void test_clients_of_other_platforms_and_after_uninstall_are_left_alone(void **state)
{
    (void)state;
    struct pjrt_client *ours = client;
    uint64_t before = served(WR_PJRT_FROM_HOST), unknown = forwarded(WR_PJRT_UNKNOWN);
    client = mini_client("tpu");
    destroy(put_bytes(0, 1000, 1));
    mini_destroy_client(client);
    weir_pjrt_uninstall();
    client = mini_client("cuda");
    destroy(put_bytes(0, 1000, 1));
    mini_destroy_client(client);
    client = ours;
    assert_int_equal(served(WR_PJRT_FROM_HOST), before);
    assert_int_equal(forwarded(WR_PJRT_UNKNOWN), unknown + 2);
    destroy(put_bytes(0, 1000, 1)); /* one that was served stays so */
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    assert_int_equal(weir_pjrt_install(mini.api), 0);
}

/* ---- host to device ---------------------------------------------------------------------------------- */

static void test_arrays_of_every_size_arrive(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 7, 512, 1000, 65536, 1000003, 20 * 1048576 + 5};
    uint64_t before = served(WR_PJRT_FROM_HOST);
    for (int d = 0; d < MINI_DEVICES; d++)
        for (unsigned i = 0; i < WR_ARRAY_LEN(sizes); i++) {
            struct pjrt_buffer *b = put_bytes(d, sizes[i], i);
            assert_bytes(b, i);
            destroy(b);
        }
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 2 * WR_ARRAY_LEN(sizes));
}

static void test_types_and_shapes_stay_what_they_are(void **state)
{
    (void)state;
    static const int64_t dims[3] = {3, 5, 7};
    unsigned char *host = host_bytes(3 * 5 * 7 * 16, 3);
    uint64_t before = served(WR_PJRT_FROM_HOST);
    unsigned whole = 0;
    for (int type = 1; type <= 29; type++) {
        if (wr_pjrt_type_bytes(type) == 0) continue;
        whole++;
        struct pjrt_from_host args = from_args(0, host, type, dims, 3);
        args.memory = NULL; /* the device's default one */
        args.device = device(0);
        struct pjrt_buffer *b = put(args);
        assert_int_equal(b->type, type);
        assert_int_equal(b->bytes, 105 * wr_pjrt_type_bytes(type));
        assert_memory_equal(b->dims, dims, sizeof dims);
        assert_int_equal(b->minor_to_major[0], 2);
        assert_bytes(b, 3);
        destroy(b);
    }
    struct pjrt_buffer *scalar = put(from_args(0, host, F32, NULL, 0));
    assert_bytes(scalar, 3);
    destroy(scalar);
    assert_int_equal(whole, 23);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + whole + 1);
    free(host);
}

/* Compares with what the strides say, element by element. */
static void put_strided(size_t n_dims, const int64_t *dims, const int64_t *strides, enum wr_pjrt_reason why)
{
    enum { SPAN = 1 << 18 };
    unsigned char *host = host_bytes(SPAN, 9);
    struct pjrt_from_host args = from_args(0, host + SPAN / 2, F32, dims, n_dims);
    args.strides = strides;
    args.n_strides = n_dims;
    uint64_t before = served(WR_PJRT_FROM_HOST), other = forwarded(why);
    struct pjrt_buffer *b = put(args);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + (why == WR_PJRT_SERVED));
    if (why != WR_PJRT_SERVED) assert_int_equal(forwarded(why), other + 1);
    unsigned char *seen = malloc(b->bytes);
    await(b);
    wr_sim_peek(mini.world, b->address, seen, b->bytes);
    size_t index[4] = {0};
    for (size_t at = 0; at < b->bytes; at += 4) {
        const unsigned char *from = host + SPAN / 2;
        for (size_t i = 0; i < n_dims; i++)
            from += (int64_t)index[i] * strides[i];
        assert_memory_equal(seen + at, from, 4);
        for (size_t i = n_dims; i-- > 0 && ++index[i] == (size_t)dims[i];)
            index[i] = 0;
    }
    free(seen);
    free(host);
    destroy(b);
}

static void test_strides_that_make_rows_are_served_and_others_forwarded(void **state)
{
    (void)state;
    put_strided(3, (int64_t[]){4, 8, 16}, (int64_t[]){512, 64, 4}, WR_PJRT_SERVED); /* dense */
    put_strided(
        3, (int64_t[]){1, 8, 16}, (int64_t[]){-77, 64, 4}, WR_PJRT_SERVED);   /* a stride of no meaning */
    put_strided(2, (int64_t[]){16, 32}, (int64_t[]){256, 4}, WR_PJRT_SERVED); /* every other row */
    put_strided(3, (int64_t[]){4, 8, 16}, (int64_t[]){1024, 128, 4}, WR_PJRT_SERVED);
    put_strided(3, (int64_t[]){4, 8, 16}, (int64_t[]){2048, 128, 4}, WR_PJRT_STRIDES); /* two steps */
    put_strided(2, (int64_t[]){16, 32}, (int64_t[]){4, 64}, WR_PJRT_STRIDES);          /* transposed */
    put_strided(2, (int64_t[]){16, 32}, (int64_t[]){-128, 4}, WR_PJRT_STRIDES);        /* backwards */
    put_strided(2, (int64_t[]){16, 32}, (int64_t[]){0, 4}, WR_PJRT_STRIDES);  /* one row again and again */
    put_strided(2, (int64_t[]){16, 4}, (int64_t[]){128, 4}, WR_PJRT_STRIDES); /* short rows */
    put_strided(1, (int64_t[]){16}, (int64_t[]){8}, WR_PJRT_STRIDES);         /* every other element */
}

static void test_what_is_not_plain_is_forwarded_and_right(void **state)
{
    (void)state;
    static const int64_t square[2] = {8, 8}, none[2] = {4, 0}, first_fastest[2] = {0, 1},
                         last_fastest[2] = {1, 0};
    unsigned char *host = host_bytes(4096, 5);
    struct pjrt_layout layout = {.struct_size = sizeof layout, .kind = PJRT_LAYOUT_TILED};
    layout.as.tiled.n_minor_to_major = 2;
    uint64_t before = served(WR_PJRT_FROM_HOST), layouts = forwarded(WR_PJRT_LAYOUT),
             kinds = forwarded(WR_PJRT_MEMORY), odd = forwarded(WR_PJRT_UNKNOWN),
             empty = forwarded(WR_PJRT_EMPTY);
    struct pjrt_from_host args = from_args(0, host, F32, square, 2);
    args.layout = &layout;
    layout.as.tiled.minor_to_major = last_fastest;
    destroy(put(args));
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    layout.as.tiled.minor_to_major = first_fastest;
    destroy(put(args));
    layout.as.tiled.minor_to_major = last_fastest;
    layout.as.tiled.n_tiles = 1;
    destroy(put(args));
    assert_int_equal(forwarded(WR_PJRT_LAYOUT), layouts + 2);
    args = from_args(0, host, F32, square, 2);
    args.memory = &device(0)->pinned;
    destroy(put(args));
    assert_int_equal(forwarded(WR_PJRT_MEMORY), kinds + 1);
    args.memory = &device(0)->odd;
    destroy(put(args));
    assert_int_equal(forwarded(WR_PJRT_UNKNOWN), odd + 1);
    destroy(put(from_args(0, host, F32, none, 2)));
    assert_int_equal(forwarded(WR_PJRT_EMPTY), empty + 1);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    free(host);
}

static void test_J02_an_array_arrives_while_the_device_computes(void **state)
{
    (void)state;
    stall(0);
    for (unsigned i = 0; i < 20; i++) {
        struct pjrt_buffer *b = put_bytes(0, i % 2 ? 3 * MIB : 1000, i);
        assert_bytes(b, i); /* becomes ready meanwhile */
        destroy(b);
    }
    int64_t dims[1] = {100};
    unsigned char host[100] = {0};
    struct pjrt_buffer *plain = put(from_args(0, host, S4, dims, 1)); /* forwarded: it does wait */
    assert_true(is_pending(plain));
    let_go(0);
    await(plain);
    destroy(plain);
}

static void test_J03_an_array_may_change_after_the_call_where_that_was_promised(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    int64_t dims[1] = {BYTES};
    destroy(put_bytes(0, 10, 1)); /* so that there is a pool */
    for (int pinned = 0; pinned <= 1; pinned++) {
        void *host = NULL;
        if (pinned)
            OK(weir_host_alloc(wr_pjrt_ground_at(0)->pool, BYTES, &host));
        else
            host = malloc(BYTES);
        for (size_t i = 0; i < BYTES; i++)
            ((unsigned char *)host)[i] = byte_at(i, 4);
        struct pjrt_from_host args = from_args(0, host, U8, dims, 1);
        args.semantics = PJRT_HOST_ONLY_DURING_CALL;
        assert_null(call(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &args));
        memset(host, 0, BYTES);
        assert_true(becomes_ready(args.done_with_host_buffer));
        assert_bytes(args.buffer, 4);
        destroy(args.buffer);
        if (pinned)
            OK(weir_host_free(wr_pjrt_ground_at(0)->pool, host, WEIR_NO_STREAM));
        else
            free(host);
    }
}

/* The copy itself stands behind a stream that does not move. */
static void test_what_is_read_during_the_call_is_the_callers_at_once(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        int semantics;
    } cases[] = {{1000, PJRT_HOST_ZERO_COPY}, {3 * MIB, PJRT_HOST_ONLY_DURING_CALL}};
    struct wr_sim_gate *gates[MINI_READY];
    destroy(put_bytes(0, 10, 1)); /* so that there is a pool */
    for (unsigned i = 0; i < WR_ARRAY_LEN(cases); i++) {
        int64_t dims[1] = {(int64_t)cases[i].bytes};
        void *host;
        OK(weir_host_alloc(
            wr_pjrt_ground_at(0)->pool, cases[i].bytes, &host)); /* read later, if not told otherwise */
        for (size_t j = 0; j < cases[i].bytes; j++)
            ((unsigned char *)host)[j] = byte_at(j, i);
        struct pjrt_from_host args = from_args(0, host, U8, dims, 1);
        args.semantics = cases[i].semantics;
        for (int r = 0; r < MINI_READY; r++)
            OK(wr_sim_stall(device(0)->sim, device(0)->ready[r], &gates[r]));
        assert_null(call(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &args));
        assert_true(is_ready(args.done_with_host_buffer));
        memset(host, 0, cases[i].bytes);
        for (int r = 0; r < MINI_READY; r++)
            wr_sim_gate_open(gates[r]);
        drop(PJRT_EVENT_DESTROY, args.done_with_host_buffer);
        assert_bytes(args.buffer, i);
        destroy(args.buffer);
        OK(weir_host_free(wr_pjrt_ground_at(0)->pool, host, WEIR_NO_STREAM));
    }
}

static void test_memory_deleted_under_a_reader_is_not_used_again_before_it_has_read(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, ROUNDS = 6 };
    struct pjrt_executable readers[ROUNDS] = {{0}};
    uint64_t expected = 0;
    for (size_t i = 0; i < BYTES; i++)
        expected += byte_at(i, 1);
    stall(0);
    for (int i = 0; i < ROUNDS; i++) {
        struct pjrt_buffer *b = put_bytes(0, BYTES, 1);
        assert_null(execute(&readers[i], b));
        destroy(b);
        for (unsigned j = 0; j < 4; j++) /* would take its place */
            destroy(put_bytes(0, BYTES, 2));
    }
    let_go(0);
    mini_settle();
    for (int i = 0; i < ROUNDS; i++)
        assert_int_equal(atomic_load(&readers[i].sum), expected);
}

static void test_a_view_deleted_before_its_copy_is_over_keeps_its_memory_until_then(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 30; i++) { /* the oracle reports what overlaps */
        int64_t dims[1] = {4 * MIB};
        unsigned char *host = host_bytes(4 * MIB, i);
        struct pjrt_from_host args = from_args(0, host, U8, dims, 1);
        assert_null(call(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &args));
        destroy(args.buffer);
        assert_true(becomes_ready(args.done_with_host_buffer));
        free(host);
    }
}

static void test_an_array_for_which_there_is_no_room_is_forwarded(void **state)
{
    (void)state;
    uint64_t before = served(WR_PJRT_FROM_HOST), full = forwarded(WR_PJRT_NO_ROOM);
    struct pjrt_buffer *first = put_bytes(0, 40 * MIB, 1), *second = put_bytes(0, 40 * MIB, 2);
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
    assert_int_equal(forwarded(WR_PJRT_NO_ROOM), full + 1);
    assert_bytes(first, 1);
    assert_bytes(second, 2);
    destroy(first);
    mini_settle();
    struct pjrt_buffer *third = put_bytes(0, 40 * MIB, 3); /* there is again */
    assert_int_equal(served(WR_PJRT_FROM_HOST), before + 2);
    assert_bytes(third, 3);
    destroy(second);
    destroy(third);
}

static void test_the_memory_of_a_device_is_the_plug_ins_and_weirs(void **state)
{
    (void)state;
    struct pjrt_memory_stats before = {.struct_size = PJRT_MEMORY_STATS_BYTES, .device = device(0)},
                             after = before;
    assert_null(call(PJRT_DEVICE_MEMORY_STATS, &before));
    struct pjrt_buffer *b = put_bytes(0, MIB, 1);
    assert_null(call(PJRT_DEVICE_MEMORY_STATS, &after));
    weir_stats ours = {.struct_size = sizeof ours};
    OK(weir_pool_stats(wr_pjrt_ground_at(0)->pool, &ours));
    assert_int_equal(after.in_use - before.in_use, MIB);
    assert_int_equal(after.in_use, 1000 + ours.live_bytes);
    assert_int_equal(after.peak_in_use.bytes, 2000 + ours.peak_live_bytes);
    assert_int_equal(after.limit.bytes, 8000 + 64 * MIB);
    assert_int_equal(after.pool.bytes, 4000 + ours.reserved_bytes);
    assert_false(after.peak_pool.known); /* nor told by the plug-in */
    assert_int_equal(after.peak_pool.bytes, 0);
    await(b);
    destroy(b);
    mini_settle();
    after = (struct pjrt_memory_stats){.struct_size = PJRT_MEMORY_STATS_BYTES, .device = device(0)};
    assert_null(call(PJRT_DEVICE_MEMORY_STATS, &after));
    assert_int_equal(after.in_use, before.in_use);
}

static void test_any_call_of_the_plug_in_may_fail_and_the_array_arrives_all_the_same(void **state)
{
    (void)state;
    static const int places[] = {
        MINI_STREAM_GET, PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER, PJRT_BUFFER_READY_EVENT};
    static const int places_to_do_without[] = {PJRT_EVENT_CREATE, PJRT_EVENT_SET};
    destroy(put_bytes(0, 10, 1));
    for (unsigned i = 0; i < WR_ARRAY_LEN(places_to_do_without); i++) {
        uint64_t before = served(WR_PJRT_FROM_HOST);
        mini_fail(places_to_do_without[i], 0);
        struct pjrt_buffer *b = put_bytes(0, 1000, i);
        mini_fail(-1, 0);
        assert_int_equal(served(WR_PJRT_FROM_HOST), before + 1);
        assert_bytes(b, i);
        destroy(b);
    }
    for (unsigned i = 0; i < WR_ARRAY_LEN(places); i++) {
        uint64_t refused = forwarded(WR_PJRT_REFUSED);
        mini_fail(places[i], 0);
        struct pjrt_buffer *b = put_bytes(0, 100000, i);
        assert_int_equal(forwarded(WR_PJRT_REFUSED), refused + 1);
        assert_bytes(b, i);
        destroy(b);
    }
    mini_fail(-1, 0);
}

static pjrt_function plain_from_host;

static struct pjrt_error *stop_failing(void *args)
{
    wr_sim_fail_nth(mini.world, 0, WEIR_OK);
    return plain_from_host(args);
}

/* Any call of the driver's, too. Those that the miniature makes of its own, once it is asked, do not fail. */
static void test_any_call_of_the_driver_may_fail_and_the_array_arrives_all_the_same(void **state)
{
    (void)state;
    destroy(put_bytes(0, 3 * MIB, 1));
    uint64_t failures = forwarded(WR_PJRT_FAILED) + forwarded(WR_PJRT_REFUSED) + forwarded(WR_PJRT_NO_ROOM);
    for (unsigned n = 1; n <= 30; n++) {
        int64_t dims[1] = {n % 3 ? 100000 : (int64_t)(n * MIB)};
        unsigned char *host = host_bytes((size_t)dims[0], n);
        struct pjrt_from_host args = from_args(0, host, U8, dims, 1);
        pjrt_function original = wr_pjrt_hook.original[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER];
        plain_from_host = original;
        wr_pjrt_hook.original[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER] = stop_failing;
        wr_sim_fail_nth(mini.world, n, WEIR_DRIVER_ERROR);
        struct pjrt_error *error = call(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, &args);
        wr_sim_fail_nth(mini.world, 0, WEIR_OK);
        wr_pjrt_hook.original[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER] = original;
        assert_null(error);
        assert_true(becomes_ready(args.done_with_host_buffer));
        assert_bytes(args.buffer, n);
        destroy(args.buffer);
        free(host);
    }
    uint64_t now = forwarded(WR_PJRT_FAILED) + forwarded(WR_PJRT_REFUSED) + forwarded(WR_PJRT_NO_ROOM);
    assert_true(now > failures); /* some were needed */
}

static void *put_many(void *seed)
{
    unsigned s = (unsigned)(uintptr_t)seed;
    for (unsigned i = 0; i < 60; i++) {
        struct pjrt_buffer *b = put_bytes((int)(i % 2), 1 + (i * 7919 + s) % 300000, s);
        await(b);
        destroy(b);
    }
    return NULL;
}

static void test_threads_put_side_by_side(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_many, (void *)i), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

int main(void)
{
    const struct CMUnitTest before[] = {
        cmocka_unit_test(test_J04_a_table_that_does_not_fit_is_declined_and_left_as_it_is)};
    const struct CMUnitTest tests[] = {
        HOOKED(test_installing_again_is_fine_and_another_table_is_declined),
        HOOKED(test_J04_the_status_says_what_was_served_and_what_was_not_and_why),
        HOOKED(test_clients_of_other_platforms_and_after_uninstall_are_left_alone),
        HOOKED(test_arrays_of_every_size_arrive),
        HOOKED(test_types_and_shapes_stay_what_they_are),
        HOOKED(test_strides_that_make_rows_are_served_and_others_forwarded),
        HOOKED(test_what_is_not_plain_is_forwarded_and_right),
        HOOKED(test_J02_an_array_arrives_while_the_device_computes),
        HOOKED(test_J03_an_array_may_change_after_the_call_where_that_was_promised),
        HOOKED(test_what_is_read_during_the_call_is_the_callers_at_once),
        HOOKED(test_memory_deleted_under_a_reader_is_not_used_again_before_it_has_read),
        HOOKED(test_a_view_deleted_before_its_copy_is_over_keeps_its_memory_until_then),
        HOOKED(test_an_array_for_which_there_is_no_room_is_forwarded),
        HOOKED(test_the_memory_of_a_device_is_the_plug_ins_and_weirs),
        HOOKED(test_any_call_of_the_plug_in_may_fail_and_the_array_arrives_all_the_same),
        HOOKED(test_any_call_of_the_driver_may_fail_and_the_array_arrives_all_the_same),
        HOOKED(test_threads_put_side_by_side),
    };
    int failed = cmocka_run_group_tests_name("table", before, NULL, NULL);
    install_in_miniature("64M");
    return failed + cmocka_run_group_tests_name("hooked", tests, NULL, NULL);
}
