// SPDX-License-Identifier: Apache-2.0
#pragma once
// Generated traces: patterns of allocation that are hard on pools. bench/README.md defines them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/trace.hpp"

namespace tarn::bench {

inline constexpr std::uint64_t default_pattern_seed = 1;

/// Returns the names of the patterns that are measured.
[[nodiscard]] std::vector<std::string> measured_patterns();

/// Generates a pattern: the same events for the same name and seed, on every machine. Takes some
/// milliseconds.
/// @param name  one of measured_patterns(), or streams:N with 2 to 16 streams
/// @return nullopt if there is no such pattern
[[nodiscard]] std::optional<trace> generate_pattern(std::string_view name,
                                                    std::uint64_t seed = default_pattern_seed);

}  // namespace tarn::bench
