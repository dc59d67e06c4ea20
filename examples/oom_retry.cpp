// SPDX-License-Identifier: Apache-2.0
// The largest batch that works: with_oom_retry halves the size while memory runs out, and can search upward.
// It decides by the type of the exception, and clears the pool's cache before each further try.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <iostream>

using namespace tarn::literals;

int main() {
  auto memory = tarn::cuda_pages{} | tarn::limited{1_GiB} | tarn::pooled{};
  tarn::stream const stream;
  auto const step = [&](std::size_t batch) {
    std::cout << "  batch " << batch;
    std::cout.flush();
    auto const activations = tarn::make_device_buffer<std::byte>(memory, batch * 3_MiB, stream);
    auto const gradients = tarn::make_device_buffer<std::byte>(memory, batch * 1_MiB, stream);
    std::cout << ": served\n";
  };
  auto const attempt = [&](std::size_t batch) {
    try {
      step(batch);
    } catch (tarn::out_of_memory const& error) {
      std::cout << ": " << (error.asked() >> 20) << " MiB refused\n";
      throw;
    }
  };

  std::cout << "halving from 1000:\n";
  auto const found = tarn::with_oom_retry(memory, 1000, attempt);
  std::cout << "works: " << found.size << ", after " << found.attempts << " attempts\n";

  std::cout << "searching upward from 60, to within 8:\n";
  tarn::oom_sizes known;
  tarn::oom_retry_options const options{
      .search = tarn::oom_search::upward, .tolerance = 8, .remember = &known};
  auto const best = tarn::with_oom_retry(memory, 60, attempt, options);
  std::cout << "works: " << best.size << "; " << known.bad << " does not\n";

  std::cout << "next epoch:\n";
  std::cout << "works: " << tarn::with_oom_retry(memory, 60, attempt, options).size << "\n";
}
