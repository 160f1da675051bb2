/* SPDX-License-Identifier: Apache-2.0
 *
 * What the queue has noted (wr_queue_signs), the pool's and the engine's stats and the environment, put into words.
 */
#include "weir_diagnose.h"
#include "queue.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUES_DEFAULT = 8, QUEUES_MOST = 32 };
static const double pageable_most = 0.05;

/* ---- noting (under the queue's lock) ----------------------------------------------------------------- */

void wr_diagnose_call(weir_queue *q, uint64_t ns)
{
    q->signs.slow_calls += ns >= WR_SLOW_CALL_NS;
    q->signs.slowest_call_ns = wr_max(q->signs.slowest_call_ns, ns);
}

void wr_diagnose_reader(weir_queue *q, weir_stream stream)
{
    q->signs.legacy_reads += stream == NULL || stream == WR_STREAM_LEGACY;
}

/* Of copies that stand before that item's, as far as is known. */
static uint64_t bytes_ahead(const weir_queue *q, const struct wr_place *small)
{
    uint64_t ahead = 0;
    for (unsigned i = 0; i < q->slots.n; i++) {
        const struct wr_place *p = &q->places[i];
        bool copying = p->state == WR_PLACE_READY && !wr_mark_passed(p->copied);
        ahead += copying || (p->state == WR_PLACE_COPYING && p != small) ? p->bytes : 0;
    }
    return ahead;
}

/* Looks at all places, and asks the GPU, but only for a small item of a queue that has had large ones. */
void wr_diagnose_item(weir_queue *q, const struct wr_place *p)
{
    q->signs.largest = wr_max(q->signs.largest, p->bytes);
    if (p->bytes > WR_SMALL_ITEM || q->signs.largest * q->slots.n < WR_MUCH_AHEAD) return;
    if (bytes_ahead(q, p) < WR_MUCH_AHEAD) return;
    wr_queue_poll_copies(q);
    q->signs.small_behind_big += bytes_ahead(q, p) >= WR_MUCH_AHEAD;
}

/* ---- telling ----------------------------------------------------------------------------------------- */

static unsigned count_hardware_queues(void)
{
    const char *given = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int n = given ? atoi(given) : 0;
    return n >= 1 && n <= QUEUES_MOST ? (unsigned)n : QUEUES_DEFAULT;
}

static bool loads_lazily(void)
{
    const char *given = getenv("CUDA_MODULE_LOADING");
    return !given || strcmp(given, "EAGER") != 0;
}

static void say(weir_diagnosis *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(weir_diagnosis *d, const char *format, ...)
{
    size_t used = strlen(d->text);
    va_list args;
    va_start(args, format);
    vsnprintf(d->text + used, sizeof d->text - used, format, args);
    va_end(args);
}

static void say_memory(weir_diagnosis *d)
{
    if (d->causes & WEIR_SLOW_PAGEABLE)
        say(d,
            "pageable memory: %.0f %% of the bytes; the host copies them first. Lend pinned memory "
            "(weir_host_alloc), or fill weir_queue_reserve's.\n",
            100 * d->pageable_share);
    if (d->causes & WEIR_SLOW_BIG_BEFORE_SMALL)
        say(d,
            "big copies ahead of small: %llu small items queued behind %llu MiB and more. Give them a queue "
            "of their own.\n",
            (unsigned long long)d->small_behind_big, (unsigned long long)(WR_MUCH_AHEAD / WR_MIB));
    if (d->causes & WEIR_SLOW_NO_PEER)
        say(d, "no peer access: copies between this device and %llu other(s) go through the host.\n",
            (unsigned long long)d->links_staged);
}

static void say_order(weir_diagnosis *d)
{
    if (d->causes & WEIR_SLOW_NULL_STREAM)
        say(d,
            "NULL stream: %llu items were read on it; it and every blocking stream wait for each other. Use "
            "streams made with cudaStreamNonBlocking.\n",
            (unsigned long long)d->legacy_reads);
    if (d->causes & WEIR_SLOW_FEW_QUEUES)
        say(d,
            "too few hardware queues: %u for %u streams; those that share one wait for each other. Set "
            "CUDA_DEVICE_MAX_CONNECTIONS before the first call of CUDA, up to %d.\n",
            d->hardware_queues, d->streams, QUEUES_MOST);
    if (d->causes & WEIR_SLOW_LAZY_LOADING)
        say(d,
            "lazy loading: %llu calls that only queue took up to %.1f ms; a kernel's first launch holds the "
            "driver's lock. Set CUDA_MODULE_LOADING=EAGER, or launch each kernel once before.\n",
            (unsigned long long)d->slow_calls, (double)d->slowest_call_ns / 1e6);
}

static void name_causes(weir_diagnosis *d)
{
    d->causes |= d->pageable_share > pageable_most ? WEIR_SLOW_PAGEABLE : 0;
    d->causes |= d->legacy_reads ? WEIR_SLOW_NULL_STREAM : 0;
    d->causes |= d->streams > d->hardware_queues ? WEIR_SLOW_FEW_QUEUES : 0;
    d->causes |= d->slow_calls && loads_lazily() ? WEIR_SLOW_LAZY_LOADING : 0;
    d->causes |= d->small_behind_big ? WEIR_SLOW_BIG_BEFORE_SMALL : 0;
    d->causes |= d->links_staged ? WEIR_SLOW_NO_PEER : 0;
    say_memory(d);
    say_order(d);
    if (d->causes == 0) say(d, "nothing known holds copies behind compute here.\n");
}

/* LOCK: taken, and given. */
static weir_status read_queue(weir_queue *q, weir_diagnosis *d)
{
    weir_status s = wr_queue_enter(q);
    if (s != WEIR_OK) return s;
    if (q->stats.bytes_copied)
        d->pageable_share = (double)q->stats.staged_pageable_bytes / (double)q->stats.bytes_copied;
    d->legacy_reads = q->signs.legacy_reads;
    d->slow_calls = q->signs.slow_calls;
    d->slowest_call_ns = q->signs.slowest_call_ns;
    d->small_behind_big = q->signs.small_behind_big;
    wr_lock_give(&q->lock);
    weir_stats pool = {.struct_size = sizeof pool};
    s = weir_pool_stats(q->copier.pool, &pool);
    d->streams = (unsigned)pool.streams;
    wr_lock_take(&q->lock);
    return wr_queue_leave(q, s);
}

weir_status weir_queue_diagnose(weir_queue *q, weir_engine *engine, weir_diagnosis *out)
{
    if (!out || out->struct_size != sizeof *out)
        return wr_fail(WEIR_INVALID_ARGUMENT, "a diagnosis with struct_size = %zu is needed", sizeof *out);
    weir_diagnosis d = {.struct_size = sizeof d, .hardware_queues = count_hardware_queues()};
    weir_engine_stats stats = {.struct_size = sizeof stats};
    weir_status s = read_queue(q, &d);
    if (s == WEIR_OK && engine) s = weir_engine_get_stats(engine, &stats);
    if (s != WEIR_OK) return s;
    d.links_staged = stats.links_staged;
    name_causes(&d);
    *out = d;
    return WEIR_OK;
}
