// SPDX-License-Identifier: Apache-2.0
#pragma once
// require_apart(): checks that the source and target of a copy do not overlap.

#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"

namespace tarn::detail {

/// @throws misuse  of kind `overlap`, with `what_to_do`, if the ranges share a byte
inline void require_apart(void const* from, std::size_t from_bytes, void const* to, std::size_t to_bytes,
                          char const* what_to_do) {
  auto const source = reinterpret_cast<std::uintptr_t>(from);
  auto const target = reinterpret_cast<std::uintptr_t>(to);
  if (source < target + to_bytes && target < source + from_bytes)
    throw misuse(misuse_kind::overlap, to, what_to_do);
}

}  // namespace tarn::detail
