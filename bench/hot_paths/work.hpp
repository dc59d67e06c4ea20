// SPDX-License-Identifier: Apache-2.0
#pragma once
// The work that is timed, made before the clock starts: sizes and places at random, the same for every pool.
// Above it: hot_paths. Below it: nothing.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace tarn::bench {

/// Sizes of a window of live blocks, bytes, log-uniform between the two.
struct size_range {
  std::size_t smallest;
  std::size_t largest;
};

/// One replacement: the block in `slot` goes, one of `bytes` comes.
struct replacement {
  std::uint32_t slot;
  std::uint32_t bytes;
};

/// Replacements, to be walked round and round. The seed is fixed: each pool sees the same ones.
inline std::vector<replacement> replacements(std::size_t window, size_range sizes, unsigned seed = 1) {
  constexpr std::size_t count = 1 << 16;  // 512 KiB: more would time the cache misses of this list
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::uint32_t> slot(0, static_cast<std::uint32_t>(window - 1));
  std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(sizes.smallest)),
                                                  std::log(static_cast<double>(sizes.largest)));
  std::vector<replacement> list(count);
  for (replacement& r : list) r = {slot(random), static_cast<std::uint32_t>(std::exp(exponent(random)))};
  return list;
}

/// The blocks of a window on one stream of a pool; freed with it.
template <class P>
class window {
 public:
  window(P& pool, std::size_t stream, std::size_t live, size_range sizes, unsigned seed = 1)
      : pool_(pool), stream_(stream), list_(replacements(live, sizes, seed)), blocks_(live) {
    for (std::size_t i = 0; i < live; ++i) {
      blocks_[i].bytes = list_[i % list_.size()].bytes;
      blocks_[i].address = pool_.allocate(stream_, blocks_[i].bytes);
    }
  }
  ~window() {
    for (block const& b : blocks_) pool_.deallocate(stream_, b.address, b.bytes);
  }
  window(window const&) = delete;
  window& operator=(window const&) = delete;

  /// Frees one block and allocates another: one pair.
  void step() {
    replacement const r = list_[at_];
    at_ = (at_ + 1) & (list_.size() - 1);
    block& b = blocks_[r.slot];
    pool_.deallocate(stream_, b.address, b.bytes);
    b.address = pool_.allocate(stream_, r.bytes);
    b.bytes = r.bytes;
  }

 private:
  struct block {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  P& pool_;
  std::size_t stream_;
  std::vector<replacement> list_;
  std::vector<block> blocks_;
  std::size_t at_ = 0;
};

}  // namespace tarn::bench
