/* SPDX-License-Identifier: Apache-2.0
 *
 * From a copy to a buffer of the plug-in's: see hook.h, A TRANSFER.
 */
#include "hook.h"

#include <stdlib.h>

static weir_status alloc_memory(struct wr_pjrt_view *v, size_t bytes)
{
    struct wr_pjrt_ground *g = v->site->ground;
    weir_alloc_options o = {
        .struct_size = sizeof o, .reuse = WEIR_REUSE_COMPLETED}; /* all users are declared */
    if (!v->pinned) return weir_alloc_with(g->pool, bytes, g->home, &o, &v->address);
    void *host;
    weir_status s = weir_host_alloc(g->pool, bytes, &host);
    if (s == WEIR_OK) v->address = (uintptr_t)host;
    return s;
}

enum wr_pjrt_reason wr_pjrt_view_open(
    struct wr_pjrt_site *site, bool pinned, size_t bytes, struct wr_pjrt_view **out)
{
    if (!wr_pjrt_site_open(site)) return WR_PJRT_FAILED;
    wr_pjrt_sweep(site->ground);
    struct wr_pjrt_view *v = calloc(1, sizeof *v);
    if (!v) return WR_PJRT_NO_ROOM;
    v->site = site;
    v->pinned = pinned;
    weir_status s = alloc_memory(v, bytes);
    if (s == WEIR_OK) {
        *out = v;
        return WR_PJRT_SERVED;
    }
    free(v);
    bool full =
        s == WEIR_OUT_OF_MEMORY || s == WEIR_NOT_YET || s == WEIR_TOO_LARGE || s == WEIR_NO_HOST_MEMORY;
    return full ? WR_PJRT_NO_ROOM : WR_PJRT_FAILED;
}

/* Called by any thread of the plug-in's, maybe one that must not call the driver: so the view is only noted. */
static void note_deleted(void *address, void *argument)
{
    (void)address;
    struct wr_pjrt_view *v = argument;
    _Atomic(struct wr_pjrt_view *) *top = &v->site->ground->deleted;
    v->next = atomic_load(top);
    while (!atomic_compare_exchange_weak(top, &v->next, v))
        ;
}

static weir_status free_memory(struct wr_pjrt_view *v)
{
    struct wr_pjrt_ground *g = v->site->ground;
    if (!v->pinned) return weir_free(g->pool, v->address, g->home);
    bool waits = v->ready && atomic_load(&v->site->client); /* the stream went with the client */
    return weir_host_free(
        g->pool, (void *)(uintptr_t)v->address, waits ? (weir_stream)v->ready : WEIR_NO_STREAM);
}

void wr_pjrt_view_close(struct wr_pjrt_view *v)
{
    weir_status s = free_memory(v);
    if (s == WEIR_DRIVER_ERROR || s == WEIR_NO_HOST_MEMORY)
        note_deleted(NULL, v); /* it is as it was: the next sweep tries again */
    else
        free(v);
}

void wr_pjrt_sweep(struct wr_pjrt_ground *g)
{
    if (!atomic_load_explicit(&g->deleted, memory_order_relaxed)) return;
    struct wr_pjrt_view *v = atomic_exchange(&g->deleted, NULL);
    while (v) {
        struct wr_pjrt_view *next = v->next;
        wr_pjrt_view_close(v);
        v = next;
    }
}

static bool create_view(struct wr_pjrt_view *v, const struct wr_pjrt_array *a, struct pjrt_buffer **out)
{
    struct pjrt_layout layout = {.struct_size = sizeof layout, .kind = PJRT_LAYOUT_TILED};
    layout.as.tiled.struct_size = sizeof layout.as.tiled;
    layout.as.tiled.minor_to_major = a->minor_to_major;
    layout.as.tiled.n_minor_to_major = a->n_dims;
    struct pjrt_create_view args = {.struct_size = sizeof args,
        .client = atomic_load(&v->site->client),
        .address = (void *)(uintptr_t)v->address,
        .dims = a->dims,
        .n_dims = a->n_dims,
        .type = a->type,
        .layout = &layout,
        .device = v->site->device,
        .on_delete = note_deleted,
        .on_delete_argument = v,
        .stream = v->ready,
        .memory = v->pinned ? v->site->pinned : v->site->memory};
    if (!wr_pjrt_call(PJRT_CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER, &args)) return false;
    *out = args.buffer;
    return true;
}

enum wr_pjrt_reason wr_pjrt_deliver(struct wr_pjrt_view *v, const struct wr_pjrt_array *a,
    weir_engine *engine, weir_ticket ticket, bool gated, struct pjrt_buffer **out)
{
    intptr_t ready = wr_pjrt_pick_ready(v->site);
    if (!ready) return WR_PJRT_REFUSED;
    weir_status s = weir_copy_join(engine, ticket, (weir_stream)ready);
    if (s == WEIR_OK && !v->pinned) s = weir_touch(v->site->ground->pool, v->address, (weir_stream)ready, 0);
    if (s != WEIR_OK) return WR_PJRT_FAILED;
    v->ready = ready;
    if (gated) wr_pjrt_note_gated(v->site, ready, engine, ticket);
    if (create_view(v, a, out)) return WR_PJRT_SERVED;
    if (v->pinned) atomic_store(&v->site->no_pinned_views, true);
    return WR_PJRT_REFUSED;
}
