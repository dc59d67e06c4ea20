// SPDX-License-Identifier: Apache-2.0
#pragma once
// Puts a stack of tarn's in place of rmm::mr::cuda_memory_resource: included by the compiler before a test
// file of RMM's
// (-include), so that the file itself stays unchanged. Every object of the class is a handle to one stack per
// process, as RMM's objects are all equal. TARN_RMM_STACK chooses it: device_pool, cuda_malloc, fenced.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <iostream>
#include <string>
#include <utility>

// Every header of RMM's that names cuda_memory_resource, before the name is replaced.
#include <rmm/cuda_stream.hpp>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/aligned_resource_adaptor.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/fixed_size_memory_resource.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/managed_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pinned_host_memory_resource.hpp>
#include <rmm/mr/polymorphic_allocator.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/prefetch_resource_adaptor.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/system_memory_resource.hpp>
#include <rmm/mr/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/thrust_allocator_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

#include "tarn/source/cuda_malloc.hpp"
#include "tarn/tarn.hpp"
#include "tarn_rmm.hpp"

namespace tarn_rmm {

using any_memory = ::cuda::mr::any_resource<::cuda::mr::device_accessible>;

inline any_memory chosen_stack() {
  char const* const name = std::getenv("TARN_RMM_STACK");
  std::string const chosen = name != nullptr ? name : "device_pool";
  if (chosen == "device_pool") return any_memory(resource(tarn::device_pool{}));
  if (chosen == "cuda_malloc") return any_memory(resource(tarn::pool_over<tarn::cuda_malloc>{}));
  if (chosen == "fenced") {
    return any_memory(resource(tarn::stack<tarn::cuda_pages, tarn::pooled, tarn::fenced, tarn::tracked>{}));
  }
  std::cerr << "TARN_RMM_STACK: " << chosen << " is not a stack; use device_pool, cuda_malloc or fenced\n";
  std::exit(2);
}
inline any_memory& stack() {
  static any_memory memory = chosen_stack();
  return memory;
}

}  // namespace tarn_rmm

namespace rmm::mr {

/// What the tests use in place of cuda_memory_resource: default-constructible, copyable, all equal.
class tarn_memory_resource {
 public:
  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 256) {
    return tarn_rmm::stack().allocate(stream, bytes, alignment);
  }
  void deallocate(::cuda::stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment = 256) noexcept {
    tarn_rmm::stack().deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = 256) {
    return tarn_rmm::stack().allocate_sync(bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = 256) noexcept {
    tarn_rmm::stack().deallocate_sync(p, bytes, alignment);
  }
  friend bool operator==(tarn_memory_resource const&, tarn_memory_resource const&) noexcept { return true; }
  friend void get_property(tarn_memory_resource const&, ::cuda::mr::device_accessible) noexcept {}
};
static_assert(::cuda::mr::resource_with<tarn_memory_resource, ::cuda::mr::device_accessible>);

}  // namespace rmm::mr

namespace tarn_rmm {

/// Makes the stack the current device resource before each test: tests of containers use that one, and some
/// tests reset it.
struct current_before_each_test : ::testing::EmptyTestEventListener {
  void OnTestStart(::testing::TestInfo const&) override {
    rmm::mr::set_current_device_resource(rmm::mr::tarn_memory_resource{});
  }
};
inline bool const is_current = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new current_before_each_test);
  return true;
}();

}  // namespace tarn_rmm

#define cuda_memory_resource tarn_memory_resource  // in the test file, and in the headers of the test suite
