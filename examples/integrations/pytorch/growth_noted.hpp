// SPDX-License-Identifier: Apache-2.0
#pragma once
// growth_noted: a policy below a pool that notes when the calling thread began to take memory from the device
// or to give it back.

#include <cstddef>
#include <cstdint>
#include <tarn/core/clock.hpp>
#include <tarn/tarn.hpp>
#include <utility>

namespace tarn_torch {

/// When this thread made the first such call since its caller set this to 0, by the steady clock in
/// nanoseconds; 0: none.
[[nodiscard]] inline std::uint64_t& growth_begin() noexcept {
  static thread_local std::uint64_t at = 0;
  return at;
}

template <class Upstream>
class growth_noted_layer;

/// `cuda_pages{0} | growth_noted{} | pooled{}`. The pool makes these calls under its growth lock.
struct growth_noted {
  template <class Upstream>
  using layer = growth_noted_layer<Upstream>;
};

template <class Upstream>
class growth_noted_layer : public tarn::resource_adaptor<growth_noted_layer<Upstream>, Upstream> {
  static_assert(tarn::page_source<Upstream>, "put growth_noted below the pool");
  using base = tarn::resource_adaptor<growth_noted_layer, Upstream>;

 public:
  explicit growth_noted_layer(Upstream upstream, growth_noted const& = {}) : base(std::move(upstream)) {}

  [[nodiscard]] std::size_t granularity() const noexcept { return this->upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return this->upstream().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { this->upstream().unreserve(p, bytes); }
  [[nodiscard]] tarn::page_handle create(std::size_t bytes) {
    note();
    return this->upstream().create(bytes);
  }
  void destroy(tarn::page_handle handle, std::size_t bytes) noexcept {
    note();
    this->upstream().destroy(handle, bytes);
  }
  void map(void* p, std::size_t bytes, tarn::page_handle handle) { this->upstream().map(p, bytes, handle); }
  void unmap(void* p, std::size_t bytes) noexcept {
    note();
    this->upstream().unmap(p, bytes);
  }
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires tarn::has_plain_blocks<Upstream>
  {
    note();
    return this->upstream().allocate_plain(bytes);
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires tarn::has_plain_blocks<Upstream>
  {
    note();
    this->upstream().deallocate_plain(p, bytes);
  }

 private:
  static void note() noexcept {
    if (growth_begin() == 0) growth_begin() = tarn::detail::steady_now_ns();
  }
};

}  // namespace tarn_torch
