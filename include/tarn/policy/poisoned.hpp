// SPDX-License-Identifier: Apache-2.0
#pragma once
// poisoned: fills memory at allocation and deallocation, so that reading it too early or too late becomes visible.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/fill_pattern.hpp"
#include "tarn/policy/recorded_use.hpp"

namespace tarn {

template <class Upstream>
class poisoned_layer;

/// Fills with pattern::uninitialised at allocation and pattern::freed at deallocation. For debugging.
struct poisoned {
  template <class Upstream>
  using layer = poisoned_layer<Upstream>;
};

/// Costs one fill of the whole block per call, in stream order (about 2 us, plus its bytes at memory bandwidth). Never
/// synchronises, except for the _sync calls, which wait for their fill, and if the stream of a deallocation may be destroyed
/// and its work cannot be ordered on the device. Fills nothing while the stream is capturing a graph.
template <class Upstream>
class poisoned_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  poisoned_layer()
    requires std::default_initializable<Upstream>
      : poisoned_layer(Upstream{}) {}
  explicit poisoned_layer(Upstream upstream, poisoned const& = {}) : upstream_(std::move(upstream)) {}
  poisoned_layer(poisoned_layer const&) = delete;
  poisoned_layer& operator=(poisoned_layer const&) = delete;

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    void* const p = upstream_.allocate(stream, bytes, alignment);
    if (p != nullptr && !is_capturing(stream))
      (void)detail::fill_bytes(driver(), stream, p, pattern::uninitialised, bytes);
    return p;
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr && !is_used_elsewhere(p)) {
      stream_ref on = stream;
      bool ordered = true;
      if (detail::life_of(driver(), stream) != detail::stream_life::alive) {
        on = stream_ref{};
        ordered = detail::order_behind_lost(driver(), on).ok();
      }
      // Freed on the stream of the fill, so that no other caller gets the block before the fill.
      if (ordered && !is_capturing(on) && detail::fill_bytes(driver(), on, p, pattern::freed, bytes).ok())
        stream = on;
    }
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    void* const p = upstream_.allocate_sync(bytes, alignment);
    if (p == nullptr || is_capturing(stream_ref{})) return p;
    if (status const s = fill_and_wait(p, pattern::uninitialised, bytes); !s.ok()) {
      // The fill may still run, and would overwrite what the caller writes: free the block after the fill, in stream order.
      upstream_.deallocate(stream_ref{}, p, bytes, alignment);
      throw cuda_error(s, driver().device().value);
    }
    return p;
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr || is_used_elsewhere(p) || is_capturing(stream_ref{}) ||
        fill_and_wait(p, pattern::freed, bytes).ok()) {
      upstream_.deallocate_sync(p, bytes, alignment);
    } else {
      upstream_.deallocate(stream_ref{}, p, bytes, alignment);
    }
  }

  /// Such a block is not poisoned when it is freed: the other stream may still use it. @throws std::bad_alloc
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires detail::records_streams<Upstream>
  {
    bool added = false;
    if (p != nullptr) {
      std::lock_guard const guard(mutex_);
      added = !used_elsewhere_.find(reinterpret_cast<std::uintptr_t>(p));
      if (added) {
        used_elsewhere_.make_room(1);
        used_elsewhere_.insert(reinterpret_cast<std::uintptr_t>(p), true);
      }
      count_.store(used_elsewhere_.size(), std::memory_order_relaxed);
    }
    try {
      nearest(upstream_, detail::record_stream_call{p, bytes, stream});
    } catch (...) {
      if (added) (void)is_used_elsewhere(p);
      throw;
    }
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  [[nodiscard]] bool is_capturing(stream_ref stream) const noexcept {
    bool capturing = false;
    return driver().is_capturing(stream, capturing).ok() && capturing;
  }
  status fill_and_wait(void* p, unsigned char byte, std::size_t bytes) noexcept {
    (void)detail::fill_bytes(driver(), stream_ref{}, p, byte, bytes);
    return driver().synchronize_stream(stream_ref{});
  }
  /// Returns true, once, if record_stream() named the block.
  bool is_used_elsewhere(void* p) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    std::lock_guard const guard(mutex_);
    bool const found = used_elsewhere_.erase(reinterpret_cast<std::uintptr_t>(p));
    count_.store(used_elsewhere_.size(), std::memory_order_relaxed);
    return found;
  }

  Upstream upstream_;
  detail::fork_mutex mutex_;
  detail::address_map<bool> used_elsewhere_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace tarn
