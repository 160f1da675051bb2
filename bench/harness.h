/* SPDX-License-Identifier: Apache-2.0
 *
 * What the benches share: arguments, devices, progress, statistics and results. A bench is a program with one
 * job: where it can't go on, it says what failed and ends.
 */
#ifndef WR_BENCH_HARNESS_H
#define WR_BENCH_HARNESS_H

#include "device_sim.h"

enum { WR_HARNESS_DEVICES = 8 };

/* Exit codes. */
enum { WR_HARNESS_FAILED = 1, WR_HARNESS_BAD_INPUT = 2 };

struct wr_harness_option {
    const char *name; /* "--steps" */
    enum { WR_OPTION_TEXT, WR_OPTION_COUNT, WR_OPTION_NUMBER } kind;
    void *to; /* const char *, unsigned, double */
    const char *help;
};

struct wr_harness {
    const char *bench;
    char command[1024];
    char run[48]; /* names this run in results: when it began, and the process */
    /* options of every bench */
    const char *device_kind; /* "cuda", "sim", NULL: cuda if there is one, else sim */
    const char *profile;     /* NULL: the bench's own choice */
    const char *results;     /* a .jsonl file, NULL: none */
    unsigned n_devices;      /* 0: one, or all of a simulated profile that the bench asks for by name */
    /* set by open */
    struct wr_sim *world; /* NULL on a real device */
    struct wr_device *devices[WR_HARNESS_DEVICES];
    char label[160]; /* "NVIDIA H200", "sim:h200-pcie5" */
    char driver[64];
};

/* Fills the harness and what the options point to; ends the program on --help and on anything unknown.
 * `about` is printed by --help. */
void wr_harness_parse(struct wr_harness *h, const char *bench, const char *about, int argc, char **argv,
    const struct wr_harness_option *options, size_t n_options);

/* Opens h->n_devices devices. A simulated world gets the clock asked for, and `profile` where the user chose
 * none. */
void wr_harness_open(struct wr_harness *h, const char *profile, bool wall_clock);

/* In place of open, for a bench that asks nothing of a GPU: results say "cpu: ", and which processor. */
void wr_harness_describe_cpu(struct wr_harness *h);

/* Closes a pool whose streams have been waited for, and retired: the very last fences may need a moment to
 * pass. */
void wr_harness_close_pool(const struct wr_harness *h, weir_pool *pool);

/* Pools must be closed. Returns what a simulated device has to report, 0 on a real one: accesses out of
 * order, leaks. */
unsigned wr_harness_close(struct wr_harness *h);

/* Appends a result to the file asked for, if any. */
void wr_harness_result(
    struct wr_harness *h, const char *figure, const char *subject, double value, const char *unit);

/* Ends the program where `s` is an error. */
void wr_harness_must(const struct wr_harness *h, weir_status s, const char *what);
_Noreturn void wr_harness_end(const struct wr_harness *h, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line on stderr, once the run has taken 2 s: rewritten on a terminal, else a new one every 5 s. */
void wr_harness_progress(const struct wr_harness *h, const char *what, size_t done, size_t total);

/* The host wrote or read `host`: told to the simulated device's oracle. */
void wr_harness_host_access(const struct wr_harness *h, const void *host, size_t bytes, bool writes);

double wr_harness_median(double *values, size_t n); /* sorts them */
double wr_harness_worst(const double *values, size_t n);

#endif
