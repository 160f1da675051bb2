/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads for what neither the program's threads nor the plug-in's may do: wait for a copy, and release what it read.
 * Started with the first transfer that needs them, asleep while nothing is to do, never ended.
 */
#include "hook.h"

enum { WORKERS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t submitted = PTHREAD_COND_INITIALIZER, idle = PTHREAD_COND_INITIALIZER;
static struct wr_pjrt_job *first, **last = &first;
static unsigned n_workers, n_open; /* jobs expected, waiting or running */

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first)
            pthread_cond_wait(&submitted, &lock);
        struct wr_pjrt_job *job = first;
        first = job->next;
        if (!first) last = &first;
        pthread_mutex_unlock(&lock);
        job->run(job);
        pthread_mutex_lock(&lock);
        if (--n_open == 0) pthread_cond_broadcast(&idle);
    }
    return NULL;
}

bool wr_pjrt_start_workers(void)
{
    pthread_mutex_lock(&lock);
    while (n_workers < WORKERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0) break;
        pthread_detach(thread);
        n_workers++;
    }
    bool some = n_workers > 0;
    pthread_mutex_unlock(&lock);
    return some;
}

void wr_pjrt_expect_job(void)
{
    pthread_mutex_lock(&lock);
    n_open++;
    pthread_mutex_unlock(&lock);
}

void wr_pjrt_cancel_job(void)
{
    pthread_mutex_lock(&lock);
    if (--n_open == 0) pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&lock);
}

void wr_pjrt_submit(struct wr_pjrt_job *job)
{
    pthread_mutex_lock(&lock);
    job->next = NULL;
    *last = job;
    last = &job->next;
    pthread_cond_signal(&submitted);
    pthread_mutex_unlock(&lock);
}

void wr_pjrt_drain_workers(void)
{
    pthread_mutex_lock(&lock);
    while (n_open > 0)
        pthread_cond_wait(&idle, &lock);
    pthread_mutex_unlock(&lock);
}
