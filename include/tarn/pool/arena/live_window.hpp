// SPDX-License-Identifier: Apache-2.0
#pragma once
// How much memory was live lately: the peak of live bytes over the last allocations from the arena. If it has
// fallen, the pool gives back by itself what it no longer needs (heap::give_back_unused). Pure arithmetic.
//
// Time is counted in bytes taken from the arena, in steps of a multiple of the reserved bytes. Blocks that a
// thread takes from its own cache are not counted: a warm call costs nothing, and a program of warm calls
// alone keeps its memory.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE::detail {

class live_window {
 public:
  /// The window has this many steps: memory is given back once the live peak stayed lower for all of them.
  static constexpr unsigned steps = 4;
  /// The volume of a step at first, in multiples of the reserved bytes, and by which part of the live peak
  /// the window's peak must be lower. With 32 and an eighth, or 16 and a quarter, 20 passes of the recorded
  /// traces and of the patterns of tarn_replay give nothing back. With 16 and an eighth, two of them give
  /// back what they need again: warm passes of `bert_recompute` take 10 times the driver time. Bytes beyond
  /// the live peak are no reason: given back, the free parts of handles between live blocks become more, and
  /// up to 0.05 of the utilisation was lost.
  static constexpr std::size_t first_factor = 32;
  static constexpr std::size_t least_fall = 8;
  /// With this factor the pool no longer gives back by itself.
  static constexpr std::size_t last_factor = std::size_t{1} << 20;

  /// Counts one allocation. @param live  live bytes with it
  void note(std::size_t bytes, std::size_t live) noexcept {
    volume_ += bytes;
    peak_[0] = max_of(peak_[0], live);
  }
  [[nodiscard]] bool is_step_over() const noexcept { return volume_ >= step_ends_; }

  /// The live peak of the window, bytes.
  [[nodiscard]] std::size_t peak() const noexcept {
    std::size_t most = 0;
    for (std::size_t const p : peak_) most = max_of(most, p);
    return most;
  }
  /// Bytes taken since the start.
  [[nodiscard]] std::size_t volume() const noexcept { return volume_; }
  /// The volume of a step, in multiples of the reserved bytes.
  [[nodiscard]] std::size_t factor() const noexcept { return factor_; }

  /// Ends a step and begins the next one. Returns whether the live peak of the last steps was lower than
  /// `live_peak` was before.
  bool end_step(std::size_t reserved, std::size_t live, std::size_t live_peak) noexcept {
    // What was given back is needed again: the window was too short. It gets twice the volume, so a program
    // whose peaks return creates handles for this reason only as often as the logarithm of the bytes that it
    // allocates.
    if (before_ != 0 && reserved > after_ + (before_ - after_) / 2) {
      factor_ = min_of(factor_ * 2, last_factor);
      before_ = 0;
      ended_ = 0;
    }
    ended_ = min_of(ended_ + 1, steps);
    bool const fell = ended_ == steps && factor_ < last_factor && peak() < live_peak - live_peak / least_fall;
    for (unsigned i = steps - 1; i > 0; --i) peak_[i] = peak_[i - 1];
    peak_[0] = live;
    step_ends_ = volume_ + max_of(reserved, least_reserved) * factor_;
    return fell;
  }
  /// Notes that `given` bytes were given back because the peak fell. @param left  bytes that stay reserved
  void note_given(std::size_t given, std::size_t left) noexcept {
    if (given == 0) return;
    before_ = max_of(before_, left + given);
    after_ = left;
  }

 private:
  static constexpr std::size_t least_reserved = 64_MiB;

  std::size_t volume_ = 0;
  std::size_t step_ends_ = 0;     ///< at this volume
  std::size_t peak_[steps] = {};  ///< live peaks of the steps, the current one first
  unsigned ended_ = 0;            ///< steps that ended, up to all
  std::size_t factor_ = first_factor;
  /// most reserved bytes before a release, since a release was last a mistake; 0 if there was none
  std::size_t before_ = 0;
  std::size_t after_ = 0;  ///< reserved bytes after the last release
};

}  // namespace TARN_NAMESPACE::detail
