// SPDX-License-Identifier: Apache-2.0
// sleep() and wake(): a trainer and a server in one process take turns with most of the card. Each keeps its addresses, and the
// weights keep their contents; working memory is discarded.

#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

constexpr std::size_t weight_count = 1'000'000;

/// Weights and working memory in pools of their own, so that they can sleep in different ways and be woken one after another.
template <class Gpu>
struct program {
  std::string name;
  decltype(std::declval<Gpu>().device_pool()) weights_pool;
  decltype(std::declval<Gpu>().device_pool()) work_pool;
  tarn::device_buffer<int, decltype(weights_pool)> weights;
  tarn::device_buffer<std::byte, decltype(work_pool)> work;

  program(std::string title, Gpu const& gpu, tarn::stream_ref stream, std::size_t work_bytes)
      : name(std::move(title)),
        weights_pool(gpu.device_pool()),
        work_pool(gpu.device_pool()),
        weights(tarn::make_device_buffer<int>(weights_pool, weight_count, stream)),
        work(tarn::make_device_buffer<std::byte>(work_pool, work_bytes, stream)) {}

  void sleep() {
    (void)tarn::sleep(weights_pool, tarn::contents::in_pinned_memory);
    (void)tarn::sleep(work_pool, tarn::contents::discarded);
  }
  void wake() {
    (void)tarn::wake(weights_pool);
    (void)tarn::wake(work_pool);
  }
};

void run(auto gpu) {
  auto const stream = gpu.stream();
  auto const& driver = gpu.driver();
  std::size_t free = 0;
  std::size_t total = 0;
  if (!driver.memory_info(free, total).ok()) return;
  std::size_t const most = free / 10 * 7;  // two such programs do not fit side by side
  auto const in_use = [&] {
    std::size_t now = 0;
    (void)driver.memory_info(now, total);
    return now + most < free ? "most of the card" : "little";
  };

  using program_type = program<decltype(gpu)>;
  program_type trainer("trainer", gpu, stream, most);
  std::vector<int> numbers(weight_count);
  std::iota(numbers.begin(), numbers.end(), 1);
  tarn::copy_sync(driver, std::span<int const>(numbers), trainer.weights.span(), stream);
  int const* const address = trainer.weights.data();
  std::cout << "trainer made, in use: " << in_use() << '\n';
  trainer.sleep();
  std::cout << "trainer asleep, in use: " << in_use() << '\n';

  program_type server("server", gpu, stream, most);
  std::cout << "server made, in use: " << in_use() << '\n';
  try {
    trainer.wake();
  } catch (tarn::out_of_memory const& error) {
    std::cout << "trainer cannot wake yet: "
              << (error.report().lacking < most ? "it lacks a part of its memory\n" : "?\n");
  }
  for (int turn = 1; turn <= 3; ++turn) {
    server.sleep();
    trainer.wake();
    std::vector<int> now(weight_count);
    tarn::copy_sync(driver, std::span<int const>(trainer.weights.data(), weight_count), std::span<int>(now),
                    stream);
    bool const same = now == numbers && trainer.weights.data() == address;
    std::cout << "turn " << turn << ": trainer's weights " << (same ? "are where they were" : "changed!")
              << '\n';
    trainer.sleep();
    server.wake();
  }
  try {
    (void)tarn::make_device_buffer<int>(trainer.weights_pool, 1000, stream);
  } catch (tarn::pool_asleep const&) {
    std::cout << "allocating from the trainer's pool: it is asleep\n";
  }
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
