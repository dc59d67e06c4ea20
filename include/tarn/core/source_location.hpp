// SPDX-License-Identifier: Apache-2.0
#pragma once
// A source location. std::source_location is not available with clang 14, which tarn supports; the builtins behind it are
// available everywhere.

namespace tarn {

/// File, line and function of a call; static storage. Use it as a default argument:
/// `source_location where = source_location::current()`.
struct source_location {
  char const* file = "";
  int line = 0;
  char const* function = "";

  [[nodiscard]] static constexpr source_location current(
      char const* file = __builtin_FILE(), int line = __builtin_LINE(),
      char const* function = __builtin_FUNCTION()) noexcept {
    return {file, line, function};
  }
};

}  // namespace tarn
