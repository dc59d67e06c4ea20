// SPDX-License-Identifier: Apache-2.0
// CUDA behind the driver contract, and what only CUDA has: devices, default streams, captures, the last
// error.

#include "tarn/driver/cuda_driver.hpp"

#include <atomic>
#include <cstddef>
#include <thread>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "driver/contract.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace cuda_driver_test {

struct cuda_bench {
  cuda_driver driver() { return cuda_driver{device_id{0}}; }
  bool keep_busy(stream_ref stream) { return tarn_test::keep_busy(stream); }
  bool can_touch() { return true; }
  bool begin_capture(stream_ref stream) {
    return cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess;
  }
  bool end_capture(stream_ref stream) {
    cudaGraph_t graph = nullptr;
    bool const whole = cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess;
    (void)cudaGetLastError();
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return whole;
  }
};

inline int current_device() {
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  return device;
}

}  // namespace cuda_driver_test

using namespace cuda_driver_test;

TEST_CASE("cuda_driver keeps the driver contract", "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  test::driver_contract(cuda_bench{});
}

TEST_CASE(
    "cuda_driver reports the free memory of a card as CUDA does, that of an integrated GPU as the host does",
    "[driver][cuda_driver][cuda][meminfo]") {
  if (!has_cuda_devices()) return;
  int integrated = 0;
  REQUIRE(cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, 0) == cudaSuccess);
  std::size_t free = 0, total = 0, expected = 0, cuda_total = 0;
  REQUIRE(cuda_driver{device_id{0}}.memory_info(free, total).ok());
  REQUIRE(cudaMemGetInfo(&expected, &cuda_total) == cudaSuccess);
  if (integrated != 0) detail::use_available(cuda_total, expected);
  CHECK(total == cuda_total);
  CHECK(free <= total);
  std::size_t const apart = free < expected ? expected - free : free - expected;
  CHECK(apart <= (integrated != 0 ? 64_MiB : 0));  // the host's other programs go on
}

TEST_CASE("cuda_driver clears the last error of a refusal that tarn handles", "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  REQUIRE(cudaGetLastError() == cudaSuccess);
  void* p = nullptr;
  status const s = driver.malloc_device(std::size_t{1} << 50, p);
  CHECK(s.kind == failure::out_of_memory);
  CHECK(s.code == static_cast<int>(cudaErrorMemoryAllocation));
  CHECK(cudaGetLastError() == cudaSuccess);
  test::scoped_stream const stream(driver);
  test::scoped_event const event(driver);
  REQUIRE(tarn_test::keep_busy(stream));
  REQUIRE(driver.record_event(event, stream).ok());
  CHECK(driver.query_event(event).kind == failure::not_ready);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(driver.synchronize_stream(stream).ok());
}

TEST_CASE("cuda_driver reports a device number that does not exist", "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver{device_id{126}};
  void* p = nullptr;
  std::size_t bytes = 0;
  CHECK(driver.malloc_device(64, p).kind == failure::no_device);
  CHECK(driver.page_granularity(bytes).kind == failure::no_device);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(current_device() == 0);
}

TEST_CASE("cuda_driver reports no_device on every call if there is no device", "[driver][cuda_driver]") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;  // the other half of the tests runs
  (void)cudaGetLastError();
  cuda_driver const driver;
  void* p = nullptr;
  std::size_t bytes = 0;
  page_handle handle = 0;
  stream_ref stream;
  event_handle event = nullptr;
  status const answers[] = {driver.malloc_device(64, p),        driver.malloc_async(64, stream_ref{}, p),
                            driver.malloc_pinned(64, p),        driver.malloc_managed(64, p),
                            driver.register_host(&p, 64),       driver.free_device(nullptr),
                            driver.page_granularity(bytes),     driver.reserve_range(2_MiB, 2_MiB, p),
                            driver.create_pages(2_MiB, handle), driver.map_pages(p, 2_MiB, handle),
                            driver.unmap_pages(p, 2_MiB),       driver.destroy_pages(handle),
                            driver.release_range(p, 2_MiB),     driver.memory_info(bytes, bytes),
                            driver.create_stream(stream),       driver.create_event(event),
                            driver.synchronize_device(),        driver.set_release_threshold(0)};
  for (status const& s : answers) {
    CHECK(s.kind == failure::no_device);
    CHECK(s.name[0] != '\0');
    CHECK(s.call[0] != '\0');
  }
  stream_id id = 0;
  CHECK(driver.identify(stream_ref{}, id).ok());  // needs no device
  CHECK(id != stream_ref::unknown_id);
}

TEST_CASE("cuda_driver treats error numbers of the runtime and of the driver alike",
          "[driver][cuda_driver]") {
  using detail::cuda_failure;
  CHECK(cuda_failure(CUDA_SUCCESS) == failure::none);
  CHECK(cuda_failure(CUDA_ERROR_OUT_OF_MEMORY) == failure::out_of_memory);
  CHECK(cuda_failure(CUDA_ERROR_DEINITIALIZED) == failure::unloading);
  CHECK(cuda_failure(CUDA_ERROR_CONTEXT_IS_DESTROYED) == failure::other);
  CHECK(cuda_failure(CUDA_ERROR_NOT_SUPPORTED) == failure::unsupported);
  CHECK(cuda_failure(CUDA_ERROR_NO_DEVICE) == failure::no_device);
  CHECK(cuda_failure(CUDA_ERROR_NOT_READY) == failure::not_ready);
  CHECK(cuda_failure(CUDA_ERROR_ILLEGAL_ADDRESS) == failure::other);
}

TEST_CASE("cuda_driver gives default streams fixed identities, one per thread for per-thread streams",
          "[driver][cuda_driver]") {
  cuda_driver const driver{device_id{0}};
  cuda_driver const elsewhere{device_id{1}};
  auto const id = [](auto const& d, stream_ref stream) {
    stream_id number = 0;
    REQUIRE(d.identify(stream, number).ok());
    return number;
  };
  stream_ref const legacy(cudaStreamLegacy);
  stream_ref const per_thread(cudaStreamPerThread);
  CHECK(id(driver, legacy) == id(driver, legacy));
  CHECK(id(driver, legacy) != id(driver, per_thread));
  CHECK(id(driver, legacy) != id(elsewhere, legacy));
  CHECK(id(driver, per_thread) != id(elsewhere, per_thread));
  using legacy_driver = basic_cuda_driver<null_stream::legacy>;
  using per_thread_driver = basic_cuda_driver<null_stream::per_thread>;
  CHECK(id(legacy_driver(device_id{0}), {}) == id(driver, legacy));
  CHECK(id(per_thread_driver(device_id{0}), {}) == id(driver, per_thread));
  stream_id there = 0;
  std::thread([&] { (void)driver.identify(per_thread, there); }).join();
  CHECK(there != id(driver, per_thread));
  CHECK(id(driver, stream_ref::from(cudaStreamPerThread, 7)) == 7);  // a known identity is not queried again
}

TEST_CASE("cuda_driver reaches another thread's default stream by its identity",
          "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  std::atomic<stream_id> theirs{0};
  std::atomic<int> done{0};
  std::thread other([&] {
    stream_id id = 0;
    bool const busy = driver.identify(stream_ref(cudaStreamPerThread), id).ok() &&
                      tarn_test::keep_busy(stream_ref(cudaStreamPerThread), 200);
    theirs = busy ? id : ~stream_id{0};
    while (done == 0) std::this_thread::yield();  // its default stream is destroyed when it ends
  });
  while (theirs == 0) std::this_thread::yield();
  CHECK(theirs != ~stream_id{0});
  stream_ref const stream = stream_ref::from(cudaStreamPerThread, theirs);
  {
    test::scoped_event const event(driver);
    CHECK(driver.record_event(event, stream).ok());
    CHECK(driver.query_event(event).kind == failure::not_ready);  // this thread's own stream is idle
    CHECK(driver.synchronize_stream(stream).ok());
    CHECK(driver.query_event(event).ok());
  }
  done = 1;
  other.join();
}

TEST_CASE("cuda_driver orders frees on the default stream of a thread that has ended",
          "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  stream_id theirs = 0;
  std::thread([&] {
    (void)driver.identify(stream_ref(cudaStreamPerThread), theirs);
    (void)tarn_test::keep_busy(stream_ref(cudaStreamPerThread), 200);
  }).join();
  test::scoped_event const event(driver);
  REQUIRE(driver.record_event(event, stream_ref::from(cudaStreamPerThread, theirs)).ok());
  CHECK(driver.synchronize_event(event).ok());
  CHECK(driver.query_event(event).ok());
}

TEST_CASE("cuda_driver counts the legacy default stream as captured while a blocking stream is",
          "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  cudaStream_t blocking = nullptr;
  REQUIRE(cudaStreamCreate(&blocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal) == cudaSuccess);
  bool capturing = false;
  CHECK(driver.is_capturing(stream_ref(cudaStreamLegacy), capturing).ok());
  CHECK(capturing);
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(blocking, &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(driver.is_capturing(stream_ref(cudaStreamLegacy), capturing).ok());
  CHECK_FALSE(capturing);
  CHECK(cudaStreamDestroy(blocking) == cudaSuccess);
}

TEST_CASE("cuda_driver creates and destroys pages and blocks during a capture in global mode",
          "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  std::size_t page = 0;
  if (driver.page_granularity(page).kind == failure::unsupported) {
    WARN("skipped, nothing was tested: the device has no virtual memory management");
    return;
  }
  test::scoped_stream const stream(driver);
  REQUIRE(cudaStreamBeginCapture(static_cast<stream_ref>(stream).get(), cudaStreamCaptureModeGlobal) ==
          cudaSuccess);
  void* p = nullptr;
  page_handle handle = 0;
  CHECK(driver.reserve_range(page, page, p).ok());
  CHECK(driver.create_pages(page, handle).ok());
  CHECK(driver.map_pages(p, page, handle).ok());
  CHECK(driver.unmap_pages(p, page).ok());
  CHECK(driver.destroy_pages(handle).ok());
  CHECK(driver.release_range(p, page).ok());
  void* pinned = nullptr;
  CHECK(driver.malloc_pinned(64, pinned).ok());
  event_handle event = nullptr;
  CHECK(driver.create_event(event).ok());
  CHECK(driver.query_event(event).ok());
  CHECK(driver.destroy_event(event).ok());
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(static_cast<stream_ref>(stream).get(), &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  CHECK(driver.free_pinned(pinned).ok());
}

TEST_CASE("cuda_driver calls for another device keep the current device", "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices(2)) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cuda_driver const driver{device_id{1}};
  std::thread([&] {  // a thread that has not used a device yet
    void* p = nullptr;
    CHECK(driver.malloc_device(1_MiB, p).ok());
    CHECK(current_device() == 0);
    cudaPointerAttributes attributes{};
    CHECK(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
    CHECK(attributes.device == 1);
    CHECK(driver.fill({}, p, 0x33, 1_MiB).ok());
    CHECK(driver.synchronize_stream({}).ok());
    CHECK(test::holds(driver, p, 1_MiB, 0x33));
    CHECK(driver.free_device(p).ok());
    test::scoped_stream const stream(driver);
    test::scoped_event const event(driver);
    CHECK(driver.record_event(event, stream).ok());
    CHECK(driver.record_event(event, stream_ref{}).ok());
    CHECK(driver.synchronize_event(event).ok());
    CHECK(current_device() == 0);
  })
      .join();
  std::size_t page = 0;
  if (driver.page_granularity(page).ok()) {
    void* p = nullptr;
    page_handle handle = 0;
    REQUIRE(driver.reserve_range(page, page, p).ok());
    REQUIRE(driver.create_pages(page, handle).ok());
    REQUIRE(driver.map_pages(p, page, handle).ok());
    CHECK(driver.fill({}, p, 0x44, page).ok());
    CHECK(test::holds(driver, p, page, 0x44));
    CHECK(driver.unmap_pages(p, page).ok());
    CHECK(driver.destroy_pages(handle).ok());
    CHECK(driver.release_range(p, page).ok());
  }
  CHECK(current_device() == 0);
}
