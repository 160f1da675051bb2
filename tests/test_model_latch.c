/* SPDX-License-Identifier: Apache-2.0
 *
 * All interleavings of three threads at wr_latch (base.h, base.c): at most one holds it, and nobody sleeps
 * for ever. Each mutant breaks one thing that the latch's argument rests on, and must be found out.
 */
#include "harness.h"
#include "model.h"

enum { THREADS = 3, ROUNDS = 2 };
enum { TAKE, SPIN, EXCHANGE, WAIT, ASLEEP, INSIDE, GIVE_LATE, WAKE, DONE };

enum mutant {
    NONE,
    GIVE_NEVER_WAKES,       /* wake_slow is left out */
    WAITER_LEAVES_ONE,      /* take_slow exchanges 1 and not 2: a second sleeper is forgotten */
    WAIT_DOES_NOT_COMPARE,  /* as futex would without its expected value */
    NAP_HAS_NO_END,         /* as futex would without its timeout */
    TAKE_LOOKS_THEN_STORES, /* two steps in place of the compare-exchange */
    MUTANTS
};

struct latch {
    uint8_t mutant, word;
    uint8_t
        spurious; /* wake-ups without a reason that are still to come: one, or no sleeper were ever stuck */
    uint8_t pc[THREADS], seen[THREADS], rounds[THREADS];
    uint8_t overslept[THREADS]; /* asleep as a give overwrote a 2 that it had not seen: the clock wakes it */
};

static void start(void *state, int mutant)
{
    struct latch *l = state;
    *l = (struct latch){.mutant = (uint8_t)mutant, .spurious = 1};
}

static bool leave(struct latch *l, unsigned t)
{
    l->pc[t] = ++l->rounds[t] < ROUNDS ? TAKE : DONE;
    return true;
}

/* The fast path's compare-exchange; the mutant's two halves meet at INSIDE with seen set. */
static bool take(struct latch *l, unsigned t)
{
    bool is_free = l->word == 0;
    if (is_free && l->mutant == TAKE_LOOKS_THEN_STORES) {
        l->seen[t] = 1;
        l->pc[t] = INSIDE;
        return true;
    }
    if (is_free) l->word = 1;
    l->pc[t] = is_free ? INSIDE : SPIN;
    return true;
}

static bool spin(struct latch *l, unsigned t, bool gives_up)
{
    if (!gives_up && l->word != 0) return false;
    if (!gives_up) l->word = 1;
    l->pc[t] = gives_up ? EXCHANGE : INSIDE;
    return true;
}

static bool exchange(struct latch *l, unsigned t)
{
    uint8_t old = l->word;
    l->word = l->mutant == WAITER_LEAVES_ONE ? 1 : 2;
    l->pc[t] = old == 0 ? INSIDE : WAIT;
    return true;
}

/* The kernel compares and falls asleep in one step. */
static bool wait(struct latch *l, unsigned t)
{
    uint8_t expected = l->mutant == WAITER_LEAVES_ONE ? 1 : 2;
    bool sleeps = l->word == expected || l->mutant == WAIT_DOES_NOT_COMPARE;
    l->pc[t] = sleeps ? ASLEEP : EXCHANGE;
    return true;
}

static bool wake_spuriously(struct latch *l, unsigned t)
{
    bool by_clock = l->overslept[t] && l->mutant != NAP_HAS_NO_END;
    if (l->spurious == 0 && !by_clock) return false;
    l->spurious -= !by_clock;
    l->overslept[t] = 0;
    l->pc[t] = EXCHANGE;
    return true;
}

static bool give(struct latch *l, unsigned t)
{
    if (l->mutant == TAKE_LOOKS_THEN_STORES && l->seen[t]) { /* the store of the take */
        l->seen[t] = 0;
        l->word = 1;
        return true;
    }
    l->seen[t] = l->word;
    l->pc[t] = GIVE_LATE;
    return true;
}

static bool give_late(struct latch *l, unsigned t)
{
    bool sleepers = l->seen[t] == 2;
    for (unsigned i = 0; i < THREADS && !sleepers && l->word == 2; i++)
        l->overslept[i] |= l->pc[i] == WAIT || l->pc[i] == ASLEEP;
    l->seen[t] = 0;
    l->word = 0;
    if (!sleepers || l->mutant == GIVE_NEVER_WAKES) return leave(l, t);
    l->pc[t] = WAKE;
    return true;
}

/* Any one of the sleepers, if there is one. */
static bool wake(struct latch *l, unsigned t, unsigned which)
{
    unsigned asleep = 0;
    for (unsigned i = 0; i < THREADS; i++)
        asleep += l->pc[i] == ASLEEP;
    if (asleep == 0) return which == 0 && leave(l, t);
    if (which >= THREADS || l->pc[which] != ASLEEP) return false;
    l->overslept[which] = 0;
    l->pc[which] = EXCHANGE;
    return leave(l, t);
}

static bool step(void *state, unsigned t, unsigned choice)
{
    struct latch *l = state;
    if (l->pc[t] == WAKE) return wake(l, t, choice);
    if (l->pc[t] == SPIN) return choice < 2 && spin(l, t, choice == 1);
    if (choice > 0) return false;
    switch (l->pc[t]) {
    case TAKE:
        return take(l, t);
    case EXCHANGE:
        return exchange(l, t);
    case WAIT:
        return wait(l, t);
    case ASLEEP:
        return wake_spuriously(l, t);
    case INSIDE:
        return give(l, t);
    case GIVE_LATE:
        return give_late(l, t);
    default:
        return false;
    }
}

static const char *broken(const void *state)
{
    const struct latch *l = state;
    unsigned inside = 0;
    for (unsigned t = 0; t < THREADS; t++)
        inside += (l->pc[t] == INSIDE && !l->seen[t]) || l->pc[t] == GIVE_LATE;
    return inside > 1 ? "two hold the latch" : NULL;
}

static bool ended(const void *state)
{
    const struct latch *l = state;
    for (unsigned t = 0; t < THREADS; t++)
        if (l->pc[t] != DONE) return false;
    return l->word == 0;
}

static const struct model latch = {.state_bytes = sizeof(struct latch),
    .n_threads = THREADS,
    .start = start,
    .step = step,
    .broken = broken,
    .ended = ended};

static void test_one_holds_the_latch_and_nobody_sleeps_for_ever(void **state)
{
    (void)state;
    size_t n;
    const char *found = model_check(&latch, NONE, &n);
    printf("latch: %zu states\n", n);
    if (found != NULL) fail_msg("%s", found);
}

static void test_every_mutant_of_the_latch_is_found_out(void **state)
{
    (void)state;
    for (int mutant = NONE + 1; mutant < MUTANTS; mutant++) {
        size_t n;
        const char *found = model_check(&latch, mutant, &n);
        if (found == NULL)
            fail_msg("mutant %d keeps all rules", mutant);
        else
            printf("latch, mutant %d: %s\n", mutant, found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_holds_the_latch_and_nobody_sleeps_for_ever),
        cmocka_unit_test(test_every_mutant_of_the_latch_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
