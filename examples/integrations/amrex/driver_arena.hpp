// SPDX-License-Identifier: Apache-2.0
#pragma once
// An arena that passes each call on to the driver, to compare with: cudaMalloc, or cudaMallocAsync. Without a
// GPU: malloc.

#include <AMReX_Arena.H>
#include <AMReX_Gpu.H>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tarn_amrex {

enum class driver_call { malloc, malloc_async };

/// One thread, and host functions at the same time: what they free is given back at the next allocation.
class driver_arena final : public amrex::Arena {
 public:
  explicit driver_arena(driver_call call) : call_(call) { arena_info.SetDeviceMemory(); }
  ~driver_arena() override { collect(); }

  [[nodiscard]] void* alloc(std::size_t bytes) override {
    collect();
    return take(bytes == 0 ? 1 : bytes);
  }
  void free(void* p) override {
    if (p == nullptr) return;
    if (std::this_thread::get_id() == owner_) return give(p);
    std::lock_guard const guard(mutex_);
    finished_.push_back(p);
  }

 private:
#ifdef AMREX_USE_GPU
  [[nodiscard]] void* take(std::size_t bytes) const {
    void* p = nullptr;
    if (call_ == driver_call::malloc) {
      AMREX_CUDA_SAFE_CALL(cudaMalloc(&p, bytes));
    } else {
      AMREX_CUDA_SAFE_CALL(cudaMallocAsync(&p, bytes, amrex::Gpu::gpuStream()));
    }
    return p;
  }
  void give(void* p) const {
    if (call_ == driver_call::malloc) {
      AMREX_CUDA_SAFE_CALL(cudaFree(p));
    } else {
      AMREX_CUDA_SAFE_CALL(cudaFreeAsync(p, amrex::Gpu::gpuStream()));
    }
  }
#else
  [[nodiscard]] static void* take(std::size_t bytes) { return std::malloc(bytes); }
  static void give(void* p) { std::free(p); }
#endif
  void collect() {
    std::vector<void*> some;
    {
      std::lock_guard const guard(mutex_);
      some.swap(finished_);
    }
    for (void* const p : some) give(p);
  }

  driver_call call_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::mutex mutex_;  // of finished_
  std::vector<void*> finished_;
};

}  // namespace tarn_amrex
