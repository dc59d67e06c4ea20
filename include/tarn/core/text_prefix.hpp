// SPDX-License-Identifier: Apache-2.0
#pragma once
// Truncates text to a number of bytes without splitting a UTF-8 character.

#include <cstddef>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns true for a UTF-8 continuation byte.
[[nodiscard]] constexpr bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// Returns at most `most` bytes from the front. O(1).
[[nodiscard]] constexpr std::string_view text_prefix(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && continues_character(text[most])) --most;
  return text.substr(0, most);
}
/// Returns at most `most` bytes from the end. O(1).
[[nodiscard]] constexpr std::string_view text_suffix(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  std::size_t begin = text.size() - most;
  while (begin < text.size() && continues_character(text[begin])) ++begin;
  return text.substr(begin);
}

}  // namespace TARN_NAMESPACE::detail
