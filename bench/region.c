/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"

static weir_status map_region(struct wr_region *r)
{
    struct wr_device *d = r->device;
    weir_status s = d->ops->mem_map(d, r->address, r->bytes, r->memory);
    if (s != WEIR_OK) return s;
    s = d->ops->mem_access(d, r->address, r->bytes);
    if (s != WEIR_OK) d->ops->mem_unmap(d, r->address, r->bytes);
    return s;
}

static weir_status fill_region(struct wr_region *r)
{
    struct wr_device *d = r->device;
    weir_status s = d->ops->mem_create(d, r->bytes, &r->memory);
    if (s != WEIR_OK) return s;
    s = map_region(r);
    if (s != WEIR_OK) d->ops->mem_release(d, r->memory);
    return s;
}

weir_status wr_region_open(struct wr_device *d, size_t bytes, struct wr_region *out)
{
    struct wr_region r = {.device = d, .bytes = wr_round_up(bytes, d->granularity)};
    weir_status s = d->ops->va_reserve(d, r.bytes, &r.address);
    if (s != WEIR_OK) return s;
    s = fill_region(&r);
    if (s != WEIR_OK) {
        d->ops->va_free(d, r.address, r.bytes);
        return s;
    }
    *out = r;
    return WEIR_OK;
}

void wr_region_close(struct wr_region *r)
{
    struct wr_device *d = r->device;
    if (!d) return;
    d->ops->mem_unmap(d, r->address, r->bytes);
    d->ops->mem_release(d, r->memory);
    d->ops->va_free(d, r->address, r->bytes);
    *r = (struct wr_region){0};
}
