/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocators that come with Python packages, behind the C functions that their libraries export. bench/peers.py
 * finds them and hands them over, so that loops of C call them as they call weir.
 */
#ifndef WR_BENCH_PEER_H
#define WR_BENCH_PEER_H

#include "subject.h"

/* bench/peers.py has the same fields. Of alloc_current and alloc_on, a peer has one. */
struct wr_peer {
    const char *name;
    /* As PyTorch exports its allocator: on the stream that is current in the thread. 0 is success. */
    int32_t (*alloc_current)(uint64_t bytes, void **block);
    int32_t (*free_current)(void *block);
    int32_t (*set_stream)(void *stream, int32_t device, void **guard);
    /* As PyTorch takes a pluggable allocator, and RMM exports one: it serves the resource that is selected. */
    void *(*alloc_on)(size_t bytes, int device, void *stream);
    void (*free_on)(void *block, size_t bytes, int device, void *stream);
    void (*select)(void);
};

/* The peer is kept, and read. Its allocator has memory of device 0. */
void wr_subject_peer(struct wr_subject *out, const struct wr_peer *peer, const weir_stream *streams);

/* bench/alloc with these as well, as a function of libweir_alloc.so. Returns what the program would. */
__attribute__((visibility("default"))) int wr_alloc_run(
    int argc, char **argv, const struct wr_peer *peers, unsigned n_peers);

#endif
