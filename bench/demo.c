/* SPDX-License-Identifier: Apache-2.0
 *
 * A file's bytes through weir's queue into device memory, by the public headers alone: where to start reading.
 *
 *   demo FILE                   on the first GPU
 *   WEIR_DEVICE=sim demo FILE   on a simulated one
 */
#include "weir.h"
#include "weir_queue.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { ITEM_BYTES = 8 << 20 };

static void must(weir_status s, const char *what)
{
    if (s == WEIR_OK) return;
    fprintf(stderr, "demo: %s: %s: %s\n", what, weir_status_name(s), weir_error_text());
    exit(1);
}

/* Reads one item's worth into the queue; false at the file's end. */
static bool feed(weir_queue *q, FILE *f)
{
    weir_item item;
    must(weir_queue_reserve(q, ITEM_BYTES, -1, &item), "reserve");
    size_t n = fread(item.host, 1, item.bytes, f);
    if (n == 0) {
        must(weir_queue_abort(q, &item), "abort"); /* no hole: consumers never see it */
        return false;
    }
    item.bytes = n;                              /* the last one is shorter */
    must(weir_queue_commit(q, &item), "commit"); /* the copy starts now */
    return true;
}

/* Here a kernel would read item.device on `compute`. Nobody waits on the host. */
static void use(weir_queue *q, weir_stream compute)
{
    weir_item item;
    must(weir_queue_acquire(q, compute, -1, &item), "acquire");
    must(weir_queue_release(q, &item, NULL, 0), "release");
}

int main(int argc, char **argv)
{
    FILE *f = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (f == NULL) {
        fprintf(stderr, "usage: demo FILE, one that can be read\n");
        return 2;
    }
    weir_pool *pool;
    weir_queue *q;
    weir_queue_options o = {
        .struct_size = sizeof o, .item_bytes = ITEM_BYTES}; /* two slots: double buffering */
    must(weir_pool_open(NULL, &pool), "no GPU? WEIR_DEVICE=sim simulates one");
    must(weir_queue_open(pool, &o, &q), "opening a queue");

    weir_stream compute = NULL; /* the legacy default stream; any CUstream will do */
    while (feed(q, f))
        use(q, compute);

    weir_queue_stats s = {.struct_size = sizeof s};
    must(weir_queue_get_stats(q, &s), "statistics");
    printf("%llu bytes in %llu copies; host waits for a computing stream: %llu\n",
        (unsigned long long)s.bytes_copied, (unsigned long long)s.copies, (unsigned long long)s.host_syncs);
    must(weir_queue_destroy(q), "destroying the queue");
    weir_status closed = weir_pool_close(pool);
    if (closed != WEIR_NOT_YET)
        must(closed, "closing the pool"); /* NOT_YET: the GPU is at the last copy still */
    fclose(f);
    return 0;
}
