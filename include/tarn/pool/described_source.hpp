// SPDX-License-Identifier: Apache-2.0
#pragma once
// described_source: a pool's source, which tells a tool of each mapping or segment while the pool has it.
// Above it: pool. Below it: description.

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/resource.hpp"
#include "tarn/pool/description.hpp"

namespace tarn::detail {

/// The source itself, but for what a tool must know. Lives no longer than the description.
template <class Source>
class described_source {
 public:
  using driver_type = typename Source::driver_type;
  using properties = typename Source::properties;

  described_source(Source source, description<driver_type>& told)
      : source_(std::move(source)), told_(&told) {}

  [[nodiscard]] Source& source() noexcept { return source_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return source_.driver(); }
  [[nodiscard]] device_id device() const { return source_.device(); }

  // Pages: what is mapped is a heap.

  [[nodiscard]] std::size_t granularity() const noexcept requires page_source<Source> {
    return source_.granularity();
  }
  [[nodiscard]] void* reserve(std::size_t bytes) requires page_source<Source> {
    return source_.reserve(bytes);
  }
  void unreserve(void* p, std::size_t bytes) noexcept requires page_source<Source> {
    source_.unreserve(p, bytes);
  }
  [[nodiscard]] page_handle create(std::size_t bytes) requires page_source<Source> {
    return source_.create(bytes);
  }
  void destroy(page_handle handle, std::size_t bytes) noexcept requires page_source<Source> {
    source_.destroy(handle, bytes);
  }
  void map(void* p, std::size_t bytes, page_handle handle) requires page_source<Source> {
    source_.map(p, bytes, handle);
    told_->heap_begins(p, bytes);
  }
  void unmap(void* p, std::size_t bytes) noexcept requires page_source<Source> {
    told_->heap_ends(p);
    source_.unmap(p, bytes);
  }

  // Blocks: each is a heap.

  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) requires resource<Source> {
    void* const p = source_.allocate_sync(bytes, alignment);
    told_->heap_begins(p, bytes);
    return p;
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept requires resource<Source> {
    told_->heap_ends(p);
    source_.deallocate_sync(p, bytes, alignment);
  }
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment) requires resource<Source> {
    void* const p = source_.allocate(stream, bytes, alignment);
    told_->heap_begins(p, bytes);
    return p;
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment) noexcept requires resource<Source> {
    told_->heap_ends(p);
    source_.deallocate(stream, p, bytes, alignment);
  }

  friend bool operator==(described_source const& a, described_source const& b) noexcept {
    return a.source_ == b.source_;
  }

 private:
  Source source_;
  description<driver_type>* told_;
};

/// How a pool over `Source` is described, and the source it then stands on.
template <class Source, bool = is_describable<Source>>
struct description_of {
  using type = no_description;
  using source_type = Source;
  static Source wrap(Source source, type&) { return source; }
  static Source& unwrap(Source& source) noexcept { return source; }
};
template <class Source>
struct description_of<Source, true> {
  using type = description<typename Source::driver_type>;
  using source_type = described_source<Source>;
  static source_type wrap(Source source, type& told) { return {std::move(source), told}; }
  static Source& unwrap(source_type& source) noexcept { return source.source(); }
};

}  // namespace tarn::detail
