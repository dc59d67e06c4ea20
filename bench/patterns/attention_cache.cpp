// SPDX-License-Identifier: Apache-2.0
// attention_cache: sequences whose keys and values are concatenated with one row at each step, as a cache
// without paging does: a block one row longer is allocated, then the old one is freed.

#include <array>
#include <cstdint>
#include <vector>

#include "patterns/generators.hpp"
#include "patterns/random_source.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace {

constexpr unsigned steps = 320;
constexpr unsigned sequences = 5;
constexpr unsigned layers = 24;

/// Keys, or values, of one token in one layer: 64 heads of 128 numbers of two bytes.
constexpr std::uint64_t row_bytes = 64 * 128 * 2;
/// Attention scores of one token against another: 64 heads, two bytes each.
constexpr std::uint64_t score_bytes = 64 * 2;

// In rows: blocks of 1 to 8 MiB.
constexpr std::uint64_t shortest_prompt = 64, longest_prompt = 128, longest_sequence = 512;

constexpr std::array<std::uint64_t, 3> weights_of_layer{8_MiB, 2_MiB, 640_KiB};

class attention {
 public:
  explicit attention(std::uint64_t seed) : random_(seed) {
    trace_.add_stream(0);
    for (unsigned layer = 0; layer < layers; ++layer) {
      for (std::uint64_t const bytes : weights_of_layer) (void)allocate(bytes);
    }
  }

  trace_builder run() && {
    std::vector<sequence> all(sequences);
    for (sequence& s : all) begin(s);
    for (unsigned step = 0; step < steps; ++step) {
      decode(all);
      for (sequence& s : all) {
        if (++s.rows < s.last_row) continue;
        for (trace_block const& b : s.blocks) trace_.release(b);
        begin(s);
      }
    }
    return std::move(trace_);
  }

 private:
  struct sequence {
    std::uint64_t rows = 0;
    std::uint64_t last_row = 0;
    std::vector<trace_block> blocks;  ///< keys and values of each layer
  };

  trace_block allocate(std::uint64_t bytes) { return trace_.allocate(bytes, 0); }

  /// Computes the keys and values of a prompt, layer by layer.
  void begin(sequence& s) {
    s.rows = random_.between(shortest_prompt, longest_prompt);
    s.last_row = random_.between(s.rows + 1, longest_sequence);
    s.blocks.clear();
    for (unsigned layer = 0; layer < layers; ++layer) {
      trace_block const hidden = allocate(s.rows * row_bytes);
      s.blocks.push_back(allocate(s.rows * row_bytes));
      s.blocks.push_back(allocate(s.rows * row_bytes));
      trace_block const scores = allocate(s.rows * s.rows * score_bytes);
      trace_.release(hidden);
      trace_.release(scores);
    }
  }

  /// Appends one row to every block.
  void decode(std::vector<sequence>& all) {
    std::uint64_t rows = 0;
    for (sequence const& s : all) rows += s.rows + 1;
    for (unsigned layer = 0; layer < layers; ++layer) {
      trace_block const hidden = allocate(sequences * row_bytes);
      for (sequence& s : all) {
        for (unsigned i = 2 * layer; i < 2 * layer + 2; ++i) {
          trace_block const longer = allocate((s.rows + 1) * row_bytes);
          trace_.release(s.blocks[i]);
          s.blocks[i] = longer;
        }
      }
      trace_block const scores = allocate(rows * score_bytes);
      trace_.release(hidden);
      trace_.release(scores);
    }
  }

  random_source random_;
  trace_builder trace_;
};

}  // namespace

trace_builder attention_cache(std::uint64_t seed) {
  return attention(seed).run();
}

}  // namespace tarn::bench
