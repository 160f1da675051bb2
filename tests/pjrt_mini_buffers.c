/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in in miniature: buffers, copies and executions. Memory of its own lives as long as the process.
 */
#include "pjrt_mini.h"

#include "kernels.h"
#include "sim.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- buffers ----------------------------------------------------------------------------------------- */

static struct pjrt_buffer *new_buffer(struct pjrt_memory *m, int type, const int64_t *dims, size_t n_dims)
{
    static const unsigned char type_bytes[] = PJRT_TYPE_BYTES;
    struct pjrt_buffer *b = calloc(1, sizeof *b);
    assert(n_dims <= MINI_RANK);
    b->memory = m;
    b->type = type;
    b->n_dims = n_dims;
    b->bytes = type_bytes[type] ? type_bytes[type] : 1;
    for (size_t i = 0; i < n_dims; i++) {
        b->dims[i] = dims[i];
        b->minor_to_major[i] = (int64_t)(n_dims - 1 - i);
        b->bytes *= (size_t)dims[i];
    }
    __atomic_fetch_add(&mini.n_buffers, 1, __ATOMIC_RELAXED);
    return b;
}

static void *pinned_bytes(struct pjrt_device *d, size_t bytes)
{
    size_t whole = (bytes + 4096) & ~(size_t)4095;
    void *host = aligned_alloc(4096, whole);
    memset(host, 0, whole);
    mini_make(d->sim->ops->host_register(d->sim, host, whole));
    return host;
}

static void give_memory(struct pjrt_buffer *b)
{
    struct pjrt_device *d = b->memory->device;
    if (b->memory == &d->memory)
        mini_make(d->sim->ops->plain_alloc(d->sim, b->bytes + 256, &b->address));
    else
        b->address = (uintptr_t)pinned_bytes(d, b->bytes);
}

struct pjrt_buffer *mini_computed(struct pjrt_device *d, int type, size_t n, unsigned char tag)
{
    int64_t dims[1] = {(int64_t)n};
    struct pjrt_buffer *b = new_buffer(&d->memory, type, dims, 1);
    give_memory(b);
    mini_make(d->sim->ops->fill(d->sim, b->address, tag, b->bytes, d->compute));
    b->ready = mini_record(d, d->compute);
    return b;
}

static enum wr_copy_kind kind_of(const struct pjrt_buffer *from, const struct pjrt_buffer *to)
{
    bool from_device = from->memory == &from->memory->device->memory;
    bool to_device = to->memory == &to->memory->device->memory;
    if (!from_device) return WR_COPY_H2D;
    if (!to_device) return WR_COPY_D2H;
    return from->memory == to->memory ? WR_COPY_D2D : WR_COPY_PEER;
}

/* As the plug-in does it: behind what the destination computes. */
static struct pjrt_buffer *copy_buffer(struct pjrt_buffer *from, struct pjrt_memory *m)
{
    struct pjrt_buffer *to = new_buffer(m, from->type, from->dims, from->n_dims);
    struct pjrt_device *d = m == &m->device->memory ? m->device : from->memory->device;
    memcpy(to->minor_to_major, from->minor_to_major, sizeof to->minor_to_major);
    give_memory(to);
    mini_wait_for(d, d->copies, mini_record(d, d->compute));
    mini_wait_for(d, d->copies, from->ready);
    mini_make(d->sim->ops->copy(d->sim, kind_of(from, to), to->address, from->address, to->bytes, d->copies));
    to->ready = mini_record(d, d->copies);
    from->last_use = to->ready;
    return to;
}

static struct pjrt_error *copy_to_device(void *args)
{
    struct pjrt_copy_to_device *a = args;
    struct pjrt_error *error = mini_enter(PJRT_BUFFER_COPY_TO_DEVICE);
    if (error) return error;
    if (a->from->memory->device == a->device) return mini_error(MINI_INVALID, "already there");
    a->to = copy_buffer(a->from, &a->device->memory);
    return NULL;
}

static struct pjrt_error *copy_to_memory(void *args)
{
    struct pjrt_copy_to_memory *a = args;
    struct pjrt_error *error = mini_enter(PJRT_BUFFER_COPY_TO_MEMORY);
    if (error) return error;
    a->to = copy_buffer(a->from, a->memory);
    return NULL;
}

/* Gathers by elements, as strides say. */
static void gather(unsigned char *to, const struct pjrt_from_host *a, const struct pjrt_buffer *b)
{
    size_t element = b->bytes, index[MINI_RANK] = {0};
    for (size_t i = 0; i < b->n_dims; i++)
        element /= (size_t)b->dims[i];
    for (size_t done = 0; done < b->bytes; done += element) {
        const unsigned char *from = a->data;
        for (size_t i = 0; i < b->n_dims; i++)
            from += (int64_t)index[i] * a->strides[i];
        memcpy(to + done, from, element);
        for (size_t i = b->n_dims; i-- > 0 && ++index[i] == (size_t)b->dims[i];)
            index[i] = 0;
    }
}

static struct pjrt_error *from_host(void *args)
{
    struct pjrt_from_host *a = args;
    struct pjrt_error *error = mini_enter(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER);
    if (error) return error;
    struct pjrt_memory *m = a->memory ? a->memory : &a->device->memory;
    struct pjrt_device *d = m->device;
    struct pjrt_buffer *b = new_buffer(m, a->type, a->dims, a->n_dims);
    give_memory(b);
    void *bounce = pinned_bytes(d, b->bytes);
    if (a->n_strides && b->bytes)
        gather(bounce, a, b);
    else
        memcpy(bounce, a->data, b->bytes);
    mini_wait_for(d, d->copies, mini_record(d, d->compute));
    if (b->bytes && m == &d->memory)
        mini_make(d->sim->ops->copy(d->sim, WR_COPY_H2D, b->address, (uintptr_t)bounce, b->bytes, d->copies));
    b->ready = mini_record(d, d->copies);
    a->done_with_host_buffer = mini_event(d, NULL);
    a->buffer = b;
    return NULL;
}

static struct pjrt_error *to_host(void *args)
{
    struct pjrt_to_host *a = args;
    struct pjrt_buffer *b = a->from;
    struct pjrt_device *d = b->memory->device;
    struct pjrt_error *error = mini_enter(PJRT_BUFFER_TO_HOST_BUFFER);
    if (error) return error;
    if (!a->to) {
        a->to_bytes = b->bytes;
        return NULL;
    }
    if (b->broken) return mini_error(15, "broken");
    void *bounce = pinned_bytes(d, b->bytes);
    mini_wait_for(d, d->copies, b->ready);
    if (b->bytes)
        mini_make(d->sim->ops->copy(d->sim, WR_COPY_D2H, (uintptr_t)bounce, b->address, b->bytes, d->copies));
    b->last_use = mini_record(d, d->copies);
    a->event = mini_event(d, mini_record(d, d->copies));
    mini_land(a->event, a->to, bounce, b->bytes);
    return NULL;
}

static bool is_ready_stream(const struct pjrt_device *d, intptr_t s)
{
    for (int i = 0; i < MINI_READY; i++)
        if (d->ready[i] == (weir_stream)s) return true;
    return false;
}

static struct pjrt_error *create_view(void *args)
{
    struct pjrt_create_view *a = args;
    struct pjrt_error *error = mini_enter(PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER);
    if (error) return error;
    struct pjrt_memory *m = a->memory ? a->memory : &a->device->memory;
    if (!is_ready_stream(m->device, a->stream))
        return mini_error(MINI_NOT_FOUND, "no stream of the plug-in's");
    wr_event ready;
    if (mini_try_record(m->device, (weir_stream)a->stream, &ready) != WEIR_OK)
        return mini_error(13, "no event");
    struct pjrt_buffer *b = new_buffer(m, a->type, a->dims, a->n_dims);
    memcpy(b->minor_to_major, a->layout->as.tiled.minor_to_major, a->n_dims * sizeof(int64_t));
    b->address = (uintptr_t)a->address;
    b->on_delete = a->on_delete;
    b->argument = a->on_delete_argument;
    b->ready = ready;
    a->buffer = b;
    return NULL;
}

static void delete_memory(struct pjrt_buffer *b)
{
    if (b->deleted) return;
    b->deleted = true;
    if (b->on_delete) mini_bury(b);
}

static struct pjrt_error *buffer_destroy(void *args)
{
    struct pjrt_one *a = args;
    struct pjrt_buffer *b = a->subject;
    struct pjrt_error *error = mini_enter(PJRT_BUFFER_DESTROY);
    if (error || !b) return error;
    if (b->external > 0) __atomic_fetch_add(&mini.crashes, 1, __ATOMIC_RELAXED);
    delete_memory(b);
    __atomic_fetch_sub(&mini.n_buffers, 1, __ATOMIC_RELAXED);
    free(b);
    return NULL;
}

static struct pjrt_error *ready_event(void *args)
{
    struct pjrt_get *a = args;
    struct pjrt_buffer *b = a->subject;
    struct pjrt_error *error = mini_enter(PJRT_BUFFER_READY_EVENT);
    if (error) return error;
    struct pjrt_event *e = mini_event(b->memory->device, b->broken ? NULL : b->ready);
    a->value = e;
    if (!b->broken) return NULL;
    struct pjrt_event_set set = {
        .struct_size = sizeof set, .event = e, .code = 15, .message = "broken", .n_message = 6};
    return mini.api->entries[PJRT_EVENT_SET](&set);
}

/* ---- what a buffer says of itself -------------------------------------------------------------------- */

static struct pjrt_error *buffer_type(void *args)
{
    struct pjrt_get_number *a = args;
    a->value.number = ((struct pjrt_buffer *)a->subject)->type;
    return mini_enter(PJRT_BUFFER_ELEMENT_TYPE);
}

static struct pjrt_error *buffer_dims(void *args)
{
    struct pjrt_get_dimensions *a = args;
    a->dims = a->buffer->dims;
    a->n_dims = a->buffer->n_dims;
    return mini_enter(PJRT_BUFFER_DIMENSIONS);
}

static struct pjrt_error *buffer_layout(void *args)
{
    struct pjrt_get_layout *a = args;
    a->layout.kind = PJRT_LAYOUT_TILED;
    a->layout.as.tiled.minor_to_major = a->buffer->minor_to_major;
    a->layout.as.tiled.n_minor_to_major = a->buffer->n_dims;
    a->layout.as.tiled.n_tiles = a->buffer->n_tiles;
    return mini_enter(PJRT_BUFFER_GET_MEMORY_LAYOUT);
}

static struct pjrt_error *buffer_size(void *args)
{
    struct pjrt_get_number *a = args;
    a->value.bytes = ((struct pjrt_buffer *)a->subject)->bytes;
    return mini_enter(PJRT_BUFFER_ON_DEVICE_SIZE);
}

static struct pjrt_error *buffer_memory(void *args)
{
    struct pjrt_get *a = args;
    a->value = ((struct pjrt_buffer *)a->subject)->memory;
    return mini_enter(PJRT_BUFFER_MEMORY);
}

static struct pjrt_error *count_reference(void *args, int place, int by)
{
    struct pjrt_one *a = args;
    struct pjrt_error *error = mini_enter(place);
    if (!error) __atomic_fetch_add(&((struct pjrt_buffer *)a->subject)->external, by, __ATOMIC_SEQ_CST);
    return error;
}

static struct pjrt_error *increase(void *args)
{
    return count_reference(args, PJRT_BUFFER_INCREASE_EXTERNAL_REFERENCE_COUNT, 1);
}

static struct pjrt_error *decrease(void *args)
{
    return count_reference(args, PJRT_BUFFER_DECREASE_EXTERNAL_REFERENCE_COUNT, -1);
}

static struct pjrt_error *pointer(void *args)
{
    struct pjrt_get *a = args;
    a->value = (void *)(uintptr_t)((struct pjrt_buffer *)a->subject)->address;
    return mini_enter(PJRT_BUFFER_OPAQUE_DEVICE_MEMORY_DATA_POINTER);
}

/* ---- executions -------------------------------------------------------------------------------------- */

static void add_up(void *const *params)
{
    const unsigned char *bytes = *(unsigned char *const *)params[0];
    uint64_t n = *(const uint64_t *)params[1], sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += bytes[i];
    atomic_fetch_add(*(_Atomic uint64_t *const *)params[2], sum);
}

static const struct wr_kernel add_up_kernel = {
    .name = "add_up", .body = add_up, .n_params = 3, .param_bytes = {8, 8, 8}};

static void read_argument(struct pjrt_executable *x, struct pjrt_buffer *b)
{
    struct pjrt_device *d = b->memory->device;
    uint64_t address = b->address, bytes = b->bytes;
    _Atomic uint64_t *sum = &x->sum;
    void *params[] = {&address, &bytes, &sum};
    struct wr_use use = {.address = address, .bytes = bytes};
    struct wr_launch l = {.blocks = 1,
        .threads = 1,
        .params = params,
        .uses = &use,
        .n_uses = 1,
        .sim_duration_ns = x->ns ? x->ns : 1000};
    mini_wait_for(d, d->compute, b->ready);
    mini_make(d->sim->ops->launch(d->sim, &add_up_kernel, &l, d->compute));
    b->last_use = mini_record(d, d->compute);
}

static struct pjrt_error *execute(void *args)
{
    struct pjrt_execute *a = args;
    struct pjrt_executable *x = a->executable;
    struct pjrt_error *error = mini_enter(PJRT_LOADED_EXECUTABLE_EXECUTE);
    if (error) return error;
    for (size_t i = 0; i < a->n_arguments; i++) {
        struct pjrt_buffer *b = a->arguments[0][i];
        bool donated = x->donated >> i & 1;
        if (donated && __atomic_load_n(&b->external, __ATOMIC_SEQ_CST) > 0)
            return mini_error(MINI_PRECONDITION, "donation of a buffer with an external reference");
        read_argument(x, b);
        if (donated) delete_memory(b);
    }
    return NULL;
}

/* It is the test's. */
static struct pjrt_error *executable_destroy(void *args)
{
    (void)args;
    return mini_enter(PJRT_LOADED_EXECUTABLE_DESTROY);
}

static struct pjrt_error *is_deleted(void *args)
{
    struct pjrt_get_number *a = args;
    a->value.yes = ((struct pjrt_buffer *)a->subject)->deleted;
    return mini_enter(PJRT_BUFFER_IS_DELETED);
}

void mini_put_buffer_functions(pjrt_function *e)
{
    e[PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER] = from_host;
    e[PJRT_LOADED_EXECUTABLE_EXECUTE] = execute;
    e[PJRT_LOADED_EXECUTABLE_DESTROY] = executable_destroy;
    e[PJRT_BUFFER_IS_DELETED] = is_deleted;
    e[PJRT_BUFFER_DESTROY] = buffer_destroy;
    e[PJRT_BUFFER_ELEMENT_TYPE] = buffer_type;
    e[PJRT_BUFFER_DIMENSIONS] = buffer_dims;
    e[PJRT_BUFFER_GET_MEMORY_LAYOUT] = buffer_layout;
    e[PJRT_BUFFER_ON_DEVICE_SIZE] = buffer_size;
    e[PJRT_BUFFER_MEMORY] = buffer_memory;
    e[PJRT_BUFFER_COPY_TO_DEVICE] = copy_to_device;
    e[PJRT_BUFFER_TO_HOST_BUFFER] = to_host;
    e[PJRT_BUFFER_READY_EVENT] = ready_event;
    e[PJRT_BUFFER_INCREASE_EXTERNAL_REFERENCE_COUNT] = increase;
    e[PJRT_BUFFER_DECREASE_EXTERNAL_REFERENCE_COUNT] = decrease;
    e[PJRT_BUFFER_OPAQUE_DEVICE_MEMORY_DATA_POINTER] = pointer;
    e[PJRT_BUFFER_COPY_TO_MEMORY] = copy_to_memory;
    e[PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER] = create_view;
}
