/* SPDX-License-Identifier: Apache-2.0
 *
 * The plug-in in miniature: errors and events, and the thread that finds out what has passed.
 */
#include "pjrt_mini.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mini mini = {.fail_place = -1};

struct pjrt_error {
    int code;
    char text[80];
};

struct callback {
    struct callback *next;
    void (*call)(struct pjrt_error *error, void *argument);
    void *argument;
};

struct pjrt_event {
    struct pjrt_event *next;
    struct pjrt_device *device;
    wr_event on_device;  /* NULL: set by hand */
    bool ready, dropped; /* dropped: destroyed while pending */
    int code;
    char text[80];
    void *to, *from;
    size_t bytes;
    struct callback *callbacks;
};

struct grave {
    struct grave *next;
    struct pjrt_device *device;
    wr_event last_use;
    void (*on_delete)(void *address, void *argument);
    void *address, *argument;
};

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards all of an event, the lists and mini's counters */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct pjrt_event *pending;
static struct grave *graves;
static unsigned n_busy; /* the poller is in a callback */

/* ---- errors ------------------------------------------------------------------------------------------ */

struct pjrt_error *mini_error(int code, const char *text)
{
    struct pjrt_error *e = calloc(1, sizeof *e);
    e->code = code;
    snprintf(e->text, sizeof e->text, "%s", text);
    pthread_mutex_lock(&lock);
    mini.n_errors++;
    pthread_mutex_unlock(&lock);
    return e;
}

struct pjrt_error *mini_enter(int place)
{
    pthread_mutex_lock(&lock);
    mini.calls[place]++;
    bool fails = mini.fail_place == place && mini.fail_after-- == 0;
    pthread_mutex_unlock(&lock);
    return fails ? mini_error(13, "asked for") : NULL;
}

void mini_fail(int place, int after)
{
    pthread_mutex_lock(&lock);
    mini.fail_place = place;
    mini.fail_after = after;
    pthread_mutex_unlock(&lock);
}

static struct pjrt_error *destroy_error(void *args)
{
    struct pjrt_one *a = args;
    if (!a->subject) return NULL;
    pthread_mutex_lock(&lock);
    mini.n_errors--;
    pthread_mutex_unlock(&lock);
    free(a->subject);
    return NULL;
}

static struct pjrt_error *error_message(void *args)
{
    struct pjrt_get_text *a = args;
    a->text = ((struct pjrt_error *)a->subject)->text;
    a->n = strlen(a->text);
    return NULL;
}

static struct pjrt_error *error_code(void *args)
{
    struct pjrt_get_number *a = args;
    a->value.number = ((struct pjrt_error *)a->subject)->code;
    return NULL;
}

/* ---- events ------------------------------------------------------------------------------------------ */

static bool has_passed(struct pjrt_device *d, wr_event e)
{
    bool done = false;
    return !e || (d->sim->ops->event_query(d->sim, e, &done) == WEIR_OK && done);
}

struct pjrt_event *mini_event(struct pjrt_device *d, wr_event e)
{
    struct pjrt_event *event = calloc(1, sizeof *event);
    event->device = d;
    event->on_device = e;
    event->ready = has_passed(d, e);
    if (event->ready) event->on_device = NULL;
    pthread_mutex_lock(&lock);
    mini.n_events++;
    if (!event->ready) {
        event->next = pending;
        pending = event;
    }
    pthread_mutex_unlock(&lock);
    return event;
}

void mini_land(struct pjrt_event *e, void *to, void *from, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (e->ready) memcpy(to, from, bytes);
    e->to = to;
    e->from = from;
    e->bytes = bytes;
    pthread_mutex_unlock(&lock);
}

static struct pjrt_error *event_error(struct pjrt_event *e)
{
    return e->code ? mini_error(e->code, e->text) : NULL;
}

/* LOCK: held, given up meanwhile. */
static void make_ready(struct pjrt_event *e)
{
    e->ready = true;
    struct callback *c = e->callbacks;
    e->callbacks = NULL;
    n_busy++;
    while (c) {
        struct callback *next = c->next;
        pthread_mutex_unlock(&lock);
        c->call(event_error(e), c->argument); /* may destroy the event */
        pthread_mutex_lock(&lock);
        free(c);
        c = next;
        if (c && e->dropped) break; /* the test has asked for it */
    }
    n_busy--;
    pthread_cond_broadcast(&changed);
}

static struct pjrt_error *event_create(void *args)
{
    struct pjrt_event_create *a = args;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_CREATE);
    if (error) return error;
    a->event = mini_event(NULL, NULL);
    a->event->ready = false;
    return NULL;
}

static struct pjrt_error *event_set(void *args)
{
    struct pjrt_event_set *a = args;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_SET);
    if (error) return error;
    pthread_mutex_lock(&lock);
    a->event->code = a->code;
    if (a->n_message) memcpy(a->event->text, a->message, a->n_message < 79 ? a->n_message : 79);
    make_ready(a->event);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct pjrt_error *event_destroy(void *args)
{
    struct pjrt_one *a = args;
    struct pjrt_event *e = a->subject;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_DESTROY);
    if (error || !e) return error;
    pthread_mutex_lock(&lock);
    mini.n_events--;
    bool polled = e->on_device && !e->ready;
    e->dropped = true;
    while (e->callbacks) {
        struct callback *c = e->callbacks;
        e->callbacks = c->next;
        free(c);
    }
    pthread_mutex_unlock(&lock);
    if (!polled) free(e); /* else by the poller */
    return NULL;
}

static struct pjrt_error *event_is_ready(void *args)
{
    struct pjrt_get_number *a = args;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_IS_READY);
    if (error) return error;
    pthread_mutex_lock(&lock);
    a->value.yes = ((struct pjrt_event *)a->subject)->ready;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct pjrt_error *event_get_error(void *args)
{
    struct pjrt_one *a = args;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_ERROR);
    return error ? error : event_error(a->subject);
}

static struct pjrt_error *event_await(void *args)
{
    struct pjrt_one *a = args;
    struct pjrt_event *e = a->subject;
    pthread_mutex_lock(&lock);
    while (!e->ready)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return event_error(e);
}

static struct pjrt_error *event_on_ready(void *args)
{
    struct pjrt_event_on_ready *a = args;
    struct pjrt_error *error = mini_enter(PJRT_EVENT_ON_READY);
    if (error) return error;
    struct callback *c = calloc(1, sizeof *c);
    *c = (struct callback){NULL, a->callback, a->argument};
    pthread_mutex_lock(&lock);
    bool ready = a->event->ready;
    if (!ready) {
        c->next = a->event->callbacks;
        a->event->callbacks = c;
    }
    pthread_mutex_unlock(&lock);
    if (!ready) return NULL;
    free(c);
    a->callback(event_error(a->event), a->argument);
    return NULL;
}

void mini_put_event_functions(pjrt_function *entries)
{
    entries[PJRT_ERROR_DESTROY] = destroy_error;
    entries[PJRT_ERROR_MESSAGE] = error_message;
    entries[PJRT_ERROR_GET_CODE] = error_code;
    entries[PJRT_EVENT_DESTROY] = event_destroy;
    entries[PJRT_EVENT_IS_READY] = event_is_ready;
    entries[PJRT_EVENT_ERROR] = event_get_error;
    entries[8] = event_await;
    entries[PJRT_EVENT_ON_READY] = event_on_ready;
    entries[PJRT_EVENT_CREATE] = event_create;
    entries[PJRT_EVENT_SET] = event_set;
}

/* ---- the poller -------------------------------------------------------------------------------------- */

void mini_bury(struct pjrt_buffer *b)
{
    struct grave *g = calloc(1, sizeof *g);
    *g = (struct grave){
        NULL, b->memory->device, b->last_use, b->on_delete, (void *)(uintptr_t)b->address, b->argument};
    pthread_mutex_lock(&lock);
    g->next = graves;
    graves = g;
    pthread_mutex_unlock(&lock);
}

/* LOCK: held. One event that has passed, taken out. */
static struct pjrt_event *take_passed(void)
{
    for (struct pjrt_event **at = &pending; *at; at = &(*at)->next) {
        struct pjrt_event *e = *at;
        if (!has_passed(e->device, e->on_device)) continue;
        *at = e->next;
        return e;
    }
    return NULL;
}

static struct grave *take_grave(void)
{
    for (struct grave **at = &graves; *at; at = &(*at)->next) {
        struct grave *g = *at;
        if (!has_passed(g->device, g->last_use)) continue;
        *at = g->next;
        return g;
    }
    return NULL;
}

static void *poll(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct pjrt_event *e;
        while ((e = take_passed())) {
            if (e->bytes) memcpy(e->to, e->from, e->bytes);
            e->on_device = NULL;
            bool dropped = e->dropped;
            if (!dropped) make_ready(e);
            if (dropped) free(e);
        }
        struct grave *g = take_grave();
        n_busy += g != NULL;
        pthread_mutex_unlock(&lock);
        if (g) g->on_delete(g->address, g->argument);
        free(g);
        pthread_mutex_lock(&lock);
        n_busy -= g != NULL;
        pthread_mutex_unlock(&lock);
        if (!g) usleep(50);
    }
    return NULL;
}

/* A child is to find it free. */
static void take_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void give_lock(void)
{
    pthread_mutex_unlock(&lock);
}

void mini_start_poller(void)
{
    static bool started;
    pthread_t thread;
    if (started) return;
    started = true;
    pthread_atfork(take_lock, give_lock, give_lock);
    pthread_create(&thread, NULL, poll, NULL);
    pthread_detach(thread);
}

void mini_settle(void)
{
    for (bool busy = true; busy;) {
        usleep(500);
        pthread_mutex_lock(&lock);
        busy = pending || graves || n_busy;
        pthread_mutex_unlock(&lock);
    }
    if (mini.world) wr_sim_drain(mini.world); /* executions write into the tests' own structs */
}
