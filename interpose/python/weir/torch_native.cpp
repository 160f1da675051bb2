// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's own allocator interface on weir's memory, built by weir.torch against the PyTorch that is installed. What the
// plain interface loses is here: the counters, empty_cache, snapshots of live blocks, peers, PyTorch's own
// OutOfMemoryError and its observers.
//
// What the blocks in use are is kept here, since PyTorch frees by address alone: in shards by address, so that threads
// seldom meet.
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

constexpr size_t kShards = 64;
constexpr int64_t kUnit = 512;

struct Block {
    uintptr_t address = 0; // 0: the place is free
    size_t bytes = 0;
    cudaStream_t stream = nullptr;
    int device = 0;
};

int64_t rounded(size_t bytes)
{
    return (static_cast<int64_t>(bytes) + kUnit - 1) / kUnit * kUnit;
}

// Counts of a device since the process began, and what they were when they were last reset.
struct Counts {
    std::atomic<int64_t> live_bytes{0}, peak_bytes{0}, live{0}, peak_live{0};
    std::atomic<int64_t> allocated_bytes{0}, allocated{0}, ooms{0};
    std::atomic<int64_t> base_allocated_bytes{0}, base_allocated{0};
    std::atomic<int64_t> reserved_at_reset{-1}, peak_reserved_at_reset{0};

    static void raise(std::atomic<int64_t> &peak, int64_t value)
    {
        int64_t seen = peak.load(std::memory_order_relaxed);
        while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
        }
    }
    void add(size_t bytes)
    {
        int64_t size = rounded(bytes);
        raise(peak_bytes, live_bytes.fetch_add(size, std::memory_order_relaxed) + size);
        raise(peak_live, live.fetch_add(1, std::memory_order_relaxed) + 1);
        allocated_bytes.fetch_add(size, std::memory_order_relaxed);
        allocated.fetch_add(1, std::memory_order_relaxed);
    }
    void remove(size_t bytes)
    {
        live_bytes.fetch_sub(rounded(bytes), std::memory_order_relaxed);
        live.fetch_sub(1, std::memory_order_relaxed);
    }
};

// Open addressing with linear probing; a removal moves later entries up, so that no marks stay behind.
class alignas(64) Shard {
public:
    void put(const Block &block)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if ((used_ + 1) * 2 > places_.size()) grow();
        insert(block);
    }
    bool take(uintptr_t address, Block *out)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        if (places_.empty()) return false;
        size_t at = home(address);
        while (places_[at].address != address) {
            if (places_[at].address == 0) return false;
            at = next(at);
        }
        *out = places_[at];
        close_gap(at);
        used_--;
        return true;
    }
    template <typename Visit>
    void each(Visit visit)
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (const Block &block : places_)
            if (block.address != 0) visit(block);
    }

private:
    std::mutex mutex_;
    std::vector<Block> places_; // a power of two
    size_t used_ = 0;

    size_t next(size_t at) const { return (at + 1) & (places_.size() - 1); }
    size_t home(uintptr_t address) const
    {
        return (address / kUnit * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (places_.size() - 1);
    }
    void insert(const Block &block)
    {
        size_t at = home(block.address);
        while (places_[at].address != 0)
            at = next(at);
        places_[at] = block;
        used_++;
    }
    void grow()
    {
        std::vector<Block> old(places_.empty() ? 64 : places_.size() * 2);
        old.swap(places_);
        used_ = 0;
        for (const Block &block : old)
            if (block.address != 0) insert(block);
    }
    void close_gap(size_t gap)
    {
        for (size_t at = next(gap); places_[at].address != 0; at = next(at)) {
            size_t from = home(places_[at].address);
            bool reaches = gap <= at ? (from <= gap || from > at) : (from <= gap && from > at);
            if (!reaches) continue;
            places_[gap] = places_[at];
            gap = at;
        }
        places_[gap] = Block{};
    }
};

class Blocks {
public:
    void put(const Block &block) { shard(block.address).put(block); }
    bool take(void *p, Block *out)
    {
        auto address = reinterpret_cast<uintptr_t>(p);
        return shard(address).take(address, out);
    }
    template <typename Visit>
    void each(Visit visit)
    {
        for (Shard &s : shards_)
            s.each(visit);
    }

private:
    std::array<Shard, kShards> shards_;
    Shard &shard(uintptr_t address) { return shards_[address / kUnit * UINT64_C(0x9e3779b97f4a7c15) >> 58]; }
};

void release(void *p);

class Allocator final : public torch_cuda::CUDAAllocator {
public:
    // ---- blocks

    c10::DataPtr allocate(size_t bytes) override
    {
        c10::DeviceIndex device = c10::cuda::current_device();
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
        c10::DeviceIndex device = c10::cuda::current_device();
        return alloc(bytes, device, c10::cuda::getCurrentCUDAStream(device));
    }
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override
    {
        return alloc(bytes, c10::cuda::current_device(), stream);
    }
    void raw_delete(void *p) override
    {
        Block block;
        if (p == nullptr || !blocks_.take(p, &block)) return;
        counts_[block.device].remove(block.bytes);
        weir_torch_free(p, block.bytes, block.device, block.stream);
    }
    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override
    {
        // What came from elsewhere, another process or library, has another deleter.
        if (data.get() != nullptr && data.get_deleter() == &release)
            weir_torch_record_stream(data.get(), stream.stream());
    }
    using CUDAAllocator::recordStream;
    void *getBaseAllocation(void *p, size_t *bytes) override
    {
        Block block;
        TORCH_CHECK(blocks_.take(p, &block), "weir: not the beginning of a live block");
        blocks_.put(block);
        if (bytes != nullptr) *bytes = block.bytes;
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
            if (counts_[device].allocated.load() > 0) weir_trim(pool_of(device), 0, nullptr);
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
        Counts &c = counts_[device];
        if (c.allocated.load() == 0) return out; // asking must not open a pool
        weir_stats s = stats_of(device);
        int64_t bytes = c.live_bytes, n = c.live, since_bytes = c.allocated_bytes - c.base_allocated_bytes,
                since = c.allocated - c.base_allocated;
        fill(out.allocated_bytes, bytes, c.peak_bytes, since_bytes);
        fill(out.active_bytes, bytes + static_cast<int64_t>(s.pending_bytes), c.peak_bytes, since_bytes);
        fill(out.requested_bytes, requested_bytes(device), 0, 0);
        fill(out.allocation, n, c.peak_live, since);
        fill(out.active, n + static_cast<int64_t>(s.pending_blocks), c.peak_live, since);
        fill(out.reserved_bytes, static_cast<int64_t>(s.reserved_bytes), peak_reserved(c, s),
            static_cast<int64_t>(s.peak_reserved_bytes));
        fill(out.segment, static_cast<int64_t>(s.grows - s.trims), static_cast<int64_t>(s.grows),
            static_cast<int64_t>(s.grows));
        out.num_ooms = c.ooms;
        out.num_sync_all_streams = static_cast<int64_t>(s.host_waits);
        out.num_device_alloc = static_cast<int64_t>(s.grows);
        out.num_device_free = static_cast<int64_t>(s.trims);
        return out;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override
    {
        Counts &c = counts_[device];
        c.base_allocated_bytes = c.allocated_bytes.load() - c.live_bytes.load();
        c.base_allocated = c.allocated.load() - c.live.load();
        c.ooms = 0;
    }
    void resetPeakStats(c10::DeviceIndex device) override
    {
        Counts &c = counts_[device];
        if (c.allocated.load() == 0) return;
        weir_stats s = stats_of(device);
        c.peak_bytes = c.live_bytes.load();
        c.peak_live = c.live.load();
        c.reserved_at_reset = static_cast<int64_t>(s.reserved_bytes);
        c.peak_reserved_at_reset = static_cast<int64_t>(s.peak_reserved_bytes);
    }
    torch_cuda::SnapshotInfo snapshot(c10::cuda::MempoolId_t = {0, 0}, bool = true) override
    {
        torch_cuda::SnapshotInfo out = {};
        out.device_traces.resize(static_cast<size_t>(n_devices_));
        blocks_.each([&](const Block &block) { out.segments.push_back(segment_of(block)); });
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
    Blocks blocks_;
    std::array<Counts, WEIR_SHARED_DEVICES> counts_;
    std::atomic<int> n_devices_{0};
    std::mutex observers_mutex_;
    std::vector<torch_cuda::OutOfMemoryObserver> observers_;

    void *alloc(size_t bytes, int device, cudaStream_t stream)
    {
        void *p = nullptr;
        try {
            p = weir_torch_alloc(bytes, device, stream);
        } catch (const c10::OutOfMemoryError &) {
            tell_observers(bytes, device);
            throw;
        }
        if (p != nullptr) {
            blocks_.put({reinterpret_cast<uintptr_t>(p), bytes, stream, device});
            counts_[device].add(bytes);
        }
        return p;
    }
    void tell_observers(size_t bytes, int device)
    {
        counts_[device].ooms++;
        weir_stats s = stats_of(device);
        std::lock_guard<std::mutex> guard(observers_mutex_);
        for (const auto &observer : observers_)
            observer(device, bytes, s.limit_bytes, s.limit_bytes - s.reserved_bytes);
    }
    // Before rounding, of the blocks in use: counted when asked for, which is seldom.
    int64_t requested_bytes(int device)
    {
        int64_t sum = 0;
        blocks_.each([&](const Block &block) { sum += block.device == device ? int64_t(block.bytes) : 0; });
        return sum;
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
    static int64_t peak_reserved(const Counts &c, const weir_stats &s)
    {
        auto peak = static_cast<int64_t>(s.peak_reserved_bytes), now = static_cast<int64_t>(s.reserved_bytes);
        if (c.reserved_at_reset < 0 || peak > c.peak_reserved_at_reset) return peak;
        return std::max(now, c.reserved_at_reset.load());
    }
    static void fill(StatArray &all, int64_t current, int64_t peak, int64_t allocated)
    {
        Stat &s = all[static_cast<size_t>(StatType::AGGREGATE)];
        s.current = current;
        s.peak = std::max(peak, current);
        s.allocated = std::max(allocated, current);
        s.freed = s.allocated - current;
    }
    static SegmentInfo segment_of(const Block &block)
    {
        SegmentInfo s;
        s.device = static_cast<c10::DeviceIndex>(block.device);
        s.address = block.address;
        s.total_size = s.allocated_size = s.active_size = static_cast<size_t>(rounded(block.bytes));
        s.requested_size = block.bytes;
        s.stream = block.stream;
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
    the_allocator().raw_delete(p);
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
