// SPDX-License-Identifier: Apache-2.0
#pragma once
// UTF-8 validation and repair: names of files and tags are arbitrary bytes, but JSON and pickles require UTF-8.

#include <cstddef>
#include <string>
#include <string_view>

namespace tarn::detail {

/// Returns the length of the well-formed character at the start of `text`, 0 if there is none (the Unicode Standard, table 3-7:
/// no overlong forms, no surrogates, nothing above U+10FFFF).
[[nodiscard]] constexpr std::size_t utf8_length(std::string_view text) noexcept {
  auto const at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  auto const follows = [&](std::size_t i, unsigned least, unsigned most) {
    return at(i) >= least && at(i) <= most;
  };
  unsigned const first = at(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    unsigned const least = first == 0xE0 ? 0xA0 : 0x80;
    unsigned const most = first == 0xED ? 0x9F : 0xBF;
    return follows(1, least, most) && follows(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    unsigned const least = first == 0xF0 ? 0x90 : 0x80;
    unsigned const most = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, least, most) && follows(2, 0x80, 0xBF) && follows(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

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

}  // namespace tarn::detail
