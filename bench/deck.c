/* SPDX-License-Identifier: Apache-2.0 */
#include "deck.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

static uint64_t start_of(const struct wr_deck *k, size_t i)
{
    return (uint64_t)i * k->batch_bytes;
}

static size_t bytes_of(const struct wr_deck *k, size_t i)
{
    assert(i < k->n_all);
    return (size_t)wr_min(k->batch_bytes, k->source->bytes - start_of(k, i));
}

/* Reads batch i from the disk. */
static void read_batch(struct wr_deck *k, size_t i, void *to)
{
    enum wr_source_error e = wr_source_read(k->source, start_of(k, i), to, bytes_of(k, i));
    if (e != WR_SOURCE_OK)
        wr_harness_end(k->harness, WR_HARNESS_BAD_INPUT, "%s: %s", wr_source_error_name(e), k->source->error);
    wr_harness_host_access(k->harness, to, bytes_of(k, i), true);
}

static void *alloc_or_end(struct wr_deck *k, size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) wr_harness_end(k->harness, WR_HARNESS_FAILED, "no host memory for %zu bytes", bytes);
    return p;
}

static void *alloc_pinned(struct wr_deck *k)
{
    void *p;
    wr_harness_must(k->harness, weir_host_alloc(k->pool, k->batch_bytes, &p), "pinned memory for a batch");
    return p;
}

static void hold_batch(struct wr_deck *k, size_t i)
{
    struct wr_batch *b = &k->batches[i];
    *b = (struct wr_batch){alloc_pinned(k), alloc_or_end(k, k->batch_bytes), bytes_of(k, i), 0};
    read_batch(k, i, b->pinned);
    memcpy(b->pageable, b->pinned, b->bytes);
    b->word_sum = wr_work_checksum_host(b->pinned, wr_round_down(b->bytes, sizeof(uint64_t)));
    k->sums[i] = wr_work_checksum_host(b->pinned, b->bytes);
}

void wr_deck_open(
    struct wr_deck *k, struct wr_harness *h, struct wr_source *s, weir_pool *pool, size_t batch_bytes)
{
    assert(s->bytes > 0 && batch_bytes > 0);
    *k = (struct wr_deck){.harness = h, .source = s, .pool = pool, .batch_bytes = batch_bytes};
    size_t whole = (size_t)(s->bytes / batch_bytes), most = (size_t)wr_max(1, WR_GIB / batch_bytes);
    k->n_all = whole + (s->bytes % batch_bytes != 0);
    k->n = (size_t)wr_max(1, wr_min(whole, most));
    k->sums = alloc_or_end(k, k->n_all * sizeof *k->sums);
    k->batches = alloc_or_end(k, k->n * sizeof *k->batches);
    k->back = alloc_pinned(k);
    for (size_t i = 0; i < k->n_all; i++) {
        wr_harness_progress(h, "reading the source", i, k->n_all);
        if (i < k->n) {
            hold_batch(k, i);
            continue;
        }
        read_batch(k, i, k->back);
        k->sums[i] = wr_work_checksum_host(k->back, bytes_of(k, i));
    }
}

void wr_deck_close(struct wr_deck *k)
{
    for (size_t i = 0; i < k->n; i++) {
        wr_harness_must(
            k->harness, weir_host_free(k->pool, k->batches[i].pinned, WEIR_NO_STREAM), "host_free");
        free(k->batches[i].pageable);
    }
    wr_harness_must(k->harness, weir_host_free(k->pool, k->back, WEIR_NO_STREAM), "host_free");
    free(k->batches);
    free(k->sums);
}

/* Feeds batch i, fresh from the disk, and copies it back to k->back behind the step that reads it. */
static weir_status send_and_return(struct wr_deck *k, struct wr_feed *f, struct wr_compute *c, size_t i)
{
    void *host;
    weir_dptr at;
    size_t bytes = bytes_of(k, i);
    weir_status s = f->way->stage(f, bytes, &host);
    if (s != WEIR_OK) return s;
    read_batch(k, i, host);
    if (wr_work_checksum_host(host, bytes) != k->sums[i])
        wr_harness_end(
            k->harness, WR_HARNESS_BAD_INPUT, "batch %zu: the source changed while it was read", i);
    s = f->way->put_staged(f, bytes, &at);
    if (s == WEIR_OK) s = wr_compute_step(c, at, bytes);
    if (s == WEIR_OK)
        s = f->device->ops->copy(f->device, WR_COPY_D2H, (uintptr_t)k->back, at, bytes, f->compute);
    if (s == WEIR_OK) s = f->way->done(f);
    if (s == WEIR_OK) s = f->device->ops->stream_sync(f->device, f->compute);
    return s;
}

static void check_batch(struct wr_deck *k, struct wr_feed *f, struct wr_compute *c, size_t i)
{
    wr_harness_host_access(k->harness, k->back, bytes_of(k, i), true);
    memset(k->back, 0, bytes_of(k, i));
    wr_harness_must(k->harness, send_and_return(k, f, c, i), f->way->name);
    wr_harness_host_access(k->harness, k->back, bytes_of(k, i), false);
    uint64_t got = wr_work_checksum_host(k->back, bytes_of(k, i));
    if (got != k->sums[i])
        wr_harness_end(k->harness, WR_HARNESS_FAILED,
            "%s: batch %zu came back different: %016llx, not %016llx", f->way->name, i,
            (unsigned long long)got, (unsigned long long)k->sums[i]);
}

size_t wr_deck_check(struct wr_deck *k, struct wr_feed *f, struct wr_compute *c, size_t most)
{
    size_t n = (size_t)wr_min(most, k->n_all);
    for (size_t i = 0; i < n; i++) {
        wr_harness_progress(k->harness, "comparing bytes", i, n);
        check_batch(k, f, c, n == 1 ? 0 : i * (k->n_all - 1) / (n - 1));
    }
    return n;
}
