// SPDX-License-Identifier: Apache-2.0
#pragma once
// What make_room() of a table has promised. If TARN_CHECK_LOCKS is 1, taking more stops the program, and so
// does taking it under another hold of the lock: between two holds another thread may use up the room. The
// random programs find a missing make_room() only so: the tables nearly always have room left.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tarn/core/config.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE::detail {

template <bool Checked>
class promised_room {
 public:
  /// From now on a promise ends when `hold`, the number of a lock's holds, changes.
  void ends_with(std::uint64_t const& hold) noexcept { hold_ = &hold; }
  void promise(std::size_t count) noexcept {
    left_ = is_valid() ? max_of(left_, count) : count;
    promised_in_ = now();
  }
  /// Takes one place of the room.
  void take() noexcept {
    if (is_valid() && left_-- != 0) return;
    std::fputs("tarn: a table was used without room; call make_room() while the same lock is held\n", stderr);
    std::abort();
  }

 private:
  [[nodiscard]] std::uint64_t now() const noexcept { return hold_ != nullptr ? *hold_ : 0; }
  [[nodiscard]] bool is_valid() const noexcept { return promised_in_ == now(); }

  std::uint64_t const* hold_ = nullptr;
  std::uint64_t promised_in_ = 0;
  std::size_t left_ = 0;
};
template <>
class promised_room<false> {
 public:
  void ends_with(std::uint64_t const&) noexcept {}
  void promise(std::size_t) noexcept {}
  void take() noexcept {}
};

}  // namespace TARN_NAMESPACE::detail
