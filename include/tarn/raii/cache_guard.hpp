// SPDX-License-Identifier: Apache-2.0
#pragma once
// cache_guard: clears a pool's cache when a scope begins and ends.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

/// When and how far a cache_guard clears the cache. `every_nth` needs a counter that outlives the guards.
struct cache_guard_options {
  std::size_t keep_bytes = 0;  ///< reserved bytes to keep
  /// clears only while the device has less free memory than this, bytes
  std::size_t only_if_free_below = ~std::size_t{0};
  std::uint32_t every_nth = 1;                    ///< clears in one of this many scopes
  std::atomic<std::uint32_t>* counter = nullptr;  ///< counts the scopes so far; null: every scope
};

/// Returns cached memory to the driver on entry and exit of a scope, as a pair of torch.cuda.empty_cache
/// calls does, so that another library can use the memory inside and the scope leaves nothing cached. Live
/// memory is not touched. Each clearing costs one trim(). An error in the destructor is ignored.
template <class Pool>
class cache_guard {
 public:
  explicit cache_guard(Pool pool, cache_guard_options options = {})
      : pool_(std::move(pool)), options_(options) {
    if (options_.counter != nullptr && options_.every_nth > 1) {
      active_ = options_.counter->fetch_add(1, std::memory_order_relaxed) % options_.every_nth == 0;
    }
    clear();
  }
  cache_guard& operator=(cache_guard&&) = delete;
  ~cache_guard() {
    try {
      clear();
    } catch (...) {
    }
  }

  /// Returns the bytes that this guard has released so far.
  [[nodiscard]] std::size_t released_bytes() const noexcept { return released_; }

 private:
  void clear() {
    if (!active_) return;
    if (options_.only_if_free_below != ~std::size_t{0}) {
      std::size_t free = 0;
      std::size_t total = 0;
      if (pool_.driver().memory_info(free, total).ok() && free >= options_.only_if_free_below) return;
    }
    released_ += pool_.trim(options_.keep_bytes);
  }

  Pool pool_;
  cache_guard_options options_;
  bool active_ = true;
  std::size_t released_ = 0;
};

}  // namespace TARN_NAMESPACE
