// SPDX-License-Identifier: Apache-2.0
//
// The peer: tsl::BFCAllocator, which serves GPU memory in TensorFlow and JAX, as the TensorFlow wheel ships it, behind
// five C functions. It hands out addresses of a sub-allocator that has no memory behind them. bench/peers.sh
// builds it; bfc.c finds it at run time.
#include <atomic>
#include <cstdint>
#include <memory>

#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

class Addresses : public tsl::SubAllocator {
 public:
  Addresses(bool coalesce, std::atomic<size_t> *reserved, std::atomic<size_t> *peak)
      : SubAllocator({}, {}), coalesce_(coalesce), reserved_(reserved), peak_(peak) {}

  void *Alloc(size_t alignment, size_t bytes, size_t *received) override {
    const uintptr_t address = (next_ + alignment - 1) & ~(alignment - 1);
    next_ = address + bytes;
    *received = bytes;
    const size_t now = *reserved_ += bytes;
    if (now > *peak_) *peak_ = now;
    return reinterpret_cast<void *>(address);
  }

  void Free(void *, size_t bytes) override { *reserved_ -= bytes; }
  bool SupportsCoalescing() const override { return coalesce_; }

 private:
  const bool coalesce_;
  std::atomic<size_t> *const reserved_, *const peak_;
  uintptr_t next_ = uintptr_t{1} << 44;
};

struct Pool {
  std::atomic<size_t> reserved{0}, peak{0};
  std::unique_ptr<tsl::BFCAllocator> bfc;
};

}  // namespace

extern "C" {

// As XLA sets it up for a GPU: one region of `limit` bytes at once, or growing up to it.
void *weir_bfc_open(size_t limit, int growing) {
  auto pool = std::make_unique<Pool>();
  tsl::BFCAllocator::Options options;
  options.allow_growth = growing != 0;
  options.allow_retry_on_failure = false;
  pool->bfc = std::make_unique<tsl::BFCAllocator>(
      std::make_unique<Addresses>(growing != 0, &pool->reserved, &pool->peak), limit, "weir_peer", options);
  return pool.release();
}

void weir_bfc_close(void *pool) { delete static_cast<Pool *>(pool); }

// nullptr: no memory.
void *weir_bfc_alloc(void *pool, size_t bytes) {
  tsl::AllocationAttributes attributes(/*retry_on_failure=*/false, /*allocation_will_be_logged=*/false,
                                       /*freed_by_func=*/nullptr);
  return static_cast<Pool *>(pool)->bfc->AllocateRaw(256, bytes, attributes);
}

void weir_bfc_free(void *pool, void *block) { static_cast<Pool *>(pool)->bfc->DeallocateRaw(block); }

size_t weir_bfc_peak(void *pool) { return static_cast<Pool *>(pool)->peak; }
}
