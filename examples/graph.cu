// SPDX-License-Identifier: Apache-2.0
// A CUDA graph whose temporary buffer comes from a pool: captured once, replayed with new input. Needs a GPU.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <stdexcept>
#include <vector>

__global__ void twice(std::size_t n, float const* in, float* out) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) out[i] = 2 * in[i];
}

static void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

int main() {
  constexpr unsigned n = 1 << 20;
  tarn::device_pool pool;
  tarn::stream stream;
  auto in = tarn::make_device_buffer<float>(pool, n, stream);
  auto out = tarn::make_device_buffer<float>(pool, n, stream);

  tarn::graph_memory memory{pool};  // keeps the addresses that the graph uses: it ends after the last replay
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  {
    tarn::capture_scope const scope(memory, stream);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    {
      auto temporary = tarn::make_device_buffer<float>(pool, n, stream);
      twice<<<n / 256, 256, 0, stream>>>(n, in.data(), temporary.data());
      twice<<<n / 256, 256, 0, stream>>>(n, temporary.data(), out.data());
    }  // freed inside the capture
    check(cudaStreamEndCapture(stream, &graph));
  }
  check(cudaGraphInstantiate(&step, graph, 0));
  check(cudaGraphDestroy(graph));

  std::vector<float> host(n);
  for (float value : {1.0F, 10.0F}) {
    std::vector<float> const input(n, value);
    in.copy_from(input);
    check(cudaGraphLaunch(step, stream));
    out.copy_to_sync(host);
    std::printf("%g becomes %g\n", static_cast<double>(value), static_cast<double>(host[n - 1]));
  }
  std::printf("the graph's memory: %zu KiB\n", static_cast<std::size_t>(memory.state().reserved) >> 10);
  check(cudaGraphExecDestroy(step));
}
