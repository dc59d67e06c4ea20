// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a shared library has a copy of the C++ standard library in itself.

#include <dlfcn.h>

#include <exception>

namespace tarn_torch {

/// Returns true if the standard library that a shared library uses is linked into it. PyTorch uses the one of
/// the process: with two of different versions, locales and streams read each other's tables, and the first
/// message with a number crashes.
/// @param of_library  the address of a function of the library, which calls this
[[nodiscard]] inline bool has_own_standard_library(void const* of_library) noexcept {
  ::Dl_info library{};
  ::Dl_info standard{};
  return ::dladdr(of_library, &library) != 0 &&
         ::dladdr(reinterpret_cast<void const*>(&std::set_terminate), &standard) != 0 &&
         library.dli_fbase == standard.dli_fbase;
}

}  // namespace tarn_torch
