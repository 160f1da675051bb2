/* SPDX-License-Identifier: Apache-2.0 */
#include "compute.h"
#include "work.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MATRIX_N = 4096,
    MATRIX_BYTES = MATRIX_N * MATRIX_N * 2,
    FMA_BLOCKS = 4096,
    FMA_ROUNDS = 1024,
    UNITS_MEASURED = 50,
};

static weir_status queue_unit(struct wr_compute *c)
{
    uint64_t a = c->matrices.address;
    if (c->cublas.handle)
        return wr_cublas_gemm(&c->cublas, MATRIX_N, a, a + MATRIX_BYTES, a + 2 * MATRIX_BYTES);
    return wr_work_fma(c->device, c->stream, a, FMA_BLOCKS, FMA_ROUNDS);
}

static weir_status queue_units(struct wr_compute *c, unsigned n)
{
    weir_status s = WEIR_OK;
    if (c->cublas.handle && n) c->driver.cuCtxSetCurrent(c->driver.context);
    for (unsigned i = 0; i < n && s == WEIR_OK; i++)
        s = queue_unit(c);
    return s;
}

static weir_status wait(struct wr_compute *c)
{
    return c->device->ops->stream_sync(c->device, c->stream);
}

/* ---- real devices ------------------------------------------------------------------------------------ */

/* Random values in [0.5, 1) of either sign: power and clocks of a GPU depend on the bits that toggle. */
static void fill_with_bf16(uint16_t *out, size_t n)
{
    uint64_t x = 88172645463325252;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17; /* xorshift */
        out[i] = (uint16_t)(0x3f00 | (x & 0x807f));
    }
}

/* The source is pageable, so the copies have read it when they return. */
static weir_status upload_matrices(struct wr_compute *c)
{
    uint16_t *values = malloc(MATRIX_BYTES);
    if (!values) return wr_fail(WEIR_NO_HOST_MEMORY, "no host memory for a matrix");
    struct wr_device *d = c->device;
    fill_with_bf16(values, MATRIX_BYTES / sizeof *values);
    weir_status s = WEIR_OK;
    for (unsigned i = 0; i < 2 && s == WEIR_OK; i++)
        s = d->ops->copy(d, WR_COPY_H2D, c->matrices.address + i * MATRIX_BYTES, (uintptr_t)values,
            MATRIX_BYTES, c->stream);
    if (s == WEIR_OK) s = wait(c);
    free(values);
    return s;
}

static weir_status measure_unit(struct wr_compute *c)
{
    struct wr_device *d = c->device;
    weir_status s = queue_units(c, UNITS_MEASURED); /* clocks rise, libraries load what they need */
    if (s == WEIR_OK) s = wait(c);
    if (s != WEIR_OK) return s;
    uint64_t start = d->ops->now_ns(d);
    s = queue_units(c, UNITS_MEASURED);
    if (s == WEIR_OK) s = wait(c);
    c->unit_ns = (double)(d->ops->now_ns(d) - start) / UNITS_MEASURED;
    return s;
}

static weir_status open_real(struct wr_compute *c)
{
    weir_status s = wr_driver_bind(c->device, &c->driver);
    if (s == WEIR_OK) s = wr_region_open(c->device, 3 * MATRIX_BYTES, &c->matrices);
    if (s == WEIR_OK) s = upload_matrices(c);
    if (s != WEIR_OK) return s;
    if (wr_cublas_open(&c->cublas, c->stream))
        snprintf(c->name, sizeof c->name, "bf16 matrix products of %d^3 by cuBLAS (%s)", MATRIX_N,
            c->cublas.library);
    else
        snprintf(c->name, sizeof c->name, "a kernel of float multiply-adds (no cuBLAS that works was found)");
    return measure_unit(c);
}

/* ---- all devices ------------------------------------------------------------------------------------- */

static weir_status clear_sum(struct wr_compute *c)
{
    return c->device->ops->fill(c->device, c->sum.address, 0, sizeof(uint64_t), c->stream);
}

weir_status wr_compute_open(struct wr_compute *c, struct wr_device *d, weir_stream s, bool simulated)
{
    *c = (struct wr_compute){.device = d, .stream = s, .simulated = simulated};
    weir_status status = wr_region_open(d, sizeof(uint64_t), &c->sum);
    if (status == WEIR_OK) status = clear_sum(c);
    if (status != WEIR_OK) return status;
    if (!simulated) return open_real(c);
    snprintf(c->name, sizeof c->name, "a kernel of a given length, simulated");
    return WEIR_OK;
}

weir_status wr_compute_close(struct wr_compute *c)
{
    weir_status s = wait(c);
    wr_cublas_close(&c->cublas);
    wr_region_close(&c->matrices);
    wr_region_close(&c->sum);
    return s;
}

void wr_compute_set_step(struct wr_compute *c, uint64_t ns)
{
    c->sim_ns = ns;
    if (c->simulated) return;
    double units = (double)ns / c->unit_ns;
    c->units = ns == 0 ? 0 : units < 1 ? 1 : (unsigned)(units + 0.5);
}

weir_status wr_compute_step(struct wr_compute *c, weir_dptr batch, size_t bytes)
{
    weir_status s = wr_work_checksum(c->device, c->stream, batch, bytes, c->sum.address, 0);
    if (s == WEIR_OK)
        s = queue_units(c, c->units); /* none where it is simulated: the next kernel takes the time */
    if (s == WEIR_OK) s = wr_work_checksum(c->device, c->stream, batch, bytes, c->sum.address, c->sim_ns);
    return s;
}

weir_status wr_compute_take_sum(struct wr_compute *c, uint64_t *out)
{
    uint64_t sum;
    struct wr_device *d = c->device;
    weir_status s = d->ops->copy(d, WR_COPY_D2H, (uintptr_t)&sum, c->sum.address, sizeof sum, c->stream);
    if (s == WEIR_OK) s = wait(c);
    if (s == WEIR_OK) s = clear_sum(c);
    if (s == WEIR_OK) *out = sum;
    return s;
}
