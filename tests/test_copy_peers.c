/* SPDX-License-Identifier: Apache-2.0
 *
 * weir_copy between devices: with peer access, without it, and where it is promised and does not work.
 */
#include "copy_pair.h"

#define MS ((uint64_t)1000000)

/* There and back again, whole and as rows, by any kind of link. */
static void round_trip(struct pair *p)
{
    struct copy_world *c = &p->c;
    unsigned char *from = pinned_pattern(c, p->bytes, 1), *back = pinned_pattern(c, p->bytes, 2);
    copy_and_wait(c, WEIR_TO_DEVICE, piece(p->own, host_address(from), p->bytes));
    copy_and_wait(c, WEIR_ON_DEVICE, piece(p->other, p->own, p->bytes));
    assert_device_pattern(c, p->other, p->bytes, 1);
    copy_and_wait(c, WEIR_TO_DEVICE, piece(p->own, host_address(back), p->bytes));
    weir_piece rows[] = {{p->own, p->other, 1000, 500, 2000, 2000},
        {p->own + 1000, p->other + 1000, 1000, 500, 2000, 2000},
        piece(p->own + 1000000, p->other + 1000000, p->bytes - 1000000)};
    weir_ticket t;
    OK(weir_copy(c->engine, WEIR_ON_DEVICE, rows, 3, NULL, &t));
    OK(weir_copy_join(c->engine, t, c->w.stream[0])); /* a stream can wait for it, however it travels */
    OK(weir_copy_wait(c->engine, t, -1));
    assert_device_pattern(c, p->own, p->bytes, 1);
}

static void test_linked_devices_copy_to_each_other(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, false, false);
    OK(weir_engine_link(p.c.engine, p.peer));
    OK(weir_engine_link(p.c.engine, p.peer)); /* once is enough */
    round_trip(&p);
    weir_engine_stats s = engine_stats(&p.c);
    assert_int_equal(s.links, 1);
    assert_int_equal(s.links_staged, 0);
    assert_int_equal(s.peer_staged_bytes, 0);
    close_pair(&p);
}

static void test_without_peer_access_copies_are_staged_and_the_stats_say_so(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, true, false);
    OK(weir_engine_link(p.c.engine, p.peer));
    round_trip(&p);
    weir_engine_stats s = engine_stats(&p.c);
    assert_int_equal(s.links_staged, 1);
    assert_int_equal(s.peer_staged_bytes, 2 * p.bytes);
    close_pair(&p);
}

static void test_peers_whose_pattern_arrives_wrong_are_staged(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, false, true);
    OK(weir_engine_link(p.c.engine, p.peer));
    round_trip(&p);
    assert_int_equal(engine_stats(&p.c).links_staged, 1);
    close_pair(&p);
}

static void test_a_busy_destination_does_not_hold_up_a_copy_between_devices(void **state)
{
    (void)state;
    for (int staged = 0; staged <= 1; staged++) {
        struct pair p;
        struct wr_sim_gate *own, *other;
        open_pair(&p, staged, false);
        OK(weir_engine_link(p.c.engine, p.peer));
        OK(wr_sim_stall(p.c.w.device, p.c.w.stream[0], &own));
        OK(wr_sim_stall(wr_sim_device(p.c.w.sim, 1), p.there, &other));
        weir_ticket t = copy_one(&p.c, WEIR_ON_DEVICE, piece(p.other, p.own, p.bytes), NULL);
        OK(weir_copy_wait(p.c.engine, t, 100 * (int64_t)MS));
        wr_sim_gate_open(own);
        wr_sim_gate_open(other);
        close_pair(&p);
    }
}

static void test_mixed_devices_are_typed_errors(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p, false, false);
    void *host = pinned_pattern(&p.c, 1000, 0);
    const weir_piece across = piece(p.other, p.own, 100), far = piece(p.other, host_address(host), 100);
    assert_int_equal(
        weir_copy(p.c.engine, WEIR_ON_DEVICE, &across, 1, NULL, NULL), WEIR_INVALID_ARGUMENT); /* no link */
    assert_int_equal(weir_copy(p.c.engine, WEIR_TO_DEVICE, &far, 1, NULL, NULL), WEIR_INVALID_ARGUMENT);
    OK(weir_engine_link(p.c.engine, p.peer));
    const weir_piece both[] = {across, piece(p.own + 1000, p.other + 1000, 100)};
    const weir_piece there = piece(p.other, p.other + 1000, 100);
    assert_int_equal(weir_copy(p.c.engine, WEIR_ON_DEVICE, both, 2, NULL, NULL), WEIR_INVALID_ARGUMENT);
    assert_int_equal(weir_copy(p.c.engine, WEIR_ON_DEVICE, &there, 1, NULL, NULL), WEIR_INVALID_ARGUMENT);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linked_devices_copy_to_each_other),
        cmocka_unit_test(test_without_peer_access_copies_are_staged_and_the_stats_say_so),
        cmocka_unit_test(test_peers_whose_pattern_arrives_wrong_are_staged),
        cmocka_unit_test(test_a_busy_destination_does_not_hold_up_a_copy_between_devices),
        cmocka_unit_test(test_mixed_devices_are_typed_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
