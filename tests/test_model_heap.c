/* SPDX-License-Identifier: Apache-2.0
 *
 * All interleavings around a heap that a thread remembers without a lock (heaps.c), while its stream is
 * retired, the heap ends, and its struct serves another stream:
 *
 *   LATE      frees a block by its address (so by the tag of its page), allocates from the heap that it
 *             remembers, and frees that
 *   RETIRER   retires the stream and lets go of its own pin
 *   VISITOR   walks the directory and pins what it finds (the ladder)
 *   OPENER    opens the next stream's heap, in the spare struct if there is one, and allocates there
 *
 * Rules: a block comes from a heap that serves the caller's stream, and goes back to the heap that it came
 * from; a pinned heap serves one stream all the while; a heap that ends has no block and no pin. Each mutant
 * breaks one rule of heaps.c, and must be found out. A step stands for a section under the latch, or for a
 * read without it.
 */
#include "harness.h"
#include "model.h"

enum { LATE, RETIRER, VISITOR, OPENER, THREADS };
enum { STRUCTS = 2, INDICES = 2, REMEMBERED = 1 /* the first struct, + 1 */ };
enum { NO_STREAM, OLD_STREAM, NEW_STREAM }; /* ids */

enum mutant {
    NONE,
    REMEMBERED_IS_TRUSTED, /* wr_heaps_serves is not asked under the lock */
    SERVES_COMPARES_ID,    /* it compares the id alone: a heap between two lives still has the last one's */
    RETIRED_SERVES,        /* a retired heap, still remembered, is served from */
    PIN_IS_NOT_COUNTED,    /* wr_heaps_pin does not count its user */
    PIN_DOES_NOT_LOOK,     /* it does not look under the lock whether the heap is still there */
    END_IGNORES_PINS,      /* a heap ends under its users */
    END_IGNORES_BLOCKS,    /* a heap ends with live blocks */
    MUTANTS
};

struct heap {
    uint8_t open; /* heap->pool != NULL */
    uint8_t id, index, users, blocks, retired, spare;
};

struct heaps {
    uint8_t mutant, broken;
    struct heap heaps[STRUCTS];
    uint8_t directory[INDICES]; /* struct + 1 */
    uint8_t by_id[NEW_STREAM + 1];
    uint8_t pc[THREADS];
    uint8_t heap[THREADS]; /* the struct + 1 that a thread has in hand */
    uint8_t saw_id;        /* the visitor's pin: what it pinned */
    uint8_t block_home; /* struct + 1 of LATE's first block, for as long as it lives; the tag is its index */
};

enum { OK, BAD_SERVICE, BAD_FREE, BAD_PIN, BAD_END };

static void start(void *state, int mutant)
{
    struct heaps *m = state;
    *m = (struct heaps){.mutant = (uint8_t)mutant};
    m->heaps[0] = (struct heap){.open = 1, .id = OLD_STREAM, .blocks = 1};
    m->heaps[1] = (struct heap){.spare = 0};
    m->directory[0] = m->by_id[OLD_STREAM] = m->heap[LATE] = m->block_home = 1;
}

static struct heap *in_hand(struct heaps *m, unsigned t)
{
    return &m->heaps[m->heap[t] - 1];
}

static bool serves(const struct heaps *m, const struct heap *h, uint8_t id)
{
    if (m->mutant == REMEMBERED_IS_TRUSTED) return true;
    if (m->mutant == SERVES_COMPARES_ID) return h->id == id;
    return h->id == id && h->open && (!h->retired || m->mutant == RETIRED_SERVES);
}

/* Under the latch: the last of wr_heaps_unpin, and close_heap_locked. */
static void end_if_over(struct heaps *m, struct heap *h)
{
    bool pinned = h->users > 0 && m->mutant != END_IGNORES_PINS;
    bool used = h->blocks > 0 && m->mutant != END_IGNORES_BLOCKS;
    if (!h->open || !h->retired || pinned || used) return;
    if (h->blocks > 0) m->broken = BAD_END;
    m->directory[h->index] = 0;
    h->open = 0; /* the id stays, as in the struct */
    h->spare = 1;
}

static bool unpin(struct heaps *m, unsigned t)
{
    struct heap *h = in_hand(m, t);
    if (m->mutant != PIN_IS_NOT_COUNTED || t != VISITOR) h->users--;
    end_if_over(m, h);
    m->heap[t] = 0;
    return true;
}

/* ---- LATE --------------------------------------------------------------------------------------------- */

static void serve_one(struct heaps *m, struct heap *h, uint8_t id)
{
    if (!h->open || h->id != id || h->retired) m->broken = BAD_SERVICE;
    h->blocks++;
}

static void take_back_one(struct heaps *m, struct heap *h, uint8_t id)
{
    if (!h->open || h->id != id || h->blocks == 0) {
        m->broken = BAD_FREE;
        return;
    }
    h->blocks--;
    end_if_over(m, h); /* in the code with the next unpin: no earlier */
}

static bool step_late(struct heaps *m)
{
    switch (m->pc[LATE]) {
    case 0: /* free of the first block: tag -> directory, without a lock */
        m->heap[LATE] = m->directory[0];
        break;
    case 1: /* under the lock */
        if (m->heap[LATE] != m->block_home) {
            m->broken = BAD_FREE;
            return true;
        }
        take_back_one(m, in_hand(m, LATE), OLD_STREAM);
        m->block_home = 0;
        m->heap[LATE] = REMEMBERED;
        break;
    case 2: /* alloc: the remembered heap, asked under its lock; a miss ends in the table, which has none */
        m->pc[LATE] += !serves(m, in_hand(m, LATE), OLD_STREAM);
        if (m->pc[LATE] == 2) serve_one(m, in_hand(m, LATE), OLD_STREAM);
        break;
    case 3:
        take_back_one(m, in_hand(m, LATE), OLD_STREAM);
        break;
    default:
        return false;
    }
    m->pc[LATE]++;
    return true;
}

/* ---- RETIRER ----------------------------------------------------------------------------------------- */

static bool step_retirer(struct heaps *m)
{
    uint8_t found = m->by_id[OLD_STREAM];
    switch (m->pc[RETIRER]++) {
    case 0: /* pins */
        m->heap[RETIRER] = found;
        in_hand(m, RETIRER)->users++;
        return true;
    case 1: /* the last tick is taken off the lock; then: */
        m->by_id[OLD_STREAM] = 0;
        in_hand(m, RETIRER)->retired = 1;
        return true;
    case 2:
        return unpin(m, RETIRER);
    default:
        m->pc[RETIRER]--;
        return false;
    }
}

/* ---- VISITOR: twice over both indices ---------------------------------------------------------------- */

enum { VISITS = 4 };

static bool step_visitor(struct heaps *m)
{
    uint8_t visit = m->pc[VISITOR] / 3, index = visit % INDICES;
    if (visit == VISITS) return false;
    switch (m->pc[VISITOR] % 3) {
    case 0: /* wr_heaps_at, without a lock */
        m->heap[VISITOR] = m->directory[index];
        m->pc[VISITOR] += m->heap[VISITOR] == 0 ? 3 : 1;
        return true;
    case 1: { /* under the lock */
        struct heap *h = in_hand(m, VISITOR);
        bool here = (h->open && h->index == index) || m->mutant == PIN_DOES_NOT_LOOK;
        if (here && !h->open) m->broken = BAD_PIN;
        if (here && m->mutant != PIN_IS_NOT_COUNTED) h->users++;
        m->saw_id = here ? h->id : 0;
        m->pc[VISITOR] += here ? 1 : 2;
        return true;
    }
    default: /* its fence was ticked and polled meanwhile, off the lock: the same stream's, it must be */
        if (!in_hand(m, VISITOR)->open || in_hand(m, VISITOR)->id != m->saw_id) m->broken = BAD_PIN;
        m->saw_id = 0;
        m->pc[VISITOR]++;
        return unpin(m, VISITOR);
    }
}

/* ---- OPENER ------------------------------------------------------------------------------------------ */

static bool open_heap(struct heaps *m)
{
    uint8_t index = m->directory[0] == 0 ? 0 : 1;
    struct heap *h = in_hand(m, OPENER);
    h->open = 1;
    h->id = NEW_STREAM;
    h->index = index;
    h->users = h->blocks = h->retired = 0;
    m->directory[index] = m->heap[OPENER];
    m->by_id[NEW_STREAM] = m->heap[OPENER];
    return true;
}

static bool step_opener(struct heaps *m)
{
    switch (m->pc[OPENER]++) {
    case 0: /* obtain_heap: the spare one, else a new one */
        m->heap[OPENER] = m->heaps[0].spare ? 1 : 2;
        m->heaps[0].spare = 0;
        return true;
    case 1:
        return open_heap(m);
    case 2:
        serve_one(m, in_hand(m, OPENER), NEW_STREAM);
        return true;
    case 3:
        take_back_one(m, in_hand(m, OPENER), NEW_STREAM);
        return true;
    default:
        m->pc[OPENER]--;
        return false;
    }
}

static bool step(void *state, unsigned t, unsigned choice)
{
    static bool (*const steps[THREADS])(struct heaps *) = {
        step_late, step_retirer, step_visitor, step_opener};
    return choice == 0 && steps[t](state);
}

static const char *broken(const void *state)
{
    static const char *const rules[] = {NULL, "a block from a heap that does not serve the stream",
        "a block goes back to a heap that it is not of", "a pinned heap changes under its user",
        "a heap ends with a block"};
    return rules[((const struct heaps *)state)->broken];
}

/* Retired, without blocks and pins: the old heap has ended. */
static bool ended(const void *state)
{
    const struct heaps *m = state;
    return m->pc[LATE] >= 4 && m->by_id[OLD_STREAM] == 0 &&
           !(m->heaps[0].open && m->heaps[0].id == OLD_STREAM);
}

static const struct model heaps = {.state_bytes = sizeof(struct heaps),
    .n_threads = THREADS,
    .start = start,
    .step = step,
    .broken = broken,
    .ended = ended};

static void test_a_remembered_heap_is_served_from_only_while_it_is_the_streams(void **state)
{
    (void)state;
    size_t n;
    const char *found = model_check(&heaps, NONE, &n);
    printf("heap: %zu states\n", n);
    if (found != NULL) fail_msg("%s", found);
}

static void test_every_mutant_of_the_heaps_is_found_out(void **state)
{
    (void)state;
    for (int mutant = NONE + 1; mutant < MUTANTS; mutant++) {
        size_t n;
        const char *found = model_check(&heaps, mutant, &n);
        if (found == NULL)
            fail_msg("mutant %d keeps all rules", mutant);
        else
            printf("heap, mutant %d: %s\n", mutant, found);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_remembered_heap_is_served_from_only_while_it_is_the_streams),
        cmocka_unit_test(test_every_mutant_of_the_heaps_is_found_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
