/* SPDX-License-Identifier: Apache-2.0
 *
 * A large buffer to the caller's host memory. What costs time there is the host's: fresh pages, and one thread that
 * copies into them. So the engine asks for it in huge pages, and its crew fills it. It begins when the
 * buffer is ready, in a worker, who may wait for copies. Should anything fail there, the plug-in's own function is
 * called as if it had been so from the start.
 */
#include "hook.h"

#include <stdlib.h>

static const size_t bytes_least = 1 << 20; /* below, the plug-in's own way is as fast */

struct fetching {
    struct wr_pjrt_job job;
    struct pjrt_buffer *source;
    uint64_t address;
    weir_engine *engine;
    void *to;
    size_t bytes, to_bytes;
    struct pjrt_event *source_ready; /* then: the original's */
    struct pjrt_event *event;        /* the caller's */
};

static void set_event(struct fetching *f, int code, const char *message, size_t n_message)
{
    (void)wr_pjrt_set_event(f->event, code, message, n_message);
    wr_pjrt_release(f->event, PJRT_EVENT_DESTROY);
}

/* ---- the original instead ---------------------------------------------------------------------------- */

static void finish_original(struct wr_pjrt_job *job)
{
    struct fetching *f = (struct fetching *)job;
    if (f->source_ready) wr_pjrt_do(PJRT_EVENT_DESTROY, f->source_ready);
    wr_pjrt_release_source(f->source);
    free(f);
}

/* The error of the original is the caller's. */
static void pass_on_error(struct fetching *f, struct pjrt_error *error)
{
    struct pjrt_get_number code = {.struct_size = sizeof code, .subject = error};
    struct pjrt_get_text text = {.struct_size = sizeof text, .subject = error};
    enum { UNKNOWN = 2 };
    bool known = error && wr_pjrt_call(PJRT_ERROR_GET_CODE, &code);
    if (error) (void)wr_pjrt_hook.original[PJRT_ERROR_MESSAGE](&text); /* returns nothing */
    set_event(f, !error ? 0 : known ? code.value.number : UNKNOWN, text.text, text.n);
    wr_pjrt_drop_error(error);
}

static void on_original_ready(struct pjrt_error *error, void *argument)
{
    struct fetching *f = argument;
    pass_on_error(f, error);
    f->job.run = finish_original;
    wr_pjrt_submit(&f->job);
}

static void run_original(struct fetching *f)
{
    struct pjrt_to_host args = {
        .struct_size = sizeof args, .from = f->source, .to = f->to, .to_bytes = f->to_bytes};
    struct pjrt_error *error = wr_pjrt_hook.original[PJRT_BUFFER_TO_HOST_BUFFER](&args);
    wr_pjrt_expect_job();
    f->source_ready = error ? NULL : args.event;
    if (!error && wr_pjrt_on_ready(args.event, on_original_ready, f)) return;
    on_original_ready(error, f); /* an event that takes no callback can't be waited for */
}

/* ---- ours -------------------------------------------------------------------------------------------- */

static weir_status copy(struct fetching *f)
{
    weir_piece piece = {.to = (uintptr_t)f->to, .from = f->address, .bytes = f->bytes};
    weir_ticket ticket = {0};
    weir_status s = weir_copy(f->engine, WEIR_TO_HOST, &piece, 1, NULL, &ticket);
    weir_status waited =
        weir_copy_wait(f->engine, ticket, -1); /* after an error, too: the memory must rest */
    return s != WEIR_OK ? s : waited;
}

static void fetch(struct wr_pjrt_job *job)
{
    struct fetching *f = (struct fetching *)job;
    uint64_t began_ns = wr_pjrt_now_ns();
    wr_pjrt_do(PJRT_EVENT_DESTROY, f->source_ready);
    if (copy(f) != WEIR_OK) {
        atomic_fetch_add(&wr_pjrt_hook.counters.forwarded[WR_PJRT_FAILED], 1);
        run_original(f);
        return;
    }
    wr_pjrt_count_served(WR_PJRT_TO_HOST, f->bytes, began_ns);
    wr_pjrt_release_source(f->source); /* before the caller learns of it: he may donate the buffer then */
    set_event(f, 0, NULL, 0);
    free(f);
}

static void fetch_original(struct wr_pjrt_job *job)
{
    struct fetching *f = (struct fetching *)job;
    wr_pjrt_do(PJRT_EVENT_DESTROY, f->source_ready);
    atomic_fetch_add(&wr_pjrt_hook.counters.forwarded[WR_PJRT_SOURCE], 1);
    run_original(f);
}

static void on_source_ready(struct pjrt_error *error, void *argument)
{
    struct fetching *f = argument;
    f->job.run = error ? fetch_original : fetch;
    wr_pjrt_drop_error(error);
    wr_pjrt_submit(&f->job);
}

static bool make_event(struct fetching *f)
{
    f->event = wr_pjrt_make_event();
    if (!f->event) return false;
    if (wr_pjrt_hold(f->event)) return true;
    wr_pjrt_do(PJRT_EVENT_DESTROY, f->event);
    return false;
}

static void drop_event(struct fetching *f)
{
    wr_pjrt_release(f->event, PJRT_EVENT_DESTROY);
    wr_pjrt_do(PJRT_EVENT_DESTROY, f->event);
}

/* Each step undoes those before it. */
static enum wr_pjrt_reason start(struct fetching *f, struct pjrt_event **event)
{
    if (!make_event(f)) return WR_PJRT_REFUSED;
    if (!wr_pjrt_hold_source(f->source, &f->address)) {
        drop_event(f);
        return WR_PJRT_REFUSED;
    }
    struct pjrt_event *given = f->event; /* f may be over before on_ready returns */
    f->source_ready = wr_pjrt_ready_event(f->source);
    wr_pjrt_expect_job();
    if (f->source_ready && wr_pjrt_on_ready(f->source_ready, on_source_ready, f)) {
        *event = given;
        return WR_PJRT_SERVED;
    }
    wr_pjrt_cancel_job();
    if (f->source_ready) wr_pjrt_do(PJRT_EVENT_DESTROY, f->source_ready);
    wr_pjrt_release_source(f->source);
    drop_event(f);
    return WR_PJRT_REFUSED;
}

static enum wr_pjrt_reason serve(struct pjrt_to_host *a)
{
    bool pinned = false;
    struct wr_pjrt_array array;
    if (a->struct_size < sizeof *a || !a->to) return WR_PJRT_SMALL;
    if (a->to_bytes < bytes_least) return WR_PJRT_SMALL;
    struct wr_pjrt_site *site = wr_pjrt_site_of_memory(wr_pjrt_get(PJRT_BUFFER_MEMORY, a->from), &pinned);
    if (!site) return WR_PJRT_UNKNOWN;
    if (pinned) return WR_PJRT_MEMORY;
    enum wr_pjrt_reason why = wr_pjrt_describe_buffer(&array, a->from);
    if (why == WR_PJRT_SERVED && array.bytes < bytes_least) why = WR_PJRT_SMALL;
    if (why == WR_PJRT_SERVED && (array.bytes > a->to_bytes || !wr_pjrt_layout_matches(&array, a->layout)))
        why = WR_PJRT_LAYOUT;
    if (why != WR_PJRT_SERVED) return why;
    if (!wr_pjrt_site_open(site) || !wr_pjrt_start_workers()) return WR_PJRT_FAILED;
    struct fetching *f = calloc(1, sizeof *f);
    if (!f) return WR_PJRT_NO_ROOM;
    *f = (struct fetching){.source = a->from,
        .engine = site->ground->engine,
        .to = a->to,
        .bytes = array.bytes,
        .to_bytes = a->to_bytes};
    why = start(f, &a->event);
    if (why != WR_PJRT_SERVED) free(f);
    return why;
}

struct pjrt_error *wr_pjrt_to_host(void *args)
{
    enum wr_pjrt_reason why = serve(args);
    return why == WR_PJRT_SERVED ? NULL : wr_pjrt_forward(PJRT_BUFFER_TO_HOST_BUFFER, args, why);
}
