// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tarn_convert measures: rates of conversions and of copies between devices, each beside its reference.

#include <cstddef>
#include <string>
#include <vector>

namespace tarn::bench {

/// GB/s, 10^9 bytes; of a conversion or a copy on one device the bytes read and written, of a copy between devices those
/// copied. The median of the repetitions, and how far they are apart.
struct rate {
  double median = 0;
  double best = 0;
  double worst = 0;
};

/// One work and what it is compared with, timed in turns.
struct measured {
  std::string work;       ///< "convert/float32/float16", "peer_copy/pages"
  std::string reference;  ///< "cudaMemcpyAsync on the device, the same bytes"
  std::size_t bytes = 0;  ///< of one round, as they are counted
  rate own;
  rate other;
  std::string problem;  ///< why there are no figures; empty where there are
};

struct effort {
  unsigned repetitions = 9;
  unsigned rounds = 10;  ///< of a repetition
  std::size_t bytes =
      std::size_t{1} << 30;  ///< read and written by one round on a device, far beyond its caches
  std::size_t sent = std::size_t{256} << 20;  ///< from device to device in one round
};

/// Device 0 alone.
[[nodiscard]] std::vector<measured> measure_conversions(effort const& e);
/// Devices 0 and 1; one row with a problem where there is only one device.
[[nodiscard]] std::vector<measured> measure_peer_copies(effort const& e);

}  // namespace tarn::bench
