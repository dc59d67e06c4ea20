// SPDX-License-Identifier: Apache-2.0
// A user-defined policy in 20 lines: counts requests larger than a page. A layer defines the calls that it changes; all others
// pass through.

#include <atomic>
#include <iostream>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

template <class Upstream>
class counting_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  counting_layer(Upstream upstream, auto const&) : upstream_(std::move(upstream)) {}
  Upstream& upstream() { return upstream_; }

  void* allocate(tarn::stream_ref s, std::size_t bytes, std::size_t alignment) {
    large += bytes > 4096 ? 1 : 0;
    return upstream_.allocate(s, bytes, alignment);
  }
  void deallocate(tarn::stream_ref s, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate(s, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return upstream_.allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate_sync(p, bytes, alignment);
  }
  std::atomic<int> large{0};

 private:
  Upstream upstream_;
};
struct counting {
  template <class Upstream>
  using layer = counting_layer<Upstream>;
};

void run(auto gpu) {
  auto memory = gpu.cuda_pages() | tarn::pooled{} | counting{};
  auto const stream = gpu.stream();
  for (std::size_t bytes : {100U, 5000U, 100000U, 4096U}) {
    auto block = tarn::make_device_buffer<std::byte>(memory, bytes, stream);
  }
  memory.empty_cache();  // reaches the pool through the policy
  std::cout << memory->large << " of 4 blocks were larger than a page\n";
}

int main() {
  with_gpu_or_simulated([](auto gpu) { run(gpu); });
}
