/* SPDX-License-Identifier: Apache-2.0
 *
 * See slots.h for the states and sizes. Choosing only looks, taking only counts: so that a caller can choose
 * a device slot and a pinned one, and take both or neither.
 */
#include "slots.h"
#include "nvtx.h"

#include <stdlib.h>

enum { SLOT_BYTES = 512, FIRST_MARKS = 2 };

weir_status wr_slots_init(
    struct wr_slots *s, enum wr_slots_kind kind, unsigned n, size_t item_bytes, size_t limit)
{
    assert(n > 0 && item_bytes > 0 && limit >= item_bytes);
    *s = (struct wr_slots){.kind = kind, .item_bytes = item_bytes, .limit = limit};
    if (limit / item_bytes >= n) s->unit = item_bytes;
    s->at = calloc(n, sizeof *s->at);
    while (s->at && s->n < n && (s->at[s->n].marks = malloc(FIRST_MARKS * sizeof(struct wr_mark))))
        s->at[s->n++].marks_capacity = FIRST_MARKS;
    if (s->n == n) return WEIR_OK;
    wr_slots_fini(s);
    return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for %u slots", n);
}

void wr_slots_fini(struct wr_slots *s)
{
    for (unsigned i = 0; i < s->n; i++)
        free(s->at[i].marks);
    free(s->at);
    s->at = NULL;
    s->n = 0;
}

/* ---- choosing ---------------------------------------------------------------------------------------- */

struct wr_fence *wr_slots_pending(const struct wr_slot *slot)
{
    if (slot->taken) return NULL;
    for (unsigned i = 0; i < slot->n_marks; i++)
        if (!wr_mark_passed(slot->marks[i])) return slot->marks[i].fence;
    return NULL;
}

struct survey {
    struct wr_slot *fits;   /* EMPTY, large enough: the smallest */
    struct wr_slot *least;  /* EMPTY: the smallest of all */
    struct wr_slot *most;   /* EMPTY: the largest of all */
    struct wr_slot *drains; /* DRAINING, large enough: the longest */
    size_t empty_bytes;
    bool draining;
};

static void survey_slot(struct survey *v, struct wr_slot *slot, size_t bytes, bool is_empty)
{
    bool fits = slot->capacity >= bytes;
    if (!is_empty) {
        v->draining = true;
        if (fits && (!v->drains || slot->given < v->drains->given)) v->drains = slot;
        return;
    }
    v->empty_bytes += slot->capacity;
    if (fits && (!v->fits || slot->capacity < v->fits->capacity)) v->fits = slot;
    if (!v->least || slot->capacity < v->least->capacity) v->least = slot;
    if (!v->most || slot->capacity > v->most->capacity) v->most = slot;
}

static struct survey survey_slots(const struct wr_slots *s, size_t bytes)
{
    bool reuses_pinned = s->kind == WR_SLOTS_PINNED && WR_FAULT(QUEUE_REUSES_PINNED);
    struct survey v = {0};
    for (unsigned i = 0; i < s->n; i++)
        if (!s->at[i].taken) survey_slot(&v, &s->at[i], bytes, reuses_pinned || !wr_slots_pending(&s->at[i]));
    return v;
}

/* What a slot for `bytes` counts with. Rounded, so that items of nearly one size share slots. */
static size_t capacity_for(const struct wr_slots *s, size_t bytes)
{
    if (s->unit) return s->unit;
    return wr_min(wr_round_up(bytes, SLOT_BYTES), s->item_bytes);
}

struct wr_slots_choice wr_slots_choose(const struct wr_slots *s, size_t bytes)
{
    assert(bytes > 0 && bytes <= s->item_bytes);
    struct survey v = survey_slots(s, bytes);
    struct wr_slots_choice c = {.what = WR_SLOTS_TAKE, .capacity = capacity_for(s, bytes)};
    if (v.fits) {
        c.slot = v.fits;
        c.capacity = v.fits->capacity;
    } else if (v.least && s->used - v.least->capacity + c.capacity <= s->limit) {
        c.slot = v.least;
    } else if (v.drains && s->kind != WR_SLOTS_PINNED) {
        c.slot = v.drains;
        c.capacity = v.drains->capacity;
        c.draining = true;
    } else if (v.empty_bytes && s->used - v.empty_bytes + c.capacity <= s->limit) {
        /* The largest first: the fewest evictions. Each lowers `used`, so that the second rule serves at
         * last. */
        c.what = WR_SLOTS_EVICT;
        c.slot = v.most;
    } else {
        c = (struct wr_slots_choice){.what = WR_SLOTS_WAIT, .draining = v.draining};
    }
    return c;
}

void wr_slots_take(struct wr_slots *s, struct wr_slot *slot, size_t capacity)
{
    assert(!slot->taken);
    assert(capacity == slot->capacity || !wr_slots_pending(slot) || WR_FAULT(QUEUE_REUSES_PINNED));
    slot->taken = true;
    s->used = s->used - slot->capacity + capacity;
    slot->capacity = capacity;
    s->peak = wr_max(s->peak, s->used);
    assert(s->used <= s->limit);
}

void wr_slots_give(struct wr_slots *s, struct wr_slot *slot)
{
    assert(slot->taken && slot->allocated <= slot->capacity);
    s->used -= slot->capacity - slot->allocated;
    slot->capacity = slot->allocated;
    slot->given = ++s->n_given;
    slot->taken = false;
}

unsigned wr_slots_in_use(const struct wr_slots *s)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->n; i++)
        n += s->at[i].taken || wr_slots_pending(&s->at[i]);
    return n;
}

/* ---- marks ------------------------------------------------------------------------------------------- */

static bool reserve_mark(struct wr_slot *slot)
{
    if (slot->n_marks < slot->marks_capacity) return true;
    struct wr_mark *marks = realloc(slot->marks, 2 * slot->marks_capacity * sizeof *marks);
    if (!marks) return false;
    slot->marks = marks;
    slot->marks_capacity *= 2;
    return true;
}

weir_status wr_slots_add_mark(struct wr_slot *slot, struct wr_mark m)
{
    for (unsigned i = 0; i < slot->n_marks; i++)
        if (slot->marks[i].fence == m.fence) {
            slot->marks[i].number = wr_max(slot->marks[i].number, m.number);
            return WEIR_OK;
        }
    if (!reserve_mark(slot)) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a slot's mark");
    slot->marks[slot->n_marks++] = m;
    return WEIR_OK;
}

uint64_t wr_slots_grown(const struct wr_slots *s)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < s->n; i++)
        for (unsigned capacity = s->at[i].marks_capacity; capacity > FIRST_MARKS; capacity /= 2)
            n++;
    return n;
}

/* ---- memory ------------------------------------------------------------------------------------------ */

/* Should the pool find no room to note a mark, the block stays with nobody: lost, but never reused under its
 * reader. */
void wr_slots_keep(struct wr_slots *s, struct wr_slot *slot, struct wr_mark until)
{
    assert(s->kind != WR_SLOTS_PINNED);
    if (!slot->address || wr_mark_passed(until)) return;
    if (s->kind == WR_SLOTS_LANDING) {
        (void)wr_slots_add_mark(slot, until); /* the copy stream's: there is room */
        return;
    }
    if (wr_pool_use(s->pool, slot->address, until) != WEIR_OK) slot->address = 0;
}

/* SLOW: when a slot grows, and at the queue's end. */
static void drop_device(struct wr_slots *s, struct wr_slot *slot)
{
    for (unsigned i = 0; i < slot->n_marks; i++)
        wr_slots_keep(s, slot, slot->marks[i]);
    if (!slot->address) return;
    weir_status status = weir_free(s->pool, slot->address, s->stream);
    assert(status != WEIR_INVALID_POINTER);
    (void)status;
}

/* Its marks are of the copy stream alone, so there is one at most. */
static void drop_pinned(struct wr_slots *s, struct wr_slot *slot)
{
    assert(slot->n_marks <= 1);
    void *host = (void *)(uintptr_t)slot->address;
    struct wr_mark m = slot->n_marks ? slot->marks[0] : (struct wr_mark){0};
    weir_status status = wr_pinned_free(wr_pool_pinned(s->pool), host, m.fence, m.number);
    assert(status == WEIR_OK);
    (void)status;
}

void wr_slots_drop(struct wr_slots *s, struct wr_slot *slot)
{
    if (slot->address && s->kind == WR_SLOTS_DEVICE) drop_device(s, slot);
    if (slot->address && s->kind != WR_SLOTS_DEVICE) drop_pinned(s, slot);
    slot->address = 0;
    slot->allocated = 0;
    slot->n_marks = 0;
}

static weir_status allocate(struct wr_slots *s, size_t bytes, uint64_t *out)
{
    WR_NVTX_RANGE(s->kind == WR_SLOTS_DEVICE ? "device slot" : "pinned slot", bytes);
    atomic_fetch_add(&s->n_allocated, 1);
    if (s->kind == WR_SLOTS_DEVICE) return weir_alloc(s->pool, bytes, s->stream, out);
    void *host;
    weir_status status = weir_host_alloc(s->pool, bytes, &host);
    if (status == WEIR_OK) *out = (uintptr_t)host;
    return status;
}

weir_status wr_slots_settle(struct wr_slots *s, struct wr_slot *slot)
{
    assert(slot->taken);
    if (wr_slots_is_settled(slot)) return WEIR_OK;
    wr_slots_drop(s, slot);
    if (slot->capacity == 0) return WEIR_OK;
    weir_status status = allocate(s, slot->capacity, &slot->address);
    if (status == WEIR_OK) slot->allocated = slot->capacity;
    return status;
}
