// SPDX-License-Identifier: Apache-2.0
// One array over three GPUs: a pool on each, parts by share, pieces copied between devices, the result
// gathered. Uses the GPUs that there are; simulated ones with TARN_SIM_DEVICES=3 in the environment.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <cstddef>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

int main() {
  // One pool for each device, made at its first use. Pools over `tarn::cuda_pages{device} |
  // tarn::accessible_from(devices)` let the kernels of one device use the memory of another in place, where a
  // path between the devices allows it.
  tarn::per_device<tarn::device_pool> pools;
  std::vector<tarn::device_id> devices;  // a program for CUDA alone asks cudaGetDeviceCount
  try {
    for (int d = 0;; ++d) devices.push_back(pools[tarn::device_id{d}].device());
  } catch (tarn::cuda_error const&) {  // there is no such device
  }
  std::size_t const n = 1'000'000;
  std::vector<int> host(n);
  std::iota(host.begin(), host.end(), 0);

  // The first device also does other work, so it gets half a share. Parts begin at whole rows of 1,000.
  std::vector<double> shares(devices.size(), 1.0);
  shares[0] = 0.5;
  using buffer = tarn::partitioned_buffer<int>;
  buffer whole(pools, devices, tarn::partition_layout::weighted(n, shares, 1000));
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
