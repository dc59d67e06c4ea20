// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs an example on the GPU, or on the simulated device where there is no GPU or the example is built without CUDA. A program
// that always has a GPU does not need this file: it writes `tarn::device_pool pool;` for `auto pool = gpu.device_pool();`,
// `tarn::stream stream;` for `auto stream = gpu.stream();` and `tarn::cuda_pages{}` for `gpu.cuda_pages()`.

#include <iostream>
#include <utility>
#include <vector>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

/// Makes pools, sources and streams on the devices of a machine. On CUDA the types are tarn::device_pool, tarn::cuda_pages and
/// so on; on the simulated device tarn::sim_pool, tarn::sim_pages and so on.
template <class Driver>
class gpu_or_simulated {
 public:
  using driver_type = Driver;

  explicit gpu_or_simulated(std::vector<Driver> drivers) : drivers_(std::move(drivers)) {}

  [[nodiscard]] std::vector<tarn::device_id> devices() const {
    std::vector<tarn::device_id> all;
    for (Driver const& driver : drivers_) all.push_back(driver.device());
    return all;
  }
  [[nodiscard]] Driver const& driver(tarn::device_id device = {}) const {
    return drivers_.at(static_cast<std::size_t>(device.value));
  }

  [[nodiscard]] auto cuda_pages(tarn::device_id device = {}) const {
    return tarn::basic_pages<Driver>{driver(device)};
  }
  [[nodiscard]] auto device_pool(tarn::device_id device = {}) const {
    return tarn::pool_over<tarn::basic_pages<Driver>>{cuda_pages(device)};
  }
  [[nodiscard]] auto stream(tarn::device_id device = {}) const {
    return tarn::basic_stream<Driver>{driver(device)};
  }
  [[nodiscard]] auto pinned_host() const { return tarn::basic_pinned<Driver>{driver()}; }
  [[nodiscard]] auto registered_host() const { return tarn::basic_registered<Driver>{driver()}; }
  [[nodiscard]] auto managed() const { return tarn::basic_managed<Driver>{driver()}; }

 private:
  std::vector<Driver> drivers_;  ///< by device
};

/// Calls `run` with the machine's GPUs, or with the devices of `simulated` if there is none. Reports on std::clog which it is.
template <class Run>
void with_gpu_or_simulated(Run run, tarn::sim_machine const& simulated = tarn::sim_machine::standard()) {
#if TARN_HAS_CUDA
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
    std::clog << "running on CUDA, " << count << (count == 1 ? " device\n" : " devices\n");
    std::vector<tarn::cuda_driver> drivers;
    for (int d = 0; d < count; ++d) drivers.emplace_back(tarn::device_id{d});
    run(gpu_or_simulated(std::move(drivers)));
    return;
  }
#endif
#if defined(THRUST_DEVICE_SYSTEM_CUDA) && THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CUDA
  (void)run, (void)simulated;
  std::clog
      << "skipped: no CUDA device was found, and Thrust is compiled for CUDA; build with a host compiler\n";
#else
  std::clog << "running on the simulated device: "
            << (TARN_HAS_CUDA != 0 ? "no CUDA device was found\n" : "built without CUDA\n");
  std::vector<tarn::sim_driver> drivers;
  for (int d = 0; d < simulated.options().devices; ++d)
    drivers.push_back(simulated.driver(tarn::device_id{d}));
  run(gpu_or_simulated(std::move(drivers)));
#endif
}
