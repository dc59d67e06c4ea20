// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measurements of tarn_convert: rates of conversions and of copies between devices, each with its
// reference.

#include <cstddef>
#include <string>
#include <vector>

namespace tarn::bench {

/// GB/s, 10^9 bytes. Counts bytes read and written for a conversion or a copy on one device, bytes copied for
/// a copy between devices. The median of the repetitions, and their range.
struct rate {
  double median = 0;
  double best = 0;
  double worst = 0;
};

/// One work and its reference, timed alternately.
struct measured {
  std::string work;       ///< "convert/float32/float16", "peer_copy/pages"
  std::string reference;  ///< "cudaMemcpyAsync on the device, the same bytes"
  std::size_t bytes = 0;  ///< per round, as counted for the rate
  rate own;
  rate other;
  std::string problem;  ///< why there are no figures; empty if there are
};

struct effort {
  unsigned repetitions = 9;
  unsigned rounds = 10;  ///< per repetition
  std::size_t bytes =
      std::size_t{1} << 30;  ///< read and written by one round on a device, far larger than its caches
  std::size_t sent = std::size_t{256} << 20;  ///< copied from device to device in one round
};

/// Measures conversions on device 0.
[[nodiscard]] std::vector<measured> measure_conversions(effort const& e);
/// Measures copies between devices 0 and 1; returns one row with a problem if there is only one device.
[[nodiscard]] std::vector<measured> measure_peer_copies(effort const& e);

}  // namespace tarn::bench
