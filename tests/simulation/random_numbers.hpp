// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers from a seed, the same on every machine and with every standard library (splitmix64).

#include <cstdint>

namespace simulation {

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) noexcept : state_(seed * 0xD1342543DE82EF95 + 1) {}

  std::uint64_t operator()() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  /// One of 0 .. n - 1; n is not 0. The bias towards small numbers is below one in a billion here.
  std::uint64_t below(std::uint64_t n) noexcept { return (*this)() % n; }
  /// One of least .. most.
  std::uint64_t between(std::uint64_t least, std::uint64_t most) noexcept {
    return least + below(most - least + 1);
  }
  /// True in `n` of a hundred calls.
  bool percent(unsigned n) noexcept { return below(100) < n; }

 private:
  std::uint64_t state_;
};

}  // namespace simulation
