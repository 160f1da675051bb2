/* SPDX-License-Identifier: Apache-2.0
 *
 * The crew is the process's: however many engines and queues, the threads are as many as help. They are started at
 * the first haul that is worth it, sleep where there is nothing to do, and never end; at exit and in a child of fork
 * nothing asks for them any more (edges.h), and who would ask works alone.
 *
 * A job is cut into slices, which helpers and owner take one by one from a common count. It is its owner's memory: a
 * helper is counted in under the crew's lock, and the owner leaves when no slice is left and the last helper is out. An
 * owner who has begun the next job before he ends one leaves no helper idle in between.
 *
 * Large copies bypass the cache: what is staged is read by the copy engine next, and would drive out what computes
 * on the host.
 */
#include "crew.h"
#include "edges.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    SLICE_LEAST = 256 << 10,
    SLICE_FRESH =
        2 << 20, /* a huge page: threads that touch one together for the first time wait for each other */
    SLICES_A_HAND = 2, /* so that nobody waits long for the last one */
    ALONE_MOST = 256 << 10,
    HELPERS_MOST = 11,
    STREAMED_LEAST = 4096,
    LOOKS = 4000 /* some 50 us: chunks of a copy follow each other, and waking a sleeper costs as much */
};

/* LOCK: guards all of it. A plain mutex: nothing of weir is called under it. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct wr_crew_job *jobs;
    unsigned n_helpers;
    _Atomic unsigned most;   /* so many of them may work */
    _Atomic unsigned n_jobs; /* so many are on the list; written under the lock */
    bool started;
} crew = {.lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
    .most = HELPERS_MOST};

/* ---- copying ----------------------------------------------------------------------------------------- */

#if defined(__SSE2__)
static void copy_streamed(char *to, const char *from, size_t bytes)
{
    size_t head = (16 - (uintptr_t)to % 16) % 16;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        const __m128i *source = (const void *)from;
        __m128i *target = (void *)to;
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    memcpy(to, from, bytes);
    _mm_sfence(); /* streamed stores are seen by others before what this thread stores next */
}
#else
static void copy_streamed(char *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif

static void copy_bytes(char *to, const char *from, size_t bytes)
{
    if (bytes < STREAMED_LEAST)
        memcpy(to, from, bytes);
    else
        copy_streamed(to, from, bytes);
}

static void copy_haul(const struct wr_haul *h)
{
    for (size_t row = 0; row < h->rows; row++)
        copy_bytes((char *)h->to + row * h->to_pitch, (const char *)h->from + row * h->from_pitch, h->bytes);
}

/* ---- slices ------------------------------------------------------------------------------------------ */

/* A slice is so many bytes of a large haul, else the whole haul. */
static size_t count_slices(const struct wr_haul *h, size_t slice_bytes)
{
    return h->rows == 1 ? (h->bytes + slice_bytes - 1) / slice_bytes : 1;
}

static void copy_slice(const struct wr_haul *h, size_t slice, size_t slice_bytes)
{
    if (h->rows != 1) {
        copy_haul(h);
        return;
    }
    size_t at = slice * slice_bytes;
    copy_bytes((char *)h->to + at, (const char *)h->from + at, wr_min(slice_bytes, h->bytes - at));
}

/* Takes slices until none is left. */
static void work(struct wr_crew_job *j)
{
    size_t haul = 0, before = 0; /* slices of the hauls before */
    for (;;) {
        size_t slice = atomic_fetch_add_explicit(&j->taken, 1, memory_order_relaxed);
        while (haul < j->n && slice - before >= count_slices(&j->hauls[haul], j->slice_bytes))
            before += count_slices(&j->hauls[haul++], j->slice_bytes);
        if (haul == j->n) return;
        copy_slice(&j->hauls[haul], slice - before, j->slice_bytes);
    }
}

/* ---- helpers ----------------------------------------------------------------------------------------- */

static void leave_list(struct wr_crew_job *j)
{
    struct wr_crew_job **link = &crew.jobs;
    while (*link && *link != j)
        link = &(*link)->next;
    if (!*link) return;
    *link = j->next;
    atomic_fetch_sub(&crew.n_jobs, 1);
}

/* Looks for a job some time without the lock. */
static void look_out(void)
{
    for (int i = 0; i < LOOKS && atomic_load_explicit(&crew.n_jobs, memory_order_relaxed) == 0; i++)
        wr_pause();
}

static void *help(void *number)
{
    pthread_mutex_lock(&crew.lock);
    for (;;) {
        struct wr_crew_job *j = crew.jobs;
        if (!j || (uintptr_t)number >= crew.most) {
            pthread_cond_wait(&crew.work, &crew.lock);
            continue;
        }
        j->helpers++;
        pthread_mutex_unlock(&crew.lock);
        work(j);
        pthread_mutex_lock(&crew.lock);
        leave_list(j); /* no slice is left in it */
        if (--j->helpers == 0) pthread_cond_broadcast(&crew.done);
        if (crew.jobs) continue;
        pthread_mutex_unlock(&crew.lock);
        look_out();
        pthread_mutex_lock(&crew.lock);
    }
    return NULL;
}

/* With the owner three processors of four: eight hands don't quite keep up with the bus, twelve do. */
static unsigned count_wanted(void)
{
    static _Atomic long known; /* 0: not yet. The C library opens a file to find out: some 20 us */
    long processors = atomic_load_explicit(&known, memory_order_relaxed);
    if (processors == 0) {
        processors = sysconf(_SC_NPROCESSORS_ONLN);
        atomic_store_explicit(&known, processors, memory_order_relaxed);
    }
    return processors < 2 ? 0 : (unsigned)wr_min((uint64_t)(processors - processors / 4 - 1), HELPERS_MOST);
}

/* LOCK: crew.lock. A helper that can't be had is done without. */
static void start_helpers_slow(void)
{
    crew.started = true;
    for (unsigned wanted = count_wanted(); crew.n_helpers < wanted; crew.n_helpers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(uintptr_t)crew.n_helpers) != 0) return;
        pthread_detach(thread);
    }
}

unsigned wr_crew_hands(void)
{
    return (unsigned)wr_min(count_wanted(), crew.most) + 1;
}

void wr_crew_restrict(unsigned hands)
{
    pthread_mutex_lock(&crew.lock);
    crew.most = (unsigned)wr_min(hands > 0 ? hands - 1 : 0, HELPERS_MOST);
    pthread_cond_broadcast(&crew.work);
    pthread_mutex_unlock(&crew.lock);
}

static void put_on_list(struct wr_crew_job *j)
{
    pthread_mutex_lock(&crew.lock);
    if (!crew.started) start_helpers_slow();
    struct wr_crew_job **link = &crew.jobs;
    while (*link)
        link = &(*link)->next;
    *link = j;
    atomic_fetch_add(&crew.n_jobs, 1);
    pthread_cond_broadcast(&crew.work);
    pthread_mutex_unlock(&crew.lock);
}

void wr_crew_begin(struct wr_crew_job *j, const struct wr_haul *hauls, size_t n, bool fresh)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += hauls[i].bytes * hauls[i].rows;
    size_t share_bytes = wr_round_up(bytes / (SLICES_A_HAND * wr_crew_hands()), 4096);
    *j = (struct wr_crew_job){
        .hauls = hauls, .n = n, .slice_bytes = wr_max(share_bytes, fresh ? SLICE_FRESH : SLICE_LEAST)};
    j->shared = bytes > ALONE_MOST && wr_edges_check() == WEIR_OK;
    if (j->shared) put_on_list(j);
}

void wr_crew_end(struct wr_crew_job *j)
{
    work(j);
    if (!j->shared) return;
    pthread_mutex_lock(&crew.lock);
    leave_list(j);
    while (j->helpers > 0)
        pthread_cond_wait(&crew.done, &crew.lock);
    pthread_mutex_unlock(&crew.lock);
}

void wr_crew_haul(const struct wr_haul *hauls, size_t n, bool fresh)
{
    struct wr_crew_job j;
    wr_crew_begin(&j, hauls, n, fresh);
    wr_crew_end(&j);
}

void wr_crew_advise(void *to, size_t bytes)
{
    const uintptr_t huge = 2 * WR_MIB;
    uintptr_t start = wr_round_up((uintptr_t)to, huge), end = wr_round_down((uintptr_t)to + bytes, huge);
    if (start < end) (void)madvise((void *)start, end - start, MADV_HUGEPAGE); /* advice only */
}
