// SPDX-License-Identifier: Apache-2.0
#pragma once
// The command-line arguments of tarn_replay.

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tarn/pool/options.hpp"

namespace tarn::bench {

inline constexpr int exit_bad_input = 2;  ///< a trace or an argument that cannot be used

struct arguments {
  std::string device = "auto";  ///< auto, cuda or sim
  std::uint64_t capacity = 0;   ///< of the simulated device, bytes, up to 2^60; 0: its default
  std::vector<std::string> pools{"tarn"};
  unsigned passes = 3;   ///< 1 to 1000
  unsigned threads = 1;  ///< 1 to 64
  bool json = false;
  bool brief = false;        ///< a line per trace and pool instead of tables
  std::vector<double> caps;  ///< memory of the device, as multiples of the peak of live bytes; empty: no cap
  bool waste = false;        ///< describe the memory at the peaks instead of measuring times
  pooled options;            ///< of tarn's pools
  bool choose_options = false;  ///< replay with many options, and recommend some
  bool in_turn = false;         ///< wait for a line of standard input before each pass
  std::string report;           ///< file to write a report page to; empty: times are measured
  std::vector<std::string> files;
  std::vector<std::string> patterns;  ///< names of generated traces, played before the files
  std::optional<std::uint64_t> seed;  ///< of the patterns; empty: their default
};

/// Reports an unknown name, or two arguments that contradict each other.
class usage_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Whether options of tarn's pools were given.
[[nodiscard]] bool has_options(arguments const& a) noexcept;

/// Parses the command line. Returns nullopt if help or an error was written to `out` or `err`; `status` is
/// then the program's exit status, 0 or exit_bad_input.
[[nodiscard]] std::optional<arguments> read_arguments(int argc, char const* const* argv, std::ostream& out,
                                                      std::ostream& err, int& status);

/// Whether these are to be listed, not run.
/// @param names  of pools or of patterns
[[nodiscard]] bool asks_for_list(std::vector<std::string> const& names);

}  // namespace tarn::bench
