/* SPDX-License-Identifier: Apache-2.0
 *
 * One pool for each device of the process. No lock: a pool is opened aside and put into its place by one
 * exchange, so that a forked child finds nothing held and an adapter's call costs one load.
 */
#include "weir_shared.h"
#include "edges.h"
#include "ledger.h"
#include "notes.h"

#include <stdlib.h>

static _Atomic(weir_pool *) pools[WEIR_SHARED_DEVICES];
static _Atomic size_t limit_bytes[WEIR_SHARED_DEVICES];
static _Atomic double limit_fraction[WEIR_SHARED_DEVICES];
static _Atomic bool has_limit[WEIR_SHARED_DEVICES]; /* somebody has set or suggested one */
static _Atomic weir_reuse reuse_of_all = WEIR_REUSE_OWNER;

static weir_status check_device(int device)
{
    if (device >= 0 && device < WEIR_SHARED_DEVICES) return WEIR_OK;
    return wr_fail(WEIR_NO_DEVICE, "device %d is not one of 0 to %d", device, WEIR_SHARED_DEVICES - 1);
}

static bool is_closed(weir_pool *pool)
{
    weir_stats stats = {.struct_size = sizeof stats};
    return weir_pool_stats(pool, &stats) == WEIR_CLOSED;
}

/* One that came while the pool was being opened with another. PAIRS: weir_shared_limit keeps it before it looks for the
 * pool, and here the pool is in its place. */
static void set_late_limit(int device, weir_pool *pool, const weir_pool_options *opened)
{
    size_t bytes = atomic_load(&limit_bytes[device]);
    double fraction = atomic_load(&limit_fraction[device]);
    bool is_late = bytes != opened->limit_bytes || fraction < opened->limit_fraction ||
                   fraction > opened->limit_fraction;
    if (is_late) (void)weir_pool_set_limit(pool, bytes, fraction);
}

/* SLOW: once a device, or by a few threads at once, of which one wins. */
static weir_status open_pool(int device, weir_pool **out)
{
    weir_pool_options options = {.struct_size = sizeof options,
        .device = device,
        .limit_bytes = atomic_load(&limit_bytes[device]),
        .limit_fraction = atomic_load(&limit_fraction[device]),
        .reuse = atomic_load(&reuse_of_all),
        .most_limit_bytes = SIZE_MAX};
    weir_pool *pool, *winner = NULL;
    weir_status st = weir_pool_open(&options, &pool);
    if (st != WEIR_OK) return st;
    if (!atomic_compare_exchange_strong(&pools[device], &winner, pool)) {
        weir_pool_close(pool); /* it never served: nothing is left of it */
        pool = winner;
    } else {
        set_late_limit(device, pool, &options);
    }
    *out = pool;
    return WEIR_OK;
}

weir_status weir_shared_pool(int device, weir_pool **out)
{
    if (out == NULL) return wr_fail(WEIR_INVALID_ARGUMENT, "out is NULL");
    weir_status st = check_device(device);
    if (st != WEIR_OK) return st;
    weir_pool *pool = atomic_load_explicit(&pools[device], memory_order_acquire);
    if (WR_UNLIKELY(pool == NULL)) return open_pool(device, out);
    *out = pool;
    return WEIR_OK;
}

static weir_status check_limit(int device, double fraction)
{
    weir_status st = check_device(device);
    if (st != WEIR_OK) return st;
    if (!(fraction >= 0 && fraction <= 1))
        return wr_fail(WEIR_INVALID_ARGUMENT, "a fraction of %g is not between 0 and 1", fraction);
    return WEIR_OK;
}

static void set_limit(int device, size_t bytes, double fraction)
{
    atomic_store(&limit_bytes[device], bytes);
    atomic_store(&limit_fraction[device], fraction);
}

weir_status weir_shared_limit(int device, size_t bytes, double fraction)
{
    weir_status st = check_limit(device, fraction);
    if (st != WEIR_OK) return st;
    atomic_store(&has_limit[device], true);
    set_limit(device, bytes, fraction);
    weir_pool *pool = atomic_load(&pools[device]);
    return pool != NULL ? weir_pool_set_limit(pool, bytes, fraction) : WEIR_OK;
}

weir_status weir_shared_suggest_limit(int device, size_t bytes, double fraction)
{
    weir_status st = check_limit(device, fraction);
    if (st != WEIR_OK) return st;
    if (atomic_load(&pools[device]) != NULL)
        return wr_fail(WEIR_IN_USE, "the pool of device %d is open", device);
    if (atomic_exchange(&has_limit[device], true))
        return wr_fail(WEIR_IN_USE, "device %d has a limit already", device);
    set_limit(device, bytes, fraction);
    return WEIR_OK;
}

weir_status weir_shared_reuse(weir_reuse reuse)
{
    if (reuse != WEIR_REUSE_OWNER && reuse != WEIR_REUSE_COMPLETED)
        return wr_fail(WEIR_INVALID_ARGUMENT, "shared pools are OWNER or COMPLETED, not %d", (int)reuse);
    for (int device = 0; device < WEIR_SHARED_DEVICES; device++)
        if (atomic_load(&pools[device]) != NULL)
            return wr_fail(WEIR_IN_USE, "the pool of device %d is open: set the policy before", device);
    atomic_store(&reuse_of_all, reuse);
    return WEIR_OK;
}

weir_status weir_shared_adopt(int device, weir_pool *pool)
{
    weir_status st = check_device(device);
    if (st != WEIR_OK) return st;
    if (pool == NULL) return wr_fail(WEIR_INVALID_ARGUMENT, "pool is NULL");
    if (is_closed(pool)) return wr_fail(WEIR_CLOSED, "the pool is closed");
    weir_pool *held = atomic_load(&pools[device]);
    if (held == pool) return WEIR_OK;
    if (held != NULL && !is_closed(held))
        return wr_fail(WEIR_IN_USE, "device %d has a shared pool already", device);
    if (!atomic_compare_exchange_strong(&pools[device], &held, pool))
        return wr_fail(WEIR_IN_USE, "another thread gave device %d a shared pool first", device);
    return WEIR_OK;
}

weir_status weir_shared_alloc(
    int device, size_t bytes, weir_stream stream, int64_t patience_ns, weir_dptr *out)
{
    weir_pool *pool;
    weir_status st = weir_shared_pool(device, &pool);
    if (WR_LIKELY(st == WEIR_OK)) st = weir_alloc(pool, bytes, stream, out);
    if (WR_LIKELY(st != WEIR_NOT_YET) || patience_ns == 0) return st;
    weir_alloc_options wait = {
        .struct_size = sizeof wait, .reuse = WEIR_REUSE_HOST_WAIT, .deadline_ns = patience_ns};
    return weir_alloc_with(pool, bytes, stream, &wait, out);
}

/* ---- lent blocks -------------------------------------------------------------------------------------- */

static struct wr_ledger lent[WEIR_SHARED_DEVICES] = {[0 ... WEIR_SHARED_DEVICES - 1] = WR_LEDGER_INIT};
static struct wr_notes users = WR_NOTES_INIT;

weir_status weir_shared_lend(
    int device, size_t bytes, weir_stream stream, int64_t patience_ns, weir_dptr *out)
{
    weir_shared_block block = {.bytes = bytes, .stream = stream};
    if (WR_UNLIKELY(out == NULL)) return wr_fail(WEIR_INVALID_ARGUMENT, "out is NULL");
    weir_status st = weir_shared_alloc(device, bytes, stream, patience_ns, &block.address);
    if (WR_LIKELY(st == WEIR_OK && block.address != 0)) {
        st = wr_ledger_enter(&lent[device], &block);
        if (WR_UNLIKELY(st != WEIR_OK)) weir_free(atomic_load(&pools[device]), block.address, stream);
    }
    if (WR_LIKELY(st == WEIR_OK)) *out = block.address;
    return st;
}

weir_status weir_shared_use(int device, weir_dptr block, weir_stream stream)
{
    weir_pool *pool;
    weir_status st = weir_shared_pool(device, &pool);
    if (st == WEIR_OK) st = weir_touch(pool, block, stream, 0);
    return st == WEIR_OK ? wr_notes_add(&users, block, stream) : st;
}

weir_status weir_shared_return(int device, weir_dptr address)
{
    weir_pool *pool;
    weir_shared_block block;
    weir_status st = wr_edges_check();
    if (WR_LIKELY(st == WEIR_OK)) st = weir_shared_pool(device, &pool);
    if (WR_UNLIKELY(st != WEIR_OK) || address == 0) return st;
    if (WR_UNLIKELY(!wr_ledger_strike(&lent[device], address, &block)))
        return wr_fail(WEIR_INVALID_POINTER, "the block was not lent");
    struct wr_note *noted = wr_notes_take(&users, address);
    if (WR_UNLIKELY(noted != NULL)) st = wr_notes_declare(noted, pool, block.stream);
    return WR_LIKELY(st == WEIR_OK) ? weir_free(pool, address, block.stream) : st;
}
