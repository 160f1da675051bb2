/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocation trace: who asked for how much, in which order. Columns t_us,op,id,bytes,stream, one header
 * line; `.gz` is read through gzip. Or what WEIR_TRACE has recorded.
 */
#ifndef WR_BENCH_TRACE_H
#define WR_BENCH_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wr_trace_event {
    uint64_t bytes;
    uint32_t id, stream; /* ids count up from 0 */
    bool is_alloc;
};

struct wr_trace {
    struct wr_trace_event *events;
    size_t n_events, capacity;
    uint32_t n_ids, n_streams;
    uint64_t max_load; /* greatest sum of live bytes: no allocator can use less */
};

/* Reads a file. Returns NULL and fills *out, or says what is wrong with it, in a static text. */
const char *wr_trace_read(const char *path, struct wr_trace *out);
void wr_trace_fini(struct wr_trace *t);

#endif
