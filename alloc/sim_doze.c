/* SPDX-License-Identifier: Apache-2.0
 *
 * Dozing on the simulated clocks.
 *
 * With several sleepers on a virtual clock, time may jump only when nobody has anything left to do at this
 * moment. That all of them doze does not say so: one may have been signalled a moment ago. So a sleep is cut
 * into slices of real time, after each of which the caller looks at its condition again. A round begins when
 * somebody dozes who did something else before, or is signalled; time jumps when all have dozed since, that
 * is, have looked and found nothing to do. Real time decides only how soon.
 */
#define _GNU_SOURCE 1 /* pthread_cond_clockwait */
#include "sim.h"

#include <errno.h>
#include <time.h>

enum { SLICE_NS = 200 * 1000 };

static struct sim_sleeper *find_sleeper(struct wr_sim *w)
{
    uint64_t thread = wr_sim_thread();
    for (size_t i = 0; i < w->n_sleepers; i++)
        if (w->sleepers[i].thread == thread) return &w->sleepers[i];
    w->sleepers = wr_sim_grow(w->sleepers, w->n_sleepers, &w->sleepers_capacity, sizeof *w->sleepers);
    w->sleepers[w->n_sleepers] = (struct sim_sleeper){.thread = thread};
    return &w->sleepers[w->n_sleepers++];
}

/* Moves time to the earliest end if enough threads have dozed off in this round. */
static void jump_if_all_doze(struct wr_sim *w)
{
    uint64_t earliest = UINT64_MAX;
    unsigned n = 0;
    for (size_t i = 0; i < w->n_sleepers; i++) {
        const struct sim_sleeper *s = &w->sleepers[i];
        if (!s->asleep || s->round != w->round || s->end_ns <= w->now) continue;
        earliest = wr_min(earliest, s->end_ns);
        n++;
    }
    if (n >= w->options.sleepers) wr_sim_engine_advance(w, earliest - w->now);
}

/* Enters the caller as asleep. True: its time has come already. */
static bool fall_asleep(struct wr_sim *w, pthread_cond_t *wake, uint64_t ns)
{
    struct sim_sleeper *me = find_sleeper(w);
    uint64_t end = w->now + wr_min(ns, UINT64_MAX / 4);
    bool looked_again = me->timed_out && me->wake == wake && me->end_ns == end;
    if (!looked_again) w->round++;
    *me = (struct sim_sleeper){
        .thread = me->thread, .end_ns = end, .round = w->round, .wake = wake, .asleep = true};
    jump_if_all_doze(w);
    return me->end_ns <= w->now;
}

static void wake_up(struct wr_sim *w, bool timed_out)
{
    struct sim_sleeper *me = find_sleeper(w);
    me->asleep = false;
    me->timed_out = timed_out;
    if (!timed_out) w->round++;
}

static bool sleep_slice(pthread_cond_t *wake, struct wr_lock *held)
{
    uint64_t end = wr_device_wall_ns() + SLICE_NS;
    struct timespec until = {(time_t)(end / WR_NS_PER_SEC), (long)(end % WR_NS_PER_SEC)};
    wr_locks_note_given(held->rank);
    int error = pthread_cond_clockwait(wake, &held->mutex, CLOCK_MONOTONIC, &until);
    wr_locks_note_taken(held->rank);
    return error == ETIMEDOUT;
}

static void doze_among(struct wr_sim *w, pthread_cond_t *wake, struct wr_lock *held, uint64_t ns)
{
    pthread_mutex_lock(&w->mutex);
    bool due = fall_asleep(w, wake, ns);
    pthread_mutex_unlock(&w->mutex);
    bool timed_out = !due && sleep_slice(wake, held);
    pthread_mutex_lock(&w->mutex);
    wake_up(w, timed_out);
    pthread_mutex_unlock(&w->mutex);
}

void wr_sim_doze(struct wr_device *d, pthread_cond_t *wake, struct wr_lock *held, uint64_t ns)
{
    struct wr_sim *w = sim_device_of(d)->world;
    if (w->options.wall_clock) {
        wr_device_doze_wall(wake, held, ns);
    } else if (w->options.sleepers > 1) {
        doze_among(w, wake, held, ns);
    } else {
        wr_lock_give(held);
        wr_sim_advance(w, ns);
        wr_lock_take(held);
    }
}
