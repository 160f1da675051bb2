/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated GPUs: what a test or a demo can do to them beyond the seam.
 *
 * A world holds the devices of one profile, one clock and one oracle. Streams run their ops in order; copies
 * queue on one engine per direction and device with a latency and a bandwidth; kernels on one stream after
 * the other, on different streams side by side. Memory has real bytes, which an op reads and writes when it
 * completes.
 *
 * VIRTUAL clock: time stands still but for wr_sim_advance, wr_sim_drain, a blocking op (stream_sync, a copy
 * of pageable memory) and doze. With `sleepers` = n > 1, doze moves time only when n threads doze at once, to
 * the earliest of their ends; it may return sooner, as a condition wait may, so callers look again. Time
 * starts at 0. WALL clock: time is the machine's; a thread completes ops as they fall due.
 *
 * ADVERSARY (seed != 0): durations are ignored; each wr_sim_step completes one op, drawn from the seed among
 * all that are legal; every query first lets a random number of steps happen.
 *
 * ORACLE: each op declares what it reads and writes. Vector clocks over streams, events and the host (one
 * clock for all host threads) tell which earlier accesses it is ordered after; an access that conflicts with
 * one it is not ordered after is reported when it is queued, whatever the scheduler then does. Host accesses:
 * declared by wr_sim_host_access. mem_unmap, host_unregister and the host's reuse must be ordered after every
 * access too. An op that touches unmapped or unregistered memory is reported.
 */
#ifndef WR_DEVICE_SIM_H
#define WR_DEVICE_SIM_H

#include "device.h"

struct wr_sim;
struct wr_sim_gate;

struct wr_sim_profile {
    const char *name;
    unsigned devices;
    size_t memory_bytes;       /* per device */
    double h2d_gbps, d2h_gbps; /* 10^9 bytes per second, pinned */
    double pageable_gbps;      /* copies of pageable memory: staged by the driver, the caller waits */
    double peer_gbps, d2d_gbps;
    uint64_t copy_latency_ns;
    unsigned copy_engines;
};

#define WR_SIM_DEFAULT_PROFILE "h200-pcie5x2"

/* "gtx1080-pcie3", "h200-pcie5" and each with "x2" behind it; NULL where unknown. */
const struct wr_sim_profile *wr_sim_profile_find(const char *name);

struct wr_sim_options {
    const struct wr_sim_profile *profile;
    bool wall_clock;
    uint64_t adversary_seed; /* 0: ops complete by duration */
    bool reuse_handles;      /* stream_create returns the last destroyed handle, as a driver may */
    unsigned sleepers;       /* see VIRTUAL clock; 0 means 1 */
    /* Two kinds of machines where devices can't copy to each other: those that say so, and those whose copies
     * arrive with wrong bytes. */
    bool no_peer_access, peers_garble;
    /* Each kernel's first launch holds the driver's lock for so long, as where kernels are loaded lazily. */
    uint64_t lazy_load_ns;
};

weir_status wr_sim_open(const struct wr_sim_options *o, struct wr_sim **out);
/* Ends the world: pinned arenas, memory, streams. Pools on it must be closed (leaks are reported on stderr
 * and counted by the return value: mappings, handles, reservations, registrations, events and streams left).
 */
unsigned wr_sim_close(struct wr_sim *w);
struct wr_device *wr_sim_device(struct wr_sim *w, unsigned ordinal);

/* Time and order. */
void wr_sim_advance(
    struct wr_sim *w, uint64_t ns); /* virtual clock: completes all that falls due on the way */
void wr_sim_drain(
    struct wr_sim *w); /* completes all that is not behind a closed gate, moving time as needed */
bool wr_sim_step(struct wr_sim *w); /* completes one legal op; false: none is */

/* An op on `s` that ends only when the gate is opened: the stream is stalled. Freed by opening it. */
weir_status wr_sim_stall(struct wr_device *d, weir_stream s, struct wr_sim_gate **out);
void wr_sim_gate_open(struct wr_sim_gate *g);

/* As cuDevicePrimaryCtxReset: every call on `d` is CONTEXT_LOST from now on, and wr_sim_device names a new
 * device of that ordinal, with all of its memory free. What was queued on the old one runs on, unseen. */
void wr_sim_reset_device(struct wr_device *d);

/* Failure injection: of the calls of the seam that follow, the n-th (from 1) fails with `status` and does
 * nothing; n = 0 switches it off. stream_identify, stream_capture and the clock are not counted. */
void wr_sim_fail_nth(struct wr_sim *w, uint64_t n, weir_status status);
uint64_t wr_sim_calls(struct wr_sim *w); /* counted calls so far, all devices */

/* The oracle. Texts live until the world ends. */
void wr_sim_host_access(struct wr_sim *w, const void *host, size_t bytes, bool writes);
unsigned wr_sim_reports(struct wr_sim *w);
const char *wr_sim_report(struct wr_sim *w, unsigned i);
void wr_sim_reports_clear(struct wr_sim *w);

/* Host-side reading and writing of device memory as it is now, for checks (no ordering, no oracle). */
void wr_sim_peek(struct wr_sim *w, uint64_t address, void *out, size_t bytes);

/* Marks `s` as capturing, in a capture of its own (or no longer), and stream_identify says so. Meanwhile
 * CAPTURING is what you get from queueing anything on `s`, its sync and event_record included; and from
 * event_record_context and mem_unmap of its device, which would break a real capture, or are not to be made
 * during one: these are counted, and reported. */
void wr_sim_set_capturing(struct wr_device *d, weir_stream s, bool on);
/* `s` joins the capture that `of` is part of. */
void wr_sim_join_capture(struct wr_device *d, weir_stream s, weir_stream of);

/* Counts since the world began, for tests of "no waits" and of fallbacks. */
struct wr_sim_counts {
    /* host_syncs: times the host waited for work, by whatever op */
    uint64_t stream_waits, host_syncs, copies, launches, events_recorded, events_created, registrations;
    uint64_t dead_handle_uses; /* calls that named a destroyed stream or event; each is reported too */
    uint64_t captures_broken;  /* calls that a capture forbids: the real driver would end it with an error */
};
void wr_sim_get_counts(struct wr_sim *w, struct wr_sim_counts *out);

#endif
