/* SPDX-License-Identifier: Apache-2.0 */
#include "notes.h"
#include "edges.h"

#include <stdlib.h>

static struct wr_note **row_of(struct wr_notes *n, weir_dptr block)
{
    return &n->rows[(block >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 56]; /* blocks start at multiples of 512 */
}

static bool has_locked(struct wr_notes *n, weir_dptr block, weir_stream s)
{
    for (const struct wr_note *note = *row_of(n, block); note != NULL; note = note->next)
        if (note->block == block && note->stream == s) return true;
    return false;
}

weir_status wr_notes_add(struct wr_notes *n, weir_dptr block, weir_stream s)
{
    weir_status st = wr_edges_check(); /* a forked child may never get the lock */
    if (st != WEIR_OK) return st;
    struct wr_note *note = malloc(sizeof *note);
    if (note == NULL) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory to remember a stream of a block");
    wr_lock_take(&n->lock);
    bool known = has_locked(n, block, s);
    if (!known) {
        struct wr_note **row = row_of(n, block);
        *note = (struct wr_note){.next = *row, .block = block, .stream = s};
        *row = note;
        atomic_fetch_add(&n->n, 1);
    }
    wr_lock_give(&n->lock);
    if (known) free(note);
    return WEIR_OK;
}

struct wr_note *wr_notes_take_slow(struct wr_notes *n, weir_dptr block)
{
    if (wr_edges_check() != WEIR_OK) return NULL;
    struct wr_note *taken = NULL;
    wr_lock_take(&n->lock);
    for (struct wr_note **link = row_of(n, block); *link != NULL;) {
        struct wr_note *note = *link;
        if (note->block != block) {
            link = &note->next;
            continue;
        }
        *link = note->next;
        note->next = taken;
        taken = note;
        atomic_fetch_sub(&n->n, 1);
    }
    wr_lock_give(&n->lock);
    return taken;
}

weir_status wr_notes_declare(struct wr_note *notes, weir_pool *pool, weir_stream freed_on)
{
    weir_status worst = WEIR_OK;
    for (struct wr_note *note = notes, *next; note != NULL; note = next) {
        weir_status st = note->stream != freed_on ? weir_touch(pool, note->block, note->stream, 0) : WEIR_OK;
        if (st != WEIR_OK) worst = st;
        next = note->next;
        free(note);
    }
    return worst;
}
