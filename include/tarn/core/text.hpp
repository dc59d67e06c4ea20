// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text: concatenation, and truncation to a number of bytes without splitting a UTF-8 character.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns the concatenation of the parts, with one allocation. Use it in place of `"text" +
/// std::string(...)`: g++ 12 inlines that operator and then warns in the user's program (-Wrestrict), at -O2
/// and above. @throws std::bad_alloc
[[nodiscard]] inline std::string concat(std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view const part : parts) size += part.size();
  std::string out;
  out.reserve(size);
  for (std::string_view const part : parts) out += part;
  return out;
}

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
