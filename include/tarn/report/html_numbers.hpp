// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers as a page carries them: bytes of seven bits each, least first, the top bit saying that more follow (LEB128);
// the bytes in base64, whose letters are plain text to HTML. An event takes 4 to 8 characters where JSON takes 100.

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace tarn::detail {

/// Writes numbers to a stream as they come; keeps 4 KiB. Call finish() last.
class html_numbers {
 public:
  explicit html_numbers(std::ostream& out) noexcept : out_(out) {}
  html_numbers(html_numbers const&) = delete;
  html_numbers& operator=(html_numbers const&) = delete;

  void add(std::uint64_t number) {
    for (; number > 127; number >>= 7U) add_byte(static_cast<std::uint8_t>(number | 128U));
    add_byte(static_cast<std::uint8_t>(number));
  }
  /// The way from one number to another, either direction: small where they are near (zigzag).
  void add_step(std::uint64_t from, std::uint64_t to) {
    add(to >= from ? (to - from) << 1U : ((from - to) << 1U) - 1);
  }
  void finish() {
    if (bytes_ != 0) {
      std::size_t const real = bytes_ + 1;
      while (bytes_ != 0) add_byte(0);
      for (std::size_t i = real; i < 4; ++i) text_[size_ - 4 + i] = '=';
    }
    flush();
  }

 private:
  void add_byte(std::uint8_t byte) {
    group_ = group_ << 8U | byte;
    if (++bytes_ < 3) return;
    constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (size_ == sizeof text_) flush();
    for (unsigned shift = 24; shift != 0;) {
      shift -= 6;
      text_[size_++] = letters[group_ >> shift & 63U];
    }
    group_ = 0;
    bytes_ = 0;
  }
  void flush() {
    out_.write(text_, static_cast<std::streamsize>(size_));
    size_ = 0;
  }

  std::ostream& out_;
  std::uint32_t group_ = 0;
  std::size_t bytes_ = 0;
  std::size_t size_ = 0;
  char text_[4096]{};
};

}  // namespace tarn::detail
