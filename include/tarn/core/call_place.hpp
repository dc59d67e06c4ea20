// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who called: the place in the user's source that an allocation is made for, past all policies and owners between. Only
// stacks with a layer that records places (policy/checked, watched) ever look at it; for others these are empty types.
// Above it: shared, owners, checked. Below it: place.

#include <type_traits>

#include "tarn/core/place.hpp"

namespace tarn {

namespace detail {
/// The outermost place named on this thread, and whether there is one.
struct named_place {
  place where{};
  bool is_named = false;
};
inline thread_local constinit named_place outermost_place{};
}  // namespace detail

/// Names the place for what is called in its scope, unless a caller further out has named one. Declare one to have all
/// that follows in the scope, owners included, told under its line: `tarn::call_place const here;`. A tag that comes
/// with a place further in is kept all the same, unless the outer one has a tag.
class call_place {
 public:
  explicit call_place(place where = place::current()) noexcept : named_(!detail::outermost_place.is_named) {
    if (named_) {
      detail::outermost_place = {where, true};
    } else if (where.tag_id != 0 && detail::outermost_place.where.tag_id == 0) {
      detail::outermost_place.where.tag_id = where.tag_id;
      tagged_ = true;
    }
  }
  call_place(call_place const&) = delete;
  call_place& operator=(call_place const&) = delete;
  ~call_place() {
    if (named_) detail::outermost_place.is_named = false;
    if (tagged_) detail::outermost_place.where.tag_id = 0;
  }

  /// The outermost place named, or `otherwise`.
  [[nodiscard]] static place current(place otherwise = {}) noexcept {
    return detail::outermost_place.is_named ? detail::outermost_place.where : otherwise;
  }

 private:
  bool named_;
  bool tagged_ = false;
};

/// call_place where nobody records: nothing.
struct no_call_place {
  explicit constexpr no_call_place(place) noexcept {}
};

}  // namespace tarn
