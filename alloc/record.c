/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. One leaf lock, one buffer, one table from address to id: the order of the lines is then that of the
 * calls, over all threads, and a free is matched with its alloc. Buffers per thread would have to be merged,
 * which needs all of them in memory. Costs some 0.2 us a call, and threads take turns: for looking, not for
 * production. Bounded: the buffer is written out when it is full, and the table holds live blocks only.
 *
 * A write that fails, or a host without memory, ends the recording with one line on stderr; the program goes on.
 * A forked child records nothing: the file is its parent's.
 */
#include "record.h"
#include "table.h"
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 16, LINE_BYTES = 128 };

_Atomic bool wr_record_on;

struct entry {
    uint64_t bytes;
    uint32_t id, stream;
};

static struct {
    pthread_mutex_t mutex; /* guards all below; no other lock is taken under it */
    int file;
    uint64_t start_ns;
    uint32_t n_ids, n_streams;
    struct wr_table live;      /* address -> index + 1 of its entry */
    struct wr_table stream_of; /* handle + 1 -> number + 1, in the order in which they appear */
    struct entry *entries;
    uint32_t *spares;
    uint32_t n_entries, n_spares, capacity;
    size_t n_chars;
    char chars[BUFFER_BYTES];
} record = {.mutex = PTHREAD_MUTEX_INITIALIZER, .file = -1};

/* LOCK: held, as for all below. */
static void stop(const char *why)
{
    atomic_store(&wr_record_on, false);
    fprintf(stderr, "weir: WEIR_TRACE: %s; recording has ended\n", why);
}

static void flush_locked(void)
{
    size_t done = 0;
    while (done < record.n_chars) {
        ssize_t n = write(record.file, record.chars + done, record.n_chars - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            stop(strerror(errno));
            break;
        }
        done += (size_t)n;
    }
    record.n_chars = 0;
}

static void write_line(const char *op, const struct entry *e)
{
    uint64_t us = (wr_device_wall_ns() - record.start_ns) / 1000;
    if (BUFFER_BYTES - record.n_chars < LINE_BYTES) flush_locked();
    int n = snprintf(record.chars + record.n_chars, LINE_BYTES,
        "%" PRIu64 ",%s,%" PRIu32 ",%" PRIu64 ",%" PRIu32 "\n", us, op, e->id, e->bytes, e->stream);
    record.n_chars += (size_t)n;
}

static bool reserve_entry(void)
{
    if (!wr_table_reserve(&record.live, 1) || !wr_table_reserve(&record.stream_of, 1)) return false;
    if (record.n_spares > 0 || record.n_entries < record.capacity) return true;
    uint32_t capacity = record.capacity == 0 ? 1024 : record.capacity * 2;
    struct entry *entries = realloc(record.entries, capacity * sizeof *entries);
    if (entries != NULL) record.entries = entries;
    uint32_t *spares = realloc(record.spares, capacity * sizeof *spares);
    if (spares != NULL) record.spares = spares;
    if (entries == NULL || spares == NULL) return false;
    record.capacity = capacity;
    return true;
}

static uint32_t number_of(weir_stream s)
{
    uint64_t key = (uint64_t)(uintptr_t)s + 1;
    uint32_t number = wr_table_get(&record.stream_of, key);
    if (number == 0) wr_table_put(&record.stream_of, key, number = ++record.n_streams);
    return number - 1;
}

static void record_alloc_locked(weir_dptr block, size_t bytes, weir_stream s)
{
    if (!reserve_entry()) {
        stop("the host has no memory");
        return;
    }
    uint32_t at = record.n_spares > 0 ? record.spares[--record.n_spares] : record.n_entries++;
    record.entries[at] = (struct entry){.bytes = bytes, .id = record.n_ids++, .stream = number_of(s)};
    uint32_t stale = wr_table_remove(&record.live, block); /* of a pool that has ended since */
    if (stale != 0) record.spares[record.n_spares++] = stale - 1;
    wr_table_put(&record.live, block, at + 1);
    write_line("alloc", &record.entries[at]);
}

void wr_record_alloc(weir_dptr block, size_t bytes, weir_stream s)
{
    if (block == 0) return;
    pthread_mutex_lock(&record.mutex);
    if (atomic_load(&wr_record_on)) record_alloc_locked(block, bytes, s);
    pthread_mutex_unlock(&record.mutex);
}

void wr_record_free(weir_dptr block)
{
    pthread_mutex_lock(&record.mutex);
    uint32_t at = atomic_load(&wr_record_on) ? wr_table_remove(&record.live, block) : 0;
    if (at != 0) {
        write_line("free", &record.entries[at - 1]);
        record.spares[record.n_spares++] = at - 1;
    }
    pthread_mutex_unlock(&record.mutex);
}

void wr_record_flush(void)
{
    if (!wr_record_is_on()) return;
    pthread_mutex_lock(&record.mutex);
    if (atomic_load(&wr_record_on)) flush_locked();
    pthread_mutex_unlock(&record.mutex);
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
    if (record.file < 0) {
        fprintf(stderr, "weir: WEIR_TRACE=%s: %s; nothing is recorded\n", path, strerror(errno));
        return;
    }
    static const char head[] = "t_us,op,id,bytes,stream\n";
    memcpy(record.chars, head, record.n_chars = sizeof head - 1);
    record.start_ns = wr_device_wall_ns();
    pthread_atfork(NULL, NULL, stop_in_child);
    atexit(wr_record_flush);
    atomic_store(&wr_record_on, true);
}

void wr_record_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
}
