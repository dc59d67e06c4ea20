// SPDX-License-Identifier: Apache-2.0
// What cuda_memory_tool reports for each device. Under compute-sanitizer the tool takes all memory.

#include "tarn/driver/cuda_memory_tool.hpp"

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/driver/cuda_driver.hpp"

using namespace tarn;

TEST_CASE("cuda_memory_tool registers memory of every device, whichever is current",
          "[driver][memory_tool][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  int devices = 0;
  REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
  for (int current = 0; current < devices; ++current) {
    for (int d = 0; d < devices; ++d) {
      CAPTURE(current, d);
      REQUIRE(cudaSetDevice(current) == cudaSuccess);
      cuda_driver const driver{device_id{d}};
      cuda_memory_tool const tool = driver.memory_tool();  // of nvtx_memory where compute-sanitizer runs this
      void* p = nullptr;
      REQUIRE(driver.malloc_device(2_MiB, p).ok());
      if (static_cast<bool>(tool)) {
        void* const heap = tool.register_heap(p, 2_MiB);
        CHECK(heap != nullptr);
        tool.register_region(heap, p, 1000);
        tool.unregister_region(p);
        tool.unregister_heap(heap);
      }
      int now = -1;
      CHECK(cudaGetDevice(&now) == cudaSuccess);
      CHECK(now == current);
      CHECK(driver.free_device(p).ok());
      CHECK(cudaGetLastError() == cudaSuccess);
    }
  }
  CHECK(cudaSetDevice(0) == cudaSuccess);
}
