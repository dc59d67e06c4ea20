// SPDX-License-Identifier: Apache-2.0
// Training in less memory: a small network learns digits that the program draws, and the peak is printed with
// each technique off and on, beside the resulting loss and accuracy.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <cstdio>
#include <iostream>
#include <span>
#include <vector>

#include "train_network.hpp"

namespace {

using namespace training;

struct result {
  std::size_t peak = 0, model = 0, data = 0;
  double loss = 0, accuracy = 0;
  layers_on_host weights;
};

template <class Stored = float>
result train(techniques const& how) {
  static std::vector<sample> const examples = draw_digits(1024, 1), unseen = draw_digits(512, 2);
  constexpr int epochs = 18;

  tarn::device_pool pool;
  auto const pinned = tarn::pinned_host{} | tarn::pooled{};
  tarn::stream const stream;
  result r;
  {
    network<Stored, tarn::device_pool> net(pool, {pool.driver(), stream}, how);
    r.model = tarn::memory_allocated(pool);
    tarn::peak_scope const peak{pool};
    if (how.data == loading::whole) {
      auto const all = tarn::make_device_buffer<sample>(pool, std::span<sample const>(examples), stream);
      r.data = tarn::memory_allocated(pool) - r.model;
      for (int epoch = 0; epoch < epochs; ++epoch) {
        for (std::size_t first = 0; first < all.size(); first += batch_size)
          net.step(all.span().subspan(first, batch_size));
      }
    } else {
      tarn::batch_options const options{.batch_bytes = tarn::bytes_of<sample>(batch_size), .depth = 2};
      for (int epoch = 0; epoch < epochs; ++epoch) {
        auto batches = tarn::stream_batches(examples, options, pool, stream, pinned);
        r.data = tarn::memory_allocated(pool) - r.model;
        for (auto const batch : batches) net.step(batch.span());
      }
    }
    r.peak = peak.peak_bytes();
    r.weights = net.weights();

    score const on_unseen = net.outputs_for(unseen);
    r.loss = on_unseen.loss;
    r.accuracy = on_unseen.accuracy;
  }
  return r;
}

}  // namespace

int main() {
  std::printf("%-34s %9s %8s %8s %8s %12s %6s %9s\n", "bytes", "peak", "saved", "model", "data",
              "activations", "loss", "accuracy");
  std::size_t without = 0;
  auto const line = [&](char const* name, result const& r) {
    if (without == 0) without = r.peak;
    double const saved = 100.0 * (1.0 - static_cast<double>(r.peak) / static_cast<double>(without));
    std::printf("%-34s %9zu %7.1f%% %8zu %8zu %12zu %6.3f %8.1f%%\n", name, r.peak, saved, r.model, r.data,
                r.peak - r.model - r.data, r.loss, r.accuracy);
  };
  std::size_t const budget = 32 * 1024;
  result const baseline = train({});
  // As in fine-tuning a trained model: the first two layers stay unchanged.
  layers_on_host const first_two(baseline.weights.begin(), baseline.weights.begin() + 3);
  line("baseline", baseline);
  line("+ gradient accumulation", train({.budget = budget}));
  line("+ activations in bfloat16", train<tarn::bfloat16>({}));
  line("+ first two layers frozen", train({.frozen = first_two}));
  line("+ data streamed", train({.data = loading::streamed}));
  line("+ every second layer recomputed", train({.remember = between_passes::keep_every_second}));
  techniques const all{budget, first_two, loading::streamed, between_passes::keep_every_second};
  line("all together", train<tarn::bfloat16>(all));
  std::cout << "\nmodel: weights, gradients and velocities; activations: with their gradients, where most is "
               "alive\n"
               "accumulation, recomputation: activations only, nothing of model and data; the same result\n"
               "bfloat16: half of what is kept between the passes, nothing of the gradients; it rounds\n"
               "frozen layers: their gradients, velocities and activations, none of their weights; from the "
               "baseline's\n"
               "streaming: data only, down to two batches, nothing where no more than that is there\n";
}
