// SPDX-License-Identifier: Apache-2.0
// Logs each call as a line of comma-separated values through a user-defined hook; any logger works.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <iostream>
#include <string_view>

using namespace tarn::literals;

int main() {
  auto const print = [](tarn::call_record const& call) {
    std::cout << tarn::format_log_line(call).view() << '\n';  // only std::cout allocates
  };
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{1_MiB} | tarn::logged{print};
  tarn::stream_ref const stream;

  std::cout << tarn::log_line_header << '\n';
  auto weights = tarn::make_device_buffer<float>(memory, 1000, stream, tarn::tag("weights"));
  weights.resize(2000);
  try {
    weights.resize(1 << 20);
  } catch (tarn::out_of_memory const&) {
    std::cout << "refused: the old block is as it was\n";
  }
}
