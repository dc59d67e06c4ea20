// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place in the user's source that an allocation is attributed to, across all policies and owners in between. Only stacks
// with a layer that records places (policy/checked, watched) use it; for all others it is an empty type.

#include <cstdint>
#include <type_traits>

#include "tarn/core/config.hpp"
#include "tarn/core/place.hpp"
#include "tarn/core/scope_chain.hpp"

namespace tarn {

/// Sets the place for all calls in its scope, unless an enclosing scope has set one. Declare one to attribute every allocation
/// that follows in the scope, including those of owners, to its line: `tarn::call_place const here;`. A tag given with an
/// inner place is kept unless an outer one has a tag. Scopes may end in any order, each on the thread that began it.
class call_place {
 public:
  explicit call_place(place where = place::current()) noexcept : where_(where) { chain::begin(*this); }
  call_place(call_place const&) = delete;
  call_place& operator=(call_place const&) = delete;
  ~call_place() { (void)chain::end(*this, "call_place"); }

  /// Returns the outermost place, or `otherwise` if there is none, with the outermost tag. O(scopes).
  [[nodiscard]] static place current(place otherwise = {}) noexcept {
    call_place const* const p = chain::innermost();
    if (p == nullptr) return otherwise;
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several();
    return p->where_;
  }
  /// Returns the tag number of current(); 0: none.
  [[nodiscard]] static std::uint32_t current_tag_id() noexcept {
    call_place const* const p = chain::innermost();
    if (p == nullptr) return 0;
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several().tag_id;
    return p->where_.tag_id;
  }

 private:
  using chain = detail::scope_chain<call_place>;
  friend chain;

  [[nodiscard]] TARN_NOINLINE place of_several() const noexcept {
    call_place const* p = this;
    std::uint32_t tag_id = where_.tag_id;
    while (p->outer_ != nullptr) {
      p = p->outer_;
      if (p->where_.tag_id != 0) tag_id = p->where_.tag_id;
    }
    place found = p->where_;
    found.tag_id = tag_id;
    return found;
  }

  place where_;
  call_place* outer_ = nullptr;
};

/// Replaces call_place where no layer records places; does nothing.
struct no_call_place {
  explicit constexpr no_call_place(place) noexcept {}
};

}  // namespace tarn
