// SPDX-License-Identifier: Apache-2.0
// One array over three GPUs: a pool on each, parts by share, pieces copied between devices, the result gathered. Uses the CUDA
// devices that are found (build it as .cu), otherwise a simulated machine with three.

#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "tarn/policy/accessible_from.hpp"
#include "tarn/raii/partitioned_buffer.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

template <class Pools>
void run(Pools& pools, std::vector<tarn::device_id> const& devices) {
  std::size_t const n = 1'000'000;
  std::vector<int> host(n);
  std::iota(host.begin(), host.end(), 0);

  // The first device also does other work, so it gets half a share. Parts begin at whole rows of 1,000.
  std::vector<double> shares(devices.size(), 1.0);
  shares[0] = 0.5;
  using buffer = tarn::partitioned_buffer<int, typename Pools::pool_type>;
  buffer whole(pools, devices, tarn::partition::weighted(n, shares, 1000));
  whole.scatter(host);
  whole.for_each_part([](auto const& part) {  // its device is current: launch kernels on part.stream here
    std::printf("part %zu: elements %zu to %zu on device %d\n", part.index, part.first,
                part.first + part.elements.size(), part.elements.resource().device().value);
  });

  // Neighbours exchange borders: the first row of each part is copied to memory next to the previous part.
  for (std::size_t i = 1; i < whole.parts(); ++i) {
    auto halo = tarn::make_device_buffer<int>(pools[whole.device(i - 1)], 1000, whole.stream(i - 1));
    tarn::peer_copy(whole.part(i), 0, halo, 0, 1000);
    std::vector<int> seen(1000);
    halo.copy_to_sync(seen);
    std::printf("device %d has the row of device %d that begins with %d\n", whole.device(i - 1).value,
                whole.device(i).value, seen[0]);
  }

  // Copies to an even division, device to device; the old division may be destroyed at once.
  buffer even(pools, devices, n);
  even.copy_from(whole);
  whole.zero();
  std::vector<int> back(n);
  even.gather_sync(back);
  std::puts(back == host ? "all elements came back" : "elements were lost");
  pools.for_each([](tarn::device_id device, auto& pool) {
    std::printf("device %d: %zu KiB allocated\n", device.value, tarn::memory_allocated(pool) >> 10);
  });
}

int main() {
#if TARN_HAS_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
    std::printf("running on CUDA: %d device(s)\n", count);
    std::vector<tarn::device_id> devices;
    for (int d = 0; d < count; ++d) devices.push_back(tarn::device_id{d});
    tarn::per_device<tarn::device_pool> pools;
    run(pools, devices);
    return 0;
  }
#endif
  std::puts("running on a simulated machine with three devices");
  tarn::sim_machine const machine{tarn::sim_options{.devices = 3}};
  tarn::per_device pools{[machine](tarn::device_id device) {
    return tarn::sim_pages{machine.driver(device)} | tarn::accessible_from{0, 1, 2} | tarn::pooled{} |
           tarn::tracked{};
  }};
  run(pools, {0, 1, 2});
}
