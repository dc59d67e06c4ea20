// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place in the user's source that an allocation is attributed to, across all policies and owners in
// between. Only stacks with a layer that records places (debug/checked, logged, with_history) use it; for all
// others it is an empty type.

#include <cstdint>
#include <type_traits>

#include "tarn/core/config.hpp"
#include "tarn/core/scope_chain.hpp"
#include "tarn/core/source_location.hpp"

namespace TARN_NAMESPACE {

// What an allocation is attributed to in reports: the line of the user's call, and a tag if one was given.

class tag;

/// The last parameter of every call that allocates: `attribution from = attribution::current()`. A call
/// without it is attributed to its own line. With a tag, `make_device_buffer<float>(memory, n, stream,
/// tarn::tag("weights"))`, it is attributed to its line and the tag.
struct attribution {
  source_location where;
  std::uint32_t tag_id = 0;  ///< of the tag that was given; 0: none

  constexpr attribution() noexcept = default;
  constexpr attribution(source_location at) noexcept : where(at) {}
  /// Defined in core/tag.
  attribution(tag const& name, source_location at = source_location::current()) noexcept;

  [[nodiscard]] static constexpr attribution current(
      source_location at = source_location::current()) noexcept {
    return at;
  }
};

/// Sets the place for all calls in its scope, unless an enclosing scope has set one. Declare one to attribute
/// every allocation that follows in the scope, including those of owners, to its line: `tarn::location_scope
/// const here;`. A tag given with an inner place is kept unless an outer one has a tag. Scopes may end in any
/// order, each on the thread that began it.
class location_scope {
 public:
  explicit location_scope(attribution from = attribution::current()) noexcept : from_(from) {
    chain::begin(*this);
  }
  location_scope& operator=(location_scope&&) = delete;
  ~location_scope() { (void)chain::end(*this, "location_scope"); }

  /// Returns the location set by the outermost scope, or an empty one if there is none. O(scopes).
  [[nodiscard]] static source_location current() noexcept {
    location_scope const* const p = chain::innermost();
    if (p == nullptr) return {};
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several().where;
    return p->from_.where;
  }
  /// Returns the tag number of current(); 0: none.
  [[nodiscard]] static std::uint32_t current_tag_id() noexcept {
    location_scope const* const p = chain::innermost();
    if (p == nullptr) return 0;
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several().tag_id;
    return p->from_.tag_id;
  }

 private:
  using chain = detail::scope_chain<location_scope>;
  friend chain;

  [[nodiscard]] TARN_NOINLINE attribution of_several() const noexcept {
    location_scope const* p = this;
    std::uint32_t tag_id = from_.tag_id;
    while (p->outer_ != nullptr) {
      p = p->outer_;
      if (p->from_.tag_id != 0) tag_id = p->from_.tag_id;
    }
    attribution found = p->from_;
    found.tag_id = tag_id;
    return found;
  }

  attribution from_;
  location_scope* outer_ = nullptr;
};

namespace detail {
/// For calls that a container or an algorithm makes: its line says nothing to the user. That of a
/// location_scope around it does.
[[nodiscard]] inline attribution unknown_place() noexcept {
  return location_scope::current();
}
}  // namespace detail

/// Replaces location_scope where no layer records places; does nothing.
struct no_location_scope {
  explicit constexpr no_location_scope(attribution const&) noexcept {}
};

}  // namespace TARN_NAMESPACE
