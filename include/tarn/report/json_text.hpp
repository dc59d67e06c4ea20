// SPDX-License-Identifier: Apache-2.0
#pragma once
// json_text: an incremental JSON writer that places commas, quotes and escapes correctly for any text.
// Allocates only for the current escaped text.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>

#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE::detail {

/// Where the text stands. In a script element `<`, `>` and `&` are escaped, so that no text can end the
/// element or begin a comment.
enum class json_in : std::uint8_t { file, script };

class json_text {
 public:
  explicit json_text(std::ostream& out, json_in where = json_in::file) : out_(out), where_(where) {}
  json_text& operator=(json_text&&) = delete;

  json_text& begin_object() { return open('{'); }
  json_text& end_object() { return close('}'); }
  json_text& begin_array() { return open('['); }
  json_text& end_array() { return close(']'); }

  /// Writes the name of an object member, before its value. The name is a constant of the writer.
  json_text& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ':';
    follows_ = false;
    return *this;
  }
  json_text& text(std::string_view value) {
    separate();
    quote(value);
    return *this;
  }
  template <class Number>
    requires std::is_integral_v<Number>
  json_text& number(Number value) {
    separate();
    put(value, 10);
    return *this;
  }
  json_text& boolean(bool value) {
    separate();
    text_ += value ? "true" : "false";
    return *this;
  }
  /// Writes an address as text ("0x2000000"): a JavaScript number has 53 bits, an address 64.
  json_text& address(std::uintptr_t value) {
    separate();
    text_ += "\"0x";
    put(value, 16);
    text_ += '"';
    return *this;
  }
  /// Writes nanoseconds as microseconds with three decimals.
  json_text& microseconds(std::uint64_t nanoseconds) {
    separate();
    put(nanoseconds / 1000, 10);
    char const fraction[] = {'.', static_cast<char>('0' + nanoseconds / 100 % 10),
                             static_cast<char>('0' + nanoseconds / 10 % 10),
                             static_cast<char>('0' + nanoseconds % 10)};
    text_.append(fraction, sizeof fraction);
    return *this;
  }
  json_text& field(std::string_view name, std::string_view value) { return key(name).text(value); }
  template <class Number>
    requires std::is_integral_v<Number>
  json_text& field(std::string_view name, Number value) {
    return key(name).number(value);
  }
  /// Starts a new line, for readability.
  json_text& line() {
    starts_line_ = true;
    return *this;
  }

  /// Writes the buffered text; call it last.
  void flush() {
    out_.write(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.clear();
  }

 private:
  static constexpr std::size_t buffered = std::size_t{1} << 16;

  json_text& open(char bracket) {
    separate();
    text_ += bracket;
    follows_ = false;
    return *this;
  }
  json_text& close(char bracket) {
    text_ += bracket;
    follows_ = true;
    return *this;
  }
  void separate() {
    if (follows_) text_ += ',';
    if (starts_line_) text_ += '\n';
    follows_ = true;
    starts_line_ = false;
    if (text_.size() >= buffered) flush();
  }
  template <class Number>
  void put(Number value, int base) {
    char digits[32];
    auto const end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
    text_.append(digits, static_cast<std::size_t>(end - digits));
  }
  void quote(std::string_view value) {
    text_ += '"';
    while (!value.empty()) {
      std::size_t const length = utf8_length(value);
      if (length == 1) {
        escape(value.front());
      } else {
        text_ += length != 0 ? value.substr(0, length) : std::string_view("\xEF\xBF\xBD");
      }
      value.remove_prefix(length != 0 ? length : 1);
    }
    text_ += '"';
  }
  void escape(char c) {
    bool const is_markup = where_ == json_in::script && (c == '<' || c == '>' || c == '&' || c == '\x7F');
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) >= 0x20 && !is_markup) {
      text_ += c;
    } else {
      text_ += "\\u00";
      text_ += static_cast<char>('0' + c / 16);
      text_ += "0123456789abcdef"[c % 16];
    }
  }

  std::ostream& out_;
  json_in const where_;
  std::string text_;
  bool follows_ = false;
  bool starts_line_ = false;
};

}  // namespace TARN_NAMESPACE::detail
