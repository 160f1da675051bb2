/* SPDX-License-Identifier: Apache-2.0
 *
 * Which arrays are plain: whole bytes, no tiles, no padding; and which strides make rows.
 */
#include "hook.h"

#include <string.h>

enum { ROW_BYTES_LEAST = 64 }; /* shorter rows are faster gathered by the plug-in's own threads */

size_t wr_pjrt_type_bytes(int type)
{
    static const unsigned char bytes[] = PJRT_TYPE_BYTES;
    return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 0;
}

static enum wr_pjrt_reason count_bytes(struct wr_pjrt_array *a)
{
    size_t bytes = wr_pjrt_type_bytes(a->type);
    if (bytes == 0) return WR_PJRT_TYPE;
    if (a->n_dims > WR_PJRT_RANK_MOST) return WR_PJRT_LAYOUT;
    for (size_t i = 0; i < a->n_dims; i++)
        if (a->dims[i] < 0 || __builtin_mul_overflow(bytes, (size_t)a->dims[i], &bytes))
            return WR_PJRT_LAYOUT;
    a->bytes = bytes;
    return bytes == 0 ? WR_PJRT_EMPTY : WR_PJRT_SERVED;
}

enum wr_pjrt_reason wr_pjrt_describe(struct wr_pjrt_array *a, int type, const int64_t *dims, size_t n_dims)
{
    *a = (struct wr_pjrt_array){.type = type, .dims = dims, .n_dims = n_dims};
    enum wr_pjrt_reason why = count_bytes(a);
    if (why != WR_PJRT_SERVED) return why;
    for (size_t i = 0; i < n_dims; i++)
        a->minor_to_major[i] = (int64_t)(n_dims - 1 - i);
    return WR_PJRT_SERVED;
}

bool wr_pjrt_layout_matches(const struct wr_pjrt_array *a, const struct pjrt_layout *l)
{
    if (!l) return true;
    if (l->kind == PJRT_LAYOUT_TILED)
        return l->as.tiled.n_tiles == 0 && l->as.tiled.n_minor_to_major == a->n_dims &&
               (a->n_dims == 0 ||
                   memcmp(l->as.tiled.minor_to_major, a->minor_to_major, a->n_dims * sizeof(int64_t)) == 0);
    if (l->kind != PJRT_LAYOUT_STRIDES || l->as.strides.n_strides != a->n_dims) return false;
    int64_t stride = (int64_t)wr_pjrt_type_bytes(a->type);
    for (size_t i = 0; i < a->n_dims; i++) {
        int64_t d = a->minor_to_major[i];
        if (a->dims[d] != 1 && l->as.strides.strides[d] != stride) return false;
        stride *= a->dims[d];
    }
    return true;
}

/* The plug-in's size says whether there is more to the buffer than its elements. */
static bool has_size(struct pjrt_buffer *b, size_t bytes)
{
    struct pjrt_get_number args = {.struct_size = sizeof args, .subject = b};
    return wr_pjrt_call(PJRT_BUFFER_ON_DEVICE_SIZE, &args) && args.value.bytes == bytes;
}

enum wr_pjrt_reason wr_pjrt_describe_buffer(struct wr_pjrt_array *a, struct pjrt_buffer *b)
{
    struct pjrt_get_number type = {.struct_size = sizeof type, .subject = b};
    struct pjrt_get_dimensions dims = {.struct_size = sizeof dims, .buffer = b};
    struct pjrt_get_layout layout = {.struct_size = sizeof layout, .buffer = b};
    if (!wr_pjrt_call(PJRT_BUFFER_ELEMENT_TYPE, &type) || !wr_pjrt_call(PJRT_BUFFER_DIMENSIONS, &dims) ||
        !wr_pjrt_call(PJRT_BUFFER_GET_MEMORY_LAYOUT, &layout))
        return WR_PJRT_REFUSED;
    *a = (struct wr_pjrt_array){.type = type.value.number, .dims = dims.dims, .n_dims = dims.n_dims};
    enum wr_pjrt_reason why = count_bytes(a);
    if (why != WR_PJRT_SERVED) return why;
    const struct pjrt_layout *l = &layout.layout;
    if (l->kind != PJRT_LAYOUT_TILED || l->as.tiled.n_tiles > 0 || l->as.tiled.n_minor_to_major != a->n_dims)
        return WR_PJRT_LAYOUT;
    if (a->n_dims > 0) memcpy(a->minor_to_major, l->as.tiled.minor_to_major, a->n_dims * sizeof(int64_t));
    return has_size(b, a->bytes) ? WR_PJRT_SERVED : WR_PJRT_LAYOUT;
}

/* From the last dimension on: as many as lie close are a row; the others must be one step, repeated. */
enum wr_pjrt_reason wr_pjrt_find_rows(
    const struct wr_pjrt_array *a, const int64_t *strides, size_t n_strides, weir_piece *p)
{
    *p = (weir_piece){.bytes = a->bytes};
    if (n_strides == 0) return WR_PJRT_SERVED;
    if (n_strides != a->n_dims) return WR_PJRT_STRIDES;
    int64_t row = (int64_t)wr_pjrt_type_bytes(a->type), rows = 1, pitch = 0;
    for (size_t i = a->n_dims; i-- > 0;) {
        if (a->dims[i] == 1) continue;
        if (rows == 1 && strides[i] == row)
            row *= a->dims[i];
        else if (rows == 1)
            pitch = strides[i], rows = a->dims[i];
        else if (strides[i] / rows == pitch && strides[i] % rows == 0)
            rows *= a->dims[i];
        else
            return WR_PJRT_STRIDES;
    }
    if (rows == 1) return WR_PJRT_SERVED;
    if (pitch < row || row < ROW_BYTES_LEAST) return WR_PJRT_STRIDES;
    *p = (weir_piece){
        .bytes = (size_t)row, .rows = (size_t)rows, .to_pitch = (size_t)row, .from_pitch = (size_t)pitch};
    return WR_PJRT_SERVED;
}
