// SPDX-License-Identifier: Apache-2.0
#pragma once
// tagged: a handle on the same memory that gives a tag to all allocations through it. `tracked` counts them,
// `traced` writes them to a file, `logged` passes them to a hook.

#include <string_view>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class tagged_layer;

/// `auto weights_memory = memory | tarn::tagged{"weights"};` over memory that is `with_history`. A call with
/// a tag of its own keeps it; this tag takes precedence over those of scopes. A block may be freed through
/// any handle on the same memory.
struct tagged {
  tag name;

  explicit tagged(tag t) noexcept : name(t) {}
  explicit tagged(std::string_view n) noexcept : name(n) {}

  template <class Upstream>
  using layer = tagged_layer<Upstream>;
};

/// Costs two writes of a thread-local word per allocation.
template <class Upstream>
class tagged_layer : public resource_adaptor<tagged_layer<Upstream>, Upstream> {
  using base = resource_adaptor<tagged_layer<Upstream>, Upstream>;

 public:
  tagged_layer(Upstream upstream, tagged const& options) : base(std::move(upstream)), name_(options.name) {}

  TARN_ALWAYS_INLINE void* around_allocate(request const& r, auto const& next) {
    tag_scope const here(name_);
    return next.allocate(r);
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }

  [[nodiscard]] tag name() const noexcept { return name_; }

 private:
  tag name_;
};

}  // namespace TARN_NAMESPACE
