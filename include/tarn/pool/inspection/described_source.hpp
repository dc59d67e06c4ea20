// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pool's source as the pool uses it: it provides blocks in place of pages where pages cannot be used, and reports each segment
// to a tool while the pool holds it.

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/resource.hpp"
#include "tarn/pool/inspection/description.hpp"
#include "tarn/source/missing_pages.hpp"

namespace tarn::detail {

/// The source, blocks in place of its pages, and reports to a tool. Must not outlive the description.
template <class Source, class Description>
class described_source {
 public:
  using described_type = Source;
  using driver_type = typename Source::driver_type;
  using properties = typename Source::properties;

  described_source(Source source, Description& regions)
      : source_(std::move(source)), regions_(&regions), has_pages_(detail::has_pages(source_)) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  /// Whether the pool's memory is plain blocks: the device has no pages, or a tool was found, which happens before the first growth
  /// or never.
  [[nodiscard]] bool uses_blocks() const noexcept { return !has_pages_ || regions_->has_tool(); }
  /// Whether the device has pages, or the source never had any.
  [[nodiscard]] bool has_pages() const noexcept { return has_pages_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return source_.driver(); }
  [[nodiscard]] device_id device() const { return source_.device(); }

  // Pages are not reported, since no tool accepts them as heaps.

  [[nodiscard]] std::size_t granularity() const noexcept
    requires page_source<Source>
  {
    return source_.granularity();
  }
  [[nodiscard]] void* reserve(std::size_t bytes)
    requires page_source<Source>
  {
    return source_.reserve(bytes);
  }
  void unreserve(void* p, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.unreserve(p, bytes);
  }
  [[nodiscard]] page_handle create(std::size_t bytes)
    requires page_source<Source>
  {
    return source_.create(bytes);
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.destroy(handle, bytes);
  }
  void map(void* p, std::size_t bytes, page_handle handle)
    requires page_source<Source>
  {
    source_.map(p, bytes, handle);
  }
  void unmap(void* p, std::size_t bytes) noexcept
    requires page_source<Source>
  {
    source_.unmap(p, bytes);
  }

  // Whole blocks, which are a pool's segments: each is a heap.

  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (uses_blocks()) {
      void* const p = take_plain(bytes, alignment);
      regions_->heap_begins(p, bytes);
      return p;
    }
    if constexpr (has_allocate_sync<Source>) {
      return source_.allocate_sync(bytes, alignment);
    } else {
      return nullptr;  // a pool that uses pages takes no blocks
    }
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (uses_blocks()) {
      regions_->heap_ends(p);
      give_plain(p, bytes, alignment);
    } else if constexpr (has_deallocate_sync<Source>) {
      source_.deallocate_sync(p, bytes, alignment);
    }
  }

  friend bool operator==(described_source const& a, described_source const& b) noexcept {
    return a.source_ == b.source_;
  }

 private:
  [[nodiscard]] void* take_plain(std::size_t bytes, [[maybe_unused]] std::size_t alignment) {
    if constexpr (has_plain_blocks<Source>) {
      return source_.allocate_plain(bytes);
    } else {
      return source_.allocate_sync(bytes, alignment);
    }
  }
  void give_plain(void* p, std::size_t bytes, [[maybe_unused]] std::size_t alignment) noexcept {
    if constexpr (has_plain_blocks<Source>) {
      source_.deallocate_plain(p, bytes);
    } else {
      source_.deallocate_sync(p, bytes, alignment);
    }
  }

  Source source_;
  Description* regions_;
  bool has_pages_;
};

/// The description of a pool over `Source`, and the source that the pool then uses.
template <class Source, bool = is_describable<Source> || (page_source<Source> && has_plain_blocks<Source>)>
struct description_of {
  using type = no_description;
  using source_type = Source;
  static Source wrap(Source source, type&) { return source; }
  static Source& unwrap(Source& source) noexcept { return source; }
};
template <class Source, bool IsDescribable>
struct description_for {
  using type = no_description;
};
template <class Source>
struct description_for<Source, true> {
  using type = description<typename Source::driver_type>;
};
template <class Source>
struct description_of<Source, true> {
  using type = typename description_for<Source, is_describable<Source>>::type;
  using source_type = described_source<Source, type>;
  static source_type wrap(Source source, type& regions) { return {std::move(source), regions}; }
  static Source& unwrap(source_type& source) noexcept { return source.source(); }
};

}  // namespace tarn::detail
