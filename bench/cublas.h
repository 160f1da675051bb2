/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products by cuBLAS, found at run time: no header and no library of it is needed to build.
 */
#ifndef WR_BENCH_CUBLAS_H
#define WR_BENCH_CUBLAS_H

#include "device.h"

struct wr_cublas {
    void *handle;
    char library[256]; /* where it was found */
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a,
        int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c, int type_c,
        int ldc, int compute, int algorithm);
    int (*destroy)(void *handle);
};

/* Looks at $WEIR_CUBLAS, the system's libraries, then the Python packages that bring one. The device's
 * context must be current. False: there is none that works. */
bool wr_cublas_open(struct wr_cublas *b, weir_stream s);

/* Queues c = a * b on the stream given to open: n x n matrices of bf16, sums in float. */
weir_status wr_cublas_gemm(struct wr_cublas *b, int n, uint64_t a, uint64_t b_matrix, uint64_t c);

void wr_cublas_close(struct wr_cublas *b);

#endif
