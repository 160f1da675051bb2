/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases of the Python package: memory goes back with the last reference, and behind all readers. */
#include "queue_world.h"

#include <pthread.h>

#include "batch.h"

#define KIB ((size_t)1 << 10)

/* A lease of the next item, acquired on stream 0; the house is new, and stands for the queue's owner. */
static weir_lease *lease_next(struct world *w, weir_house *h, weir_item *item)
{
    OK(weir_queue_acquire(w->queue, w->stream[0], 0, item));
    weir_lease *l = weir_lease_item(h, item, w->stream[0]);
    assert_non_null(l);
    return l;
}

static void *export_words(weir_lease *l, const weir_item *item, int versioned)
{
    int64_t shape[] = {2, (int64_t)(item->bytes / 8)};
    weir_form form = {
        .address = item->device, .device_type = 2, .code = 1, .bits = 32, .n_dims = 2, .shape = shape};
    return weir_lease_export(l, &form, versioned);
}

/* DLPack 0's layout, as a consumer has it. */
struct managed {
    void *data;
    int32_t device_type, device, n_dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct managed *);
};

static void test_a_slot_is_refilled_behind_every_stream_that_was_named_to_its_lease(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 64 * KIB, 1);
    weir_house *h = weir_house_new(w.queue);
    weir_item item;
    OK(feed(&w, 64 * KIB, 1, 0));
    weir_lease *l = lease_next(&w, h, &item);
    for (int i = 1; i < WORLD_STREAMS; i++) {
        OK(weir_lease_read_on(l, w.stream[i]));
        OK(weir_lease_read_on(l, w.stream[i])); /* once more is no more */
        read_item_on(&w, &item, 1, i);
    }
    assert_int_equal(feed(&w, 64 * KIB, 2, 0), WEIR_WOULD_BLOCK);
    weir_lease_drop(l);
    OK(feed(&w, 64 * KIB, 2, -1)); /* the oracle watches: the copy is behind three readers */
    eat(&w, 2, 0);
    weir_house_leave(h);
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

static void test_a_tensor_keeps_its_item_beyond_the_lease_and_the_queue(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_house *h = weir_house_new(w.queue);
    weir_item item;
    OK(feed(&w, 4 * KIB, 5, 0));
    weir_lease *l = lease_next(&w, h, &item);
    struct managed *tensor = export_words(l, &item, 0);
    assert_int_equal((uintptr_t)tensor->data, item.device);
    assert_int_equal(tensor->shape[1], 512);
    assert_int_equal(tensor->strides[0], 512);
    assert_int_equal(tensor->strides[1], 1);
    weir_lease_drop(l);
    weir_house_leave(h);
    weir_item none;
    assert_int_equal(weir_queue_reserve(w.queue, 16, 0, &none), WEIR_CLOSED);
    OK(weir_lease_read_on(l, w.stream[1])); /* the tensor's reference keeps it */
    read_item_on(&w, &item, 5, 1);
    assert_int_equal(stats_of(w.queue).items_released, 0);
    tensor->deleter(tensor);
    size_t n;
    assert_int_equal(weir_queue_size(w.queue, &n), WEIR_CLOSED);
    wr_sim_drain(w.sim);
    assert_int_equal(wrong_words(&w), 0);
    assert_no_reports(&w);
    assert_int_equal(end_world(&w), 0);
}

static void test_C01_a_block_goes_back_behind_its_readers_and_not_while_a_tensor_is_there(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_dptr block;
    OK(weir_alloc(w.pool, 4 * KIB, w.stream[0], &block));
    weir_lease *l = weir_lease_block(w.pool, block, w.stream[0]);
    weir_item as_item = {.device = block, .bytes = 4 * KIB};
    struct managed *tensor = export_words(l, &as_item, 0);
    OK(weir_lease_read_on(l, w.stream[1]));
    weir_stats before = {.struct_size = sizeof before}, after = before;
    OK(weir_pool_stats(w.pool, &before));
    weir_lease_drop(l);
    OK(weir_pool_stats(w.pool, &after));
    assert_int_equal(after.frees, before.frees);
    tensor->deleter(tensor);
    OK(weir_pool_stats(w.pool, &after));
    assert_int_equal(after.frees, before.frees + 1);
    assert_int_equal(after.touches, before.touches + 1);
    close_world(&w);
}

static void test_a_stream_that_captures_delays_the_release_and_loses_nothing(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_house *h = weir_house_new(w.queue);
    weir_item first, second;
    OK(feed(&w, 4 * KIB, 1, 0));
    OK(feed(&w, 4 * KIB, 2, 0));
    weir_lease *l = lease_next(&w, h, &first);
    OK(weir_lease_read_on(l, w.stream[1]));
    wr_sim_set_capturing(w.device, w.stream[1], true);
    weir_lease_drop(l);
    assert_int_equal(weir_lease_late(), 1);
    assert_int_equal(stats_of(w.queue).items_released, 0);
    wr_sim_set_capturing(w.device, w.stream[1], false);
    weir_lease_drop(lease_next(&w, h, &second));
    assert_int_equal(weir_lease_late(), 0);
    assert_int_equal(stats_of(w.queue).items_released, 2);
    assert_int_equal(counts_of(&w).captures_broken, 0);
    weir_house_leave(h);
    assert_int_equal(end_world(&w), 0);
}

static void test_a_per_thread_stream_is_read_on_by_the_thread_that_acquired_alone(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 2);
    weir_house *h = weir_house_new(w.queue);
    weir_item item;
    weir_stream per_thread = (weir_stream)2;
    OK(feed(&w, 4 * KIB, 1, 0));
    weir_lease *l = lease_next(&w, h, &item);
    assert_int_equal(weir_lease_read_on(l, per_thread), WEIR_INVALID_ARGUMENT);
    weir_lease_drop(l);
    weir_house_leave(h);
    assert_int_equal(end_world(&w), 0);
}

/* A capsule as the interpreter has it: a name, which a consumer changes, and a pointer. */
struct capsule {
    const char *name;
    void *pointer;
};

static int is_valid(void *capsule, const char *name)
{
    return strcmp(((struct capsule *)capsule)->name, name) == 0;
}

static void *pointer_of(void *capsule, const char *name)
{
    assert_true(is_valid(capsule, name));
    return ((struct capsule *)capsule)->pointer;
}

static void test_a_capsule_that_nobody_consumed_gives_its_reference_back(void **state)
{
    (void)state;
    struct world w;
    open_virtual(&w, 4 * KIB, 3);
    weir_house *h = weir_house_new(w.queue);
    weir_capsule_set_up(is_valid, pointer_of);
    for (int versioned = 0; versioned < 2; versioned++) {
        weir_item item;
        OK(feed(&w, 4 * KIB, 1, 0));
        weir_lease *l = lease_next(&w, h, &item);
        struct capsule c = {versioned ? "dltensor_versioned" : "dltensor", export_words(l, &item, versioned)};
        struct capsule used = {"used_dltensor", NULL};
        weir_lease_drop(l);
        weir_capsule_destroy(&used);
        assert_int_equal(stats_of(w.queue).items_released, versioned);
        weir_capsule_destroy(&c);
        assert_int_equal(stats_of(w.queue).items_released, versioned + 1);
    }
    weir_house_leave(h);
    assert_int_equal(end_world(&w), 0);
}

enum { ROUNDS = 60 };

/* What the main thread hands to the readers, round by round. */
struct crowd {
    struct world w;
    pthread_barrier_t begin, end;
    weir_lease *lease;
    weir_item item;
    uint32_t tag; /* of the item */
    struct managed *tensor[WORLD_STREAMS];
};

struct reader {
    struct crowd *crowd;
    int stream;
};

static void *read_and_delete(void *argument)
{
    struct crowd *c = ((struct reader *)argument)->crowd;
    int mine = ((struct reader *)argument)->stream;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&c->begin);
        OK(weir_lease_read_on(c->lease, c->w.stream[mine]));
        read_item_on(&c->w, &c->item, c->tag, mine);
        c->tensor[mine]->deleter(c->tensor[mine]);
        pthread_barrier_wait(&c->end);
    }
    return NULL;
}

static void test_threads_drop_an_items_tensors_and_the_last_gives_it_back(void **state)
{
    (void)state;
    struct crowd c = {0};
    pthread_t thread[WORLD_STREAMS];
    struct reader reader[WORLD_STREAMS];
    open_wall(&c.w, 4 * KIB, 2);
    weir_house *h = weir_house_new(c.w.queue);
    pthread_barrier_init(&c.begin, NULL, WORLD_STREAMS + 1);
    pthread_barrier_init(&c.end, NULL, WORLD_STREAMS + 1);
    for (int i = 0; i < WORLD_STREAMS; i++) {
        reader[i] = (struct reader){&c, i};
        pthread_create(&thread[i], NULL, read_and_delete, &reader[i]);
    }
    for (c.tag = 1; c.tag <= ROUNDS; c.tag++) {
        OK(feed(&c.w, 4 * KIB, c.tag, -1));
        c.lease = lease_next(&c.w, h, &c.item);
        for (int i = 0; i < WORLD_STREAMS; i++)
            c.tensor[i] = export_words(c.lease, &c.item, 0);
        pthread_barrier_wait(&c.begin);
        weir_lease_drop(c.lease);
        pthread_barrier_wait(&c.end);
    }
    for (int i = 0; i < WORLD_STREAMS; i++)
        pthread_join(thread[i], NULL);
    assert_int_equal(stats_of(c.w.queue).items_released, ROUNDS);
    weir_house_leave(h);
    wr_sim_drain(c.w.sim);
    assert_int_equal(wrong_words(&c.w), 0);
    assert_no_reports(&c.w);
    assert_int_equal(end_world(&c.w), 0);
    pthread_barrier_destroy(&c.begin);
    pthread_barrier_destroy(&c.end);
}

/* ---- batches ----------------------------------------------------------------------------------------- */

/* An array of numpy's, as C sees it. */
struct array {
    char head[16];
    void *data;
    int n_dims;
    const int64_t *dims;
};

struct batch_world {
    struct world w;
    weir_engine *engine;
    weir_batch *batch;
    weir_dptr block;
    weir_batch_target target;
};

static char first[24] = "two rows of three words", second[1000] = "bytes", third[4] = "one";
static const int64_t two_by_three[] = {2, 3}, thousand[] = {1000};

static void open_batch(struct batch_world *b)
{
    static const struct array arrays[] = {{.data = first, .n_dims = 2, .dims = two_by_three},
        {.data = second, .n_dims = 1, .dims = thousand}, {.data = third, .n_dims = 0}};
    const void *objects[] = {&arrays[0], &arrays[1], &arrays[2]};
    open_virtual(&b->w, 4 * KIB, 2);
    OK(weir_engine_open(b->w.pool, NULL, &b->engine));
    b->batch = weir_batch_new(objects, (const uint16_t[]){0 << 8 | 32, 1 << 8 | 8, 2 << 8 | 32}, 3, 16);
    assert_non_null(b->batch);
    weir_stream home = weir_engine_stream(b->engine);
    OK(weir_alloc(b->w.pool, weir_batch_bytes(b->batch), home, &b->block));
    b->target = (weir_batch_target){.lease = weir_lease_block(b->w.pool, b->block, home),
        .address = b->block,
        .device_type = 2,
        .device = 7};
}

static uint64_t frees_of(struct batch_world *b)
{
    weir_stats stats = {.struct_size = sizeof stats};
    OK(weir_pool_stats(b->w.pool, &stats));
    return stats.frees;
}

static void test_the_arrays_of_a_batch_arrive_in_one_block_which_their_tensors_keep(void **state)
{
    (void)state;
    struct batch_world b;
    open_batch(&b);
    assert_int_equal(weir_batch_bytes(b.batch), 256 + 1024 + 256);
    struct managed *tensors[3];
    weir_ticket tickets[2];
    OK(weir_batch_send(b.batch, 0, 2, b.engine, &b.target, &tickets[0], (void **)tensors));
    OK(weir_batch_send(b.batch, 2, 1, b.engine, &b.target, &tickets[1], (void **)&tensors[2]));
    for (int i = 0; i < 2; i++)
        OK(weir_copy_wait(b.engine, tickets[i], -1));
    char arrived[256 + 1024 + 256];
    wr_sim_peek(b.w.sim, b.block, arrived, sizeof arrived);
    assert_memory_equal(arrived, first, sizeof first);
    assert_memory_equal(arrived + 256, second, sizeof second);
    assert_memory_equal(arrived + 256 + 1024, third, sizeof third);
    assert_int_equal((uintptr_t)tensors[1]->data, b.block + 256);
    assert_int_equal((uintptr_t)tensors[2]->data, b.block + 256 + 1024);
    assert_int_equal(tensors[0]->shape[1], 3);
    assert_int_equal(tensors[0]->strides[0], 3);
    assert_int_equal(tensors[0]->device, 7);
    assert_int_equal(tensors[2]->n_dims, 0);
    uint64_t frees = frees_of(&b);
    weir_lease_drop(b.target.lease);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(frees_of(&b), frees);
        tensors[i]->deleter(tensors[i]);
    }
    assert_int_equal(frees_of(&b), frees + 1);
    weir_batch_delete(b.batch);
    OK(weir_engine_close(b.engine));
    close_world(&b.w);
}

static void test_a_batch_that_can_not_be_copied_makes_no_tensor(void **state)
{
    (void)state;
    struct batch_world b;
    open_batch(&b);
    void *tensors[3];
    weir_ticket ticket;
    b.target.address = 0;
    assert_int_equal(
        weir_batch_send(b.batch, 0, 3, b.engine, &b.target, &ticket, tensors), WEIR_INVALID_ARGUMENT);
    uint64_t frees = frees_of(&b);
    weir_lease_drop(b.target.lease); /* the last reference */
    assert_int_equal(frees_of(&b), frees + 1);
    weir_batch_delete(b.batch);
    OK(weir_engine_close(b.engine));
    close_world(&b.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slot_is_refilled_behind_every_stream_that_was_named_to_its_lease),
        cmocka_unit_test(test_a_tensor_keeps_its_item_beyond_the_lease_and_the_queue),
        cmocka_unit_test(test_C01_a_block_goes_back_behind_its_readers_and_not_while_a_tensor_is_there),
        cmocka_unit_test(test_a_stream_that_captures_delays_the_release_and_loses_nothing),
        cmocka_unit_test(test_a_per_thread_stream_is_read_on_by_the_thread_that_acquired_alone),
        cmocka_unit_test(test_threads_drop_an_items_tensors_and_the_last_gives_it_back),
        cmocka_unit_test(test_the_arrays_of_a_batch_arrive_in_one_block_which_their_tensors_keep),
        cmocka_unit_test(test_a_batch_that_can_not_be_copied_makes_no_tensor),
        cmocka_unit_test(test_a_capsule_that_nobody_consumed_gives_its_reference_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
