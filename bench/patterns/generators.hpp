// SPDX-License-Identifier: Apache-2.0
#pragma once
// One function per pattern, each in a file of its name.

#include <cstdint>

#include "replay/trace_builder.hpp"

namespace tarn::bench {

[[nodiscard]] trace_builder attention_cache(std::uint64_t seed);
[[nodiscard]] trace_builder mesh_refinement(std::uint64_t seed);
[[nodiscard]] trace_builder stream_pipeline(std::uint64_t seed, unsigned streams);
[[nodiscard]] trace_builder server(std::uint64_t seed);
[[nodiscard]] trace_builder burst(std::uint64_t seed);

}  // namespace tarn::bench
