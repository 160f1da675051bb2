// SPDX-License-Identifier: Apache-2.0
//
// RMM, or anything else of CCCL's memory resources, on weir's memory, from C++.
//
//   weir::memory_resource resource{device};
//   rmm::mr::set_current_device_resource(resource);      // or a device_buffer's resource argument
//
// Models cuda::mr::resource with cuda::mr::device_accessible, over the pool that all adapters of the process share.
// Copies are the same resource if they are of the same device. Nothing is to be kept alive.
//
// Compile with WEIR_RMM_ERRORS to throw rmm::out_of_memory and rmm::bad_alloc instead of std::bad_alloc.
#ifndef WEIR_RMM_HPP
#define WEIR_RMM_HPP

#include "weir_shared.h"

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#ifdef WEIR_RMM_ERRORS
#include <rmm/error.hpp>
#endif

namespace weir {

#ifdef WEIR_RMM_ERRORS
using bad_alloc = rmm::bad_alloc;
using out_of_memory = rmm::out_of_memory;
#else
class bad_alloc : public std::bad_alloc {
public:
    explicit bad_alloc(std::string what) : what_(std::move(what)) {}
    const char *what() const noexcept override { return what_.c_str(); }

private:
    std::string what_;
};
class out_of_memory : public bad_alloc {
    using bad_alloc::bad_alloc;
};
#endif

class memory_resource {
public:
    explicit memory_resource(int device = 0) noexcept : device_(device) {}

    // In the order of `stream`. Where only work that is queued holds memory back, waits for it, a minute at most.
    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment)
    {
        weir_dptr block = 0;
        weir_status status = alignment <= default_alignment
            ? weir_shared_alloc(device_, bytes, stream.get(), WEIR_SHARED_PATIENCE_NS, &block)
            : allocate_aligned(stream, bytes, alignment, &block);
        if (status != WEIR_OK) fail(status, bytes);
        return reinterpret_cast<void *>(static_cast<std::uintptr_t>(block));
    }

    // `stream`: on which its last use is queued. Never waits.
    void deallocate(cuda::stream_ref stream, void *block, std::size_t, std::size_t = default_alignment) noexcept
    {
        weir_pool *pool;
        if (weir_shared_pool(device_, &pool) == WEIR_OK)
            weir_free(pool, reinterpret_cast<std::uintptr_t>(block), stream.get());
    }

    // Without a stream: in the order of the legacy default stream.
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment)
    {
        return allocate(cuda::stream_ref{cudaStream_t{}}, bytes, alignment);
    }
    void deallocate_sync(void *block, std::size_t bytes, std::size_t alignment = default_alignment) noexcept
    {
        deallocate(cuda::stream_ref{cudaStream_t{}}, block, bytes, alignment);
    }

    bool operator==(const memory_resource &other) const noexcept { return device_ == other.device_; }
    bool operator!=(const memory_resource &other) const noexcept { return device_ != other.device_; }
    friend void get_property(const memory_resource &, cuda::mr::device_accessible) noexcept {}

private:
    static constexpr std::size_t default_alignment = 512;
    int device_;

    weir_status allocate_aligned(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment, weir_dptr *out)
    {
        weir_alloc_options options = {};
        options.struct_size = sizeof options;
        options.alignment = alignment;
        options.reuse = WEIR_REUSE_HOST_WAIT;
        options.deadline_ns = WEIR_SHARED_PATIENCE_NS;
        weir_pool *pool;
        weir_status status = weir_shared_pool(device_, &pool);
        return status == WEIR_OK ? weir_alloc_with(pool, bytes, stream.get(), &options, out) : status;
    }

    [[noreturn]] static void fail(weir_status status, std::size_t bytes)
    {
        std::string what = "weir: " + std::to_string(bytes) + " bytes: " + weir_status_name(status) + ": " + weir_error_text();
        bool memory = status == WEIR_OUT_OF_MEMORY || status == WEIR_NOT_YET || status == WEIR_TIMEOUT ||
            status == WEIR_TOO_LARGE;
        if (memory) throw out_of_memory(what);
        throw bad_alloc(what);
    }
};

static_assert(cuda::mr::resource_with<memory_resource, cuda::mr::device_accessible>,
    "weir::memory_resource models cuda::mr::resource");

} // namespace weir

#endif
