/* SPDX-License-Identifier: Apache-2.0
 *
 * Base: what every file may use. Failing with words, sizes, locks with ranks, planted faults.
 */
#ifndef WR_BASE_H
#define WR_BASE_H

#include "weir.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WR_KIB                           ((uint64_t)1 << 10)
#define WR_MIB                           ((uint64_t)1 << 20)
#define WR_GIB                           ((uint64_t)1 << 30)
#define WR_NS_PER_SEC                    ((uint64_t)1000000000)
#define WR_LIKELY(x)                     __builtin_expect(!!(x), 1)
#define WR_UNLIKELY(x)                   __builtin_expect(!!(x), 0)
#define WR_ARRAY_LEN(a)                  (sizeof(a) / sizeof((a)[0]))
#define WR_CONTAINER_OF(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

/* Sets the thread's error text and returns `s`. The first detector of an error words it; callers pass it on.
 */
weir_status wr_fail(weir_status s, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* Multiples of `unit`, a power of two. The caller has checked against a limit: no overflow is possible. */
static inline uint64_t wr_round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}
static inline uint64_t wr_round_down(uint64_t n, uint64_t unit)
{
    return n & ~(unit - 1);
}
static inline uint64_t wr_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t wr_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Memory for a large table, at the start of a cache line; on huge pages where it fills some, since random looks
 * into a table of many small pages miss the processor's own table of pages each time. Given back by free(). NULL:
 * no host memory. */
void *wr_array_new(size_t bytes);

/* LOCK: a thread takes locks in rising rank only, and holds none during a driver call; both are asserted in
 * debug builds (the device fillings call wr_locks_assert_none at each entry). */
enum wr_rank {
    WR_RANK_NONE,
    WR_RANK_QUEUE,
    WR_RANK_STREAM,
    WR_RANK_POOL,
    WR_RANK_FENCE,
    WR_RANK_EVENTS,
    WR_RANK_REGISTRY
};

enum { WR_CACHE_LINE = 64 };

/* Between two looks of a thread that spins. */
static inline void wr_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

struct wr_lock {
    pthread_mutex_t mutex;
    enum wr_rank rank;
};

void wr_lock_init(struct wr_lock *l, enum wr_rank rank);
void wr_lock_fini(struct wr_lock *l);

/* The hot path's lock: one word, one atomic operation where nobody waits (on an H200's host 8 ns, a mutex 24). For
 * sections of some hundred nanoseconds: who has to wait spins a little, then sleeps. No condition
 * variables. */
struct wr_latch {
    _Atomic uint32_t state; /* 0: free; 1: held; 2: held, and somebody may sleep */
    enum wr_rank rank;
};

void wr_latch_take_slow(struct wr_latch *l);
void wr_latch_wake_slow(struct wr_latch *l);

#ifdef NDEBUG
static inline void wr_locks_note_taken(enum wr_rank r)
{
    (void)r;
}
static inline void wr_locks_note_given(enum wr_rank r)
{
    (void)r;
}
static inline void wr_locks_assert_none(void) {}
#else
void wr_locks_note_taken(enum wr_rank r); /* asserts r > every rank held */
void wr_locks_note_given(enum wr_rank r);
void wr_locks_assert_none(void);
#endif

static inline void wr_lock_take(struct wr_lock *l)
{
    wr_locks_note_taken(l->rank);
    pthread_mutex_lock(&l->mutex);
}

/* A try can't deadlock, so it may break the order of ranks between equals (two streams' locks). */
static inline bool wr_lock_try(struct wr_lock *l)
{
    return pthread_mutex_trylock(&l->mutex) == 0;
}

static inline void wr_lock_give_tried(struct wr_lock *l)
{
    pthread_mutex_unlock(&l->mutex);
}

static inline void wr_lock_give(struct wr_lock *l)
{
    pthread_mutex_unlock(&l->mutex);
    wr_locks_note_given(l->rank);
}

static inline void wr_latch_init(struct wr_latch *l, enum wr_rank rank)
{
    *l = (struct wr_latch){.rank = rank};
}

static inline void wr_latch_take(struct wr_latch *l)
{
    wr_locks_note_taken(l->rank);
    uint32_t free_state = 0;
    if (WR_UNLIKELY(!atomic_compare_exchange_strong_explicit(
            &l->state, &free_state, 1, memory_order_acquire, memory_order_relaxed)))
        wr_latch_take_slow(l);
}

static inline void wr_latch_give(struct wr_latch *l)
{
    wr_locks_note_given(l->rank);
    if (WR_UNLIKELY(atomic_load_explicit(&l->state, memory_order_relaxed) == 2))
        wr_latch_wake_slow(l);
    else
        atomic_store_explicit(&l->state, 0, memory_order_release);
}

/* Planted faults: each is a rule of the design that a test build can switch off, to see that the oracle
 * notices. In the library itself WR_FAULT() is the constant 0. */
#define WR_FAULT_MAP(X)                                                                                      \
    X(TICK_BEFORE_FREE, "a tick recorded before the free counts as covering it")                             \
    X(UNRECORDED_IS_DONE, "a fence whose event is not recorded yet counts as passed")                        \
    X(POLL_SKIPS_QUERY, "a tick counts as passed without asking the driver")                                 \
    X(TOUCH_FORGOTTEN, "touch declares nothing")                                                             \
    X(TOUCH_KEEPS_FIRST, "a second touch by the same stream does not move its fence")                        \
    X(FREE_FORGETS_STREAM, "a free on another stream does not wait for that stream")                         \
    X(REAP_ONE_USE, "a pending block leaves when the first of its users has passed")                         \
    X(MERGE_KEEPS_OLD_FENCE, "a merged block keeps the older fence of its parts")                            \
    X(STEAL_UNPASSED, "another stream takes a heap's free block before its fence has passed")                \
    X(GIVE_BACK_UNPASSED, "pages go to the pool before their fence has passed")                              \
    X(TRIM_UNPASSED, "trim unmaps memory that its last stream has not passed")                               \
    X(SPLIT_DROPS_STAMP, "what a split leaves over forgets its fence")                                       \
    X(FLUSH_DROPS_STAMP, "a block that leaves the front cache forgets its fence")                            \
    X(EXCHANGE_DROPS_STAMP, "pages that move between a stream's ranges forget their fence")                  \
    X(SETTLE_DROPS_STAMP, "a block whose other users have passed forgets its home's fence")                  \
    X(TOUCH_STAMPS_EARLY, "a use is declared with the tick before its own")                                  \
    X(FAILED_TICK_COUNTS, "a tick whose record failed is taken for recorded")                                \
    X(WAIT_TAKES_OLDER_TICK, "a stream that is to wait for a tick waits for an older one")                   \
    X(HEAP_ENDS_UNPASSED, "a retired stream's heap ends before its last fence has passed")                   \
    X(HOST_FREE_STAMPS_EARLY, "pinned memory is freed with the tick before the free's")                      \
    X(PINNED_REAPED_UNPASSED, "pending pinned memory leaves before its fence has passed")                    \
    X(HANDLE_IS_IDENTITY, "streams are known by handle, not by id")                                          \
    X(RETIRE_SKIPS_TICK, "retire drops the stream's fence")                                                  \
    X(OWNER_FORGOTTEN, "an OWNER block serves others when its home stream alone has passed")                 \
    X(OWNER_KEEPS_STAMPS, "a heap that becomes an OWNER's keeps its stream's numbers")                       \
    X(DEVICE_WAIT_FORGOTTEN, "a device wait takes a donor's pages and queues no wait")                       \
    X(WAIT_DROPS_ALL_USES, "a wait for one user of a block counts for all its users")                        \
    X(WAIT_KEEPS_STAMP, "a block had by a device wait counts as passed before the wait has")                 \
    X(HOST_FREE_SKIPS_FENCE, "pinned memory is reused before its copy has read it")                          \
    X(QUEUE_ACQUIRE_SKIPS_WAIT, "the consumer's stream does not wait for the copy")                          \
    X(QUEUE_COMMIT_SKIPS_WAIT, "a copy into a used slot does not wait for its last readers")                 \
    X(QUEUE_REUSES_PINNED, "a pinned slot is refilled before its copy was seen done")                        \
    X(QUEUE_RELEASE_FORGETS, "release remembers only the first of its streams")                              \
    X(QUEUE_RELEASE_FORGETS_OWN, "release without streams, or leave, forgets the acquiring one")             \
    X(QUEUE_CANCEL_TAKES_STAGING, "a cancelled item's staging serves others while its producer writes")      \
    X(QUEUE_BROADCAST_KEEPS_FIRST, "of several readers of an item only the first is waited for")             \
    X(QUEUE_SKIPS_AFTER, "a queue's copy does not wait for the streams that its push names")                 \
    X(QUEUE_BORROWED_SKIPS_WAIT, "a stream that is to overwrite lent spans does not wait for the copies")    \
    X(QUEUE_HOP_SKIPS_WAIT, "a staged copy between devices goes on before its first half has passed")        \
    X(RING_WRITES_UNDER_READER, "a row is written while a gather may still read it")                         \
    X(RING_GATHERS_EARLY, "a gather does not wait for the rows written before it")                           \
    X(SEAT_SKIPS_READERS, "an item takes a seat while a launch may still read the one before")               \
    X(SEAT_SKIPS_READY, "a step reads a seat without waiting for the item")                                  \
    X(SEAT_SKIPS_MARK, "a copy that is to begin at a marked place does not wait for it")                     \
    X(COPY_SKIPS_AFTER, "a copy does not wait for the streams that it names")                                \
    X(COPY_JOIN_SKIPS_WAIT, "a stream joined to a copy does not wait for it")                                \
    X(COPY_REUSES_SLAB, "a slab is filled again before its copies were seen done")                           \
    X(COPY_LANDS_EARLY, "bytes are taken out of a slab before they have arrived")                            \
    X(COPY_QUEUES_BEHIND_BLOCKED, "a copy takes a lane on which another waits for compute")                  \
    X(COPY_TRUSTS_PEERS, "a link is direct because the driver says so")                                      \
    X(CAPTURE_UNHEEDED, "calls that a capture forbids are made while a stream captures")                     \
    X(CAPTURE_MEMORY_REUSED, "memory of a graph serves others before the graph is released")                 \
    X(EDGE_EXIT_IGNORED, "driver calls go on once the process exits")                                        \
    X(EDGE_FORK_IGNORED, "a forked child uses what its parent opened")                                       \
    X(EDGE_LOST_IGNORED, "driver calls go on after the device is lost")                                      \
    X(EDGE_THREAD_IGNORED, "a thread's end leaves its default stream's fence to the next thread")

#ifdef WEIR_FAULTS
enum wr_fault {
#define WR_FAULT_ENUM(name, text) WR_FAULT_##name,
    WR_FAULT_MAP(WR_FAULT_ENUM)
#undef WR_FAULT_ENUM
        WR_FAULT_COUNT
};
extern int wr_fault_on; /* one of enum wr_fault, -1: none */
#define WR_FAULT(name) WR_UNLIKELY(wr_fault_on == WR_FAULT_##name)
#else
#define WR_FAULT(name) 0
#endif

#endif
