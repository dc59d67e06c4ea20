// SPDX-License-Identifier: Apache-2.0
// Accounts for the 1,072 MiB that nvidia-smi shows for a model of 0.0004 MiB. Uses CUDA if a device is found (build it as .cu),
// otherwise a simulated device whose context is that of a program with some kernel libraries.

#include <iostream>

#include "tarn/report/explain_memory.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

template <class Pages>
int run(typename Pages::driver_type const& driver) {
  // What the process uses before it has allocated anything: the context, and the modules loaded so far.
  tarn::context_cost const context = tarn::measure_context(driver);

  tarn::pool_over<Pages> pool{Pages{driver}};
  tarn::basic_stream<typename Pages::driver_type> stream{driver};
  auto model = tarn::make_device_buffer<float>(pool, 10 * 10 + 10, stream);  // 10 x 10 weights, 10 biases
  tarn::memory_explanation const e = tarn::explain_memory(context, pool);
  std::cout << e.text();

  auto const mib = [](std::size_t bytes) { return bytes >> 20; };
  if (e.this_process && e.context) {
    std::cout << "\nnvidia-smi shows " << mib(*e.this_process) << " MiB: " << mib(*e.context)
              << " MiB belong to the context, before the first allocation. The model is " << model.bytes()
              << " bytes.\n"
              << "It lies in the smallest unit that a device allocates, " << mib(e.reserved())
              << " MiB; the pool caches the rest.\n";
  }
  return 0;
}

int main() {
#if TARN_HAS_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    return run<tarn::cuda_pages>(tarn::cuda_driver{});
  }
  std::cout << "no CUDA device was found: simulated\n";
#endif
  tarn::sim_machine const machine{{.capacity = 140_GiB,
                                   .taken = 4_GiB,
                                   .context = 1070_MiB,
                                   .other_processes = 2_GiB,
                                   .set_aside = 600_MiB}};
  return run<tarn::sim_pages>(machine.driver());
}
