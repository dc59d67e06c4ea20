// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of one timing and its result.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tarn::bench {

/// How much is timed. The defaults give the figures of the tables; `quick` only checks that everything runs.
struct plan {
  unsigned repetitions = 7;     ///< timed batches per row; the figure is their median
  double batch_seconds = 0.01;  ///< per batch
  double fill_seconds =
      6;  ///< a pool that needs longer to allocate a window's blocks is left out of that row
  std::size_t tail_samples = 40000;  ///< timed operations of each kind per batch of the tails
  std::size_t most_live = 1u << 20;  ///< works with more live blocks are skipped
  std::size_t refusals = 1000;       ///< timed requests that are refused
  double refusal_seconds = 1;        ///< after which fewer of them do

  [[nodiscard]] static plan quick() noexcept { return {3, 0.001, 1, 4000, 4096, 20, 0.1}; }
};

/// Nanoseconds per pair, over batches.
struct spread {
  double median = 0;
  double best = 0;
  double worst = 0;
  unsigned repetitions = 0;
  std::uint64_t pairs = 0;  ///< per batch
};

/// Durations of single operations, nanoseconds, minus the clock's own cost. Each quantile is the median of
/// the batches' quantiles; the longest is over all batches.
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
  std::string problem;  ///< why there is no figure; empty if there is one
  std::optional<spread> pair;
  std::optional<tail> allocate, deallocate;  ///< only for the work "tail"
  std::optional<tail> refusal;               ///< from a request to its error; only for the works "fail"
  std::optional<std::uint64_t> free_ranges;  ///< in the pool meanwhile, where the pool reports them
  double clock_ns = 0;                       ///< subtracted from each operation of a tail
};

}  // namespace tarn::bench
