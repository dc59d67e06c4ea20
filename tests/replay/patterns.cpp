// SPDX-License-Identifier: Apache-2.0
#include "patterns/patterns.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"

using namespace tarn;
using namespace tarn::bench;

namespace {

/// What bench/README.md says of a pattern.
struct documented {
  std::string name;
  std::size_t streams;
  std::uint64_t smallest, largest;  ///< bytes of a block
  std::uint64_t least_peak, most_peak;
  std::size_t left_over;  ///< blocks live at the end
};

std::vector<documented> documents() {
  return {{"attention_cache", 1, 10'000, 8_MiB, 1000_MiB, 1600_MiB, 72 + 240},
          {"mesh_refinement", 1, 24 * 24 * 25 * 40, 13_MiB, 512_MiB, 2_GiB, 0},
          {"streams:2", 2, 256, 16_MiB, 256_MiB, 640_MiB, 0},
          {"streams:4", 4, 256, 16_MiB, 256_MiB, 640_MiB, 0},
          {"streams:8", 8, 256, 16_MiB, 512_MiB, 1280_MiB, 0},
          {"streams:16", 16, 256, 16_MiB, 1024_MiB, 2560_MiB, 0},
          {"server", 1, 8_KiB, 64_MiB, 640_MiB, 4_GiB, 0},
          {"burst", 1, 256, 128_MiB, 3_GiB, 5_GiB, 0}};
}

trace generated(std::string const& name, std::uint64_t seed = default_pattern_seed) {
  std::optional<trace> t = generate_pattern(name, seed);
  REQUIRE(t);
  return *std::move(t);
}

bool same_events(trace const& a, trace const& b) {
  return std::equal(
      a.events.begin(), a.events.end(), b.events.begin(), b.events.end(), [](event const& x, event const& y) {
        return x.bytes == y.bytes && x.slot == y.slot && x.stream == y.stream && x.what == y.what;
      });
}

/// The blocks that live at the end. Fails if a slot is used twice at once, or a free does not repeat its
/// allocation.
std::vector<event> left_over(trace const& t) {
  std::vector<event> live(t.slots);
  std::vector<bool> used(t.slots, false);
  for (event const& e : t.events) {
    bool const allocates = e.what == operation::allocate;
    if (e.slot >= t.slots || used[e.slot] == allocates)
      FAIL("slot " << e.slot << " is used twice or freed twice");
    if (!allocates && (live[e.slot].bytes != e.bytes || live[e.slot].stream != e.stream)) {
      FAIL("a free of slot " << e.slot << " has other bytes or another stream than its allocation");
    }
    used[e.slot] = allocates;
    live[e.slot] = e;
  }
  std::vector<event> left;
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (used[i]) left.push_back(live[i]);
  }
  return left;
}

}  // namespace

TEST_CASE("generate_pattern gives the same events for the same seed and others for another", "[replay]") {
  for (std::string const& name : measured_patterns()) {
    CAPTURE(name);
    trace const first = generated(name);
    CHECK(same_events(first, generated(name)));
    trace const other = generated(name, 7);
    CHECK_FALSE(same_events(first, other));
    CHECK(first.name == name);
    CHECK(other.name == name + ", seed 7");
  }
}

TEST_CASE("generate_pattern keeps within the bounds that the README documents, for any seed", "[replay]") {
  for (documented const& d : documents()) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(d.name, seed);
      trace const t = generated(d.name, seed);
      CHECK(t.events.size() >= 50'000);
      CHECK(t.events.size() <= 200'000);
      CHECK(t.stream_numbers.size() == d.streams);
      CHECK(t.peak_live >= d.least_peak);
      CHECK(t.peak_live <= d.most_peak);
      CHECK(left_over(t).size() == d.left_over);
      auto const [least, most] = std::minmax_element(
          t.events.begin(), t.events.end(), [](event const& a, event const& b) { return a.bytes < b.bytes; });
      CHECK(least->bytes >= d.smallest);
      CHECK(most->bytes <= d.largest);
    }
  }
}

TEST_CASE("measured_patterns are the documented ones", "[replay]") {
  std::vector<std::string> names;
  for (documented const& d : documents()) names.push_back(d.name);
  CHECK(measured_patterns() == names);
}

TEST_CASE("generate_pattern attention_cache replaces a block by one that is a row longer", "[replay]") {
  constexpr std::uint64_t row = 16_KiB;
  trace const t = generated("attention_cache");
  std::size_t replaced = 0;
  for (std::size_t i = 1; i < t.events.size(); ++i) {
    event const &before = t.events[i - 1], &after = t.events[i];
    if (before.what == operation::allocate && after.what == operation::free) {
      replaced += before.bytes == after.bytes + row ? 1U : 0U;
    }
  }
  CHECK(replaced >= 320 * 240);  // and pairs of temporaries that differ by a row
}

TEST_CASE("generate_pattern streams:N allocates on one stream what the stream before it frees", "[replay]") {
  trace const t = generated("streams:8");
  std::size_t passed_on = 0;
  for (std::size_t i = 1; i < t.events.size(); ++i) {
    event const &before = t.events[i - 1], &after = t.events[i];
    if (before.what != operation::allocate || after.what != operation::free) continue;
    bool const is_new_batch = before.stream == 0;
    bool const passed =
        before.stream == (after.stream + 1) % 8 && (is_new_batch || before.bytes == after.bytes);
    passed_on += passed ? 1U : 0U;
  }
  CHECK(passed_on == 200 * 128);
}

TEST_CASE("generate_pattern knows no other names", "[replay]") {
  for (char const* name : {"", "attention", "streams", "streams:", "streams:1", "streams:17", "streams:+2",
                           "streams:2x", "streams: 2", "server:3"}) {
    CAPTURE(name);
    CHECK_FALSE(generate_pattern(name));
  }
  CHECK(generate_pattern("streams:3"));
}
