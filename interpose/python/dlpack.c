/* SPDX-License-Identifier: Apache-2.0
 *
 * DLPack tensors that hold a lease, and the capsules that carry them. See lease.h. The layouts are those of DLPack 0
 * and 1.0.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lease_count.h"

struct tensor {
    void *data;
    int32_t device_type, device;
    int32_t n_dims;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct managed { /* "dltensor" */
    struct tensor tensor;
    void *context;
    void (*deleter)(struct managed *);
};

struct managed_versioned { /* "dltensor_versioned" */
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct managed_versioned *);
    uint64_t flags;
    struct tensor tensor;
};

/* `context` of either points here. */
struct exported {
    union {
        struct managed plain;
        struct managed_versioned versioned;
    } as;
    weir_lease *lease;
    int64_t dims[]; /* shape, then strides */
};

static void delete_exported(struct exported *e)
{
    weir_lease_drop(e->lease);
    free(e);
}

static void delete_plain(struct managed *m)
{
    delete_exported(m->context);
}

static void delete_versioned(struct managed_versioned *m)
{
    delete_exported(m->context);
}

/* Row-major, in elements. */
static void fill_strides(const int64_t *shape, int32_t n_dims, int64_t *strides)
{
    int64_t stride = 1;
    for (int32_t i = n_dims - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
}

static struct tensor describe(struct exported *e, const weir_form *form)
{
    size_t n = (size_t)form->n_dims;
    if (n > 0) memcpy(e->dims, form->shape, n * sizeof *e->dims);
    fill_strides(e->dims, form->n_dims, e->dims + n);
    return (struct tensor){.data = (void *)(uintptr_t)form->address,
        .device_type = form->device_type,
        .device = form->device,
        .n_dims = form->n_dims,
        .code = form->code,
        .bits = form->bits,
        .lanes = 1,
        .shape = e->dims,
        .strides = e->dims + n};
}

void *weir_lease_export(weir_lease *l, const weir_form *form, int versioned)
{
    struct exported *e = malloc(sizeof *e + 2 * (size_t)form->n_dims * sizeof *e->dims);
    if (!e) return NULL;
    e->lease = l;
    struct tensor tensor = describe(e, form);
    if (versioned)
        e->as.versioned = (struct managed_versioned){
            .major = 1, .context = e, .deleter = delete_versioned, .tensor = tensor};
    else
        e->as.plain = (struct managed){.tensor = tensor, .context = e, .deleter = delete_plain};
    wr_lease_keep(l);
    return &e->as;
}

void weir_tensor_delete(void *tensor)
{
    delete_plain(tensor);
}

/* ---- capsules ---------------------------------------------------------------------------------------- */

static int (*capsule_is_valid)(void *, const char *);
static void *(*capsule_pointer)(void *, const char *);

void weir_capsule_set_up(int (*is_valid)(void *, const char *), void *(*pointer)(void *, const char *))
{
    capsule_is_valid = is_valid;
    capsule_pointer = pointer;
}

/* Consumers rename a capsule that they have consumed. */
void weir_capsule_destroy(void *capsule)
{
    static const char *const names[] = {"dltensor", "dltensor_versioned"};
    for (size_t i = 0; i < 2; i++) {
        if (!capsule_is_valid(capsule, names[i])) continue;
        void *m = capsule_pointer(capsule, names[i]);
        if (i == 0)
            delete_plain(m);
        else
            delete_versioned(m);
    }
}
