// SPDX-License-Identifier: Apache-2.0
#include "peers/cuda_calls.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace {

std::atomic<std::uint64_t> calls{0};

/// Sizes of the blocks from cudaMalloc, since cudaFree does not receive them.
struct ledger {
  std::mutex lock;
  std::unordered_map<void*, std::size_t> blocks;
  std::uint64_t held = 0;
  std::uint64_t peak = 0;

  static ledger& of_process() {
    static auto* const one = new ledger;  // never destroyed: static pools free at exit
    return *one;
  }
  void add(void* block, std::size_t bytes) {
    std::lock_guard const guard(lock);
    blocks[block] = bytes;
    held += bytes;
    peak = std::max(peak, held);
  }
  void remove(void* block) {
    std::lock_guard const guard(lock);
    auto const found = blocks.find(block);
    if (found == blocks.end()) return;
    held -= found->second;
    blocks.erase(found);
  }
};

void count() {
  calls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

// The linker renames each reference to X to __wrap_X, and __real_X to X.
extern "C" {
cudaError_t __real_cudaMalloc(void** block, std::size_t bytes);
cudaError_t __wrap_cudaMalloc(void** block, std::size_t bytes) {
  count();
  cudaError_t const outcome = __real_cudaMalloc(block, bytes);
  if (outcome == cudaSuccess) ledger::of_process().add(*block, bytes);
  return outcome;
}
cudaError_t __real_cudaFree(void* block);
cudaError_t __wrap_cudaFree(void* block) {
  count();
  ledger::of_process().remove(block);
  return __real_cudaFree(block);
}
cudaError_t __real_cudaMallocFromPoolAsync(void** block, std::size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream);
cudaError_t __wrap_cudaMallocFromPoolAsync(void** block, std::size_t bytes, cudaMemPool_t pool,
                                           cudaStream_t stream) {
  count();
  return __real_cudaMallocFromPoolAsync(block, bytes, pool, stream);
}
cudaError_t __real_cudaFreeAsync(void* block, cudaStream_t stream);
cudaError_t __wrap_cudaFreeAsync(void* block, cudaStream_t stream) {
  count();
  return __real_cudaFreeAsync(block, stream);
}
cudaError_t __real_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  count();
  return __real_cudaEventCreateWithFlags(event, flags);
}
cudaError_t __real_cudaEventDestroy(cudaEvent_t event);
cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event) {
  count();
  return __real_cudaEventDestroy(event);
}
cudaError_t __real_cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  count();
  return __real_cudaEventRecord(event, stream);
}
cudaError_t __real_cudaEventQuery(cudaEvent_t event);
cudaError_t __wrap_cudaEventQuery(cudaEvent_t event) {
  count();
  return __real_cudaEventQuery(event);
}
cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  count();
  return __real_cudaEventSynchronize(event);
}
cudaError_t __real_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t __wrap_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  count();
  return __real_cudaStreamWaitEvent(stream, event, flags);
}
cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  count();
  return __real_cudaStreamSynchronize(stream);
}
cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() {
  count();
  return __real_cudaDeviceSynchronize();
}
}

namespace tarn::bench {

std::uint64_t cuda_calls::made() noexcept {
  return calls.load(std::memory_order_relaxed);
}

std::uint64_t cuda_calls::peak_bytes() noexcept {
  std::lock_guard const guard(ledger::of_process().lock);
  return ledger::of_process().peak;
}

void cuda_calls::reset_peak() noexcept {
  std::lock_guard const guard(ledger::of_process().lock);
  ledger::of_process().peak = ledger::of_process().held;
}

}  // namespace tarn::bench
