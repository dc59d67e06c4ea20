// SPDX-License-Identifier: Apache-2.0
#include "patterns/patterns.hpp"

#include <charconv>
#include <utility>

#include "patterns/generators.hpp"

namespace tarn::bench {

namespace {

constexpr std::string_view of_streams = "streams:";
constexpr unsigned fewest_streams = 2;
constexpr unsigned most_streams = 16;

/// Returns the N of streams:N, 0 if it is none from 2 to 16.
unsigned streams_of(std::string_view name) {
  name.remove_prefix(of_streams.size());
  unsigned n = 0;
  auto const [end, error] = std::from_chars(name.data(), name.data() + name.size(), n);
  bool const whole = error == std::errc{} && end == name.data() + name.size();
  return whole && n >= fewest_streams && n <= most_streams ? n : 0;
}

std::optional<trace_builder> built(std::string_view name, std::uint64_t seed) {
  if (name == "attention_cache") return attention_cache(seed);
  if (name == "mesh_refinement") return mesh_refinement(seed);
  if (name == "server") return server(seed);
  if (name == "burst") return burst(seed);
  if (!name.starts_with(of_streams)) return std::nullopt;
  unsigned const streams = streams_of(name);
  return streams == 0 ? std::nullopt : std::optional(stream_pipeline(seed, streams));
}

}  // namespace

std::vector<std::string> measured_patterns() {
  return {"attention_cache", "mesh_refinement", "streams:2", "streams:4",
          "streams:8",       "streams:16",      "server",    "burst"};
}

std::optional<trace> generate_pattern(std::string_view name, std::uint64_t seed) {
  std::optional<trace_builder> pattern = built(name, seed);
  if (!pattern) return std::nullopt;
  std::string title(name);
  if (seed != default_pattern_seed) title += ", seed " + std::to_string(seed);
  return std::move(*pattern).finish(std::move(title));
}

}  // namespace tarn::bench
