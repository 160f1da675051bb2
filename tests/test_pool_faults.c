/* SPDX-License-Identifier: Apache-2.0
 *
 * The planted faults of the allocator: each rule of the design that base.h can switch off has a scenario here
 * that is silent with the rule on, and reported by the oracle with it off. A fault without a scenario fails
 * the test.
 *
 * A scenario asks for memory that the rule keeps from it, and uses what it gets all the same. Its pool is as
 * large as the one block X, so that whoever gets memory gets X.
 */
#include "pool_world.h"

#include <stdio.h>
#include <string.h>

#define X_BYTES (8 * WR_MIB)
#define MS      ((uint64_t)1000000)

/* Allocates X's bytes on `s` if it can, and writes them. */
static void use_if_given(struct wr_world *w, size_t bytes, weir_stream s)
{
    weir_dptr x = wr_world_try_alloc(w, bytes, s);
    if (x == 0) return;
    wr_world_write(w, s, x, bytes, MS);
    wr_world_free(w, x, s);
}

/* X is freed on its home stream, whose write of it has yet to run. */
static void free_under_own_write(struct wr_world *w, weir_stream home)
{
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_stall(w, home);
    wr_world_write(w, home, x, X_BYTES, MS);
    wr_world_free(w, x, home);
}

static void reuse_on_another_stream(struct wr_world *w)
{
    free_under_own_write(w, wr_world_stream(w));
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

/* A block goes to the front cache where its size repeats. */
static void reuse_of_the_front_cache(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w);
    wr_world_free(w, wr_world_alloc(w, X_BYTES, home), home);
    free_under_own_write(w, home);
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

/* The tick of `home` has its number and is not recorded yet, while another stream asks. */
static struct wr_world *world_of_hook;
static weir_stream stream_of_hook;

static void ask_before_record(struct wr_fence *f)
{
    (void)f;
    wr_fence_before_record = NULL;
    use_if_given(world_of_hook, X_BYTES, stream_of_hook);
}

static void reuse_before_record(struct wr_world *w)
{
    world_of_hook = w;
    stream_of_hook = wr_world_stream(w);
    free_under_own_write(w, wr_world_stream(w));
    wr_fence_before_record = ask_before_record;
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    assert_null(wr_fence_before_record);
}

static void reuse_under_a_declared_use(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_stall(w, reader);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_touch(w, x, reader);
    wr_world_free(w, x, home);
    use_if_given(w, X_BYTES, home);
}

static void reuse_under_a_second_use(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_touch(w, x, reader);
    wr_sim_drain(w->sim);
    wr_world_stall(w, reader);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_touch(w, x, reader);
    wr_world_free(w, x, home);
    use_if_given(w, X_BYTES, home);
}

static void reuse_under_the_freeing_stream(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), last = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_stall(w, last);
    wr_world_read(w, last, x, X_BYTES, MS);
    wr_world_free(w, x, last);
    use_if_given(w, X_BYTES, home);
}

static void reuse_under_one_of_two_uses(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), slow = wr_world_stream(w), quick = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_stall(w, slow);
    wr_world_read(w, slow, x, X_BYTES, MS);
    wr_world_touch(w, x, slow);
    wr_world_read(w, quick, x, X_BYTES, MS);
    wr_world_touch(w, x, quick);
    wr_sim_drain(w->sim);
    wr_world_free(w, x, home);
    use_if_given(w, X_BYTES, home);
}

/* The left half is freed and its stream's tick has passed; the right half is freed later, and joins it. */
static void reuse_of_a_joint_piece(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w);
    weir_dptr left = wr_world_alloc(w, X_BYTES / 2, home), right = wr_world_alloc(w, X_BYTES / 2, home);
    wr_world_free(w, left, home);
    wr_world_touch(w, right, home); /* a tick */
    wr_sim_drain(w->sim);
    wr_world_stall(w, home);
    wr_world_write(w, home, right, X_BYTES / 2, MS);
    wr_world_free(w, right, home);
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

static void trim_under_a_write(struct wr_world *w)
{
    free_under_own_write(w, wr_world_stream(w));
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
}

static void reuse_under_the_same_handle(struct wr_world *w)
{
    weir_stream first = wr_world_stream(w);
    free_under_own_write(w, first);
    wr_world_destroy_stream(w, first);
    weir_stream second = wr_world_stream(w);
    assert_ptr_equal(second, first);
    use_if_given(w, X_BYTES, second);
}

static void reuse_after_retire(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w);
    free_under_own_write(w, home);
    assert_int_equal(weir_stream_retire(w->pool, home), WEIR_OK);
    wr_world_destroy_stream(w, home);
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

/* ---- policies ---------------------------------------------------------------------------------------- */

static void use_if_given_with(struct wr_world *w, size_t bytes, weir_stream s, weir_reuse reuse)
{
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = reuse};
    weir_dptr x = 0;
    weir_status st = weir_alloc_with(w->pool, bytes, s, &o, &x);
    assert_true(st == WEIR_OK || st == WEIR_NOT_YET);
    if (st != WEIR_OK) return;
    wr_world_write(w, s, x, bytes, MS);
    wr_world_free(w, x, s);
}

/* A reader that nobody declared (A06). */
static void reuse_of_an_owners_block(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = WEIR_REUSE_OWNER};
    weir_dptr x = 0;
    assert_int_equal(weir_alloc_with(w->pool, X_BYTES, home, &o, &x), WEIR_OK);
    wr_world_stall(w, reader);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_free(w, x, home);
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

/* The context's fence has come further than the home stream's numbers. */
static void reuse_of_what_was_freed_before_the_owner_came(struct wr_world *w)
{
    weir_stream other = wr_world_stream(w), home = wr_world_stream(w);
    struct wr_mark mark;
    assert_int_equal(wr_pool_mark(w->pool, home, &mark), WEIR_OK);
    while (atomic_load(&w->pool->context.done) <= mark.number + 1) {
        use_if_given_with(w, 2 * WR_MIB, other, WEIR_REUSE_OWNER);
        wr_sim_drain(w->sim);
        assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
        assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    }
    weir_dptr x = wr_world_alloc(w, X_BYTES - 2 * WR_MIB, home);
    wr_world_stall(w, home);
    wr_world_write(w, home, x, X_BYTES - 2 * WR_MIB, MS);
    wr_world_free(w, x, home);
    use_if_given_with(w, 512, home, WEIR_REUSE_OWNER);
    use_if_given(w, X_BYTES - 2 * WR_MIB, wr_world_stream(w));
}

static void device_wait_on_another_stream(struct wr_world *w)
{
    free_under_own_write(w, wr_world_stream(w));
    use_if_given_with(w, X_BYTES, wr_world_stream(w), WEIR_REUSE_DEVICE_WAIT);
}

static void device_wait_for_two_users(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), readers[2] = {wr_world_stream(w), wr_world_stream(w)};
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    for (int i = 0; i < 2; i++) {
        wr_world_stall(w, readers[i]);
        wr_world_read(w, readers[i], x, X_BYTES, MS);
        wr_world_touch(w, x, readers[i]);
    }
    wr_world_free(w, x, home);
    use_if_given_with(w, X_BYTES, home, WEIR_REUSE_DEVICE_WAIT);
}

/* Home has passed its free long ago, and then waits for the reader; what it leaves of X has not passed. */
static void reuse_of_what_a_device_wait_left(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    struct wr_mark mark;
    wr_world_stall(w, reader);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_touch(w, x, reader);
    wr_world_free(w, x, home);
    assert_int_equal(wr_pool_mark(w->pool, home, &mark), WEIR_OK);
    wr_sim_drain(w->sim);
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    weir_alloc_options o = {.struct_size = sizeof o, .reuse = WEIR_REUSE_DEVICE_WAIT};
    assert_int_equal(weir_alloc_with(w->pool, X_BYTES / 2, home, &o, &x), WEIR_OK);
    use_if_given(w, X_BYTES / 2, wr_world_stream(w));
    wr_world_free(w, x, home);
}

static void reuse_of_pinned_memory(struct wr_world *w)
{
    weir_stream s = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, WR_MIB, s);
    void *host, *again;
    assert_int_equal(weir_host_alloc(w->pool, WR_MIB, &host), WEIR_OK);
    wr_world_stall(w, s);
    assert_int_equal(w->device->ops->copy(w->device, WR_COPY_H2D, x, (uintptr_t)host, WR_MIB, s), WEIR_OK);
    assert_int_equal(weir_host_free(w->pool, host, s), WEIR_OK);
    assert_int_equal(weir_host_alloc(w->pool, WR_MIB, &again), WEIR_OK);
    wr_sim_host_access(w->sim, again, WR_MIB, true);
    assert_int_equal(weir_host_free(w->pool, again, WEIR_NO_STREAM), WEIR_OK);
    wr_world_free(w, x, s);
}

/* Home splits what it has freed, and another stream takes the rest. */
static void reuse_of_what_a_split_left(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w);
    free_under_own_write(w, home);
    weir_dptr part = wr_world_alloc(w, X_BYTES / 4, home);
    use_if_given(w, X_BYTES / 4 * 3, wr_world_stream(w));
    wr_world_free(w, part, home);
}

/* The pages of small blocks, freed under their writes, join the large range; another stream takes the rest. */
static void reuse_of_exchanged_pages(struct wr_world *w)
{
    enum { BLOCKS = 64 }; /* small ones */
    weir_stream home = wr_world_stream(w);
    weir_dptr small[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        small[i] = wr_world_alloc(w, X_BYTES / BLOCKS, home);
    wr_world_stall(w, home);
    for (int i = 0; i < BLOCKS; i++) {
        wr_world_write(w, home, small[i], X_BYTES / BLOCKS, MS);
        wr_world_free(w, small[i], home);
    }
    weir_dptr part = wr_world_alloc(w, X_BYTES / 4, home);
    use_if_given(w, X_BYTES / 4 * 3, wr_world_stream(w));
    wr_world_free(w, part, home);
}

/* The reader has passed when X is freed; home's last write has not. */
static void reuse_under_home_after_a_passed_use(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_touch(w, x, reader);
    wr_sim_drain(w->sim);
    wr_world_stall(w, home);
    wr_world_join(w, reader, home);
    wr_world_write(w, home, x, X_BYTES, MS);
    wr_world_free(w, x, home);
    assert_int_equal(weir_trim(w->pool, X_BYTES, NULL), WEIR_OK); /* polls the reader's fence */
    use_if_given(w, X_BYTES, wr_world_stream(w));
}

/* The record of home's tick fails: its event, never recorded, reads as complete. */
static void trim_with_a_failing_record(struct wr_world *w)
{
    free_under_own_write(w, wr_world_stream(w));
    wr_sim_fail_nth(w->sim, 2, WEIR_DRIVER_ERROR); /* the first creates the event */
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    wr_sim_fail_nth(w->sim, 0, WEIR_OK);
}

static void wait_for_the_later_of_two_marks(struct wr_world *w)
{
    weir_stream a = wr_world_stream(w), b = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, a);
    struct wr_mark first, second;
    wr_world_spin(w, a, MS);
    assert_int_equal(wr_pool_mark(w->pool, a, &first), WEIR_OK);
    wr_world_write(w, a, x, X_BYTES, MS);
    assert_int_equal(wr_pool_mark(w->pool, a, &second), WEIR_OK);
    assert_int_equal(wr_mark_wait(second, b), WEIR_OK);
    wr_world_write(w, b, x, X_BYTES, MS);
    wr_world_free(w, x, b);
}

static void reuse_under_a_retired_reader(struct wr_world *w)
{
    weir_stream home = wr_world_stream(w), reader = wr_world_stream(w);
    weir_dptr x = wr_world_alloc(w, X_BYTES, home);
    wr_world_stall(w, reader);
    wr_world_read(w, reader, x, X_BYTES, MS);
    wr_world_free(w, x, reader);
    assert_int_equal(weir_stream_retire(w->pool, reader), WEIR_OK);
    use_if_given(w, X_BYTES, home);
}

/* X is a graph's: captured on `a`, and written again by a launch (on another stream, as launches are) while
 * the next owner writes it. */
static void reuse_of_a_graphs_memory(struct wr_world *w)
{
    weir_stream a = wr_world_stream(w), launch = wr_world_stream(w);
    uint64_t id;
    wr_sim_set_capturing(w->device, a, true);
    weir_dptr x = wr_world_alloc(w, X_BYTES, a);
    assert_int_equal(weir_graph_id(w->pool, a, &id), WEIR_OK);
    wr_world_free(w, x, a);
    wr_sim_set_capturing(w->device, a, false);
    weir_stream next = wr_world_stream(w);
    weir_dptr y;
    if (weir_alloc(w->pool, X_BYTES, next, &y) == WEIR_OK) { /* to wait would not help: OUT_OF_MEMORY */
        wr_world_write(w, next, y, X_BYTES, MS);
        wr_world_free(w, y, next);
    }
    wr_world_write(w, launch, x, X_BYTES, MS);
    wr_sim_drain(w->sim);
    assert_int_equal(weir_graph_release(w->pool, id), WEIR_OK);
}

static void break_a_capture(struct wr_world *w)
{
    weir_stream a = wr_world_stream(w), b = wr_world_stream(w);
    uint64_t id;
    wr_world_free(w, wr_world_alloc(w, X_BYTES, b), b);
    wr_sim_drain(w->sim);
    wr_sim_set_capturing(w->device, a, true);
    assert_int_equal(weir_graph_id(w->pool, a, &id), WEIR_OK);
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK);
    wr_sim_set_capturing(w->device, a, false);
    assert_int_equal(weir_graph_release(w->pool, id), WEIR_OK);
    assert_int_equal(weir_trim(w->pool, 0, NULL), WEIR_OK); /* what was refused goes now */
}

/* The queue's faults, and those of the ring and the seats over it, are caught by their own tests. */
static void leave_to_the_queue(struct wr_world *w)
{
    (void)w;
}

/* Those of the transfer engine by test_copy_faults. */
static void leave_to_the_engine(struct wr_world *w)
{
    (void)w;
}

/* And those of a process's edges by test_edges: each takes a process. */
static void leave_to_the_edges(struct wr_world *w)
{
    (void)w;
}

typedef void (*scenario)(struct wr_world *w);

static const scenario scenarios[WR_FAULT_COUNT] = {
    [WR_FAULT_TICK_BEFORE_FREE] = reuse_on_another_stream,
    [WR_FAULT_UNRECORDED_IS_DONE] = reuse_before_record,
    [WR_FAULT_POLL_SKIPS_QUERY] = reuse_on_another_stream,
    [WR_FAULT_TOUCH_FORGOTTEN] = reuse_under_a_declared_use,
    [WR_FAULT_TOUCH_KEEPS_FIRST] = reuse_under_a_second_use,
    [WR_FAULT_FREE_FORGETS_STREAM] = reuse_under_the_freeing_stream,
    [WR_FAULT_REAP_ONE_USE] = reuse_under_one_of_two_uses,
    [WR_FAULT_MERGE_KEEPS_OLD_FENCE] = reuse_of_a_joint_piece,
    [WR_FAULT_STEAL_UNPASSED] = reuse_on_another_stream,
    [WR_FAULT_GIVE_BACK_UNPASSED] = reuse_on_another_stream,
    [WR_FAULT_TRIM_UNPASSED] = trim_under_a_write,
    [WR_FAULT_SPLIT_DROPS_STAMP] = reuse_of_what_a_split_left,
    [WR_FAULT_FLUSH_DROPS_STAMP] = reuse_of_the_front_cache,
    [WR_FAULT_EXCHANGE_DROPS_STAMP] = reuse_of_exchanged_pages,
    [WR_FAULT_SETTLE_DROPS_STAMP] = reuse_under_home_after_a_passed_use,
    [WR_FAULT_TOUCH_STAMPS_EARLY] = reuse_under_a_declared_use,
    [WR_FAULT_FAILED_TICK_COUNTS] = trim_with_a_failing_record,
    [WR_FAULT_WAIT_TAKES_OLDER_TICK] = wait_for_the_later_of_two_marks,
    [WR_FAULT_HEAP_ENDS_UNPASSED] = reuse_under_a_retired_reader,
    [WR_FAULT_HOST_FREE_STAMPS_EARLY] = reuse_of_pinned_memory,
    [WR_FAULT_PINNED_REAPED_UNPASSED] = reuse_of_pinned_memory,
    [WR_FAULT_HANDLE_IS_IDENTITY] = reuse_under_the_same_handle,
    [WR_FAULT_RETIRE_SKIPS_TICK] = reuse_after_retire,
    [WR_FAULT_OWNER_FORGOTTEN] = reuse_of_an_owners_block,
    [WR_FAULT_OWNER_KEEPS_STAMPS] = reuse_of_what_was_freed_before_the_owner_came,
    [WR_FAULT_DEVICE_WAIT_FORGOTTEN] = device_wait_on_another_stream,
    [WR_FAULT_WAIT_DROPS_ALL_USES] = device_wait_for_two_users,
    [WR_FAULT_WAIT_KEEPS_STAMP] = reuse_of_what_a_device_wait_left,
    [WR_FAULT_HOST_FREE_SKIPS_FENCE] = reuse_of_pinned_memory,
    [WR_FAULT_QUEUE_ACQUIRE_SKIPS_WAIT] = leave_to_the_queue,
    [WR_FAULT_QUEUE_COMMIT_SKIPS_WAIT] = leave_to_the_queue,
    [WR_FAULT_QUEUE_REUSES_PINNED] = leave_to_the_queue,
    [WR_FAULT_QUEUE_RELEASE_FORGETS] = leave_to_the_queue,
    [WR_FAULT_QUEUE_RELEASE_FORGETS_OWN] = leave_to_the_queue,
    [WR_FAULT_QUEUE_CANCEL_TAKES_STAGING] = leave_to_the_queue,
    [WR_FAULT_QUEUE_BROADCAST_KEEPS_FIRST] = leave_to_the_queue,
    [WR_FAULT_QUEUE_SKIPS_AFTER] = leave_to_the_queue,
    [WR_FAULT_QUEUE_BORROWED_SKIPS_WAIT] = leave_to_the_queue,
    [WR_FAULT_QUEUE_HOP_SKIPS_WAIT] = leave_to_the_queue,
    [WR_FAULT_RING_WRITES_UNDER_READER] = leave_to_the_queue,
    [WR_FAULT_RING_GATHERS_EARLY] = leave_to_the_queue,
    [WR_FAULT_SEAT_SKIPS_READERS] = leave_to_the_queue,
    [WR_FAULT_SEAT_SKIPS_READY] = leave_to_the_queue,
    [WR_FAULT_SEAT_SKIPS_MARK] = leave_to_the_queue,
    [WR_FAULT_COPY_SKIPS_AFTER] = leave_to_the_engine,
    [WR_FAULT_COPY_JOIN_SKIPS_WAIT] = leave_to_the_engine,
    [WR_FAULT_COPY_REUSES_SLAB] = leave_to_the_engine,
    [WR_FAULT_COPY_LANDS_EARLY] = leave_to_the_engine,
    [WR_FAULT_COPY_QUEUES_BEHIND_BLOCKED] = leave_to_the_engine,
    [WR_FAULT_COPY_TRUSTS_PEERS] = leave_to_the_engine,
    [WR_FAULT_CAPTURE_UNHEEDED] = break_a_capture,
    [WR_FAULT_CAPTURE_MEMORY_REUSED] = reuse_of_a_graphs_memory,
    [WR_FAULT_EDGE_EXIT_IGNORED] = leave_to_the_edges,
    [WR_FAULT_EDGE_FORK_IGNORED] = leave_to_the_edges,
    [WR_FAULT_EDGE_LOST_IGNORED] = leave_to_the_edges,
    [WR_FAULT_EDGE_THREAD_IGNORED] = leave_to_the_edges,
};

static const char *const fault_names[WR_FAULT_COUNT] = {
#define FAULT_NAME(name, text) #name,
    WR_FAULT_MAP(FAULT_NAME)
#undef FAULT_NAME
};

/* Lets all end, and the host learn of it: what a fault has let through must not be reported again by the
 * close. */
static void see_all_end(struct wr_world *w)
{
    const struct wr_device_ops *ops = w->device->ops;
    wr_event e;
    bool done = false;
    while (w->n_gates > 0)
        wr_world_let_go(w, w->gates[0]);
    wr_sim_drain(w->sim);
    assert_int_equal(ops->event_create(w->device, &e), WEIR_OK);
    assert_int_equal(ops->event_record_context(w->device, e), WEIR_OK);
    assert_int_equal(ops->event_query(w->device, e, &done), WEIR_OK);
    assert_true(done);
    assert_int_equal(ops->event_destroy(w->device, e), WEIR_OK);
}

static unsigned reports_of(scenario run, int fault)
{
    struct wr_world w;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = X_BYTES, .reuse_handles = true});
    wr_fault_on = fault;
    run(&w);
    unsigned n = wr_sim_reports(w.sim);
    wr_fault_on = -1;
    see_all_end(&w);
    wr_sim_reports_clear(w.sim);
    wr_world_close(&w);
    return n;
}

static void test_every_scenario_is_silent_without_its_fault(void **state)
{
    (void)state;
    for (int fault = 0; fault < WR_FAULT_COUNT; fault++)
        if (scenarios[fault] != NULL && reports_of(scenarios[fault], -1) != 0)
            fail_msg("%s: a report with the rule on", fault_names[fault]);
}

static void test_every_fault_is_reported(void **state)
{
    (void)state;
    for (int fault = 0; fault < WR_FAULT_COUNT; fault++) {
        if (scenarios[fault] == NULL) fail_msg("%s has no scenario", fault_names[fault]);
        bool of_queue = strncmp(fault_names[fault], "QUEUE_", strlen("QUEUE_")) == 0 ||
                        strncmp(fault_names[fault], "RING_", strlen("RING_")) == 0 ||
                        strncmp(fault_names[fault], "SEAT_", strlen("SEAT_")) == 0;
        bool of_edges = strncmp(fault_names[fault], "EDGE_", strlen("EDGE_")) == 0;
        bool of_engine = strncmp(fault_names[fault], "COPY_", strlen("COPY_")) == 0;
        bool is_ours = !of_queue && !of_edges && !of_engine;
        assert_int_equal(of_queue, scenarios[fault] == leave_to_the_queue);
        assert_int_equal(of_edges, scenarios[fault] == leave_to_the_edges);
        assert_int_equal(of_engine, scenarios[fault] == leave_to_the_engine);
        if (is_ours && reports_of(scenarios[fault], fault) == 0)
            fail_msg("%s: not noticed", fault_names[fault]);
    }
}

/* ---- A05 --------------------------------------------------------------------------------------------- */

struct held_record {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool reached, released;
};

static struct held_record held = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void hold_record(struct wr_fence *f)
{
    (void)f;
    pthread_mutex_lock(&held.mutex);
    held.reached = true;
    pthread_cond_broadcast(&held.changed);
    while (!held.released)
        pthread_cond_wait(&held.changed, &held.mutex);
    pthread_mutex_unlock(&held.mutex);
}

static void *tick_by_trim(void *pool)
{
    size_t freed = 0;
    assert_int_equal(weir_trim(pool, 0, &freed), WEIR_OK);
    return NULL;
}

/* One thread has published X and is about to record; the event it took reads as complete, from its last
 * round. */
static void test_A05_a_fence_that_is_not_recorded_yet_is_pending(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t thread;
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = X_BYTES});
    weir_stream a = wr_world_stream(&w), b = wr_world_stream(&w);
    weir_dptr x = wr_world_alloc(&w, X_BYTES, a);
    wr_world_touch(&w, x, a);
    wr_sim_drain(w.sim);
    wr_world_free(&w, x, a);
    assert_int_equal(weir_trim(w.pool, 0, NULL), WEIR_OK); /* the event goes back to the pool's stack */
    free_under_own_write(&w, a);

    held.reached = held.released = false;
    wr_fence_before_record = hold_record;
    assert_int_equal(pthread_create(&thread, NULL, tick_by_trim, w.pool), 0);
    pthread_mutex_lock(&held.mutex);
    while (!held.reached)
        pthread_cond_wait(&held.changed, &held.mutex);
    pthread_mutex_unlock(&held.mutex);
    assert_int_equal(wr_world_try_alloc(&w, X_BYTES, b), 0);

    pthread_mutex_lock(&held.mutex);
    held.released = true;
    pthread_cond_broadcast(&held.changed);
    pthread_mutex_unlock(&held.mutex);
    pthread_join(thread, NULL);
    wr_fence_before_record = NULL;
    assert_int_equal(wr_world_try_alloc(&w, X_BYTES, b), 0);
    wr_world_let_go(&w, w.gates[0]);
    use_if_given(&w, X_BYTES, b);
    wr_world_close(&w);
}

struct rounds_user {
    struct wr_world *world;
    weir_stream stream;
    unsigned served;
};

static void *go_rounds(void *arg)
{
    enum { ROUNDS = 100000 };
    struct rounds_user *u = arg;
    for (int i = 0; i < ROUNDS; i++) {
        weir_dptr x;
        weir_status st = weir_alloc(u->world->pool, X_BYTES, u->stream, &x);
        assert_true(st == WEIR_OK || st == WEIR_NOT_YET || st == WEIR_OUT_OF_MEMORY);
        if (st != WEIR_OK) continue; /* the other one has it, or has not passed it */
        wr_world_write(u->world, u->stream, x, X_BYTES, MS);
        wr_world_free(u->world, x, u->stream);
        u->served++;
    }
    return NULL;
}

/* Two threads take one block from each other; an adversary decides how late each kernel ends. */
static void test_A05_two_threads_fight_for_a_block(void **state)
{
    (void)state;
    struct wr_world w;
    pthread_t threads[2];
    wr_world_open(&w, &(struct wr_world_options){.limit_bytes = X_BYTES, .adversary_seed = 5});
    struct rounds_user users[2];
    for (int i = 0; i < 2; i++) {
        users[i] = (struct rounds_user){.world = &w, .stream = wr_world_stream(&w)};
        assert_int_equal(pthread_create(&threads[i], NULL, go_rounds, &users[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_true(users[i].served > 0);
    }
    wr_world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scenario_is_silent_without_its_fault),
        cmocka_unit_test(test_every_fault_is_reported),
        cmocka_unit_test(test_A05_a_fence_that_is_not_recorded_yet_is_pending),
        cmocka_unit_test(test_A05_two_threads_fight_for_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
