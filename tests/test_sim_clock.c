/* SPDX-License-Identifier: Apache-2.0
 *
 * When simulated ops run: the virtual clock, sleepers, the adversary, the wall clock.
 */
#include "sim_world.h"

/* ---- the virtual clock ------------------------------------------------------------------------------- */

static void test_virtual_time_stands_still_until_moved(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    uint64_t before = f.ops->now_ns(f.d);
    spin(&f, s, 10 * MS);
    wr_event e = record(f.d, s);
    assert_false(is_done(f.d, e));
    assert_int_equal(f.ops->now_ns(f.d), before);
    wr_sim_advance(f.world, 10 * MS - 1);
    assert_false(is_done(f.d, e));
    wr_sim_advance(f.world, 1);
    assert_true(is_done(f.d, e));
    assert_int_equal(f.ops->now_ns(f.d), before + 10 * MS);
    drop(f.d, s, e);
    close_clean(&f);
}

static void test_kernels_run_one_after_the_other_on_a_stream_and_side_by_side_on_two(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    spin(&f, a, 3 * MS);
    spin(&f, a, 4 * MS);
    spin(&f, b, 5 * MS);
    wr_event ea = record(f.d, a), eb = record(f.d, b);
    assert_int_equal(finish_time(&f, eb), 5 * MS);
    assert_int_equal(finish_time(&f, ea), 7 * MS);
    drop(f.d, a, ea);
    drop(f.d, b, eb);
    close_clean(&f);
}

static void test_copies_take_latency_and_bytes_over_rate(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    upload(&f, s, 1200000); /* 12 GB/s: 100 us */
    wr_event e = record(f.d, s);
    assert_int_equal(finish_time(&f, e), 10000 + 100000);
    drop(f.d, s, e);
    close_clean(&f);
}

static void test_copies_of_one_direction_queue_and_of_two_overlap(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d), c = new_stream(f.d);
    uint64_t half = SLAB / 2;
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, f.slab, (uintptr_t)f.host, 120000, a), WEIR_OK);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, f.slab + half, (uintptr_t)f.host, 120000, b), WEIR_OK);
    assert_int_equal(
        f.ops->copy(f.d, WR_COPY_D2H, (uintptr_t)f.host + half, f.slab + half + MIB, 120000, c), WEIR_OK);
    wr_event ea = record(f.d, a), eb = record(f.d, b), ec = record(f.d, c);
    assert_int_equal(finish_time(&f, ea), 20000);
    assert_int_equal(finish_time(&f, ec), 20000);
    assert_false(is_done(f.d, eb));
    assert_int_equal(finish_time(&f, eb), 40000);
    drop(f.d, a, ea);
    drop(f.d, b, eb);
    drop(f.d, c, ec);
    close_clean(&f);
}

static void test_a_copy_behind_a_kernel_does_not_hold_the_engine(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    spin(&f, a, 50 * MS);
    upload(&f, a, 120000);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, f.slab + MIB, (uintptr_t)f.host, 120000, b), WEIR_OK);
    wr_event ea = record(f.d, a), eb = record(f.d, b);
    assert_int_equal(finish_time(&f, eb), 20000);
    assert_int_equal(finish_time(&f, ea), 50 * MS + 20000);
    drop(f.d, a, ea);
    drop(f.d, b, eb);
    close_clean(&f);
}

static void test_a_pageable_copy_makes_the_caller_wait_in_stream_order(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    unsigned char source[3100];
    memset(source, 7, sizeof source);
    spin(&f, s, 2 * MS);
    assert_int_equal(f.ops->copy(f.d, WR_COPY_H2D, f.slab, (uintptr_t)source, sizeof source, s), WEIR_OK);
    assert_int_equal(f.ops->now_ns(f.d), 2 * MS + 10000 + 1000); /* 3.1 GB/s */
    assert_int_equal(peek(&f, 3099), 7);
    struct wr_sim_counts counts;
    wr_sim_get_counts(f.world, &counts);
    assert_int_equal(counts.host_syncs, 1);
    drop(f.d, s, NULL);
    close_clean(&f);
}

static void test_drain_runs_all_but_what_is_behind_a_gate(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    struct wr_sim_gate *gate;
    assert_int_equal(wr_sim_stall(f.d, a, &gate), WEIR_OK);
    fill(&f, a, 0, 100, 1);
    wr_event ea = record(f.d, a);
    assert_int_equal(f.ops->stream_wait(f.d, b, ea), WEIR_OK);
    spin(&f, b, MS);
    wr_event eb = record(f.d, b);
    wr_sim_drain(f.world);
    wr_sim_advance(f.world, 1000 * MS);
    assert_false(is_done(f.d, ea));
    assert_false(is_done(f.d, eb));
    assert_false(wr_sim_step(f.world));
    wr_sim_gate_open(gate);
    uint64_t opened = f.ops->now_ns(f.d);
    assert_true(finish_time(&f, ea) < opened + MS);
    assert_true(finish_time(&f, eb) >= opened + MS);
    assert_int_equal(peek(&f, 99), 1);
    drop(f.d, a, ea);
    drop(f.d, b, eb);
    close_clean(&f);
}

static void test_a_gate_may_be_opened_before_its_stream_comes_to_it(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream s = new_stream(f.d);
    struct wr_sim_gate *gate;
    spin(&f, s, MS);
    assert_int_equal(wr_sim_stall(f.d, s, &gate), WEIR_OK);
    wr_event e = record(f.d, s);
    wr_sim_gate_open(gate);
    assert_false(is_done(f.d, e));
    assert_int_equal(finish_time(&f, e), MS);
    drop(f.d, s, e);
    close_clean(&f);
}

/* One step leaves what ends at the same moment: the record finds it due, and the dead stream going under it.
 * Found by fuzz_pool. */
static void test_a_mark_of_the_device_may_be_taken_between_two_ends_of_one_moment(void **state)
{
    (void)state;
    struct fixture f = open_world();
    weir_stream second = new_stream(f.d), busy = new_stream(f.d), first = new_stream(f.d);
    wr_event e = new_event(f.d);
    spin(&f, first, MS);
    spin(&f, second, MS);
    spin(&f, busy, 2 * MS);
    drop(f.d, first, NULL);
    drop(f.d, second, NULL);
    assert_true(wr_sim_step(f.world));
    assert_int_equal(f.ops->event_record_context(f.d, e), WEIR_OK);
    assert_int_equal(finish_time(&f, e), 2 * MS);
    drop(f.d, busy, e);
    close_clean(&f);
}

static void test_a_world_may_end_with_a_gate_closed_and_work_behind_it(void **state)
{
    (void)state;
    struct wr_sim_options o = {.profile = wr_sim_profile_find("h200-pcie5")};
    struct wr_sim *world;
    struct wr_sim_gate *gate;
    assert_int_equal(wr_sim_open(&o, &world), WEIR_OK);
    struct wr_device *d = wr_sim_device(world, 0);
    assert_int_equal(wr_sim_stall(d, NULL, &gate), WEIR_OK);
    assert_int_equal(wr_kernels_spin(d, NULL, MS), WEIR_OK);
    assert_int_equal(wr_sim_close(world), 0);
}

/* ---- dozing ------------------------------------------------------------------------------------------ */

static void test_a_single_sleeper_moves_time_at_once(void **state)
{
    (void)state;
    struct fixture f = open_world();
    struct wr_lock lock;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    wr_lock_init(&lock, WR_RANK_POOL);
    wr_lock_take(&lock);
    f.ops->doze(f.d, &wake, &lock, 3 * MS);
    wr_lock_give(&lock);
    assert_int_equal(f.ops->now_ns(f.d), 3 * MS);
    wr_lock_fini(&lock);
    close_clean(&f);
}

/* A thread that dozes until `end_ns`, or until told. */
struct sleeper {
    struct fixture *f;
    struct wr_lock *lock;
    pthread_cond_t *wake;
    uint64_t end_ns;
    uint64_t woken_ns;
    const bool *told;
};

static void *doze_until(void *arg)
{
    struct sleeper *s = arg;
    wr_lock_take(s->lock);
    while (!*s->told && s->f->ops->now_ns(s->f->d) < s->end_ns)
        s->f->ops->doze(s->f->d, s->wake, s->lock, s->end_ns - s->f->ops->now_ns(s->f->d));
    s->woken_ns = s->f->ops->now_ns(s->f->d);
    wr_lock_give(s->lock);
    return NULL;
}

/* now_ns is no op, so it may be called with the lock held. */
static void test_time_jumps_to_the_earliest_end_once_all_sleepers_doze(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.sleepers = 2});
    struct wr_lock lock;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    wr_lock_init(&lock, WR_RANK_POOL);
    const bool never = false;
    struct sleeper sleepers[] = {
        {&f, &lock, &wake, 5 * MS, 0, &never}, {&f, &lock, &wake, 3 * MS, 0, &never}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, doze_until, &sleepers[i]), 0);
    pthread_join(threads[1], NULL);
    assert_int_equal(sleepers[1].woken_ns, 3 * MS);
    assert_int_equal(f.ops->now_ns(f.d), 3 * MS); /* one alone does not move time */
    struct sleeper again = {&f, &lock, &wake, 9 * MS, 0, &never};
    assert_int_equal(pthread_create(&threads[1], NULL, doze_until, &again), 0);
    pthread_join(threads[0], NULL);
    assert_int_equal(sleepers[0].woken_ns, 5 * MS);
    /* The second is alone now: this thread is the other one. */
    struct sleeper last = {&f, &lock, &wake, 9 * MS, 0, &never};
    doze_until(&last);
    pthread_join(threads[1], NULL);
    assert_int_equal(again.woken_ns, 9 * MS);
    wr_lock_fini(&lock);
    close_clean(&f);
}

static void test_a_signal_ends_a_doze_without_moving_time(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.sleepers = 2});
    struct wr_lock lock;
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    wr_lock_init(&lock, WR_RANK_POOL);
    bool told = false;
    struct sleeper s = {&f, &lock, &wake, 5 * MS, 0, &told};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, doze_until, &s), 0);
    wr_lock_take(&lock);
    told = true;
    pthread_cond_signal(&wake);
    wr_lock_give(&lock);
    pthread_join(thread, NULL);
    assert_int_equal(s.woken_ns, 0);
    wr_lock_fini(&lock);
    close_clean(&f);
}

/* Two threads hand a token to and fro; each passing takes the one who has it 1 ms of dozing. Whatever the
 * machine's scheduler does, 2 x 50 passings take 100 ms. */
struct relay {
    struct fixture *f;
    struct wr_lock lock;
    pthread_cond_t passed;
    unsigned turn;
};

struct runner {
    struct relay *relay;
    unsigned number;
};

static void *run_relay(void *arg)
{
    struct runner *me = arg;
    struct relay *r = me->relay;
    struct wr_device *d = r->f->d;
    wr_lock_take(&r->lock);
    for (int round = 0; round < 50; round++) {
        while (r->turn % 2 != me->number)
            d->ops->doze(d, &r->passed, &r->lock, 1000 * MS);
        uint64_t end = d->ops->now_ns(d) + MS;
        while (d->ops->now_ns(d) < end)
            d->ops->doze(d, &r->passed, &r->lock, end - d->ops->now_ns(d));
        r->turn++;
        pthread_cond_broadcast(&r->passed);
    }
    /* Stays asleep for the other one's sake, until that one is through. */
    while (r->turn < 100)
        d->ops->doze(d, &r->passed, &r->lock, 1000 * MS);
    wr_lock_give(&r->lock);
    return NULL;
}

static void test_time_among_sleepers_does_not_depend_on_the_machine(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.sleepers = 2});
    struct relay relay = {.f = &f, .passed = PTHREAD_COND_INITIALIZER};
    wr_lock_init(&relay.lock, WR_RANK_POOL);
    struct runner runners[] = {{&relay, 0}, {&relay, 1}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_relay, &runners[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(f.ops->now_ns(f.d), 100 * MS);
    wr_lock_fini(&relay.lock);
    close_clean(&f);
}

/* ---- the adversary ----------------------------------------------------------------------------------- */

/* Queues three fills of one byte on two streams without any order between them; which write is last depends
 * on the scheduler alone. Returns the byte, and checks that each stream kept its own order. */
static unsigned char run_contest(uint64_t seed)
{
    struct fixture f = open_world_with((struct wr_sim_options){.adversary_seed = seed});
    weir_stream a = new_stream(f.d), b = new_stream(f.d);
    fill(&f, a, 0, 1, 1);
    fill(&f, a, 0, 1, 2);
    fill(&f, b, 0, 1, 3);
    wr_sim_drain(f.world);
    unsigned char last = peek(&f, 0);
    assert_int_not_equal(last, 1); /* the second fill of a is after it */
    assert_true(wr_sim_reports(f.world) >= 1);
    drop(f.d, a, NULL);
    drop(f.d, b, NULL);
    close_world(&f);
    return last;
}

static void test_an_adversary_finds_every_legal_order_and_repeats_it_for_a_seed(void **state)
{
    (void)state;
    unsigned seen[4] = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        unsigned char last = run_contest(seed);
        assert_int_equal(run_contest(seed), last);
        seen[last]++;
    }
    assert_int_equal(seen[1], 0);
    assert_true(seen[2] > 0 && seen[3] > 0);
}

static void test_an_adversary_keeps_waits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct fixture f = open_world_with((struct wr_sim_options){.adversary_seed = seed});
        weir_stream a = new_stream(f.d), b = new_stream(f.d);
        fill(&f, a, 0, 1, 1);
        wr_event e = record(f.d, a);
        assert_int_equal(f.ops->stream_wait(f.d, b, e), WEIR_OK);
        fill(&f, b, 0, 1, 2);
        wr_event eb = record(f.d, b);
        while (!is_done(f.d, eb))
            wr_sim_step(f.world);
        assert_int_equal(peek(&f, 0), 2);
        drop(f.d, a, e);
        drop(f.d, b, eb);
        close_clean(&f);
    }
}

static void test_queries_alone_let_an_adversary_get_on(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.adversary_seed = 5});
    weir_stream s = new_stream(f.d);
    spin(&f, s, 1000 * MS);
    wr_event e = record(f.d, s);
    int queries = 0;
    while (!is_done(f.d, e))
        assert_true(++queries < 1000);
    drop(f.d, s, e);
    close_clean(&f);
}

/* ---- the wall clock ---------------------------------------------------------------------------------- */

static void test_on_the_wall_clock_work_ends_by_itself(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.wall_clock = true});
    weir_stream s = new_stream(f.d);
    uint64_t start = f.ops->now_ns(f.d);
    memset(f.host, 9, SLAB);
    spin(&f, s, 5 * MS);
    upload(&f, s, SLAB);
    wr_event e = record(f.d, s);
    assert_false(is_done(f.d, e));
    while (!is_done(f.d, e))
        sched_yield();
    assert_true(f.ops->now_ns(f.d) - start >= 5 * MS + SLAB / 12);
    assert_int_equal(peek(&f, SLAB - 1), 9);
    drop(f.d, s, e);
    close_clean(&f);
}

struct worker {
    struct fixture *f;
    uint64_t offset;
    size_t bytes;
    uint32_t tag;
    uint64_t counter;
    bool failed;
};

/* Fills and verifies its own piece of memory on its own streams, one waiting for the other. */
static void *fill_and_verify(void *arg)
{
    struct worker *w = arg;
    struct wr_device *d = w->f->d;
    weir_stream a, b;
    wr_event e;
    bool ok = d->ops->stream_create(d, &a) == WEIR_OK && d->ops->stream_create(d, &b) == WEIR_OK &&
              d->ops->event_create(d, &e) == WEIR_OK;
    uint64_t at = w->f->slab + w->offset, counter = w->f->slab + w->counter;
    for (uint32_t i = 0; ok && i < 50; i++) {
        ok = wr_kernels_fill(d, a, at, w->bytes, w->tag + i) == WEIR_OK &&
             d->ops->event_record(d, e, a) == WEIR_OK && d->ops->stream_wait(d, b, e) == WEIR_OK &&
             wr_kernels_verify(d, b, at, w->bytes, w->tag + i, counter) == WEIR_OK &&
             d->ops->event_record(d, e, b) == WEIR_OK && d->ops->stream_wait(d, a, e) == WEIR_OK;
        if (i % 10 == 9) ok = ok && d->ops->stream_sync(d, b) == WEIR_OK;
    }
    ok = ok && d->ops->stream_destroy(d, a) == WEIR_OK && d->ops->stream_destroy(d, b) == WEIR_OK &&
         d->ops->event_destroy(d, e) == WEIR_OK;
    w->failed = !ok;
    return NULL;
}

static void run_workers(struct wr_sim_options options)
{
    enum { N = 4 };
    struct fixture f = open_world_with(options);
    fill(&f, NULL, SLAB - 4096, 4096, 0);
    assert_int_equal(f.ops->stream_sync(f.d, NULL), WEIR_OK);
    struct worker workers[N];
    pthread_t threads[N];
    for (unsigned i = 0; i < N; i++) {
        workers[i] = (struct worker){
            .f = &f, .offset = i * 65536, .bytes = 65536, .tag = i * 1000, .counter = SLAB - 8 * (i + 1)};
        assert_int_equal(pthread_create(&threads[i], NULL, fill_and_verify, &workers[i]), 0);
    }
    for (unsigned i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_false(workers[i].failed);
        uint64_t mismatches = 1;
        wr_sim_drain(f.world);
        wr_sim_peek(f.world, f.slab + workers[i].counter, &mismatches, sizeof mismatches);
        assert_int_equal(mismatches, 0);
    }
    close_clean(&f);
}

static void test_threads_share_a_world_on_every_clock(void **state)
{
    (void)state;
    run_workers((struct wr_sim_options){.wall_clock = true});
    run_workers((struct wr_sim_options){0});
    run_workers((struct wr_sim_options){.adversary_seed = 11});
}

static void test_unmapping_waits_for_bytes_that_are_moving_and_is_reported(void **state)
{
    (void)state;
    struct fixture f = open_world_with((struct wr_sim_options){.wall_clock = true});
    wr_memory handle;
    uint64_t va = map_slab(f.d, &handle);
    for (int i = 0; i < 4; i++)
        assert_int_equal(f.ops->fill(f.d, va, 1, SLAB, NULL), WEIR_OK);
    unmap_slab(f.d, va, handle); /* the fills are skipped, done, or one is under way: none may crash */
    wr_sim_drain(f.world);
    assert_true(wr_sim_reports(f.world) >= 1);
    assert_non_null(strstr(wr_sim_report(f.world, 0), "the host unmaps"));
    close_world(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_virtual_time_stands_still_until_moved),
        cmocka_unit_test(test_kernels_run_one_after_the_other_on_a_stream_and_side_by_side_on_two),
        cmocka_unit_test(test_copies_take_latency_and_bytes_over_rate),
        cmocka_unit_test(test_copies_of_one_direction_queue_and_of_two_overlap),
        cmocka_unit_test(test_a_copy_behind_a_kernel_does_not_hold_the_engine),
        cmocka_unit_test(test_a_pageable_copy_makes_the_caller_wait_in_stream_order),
        cmocka_unit_test(test_drain_runs_all_but_what_is_behind_a_gate),
        cmocka_unit_test(test_a_gate_may_be_opened_before_its_stream_comes_to_it),
        cmocka_unit_test(test_a_mark_of_the_device_may_be_taken_between_two_ends_of_one_moment),
        cmocka_unit_test(test_a_world_may_end_with_a_gate_closed_and_work_behind_it),
        cmocka_unit_test(test_a_single_sleeper_moves_time_at_once),
        cmocka_unit_test(test_time_jumps_to_the_earliest_end_once_all_sleepers_doze),
        cmocka_unit_test(test_a_signal_ends_a_doze_without_moving_time),
        cmocka_unit_test(test_time_among_sleepers_does_not_depend_on_the_machine),
        cmocka_unit_test(test_an_adversary_finds_every_legal_order_and_repeats_it_for_a_seed),
        cmocka_unit_test(test_an_adversary_keeps_waits),
        cmocka_unit_test(test_queries_alone_let_an_adversary_get_on),
        cmocka_unit_test(test_on_the_wall_clock_work_ends_by_itself),
        cmocka_unit_test(test_threads_share_a_world_on_every_clock),
        cmocka_unit_test(test_unmapping_waits_for_bytes_that_are_moving_and_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
