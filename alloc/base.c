/* SPDX-License-Identifier: Apache-2.0
 *
 * Base: error texts, ranked locks, the switch of planted faults.
 */
#include "base.h"

#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ERROR_TEXT_BYTES = 512 };

static _Thread_local char error_text[ERROR_TEXT_BYTES];

weir_status wr_fail(weir_status s, const char *format, ...)
{
    assert(s != WEIR_OK);
    va_list args;
    va_start(args, format);
    /* Into a buffer of its own first: the arguments may include weir_error_text() itself. */
    char text[ERROR_TEXT_BYTES];
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(error_text, sizeof error_text, "%s", n < 0 ? weir_status_text(s) : text);
    return s;
}

const char *weir_error_text(void)
{
    return error_text;
}

const char *weir_status_name(weir_status s)
{
    static const char *const names[] = {
#define STATUS_NAME(name, text) [WEIR_##name] = "WEIR_" #name,
        WEIR_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    };
    return (unsigned)s < WEIR_STATUS_COUNT ? names[s] : "unknown";
}

const char *weir_status_text(weir_status s)
{
    static const char *const texts[] = {
#define STATUS_TEXT(name, text) [WEIR_##name] = text,
        WEIR_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    };
    return (unsigned)s < WEIR_STATUS_COUNT ? texts[s] : "unknown";
}

#define TEXT_OF_VALUE(x) #x
#define TEXT_OF(x)       TEXT_OF_VALUE(x)

const char *weir_version(void)
{
    return TEXT_OF(WEIR_VERSION_MAJOR) "." TEXT_OF(WEIR_VERSION_MINOR) "." TEXT_OF(WEIR_VERSION_PATCH);
}

void *wr_array_new(size_t bytes)
{
    const size_t huge_page = (size_t)2 << 20;
    bool large = bytes >= 2 * huge_page;
    size_t align = large ? huge_page : WR_CACHE_LINE;
    size_t whole = wr_round_up(bytes, align);
    void *array = aligned_alloc(align, whole);
    if (array != NULL && large) madvise(array, whole, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
    return array;
}

void wr_lock_init(struct wr_lock *l, enum wr_rank rank)
{
    assert(rank > WR_RANK_NONE && rank <= WR_RANK_REGISTRY);
    int error = pthread_mutex_init(&l->mutex, NULL);
    assert(error == 0); /* default attributes: nothing to run out of */
    (void)error;
    l->rank = rank;
}

void wr_lock_fini(struct wr_lock *l)
{
    int error = pthread_mutex_destroy(&l->mutex);
    assert(error == 0); /* EBUSY: someone holds it */
    (void)error;
}

/* SLOW: spins first, with pauses that double: waiters that look at the word all the time take it away from its
 * holder (8 threads on one latch of an H200's host: 5.6 us a pair of alloc and free without, 1.8 with). Then it
 * sleeps: a sleeper sets the state to 2, and whoever sees a 2 as it gives wakes one (after Drepper, "Futexes are
 * tricky", mutex 2). Giving looks and then stores, which costs half of an exchange; a 2 that comes in between is
 * overwritten, and its sleeper's nap ends by the clock. Why nobody else sleeps longer: a sleeper left a 2
 * behind, and only giving takes it away. Who takes the latch meanwhile by compare-exchange found a 0, so somebody
 * gave the 2 and wakes; who is woken puts the 2 back, for those that sleep on. PAIRS: every way in acquires what
 * giving released. Checked by tests/test_model_latch.c. */
void wr_latch_take_slow(struct wr_latch *l)
{
    enum { LONGEST_PAUSE = 512, PAUSES = 8192, NAP_NS = 200000 };
    int pause = 4;
    for (int paused = 0; paused < PAUSES; paused += pause) {
        uint32_t free_state = 0;
        if (atomic_load_explicit(&l->state, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_weak_explicit(
                &l->state, &free_state, 1, memory_order_acquire, memory_order_relaxed))
            return;
        for (int i = 0; i < pause; i++)
            wr_pause();
        if (pause < LONGEST_PAUSE) pause *= 2;
    }
    const struct timespec nap = {.tv_nsec = NAP_NS};
    while (atomic_exchange_explicit(&l->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &l->state, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
}

void wr_latch_wake_slow(struct wr_latch *l)
{
    atomic_store_explicit(&l->state, 0, memory_order_release);
    syscall(SYS_futex, &l->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#ifndef NDEBUG
/* Bit r: the calling thread holds a lock of rank r. One each is the most that rising order allows. */
static _Thread_local unsigned ranks_held;

void wr_locks_note_taken(enum wr_rank r)
{
    assert(r > WR_RANK_NONE && r <= WR_RANK_REGISTRY);
    assert(ranks_held >> r == 0 && "locks are taken in rising rank");
    ranks_held |= 1u << r;
}

void wr_locks_note_given(enum wr_rank r)
{
    assert((ranks_held >> r & 1u) && "the lock given is one that this thread took");
    ranks_held &= ~(1u << r);
}

void wr_locks_assert_none(void)
{
    assert(ranks_held == 0 && "no lock is held during a driver call");
}
#endif

#ifdef WEIR_FAULTS
int wr_fault_on = -1;
#endif
