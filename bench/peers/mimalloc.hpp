// SPDX-License-Identifier: Apache-2.0
#pragma once
// Microsoft's mimalloc, where it is installed. Above it: the lists of pools. Below it: peer, libmimalloc.

#include <mimalloc.h>

#include <algorithm>

#include "peers/peer.hpp"

namespace tarn::bench {

/// mi_malloc and mi_free. Its peak is what it has committed, as it says itself.
class mimalloc {
 public:
  static constexpr std::string_view name = "mimalloc";
  static constexpr std::string_view about = "mi_malloc and mi_free of mimalloc, memory never touched";
  static constexpr place_of_memory where = place_of_memory::host;

  explicit mimalloc(setup const& s) : room_(s.capacity == 0 ? ~std::uint64_t{0} : s.capacity) {
    mi_collect(true);
    before_ = committed();
  }

  void* allocate(std::size_t /*stream*/, std::size_t bytes) noexcept {
    if (bytes > room_) return nullptr;
    void* const block = mi_malloc(bytes);
    if (block != nullptr) room_ -= bytes;
    return block;
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t bytes) noexcept {
    if (block != nullptr) room_ += bytes;
    mi_free(block);
  }
  [[nodiscard]] usage used() const noexcept { return {peak_, std::nullopt, 0}; }

  void sample() noexcept { peak_ = std::max(peak_, committed() - std::min(committed(), before_)); }

 private:
  static std::uint64_t committed() noexcept {
    std::size_t ms = 0, user = 0, system = 0, rss = 0, peak_rss = 0, commit = 0, peak_commit = 0, faults = 0;
    mi_process_info(&ms, &user, &system, &rss, &peak_rss, &commit, &peak_commit, &faults);
    return commit;
  }
  std::uint64_t room_;  // bytes of the capacity that are left
  std::uint64_t before_ = 0;
  std::uint64_t peak_ = 0;
};
static_assert(sampled_peer<mimalloc>);

}  // namespace tarn::bench
