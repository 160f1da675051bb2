/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in's own functions, with arguments made up and errors destroyed.
 */
#include "hook.h"

void wr_pjrt_drop_error(struct pjrt_error *e)
{
    if (!e) return;
    struct pjrt_one args = {.struct_size = sizeof args, .subject = e};
    (void)wr_pjrt_hook.original[PJRT_ERROR_DESTROY](&args); /* returns nothing */
}

bool wr_pjrt_call(int place, void *args)
{
    struct pjrt_error *e = wr_pjrt_hook.original[place](args);
    wr_pjrt_drop_error(e);
    return !e;
}

bool wr_pjrt_do(int place, void *subject)
{
    struct pjrt_one args = {.struct_size = sizeof args, .subject = subject};
    return wr_pjrt_call(place, &args);
}

void *wr_pjrt_get(int place, void *subject)
{
    struct pjrt_get args = {.struct_size = sizeof args, .subject = subject};
    return wr_pjrt_call(place, &args) ? args.value : NULL;
}

struct pjrt_event *wr_pjrt_ready_event(struct pjrt_buffer *b)
{
    return wr_pjrt_get(PJRT_BUFFER_READY_EVENT, b);
}

enum wr_pjrt_state wr_pjrt_state_of(struct pjrt_buffer *b)
{
    struct pjrt_event *e = wr_pjrt_ready_event(b);
    if (!e) return WR_PJRT_BROKEN;
    struct pjrt_get_number args = {.struct_size = sizeof args, .subject = e};
    enum wr_pjrt_state state = WR_PJRT_PENDING;
    if (!wr_pjrt_call(PJRT_EVENT_IS_READY, &args))
        state = WR_PJRT_BROKEN;
    else if (args.value.yes)
        state = wr_pjrt_do(PJRT_EVENT_ERROR, e) ? WR_PJRT_READY : WR_PJRT_BROKEN;
    wr_pjrt_do(PJRT_EVENT_DESTROY, e);
    return state;
}

bool wr_pjrt_on_ready(
    struct pjrt_event *e, void (*callback)(struct pjrt_error *error, void *argument), void *argument)
{
    struct pjrt_event_on_ready args = {
        .struct_size = sizeof args, .event = e, .callback = callback, .argument = argument};
    return wr_pjrt_call(PJRT_EVENT_ON_READY, &args);
}

struct pjrt_event *wr_pjrt_make_event(void)
{
    struct pjrt_event_create args = {.struct_size = sizeof args};
    return wr_pjrt_call(PJRT_EVENT_CREATE, &args) ? args.event : NULL;
}

bool wr_pjrt_set_event(struct pjrt_event *e, int code, const char *message, size_t n_message)
{
    struct pjrt_event_set args = {
        .struct_size = sizeof args, .event = e, .code = code, .message = message, .n_message = n_message};
    return wr_pjrt_call(PJRT_EVENT_SET, &args);
}
