// SPDX-License-Identifier: Apache-2.0
#pragma once
// random_source: random integers from a seed, the same with every standard library; the distributions of
// <random> differ.

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace tarn::bench {

class random_source {
 public:
  explicit random_source(std::uint64_t seed) : engine_(seed) {}

  /// Returns a number from `least` to `most`, both included.
  std::uint64_t between(std::uint64_t least, std::uint64_t most) {
    return least + engine_() % (most - least + 1);
  }

  /// Returns a number from `least` to `least << octaves`: each factor of two is equally likely.
  std::uint64_t log_between(std::uint64_t least, unsigned octaves) {
    std::uint64_t const octave = least << between(0, octaves - 1);
    return between(octave, 2 * octave);
  }

  /// Returns true once in `times` calls on average.
  bool one_in(std::uint64_t times) { return between(1, times) == 1; }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[between(0, i - 1)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tarn::bench
