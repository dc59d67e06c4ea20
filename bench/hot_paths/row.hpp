// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is asked of one timing and what it gave.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tarn::bench {

/// How much is timed. The defaults serve a table; `quick` shows only that all runs.
struct plan {
  unsigned repetitions = 7;     ///< timed batches of a row; its figure is their median
  double batch_seconds = 0.01;  ///< of one batch
  double fill_seconds = 6;      ///< a pool that takes longer to get a window's blocks is left out of that row
  std::size_t tail_samples = 40000;  ///< timed operations of each kind in a batch of the tails
  std::size_t most_live = 1u << 20;  ///< no work with more live blocks

  [[nodiscard]] static plan quick() noexcept { return {3, 0.001, 1, 4000, 4096}; }
};

/// Nanoseconds per pair in batches.
struct spread {
  double median = 0;
  double best = 0;
  double worst = 0;
  unsigned repetitions = 0;
  std::uint64_t pairs = 0;  ///< in one batch
};

/// How long single operations took, nanoseconds, the clock's own cost taken off. Each quantile is the median of the
/// batches' quantiles; the longest is of all.
struct tail {
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double longest = 0;
};

/// One work on one pool.
struct row {
  std::string work;     ///< "window/256"
  std::string pool;     ///< "tarn"
  std::string device;   ///< host, sim or cuda
  std::string problem;  ///< why there is no figure; empty where there is one
  std::optional<spread> pair;
  std::optional<tail> allocate, deallocate;  ///< of the work "tail" only
  double clock_ns = 0;                       ///< what was taken off each operation of a tail
};

}  // namespace tarn::bench
