// SPDX-License-Identifier: Apache-2.0
// A user-defined policy in 10 lines: counts requests larger than a page. A policy defines what it does around
// a request and the next layer, once for the stream-ordered and the synchronous calls; what it does not
// define passes through, except extend(): without around_extend no block grows in place.

#include <tarn/tarn.hpp>

#include <atomic>
#include <iostream>

struct counting {
  std::atomic<int> large{0};

  void* around_allocate(tarn::request const& r, auto const& next) {
    large += r.bytes > 4096 ? 1 : 0;
    return next.allocate(r);
  }
};

int main() {
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::around<counting>{};
  tarn::stream const stream;
  for (std::size_t bytes : {100U, 5000U, 100000U, 4096U}) {
    auto block = tarn::make_device_buffer<std::byte>(memory, bytes, stream);
  }
  memory.empty_cache();  // reaches the pool through the policy
  std::cout << memory->large << " of 4 blocks were larger than a page\n";
}
