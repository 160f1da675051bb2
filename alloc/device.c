/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices by name: each is opened once, at first use, and kept until the process ends; one that was lost is
 * opened anew. And a wall clock.
 */
#define _GNU_SOURCE 1 /* pthread_cond_clockwait */
#include "device.h"
#include "device_sim.h"
#include "edges.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A device of the registry. Being opened (device NULL) it keeps its place, so that a second thread that asks
 * for the same one waits for the first instead of opening it twice. No lock is held meanwhile: opening calls
 * the driver. */
struct entry {
    struct entry *next;
    struct wr_device *device;
    int ordinal;
    char kind[64]; /* "cuda" or "sim:PROFILE" */
};

/* LOCK: guards the list and its entries. */
static struct wr_lock registry_lock = {PTHREAD_MUTEX_INITIALIZER, WR_RANK_REGISTRY};
static pthread_cond_t registry_changed = PTHREAD_COND_INITIALIZER;
static struct entry *registry;
static struct wr_device *lost; /* devices replaced: their pools may still name them */

static struct entry *find_entry(const char *kind, int ordinal)
{
    for (struct entry *e = registry; e; e = e->next)
        if (e->ordinal == ordinal && strcmp(e->kind, kind) == 0) return e;
    return NULL;
}

static void remove_entry(struct entry *gone)
{
    struct entry **link = &registry;
    while (*link != gone)
        link = &(*link)->next;
    *link = gone->next;
    free(gone);
}

/* The kind in full, so that one device has one name; NULL where there is no such kind. */
static const char *full_kind(const char *kind)
{
    if (!kind) kind = getenv("WEIR_DEVICE");
    if (!kind || !*kind) return "cuda";
    if (strcmp(kind, "sim") == 0) return "sim:" WR_SIM_DEFAULT_PROFILE;
    bool known =
        strcmp(kind, "cuda") == 0 || (strncmp(kind, "sim:", 4) == 0 && wr_sim_profile_find(kind + 4));
    return known ? kind : NULL;
}

static weir_status open_kind(const char *kind, int ordinal, struct wr_device **out)
{
    if (strcmp(kind, "cuda") == 0) return wr_device_cuda_open(ordinal, out);
    return wr_device_sim_open(kind + strlen("sim:"), ordinal, out);
}

/* Opens the device of an entry that this call has just added. LOCK: held at entry and exit, not while
 * opening. */
static weir_status open_entry_locked(struct entry *e, struct wr_device **out)
{
    struct wr_device *device = NULL;
    wr_lock_give(&registry_lock);
    wr_edges_arm(); /* a fork from now on leaves the child something half made */
    weir_status s = open_kind(e->kind, e->ordinal, &device);
    if (s == WEIR_OK) wr_edges_arm();
    wr_lock_take(&registry_lock);
    if (s == WEIR_OK) {
        assert(device);
        e->device = device;
        *out = device;
    } else {
        remove_entry(e); /* a later call may have more luck: the error is not remembered */
    }
    pthread_cond_broadcast(&registry_changed);
    return s;
}

static weir_status get_locked(const char *kind, int ordinal, struct wr_device **out)
{
    struct entry *e;
    while ((e = find_entry(kind, ordinal)) && !e->device)
        wr_device_doze_wall(&registry_changed, &registry_lock, WR_NS_PER_SEC);
    if (e && atomic_load(&e->device->gone) != WEIR_OK) {
        e->device->next_lost = lost;
        lost = e->device;
        e->device = NULL;
        return open_entry_locked(e, out);
    }
    if (e) {
        *out = e->device;
        return WEIR_OK;
    }
    if (!(e = calloc(1, sizeof *e)))
        return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a device's entry");
    assert(strlen(kind) < sizeof e->kind); /* full_kind knows them all */
    strcpy(e->kind, kind);
    e->ordinal = ordinal;
    e->next = registry;
    registry = e;
    return open_entry_locked(e, out);
}

weir_status wr_device_get(const char *kind, int ordinal, struct wr_device **out)
{
    const char *full = full_kind(kind);
    if (!full)
        return wr_fail(WEIR_NO_DEVICE, "no device kind \"%s\": it is \"cuda\", or \"sim[:PROFILE]\"",
            kind ? kind : getenv("WEIR_DEVICE"));
    if (ordinal < 0) return wr_fail(WEIR_NO_DEVICE, "no device %d: ordinals count from 0", ordinal);
    weir_status s = wr_edges_check();
    if (s != WEIR_OK) return s;
    wr_lock_take(&registry_lock);
    s = get_locked(full, ordinal, out);
    wr_lock_give(&registry_lock);
    return s;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / WR_NS_PER_SEC), (long)(ns % WR_NS_PER_SEC)};
}

static uint64_t read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * WR_NS_PER_SEC + (uint64_t)t.tv_nsec;
}

uint64_t wr_device_wall_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

/* The coarse clock stands still for a tick of the kernel: 1 or 4 ms, where it is not set to 10. */
static clockid_t choose_coarse_clock(void)
{
    struct timespec tick;
    bool fine = clock_getres(CLOCK_MONOTONIC_COARSE, &tick) == 0 && tick.tv_sec == 0 &&
                tick.tv_nsec <= WR_COARSE_MOST_NS;
    return fine ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
}

uint64_t wr_device_coarse_ns(void)
{
    static _Atomic clockid_t chosen = -1; /* two threads that find it so choose the same */
    clockid_t clock = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (WR_UNLIKELY(clock == -1)) {
        clock = choose_coarse_clock();
        atomic_store_explicit(&chosen, clock, memory_order_relaxed);
    }
    return read_clock(clock);
}

void wr_device_doze_wall(pthread_cond_t *wake, struct wr_lock *held, uint64_t ns)
{
    uint64_t longest = UINT64_MAX / 4; /* centuries, and the sum can't wrap */
    struct timespec until = timespec_of(wr_device_wall_ns() + wr_min(ns, longest));
    wr_locks_note_given(held->rank);
    pthread_cond_clockwait(wake, &held->mutex, CLOCK_MONOTONIC, &until);
    wr_locks_note_taken(held->rank);
}
