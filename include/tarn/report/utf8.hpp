// SPDX-License-Identifier: Apache-2.0
#pragma once
// UTF-8 repair: names of files and tags are arbitrary bytes, but JSON and pickles require UTF-8.

#include <cstddef>
#include <string>
#include <string_view>

#include "tarn/core/printable.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns the text with U+FFFD in place of each byte that belongs to no character.
[[nodiscard]] inline std::string as_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    out += length != 0 ? text.substr(0, length) : std::string_view("\xEF\xBF\xBD");
    text.remove_prefix(length != 0 ? length : 1);
  }
  return out;
}

/// Returns the text as it may be printed: see put_printable().
[[nodiscard]] inline std::string as_printable(std::string_view text) {
  std::string out;
  put_printable(text, [&](std::string_view part) { out += part; });
  return out;
}

}  // namespace TARN_NAMESPACE::detail
