/* SPDX-License-Identifier: Apache-2.0
 *
 * What users of other prefetch queues ran into, by their numbers in the list of reports: calls that met a driver
 * which was busy, or a stream which captured.
 */
#include "queue_world.h"

#include "../bench/null_device.h"

#include <pthread.h>
#include <semaphore.h>

enum { ITEM = 4096 };

static const int64_t SECOND = 1000000000;

/* A device that keeps the thread that copies inside its call until told otherwise. */
static sem_t copy_entered, copy_may_go;
static _Atomic bool keeps_copies;

static weir_status copy_and_stay(
    struct wr_device *d, enum wr_copy_kind k, uint64_t to, uint64_t from, size_t bytes, weir_stream s)
{
    (void)d, (void)k, (void)to, (void)from, (void)bytes, (void)s;
    wr_locks_assert_none();
    if (!keeps_copies) return WEIR_OK;
    sem_post(&copy_entered);
    sem_wait(&copy_may_go);
    return WEIR_OK;
}

static void *push_one(void *arg)
{
    OK(weir_queue_push(arg, &(weir_span){"1234", 4}, 1, WEIR_PUSH_COPY, -1, NULL));
    return NULL;
}

static void test_Q04_Q19_a_thread_that_is_stuck_in_the_driver_holds_up_no_other_call(void **state)
{
    (void)state;
    struct wr_device d;
    wr_null_device_init(&d, (size_t)1 << 30);
    struct wr_device_ops ops = *d.ops;
    ops.copy = copy_and_stay;
    d.ops = &ops;
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    weir_queue_options o = queue_options(ITEM, 4);
    weir_pool *pool;
    weir_queue *q;
    weir_stream stream;
    OK(wr_pool_open(&d, &defaults, &pool));
    OK(weir_queue_open(pool, &o, &q));
    OK(d.ops->stream_create(&d, &stream));
    weir_item first, second, held;
    weir_dptr block;
    OK(weir_alloc(pool, ITEM, stream, &block));
    OK(weir_free(pool, block, stream));
    push_one(q);
    OK(weir_queue_acquire(q, stream, 0, &held));
    OK(weir_queue_reserve(q, ITEM, 0, &first));

    sem_init(&copy_entered, 0, 0);
    sem_init(&copy_may_go, 0, 0);
    keeps_copies = true;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, push_one, q), 0);
    sem_wait(&copy_entered);
    keeps_copies = false;
    assert_int_equal(weir_queue_acquire(q, stream, 0, &second), WEIR_WOULD_BLOCK);
    OK(weir_queue_commit(q, &first)); /* reserved before the one that is stuck: it completes */
    OK(weir_queue_acquire(q, stream, 0, &first));
    OK(weir_queue_release(q, &held, NULL, 0));
    OK(weir_queue_release(q, &first, NULL, 0));
    OK(weir_queue_reserve(q, ITEM, 0, &second));
    OK(weir_queue_abort(q, &second));
    assert_int_equal(stats_of(q).items_pushed, 2);
    OK(weir_alloc(pool, ITEM, stream, &block));
    OK(weir_free(pool, block, stream));
    assert_int_equal(weir_queue_wait_idle(q, 0), WEIR_WOULD_BLOCK);
    sem_post(&copy_may_go);
    pthread_join(thread, NULL);
    OK(weir_queue_acquire(q, stream, 0, &held));
    OK(weir_queue_release(q, &held, NULL, 0));
    OK(weir_queue_destroy(q));
    OK(weir_stream_retire(pool, stream));
    if (weir_pool_close(pool) == WEIR_NOT_YET) OK(weir_pool_close(pool));
}

static void test_Q13_a_push_beside_a_capture_stays_out_of_it_and_an_acquire_in_it_is_refused(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, ITEM, 3);
    weir_item item;
    wr_sim_set_capturing(w.device, w.stream[0], true);
    OK(feed(&w, ITEM, 1, 0));
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], -1, &item), WEIR_CAPTURING);
    assert_non_null(strstr(weir_error_text(), "captur"));
    for (uint32_t tag = 1; tag <= 10; tag++) { /* others go on, on streams that do not capture */
        eat(&w, tag, 1);
        OK(feed(&w, ITEM, tag + 1, SECOND));
    }
    assert_int_equal(weir_queue_acquire(w.queue, w.stream[0], -1, &item), WEIR_CAPTURING);
    assert_int_equal(counts_of(&w).captures_broken, 0);
    wr_sim_set_capturing(w.device, w.stream[0], false);
    eat(&w, 11, 0); /* the one refused is the next one still */
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_Q04_Q19_a_thread_that_is_stuck_in_the_driver_holds_up_no_other_call),
        cmocka_unit_test(test_Q13_a_push_beside_a_capture_stays_out_of_it_and_an_acquire_in_it_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
