/* SPDX-License-Identifier: Apache-2.0
 *
 * DESIGN. NVTX is headers only: a tool names its library in NVTX_INJECTION64_PATH, which the headers open, and
 * without a tool every call of theirs is a test of a null pointer. They fill their pointers at the first call from
 * wherever it comes; that is made here, once and before any range, so that no thread reads them while they are
 * written. Where the build had no such headers there are no ranges.
 */
#include "nvtx.h"

_Atomic bool wr_nvtx_on;

#if __has_include(<nvtx3/nvToolsExt.h>)

#include <nvtx3/nvToolsExt.h>

static nvtxDomainHandle_t domain; /* PAIRS: written before wr_nvtx_on, whose acquire comes first */

static void open_once(void)
{
    nvtxInitialize(NULL);
    domain = nvtxDomainCreateA("weir"); /* NULL where no tool listens */
    atomic_store_explicit(&wr_nvtx_on, domain != NULL, memory_order_release);
}

void wr_nvtx_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
}

void wr_nvtx_push(const char *name, uint64_t bytes)
{
    nvtxEventAttributes_t range = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
        .payload.ullValue = bytes,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };
    nvtxDomainRangePushEx(domain, &range);
}

void wr_nvtx_pop(void)
{
    nvtxDomainRangePop(domain);
}

#else

void wr_nvtx_open(void) {}

void wr_nvtx_push(const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
}

void wr_nvtx_pop(void) {}

#endif
