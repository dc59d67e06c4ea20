// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measurements of one replay of one trace on one pool.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tarn::bench {

/// One row. Unknown fields are empty.
struct figures {
  std::string trace;
  std::string pool;
  std::string options;                               ///< of a pool of tarn's; empty: its defaults
  std::string device;                                ///< host, sim or cuda
  std::uint64_t events = 0;                          ///< per pass
  std::uint64_t peak_live = 0;                       ///< bytes, requested
  std::optional<std::uint64_t> peak_reserved;        ///< bytes held from the driver, over all passes
  std::vector<std::uint64_t> peak_reserved_of_pass;  ///< empty if the pool cannot reset its peak
  std::optional<std::uint64_t> driver_calls;         ///< of the first pass
  std::optional<std::uint64_t> driver_calls_warm;    ///< of the second pass
  std::vector<double> ns_per_event_of_pass;          ///< host time
  double cold_ns_per_event = 0;                      ///< host time of the first pass
  std::optional<double> warm_ns_per_event;           ///< host time of the later passes, median
  std::optional<double> warm_best_ns_per_event;      ///< of the fastest one
  double driver_ns_cold = 0;        ///< modelled driver time of the first pass; simulated device only
  double driver_ns_warm = 0;        ///< modelled driver time of the second pass
  std::uint64_t out_of_memory = 0;  ///< refused requests, all passes together
  unsigned passes = 0;
  unsigned threads = 1;

  /// Returns peak live requested bytes / peak reserved bytes; empty if requests were refused.
  [[nodiscard]] std::optional<double> utilisation() const noexcept {
    if (!peak_reserved || *peak_reserved == 0 || out_of_memory != 0) return std::nullopt;
    return static_cast<double>(peak_live) / static_cast<double>(*peak_reserved);
  }
  [[nodiscard]] std::optional<std::uint64_t> peak_reserved_first() const noexcept {
    return peak_reserved_of_pass.empty() ? std::nullopt : std::optional(peak_reserved_of_pass.front());
  }
  [[nodiscard]] std::optional<std::uint64_t> peak_reserved_last() const noexcept {
    return peak_reserved_of_pass.empty() ? std::nullopt : std::optional(peak_reserved_of_pass.back());
  }
  /// Returns the peak reserved of the last pass / that of the first: above 1, reserved memory creeps.
  [[nodiscard]] std::optional<double> creep() const noexcept {
    if (peak_reserved_of_pass.empty() || peak_reserved_of_pass.front() == 0) return std::nullopt;
    return static_cast<double>(peak_reserved_of_pass.back()) /
           static_cast<double>(peak_reserved_of_pass.front());
  }
};

}  // namespace tarn::bench
