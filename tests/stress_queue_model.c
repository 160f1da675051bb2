/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs over queues of every order and every kind of consumers, beside a naive model that says after
 * each step which item a consumer must get now, or which status, what is readable to pollers and how many items
 * there are. The GPU completes work in any legal order; the oracle looks on, and each item's words are checked.
 *
 *   stress_queue_model [PROGRAMS]
 */
#include "queue_world.h"

#include <poll.h>
#include <unistd.h>

enum { ITEM = 256, ITEMS_MOST = 6, HELD_MOST = 12, ACTORS = 3, STEPS = 1000 };

static const int64_t SECOND = 1000000000;

/* ---- the model --------------------------------------------------------------------------------------- */

struct thing {
    uint64_t ticket, committed; /* committed 0: being filled */
    int64_t key;
    uint32_t tag;
    bool waits; /* somebody is to get it, or will be */
    bool owed[ACTORS];
    unsigned holds;
    weir_item filling; /* the producer's */
};

struct held {
    weir_item item;
    struct thing *thing; /* NULL: none */
    int stream, actor;   /* actor -1: none */
    bool peeked;
};

struct program {
    struct world w;
    weir_order order;
    weir_consumers consumers;
    unsigned items;
    uint64_t random;
    struct thing thing[ITEMS_MOST]; /* ticket 0: none */
    struct held held[HELD_MOST];
    weir_consumer actor[ACTORS]; /* 0: not joined */
    int fd[ACTORS + 1];          /* the last one: of nobody registered; -1: none */
    uint64_t tickets, commits, newest;
    bool closed, poisoned;
};

static uint32_t draw(struct program *p, uint32_t below)
{
    return (uint32_t)(next_random(&p->random) % below);
}

static bool registers(const struct program *p)
{
    return p->consumers == WEIR_CONSUMERS_SHARED || p->consumers == WEIR_CONSUMERS_BROADCAST;
}

static unsigned used(const struct program *p)
{
    unsigned n = 0;
    for (unsigned i = 0; i < p->items; i++)
        n += p->thing[i].ticket != 0;
    return n;
}

static void end_if_over(struct thing *t)
{
    if (t->committed && !t->waits && t->holds == 0) t->ticket = 0;
}

/* What one asks for. */
struct ask {
    int actor; /* -1: none */
    bool by_key, peeks;
    int64_t which;
};

static bool concerns(const struct program *p, const struct thing *t, const struct ask *a)
{
    if (!t->ticket || !t->waits || (a->by_key && t->key != a->which)) return false;
    return p->consumers != WEIR_CONSUMERS_BROADCAST || !t->committed || t->owed[a->actor];
}

/* Does the first come before the second, both being committed? */
static bool precedes(
    const struct program *p, const struct ask *a, const struct thing *x, const struct thing *y)
{
    if (p->consumers == WEIR_CONSUMERS_LATEST) return x->ticket > y->ticket;
    if (p->order == WEIR_ORDER_FIFO || a->by_key) return x->ticket < y->ticket;
    if (p->order == WEIR_ORDER_PRIORITY && x->key != y->key) return x->key > y->key;
    if (p->order == WEIR_ORDER_PRIORITY) return x->ticket < y->ticket;
    return x->committed < y->committed;
}

/* How many that are being filled hold it back. */
static unsigned fillings_before(const struct program *p, const struct ask *a, const struct thing *t)
{
    unsigned n = 0;
    bool in_order = p->order == WEIR_ORDER_FIFO || a->by_key;
    if (!in_order || p->consumers == WEIR_CONSUMERS_LATEST || p->poisoned) return 0;
    for (unsigned i = 0; i < p->items; i++)
        n += concerns(p, &p->thing[i], a) && !p->thing[i].committed && p->thing[i].ticket < t->ticket;
    return n;
}

/* The item due to such a consumer, else NULL, and in *status why. */
static struct thing *due(struct program *p, const struct ask *a, weir_status *status)
{
    struct thing *found = NULL;
    unsigned n_concerned = 0, index = a->peeks && !a->by_key ? (unsigned)a->which : 0;
    bool busy = false;
    for (unsigned i = 0; i < HELD_MOST; i++)
        busy |= p->held[i].thing && !p->held[i].peeked;
    for (unsigned i = 0; i < p->items; i++) {
        struct thing *t = &p->thing[i];
        n_concerned += concerns(p, t, a);
        if (!concerns(p, t, a) || !t->committed || fillings_before(p, a, t)) continue;
        unsigned before = 0;
        for (unsigned k = 0; k < p->items; k++)
            before += concerns(p, &p->thing[k], a) && p->thing[k].committed && k != i &&
                      precedes(p, a, &p->thing[k], t);
        if (before == index) found = t;
    }
    *status = WEIR_WOULD_BLOCK;
    if (p->poisoned && !found) *status = WEIR_POISONED;
    if (!p->poisoned && p->closed && n_concerned <= index) *status = WEIR_CLOSED;
    if (*status != WEIR_WOULD_BLOCK) return NULL;
    return p->consumers == WEIR_CONSUMERS_STRICT && busy && !a->peeks ? NULL : found;
}

static void model_commit(struct program *p, struct thing *t)
{
    t->committed = ++p->commits;
    for (int i = 0; i < ACTORS; i++)
        t->owed[i] = p->actor[i] != 0;
    if (p->consumers != WEIR_CONSUMERS_LATEST) return;
    bool newer = t->ticket > p->newest;
    for (unsigned i = 0; i < p->items; i++) {
        struct thing *x = &p->thing[i];
        if (!x->ticket || !x->committed || !x->waits || (newer ? x == t : x != t)) continue;
        x->waits = false;
        end_if_over(x);
    }
    if (newer) p->newest = t->ticket;
}

/* ---- producing --------------------------------------------------------------------------------------- */

static struct thing *free_thing(struct program *p)
{
    for (unsigned i = 0; i < p->items; i++)
        if (p->thing[i].ticket == 0) return &p->thing[i];
    return NULL;
}

/* A reserve has succeeded: in a full queue of the LATEST kind an unread item had to go for it. */
static struct thing *model_reserve(struct program *p, uint64_t ticket, int64_t key)
{
    struct thing *t = free_thing(p), *oldest = NULL;
    if (!t) {
        assert_int_equal(p->consumers, WEIR_CONSUMERS_LATEST);
        for (unsigned i = 0; i < p->items; i++) {
            struct thing *x = &p->thing[i];
            bool unread = x->committed && x->waits && x->holds == 0;
            if (unread && (!oldest || x->ticket < oldest->ticket)) oldest = x;
        }
        assert_non_null(oldest);
        t = oldest;
    }
    assert_true(ticket > p->tickets);
    p->tickets = ticket;
    *t = (struct thing){.ticket = ticket, .key = key, .waits = true};
    return t;
}

static void assert_refused(const struct program *p, weir_status s)
{
    weir_status ended = p->poisoned ? WEIR_POISONED : WEIR_CLOSED;
    assert_int_equal(s, p->poisoned || p->closed ? ended : WEIR_WOULD_BLOCK);
}

static void step_reserve(struct program *p)
{
    weir_item item;
    int64_t key = draw(p, 4);
    weir_status s = weir_queue_reserve_key(p->w.queue, key, 4 * (1 + draw(p, ITEM / 4)), 0, &item);
    if (s != WEIR_OK) {
        assert_refused(p, s);
        return;
    }
    struct thing *t = model_reserve(p, item.ticket, key);
    t->filling = item;
    t->tag = draw(p, UINT32_MAX);
}

static void step_put(struct program *p)
{
    uint32_t words[16], tag = draw(p, UINT32_MAX);
    uint64_t ticket;
    int64_t key = draw(p, 4);
    bool is_new = draw(p, 2), there = false;
    for (unsigned i = 0; i < p->items; i++)
        there |= p->thing[i].ticket != 0 && p->thing[i].key == key;
    write_words(words, sizeof words, tag);
    weir_span span = {words, sizeof words};
    unsigned flags = is_new ? WEIR_PUSH_NEW_KEY : WEIR_PUSH_COPY;
    weir_status s = weir_queue_put(p->w.queue, key, &span, 1, flags, 0, &ticket);
    if (s != WEIR_OK && is_new && there && !p->closed && !p->poisoned) {
        assert_int_equal(s, WEIR_IN_USE);
    } else if (s != WEIR_OK) {
        assert_refused(p, s);
    } else {
        assert_false(is_new && there);
        struct thing *t = model_reserve(p, ticket, key);
        t->tag = tag;
        model_commit(p, t);
    }
}

static void step_commit(struct program *p)
{
    struct thing *t = &p->thing[draw(p, p->items)];
    for (unsigned i = 0; i < p->items && (!t->ticket || t->committed); i++)
        t = &p->thing[i];
    if (!t->ticket || t->committed) return;
    bool cancelled = !t->waits;
    if (draw(p, 6) == 0) {
        OK(weir_queue_abort(p->w.queue, &t->filling));
        t->ticket = 0;
        return;
    }
    write_item(&p->w, &t->filling, t->tag);
    weir_status s = weir_queue_commit(p->w.queue, &t->filling);
    assert_int_equal(s, cancelled ? WEIR_STALE_HANDLE : p->poisoned ? WEIR_POISONED : WEIR_OK);
    if (s == WEIR_OK)
        model_commit(p, t);
    else
        t->ticket = 0;
}

static void step_cancel(struct program *p)
{
    struct thing *t = &p->thing[draw(p, p->items)];
    bool all = draw(p, 8) == 0, there = t->ticket && t->waits;
    weir_status s =
        all ? weir_queue_clear(p->w.queue) : weir_queue_cancel(p->w.queue, t->ticket ? t->ticket : 1u << 30);
    assert_int_equal(s, all || there ? WEIR_OK : WEIR_STALE_HANDLE);
    for (unsigned i = 0; i < p->items; i++) {
        struct thing *x = &p->thing[i];
        if (!x->ticket || !x->waits || (!all && x != t)) continue;
        x->waits = false;
        end_if_over(x);
    }
}

/* ---- consuming --------------------------------------------------------------------------------------- */

static weir_status call(struct program *p, const struct ask *a, weir_stream stream, weir_item *out)
{
    if (a->peeks) return weir_queue_peek(p->w.queue, a->which, stream, 0, out);
    if (a->by_key) return weir_queue_get(p->w.queue, a->which, stream, 0, out);
    if (a->actor >= 0) return weir_queue_acquire_as(p->w.queue, p->actor[a->actor], stream, 0, out);
    return weir_queue_acquire(p->w.queue, stream, 0, out);
}

static struct ask draw_ask(struct program *p)
{
    struct ask a = {.actor = -1, .which = draw(p, 4)};
    bool keyed = p->order == WEIR_ORDER_KEYED;
    a.peeks = p->consumers != WEIR_CONSUMERS_BROADCAST && draw(p, 4) == 0;
    if (registers(p) && !a.peeks) a.actor = (int)draw(p, ACTORS);
    a.by_key = keyed && (a.peeks || (a.actor < 0 && draw(p, 2)));
    bool indexed = p->order == WEIR_ORDER_FIFO && p->consumers != WEIR_CONSUMERS_LATEST;
    if (a.peeks && !a.by_key) a.which = indexed ? a.which % p->items : 0;
    return a;
}

static void model_deliver(struct program *p, struct held *h, const struct ask *a, struct thing *t)
{
    h->thing = t;
    h->actor = a->actor;
    h->peeked = a->peeks;
    t->holds++;
    if (a->peeks) return;
    if (p->consumers == WEIR_CONSUMERS_BROADCAST) t->owed[a->actor] = false;
    t->waits = false;
    for (int i = 0; i < ACTORS && p->consumers == WEIR_CONSUMERS_BROADCAST; i++)
        t->waits |= t->owed[i];
}

static void step_acquire(struct program *p)
{
    struct held *h = &p->held[draw(p, HELD_MOST)];
    struct ask a = draw_ask(p);
    if (h->thing) return;
    h->stream = (int)draw(p, WORLD_STREAMS);
    weir_status expected, got = call(p, &a, p->w.stream[h->stream], &h->item);
    if (a.actor >= 0 && !p->actor[a.actor]) {
        assert_int_equal(got, WEIR_STALE_HANDLE);
        return;
    }
    struct thing *t = due(p, &a, &expected);
    if (!t) {
        assert_int_equal(got, expected);
        return;
    }
    OK(got);
    assert_int_equal(h->item.ticket, t->ticket);
    assert_int_equal(h->item.key, t->key);
    model_deliver(p, h, &a, t);
    read_item_on(&p->w, &h->item, t->tag, h->stream);
}

static void model_release(struct held *h)
{
    h->thing->holds--;
    end_if_over(h->thing);
    h->thing = NULL;
}

static void step_release(struct program *p)
{
    struct held *h = &p->held[draw(p, HELD_MOST)];
    for (unsigned i = 0; i < HELD_MOST && !h->thing; i++)
        h = &p->held[i];
    if (!h->thing) return;
    weir_item copy = h->item;
    OK(weir_queue_release(p->w.queue, &h->item, NULL, 0));
    assert_int_equal(weir_queue_release(p->w.queue, &copy, NULL, 0), WEIR_STALE_HANDLE);
    model_release(h);
}

static void step_join(struct program *p)
{
    unsigned i = draw(p, ACTORS), others = 0;
    if (!registers(p) || p->actor[i]) return;
    for (int k = 0; k < ACTORS; k++)
        others += p->actor[k] != 0;
    OK(weir_queue_join(p->w.queue, &p->actor[i]));
    OK(weir_queue_eventfd(p->w.queue, WEIR_POLL_ITEM, p->actor[i], &p->fd[i]));
    for (unsigned k = 0; k < p->items && others == 0; k++)
        if (p->thing[k].committed && p->thing[k].waits) p->thing[k].owed[i] = true;
}

static void step_leave(struct program *p)
{
    int i = (int)draw(p, ACTORS);
    if (!p->actor[i]) return;
    OK(weir_queue_leave(p->w.queue, p->actor[i]));
    p->actor[i] = 0;
    close(p->fd[i]);
    p->fd[i] = -1;
    for (unsigned k = 0; k < HELD_MOST; k++)
        if (p->held[k].thing && p->held[k].actor == i) model_release(&p->held[k]);
    for (unsigned k = 0; k < p->items && p->consumers == WEIR_CONSUMERS_BROADCAST; k++) {
        struct thing *t = &p->thing[k];
        if (!t->ticket || !t->owed[i]) continue;
        t->owed[i] = false;
        t->waits = t->waits && (t->owed[0] || t->owed[1] || t->owed[2]);
        end_if_over(t);
    }
}

static void step_end(struct program *p)
{
    if (draw(p, 150)) return;
    if (draw(p, 2)) {
        assert_int_equal(weir_queue_close(p->w.queue), p->closed ? WEIR_CLOSED : WEIR_OK);
        p->closed = true;
    } else {
        assert_int_equal(weir_queue_poison(p->w.queue, 1, "x"), p->poisoned ? WEIR_POISONED : WEIR_OK);
        p->poisoned = true;
    }
}

/* ---- programs ---------------------------------------------------------------------------------------- */

static bool readable(int fd)
{
    struct pollfd f = {.fd = fd, .events = POLLIN};
    return poll(&f, 1, 0) == 1;
}

static void check(struct program *p)
{
    size_t size, ready = 0;
    OK(weir_queue_size(p->w.queue, &size));
    for (unsigned i = 0; i < p->items; i++)
        ready += p->thing[i].ticket && p->thing[i].committed && p->thing[i].waits;
    assert_int_equal(size, ready);
    for (int i = 0; i <= ACTORS; i++) {
        struct ask a = {.actor = i < ACTORS ? i : -1};
        weir_status s;
        if (p->fd[i] < 0) continue;
        bool there = due(p, &a, &s) || s != WEIR_WOULD_BLOCK;
        assert_int_equal(readable(p->fd[i]), there);
    }
}

static void step(struct program *p)
{
    static void (*const steps[])(struct program * p) = {step_reserve, step_reserve, step_put, step_commit,
        step_commit, step_acquire, step_acquire, step_release, step_release, step_cancel, step_join,
        step_leave, step_end};
    uint32_t what = draw(p, WR_ARRAY_LEN(steps) + 4);
    if (what < WR_ARRAY_LEN(steps))
        steps[what](p);
    else
        for (uint32_t n = draw(p, 8); n > 0; n--)
            wr_sim_step(p->w.sim);
    check(p);
}

static uint64_t n_delivered;

static void run_program(uint64_t seed)
{
    struct program *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->random = seed;
    p->items = 1 + draw(p, ITEMS_MOST);
    p->consumers = (weir_consumers)draw(p, WEIR_CONSUMERS_LATEST + 1);
    if (p->consumers < WEIR_CONSUMERS_BROADCAST) p->order = (weir_order)draw(p, WEIR_ORDER_PRIORITY + 1);
    struct wr_sim_options o = world_options();
    o.adversary_seed = seed;
    weir_queue_options q = queue_options(ITEM, p->items);
    q.pinned_bytes = ITEM * (p->items + draw(p, 4));
    q.order = p->order;
    q.consumers = p->consumers;
    open_world(&p->w, &o, 0, &q);
    for (int i = 0; i <= ACTORS; i++)
        p->fd[i] = -1;
    if (!registers(p)) OK(weir_queue_eventfd(p->w.queue, WEIR_POLL_ITEM, 0, &p->fd[ACTORS]));
    for (unsigned i = 0; i < STEPS; i++)
        step(p);
    wr_sim_drain(p->w.sim);
    assert_int_equal(weir_queue_wait_idle(p->w.queue, SECOND), used(p) ? WEIR_TIMEOUT : WEIR_OK);
    n_delivered += stats_of(p->w.queue).items_delivered;
    assert_true(stats_of(p->w.queue).peak_device_bytes <= (size_t)ITEM * p->items);
    assert_true(stats_of(p->w.queue).peak_pinned_bytes <= q.pinned_bytes);
    for (int i = 0; i <= ACTORS; i++)
        if (p->fd[i] >= 0) close(p->fd[i]);
    close_world(&p->w); /* with items in every state */
    free(p);
}

static unsigned n_programs = 1000;

static void test_programs_of_every_kind_do_what_the_model_says(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= n_programs; seed++)
        run_program(seed * UINT64_C(0x9e3779b97f4a7c15));
    print_message("%llu deliveries\n", (unsigned long long)n_delivered);
    assert_true(n_delivered > 10 * (uint64_t)n_programs); /* else they test nothing */
}

int main(int argc, char **argv)
{
    if (argc > 1) n_programs = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs_of_every_kind_do_what_the_model_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
