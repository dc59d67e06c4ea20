// SPDX-License-Identifier: Apache-2.0
// Checked memory: each misuse is reported with the block's history; here on the simulated device.

#include <cstdio>
#include <string_view>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

int main() {
  tarn::set_misuse_handler([](tarn::misuse const& what) {
    // Addresses differ between runs: print the text from "of ... bytes" on.
    std::string_view const text = what.what();
    std::printf("%s\n", text.substr(text.find(" of ") + 1).data());
  });
  auto memory = tarn::sim_pages{} | tarn::pooled{} | tarn::checked{} | tarn::tracked{};
  tarn::stream_ref const stream;

  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  p[100] = 1;  // one past the end
  memory.deallocate(stream, p, 100);
  memory.deallocate(stream, p, 100);  // double free

  auto* const q = static_cast<unsigned char*>(memory.allocate(stream, 200));
  memory.deallocate(stream, q, 200);
  q[7] = 1;  // use after free
  memory->upstream()->check_all();

  (void)memory.allocate(stream, 300);  // leaked
}
