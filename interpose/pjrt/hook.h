/* SPDX-License-Identifier: Apache-2.0
 *
 * The hook from inside. install.c: the table, clients, status. calls.c: the plug-in's own functions. sites.c: devices,
 * their pools, what was deleted. arrays.c: what is plain. deliver.c: from a copy to a buffer. from_host.c, across.c,
 * to_host.c: the transfers. holds.c: buffers that a copy reads. donation.c: which ones
 * executions take over. workers.c: threads.
 *
 * A TRANSFER. A block of the pool, allocated on the engine's stream; a copy by the engine, which waits for nothing
 * but its source; one of the streams that XLA takes as "ready" (it refuses any other) is joined to the copy; and the
 * plug-in makes a view of the block, which is ready when that stream is. The view's end gives the block back.
 *
 * A SOURCE that is a buffer of the plug-in's is held while it is read: by an external reference, which keeps its
 * memory, and by putting off its Destroy, which would free what the reference is counted in. Donation fails on a
 * buffer with an external reference, so an execution first waits for the copies of those arguments that it takes over
 * (holds.c, donation.c): what it waits for are copies, and what those wait for is queued already.
 *
 * READINESS. A view may be deleted before its copy is over, so the block carries a use on the ready stream
 * (weir_touch) from the start. Plug-ins of WR_PJRT_MINOR_LEAST and later call on_delete only when the kernels that
 * read the buffer have ended (measured); older ones when they are queued, and are declined.
 *
 * LOCK: every lock here is a leaf, under which nothing is called but the C library.
 */
#ifndef WR_PJRT_HOOK_H
#define WR_PJRT_HOOK_H

#include "abi.h"
#include "weir_copy.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    WR_PJRT_MINOR_LEAST = 115,
    WR_PJRT_SITES_MOST = 64,
    WR_PJRT_DEVICES_MOST = 64,
    WR_PJRT_RANK_MOST = 32,
    WR_PJRT_READY_MOST = 16
};

/* ---- what was served, and what not ------------------------------------------------------------------- */

#define WR_PJRT_KINDS(X)                                                                                     \
    X(FROM_HOST, "from_host")                                                                                \
    X(TO_HOST, "to_host")                                                                                    \
    X(ACROSS, "across")                                                                                      \
    X(TO_PINNED, "to_pinned")                                                                                \
    X(FROM_PINNED, "from_pinned")

enum wr_pjrt_kind {
#define WR_PJRT_KIND_ENUM(name, text) WR_PJRT_##name,
    WR_PJRT_KINDS(WR_PJRT_KIND_ENUM)
#undef WR_PJRT_KIND_ENUM
        WR_PJRT_N_KINDS
};

/* SERVED is the first, so that 0 is "not forwarded". */
#define WR_PJRT_REASONS(X)                                                                                   \
    X(SERVED, "")                                                                                            \
    X(UNKNOWN, "a client, device or memory that is not served")                                              \
    X(MEMORY, "another kind of memory")                                                                      \
    X(TYPE, "an element type without whole bytes")                                                           \
    X(LAYOUT, "a layout that is not plain")                                                                  \
    X(STRIDES, "strides that do not make rows")                                                              \
    X(EMPTY, "no bytes")                                                                                     \
    X(SMALL, "too small to gain")                                                                            \
    X(SAME_DEVICE, "a copy within one device")                                                               \
    X(SOURCE, "a source that failed")                                                                        \
    X(NO_ROOM, "no room in weir's pool")                                                                     \
    X(REFUSED, "the plug-in refused a step")                                                                 \
    X(FAILED, "weir failed")

enum wr_pjrt_reason {
#define WR_PJRT_REASON_ENUM(name, text) WR_PJRT_##name,
    WR_PJRT_REASONS(WR_PJRT_REASON_ENUM)
#undef WR_PJRT_REASON_ENUM
        WR_PJRT_N_REASONS
};

struct wr_pjrt_counters {
    _Atomic uint64_t served[WR_PJRT_N_KINDS], bytes[WR_PJRT_N_KINDS], ns[WR_PJRT_N_KINDS];
    _Atomic uint64_t forwarded[WR_PJRT_N_REASONS];
    _Atomic uint64_t execute_waits;
};

struct wr_pjrt_hook {
    struct pjrt_api *api;
    const struct pjrt_stream_extension *streams;
    pjrt_function original[PJRT_ENTRIES_USED]; /* by place; those of PJRT_ENTRIES alone are set */
    _Atomic bool serving;                      /* clients to come */
    struct wr_pjrt_counters counters;
};
extern struct wr_pjrt_hook wr_pjrt_hook;

uint64_t wr_pjrt_now_ns(void);
void wr_pjrt_count_served(enum wr_pjrt_kind kind, size_t bytes, uint64_t began_ns);
/* Counts the reason, and calls the original function. */
struct pjrt_error *wr_pjrt_forward(int place, void *args, enum wr_pjrt_reason why);

/* ---- calls.c: true is success. An error is destroyed. ------------------------------------------------ */

bool wr_pjrt_call(int place, void *args);
bool wr_pjrt_do(int place, void *subject);   /* of a buffer, an event, a client: no result */
void *wr_pjrt_get(int place, void *subject); /* NULL: an error */
enum wr_pjrt_state { WR_PJRT_READY, WR_PJRT_PENDING, WR_PJRT_BROKEN };
enum wr_pjrt_state wr_pjrt_state_of(struct pjrt_buffer *b);    /* BROKEN: will never be right */
struct pjrt_event *wr_pjrt_ready_event(struct pjrt_buffer *b); /* the caller's. NULL: an error */
bool wr_pjrt_on_ready(
    struct pjrt_event *e, void (*callback)(struct pjrt_error *error, void *argument), void *argument);
void wr_pjrt_drop_error(struct pjrt_error *e); /* NULL is fine */
/* An event of our own, to be set once. `code` 0 is success. */
struct pjrt_event *wr_pjrt_make_event(void); /* NULL: an error */
bool wr_pjrt_set_event(struct pjrt_event *e, int code, const char *message, size_t n_message);

/* ---- sites.c ----------------------------------------------------------------------------------------- */

struct wr_pjrt_view;

/* What weir has on a GPU, in the pool that the process's adapters share. Made at the first use, kept until the process
 * ends. Memory on `home` is under COMPLETED reuse, though the pool's is OWNER: all that reads it is declared, and OWNER
 * asks about the whole context, by an event that would break what XLA captures meanwhile. */
struct wr_pjrt_ground {
    int ordinal;
    pthread_once_t once;
    _Atomic bool usable; /* set once: then the rest is constant */
    weir_pool *pool;     /* shared: never closed here */
    weir_engine *engine;
    weir_stream home;
    _Atomic(struct wr_pjrt_view *) deleted; /* pushed by any thread of the plug-in's, freed by ours */
};

/* Was it used, and can it be? */
static inline bool wr_pjrt_is_open(struct wr_pjrt_ground *g)
{
    return atomic_load_explicit(&g->usable, memory_order_acquire);
}

/* A device of a client's. */
struct wr_pjrt_site {
    _Atomic(struct pjrt_client *) client; /* NULL: it has gone */
    struct pjrt_device *device;
    struct pjrt_memory *memory, *pinned; /* pinned: may be NULL */
    struct wr_pjrt_ground *ground;
    _Atomic bool no_pinned_views; /* the plug-in refused one */
    pthread_mutex_t lock;         /* guards: */
    struct wr_pjrt_ready {
        intptr_t stream;
        weir_ticket ticket; /* of a copy that had to wait for its source; all zero: none */
        weir_engine *engine;
    } ready[WR_PJRT_READY_MOST];
};

void wr_pjrt_add_client(struct pjrt_client *c);
void wr_pjrt_remove_client(struct pjrt_client *c); /* before it is destroyed */
unsigned wr_pjrt_count_clients(void);
bool wr_pjrt_had_clients(void);                        /* one at least, be it gone. Takes no lock */
struct wr_pjrt_ground *wr_pjrt_ground_at(int ordinal); /* NULL: never used */

/* The site of a device, or of a memory and then whether that is the pinned one. NULL: not served. */
struct wr_pjrt_site *wr_pjrt_site_of_device(const struct pjrt_device *d);
struct wr_pjrt_site *wr_pjrt_site_of_memory(const struct pjrt_memory *m, bool *pinned);

/* Opens what it needs at the first call. False: weir can't be used on that device. */
bool wr_pjrt_site_open(struct wr_pjrt_site *site);

/* One that no copy holds up, if there is one. 0: an error. */
intptr_t wr_pjrt_pick_ready(struct wr_pjrt_site *site);
/* Views on that stream will be ready only when the copy has got its source. */
void wr_pjrt_note_gated(struct wr_pjrt_site *site, intptr_t stream, weir_engine *engine, weir_ticket ticket);

/* Gives back what the plug-in has deleted. */
void wr_pjrt_sweep(struct wr_pjrt_ground *g);

/* ---- arrays.c ---------------------------------------------------------------------------------------- */

struct wr_pjrt_array {
    int type;
    size_t n_dims, bytes;
    const int64_t *dims;
    int64_t minor_to_major[WR_PJRT_RANK_MOST];
};

size_t wr_pjrt_type_bytes(int type);
/* An array in the usual order: the last dimension fastest. */
enum wr_pjrt_reason wr_pjrt_describe(struct wr_pjrt_array *a, int type, const int64_t *dims, size_t n_dims);
enum wr_pjrt_reason wr_pjrt_describe_buffer(struct wr_pjrt_array *a, struct pjrt_buffer *b);
/* Does the layout (NULL: any) put the elements in the array's own order, without gaps? */
bool wr_pjrt_layout_matches(const struct wr_pjrt_array *a, const struct pjrt_layout *l);
/* The source of an array in the usual order, as rows with a pitch. Sets all of *p but `to` and `from`. */
enum wr_pjrt_reason wr_pjrt_find_rows(
    const struct wr_pjrt_array *a, const int64_t *strides, size_t n_strides, weir_piece *p);

/* ---- deliver.c --------------------------------------------------------------------------------------- */

/* Memory for an array, and where the plug-in is to see it. */
struct wr_pjrt_view {
    struct wr_pjrt_view *next;
    struct wr_pjrt_site *site;
    bool pinned;
    uint64_t address;
    intptr_t ready;
};

enum wr_pjrt_reason wr_pjrt_view_open(
    struct wr_pjrt_site *site, bool pinned, size_t bytes, struct wr_pjrt_view **out);
void wr_pjrt_view_close(struct wr_pjrt_view *v); /* no buffer was made of it, and its copies are over */

/* A buffer of the view, ready after the copy. The view is the buffer's then. */
enum wr_pjrt_reason wr_pjrt_deliver(struct wr_pjrt_view *v, const struct wr_pjrt_array *a,
    weir_engine *engine, weir_ticket ticket, bool gated, struct pjrt_buffer **out);

/* ---- holds.c ----------------------------------------------------------------------------------------- */

/* Puts off the Destroy of a buffer or an event until it is released as often. */
bool wr_pjrt_hold(void *thing);
void wr_pjrt_release(void *thing, int destroy_place);

/* Holds a buffer to be read, and says where it lies. */
bool wr_pjrt_hold_source(struct pjrt_buffer *b, uint64_t *address);
void wr_pjrt_release_source(struct pjrt_buffer *b);

/* ---- donation.c -------------------------------------------------------------------------------------- */

bool wr_pjrt_is_known(const void *executable);
bool wr_pjrt_may_take(const void *executable, size_t argument); /* true where it is not known */
void wr_pjrt_learn_taken(const struct pjrt_execute *a);         /* after it */

/* ---- workers.c --------------------------------------------------------------------------------------- */

/* `run` gets the job, in a thread of the hook's; the job is its own memory. False: no thread could be made. */
struct wr_pjrt_job {
    struct wr_pjrt_job *next;
    void (*run)(struct wr_pjrt_job *job);
};
bool wr_pjrt_start_workers(void);
void wr_pjrt_submit(struct wr_pjrt_job *job); /* after start_workers was true */
void wr_pjrt_drain_workers(void);             /* until no job is left, and none is on its way to here */
void wr_pjrt_expect_job(void);                /* one is on its way: it will be submitted, or cancelled */
void wr_pjrt_cancel_job(void);

/* ---- the hooked functions ---------------------------------------------------------------------------- */

struct pjrt_error *wr_pjrt_from_host(void *args);
struct pjrt_error *wr_pjrt_copy_to_device(void *args);
struct pjrt_error *wr_pjrt_copy_to_memory(void *args);
struct pjrt_error *wr_pjrt_to_host(void *args);
struct pjrt_error *wr_pjrt_destroy_buffer(void *args);
struct pjrt_error *wr_pjrt_destroy_event(void *args);
struct pjrt_error *wr_pjrt_memory_stats(void *args);
struct pjrt_error *wr_pjrt_execute(void *args);
struct pjrt_error *wr_pjrt_destroy_executable(void *args);

#endif
