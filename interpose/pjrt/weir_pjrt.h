/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_pjrt: transfers of a PJRT plug-in (JAX on CUDA) that do not wait for compute.
 *
 *   api = GetPjrtApi() of the plug-in  ->  weir_pjrt_install(api)  ->  the program creates its client
 *
 * Functions of the plug-in's table are replaced in place, so whoever got the table before or gets it later is
 * served. Host to device, device to device, pinned host memory and large copies to the host then run on weir's
 * streams and from its pool. Whatever is not plain - layouts, sub-byte types, other kinds of memory, no room left,
 * any error here - goes to the original function: a program never fails with this that ran without.
 *
 * Which plug-ins: those whose ABI is 0.115 or later, JAX 0.11.2 and 0.12; the others are declined, and nothing is
 * changed. A plug-in tells when memory that was lent to it may be used again, and before 0.115 it does so when the last
 * kernel that reads it has been queued, not when it has ended. To make up for that a point on XLA's compute stream would
 * have to be seen pass, and nothing says where that is:
 *   - the stream extension hands out streams for views to become ready on, never the one that computes;
 *   - what it can make wait for a buffer waits for what writes it, not for what reads it;
 *   - an event of the whole context covers all streams, but ends every graph capture in it, and XLA captures;
 *   - a small transfer of XLA's own happens to wait for compute, which is a habit of some versions and allocators of
 *     XLA's, and no promise. (Before 0.90 there are no events to be made for callers either.)
 *
 * A child of fork calls the plug-in's own functions, if its parent has had a client: nothing of the parent's can be used
 * there. Else it is as its parent was.
 *
 * What is on the device lies in the pool that all adapters of the process share (weir_shared.h): PyTorch, CuPy and JAX
 * draw on one budget. Its memory is beside XLA's own, so that it needs a limit: the one that weir_shared_limit has set
 * (weir.limit in Python); else, from the environment at the first use of a device,
 *   WEIR_JAX_LIMIT   bytes with K, M, G or T, or a fraction of the device's memory ("0.1"); else
 *   four fifths of what XLA leaves to others (XLA_CLIENT_MEM_FRACTION, XLA_PYTHON_CLIENT_MEM_FRACTION, or three quarters,
 *                    are its own).
 * A pool that another adapter has opened before keeps its limit.
 *
 * What the plug-in reports of a device's memory (Device.memory_stats() in JAX) counts that pool in: bytes in use, their
 * peak, the limit, and what is reserved.
 */
#ifndef WEIR_PJRT_H
#define WEIR_PJRT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_PJRT_API __attribute__((visibility("default")))
#else
#define WEIR_PJRT_API
#endif

/* Hooks the table, and serves every client that is created from now on; clients made before are left alone. Again,
 * with the same table: fine. 0: hooked. 1: declined, nothing is changed and weir_pjrt_message() says why. One
 * table in a process. */
WEIR_PJRT_API int weir_pjrt_install(const void *api);

/* Clients created from now on are not served; those that are stay so. Always 0. */
WEIR_PJRT_API int weir_pjrt_uninstall(void);

/* Why the last install declined, or what is hooked. A static string. */
WEIR_PJRT_API const char *weir_pjrt_message(void);

/* Writes what is hooked and was served as a JSON object, cut to `bytes` with its 0, and returns the length that it
 * has in full, as snprintf does. Fields: "installed" "version" "clients" "devices" (each with "device",
 * "live_bytes", "reserved_bytes", "limit_bytes"); "served", by function: "count", "bytes", "ns" (spent in calls; of
 * "to_host", from the source being ready until the bytes are there); "forwarded", by reason: count;
 * "execute_waits": executions that waited for a copy of an argument to end. */
WEIR_PJRT_API size_t weir_pjrt_status(char *json, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
