// SPDX-License-Identifier: Apache-2.0
// A user-defined source in 15 lines: host memory that child processes share, from mmap. A source of blocks
// defines how a block is taken and given back; block_source adds alignment, errors and the stream-ordered
// calls.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>

#include "tarn/tarn.hpp"

struct shared_calls {
  using properties = tarn::property_set<tarn::host_accessible>;

  static tarn::status take(tarn::no_driver const&, std::size_t bytes, std::size_t, void*& p) noexcept {
    void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return {tarn::failure::out_of_memory, errno, "ENOMEM", "mmap"};
    p = made;
    return {};
  }
  static tarn::status give(tarn::no_driver const&, void* p, std::size_t bytes, std::size_t) noexcept {
    return munmap(p, bytes) == 0 ? tarn::status{}
                                 : tarn::status{tarn::failure::other, errno, "EINVAL", "munmap"};
  }
};
using shared_memory = tarn::block_source<tarn::no_driver, shared_calls>;
static_assert(tarn::resource<shared_memory>);

int main() {
  auto memory = shared_memory{} | tarn::pooled{} | tarn::tracked{};
  auto numbers = tarn::make_device_buffer<int>(memory, 1000, tarn::stream_ref{});
  if (fork() == 0) {
    numbers.data()[999] = 7;
    _exit(0);
  }
  wait(nullptr);
  std::cout << "the child wrote " << numbers.data()[999] << " into one of "
            << tarn::memory_allocated(memory) / sizeof(int) << " numbers\n";
  try {
    auto huge = tarn::make_device_buffer<std::byte>(memory, std::size_t{1} << 60, tarn::stream_ref{});
  } catch (tarn::out_of_memory const&) {
    std::cout << "1 EiB is refused\n";
  }
}
