// SPDX-License-Identifier: Apache-2.0
// tarn beside code that calls CUDA itself and knows only pointers and cudaStream_t. Needs a GPU.

#include <tarn/tarn.hpp>

#include <cstdio>
#include <vector>

// The other code: a library's function, and one that returns memory of cudaMalloc.
static void library_copy(float const* from, float* to, std::size_t n, cudaStream_t stream) {
  cudaMemcpyAsync(to, from, n * sizeof(float), cudaMemcpyDeviceToDevice, stream);
}
static float* library_zeros(std::size_t n) {
  void* p = nullptr;
  if (cudaMalloc(&p, n * sizeof(float)) != cudaSuccess) return nullptr;
  cudaMemset(p, 0, n * sizeof(float));
  return static_cast<float*>(p);
}

int main() {
  std::size_t const n = 1 << 20;
  tarn::device_pool pool;

  // A stream that other code made: tarn takes the handle. Ask for its identity once, and no call has to.
  cudaStream_t theirs = nullptr;
  if (cudaStreamCreate(&theirs) != cudaSuccess) return 1;
  tarn::stream_ref const stream = tarn::identified(pool, theirs);

  // tarn's memory for their function: pass data() and the stream.
  auto ours = tarn::make_device_buffer<float>(pool, n, stream);
  {
    // Their memory, owned: freed by cudaFree once the stream's work is done.
    tarn::device_ptr<float[], tarn::cuda_malloc> const zeros(tarn::cuda_malloc{}, library_zeros(n), n,
                                                             stream);
    if (!zeros) return 1;
    library_copy(zeros.get(), ours.data(), n, theirs);
  }
  std::vector<float> host(n, 1.0F);
  ours.copy_to_sync(host);
  std::printf("copied: %g\n", static_cast<double>(host[n - 1]));

  // Memory that they free through a callback: release() gives it up, and the pool takes it back.
  std::size_t const bytes = ours.capacity() * sizeof(float);
  float* const given = ours.release();
  std::printf("given away: %zu bytes are still allocated\n", tarn::memory_allocated(pool));
  pool.deallocate(stream, given, bytes);
  std::printf("and returned: %zu\n", tarn::memory_allocated(pool));
  cudaStreamDestroy(theirs);
}
