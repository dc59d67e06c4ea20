// SPDX-License-Identifier: Apache-2.0
#pragma once
// Encodes numbers for the page: LEB128 (seven bits per byte, low bits first, the top bit set if more bytes
// follow) in base64, which is plain text in HTML. An event takes 4 to 8 characters; as JSON it would take
// 100.

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Writes numbers to a stream incrementally with a 4 KiB buffer. Call finish() last.
class html_numbers {
 public:
  explicit html_numbers(std::ostream& out) noexcept : out_(out) {}
  html_numbers(html_numbers const&) = delete;
  html_numbers& operator=(html_numbers const&) = delete;

  void add(std::uint64_t number) {
    for (; number > 127; number >>= 7U) add_byte(static_cast<std::uint8_t>(number | 128U));
    add_byte(static_cast<std::uint8_t>(number));
  }
  /// Writes the signed difference of two numbers in zigzag encoding: small if they are close.
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

}  // namespace TARN_NAMESPACE::detail
