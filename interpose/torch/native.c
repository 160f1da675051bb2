/* SPDX-License-Identifier: Apache-2.0
 *
 * What PyTorch's own allocator interface needs beside the plain one: frees by address alone, counters, lists.
 *
 * Built with -fexceptions: as weir_torch.c.
 */
#include "edges.h"
#include "failure.h"
#include "ledger.h"

static struct wr_ledger ledgers[WEIR_SHARED_DEVICES] = {[0 ... WEIR_SHARED_DEVICES - 1] = WR_LEDGER_INIT};
static _Atomic int n_ledgers; /* devices below it may have one */

/* SLOW: once a device. */
static void note_device(int device)
{
    int n = atomic_load(&n_ledgers);
    while (n <= device && !atomic_compare_exchange_weak(&n_ledgers, &n, device + 1)) {
    }
}

void *weir_torch_native_alloc(size_t bytes, int device, weir_stream stream)
{
    weir_shared_block block = {.bytes = bytes, .stream = stream};
    void *pointer = weir_torch_alloc(bytes, device, stream);
    if (WR_UNLIKELY(pointer == NULL)) return NULL;
    block.address = (uintptr_t)pointer;
    if (WR_UNLIKELY(atomic_load_explicit(&n_ledgers, memory_order_relaxed) <= device)) note_device(device);
    weir_status st = wr_ledger_enter(&ledgers[device], &block);
    if (WR_LIKELY(st == WEIR_OK)) return pointer;
    weir_torch_free(pointer, bytes, device, stream);
    wr_torch_fail(st, bytes, device);
    return NULL;
}

/* The device whose block it may be; -1: of none. In a forked child, too. */
static int device_of(weir_dptr address)
{
    int n = wr_edges_check() == WEIR_OK ? atomic_load_explicit(&n_ledgers, memory_order_relaxed) : 0;
    for (int device = 0; device < n; device++)
        if (wr_ledger_may_have(&ledgers[device], address)) return device;
    return -1;
}

void weir_torch_native_free(void *pointer)
{
    weir_shared_block block;
    int device = device_of((uintptr_t)pointer);
    if (WR_LIKELY(device >= 0) && wr_ledger_strike(&ledgers[device], (uintptr_t)pointer, &block))
        weir_torch_free(pointer, block.bytes, device, block.stream);
}

int weir_torch_find(void *pointer, weir_shared_block *out)
{
    int device = device_of((uintptr_t)pointer);
    return device >= 0 && wr_ledger_find(&ledgers[device], (uintptr_t)pointer, out);
}

/* NULL: not a device, or a forked child. */
static struct wr_ledger *ledger_of(int device)
{
    bool is_one = device >= 0 && device < WEIR_SHARED_DEVICES;
    return is_one && wr_edges_check() == WEIR_OK ? &ledgers[device] : NULL;
}

void weir_torch_count(int device, weir_shared_counts *out)
{
    struct wr_ledger *l = ledger_of(device);
    *out = l != NULL ? wr_ledger_count(l) : (weir_shared_counts){0};
}

void weir_torch_reset_peaks(int device)
{
    struct wr_ledger *l = ledger_of(device);
    if (l != NULL) wr_ledger_reset_peaks(l);
}

size_t weir_torch_list(int device, weir_shared_block *out, size_t most)
{
    struct wr_ledger *l = ledger_of(device);
    return l != NULL ? wr_ledger_list(l, out, most) : 0;
}
