// SPDX-License-Identifier: Apache-2.0
// Offload: elements that the next phase does not need are kept in pinned host memory. Prints the peak with
// and without, and what was restored.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <iostream>
#include <numeric>
#include <vector>

using namespace tarn::literals;

/// A phase that needs 96 MiB, from a scratch that is rewound after each layer.
static void evaluate(tarn::device_pool const& memory, tarn::stream_ref stream) {
  tarn::scratch arena{memory, 96_MiB, stream};
  for (int layer = 0; layer < 3; ++layer) {
    tarn::rewind_scope const temporaries{arena};
    (void)arena.take<float>(tarn::items_in<float>(96_MiB));
  }
}

int main() {
  tarn::device_pool memory;
  auto pinned = tarn::pinned_host{} | tarn::pooled{};
  tarn::stream const stream;
  std::vector<float> host(tarn::items_in<float>(64_MiB));
  std::iota(host.begin(), host.end(), 0.0F);
  auto weights = tarn::make_device_buffer<float>(memory, 1_MiB, stream);
  auto optimizer = tarn::make_device_buffer<float>(memory, host, stream);
  {
    tarn::peak_scope const peak{memory};
    evaluate(memory, stream);
    std::cout << "optimizer state on the device: peak " << (peak.peak_bytes() >> 20) << " MiB\n";
  }
  {
    tarn::peak_scope const peak{memory};
    {
      tarn::evict_scope evicted{pinned, stream, optimizer};
      std::cout << "evicted: " << (evicted.evicted_bytes() >> 20) << " MiB on the host, " << optimizer.size()
                << " elements on the device\n";
      evaluate(memory, stream);
      evicted.bring_back();  // errors can be handled here, but not at the end of the scope
    }
    std::cout << "optimizer state on the host: peak " << (peak.peak_bytes() >> 20) << " MiB\n";
  }
  std::vector<float> back(optimizer.size());
  optimizer.copy_to_sync(back);
  std::cout << "restored " << (back == host ? "equal" : "different") << "\n";
  tarn::free_on(std::move(optimizer), stream);
  std::cout << "freed: " << (tarn::memory_allocated(memory) >> 20) << " MiB are live\n";
}
