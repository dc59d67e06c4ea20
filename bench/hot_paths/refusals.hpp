// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time to fail, for any pool: from a request that cannot be served to the error.
//
//   fail/full/B   B bytes requested from a pool with 100,000 free ranges on a full device

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "hot_paths/entry.hpp"
#include "hot_paths/timing.hpp"
#include "peers/ballast.hpp"
#include "peers/peer.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace hot {

/// Memory of a pool that is filled: enough for 200,000 blocks, also if each occupies 64 KiB.
inline constexpr std::size_t full_bytes = 16_GiB;
inline constexpr std::size_t free_ranges = 100'000;
/// Above what tarn cuts from runs of equal blocks: a free block of a run is no range.
inline constexpr std::size_t range_bytes = 36_KiB;
inline constexpr std::size_t filling_bytes = 2_MiB;
inline constexpr std::size_t refused_bytes[] = {1_MiB, 64_MiB};

/// Requests a block. Returns null if it is refused.
template <peer P>
[[nodiscard]] void* request(P& pool, std::size_t bytes) {
  try {
    return pool.allocate(0, bytes);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

/// A pool without room: live blocks with free ranges between them, and blocks that fill all other memory.
template <peer P>
class full_pool {
 public:
  /// @throws cannot  the blocks around the free ranges are refused, or filling takes too long
  full_pool(plan const& p, setup const& s) : pool_(s) {
    try {
      deadline const until(p.fill_seconds);
      make_ranges(std::min(free_ranges, p.most_live), until);
      for (std::size_t bytes = filling_bytes; bytes >= refused_bytes[0]; bytes /= 2) {
        while (add(bytes)) {
          if (until.over()) throw cannot("filling takes too long");
        }
      }
    } catch (...) {
      release();
      throw;
    }
  }
  ~full_pool() { release(); }
  full_pool(full_pool const&) = delete;
  full_pool& operator=(full_pool const&) = delete;

  [[nodiscard]] P& pool() noexcept { return pool_; }

 private:
  struct block {
    void* address = nullptr;
    std::size_t bytes = 0;
  };
  bool add(std::size_t bytes) {
    void* const p = request(pool_, bytes);
    if (p != nullptr) blocks_.push_back({p, bytes});
    return p != nullptr;
  }
  /// Allocates twice as many blocks, and frees every second one in the order of addresses.
  void make_ranges(std::size_t count, deadline const& until) {
    for (std::size_t i = 0; i < 2 * count; ++i) {
      if (i % 256 == 0 && until.over()) throw cannot("filling takes too long");
      if (!add(range_bytes)) throw cannot("a block is refused");
    }
    std::sort(blocks_.begin(), blocks_.end(),
              [](block const& a, block const& b) { return std::less<>()(a.address, b.address); });
    std::vector<block> kept;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (i % 2 == 0) {
        kept.push_back(blocks_[i]);
      } else {
        pool_.deallocate(0, blocks_[i].address, blocks_[i].bytes);
      }
    }
    blocks_ = std::move(kept);
  }
  void release() noexcept {
    for (block const& b : blocks_) pool_.deallocate(0, b.address, b.bytes);
    blocks_.clear();
  }
  P pool_;
  std::vector<block> blocks_;
};

/// Times requests that are refused, one by one, the first one included.
/// @throws cannot  one is served
template <peer P>
void time_refusals(P& pool, std::size_t bytes, plan const& p, row& r) {
  constexpr std::size_t fewest = 5;
  tick_clock const& clock = tick_clock::calibrated();
  deadline const until(p.refusal_seconds);
  std::vector<std::uint64_t> ticks;
  ticks.reserve(p.refusals);
  while (ticks.size() < p.refusals && (ticks.size() < fewest || !until.over())) {
    std::uint64_t const start = clock.now();
    void* const served = request(pool, bytes);
    ticks.push_back(clock.now() - start);
    if (served == nullptr) continue;
    pool.deallocate(0, served, bytes);
    throw cannot("a request that should be refused is served");
  }
  tail_recorder refused(ticks.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) refused.at(i, ticks[i]);
  refused.end_batch();
  r.refusal = refused.result();
  r.clock_ns = clock.own_ticks * clock.ns_per_tick;
}

template <peer P>
void refused_when_full(plan const& p, row& r, std::size_t bytes, std::size_t capacity) {
  ballast const others(P::where == place_of_memory::cuda ? capacity : 0);
  setup s;
  s.capacity = capacity;
  full_pool<P> full(p, s);
  if constexpr (requires { full.pool().state(); }) {
    r.free_ranges = full.pool().state().free_blocks;
    if (*r.free_ranges < std::min(free_ranges, p.most_live)) throw cannot("the pool has fewer free ranges");
  }
  time_refusals(full.pool(), bytes, p, r);
}

}  // namespace hot

/// Adds the refusals by a full device, for one pool.
template <peer P>
void add_refusals(std::vector<entry>& list) {
  if constexpr (P::where != place_of_memory::host && is_pool<P>) {
    for (std::size_t const bytes : hot::refused_bytes) {
      list.push_back(
          {"fail/full/" + std::to_string(bytes), std::string(P::name), std::string(to_text(P::where)), 1,
           [bytes](plan const& p, row& r) { hot::refused_when_full<P>(p, r, bytes, hot::full_bytes); }});
    }
  }
}

}  // namespace tarn::bench
