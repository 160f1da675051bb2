/* SPDX-License-Identifier: Apache-2.0
 *
 * The table: whether it fits, what is put in, and what is said about it.
 *
 * FORK. A child has the hook's locks as other threads held them, and none of its threads. So where there has been a
 * client, and something to be held, the child gets the plug-in's own table back: what it calls does what it would have
 * done without the hook. Where there has been none, the child may make the first one.
 */
#include "hook.h"
#include "weir_pjrt.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct wr_pjrt_hook wr_pjrt_hook;

static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;
static char message[256] = "not installed";
static _Atomic bool forked; /* this is a child, and what its parent hooked is not */

/* ---- clients ----------------------------------------------------------------------------------------- */

static struct pjrt_error *create_client(void *args)
{
    struct pjrt_error *e = wr_pjrt_hook.original[PJRT_CLIENT_CREATE](args);
    struct pjrt_client_create *a = args;
    if (!e && a->client && atomic_load(&wr_pjrt_hook.serving)) wr_pjrt_add_client(a->client);
    return e;
}

static struct pjrt_error *destroy_client(void *args)
{
    struct pjrt_one *a = args;
    if (a->subject) {
        wr_pjrt_drain_workers();
        wr_pjrt_remove_client(a->subject);
    }
    return wr_pjrt_hook.original[PJRT_CLIENT_DESTROY](args);
}

/* ---- the table --------------------------------------------------------------------------------------- */

static const struct {
    int place;
    pjrt_function function;
} hooks[] = {
    {PJRT_CLIENT_CREATE, create_client},
    {PJRT_CLIENT_DESTROY, destroy_client},
    {PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, wr_pjrt_from_host},
    {PJRT_BUFFER_COPY_TO_DEVICE, wr_pjrt_copy_to_device},
    {PJRT_BUFFER_COPY_TO_MEMORY, wr_pjrt_copy_to_memory},
    {PJRT_BUFFER_TO_HOST_BUFFER, wr_pjrt_to_host},
    {PJRT_BUFFER_DESTROY, wr_pjrt_destroy_buffer},
    {PJRT_EVENT_DESTROY, wr_pjrt_destroy_event},
    {PJRT_DEVICE_MEMORY_STATS, wr_pjrt_memory_stats},
    {PJRT_LOADED_EXECUTABLE_EXECUTE, wr_pjrt_execute},
    {PJRT_LOADED_EXECUTABLE_DESTROY, wr_pjrt_destroy_executable},
};

static const struct pjrt_stream_extension *find_streams(const struct pjrt_api *api)
{
    for (const struct pjrt_extension *x = api->extensions; x; x = x->next) {
        const struct pjrt_stream_extension *s = (const void *)x;
        if (x->type == PJRT_EXTENSION_STREAM && x->struct_size >= sizeof *s && s->get_stream &&
            s->wait_stream)
            return s;
    }
    return NULL;
}

static const char *find_missing(const struct pjrt_api *api)
{
#define CHECK_ENTRY(name, place)                                                                             \
    if (!api->entries[place]) return #name;
    PJRT_ENTRIES(CHECK_ENTRY)
#undef CHECK_ENTRY
    return NULL;
}

#define DECLINE(...)                                                                                         \
    do {                                                                                                     \
        (void)snprintf(message, sizeof message, "declined: " __VA_ARGS__);                                   \
        return false;                                                                                        \
    } while (0)

static bool fits(const struct pjrt_api *api)
{
    size_t least = sizeof *api + PJRT_ENTRIES_USED * sizeof(pjrt_function);
    if (!api) DECLINE("no table");
    if (wr_pjrt_hook.api && wr_pjrt_hook.api != api) DECLINE("another plug-in's table is hooked already");
    if (api->version.struct_size < sizeof api->version || api->version.major != 0)
        DECLINE("version %d.%d of the PJRT ABI is not known here", api->version.major, api->version.minor);
    if (api->version.minor < WR_PJRT_MINOR_LEAST)
        DECLINE("version 0.%d of the PJRT ABI (JAX before 0.11.2) lets memory go before its readers have "
                "ended, and "
                "can't be asked when they have; 0.%d is needed",
            api->version.minor, WR_PJRT_MINOR_LEAST);
    if (api->struct_size < least)
        DECLINE("the table of version 0.%d has %zu bytes, and %zu are needed", api->version.minor,
            api->struct_size, least);
    if (!find_streams(api)) DECLINE("the plug-in has no stream extension");
    const char *missing = find_missing(api);
    if (missing) DECLINE("the plug-in has no %s", missing);
    return true;
}

static bool make_writable(struct pjrt_api *api)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)api & ~(page - 1);
    size_t bytes = (uintptr_t)api + api->struct_size - start;
    if (mprotect((void *)start, bytes, PROT_READ | PROT_WRITE) == 0) return true;
    DECLINE("the table can't be written");
}

static void patch(struct pjrt_api *api)
{
    wr_pjrt_hook.streams = find_streams(api);
#define SAVE_ENTRY(name, place) wr_pjrt_hook.original[place] = api->entries[place];
    PJRT_ENTRIES(SAVE_ENTRY)
#undef SAVE_ENTRY
    wr_pjrt_hook.api = api;
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        api->entries[hooks[i].place] = hooks[i].function;
    (void)snprintf(message, sizeof message, "%zu functions of version 0.%d hooked",
        sizeof hooks / sizeof *hooks, api->version.minor);
}

/* In the child, before anything else runs there. */
static void leave_to_plugin(void)
{
    struct pjrt_api *api = wr_pjrt_hook.api;
    if (!api || !wr_pjrt_had_clients()) return;
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        api->entries[hooks[i].place] = wr_pjrt_hook.original[hooks[i].place];
    atomic_store(&wr_pjrt_hook.serving, false);
    atomic_store(&forked, true);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, leave_to_plugin);
}

int weir_pjrt_install(const void *table)
{
    static pthread_once_t watching = PTHREAD_ONCE_INIT;
    struct pjrt_api *api = (struct pjrt_api *)(uintptr_t)table;
    if (atomic_load(&forked)) { /* who holds the lock may be gone */
        (void)snprintf(message, sizeof message, "declined: a child of fork can't use what its parent opened");
        return 1;
    }
    pthread_once(&watching, watch_forks);
    pthread_mutex_lock(&installing);
    bool hooked = api && wr_pjrt_hook.api == api;
    if (!hooked && fits(api) && make_writable(api)) {
        patch(api);
        hooked = true;
    }
    if (hooked) atomic_store(&wr_pjrt_hook.serving, true);
    pthread_mutex_unlock(&installing);
    return hooked ? 0 : 1;
}

int weir_pjrt_uninstall(void)
{
    atomic_store(&wr_pjrt_hook.serving, false);
    return 0;
}

const char *weir_pjrt_message(void)
{
    return message;
}

/* ---- counters ---------------------------------------------------------------------------------------- */

uint64_t wr_pjrt_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void wr_pjrt_count_served(enum wr_pjrt_kind kind, size_t bytes, uint64_t began_ns)
{
    struct wr_pjrt_counters *c = &wr_pjrt_hook.counters;
    atomic_fetch_add_explicit(&c->served[kind], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->bytes[kind], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->ns[kind], wr_pjrt_now_ns() - began_ns, memory_order_relaxed);
}

struct pjrt_error *wr_pjrt_forward(int place, void *args, enum wr_pjrt_reason why)
{
    atomic_fetch_add_explicit(&wr_pjrt_hook.counters.forwarded[why], 1, memory_order_relaxed);
    return wr_pjrt_hook.original[place](args);
}
