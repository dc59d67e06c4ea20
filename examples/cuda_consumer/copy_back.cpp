// SPDX-License-Identifier: Apache-2.0
// No kernel: an ordinary C++ file that links to CUDA's runtime. Elements go to the device and come back.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <exception>
#include <numeric>
#include <vector>

int main() {
  std::vector<int> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 0);
  try {
    tarn::device_pool pool;
    tarn::stream stream;
    auto buffer = tarn::make_device_buffer<int>(pool, numbers.size(), stream);
    buffer.copy_from(numbers);
    std::vector<int> back(numbers.size());
    buffer.copy_to_sync(back);
    std::printf("%s\n", back == numbers ? "the elements came back" : "the elements differ");
    return back == numbers ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
