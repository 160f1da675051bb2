/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses on a real GPU: alignments, peers, segments that move, exports.
 */
#include "gpu_world.h"

#include <unistd.h>

static void test_A02_alignments_hold_on_real_addresses(void **state)
{
    (void)state;
    weir_stream s = new_stream();
    weir_dptr odd, x;
    for (size_t a = 1; a <= 2 * MIB; a *= 2) {
        weir_alloc_options o = {.struct_size = sizeof o, .alignment = a};
        OK(weir_alloc(pool, 512, s, &odd));
        OK(weir_alloc_with(pool, 3 * a, s, &o, &x));
        assert_int_equal(x % a, 0);
        assert_int_equal(x % 512, 0);
        OK(weir_free(pool, x, s));
        OK(weir_free(pool, odd, s));
    }
    end_stream(s);
}

static void test_A17_a_peer_reads_and_writes_what_was_mapped_before_and_after(void **state)
{
    (void)state;
    struct wr_device *peer;
    weir_stream a = new_stream(), b;
    weir_dptr x, y;
    if (wr_device_get("cuda", 1, &peer) != WEIR_OK) skip();
    OK(peer->ops->stream_create(peer, &b));
    OK(weir_alloc(pool, 64 * MIB, a, &x));
    OK(weir_pool_peer_enable(pool, 1));
    OK(weir_alloc(pool, 1024 * MIB, a, &y));
    OK(wr_kernels_fill(peer, b, x + 64 * MIB - 4, 4, 1));
    OK(wr_kernels_fill(peer, b, y + 1024 * MIB - 4, 4, 2));
    OK(peer->ops->stream_sync(peer, b));
    OK(weir_free(pool, x, a));
    OK(weir_free(pool, y, a));
    OK(weir_stream_retire(pool, b));
    OK(peer->ops->stream_destroy(peer, b));
    end_stream(a);
}

/* Eight blocks, every other one freed: their pages are moved side by side while a kernel of 200 ms runs on
 * another stream and writes one of those that stay. */
static void test_segments_move_under_a_running_kernel_without_waiting(void **state)
{
    (void)state;
    weir_stream a = new_stream(), b = new_stream();
    weir_dptr blocks[8], x;
    for (int i = 0; i < 8; i++)
        OK(weir_alloc(pool, 64 * MIB, a, &blocks[i]));
    for (int i = 0; i < 8; i += 2)
        OK(weir_free(pool, blocks[i], a));
    OK(weir_trim(pool, 2048 * MIB, NULL)); /* gives nothing back, but records an event on the stream */
    OK(device->ops->stream_sync(device, a));
    uint64_t before = device->ops->now_ns(device);
    OK(wr_kernels_spin(device, b, SPIN_NS));
    OK(wr_kernels_fill(device, b, blocks[1], 64 * MIB, 7));
    OK(weir_touch(pool, blocks[1], b, 0));
    weir_stats old = {.struct_size = sizeof old}, now = old;
    OK(weir_pool_stats(pool, &old));
    OK(weir_alloc(pool, 256 * MIB, a, &x));
    OK(weir_pool_stats(pool, &now));
    assert_true(device->ops->now_ns(device) - before < SOON_NS);
    assert_int_equal(now.reserved_bytes, old.reserved_bytes);
    OK(wr_kernels_fill(device, a, x, 256 * MIB, 8));
    OK(device->ops->stream_sync(device, a));
    OK(device->ops->stream_sync(device, b));
    OK(weir_free(pool, x, a));
    for (int i = 1; i < 8; i += 2)
        OK(weir_free(pool, blocks[i], a));
    end_stream(a);
    end_stream(b);
}

/* The importing side, in this process: the segments of a block mapped one behind the other a second time. */
static void test_I05_an_exported_block_is_at_base_and_offset(void **state)
{
    (void)state;
    enum { BYTES = 96 << 20, MOST = 32 };
    static unsigned char seen[512];
    struct wr_device *d = device;
    weir_stream a = new_stream();
    weir_dptr odd, x;
    uint64_t base, mapped = 0, first = 0;
    wr_memory imported[MOST];
    size_t sizes[MOST];
    int n = 0;
    OK(weir_alloc(pool, 3 * MIB + 512, a, &odd));
    OK(weir_alloc(pool, BYTES, a, &x));
    OK(wr_kernels_fill(d, a, x, BYTES, 0x01010101));
    OK(d->ops->va_reserve(d, 2048 * MIB, &base));
    for (size_t from = 0; from < BYTES; n++) {
        weir_exported part = {.struct_size = sizeof part};
        CUmemGenericAllocationHandle handle;
        weir_status s = weir_export(pool, x, from, &part);
        if (s == WEIR_DRIVER_ERROR && from == 0) break; /* a container may refuse it */
        OK(s);
        assert_true(n < MOST);
        assert_int_equal(
            cu.import(&handle, (void *)(uintptr_t)part.fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
        assert_int_equal(close(part.fd), 0);
        imported[n] = handle;
        sizes[n] = part.segment_bytes;
        OK(d->ops->mem_map(d, base + mapped, sizes[n], handle));
        if (from == 0) first = part.offset;
        mapped += sizes[n];
        from += part.bytes;
    }
    if (n > 0) {
        OK(d->ops->mem_access(d, base, mapped));
        uint64_t last = base + first + BYTES - sizeof seen;
        OK(d->ops->copy(d, WR_COPY_D2H, (uintptr_t)seen, last, sizeof seen, a));
        OK(d->ops->stream_sync(d, a));
        for (size_t i = 0; i < sizeof seen; i++)
            assert_int_equal(seen[i], 1);
        OK(d->ops->mem_unmap(d, base, mapped));
    }
    for (int i = 0; i < n; i++)
        OK(d->ops->mem_release(d, imported[i]));
    OK(d->ops->va_free(d, base, 2048 * MIB));
    OK(weir_free(pool, x, a));
    OK(weir_free(pool, odd, a));
    end_stream(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_A02_alignments_hold_on_real_addresses),
        TEST(test_A17_a_peer_reads_and_writes_what_was_mapped_before_and_after),
        TEST(test_segments_move_under_a_running_kernel_without_waiting),
        TEST(test_I05_an_exported_block_is_at_base_and_offset),
    };
    if (!find_gpu()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
