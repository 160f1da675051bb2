/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the PJRT C ABI that the hook needs, in declarations of our own. Facts: a table of function pointers,
 * whose entries keep their places for ever (new ones come at the end); every function takes one pointer to a struct
 * that starts with its size and a pointer for extensions, and returns NULL or an error that the caller destroys.
 * Longer structs than the other side knows are accepted where the rest is zero.
 *
 * Where a struct's last fields are of no use here, they are left out: we never make such a struct, we only read
 * the caller's.
 */
#ifndef WR_PJRT_ABI_H
#define WR_PJRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pjrt_error;
struct pjrt_event;
struct pjrt_client;
struct pjrt_device;
struct pjrt_memory;
struct pjrt_buffer;
struct pjrt_executable;

typedef struct pjrt_error *(*pjrt_function)(void *args);

/* What the hook uses of the table: name, place. */
#define PJRT_ENTRIES(X)                                                                                      \
    X(ERROR_DESTROY, 0)                                                                                      \
    X(ERROR_MESSAGE, 1)                                                                                      \
    X(ERROR_GET_CODE, 2)                                                                                     \
    X(EVENT_DESTROY, 5)                                                                                      \
    X(EVENT_IS_READY, 6)                                                                                     \
    X(EVENT_ERROR, 7)                                                                                        \
    X(EVENT_ON_READY, 9)                                                                                     \
    X(CLIENT_CREATE, 10)                                                                                     \
    X(CLIENT_DESTROY, 11)                                                                                    \
    X(CLIENT_PLATFORM_NAME, 12)                                                                              \
    X(CLIENT_ADDRESSABLE_DEVICES, 16)                                                                        \
    X(CLIENT_BUFFER_FROM_HOST_BUFFER, 22)                                                                    \
    X(DEVICE_LOCAL_HARDWARE_ID, 31)                                                                          \
    X(DEVICE_ADDRESSABLE_MEMORIES, 32)                                                                       \
    X(DEVICE_DEFAULT_MEMORY, 33)                                                                             \
    X(DEVICE_MEMORY_STATS, 34)                                                                               \
    X(MEMORY_KIND, 36)                                                                                       \
    X(LOADED_EXECUTABLE_DESTROY, 50)                                                                         \
    X(LOADED_EXECUTABLE_EXECUTE, 55)                                                                         \
    X(BUFFER_DESTROY, 58)                                                                                    \
    X(BUFFER_ELEMENT_TYPE, 59)                                                                               \
    X(BUFFER_DIMENSIONS, 60)                                                                                 \
    X(BUFFER_GET_MEMORY_LAYOUT, 63)                                                                          \
    X(BUFFER_ON_DEVICE_SIZE, 64)                                                                             \
    X(BUFFER_MEMORY, 66)                                                                                     \
    X(BUFFER_IS_DELETED, 68)                                                                                 \
    X(BUFFER_COPY_TO_DEVICE, 69)                                                                             \
    X(BUFFER_TO_HOST_BUFFER, 70)                                                                             \
    X(BUFFER_READY_EVENT, 72)                                                                                \
    X(BUFFER_INCREASE_EXTERNAL_REFERENCE_COUNT, 74)                                                          \
    X(BUFFER_DECREASE_EXTERNAL_REFERENCE_COUNT, 75)                                                          \
    X(BUFFER_OPAQUE_DEVICE_MEMORY_DATA_POINTER, 76)                                                          \
    X(BUFFER_COPY_TO_MEMORY, 92)                                                                             \
    X(CLIENT_CREATE_VIEW_OF_DEVICE_BUFFER, 93)                                                               \
    X(EVENT_CREATE, 126)                                                                                     \
    X(EVENT_SET, 127)

enum {
#define PJRT_ENTRY_ENUM(name, place) PJRT_##name = place,
    PJRT_ENTRIES(PJRT_ENTRY_ENUM)
#undef PJRT_ENTRY_ENUM
        PJRT_ENTRIES_USED
};

struct pjrt_extension {
    size_t struct_size;
    int type;
    struct pjrt_extension *next;
};

enum { PJRT_EXTENSION_STREAM = 3 };

struct pjrt_stream_extension {
    struct pjrt_extension base;
    pjrt_function get_stream;  /* pjrt_get_stream */
    pjrt_function wait_stream; /* pjrt_wait_stream */
};

struct pjrt_version {
    size_t struct_size;
    struct pjrt_extension *extensions;
    int major, minor;
};

struct pjrt_api {
    size_t struct_size;
    struct pjrt_extension *extensions;
    struct pjrt_version version;
    pjrt_function entries[]; /* (struct_size - offset) / 8 of them */
};

/* Element types by number, from 0: their bytes, 0 where there are none or several elements share a byte. */
#define PJRT_TYPE_BYTES                                                                                      \
    {                                                                                                        \
        0,                 /* invalid */                                                                     \
            1, 1, 2, 4, 8, /* bool; signed */                                                                \
            1, 2, 4, 8,    /* unsigned */                                                                    \
            2, 4, 8, 2,    /* float; bfloat16 */                                                             \
            8, 16,         /* complex */                                                                     \
            1, 1, 1, 1, 1, /* float8: e5m2 e4m3fn e4m3b11fnuz e5m2fnuz e4m3fnuz */                           \
            0, 0, 0, 0, 0, /* int4 uint4 token int2 uint2 */                                                 \
            1, 1, 1, 0     /* float8: e4m3 e3m4 e8m0fnu; float4 */                                           \
    }

enum { PJRT_LAYOUT_TILED, PJRT_LAYOUT_STRIDES };

struct pjrt_layout {
    size_t struct_size;
    struct pjrt_extension *extensions;
    union {
        struct {
            size_t struct_size;
            struct pjrt_extension *extensions;
            const int64_t *minor_to_major; /* the dimension whose index varies fastest comes first */
            size_t n_minor_to_major;
            const int64_t *tile_dims;
            const size_t *tile_dim_sizes;
            size_t n_tiles;
        } tiled;
        struct {
            size_t struct_size;
            struct pjrt_extension *extensions;
            const int64_t *strides;
            size_t n_strides;
        } strides;
    } as;
    int kind;
};

enum pjrt_host_semantics {
    PJRT_HOST_ONLY_DURING_CALL,    /* `data` may change and go once the call has returned */
    PJRT_HOST_UNTIL_TRANSFER_DONE, /* ... once done_with_host_buffer is ready */
    PJRT_HOST_ZERO_COPY,           /* the buffer may be `data` itself; on GPUs as the one above */
    PJRT_HOST_MUTABLE_ZERO_COPY
};

#define PJRT_ARGS_HEAD                                                                                       \
    size_t struct_size;                                                                                      \
    struct pjrt_extension *extensions

struct pjrt_from_host {
    PJRT_ARGS_HEAD;
    struct pjrt_client *client;
    const void *data;
    int type;
    const int64_t *dims;
    size_t n_dims;
    const int64_t *strides; /* n_strides 0: dense, last dimension fastest */
    size_t n_strides;
    int semantics;
    struct pjrt_device *device;
    struct pjrt_memory *memory;               /* NULL: the device's default one */
    struct pjrt_layout *layout;               /* NULL: dense, last dimension fastest */
    struct pjrt_event *done_with_host_buffer; /* out, as is: */
    struct pjrt_buffer *buffer;
};

struct pjrt_create_view {
    PJRT_ARGS_HEAD;
    struct pjrt_client *client;
    void *address;
    const int64_t *dims;
    size_t n_dims;
    int type;
    struct pjrt_layout *layout;
    struct pjrt_device *device;
    void (*on_delete)(void *address, void *argument);
    void *on_delete_argument;
    intptr_t stream;
    struct pjrt_buffer *buffer; /* out */
    struct pjrt_memory *memory;
};

struct pjrt_copy_to_device {
    PJRT_ARGS_HEAD;
    struct pjrt_buffer *from;
    struct pjrt_device *device;
    struct pjrt_buffer *to; /* out */
};

struct pjrt_copy_to_memory {
    PJRT_ARGS_HEAD;
    struct pjrt_buffer *from;
    struct pjrt_memory *memory;
    struct pjrt_buffer *to; /* out */
};

struct pjrt_to_host {
    PJRT_ARGS_HEAD;
    struct pjrt_buffer *from;
    struct pjrt_layout *layout; /* NULL: as the buffer has it */
    void *to;                   /* NULL: to_bytes is asked for */
    size_t to_bytes;
    struct pjrt_event *event; /* out */
};

struct pjrt_execute_options {
    PJRT_ARGS_HEAD;
    void *send_callbacks, *receive_callbacks;
    size_t n_send, n_receive;
    int launch;
    const int64_t *not_donated; /* arguments by number */
    size_t n_not_donated;
};

struct pjrt_execute {
    PJRT_ARGS_HEAD;
    struct pjrt_executable *executable;
    struct pjrt_execute_options *options;
    struct pjrt_buffer *const *const *arguments; /* by device */
    size_t n_devices, n_arguments;
};

struct pjrt_figure {
    int64_t bytes;
    bool known;
};

struct pjrt_memory_stats {
    PJRT_ARGS_HEAD;
    struct pjrt_device *device;
    int64_t in_use; /* out, as are the others */
    struct pjrt_figure peak_in_use, allocs, largest_alloc, limit, reserved, peak_reserved, reservable_limit,
        largest_free, pool, peak_pool; /* allocs: a number; pool: held by the allocator, in use or not */
};

/* Callers leave out the padding at its end. */
#define PJRT_MEMORY_STATS_BYTES (offsetof(struct pjrt_memory_stats, peak_pool.known) + sizeof(bool))

/* For the calls that take or give one thing of a buffer, an event, a client, a device, a memory. */
struct pjrt_one {
    PJRT_ARGS_HEAD;
    void *subject;
};

struct pjrt_get {
    PJRT_ARGS_HEAD;
    void *subject;
    void *value; /* out */
};

struct pjrt_get_number {
    PJRT_ARGS_HEAD;
    void *subject;
    union {
        int number;
        bool yes;
        size_t bytes;
    } value; /* out */
};

struct pjrt_get_list {
    PJRT_ARGS_HEAD;
    void *subject;
    void *const *list; /* out, with the lifetime of the subject */
    size_t n;
};

struct pjrt_get_text {
    PJRT_ARGS_HEAD;
    void *subject;
    const char *text; /* out, not 0-terminated */
    size_t n;
};

struct pjrt_get_dimensions {
    PJRT_ARGS_HEAD;
    struct pjrt_buffer *buffer;
    const int64_t *dims; /* out, with the lifetime of the buffer */
    size_t n_dims;
};

struct pjrt_get_layout {
    PJRT_ARGS_HEAD;
    struct pjrt_buffer *buffer;
    struct pjrt_layout layout; /* out */
};

struct pjrt_client_create {
    PJRT_ARGS_HEAD;
    const void *options;
    size_t n_options;
    void *get, *get_argument, *put, *put_argument;
    struct pjrt_client *client; /* out */
};

struct pjrt_event_create {
    PJRT_ARGS_HEAD;
    struct pjrt_event *event; /* out */
};

struct pjrt_event_set {
    PJRT_ARGS_HEAD;
    struct pjrt_event *event;
    int code; /* 0: success */
    const char *message;
    size_t n_message;
};

struct pjrt_event_on_ready {
    PJRT_ARGS_HEAD;
    struct pjrt_event *event;
    void (*callback)(struct pjrt_error *error, void *argument); /* owns the error */
    void *argument;
};

/* The stream extension's have no pointer for extensions. */
struct pjrt_get_stream {
    size_t struct_size;
    struct pjrt_device *device;
    intptr_t stream; /* out */
};

struct pjrt_wait_stream {
    size_t struct_size;
    intptr_t stream;
    struct pjrt_buffer *buffer;
};

#endif
