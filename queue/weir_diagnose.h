/* SPDX-License-Identifier: Apache-2.0
 *
 * Why is it slow? Which of the known causes hold copies behind compute, as far as a queue has seen them here.
 */
#ifndef WEIR_DIAGNOSE_H
#define WEIR_DIAGNOSE_H

#include "weir_copy.h"
#include "weir_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Over 5 % of the bytes lay in pageable memory, though lent to be read in place: the host copies them first. */
    WEIR_SLOW_PAGEABLE = 1 << 0,
    /* Items are read on the legacy default stream: it and every blocking stream of the process wait for each other. */
    WEIR_SLOW_NULL_STREAM = 1 << 1,
    /* More streams than hardware queues ($CUDA_DEVICE_MAX_CONNECTIONS, else 8): two that share one wait for each
     * other. */
    WEIR_SLOW_FEW_QUEUES = 1 << 2,
    /* Calls of the driver that only queue took 5 ms and longer, and kernels are loaded at their first launch
     * ($CUDA_MODULE_LOADING is not EAGER), which holds the driver's lock until the device is idle. */
    WEIR_SLOW_LAZY_LOADING = 1 << 3,
    /* Items up to 256 KiB were queued behind 32 MiB and more of this queue's copies. */
    WEIR_SLOW_BIG_BEFORE_SMALL = 1 << 4,
    /* Copies to or from a linked device go through the host. */
    WEIR_SLOW_NO_PEER = 1 << 5
};

typedef struct weir_diagnosis {
    size_t struct_size;
    unsigned causes;                      /* WEIR_SLOW_... */
    double pageable_share;                /* of the bytes copied */
    uint64_t legacy_reads;                /* items acquired or used on the legacy default stream */
    unsigned streams, hardware_queues;    /* known to the pool; what the environment says */
    uint64_t slow_calls, slowest_call_ns; /* calls that only queue: 5 ms and longer; the longest of all */
    uint64_t small_behind_big;            /* items */
    uint64_t links_staged;                /* devices without peer access */
    char text[1536]; /* a line for each cause: what was seen, and what helps; else that there is none */
} weir_diagnosis;

/* What has been seen since the queue was opened. `engine` may be NULL: then nothing is known of peers.
 * Only looks: no work for the device. Errors: INVALID_ARGUMENT, CLOSED. */
WEIR_API weir_status weir_queue_diagnose(weir_queue *q, weir_engine *engine, weir_diagnosis *out);

#ifdef __cplusplus
}
#endif
#endif
