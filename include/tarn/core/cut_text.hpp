// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text that is cut to a number of bytes, not within a character of UTF-8.

#include <cstddef>
#include <string_view>

namespace tarn::detail {

/// True within a character: behind its first byte.
[[nodiscard]] constexpr bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// At most so many bytes from the front. O(1).
[[nodiscard]] constexpr std::string_view first_of_text(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && continues_character(text[most])) --most;
  return text.substr(0, most);
}
/// At most so many bytes from the end. O(1).
[[nodiscard]] constexpr std::string_view last_of_text(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  std::size_t begin = text.size() - most;
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return text.substr(begin);
}

}  // namespace tarn::detail
