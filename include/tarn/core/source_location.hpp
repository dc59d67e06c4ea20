// SPDX-License-Identifier: Apache-2.0
#pragma once
// A source location. std::source_location is not available with clang 14, which tarn supports; the builtins behind it are
// available everywhere.

#include <cstdint>

namespace tarn {

class tag;

/// File, line and function of a call; static storage. Use it as a default argument: `source_location where = source_location::current()`.
struct source_location {
  char const* file = "";
  int line = 0;
  std::uint32_t tag_id = 0;  ///< tag passed to the call, see core/tag; 0: none
  char const* function = "";

  constexpr source_location() noexcept = default;
  constexpr source_location(char const* in, int at, char const* of) noexcept
      : file(in), line(at), function(of) {}
  /// The place of the call, with the tag that was passed in its stead: every function that takes a place accepts a tag, too,
  /// `make_device_buffer<float>(memory, n, stream, tarn::tag("weights"))`. Defined in core/tag.
  source_location(tag const& name, char const* in = __builtin_FILE(), int at = __builtin_LINE(),
                  char const* of = __builtin_FUNCTION()) noexcept;

  [[nodiscard]] static constexpr source_location current(
      char const* file = __builtin_FILE(), int line = __builtin_LINE(),
      char const* function = __builtin_FUNCTION()) noexcept {
    return {file, line, function};
  }
};

}  // namespace tarn
