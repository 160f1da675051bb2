/* SPDX-License-Identifier: Apache-2.0
 *
 * For a test program that forks. jemalloc holds more locks across a fork than ThreadSanitizer's detector of
 * deadlocks can count: races are looked for.
 */
#ifndef WR_FORKS_H
#define WR_FORKS_H

#if defined(__SANITIZE_THREAD__)
#define WR_UNDER_TSAN 1
#elif defined(__has_feature)
#define WR_UNDER_TSAN __has_feature(thread_sanitizer)
#else
#define WR_UNDER_TSAN 0
#endif

#if WR_UNDER_TSAN
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "detect_deadlocks=0";
}
#endif

#endif
