/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook of PJRT plug-ins: copies of buffers, to other devices, to pinned memory and to the host.
 */
#include "pjrt_world.h"

#include <pthread.h>

#define MIB ((size_t)1 << 20)

/* ---- between devices --------------------------------------------------------------------------------- */

static void test_a_buffer_arrives_on_the_other_device_while_both_compute(void **state)
{
    (void)state;
    uint64_t before = served(WR_PJRT_ACROSS);
    struct pjrt_buffer *from = put_bytes(0, 3 * MIB + 5, 1);
    await(from);
    stall(0);
    stall(1);
    struct pjrt_copy_to_device args = {.struct_size = sizeof args, .from = from, .device = device(1)};
    assert_null(call(PJRT_BUFFER_COPY_TO_DEVICE, &args));
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    assert_bytes(args.to, 1);
    assert_bytes(to, 1);
    assert_ptr_equal(to->memory, &device(1)->memory);
    struct pjrt_buffer *back = copy_to_memory(to, &device(0)->memory);
    assert_bytes(back, 1);
    assert_int_equal(served(WR_PJRT_ACROSS), before + 3);
    let_go(0);
    let_go(1);
    destroy(args.to);
    destroy(from);
    destroy(to);
    destroy(back);
}

static void test_a_limit_may_be_a_fraction_of_the_device(void **state)
{
    (void)state;
    weir_stats s = {.struct_size = sizeof s};
    destroy(put_bytes(1, 10, 1));
    OK(weir_pool_stats(wr_pjrt_ground_at(1)->pool, &s));
    double fraction = (double)s.limit_bytes / (double)device(1)->sim->total_bytes;
    assert_true(fraction > 0.029 && fraction <= 0.03);
}

static void test_layout_and_type_go_with_the_copy_and_what_is_not_plain_is_forwarded(void **state)
{
    (void)state;
    static const int64_t dims[2] = {8, 16};
    unsigned char *host = host_bytes(8 * 16 * 2, 2);
    struct pjrt_buffer *from = put(from_args(0, host, BF16, dims, 2));
    from->minor_to_major[0] = 0; /* as if a program had computed it so */
    from->minor_to_major[1] = 1;
    uint64_t before = served(WR_PJRT_ACROSS), layouts = forwarded(WR_PJRT_LAYOUT),
             types = forwarded(WR_PJRT_TYPE), same = forwarded(WR_PJRT_SAME_DEVICE),
             unknown = forwarded(WR_PJRT_UNKNOWN);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    assert_int_equal(to->type, BF16);
    assert_memory_equal(to->dims, dims, sizeof dims);
    assert_int_equal(to->minor_to_major[0], 0);
    assert_bytes(to, 2);
    destroy(to);
    from->n_tiles = 1;
    destroy(copy_to_memory(from, &device(1)->memory));
    from->n_tiles = 0;
    from->type = S4;
    destroy(copy_to_memory(from, &device(1)->memory));
    from->type = BF16;
    from->dims[0] = 4; /* more bytes than elements: padding, or dynamic */
    destroy(copy_to_memory(from, &device(1)->memory));
    from->dims[0] = 8;
    destroy(copy_to_memory(from, &device(0)->memory));
    destroy(copy_to_memory(from, &device(1)->odd));
    mini_settle();
    assert_int_equal(served(WR_PJRT_ACROSS), before + 1);
    assert_int_equal(forwarded(WR_PJRT_LAYOUT), layouts + 2);
    assert_int_equal(forwarded(WR_PJRT_TYPE), types + 1);
    assert_int_equal(forwarded(WR_PJRT_SAME_DEVICE), same + 1);
    assert_int_equal(forwarded(WR_PJRT_UNKNOWN), unknown + 1);
    destroy(from);
    free(host);
}

static void assert_all(struct pjrt_buffer *b, unsigned char tag)
{
    unsigned char *seen = malloc(b->bytes);
    await(b);
    wr_sim_peek(mini.world, b->address, seen, b->bytes);
    for (size_t i = 0; i < b->bytes; i++)
        assert_int_equal(seen[i], tag);
    free(seen);
}

static void test_a_copy_waits_for_its_source_and_holds_up_nothing_else(void **state)
{
    (void)state;
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 77);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    assert_true(is_pending(to));
    for (unsigned i = 0; i < 12; i++) { /* more than there are streams: none gets behind it */
        struct pjrt_buffer *b = put_bytes(1, 10000, i);
        assert_bytes(b, i);
        destroy(b);
    }
    assert_true(is_pending(to));
    let_go(0);
    assert_all(to, 77);
    destroy(from);
    destroy(to);
}

static void test_a_source_destroyed_while_it_is_copied_lives_until_then(void **state)
{
    (void)state;
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 78);
    struct pjrt_buffer *first = copy_to_memory(from, &device(1)->memory);
    struct pjrt_buffer *second = copy_to_memory(from, &device(0)->pinned);
    destroy(from);
    assert_int_equal(mini.n_buffers, 3);
    let_go(0);
    assert_all(first, 78);
    await(second);
    mini_settle();
    wr_pjrt_drain_workers();
    assert_int_equal(mini.n_buffers, 2);
    destroy(first);
    destroy(second);
}

static void test_a_copy_deleted_while_it_waits_for_its_source_keeps_its_memory_until_it_has_passed(
    void **state)
{
    (void)state;
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 79);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    destroy(to);
    usleep(5000); /* deleted, and its memory would be the next one's */
    struct pjrt_buffer *next = put_bytes(1, MIB, 8);
    let_go(0);
    mini_settle();
    wr_pjrt_drain_workers();
    assert_bytes(next, 8);
    destroy(from);
    destroy(next);
}

struct execution {
    struct pjrt_executable *x;
    struct pjrt_buffer *argument;
    struct pjrt_error *error;
    _Atomic bool over;
};

static void *run_execution(void *argument)
{
    struct execution *e = argument;
    e->error = execute(e->x, e->argument);
    atomic_store(&e->over, true);
    return NULL;
}

/* Or does it wait until device 0, which computes its argument, is let go? It succeeds either way. */
static bool returns_at_once(struct pjrt_executable *x, struct pjrt_buffer *argument)
{
    uint64_t waits = atomic_load(&wr_pjrt_hook.counters.execute_waits);
    struct execution e = {.x = x, .argument = argument};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_execution, &e), 0);
    while (!atomic_load(&e.over) && atomic_load(&wr_pjrt_hook.counters.execute_waits) == waits)
        usleep(100);
    usleep(1000);
    bool over = atomic_load(&e.over);
    let_go(0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_null(e.error);
    return over;
}

static void test_an_execution_that_takes_over_what_is_being_copied_waits_for_the_copy_and_succeeds(
    void **state)
{
    (void)state;
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 2);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    struct pjrt_executable takes = {.donated = 1};
    assert_false(returns_at_once(&takes, from));
    assert_all(to, 2);
    destroy(from);
    destroy(to);
    mini_settle();
    assert_int_equal(atomic_load(&takes.sum), 2 * MIB);
    drop(PJRT_LOADED_EXECUTABLE_DESTROY, &takes);
}

static bool returns_at_once_beside_a_copy(struct pjrt_executable *x)
{
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, 1000, 2);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    bool at_once = returns_at_once(x, from);
    assert_all(to, 2);
    destroy(from);
    destroy(to);
    return at_once;
}

static void test_an_execution_that_only_reads_what_is_being_copied_waits_once_and_never_again(void **state)
{
    (void)state;
    struct pjrt_executable reads = {0}, takes = {.donated = 1};
    assert_false(returns_at_once_beside_a_copy(&reads)); /* it may take it, for all that is known */
    assert_true(returns_at_once_beside_a_copy(&reads));
    assert_false(returns_at_once_beside_a_copy(&takes));
    assert_false(returns_at_once_beside_a_copy(&takes));
    drop(PJRT_LOADED_EXECUTABLE_DESTROY, &reads);
    drop(PJRT_LOADED_EXECUTABLE_DESTROY, &takes);
    assert_false(returns_at_once_beside_a_copy(&reads)); /* as if it were another one at the same place */
    drop(PJRT_LOADED_EXECUTABLE_DESTROY, &reads);
    mini_settle();
}

static void test_nothing_is_learned_from_a_call_that_spares_some_arguments(void **state)
{
    (void)state;
    static const int64_t spared[1] = {0};
    struct pjrt_execute_options options = {
        .struct_size = sizeof options, .not_donated = spared, .n_not_donated = 1};
    struct pjrt_executable takes = {.donated = 1};
    stall(0);
    struct pjrt_buffer *held = mini_computed(device(0), U8, 1000, 2), *free_one = put_bytes(0, 1000, 1);
    struct pjrt_buffer *to = copy_to_memory(held, &device(1)->memory);
    struct pjrt_buffer *const list[1] = {free_one}, *const *const lists[1] = {list};
    struct pjrt_execute args = {.struct_size = sizeof args,
        .executable = &takes,
        .options = &options,
        .arguments = lists,
        .n_devices = 1,
        .n_arguments = 1};
    assert_null(call(PJRT_LOADED_EXECUTABLE_EXECUTE, &args));
    assert_false(wr_pjrt_is_known(&takes));
    let_go(0);
    await(to);
    destroy(held);
    destroy(free_one);
    destroy(to);
    mini_settle();
}

static void test_views_are_donated_like_other_buffers(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct pjrt_executable x = {.donated = 1};
        struct pjrt_buffer *b = put_bytes(0, 50000, 1);
        assert_null(execute(&x, b));
        destroy(b);
        destroy(put_bytes(0, 50000, 2));
        mini_settle();
        uint64_t expected = 0;
        for (size_t j = 0; j < 50000; j++)
            expected += byte_at(j, 1);
        assert_int_equal(atomic_load(&x.sum), expected);
    }
}

/* ---- pinned memory ----------------------------------------------------------------------------------- */

static void test_buffers_go_to_pinned_memory_and_back_while_the_device_computes(void **state)
{
    (void)state;
    uint64_t up = served(WR_PJRT_FROM_PINNED), down = served(WR_PJRT_TO_PINNED);
    struct pjrt_buffer *from = put_bytes(0, MIB + 3, 5);
    await(from);
    stall(0);
    struct pjrt_buffer *pinned = copy_to_memory(from, &device(0)->pinned);
    assert_bytes(pinned, 5);
    struct pjrt_buffer *back = copy_to_memory(pinned, &device(0)->memory);
    assert_bytes(back, 5);
    assert_int_equal(served(WR_PJRT_TO_PINNED), down + 1);
    assert_int_equal(served(WR_PJRT_FROM_PINNED), up + 1);
    let_go(0);
    destroy(from);
    destroy(pinned);
    destroy(back);
}

static void test_pinned_memory_goes_back_before_it_is_filled_and_that_of_another_device_is_forwarded(
    void **state)
{
    (void)state;
    uint64_t up = served(WR_PJRT_FROM_PINNED), kinds = forwarded(WR_PJRT_MEMORY);
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, MIB, 3);
    struct pjrt_buffer *pinned = copy_to_memory(from, &device(0)->pinned);
    struct pjrt_buffer *back = copy_to_memory(pinned, &device(0)->memory);
    struct pjrt_buffer *elsewhere = copy_to_memory(from, &device(1)->pinned);
    let_go(0);
    assert_all(back, 3);
    await(elsewhere);
    assert_int_equal(served(WR_PJRT_FROM_PINNED), up + 1);
    assert_int_equal(forwarded(WR_PJRT_MEMORY), kinds + 1);
    mini_settle();
    destroy(from);
    destroy(pinned);
    destroy(back);
    destroy(elsewhere);
}

/* Memory that says it is pinned and is not known to the driver would be read too early. */
static void test_pinned_memory_that_the_driver_does_not_know_is_forwarded_while_it_is_filled(void **state)
{
    (void)state;
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, 1000, 4);
    uint64_t address = from->address, up = served(WR_PJRT_FROM_PINNED), failed = forwarded(WR_PJRT_FAILED);
    from->memory = &device(0)->pinned;
    from->address = (uintptr_t)host_bytes(1000, 1);
    struct pjrt_copy_to_memory args = {
        .struct_size = sizeof args, .from = from, .memory = &device(0)->memory};
    mini_fail(PJRT_BUFFER_COPY_TO_MEMORY, 0); /* the original, which would wait here */
    struct pjrt_one error = {.struct_size = sizeof error, .subject = call(PJRT_BUFFER_COPY_TO_MEMORY, &args)};
    assert_non_null(error.subject);
    (void)call(PJRT_ERROR_DESTROY, &error);
    assert_int_equal(served(WR_PJRT_FROM_PINNED), up);
    assert_int_equal(forwarded(WR_PJRT_FAILED), failed + 1);
    let_go(0);
    mini_settle();
    wr_pjrt_drain_workers();
    free((void *)(uintptr_t)from->address);
    from->memory = &device(0)->memory;
    from->address = address;
    destroy(from);
}

static void test_a_plug_in_that_takes_no_pinned_views_is_asked_once(void **state)
{
    (void)state;
    struct pjrt_buffer *from = put_bytes(0, MIB, 6);
    unsigned views = mini.calls[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER];
    mini_fail(PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER, 0);
    for (int i = 0; i < 3; i++) {
        struct pjrt_buffer *pinned = copy_to_memory(from, &device(0)->pinned);
        assert_bytes(pinned, 6);
        destroy(pinned);
    }
    mini_fail(-1, 0);
    assert_int_equal(mini.calls[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER], views + 1);
    mini_settle();
    destroy(from);
}

/* ---- to the host ------------------------------------------------------------------------------------- */

static struct pjrt_to_host host_args(struct pjrt_buffer *b, void *to)
{
    return (struct pjrt_to_host){
        .struct_size = sizeof(struct pjrt_to_host), .from = b, .to = to, .to_bytes = b->bytes};
}

static void test_large_buffers_reach_the_host_and_small_ones_go_as_before(void **state)
{
    (void)state;
    static const size_t sizes[] = {1000, MIB, 9 * MIB + 1};
    uint64_t before = served(WR_PJRT_TO_HOST), small = forwarded(WR_PJRT_SMALL);
    for (unsigned i = 0; i < WR_ARRAY_LEN(sizes); i++) {
        struct pjrt_buffer *b = put_bytes(0, sizes[i], i);
        unsigned char *to = malloc(sizes[i]);
        struct pjrt_to_host args = host_args(b, to);
        assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
        assert_true(becomes_ready(args.event));
        for (size_t j = 0; j < sizes[i]; j++)
            if (to[j] != byte_at(j, i)) fail_msg("byte %zu of %zu is wrong", j, sizes[i]);
        free(to);
        mini_settle();
        destroy(b);
    }
    assert_int_equal(served(WR_PJRT_TO_HOST), before + 2);
    assert_int_equal(forwarded(WR_PJRT_SMALL), small + 1);
}

static void test_a_question_for_the_size_and_other_layouts_go_as_before(void **state)
{
    (void)state;
    static const int64_t dims[2] = {1024, 2048}, turned[2] = {0, 1}, same[2] = {1, 0};
    unsigned char *host = host_bytes(2 * MIB, 1), *to = malloc(2 * MIB);
    struct pjrt_buffer *b = put(from_args(0, host, U8, dims, 2));
    struct pjrt_to_host args = host_args(b, NULL);
    assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
    assert_int_equal(args.to_bytes, 2 * MIB);
    struct pjrt_layout layout = {.struct_size = sizeof layout, .kind = PJRT_LAYOUT_TILED};
    layout.as.tiled.n_minor_to_major = 2;
    uint64_t before = served(WR_PJRT_TO_HOST), layouts = forwarded(WR_PJRT_LAYOUT);
    for (int i = 0; i < 2; i++) {
        layout.as.tiled.minor_to_major = i ? turned : same;
        args = host_args(b, to);
        args.layout = &layout;
        assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
        assert_true(becomes_ready(args.event));
    }
    static const int64_t dense[2] = {2048, 1};
    layout.kind = PJRT_LAYOUT_STRIDES;
    layout.as.strides.strides = dense;
    layout.as.strides.n_strides = 2;
    assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
    assert_true(becomes_ready(args.event));
    assert_int_equal(served(WR_PJRT_TO_HOST), before + 2);
    assert_int_equal(forwarded(WR_PJRT_LAYOUT), layouts + 1);
    mini_settle();
    destroy(b);
    free(to);
    free(host);
}

static void test_the_host_gets_what_is_still_computed_and_buffer_and_event_may_go_before(void **state)
{
    (void)state;
    unsigned char *to = malloc(2 * MIB);
    for (int early = 0; early <= 1; early++) {
        stall(0);
        struct pjrt_buffer *b = mini_computed(device(0), U8, 2 * MIB, (unsigned char)(40 + early));
        struct pjrt_to_host args = host_args(b, to);
        assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
        usleep(3000);
        assert_false(is_ready(args.event));
        destroy(b);
        if (early) drop(PJRT_EVENT_DESTROY, args.event);
        let_go(0);
        if (!early) assert_true(becomes_ready(args.event));
        mini_settle();
        wr_pjrt_drain_workers();
        for (size_t i = 0; i < 2 * MIB; i++)
            if (to[i] != 40 + early) fail_msg("byte %zu is wrong", i);
    }
    free(to);
}

static void test_the_error_of_a_broken_buffer_is_the_callers(void **state)
{
    (void)state;
    unsigned char *to = malloc(2 * MIB);
    struct pjrt_buffer *b = put_bytes(0, 2 * MIB, 1);
    await(b);
    b->broken = true;
    struct pjrt_to_host args = host_args(b, to);
    assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
    for (int i = 0; i < 1000 && !is_ready(args.event); i++)
        usleep(1000);
    struct pjrt_one one = {.struct_size = sizeof one, .subject = args.event};
    struct pjrt_error *error = call(PJRT_EVENT_ERROR, &one);
    assert_non_null(error);
    struct pjrt_get_number code = {.struct_size = sizeof code, .subject = error};
    struct pjrt_get_text text = {.struct_size = sizeof text, .subject = error};
    assert_null(call(PJRT_ERROR_GET_CODE, &code));
    assert_null(call(PJRT_ERROR_MESSAGE, &text));
    assert_int_equal(code.value.number, 15);
    assert_string_equal(text.text, "broken");
    one.subject = error;
    (void)call(PJRT_ERROR_DESTROY, &one);
    drop(PJRT_EVENT_DESTROY, args.event);
    uint64_t source = forwarded(WR_PJRT_SOURCE);
    destroy(copy_to_memory(b, &device(1)->memory));
    assert_int_equal(forwarded(WR_PJRT_SOURCE), source + 1);
    mini_settle();
    free(to);
    destroy(b);
}

/* ---- failures ---------------------------------------------------------------------------------------- */

/* Each call that the hook makes of its own fails once; the program notices nothing. */
static void test_any_call_of_the_plug_in_may_fail_and_the_copy_arrives_all_the_same(void **state)
{
    (void)state;
    static const int places[] = {PJRT_BUFFER_MEMORY, PJRT_BUFFER_ELEMENT_TYPE, PJRT_BUFFER_DIMENSIONS,
        PJRT_BUFFER_GET_MEMORY_LAYOUT, PJRT_BUFFER_ON_DEVICE_SIZE, PJRT_BUFFER_READY_EVENT,
        PJRT_EVENT_IS_READY, PJRT_EVENT_ERROR, PJRT_EVENT_ON_READY, PJRT_EVENT_CREATE, MINI_STREAM_GET,
        PJRT_BUFFER_INCREASE_EXTERNAL_REFERENCE_COUNT, PJRT_BUFFER_OPAQUE_DEVICE_MEMORY_DATA_POINTER,
        PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER};
    struct pjrt_buffer *from = put_bytes(0, 2 * MIB, 7);
    unsigned char *to = malloc(2 * MIB);
    for (unsigned i = 0; i < WR_ARRAY_LEN(places); i++)
        for (int after = 0; after < 2; after++) {
            mini_fail(places[i], after);
            struct pjrt_buffer *other = copy_to_memory(from, &device(1)->memory);
            mini_fail(-1, 0);
            assert_bytes(other, 7);
            memset(to, 0, 2 * MIB);
            mini_fail(places[i], after);
            struct pjrt_to_host args = host_args(from, to);
            assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
            wr_pjrt_drain_workers();
            mini_fail(-1, 0);
            assert_true(becomes_ready(args.event));
            assert_int_equal(to[2 * MIB - 1], byte_at(2 * MIB - 1, 7));
            mini_settle();
            destroy(other);
        }
    wr_pjrt_drain_workers();
    free(to);
    destroy(from);
}

static void test_a_gate_that_the_plug_in_refuses_is_given_back(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) { /* more than there are gates */
        stall(0);
        struct pjrt_buffer *from = mini_computed(device(0), U8, 1000, 9);
        mini_fail(MINI_STREAM_WAIT, 0);
        struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
        mini_fail(-1, 0);
        let_go(0);
        assert_all(to, 9);
        destroy(from);
        destroy(to);
    }
    uint64_t before = served(WR_PJRT_ACROSS);
    stall(0);
    struct pjrt_buffer *from = mini_computed(device(0), U8, 1000, 10);
    struct pjrt_buffer *to = copy_to_memory(from, &device(1)->memory);
    let_go(0);
    assert_all(to, 10);
    assert_int_equal(served(WR_PJRT_ACROSS), before + 1);
    destroy(from);
    destroy(to);
}

static void *copy_many(void *seed)
{
    unsigned s = (unsigned)(uintptr_t)seed;
    for (unsigned i = 0; i < 30; i++) {
        size_t n = 1 + (i * 104729 + s) % (3 * MIB);
        unsigned char *to = malloc(n);
        struct pjrt_buffer *a = put_bytes((int)(i % 2), n, s);
        struct pjrt_buffer *b = copy_to_memory(a, &device((int)(i + 1) % 2)->memory);
        struct pjrt_to_host args = host_args(b, to);
        destroy(a);
        assert_null(call(PJRT_BUFFER_TO_HOST_BUFFER, &args));
        destroy(b);
        assert_true(becomes_ready(args.event));
        assert_int_equal(to[n - 1], byte_at(n - 1, s));
        free(to);
    }
    return NULL;
}

static void test_threads_copy_side_by_side(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, copy_many, (void *)i), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        HOOKED(test_a_buffer_arrives_on_the_other_device_while_both_compute),
        HOOKED(test_a_limit_may_be_a_fraction_of_the_device),
        HOOKED(test_layout_and_type_go_with_the_copy_and_what_is_not_plain_is_forwarded),
        HOOKED(test_a_copy_waits_for_its_source_and_holds_up_nothing_else),
        HOOKED(test_a_source_destroyed_while_it_is_copied_lives_until_then),
        HOOKED(test_a_copy_deleted_while_it_waits_for_its_source_keeps_its_memory_until_it_has_passed),
        HOOKED(test_an_execution_that_takes_over_what_is_being_copied_waits_for_the_copy_and_succeeds),
        HOOKED(test_an_execution_that_only_reads_what_is_being_copied_waits_once_and_never_again),
        HOOKED(test_nothing_is_learned_from_a_call_that_spares_some_arguments),
        HOOKED(test_views_are_donated_like_other_buffers),
        HOOKED(test_buffers_go_to_pinned_memory_and_back_while_the_device_computes),
        HOOKED(test_pinned_memory_goes_back_before_it_is_filled_and_that_of_another_device_is_forwarded),
        HOOKED(test_pinned_memory_that_the_driver_does_not_know_is_forwarded_while_it_is_filled),
        HOOKED(test_a_plug_in_that_takes_no_pinned_views_is_asked_once),
        HOOKED(test_large_buffers_reach_the_host_and_small_ones_go_as_before),
        HOOKED(test_a_question_for_the_size_and_other_layouts_go_as_before),
        HOOKED(test_the_host_gets_what_is_still_computed_and_buffer_and_event_may_go_before),
        HOOKED(test_the_error_of_a_broken_buffer_is_the_callers),
        HOOKED(test_any_call_of_the_plug_in_may_fail_and_the_copy_arrives_all_the_same),
        HOOKED(test_a_gate_that_the_plug_in_refuses_is_given_back),
        HOOKED(test_threads_copy_side_by_side),
    };
    install_in_miniature("0.03");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
