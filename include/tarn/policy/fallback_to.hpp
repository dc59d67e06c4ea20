// SPDX-License-Identifier: Apache-2.0
#pragma once
// fallback_to: another resource for what the first one cannot serve, such as managed or host memory.
// Above it: user code. Below it: compose.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/address_map.hpp"
#include "tarn/core/error.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn {

template <class Upstream, class Other>
class fallback_layer;

/// Asks `other` when the upstream throws out_of_memory. Its memory must be usable where the upstream's is.
template <class Other>
struct fallback_to {
  Other other;

  explicit fallback_to(Other resource) : other(std::move(resource)) {}

  template <class Upstream>
  using layer = fallback_layer<Upstream, Other>;
};

/// Each block goes back to where it came from: those of the fallback are remembered out of band. While none
/// is live, a deallocation costs one relaxed load more. Thread-safe.
template <class Upstream, class Other>
class fallback_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  fallback_layer(Upstream upstream, fallback_to<Other> options)
      : upstream_(std::move(upstream)), other_(std::move(options.other)) {}
  fallback_layer(fallback_layer const&) = delete;
  fallback_layer& operator=(fallback_layer const&) = delete;

  /// @throws out_of_memory  both refused; the error is the fallback's
  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    try {
      return upstream_.allocate(stream, bytes, alignment);
    } catch (out_of_memory const&) {
    }
    return remember([&] { return other_.allocate(stream, bytes, alignment); },
                    [&](void* p) { other_.deallocate(stream, p, bytes, alignment); });
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (forget(p)) {
      other_.deallocate(stream, p, bytes, alignment);
    } else {
      upstream_.deallocate(stream, p, bytes, alignment);
    }
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    try {
      return upstream_.allocate_sync(bytes, alignment);
    } catch (out_of_memory const&) {
    }
    return remember([&] { return other_.allocate_sync(bytes, alignment); },
                    [&](void* p) { other_.deallocate_sync(p, bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (forget(p)) {
      other_.deallocate_sync(p, bytes, alignment);
    } else {
      upstream_.deallocate_sync(p, bytes, alignment);
    }
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }
  /// Blocks that the fallback serves now.
  [[nodiscard]] std::size_t fallback_blocks() const noexcept {
    return count_.load(std::memory_order_relaxed);
  }

 private:
  template <class Allocate, class Undo>
  void* remember(Allocate const& allocate, Undo const& undo) {
    void* const p = allocate();
    if (p == nullptr) return p;
    try {
      std::lock_guard const guard(mutex_);
      blocks_.make_room(1);
      blocks_.insert(reinterpret_cast<std::uintptr_t>(p), true);
      count_.store(blocks_.size(), std::memory_order_relaxed);
    } catch (...) {
      undo(p);
      throw;
    }
    return p;
  }
  bool forget(void* p) noexcept {
    if (count_.load(std::memory_order_relaxed) == 0) return false;
    std::lock_guard const guard(mutex_);
    bool const found = blocks_.erase(reinterpret_cast<std::uintptr_t>(p));
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return found;
  }

  Upstream upstream_;
  Other other_;
  std::mutex mutex_;
  detail::address_map<bool> blocks_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace tarn
