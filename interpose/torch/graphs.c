/* SPDX-License-Identifier: Apache-2.0
 *
 * A capture that was met while several pools were open on its device belongs to each of them: only the pool's
 * filter could tell, and memory kept too long is better than memory reused early. It is released when all of them are.
 *
 * LOCK: graphs_lock guards both lists. No call of weir is made under it.
 */
#include "graphs.h"
#include "base.h"
#include "edges.h"

#include <stdlib.h>

struct capture {
    struct capture *next;
    weir_pool *pool;
    uint64_t id;
    unsigned refs; /* private pools that it belongs to */
};

struct member {
    struct member *next;
    struct capture *capture;
};

struct private_pool {
    struct private_pool *next;
    int device;
    weir_torch_pool_id id;
    unsigned holds, open; /* holds: less those released; open: begun, less those ended */
    struct member *members;
};

_Atomic unsigned wr_graphs_n_open;
static struct wr_lock graphs_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rank = WR_RANK_REGISTRY};
static struct private_pool *private_pools;
static struct capture *captures;

static struct private_pool **find_locked(int device, weir_torch_pool_id id)
{
    struct private_pool **link = &private_pools;
    while (*link != NULL &&
           ((*link)->device != device || (*link)->id.first != id.first || (*link)->id.second != id.second))
        link = &(*link)->next;
    return link;
}

static struct capture *get_capture_locked(weir_pool *pool, uint64_t id)
{
    for (struct capture *c = captures; c != NULL; c = c->next)
        if (c->pool == pool && c->id == id) return c;
    struct capture *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    *c = (struct capture){.next = captures, .pool = pool, .id = id};
    captures = c;
    return c;
}

/* Without host memory the capture is in no list, and its memory stays for good: late, but never early. */
static void join_locked(struct private_pool *p, weir_pool *pool, uint64_t id)
{
    for (const struct member *m = p->members; m != NULL; m = m->next)
        if (m->capture->pool == pool && m->capture->id == id) return;
    struct member *m = calloc(1, sizeof *m);
    struct capture *c = m != NULL ? get_capture_locked(pool, id) : NULL;
    if (c == NULL) {
        free(m);
        return;
    }
    c->refs++;
    *m = (struct member){.next = p->members, .capture = c};
    p->members = m;
}

void wr_graphs_note(weir_pool *pool, int device, weir_stream s)
{
    uint64_t id;
    if (weir_graph_id(pool, s, &id) != WEIR_OK) return; /* it captures nothing */
    wr_lock_take(&graphs_lock);
    for (struct private_pool *p = private_pools; p != NULL; p = p->next)
        if (p->device == device && p->open > 0) join_locked(p, pool, id);
    wr_lock_give(&graphs_lock);
}

/* Takes out one capture that no pool holds any more; false: there is none. */
static bool take_unheld(struct capture *out)
{
    wr_lock_take(&graphs_lock);
    struct capture **link = &captures;
    while (*link != NULL && (*link)->refs > 0)
        link = &(*link)->next;
    struct capture *c = *link;
    if (c != NULL) {
        *link = c->next;
        *out = *c;
    }
    wr_lock_give(&graphs_lock);
    free(c);
    return c != NULL;
}

static void put_back(const struct capture *c)
{
    wr_lock_take(&graphs_lock);
    (void)get_capture_locked(c->pool, c->id);
    wr_lock_give(&graphs_lock);
}

/* A capture that has not ended, as where another one was met in the same pool, is tried again next time. */
static void release_unheld(void)
{
    struct capture c, later[8];
    unsigned n_later = 0;
    while (n_later < WR_ARRAY_LEN(later) && take_unheld(&c))
        if (weir_graph_release(c.pool, c.id) == WEIR_CAPTURING) later[n_later++] = c;
    while (n_later > 0)
        put_back(&later[--n_later]);
}

/* One hold more; `opens`: and the pool is between begin and end. */
static void hold(int device, weir_torch_pool_id id, bool opens)
{
    if (wr_edges_check() != WEIR_OK) return;
    struct private_pool *fresh = calloc(1, sizeof *fresh);
    wr_lock_take(&graphs_lock);
    struct private_pool **link = find_locked(device, id);
    if (*link == NULL && fresh != NULL) {
        *fresh = (struct private_pool){.device = device, .id = id};
        *link = fresh;
        fresh = NULL;
    }
    if (*link != NULL) {
        (*link)->holds++;
        (*link)->open += opens;
        atomic_fetch_add(&wr_graphs_n_open, opens);
    }
    wr_lock_give(&graphs_lock);
    free(fresh);
}

void weir_torch_begin_pool(int device, weir_torch_pool_id id, void *filter)
{
    (void)filter;
    hold(device, id, true);
}

void weir_torch_hold_pool(int device, weir_torch_pool_id id)
{
    hold(device, id, false);
}

unsigned weir_torch_pool_holds(int device, weir_torch_pool_id id)
{
    if (wr_edges_check() != WEIR_OK) return 0;
    wr_lock_take(&graphs_lock);
    const struct private_pool *p = *find_locked(device, id);
    unsigned holds = p != NULL ? p->holds : 0;
    wr_lock_give(&graphs_lock);
    return holds;
}

void weir_torch_end_pool(int device, weir_torch_pool_id id)
{
    if (wr_edges_check() != WEIR_OK) return;
    wr_lock_take(&graphs_lock);
    struct private_pool *p = *find_locked(device, id);
    if (p != NULL && p->open > 0) {
        p->open--;
        atomic_fetch_sub(&wr_graphs_n_open, 1);
    }
    wr_lock_give(&graphs_lock);
}

static void drop_members_locked(struct private_pool *p)
{
    for (struct member *m = p->members, *next; m != NULL; m = next) {
        next = m->next;
        m->capture->refs--;
        free(m);
    }
}

void weir_torch_release_pool(int device, weir_torch_pool_id id)
{
    if (wr_edges_check() != WEIR_OK) return;
    wr_lock_take(&graphs_lock);
    struct private_pool **link = find_locked(device, id), *gone = NULL;
    if (*link != NULL && (*link)->holds > 0 && --(*link)->holds == 0) {
        gone = *link;
        *link = gone->next;
        atomic_fetch_sub(&wr_graphs_n_open, gone->open);
        drop_members_locked(gone);
    }
    wr_lock_give(&graphs_lock);
    free(gone);
    release_unheld();
}
