// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trivial allocator with which a real one is compared: the allocated bytes, as a set of intervals.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "fuzz/promise.hpp"

namespace tarn_fuzz {

struct live_block {
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  std::size_t counted = 0;  /// < the bytes that it occupies according to the allocator
};

class live_blocks {
 public:
  /// Records an allocated block; it must be aligned and overlap no other.
  void add(void* p, live_block const& b) {
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    promise(at % b.alignment == 0, "a block has the requested alignment");
    promise(b.counted >= b.bytes, "a block is at least as large as requested");
    auto const next = blocks_.lower_bound(at);
    promise(next == blocks_.end() || at + b.bytes <= next->first, "a block does not overlap the next block");
    promise(next == blocks_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= at,
            "a block does not overlap the previous block");
    blocks_.emplace_hint(next, at, b);
    requested_ += b.bytes;
    counted_ += b.counted;
  }
  live_block remove(void* p) {
    auto const it = blocks_.find(reinterpret_cast<std::uintptr_t>(p));
    promise(it != blocks_.end(), "only live blocks are freed");
    live_block const b = it->second;
    requested_ -= b.bytes;
    counted_ -= b.counted;
    blocks_.erase(it);
    return b;
  }

  [[nodiscard]] std::size_t size() const noexcept { return blocks_.size(); }
  [[nodiscard]] std::size_t requested() const noexcept { return requested_; }
  [[nodiscard]] std::size_t counted() const noexcept { return counted_; }

 private:
  std::map<std::uintptr_t, live_block> blocks_;
  std::size_t requested_ = 0;
  std::size_t counted_ = 0;
};

}  // namespace tarn_fuzz
