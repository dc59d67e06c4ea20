// SPDX-License-Identifier: Apache-2.0
// streams:N: a pipeline of N stages, each on a stream of its own. A batch of blocks moves from stage to
// stage: for each block the stage's stream allocates an output of the same size, then the previous stage's
// stream frees the input. Memory must follow the batch from stream to stream; a pool that keeps it for the
// stream that freed it holds it N times.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "patterns/generators.hpp"
#include "patterns/random_source.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace {

constexpr unsigned moves = 200;  ///< of a batch from one stage to the next
constexpr unsigned blocks_of_batch = 128;
constexpr unsigned stages_per_batch = 4;  ///< a pipeline of 16 stages has 4 batches at once

// Blocks of 64 KiB to 16 MiB and temporaries of 256 B to 64 KiB, every factor of two equally likely.
constexpr std::uint64_t smallest_block = 64_KiB;
constexpr unsigned block_octaves = 8;
constexpr std::uint64_t smallest_temporary = 256;
constexpr unsigned temporary_octaves = 8;

class pipeline {
 public:
  pipeline(std::uint64_t seed, unsigned stages) : random_(seed), stages_(stages) {
    for (unsigned s = 0; s < stages; ++s) trace_.add_stream(s);
    batches_.resize(std::max(1U, stages / stages_per_batch));
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      batches_[i].stage = static_cast<std::uint16_t>(i * stages_per_batch);
      batches_[i].blocks.resize(blocks_of_batch);
      for (trace_block& b : batches_[i].blocks) b = trace_.allocate(new_size(), batches_[i].stage);
    }
  }

  trace_builder run() && {
    for (unsigned i = 0; i < moves; ++i) advance(batches_[i % batches_.size()]);
    for (batch const& all : batches_) {
      for (trace_block const& b : all.blocks) trace_.release(b);
    }
    return std::move(trace_);
  }

 private:
  struct batch {
    std::uint16_t stage = 0;
    std::vector<trace_block> blocks;
  };

  std::uint64_t new_size() { return random_.log_between(smallest_block, block_octaves); }

  /// Moves a batch to the next stage, block by block. The last stage is followed by the first with a batch of
  /// new sizes.
  void advance(batch& all) {
    all.stage = static_cast<std::uint16_t>((all.stage + 1U) % stages_);
    for (trace_block& b : all.blocks) {
      trace_block const temporary =
          trace_.allocate(random_.log_between(smallest_temporary, temporary_octaves), all.stage);
      trace_block const output = trace_.allocate(all.stage == 0 ? new_size() : b.bytes, all.stage);
      trace_.release(b);
      trace_.release(temporary);
      b = output;
    }
  }

  random_source random_;
  unsigned stages_;
  trace_builder trace_;
  std::vector<batch> batches_;
};

}  // namespace

trace_builder stream_pipeline(std::uint64_t seed, unsigned streams) {
  return pipeline(seed, streams).run();
}

}  // namespace tarn::bench
