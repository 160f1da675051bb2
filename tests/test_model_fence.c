/* SPDX-License-Identifier: Apache-2.0
 *
 * All interleavings of a stamper, two tickers of which a record may fail, a poller, a thread that makes a
 * stream wait for a stamp, and the GPU, at the rules of fence.c:
 *
 *   - a stamp that reads as passed is of work that is over;
 *   - a stream that waits for a tick waits for that tick's record, and not for its event's next one;
 *   - the ring empties, and every event comes back.
 *
 * Each mutant breaks one rule of fence.h, and must be found out.
 */
#include "harness.h"
#include "model.h"

enum { STAMPER, TICKER, SECOND_TICKER, POLLER, WAITER, GPU, THREADS };
enum { USES = 2, TICKS = 3, EVENTS = 2 };
enum tick_state { UNUSED, BEGUN, RECORDED, FAILED };

enum mutant {
    NONE,
    STAMP_IS_ENQ,         /* the last tick begun, not the next, covers the use */
    STAMP_BEFORE_WORK,    /* the stamp is taken, then the work is queued */
    RECORD_BEFORE_NUMBER, /* the event is recorded, then the number is taken */
    BEGUN_IS_POLLED,      /* a begun tick's event is asked: it is complete from its last round (A05) */
    FAILED_IS_POLLED,     /* a failed tick's event is asked, too */
    FAILED_STAYS,         /* a failed tick is never popped */
    POLL_SKIPS_QUERY,     /* done moves without the driver's answer */
    POP_IGNORES_PINS,     /* an event goes back while a thread names it to the driver */
    POP_TAKES_BEGUN,      /* a tick that is being recorded goes because a later one has passed */
    WAIT_TAKES_BEGUN,     /* a stream is made to wait for an event that is not recorded yet */
    MUTANTS
};

struct tick {
    uint8_t state, event, pins;
};

/* An event's record: how much of the stream's work it covers, and for which tick; 0: a round long gone. */
struct event {
    uint8_t taken, covers, tick;
};

struct fence {
    uint8_t mutant, broken;
    uint8_t enq, done, oldest;    /* the ring is the ticks oldest..enq */
    uint8_t queued, progress;     /* work of the stream: queued, run */
    struct tick ticks[TICKS + 2]; /* by number */
    struct event events[EVENTS];
    uint8_t stamps[USES + 1]; /* of the n-th work */
    uint8_t failures_left;
    uint8_t pc[THREADS], rounds[THREADS];
    uint8_t number[THREADS], event[THREADS]; /* a thread's locals */
};

enum { AT_STALE_WAIT = 1, AT_LOST_TICK };

static void start(void *state, int mutant)
{
    struct fence *f = state;
    *f = (struct fence){.mutant = (uint8_t)mutant, .oldest = 1, .failures_left = 1};
}

/* ---- the stamper: work, then stamp ------------------------------------------------------------------- */

static void take_stamp(struct fence *f, unsigned work)
{
    f->stamps[work] = f->mutant == STAMP_IS_ENQ ? f->enq : f->enq + 1;
}

static bool step_stamper(struct fence *f)
{
    if (f->rounds[STAMPER] == USES) return false;
    bool work_now = (f->pc[STAMPER] == 0) != (f->mutant == STAMP_BEFORE_WORK);
    if (work_now)
        f->queued++;
    else
        take_stamp(f, f->rounds[STAMPER] + 1u);
    f->rounds[STAMPER] += f->pc[STAMPER];
    f->pc[STAMPER] = !f->pc[STAMPER];
    return true;
}

/* ---- tickers: event, number, record, end ------------------------------------------------------------- */

enum { TAKE_EVENT, BEGIN, RECORD, END };

static const uint8_t ticks_of[THREADS] = {[TICKER] = 2, [SECOND_TICKER] = TICKS - 2};

static bool take_event(struct fence *f, unsigned t)
{
    for (uint8_t e = 0; e < EVENTS; e++) {
        if (f->events[e].taken) continue;
        f->events[e].taken = 1;
        f->event[t] = e;
        f->pc[t] = f->mutant == RECORD_BEFORE_NUMBER ? RECORD : BEGIN;
        return true;
    }
    return false; /* the real one makes a new event; here the poller gives one back */
}

static bool begin(struct fence *f, unsigned t)
{
    f->number[t] = ++f->enq;
    f->ticks[f->enq] = (struct tick){.state = BEGUN, .event = f->event[t]};
    if (f->mutant == RECORD_BEFORE_NUMBER) f->events[f->event[t]].tick = f->enq;
    f->pc[t] = f->mutant == RECORD_BEFORE_NUMBER ? END : RECORD;
    return true;
}

static void end(struct fence *f, unsigned t, enum tick_state s)
{
    if (f->number[t] < f->oldest) f->broken = AT_LOST_TICK;
    f->ticks[f->number[t]].state = (uint8_t)s;
    f->number[t] = f->event[t] = 0;
    f->pc[t] = TAKE_EVENT;
    f->rounds[t]++;
}

/* The driver takes the record, or (choice 1, once) fails. A failed record leaves the event as it was. */
static bool record(struct fence *f, unsigned t, bool fails)
{
    if (fails && (f->failures_left == 0 || f->mutant == RECORD_BEFORE_NUMBER)) return false;
    if (fails) {
        f->failures_left--;
        end(f, t, FAILED);
        return true;
    }
    f->events[f->event[t]] = (struct event){.taken = 1, .covers = f->queued, .tick = f->number[t]};
    f->pc[t] = f->mutant == RECORD_BEFORE_NUMBER ? BEGIN : END;
    return true;
}

static bool step_ticker(struct fence *f, unsigned t, unsigned choice)
{
    if (f->rounds[t] == ticks_of[t] || (choice == 1 && f->pc[t] != RECORD)) return false;
    switch (f->pc[t]) {
    case TAKE_EVENT:
        return take_event(f, t);
    case BEGIN:
        return begin(f, t);
    case RECORD:
        return record(f, t, choice == 1);
    default:
        end(f, t, RECORDED);
        return true;
    }
}

/* ---- the poller -------------------------------------------------------------------------------------- */

enum { LOOK, QUERY, PUBLISH };

static bool pop(struct fence *f)
{
    struct tick *tick = &f->ticks[f->oldest];
    if (tick->pins > 0 && f->mutant != POP_IGNORES_PINS) return false;
    f->events[tick->event].taken = 0;
    *tick = (struct tick){0};
    f->oldest++;
    return true;
}

/* Choice 0: the oldest goes, if it may. n: the n-th in the ring is to be asked, whatever is known of those before
 * it: the real one asks some of them. */
static bool look(struct fence *f, unsigned choice)
{
    uint8_t number = (uint8_t)(f->oldest + (choice > 0 ? choice - 1 : 0));
    if (number > f->enq) return false;
    struct tick *tick = &f->ticks[number];
    bool recorded = tick->state == RECORDED || (tick->state == BEGUN && f->mutant == BEGUN_IS_POLLED) ||
                    (tick->state == FAILED && f->mutant == FAILED_IS_POLLED);
    if (choice == 0) {
        bool passed = number <= f->done && (recorded || f->mutant == POP_TAKES_BEGUN);
        bool failed = tick->state == FAILED && f->mutant != FAILED_STAYS && f->mutant != FAILED_IS_POLLED;
        return (passed || failed) && pop(f);
    }
    if (!recorded || number <= f->done) return false;
    tick->pins++;
    f->number[POLLER] = number;
    f->pc[POLLER] = QUERY;
    return true;
}

/* Off the lock. No answer yet: the poller looks again later. */
static bool query(struct fence *f)
{
    struct tick *tick = &f->ticks[f->number[POLLER]];
    bool over = f->events[tick->event].covers <= f->progress || f->mutant == POLL_SKIPS_QUERY;
    if (over) {
        f->pc[POLLER] = PUBLISH;
    } else {
        tick->pins--;
        f->number[POLLER] = 0;
        f->pc[POLLER] = LOOK;
    }
    return true;
}

static bool publish(struct fence *f)
{
    f->ticks[f->number[POLLER]].pins--;
    f->done = f->number[POLLER];
    f->number[POLLER] = 0;
    f->pc[POLLER] = LOOK;
    return true;
}

static bool step_poller(struct fence *f, unsigned choice)
{
    if (choice > 0 && f->pc[POLLER] != LOOK) return false;
    switch (f->pc[POLLER]) {
    case LOOK:
        return look(f, choice);
    case QUERY:
        return query(f);
    default:
        return publish(f);
    }
}

/* ---- the waiter: finds a tick that covers the first work, pins it, names its event ------------------- */

static bool find_cover(struct fence *f)
{
    uint8_t stamp = f->stamps[1];
    if (stamp == 0 || stamp <= f->done) return false;
    for (uint8_t n = f->oldest; n <= f->enq; n++) {
        bool usable =
            f->ticks[n].state == RECORDED || (f->ticks[n].state == BEGUN && f->mutant == WAIT_TAKES_BEGUN);
        if (n < stamp || !usable) continue;
        f->ticks[n].pins++;
        f->number[WAITER] = n;
        f->event[WAITER] = f->ticks[n].event;
        f->pc[WAITER] = 1;
        return true;
    }
    return false;
}

static bool step_waiter(struct fence *f)
{
    if (f->pc[WAITER] == 0) return f->rounds[WAITER] == 0 && find_cover(f);
    if (f->pc[WAITER] == 1) { /* the driver call */
        if (f->events[f->event[WAITER]].tick != f->number[WAITER]) f->broken = AT_STALE_WAIT;
        f->pc[WAITER] = 2;
        return true;
    }
    f->ticks[f->number[WAITER]].pins--;
    f->pc[WAITER] = f->number[WAITER] = f->event[WAITER] = 0;
    f->rounds[WAITER] = 1;
    return true;
}

static bool step(void *state, unsigned t, unsigned choice)
{
    struct fence *f = state;
    if (t == TICKER || t == SECOND_TICKER) return choice < 2 && step_ticker(f, t, choice);
    if (t == POLLER) return choice <= EVENTS && step_poller(f, choice);
    if (choice > 0) return false;
    switch (t) {
    case STAMPER:
        return step_stamper(f);
    case WAITER:
        return step_waiter(f);
    default:
        if (f->progress == f->queued) return false;
        f->progress++;
        return true;
    }
}

static const char *broken(const void *state)
{
    const struct fence *f = state;
    if (f->broken == AT_STALE_WAIT) return "a stream waits for another tick's record";
    if (f->broken == AT_LOST_TICK) return "a tick is off the ring while it is recorded";
    for (unsigned work = 1; work <= USES; work++)
        if (f->stamps[work] != 0 && f->stamps[work] <= f->done && work > f->progress)
            return "a stamp reads as passed while its work runs";
    return NULL;
}

static bool ended(const void *state)
{
    const struct fence *f = state;
    for (int e = 0; e < EVENTS; e++)
        if (f->events[e].taken) return false;
    return f->enq == TICKS && f->oldest == TICKS + 1 && f->pc[WAITER] == 0 && f->rounds[STAMPER] == USES;
}

static const struct model fence = {.state_bytes = sizeof(struct fence),
    .n_threads = THREADS,
    .start = start,
    .step = step,
    .broken = broken,
    .ended = ended};

static void test_no_stamp_passes_early_and_no_event_is_lost(void **state)
{
    (void)state;
    size_t n;
    const char *found = model_check(&fence, NONE, &n);
    printf("fence: %zu states\n", n);
    if (found != NULL) fail_msg("%s", found);
}

static void test_every_mutant_of_the_fence_is_found_out(void **state)
{
    (void)state;
    for (int mutant = NONE + 1; mutant < MUTANTS; mutant++) {
        size_t n;
        const char *found = model_check(&fence, mutant, &n);
        if (found == NULL)
            fail_msg("mutant %d keeps all rules", mutant);
        else
            printf("fence, mutant %d: %s\n", mutant, found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_stamp_passes_early_and_no_event_is_lost),
        cmocka_unit_test(test_every_mutant_of_the_fence_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
