// SPDX-License-Identifier: Apache-2.0
// What a CUDA program uses at once: a kernel, a pool, Thrust and a graph, and a concept of its own over
// tarn's calls. nvcc 12.4 corrupted the calls in such a concept (core/source_location.hpp). The program runs
// without a device: it checks that errors of a simulated one name file, line and function of the call.
// .ci/compile_as_user.py compiles it with each nvcc and runs it.

#include <thrust/sort.h>
#include <thrust/transform.h>

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <string_view>

#include "tarn/diagnostics.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/stl.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"
#include "tarn/transfer.hpp"

namespace {

template <class Pool>
concept usable = requires(Pool& pool, tarn::stream_ref stream) {
  { pool.allocate(stream, std::size_t{1}) } -> std::same_as<void*>;
  { pool.allocate_sync(std::size_t{1}) } -> std::same_as<void*>;
  { tarn::make_device_buffer<float>(pool, std::size_t{1}, stream).size() } -> std::same_as<std::size_t>;
  { tarn::empty_cache(pool) } -> std::same_as<void>;
};
static_assert(usable<tarn::device_pool>);
static_assert(usable<tarn::sim_pool>);

__global__ void twice(float* p, std::size_t n) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) p[i] *= 2;
}

/// Compiled and linked; run where there is a device.
cudaError_t on_a_device(std::size_t n) {
  tarn::device_pool pool;
  tarn::stream stream;
  tarn::graph_memory memory{pool};
  auto values = tarn::make_device_buffer<float>(pool, n, stream);
  values.zero();
  float* const first = values.data();
  thrust::transform(tarn::par(pool).on(stream), first, first + n, first,
                    [] __device__(float x) { return x + 1; });
  thrust::sort(tarn::par(pool).on(stream), first, first + n);
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  {
    tarn::capture_scope const scope{memory, stream};
    auto captured = tarn::make_device_buffer<float>(pool, n, stream);
    twice<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(first, n);
    captured.copy_from(values);
  }
  cudaStreamEndCapture(stream, &graph);
  cudaGraphDestroy(graph);
  stream.synchronize();
  return cudaGetLastError();
}

int wrong = 0;

/// Checks that `call` runs out of memory at `line` of `function` in this file.
template <class Call>
void refused_at(int line, std::string_view function, Call const& call) {
  try {
    call();
    std::printf("line %d: nothing was thrown\n", line);
  } catch (tarn::out_of_memory const& error) {
    tarn::source_location const where = error.where();
    if (where.line == line && std::string_view(where.file).ends_with("cuda_program.cu") &&
        where.function == function) {
      return;
    }
    std::printf("line %d: %s:%d, %s\n", line, where.file, where.line, where.function);
  }
  ++wrong;
}

struct caller {
  tarn::sim_pool pool;
  tarn::sim_stream stream;
  tarn::device_buffer<float, tarn::sim_pool> buffer =
      tarn::make_device_buffer<float>(pool, std::size_t{100}, stream);
  static constexpr std::size_t too_much = std::size_t{1} << 50;

  void allocate() { (void)pool.allocate(stream, too_much); }
  void make() { (void)tarn::make_device_buffer<float>(pool, too_much, stream); }
  void make_tagged() { (void)tarn::make_device<float[]>(pool, too_much, stream, tarn::tag("weights")); }
  void resize() { buffer.resize(too_much); }
};
constexpr int line_of_allocate = __LINE__ - 5;

}  // namespace

int main(int, char** arguments) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 && on_a_device(1000) != cudaSuccess) {
    std::printf("the device reports an error\n");
    ++wrong;
  }
  caller c;
  refused_at(line_of_allocate, "allocate", [&] { c.allocate(); });
  refused_at(line_of_allocate + 1, "make", [&] { c.make(); });
  refused_at(line_of_allocate + 2, "make_tagged", [&] { c.make_tagged(); });
  refused_at(line_of_allocate + 3, "resize", [&] { c.resize(); });
  if (wrong != 0) std::printf("%s: %d calls are wrong\n", arguments[0], wrong);
  return wrong;
}
