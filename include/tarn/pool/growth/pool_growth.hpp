// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a pool gets memory from its source: by pages, or by segments where the source has none or they cannot be used. That is so on a
// device without virtual memory management, and under a tool, since compute-sanitizer 2025.3.1 refuses heaps over mapped pages and counts
// each refusal as an error of the program. Which of them it is does not change after the first growth.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/resource.hpp"
#include "tarn/core/sleeping.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/pool/growth/page_growth.hpp"
#include "tarn/pool/growth/segment_growth.hpp"
#include "tarn/pool/inspection/description.hpp"
#include "tarn/pool/order/ordering.hpp"
#include "tarn/source/missing_pages.hpp"

namespace tarn::detail {

template <memory_source Source>
class pool_growth {
 public:
  using driver_type = typename Source::driver_type;
  using description_type = typename description_of<Source>::type;

  /// @throws cuda_error  of kind `unsupported`: the device has no pages, and a layer over the source does not pass plain blocks on
  pool_growth(Source source, growth_counters& counters, description_type& tool)
      : source_(std::move(source)),
        tool_(tool),
        has_pages_(detail::has_pages(source_)),
        pages_(source_, counters),
        segments_(source_, counters, tool) {
    if constexpr (may_be_pages && !may_be_segments) require_pages(source_, layer_keeps_blocks);
  }
  pool_growth(pool_growth const&) = delete;
  pool_growth& operator=(pool_growth const&) = delete;

  [[nodiscard]] Source& source() noexcept { return source_; }
  /// Whether the device has pages, or the source never had any.
  [[nodiscard]] bool has_pages() const noexcept { return has_pages_; }
  /// Whether the memory is plain blocks in place of what the source is made for.
  [[nodiscard]] bool uses_plain_blocks() const noexcept {
    return has_plain_blocks<Source> && (!has_pages_ || tool_.has_tool());
  }
  [[nodiscard]] bool uses_pages() const noexcept { return may_be_pages && !uses_plain_blocks(); }

  // Of both kinds.

  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return of_memory(*this, [&](auto& memory) { return memory.contains(address); });
  }
  bool grow(arena& a, may_release hot, ordering<driver_type>& order, growth_request const& request,
            void*& block) {
    return of_memory(*this, [&](auto& memory) { return memory.grow(a, hot, order, request, block); });
  }
  [[nodiscard]] std::size_t largest_block(arena const& a, std::size_t left, bool may_remap) const {
    return of_memory(*this, [&](auto& memory) { return memory.largest_block(a, left, may_remap); });
  }
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return of_memory(*this, [&](auto& memory) { return memory.keep_before(a, request); });
  }
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    return of_memory(*this, [&](auto& memory) { return memory.shrink(a, hot, keep); });
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return of_memory(*this, [](auto& memory) { return memory.host_bytes(); });
  }
  template <class F>
  void for_each_held(F const& f) const {
    of_memory(*this, [&](auto& memory) { memory.for_each_held(f); });
  }
  void close() noexcept {
    of_memory(*this, [](auto& memory) { memory.close(); });
  }

  // Of pages. Blocks cannot be given back and keep their addresses: under a tool, the pool sleeps and keeps its memory. On a device
  // without pages, the pool refuses to sleep. Blocks have no handles: no segment is found.

  void save(arena const& a, may_release hot, contents where) {
    of_pages([&](auto& pages) { pages.save(a, hot, where); });
  }
  std::size_t release() noexcept {
    return of_pages<std::size_t>([](auto& pages) { return pages.release(); });
  }
  std::size_t prepare_restore(arena& a, may_release hot) {
    return of_pages<std::size_t>([&](auto& pages) { return pages.prepare_restore(a, hot); });
  }
  std::size_t restore(may_release hot) {
    return of_pages<std::size_t>([&](auto& pages) { return pages.restore(hot); });
  }
  void keep(after_waking then) noexcept {
    of_pages([&](auto& pages) { pages.keep(then); });
  }
  void forget() noexcept {
    of_pages([](auto& pages) { pages.forget(); });
  }
  std::size_t compact(arena& a, may_release hot, stream_ref stream) {
    return of_pages<std::size_t>([&](auto& pages) { return pages.compact(a, hot, stream); });
  }
  [[nodiscard]] bool unmap_incomplete() noexcept {
    return of_pages<bool>([](auto& pages) { return pages.unmap_incomplete(); });
  }
  template <class F>
  [[nodiscard]] bool each_segment(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    return of_pages<bool>([&](auto& pages) { return pages.each_segment(a, address, bytes, f); });
  }
  void pin(std::uintptr_t address, std::size_t bytes) noexcept {
    of_pages([&](auto& pages) { pages.pin(address, bytes); });
  }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept {
    of_pages([&](auto& pages) { pages.unpin(address, bytes); });
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

  /// Calls f with the pages or the segments.
  template <class Self, class F>
  static decltype(auto) of_memory(Self& self, F const& f) {
    if constexpr (!may_be_segments) {
      return f(self.pages_);
    } else if constexpr (!may_be_pages) {
      return f(self.segments_);
    } else {
      return self.uses_pages() ? f(self.pages_) : f(self.segments_);
    }
  }

  /// Calls f with the pages, if the memory is pages.
  template <class Result = void, class F>
  Result of_pages(F const& f) {
    if constexpr (may_be_pages) {
      if (uses_pages()) return f(pages_);
    }
    return Result();
  }

  Source source_;
  description_type& tool_;
  bool const has_pages_;
  typename kind<may_be_pages, page_growth>::type pages_;
  typename kind<may_be_segments, segment_growth>::type segments_;
};

}  // namespace tarn::detail
