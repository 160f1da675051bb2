/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void wr_harness_end(const struct wr_harness *h, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fprintf(stderr, "bench/%s: ", h->bench);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(code);
}

void wr_harness_must(const struct wr_harness *h, weir_status s, const char *what)
{
    if (s != WEIR_OK)
        wr_harness_end(h, WR_HARNESS_FAILED, "%s: %s: %s", what, weir_status_name(s), weir_error_text());
}

/* ---- arguments --------------------------------------------------------------------------------------- */

static void print_help(
    const struct wr_harness *h, const char *about, const struct wr_harness_option *o, size_t n)
{
    printf("bench/%s: %s\n\n", h->bench, about);
    for (size_t i = 0; i < n; i++)
        printf("  %-13s %-4s  %s\n", o[i].name, o[i].kind == WR_OPTION_TEXT ? "TEXT" : "N", o[i].help);
}

/* A positive number, as every number given to a bench is. */
static bool read_number(const char *text, double *out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value > 0 && value < 1e9)) return false;
    *out = value;
    return true;
}

static bool set_option(const struct wr_harness_option *o, const char *value)
{
    double number;
    if (o->kind == WR_OPTION_TEXT) {
        *(const char **)o->to = value;
        return true;
    }
    if (!read_number(value, &number)) return false;
    if (o->kind == WR_OPTION_NUMBER) {
        *(double *)o->to = number;
        return true;
    }
    *(unsigned *)o->to = (unsigned)number;
    return (double)(unsigned)number == number;
}

static const struct wr_harness_option *find_option(
    const struct wr_harness_option *options, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(options[i].name, name) == 0) return &options[i];
    return NULL;
}

static void note_command(struct wr_harness *h, int argc, char **argv)
{
    size_t used = (size_t)snprintf(h->command, sizeof h->command, "%s", h->bench);
    for (int i = 1; i < argc && used < sizeof h->command; i++) {
        if (strcmp(argv[i], "--results") == 0) {
            i++; /* where the line stands says it already */
            continue;
        }
        used += (size_t)snprintf(h->command + used, sizeof h->command - used, " %s", argv[i]);
    }
}

static void print_date(char *out, size_t size)
{
    time_t now = time(NULL);
    struct tm utc;
    strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

static void name_run(struct wr_harness *h)
{
    char date[32];
    print_date(date, sizeof date);
    snprintf(h->run, sizeof h->run, "%s-%ld", date, (long)getpid());
}

void wr_harness_parse(struct wr_harness *h, const char *bench, const char *about, int argc, char **argv,
    const struct wr_harness_option *options, size_t n_options)
{
    *h = (struct wr_harness){.bench = bench};
    name_run(h);
    struct wr_harness_option all[32] = {
        {"--device", WR_OPTION_TEXT, &h->device_kind, "cuda or sim; cuda where there is one, else sim"},
        {"--profile", WR_OPTION_TEXT, &h->profile,
            "of the simulated device: gtx1080-pcie3[x2], h200-pcie5[x2]"},
        {"--devices", WR_OPTION_COUNT, &h->n_devices, "how many devices to use"},
        {"--results", WR_OPTION_TEXT, &h->results, "file to append the results to, a JSON object a line"},
    };
    size_t n = 4;
    assert(n + n_options <= WR_ARRAY_LEN(all));
    for (size_t i = 0; i < n_options; i++)
        all[n++] = options[i];
    note_command(h, argc, argv);
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--help") == 0) {
            print_help(h, about, all, n);
            exit(0);
        }
        const struct wr_harness_option *o = find_option(all, n, argv[i]);
        if (!o) wr_harness_end(h, WR_HARNESS_BAD_INPUT, "no option %s: see --help", argv[i]);
        if (i + 1 == argc) wr_harness_end(h, WR_HARNESS_BAD_INPUT, "%s needs a value", argv[i]);
        if (!set_option(o, argv[i + 1]))
            wr_harness_end(h, WR_HARNESS_BAD_INPUT, "%s %s: not a number in range", argv[i], argv[i + 1]);
    }
}

/* ---- devices ----------------------------------------------------------------------------------------- */

/* The kernel module's version, such as 580.95.05; the number that cuDriverGetVersion gives is CUDA's. */
static bool read_module_version(char *out, size_t size)
{
    char line[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (!f) return false;
    char *got = fgets(line, sizeof line, f);
    fclose(f);
    for (char *word = got ? strtok(line, " \t\n") : NULL; word; word = strtok(NULL, " \t\n"))
        if (isdigit((unsigned char)word[0]) && strchr(word, '.')) {
            snprintf(out, size, "%s", word);
            return true;
        }
    return false;
}

static void describe_real(struct wr_harness *h)
{
    const struct wr_device *d = h->devices[0];
    char module[32];
    snprintf(h->label, sizeof h->label, "%s", d->name);
    int major = d->driver_version / 1000, minor = d->driver_version % 1000 / 10;
    if (read_module_version(module, sizeof module))
        snprintf(h->driver, sizeof h->driver, "%s (CUDA %d.%d)", module, major, minor);
    else
        snprintf(h->driver, sizeof h->driver, "CUDA %d.%d", major, minor);
}

static weir_status open_real(struct wr_harness *h)
{
    weir_status s = WEIR_OK;
    for (unsigned i = 0; i < h->n_devices && s == WEIR_OK; i++)
        s = wr_device_get("cuda", (int)i, &h->devices[i]);
    if (s == WEIR_OK) describe_real(h);
    return s;
}

static void open_simulated(struct wr_harness *h, const char *profile, bool wall_clock)
{
    struct wr_sim_options o = {.profile = wr_sim_profile_find(profile), .wall_clock = wall_clock};
    if (!o.profile) wr_harness_end(h, WR_HARNESS_BAD_INPUT, "no simulated device is called %s", profile);
    if (h->n_devices > o.profile->devices)
        wr_harness_end(
            h, WR_HARNESS_BAD_INPUT, "%s has %u devices, not %u", profile, o.profile->devices, h->n_devices);
    wr_harness_must(h, wr_sim_open(&o, &h->world), "opening the simulated device");
    for (unsigned i = 0; i < h->n_devices; i++)
        h->devices[i] = wr_sim_device(h->world, i);
    snprintf(h->label, sizeof h->label, "sim:%s", profile);
    snprintf(h->driver, sizeof h->driver, "none");
}

void wr_harness_open(struct wr_harness *h, const char *profile, bool wall_clock)
{
    if (!h->device_kind && h->profile) h->device_kind = "sim"; /* only that has profiles */
    bool is_sim = h->device_kind && strcmp(h->device_kind, "sim") == 0;
    bool is_cuda = h->device_kind && strcmp(h->device_kind, "cuda") == 0;
    if (h->device_kind && !is_sim && !is_cuda)
        wr_harness_end(h, WR_HARNESS_BAD_INPUT, "no device kind %s: cuda or sim", h->device_kind);
    if (is_cuda && h->profile)
        wr_harness_end(h, WR_HARNESS_BAD_INPUT, "--profile %s: only a simulated device has one", h->profile);
    if (h->n_devices == 0) h->n_devices = 1;
    if (h->n_devices > WR_HARNESS_DEVICES)
        wr_harness_end(h, WR_HARNESS_BAD_INPUT, "%d devices at most", WR_HARNESS_DEVICES);
    weir_status s = is_sim ? WEIR_NO_DRIVER : open_real(h);
    bool absent = s == WEIR_NO_DRIVER || s == WEIR_NO_DEVICE || s == WEIR_DRIVER_TOO_OLD;
    if (is_cuda || !absent) {
        wr_harness_must(h, s, "opening the device");
        return;
    }
    if (!is_sim) fprintf(stderr, "bench/%s: %s; simulating a device instead\n", h->bench, weir_error_text());
    open_simulated(h, h->profile ? h->profile : profile, wall_clock);
}

void wr_harness_describe_cpu(struct wr_harness *h)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(h->label, sizeof h->label, "cpu: unknown");
    snprintf(h->driver, sizeof h->driver, "none");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0 || !strchr(line, ':')) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(h->label, sizeof h->label, "cpu:%.100s", strchr(line, ':') + 1);
        break;
    }
    if (f) fclose(f);
}

void wr_harness_close_pool(const struct wr_harness *h, weir_pool *pool)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    weir_status s = weir_pool_close(pool);
    for (unsigned i = 0; i < 1000 && s == WEIR_NOT_YET; i++) {
        if (h->world) wr_sim_drain(h->world);
        nanosleep(&moment, NULL); /* the pool may be of another world, on the wall clock */
        s = weir_pool_close(pool);
    }
    wr_harness_must(h, s, "closing the pool");
}

unsigned wr_harness_close(struct wr_harness *h)
{
    if (!h->world) return 0;
    unsigned reports = wr_sim_reports(h->world);
    for (unsigned i = 0; i < reports; i++)
        fprintf(stderr, "bench/%s: oracle: %s\n", h->bench, wr_sim_report(h->world, i));
    return reports + wr_sim_close(h->world);
}

void wr_harness_host_access(const struct wr_harness *h, const void *host, size_t bytes, bool writes)
{
    if (h->world) wr_sim_host_access(h->world, host, bytes, writes);
}

/* ---- results ----------------------------------------------------------------------------------------- */

static void print_json_text(FILE *f, const char *name, const char *text)
{
    fprintf(f, "\"%s\": \"", name);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', f);
        if ((unsigned char)*text >= ' ') fputc(*text, f);
    }
    fputc('"', f);
}

/* The commit that was built: git's answer, else $WEIR_COMMIT (a tree without its history), else "unknown". */
/* $WEIR_COMMIT names what was built, where that is not what is checked out. */
static void read_commit(char *out, size_t size)
{
    const char *given = getenv("WEIR_COMMIT");
    snprintf(out, size, "%s", given && *given ? given : "unknown");
    if (given && *given) return;
    FILE *f = popen("git rev-parse --short HEAD 2>/dev/null", "r");
    char line[64] = "";
    if (!f) return;
    if (fgets(line, sizeof line, f) && line[strspn(line, "0123456789abcdef")] == '\n')
        snprintf(out, size, "%.*s", (int)strcspn(line, "\n"), line);
    pclose(f);
}

void wr_harness_result(
    struct wr_harness *h, const char *figure, const char *subject, double value, const char *unit)
{
    if (!h->results) return;
    FILE *f = fopen(h->results, "a");
    if (!f) wr_harness_end(h, WR_HARNESS_FAILED, "%s: %s", h->results, strerror(errno));
    char date[32], commit[64];
    print_date(date, sizeof date);
    read_commit(commit, sizeof commit);
    const char *fields[][2] = {{"unit", unit}, {"device", h->label}, {"driver", h->driver}, {"date", date},
        {"commit", commit}, {"command", h->command}, {"run", h->run}};
    fputc('{', f);
    print_json_text(f, "figure", figure);
    fputs(", ", f);
    print_json_text(f, "subject", subject);
    fprintf(f, ", \"value\": %.6g", value);
    for (size_t i = 0; i < WR_ARRAY_LEN(fields); i++) {
        fputs(", ", f);
        print_json_text(f, fields[i][0], fields[i][1]);
    }
    fputs("}\n", f);
    if (fclose(f) != 0) wr_harness_end(h, WR_HARNESS_FAILED, "%s: %s", h->results, strerror(errno));
}

/* ---- progress and statistics ------------------------------------------------------------------------- */

void wr_harness_progress(const struct wr_harness *h, const char *what, size_t done, size_t total)
{
    static uint64_t first, last;
    bool terminal = isatty(STDERR_FILENO);
    uint64_t now = wr_device_wall_ns(), pause = (terminal ? 1 : 25) * WR_NS_PER_SEC / 5;
    if (!first) first = now;
    if (now - first < 2 * WR_NS_PER_SEC || now - last < pause) return;
    last = now;
    fprintf(stderr, "%sbench/%s: %.0f s: %s, %zu of %zu%s", terminal ? "\r\033[K" : "", h->bench,
        (double)(now - first) / WR_NS_PER_SEC, what, done, total, terminal ? "\r" : "\n");
    fflush(stderr);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double wr_harness_median(double *values, size_t n)
{
    assert(n > 0);
    qsort(values, n, sizeof *values, compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double wr_harness_worst(const double *values, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        if (values[i] > worst) worst = values[i];
    return worst;
}
