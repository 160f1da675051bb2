/* SPDX-License-Identifier: Apache-2.0
 *
 * A PJRT plug-in in miniature, over the simulated device: as much of the ABI as the hook uses, with the habits of the
 * real one that matter to it.
 *
 *   - A copy of its own waits for what computes on the destination.
 *   - It takes views on its own "ready" streams alone, handed out in turn, and calls on_delete when what reads the
 *     buffer has ended.
 *   - Donation fails on a buffer with an external reference. Destroy frees the handle whatever is going on; that of a
 *     referenced one is counted as a crash, and a double one, too.
 */
#ifndef PJRT_MINI_H
#define PJRT_MINI_H

#include "abi.h"
#include "device_sim.h"

enum { MINI_DEVICES = 2, MINI_READY = 4, MINI_RANK = 8, MINI_PLACES = 138 };

struct pjrt_memory {
    struct pjrt_device *device;
    const char *kind;
};

struct pjrt_device {
    struct pjrt_client *client;
    struct wr_device *sim;
    int ordinal;
    struct pjrt_memory memory, pinned, odd; /* odd: a kind that nobody knows */
    weir_stream compute, copies, ready[MINI_READY];
    unsigned next_ready;
};

struct pjrt_client {
    struct pjrt_device device[MINI_DEVICES];
    void *devices[MINI_DEVICES];
    const char *platform;
};

/* Reads its arguments on the devices' compute streams, and adds up their bytes in `sum`. */
struct pjrt_executable {
    uint64_t ns;
    unsigned donated; /* bit i: argument i is taken over */
    _Atomic uint64_t sum;
};

struct pjrt_event;
struct pjrt_buffer {
    struct pjrt_memory *memory;
    int type;
    size_t n_dims, bytes;
    int64_t dims[MINI_RANK], minor_to_major[MINI_RANK];
    size_t n_tiles;
    uint64_t address;
    void (*on_delete)(void *address, void *argument); /* NULL: memory of the plug-in's own */
    void *argument;
    wr_event ready, last_use; /* NULL: nothing to wait for */
    int external;
    bool deleted, broken;
};

/* What went on. */
struct mini {
    struct pjrt_api *api;
    struct wr_sim *world;
    unsigned calls[MINI_PLACES]; /* by place */
    unsigned crashes;
    int n_buffers, n_events, n_errors;
    int fail_place, fail_after; /* mini_fail */
};
extern struct mini mini;

enum {
    MINI_STREAM_GET = 136,
    MINI_STREAM_WAIT = 137
}; /* counted, and made to fail, as if they were places */

/* A fresh table. The one of before must no longer be in use. */
struct pjrt_api *mini_open(const char *profile);
struct pjrt_client *mini_client(const char *platform); /* through the table, as a program does */
void mini_destroy_client(struct pjrt_client *c);
void mini_settle(void); /* until nothing is pending in the plug-in, and nothing runs */

/* The call of that place after `after` others fails; -1: none does. */
void mini_fail(int place, int after);

/* A buffer of the plug-in's own, all of whose bytes are `tag`, computed behind what the device computes now. */
struct pjrt_buffer *mini_computed(struct pjrt_device *d, int type, size_t n, unsigned char tag);

/* ---- between its rooms ------------------------------------------------------------------------------- */

enum { MINI_INVALID = 3, MINI_NOT_FOUND = 5, MINI_PRECONDITION = 9 }; /* codes of errors */

void mini_make(weir_status s); /* what must not fail */
weir_status mini_try_record(struct pjrt_device *d, weir_stream s, wr_event *out);
wr_event mini_record(struct pjrt_device *d, weir_stream s);
void mini_wait_for(struct pjrt_device *d, weir_stream s, wr_event e); /* NULL: nothing to wait for */
void mini_put_buffer_functions(pjrt_function *entries);

struct pjrt_error *mini_error(int code, const char *text);
struct pjrt_error *mini_enter(int place);                         /* counts; an error that was asked for */
struct pjrt_event *mini_event(struct pjrt_device *d, wr_event e); /* of all recorded; NULL: ready */
void mini_land(struct pjrt_event *e, void *to, void *from, size_t bytes); /* before it becomes ready */
void mini_bury(struct pjrt_buffer *b); /* on_delete, once last_use has passed */
void mini_start_poller(void);
void mini_put_event_functions(pjrt_function *entries);

#endif
