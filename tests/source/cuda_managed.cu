// SPDX-License-Identifier: Apache-2.0
// prefetch(), advise() and prefetched on CUDA. A few MiB: managed memory beyond the device's is not tried.

#include <cstddef>
#include <cstring>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/memory_access.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/prefetched.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace cuda_managed_test {

/// Whether the device can move pages while it runs; otherwise all calls are `unsupported`.
inline bool can_migrate() {
  int can = 0;
  return cudaDeviceGetAttribute(&can, cudaDevAttrConcurrentManagedAccess, 0) == cudaSuccess && can != 0;
}
inline int attribute(cudaMemRangeAttribute which, void const* p, std::size_t bytes) {
  int value = -7;
  CHECK(cudaMemRangeGetAttribute(&value, sizeof value, which, p, bytes) == cudaSuccess);
  return value;
}
inline int location(void const* p, std::size_t bytes) {
  return attribute(cudaMemRangeAttributeLastPrefetchLocation, p, bytes);
}
template <class F>
failure kind_of_failure(F const& call) {
  try {
    call();
  } catch (cuda_error const& e) {
    return e.kind();
  }
  return failure::none;
}

}  // namespace cuda_managed_test

using namespace cuda_managed_test;

TEST_CASE("prefetch on CUDA moves managed memory to the device and to the host, with its contents",
          "[source][managed][cuda]") {
  if (!has_cuda_devices() || !can_migrate()) return;
  auto pool = managed{device_id{0}} | pooled{};
  stream const on;
  auto buffer = make_device_buffer<unsigned char>(pool, 4_MiB, on);
  std::memset(buffer.data(), 0x5A, buffer.size());
  prefetch(buffer, 0, on);
  CHECK(location(buffer.data(), buffer.size()) == 0);
  CHECK(tarn_test::holds(pool, on, buffer.data(), 0x5A, buffer.size()));
  prefetch(buffer, host_id, on);
  CHECK(location(buffer.data(), buffer.size()) == cudaCpuDeviceId);
  CHECK(cudaStreamSynchronize(on.get()) == cudaSuccess);
  CHECK(buffer.data()[4_MiB - 1] == 0x5A);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("advise on CUDA sets and undoes each advice", "[source][managed][cuda]") {
  if (!has_cuda_devices() || !can_migrate()) return;
  auto pool = managed{device_id{0}} | pooled{};
  stream const on;
  auto const buffer = make_device_buffer<char>(pool, 4_MiB, on);
  auto const asked = [&](cudaMemRangeAttribute which) {
    return attribute(which, buffer.data(), buffer.size());
  };
  advise(buffer, memory_advice::read_mostly, 0);
  CHECK(asked(cudaMemRangeAttributeReadMostly) == 1);
  advise(buffer, memory_advice::not_read_mostly, 0);
  CHECK(asked(cudaMemRangeAttributeReadMostly) == 0);
  advise(buffer, memory_advice::preferred_location, host_id);
  CHECK(asked(cudaMemRangeAttributePreferredLocation) == cudaCpuDeviceId);
  advise(buffer, memory_advice::preferred_location, 0);
  CHECK(asked(cudaMemRangeAttributePreferredLocation) == 0);
  advise(buffer, memory_advice::no_preferred_location, 0);
  CHECK(asked(cudaMemRangeAttributePreferredLocation) == cudaInvalidDeviceId);
  advise(buffer, memory_advice::accessed_by, 0);
  CHECK(asked(cudaMemRangeAttributeAccessedBy) == 0);
  advise(buffer, memory_advice::not_accessed_by, 0);
  CHECK(asked(cudaMemRangeAttributeAccessedBy) == cudaInvalidDeviceId);
}

TEST_CASE("prefetch and advise on CUDA refuse what is not managed, and leave no last error",
          "[source][managed][cuda]") {
  if (!has_cuda_devices()) return;
  auto pool = pinned_host{device_id{0}} | pooled{};
  stream const on;
  auto const buffer = make_device_buffer<char>(pool, 1_MiB, on);
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, on); }) == failure::unsupported);
  CHECK(kind_of_failure([&] { advise(buffer, memory_advice::read_mostly, 0); }) == failure::unsupported);
  CHECK(kind_of_failure([&] { prefetch(buffer, 125, on); }) != failure::none);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("prefetch on CUDA refuses a captured stream, prefetched passes it, and the capture stays valid",
          "[source][managed][cuda]") {
  if (!has_cuda_devices()) return;
  auto pool = managed{device_id{0}} | pooled{};
  auto memory = pool | prefetched{};
  stream const on;
  auto const buffer = make_device_buffer<char>(pool, 1_MiB, on);
  memory.deallocate(on, memory.allocate(on, 1_MiB), 1_MiB);
  cudaStream_t const handle = stream_ref(on).get();
  REQUIRE(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK(kind_of_failure([&] { prefetch(buffer, 0, on); }) == failure::unsupported);
  void* const p = memory.allocate(on, 1_MiB);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(handle, &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  memory.deallocate(on, p, 1_MiB);
}

TEST_CASE("prefetched over managed memory of CUDA meets the resource contract",
          "[policy][prefetched][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return managed{device_id{0}} | pooled{} | prefetched{}; });
}

TEST_CASE("prefetched moves blocks of CUDA's managed memory to the device, also beside a captured stream",
          "[policy][prefetched][cuda]") {
  if (!has_cuda_devices() || !can_migrate()) return;
  auto memory = managed{device_id{0}} | pooled{} | prefetched{};
  stream const on;
  stream const captured;
  void* const p = memory.allocate(on, 2_MiB);
  CHECK(location(p, 2_MiB) == 0);
  memory.deallocate(on, p, 2_MiB);
  cudaStream_t const handle = stream_ref(captured).get();
  REQUIRE(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal) == cudaSuccess);
  void* const q = memory.allocate(on, 2_MiB);
  CHECK(location(q, 2_MiB) == 0);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(handle, &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  memory.deallocate(on, q, 2_MiB);
}
