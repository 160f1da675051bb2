/* SPDX-License-Identifier: Apache-2.0
 *
 * A user's first program: needs the public headers and the installed library, and nothing else.
 */
#include <weir_queue.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

static int failed(const char *what, weir_status s)
{
    fprintf(stderr, "%s: %s: %s\n", what, weir_status_name(s), weir_error_text());
    return 1;
}

/* A pool closes for good once the GPU has passed what was freed: a moment later, since no call waits for it.
 */
static weir_status close_within_a_second(weir_pool *pool)
{
    weir_status s = weir_pool_close(pool);
    for (int i = 0; i < 1000 && s == WEIR_NOT_YET; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        s = weir_pool_close(pool);
    }
    return s;
}

int main(void)
{
    weir_pool_options options = {.struct_size = sizeof options, .device_kind = "sim"};
    weir_pool *pool;
    weir_status s = weir_pool_open(&options, &pool);
    if (s != WEIR_OK) return failed("weir_pool_open", s);

    weir_dptr block;
    if ((s = weir_alloc(pool, 1 << 20, NULL, &block)) != WEIR_OK) return failed("weir_alloc", s);
    if ((s = weir_free(pool, block, NULL)) != WEIR_OK) return failed("weir_free", s);

    void *host;
    if ((s = weir_host_alloc(pool, 1000, &host)) != WEIR_OK) return failed("weir_host_alloc", s);
    memset(host, 1, 1000);
    if ((s = weir_host_free(pool, host, WEIR_NO_STREAM)) != WEIR_OK) return failed("weir_host_free", s);

    if ((s = close_within_a_second(pool)) != WEIR_OK) return failed("weir_pool_close", s);
    printf("weir %s\n", weir_version());
    return 0;
}
