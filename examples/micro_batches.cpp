// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation within a budget: a batch too large for the device is processed in even parts that fit
// the free memory. Each part counts by its weight, so the result is the gradient of the whole batch.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <iostream>
#include <numeric>
#include <vector>

using namespace tarn::literals;

namespace {

constexpr std::size_t features = 1000;

/// The gradient of the mean of squares for the first weight: of samples first to first + count, on a stream.
template <class Memory, class Stream>
double gradient(Memory memory, Stream const& stream, std::vector<float> const& samples,
                tarn::micro_batch part) {
  std::span<float const> const mine(samples.data() + part.first * features, part.count * features);
  auto const input = tarn::make_device_buffer<float>(memory, mine, stream);
  auto activations = tarn::make_device_buffer<float>(memory, part.count * features, stream);
  activations.copy_from(input);  // stands for the layers
  std::vector<float> out(activations.size());
  activations.copy_to_sync(out);
  return 2 * std::accumulate(out.begin(), out.end(), 0.0) / static_cast<double>(out.size());
}

}  // namespace

int main() {
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{24_MiB} | tarn::tracked{};
  tarn::stream const stream;
  std::size_t const samples = 10'000;
  std::vector<float> data(samples * features);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 97) / 97.0F;
  auto const weights = tarn::make_device_buffer<float>(memory, 2'000'000, stream);

  // A sample needs its input and the same amount for activations.
  std::size_t const each = tarn::bytes_of<float, float>(features, features);
  tarn::micro_batches const parts(samples, each, memory);
  std::cout << "one batch of " << samples << " samples needs " << (samples * each >> 20) << " MiB, "
            << (tarn::available_memory(memory).bytes >> 20) << " MiB are free ("
            << tarn::available_memory(memory).bounded_by << "): " << parts.size() << " parts of at most "
            << parts.largest() << " samples\n";
  double accumulated = 0;
  tarn::peak_scope const peak{memory};
  for (auto part : parts) accumulated += part.weight() * gradient(memory, stream, data, part);
  double const whole = 2 * std::accumulate(data.begin(), data.end(), 0.0) / static_cast<double>(data.size());
  bool const equal = accumulated - whole < 1e-9 && whole - accumulated < 1e-9;
  std::cout << "accumulated gradient " << accumulated << ", of the whole batch " << whole << ": "
            << (equal ? "equal" : "different") << "\npeak " << (peak.peak_bytes() >> 20) << " MiB of 24\n";
  try {
    (void)tarn::micro_batches(samples, 20_MiB, memory);
  } catch (tarn::out_of_memory const& error) {
    std::cout << error.what() << "\n";
  }
}
