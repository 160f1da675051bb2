/* SPDX-License-Identifier: Apache-2.0
 *
 * The edges of a process: exit, fork, a device that is lost, threads that end. Each scenario runs in a process
 * of its own, this program with the scenario's name, which must end with exit code 0, and less than a second
 * after it began to exit. Built over the planted faults, each fault must make its scenario fail.
 */
#include "forks.h"
#include "harness.h"
#include "pool_world.h"
#include "queue.h"
#include "weir_queue.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1024 };

#if defined(__SANITIZE_ADDRESS__) || WR_UNDER_TSAN
static const uint64_t exit_limit_ns = 20 * WR_NS_PER_SEC; /* leak checkers take their time */
#else
static const uint64_t exit_limit_ns = WR_NS_PER_SEC;
#endif

static void nap(unsigned ms)
{
    usleep(ms * 1000);
}

static weir_queue *open_queue(unsigned items)
{
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = 4 * KIB, .items = items};
    assert_int_equal(weir_queue_open(world.pool, &o, &q), WEIR_OK);
    return q;
}

static weir_status push(weir_queue *q, int64_t timeout_ns)
{
    static const char bytes[KIB];
    weir_span span = {bytes, sizeof bytes};
    return weir_queue_push(q, &span, 1, WEIR_PUSH_COPY, timeout_ns, NULL);
}

/* A thread that is blocked in the queue, and what its call returned; -1: it is still there. */
struct blocked {
    weir_queue *queue;
    pthread_t thread;
    _Atomic int status;
};

static void *push_for_ever(void *arg)
{
    struct blocked *b = arg;
    weir_status s = WEIR_OK;
    while (s == WEIR_OK)
        s = push(b->queue, -1);
    atomic_store(&b->status, s);
    return NULL;
}

static void *acquire_for_ever(void *arg)
{
    struct blocked *b = arg;
    weir_item item;
    atomic_store(&b->status, weir_queue_acquire(b->queue, world.streams[0], -1, &item));
    return NULL;
}

static void block(struct blocked *b, weir_queue *q, void *(*run)(void *))
{
    *b = (struct blocked){.queue = q, .status = -1};
    assert_int_equal(pthread_create(&b->thread, NULL, run, b), 0);
    nap(20);
    assert_int_equal(atomic_load(&b->status), -1);
}

/* Every call of a pool and a queue returns `expected`, and makes no driver call. */
static void assert_all_return(weir_status expected, weir_queue *q, weir_dptr x, void *host, bool process_over)
{
    uint64_t calls = wr_sim_calls(world.sim);
    weir_stream s = world.streams[0];
    weir_dptr y;
    void *h;
    weir_stats stats = {.struct_size = sizeof stats};
    weir_queue_stats queue_stats = {.struct_size = sizeof queue_stats};
    weir_item item = {.ticket = 1, .bytes = 1};
    assert_int_equal(weir_alloc(world.pool, KIB, s, &y), expected);
    assert_int_equal(weir_alloc(world.pool, 64 * WR_MIB, s, &y), expected);
    assert_int_equal(weir_touch(world.pool, x, s, 0), expected);
    assert_int_equal(weir_free(world.pool, x, s), expected);
    assert_int_equal(weir_free(world.pool, x, world.streams[1]), expected);
    assert_int_equal(weir_stream_retire(world.pool, s), expected);
    assert_int_equal(weir_trim(world.pool, 0, NULL), expected);
    assert_int_equal(weir_pool_stats(world.pool, &stats), expected);
    assert_int_equal(weir_pool_check(world.pool), expected);
    assert_int_equal(weir_host_alloc(world.pool, KIB, &h), expected);
    assert_int_equal(weir_host_free(world.pool, host, s), expected);
    assert_int_equal(push(q, -1), expected);
    assert_int_equal(weir_queue_reserve(q, 1, -1, &item), expected);
    assert_int_equal(weir_queue_commit(q, &item), expected);
    assert_int_equal(weir_queue_abort(q, &item), expected);
    assert_int_equal(weir_queue_acquire(q, s, -1, &item), expected);
    assert_int_equal(weir_queue_use(q, &item, s), expected);
    assert_int_equal(weir_queue_release(q, &item, NULL, 0), expected);
    assert_int_equal(weir_queue_borrowed(q, 0, -1), expected);
    assert_int_equal(weir_queue_get_stats(q, &queue_stats), expected);
    assert_int_equal(weir_queue_close(q), expected);
    if (process_over) {
        weir_pool *p;
        assert_int_equal(weir_host_free(world.pool, host, WEIR_NO_STREAM), expected);
        assert_int_equal(weir_queue_destroy(q), expected);
        assert_int_equal(weir_pool_close(world.pool), expected);
        assert_int_equal(weir_pool_open(NULL, &p), expected);
    }
    assert_int_equal(wr_sim_calls(world.sim), calls);
}

/* A pool in the midst of its life: live, pending and cached blocks, pinned memory, a queue with an item. */
struct midst {
    weir_dptr live;
    void *host;
    weir_queue *queue;
};

static struct midst open_midst(bool wall_clock)
{
    struct midst m;
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 256 * WR_MIB, .wall_clock = wall_clock});
    weir_stream a = wr_world_stream(&world), b = wr_world_stream(&world);
    m.live = wr_world_alloc(&world, 8 * WR_MIB, a);
    wr_world_stall(&world, b);
    weir_dptr pending = wr_world_alloc(&world, 4 * WR_MIB, a);
    wr_world_touch(&world, pending, b);
    wr_world_free(&world, pending, a);
    wr_world_free(&world, wr_world_alloc(&world, WR_MIB, a), a);
    assert_int_equal(weir_host_alloc(world.pool, KIB, &m.host), WEIR_OK);
    m.queue = open_queue(1);
    assert_int_equal(push(m.queue, 0), WEIR_OK);
    return m;
}

/* ---- exit -------------------------------------------------------------------------------------------- */

static void exit_with_a_live_pool_and_queue(void)
{
    open_midst(true);
}

static void exit_with_a_blocked_producer_and_consumer(void)
{
    static struct blocked producer, consumer;
    struct midst m = open_midst(true);
    block(&producer, m.queue, push_for_ever);
    block(&consumer, open_queue(1), acquire_for_ever);
    pthread_detach(producer.thread);
    pthread_detach(consumer.thread);
}

static void *alloc_for_ever(void *stream)
{
    for (size_t i = 1;; i++) {
        weir_dptr x;
        if (weir_alloc(world.pool, i % 64 * 512 * KIB + 1, stream, &x) != WEIR_OK) continue;
        weir_free(world.pool, x, i % 2 ? world.streams[0] : stream);
        if (i % 16 == 0) weir_trim(world.pool, 0, NULL);
    }
    return NULL;
}

static void exit_with_threads_inside_alloc(void)
{
    pthread_t thread;
    open_midst(true);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread, NULL, alloc_for_ever, wr_world_stream(&world)), 0);
    nap(50);
}

static struct midst late;

static void call_late(void)
{
    assert_all_return(WEIR_CLOSED, late.queue, late.live, late.host, true);
}

/* Registered before weir's own handler, so it runs after it, like the destructor of a static object. */
static void late_calls_return_closed(void)
{
    atexit(call_late);
    late = open_midst(false);
}

static pthread_t late_thread;
static _Atomic bool thread_is_ready, thread_may_end;

static void *use_own_stream_and_end_late(void *unused)
{
    weir_dptr x = wr_world_alloc(&world, KIB, WR_FENCE_PER_THREAD);
    wr_world_free(&world, x, WR_FENCE_PER_THREAD);
    atomic_store(&thread_is_ready, true);
    while (!atomic_load(&thread_may_end))
        nap(1);
    return unused;
}

static void end_thread_late(void)
{
    uint64_t calls = wr_sim_calls(world.sim);
    atomic_store(&thread_may_end, true);
    pthread_join(late_thread, NULL);
    assert_int_equal(wr_sim_calls(world.sim), calls);
}

static void a_thread_that_ends_late_makes_no_driver_call(void)
{
    atexit(end_thread_late);
    open_midst(false);
    assert_int_equal(pthread_create(&late_thread, NULL, use_own_stream_and_end_late, NULL), 0);
    while (!atomic_load(&thread_is_ready))
        nap(1);
}

/* ---- fork -------------------------------------------------------------------------------------------- */

static _Atomic int holder_step;

/* The locks that calls want first, held by another thread at the fork. */
static void *hold_all_locks(void *arg)
{
    const struct midst *m = arg;
    struct wr_heap *h = wr_heaps_at(world.pool, 0);
    wr_lock_take(&m->queue->lock);
    wr_latch_take(&h->lock);
    wr_lock_take(&world.pool->lock);
    atomic_store(&holder_step, 1);
    while (atomic_load(&holder_step) == 1)
        nap(1);
    wr_lock_give(&world.pool->lock);
    wr_latch_give(&h->lock);
    wr_lock_give(&m->queue->lock);
    return NULL;
}

static void a_forked_child_is_refused_and_the_parent_goes_on(void)
{
    pthread_t holder;
    int status;
    struct midst m = open_midst(false);
    assert_int_equal(pthread_create(&holder, NULL, hold_all_locks, &m), 0);
    while (atomic_load(&holder_step) == 0)
        nap(1);
    pid_t child = fork();
    if (child == 0) {
        alarm(3);
        assert_all_return(WEIR_AFTER_FORK, m.queue, m.live, m.host, true);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&holder_step, 2);
    pthread_join(holder, NULL);
    assert_int_equal(status, 0);
    wr_world_free(&world, m.live, world.streams[0]);
    assert_int_equal(weir_host_free(world.pool, m.host, WEIR_NO_STREAM), WEIR_OK);
    assert_int_equal(weir_queue_destroy(m.queue), WEIR_OK);
    wr_world_close(&world);
}

/* A child of a process that had opened nothing may open what it likes. */
static void a_child_of_a_process_without_devices_is_free(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        wr_world_open(&world, &(struct wr_world_options){0});
        weir_stream s = wr_world_stream(&world);
        wr_world_free(&world, wr_world_alloc(&world, KIB, s), s);
        wr_world_close(&world);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- a device that is lost --------------------------------------------------------------------------- */

static void use_new_pool(struct wr_device *d)
{
    weir_pool *p;
    weir_pool_options o = {.struct_size = sizeof o};
    weir_stream s;
    weir_dptr x;
    void *host;
    assert_int_equal(wr_pool_open(d, &o, &p), WEIR_OK);
    assert_int_equal(d->ops->stream_create(d, &s), WEIR_OK);
    assert_int_equal(weir_alloc(p, 64 * WR_MIB, s, &x), WEIR_OK);
    assert_int_equal(wr_kernels_fill(d, s, x, KIB, 7), WEIR_OK);
    assert_int_equal(weir_free(p, x, s), WEIR_OK);
    assert_int_equal(weir_host_alloc(p, KIB, &host), WEIR_OK);
    assert_int_equal(weir_host_free(p, host, s), WEIR_OK);
    world.pool = p;
    wr_sim_drain(world.sim);
    wr_world_check(&world);
    assert_int_equal(weir_stream_retire(p, s), WEIR_OK);
    wr_world_close_pool(&world, p);
    assert_int_equal(d->ops->stream_destroy(d, s), WEIR_OK);
}

static void after_a_reset_old_pools_are_lost_and_a_new_one_works(void)
{
    struct midst m = open_midst(true);
    struct blocked producer, consumer;
    weir_dptr x;
    weir_queue *empty = open_queue(1);
    block(&producer, m.queue, push_for_ever);
    block(&consumer, empty, acquire_for_ever);
    wr_sim_reset_device(world.device);
    assert_int_equal(weir_alloc(world.pool, 200 * WR_MIB, world.streams[0], &x), WEIR_CONTEXT_LOST);
    pthread_join(producer.thread, NULL);
    pthread_join(consumer.thread, NULL);
    assert_int_equal(atomic_load(&producer.status), WEIR_CONTEXT_LOST);
    assert_int_equal(atomic_load(&consumer.status), WEIR_CONTEXT_LOST);
    assert_all_return(WEIR_CONTEXT_LOST, m.queue, m.live, m.host, false);

    uint64_t calls = wr_sim_calls(world.sim);
    assert_int_equal(weir_pool_close(world.pool), WEIR_NOT_YET); /* the queues hold it */
    assert_int_equal(weir_queue_destroy(m.queue), WEIR_OK);
    assert_int_equal(weir_queue_destroy(empty), WEIR_OK);
    assert_int_equal(weir_host_free(world.pool, m.host, WEIR_NO_STREAM), WEIR_OK);
    assert_int_equal(weir_pool_close(world.pool), WEIR_OK);
    assert_int_equal(weir_pool_close(world.pool), WEIR_CLOSED);
    assert_int_equal(weir_free(world.pool, m.live, world.streams[0]), WEIR_CLOSED);
    weir_pool *p;
    weir_pool_options o = {.struct_size = sizeof o};
    assert_int_equal(wr_pool_open(world.device, &o, &p), WEIR_CONTEXT_LOST);
    assert_int_equal(wr_sim_calls(world.sim), calls);

    use_new_pool(wr_sim_device(world.sim, 0));
    while (world.n_gates > 0)
        wr_world_let_go(&world, world.gates[0]);
    assert_int_equal(wr_sim_close(world.sim), 0);
}

/* One call that fails for a lost context is no proof: it may have named somebody else's. */
static void one_failure_does_not_lose_a_device(void)
{
    struct midst m = open_midst(false);
    weir_dptr x;
    wr_sim_fail_nth(world.sim, 1, WEIR_CONTEXT_LOST);
    assert_int_equal(weir_touch(world.pool, m.live, world.streams[0], 0), WEIR_CONTEXT_LOST);
    assert_int_equal(weir_alloc(world.pool, KIB, world.streams[0], &x), WEIR_OK);
}

/* ---- threads that end -------------------------------------------------------------------------------- */

static void *use_own_stream(void *unused)
{
    weir_dptr x = wr_world_alloc(&world, WR_MIB, WR_FENCE_PER_THREAD);
    wr_world_write(&world, WR_FENCE_PER_THREAD, x, WR_MIB, 1000);
    wr_world_free(&world, x, WR_FENCE_PER_THREAD);
    return unused;
}

static void blocks_of_threads_that_ended_serve_others(void)
{
    enum { THREADS = 100, LOOKS = 10 };
    wr_world_open(&world, &(struct wr_world_options){.limit_bytes = 8 * WR_MIB, .grow_bytes = 1});
    weir_stream s = wr_world_stream(&world);
    weir_dptr all = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, use_own_stream, NULL), 0);
        pthread_join(thread, NULL);
        wr_sim_drain(world.sim);
    }
    for (int i = 0; i < LOOKS && all == 0; i++) {
        all = wr_world_try_alloc(&world, 8 * WR_MIB, s); /* ticks what is not ticked, and polls */
        wr_sim_drain(world.sim);
    }
    assert_int_not_equal(all, 0);
    wr_world_free(&world, all, s);
    assert_int_equal(weir_trim(world.pool, 0, NULL), WEIR_OK);
    assert_true(wr_world_stats(&world).streams <= 2); /* of the threads' streams nothing is left */
    wr_world_close(&world);
}

/* ---- children ---------------------------------------------------------------------------------------- */

struct scenario {
    const char *name;
    void (*run)(void);
    int fault; /* that it must notice; -1: none */
};

#ifdef WEIR_FAULTS
#define NOTICES(fault) WR_FAULT_##fault
#else
#define NOTICES(fault) (-1)
#endif

static const struct scenario scenarios[] = {
    {"P03_exit_with_a_live_pool_and_queue", exit_with_a_live_pool_and_queue, -1},
    {"P03_exit_with_a_blocked_producer_and_consumer", exit_with_a_blocked_producer_and_consumer, -1},
    {"P03_exit_with_threads_inside_alloc", exit_with_threads_inside_alloc, -1},
    {"P03_late_calls_return_closed", late_calls_return_closed, NOTICES(EDGE_EXIT_IGNORED)},
    {"P03_a_thread_that_ends_late_makes_no_driver_call", a_thread_that_ends_late_makes_no_driver_call, -1},
    {"P04_a_forked_child_is_refused_and_the_parent_goes_on", a_forked_child_is_refused_and_the_parent_goes_on,
        NOTICES(EDGE_FORK_IGNORED)},
    {"P04_a_child_of_a_process_without_devices_is_free", a_child_of_a_process_without_devices_is_free, -1},
    {"P05_after_a_reset_old_pools_are_lost_and_a_new_one_works",
        after_a_reset_old_pools_are_lost_and_a_new_one_works, NOTICES(EDGE_LOST_IGNORED)},
    {"P05_one_failure_does_not_lose_a_device", one_failure_does_not_lose_a_device, -1},
    {"A07_blocks_of_threads_that_ended_serve_others", blocks_of_threads_that_ended_serve_others,
        NOTICES(EDGE_THREAD_IGNORED)},
};

/* The child: says on descriptor 3 when it begins to exit. */
static int be_child(const char *name, const char *fault)
{
#ifdef WEIR_FAULTS
    wr_fault_on = atoi(fault);
#endif
    alarm(atoi(fault) >= 0 ? 5 : 20); /* a fault may leave it hanging */
    for (size_t i = 0; i < WR_ARRAY_LEN(scenarios); i++)
        if (strcmp(scenarios[i].name, name) == 0) scenarios[i].run();
    uint64_t now = wr_device_wall_ns();
    if (write(3, &now, sizeof now) != sizeof now) return 2;
    exit(0);
}

/* Its wait status, and how long it took to exit. */
static int run_child(const char *name, int fault, uint64_t *exit_ns)
{
    int ends[2], status;
    char number[16];
    snprintf(number, sizeof number, "%d", fault);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        if (fault >= 0) dup2(nowhere, 2); /* it is meant to complain */
        dup2(ends[1], 3);
        execl("/proc/self/exe", "test_edges", name, number, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    uint64_t began = 0, now = wr_device_wall_ns();
    ssize_t n = read(ends[0], &began, sizeof began);
    close(ends[0]);
    *exit_ns = n == sizeof began ? now - began : UINT64_MAX;
    return status;
}

static void test_scenario(void **state)
{
    const struct scenario *s = *state;
    uint64_t exit_ns;
    assert_int_equal(run_child(s->name, -1, &exit_ns), 0);
    assert_true(exit_ns < exit_limit_ns);
#ifdef WEIR_FAULTS
    if (s->fault >= 0) assert_int_not_equal(run_child(s->name, s->fault, &exit_ns), 0);
#endif
}

int main(int argc, char **argv)
{
    if (argc == 3) return be_child(argv[1], argv[2]);
    struct CMUnitTest tests[WR_ARRAY_LEN(scenarios)];
    char names[WR_ARRAY_LEN(scenarios)][96];
    for (size_t i = 0; i < WR_ARRAY_LEN(scenarios); i++) {
        snprintf(names[i], sizeof names[i], "test_%s", scenarios[i].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_scenario, .initial_state = (void *)&scenarios[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
