/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks in the hands of threads, and a board over which they change hands.
 *
 * A thread has streams and blocks of its own. A block's uses all lie before one point of one stream, its `last`; who
 * wants it on another stream joins that to it. On the board an event marks where the giver had come; so most blocks
 * die far from home, in a thread that their home's stream never saw.
 */
#ifndef BOARD_H
#define BOARD_H

#include "harness.h"

#include "pool.h"

enum { BOARD_PLACES = 24, HANDS_STREAMS = 3, HANDS_BLOCKS = 48 };

#define OK(call) ok((call), #call)

static inline void ok(weir_status s, const char *call)
{
    if (s != WEIR_OK) fail_msg("%s: %s: %s", call, weir_status_name(s), weir_error_text());
}

struct block {
    weir_dptr address;
    size_t bytes;
    uint32_t tag;
    unsigned last; /* the own stream that all its uses lie before */
    int home;      /* the own stream where it was allocated; -1: another thread's, or gone */
};

/* A block on its way from one thread to another; the event is the place's own. */
struct place {
    bool taken;
    struct block block;
    wr_event event;
};

struct board {
    struct wr_device *device; /* constant, like the two that follow */
    weir_pool *pool;
    unsigned n_places;
    pthread_mutex_t mutex; /* guards the places */
    struct place places[BOARD_PLACES];
    _Atomic uint32_t last_tag;
};

struct hands {
    struct board *board;
    unsigned n_streams;
    weir_stream streams[HANDS_STREAMS];
    wr_event event;
    struct block blocks[HANDS_BLOCKS];
    unsigned n_blocks;
};

/* ---- the board --------------------------------------------------------------------------------------- */

static inline void board_open(struct board *b, struct wr_device *d, weir_pool *pool, unsigned n_places)
{
    *b = (struct board){.device = d, .pool = pool, .n_places = n_places};
    pthread_mutex_init(&b->mutex, NULL);
    for (unsigned i = 0; i < n_places; i++)
        OK(d->ops->event_create(d, &b->places[i].event));
}

/* What lies there still is freed on the stream. */
static inline void board_close(struct board *b, weir_stream s)
{
    struct wr_device *d = b->device;
    for (struct place *p = b->places; p < b->places + b->n_places; p++) {
        if (p->taken) {
            OK(d->ops->stream_wait(d, s, p->event));
            OK(weir_free(b->pool, p->block.address, s));
        }
        OK(d->ops->event_destroy(d, p->event));
    }
    pthread_mutex_destroy(&b->mutex);
}

static inline uint32_t board_new_tag(struct board *b)
{
    return atomic_fetch_add(&b->last_tag, 1) + 1;
}

/* ---- hands ------------------------------------------------------------------------------------------- */

static inline void hands_open(struct hands *h, struct board *b, unsigned n_streams)
{
    struct wr_device *d = b->device;
    *h = (struct hands){.board = b, .n_streams = n_streams};
    for (unsigned i = 0; i < n_streams; i++)
        OK(d->ops->stream_create(d, &h->streams[i]));
    OK(d->ops->event_create(d, &h->event));
}

static inline void hands_join(struct hands *h, unsigned before, unsigned after)
{
    struct wr_device *d = h->board->device;
    if (before == after) return;
    OK(d->ops->event_record(d, h->event, h->streams[before]));
    OK(d->ops->stream_wait(d, h->streams[after], h->event));
}

static inline void hands_drop(struct hands *h, struct block *b)
{
    *b = h->blocks[--h->n_blocks];
}

/* Unless the place is taken. */
static inline void hands_give(struct hands *h, struct block *b, struct place *p)
{
    struct wr_device *d = h->board->device;
    pthread_mutex_lock(&h->board->mutex);
    if (!p->taken) {
        OK(d->ops->event_record(d, p->event, h->streams[b->last]));
        p->taken = true;
        p->block = *b;
        hands_drop(h, b);
    }
    pthread_mutex_unlock(&h->board->mutex);
}

/* The block, for use on the own stream `s`; NULL: the place is empty. */
static inline struct block *hands_take(struct hands *h, unsigned s, struct place *p)
{
    struct wr_device *d = h->board->device;
    pthread_mutex_lock(&h->board->mutex);
    bool taken = p->taken;
    struct block block = p->block;
    if (taken) OK(d->ops->stream_wait(d, h->streams[s], p->event));
    p->taken = false;
    pthread_mutex_unlock(&h->board->mutex);
    if (!taken) return NULL;
    struct block *b = &h->blocks[h->n_blocks++];
    *b = block;
    b->last = s;
    b->home = -1;
    return b;
}

/* Another of the own streams, its heir, stands for the dead one, and a new stream takes its number. Nobody waits for
 * the old one to end. Returns the heir. */
static inline unsigned hands_end_stream(struct hands *h, unsigned gone)
{
    struct wr_device *d = h->board->device;
    unsigned heir = (gone + 1) % h->n_streams;
    hands_join(h, gone, heir);
    for (unsigned i = 0; i < h->n_blocks; i++) {
        struct block *b = &h->blocks[i];
        if (b->home == (int)gone) b->home = -1;
        if (b->last == gone) b->last = heir;
    }
    OK(weir_stream_retire(h->board->pool, h->streams[gone]));
    OK(d->ops->stream_destroy(d, h->streams[gone]));
    OK(d->ops->stream_create(d, &h->streams[gone]));
    return heir;
}

#endif
