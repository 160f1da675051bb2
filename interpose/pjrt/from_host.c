/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory to a device. The engine reads pageable memory during the call, and pinned memory later, unless told
 * otherwise; what the caller was promised about his array holds for both. No call waits for a copy.
 */
#include "hook.h"

enum { AT_ONCE_MOST = 64 << 10 };

static enum wr_pjrt_reason find_site(const struct pjrt_from_host *a, struct wr_pjrt_site **out)
{
    bool pinned = false;
    *out = a->memory ? wr_pjrt_site_of_memory(a->memory, &pinned) : wr_pjrt_site_of_device(a->device);
    if (!*out || (a->client != atomic_load(&(*out)->client))) return WR_PJRT_UNKNOWN;
    return pinned ? WR_PJRT_MEMORY : WR_PJRT_SERVED;
}

/* Is the array read during the call, though it may lie in pinned memory? Small ones cost less so: nobody has to tell
 * their owner later that he may have them back. */
static bool is_read_at_once(const struct pjrt_from_host *a, size_t bytes)
{
    return a->semantics == PJRT_HOST_ONLY_DURING_CALL || bytes <= AT_ONCE_MOST;
}

static struct pjrt_event *make_done_event(void)
{
    struct pjrt_event *done = wr_pjrt_make_event();
    if (!done || wr_pjrt_set_event(done, 0, NULL, 0)) return done;
    wr_pjrt_do(PJRT_EVENT_DESTROY, done);
    return NULL;
}

/* When the array may change: now, or when the buffer is ready. */
static enum wr_pjrt_reason promise_host(struct pjrt_from_host *a, bool at_once, struct pjrt_buffer *buffer)
{
    struct pjrt_event *done = at_once ? make_done_event() : NULL;
    if (!done) done = wr_pjrt_ready_event(buffer);
    if (!done) return WR_PJRT_REFUSED;
    a->done_with_host_buffer = done;
    a->buffer = buffer;
    return WR_PJRT_SERVED;
}

static enum wr_pjrt_reason copy_into(
    struct pjrt_from_host *a, const struct wr_pjrt_array *array, struct wr_pjrt_view *v, weir_piece piece)
{
    weir_engine *engine = v->site->ground->engine;
    weir_ticket ticket = {0};
    struct pjrt_buffer *buffer;
    bool at_once = is_read_at_once(a, array->bytes);
    weir_copy_options o = {.struct_size = sizeof o, .flags = at_once ? WEIR_COPY_DURING_CALL : 0};
    piece.to = v->address;
    piece.from = (uintptr_t)a->data;
    weir_status s = weir_copy(engine, WEIR_TO_DEVICE, &piece, 1, &o, &ticket);
    enum wr_pjrt_reason why =
        s == WEIR_OK ? wr_pjrt_deliver(v, array, engine, ticket, false, &buffer) : WR_PJRT_FAILED;
    if (why != WR_PJRT_SERVED) {
        (void)weir_copy_wait(engine, ticket, -1);
        wr_pjrt_view_close(v);
        return why;
    }
    why = promise_host(a, at_once, buffer);
    if (why != WR_PJRT_SERVED) {
        (void)weir_copy_wait(engine, ticket, -1); /* the array is the caller's again */
        wr_pjrt_do(PJRT_BUFFER_DESTROY, buffer);
    }
    return why;
}

static enum wr_pjrt_reason serve(struct pjrt_from_host *a)
{
    struct wr_pjrt_site *site;
    struct wr_pjrt_array array;
    struct wr_pjrt_view *view;
    weir_piece piece;
    uint64_t began_ns = wr_pjrt_now_ns();
    if (a->struct_size < sizeof *a) return WR_PJRT_UNKNOWN;
    enum wr_pjrt_reason why = find_site(a, &site);
    if (why == WR_PJRT_SERVED) why = wr_pjrt_describe(&array, a->type, a->dims, a->n_dims);
    if (why == WR_PJRT_SERVED && !wr_pjrt_layout_matches(&array, a->layout)) why = WR_PJRT_LAYOUT;
    if (why == WR_PJRT_SERVED) why = wr_pjrt_find_rows(&array, a->strides, a->n_strides, &piece);
    if (why == WR_PJRT_SERVED) why = wr_pjrt_view_open(site, false, array.bytes, &view);
    if (why == WR_PJRT_SERVED) why = copy_into(a, &array, view, piece);
    if (why == WR_PJRT_SERVED) wr_pjrt_count_served(WR_PJRT_FROM_HOST, array.bytes, began_ns);
    return why;
}

struct pjrt_error *wr_pjrt_from_host(void *args)
{
    enum wr_pjrt_reason why = serve(args);
    return why == WR_PJRT_SERVED ? NULL : wr_pjrt_forward(PJRT_CLIENT_BUFFER_FROM_HOST_BUFFER, args, why);
}
