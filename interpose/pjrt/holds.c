/* SPDX-License-Identifier: Apache-2.0
 *
 * Things of the plug-in's that a transfer still needs, though their owner may be done with them: a Destroy is put off
 * until the last release. Few are held at a time; while none is, the hooked functions cost one load.
 */
#include "hook.h"

#include <stdlib.h>

enum { BUCKETS = 64 };

struct hold {
    struct hold *next;
    const void *thing;
    unsigned count;
    bool destroyed; /* by its owner: it is ours to destroy */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the holds */
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static struct hold *buckets[BUCKETS];
static _Atomic size_t n_held;

static struct hold **find(const void *thing)
{
    uint64_t hash = (uint64_t)(uintptr_t)thing * UINT64_C(0x9e3779b97f4a7c15);
    struct hold **h = &buckets[hash >> 58];
    while (*h && (*h)->thing != thing)
        h = &(*h)->next;
    return h;
}

bool wr_pjrt_hold(void *thing)
{
    struct hold *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return false;
    pthread_mutex_lock(&lock);
    struct hold **at = find(thing);
    if (!*at) {
        *fresh = (struct hold){.thing = thing};
        *at = fresh;
        fresh = NULL;
        atomic_fetch_add(&n_held, 1);
    }
    (*at)->count++;
    pthread_mutex_unlock(&lock);
    free(fresh);
    return true;
}

void wr_pjrt_release(void *thing, int destroy_place)
{
    struct hold *over = NULL;
    pthread_mutex_lock(&lock);
    struct hold **at = find(thing);
    if (--(*at)->count == 0) {
        over = *at;
        *at = over->next;
        atomic_fetch_sub(&n_held, 1);
        pthread_cond_broadcast(&released);
    }
    pthread_mutex_unlock(&lock);
    if (over && over->destroyed) wr_pjrt_do(destroy_place, thing);
    free(over);
}

static void await_release(const void *thing)
{
    bool waited = false;
    pthread_mutex_lock(&lock);
    while (*find(thing)) {
        if (!waited) atomic_fetch_add(&wr_pjrt_hook.counters.execute_waits, 1);
        waited = true;
        pthread_cond_wait(&released, &lock);
    }
    pthread_mutex_unlock(&lock);
}

/* True: it is held, and will be destroyed later. */
static bool put_off(const void *thing)
{
    if (!thing || atomic_load(&n_held) == 0) return false;
    pthread_mutex_lock(&lock);
    struct hold *h = *find(thing);
    if (h) h->destroyed = true;
    pthread_mutex_unlock(&lock);
    return h != NULL;
}

static struct pjrt_error *destroy(int place, struct pjrt_one *args)
{
    return put_off(args->subject) ? NULL : wr_pjrt_hook.original[place](args);
}

struct pjrt_error *wr_pjrt_destroy_buffer(void *args)
{
    return destroy(PJRT_BUFFER_DESTROY, args);
}

struct pjrt_error *wr_pjrt_destroy_event(void *args)
{
    return destroy(PJRT_EVENT_DESTROY, args);
}

/* ---- sources ----------------------------------------------------------------------------------------- */

bool wr_pjrt_hold_source(struct pjrt_buffer *b, uint64_t *address)
{
    if (!wr_pjrt_hold(b)) return false;
    if (!wr_pjrt_do(PJRT_BUFFER_INCREASE_EXTERNAL_REFERENCE_COUNT, b)) {
        wr_pjrt_release(b, PJRT_BUFFER_DESTROY);
        return false;
    }
    *address = (uintptr_t)wr_pjrt_get(PJRT_BUFFER_OPAQUE_DEVICE_MEMORY_DATA_POINTER, b);
    if (*address) return true;
    wr_pjrt_release_source(b);
    return false;
}

void wr_pjrt_release_source(struct pjrt_buffer *b)
{
    wr_pjrt_do(PJRT_BUFFER_DECREASE_EXTERNAL_REFERENCE_COUNT, b);
    wr_pjrt_release(b, PJRT_BUFFER_DESTROY);
}

/* An argument that is being read may be one that the execution is to take over, which its reference forbids. */
struct pjrt_error *wr_pjrt_execute(void *args)
{
    struct pjrt_execute *a = args;
    if (atomic_load(&n_held) == 0) return wr_pjrt_hook.original[PJRT_LOADED_EXECUTABLE_EXECUTE](args);
    bool known = wr_pjrt_is_known(a->executable);
    for (size_t i = 0; i < a->n_arguments; i++)
        for (size_t d = 0; d < a->n_devices && wr_pjrt_may_take(a->executable, i); d++)
            await_release(a->arguments[d][i]);
    struct pjrt_error *e = wr_pjrt_hook.original[PJRT_LOADED_EXECUTABLE_EXECUTE](args);
    if (!e && !known) wr_pjrt_learn_taken(a);
    return e;
}
