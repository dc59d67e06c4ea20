// SPDX-License-Identifier: Apache-2.0
// The sources on CUDA, with the same contract as on the simulated device.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "contract/page_source_contract.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::last_error_is_clean;

namespace cuda_sources_test {

/// Lives from before main() until after CUDA has unloaded. An error there changes the exit status.
struct until_the_end {
  cuda_malloc device{device_id{0}};
  cuda_async ordered{device_id{0}};
  pinned_host pinned{device_id{0}};
  void* blocks[3]{};
  ~until_the_end() {
    if (blocks[0] == nullptr) return;
    device.deallocate({}, blocks[0], 64);
    ordered.deallocate({}, blocks[1], 64);
    pinned.deallocate_sync(blocks[2], 64);
    std::size_t bytes = 0;
    stream_ref stream;
    status const answers[] = {device.driver().memory_info(bytes, bytes),
                              device.driver().create_stream(stream), device.driver().synchronize_device(),
                              device.driver().release_range(nullptr, 0)};
    for (status const& s : answers) {
      bool const expected = s.ok() || s.kind == failure::unloading || s.kind == failure::other;
      if (!expected || s.name == nullptr) std::_Exit(3);
    }
  }
};
static until_the_end at_exit;

}  // namespace cuda_sources_test

TEST_CASE("deallocate of a CUDA source does nothing after CUDA has unloaded", "[source][cuda]") {
  if (!has_cuda_devices()) return;
  auto& at_exit = cuda_sources_test::at_exit;
  at_exit.blocks[1] = at_exit.ordered.allocate({}, 64);
  at_exit.blocks[2] = at_exit.pinned.allocate_sync(64);
  at_exit.blocks[0] = at_exit.device.allocate({}, 64);
  SUCCEED("the rest runs after main(): the exit status is the result");
}

TEMPLATE_TEST_CASE("cuda_malloc, cuda_async, pinned_host and managed meet the resource contract",
                   "[source][cuda]", cuda_malloc, cuda_async, pinned_host, managed) {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return TestType{}; }, last_error_is_clean{});
}

TEST_CASE("cuda_pages meets the page source contract", "[source][cuda_pages][cuda]") {
  if (!has_cuda_devices()) return;
  try {
    (void)cuda_pages{};
  } catch (cuda_error const& error) {
    if (error.kind() != failure::unsupported) throw;
    WARN("skipped, nothing was tested: " << error.what());
    return;
  }
  tarn_test::page_source_contract([] { return cuda_pages{}; }, last_error_is_clean{});
}

TEMPLATE_TEST_CASE("cuda_async_pinned and cuda_async_managed throw no_device without a device", "[source]",
                   cuda_async_pinned, cuda_async_managed) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;  // the other tests run
  (void)cudaGetLastError();
  try {
    (void)TestType(device_id{0});
    FAIL("must not succeed");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::no_device);
  }
}

TEST_CASE("cuda_pages and cuda_malloc throw no_device without a device", "[source]") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;  // the other tests run
  (void)cudaGetLastError();
  CHECK_THROWS_AS(cuda_pages{}, cuda_error);
  cuda_malloc memory{device_id{0}};
  memory.deallocate({}, nullptr, 0);
  try {
    (void)memory.allocate({}, 64);
    FAIL("must not succeed");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::no_device);
    CHECK(std::string_view(error.what()).find("check that a device") != std::string_view::npos);
  }
}

TEMPLATE_TEST_CASE("deallocate of cuda_malloc, pinned_host and managed waits for the stream",
                   "[source][cuda]", cuda_malloc, pinned_host, managed) {
  if (!has_cuda_devices()) return;
  TestType memory;
  tarn_test::test_stream stream(memory.driver());
  stream_ref const on = stream;
  void* const p = memory.allocate(on, 1_MiB);
  REQUIRE(tarn_test::keep_busy(on));
  memory.deallocate(on, p, 1_MiB);
  CHECK(cudaStreamQuery(on.get()) == cudaSuccess);
}

TEST_CASE("cuda_async does not wait for a busy stream", "[source][cuda_async][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_async memory;
  tarn_test::test_stream stream(memory.driver());
  stream_ref const on = stream;
  void* const p = memory.allocate(on, 1_MiB);
  REQUIRE(tarn_test::keep_busy(on, 200));
  memory.deallocate(on, p, 1_MiB);
  CHECK(cudaStreamQuery(on.get()) == cudaErrorNotReady);
  (void)cudaGetLastError();
  void* const q = memory.allocate_sync(1_MiB);  // on a stream of its own
  CHECK(cudaStreamQuery(on.get()) == cudaErrorNotReady);
  (void)cudaGetLastError();
  memory.deallocate_sync(q, 1_MiB);
  CHECK(memory.driver().synchronize_stream(on).ok());
}

namespace cuda_sources_test {
/// The source, or nothing where CUDA or the device has no such pools.
template <class Source>
std::optional<Source> if_supported() {
  try {
    return Source{device_id{0}};
  } catch (cuda_error const& e) {
    CHECK(e.kind() == failure::unsupported);
    CHECK(cudaGetLastError() == cudaSuccess);
    return std::nullopt;
  }
}
}  // namespace cuda_sources_test

TEMPLATE_TEST_CASE("cuda_async_pinned and cuda_async_managed meet the resource contract", "[source][cuda]",
                   cuda_async_pinned, cuda_async_managed) {
  if (!has_cuda_devices() || !cuda_sources_test::if_supported<TestType>()) return;
  tarn_test::resource_contract([] { return TestType{device_id{0}}; });
}

TEMPLATE_TEST_CASE("cuda_async_pinned and cuda_async_managed memory is accessible from host and device",
                   "[source][cuda]", cuda_async_pinned, cuda_async_managed) {
  if (!has_cuda_devices()) return;
  auto memory = cuda_sources_test::if_supported<TestType>();
  if (!memory) return;
  tarn_test::test_stream stream(memory->driver());
  auto* const p = static_cast<unsigned char*>(memory->allocate(stream, 1_MiB));
  REQUIRE(memory->driver().synchronize_stream(stream).ok());
  std::memset(p, 0x17, 1_MiB);
  CHECK(tarn_test::holds(*memory, stream, p, 0x17, 1_MiB));
  REQUIRE(memory->driver().fill(stream, p, 0x29, 1_MiB).ok());
  REQUIRE(memory->driver().synchronize_stream(stream).ok());
  CHECK(p[0] == 0x29);
  CHECK(p[1_MiB - 1] == 0x29);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
  bool const is_managed = std::is_same_v<TestType, cuda_async_managed>;
  CHECK(attributes.type == (is_managed ? cudaMemoryTypeManaged : cudaMemoryTypeHost));
  memory->deallocate(stream, p, 1_MiB);
  CHECK(memory->driver().synchronize_stream(stream).ok());
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("set_release_threshold sets the threshold of CUDA's default pool", "[source][cuda_async][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_async memory;
  set_release_threshold(memory, 64_MiB);
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&pool, memory.device().value) == cudaSuccess);
  std::uint64_t threshold = 0;
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
  CHECK(threshold == 64_MiB);
  set_release_threshold(memory, 0);
}

TEMPLATE_TEST_CASE("pinned_host and managed memory is accessible from host and device", "[source][cuda]",
                   pinned_host, managed) {
  if (!has_cuda_devices()) return;
  TestType memory;
  auto* const p = static_cast<unsigned char*>(memory.allocate({}, 1_MiB));
  std::memset(p, 0x17, 1_MiB);
  CHECK(tarn_test::holds(memory, {}, p, 0x17, 1_MiB));
  REQUIRE(tarn_test::write(memory, {}, p, 0x29, 1_MiB));
  CHECK(p[0] == 0x29);
  CHECK(p[1_MiB - 1] == 0x29);
  memory.deallocate({}, p, 1_MiB);
}

TEMPLATE_TEST_CASE("allocate and deallocate of CUDA sources on a captured stream keep the capture valid",
                   "[source][cuda]", cuda_malloc, cuda_async, pinned_host, managed) {
  if (!has_cuda_devices()) return;
  TestType memory;
  tarn_test::test_stream stream(memory.driver());
  stream_ref const on = stream;
  REQUIRE(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  void* const p = memory.allocate(on, 1_MiB);
  CHECK(p != nullptr);
  memory.deallocate(on, p, 1_MiB);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(on.get(), &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("cuda_malloc allocates on its own device when another is current", "[source][cuda]") {
  if (!has_cuda_devices(2)) return;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  cuda_malloc memory{device_id{1}};
  tarn_test::test_stream stream(memory.driver());
  stream_ref const on = stream;
  void* const p = memory.allocate(on, 1_MiB);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
  CHECK(attributes.device == 1);
  CHECK(tarn_test::is_usable(memory, on, p, 1_MiB));
  memory.deallocate(on, p, 1_MiB);
  CHECK(!(memory == cuda_malloc{device_id{0}}));
  int current = -1;
  CHECK(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 0);
}
