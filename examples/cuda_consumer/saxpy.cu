// SPDX-License-Identifier: Apache-2.0
// A kernel on pooled memory: two buffers are filled by copies, y = a * x + y runs on the same stream, and the
// result comes back.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <exception>
#include <vector>

__global__ void saxpy(std::size_t n, float a, float const* x, float* y) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

int main() {
  std::size_t const n = 1 << 20;
  std::vector<float> host(n, 2.0F);
  try {
    tarn::device_pool pool;
    tarn::stream stream;
    auto x = tarn::make_device_buffer<float>(pool, n, stream);
    auto y = tarn::make_device_buffer<float>(pool, n, stream);
    x.copy_from(host);  // in the order of the buffer's stream
    y.copy_from(host);
    saxpy<<<(n + 255) / 256, 256, 0, stream>>>(n, 3.0F, x.data(), y.data());
    y.copy_to_sync(host);
    std::printf("y[0] = %g, %zu bytes allocated\n", static_cast<double>(host[0]),
                tarn::memory_allocated(pool));
    return host[0] == 8.0F && host[n - 1] == 8.0F ? 0 : 1;
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
