/* SPDX-License-Identifier: Apache-2.0
 *
 * A tool, as NVTX_INJECTION64_PATH names one: it counts the ranges of the domain "weir", for test_nvtx.c.
 */
#include <nvtx3/nvToolsExt.h>

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { MOST = 64 };

EXPORT int listener_depth, listener_strangers;

static struct {
    char name[32];
    unsigned count;
    uint64_t bytes;
} ranges[MOST];
static char weir_domain;

/* How many ranges of that name began, and what the last one said. */
EXPORT unsigned listener_count(const char *name, uint64_t *bytes);
unsigned listener_count(const char *name, uint64_t *bytes)
{
    for (int i = 0; i < MOST && ranges[i].count > 0; i++) {
        if (strcmp(ranges[i].name, name) != 0) continue;
        *bytes = ranges[i].bytes;
        return ranges[i].count;
    }
    return 0;
}

static nvtxDomainHandle_t create_domain(const char *name)
{
    return strcmp(name, "weir") == 0 ? (nvtxDomainHandle_t)&weir_domain : NULL;
}

static int push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *a)
{
    if (domain != (nvtxDomainHandle_t)&weir_domain || a->messageType != NVTX_MESSAGE_TYPE_ASCII) {
        listener_strangers++;
        return -1;
    }
    int i = 0;
    while (i < MOST - 1 && ranges[i].count > 0 && strcmp(ranges[i].name, a->message.ascii) != 0)
        i++;
    strncpy(ranges[i].name, a->message.ascii, sizeof ranges[i].name - 1);
    ranges[i].count++;
    ranges[i].bytes = a->payload.ullValue;
    return ++listener_depth;
}

static int pop_range(nvtxDomainHandle_t domain)
{
    (void)domain;
    return --listener_depth;
}

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned n = 0;
    if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &n) ||
        n <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
    return 1;
}
