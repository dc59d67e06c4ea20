// SPDX-License-Identifier: Apache-2.0
// Accounts for the 1,072 MiB that nvidia-smi shows for a model of 0.0004 MiB. The simulated device has the
// context of a program with some kernel libraries.

#include <iostream>

#include "gpu_or_simulated.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/tarn.hpp"

using namespace tarn::literals;

void run(auto gpu) {
  // What the process uses before it has allocated anything: the context, and the modules loaded so far.
  tarn::context_cost const context = tarn::measure_context(gpu.driver());

  auto pool = gpu.device_pool();
  auto const stream = gpu.stream();
  auto model = tarn::make_device_buffer<float>(pool, 10 * 10 + 10, stream);  // 10 x 10 weights, 10 biases
  tarn::memory_explanation const e = tarn::explain_memory(context, pool);
  std::cout << e.text();

  auto const mib = [](std::size_t bytes) { return bytes >> 20; };
  if (e.this_process && e.context) {
    std::cout << "\nnvidia-smi shows " << mib(*e.this_process) << " MiB: " << mib(*e.context)
              << " MiB are the context's, before the first allocation. The model is " << model.bytes()
              << " bytes;\n"
              << "they are in the smallest piece of memory that a device gives, " << mib(e.reserved())
              << " MiB, and the pool keeps the rest of it for later requests.\n";
  }
}

int main() {
  tarn::sim_machine const simulated{{.capacity = 140_GiB,
                                     .taken = 4_GiB,
                                     .context = 1070_MiB,
                                     .other_processes = 2_GiB,
                                     .set_aside = 600_MiB}};
  with_gpu_or_simulated([](auto gpu) { run(gpu); }, simulated);
}
