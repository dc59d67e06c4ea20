// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth over a page source that a tool may watch. It grows by pages, or by segments of plain blocks if a tool is found, since
// compute-sanitizer 2025.3.1 refuses heaps over mapped pages and counts each refusal as an error of the program.

#include <cstddef>
#include <cstdint>

#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/pool/growth/page_growth.hpp"
#include "tarn/pool/growth/segment_growth.hpp"
#include "tarn/pool/order/ordering.hpp"

namespace tarn::detail {

/// Provides pages, and blocks in their place once a tool is found, which is before the first growth or never.
template <class S>
concept watched_pages = page_source<S> && segment_source<S> && requires(S const& s) {
  { s.described() } noexcept -> std::same_as<bool>;
};

template <watched_pages Source>
class described_growth {
 public:
  using driver_type = typename Source::driver_type;

  described_growth(Source source, growth_counters& counters)
      : pages_(source, counters), segments_(static_cast<Source&&>(source), counters) {}

  [[nodiscard]] Source& source() noexcept { return pages_.source(); }
  [[nodiscard]] Source const& source() const noexcept { return pages_.source(); }

  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return described() ? segments_.contains(address) : pages_.contains(address);
  }
  [[nodiscard]] std::size_t device_bytes() const noexcept {
    return described() ? segments_.device_bytes() : pages_.device_bytes();
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return segments_.host_bytes() + pages_.host_bytes();
  }
  bool grow(arena& a, may_release hot, ordering<driver_type>& order, growth_request const& request,
            void*& block) {
    if (described()) return segments_.grow(a, hot, order, request, block);
    return pages_.grow(a, hot, order, request, block);
  }
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    return described() ? segments_.shrink(a, hot, keep) : pages_.shrink(a, hot, keep);
  }
  template <class F>
  void for_each_held(F const& f) const {
    pages_.for_each_held(f);
    segments_.for_each_held(f);
  }
  void close() noexcept {
    segments_.close();
    pages_.close();
  }

 private:
  [[nodiscard]] bool described() const noexcept { return source().described(); }

  page_growth<Source> pages_;
  segment_growth<Source> segments_;
};

}  // namespace tarn::detail
