/* SPDX-License-Identifier: Apache-2.0
 *
 * The replay ring, over the queue and the engine.
 *
 * HOME is a stream of the ring's own, on which nothing runs but waits. Before rows are written it waits for the
 * gathers that read them (weir_queue_borrowed_by), the copy comes after it, and then it waits for the copy. A gather
 * comes after it, so it reads what was written before.
 *
 * TURNS. One call at a time plans and queues, so that no gather slips between the two waits of a writer. Whoever has
 * the turn never waits for a place in the queue: it gives the turn up and looks again.
 *
 * SAMPLERS stand in a line, and only its head tries: nobody who asks for fewer rows overtakes one who waits for the
 * ratio, or that one might wait for ever.
 *
 * LOCK: guards the turn, the counts and the line. No driver call under it. What rows hold is the turn's.
 */
#include "edges.h"
#include "queue.h"
#include "weir_ring.h"

#include <stdlib.h>
#include <string.h>

struct row {
    bool held;        /* fit to be sampled */
    uint64_t read_by; /* ticket of the last batch that reads it; 0: none */
};

struct weir_ring {
    struct wr_lock lock; /* guards all down to stats */
    struct weir_ring *next_shell;
    unsigned inside;
    bool closed, torn_down, turn;
    struct wr_waiter *waiters, *samplers; /* for the turn; to sample */
    weir_ring_stats stats;                /* the counters in it */

    weir_ring_options options; /* constant from open to the end, down to memory */
    weir_pool *pool;
    weir_queue *batches;
    weir_engine *engine;
    struct wr_copier home;
    weir_dptr memory;

    struct row *rows; /* the turn's, from here on */
    size_t next;
    bool reads_unknown;  /* a push failed that may have begun to read */
    bool joins;          /* home must wait for `written` still */
    weir_ticket written; /* the last insert */
};

/* LOCK: guards the list of all rings ever opened, which keeps them reachable, for leak checkers. */
static struct wr_lock shells_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static struct weir_ring *shells;

/* ---- calls in and out -------------------------------------------------------------------------------- */

/* The rows are free behind the gathers and the last insert. A step that fails leaves them with nobody. */
static void give_rows(weir_ring *r)
{
    weir_status s = weir_queue_borrowed_by(r->batches, 0, r->home.stream);
    if (s == WEIR_OK) s = weir_copy_join(r->engine, r->written, r->home.stream);
    if (s == WEIR_OK) (void)weir_free(r->pool, r->memory, r->home.stream);
}

/* The last one out. No lock: nobody else comes here, and all that look see `closed`. */
static void tear_down(weir_ring *r)
{
    give_rows(r);
    (void)weir_engine_close(r->engine); /* nothing of it goes to pageable memory: it closes */
    wr_copy_close(&r->home);
    free(r->rows);
    wr_pool_unhold(r->pool);
}

static weir_status fail_closed(void)
{
    return wr_fail(WEIR_CLOSED, "the ring is closed");
}

/* LOCK: taken on OK. PAIRS: leave. */
static weir_status enter(weir_ring *r)
{
    if (!r) return wr_fail(WEIR_INVALID_ARGUMENT, "the ring is NULL");
    weir_status over = wr_edges_check();
    if (over != WEIR_OK) return over;
    wr_lock_take(&r->lock);
    bool closed = r->closed;
    r->inside += !closed;
    if (!closed) return WEIR_OK;
    wr_lock_give(&r->lock);
    return fail_closed();
}

/* LOCK: gives it. Passes on the status. */
static weir_status leave(weir_ring *r, weir_status s)
{
    bool last = --r->inside == 0 && r->closed && !r->torn_down;
    r->torn_down |= last;
    wr_lock_give(&r->lock);
    if (last) tear_down(r);
    return s;
}

/* LOCK: held, given up while asleep. Turns are short. */
static weir_status take_turn(weir_ring *r)
{
    struct wr_waiter me;
    weir_status s = WEIR_OK;
    wr_line_join(&r->waiters, &me, -1);
    while (s == WEIR_OK && r->turn && !r->closed)
        s = wr_line_doze(&me, r->home.device, &r->lock, WR_CAUSE_TURN, false);
    wr_line_leave(&r->waiters, &me);
    if (s == WEIR_OK && r->closed) s = fail_closed();
    if (s == WEIR_OK) r->turn = true;
    return s;
}

static void give_turn(weir_ring *r)
{
    r->turn = false;
    wr_line_wake_all(r->waiters);
}

/* ---- inserting --------------------------------------------------------------------------------------- */

/* Home goes on behind the last insert: done once, or again where it failed. */
static weir_status join_written(weir_ring *r)
{
    if (!r->joins) return WEIR_OK;
    weir_status s = weir_copy_join(r->engine, r->written, r->home.stream);
    r->joins = s != WEIR_OK;
    return s;
}

/* Home waits for the gathers that read any of these rows, which hold nothing until they are written. */
static weir_status clear_rows(weir_ring *r, size_t n)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < n; i++) {
        struct row *row = &r->rows[(r->next + i) % r->options.rows];
        newest = wr_max(newest, row->read_by);
        row->held = false;
    }
    if (WR_FAULT(RING_WRITES_UNDER_READER) || (newest == 0 && !r->reads_unknown)) return WEIR_OK;
    weir_status s = weir_queue_borrowed_by(r->batches, r->reads_unknown ? 0 : newest, r->home.stream);
    if (s == WEIR_OK) r->reads_unknown = false;
    return s;
}

static weir_status copy_rows(weir_ring *r, const void *from, size_t n, int64_t timeout_ns)
{
    size_t bytes = r->options.row_bytes, n_first = wr_min(n, r->options.rows - r->next);
    uint64_t host = (uintptr_t)from;
    const weir_piece pieces[] = {{.to = r->memory + r->next * bytes, .from = host, .bytes = n_first * bytes},
        {.to = r->memory,
            .from = host + n_first * bytes,
            .bytes = (n - n_first) * bytes}}; /* around the end */
    const weir_copy_options o = {
        .struct_size = sizeof o, .after = &r->home.stream, .n_after = 1, .timeout_ns = timeout_ns};
    weir_ticket ticket = {0};
    weir_status s = weir_copy(r->engine, WEIR_TO_DEVICE, pieces, n > n_first ? 2 : 1, &o, &ticket);
    if (ticket.lane == 0) return s;
    r->written = ticket;
    r->joins = true;
    weir_status joined = join_written(r);
    return s == WEIR_OK ? joined : s;
}

/* The turn is the caller's. */
static weir_status write_rows(weir_ring *r, const void *from, size_t n, int64_t timeout_ns)
{
    weir_status s = join_written(r);
    if (s == WEIR_OK) s = clear_rows(r, n);
    return s == WEIR_OK ? copy_rows(r, from, n, timeout_ns) : s;
}

weir_status weir_ring_insert(weir_ring *r, const void *rows, size_t n, int64_t timeout_ns, size_t *first)
{
    weir_status s = enter(r);
    if (s != WEIR_OK) return s;
    if (!rows || n == 0 || n > r->options.rows)
        return leave(
            r, wr_fail(WEIR_INVALID_ARGUMENT, "no rows, or more than the ring's %zu", r->options.rows));
    s = take_turn(r);
    if (s != WEIR_OK) return leave(r, s);
    wr_lock_give(&r->lock);
    s = write_rows(r, rows, n, timeout_ns);
    size_t at = r->next;
    for (size_t i = 0; i < n && s == WEIR_OK; i++)
        r->rows[(at + i) % r->options.rows] = (struct row){.held = true};
    wr_lock_take(&r->lock);
    if (s == WEIR_OK) {
        r->next = (at + n) % r->options.rows;
        r->stats.inserts += n;
        wr_line_wake(r->samplers);
        if (first) *first = at;
    }
    give_turn(r);
    return leave(r, s);
}

weir_status weir_ring_written(weir_ring *r, int64_t timeout_ns)
{
    weir_status s = enter(r);
    if (s != WEIR_OK) return s;
    s = take_turn(r);
    if (s != WEIR_OK) return leave(r, s);
    weir_ticket ticket = r->written;
    give_turn(r);
    wr_lock_give(&r->lock);
    s = weir_copy_wait(r->engine, ticket, timeout_ns);
    wr_lock_take(&r->lock);
    return leave(r, s);
}

/* ---- sampling ---------------------------------------------------------------------------------------- */

/* LOCK: held. */
static bool ratio_allows(const weir_ring *r, size_t n)
{
    const weir_ring_options *o = &r->options;
    if (r->stats.inserts < o->min_rows) return false;
    if (o->samples_per_insert == 0) return true;
    return (double)(r->stats.samples + n) <= (double)r->stats.inserts * o->samples_per_insert + o->slack;
}

static weir_status find_rows(const weir_ring *r, const size_t *indices, size_t n, weir_span *spans)
{
    for (size_t i = 0; i < n; i++) {
        if (indices[i] >= r->options.rows || !r->rows[indices[i]].held)
            return wr_fail(WEIR_INVALID_ARGUMENT, "row %zu holds nothing", indices[i]);
        uint64_t at = r->memory + indices[i] * r->options.row_bytes;
        spans[i] = (weir_span){(const void *)(uintptr_t)at, r->options.row_bytes};
    }
    return WEIR_OK;
}

/* Queues the gather, if the queue has a place now. The turn is the caller's. */
static weir_status gather(
    weir_ring *r, int64_t key, const size_t *indices, size_t n, weir_span *spans, uint64_t *ticket)
{
    weir_status s = join_written(r);
    if (s == WEIR_OK) s = find_rows(r, indices, n, spans);
    if (s != WEIR_OK) return s;
    const weir_push_options o = {.struct_size = sizeof o,
        .key = key,
        .flags = WEIR_PUSH_BORROW,
        .after = &r->home.stream,
        .n_after = WR_FAULT(RING_GATHERS_EARLY) ? 0 : 1};
    s = weir_queue_push_after(r->batches, spans, n, &o, ticket);
    if (s != WEIR_OK && s != WEIR_WOULD_BLOCK) r->reads_unknown = true;
    for (size_t i = 0; i < n && s == WEIR_OK; i++)
        r->rows[indices[i]].read_by = *ticket;
    return s;
}

/* One try, in a turn. *lacks says for what it was too early. LOCK: held, given up meanwhile. */
static weir_status try_sample(weir_ring *r, int64_t key, const size_t *indices, size_t n, weir_span *spans,
    uint64_t *ticket, enum wr_cause *lacks)
{
    weir_status s = take_turn(r);
    if (s != WEIR_OK) return s;
    *lacks = ratio_allows(r, n) ? WR_CAUSE_SLOT : WR_CAUSE_RATIO;
    if (*lacks == WR_CAUSE_RATIO) {
        give_turn(r);
        return WEIR_WOULD_BLOCK;
    }
    wr_lock_give(&r->lock);
    s = gather(r, key, indices, n, spans, ticket);
    wr_lock_take(&r->lock);
    if (s == WEIR_OK) r->stats.samples += n;
    give_turn(r);
    return s;
}

/* What the head of the line waits for. LOCK: held. */
static enum wr_cause head_lacks(const weir_ring *r)
{
    return r->samplers->cause ? r->samplers->cause : WR_CAUSE_SLOT;
}

/* The queue wakes nobody here, so a head that waits for a place looks again from time to time. LOCK: held. */
static weir_status sample(weir_ring *r, int64_t key, const size_t *indices, size_t n, weir_span *spans,
    int64_t timeout_ns, uint64_t *ticket)
{
    struct wr_waiter me;
    bool counted = false;
    weir_status s;
    wr_line_join(&r->samplers, &me, timeout_ns);
    do {
        bool tries = r->samplers == &me;
        enum wr_cause lacks = head_lacks(r);
        s = tries ? try_sample(r, key, indices, n, spans, ticket, &lacks) : WEIR_WOULD_BLOCK;
        if (s != WEIR_WOULD_BLOCK) break;
        r->stats.ratio_waits += lacks == WR_CAUSE_RATIO && !counted;
        counted |= lacks == WR_CAUSE_RATIO;
        s = r->closed ? fail_closed()
                      : wr_line_doze(&me, r->home.device, &r->lock, lacks, tries && lacks == WR_CAUSE_SLOT);
    } while (s == WEIR_OK);
    wr_line_leave(&r->samplers, &me);
    return s;
}

weir_status weir_ring_sample(
    weir_ring *r, int64_t key, const size_t *indices, size_t n, int64_t timeout_ns, uint64_t *ticket)
{
    uint64_t made;
    if (!indices || n == 0) return wr_fail(WEIR_INVALID_ARGUMENT, "no indices");
    weir_status s = enter(r);
    if (s != WEIR_OK) return s;
    wr_lock_give(&r->lock);
    weir_span *spans = calloc(n, sizeof *spans);
    wr_lock_take(&r->lock);
    s = spans ? sample(r, key, indices, n, spans, timeout_ns, &made)
              : wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a batch of %zu rows", n);
    if (s == WEIR_OK && ticket) *ticket = made;
    s = leave(r, s);
    free(spans);
    return s;
}

/* ---- open and close ---------------------------------------------------------------------------------- */

static weir_status check_options(weir_pool *pool, const weir_queue *batches, const weir_ring_options *o)
{
    size_t sum;
    if (!o || o->struct_size != sizeof *o)
        return wr_fail(WEIR_INVALID_ARGUMENT, "options with struct_size = %zu are needed", sizeof *o);
    if (o->rows == 0 || o->row_bytes == 0 || __builtin_mul_overflow(o->rows, o->row_bytes, &sum))
        return wr_fail(WEIR_INVALID_ARGUMENT, "%zu rows of %zu bytes are no ring", o->rows, o->row_bytes);
    if (o->min_rows > o->rows || !(o->samples_per_insert >= 0) || !(o->slack >= 0))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a ratio, its slack or min_rows that no ring can keep");
    const struct wr_origin *from = &batches->origin;
    if (batches->copier.pool != pool || from->direction != WEIR_ON_DEVICE || from->peer)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a queue ON_DEVICE, of the ring's pool, is needed");
    return WEIR_OK;
}

static weir_status open_memory(weir_ring *r)
{
    weir_status s = wr_copy_open(&r->home, r->pool);
    if (s != WEIR_OK) return s;
    const weir_engine_options engine = {
        .struct_size = sizeof engine, .flags = r->batches->copier.no_kernels ? WEIR_ENGINE_NO_KERNELS : 0};
    s = weir_engine_open(r->pool, &engine, &r->engine);
    if (s == WEIR_OK) {
        s = weir_alloc(r->pool, r->options.rows * r->options.row_bytes, r->home.stream, &r->memory);
        if (s != WEIR_OK) (void)weir_engine_close(r->engine);
    }
    if (s != WEIR_OK) wr_copy_close(&r->home);
    return s;
}

static weir_status open_rows(weir_ring *r)
{
    r->rows = calloc(r->options.rows, sizeof *r->rows);
    if (!r->rows) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %zu rows", r->options.rows);
    weir_status s = wr_pool_hold(r->pool);
    if (s != WEIR_OK) return s;
    s = open_memory(r);
    if (s != WEIR_OK) wr_pool_unhold(r->pool);
    return s;
}

weir_status weir_ring_open(
    weir_pool *pool, weir_queue *batches, const weir_ring_options *options, weir_ring **out)
{
    if (!pool || !batches || !out) return wr_fail(WEIR_INVALID_ARGUMENT, "pool, queue or place is NULL");
    weir_status s = check_options(pool, batches, options);
    if (s != WEIR_OK) return s;
    weir_ring *r = calloc(1, sizeof *r);
    if (!r) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a ring");
    r->options = *options;
    r->options.min_rows = wr_max(options->min_rows, 1);
    r->pool = pool;
    r->batches = batches;
    s = open_rows(r);
    if (s != WEIR_OK) {
        free(r->rows);
        free(r);
        return s;
    }
    wr_lock_init(&r->lock, WR_RANK_QUEUE);
    wr_lock_take(&shells_lock);
    r->next_shell = shells;
    shells = r;
    wr_lock_give(&shells_lock);
    *out = r;
    return WEIR_OK;
}

weir_status weir_ring_close(weir_ring *r)
{
    weir_status s = enter(r);
    if (s != WEIR_OK) return s;
    r->closed = true;
    wr_line_wake_all(r->waiters);
    wr_line_wake_all(r->samplers);
    return leave(r, WEIR_OK);
}

weir_status weir_ring_get_stats(weir_ring *r, weir_ring_stats *out)
{
    if (!out || out->struct_size < sizeof out->struct_size)
        return wr_fail(WEIR_INVALID_ARGUMENT, "stats with struct_size = %zu are needed", sizeof *out);
    weir_status s = enter(r);
    if (s != WEIR_OK) return s;
    s = take_turn(r);
    if (s != WEIR_OK) return leave(r, s);
    weir_ring_stats now = r->stats;
    now.struct_size = out->struct_size;
    for (size_t i = 0; i < r->options.rows; i++)
        now.rows_held += r->rows[i].held;
    for (const struct wr_waiter *w = r->samplers; w; w = w->next)
        now.samplers_waiting += w->cause != WR_CAUSE_NOTHING;
    memcpy(out, &now, wr_min(out->struct_size, sizeof now));
    give_turn(r);
    return leave(r, WEIR_OK);
}
