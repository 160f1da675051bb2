/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases, and the houses that they are in. See lease.h.
 *
 * LOCK: `lock` of a lease guards its list of streams; `late_lock` the list of leases that wait to be given back. No call
 * of weir is made under either.
 */
#include "lease.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "lease_count.h"

#define PER_THREAD ((weir_stream)2) /* CU_STREAM_PER_THREAD */

struct weir_house {
    weir_queue *queue;
    atomic_size_t refs;
};

struct weir_lease {
    atomic_size_t refs;
    weir_house *house; /* NULL: a block */
    weir_item item;
    weir_pool *pool;
    weir_dptr block;
    weir_stream home; /* acquired, or allocated, there */
    pthread_t thread; /* that did it */
    pthread_mutex_t lock;
    weir_stream *readers; /* others than home */
    size_t n_readers, n_declared;
    weir_lease *next_late;
};

static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static weir_lease *late_leases;

/* ---- houses ------------------------------------------------------------------------------------------ */

weir_house *weir_house_new(weir_queue *q)
{
    weir_house *h = malloc(sizeof *h);
    if (!h) return NULL;
    h->queue = q;
    atomic_init(&h->refs, 1);
    return h;
}

static void drop_house(weir_house *h)
{
    if (atomic_fetch_sub(&h->refs, 1) > 1) return;
    weir_queue_destroy(h->queue);
    free(h);
}

void weir_house_leave(weir_house *h)
{
    weir_queue_close(h->queue); /* wakes producers; closed before is fine */
    weir_queue_clear(h->queue); /* what nobody has acquired is nobody's any more */
    drop_house(h);
}

/* ---- giving back ------------------------------------------------------------------------------------- */

/* Streams declared before an error stay so: a second try goes on behind them. An item's readers are covered up to
 * now, then the acquiring stream by release itself. */
static weir_status declare_readers(weir_lease *l)
{
    weir_status s = WEIR_OK;
    for (; l->n_declared < l->n_readers; l->n_declared++) {
        weir_stream reader = l->readers[l->n_declared];
        s = l->house ? weir_queue_use(l->house->queue, &l->item, reader)
                     : weir_touch(l->pool, l->block, reader, 0);
        if (s != WEIR_OK) return s;
    }
    return WEIR_OK;
}

/* Every error but these says that there is nothing to give back any more: a closed pool, a lost device, the exit. */
static bool may_succeed_later(weir_status s)
{
    return s == WEIR_CAPTURING || s == WEIR_NO_HOST_MEMORY || s == WEIR_DRIVER_ERROR;
}

/* False: not now. */
static bool give_back(weir_lease *l)
{
    weir_status s = declare_readers(l);
    if (s == WEIR_OK)
        s = l->house ? weir_queue_release(l->house->queue, &l->item, NULL, 0)
                     : weir_free(l->pool, l->block, l->home);
    if (may_succeed_later(s)) return false;
    if (l->house) drop_house(l->house);
    pthread_mutex_destroy(&l->lock);
    free(l->readers);
    free(l);
    return true;
}

static void keep_for_later(weir_lease *l)
{
    pthread_mutex_lock(&late_lock);
    l->next_late = late_leases;
    late_leases = l;
    pthread_mutex_unlock(&late_lock);
}

static void try_late_ones(void)
{
    pthread_mutex_lock(&late_lock);
    weir_lease *l = late_leases;
    late_leases = NULL;
    pthread_mutex_unlock(&late_lock);
    while (l) {
        weir_lease *next = l->next_late;
        if (!give_back(l)) keep_for_later(l);
        l = next;
    }
}

size_t weir_lease_late(void)
{
    size_t n = 0;
    pthread_mutex_lock(&late_lock);
    for (weir_lease *l = late_leases; l; l = l->next_late)
        n++;
    pthread_mutex_unlock(&late_lock);
    return n;
}

/* ---- leases ------------------------------------------------------------------------------------------ */

static weir_lease *new_lease(weir_stream home)
{
    try_late_ones();
    weir_lease *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    atomic_init(&l->refs, 1);
    l->home = home;
    l->thread = pthread_self();
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

weir_lease *weir_lease_item(weir_house *h, const weir_item *item, weir_stream stream)
{
    weir_lease *l = new_lease(stream);
    if (!l) return NULL;
    l->house = h;
    l->item = *item;
    atomic_fetch_add(&h->refs, 1);
    return l;
}

weir_lease *weir_lease_block(weir_pool *pool, weir_dptr block, weir_stream stream)
{
    weir_lease *l = new_lease(stream);
    if (!l) return NULL;
    l->pool = pool;
    l->block = block;
    return l;
}

void wr_lease_keep(weir_lease *l)
{
    atomic_fetch_add(&l->refs, 1);
}

void weir_lease_drop(weir_lease *l)
{
    if (atomic_fetch_sub(&l->refs, 1) > 1) return;
    if (!give_back(l)) keep_for_later(l);
    try_late_ones();
}

/* LOCK: held. False: no memory. */
static bool add_reader(weir_lease *l, weir_stream stream)
{
    for (size_t i = 0; i < l->n_readers; i++)
        if (l->readers[i] == stream) return true;
    weir_stream *more = realloc(l->readers, (l->n_readers + 1) * sizeof *more);
    if (!more) return false;
    more[l->n_readers++] = stream;
    l->readers = more;
    return true;
}

weir_status weir_lease_read_on(weir_lease *l, weir_stream stream)
{
    bool is_home = stream == l->home;
    if (stream == PER_THREAD && !(is_home && pthread_equal(pthread_self(), l->thread)))
        return WEIR_INVALID_ARGUMENT;
    if (is_home) return WEIR_OK; /* it waits since acquire */
    weir_status s = l->house ? weir_queue_await(l->house->queue, &l->item, stream) : WEIR_OK;
    if (s != WEIR_OK) return s;
    pthread_mutex_lock(&l->lock);
    bool added = add_reader(l, stream);
    pthread_mutex_unlock(&l->lock);
    return added ? WEIR_OK : WEIR_NO_HOST_MEMORY;
}
