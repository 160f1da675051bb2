/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices of the clients that are served, and what weir has on each GPU.
 */
#include "hook.h"
#include "weir_shared.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Sites are added under the lock and never removed: a client that has gone leaves its sites empty. */
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
static struct wr_pjrt_site *sites[WR_PJRT_SITES_MOST];
static _Atomic unsigned n_sites;

static struct wr_pjrt_ground *_Atomic grounds[WR_PJRT_DEVICES_MOST];

/* ---- the ground -------------------------------------------------------------------------------------- */

/* "0.1", "512M", "3G"; 0: neither. A number with a point is a fraction of the whole. */
static void parse_limit(const char *text, size_t *bytes, double *fraction)
{
    char *end;
    double number = strtod(text, &end);
    *bytes = 0;
    *fraction = 0;
    if (end == text || !(number > 0)) return;
    if (strchr(text, '.') && *end == 0 && number <= 1) {
        *fraction = number;
        return;
    }
    const char *units = "KMGT", *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (*end && (!unit || end[1])) return;
    for (const char *u = units; unit && u <= unit; u++)
        number *= 1024;
    if (number < (double)(SIZE_MAX / 2)) *bytes = (size_t)number;
}

/* For all adapters of the process, where neither the program nor another adapter has set a limit. */
static void suggest_limit(int ordinal)
{
    size_t bytes = 0;
    double fraction = 0;
    const char *limit = getenv("WEIR_JAX_LIMIT");
    if (limit) parse_limit(limit, &bytes, &fraction);
    if (!bytes && !(fraction > 0)) {
        const char *share = getenv("XLA_CLIENT_MEM_FRACTION");
        if (!share) share = getenv("XLA_PYTHON_CLIENT_MEM_FRACTION");
        double taken = share ? strtod(share, NULL) : 0;
        if (!(taken > 0) || taken > 0.95) taken = 0.75;
        fraction = (1 - taken) * 0.8;
    }
    (void)weir_shared_suggest_limit(ordinal, bytes, fraction); /* in use: that one counts */
}

/* On the pool that all adapters of the process share: the frameworks' memory is one budget. */
static void open_ground(struct wr_pjrt_ground *g)
{
    suggest_limit(g->ordinal);
    if (weir_shared_pool(g->ordinal, &g->pool) != WEIR_OK) return;
    if (weir_engine_open(g->pool, NULL, &g->engine) != WEIR_OK) return;
    g->home = weir_engine_stream(g->engine);
    atomic_store(&g->usable, g->home != NULL);
}

/* pthread_once has no argument. */
static _Thread_local struct wr_pjrt_ground *opening;

static void open_opening(void)
{
    open_ground(opening);
}

bool wr_pjrt_site_open(struct wr_pjrt_site *site)
{
    if (wr_pjrt_is_open(site->ground)) return true;
    opening = site->ground;
    return pthread_once(&site->ground->once, open_opening) == 0 && wr_pjrt_is_open(site->ground);
}

struct wr_pjrt_ground *wr_pjrt_ground_at(int ordinal)
{
    return ordinal >= 0 && ordinal < WR_PJRT_DEVICES_MOST ? atomic_load(&grounds[ordinal]) : NULL;
}

/* LOCK: `adding` is held. */
static struct wr_pjrt_ground *make_ground(int ordinal)
{
    if (ordinal < 0 || ordinal >= WR_PJRT_DEVICES_MOST) return NULL;
    struct wr_pjrt_ground *g = atomic_load(&grounds[ordinal]);
    if (g) return g;
    g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->ordinal = ordinal;
    g->once = (pthread_once_t)PTHREAD_ONCE_INIT;
    atomic_store(&grounds[ordinal], g);
    return g;
}

/* ---- sites ------------------------------------------------------------------------------------------- */

static bool is_kind(struct pjrt_memory *m, const char *kind)
{
    struct pjrt_get_text args = {.struct_size = sizeof args, .subject = m};
    return wr_pjrt_call(PJRT_MEMORY_KIND, &args) && args.n == strlen(kind) &&
           memcmp(args.text, kind, args.n) == 0;
}

static struct pjrt_memory *find_pinned(struct pjrt_device *d)
{
    struct pjrt_get_list args = {.struct_size = sizeof args, .subject = d};
    if (!wr_pjrt_call(PJRT_DEVICE_ADDRESSABLE_MEMORIES, &args)) return NULL;
    for (size_t i = 0; i < args.n; i++)
        if (is_kind(args.list[i], "pinned_host")) return args.list[i];
    return NULL;
}

static void add_device(struct pjrt_client *c, struct pjrt_device *d)
{
    struct pjrt_get_number id = {.struct_size = sizeof id, .subject = d};
    struct pjrt_memory *memory = wr_pjrt_get(PJRT_DEVICE_DEFAULT_MEMORY, d);
    struct pjrt_memory *pinned = find_pinned(d);
    if (!wr_pjrt_call(PJRT_DEVICE_LOCAL_HARDWARE_ID, &id) || !memory) return;
    if (!is_kind(memory, "device")) return;
    struct wr_pjrt_site *site = calloc(1, sizeof *site);
    if (!site) return;
    pthread_mutex_init(&site->lock, NULL);
    site->device = d;
    site->memory = memory;
    site->pinned = pinned;
    atomic_store(&site->client, c);
    pthread_mutex_lock(&adding);
    unsigned n = atomic_load(&n_sites);
    site->ground = make_ground(id.value.number);
    bool fits = site->ground && n < WR_PJRT_SITES_MOST;
    if (fits) {
        sites[n] = site;
        atomic_store(&n_sites, n + 1);
    }
    pthread_mutex_unlock(&adding);
    if (!fits) free(site);
}

static bool is_cuda(struct pjrt_client *c)
{
    struct pjrt_get_text args = {.struct_size = sizeof args, .subject = c};
    return wr_pjrt_call(PJRT_CLIENT_PLATFORM_NAME, &args) && args.n == 4 && memcmp(args.text, "cuda", 4) == 0;
}

void wr_pjrt_add_client(struct pjrt_client *c)
{
    struct pjrt_get_list args = {.struct_size = sizeof args, .subject = c};
    if (!is_cuda(c) || !wr_pjrt_call(PJRT_CLIENT_ADDRESSABLE_DEVICES, &args)) return;
    for (size_t i = 0; i < args.n; i++)
        add_device(c, args.list[i]);
}

/* Its streams go with it. */
static void retire_streams(struct wr_pjrt_site *site)
{
    for (int i = 0; i < WR_PJRT_READY_MOST; i++)
        if (site->ready[i].stream && wr_pjrt_is_open(site->ground))
            (void)weir_stream_retire(site->ground->pool, (weir_stream)site->ready[i].stream);
}

void wr_pjrt_remove_client(struct pjrt_client *c)
{
    for (unsigned i = 0; i < atomic_load(&n_sites); i++) {
        if (atomic_load(&sites[i]->client) != c) continue;
        atomic_store(&sites[i]->client, NULL);
        wr_pjrt_sweep(sites[i]->ground);
        retire_streams(sites[i]);
    }
}

unsigned wr_pjrt_count_clients(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < atomic_load(&n_sites); i++) {
        struct pjrt_client *c = atomic_load(&sites[i]->client);
        bool first = c != NULL;
        for (unsigned j = 0; j < i; j++)
            first &= atomic_load(&sites[j]->client) != c;
        n += first;
    }
    return n;
}

bool wr_pjrt_had_clients(void)
{
    return atomic_load(&n_sites) > 0;
}

struct wr_pjrt_site *wr_pjrt_site_of_device(const struct pjrt_device *d)
{
    for (unsigned i = atomic_load(&n_sites); i-- > 0;)
        if (sites[i]->device == d && atomic_load(&sites[i]->client)) return sites[i];
    return NULL;
}

struct wr_pjrt_site *wr_pjrt_site_of_memory(const struct pjrt_memory *m, bool *pinned)
{
    for (unsigned i = atomic_load(&n_sites); m && i-- > 0;) {
        if (!atomic_load(&sites[i]->client)) continue;
        *pinned = sites[i]->pinned == m;
        if (*pinned || sites[i]->memory == m) return sites[i];
    }
    return NULL;
}

/* ---- streams that the plug-in takes ------------------------------------------------------------------ */

static struct wr_pjrt_ready read_ready(struct wr_pjrt_site *site, intptr_t stream)
{
    struct wr_pjrt_ready found = {0};
    pthread_mutex_lock(&site->lock);
    for (int i = 0; i < WR_PJRT_READY_MOST; i++)
        if (site->ready[i].stream == stream) found = site->ready[i];
    pthread_mutex_unlock(&site->lock);
    return found;
}

/* Notes the stream, and what its views wait for; a full table forgets that, which costs time and nothing else. */
static void write_ready(struct wr_pjrt_site *site, struct wr_pjrt_ready r)
{
    pthread_mutex_lock(&site->lock);
    for (int i = 0; i < WR_PJRT_READY_MOST; i++) { /* filled from the front */
        if (site->ready[i].stream && site->ready[i].stream != r.stream) continue;
        site->ready[i] = r;
        break;
    }
    pthread_mutex_unlock(&site->lock);
}

static bool is_held_up(struct wr_pjrt_site *site, intptr_t stream)
{
    struct wr_pjrt_ready r = read_ready(site, stream);
    if (r.engine && weir_copy_wait(r.engine, r.ticket, 0) != WEIR_OK) return true;
    /* Asked no more. A note that came meanwhile is lost, which costs time and nothing else. */
    if (r.engine || !r.stream) write_ready(site, (struct wr_pjrt_ready){.stream = stream});
    return false;
}

intptr_t wr_pjrt_pick_ready(struct wr_pjrt_site *site)
{
    struct pjrt_get_stream args = {.struct_size = sizeof args, .device = site->device};
    for (int i = 0; i < WR_PJRT_READY_MOST; i++) { /* it hands them out in turn */
        struct pjrt_error *e = wr_pjrt_hook.streams->get_stream(&args);
        wr_pjrt_drop_error(e);
        if (e) return 0;
        if (!is_held_up(site, args.stream)) break;
    }
    return args.stream;
}

void wr_pjrt_note_gated(struct wr_pjrt_site *site, intptr_t stream, weir_engine *engine, weir_ticket ticket)
{
    write_ready(site, (struct wr_pjrt_ready){stream, ticket, engine});
}
