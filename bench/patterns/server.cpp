// SPDX-License-Identifier: Apache-2.0
// server: requests of random length arrive and end. A request reserves the cache of all its tokens; its
// prefill needs temporaries as long as its prompt, each later step small ones for all requests together.

#include <cstdint>
#include <utility>
#include <vector>

#include "patterns/generators.hpp"
#include "patterns/random_source.hpp"
#include "tarn/core/bytes.hpp"

namespace tarn::bench {

namespace {

constexpr unsigned steps = 1000;
constexpr unsigned layers = 16;
constexpr std::size_t most_requests = 48;
constexpr std::uint64_t steps_per_arrival = 4;  ///< on average

// Tokens, every factor of two equally likely: prompts of 32 to 2048, answers of 16 to 512.
constexpr std::uint64_t shortest_prompt = 32, shortest_answer = 16;
constexpr unsigned prompt_octaves = 6, answer_octaves = 5;

// Bytes of one token in one layer.
constexpr std::uint64_t cache_bytes = 4_KiB, hidden_bytes = 8_KiB, wide_bytes = 32_KiB;

class requests {
 public:
  explicit requests(std::uint64_t seed) : random_(seed) { trace_.add_stream(0); }

  trace_builder run() && {
    for (unsigned step = 0; step < steps; ++step) {
      if (running_.size() < most_requests && random_.one_in(steps_per_arrival)) prefill();
      decode();
      end_requests();
    }
    for (request const& r : running_) release(r);
    return std::move(trace_);
  }

 private:
  struct request {
    std::uint64_t steps_left = 0;
    std::vector<trace_block> cache;  ///< one block per layer
  };

  trace_block allocate(std::uint64_t bytes) { return trace_.allocate(bytes, 0); }

  void prefill() {
    std::uint64_t const prompt = random_.log_between(shortest_prompt, prompt_octaves);
    request r;
    r.steps_left = random_.log_between(shortest_answer, answer_octaves);
    std::uint64_t const tokens = prompt + r.steps_left;
    for (unsigned layer = 0; layer < layers; ++layer) {
      trace_block const hidden = allocate(prompt * hidden_bytes);
      r.cache.push_back(allocate(tokens * cache_bytes));
      trace_block const wide = allocate(prompt * wide_bytes);
      trace_.release(hidden);
      trace_.release(wide);
    }
    running_.push_back(std::move(r));
  }

  void decode() {
    if (running_.empty()) return;
    for (unsigned layer = 0; layer < layers; ++layer) {
      trace_block const hidden = allocate(running_.size() * hidden_bytes);
      trace_block const wide = allocate(running_.size() * wide_bytes);
      trace_.release(hidden);
      trace_.release(wide);
    }
  }

  void end_requests() {
    std::vector<request> left;
    for (request& r : running_) {
      if (--r.steps_left == 0) {
        release(r);
      } else {
        left.push_back(std::move(r));
      }
    }
    running_ = std::move(left);
  }

  void release(request const& r) {
    for (trace_block const& b : r.cache) trace_.release(b);
  }

  random_source random_;
  trace_builder trace_;
  std::vector<request> running_;
};

}  // namespace

trace_builder server(std::uint64_t seed) {
  return requests(seed).run();
}

}  // namespace tarn::bench
