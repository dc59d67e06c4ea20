// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tarn_replay is asked on its command line.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tarn::bench {

inline constexpr int exit_bad_input = 2;  ///< a trace or an argument that cannot be used

struct arguments {
  std::string device = "auto";  ///< auto, cuda or sim
  std::uint64_t capacity = 0;   ///< of the simulated device, bytes, up to 2^60; 0: as it is by default
  std::vector<std::string> pools{"tarn"};
  unsigned passes = 3;  ///< 1 to 1000
  bool json = false;
  std::vector<double> caps;  ///< of the device's memory, in peaks of live bytes; none: it is not capped
  std::string report;        ///< the file to write a report page to; none: times are measured
  std::vector<std::string> files;
};

/// An argument that names nothing, or two that contradict each other.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads the command line. Empty where help or a refusal has been written to `out` or `err`: `status` is then the
/// program's exit status, 0 or exit_bad_input.
[[nodiscard]] std::optional<arguments> read_arguments(int argc, char const* const* argv, std::ostream& out,
                                                      std::ostream& err, int& status);

/// True where the pools are to be listed, not run.
[[nodiscard]] bool asks_for_list(arguments const& a);

}  // namespace tarn::bench
