/* SPDX-License-Identifier: Apache-2.0 */
#include "cublas.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From cublas_api.h and library_types.h, where these numbers have not changed since they exist. */
enum { OP_N = 0, R_16BF = 14, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };

static void *open_named(struct wr_cublas *b, const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) snprintf(b->library, sizeof b->library, "%s", name);
    return library;
}

/* The newest that loads of those that match. */
static void *open_matching(struct wr_cublas *b, const char *pattern)
{
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0)
        for (size_t i = found.gl_pathc; i > 0 && !library; i--)
            library = open_named(b, found.gl_pathv[i - 1]);
    globfree(&found);
    return library;
}

static void *open_from_python(struct wr_cublas *b)
{
    static const char *const roots[] = {"/opt/*/.venv", "/opt/*", "/usr/local", "/usr"};
    static const char *const below[] = {"site-packages", "dist-packages"};
    const char *own = getenv("VIRTUAL_ENV");
    void *library = NULL;
    for (size_t i = 0; i <= WR_ARRAY_LEN(roots) && !library; i++) {
        const char *root = i == 0 ? own : roots[i - 1];
        for (size_t j = 0; root && j < WR_ARRAY_LEN(below) && !library; j++) {
            char pattern[512];
            snprintf(pattern, sizeof pattern, "%s/lib/python3*/%s/nvidia/*/lib/libcublas.so.1[23]", root,
                below[j]);
            library = open_matching(b, pattern);
        }
    }
    return library;
}

static void *open_library(struct wr_cublas *b)
{
    const char *given = getenv("WEIR_CUBLAS");
    if (given) return open_named(b, given);
    void *library = open_named(b, "libcublas.so.13");
    if (!library) library = open_named(b, "libcublas.so.12");
    if (!library) library = open_matching(b, "/usr/local/cuda*/lib64/libcublas.so.1[23]");
    return library ? library : open_from_python(b);
}

static bool find_function(void *library, const char *name, void *to)
{
    void *f = dlsym(library, name);
    memcpy(to, &f, sizeof f);
    return f != NULL;
}

static bool start_library(struct wr_cublas *b, void *library, weir_stream s)
{
    int (*create)(void **handle), (*set_stream)(void *handle, void *stream);
    bool all = find_function(library, "cublasCreate_v2", &create) &&
               find_function(library, "cublasSetStream_v2", &set_stream) &&
               find_function(library, "cublasGemmEx", &b->gemm) &&
               find_function(library, "cublasDestroy_v2", &b->destroy);
    if (!all || create(&b->handle) != 0) return false;
    if (set_stream(b->handle, s) == 0) return true;
    b->destroy(b->handle);
    return false;
}

bool wr_cublas_open(struct wr_cublas *b, weir_stream s)
{
    *b = (struct wr_cublas){0};
    void *library = open_library(b);
    if (!library) return false;
    if (start_library(b, library, s)) return true;
    b->handle = NULL;
    dlclose(library);
    return false;
}

weir_status wr_cublas_gemm(struct wr_cublas *b, int n, uint64_t a, uint64_t b_matrix, uint64_t c)
{
    static const float one = 1, zero = 0;
    int r = b->gemm(b->handle, OP_N, OP_N, n, n, n, &one, (void *)(uintptr_t)a, R_16BF, n,
        (void *)(uintptr_t)b_matrix, R_16BF, n, &zero, (void *)(uintptr_t)c, R_16BF, n, COMPUTE_32F,
        GEMM_DEFAULT);
    return r == 0 ? WEIR_OK : wr_fail(WEIR_DRIVER_ERROR, "cublasGemmEx failed with status %d", r);
}

void wr_cublas_close(struct wr_cublas *b)
{
    if (b->handle) b->destroy(b->handle);
    b->handle = NULL;
}
