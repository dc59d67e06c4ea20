// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a target reports a broken guarantee: it prints a message and calls abort(), and the fuzzer keeps the
// input. With TARN_FUZZ_PRINT in the environment it also prints each step, so that a finding can be read as a
// program.

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tarn_fuzz {

inline void promise(bool kept, char const* what, std::string const& more = {}) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s%s%s\n", what, more.empty() ? "" : ": ", more.c_str());
  std::abort();
}

/// print_step("allocate", "stream", 1, "bytes", 300): one line per step.
template <class... Words>
void print_step(Words const&... words) {
  static bool const asked = std::getenv("TARN_FUZZ_PRINT") != nullptr;
  if (!asked) return;
  auto const text = [](auto const& word) {
    if constexpr (requires { std::to_string(word); }) {
      return std::to_string(word);
    } else {
      return std::string(word);
    }
  };
  std::string line;
  ((line += text(words) + ' '), ...);
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace tarn_fuzz
