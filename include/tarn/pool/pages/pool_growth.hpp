// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a pool gets memory from its source: by pages, or by segments where the source has none or they cannot
// be used. That is so on a device without virtual memory management, and under a tool, since
// compute-sanitizer 2025.3.1 refuses heaps over mapped pages and counts each refusal as an error of the
// program. Which of them it is does not change after the first growth.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/resource.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/page_growth.hpp"
#include "tarn/pool/pages/segment_growth.hpp"
#include "tarn/pool/tool/tool_regions.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

template <memory_source Source>
class pool_growth {
 public:
  using driver_type = typename Source::driver_type;
  using regions_type = typename tool_regions_of<Source>::type;

  /// @throws cuda_error  of kind `unsupported`: the device has no pages, and a layer over the source does not
  /// pass plain blocks on
  pool_growth(Source source, growth_counters& counters, regions_type& tool)
      : source_(std::move(source)),
        tool_(tool),
        has_pages_(detail::has_pages(source_)),
        pages_(source_, counters),
        segments_(source_, counters, tool) {
    if constexpr (may_be_pages && !may_be_segments) require_pages(source_, layer_keeps_blocks);
  }
  pool_growth& operator=(pool_growth&&) = delete;

  [[nodiscard]] Source& source() noexcept { return source_; }
  /// Whether the device has pages, or the source never had any.
  [[nodiscard]] bool has_pages() const noexcept { return has_pages_; }
  /// Whether the memory is plain blocks in place of what the source is made for.
  [[nodiscard]] bool uses_plain_blocks() const noexcept {
    return has_plain_blocks<Source> && (!has_pages_ || tool_.active());
  }
  [[nodiscard]] bool uses_pages() const noexcept { return may_be_pages && !uses_plain_blocks(); }

  /// Calls f with the pages or the segments, whichever the memory is.
  template <class F>
  decltype(auto) visit(F const& f) {
    if constexpr (!may_be_segments) {
      return f(pages_);
    } else if constexpr (!may_be_pages) {
      return f(segments_);
    } else {
      return uses_pages() ? f(pages_) : f(segments_);
    }
  }
  /// Calls f with the pages, if the memory is pages; otherwise returns Result().
  template <class Result = void, class F>
  Result visit_pages(F const& f) {
    if constexpr (may_be_pages) {
      if (uses_pages()) return f(pages_);
    }
    return Result();
  }

  [[nodiscard]] bool contains(std::uintptr_t address) noexcept {
    return visit([&](auto const& memory) { return memory.contains(address); });
  }
  std::size_t shrink(growth_lock const& growing, arena& a, may_release hot, std::size_t keep) {
    return visit([&](auto& memory) { return memory.shrink(growing, a, hot, keep); });
  }

 private:
  static constexpr bool may_be_pages = page_source<Source>;
  static constexpr bool may_be_segments = !may_be_pages || has_plain_blocks<Source>;
  /// In place of a kind that the source cannot have.
  struct none {
    template <class... Arguments>
    explicit constexpr none(Arguments&...) noexcept {}
  };
  template <bool Has, template <class> class Kind>
  struct kind {
    using type = none;
  };
  template <template <class> class Kind>
  struct kind<true, Kind> {
    using type = Kind<Source>;
  };

  Source source_;
  regions_type& tool_;
  bool const has_pages_;
  typename kind<may_be_pages, page_growth>::type pages_;
  typename kind<may_be_segments, segment_growth>::type segments_;
};

}  // namespace TARN_NAMESPACE::detail
