// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's own allocator interface on weir's memory, built by weir.torch against the PyTorch that is installed. What the
// plain interface loses is here: the counters, empty_cache, snapshots of live blocks, peers, PyTorch's own
// OutOfMemoryError and its observers.
//
// What the blocks in use are is kept by weir_torch_native_alloc. A warm alloc asks PyTorch for the current stream,
// and where several devices are visible for the current one (cudaGetDevice); a free asks nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include "weir_torch.h"

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;

constexpr size_t kUnit = 512;

// Counters are reset from here: what they were then.
struct Base {
    std::atomic<uint64_t> bytes{0}, blocks{0};
    std::atomic<int64_t> reserved{-1}, peak_reserved{0}; // when the peaks were reset; -1: never
};

void release(void *p);

class Allocator final : public torch_cuda::CUDAAllocator {
public:
    // ---- blocks

    c10::DataPtr allocate(size_t bytes) override
    {
        c10::DeviceIndex device = current_device();
        void *p = alloc(bytes, device, c10::cuda::getCurrentCUDAStream(device));
        return {p, p, &release, c10::Device(c10::kCUDA, device)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t bytes) const override
    {
        C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
    }
    void *raw_alloc(size_t bytes) override
    {
        c10::DeviceIndex device = current_device();
        return alloc(bytes, device, c10::cuda::getCurrentCUDAStream(device));
    }
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        return alloc(bytes, current_device(), stream);
    }
    void raw_delete(void *p) override { weir_torch_native_free(p); }
    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override
    {
        // What came from elsewhere, another process or library, has another deleter.
        if (data.get() != nullptr && data.get_deleter() == &release)
            weir_torch_record_stream(data.get(), stream.stream());
    }
    using CUDAAllocator::recordStream;
    void *getBaseAllocation(void *p, size_t *bytes) override
    {
        weir_shared_block found;
        TORCH_CHECK(weir_torch_find(p, &found), "weir: not the beginning of a live block");
        if (bytes != nullptr) *bytes = found.bytes;
        return p;
    }

    // ---- life and limits

    void init(int n_devices) override { n_devices_ = n_devices; }
    bool initialized() override { return n_devices_ > 0; }
    void enable(bool) override {}
    bool isEnabled() const override { return true; }
    std::string name() override { return "weir"; }
    double getMemoryFraction(c10::DeviceIndex device) override
    {
        return static_cast<double>(stats_of(device).limit_bytes) /
            static_cast<double>(total_bytes(device));
    }
    void setMemoryFraction(double fraction, c10::DeviceIndex device) override
    {
        TORCH_CHECK(weir_shared_limit(device, 0, fraction) == WEIR_OK, "weir: ", weir_error_text());
    }
    void emptyCache(c10::cuda::MempoolId_t = {0, 0}) override
    {
        for (int device = 0; device < n_devices_; device++)
            if (has_served(device)) weir_trim(pool_of(device), 0, nullptr);
    }
    void cacheInfo(c10::DeviceIndex device, size_t *largest) override
    {
        weir_stats s = stats_of(device);
        *largest = s.limit_bytes - s.reserved_bytes + s.cached_bytes + s.idle_bytes;
    }
    std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }

    // ---- counters

    DeviceStats getDeviceStats(c10::DeviceIndex device) override
    {
        DeviceStats out;
        weir_shared_counts c = counts_of(device);
        if (c.allocated_blocks == 0) return out; // asking must not open a pool
        const Base &base = bases_[device];
        weir_stats s = stats_of(device);
        uint64_t since_bytes = c.allocated_bytes - base.bytes, since = c.allocated_blocks - base.blocks;
        fill(out.allocated_bytes, c.live_bytes, c.peak_bytes, since_bytes);
        fill(out.active_bytes, c.live_bytes + s.pending_bytes, c.peak_bytes, since_bytes);
        fill(out.requested_bytes, c.requested_bytes, 0, 0);
        fill(out.allocation, c.live_blocks, c.peak_blocks, since);
        fill(out.active, c.live_blocks + s.pending_blocks, c.peak_blocks, since);
        fill(out.reserved_bytes, s.reserved_bytes, peak_reserved(base, s), s.peak_reserved_bytes);
        fill(out.segment, s.grows - s.trims, s.grows, s.grows);
        out.num_ooms = ooms_[device];
        out.num_sync_all_streams = static_cast<int64_t>(s.host_waits);
        out.num_device_alloc = static_cast<int64_t>(s.grows);
        out.num_device_free = static_cast<int64_t>(s.trims);
        return out;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override
    {
        weir_shared_counts c = counts_of(device);
        bases_[device].bytes = c.allocated_bytes - c.live_bytes;
        bases_[device].blocks = c.allocated_blocks - c.live_blocks;
        ooms_[device] = 0;
    }
    void resetPeakStats(c10::DeviceIndex device) override
    {
        if (!has_served(device)) return;
        weir_stats s = stats_of(device);
        weir_torch_reset_peaks(device);
        bases_[device].reserved = static_cast<int64_t>(s.reserved_bytes);
        bases_[device].peak_reserved = static_cast<int64_t>(s.peak_reserved_bytes);
    }
    torch_cuda::SnapshotInfo snapshot(c10::cuda::MempoolId_t = {0, 0}, bool = true) override
    {
        torch_cuda::SnapshotInfo out = {};
        out.device_traces.resize(static_cast<size_t>(n_devices_));
        for (int device = 0; device < n_devices_; device++)
            for (const weir_shared_block &block : blocks_of(device))
                out.segments.push_back(segment_of(device, block));
        return out;
    }
    bool isHistoryEnabled() override { return false; }
    void recordHistory(bool enabled, torch_cuda::CreateContextFn, size_t, torch_cuda::RecordContext, bool,
        const std::vector<std::string> &) override
    {
        TORCH_CHECK(!enabled, "weir keeps no history of allocations for PyTorch: WEIR_RECORD writes one");
    }
    void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override
    {
        std::lock_guard<std::mutex> guard(observers_mutex_);
        observers_.push_back(std::move(observer));
    }
    void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker) override {}

    // ---- private pools, of graphs above all: the pool's memory is everyone's, but that of a capture

    void beginAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id,
        std::function<bool(cudaStream_t)>) override
    {
        weir_torch_begin_pool(device, {id.first, id.second}, nullptr);
    }
    void endAllocateToPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override
    {
        weir_torch_end_pool(device, {id.first, id.second});
    }
    void releasePool(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override
    {
        weir_torch_release_pool(device, {id.first, id.second});
    }
    void createOrIncrefPool(c10::DeviceIndex device, c10::cuda::MempoolId_t id,
        std::shared_ptr<CUDAAllocator>) override
    {
        weir_torch_hold_pool(device, {id.first, id.second});
    }
    int getPoolUseCount(c10::DeviceIndex device, c10::cuda::MempoolId_t id) override
    {
        return static_cast<int>(weir_torch_pool_holds(device, {id.first, id.second}));
    }
    void setUseOnOOM(c10::DeviceIndex, c10::cuda::MempoolId_t, bool) override {}
    void setNoSplit(c10::DeviceIndex, c10::cuda::MempoolId_t) override {}
    std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(
        c10::DeviceIndex, c10::cuda::MempoolId_t) override
    {
        TORCH_CHECK(false, "weir has no checkpoints of private pools: torch.compile without cudagraph trees");
    }
    torch_cuda::CheckpointDelta setCheckpointPoolState(
        c10::DeviceIndex, std::shared_ptr<torch_cuda::AllocatorState>) override
    {
        TORCH_CHECK(false, "weir has no checkpoints of private pools");
    }

    // ---- other devices and processes

    void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex to) override
    {
        TORCH_CHECK(weir_pool_peer_enable(pool_of(to), device) == WEIR_OK, "weir: ", weir_error_text());
    }
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
        cudaStream_t stream, bool p2p_enabled) override
    {
        if (p2p_enabled || to_device == from_device)
            return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
        return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    }
    torch_cuda::ShareableHandle shareIpcHandle(void *) override
    {
        TORCH_CHECK(false, "virtual memory has no CUDA IPC handle: weir_export shares a block");
    }
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override
    {
        cudaIpcMemHandle_t parsed;
        TORCH_CHECK(handle.size() == sizeof parsed, "not a CUDA IPC handle");
        std::memcpy(&parsed, handle.data(), sizeof parsed);
        void *p = nullptr;
        C10_CUDA_CHECK(cudaIpcOpenMemHandle(&p, parsed, cudaIpcMemLazyEnablePeerAccess));
        return {p, [](void *q) { cudaIpcCloseMemHandle(q); }};
    }

private:
    std::array<Base, WEIR_SHARED_DEVICES> bases_;
    std::array<std::atomic<int64_t>, WEIR_SHARED_DEVICES> ooms_{};
    std::atomic<int> n_devices_{0};
    std::mutex observers_mutex_;
    std::vector<torch_cuda::OutOfMemoryObserver> observers_;

    // PyTorch puts off a change of device until the first use of the new one: its own answer alone is right.
    c10::DeviceIndex current_device() const
    {
        return n_devices_.load(std::memory_order_relaxed) == 1 ? 0 : c10::cuda::current_device();
    }
    void *alloc(size_t bytes, int device, cudaStream_t stream)
    {
        try {
            return weir_torch_native_alloc(bytes, device, stream);
        } catch (const c10::OutOfMemoryError &) {
            tell_observers(bytes, device);
            throw;
        }
    }
    void tell_observers(size_t bytes, int device)
    {
        ooms_[device]++;
        weir_stats s = stats_of(device);
        std::lock_guard<std::mutex> guard(observers_mutex_);
        for (const auto &observer : observers_)
            observer(device, bytes, s.limit_bytes, s.limit_bytes - s.reserved_bytes);
    }
    static weir_shared_counts counts_of(int device)
    {
        weir_shared_counts c;
        weir_torch_count(device, &c);
        return c;
    }
    static bool has_served(int device) { return counts_of(device).allocated_blocks > 0; }
    static std::vector<weir_shared_block> blocks_of(int device)
    {
        std::vector<weir_shared_block> blocks(counts_of(device).live_blocks);
        for (;;) { // there may be more by then
            size_t n = weir_torch_list(device, blocks.data(), blocks.size());
            bool all = n <= blocks.size();
            blocks.resize(n);
            if (all) return blocks;
        }
    }
    static size_t total_bytes(int device)
    {
        cudaDeviceProp properties;
        C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
        return properties.totalGlobalMem;
    }
    static weir_pool *pool_of(int device)
    {
        weir_pool *pool = nullptr;
        TORCH_CHECK(weir_shared_pool(device, &pool) == WEIR_OK, "weir: ", weir_error_text());
        return pool;
    }
    static weir_stats stats_of(int device)
    {
        weir_stats s = {};
        s.struct_size = sizeof s;
        TORCH_CHECK(weir_pool_stats(pool_of(device), &s) == WEIR_OK, "weir: ", weir_error_text());
        return s;
    }
    // The pool's own peak counts from its opening: after a reset it tells only once it was passed.
    static uint64_t peak_reserved(const Base &base, const weir_stats &s)
    {
        auto peak = static_cast<int64_t>(s.peak_reserved_bytes), now = static_cast<int64_t>(s.reserved_bytes);
        if (base.reserved < 0 || peak > base.peak_reserved) return s.peak_reserved_bytes;
        return static_cast<uint64_t>(std::max(now, base.reserved.load()));
    }
    static void fill(StatArray &all, uint64_t current, uint64_t peak, uint64_t allocated)
    {
        Stat &s = all[static_cast<size_t>(StatType::AGGREGATE)];
        s.current = static_cast<int64_t>(current);
        s.peak = static_cast<int64_t>(std::max(peak, current));
        s.allocated = static_cast<int64_t>(std::max(allocated, current));
        s.freed = s.allocated - s.current;
    }
    static SegmentInfo segment_of(int device, const weir_shared_block &block)
    {
        SegmentInfo s;
        s.device = static_cast<c10::DeviceIndex>(device);
        s.address = block.address;
        s.total_size = s.allocated_size = s.active_size = (block.bytes + kUnit - 1) / kUnit * kUnit;
        s.requested_size = block.bytes;
        s.stream = static_cast<cudaStream_t>(block.stream);
        s.is_large = block.bytes > (1u << 20);
        BlockInfo only;
        only.size = s.total_size;
        only.requested_size = block.bytes;
        only.allocated = only.active = true;
        s.blocks.push_back(std::move(only));
        return s;
    }
};

// Lives to the end of the process and beyond: tensors may outlive everything.
Allocator &the_allocator()
{
    static auto *allocator = new Allocator;
    return *allocator;
}

void release(void *p)
{
    weir_torch_native_free(p);
}

} // namespace

extern "C" void weir_torch_throw(const char *function, const char *file, uint32_t code, const char *text);

// NULL: PyTorch uses it; else why not.
extern "C" const char *weir_torch_native_install()
{
    if (torch_cuda::allocator.load()->initialized()) return "CUDA is initialised already";
    weir_torch_on_failure(weir_torch_throw);
    torch_cuda::allocator.store(&the_allocator());
    c10::SetAllocator(c10::kCUDA, &the_allocator());
    return nullptr;
}
