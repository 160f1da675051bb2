/* SPDX-License-Identifier: Apache-2.0 */
#include "bfc.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static void find_path(char *out, size_t size)
{
    const char *peers = getenv("WEIR_PEERS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (peers != NULL)
        snprintf(out, size, "%s/libweir_bfc.so", peers);
    else if (cache != NULL)
        snprintf(out, size, "%s/weir/peers/libweir_bfc.so", cache);
    else
        snprintf(out, size, "%s/.cache/weir/peers/libweir_bfc.so", home != NULL ? home : "");
}

bool wr_bfc_find(struct wr_bfc *out)
{
    char path[PATH_MAX];
    find_path(path, sizeof path);
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0); /* a search for the smallest limit fails often, by intent */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "bench: BFC is missing, bench/peers.sh builds it: %s\n", dlerror());
        return false;
    }
    *(void **)&out->open = dlsym(library, "weir_bfc_open");
    *(void **)&out->close = dlsym(library, "weir_bfc_close");
    *(void **)&out->alloc = dlsym(library, "weir_bfc_alloc");
    *(void **)&out->free = dlsym(library, "weir_bfc_free");
    *(void **)&out->peak = dlsym(library, "weir_bfc_peak");
    return out->open != NULL && out->close != NULL && out->alloc != NULL && out->free != NULL &&
           out->peak != NULL;
}
