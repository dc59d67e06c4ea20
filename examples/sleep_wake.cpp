// SPDX-License-Identifier: Apache-2.0
// sleep() and wake(): a trainer and a server in one process take turns with most of the card. Each keeps its
// addresses, and the weights keep their contents; working memory is discarded.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <iostream>
#include <numeric>
#include <string>
#include <vector>

using namespace tarn::literals;

constexpr std::size_t weight_count = 1'000'000;

/// Weights and working memory in pools of their own, so that they can sleep in different ways and be woken
/// one after another.
struct program {
  std::string name;
  tarn::device_pool weights_pool;
  tarn::device_pool work_pool;
  tarn::device_buffer<int> weights;
  tarn::device_buffer<std::byte> work;

  program(std::string title, tarn::stream_ref stream, std::size_t work_bytes)
      : name(std::move(title)),
        weights(weights_pool, weight_count, stream),
        work(work_pool, work_bytes, stream) {}

  void sleep() {
    (void)tarn::sleep(weights_pool, tarn::contents::in_pinned_memory);
    (void)tarn::sleep(work_pool, tarn::contents::discarded);
  }
  void wake() {
    (void)tarn::wake(weights_pool);
    (void)tarn::wake(work_pool);
  }
};

/// What the device has free, bytes.
static std::size_t free_on_device() {
  return tarn::available_memory(tarn::device_pool{}).device_free;
}

int main() {
  tarn::stream const stream;
  std::size_t const free = free_on_device();
  std::size_t const most = free / 10 * 7;  // two such programs do not fit side by side
  auto const in_use = [&] { return free_on_device() + most < free ? "most of the card" : "little"; };

  program trainer("trainer", stream, most);
  std::vector<int> numbers(weight_count);
  std::iota(numbers.begin(), numbers.end(), 1);
  trainer.weights.copy_from(numbers);
  int const* const address = trainer.weights.data();
  std::cout << "trainer made, in use: " << in_use() << '\n';
  trainer.sleep();
  std::cout << "trainer asleep, in use: " << in_use() << '\n';

  program server("server", stream, most);
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
    trainer.weights.copy_to_sync(now);
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
