// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text: concatenation, and the UTF-8 in it: truncated, repaired and made printable.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

// Printable text: names of tags and files are arbitrary bytes, which must not reach a terminal as they are.

/// Returns the length of the well-formed character at the start of `text`, 0 if there is none (the Unicode
/// Standard, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
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

/// Whether a well-formed character of `length` bytes at the start of `text` controls a terminal: U+0000 to
/// U+001F and U+007F to U+009F.
[[nodiscard]] constexpr bool is_control(std::string_view text, std::size_t length) noexcept {
  auto const first = static_cast<unsigned char>(text[0]);
  if (length == 1) return first < 0x20 || first == 0x7F;
  return length == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
}

/// Calls put(part) with parts of the text, in order: a blank for each control character, a question mark for
/// each byte that belongs to no character, all others as they are. Together they are not longer than the
/// text.
template <class Put>
constexpr void put_printable(std::string_view text, Put const& put) {
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    if (length == 0) {
      put(std::string_view("?"));
    } else {
      put(is_control(text, length) ? std::string_view(" ") : text.substr(0, length));
    }
    text.remove_prefix(length != 0 ? length : 1);
  }
}

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

/// Returns the text with blanks before it, so that it has at least `width` bytes.
[[nodiscard]] inline std::string right(std::string_view text, std::size_t width) {
  std::string out(text.size() < width ? width - text.size() : 0, ' ');
  return out += text;
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
