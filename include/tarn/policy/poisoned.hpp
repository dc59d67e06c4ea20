// SPDX-License-Identifier: Apache-2.0
#pragma once
// poisoned: fills memory when it is handed out and when it comes back, so that reading it too early or too
// late shows. Above it: user code. Below it: fill_pattern, compose.

#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/fill_pattern.hpp"

namespace tarn {

template <class Upstream>
class poisoned_layer;

/// Fills with pattern::uninitialised at allocation and pattern::freed at deallocation. For debugging.
struct poisoned {
  template <class Upstream>
  using layer = poisoned_layer<Upstream>;
};

/// Costs one fill of the whole block in stream order (about 2 us and its bandwidth) a call. Never
/// synchronises, but for the _sync calls, which wait for their fill.
template <class Upstream>
class poisoned_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  poisoned_layer() requires std::default_initializable<Upstream> : poisoned_layer(Upstream{}) {}
  explicit poisoned_layer(Upstream upstream, poisoned const& = {}) : upstream_(std::move(upstream)) {}
  poisoned_layer(poisoned_layer const&) = delete;
  poisoned_layer& operator=(poisoned_layer const&) = delete;

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    void* const p = upstream_.allocate(stream, bytes, alignment);
    if (p != nullptr) (void)detail::fill_bytes(driver(), stream, p, pattern::uninitialised, bytes);
    return p;
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) (void)detail::fill_bytes(driver(), stream, p, pattern::freed, bytes);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    void* const p = upstream_.allocate_sync(bytes, alignment);
    if (p == nullptr) return p;
    if (status const s = fill_and_wait(p, pattern::uninitialised, bytes); !s.ok()) {
      // The fill may still run, and would write over what the caller writes: the block goes back behind it.
      upstream_.deallocate(stream_ref{}, p, bytes, alignment);
      throw cuda_error(s, driver().device().value);
    }
    return p;
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr || fill_and_wait(p, pattern::freed, bytes).ok()) {
      upstream_.deallocate_sync(p, bytes, alignment);
    } else {
      upstream_.deallocate(stream_ref{}, p, bytes, alignment);
    }
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  status fill_and_wait(void* p, unsigned char byte, std::size_t bytes) noexcept {
    (void)detail::fill_bytes(driver(), stream_ref{}, p, byte, bytes);
    return driver().synchronize_stream(stream_ref{});
  }
  Upstream upstream_;
};

}  // namespace tarn
