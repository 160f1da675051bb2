/* SPDX-License-Identifier: Apache-2.0
 *
 * Two simulated devices with a block each, and an engine of the first.
 */
#ifndef COPY_PAIR_H
#define COPY_PAIR_H

#include "copy_world.h"

struct pair {
    struct copy_world c;
    weir_pool *peer; /* of device 1 */
    weir_stream there;
    weir_dptr own, other;
    size_t bytes;
};

static inline void open_pair(struct pair *p, bool no_peer_access, bool peers_garble)
{
    struct wr_sim_options sim = {.profile = wr_sim_profile_find("gtx1080-pcie3x2"),
        .no_peer_access = no_peer_access,
        .peers_garble = peers_garble};
    weir_engine_options o = small_engine();
    open_copies_with(&p->c, &sim, &o);
    struct wr_device *d = wr_sim_device(p->c.w.sim, 1);
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    OK(wr_pool_open(d, &defaults, &p->peer));
    OK(d->ops->stream_create(d, &p->there));
    p->bytes = WR_MIB + 12345;
    p->own = device_block(&p->c, p->bytes);
    OK(weir_alloc(p->peer, p->bytes, p->there, &p->other));
}

static inline void close_pair(struct pair *p)
{
    struct wr_device *d = wr_sim_device(p->c.w.sim, 1);
    OK(weir_free(p->c.w.pool, p->own, p->c.home));
    OK(weir_free(p->peer, p->other, p->there));
    wr_sim_drain(p->c.w.sim);
    OK(weir_stream_retire(p->peer, p->there));
    OK(d->ops->stream_destroy(d, p->there));
    wr_sim_drain(p->c.w.sim);
    weir_status s = weir_pool_close(p->peer);
    for (int i = 0; i < 5 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(p->c.w.sim);
        s = weir_pool_close(p->peer);
    }
    OK(s);
    close_copies(&p->c);
}

#endif
