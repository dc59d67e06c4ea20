// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the fuzzer's bytes as choices: one of n, a size, an alignment. When they run out every choice is the
// first one.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tarn_fuzz {

class choices {
 public:
  choices(std::uint8_t const* data, std::size_t size) noexcept
      : rest_(reinterpret_cast<char const*>(data), size) {}

  [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }

  [[nodiscard]] std::uint8_t byte() noexcept {
    if (rest_.empty()) return 0;
    auto const first = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return first;
  }
  /// A number of `bytes` bytes, lowest byte first.
  [[nodiscard]] std::uint64_t number(unsigned bytes) noexcept {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < bytes; ++i) value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }
  /// 0 to n - 1.
  [[nodiscard]] std::size_t below(std::size_t n) noexcept { return byte() % n; }

  /// 0 up to 2^most_bits, with equal probability for each order of magnitude: two bytes choose it, a third
  /// whether it lies on a power of two or next to one, where allocators tend to fail.
  [[nodiscard]] std::size_t size(unsigned most_bits) noexcept {
    std::size_t const power = std::size_t{1} << below(most_bits);
    std::uint8_t const how = byte();
    if (how < 32) return power;
    if (how < 64) return power + 1;
    if (how < 96) return power - 1;
    return power + power * how / 256 + byte();
  }
  /// 1 to 2 MiB; 256 as often as all others together.
  [[nodiscard]] std::size_t alignment() noexcept {
    std::uint8_t const how = byte();
    return how < 128 ? 256 : std::size_t{1} << (how % 22);
  }
  [[nodiscard]] std::string_view rest() noexcept {
    std::string_view const all = rest_;
    rest_ = {};
    return all;
  }

 private:
  std::string_view rest_;
};

}  // namespace tarn_fuzz
