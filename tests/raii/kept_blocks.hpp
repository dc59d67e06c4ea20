// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks of every kind with contents of their own, for the tests of what keeps addresses and contents.

#include <cstddef>
#include <vector>

#include "catch.hpp"
#include "tarn/core/stream.hpp"

namespace tarn_test {

/// Blocks of every kind: in runs, at home, in views, larger than a staging buffer; each with its own
/// contents.
template <class Memory>
class kept_blocks {
 public:
  static constexpr std::size_t mib = std::size_t{1} << 20;

  explicit kept_blocks(Memory memory, int count = 24) : memory_(memory) {
    std::vector<unsigned char*> spread;
    for (int i = 0; i < count; ++i) spread.push_back(get(2 * mib));
    for (std::size_t i = 0; i < spread.size(); i += 2) free(spread[i]);
    if (count != 0)
      get(static_cast<std::size_t>(count - 1) * mib);  // in a view, if the pool's memory is limited
    for (std::size_t bytes : {100u, 1000u, 5000u, 70'000u, 300'000u}) {
      for (int i = 0; i < 5; ++i) get(bytes);
    }
  }
  kept_blocks(kept_blocks const&) = delete;
  kept_blocks& operator=(kept_blocks const&) = delete;
  ~kept_blocks() {
    while (!all_.empty()) free(all_.back().p);
  }

  unsigned char* get(std::size_t bytes) {
    auto* const p = static_cast<unsigned char*>(memory_.allocate(tarn::stream_ref{}, bytes));
    all_.push_back({p, bytes, ++number_});
    for (std::size_t i = 0; i < bytes; i += step) p[i] = byte(all_.back(), i);
    p[bytes - 1] = byte(all_.back(), bytes - 1);
    return p;
  }
  void free(unsigned char* p) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].p != p) continue;
      memory_.deallocate(tarn::stream_ref{}, p, all_[i].bytes);
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    FAIL("not a block");
  }
  [[nodiscard]] bool intact() const {
    for (block const& b : all_) {
      for (std::size_t i = 0; i < b.bytes; i += step) {
        if (b.p[i] != byte(b, i)) return false;
      }
      if (b.p[b.bytes - 1] != byte(b, b.bytes - 1)) return false;
    }
    return true;
  }
  /// Writes all contents again.
  void write() {
    for (block const& b : all_) {
      for (std::size_t i = 0; i < b.bytes; i += step) b.p[i] = byte(b, i);
      b.p[b.bytes - 1] = byte(b, b.bytes - 1);
    }
  }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  unsigned char* operator[](std::size_t i) const { return all_[i].p; }

 private:
  static constexpr std::size_t step = 509;
  struct block {
    unsigned char* p;
    std::size_t bytes;
    unsigned number;
  };
  static unsigned char byte(block const& b, std::size_t i) {
    return static_cast<unsigned char>(b.number * 37 + i / step * 11 + i / 1 * mib);
  }

  Memory memory_;
  std::vector<block> all_;
  unsigned number_ = 0;
};

}  // namespace tarn_test
