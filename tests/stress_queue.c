/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue under load: random programs in one thread against an adversary that completes work in any legal
 * order, and crowds of threads on the wall clock. The oracle looks on, and every item's words are checked on
 * the device.
 */
#include "queue_world.h"

#include <pthread.h>
#include <time.h>

enum { KIB = 1024, HELD_MOST = 8, FILLING_MOST = 8, LENT_MOST = 4, LENT_BYTES = 2048 };

static const int64_t SECOND = 1000000000;

/* ---- random programs --------------------------------------------------------------------------------- */

struct lent_buffer {
    char *host;
    uint64_t ticket; /* 0: not lent */
};

struct program {
    struct world w;
    uint64_t random;
    weir_item filling[FILLING_MOST], held[HELD_MOST];
    unsigned n_filling, n_held;
    bool read_by[HELD_MOST][WORLD_STREAMS];
    struct lent_buffer lent[LENT_MOST];
    uint64_t last_delivered;
};

static uint32_t draw(struct program *p, uint32_t below)
{
    return (uint32_t)(next_random(&p->random) % below);
}

/* An item's tag follows from its ticket, so that an item in the wrong place is noticed. */
static uint32_t tag_of(uint64_t ticket)
{
    return (uint32_t)ticket * 2654435761u;
}

static void step_reserve(struct program *p)
{
    if (p->n_filling == FILLING_MOST) return;
    size_t bytes = 4 * (1 + draw(p, 1024));
    weir_status s = weir_queue_reserve(p->w.queue, bytes, draw(p, 2) ? 0 : 50000, &p->filling[p->n_filling]);
    if (s == WEIR_OK)
        p->n_filling++;
    else
        assert_true(s == WEIR_WOULD_BLOCK || s == WEIR_TIMEOUT);
}

static void step_commit(struct program *p)
{
    if (p->n_filling == 0) return;
    weir_item *item = &p->filling[draw(p, p->n_filling)];
    if (draw(p, 8) == 0) {
        OK(weir_queue_abort(p->w.queue, item));
    } else {
        write_item(&p->w, item, tag_of(item->ticket));
        OK(weir_queue_commit(p->w.queue, item));
    }
    *item = p->filling[--p->n_filling];
}

/* Some of it is pageable. The tag is that of the ticket to come: the next one, as there is one thread. */
static void step_push(struct program *p)
{
    struct lent_buffer *b = &p->lent[draw(p, LENT_MOST)];
    if (b->ticket != 0) {
        if (weir_queue_borrowed(p->w.queue, b->ticket, draw(p, 2) ? 0 : 50000) != WEIR_OK) return;
        b->ticket = 0;
    }
    /* A reserve that is taken back tells the last ticket. */
    weir_item probe;
    if (weir_queue_reserve(p->w.queue, 4, 0, &probe) != WEIR_OK) return;
    OK(weir_queue_abort(p->w.queue, &probe));
    uint32_t tag = tag_of(probe.ticket + 1), pageable[64];
    wr_sim_host_access(p->w.sim, b->host, LENT_BYTES, true);
    write_words(b->host, LENT_BYTES, tag);
    write_words(pageable, sizeof pageable, tag);
    size_t half = LENT_BYTES / 2, cut = 4 * draw(p, LENT_BYTES / 8);
    weir_span spans[] = {
        {b->host, cut}, {b->host + cut, half - cut}, {pageable, sizeof pageable}, {b->host + half, half}};
    unsigned flags = draw(p, 4) ? WEIR_PUSH_BORROW : WEIR_PUSH_COPY;
    uint64_t ticket = 0;
    if (weir_queue_push(p->w.queue, spans, 4, flags, 0, &ticket) != WEIR_OK) return;
    assert_int_equal(ticket, probe.ticket + 1);
    memset(pageable, 0, sizeof pageable);
    if (flags == WEIR_PUSH_BORROW) b->ticket = ticket;
}

static void read_held(struct program *p, unsigned i, int stream)
{
    read_item_on(&p->w, &p->held[i], tag_of(p->held[i].ticket), stream);
    p->read_by[i][stream] = true;
}

static void step_acquire(struct program *p)
{
    if (p->n_held == HELD_MOST) return;
    unsigned i = p->n_held;
    int stream = (int)draw(p, WORLD_STREAMS);
    weir_status s = weir_queue_acquire(p->w.queue, p->w.stream[stream], 0, &p->held[i]);
    if (s != WEIR_OK) {
        assert_int_equal(s, WEIR_WOULD_BLOCK);
        return;
    }
    assert_true(p->held[i].ticket > p->last_delivered);
    p->last_delivered = p->held[i].ticket;
    memset(p->read_by[i], 0, sizeof p->read_by[i]);
    p->n_held++;
    read_held(p, i, stream);
}

/* Another stream joins a reader of the item, and reads it, too. */
static void step_join(struct program *p)
{
    if (p->n_held == 0) return;
    unsigned i = draw(p, p->n_held);
    int from = 0, to = (int)draw(p, WORLD_STREAMS);
    while (!p->read_by[i][from])
        from++;
    struct wr_mark m;
    OK(wr_pool_mark(p->w.pool, p->w.stream[from], &m));
    OK(wr_mark_wait(m, p->w.stream[to]));
    read_held(p, i, to);
    if (draw(p, 2)) {
        OK(weir_queue_use(p->w.queue, &p->held[i], p->w.stream[to]));
        p->read_by[i][to] = from == to;
    }
}

static void step_release(struct program *p)
{
    if (p->n_held == 0) return;
    unsigned i = draw(p, p->n_held);
    weir_stream streams[WORLD_STREAMS];
    size_t n = 0;
    for (int s = 0; s < WORLD_STREAMS; s++)
        if (p->read_by[i][s]) streams[n++] = p->w.stream[s];
    OK(weir_queue_release(p->w.queue, &p->held[i], streams, n));
    p->n_held--;
    p->held[i] = p->held[p->n_held];
    memcpy(p->read_by[i], p->read_by[p->n_held], sizeof p->read_by[i]);
}

static void step(struct program *p)
{
    switch (draw(p, 8)) {
    case 0:
    case 1:
        step_reserve(p);
        break;
    case 2:
        step_commit(p);
        break;
    case 3:
        step_push(p);
        break;
    case 4:
        step_acquire(p);
        break;
    case 5:
        step_join(p);
        break;
    case 6:
        step_release(p);
        break;
    case 7:
        wr_sim_step(p->w.sim);
        break;
    }
}

static void run_program(uint64_t seed, unsigned steps)
{
    struct program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->random = seed;
    struct wr_sim_options o = world_options();
    o.adversary_seed = seed % 4 == 0 ? 0 : seed;
    weir_queue_options q = queue_options(4 * KIB, 1 + (unsigned)seed % 6);
    if (seed % 2) q.device_bytes = 4 * KIB * (1 + seed % 3);
    if (seed % 3) q.pinned_bytes = 4 * KIB * (1 + seed % 5);
    open_world(&p->w, &o, 0, &q);
    for (int i = 0; i < LENT_MOST; i++)
        OK(weir_host_alloc(p->w.pool, LENT_BYTES, (void **)&p->lent[i].host));
    for (unsigned i = 0; i < steps; i++)
        step(p);
    weir_queue_stats s = stats_of(p->w.queue);
    if (q.device_bytes) assert_true(s.peak_device_bytes <= q.device_bytes);
    if (q.pinned_bytes) assert_true(s.peak_pinned_bytes <= q.pinned_bytes);
    OK(weir_pool_check(p->w.pool));
    wr_sim_drain(p->w.sim);
    OK(weir_queue_borrowed(p->w.queue, 0, SECOND));
    for (int i = 0; i < LENT_MOST; i++)
        OK(weir_host_free(p->w.pool, p->lent[i].host, WEIR_NO_STREAM));
    close_world(&p->w); /* with items in every state */
    free(p);
}

static void test_random_programs_are_right_in_any_order_of_completion(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++)
        run_program(seed, 500);
}

/* ---- crowds ------------------------------------------------------------------------------------------ */

struct crowd {
    struct world w;
    _Atomic uint64_t committed, released;
    _Atomic bool over; /* the queue is destroyed under way */
};

struct member {
    struct crowd *crowd;
    pthread_t thread;
    uint64_t random;
    unsigned rounds;
    bool pushes_only; /* an item reserved may not be written once its queue is destroyed */
};

/* An item's words are its size: known without its producer. */
static bool produce_one(struct member *m)
{
    struct world *w = &m->crowd->w;
    size_t bytes = 4 * (1 + next_random(&m->random) % 1024);
    int64_t timeout = (int64_t)(next_random(&m->random) % 3) * 200000 - 200000; /* -0.2 ms: without end */
    weir_item item;
    if (m->pushes_only || next_random(&m->random) % 2) {
        uint32_t words[1024];
        write_words(words, bytes, (uint32_t)bytes);
        weir_span span[] = {{words, bytes / 8 * 4}, {(char *)words + bytes / 8 * 4, bytes - bytes / 8 * 4}};
        weir_status s = weir_queue_push(w->queue, span, 2, WEIR_PUSH_BORROW, timeout, NULL);
        m->crowd->committed += s == WEIR_OK;
        return s != WEIR_CLOSED;
    }
    int64_t key = (int64_t)(next_random(&m->random) % 4);
    weir_status s = weir_queue_reserve_key(w->queue, key, bytes, timeout, &item);
    if (s != WEIR_OK) return s != WEIR_CLOSED;
    write_words(item.host, bytes, (uint32_t)bytes);
    if (next_random(&m->random) % 8 == 0) return weir_queue_abort(w->queue, &item) == WEIR_OK;
    s = weir_queue_commit(w->queue, &item);
    m->crowd->committed += s == WEIR_OK;
    return s == WEIR_OK;
}

static void *produce(void *arg)
{
    struct member *m = arg;
    while (m->rounds > 0 && produce_one(m))
        m->rounds--;
    return NULL;
}

static void *consume(void *arg)
{
    struct member *m = arg;
    struct world *w = &m->crowd->w;
    int stream = (int)(m->random % WORLD_STREAMS);
    weir_item item;
    while (weir_queue_acquire(w->queue, w->stream[stream], -1, &item) == WEIR_OK) {
        if (m->crowd->over) break;
        read_item_on(w, &item, (uint32_t)item.bytes, stream);
        if (next_random(&m->random) % 4 == 0) weir_queue_use(w->queue, &item, w->stream[stream]);
        if (weir_queue_release(w->queue, &item, NULL, 0) != WEIR_OK) break;
        m->crowd->released++;
    }
    return NULL;
}

enum { PRODUCERS = 6, CONSUMERS = 4, MEMBERS = PRODUCERS + CONSUMERS };

static void start_crowd(struct crowd *c, struct member *m, unsigned rounds, bool pushes_only)
{
    for (unsigned i = 0; i < MEMBERS; i++) {
        m[i] = (struct member){.crowd = c, .random = i + 1, .rounds = rounds, .pushes_only = pushes_only};
        assert_int_equal(pthread_create(&m[i].thread, NULL, i < PRODUCERS ? produce : consume, &m[i]), 0);
    }
}

static void run_crowd(weir_order order, weir_consumers consumers)
{
    struct crowd c = {0};
    struct member m[MEMBERS];
    struct wr_sim_options o = world_options();
    o.wall_clock = true;
    weir_queue_options q = queue_options(4 * KIB, 3);
    q.order = order;
    q.consumers = consumers;
    open_world(&c.w, &o, 0, &q);
    start_crowd(&c, m, 150, false);
    for (unsigned i = 0; i < PRODUCERS; i++)
        pthread_join(m[i].thread, NULL);
    OK(weir_queue_close(c.w.queue));
    for (unsigned i = PRODUCERS; i < MEMBERS; i++)
        pthread_join(m[i].thread, NULL);
    assert_true(c.committed > 100);
    assert_int_equal(c.committed, c.released + stats_of(c.w.queue).items_replaced);
    OK(weir_pool_check(c.w.pool));
    close_world(&c.w);
}

static void test_a_crowd_loses_nothing(void **state)
{
    (void)state;
    for (int order = WEIR_ORDER_FIFO; order <= WEIR_ORDER_PRIORITY; order++)
        run_crowd((weir_order)order, WEIR_CONSUMERS_LOOSE);
    run_crowd(WEIR_ORDER_PRIORITY, WEIR_CONSUMERS_STRICT);
    run_crowd(WEIR_ORDER_FIFO, WEIR_CONSUMERS_LATEST);
}

static void test_a_crowd_survives_destroy_at_any_moment(void **state)
{
    (void)state;
    for (unsigned round = 1; round <= 30; round++) {
        struct crowd c = {0};
        struct member m[MEMBERS];
        open_wall(&c.w, 4 * KIB, 2);
        start_crowd(&c, m, UINT32_MAX, true);
        nanosleep(&(struct timespec){0, (long)round * 200000}, NULL);
        c.over = true;
        OK(weir_queue_destroy(c.w.queue));
        for (unsigned i = 0; i < MEMBERS; i++)
            pthread_join(m[i].thread, NULL);
        wr_sim_drain(c.w.sim);
        assert_int_equal(wrong_words(&c.w), 0);
        assert_no_reports(&c.w);
        assert_int_equal(end_world(&c.w), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_programs_are_right_in_any_order_of_completion),
        cmocka_unit_test(test_a_crowd_loses_nothing),
        cmocka_unit_test(test_a_crowd_survives_destroy_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
