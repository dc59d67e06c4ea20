// SPDX-License-Identifier: Apache-2.0
// Sixteen tasks on one card, whose peaks add up to three times its memory: each starts when its own peak
// fits, and none runs out.

#include <tarn/transfer.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
  tarn::device_pool pool;
  // Not all of it: a few free ranges are always too small for the next request.
  auto const memory = pool | tarn::limited{tarn::available_memory(pool).bytes / 100 * 95};

  constexpr unsigned tasks = 16;
  std::atomic<unsigned> finished{0};
  std::atomic<unsigned> within_peak{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < tasks; ++t) {
    threads.emplace_back([&, t] {
      std::size_t const peak = memory->limit() / 160 * (15 + 2 * t);  // 9 to 28 % of the limit, 300 % in all
      auto const task = tarn::reserve(memory, peak, 60s);
      tarn::stream const stream;
      auto const weights = tarn::make_device_buffer<std::byte>(task.resource(), peak / 4, stream);
      for (int step = 0; step < 10; ++step) {
        auto const activations = tarn::make_device_buffer<std::byte>(task.resource(), peak / 3, stream);
        auto const gradients = tarn::make_device_buffer<std::byte>(task.resource(), peak / 4, stream);
      }
      ++finished;
      if (task.peak() > peak / 2 && task.peak() <= peak) ++within_peak;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::cout << finished << " of " << tasks << " tasks finished, " << within_peak << " within their peak\n";
  std::cout << "reserved at the end: " << memory->used() << " bytes\n";

  // What a task needs is the peak of an earlier run, here with room to spare; a task past its peak gives the
  // rest back.
  auto trial = tarn::reserve(memory, memory->limit());
  { auto const buffer = tarn::make_device_buffer<float>(trial.resource(), 1 << 20, tarn::stream_ref{}); }
  std::cout << "a trial run used " << trial.peak() << " bytes\n";
  trial.release_unused(trial.peak());
  std::cout << "and keeps " << trial.bytes() << " of them\n";
  try {
    (void)tarn::make_device_buffer<float>(trial.resource(), 2 << 20, tarn::stream_ref{});
  } catch (tarn::reservation_exceeded const& error) {
    std::cout << "more is refused: " << error.report().asked << " bytes\n";
  }
}
