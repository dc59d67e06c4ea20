// SPDX-License-Identifier: Apache-2.0
#pragma once
// A window of live blocks and its replacements, generated before the clock starts: random sizes and
// positions, the same for every pool.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "hot_paths/timing.hpp"

namespace tarn::bench {

/// Sizes of a window's live blocks, bytes, log-uniform between the two.
struct size_range {
  std::size_t smallest;
  std::size_t largest;
};

/// One replacement: frees the block in `slot`, allocates one of `bytes`.
struct replacement {
  std::uint32_t slot;
  std::uint32_t bytes;
};

/// Returns replacements, to be repeated cyclically. The seed is fixed: every pool gets the same ones.
inline std::vector<replacement> replacements(std::size_t window, size_range sizes, unsigned seed = 1) {
  constexpr std::size_t count = 1 << 16;  // 512 KiB: with more, cache misses of this list would be timed
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::uint32_t> slot(0, static_cast<std::uint32_t>(window - 1));
  std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(sizes.smallest)),
                                                  std::log(static_cast<double>(sizes.largest)));
  std::vector<replacement> list(count);
  for (replacement& r : list) r = {slot(random), static_cast<std::uint32_t>(std::exp(exponent(random)))};
  return list;
}

/// The blocks of a window on one stream of a pool; frees them on destruction.
template <class P>
class window {
 public:
  /// @throws cannot  a block is refused, or allocating them takes too long
  window(P& pool, std::size_t stream, std::size_t live, size_range sizes, deadline const& until,
         unsigned seed = 1)
      : pool_(pool), stream_(stream), list_(replacements(live, sizes, seed)), blocks_(live) {
    try {
      for (std::size_t i = 0; i < live; ++i) {
        if (i % 256 == 0 && until.over()) throw cannot("filling takes too long");
        get(blocks_[i], list_[i % list_.size()].bytes);
      }
    } catch (...) {
      give_back();
      throw;
    }
  }
  ~window() { give_back(); }
  window(window const&) = delete;
  window& operator=(window const&) = delete;

  /// Runs once through all replacements, or as far as time allows, so that later steps find the pool in its
  /// steady state.
  void warm(deadline const& until) {
    for (std::size_t i = 0; i < list_.size() && (i % 256 != 0 || !until.over()); ++i) step();
  }
  /// Frees one block and allocates another: one pair.
  void step() {
    free_next();
    allocate_next();
  }
  void free_next() noexcept {
    block const& b = blocks_[list_[at_].slot];
    pool_.deallocate(stream_, b.address, b.bytes);
  }
  /// Must follow free_next().
  void allocate_next() {
    replacement const r = list_[at_];
    at_ = (at_ + 1) & (list_.size() - 1);
    block& b = blocks_[r.slot];
    b.address = nullptr;
    get(b, r.bytes);
  }

 private:
  struct block {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  void get(block& b, std::size_t bytes) {
    b.address = pool_.allocate(stream_, bytes);
    b.bytes = bytes;
    if (b.address == nullptr) throw cannot("a block is refused");
  }
  void give_back() noexcept {
    for (block const& b : blocks_) {
      if (b.address != nullptr) pool_.deallocate(stream_, b.address, b.bytes);
    }
  }
  P& pool_;
  std::size_t stream_;
  std::vector<replacement> list_;
  std::vector<block> blocks_;
  std::size_t at_ = 0;
};

}  // namespace tarn::bench
