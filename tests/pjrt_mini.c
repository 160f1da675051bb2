/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in in miniature: clients, devices, streams, and its table. Events of the device live as long as the process.
 */
#include "pjrt_mini.h"

#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { TABLE_ENTRIES = 138 };

static struct pjrt_error *unsupported(void *args)
{
    (void)args;
    return mini_error(12, "not in the miniature");
}

static const char *profile_kind;

/* ---- clients, devices, memories ---------------------------------------------------------------------- */

void mini_make(weir_status s)
{
    if (s != WEIR_OK) abort();
}

static void open_device(struct pjrt_client *c, int ordinal)
{
    struct pjrt_device *d = &c->device[ordinal];
    mini_make(wr_device_get(profile_kind, ordinal, &d->sim));
    d->client = c;
    d->ordinal = ordinal;
    d->memory = (struct pjrt_memory){d, "device"};
    d->pinned = (struct pjrt_memory){d, "pinned_host"};
    d->odd = (struct pjrt_memory){d, "unpinned_host"};
    mini_make(d->sim->ops->stream_create(d->sim, &d->compute));
    mini_make(d->sim->ops->stream_create(d->sim, &d->copies));
    for (int i = 0; i < MINI_READY; i++)
        mini_make(d->sim->ops->stream_create(d->sim, &d->ready[i]));
    c->devices[ordinal] = d;
}

static const char *next_platform;

static struct pjrt_error *client_create(void *args)
{
    struct pjrt_client_create *a = args;
    struct pjrt_error *error = mini_enter(PJRT_CLIENT_CREATE);
    if (error) return error;
    a->client = calloc(1, sizeof *a->client);
    a->client->platform = next_platform;
    for (int i = 0; i < MINI_DEVICES; i++)
        open_device(a->client, i);
    mini.world = ((struct sim_device *)a->client->device[0].sim)->world;
    return NULL;
}

/* Its streams end with it. */
static struct pjrt_error *client_destroy(void *args)
{
    struct pjrt_one *a = args;
    struct pjrt_client *c = a->subject;
    struct pjrt_error *error = mini_enter(PJRT_CLIENT_DESTROY);
    if (error) return error;
    mini_settle();
    for (int i = 0; i < MINI_DEVICES; i++) {
        struct pjrt_device *d = &c->device[i];
        mini_make(d->sim->ops->stream_sync(d->sim, d->compute));
        mini_make(d->sim->ops->stream_sync(d->sim, d->copies));
        mini_make(d->sim->ops->stream_destroy(d->sim, d->compute));
        mini_make(d->sim->ops->stream_destroy(d->sim, d->copies));
        for (int j = 0; j < MINI_READY; j++)
            mini_make(d->sim->ops->stream_destroy(d->sim, d->ready[j]));
    }
    free(c);
    return NULL;
}

static struct pjrt_error *platform_name(void *args)
{
    struct pjrt_get_text *a = args;
    a->text = ((struct pjrt_client *)a->subject)->platform;
    a->n = strlen(a->text);
    return NULL;
}

static struct pjrt_error *client_devices(void *args)
{
    struct pjrt_get_list *a = args;
    a->list = ((struct pjrt_client *)a->subject)->devices;
    a->n = MINI_DEVICES;
    return NULL;
}

static struct pjrt_error *hardware_id(void *args)
{
    struct pjrt_get_number *a = args;
    a->value.number = ((struct pjrt_device *)a->subject)->ordinal;
    return NULL;
}

static struct pjrt_error *device_memories(void *args)
{
    static _Thread_local void *list[3];
    struct pjrt_get_list *a = args;
    struct pjrt_device *d = a->subject;
    list[0] = &d->memory;
    list[1] = &d->odd;
    list[2] = &d->pinned;
    a->list = list;
    a->n = 3;
    return NULL;
}

static struct pjrt_error *memory_stats(void *args)
{
    struct pjrt_memory_stats *a = args;
    if (a->struct_size < PJRT_MEMORY_STATS_BYTES)
        return mini_error(MINI_INVALID, "not as long as it has ever been");
    a->in_use = 1000;
    a->peak_in_use = (struct pjrt_figure){2000, true};
    a->limit = (struct pjrt_figure){8000, true};
    a->pool = (struct pjrt_figure){4000, true};
    return mini_enter(PJRT_DEVICE_MEMORY_STATS);
}

static struct pjrt_error *default_memory(void *args)
{
    struct pjrt_get *a = args;
    a->value = &((struct pjrt_device *)a->subject)->memory;
    return NULL;
}

static struct pjrt_error *memory_kind(void *args)
{
    struct pjrt_get_text *a = args;
    a->text = ((struct pjrt_memory *)a->subject)->kind;
    a->n = strlen(a->text);
    return NULL;
}

/* ---- streams and events of the device ---------------------------------------------------------------- */

/* All events ever made, which keeps them reachable, for leak checkers. */
static struct kept {
    struct kept *next;
    wr_event event;
} * _Atomic kept;

weir_status mini_try_record(struct pjrt_device *d, weir_stream s, wr_event *out)
{
    struct kept *k = calloc(1, sizeof *k);
    weir_status status = d->sim->ops->event_create(d->sim, &k->event);
    if (status != WEIR_OK) {
        free(k);
        return status;
    }
    k->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &k->next, k))
        ;
    *out = k->event;
    return d->sim->ops->event_record(d->sim, k->event, s);
}

wr_event mini_record(struct pjrt_device *d, weir_stream s)
{
    wr_event e;
    mini_make(mini_try_record(d, s, &e));
    return e;
}

void mini_wait_for(struct pjrt_device *d, weir_stream s, wr_event e)
{
    if (e) mini_make(d->sim->ops->stream_wait(d->sim, s, e));
}

static struct pjrt_error *get_stream(void *args)
{
    struct pjrt_get_stream *a = args;
    struct pjrt_error *error = mini_enter(MINI_STREAM_GET);
    if (error) return error;
    unsigned next = __atomic_fetch_add(&a->device->next_ready, 1, __ATOMIC_RELAXED);
    a->stream = (intptr_t)a->device->ready[next % MINI_READY];
    return NULL;
}

static struct pjrt_error *wait_stream(void *args)
{
    struct pjrt_wait_stream *a = args;
    struct pjrt_error *error = mini_enter(MINI_STREAM_WAIT);
    if (error) return error;
    mini_wait_for(a->buffer->memory->device, (weir_stream)a->stream, a->buffer->ready);
    return NULL;
}

/* ---- the table --------------------------------------------------------------------------------------- */

static void put_functions(pjrt_function *e)
{
    for (int i = 0; i < TABLE_ENTRIES; i++)
        e[i] = unsupported;
    mini_put_event_functions(e);
    mini_put_buffer_functions(e);
    e[PJRT_CLIENT_CREATE] = client_create;
    e[PJRT_CLIENT_DESTROY] = client_destroy;
    e[PJRT_CLIENT_PLATFORM_NAME] = platform_name;
    e[PJRT_CLIENT_ADDRESSABLE_DEVICES] = client_devices;
    e[PJRT_DEVICE_LOCAL_HARDWARE_ID] = hardware_id;
    e[PJRT_DEVICE_ADDRESSABLE_MEMORIES] = device_memories;
    e[PJRT_DEVICE_DEFAULT_MEMORY] = default_memory;
    e[PJRT_DEVICE_MEMORY_STATS] = memory_stats;
    e[PJRT_MEMORY_KIND] = memory_kind;
}

struct pjrt_api *mini_open(const char *profile)
{
    static struct pjrt_stream_extension streams;
    static struct pjrt_extension first;
    size_t bytes = sizeof(struct pjrt_api) + TABLE_ENTRIES * sizeof(pjrt_function);
    struct pjrt_api *api = aligned_alloc(4096, 4096); /* pages of its own */
    memset(api, 0, 4096);
    first = (struct pjrt_extension){sizeof first, 1, &streams.base};
    streams = (struct pjrt_stream_extension){
        {sizeof streams, PJRT_EXTENSION_STREAM, NULL}, get_stream, wait_stream};
    api->struct_size = bytes;
    api->extensions = &first;
    api->version = (struct pjrt_version){sizeof api->version, NULL, 0, 115};
    put_functions(api->entries);
    profile_kind = profile;
    mini.api = api;
    mini_start_poller();
    return api;
}

struct pjrt_client *mini_client(const char *platform)
{
    struct pjrt_client_create args = {.struct_size = sizeof args};
    next_platform = platform;
    return mini.api->entries[PJRT_CLIENT_CREATE](&args) ? NULL : args.client;
}

void mini_destroy_client(struct pjrt_client *c)
{
    struct pjrt_one args = {.struct_size = sizeof args, .subject = c};
    (void)mini.api->entries[PJRT_CLIENT_DESTROY](&args);
}
