// SPDX-License-Identifier: Apache-2.0
#pragma once
// tagged: a handle on the same memory that gives a tag to all allocations through it.

#include <cstddef>
#include <string_view>
#include <utility>

#include "tarn/core/tag.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn {

template <class Upstream>
class tagged_layer;

/// `auto weights_memory = memory | tarn::tagged{"weights"};` over memory that is `with_history`. A call with a tag of its own keeps
/// it; this tag takes precedence over those of scopes. A block may be freed through any handle on the same memory.
struct tagged {
  tag name;

  explicit tagged(tag t) noexcept : name(t) {}
  explicit tagged(std::string_view n) noexcept : name(n) {}

  template <class Upstream>
  using layer = tagged_layer<Upstream>;
};

/// Costs two writes of a thread-local word per allocation.
template <class Upstream>
class tagged_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  tagged_layer(Upstream upstream, tagged const& options)
      : upstream_(std::move(upstream)), name_(options.name) {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    tag_scope const here(name_);
    return upstream_.allocate(stream, bytes, alignment);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    tag_scope const here(name_);
    return upstream_.allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }
  [[nodiscard]] tag name() const noexcept { return name_; }

 private:
  Upstream upstream_;
  tag name_;
};

}  // namespace tarn
