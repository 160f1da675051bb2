/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* FTW_PHYS */
#include "source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *wr_source_error_name(enum wr_source_error e)
{
    switch (e) {
#define ERROR_CASE(name, text)                                                                               \
    case WR_SOURCE_##name:                                                                                   \
        return #name;
        WR_SOURCE_ERROR_MAP(ERROR_CASE)
#undef ERROR_CASE
    }
    return "unknown";
}

static enum wr_source_error fail(struct wr_source *s, enum wr_source_error e, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum wr_source_error fail(struct wr_source *s, enum wr_source_error e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->error, sizeof s->error, format, args);
    va_end(args);
    return e;
}

static enum wr_source_error fail_errno(struct wr_source *s, const char *path)
{
    int error = errno;
    enum wr_source_error e = error == ENOENT || error == ENOTDIR ? WR_SOURCE_MISSING : WR_SOURCE_UNREADABLE;
    return fail(s, e, "%s: %s", path, strerror(error));
}

static bool make_room(struct wr_source *s)
{
    if (s->n < s->capacity) return true;
    size_t capacity = s->capacity ? 2 * s->capacity : 64;
    struct wr_source_piece *grown = realloc(s->pieces, capacity * sizeof *grown);
    if (!grown) return false;
    s->pieces = grown;
    s->capacity = capacity;
    return true;
}

static enum wr_source_error add_piece(struct wr_source *s, const char *path, uint64_t bytes)
{
    char *copy = make_room(s) ? strdup(path) : NULL;
    if (!copy) return fail(s, WR_SOURCE_NO_MEMORY, "no host memory for a list of %zu files", s->n + 1);
    s->pieces[s->n++] = (struct wr_source_piece){copy, s->bytes, bytes};
    s->bytes += bytes;
    return WR_SOURCE_OK;
}

static enum wr_source_error open_file(struct wr_source *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return fail_errno(s, path);
    if (!S_ISREG(st.st_mode)) return fail(s, WR_SOURCE_UNREADABLE, "%s: not a regular file", path);
    if (st.st_size == 0) return fail(s, WR_SOURCE_EMPTY, "%s: the file is empty", path);
    enum wr_source_error e = add_piece(s, path, (uint64_t)st.st_size);
    s->n_files = 1;
    snprintf(s->label, sizeof s->label, "%.100s", path);
    return e;
}

/* ---- shared libraries -------------------------------------------------------------------------------- */

/* nftw passes no argument on. Used by one thread, for the length of a walk. */
static struct walk {
    struct wr_source *source;
    uint64_t least_bytes;
    enum wr_source_error error;
} walk;

static int add_library(const char *path, const struct stat *st, int type, struct FTW *place)
{
    bool wanted = type == FTW_F && S_ISREG(st->st_mode) && st->st_size > 0 &&
                  fnmatch("*.so*", path + place->base, 0) == 0 && access(path, R_OK) == 0;
    if (wanted) walk.error = add_piece(walk.source, path, (uint64_t)st->st_size);
    return walk.error != WR_SOURCE_OK || walk.source->bytes >= walk.least_bytes; /* not 0: stop */
}

static enum wr_source_error repeat_pieces(struct wr_source *s, uint64_t least_bytes)
{
    enum wr_source_error e = WR_SOURCE_OK;
    for (size_t i = 0; s->bytes < least_bytes && e == WR_SOURCE_OK; i++)
        e = add_piece(s, s->pieces[i].path, s->pieces[i].bytes);
    return e;
}

static enum wr_source_error open_libraries(struct wr_source *s, uint64_t least_bytes)
{
    static const char *const roots[] = {"/usr/lib", "/usr/local/lib", "/lib64", "/opt"};
    walk = (struct walk){s, least_bytes, WR_SOURCE_OK};
    for (size_t i = 0; i < sizeof roots / sizeof *roots && s->bytes < least_bytes; i++)
        nftw(roots[i], add_library, 16, FTW_PHYS);
    if (walk.error != WR_SOURCE_OK) return walk.error;
    if (s->n == 0) return fail(s, WR_SOURCE_MISSING, "no shared library on this machine: name a file");
    s->n_files = s->n;
    uint64_t found = s->bytes;
    enum wr_source_error e = repeat_pieces(s, least_bytes);
    snprintf(s->label, sizeof s->label, "%zu installed shared libraries%s", s->n_files,
        s->bytes > found ? ", repeated" : "");
    return e;
}

enum wr_source_error wr_source_open(struct wr_source *s, const char *path, uint64_t least_bytes)
{
    *s = (struct wr_source){0};
    enum wr_source_error e = path ? open_file(s, path) : open_libraries(s, least_bytes);
    if (e != WR_SOURCE_OK) wr_source_close(s);
    return e;
}

void wr_source_close(struct wr_source *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->pieces[i].path);
    free(s->pieces);
    s->pieces = NULL;
    s->n = s->capacity = s->n_files = 0;
    s->bytes = 0;
}

/* ---- reading ----------------------------------------------------------------------------------------- */

static enum wr_source_error read_open(
    struct wr_source *s, const struct wr_source_piece *p, int fd, uint64_t at, char *to, size_t bytes)
{
    while (bytes > 0) {
        ssize_t got = pread(fd, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(s, p->path);
        if (got == 0)
            return fail(s, WR_SOURCE_SHRANK, "%s: nothing left at byte %llu of the %llu that it had", p->path,
                (unsigned long long)at, (unsigned long long)p->bytes);
        to += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return WR_SOURCE_OK;
}

static enum wr_source_error read_piece(
    struct wr_source *s, const struct wr_source_piece *p, uint64_t at, char *to, size_t bytes)
{
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_errno(s, p->path);
    enum wr_source_error e = read_open(s, p, fd, at, to, bytes);
    close(fd);
    return e;
}

static size_t find_piece(const struct wr_source *s, uint64_t at)
{
    size_t low = 0, high = s->n; /* the piece is in [low, high) */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->pieces[middle].start <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum wr_source_error wr_source_read(struct wr_source *s, uint64_t at, void *to, size_t bytes)
{
    assert(at <= s->bytes && bytes <= s->bytes - at);
    char *next = to;
    for (size_t i = bytes ? find_piece(s, at) : 0; bytes > 0; i++) {
        const struct wr_source_piece *p = &s->pieces[i];
        uint64_t skip = at - p->start;
        size_t n = p->bytes - skip < bytes ? (size_t)(p->bytes - skip) : bytes;
        enum wr_source_error e = read_piece(s, p, skip, next, n);
        if (e != WR_SOURCE_OK) return e;
        next += n;
        at += n;
        bytes -= n;
    }
    return WR_SOURCE_OK;
}
