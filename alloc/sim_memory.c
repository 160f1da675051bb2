/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulated memory, with real bytes.
 *
 * A device address is an address of this process: reserving maps nothing readable, without a claim on memory.
 * Physical memory is a range of one sparse file per device; mapping it shares that range at the address. So
 * bytes survive being unmapped here and mapped elsewhere, and kernels in C read device addresses as they
 * stand. Plain memory is a reservation with one mapping, made and unmade at once. Releasing punches a hole. Host
 * memory is itself; being registered is a note.
 *
 * Before an op moves bytes it asks here whether they are reached: what is not mapped is reported, never
 * touched. Under ThreadSanitizer a process has 1.5 TiB for all reservations together; a larger one is
 * OUT_OF_MEMORY there.
 */
#define _GNU_SOURCE 1 /* memfd_create, fallocate */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRANULARITY (2 * WR_MIB)
#define FILE_BYTES  ((off_t)1 << 60) /* sparse: offsets are never used twice */
#define FILE_NAME   "weir-simulated-device"

/* ---- address space ----------------------------------------------------------------------------------- */

static weir_status check_aligned(const char *op, uint64_t va, uint64_t bytes)
{
    if (bytes == 0 || bytes % GRANULARITY || va % GRANULARITY || va + bytes < va)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%s: address and size must be multiples of 2 MiB", op);
    return WEIR_OK;
}

/* Address space that nothing can read, aligned to the granularity; NULL where there is none. */
static void *reserve_space(size_t bytes)
{
    size_t padded = bytes + GRANULARITY;
    if (padded < bytes) return NULL;
    char *p = mmap(NULL, padded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    char *aligned = (char *)wr_round_up((uintptr_t)p, GRANULARITY);
    size_t before = (size_t)(aligned - p), after = GRANULARITY - before;
    if (before) munmap(p, before);
    if (after) munmap(aligned + bytes, after);
    return aligned;
}

weir_status wr_sim_op_va_reserve(struct wr_device *d, size_t bytes, uint64_t *out)
{
    weir_status s = wr_sim_enter(d, "va_reserve");
    if (s != WEIR_OK) return s;
    s = check_aligned("va_reserve", 0, bytes);
    void *p = s == WEIR_OK ? reserve_space(bytes) : NULL;
    if (s == WEIR_OK && !p)
        s = wr_fail(WEIR_OUT_OF_MEMORY, "va_reserve: no %zu bytes of address space", bytes);
    if (s == WEIR_OK) {
        struct sim_range r = {.start = (uintptr_t)p, .bytes = bytes, .owner = sim_device_of(d)};
        wr_sim_ranges_insert(&sim_device_of(d)->world->reservations, r);
        *out = r.start;
    }
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_va_free(struct wr_device *d, uint64_t va, size_t bytes)
{
    weir_status s = wr_sim_enter(d, "va_free");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t at = wr_sim_ranges_find_start(&w->reservations, va);
    if (at == w->reservations.n || w->reservations.items[at].bytes != bytes)
        s = wr_fail(WEIR_INVALID_ARGUMENT, "va_free: not a whole reservation");
    else if (wr_sim_ranges_overlap(&w->mappings, va, bytes))
        s = wr_fail(WEIR_INVALID_ARGUMENT, "va_free: something is still mapped there");
    if (s == WEIR_OK) {
        wr_sim_ranges_remove(&w->reservations, at, at + 1);
        munmap((void *)(uintptr_t)va, bytes);
    }
    return wr_sim_leave(d, s);
}

/* ---- physical memory --------------------------------------------------------------------------------- */

bool wr_sim_memory_open(struct sim_device *d)
{
    d->file = memfd_create(FILE_NAME, MFD_CLOEXEC);
    if (d->file >= 0 && ftruncate(d->file, FILE_BYTES) == 0) return true;
    wr_sim_memory_close(d);
    return false;
}

void wr_sim_memory_close(struct sim_device *d)
{
    if (d->file >= 0) close(d->file);
    d->file = -1;
}

static weir_status check_free(struct sim_device *d, const char *op, size_t bytes)
{
    size_t free_bytes = d->base.total_bytes - d->used_bytes;
    if (bytes <= free_bytes) return WEIR_OK;
    return wr_fail(WEIR_OUT_OF_MEMORY, "%s: %zu bytes asked, %zu of %zu free", op, bytes, free_bytes,
        d->base.total_bytes);
}

static wr_memory add_memory(struct wr_sim *w, struct sim_memory m)
{
    w->memories = wr_sim_grow(w->memories, w->n_memories, &w->memories_capacity, sizeof(void *));
    w->memories[w->n_memories] = wr_sim_alloc(NULL, sizeof m);
    *w->memories[w->n_memories++] = m;
    return w->n_memories;
}

static wr_memory create_memory(struct sim_device *d, size_t bytes)
{
    struct sim_memory m = {.device = d, .file = d->file, .offset = d->file_end, .bytes = bytes};
    d->file_end += bytes;
    d->used_bytes += bytes;
    return add_memory(d->world, m);
}

weir_status wr_sim_op_mem_create(struct wr_device *d, size_t bytes, wr_memory *out)
{
    weir_status s = wr_sim_enter(d, "mem_create");
    if (s != WEIR_OK) return s;
    s = check_aligned("mem_create", 0, bytes);
    if (s == WEIR_OK) s = check_free(sim_device_of(d), "mem_create", bytes);
    if (s == WEIR_OK) *out = create_memory(sim_device_of(d), bytes);
    return wr_sim_leave(d, s);
}

/* The memory of a handle that its owner has not released; NULL: none. */
static struct sim_memory *find_memory(struct wr_sim *w, wr_memory handle)
{
    struct sim_memory *m = handle >= 1 && handle <= w->n_memories ? w->memories[handle - 1] : NULL;
    return m && !m->released ? m : NULL;
}

static void give_back(const struct sim_memory *m)
{
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    int error = fallocate(m->file, mode, (off_t)m->offset, (off_t)m->bytes);
    assert(error == 0 || errno == EINTR); /* the range is never used again in any case */
    (void)error;
    m->device->used_bytes -= m->bytes;
}

/* Released and mapped nowhere: its pages go back to the system, where they are the device's own. */
static void drop_memory_if_unused(struct wr_sim *w, wr_memory handle)
{
    struct sim_memory *m = w->memories[handle - 1];
    if (m->n_mapped || !m->released) return;
    if (m->imported)
        close(m->file);
    else
        give_back(m);
    w->memories[handle - 1] = NULL;
    free(m);
}

weir_status wr_sim_op_mem_release(struct wr_device *d, wr_memory handle)
{
    weir_status s = wr_sim_enter(d, "mem_release");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_memory *m = find_memory(w, handle);
    if (m) {
        m->released = true;
        drop_memory_if_unused(w, handle);
    } else {
        s = wr_fail(WEIR_INVALID_ARGUMENT, "mem_release: no such handle");
    }
    return wr_sim_leave(d, s);
}

/* The device's file once more, opened anew: a duplicate would share its offset with all others. */
static weir_status open_at(struct sim_memory *m, int *fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->file);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened >= 0 && lseek(opened, (off_t)m->offset, SEEK_SET) == (off_t)m->offset) {
        *fd = opened;
        return WEIR_OK;
    }
    weir_status s = wr_fail(WEIR_DRIVER_ERROR, "mem_export: no file descriptor: %s", strerror(errno));
    if (opened >= 0) close(opened);
    return s;
}

weir_status wr_sim_op_mem_export(struct wr_device *d, wr_memory handle, int *fd)
{
    weir_status s = wr_sim_enter(d, "mem_export");
    if (s != WEIR_OK) return s;
    struct sim_memory *m = find_memory(sim_device_of(d)->world, handle);
    s = m ? open_at(m, fd) : wr_fail(WEIR_INVALID_ARGUMENT, "mem_export: no such handle");
    return wr_sim_leave(d, s);
}

/* Some simulated device's memory, of this process or another? */
static bool is_device_file(int fd)
{
    char path[64], name[128];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, name, sizeof name - 1);
    name[n < 0 ? 0 : n] = 0;
    return strstr(name, FILE_NAME) != NULL;
}

static weir_status import_file(struct sim_device *d, int fd, size_t bytes, wr_memory *out)
{
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (!is_device_file(fd) || offset < 0 || offset % (off_t)GRANULARITY != 0)
        return wr_fail(WEIR_INVALID_ARGUMENT, "mem_import: descriptor %d is not of simulated memory", fd);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return wr_fail(WEIR_DRIVER_ERROR, "mem_import: %s", strerror(errno));
    struct sim_memory m = {
        .device = d, .file = own, .imported = true, .offset = (uint64_t)offset, .bytes = bytes};
    *out = add_memory(d->world, m);
    return WEIR_OK;
}

weir_status wr_sim_op_mem_import(struct wr_device *d, int fd, size_t bytes, wr_memory *out)
{
    weir_status s = wr_sim_enter(d, "mem_import");
    if (s != WEIR_OK) return s;
    s = check_aligned("mem_import", 0, bytes);
    if (s == WEIR_OK) s = import_file(sim_device_of(d), fd, bytes, out);
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_mem_info(struct wr_device *d, size_t *free_bytes, size_t *total_bytes)
{
    weir_status s = wr_sim_enter(d, "mem_info");
    if (s != WEIR_OK) return s;
    *free_bytes = d->total_bytes - sim_device_of(d)->used_bytes;
    *total_bytes = d->total_bytes;
    return wr_sim_leave(d, WEIR_OK);
}

/* ---- mappings ---------------------------------------------------------------------------------------- */

static weir_status check_map(struct wr_sim *w, uint64_t va, size_t bytes, const struct sim_memory *m)
{
    weir_status s = check_aligned("mem_map", va, bytes);
    if (s != WEIR_OK) return s;
    if (!m || m->bytes != bytes)
        return wr_fail(WEIR_INVALID_ARGUMENT, "mem_map: no such handle, or not of that size");
    size_t at = wr_sim_ranges_find(&w->reservations, va);
    const struct sim_range *r = at < w->reservations.n ? &w->reservations.items[at] : NULL;
    if (!r || r->start > va || va + bytes > r->start + r->bytes)
        return wr_fail(WEIR_INVALID_ARGUMENT, "mem_map: the range is not inside one reservation");
    if (wr_sim_ranges_overlap(&w->mappings, va, bytes))
        return wr_fail(WEIR_INVALID_ARGUMENT, "mem_map: something is mapped there");
    return WEIR_OK;
}

/* The memory's bytes at an address of a reservation. */
static weir_status map_pages(const struct sim_memory *m, uint64_t va)
{
    void *at = mmap((void *)(uintptr_t)va, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->file,
        (off_t)m->offset);
    if (at != MAP_FAILED) return WEIR_OK;
    return wr_fail(WEIR_DRIVER_ERROR, "the system refused to map simulated memory: %s", strerror(errno));
}

weir_status wr_sim_op_mem_map(struct wr_device *d, uint64_t va, size_t bytes, wr_memory handle)
{
    weir_status s = wr_sim_enter(d, "mem_map");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_memory *m = find_memory(w, handle);
    s = check_map(w, va, bytes, m);
    if (s == WEIR_OK) s = map_pages(m, va);
    if (s == WEIR_OK) {
        struct sim_range r = {.start = va, .bytes = bytes, .memory = handle, .owner = sim_device_of(d)};
        wr_sim_ranges_insert(&w->mappings, r);
        m->n_mapped++;
    }
    return wr_sim_leave(d, s);
}

/* Finds mappings that fill the range exactly: whole ones, no gap. */
static weir_status find_whole(
    struct wr_sim *w, const char *op, uint64_t va, size_t bytes, size_t *from, size_t *to)
{
    const struct sim_ranges *r = &w->mappings;
    weir_status s = check_aligned(op, va, bytes);
    if (s != WEIR_OK) return s;
    *from = *to = wr_sim_ranges_find_start(r, va);
    if (wr_sim_ranges_cover(r, va, bytes, 0))
        while (*to < r->n && r->items[*to].start < va + bytes)
            ++*to;
    if (*from == *to || r->items[*to - 1].start + r->items[*to - 1].bytes != va + bytes)
        return wr_fail(WEIR_INVALID_ARGUMENT, "%s: the range is not one of whole mappings", op);
    return WEIR_OK;
}

weir_status wr_sim_op_mem_access(struct wr_device *d, uint64_t va, size_t bytes)
{
    weir_status s = wr_sim_enter(d, "mem_access");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t from, to;
    s = find_whole(w, "mem_access", va, bytes, &from, &to);
    for (size_t i = from; s == WEIR_OK && i < to; i++)
        w->mappings.items[i].accessible |= 1u << d->ordinal;
    return wr_sim_leave(d, s);
}

/* Puts the reservation back where mappings were. The system may refuse, out of map areas; then nothing
 * changed. */
static weir_status unmap_pages(uint64_t va, size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap((void *)(uintptr_t)va, bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED) return WEIR_OK;
    return wr_fail(WEIR_DRIVER_ERROR, "mem_unmap: the system refused: %s", strerror(errno));
}

static void forget_mappings(struct wr_sim *w, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        wr_memory handle = w->mappings.items[i].memory;
        w->memories[handle - 1]->n_mapped--;
        drop_memory_if_unused(w, handle);
    }
    wr_sim_ranges_remove(&w->mappings, from, to);
}

weir_status wr_sim_op_mem_unmap(struct wr_device *d, uint64_t va, size_t bytes)
{
    weir_status s = wr_sim_enter(d, "mem_unmap");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t from, to;
    wr_sim_engine_keep_off(w, va, bytes); /* gives up the mutex: first, so that what is found stays so */
    s = find_whole(w, "mem_unmap", va, bytes, &from, &to);
    if (s == WEIR_OK) s = wr_sim_stream_refuse_captured(sim_device_of(d), "mem_unmap");
    if (s == WEIR_OK) s = unmap_pages(va, bytes);
    if (s == WEIR_OK) {
        wr_sim_oracle_end_bytes(w, va, bytes, "unmaps");
        forget_mappings(w, from, to);
    }
    return wr_sim_leave(d, s);
}

/* ---- plain memory ------------------------------------------------------------------------------------ */

/* No better aligned than the driver promises (A02): callers must not take more for granted. */
enum { PLAIN_OFFSET = 256 };

static size_t plain_bytes(size_t bytes)
{
    return wr_round_up(bytes + PLAIN_OFFSET, GRANULARITY);
}

static weir_status map_plain(struct sim_device *d, size_t bytes, uint64_t *out)
{
    struct wr_sim *w = d->world;
    size_t whole = plain_bytes(bytes);
    void *space = reserve_space(whole);
    if (!space) return wr_fail(WEIR_OUT_OF_MEMORY, "plain_alloc: no %zu bytes of address space", whole);
    uint64_t va = (uintptr_t)space;
    wr_memory handle = create_memory(d, whole);
    struct sim_memory *m = w->memories[handle - 1];
    weir_status s = map_pages(m, va);
    m->released = true; /* it goes with its only mapping */
    if (s != WEIR_OK) {
        drop_memory_if_unused(w, handle);
        munmap(space, whole);
        return s;
    }
    m->n_mapped = 1;
    wr_sim_ranges_insert(&w->reservations, (struct sim_range){.start = va, .bytes = whole, .owner = d});
    struct sim_range mapping = {.start = va + PLAIN_OFFSET,
        .bytes = bytes,
        .memory = handle,
        .owner = d,
        .plain = true,
        .accessible = d->plain_peers | 1u << d->base.ordinal};
    wr_sim_ranges_insert(&w->mappings, mapping);
    *out = mapping.start;
    return WEIR_OK;
}

weir_status wr_sim_op_plain_alloc(struct wr_device *d, size_t bytes, uint64_t *out)
{
    weir_status s = wr_sim_enter(d, "plain_alloc");
    if (s != WEIR_OK) return s;
    if (bytes == 0) s = wr_fail(WEIR_INVALID_ARGUMENT, "plain_alloc: 0 bytes");
    if (s == WEIR_OK) s = check_free(sim_device_of(d), "plain_alloc", plain_bytes(bytes));
    if (s == WEIR_OK) s = map_plain(sim_device_of(d), bytes, out);
    return wr_sim_leave(d, s);
}

static size_t find_plain(struct wr_sim *w, const struct sim_device *d, uint64_t address)
{
    size_t at = wr_sim_ranges_find_start(&w->mappings, address);
    bool is_plain = at < w->mappings.n && w->mappings.items[at].plain && w->mappings.items[at].owner == d;
    return is_plain ? at : w->mappings.n;
}

static weir_status unmap_plain(struct wr_sim *w, struct sim_range r)
{
    uint64_t va = r.start - PLAIN_OFFSET;
    wr_sim_engine_keep_off(w, r.start, r.bytes);
    size_t at = wr_sim_ranges_find_start(&w->mappings, r.start),
           reserved = wr_sim_ranges_find_start(&w->reservations, va);
    if (at == w->mappings.n) return wr_fail(WEIR_INVALID_ARGUMENT, "plain_free: freed twice at once");
    wr_sim_oracle_end_bytes(w, r.start, r.bytes, "frees");
    munmap((void *)(uintptr_t)va, w->reservations.items[reserved].bytes);
    wr_sim_ranges_remove(&w->reservations, reserved, reserved + 1);
    forget_mappings(w, at, at + 1);
    return WEIR_OK;
}

weir_status wr_sim_op_plain_free(struct wr_device *d, uint64_t address)
{
    weir_status s = wr_sim_enter(d, "plain_free");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    size_t at = find_plain(w, sim_device_of(d), address);
    if (at == w->mappings.n) s = wr_fail(WEIR_INVALID_ARGUMENT, "plain_free: not the start of plain memory");
    if (s == WEIR_OK) s = wr_sim_stream_refuse_captured(sim_device_of(d), "plain_free");
    if (s == WEIR_OK) {
        struct sim_range r = w->mappings.items[at];
        wr_sim_device_sync(sim_device_of(d)); /* gives up the mutex, as the next step does */
        s = unmap_plain(w, r);
    }
    return wr_sim_leave(d, s);
}

weir_status wr_sim_op_plain_access(struct wr_device *d, struct wr_device *owner)
{
    weir_status s = wr_sim_enter(d, "plain_access");
    if (s != WEIR_OK) return s;
    struct wr_sim *w = sim_device_of(d)->world;
    struct sim_device *of = sim_device_of(owner);
    of->plain_peers |= 1u << d->ordinal;
    for (size_t i = 0; i < w->mappings.n; i++)
        if (w->mappings.items[i].plain && w->mappings.items[i].owner == of)
            w->mappings.items[i].accessible |= of->plain_peers;
    return wr_sim_leave(d, WEIR_OK);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void wr_sim_memory_end(struct wr_sim *w)
{
    for (size_t i = 0; i < w->reservations.n; i++) /* what is mapped inside goes with it */
        munmap((void *)(uintptr_t)w->reservations.items[i].start, w->reservations.items[i].bytes);
    for (size_t i = 0; i < w->n_memories; i++) {
        if (w->memories[i] && w->memories[i]->imported) close(w->memories[i]->file);
        free(w->memories[i]);
    }
    free(w->memories);
    free(w->reservations.items);
    free(w->mappings.items);
    free(w->registrations.items);
}
