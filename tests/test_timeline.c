/* SPDX-License-Identifier: Apache-2.0
 *
 * A queue's timeline. The file is checked by tests/check_timeline.py, given as the first argument.
 */
#include "direction_world.h"

#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 1200000, STEPS = 6, BYTES_PER_NS = 12 }; /* gtx1080-pcie3: 12 GB/s */

static const uint64_t compute_ns = 250000;
static const char *checker;

struct file {
    char path[64];
};

static struct file new_file(void)
{
    struct file f = {"/tmp/weir_timeline_XXXXXX"};
    int fd = mkstemp(f.path);
    assert_true(fd >= 0);
    close(fd);
    return f;
}

/* The checker's own exit code: 0. */
static void check(const struct file *f, const char *what, const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "python3 '%s' '%s' %s %s", checker, f->path, what, arguments);
    assert_int_equal(system(command), 0);
}

static void open_timed(struct world *w, const char *path, unsigned items)
{
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(BYTES, items);
    q.timeline = path;
    open_world(w, &o, 0, &q);
}

static void end_timed(struct world *w)
{
    OK(weir_queue_wait_idle(w->queue, -1));
    close_world(w);
}

/* Copies of 100 us each and computation of 250 us: double buffering, where every time is known. */
static void test_a_timeline_has_the_times_of_the_virtual_clock(void **state)
{
    (void)state;
    struct world w;
    struct file f = new_file();
    char expected[128];
    open_timed(&w, f.path, 2);
    uint64_t start = w.device->ops->now_ns(w.device);
    OK(feed(&w, BYTES, 0, -1));
    for (uint32_t i = 0; i < STEPS; i++) {
        weir_item item;
        if (i + 1 < STEPS) OK(feed(&w, BYTES, i + 1, -1));
        OK(weir_queue_acquire(w.queue, w.stream[0], -1, &item));
        OK(wr_kernels_spin(w.device, w.stream[0], compute_ns));
        OK(weir_queue_release(w.queue, &item, NULL, 0));
    }
    end_timed(&w);
    uint64_t copy_ns = 10000 + BYTES / BYTES_PER_NS;
    snprintf(expected, sizeof expected, "%llu %llu %llu %d", (unsigned long long)start,
        (unsigned long long)copy_ns, (unsigned long long)compute_ns, STEPS);
    check(&f, "pipeline", expected);
    unlink(f.path);
}

static const uint64_t kernel_ns = 3000000;

static void test_a_copy_that_comes_after_a_kernel_begins_when_that_ends(void **state)
{
    (void)state;
    struct world w;
    struct file f = new_file();
    char expected[32], bytes[4096] = {0};
    open_timed(&w, f.path, 2);
    uint64_t start = w.device->ops->now_ns(w.device);
    weir_span span = {bytes, sizeof bytes};
    weir_push_options o = {.struct_size = sizeof o, .after = &w.stream[1], .n_after = 1};
    OK(wr_kernels_spin(w.device, w.stream[1], kernel_ns));
    OK(weir_queue_push_after(w.queue, &span, 1, &o, NULL));
    eat(&w, 0, 0);
    end_timed(&w);
    snprintf(expected, sizeof expected, "%llu", (unsigned long long)(start + kernel_ns));
    check(&f, "begins", expected);
    unlink(f.path);
}

static void test_so_it_does_to_the_host_and_between_devices(void **state)
{
    (void)state;
    for (enum flow_kind kind = 0; kind < FLOW_KINDS; kind++) {
        struct flow f;
        struct file file = new_file();
        char expected[32];
        weir_queue_options q = queue_options(FLOW_BYTES, 2);
        q.timeline = file.path;
        open_flow(&f, kind, q);
        uint64_t start = f.from->ops->now_ns(f.from);
        OK(wr_kernels_spin(f.from, f.there, kernel_ns));
        OK(send(&f, 0, -1, NULL));
        assert_int_equal(consume(&f, 0), 0);
        OK(weir_queue_wait_idle(f.w.queue, -1));
        close_flow(&f);
        snprintf(expected, sizeof expected, "%llu", (unsigned long long)(start + kernel_ns));
        check(&file, "begins", expected);
        unlink(file.path);
    }
}

/* Two items at once on one stream, which would overlap on one track. */
static void test_spans_of_one_track_do_not_overlap(void **state)
{
    (void)state;
    struct world w;
    struct file f = new_file();
    weir_item items[3];
    open_timed(&w, f.path, 4);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 3; i++) {
            OK(feed(&w, BYTES, i, -1));
            OK(weir_queue_acquire(w.queue, w.stream[0], -1, &items[i]));
            read_item_on(&w, &items[i], i, 0);
        }
        for (uint32_t i = 0; i < 3; i++)
            OK(weir_queue_release(w.queue, &items[i], NULL, 0));
    }
    end_timed(&w);
    check(&f, "tracks", "12 3");
    unlink(f.path);
}

static void test_what_the_device_has_not_passed_is_lost_and_counted(void **state)
{
    (void)state;
    struct world w;
    struct file f = new_file();
    struct wr_sim_gate *gate;
    open_timed(&w, f.path, 2);
    OK(feed(&w, BYTES, 1, -1));
    eat(&w, 1, 0);
    OK(weir_queue_wait_idle(w.queue, -1));
    OK(feed(&w, BYTES, 2, -1));
    OK(wr_sim_stall(w.device, w.stream[0], &gate));
    eat(&w, 2, 0);
    wr_sim_drain(w.sim); /* the copy; its reader is stalled */
    OK(weir_queue_destroy(w.queue));
    check(&f, "lost", "1");
    wr_sim_gate_open(gate);
    wr_sim_drain(w.sim);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
    unlink(f.path);
}

static weir_status refuse_time(struct wr_device *d, wr_event first, wr_event second, int64_t *ns)
{
    (void)d, (void)first, (void)second, (void)ns;
    return WEIR_DRIVER_ERROR;
}

static weir_status refuse_event(struct wr_device *d, wr_event *out)
{
    (void)d, (void)out;
    return WEIR_DRIVER_ERROR;
}

/* Without events, then without times: two spans of each item are lost. */
static void test_a_timeline_that_fails_fails_no_call_of_the_queue(void **state)
{
    (void)state;
    struct world w;
    struct file f = new_file();
    open_timed(&w, f.path, 2);
    const struct wr_device_ops *ops = w.device->ops;
    struct wr_device_ops broken = *ops;
    broken.event_create_timed = refuse_event;
    w.device->ops = &broken;
    for (uint32_t i = 0; i < 2 * STEPS; i++) {
        if (i == STEPS) {
            broken = *ops;
            broken.event_elapsed = refuse_time;
        }
        OK(feed(&w, BYTES, i, -1));
        eat(&w, i, 0);
    }
    OK(weir_queue_wait_idle(w.queue, -1));
    assert_int_equal(stats_of(w.queue).items_released, 2 * STEPS);
    OK(weir_queue_destroy(w.queue));
    w.device->ops = ops;
    check(&f, "lost", "24");
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
    unlink(f.path);
}

static void test_the_environment_names_files_for_queues_without_one(void **state)
{
    (void)state;
    struct file f = new_file(), second = {{0}};
    snprintf(second.path, sizeof second.path, "%.40s.2", f.path);
    assert_int_equal(setenv("WEIR_TIMELINE", f.path, 1), 0);
    for (int i = 0; i < 2; i++) {
        struct world w;
        open_timed(&w, NULL, 2);
        for (uint32_t step = 0; step < 3; step++) {
            OK(feed(&w, BYTES, step, -1));
            eat(&w, step, 0);
        }
        end_timed(&w);
    }
    assert_int_equal(unsetenv("WEIR_TIMELINE"), 0);
    check(&f, "tracks", "3 1");
    check(&second, "tracks", "3 1");
    unlink(f.path);
    unlink(second.path);
}

static void test_a_path_that_cannot_be_written_is_refused_at_open(void **state)
{
    (void)state;
    struct world w;
    struct wr_sim_options o = world_options();
    weir_queue_options q = queue_options(BYTES, 2);
    weir_queue *none = NULL;
    open_world(&w, &o, 0, &q);
    q.timeline = "/nonexistent/timeline.json";
    assert_int_equal(weir_queue_open(w.pool, &q, &none), WEIR_INVALID_ARGUMENT);
    assert_null(none);
    close_world(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_timeline_has_the_times_of_the_virtual_clock),
        cmocka_unit_test(test_a_copy_that_comes_after_a_kernel_begins_when_that_ends),
        cmocka_unit_test(test_so_it_does_to_the_host_and_between_devices),
        cmocka_unit_test(test_spans_of_one_track_do_not_overlap),
        cmocka_unit_test(test_what_the_device_has_not_passed_is_lost_and_counted),
        cmocka_unit_test(test_a_timeline_that_fails_fails_no_call_of_the_queue),
        cmocka_unit_test(test_the_environment_names_files_for_queues_without_one),
        cmocka_unit_test(test_a_path_that_cannot_be_written_is_refused_at_open),
    };
    if (argc < 2) return 2;
    checker = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
