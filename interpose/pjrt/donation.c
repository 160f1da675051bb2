/* SPDX-License-Identifier: Apache-2.0
 *
 * Which arguments an executable takes over. The ABI does not say, but a buffer that was taken over reads as deleted
 * after the call, and an executable is compiled for the same arguments every time. So one whose arguments are being
 * read waits for all of them once, is looked at afterwards, and from then on waits for those alone that it takes.
 */
#include "hook.h"

#include <stdlib.h>

enum { BUCKETS = 64 };

struct known {
    struct known *next;
    const void *executable;
    size_t n;
    bool taken[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the lists */
static struct known *buckets[BUCKETS];
static _Atomic size_t n_known;

static struct known **find(const void *executable)
{
    uint64_t hash = (uint64_t)(uintptr_t)executable * UINT64_C(0x9e3779b97f4a7c15);
    struct known **k = &buckets[hash >> 58];
    while (*k && (*k)->executable != executable)
        k = &(*k)->next;
    return k;
}

bool wr_pjrt_may_take(const void *executable, size_t argument)
{
    pthread_mutex_lock(&lock);
    const struct known *k = *find(executable);
    bool may = !k || argument >= k->n || k->taken[argument];
    pthread_mutex_unlock(&lock);
    return may;
}

bool wr_pjrt_is_known(const void *executable)
{
    pthread_mutex_lock(&lock);
    bool known = *find(executable) != NULL;
    pthread_mutex_unlock(&lock);
    return known;
}

/* A call may name arguments that are not to be taken this time: nothing is learned from it. */
static bool is_telling(const struct pjrt_execute *a)
{
    const struct pjrt_execute_options *o = a->options;
    return a->n_devices > 0 && (!o || (o->struct_size >= sizeof *o && o->n_not_donated == 0));
}

void wr_pjrt_learn_taken(const struct pjrt_execute *a)
{
    struct known *k = is_telling(a) ? calloc(1, sizeof *k + a->n_arguments * sizeof *k->taken) : NULL;
    if (!k) return;
    k->executable = a->executable;
    k->n = a->n_arguments;
    for (size_t i = 0; i < k->n; i++) {
        struct pjrt_get_number args = {.struct_size = sizeof args, .subject = a->arguments[0][i]};
        k->taken[i] = !wr_pjrt_call(PJRT_BUFFER_IS_DELETED, &args) || args.value.yes;
    }
    pthread_mutex_lock(&lock);
    struct known **at = find(a->executable);
    if (!*at) {
        *at = k;
        k = NULL;
        atomic_fetch_add(&n_known, 1);
    }
    pthread_mutex_unlock(&lock);
    free(k);
}

/* Another may get its address. */
static void forget(const void *executable)
{
    if (atomic_load(&n_known) == 0) return;
    pthread_mutex_lock(&lock);
    struct known **at = find(executable), *k = *at;
    if (k) {
        *at = k->next;
        atomic_fetch_sub(&n_known, 1);
    }
    pthread_mutex_unlock(&lock);
    free(k);
}

struct pjrt_error *wr_pjrt_destroy_executable(void *args)
{
    struct pjrt_one *a = args;
    forget(a->subject);
    return wr_pjrt_hook.original[PJRT_LOADED_EXECUTABLE_DESTROY](args);
}
