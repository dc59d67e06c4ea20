// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stack of blocks over reserved address space, as llama.cpp's pool over virtual memory: blocks are placed
// one after the other, and pages are mapped behind the last ones when the stack grows. Written for this bench
// from the description of that pool, which requires frees in reverse order. Traces are not in that order:
// here a block that is freed below others keeps its place, which cannot be used again until all blocks above
// it are freed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "peers/peer.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/driver/driver.hpp"

namespace tarn::bench {

/// One stack. Never returns pages to the driver before its end.
template <page_driver Driver>
class page_stack {
 public:
  explicit page_stack(Driver driver) : driver_(driver) {}
  ~page_stack() {
    (void)driver_.synchronize_device();
    for (mapping const& m : mappings_) {
      (void)driver_.unmap_pages(start_ + m.offset, m.bytes);
      (void)driver_.destroy_pages(m.handle);
    }
    if (start_ != nullptr) (void)driver_.release_range(start_, range_bytes);
  }
  page_stack(page_stack const&) = delete;
  page_stack& operator=(page_stack const&) = delete;

  /// Returns null if the driver refuses pages; nothing has changed then.
  [[nodiscard]] void* push(std::size_t bytes) {
    std::size_t const rounded = align_up(bytes, alignment);
    if (rounded < bytes || rounded > range_bytes - used_) return nullptr;
    if (used_ + rounded > mapped_ && !grow(used_ + rounded - mapped_)) return nullptr;
    blocks_.push_back({used_, state::live});
    used_ += rounded;
    return start_ + blocks_.back().offset;
  }

  /// Frees a block of this stack, and with it all freed blocks at the top.
  void release(void* block) noexcept {
    auto const offset = static_cast<std::size_t>(static_cast<std::byte*>(block) - start_);
    auto const found = blocks_.back().offset == offset
                           ? blocks_.end() - 1
                           : std::lower_bound(blocks_.begin(), blocks_.end(), offset,
                                              [](placed const& b, std::size_t at) { return b.offset < at; });
    found->is = state::freed;
    while (!blocks_.empty() && blocks_.back().is == state::freed) {
      used_ = blocks_.back().offset;
      blocks_.pop_back();
    }
  }

  /// Returns the bytes of its pages.
  [[nodiscard]] std::size_t mapped() const noexcept { return mapped_; }

 private:
  enum class state : std::uint8_t { live, freed };
  struct placed {
    std::size_t offset;
    state is;
  };
  struct mapping {
    std::size_t offset;
    std::size_t bytes;
    page_handle handle;
  };
  static constexpr std::size_t alignment = 256;        // as cudaMalloc's
  static constexpr std::size_t range_bytes = 256_GiB;  // more than any device has

  [[nodiscard]] bool grow(std::size_t bytes) {
    if (granularity_ == 0 && !driver_.page_granularity(granularity_).ok()) return false;
    if (start_ == nullptr) {
      void* start = nullptr;
      if (!driver_.reserve_range(range_bytes, granularity_, start).ok()) return false;
      start_ = static_cast<std::byte*>(start);
    }
    mapping m{mapped_, align_up(bytes, granularity_), 0};
    if (m.bytes > range_bytes - mapped_) return false;
    if (!driver_.create_pages(m.bytes, m.handle).ok()) return false;
    if (!driver_.map_pages(start_ + m.offset, m.bytes, m.handle).ok()) {
      (void)driver_.destroy_pages(m.handle);
      return false;
    }
    mappings_.push_back(m);
    mapped_ += m.bytes;
    return true;
  }

  Driver driver_;
  std::byte* start_ = nullptr;
  std::size_t granularity_ = 0;
  std::size_t used_ = 0;        // up to the end of the block at the top
  std::size_t mapped_ = 0;      // from the start
  std::vector<placed> blocks_;  // from bottom to top
  std::vector<mapping> mappings_;
};

/// One stack per stream of a device.
template <class Device>
class stack_arena {
 public:
  static constexpr std::string_view name = "stack_arena";
  static constexpr std::string_view about =
      "a stack per stream over growing pages; memory is reused once all blocks above it are freed";
  static constexpr place_of_memory where = Device::where;
  static constexpr bool thread_safe = false;

  explicit stack_arena(setup const& s) : device_(s) {
    stacks_.reserve(s.streams);
    for (std::size_t i = 0; i < s.streams; ++i) {
      stacks_.push_back(std::make_unique<page_stack<typename Device::driver_type>>(device_.driver()));
    }
  }

  void* allocate(std::size_t stream, std::size_t bytes) {
    page_stack<typename Device::driver_type>& stack = *stacks_[stream];
    std::size_t const before = stack.mapped();
    void* const block = bytes == 0 ? nullptr : stack.push(bytes);
    mapped_ += stack.mapped() - before;
    return block;
  }
  void deallocate(std::size_t stream, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) stacks_[stream]->release(block);
  }
  [[nodiscard]] usage used() const { return {mapped_, device_.driver_calls(), device_.driver_ns()}; }

 private:
  Device device_;  // must outlive the stacks, which use it
  std::vector<std::unique_ptr<page_stack<typename Device::driver_type>>> stacks_;
  std::uint64_t mapped_ = 0;  // of all stacks; never decreases
};

}  // namespace tarn::bench
