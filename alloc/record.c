/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. Each thread fills a buffer of its own and writes it out when it is full; what threads share is a counter,
 * from which each event draws its place in the order, and the file. A free draws before it frees, an alloc once it
 * has its block: so two calls about one address are in the order in which they happened. All else, sorting, and
 * matching a free with its alloc, is the reader's, who has time.
 *
 * COST, measured with bench/alloc on two busy processors over a device that does nothing: a warm pair 140 to 190 ns
 * instead of 40, so 50 to 75 ns a call, half of which is the clock and the counter; the mix 160 to 210 ns an
 * operation instead of 100 to 140. A recorder with one lock, a table and a line of text a call took 400 ns a call.
 * Bounded: 40 KiB for each of the most threads that ever ran at once, and 40 bytes a call in the file.
 *
 * A write that fails, or a host without memory, ends the recording with one line on stderr; the program goes on.
 * What is buffered is lost where the process ends by a signal. A forked child records nothing: the file is its
 * parent's.
 */
#include "record.h"
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_EVENTS = 1024 };

_Atomic bool wr_record_on;

/* Never freed: a thread that ends leaves it, empty, to the next. */
struct buffer {
    struct buffer *next;
    _Atomic bool taken;
    struct wr_latch lock; /* guards all below; its thread's, but for a flush */
    uint32_t n;
    struct wr_record_event events[BUFFER_EVENTS];
};

static struct {
    _Atomic uint64_t order;
    _Atomic(struct buffer *) buffers;
    uint64_t start_ns;
    pthread_key_t thread_end;
    pthread_mutex_t mutex; /* guards the file; a leaf */
    int file;
} record = {.mutex = PTHREAD_MUTEX_INITIALIZER, .file = -1};

static _Thread_local struct buffer *mine;

static void stop(const char *why)
{
    if (atomic_exchange(&wr_record_on, false))
        fprintf(stderr, "weir: WEIR_TRACE: %s; recording has ended\n", why);
}

/* Whole or not at all, as far as other threads see. */
static void write_out(const void *data, size_t bytes)
{
    pthread_mutex_lock(&record.mutex);
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(record.file, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            stop(strerror(errno));
            break;
        }
        done += (size_t)n;
    }
    pthread_mutex_unlock(&record.mutex);
}

/* LOCK: b->lock. */
static void flush_locked(struct buffer *b)
{
    if (b->n > 0 && wr_record_is_on()) write_out(b->events, b->n * sizeof b->events[0]);
    b->n = 0;
}

void wr_record_flush(void)
{
    if (!wr_record_is_on()) return;
    for (struct buffer *b = atomic_load(&record.buffers); b != NULL; b = b->next) {
        wr_latch_take(&b->lock);
        flush_locked(b);
        wr_latch_give(&b->lock);
    }
}

static void leave_buffer(void *arg)
{
    struct buffer *b = arg;
    wr_latch_take(&b->lock);
    flush_locked(b);
    wr_latch_give(&b->lock);
    mine = NULL;
    atomic_store(&b->taken, false);
}

static struct buffer *new_buffer(void)
{
    struct buffer *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    atomic_store(&b->taken, true);
    wr_latch_init(&b->lock, WR_RANK_REGISTRY);
    b->next = atomic_load(&record.buffers);
    while (!atomic_compare_exchange_weak(&record.buffers, &b->next, b)) {
    }
    return b;
}

/* SLOW: the thread's first call. NULL: the host has no memory. */
static struct buffer *take_buffer_slow(void)
{
    struct buffer *b = atomic_load(&record.buffers);
    while (b != NULL && atomic_exchange(&b->taken, true))
        b = b->next;
    if (b == NULL) b = new_buffer();
    if (b == NULL || pthread_setspecific(record.thread_end, b) != 0) {
        stop("the host has no memory");
        return NULL;
    }
    return mine = b;
}

static void add(weir_dptr block, size_t bytes, weir_stream s)
{
    struct buffer *b = mine != NULL ? mine : take_buffer_slow();
    if (b == NULL) return;
    wr_latch_take(&b->lock);
    b->events[b->n++] = (struct wr_record_event){
        .order = atomic_fetch_add_explicit(&record.order, 1, memory_order_relaxed),
        .t_ns = wr_device_wall_ns() - record.start_ns,
        .address = block,
        .bytes = bytes,
        .stream = (uintptr_t)s,
    };
    if (b->n == BUFFER_EVENTS) flush_locked(b);
    wr_latch_give(&b->lock);
}

void wr_record_alloc(weir_dptr block, size_t bytes, weir_stream s)
{
    if (block != 0) add(block, bytes, s);
}

void wr_record_free(weir_dptr block)
{
    if (block != 0) add(block, 0, NULL);
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void stop_in_child(void)
{
    atomic_store(&wr_record_on, false);
}

static void open_once(void)
{
    const char *path = getenv("WEIR_TRACE");
    if (path == NULL || *path == 0) return;
    record.file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (record.file < 0 || pthread_key_create(&record.thread_end, leave_buffer) != 0) {
        fprintf(stderr, "weir: WEIR_TRACE=%s: %s; nothing is recorded\n", path, strerror(errno));
        return;
    }
    record.start_ns = wr_device_wall_ns();
    atomic_store(&wr_record_on, true);
    write_out(WR_RECORD_MAGIC, sizeof WR_RECORD_MAGIC - 1);
    pthread_atfork(NULL, NULL, stop_in_child);
    atexit(wr_record_flush);
}

void wr_record_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
}
