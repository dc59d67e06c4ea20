// SPDX-License-Identifier: Apache-2.0
#pragma once
// Escapes untrusted text (tags, files, titles) for a page, so that it stays text.

#include <cstddef>
#include <string>
#include <string_view>

#include "tarn/report/utf8.hpp"

namespace tarn::detail {

/// Appends a JSON string, including quotes, that is safe inside a script element: `<`, `>` and `&` are escaped, so that no text
/// can end the element or begin a comment. Invalid UTF-8 becomes U+FFFD. @throws std::bad_alloc
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

/// Appends text for an HTML element that contains only text, such as a title. @throws std::bad_alloc
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
