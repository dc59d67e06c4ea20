// SPDX-License-Identifier: Apache-2.0
// Accounts for what nvidia-smi shows for a model of 0.0004 MiB: on a GPU most of it is the context, which the
// simulated device does not have.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <iostream>

int main() {
  // What the process uses before it has allocated anything: the context, and the modules loaded so far.
  tarn::context_cost const context = tarn::measure_context(tarn::device_id{0});

  tarn::device_pool pool;
  tarn::stream const stream;
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
