/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated GPUs from inside. device_sim.c: the seam's table and worlds. sim_stream.c: handles of streams
 * and events. sim_engine.c: when ops run. sim_doze.c: who sleeps. sim_memory.c, sim_ranges.c: what they touch.
 * sim_oracle.c: whether they may. sim_graph.c: what a capture makes of them.
 *
 * LOCK: world->mutex guards everything here. It is not a wr_lock: it stands for the driver's own, under the
 * seam. Bookkeeping that finds no host memory ends the process with a word (wr_sim_alloc): a simulation can't
 * go on.
 */
#ifndef WR_SIM_H
#define WR_SIM_H

#include "device_sim.h"

struct wr_sim;
struct sim_device;
struct sim_stream;
struct sim_op;

/* ---- the oracle's notions ---------------------------------------------------------------------------- */

/* A vector clock. times[c] = t: ordered after the first t accesses of component c. Missing entries are 0. */
struct sim_clock {
    uint64_t *times;
    uint32_t n;
};

/* One access, as remembered by the bytes that it touched. */
struct sim_access {
    uint64_t time; /* of its component; 0: no access */
    uint64_t op;
    uint64_t stream_id;
    const char *what;
    uint32_t component;
};

/* Bytes with one history: the last write and the reads since then that nothing known is ordered after. */
struct sim_interval {
    uint64_t start, end;
    struct sim_access writer;
    struct sim_access *readers;
    uint32_t n_readers;
};

/* A stream's place in vector clocks. A later stream takes it over once the host has seen all of its past. */
struct sim_component {
    uint64_t time;
    bool taken;
};

struct sim_oracle {
    struct sim_clock host;
    uint64_t host_version; /* changes with host: a stream joins it only then */
    struct sim_component *components;
    uint32_t n_components;
    struct sim_interval **intervals; /* sorted, disjoint */
    size_t n_intervals, capacity, sweep_at;
    uint64_t *reported; /* ops that the present access was reported to race with: each once */
    size_t n_reported, reported_capacity;
    char **texts;
    size_t n_texts, n_cleared;
    bool prints; /* reports go to stderr, too: WEIR_CHECK_USES */
};

/* ---- memory ------------------------------------------------------------------------------------------ */

struct sim_memory {
    struct sim_device *device;
    int file;        /* the device's, or imported: its own descriptor of another's */
    bool imported;   /* of another process, or made to look so: not the device's to count */
    uint64_t offset; /* in the file: never used twice */
    size_t bytes;
    unsigned n_mapped;
    bool released; /* by its owner; lives on while mapped */
};

/* A reservation, a mapping or a registration of host memory. */
struct sim_range {
    uint64_t start, bytes;
    uint64_t memory;     /* mapping: its handle */
    uint32_t accessible; /* mapping: bit n: from device n */
    bool plain;          /* mapping: made by plain_alloc, with a reservation of its own */
    const struct sim_device *owner;
};

struct sim_ranges {
    struct sim_range *items; /* sorted, disjoint */
    size_t n, capacity;
};

/* ---- streams, events, ops ---------------------------------------------------------------------------- */

/* A point of one stream's past, or of all streams of a device: what an event held when it was recorded. */
struct sim_mark {
    unsigned refs;
    unsigned pending; /* streams that have not passed it; 0: done */
    uint64_t done_ns;
    struct sim_clock clock;
    struct sim_stream *blocked; /* streams whose next op waits for it, by next_blocked */
};

struct sim_event {
    struct sim_device *device;
    bool timed;
    struct sim_mark *latest; /* NULL: never recorded, which reads as done */
};

struct sim_stream {
    struct sim_device *device;
    uint64_t id;
    uint64_t thread; /* whose per-thread stream it is; 0: nobody's */
    size_t index;    /* in world->streams */
    struct sim_op *head, **tail;
    uint64_t idle_ns; /* when its last op ended */
    struct sim_stream *next_blocked;
    bool user, destroyed; /* made by stream_create; its handle is dead, it goes when empty */
    bool capturing;
    uint64_t capture_id;     /* while capturing */
    struct sim_graph *graph; /* what it captures; NULL: nothing, it is but marked so */
    struct sim_clock clock;
    uint64_t host_version;
    uint32_t component;
};

enum sim_op_kind { SIM_COPY, SIM_FILL, SIM_KERNEL, SIM_MARK, SIM_WAIT, SIM_GATE };

/* A copy engine: one copy after the other. */
struct sim_engine {
    uint64_t free_ns;
};

struct sim_span {
    uint64_t address;
    size_t bytes;
    bool writes;
    bool pageable; /* host memory that nobody registered: not looked at */
    uint32_t from; /* bit n: reached from device n. 0: from the device that owns it */
};

struct sim_op {
    struct sim_op *next; /* in its stream */
    struct sim_stream *stream;
    enum sim_op_kind kind;
    const char *what;
    uint64_t number;   /* order of queueing in the world */
    uint64_t ready_ns; /* not to start before: when it was queued, or what it waited for ended */
    uint64_t duration_ns, end_ns;
    bool started;
    struct sim_engine *engine;      /* copies that need one */
    struct sim_mark *mark;          /* MARK, WAIT */
    struct wr_sim_gate *gate;       /* GATE: still closed */
    bool garbles;                   /* COPY: a byte of each row arrives wrong */
    unsigned char byte;             /* FILL */
    const struct wr_kernel *kernel; /* KERNEL */
    void *params[8];                /* into storage */
    unsigned char *storage;
    unsigned n_spans;
    struct sim_span spans[]; /* COPY: destination, source of each row. FILL: destination. KERNEL: its uses */
};

/* A step of a graph: work, or what is done to an event. */
struct sim_node {
    struct sim_op *work; /* never queued itself: each launch queues a copy. NULL: the event's */
    wr_event event;
    bool records; /* the event; else waits for it */
};

struct sim_graph {
    struct sim_device *device;
    bool broken; /* something was done that a capture forbids */
    struct sim_node *nodes;
    size_t n_nodes, capacity;
    struct sim_event last; /* the end of its latest launch */
};

struct wr_sim_gate {
    struct wr_sim *world;
    struct sim_op *op;
};

/* ---- worlds ------------------------------------------------------------------------------------------ */

enum { SIM_ENGINE_H2D, SIM_ENGINE_D2H, SIM_ENGINE_PEER, SIM_ENGINES };

struct sim_device {
    struct wr_device base;
    struct wr_sim *world;
    _Atomic bool was_reset; /* its context is gone: another has its ordinal */
    struct sim_engine engines[SIM_ENGINES];
    struct sim_stream *legacy;
    struct sim_clock past; /* of its streams that are gone */
    int file;              /* its physical memory: a sparse memfd */
    uint64_t file_end;
    size_t used_bytes;
    uint32_t plain_peers; /* bit n: device n has access to all of its plain memory */
};

/* A thread known to doze. See sim_doze.c. */
struct sim_sleeper {
    uint64_t thread, end_ns, round;
    pthread_cond_t *wake;
    bool asleep, timed_out;
};

struct wr_sim {
    struct wr_sim_options options;
    struct wr_sim_profile profile;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* an op has ended, or a gate was opened */
    pthread_cond_t work;    /* wall clock: something new for the worker */
    pthread_t worker;
    bool closing;

    uint64_t now; /* virtual clock */
    uint64_t random;
    uint64_t n_ops;
    struct sim_op *
        *running; /* a heap by (end, number); under an adversary, what is legal next, in any order */
    size_t n_running, running_capacity;
    const struct sim_op *moving; /* wall clock: the worker moves its bytes, outside the mutex */

    struct sim_device *
        *devices; /* by ordinal; behind them those that were reset, whose old work may still run */
    size_t n_devices;
    struct sim_stream **streams; /* all that live, destroyed ones with work left included */
    size_t n_streams, streams_capacity;
    struct sim_stream **stream_handles; /* handle - SIM_FIRST_HANDLE -> stream, NULL: dead */
    size_t n_stream_handles, stream_handles_capacity;
    size_t *dead_handles; /* a stack, for reuse_handles */
    size_t n_dead_handles, dead_handles_capacity;
    struct sim_event **events; /* handle - 1 -> event, NULL: dead */
    size_t n_events, events_capacity;
    struct sim_graph **graphs; /* handle - 1 -> graph, NULL: dead */
    size_t n_graphs, graphs_capacity;

    struct sim_memory **memories; /* handle - 1 -> memory, NULL: gone */
    size_t n_memories, memories_capacity;
    struct sim_ranges reservations, mappings, registrations;

    struct sim_oracle oracle;
    struct sim_sleeper *sleepers;
    size_t n_sleepers, sleepers_capacity;
    uint64_t round;
    struct wr_sim_counts counts;
    const struct wr_kernel **loaded;
    size_t n_loaded, loaded_capacity;
    uint64_t last_capture;
    uint64_t calls, fail_at;
    weir_status fail_status;
};

enum { SIM_FIRST_HANDLE = 16 }; /* below are the driver's own names */

static inline struct sim_device *sim_device_of(struct wr_device *d)
{
    return WR_CONTAINER_OF(d, struct sim_device, base);
}

/* device_sim.c. */
void *wr_sim_alloc(void *old, size_t bytes); /* realloc that never fails */
/* An array of pointers or records with room for one more. */
void *wr_sim_grow(void *array, size_t n, size_t *capacity, size_t item_bytes);
uint64_t wr_sim_thread(void); /* a number of the calling thread, from 1, never used again */
/* Opens each op: asserts, counts, injects failures. OK: world->mutex is held until leave. */
weir_status wr_sim_enter(struct wr_device *d, const char *op);
weir_status wr_sim_leave(struct wr_device *d, weir_status s);
/* A launch's parameters live in the op until it runs. */
void wr_sim_copy_params(struct sim_op *op, const struct wr_kernel *k, void *const *params);

/* sim_stream.c: the seam's stream and event ops, and: */
struct sim_stream *wr_sim_stream_new(struct sim_device *d, uint64_t thread);
void wr_sim_stream_free(struct sim_stream *s);
struct sim_stream *wr_sim_stream_at(struct sim_device *d, weir_stream handle); /* NULL: dead, or unknown */
/* The stream named by a handle; a dead or unknown one is reported and refused. */
weir_status wr_sim_stream_find(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out);
/* find, and refuses a capturing stream: for what would become part of the graph. */
weir_status wr_sim_stream_find_free(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out);
/* find, for work: a stream that captures a graph takes it, see wr_sim_graph_queue. */
weir_status wr_sim_stream_find_work(
    struct sim_device *d, weir_stream handle, const char *op, struct sim_stream **out);
/* For what would break the capture of any stream of the device: counted, reported and refused. */
weir_status wr_sim_stream_refuse_captured(const struct sim_device *d, const char *op);
struct sim_mark *wr_sim_stream_mark(
    struct sim_stream *s);                     /* a mark behind all that is queued; one reference */
void wr_sim_stream_sync(struct sim_stream *s); /* the host waits for all that is queued */
void wr_sim_device_sync(struct sim_device *d); /* and for that of all streams of the device */
void wr_sim_mark_drop(struct sim_mark *m);
weir_status wr_sim_event_find(struct wr_sim *w, wr_event handle, const char *op, struct sim_event **out);
void wr_sim_event_record(struct sim_event *e, struct sim_stream *s); /* behind all that is queued */
void wr_sim_event_wait(const struct sim_event *e, struct sim_stream *s);
void wr_sim_event_clear(struct sim_event *e); /* never recorded */
void wr_sim_stream_end(struct wr_sim *w);     /* drops all, without running what is queued */

/* sim_engine.c. */
struct sim_op *wr_sim_engine_op(
    struct sim_stream *s, enum sim_op_kind kind, const char *what, unsigned n_spans);
void wr_sim_engine_queue(struct sim_op *op); /* starts it as soon as it may; consumes it */
void wr_sim_engine_op_free(struct sim_op *op);
void wr_sim_engine_wait(struct wr_sim *w, struct sim_mark *m); /* until it is done */
void wr_sim_engine_shuffle(struct wr_sim *w);                  /* under an adversary: a few steps, or none */
void wr_sim_engine_settle(struct wr_sim *w);                   /* by duration: runs what is due by now */
/* Wall clock: returns once the worker moves no byte of the range. */
void wr_sim_engine_keep_off(struct wr_sim *w, uint64_t start, uint64_t bytes);
uint64_t wr_sim_engine_now(struct wr_sim *w);
void wr_sim_engine_advance(struct wr_sim *w, uint64_t ns); /* wr_sim_advance, with the mutex held */
bool wr_sim_engine_start(struct wr_sim *w); /* the wall clock's worker; false: no thread to be had */
void wr_sim_engine_stop(struct wr_sim *w);

/* sim_graph.c: the seam's ops of graphs, and: */
/* Into the graph that the stream captures; else onto the stream. */
void wr_sim_graph_queue(struct sim_op *op);
void wr_sim_graph_free(struct sim_graph *g);
void wr_sim_graph_end(struct wr_sim *w); /* drops all */

/* sim_doze.c. */
void wr_sim_doze(struct wr_device *d, pthread_cond_t *wake, struct wr_lock *held, uint64_t ns);

/* sim_ranges.c: the seam's ops on host memory, and: */
size_t wr_sim_ranges_find(const struct sim_ranges *r, uint64_t address); /* the first that ends past it */
size_t wr_sim_ranges_find_start(
    const struct sim_ranges *r, uint64_t start); /* that starts just there, or r->n */
bool wr_sim_ranges_overlap(const struct sim_ranges *r, uint64_t start, uint64_t bytes);
void wr_sim_ranges_insert(struct sim_ranges *r, struct sim_range item);
void wr_sim_ranges_remove(struct sim_ranges *r, size_t from, size_t to);
/* Do they cover the bytes without a gap, each with all the bits of `accessible`? */
bool wr_sim_ranges_cover(const struct sim_ranges *r, uint64_t start, uint64_t bytes, uint32_t accessible);
bool wr_sim_memory_is_device(struct wr_sim *w, uint64_t address); /* in a reservation */
bool wr_sim_memory_is_pinned(struct wr_sim *w, uint64_t address, size_t bytes);
bool wr_sim_memory_reached(
    struct wr_sim *w, const struct sim_span *s); /* mapped and accessible, or registered */

/* sim_memory.c: the seam's memory ops, and: */
bool wr_sim_memory_open(struct sim_device *d);
void wr_sim_memory_close(struct sim_device *d);
void wr_sim_memory_end(struct wr_sim *w);

/* sim_oracle.c. */
bool wr_sim_oracle_join(struct sim_clock *into, const struct sim_clock *from); /* did that add anything? */
void wr_sim_oracle_stream_open(struct sim_stream *s);
void wr_sim_oracle_stream_close(struct sim_stream *s);
void wr_sim_oracle_op(struct sim_op *op); /* its accesses, checked and noted when it is queued */
void wr_sim_oracle_mark(struct sim_stream *s, struct sim_mark *m);
void wr_sim_oracle_wait(struct sim_stream *s, const struct sim_mark *m);
void wr_sim_oracle_seen(struct wr_sim *w, const struct sim_mark *m); /* the host knows that it is done */
/* The bytes end (unmapped, unregistered): everything must be known to have passed. Forgets their history. */
void wr_sim_oracle_end_bytes(struct wr_sim *w, uint64_t start, uint64_t bytes, const char *what);
void wr_sim_oracle_report(struct wr_sim *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void wr_sim_oracle_end(struct wr_sim *w);
void wr_sim_watch_free(struct wr_device *d, const struct wr_freed *f);

/* The rows of WR_DEVICE_OPS, each beside its kind. */
#define SIM_OP_DECLARE(name, args) weir_status wr_sim_op_##name args;
WR_DEVICE_OPS(SIM_OP_DECLARE)
#undef SIM_OP_DECLARE

#endif
