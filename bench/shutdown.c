/* SPDX-License-Identifier: Apache-2.0
 *
 * Random endings of queues under load, on a simulated device and the wall clock: who is blocked in a call is to
 * be awake within 10 ms, whatever ends and whoever has died before. Producers, consumers, one that waits for
 * what it has lent, one that waits for idle and one that peeks run until their queue ends; some of them die on
 * the way, with an item reserved or in their hands. Then one of
 *
 *   destroy          everyone must be awake
 *   poison           producers and consumers must be, in spite of dead producers; then destroy
 *   close            producers must be; then destroy
 *   leave, clear     registered consumers are taken off, or all items out, under way; then destroy
 *   device reset     everyone must be awake with CONTEXT_LOST; then destroy
 *
 * A bystander, blocked on a plain condition variable and woken with them, says how long the machine takes.
 */
#include "harness.h"
#include "kernels.h"
#include "pool.h"
#include "weir_queue.h"

#include <stdio.h>
#include <time.h>

enum { ITEM = 4096, HANDS = 8, STREAMS = 4, RESETS_EVERY = 50 };

static const uint64_t late_ns = 10000000, hung_ns = 2000000000;

enum role { PRODUCER, FILLER, CONSUMER, PEEKER, LENDER, IDLER };
enum ending { DESTROY, POISON, CLOSE, LEAVE, CLEAR, RESET, ENDINGS };

static const char *const names[ENDINGS] = {"destroy", "poison", "close", "leave", "clear", "device reset"};

struct stage { /* a device, and what runs on it until it is reset */
    struct wr_sim *sim;
    struct wr_device *device;
    weir_pool *pool;
    weir_stream stream[STREAMS];
    void *lent;
};

struct hand {
    struct stage *stage;
    weir_queue *queue;
    weir_consumer self; /* 0: not registered */
    enum role role;
    uint64_t random;
    pthread_t thread;
    bool mortal;            /* may die with an item in its hands */
    _Atomic uint64_t awake; /* when it ended; 0: it has not */
};

struct tally {
    unsigned runs, late, hangs;
    uint64_t worst_ns;
};

struct bench {
    struct wr_harness h;
    unsigned endings;
    uint64_t random;
    struct stage stage;
    struct tally tally[ENDINGS], bystander;
};

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state % below;
}

static void pause_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* ---- hands ------------------------------------------------------------------------------------------- */

/* Each does its work once. False: the queue has ended, or the hand dies. */

static bool produce(struct hand *m)
{
    static const char words[ITEM];
    weir_span span = {words, 1 + draw(&m->random, ITEM)};
    return weir_queue_push(m->queue, &span, 1, WEIR_PUSH_COPY, -1, NULL) == WEIR_OK;
}

static bool fill(struct hand *m)
{
    weir_item item;
    if (weir_queue_reserve(m->queue, ITEM, -1, &item) != WEIR_OK) return false;
    if (draw(&m->random, 16) == 0) return false; /* it dies, and leaves the item reserved */
    if (draw(&m->random, 4) == 0) return weir_queue_abort(m->queue, &item) == WEIR_OK;
    weir_status s = weir_queue_commit(m->queue, &item);
    return s == WEIR_OK || s == WEIR_STALE_HANDLE; /* cancelled by clear */
}

static bool consume(struct hand *m)
{
    weir_item item;
    weir_stream stream = m->stage->stream[draw(&m->random, STREAMS)];
    weir_status s = m->self ? weir_queue_acquire_as(m->queue, m->self, stream, -1, &item)
                            : weir_queue_acquire(m->queue, stream, -1, &item);
    if (s != WEIR_OK) return false;
    if (m->mortal && draw(&m->random, 64) == 0) return false; /* it dies with the item in its hands */
    (void)wr_kernels_spin(m->stage->device, stream, 20000);
    return weir_queue_release(m->queue, &item, NULL, 0) == WEIR_OK;
}

static bool peek(struct hand *m)
{
    weir_item item;
    weir_stream stream = m->stage->stream[0];
    if (weir_queue_peek(m->queue, 0, stream, -1, &item) != WEIR_OK) return false;
    return weir_queue_release(m->queue, &item, NULL, 0) == WEIR_OK;
}

static bool lend(struct hand *m)
{
    uint64_t ticket;
    weir_span span = {m->stage->lent, ITEM};
    return weir_queue_push(m->queue, &span, 1, WEIR_PUSH_BORROW, -1, &ticket) == WEIR_OK &&
           weir_queue_borrowed(m->queue, ticket, -1) == WEIR_OK;
}

static bool idle(struct hand *m)
{
    return weir_queue_wait_idle(m->queue, -1) == WEIR_OK;
}

static void *work(void *arg)
{
    static bool (*const once[])(struct hand * m) = {[PRODUCER] = produce,
        [FILLER] = fill,
        [CONSUMER] = consume,
        [PEEKER] = peek,
        [LENDER] = lend,
        [IDLER] = idle};
    struct hand *m = arg;
    while (once[m->role](m)) {
    }
    m->awake = wr_device_wall_ns();
    return NULL;
}

/* ---- stages ------------------------------------------------------------------------------------------ */

static void must(struct bench *b, weir_status s, const char *what)
{
    wr_harness_must(&b->h, s, what);
}

/* First memory is zeroed by the system, for milliseconds: that is no wait of a queue's. */
static void warm_up(struct bench *b, struct stage *g)
{
    weir_queue *q;
    weir_queue_options o = {.struct_size = sizeof o, .item_bytes = ITEM, .items = 4};
    must(b, weir_queue_open(g->pool, &o, &q), "opening a queue");
    for (unsigned i = 0; i < o.items; i++)
        must(b, weir_queue_push(q, &(weir_span){names, 1}, 1, WEIR_PUSH_COPY, -1, NULL), "push");
    must(b, weir_queue_destroy(q), "destroy");
    wr_sim_drain(g->sim);
}

static struct stage open_stage(struct bench *b)
{
    struct stage g = {0};
    struct wr_sim_options o = {.profile = wr_sim_profile_find("h200-pcie5"), .wall_clock = true};
    weir_pool_options p = {.struct_size = sizeof p};
    must(b, wr_sim_open(&o, &g.sim), "opening a simulated device");
    g.device = wr_sim_device(g.sim, 0);
    must(b, wr_pool_open(g.device, &p, &g.pool), "opening a pool");
    must(b, weir_host_alloc(g.pool, ITEM, &g.lent), "pinned memory");
    for (int i = 0; i < STREAMS; i++)
        must(b, g.device->ops->stream_create(g.device, &g.stream[i]), "creating a stream");
    warm_up(b, &g);
    return g;
}

/* Returns what the oracle has to report. */
static unsigned close_stage(struct bench *b, struct stage *g, bool lost)
{
    wr_sim_drain(g->sim);
    must(b, weir_host_free(g->pool, g->lent, WEIR_NO_STREAM), "freeing pinned memory");
    for (int i = 0; i < STREAMS && !lost; i++) {
        must(b, weir_stream_retire(g->pool, g->stream[i]), "retiring a stream");
        must(b, g->device->ops->stream_destroy(g->device, g->stream[i]), "destroying a stream");
    }
    wr_harness_close_pool(&b->h, g->pool);
    unsigned reports = wr_sim_reports(g->sim);
    return reports + wr_sim_close(g->sim);
}

/* ---- one ending -------------------------------------------------------------------------------------- */

struct bystander {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool over;
    pthread_t thread;
    uint64_t start, awake;
};

static void *stand_by(void *arg)
{
    struct bystander *y = arg;
    pthread_mutex_lock(&y->mutex);
    while (!y->over)
        pthread_cond_wait(&y->wake, &y->mutex);
    y->awake = wr_device_wall_ns();
    pthread_mutex_unlock(&y->mutex);
    return NULL;
}

static void dismiss(struct bystander *y)
{
    pthread_mutex_lock(&y->mutex);
    y->over = true;
    y->start = wr_device_wall_ns();
    pthread_cond_signal(&y->wake);
    pthread_mutex_unlock(&y->mutex);
}

struct party {
    weir_queue *queue;
    struct hand hand[HANDS];
    struct bystander bystander;
    bool registered;
};

static void gather(struct bench *b, struct stage *g, struct party *p)
{
    static const enum role roles[HANDS] = {
        PRODUCER, FILLER, FILLER, CONSUMER, CONSUMER, LENDER, IDLER, PEEKER};
    weir_queue_options o = {
        .struct_size = sizeof o, .item_bytes = ITEM, .items = 1 + (unsigned)draw(&b->random, 4)};
    o.consumers = (weir_consumers)draw(&b->random, WEIR_CONSUMERS_LATEST + 1);
    if (o.consumers < WEIR_CONSUMERS_BROADCAST)
        o.order = (weir_order)draw(&b->random, WEIR_ORDER_PRIORITY + 1);
    must(b, weir_queue_open(g->pool, &o, &p->queue), "opening a queue");
    p->registered = o.consumers == WEIR_CONSUMERS_SHARED || o.consumers == WEIR_CONSUMERS_BROADCAST;
    for (int i = 0; i < HANDS; i++) {
        struct hand *m = &p->hand[i];
        *m = (struct hand){
            .stage = g, .queue = p->queue, .role = roles[i], .random = draw(&b->random, UINT32_MAX) + 1};
        m->mortal = o.consumers != WEIR_CONSUMERS_STRICT; /* there the next one waits for it, by design */
        if (m->role == CONSUMER && p->registered) must(b, weir_queue_join(p->queue, &m->self), "join");
        if (pthread_create(&m->thread, NULL, work, m)) must(b, WEIR_NO_HOST_MEMORY, "starting a thread");
    }
}

static void count(struct tally *t, uint64_t took_ns)
{
    t->late += took_ns >= late_ns;
    t->worst_ns = took_ns > t->worst_ns ? took_ns : t->worst_ns;
}

/* Those of the roles asked for are to be awake by now, or soon. */
static void await(struct party *p, unsigned roles, uint64_t since, struct tally *t)
{
    for (int i = 0; i < HANDS; i++) {
        struct hand *m = &p->hand[i];
        if (!(roles >> m->role & 1)) continue;
        while (!m->awake && wr_device_wall_ns() - since < hung_ns)
            pause_ns(50000);
        uint64_t awake = m->awake, took = awake > since ? awake - since : 0;
        t->hangs += awake == 0;
        count(t, took);
    }
}

static void end(struct bench *b, struct stage *g, struct party *p, enum ending ending)
{
    const unsigned producers = 1u << PRODUCER | 1u << FILLER, everyone = ~0u;
    struct tally *t = &b->tally[ending];
    uint64_t start = wr_device_wall_ns();
    weir_dptr block;
    if (ending == POISON) {
        must(b, weir_queue_poison(p->queue, 1, "the end"), "poison");
        await(p, producers | 1u << CONSUMER, start, t); /* where all consumers are dead, who peeks goes on */
    }
    if (ending == CLOSE) {
        must(b, weir_queue_close(p->queue), "close");
        await(p, producers, start, t);
    }
    for (int i = 0; i < HANDS && ending == LEAVE; i++)
        if (p->hand[i].self) must(b, weir_queue_leave(p->queue, p->hand[i].self), "leave");
    if (ending == LEAVE && p->registered) await(p, 1u << CONSUMER, start, t);
    if (ending == CLEAR) must(b, weir_queue_clear(p->queue), "clear");
    if (ending == RESET) {
        wr_sim_reset_device(g->device);
        (void)weir_alloc(g->pool, 256 << 20, g->stream[0], &block); /* somebody notices */
        await(p, everyone, start, t);
    }
    start = wr_device_wall_ns();
    dismiss(&p->bystander);
    must(b, weir_queue_destroy(p->queue), "destroy");
    await(p, everyone, start, t);
    t->runs++;
}

/* Returns what the oracle has to report of a stage that ends with it. */
static unsigned run(struct bench *b, unsigned i)
{
    struct party p = {.bystander = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER}};
    struct bystander *y = &p.bystander;
    if (pthread_create(&y->thread, NULL, stand_by, y)) must(b, WEIR_NO_HOST_MEMORY, "starting a thread");
    bool lost = i % RESETS_EVERY == RESETS_EVERY - 1;
    struct stage own = {0}, *g = &b->stage;
    if (lost) {
        own = open_stage(b);
        g = &own;
    }
    gather(b, g, &p);
    pause_ns(draw(&b->random, 400000));
    end(b, g, &p, lost ? RESET : (enum ending)draw(&b->random, RESET));
    for (int k = 0; k < HANDS; k++) {
        if (!p.hand[k].awake) wr_harness_end(&b->h, WR_HARNESS_FAILED, "a caller hangs, after %u endings", i);
        pthread_join(p.hand[k].thread, NULL);
    }
    pthread_join(y->thread, NULL);
    count(&b->bystander, y->awake - y->start);
    b->bystander.runs++;
    return lost ? close_stage(b, g, true) : 0;
}

static void print_row(const char *name, const struct tally *t)
{
    printf("| %s | %u | %u | %u | %.2f |\n", name, t->runs, t->late, t->hangs, (double)t->worst_ns / 1e6);
}

int main(int argc, char **argv)
{
    static struct bench b;
    const struct wr_harness_option options[] = {
        {"--endings", WR_OPTION_COUNT, &b.endings, "how many; 10000 unless told"},
    };
    b.endings = 10000;
    b.random = 88172645463325252u;
    wr_harness_parse(&b.h, "shutdown", "ends queues under load at random, on a simulated device", argc, argv,
        options, WR_ARRAY_LEN(options));
    if (b.h.device_kind && b.h.device_kind[0] != 's')
        wr_harness_end(&b.h, WR_HARNESS_BAD_INPUT, "only a simulated device may be reset at random");
    b.h.device_kind = "sim";
    wr_harness_open(&b.h, "h200-pcie5", true);
    b.stage = open_stage(&b);
    unsigned reports = 0, hangs = 0, late = 0;
    struct tally all = {0};
    for (unsigned i = 0; i < b.endings; i++) {
        wr_harness_progress(&b.h, "endings", i, b.endings);
        reports += run(&b, i);
    }
    reports += close_stage(&b, &b.stage, false);
    printf("Device: %s, SIMULATED, on the wall clock; %d threads a queue\n\n", b.h.label, HANDS);
    printf("| ending | queues | awake after 10 ms or more | not after 2 s | slowest, ms "
           "|\n|---|---|---|---|---|\n");
    for (int k = 0; k < ENDINGS; k++) {
        print_row(names[k], &b.tally[k]);
        hangs += b.tally[k].hangs;
        late += b.tally[k].late;
        count(&all, b.tally[k].worst_ns);
    }
    print_row("(bystander)", &b.bystander);
    printf("\nqueue.shutdown_hangs %u, late %u, of %u endings; oracle: %u reports\n", hangs, late, b.endings,
        reports);
    wr_harness_result(&b.h, "queue.shutdown_hangs", "weir", hangs, "");
    wr_harness_result(&b.h, "queue.shutdown_late", "weir", late, "");
    wr_harness_result(&b.h, "queue.shutdown_late", "plain condition variable", b.bystander.late, "");
    wr_harness_result(&b.h, "queue.shutdown_worst_ms", "weir", (double)all.worst_ns / 1e6, "ms");
    wr_harness_result(&b.h, "queue.shutdown_worst_ms", "plain condition variable",
        (double)b.bystander.worst_ns / 1e6, "ms");
    return wr_harness_close(&b.h) || reports || hangs ? WR_HARNESS_FAILED : 0;
}
