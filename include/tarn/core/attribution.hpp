// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an allocation is attributed to in reports: the line of the user's call, and a tag if one was given.

#include <cstdint>

#include "tarn/core/source_location.hpp"

namespace TARN_NAMESPACE {

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

}  // namespace TARN_NAMESPACE
