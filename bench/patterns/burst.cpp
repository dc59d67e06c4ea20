// SPDX-License-Identifier: Apache-2.0
// burst: much memory in use for a while, then little, again and again. Each burst has its own amount and its
// own sizes; a few of its blocks live until the next one.

#include <cstdint>
#include <vector>

#include "patterns/generators.hpp"
#include "patterns/random_source.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace {

constexpr unsigned bursts = 30;
constexpr std::uint64_t least_live = 1_GiB, most_live = 4_GiB;  ///< of a burst

// A burst has a typical size from 1 to 32 MiB, its blocks have half of that to twice of it.
constexpr std::uint64_t smallest_typical = 1_MiB;
constexpr unsigned typical_octaves = 5;
constexpr unsigned replacements = 500;  ///< of random blocks, in each burst
constexpr std::uint64_t blocks_per_survivor = 16;

// Quiet: a window of small blocks, 256 B to 64 KiB, every factor of two equally likely.
constexpr std::uint64_t smallest_quiet = 256;
constexpr unsigned quiet_octaves = 8;
constexpr std::size_t quiet_window = 200;
constexpr unsigned quiet_replacements = 500;

class bursts_and_quiet {
 public:
  explicit bursts_and_quiet(std::uint64_t seed) : random_(seed) { trace_.add_stream(0); }

  trace_builder run() && {
    for (unsigned i = 0; i < bursts; ++i) {
      burst();
      quiet();
    }
    release(survivors_);
    return std::move(trace_);
  }

 private:
  using blocks = std::vector<trace_block>;

  trace_block allocate(std::uint64_t bytes) { return trace_.allocate(bytes, 0); }

  void release(blocks& all) {
    for (trace_block const& b : all) trace_.release(b);
    all.clear();
  }

  void burst() {
    std::uint64_t const typical = random_.log_between(smallest_typical, typical_octaves);
    std::uint64_t const wanted = random_.between(least_live, most_live);
    auto const new_size = [&] { return random_.between(typical / 2, 2 * typical); };
    release(survivors_);
    blocks live;
    for (std::uint64_t bytes = 0; bytes < wanted; bytes += live.back().bytes)
      live.push_back(allocate(new_size()));
    for (unsigned i = 0; i < replacements; ++i) {
      trace_block& b = live[random_.between(0, live.size() - 1)];
      trace_.release(b);
      b = allocate(new_size());
    }
    random_.shuffle(live);
    for (trace_block const& b : live) {
      if (random_.one_in(blocks_per_survivor)) {
        survivors_.push_back(b);
      } else {
        trace_.release(b);
      }
    }
  }

  void quiet() {
    auto const new_size = [&] { return random_.log_between(smallest_quiet, quiet_octaves); };
    blocks live;
    for (std::size_t i = 0; i < quiet_window; ++i) live.push_back(allocate(new_size()));
    for (unsigned i = 0; i < quiet_replacements; ++i) {
      trace_block& b = live[random_.between(0, live.size() - 1)];
      trace_.release(b);
      b = allocate(new_size());
    }
    release(live);
  }

  random_source random_;
  trace_builder trace_;
  blocks survivors_;
};

}  // namespace

trace_builder burst(std::uint64_t seed) {
  return bursts_and_quiet(seed).run();
}

}  // namespace tarn::bench
