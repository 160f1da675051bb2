/* SPDX-License-Identifier: Apache-2.0
 *
 * A small model checker. A model is a state of plain bytes and a few threads; each thread's next step is
 * atomic and may come in several ways (choices). All interleavings are tried, each state once. Reported is
 * the first state that breaks a rule, or in which no thread can go on although the model has not ended: a
 * deadlock.
 *
 * What it does not see: orders weaker than sequential consistency. For those the arguments stand beside the
 * code.
 */
#ifndef WR_TESTS_MODEL_H
#define WR_TESTS_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_CHOICES = 3 };

struct model {
    size_t state_bytes; /* zeroed to begin with, padding included; compared as bytes */
    unsigned n_threads;
    void (*start)(void *state, int mutant);
    /* One step of a thread in one of its ways; false: not possible now, the state is unchanged. */
    bool (*step)(void *state, unsigned thread, unsigned choice);
    const char *(*broken)(const void *state); /* the rule that does not hold; NULL: all do */
    bool (*ended)(const void *state);         /* may nothing more happen? */
};

/* States met so far, in a table of hashes to their places; those from `next` on are still to be gone on from.
 */
struct model_states {
    size_t bytes, n, capacity, next;
    char *states;
    uint32_t *table; /* place + 1 */
    size_t mask;
};

static inline uint64_t model_hash(const void *state, size_t bytes) /* FNV-1a */
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)state)[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static inline void model_place(struct model_states *m, size_t place)
{
    size_t i = model_hash(m->states + place * m->bytes, m->bytes) & m->mask;
    while (m->table[i] != 0)
        i = (i + 1) & m->mask;
    m->table[i] = (uint32_t)place + 1;
}

static inline void model_grow(struct model_states *m)
{
    m->capacity = m->capacity == 0 ? 1024 : m->capacity * 2;
    char *states = calloc(m->capacity, m->bytes);
    if (states != NULL && m->n > 0) memcpy(states, m->states, m->n * m->bytes);
    free(m->states);
    m->states = states;
    free(m->table);
    m->mask = m->capacity * 2 - 1;
    m->table = calloc(m->mask + 1, sizeof *m->table);
    if (m->states == NULL || m->table == NULL) abort();
    for (size_t place = 0; place < m->n; place++)
        model_place(m, place);
}

/* Adds a state unless it was met before. */
static inline void model_add(struct model_states *m, const char *state)
{
    if (m->n == m->capacity) model_grow(m);
    for (size_t i = model_hash(state, m->bytes) & m->mask; m->table[i] != 0; i = (i + 1) & m->mask)
        if (memcmp(m->states + (m->table[i] - 1) * m->bytes, state, m->bytes) == 0) return;
    memcpy(m->states + m->n * m->bytes, state, m->bytes);
    model_place(m, m->n++);
}

/* Every way on from the state. False: there is none. */
static inline bool model_go_on(
    const struct model *model, struct model_states *m, const void *state, void *scratch)
{
    bool any = false;
    for (unsigned thread = 0; thread < model->n_threads; thread++) {
        for (unsigned choice = 0; choice < MODEL_CHOICES; choice++) {
            memcpy(scratch, state, m->bytes);
            if (!model->step(scratch, thread, choice)) continue;
            any = true;
            model_add(m, scratch);
        }
    }
    return any;
}

/* NULL: every reachable state keeps the rules. *n_states is how many there are. */
static inline const char *model_check(const struct model *model, int mutant, size_t *n_states)
{
    struct model_states m = {.bytes = model->state_bytes};
    char *state = calloc(2, m.bytes);
    if (state == NULL) abort();
    const char *broken = NULL;
    model->start(state, mutant);
    model_add(&m, state);
    while (broken == NULL && m.next < m.n) {
        memcpy(state, m.states + m.next++ * m.bytes, m.bytes);
        broken = model->broken(state);
        if (broken == NULL && !model_go_on(model, &m, state, state + m.bytes) && !model->ended(state))
            broken = "deadlock";
    }
    *n_states = m.n;
    free(state);
    free(m.states);
    free(m.table);
    return broken;
}

#endif
