/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests of the engine's tests: each rule that can be switched off is, in a run that is right with all rules on, and
 * what goes wrong must be noticed: by the oracle, by bytes, or by a copy that does not come.
 */
#include "copy_world.h"

#define MS ((uint64_t)1000000)

enum { BYTES = 1 << 20, STAGED = 8 << 20 };

/* One item through one block, again and again: written by a copy, read by a kernel, each behind the other. */
static unsigned reuse_block(void)
{
    struct copy_world c;
    open_copies(&c);
    uint32_t *from = pinned_pattern(&c, BYTES, 0);
    write_words(from, BYTES, 77);
    weir_dptr block = device_block(&c, BYTES);
    for (int i = 0; i < 5; i++) {
        weir_copy_options o = after(&c.w.stream[0]);
        weir_ticket t = copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), BYTES), &o);
        OK(weir_copy_join(c.engine, t, c.w.stream[0]));
        OK(wr_kernels_spin(c.w.device, c.w.stream[0], MS));
        OK(wr_kernels_verify(c.w.device, c.w.stream[0], block, BYTES, 77, c.w.counter[0]));
    }
    wr_fault_on = -1;
    wr_sim_drain(c.w.sim);
    unsigned wrong = wr_sim_reports(c.w.sim);
    wr_sim_reports_clear(c.w.sim);
    OK(c.w.device->ops->fill(
        c.w.device, c.w.counter[0], 0, sizeof(uint64_t), c.w.stream[0])); /* read too early */
    OK(weir_free(c.w.pool, block, c.w.stream[0]));
    close_copies(&c);
    return wrong;
}

/* Pageable memory through fewer slabs than it needs. */
static unsigned stage(void)
{
    struct copy_world c;
    struct wr_sim_options sim = world_options();
    weir_engine_options o = {
        .struct_size = sizeof o, .chunk_bytes = STAGED / 8 + 4096, .staging_bytes = STAGED};
    open_copies_with(&c, &sim, &o); /* no multiple of the pattern's period */
    unsigned char *from = pageable_pattern(STAGED, 1), *back = pageable_pattern(STAGED, 2),
                  *seen = malloc(STAGED);
    assert_non_null(seen);
    weir_dptr block = device_block(&c, STAGED);
    OK(weir_copy_wait(
        c.engine, copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), STAGED), NULL), -1));
    wr_sim_drain(c.w.sim);
    wr_sim_peek(c.w.sim, block, seen, STAGED);
    unsigned wrong = memcmp(seen, from, STAGED) != 0;
    weir_ticket down = copy_one(&c, WEIR_TO_HOST, piece(host_address(back), block, STAGED), NULL);
    OK(weir_copy_wait(c.engine, down, -1));
    wrong += memcmp(back, seen, STAGED) != 0;
    wr_fault_on = -1;
    OK(weir_free(c.w.pool, block, c.home));
    free(from);
    free(back);
    free(seen);
    close_copies(&c);
    return wrong;
}

static unsigned pass_by_blocked(void)
{
    struct copy_world c;
    struct wr_sim_gate *gate;
    open_copies(&c);
    void *from = pinned_pattern(&c, BYTES, 3);
    weir_dptr block = device_block(&c, BYTES);
    OK(wr_sim_stall(c.w.device, c.w.stream[0], &gate));
    weir_copy_options o = after(&c.w.stream[0]);
    copy_one(&c, WEIR_TO_DEVICE, piece(block, host_address(from), 1000), &o);
    weir_ticket next =
        copy_one(&c, WEIR_TO_DEVICE, piece(block + 1000, host_address(from) + 1000, 1000), NULL);
    unsigned wrong = weir_copy_wait(c.engine, next, 100 * (int64_t)MS) != WEIR_OK;
    wr_fault_on = -1;
    wr_sim_gate_open(gate);
    wr_sim_drain(c.w.sim);
    OK(weir_free(c.w.pool, block, c.w.stream[0]));
    close_copies(&c);
    return wrong;
}

static unsigned link_garbling_peers(void)
{
    struct copy_world c;
    weir_pool *peer;
    struct wr_sim_options sim = {.profile = wr_sim_profile_find("gtx1080-pcie3x2"), .peers_garble = true};
    weir_pool_options defaults = {.struct_size = sizeof defaults};
    open_copies_with(&c, &sim, NULL);
    OK(wr_pool_open(wr_sim_device(c.w.sim, 1), &defaults, &peer));
    OK(weir_engine_link(c.engine, peer));
    unsigned wrong = engine_stats(&c).links_staged != 1;
    wr_fault_on = -1;
    wr_sim_drain(c.w.sim);
    weir_status s = weir_pool_close(peer);
    for (int i = 0; i < 5 && s == WEIR_NOT_YET; i++) {
        wr_sim_drain(c.w.sim);
        s = weir_pool_close(peer);
    }
    OK(s);
    close_copies(&c);
    return wrong;
}

static const struct {
    int fault;
    unsigned (*run)(void);
} cases[] = {
    {WR_FAULT_COPY_SKIPS_AFTER, reuse_block},
    {WR_FAULT_COPY_JOIN_SKIPS_WAIT, reuse_block},
    {WR_FAULT_COPY_REUSES_SLAB, stage},
    {WR_FAULT_COPY_LANDS_EARLY, stage},
    {WR_FAULT_COPY_QUEUES_BEHIND_BLOCKED, pass_by_blocked},
    {WR_FAULT_COPY_TRUSTS_PEERS, link_garbling_peers},
};

static void test_runs_with_all_rules_on_are_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < WR_ARRAY_LEN(cases); i++)
        assert_int_equal(cases[i].run(), 0);
}

static void test_each_rule_that_is_switched_off_is_noticed(void **state)
{
    (void)state;
    for (size_t i = 0; i < WR_ARRAY_LEN(cases); i++) {
        wr_fault_on = cases[i].fault;
        unsigned wrong = cases[i].run();
        wr_fault_on = -1;
        if (wrong == 0) fail_msg("fault %d was not noticed", cases[i].fault);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_with_all_rules_on_are_right),
        cmocka_unit_test(test_each_rule_that_is_switched_off_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
