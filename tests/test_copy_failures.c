/* SPDX-License-Identifier: Apache-2.0
 *
 * A22 for the transfer engine: the n-th call of the driver fails, for each n of a scenario that uses all of it. Every
 * call returns, with a status that it may return; what was copied without an error is right; and nothing is left after
 * the end.
 */
#include "copy_world.h"

enum { BYTES = 150 << 10, SMALL = 40, SMALL_BYTES = 700 };

struct play {
    struct copy_world c;
    weir_pool *peer;
    weir_status injected;
    weir_dptr block;
    unsigned char *pinned, *pageable;
};

static bool may(const struct play *p, weir_status s)
{
    if (s != WEIR_OK && s != p->injected && s != WEIR_WOULD_BLOCK)
        fail_msg("%s: %s", weir_status_name(s), weir_error_text());
    return s == WEIR_OK;
}

/* The copy, and its end: what can't be waited for now can be later, when no call fails. */
static bool play_copy(
    struct play *p, weir_direction d, const weir_piece *pieces, size_t n, const weir_copy_options *o)
{
    weir_ticket t = {0};
    bool copied = may(p, weir_copy(p->c.engine, d, pieces, n, o, &t));
    if (!may(p, weir_copy_wait(p->c.engine, t, -1))) {
        wr_sim_fail_nth(p->c.w.sim, 0, WEIR_OK);
        OK(weir_copy_wait(p->c.engine, t, -1));
    }
    may(p, weir_copy_join(p->c.engine, t, p->c.w.stream[1]));
    return copied;
}

static void play_up_and_down(
    struct play *p, unsigned char *from, unsigned char *back, const weir_copy_options *o)
{
    make_pattern(from, BYTES, 1);
    make_pattern(back, BYTES, 2);
    weir_piece up = piece(p->block, host_address(from), BYTES),
               down = piece(host_address(back), p->block, BYTES);
    bool arrived = play_copy(p, WEIR_TO_DEVICE, &up, 1, o);
    if (play_copy(p, WEIR_TO_HOST, &down, 1, o) && arrived) assert_pattern(back, BYTES, 1);
}

static void play_small(struct play *p)
{
    weir_piece pieces[SMALL];
    for (size_t i = 0; i < SMALL; i++)
        pieces[i] = piece(p->block + i * 1024, host_address(p->pinned) + i * SMALL_BYTES, SMALL_BYTES);
    play_copy(p, WEIR_TO_DEVICE, pieces, SMALL, NULL);
    play_copy(
        p, WEIR_TO_DEVICE, &(weir_piece){p->block, host_address(p->pageable), 100, 9, 300, 200}, 1, NULL);
}

static void play_all(struct play *p)
{
    weir_engine_options o = small_engine();
    weir_copy_options urgent = after(&p->c.w.stream[0]);
    urgent.flags = WEIR_COPY_URGENT;
    if (!may(p, weir_engine_open(p->c.w.pool, &o, &p->c.engine))) return;
    may(p, weir_engine_link(p->c.engine, p->peer));
    play_up_and_down(p, p->pinned, p->pinned + BYTES, &urgent);
    play_up_and_down(p, p->pageable, p->pageable + BYTES, NULL);
    play_small(p);
    weir_status s = weir_engine_close(p->c.engine);
    if (s != WEIR_OK) {
        wr_sim_fail_nth(p->c.w.sim, 0, WEIR_OK);
        OK(weir_engine_close(p->c.engine));
    }
}

static void open_play(struct play *p, weir_status injected)
{
    struct wr_sim_options sim = {.profile = wr_sim_profile_find("gtx1080-pcie3x2")};
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    *p = (struct play){.injected = injected};
    open_world(&p->c.w, &sim, 0, NULL);
    OK(wr_pool_open(wr_sim_device(p->c.w.sim, 1), &defaults, &p->peer));
    OK(weir_alloc(p->c.w.pool, BYTES, p->c.w.stream[0], &p->block));
    p->pinned = pinned_pattern(&p->c, 2 * BYTES, 0);
    p->pageable = pageable_pattern(2 * BYTES, 0);
}

static void close_play(struct play *p)
{
    wr_sim_drain(p->c.w.sim);
    OK(weir_free(p->c.w.pool, p->block, p->c.w.stream[0]));
    weir_status s = weir_pool_close(p->peer);
    for (int i = 0; i < 10 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(p->c.w.sim);
        s = weir_pool_close(p->peer);
    }
    OK(s);
    assert_no_reports(&p->c.w);
    assert_int_equal(end_world(&p->c.w), 0);
    free(p->pageable);
}

static void fail_each_call(weir_status injected, uint64_t step)
{
    bool came = true;
    uint64_t n = 1;
    for (; came; n += step) {
        struct play p;
        open_play(&p, injected);
        uint64_t calls = wr_sim_calls(p.c.w.sim);
        wr_sim_fail_nth(p.c.w.sim, n, injected);
        play_all(&p);
        came = wr_sim_calls(p.c.w.sim) - calls >= n;
        wr_sim_fail_nth(p.c.w.sim, 0, WEIR_OK);
        close_play(&p);
    }
    assert_true(n > 200);
}

static void test_A22_each_call_of_the_engine_may_fail(void **state)
{
    (void)state;
    fail_each_call(WEIR_DRIVER_ERROR, 1);
    fail_each_call(WEIR_OUT_OF_MEMORY, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_A22_each_call_of_the_engine_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
