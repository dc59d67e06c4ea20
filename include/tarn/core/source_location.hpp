// SPDX-License-Identifier: Apache-2.0
#pragma once
// A source location. std::source_location is not available with clang 14, which tarn supports; the builtins
// behind it are available everywhere.

#include "tarn/version.hpp"

#if defined(__NVCC__) && !defined(__clang__)
// nvcc corrupts a default argument that has one of these builtins: 12.4 where a constraint calls the
// function, 13.0 where a default member initialiser does. It crashes, or compiles another expression. So nvcc
// gets ordinary functions of the same names. The host compiler preprocesses what nvcc writes: it expands the
// name of their namespace to nothing, so `::` finds the builtins. The functions are templates because an
// unqualified call in other code must prefer the builtins.
#pragma push_macro("__REGISTER_PREFIX__")
#undef __REGISTER_PREFIX__
namespace __REGISTER_PREFIX__ {
template <class... None>
constexpr char const* __builtin_FILE(None...) noexcept {
  return "";
}
template <class... None>
constexpr int __builtin_LINE(None...) noexcept {
  return 0;
}
template <class... None>
constexpr char const* __builtin_FUNCTION(None...) noexcept {
  return "";
}
}  // namespace __REGISTER_PREFIX__
#define TARN_OF_CALLER(WHAT) __REGISTER_PREFIX__::__builtin_##WHAT()
#else
#define TARN_OF_CALLER(WHAT) __builtin_##WHAT()
#endif

namespace TARN_NAMESPACE {

/// File, line and function of a call; static storage. Use it as a default argument:
/// `source_location where = source_location::current()`.
struct source_location {
  char const* file = "";
  int line = 0;
  char const* function = "";

  [[nodiscard]] static constexpr source_location current(
      char const* file = TARN_OF_CALLER(FILE), int line = TARN_OF_CALLER(LINE),
      char const* function = TARN_OF_CALLER(FUNCTION)) noexcept {
    return {file, line, function};
  }
};

}  // namespace TARN_NAMESPACE

#undef TARN_OF_CALLER
#if defined(__NVCC__) && !defined(__clang__)
#pragma pop_macro("__REGISTER_PREFIX__")
#endif
