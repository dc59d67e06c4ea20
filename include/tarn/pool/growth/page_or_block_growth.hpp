// SPDX-License-Identifier: Apache-2.0
#pragma once
// Growth over a page source that also has plain blocks. It grows by pages, or by segments of plain blocks where pages cannot be
// used: on a device without virtual memory management, and under a tool, since compute-sanitizer 2025.3.1 refuses heaps over
// mapped pages and counts each refusal as an error of the program.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/growth/growth.hpp"
#include "tarn/pool/growth/page_growth.hpp"
#include "tarn/pool/growth/segment_growth.hpp"
#include "tarn/pool/order/ordering.hpp"

namespace tarn::detail {

/// Provides pages, or blocks in their place. Which of them does not change after the first growth.
template <class S>
concept pages_or_blocks = page_source<S> && segment_source<S> && requires(S const& s) {
  { s.uses_blocks() } noexcept -> std::same_as<bool>;
};

template <pages_or_blocks Source>
class page_or_block_growth {
 public:
  using driver_type = typename Source::driver_type;

  page_or_block_growth(Source source, growth_counters& counters)
      : pages_(source, counters), segments_(static_cast<Source&&>(source), counters) {}

  [[nodiscard]] Source& source() noexcept { return pages_.source(); }
  [[nodiscard]] Source const& source() const noexcept { return pages_.source(); }

  /// Whether the memory is, or will be, segments of plain blocks.
  [[nodiscard]] bool uses_blocks() const noexcept { return source().uses_blocks(); }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return uses_blocks() ? segments_.contains(address) : pages_.contains(address);
  }
  [[nodiscard]] std::size_t device_bytes() const noexcept {
    return uses_blocks() ? segments_.device_bytes() : pages_.device_bytes();
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return segments_.host_bytes() + pages_.host_bytes();
  }
  bool grow(arena& a, may_release hot, ordering<driver_type>& order, growth_request const& request,
            void*& block) {
    if (uses_blocks()) return segments_.grow(a, hot, order, request, block);
    return pages_.grow(a, hot, order, request, block);
  }
  [[nodiscard]] std::size_t largest_block(arena const& a, std::size_t left, bool may_remap) const {
    return uses_blocks() ? segments_.largest_block(a, left, may_remap)
                         : pages_.largest_block(a, left, may_remap);
  }
  [[nodiscard]] std::size_t keep_before(arena const& a, growth_request const& request) const noexcept {
    return uses_blocks() ? segments_.keep_before(a, request) : pages_.keep_before(a, request);
  }
  std::size_t shrink(arena& a, may_release hot, std::size_t keep) {
    return uses_blocks() ? segments_.shrink(a, hot, keep) : pages_.shrink(a, hot, keep);
  }
  // Blocks cannot be given back and keep their addresses: under a tool, the pool sleeps and keeps its memory. On a device without
  // pages, the pool refuses to sleep.
  void save(arena const& a, may_release hot, contents where) {
    if (!uses_blocks()) pages_.save(a, hot, where);
  }
  std::size_t release() noexcept { return uses_blocks() ? 0 : pages_.release(); }
  std::size_t prepare_restore(arena& a, may_release hot) {
    return uses_blocks() ? 0 : pages_.prepare_restore(a, hot);
  }
  std::size_t restore(may_release hot) { return uses_blocks() ? 0 : pages_.restore(hot); }
  void keep(after_waking then) noexcept { pages_.keep(then); }
  void forget() noexcept { pages_.forget(); }
  std::size_t compact(arena& a, may_release hot, stream_ref stream) {
    return uses_blocks() ? 0 : pages_.compact(a, hot, stream);
  }
  [[nodiscard]] bool unmap_incomplete() noexcept { return pages_.unmap_incomplete(); }
  // Blocks have no handles: no segment is found.
  template <class F>
  [[nodiscard]] bool each_segment(arena const& a, std::uintptr_t address, std::size_t bytes, F const& f) {
    return !uses_blocks() && pages_.each_segment(a, address, bytes, f);
  }
  void pin(std::uintptr_t address, std::size_t bytes) noexcept { pages_.pin(address, bytes); }
  void unpin(std::uintptr_t address, std::size_t bytes) noexcept { pages_.unpin(address, bytes); }
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
  page_growth<Source> pages_;
  segment_growth<Source> segments_;
};

}  // namespace tarn::detail
