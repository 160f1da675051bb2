/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated device beyond the seam's contract (conformance_device.c has that): handles, memory, failures,
 * names. Its clocks: test_sim_clock.c. Its oracle: test_sim_oracle.c.
 */
#include "sim_world.h"

#include <sys/stat.h>

/* ---- handles ----------------------------------------------------------------------------------------- */

static void test_a_reused_handle_has_another_id_and_the_old_stream_runs_on(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.reuse_handles = true});
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    uint64_t id = identify(f.d, a);
    spin(&f, a, MS);
    fill(&f, a, 0, 1, 5);
    drop(f.d, a, NULL);
    weir_stream c = new_stream(f.d);
    assert_ptr_equal(c, a);
    assert_int_not_equal(identify(f.d, c), id);
    wr_event e = record(f.d, c);
    assert_true(is_done(f.d, e)); /* the old stream's work is not the new one's past */
    assert_int_equal(peek(&f, 0), 0);
    wr_sim_drain(f.world);
    assert_int_equal(peek(&f, 0), 5);
    drop(f.d, b, e);
    drop(f.d, c, NULL);
    close_clean(&f);
}

static void test_handles_are_not_reused_unless_asked_for(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d);
    drop(f.d, a, NULL);
    weir_stream b = new_stream(f.d);
    assert_ptr_not_equal(a, b);
    drop(f.d, b, NULL);
    close_clean(&f);
}

static void test_a_dead_handle_is_reported_and_refused(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    wr_event e = record(f.d, s);
    drop(f.d, s, e);
    bool done;
    struct wr_stream_info info;
    assert_int_equal(f.ops->event_query(f.d, e, &done), WEIR_INVALID_ARGUMENT);
    assert_int_equal(f.ops->event_destroy(f.d, e), WEIR_INVALID_ARGUMENT);
    assert_int_equal(f.ops->stream_identify(f.d, s, &info), WEIR_INVALID_ARGUMENT);
    assert_int_equal(wr_kernels_spin(f.d, s, 1), WEIR_INVALID_ARGUMENT);
    assert_int_equal(f.ops->stream_destroy(f.d, (weir_stream)(uintptr_t)0xdead), WEIR_INVALID_ARGUMENT);
    struct wr_sim_counts counts;
    wr_sim_get_counts(f.world, &counts);
    assert_int_equal(counts.dead_handle_uses, 5);
    assert_int_equal(wr_sim_reports(f.world), 5);
    assert_non_null(strstr(wr_sim_report(f.world, 0), "event_query"));
    close_world(&f);
}

static void test_a_capturing_stream_takes_no_work_and_says_so(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d), other = new_stream(f.d);
    wr_event e = record(f.d, other);
    struct wr_stream_info info;
    wr_sim_set_capturing(f.d, s, true);
    assert_int_equal(f.ops->stream_identify(f.d, s, &info), WEIR_OK);
    assert_true(info.capturing);
    bool done = false;
    assert_int_equal(f.ops->event_record(f.d, e, s), WEIR_CAPTURING);
    assert_int_equal(f.ops->stream_wait(f.d, s, e), WEIR_CAPTURING);
    assert_int_equal(wr_kernels_spin(f.d, s, 1), WEIR_CAPTURING);
    assert_int_equal(f.ops->event_record(f.d, e, other), WEIR_OK);
    struct wr_sim_counts counts;
    wr_sim_get_counts(f.world, &counts);
    assert_int_equal(counts.captures_broken, 0);
    assert_int_equal(f.ops->event_query(f.d, e, &done), WEIR_OK);
    assert_int_equal(f.ops->event_record_context(f.d, e), WEIR_CAPTURING);
    wr_sim_get_counts(f.world, &counts);
    assert_int_equal(counts.captures_broken, 1);
    uint64_t id = 0, second = 0;
    assert_int_equal(f.ops->stream_capture(f.d, s, &id), WEIR_OK);
    assert_int_equal(f.ops->stream_capture(f.d, other, &second), WEIR_OK);
    assert_true(id != 0 && second == 0);
    wr_sim_join_capture(f.d, other, s);
    assert_int_equal(f.ops->stream_capture(f.d, other, &second), WEIR_OK);
    assert_int_equal(second, id);
    wr_sim_set_capturing(f.d, other, false);
    wr_sim_set_capturing(f.d, s, false);
    assert_true(is_done(f.d, e));
    drop(f.d, s, e);
    drop(f.d, other, NULL);
    close_reported(&f, "capture broken");
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void test_an_op_on_unmapped_memory_is_reported_and_skipped(void **state)
{
    (void)state;
    struct fixture f = open_world();
    uint64_t va;
    assert_int_equal(f.ops->va_reserve(f.d, SLAB, &va), WEIR_OK);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_D2D, f.slab, va, 4096, NULL), WEIR_OK);
    fill(&f, NULL, SLAB - 10, 20, 1); /* runs over the end */
    assert_int_equal(wr_kernels_fill(f.d, NULL, 0x1000, 4, 1), WEIR_OK);
    wr_event e = record(f.d, NULL);
    wr_sim_drain(f.world);
    assert_true(is_done(f.d, e));
    assert_int_equal(wr_sim_reports(f.world), 3);
    assert_non_null(strstr(wr_sim_report(f.world, 0), "unmapped"));
    assert_int_equal(peek(&f, SLAB - 10), 0);
    drop(f.d, NULL, e);
    assert_int_equal(f.ops->va_free(f.d, va, SLAB), WEIR_OK);
    close_world(&f);
}

static void test_mapped_memory_without_access_is_not_reached(void **state)
{
    (void)state;
    struct fixture f = open_world();
    struct wr_device *peer = wr_sim_device(f.world, 1);
    /* The peer's kernel first has no access to the slab, then has. */
    assert_int_equal(wr_kernels_fill(peer, NULL, f.slab, 4, 3), WEIR_OK);
    wr_sim_drain(f.world);
    assert_int_equal(peek(&f, 0), 0);
    assert_int_equal(peer->ops->mem_access(peer, f.slab, SLAB), WEIR_OK);
    assert_int_equal(wr_kernels_fill(peer, NULL, f.slab, 4, 3), WEIR_OK);
    assert_int_equal(peer->ops->stream_sync(peer, NULL), WEIR_OK);
    assert_int_equal(peek(&f, 0), 3);
    close_reported(&f, "unmapped");
}

/* How much memory the device's bytes take of the machine. */
static size_t resident_bytes(struct fixture *f)
{
    struct stat st;
    assert_int_equal(fstat(f->world->devices[0]->file, &st), 0);
    return (size_t)st.st_blocks * 512;
}

static void test_released_memory_goes_back_to_the_system(void **state)
{
    (void)state;
    struct fixture f = open_world();
    assert_int_equal(resident_bytes(&f), 0); /* none before it is written */
    fill(&f, NULL, 0, SLAB, 0xff);
    assert_int_equal(f.ops->stream_sync(f.d, NULL), WEIR_OK);
    assert_int_equal(resident_bytes(&f), SLAB);
    unmap_slab(f.d, f.slab, f.handle);
    assert_int_equal(resident_bytes(&f), 0);
    f.slab = map_slab(f.d, &f.handle);
    assert_int_equal(peek(&f, 0), 0);
    close_clean(&f);
}

static void test_memory_lives_until_released_and_unmapped(void **state)
{
    (void)state;
    struct fixture f = open_world();
    size_t free_before, free_now, total;
    wr_memory handle;
    uint64_t va = map_slab(f.d, &handle);
    assert_int_equal(f.ops->mem_info(f.d, &free_before, &total), WEIR_OK);
    assert_int_equal(f.ops->mem_release(f.d, handle), WEIR_OK);
    assert_int_equal(f.ops->mem_release(f.d, handle), WEIR_INVALID_ARGUMENT);
    assert_int_equal(f.ops->fill(f.d, va, 1, SLAB, NULL), WEIR_OK);
    assert_int_equal(f.ops->stream_sync(f.d, NULL), WEIR_OK);
    assert_int_equal(f.ops->mem_info(f.d, &free_now, &total), WEIR_OK);
    assert_int_equal(free_now, free_before);
    assert_int_equal(f.ops->mem_unmap(f.d, va, SLAB), WEIR_OK);
    assert_int_equal(f.ops->mem_info(f.d, &free_now, &total), WEIR_OK);
    assert_int_equal(free_now, free_before + SLAB);
    assert_int_equal(f.ops->va_free(f.d, va, SLAB), WEIR_OK);
    close_clean(&f);
}

/* ThreadSanitizer leaves a process 1.5 TiB in all. */
#if defined(__SANITIZE_THREAD__)
#define SPACE_IS_SCARCE 1
#elif defined(__has_feature)
#define SPACE_IS_SCARCE __has_feature(thread_sanitizer)
#else
#define SPACE_IS_SCARCE 0
#endif

static void test_address_space_of_several_terabytes_costs_nothing(void **state)
{
    (void)state;
    struct fixture f = open_world();
    uint64_t va = 0;
    size_t bytes = 4096 * WR_GIB;
    if (SPACE_IS_SCARCE) {
        assert_int_equal(f.ops->va_reserve(f.d, bytes, &va), WEIR_OUT_OF_MEMORY);
    } else {
        assert_int_equal(f.ops->va_reserve(f.d, bytes, &va), WEIR_OK);
        uint64_t last = va + bytes - SLAB;
        wr_memory handle;
        assert_int_equal(f.ops->mem_create(f.d, SLAB, &handle), WEIR_OK);
        assert_int_equal(f.ops->mem_map(f.d, last, SLAB, handle), WEIR_OK);
        assert_int_equal(f.ops->mem_access(f.d, last, SLAB), WEIR_OK);
        assert_int_equal(f.ops->fill(f.d, last, 6, SLAB, NULL), WEIR_OK);
        assert_int_equal(f.ops->va_free(f.d, va, bytes), WEIR_INVALID_ARGUMENT); /* still mapped */
        assert_int_equal(f.ops->stream_sync(f.d, NULL), WEIR_OK);
        assert_int_equal(f.ops->mem_unmap(f.d, last, SLAB), WEIR_OK);
        assert_int_equal(f.ops->mem_release(f.d, handle), WEIR_OK);
        assert_int_equal(f.ops->va_free(f.d, va, bytes), WEIR_OK);
    }
    assert_int_equal(f.ops->va_reserve(f.d, SIZE_MAX & ~(2 * MIB - 1), &va), WEIR_OUT_OF_MEMORY);
    assert_int_equal(f.ops->va_reserve(f.d, 4096, &va), WEIR_INVALID_ARGUMENT);
    close_clean(&f);
}

static void test_close_counts_what_was_left(void **state)
{
    (void)state;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("gtx1080-pcie3")};
    struct wr_sim *world;
    static char host[64];
    wr_memory handle;
    assert_int_equal(wr_sim_open(&o, &world), WEIR_OK);
    struct wr_device *d = wr_sim_device(world, 0);
    map_slab(d, &handle); /* a reservation, a handle, a mapping */
    new_stream(d);
    new_event(d);
    assert_int_equal(d->ops->host_register(d, host, sizeof host), WEIR_OK);
    assert_int_equal(wr_sim_close(world), 6);
}

/* A pinned arena as close sees it: it may unregister its memory, for all work is over by then. */
static struct {
    struct wr_sim *world;
    void *host;
    int finished;
} arena;

static void finish_arena(void *pinned)
{
    struct wr_device *d = wr_sim_device(arena.world, 0);
    assert_ptr_equal(pinned, &arena);
    assert_int_equal(((unsigned char *)arena.host)[SLAB - 1], 9); /* the copy has run */
    assert_int_equal(d->ops->host_unregister(d, arena.host), WEIR_OK);
    assert_int_equal(wr_sim_reports(arena.world), 0);
    arena.finished++;
}

static void test_close_ends_all_work_and_then_the_pinned_arena(void **state)
{
    (void)state;
    for (int wall = 0; wall < 2; wall++) {
        struct wr_sim_options o = {.profile = wr_sim_profile_find("gtx1080-pcie3"), .wall_clock = wall != 0};
        assert_int_equal(wr_sim_open(&o, &arena.world), WEIR_OK);
        struct wr_device *d = wr_sim_device(arena.world, 0);
        arena.host = malloc(SLAB);
        arena.finished = 0;
        wr_memory handle;
        uint64_t va = map_slab(d, &handle);
        assert_int_equal(d->ops->host_register(d, arena.host, SLAB), WEIR_OK);
        d->pinned_fini = finish_arena;
        atomic_store(&d->pinned, &arena);
        assert_int_equal(wr_kernels_spin(d, NULL, 5 * MS), WEIR_OK);
        memset(arena.host, 0, SLAB);
        assert_int_equal(d->ops->fill(d, va, 9, SLAB, NULL), WEIR_OK);
        assert_int_equal(d->ops->copy(d, WR_COPY_D2H, (uintptr_t)arena.host, va, SLAB, NULL), WEIR_OK);
        assert_int_equal(wr_sim_close(arena.world), 3); /* the slab's reservation, handle and mapping */
        assert_int_equal(arena.finished, 1);
        free(arena.host);
    }
}

/* ---- failures ---------------------------------------------------------------------------------------- */

static void test_the_nth_call_fails_as_told_and_does_nothing(void **state)
{
    (void)state;
    struct fixture f = open_world();
    wr_event e = (wr_event)(uintptr_t)77;
    uint64_t calls = wr_sim_calls(f.world), device_calls = atomic_load(&f.d->calls);
    struct wr_stream_info info;
    wr_sim_fail_nth(f.world, 2, WEIR_DRIVER_ERROR);
    fill(&f, NULL, 0, 1, 1);
    assert_int_equal(f.ops->stream_identify(f.d, NULL, &info), WEIR_OK); /* not counted */
    assert_int_equal(f.ops->event_create(f.d, &e), WEIR_DRIVER_ERROR);
    assert_int_equal((uintptr_t)e, 77);
    assert_non_null(strstr(weir_error_text(), "event_create"));
    assert_int_equal(wr_sim_calls(f.world), calls + 2);
    assert_int_equal(atomic_load(&f.d->calls), device_calls + 2);
    fill(&f, NULL, 0, 1, 2); /* only that one */
    wr_sim_fail_nth(f.world, 1, WEIR_OUT_OF_MEMORY);
    assert_int_equal(f.ops->fill(f.d, f.slab, 3, 1, NULL), WEIR_OUT_OF_MEMORY);
    wr_sim_fail_nth(f.world, 1, WEIR_DRIVER_ERROR);
    wr_sim_fail_nth(f.world, 0, WEIR_OK);
    wr_sim_drain(f.world);
    assert_int_equal(f.ops->stream_sync(f.d, NULL), WEIR_OK);
    assert_int_equal(peek(&f, 0), 2);
    close_clean(&f);
}

/* Every op of the seam can be made to fail; its arguments are then not even looked at. */
static void test_each_op_can_be_made_to_fail_and_names_itself(void **state)
{
    (void)state;
    struct fixture f = open_world();
    struct wr_launch launch = {0};
    struct wr_kernel kernel = {.name = "none"};
    weir_stream s = NULL;
    wr_event e = NULL;
    size_t bytes[2];
    uint64_t out = 0;
    bool flag;
    unsigned tried = 0;
#define FAIL(name, ...)                                                                                      \
    wr_sim_fail_nth(f.world, 1, WEIR_CONTEXT_LOST);                                                          \
    assert_int_equal(f.ops->name(f.d, __VA_ARGS__), WEIR_CONTEXT_LOST);                                      \
    assert_ptr_equal(strstr(weir_error_text(), #name ":"), weir_error_text());                               \
    tried++
    FAIL(va_reserve, SLAB, &out);
    FAIL(va_free, f.slab, SLAB);
    FAIL(mem_create, SLAB, &out);
    FAIL(mem_release, f.handle);
    FAIL(mem_map, f.slab, SLAB, f.handle);
    FAIL(mem_access, f.slab, SLAB);
    FAIL(mem_unmap, f.slab, SLAB);
    int fd;
    FAIL(mem_export, f.handle, &fd);
    FAIL(mem_import, 0, SLAB, &out);
    FAIL(mem_info, &bytes[0], &bytes[1]);
    FAIL(plain_alloc, SLAB, &out);
    FAIL(plain_free, f.slab);
    FAIL(plain_access, f.d);
    FAIL(host_register, f.host, 1);
    FAIL(host_unregister, f.host);
    struct wr_location place = {.ordinal = 42};
    FAIL(locate, f.slab, &place);
    assert_int_equal(place.ordinal, 42);
    FAIL(stream_create, &s);
    FAIL(stream_create_first, &s);
    FAIL(stream_destroy, s);
    struct wr_device *owner = NULL;
    FAIL(stream_device, s, &owner);
    assert_null(owner);
    FAIL(stream_wait, s, e);
    FAIL(stream_sync, s);
    FAIL(event_create, &e);
    FAIL(event_destroy, e);
    FAIL(event_record, e, s);
    FAIL(event_record_context, e);
    FAIL(event_query, e, &flag);
    FAIL(event_create_timed, &e);
    int64_t ns = 42;
    FAIL(event_elapsed, e, e, &ns);
    assert_int_equal(ns, 42);
    FAIL(copy, WR_COPY_H2D, f.slab, (uintptr_t)f.host, 1, s);
    FAIL(copy_rows, WR_COPY_H2D, &(struct wr_rows){f.slab, (uintptr_t)f.host, 1, 1, 1, 1}, s);
    FAIL(peer_access, f.d, &flag);
    FAIL(fill, f.slab, 1, 1, s);
    FAIL(launch, &kernel, &launch, s);
    wr_graph graph = NULL;
    FAIL(event_record_external, e, s);
    FAIL(stream_wait_external, s, e);
    FAIL(graph_begin, s);
    FAIL(graph_end, s, &graph);
    assert_null(graph);
    FAIL(graph_launch, graph, s);
    FAIL(graph_destroy, graph);
#undef FAIL
#define COUNT_OP(name, args) +1
    assert_int_equal(tried, WR_DEVICE_OPS(COUNT_OP) - 2); /* all but those that only read */
#undef COUNT_OP
    assert_int_equal(out, 0);
    close_clean(&f);
}

static void test_options_outside_their_range_are_refused(void **state)
{
    (void)state;
    struct wr_sim *world = NULL;
    struct wr_sim_profile broken = *wr_sim_profile_find("h200-pcie5");
    broken.h2d_gbps = 0;
    struct wr_sim_options none = {0}, rateless = {.profile = &broken},
                          both = {.profile = wr_sim_profile_find("h200-pcie5"),
                              .wall_clock = true,
                              .adversary_seed = 1};
    assert_int_equal(wr_sim_open(&none, &world), WEIR_INVALID_ARGUMENT);
    assert_int_equal(wr_sim_open(&rateless, &world), WEIR_INVALID_ARGUMENT);
    assert_int_equal(wr_sim_open(&both, &world), WEIR_INVALID_ARGUMENT);
    assert_null(world);
    assert_null(wr_sim_profile_find("gtx9999"));
}

/* ---- devices by name --------------------------------------------------------------------------------- */

static void *get_device(void *out)
{
    struct wr_device **d = out;
    if (wr_device_get("sim:gtx1080-pcie3x2", 1, d) != WEIR_OK) *d = NULL;
    return NULL;
}

static void test_threads_that_ask_for_a_device_get_the_same_one(void **state)
{
    (void)state;
    enum { N = 8 };
    struct wr_device *devices[N], *other;
    pthread_t threads[N];
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_device, &devices[i]), 0);
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++)
        assert_ptr_equal(devices[i], devices[0]);
    assert_non_null(devices[0]);
    assert_string_equal(devices[0]->name, "sim:gtx1080-pcie3x2");
    assert_int_equal(wr_device_get("sim:gtx1080-pcie3x2", 0, &other), WEIR_OK);
    assert_ptr_not_equal(other, devices[0]);
}

static void test_kinds_have_names_and_defaults(void **state)
{
    (void)state;
    struct wr_device *d = NULL, *same = NULL;
    assert_int_equal(wr_device_get("sim", 1, &d), WEIR_OK);
    assert_string_equal(d->name, "sim:h200-pcie5x2");
    assert_int_equal(wr_device_get("sim:h200-pcie5x2", 1, &same), WEIR_OK);
    assert_ptr_equal(d, same);
    assert_int_equal(setenv("WEIR_DEVICE", "sim:gtx1080-pcie3", 1), 0);
    assert_int_equal(wr_device_get(NULL, 0, &d), WEIR_OK);
    assert_string_equal(d->name, "sim:gtx1080-pcie3");
    assert_int_equal(unsetenv("WEIR_DEVICE"), 0);
    d = NULL;
    assert_int_equal(wr_device_get("sim:gtx1080-pcie3", 1, &d), WEIR_NO_DEVICE);
    assert_int_equal(wr_device_get("sim:", 0, &d), WEIR_NO_DEVICE);
    assert_int_equal(wr_device_get("tpu", 0, &d), WEIR_NO_DEVICE);
    assert_non_null(strstr(weir_error_text(), "tpu"));
    assert_int_equal(wr_device_get("sim", -1, &d), WEIR_NO_DEVICE);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_reused_handle_has_another_id_and_the_old_stream_runs_on),
        cmocka_unit_test(test_handles_are_not_reused_unless_asked_for),
        cmocka_unit_test(test_a_dead_handle_is_reported_and_refused),
        cmocka_unit_test(test_a_capturing_stream_takes_no_work_and_says_so),
        cmocka_unit_test(test_an_op_on_unmapped_memory_is_reported_and_skipped),
        cmocka_unit_test(test_mapped_memory_without_access_is_not_reached),
        cmocka_unit_test(test_released_memory_goes_back_to_the_system),
        cmocka_unit_test(test_memory_lives_until_released_and_unmapped),
        cmocka_unit_test(test_address_space_of_several_terabytes_costs_nothing),
        cmocka_unit_test(test_close_counts_what_was_left),
        cmocka_unit_test(test_close_ends_all_work_and_then_the_pinned_arena),
        cmocka_unit_test(test_the_nth_call_fails_as_told_and_does_nothing),
        cmocka_unit_test(test_each_op_can_be_made_to_fail_and_names_itself),
        cmocka_unit_test(test_options_outside_their_range_are_refused),
        cmocka_unit_test(test_threads_that_ask_for_a_device_get_the_same_one),
        cmocka_unit_test(test_kinds_have_names_and_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
