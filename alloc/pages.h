/* SPDX-License-Identifier: Apache-2.0
 *
 * The page pool: one address reservation, the segments mapped into it, and who owns each page. See pages.c.
 */
#ifndef WR_PAGES_H
#define WR_PAGES_H

#include "device.h"
#include "range.h"

/* Physical memory and where it is mapped, whole. */
struct wr_segment {
    uint32_t first_page, n_pages; /* n_pages 0: the entry is spare */
    uint32_t other_page;          /* moving: its new place, and once it has left, its old one */
    uint32_t granted_pages;       /* in heaps' hands */
    wr_memory memory;
    bool created, mapped, usable; /* all, but where an undo failed; trim tries again */
    bool busy;                    /* a thread is making, moving or unmaking it, off the lock */
    bool moving;
    uint32_t devices; /* bit n: the n-th of the list has access */
    uint32_t holds;   /* threads that give a device access, off the lock: it stays where it is */
};

enum { WR_PAGES_DEVICES = 32 };

/* What a page pool is to be. */
struct wr_pages_plan {
    uint64_t limit_bytes, most_bytes, grow_bytes; /* most_bytes: that the limit can become */
    bool plain;                                   /* see PLAIN in pages.c */
};

struct wr_run { /* of pages */
    uint32_t first, n;
};

#define WR_ANYWHERE UINT32_MAX /* the first page of a run that may be at any place */

struct wr_pages {
    struct wr_device *device;
    uint64_t base;
    uint64_t slab; /* PLAIN: what the driver gave; 0: virtual memory */
    uint32_t n_pages, first_limit_pages, most_pages, grow_pages;
    _Atomic uint32_t limit_pages; /* changed under the lock */
    /* Per page: the tag of the heap it is granted to, 0: none. Read without the lock: for a page that holds a
     * live block the tag can't change. */
    _Atomic uint32_t *owner;
    struct wr_lock lock;  /* guards all below */
    struct wr_range va;   /* free: addresses with nothing mapped */
    struct wr_range idle; /* free: mapped pages that no heap owns; no GPU work touches them */
    uint32_t *segment_of; /* per page: index + 1 of its segment */
    struct wr_segment *segments;
    uint32_t n_segments, segments_capacity;
    uint64_t reserved_pages, peak_reserved_pages, n_grows, n_trims;
    struct wr_device *devices[WR_PAGES_DEVICES]; /* that have access to all pages; the first is the own */
    uint32_t n_devices;
    uint64_t moving_pages; /* of segments on their way: they hold addresses twice */
};

weir_status wr_pages_open(struct wr_pages *p, struct wr_device *d, const struct wr_pages_plan *plan);
/* All pages idle or unmapped. An error leaves what could not be given back; call again. PLAIN: waits for the
 * device. */
weir_status wr_pages_close(struct wr_pages *p);

/* All of it went with the device's context: drops the tables, without a driver call. The owners' table stays,
 * cleared, as it is read without a lock. */
void wr_pages_forget(struct wr_pages *p);

static inline uint64_t wr_pages_address(const struct wr_pages *p, uint32_t unit)
{
    return p->base + wr_size_bytes(unit);
}

/* What to add to a unit's number so that its address is a multiple of what the sum is, up to a page. */
static inline uint32_t wr_pages_phase(const struct wr_pages *p)
{
    return (uint32_t)(p->base >> WR_UNIT_LOG2) & (WR_UNITS_PER_PAGE - 1);
}

/* What lies between the pages of heaps: idle pages from `first` on, then addresses with nothing mapped. */
struct wr_gap {
    uint32_t first, idle, unmapped;
    uint32_t piece; /* where the walk stands; zeroed to begin with */
};

/* LOCK: p->lock, from the first call to the last. The next gap, in no order; false: no more. */
bool wr_pages_next_gap(const struct wr_pages *p, struct wr_gap *gap);

/* Grants a run of idle pages where it says, or, as below, anywhere: then its first is set. False: there are no
 * such. */
bool wr_pages_grant(struct wr_pages *p, struct wr_run *run, uint32_t tag);

/* Pages of a heap, passed on every stream that used them, become idle. Never fails. */
void wr_pages_take_back(struct wr_pages *p, uint32_t first, uint32_t n);

/* Pages of a heap change their tag. */
void wr_pages_retag(struct wr_pages *p, uint32_t first, uint32_t n, uint32_t tag);

/* Moments' pictures, in pages: taken from the driver; within the limit, not taken; owned by no heap. */
uint64_t wr_pages_reserved(struct wr_pages *p);
uint64_t wr_pages_room(struct wr_pages *p);
uint64_t wr_pages_idle(struct wr_pages *p);
uint32_t wr_pages_largest_idle(struct wr_pages *p); /* in a row */

/* Sets the limit, or to what is reserved where that is more. The limit that there is now. */
uint32_t wr_pages_set_limit(struct wr_pages *p, uint32_t limit_pages);

/* Moves wholly idle segments behind the idle pages with which the run begins, where they complete it, and
 * grants it. Nothing is created or released. NOT_YET: there are not as many, or the addresses are not free;
 * any error leaves all where it was. */
weir_status wr_pages_stitch(struct wr_pages *p, struct wr_run *run, uint32_t tag);

/* Maps new memory behind the idle pages with which the run begins, and grants the run at once; where it lacks
 * more than the least growth, idle segments move beside the new memory, and only what is missing is new.
 * NOT_YET: the limit, or `ceiling`, leaves no room, or the addresses are not free; OUT_OF_MEMORY: the device
 * has none. No lock is held while the driver works; the limit holds at every moment all the same, the ceiling
 * but for other threads' growth. */
weir_status wr_pages_grow(struct wr_pages *p, struct wr_run *run, uint64_t ceiling, uint32_t tag);

/* Gives a device access to all pages that there are, and to all that will be: before any is granted. An error
 * leaves the device off the list. INVALID_ARGUMENT: the list is full. */
weir_status wr_pages_share(struct wr_pages *p, struct wr_device *peer);

/* Where a granted unit lies in physical memory: a descriptor of its segment (the caller closes it), the
 * segment's size, and the unit's place in it. What the driver says where it can't be exported. */
struct wr_exported {
    int fd;
    uint64_t segment_bytes, offset;
};
weir_status wr_pages_export(struct wr_pages *p, uint32_t unit, struct wr_exported *out);

/* Unmaps wholly idle segments while more than `keep` pages are reserved. Returns the pages that went back. */
uint64_t wr_pages_trim(struct wr_pages *p, uint64_t keep);

void wr_pages_check(
    struct wr_pages *p); /* all invariants, under the lock; aborts with the broken one's text */

#endif
