/* SPDX-License-Identifier: Apache-2.0
 *
 * The tables of real plug-ins: those in $WEIR_PJRT_PLUGINS/VERSION, unpacked as below, are loaded, which needs no GPU,
 * and either hooked or declined for its version, as it should be. Without that folder: skipped.
 *
 *   pip download --no-deps jax-cuda13-pjrt==0.11.2 && unzip -d plugins/0.11.2 jax_cuda13_pjrt-0.11.2-*.whl '*.so'
 *   WEIR_PJRT_PLUGINS=plugins test_pjrt_plugins
 */
#include "hook.h"
#include "weir_pjrt.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

/* What was read from those of jax-cuda12-pjrt and jax-cuda13-pjrt 0.8.0 to 0.12.0; both have the same. */
static const struct {
    int minor;
    size_t bytes;
} known[] = {
    {80, 984},   /* 0.8.0 */
    {81, 984},   /* 0.8.1 */
    {85, 1016},  /* 0.8.2 */
    {90, 1064},  /* 0.9.0 */
    {100, 1104}, /* 0.9.2 */
    {104, 1120}, /* 0.10.0 */
    {114, 1144}, /* 0.11.0, 0.11.1 */
    {115, 1144}, /* 0.11.2 */
    {116, 1144}, /* 0.12.0 */
};

static int complain(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return 1;
}

static int check_shape(const char *path, const struct pjrt_api *api)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].minor == api->version.minor && known[i].bytes != api->struct_size)
            return complain(path, "its table has another size than others of that version");
    return 0;
}

/* In a process of its own: a process has one table. */
static int check_plugin(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return complain(path, dlerror());
    const struct pjrt_api *(*get)(void) =
        (const struct pjrt_api *(*)(void))(uintptr_t)dlsym(library, "GetPjrtApi");
    const struct pjrt_api *api = get ? get() : NULL;
    if (!api) return complain(path, "it has no table");
    pjrt_function before = api->entries[PJRT_BUFFER_TO_HOST_BUFFER];
    int declined = weir_pjrt_install(api);
    printf("%s\n    version 0.%d, %zu bytes: %s\n", path, api->version.minor, api->struct_size,
        weir_pjrt_message());
    bool hooked = api->entries[PJRT_BUFFER_TO_HOST_BUFFER] != before;
    if (hooked != !declined) return complain(path, "its table is not what install says");
    if (hooked != (api->version.minor >= WR_PJRT_MINOR_LEAST))
        return complain(path, "not what its version calls for");
    char version[16];
    (void)snprintf(version, sizeof version, "0.%d", api->version.minor);
    if (!strstr(weir_pjrt_message(), version)) return complain(path, "the message does not name its version");
    return check_shape(path, api);
}

int main(void)
{
    const char *folder = getenv("WEIR_PJRT_PLUGINS");
    char pattern[4096];
    glob_t found;
    if (!folder) return SKIPPED;
    (void)snprintf(pattern, sizeof pattern, "%s/*/jax_plugins/*/xla_cuda_plugin.so", folder);
    if (glob(pattern, 0, NULL, &found) != 0) return complain(pattern, "there is none");
    int failed = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int wrong = check_plugin(found.gl_pathv[i]);
            fflush(stdout);
            _exit(wrong); /* without the plug-in's own end */
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) failed = 1;
    }
    printf("%zu plug-ins, %s\n", found.gl_pathc, failed ? "WRONG" : "all as they should be");
    globfree(&found);
    return failed;
}
