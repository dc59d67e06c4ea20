// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text of unknown origin (tags, files, titles) written into a page so that it stays text.
// Above it: timeline_html. Below it: nothing.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::detail {

/// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none, overlong forms too.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return 0;
  unsigned const first = byte(0);
  if (first < 0x80) return 1;
  std::size_t const length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  unsigned const second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

/// Appends a JSON string, quotes included, that may stand inside a script element: `<`, `>` and `&` are escaped, so
/// that no text can end the element or begin a comment. What is no UTF-8 becomes U+FFFD. @throws std::bad_alloc
inline void add_script_string(std::string& to, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  to += '"';
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    char const first = text.front();
    auto const code = static_cast<unsigned char>(first);
    if (length == 0) {
      to += "\\ufffd";
    } else if (length > 1) {
      to += text.substr(0, length);
    } else if (first == '"' || first == '\\') {
      to += '\\';
      to += first;
    } else if (code < 0x20 || code == 0x7F || first == '<' || first == '>' || first == '&') {
      to += "\\u00";
      to += digits[code >> 4U];
      to += digits[code & 15U];
    } else {
      to += first;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  to += '"';
}

/// Appends text for an HTML element that holds text only, as a title. @throws std::bad_alloc
inline void add_html_text(std::string& to, std::string_view text) {
  for (; !text.empty(); text.remove_prefix(utf8_length(text) == 0 ? 1 : utf8_length(text))) {
    char const first = text.front();
    std::size_t const length = utf8_length(text);
    if (length == 0 || static_cast<unsigned char>(first) < 0x20) {
      to += "\xEF\xBF\xBD";
    } else if (first == '<') {
      to += "&lt;";
    } else if (first == '>') {
      to += "&gt;";
    } else if (first == '&') {
      to += "&amp;";
    } else {
      to += text.substr(0, length);
    }
  }
}

}  // namespace tarn::detail
