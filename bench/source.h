/* SPDX-License-Identifier: Apache-2.0
 *
 * Real data: a file, or the machine's installed shared libraries one after the other, read as bytes.
 */
#ifndef WR_BENCH_SOURCE_H
#define WR_BENCH_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WR_SOURCE_ERROR_MAP(X)                                                                               \
    X(OK, "fine")                                                                                            \
    X(MISSING, "no such file")                                                                               \
    X(EMPTY, "no bytes to stream")                                                                           \
    X(SHRANK, "the file lost bytes while it was read")                                                       \
    X(UNREADABLE, "the system refused to read it")                                                           \
    X(NO_MEMORY, "no host memory for the list of files")

enum wr_source_error {
#define WR_SOURCE_ERROR_ENUM(name, text) WR_SOURCE_##name,
    WR_SOURCE_ERROR_MAP(WR_SOURCE_ERROR_ENUM)
#undef WR_SOURCE_ERROR_ENUM
};

struct wr_source_piece {
    char *path;
    uint64_t start, bytes; /* its place in the source; INVARIANT: pieces follow each other without a gap */
};

struct wr_source {
    struct wr_source_piece *pieces;
    size_t n, capacity;
    uint64_t bytes;
    size_t n_files;  /* different ones; fewer than pieces where they had to be repeated */
    char label[128]; /* what it is, for the output */
    char error[256]; /* the last error in words, with the file's name */
};

/* path NULL: shared libraries, until there are `least_bytes`; repeated where the machine has fewer. On an
 * error the source holds its words, and nothing else. */
enum wr_source_error wr_source_open(struct wr_source *s, const char *path, uint64_t least_bytes);
void wr_source_close(struct wr_source *s);

/* Reads the source's bytes [at, at + bytes), which must lie inside it, from the disk. */
enum wr_source_error wr_source_read(struct wr_source *s, uint64_t at, void *to, size_t bytes);

const char *wr_source_error_name(enum wr_source_error e);

#endif
