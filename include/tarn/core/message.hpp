// SPDX-License-Identifier: Apache-2.0
#pragma once
// A fixed-size text buffer that never allocates, so that errors can be reported when memory has run out.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE {

namespace detail {

// Not templates on the capacity: every message<N> would compile them again in every file. They append after
// the first `size` characters, reserve one for the terminator, and return the new size.

constexpr std::size_t append(char* to, std::size_t size, std::size_t capacity, char const* text,
                             std::size_t length) noexcept {
  for (std::size_t i = 0; i < length && size + 1 < capacity; ++i) to[size++] = text[i];
  to[size] = '\0';
  return size;
}

constexpr std::size_t append_number(char* to, std::size_t size, std::size_t capacity,
                                    std::uint64_t value) noexcept {
  char digits[20]{};
  std::size_t first = sizeof digits;
  do {
    digits[--first] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  return append(to, size, capacity, digits + first, sizeof digits - first);
}

constexpr std::size_t append_hex(char* to, std::size_t size, std::size_t capacity,
                                 std::uint64_t value) noexcept {
  size = append(to, size, capacity, "0x", 2);
  int shift = 60;
  while (shift > 0 && ((value >> shift) & 15U) == 0) shift -= 4;
  for (; shift >= 0; shift -= 4)
    size = append(to, size, capacity, &"0123456789abcdef"[(value >> shift) & 15U], 1);
  return size;
}

constexpr std::size_t append_bytes(char* to, std::size_t size, std::size_t capacity,
                                   std::uint64_t bytes) noexcept {
  constexpr char prefixes[] = "KMGTPE";
  std::size_t unit = 0;
  std::uint64_t rest = 0;
  for (; bytes >= 1024; bytes /= 1024, ++unit) rest = bytes % 1024;
  size = append_number(to, size, capacity, bytes);
  if (std::uint64_t const tenth = rest * 10 / 1024; tenth != 0) {
    size = append(to, size, capacity, ".", 1);
    size = append_number(to, size, capacity, tenth);
  }
  if (unit == 0) return append(to, size, capacity, " B", 2);
  char const name[] = {' ', prefixes[unit - 1], 'i', 'B'};
  return append(to, size, capacity, name, sizeof name);
}

}  // namespace detail

/// Text of bounded size; text that does not fit is truncated. Each capacity costs a compiler as much as the
/// first one: tarn.hpp has four.
template <std::size_t Capacity>
class message {
 public:
  constexpr message() noexcept = default;
  /// Adds texts, numbers, and addresses in hexadecimal.
  template <class... Parts>
    requires(sizeof...(Parts) != 0)
  constexpr explicit message(Parts... parts) noexcept {
    (put(parts), ...);
  }

  constexpr message& add(std::string_view text) noexcept {
    size_ = detail::append(text_, size_, Capacity, text.data(), text.size());
    return *this;
  }
  /// Appends a name that may have any bytes.
  constexpr message& add_printable(std::string_view text) noexcept {
    detail::put_printable(text, [this](std::string_view part) noexcept { add(part); });
    return *this;
  }
  constexpr message& add_number(std::uint64_t value) noexcept {
    size_ = detail::append_number(text_, size_, Capacity, value);
    return *this;
  }
  constexpr message& add_number(int value) noexcept {
    if (value < 0) add("-");
    auto const wide = static_cast<std::int64_t>(value);
    return add_number(static_cast<std::uint64_t>(wide < 0 ? -wide : wide));
  }
  constexpr message& add_hex(std::uint64_t value) noexcept {
    size_ = detail::append_hex(text_, size_, Capacity, value);
    return *this;
  }
  /// Appends a byte count in human-readable form: "96 B", "1.5 KiB", "512 MiB"; at most one decimal,
  /// truncated.
  constexpr message& add_bytes(std::uint64_t bytes) noexcept {
    size_ = detail::append_bytes(text_, size_, Capacity, bytes);
    return *this;
  }

  /// Removes what follows the first `size` characters.
  constexpr void truncate(std::size_t size) noexcept {
    if (size < size_) text_[size_ = size] = '\0';
  }

  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  [[nodiscard]] constexpr char const* c_str() const noexcept { return text_; }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {text_, size_}; }

 private:
  template <class Part>
  constexpr void put(Part part) noexcept {
    if constexpr (std::is_convertible_v<Part, std::string_view>) {
      add(part);
    } else if constexpr (std::is_pointer_v<Part>) {
      add_hex(reinterpret_cast<std::uintptr_t>(part));
    } else if constexpr (std::is_same_v<Part, int>) {
      add_number(part);
    } else {
      add_number(std::uint64_t{part});
    }
  }

  char text_[Capacity]{};
  std::size_t size_ = 0;
};

}  // namespace TARN_NAMESPACE
