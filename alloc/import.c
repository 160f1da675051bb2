/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. One reservation of addresses, the segments mapped into it one behind the other. What an import has done
 * so far is counted in the struct, and closing undoes what is counted, last first: so a failed import is undone by
 * the same steps, and a close that failed half-way is tried again from there.
 */
#include "import.h"
#include "captures.h"
#include "edges.h"

#include <stdlib.h>

struct segment {
    wr_memory memory;
    uint64_t address, bytes;
    bool mapped;
};

struct weir_imported {
    struct wr_device *device;
    uint64_t base, bytes; /* base 0: no addresses yet */
    size_t n;             /* segments that are imported */
    struct segment segments[];
};

weir_status wr_import_check(const weir_exported *parts, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const weir_exported *p = &parts[i];
        if (p->struct_size != sizeof *p)
            return wr_fail(WEIR_INVALID_ARGUMENT, "struct_size of part %zu is unknown", i);
        bool sound = p->fd >= 0 && p->segment_bytes > 0 && p->segment_bytes % (2 * WR_MIB) == 0 &&
                     p->offset < p->segment_bytes && p->bytes > 0 &&
                     p->bytes <= p->segment_bytes - p->offset && sum + p->segment_bytes > sum;
        bool begins = i == 0 || p->offset == 0, ends = i == n - 1 || p->offset + p->bytes == p->segment_bytes;
        if (!sound || !begins || !ends)
            return wr_fail(
                WEIR_INVALID_ARGUMENT, "part %zu is not what weir_export gave, or does not follow", i);
        sum += p->segment_bytes;
    }
    return n > 0 ? WEIR_OK : wr_fail(WEIR_INVALID_ARGUMENT, "no parts");
}

/* The descriptors first, which fail most: nothing is to be unmapped then. */
static weir_status import_segments(weir_imported *in, const weir_exported *parts, size_t n)
{
    struct wr_device *d = in->device;
    uint64_t address = in->base;
    for (size_t i = 0; i < n; i++) {
        struct segment *g = &in->segments[i];
        *g = (struct segment){.address = address, .bytes = parts[i].segment_bytes};
        weir_status s = d->ops->mem_import(d, parts[i].fd, g->bytes, &g->memory);
        if (s != WEIR_OK) return s;
        in->n++;
        address += g->bytes;
    }
    return WEIR_OK;
}

static weir_status map_segments(weir_imported *in)
{
    struct wr_device *d = in->device;
    weir_status s = WEIR_OK;
    for (size_t i = 0; i < in->n && s == WEIR_OK; i++) {
        struct segment *g = &in->segments[i];
        s = d->ops->mem_map(d, g->address, g->bytes, g->memory);
        g->mapped = s == WEIR_OK;
    }
    return s == WEIR_OK ? d->ops->mem_access(d, in->base, in->bytes) : s;
}

/* Nothing is unmapped while a stream captures (P02). */
static bool may_unmap(const weir_imported *in)
{
    return in->n == 0 || !in->segments[0].mapped || !wr_captures_any(in->device);
}

static weir_status drop_last(weir_imported *in)
{
    struct wr_device *d = in->device;
    struct segment *g = &in->segments[in->n - 1];
    weir_status s = g->mapped ? d->ops->mem_unmap(d, g->address, g->bytes) : WEIR_OK;
    if (s != WEIR_OK) return s;
    g->mapped = false;
    s = d->ops->mem_release(d, g->memory);
    in->n -= s == WEIR_OK;
    return s;
}

static weir_status undo(weir_imported *in)
{
    struct wr_device *d = in->device;
    weir_status s = WEIR_OK;
    while (in->n > 0 && s == WEIR_OK)
        s = drop_last(in);
    if (s == WEIR_OK && in->base != 0) s = d->ops->va_free(d, in->base, in->bytes);
    return s;
}

weir_status wr_import_open(
    struct wr_device *d, const weir_exported *parts, size_t n, weir_dptr *block, weir_imported **out)
{
    weir_imported *in = calloc(1, sizeof *in + n * sizeof in->segments[0]);
    if (in == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for an import of %zu parts", n);
    in->device = d;
    for (size_t i = 0; i < n; i++)
        in->bytes += parts[i].segment_bytes;
    weir_status s = d->ops->va_reserve(d, in->bytes, &in->base);
    if (s == WEIR_OK) s = import_segments(in, parts, n);
    if (s == WEIR_OK) s = map_segments(in);
    if (s != WEIR_OK) {
        if (may_unmap(in)) undo(in); /* what is not taken back now is lost till the process ends */
        free(in);
        return s;
    }
    *block = in->base + parts[0].offset;
    *out = in;
    return WEIR_OK;
}

weir_status wr_import_close(weir_imported *in)
{
    weir_status s = wr_edges_check();
    if (s == WEIR_OK && !may_unmap(in))
        s = wr_fail(WEIR_CAPTURING, "a stream captures: nothing is unmapped meanwhile");
    if (s == WEIR_OK) s = undo(in);
    if (s != WEIR_OK && s != WEIR_CONTEXT_LOST) return s;
    free(in);
    return WEIR_OK;
}
