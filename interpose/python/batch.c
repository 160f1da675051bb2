/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays of numpy's, laid out in a block and copied. See batch.h.
 */
#include "batch.h"

#include <assert.h>
#include <stdlib.h>

#define ALIGNMENT ((size_t)256)

/* What of numpy's PyArrayObject_fields is read here. It is part of numpy's public C interface and the same since 1.7:
 * every extension that was built against numpy reads it so. */
struct numpy_fields {
    void *data;
    int n_dims;
    const intptr_t *dims;
};
static_assert(sizeof(intptr_t) == sizeof(int64_t), "shapes are passed on as they are");

struct entry {
    weir_form form; /* of the host's array */
    size_t bytes, at;
};

struct weir_batch {
    size_t n, bytes;
    struct entry entries[];
};

static size_t count_bytes(const weir_form *f)
{
    size_t bytes = f->bits / 8;
    for (int32_t i = 0; i < f->n_dims; i++)
        bytes *= (size_t)f->shape[i]; /* fits: it is in memory */
    return bytes;
}

static weir_form read_array(const void *array, size_t head_bytes, uint16_t type)
{
    const struct numpy_fields *a = (const void *)((const char *)array + head_bytes);
    return (weir_form){.address = (uintptr_t)a->data,
        .device_type = 1,
        .code = (uint8_t)(type >> 8),
        .bits = (uint8_t)type,
        .n_dims = a->n_dims,
        .shape = (const int64_t *)a->dims};
}

weir_batch *weir_batch_new(const void *const *arrays, const uint16_t *types, size_t n, size_t head_bytes)
{
    weir_batch *b = malloc(sizeof *b + n * sizeof *b->entries);
    if (!b) return NULL;
    b->n = n;
    b->bytes = 0;
    for (size_t i = 0; i < n; i++) {
        struct entry *e = &b->entries[i];
        e->form = read_array(arrays[i], head_bytes, types[i]);
        e->bytes = count_bytes(&e->form);
        e->at = b->bytes;
        b->bytes += (e->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return b;
}

void weir_batch_delete(weir_batch *b)
{
    free(b);
}

size_t weir_batch_bytes(const weir_batch *b)
{
    return b->bytes;
}

weir_form weir_batch_form(const weir_batch *b, size_t i)
{
    assert(i < b->n);
    return b->entries[i].form;
}

static void drop_tensors(size_t n, void **tensors)
{
    for (size_t i = 0; i < n; i++)
        weir_tensor_delete(tensors[i]);
}

/* All of them, or none. */
static weir_status export_tensors(
    const struct entry *entries, size_t n, const weir_batch_target *target, void **tensors)
{
    for (size_t i = 0; i < n; i++) {
        weir_form form = entries[i].form;
        form.address = target->address + entries[i].at;
        form.device_type = target->device_type;
        form.device = target->device;
        tensors[i] = weir_lease_export(target->lease, &form, 0);
        if (tensors[i]) continue;
        drop_tensors(i, tensors);
        return WEIR_NO_HOST_MEMORY;
    }
    return WEIR_OK;
}

weir_status weir_batch_send(const weir_batch *b, size_t first, size_t n, weir_engine *e,
    const weir_batch_target *target, weir_ticket *ticket, void **tensors)
{
    assert(n <= WEIR_BATCH_SEND_MOST && first <= b->n && n <= b->n - first);
    const struct entry *entries = &b->entries[first];
    weir_piece pieces[WEIR_BATCH_SEND_MOST] = {0};
    for (size_t i = 0; i < n; i++)
        pieces[i] = (weir_piece){.to = target->address + entries[i].at,
            .from = entries[i].form.address,
            .bytes = entries[i].bytes};
    *ticket = (weir_ticket){0};
    weir_status s = weir_copy(e, WEIR_TO_DEVICE, pieces, n, NULL, ticket);
    if (s == WEIR_OK) s = export_tensors(entries, n, target, tensors);
    if (s != WEIR_OK) weir_copy_wait(e, *ticket, -1); /* a part may be under way */
    return s;
}
