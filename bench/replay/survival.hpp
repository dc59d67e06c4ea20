// SPDX-License-Identifier: Apache-2.0
#pragma once
// The result of one replay of one trace on one pool on a device with a cap.

#include <cstdint>
#include <string>

namespace tarn::bench {

/// The result of one replay under one cap.
struct survival {
  std::string trace;
  std::string pool;
  std::string device;
  double factor = 0;                ///< multiple of the trace's peak of live requested bytes
  std::uint64_t cap = 0;            ///< bytes of the device: that product, rounded up to 2 MiB
  std::uint64_t free_at_start = 0;  ///< bytes that the device actually had free when the pool was created
  std::uint64_t events = 0;
  std::uint64_t refusals = 0;
  std::uint64_t first_refusal = 0;  ///< the event's number, from 1; 0: none
  std::uint64_t first_refused_bytes = 0;
  std::uint64_t live_at_first = 0;  ///< requested bytes live when the first request was refused
  std::string failed;               ///< why the pool could not be created; empty if it could

  [[nodiscard]] bool survived() const noexcept { return failed.empty() && refusals == 0; }
};

}  // namespace tarn::bench
