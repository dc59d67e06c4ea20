// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who called: the place in the user's source that an allocation is made for, past all policies and owners between. Only
// stacks with a layer that records places (policy/checked, watched) ever look at it; for others these are empty types.

#include <cstdint>
#include <type_traits>

#include "tarn/core/config.hpp"
#include "tarn/core/place.hpp"
#include "tarn/core/scope_chain.hpp"

namespace tarn {

/// Names the place for what is called in its scope, unless a caller further out has named one. Declare one to have all
/// that follows in the scope, owners included, told under its line: `tarn::call_place const here;`. A tag that comes
/// with a place further in is kept all the same, unless the outer one has a tag. Scopes may end in any order, each on the
/// thread that began it.
class call_place {
 public:
  explicit call_place(place where = place::current()) noexcept : where_(where) { chain::begin(*this); }
  call_place(call_place const&) = delete;
  call_place& operator=(call_place const&) = delete;
  ~call_place() { (void)chain::end(*this, "call_place"); }

  /// The outermost place named, or `otherwise`, with the tag of the outermost one that has a tag. O(places named).
  [[nodiscard]] static place current(place otherwise = {}) noexcept {
    call_place const* const p = chain::innermost();
    if (p == nullptr) return otherwise;
    if (p->outer_ != nullptr) [[unlikely]]
      return p->of_several();
    return p->where_;
  }
  /// The number of the tag of current(); 0: none.
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

/// call_place where nobody records: nothing.
struct no_call_place {
  explicit constexpr no_call_place(place) noexcept {}
};

}  // namespace tarn
