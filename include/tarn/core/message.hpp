// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fixed-size text that is built without allocating: errors are told also when memory is out.
// Above it: error, everything that reports. Below it: nothing.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tarn {

/// Bounded text; what does not fit is cut, never overrun.
template <std::size_t Capacity>
class message {
 public:
  constexpr message& add(std::string_view text) noexcept {
    for (char const c : text) {
      if (size_ + 1 >= Capacity) break;
      text_[size_++] = c;
    }
    text_[size_] = '\0';
    return *this;
  }

  constexpr message& add_number(std::uint64_t value) noexcept {
    char digits[20]{};
    std::size_t n = 0;
    do {
      digits[n++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    while (n != 0) add(std::string_view(&digits[--n], 1));
    return *this;
  }

  constexpr message& add_number(int value) noexcept {
    if (value < 0) add("-");
    auto const wide = static_cast<std::int64_t>(value);
    return add_number(static_cast<std::uint64_t>(wide < 0 ? -wide : wide));
  }

  constexpr message& add_hex(std::uint64_t value) noexcept {
    add("0x");
    int shift = 60;
    while (shift > 0 && ((value >> shift) & 15U) == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) add(std::string_view(&"0123456789abcdef"[(value >> shift) & 15U], 1));
    return *this;
  }

  /// Writes bytes as people read them: "96 B", "1.5 KiB", "512 MiB"; at most one decimal, cut, not rounded.
  constexpr message& add_bytes(std::uint64_t bytes) noexcept {
    constexpr std::string_view units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    std::size_t unit = 0;
    std::uint64_t whole = bytes;
    std::uint64_t rest = 0;
    while (whole >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
      rest = whole % 1024;
      whole /= 1024;
      ++unit;
    }
    add_number(whole);
    if (std::uint64_t const tenth = rest * 10 / 1024; tenth != 0) add(".").add_number(tenth);
    return add(units[unit]);
  }

  [[nodiscard]] constexpr char const* c_str() const noexcept { return text_; }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {text_, size_}; }

 private:
  char text_[Capacity]{};
  std::size_t size_ = 0;
};

}  // namespace tarn
