// SPDX-License-Identifier: Apache-2.0
// Prints each object as cmake/tarn_gdb.py must, from what tarn itself reports of it.
// check.py compares.

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

namespace {

template <class Buffer>
std::string of_buffer(Buffer const& b, char const* element) {
  char where[32] = "";
  if (b.data() != nullptr)
    std::snprintf(where, sizeof where, " at 0x%" PRIxPTR, reinterpret_cast<std::uintptr_t>(b.data()));
  return std::to_string(b.size()) + " of " + std::to_string(b.capacity()) + " elements of " + element +
         where + ", stream " + std::to_string(b.stream().id());
}
template <class Memory>
std::string of_pool(Memory& memory) {
  tarn::pool_state const s = nearest(memory, tarn::pool_call::state{});
  return "pooled (" + std::to_string(s.live) + " bytes live in " + std::to_string(s.live_blocks) +
         (s.live_blocks == 1 ? " block, " : " blocks, ") + std::to_string(s.reserved) + " bytes reserved";
}
void expect(char const* name, std::string const& text) {
  std::printf("%s = %s\n", name, text.c_str());
}

bool never(tarn::out_of_memory const&, unsigned) {
  return false;
}

}  // namespace

int main() {
  tarn::stream stream;
  tarn::device_pool pool;
  auto buffer = tarn::make_device_buffer<float>(pool, 1000, stream);
  buffer.resize(10, stream);
  auto moved_from = tarn::make_device_buffer<double>(pool, 1, stream);
  auto const moved_to = std::move(moved_from);
  tarn::pinned_buffer<int> const pinned(tarn::sim_pinned_host{}, 7);
  void* of_thread = nullptr;
  std::thread([&] { of_thread = pool.allocate(stream, 3_MiB); }).join();  // its cache is counted as retired

  auto limited = tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{64_MiB} | tarn::retry_on_oom{&never};
  auto const in_limited = tarn::make_device_buffer<char>(limited, 5000, stream);
  auto routed = tarn::sim_malloc{} | tarn::pooled{} | tarn::fallback_to{limited};
  auto asleep = tarn::cuda_pages{} | tarn::pooled{};
  tarn::sleep(asleep);
  tarn::device_pool empty{nullptr};

  expect("buffer", of_buffer(buffer, "float"));
  expect("moved_from", of_buffer(moved_from, "double"));
  expect("moved_to", of_buffer(moved_to, "double"));
  expect("pinned", of_buffer(pinned, "int"));
  expect("pool", "pages | " + of_pool(pool) + ") | tracked");
  std::string const text = "pages | " + of_pool(limited) + ") | limited (" +
                           std::to_string(limited->upstream()->used()) + " of 67108864 bytes) | retry_on_oom";
  expect("limited", text);
  expect("routed",
         "malloc | pooled (0 bytes live in 0 blocks, 0 bytes reserved) | fallback_to (" + text + ")");
  expect("asleep", "pages | " + of_pool(asleep) + ", asleep)");
  expect("empty", "empty");
  std::fflush(stdout);
  pool.deallocate(stream, of_thread, 3_MiB);  // the debugger stops here
}
