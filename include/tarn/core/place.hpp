// SPDX-License-Identifier: Apache-2.0
#pragma once
// A place in the source. std::source_location where the compiler has it lacks clang 14, which tarn supports;
// the builtins behind it are everywhere.
// Above it: error, whoever records who called. Below it: nothing.

namespace tarn {

/// File, line and function of a call; static storage. Make it a default argument: `place where =
/// place::current()`.
struct place {
  char const* file = "";
  int line = 0;
  char const* function = "";

  [[nodiscard]] static constexpr place current(char const* file = __builtin_FILE(),
                                               int line = __builtin_LINE(),
                                               char const* function = __builtin_FUNCTION()) noexcept {
    return {file, line, function};
  }
};

}  // namespace tarn
