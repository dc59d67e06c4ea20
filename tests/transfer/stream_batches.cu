// SPDX-License-Identifier: Apache-2.0
// Loops over batches on CUDA: the contract of batch_loops.hpp, and the overlap of copies with work.

#include "tarn/transfer/stream_batches.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/source/registered_host.hpp"
#include "tarn/tarn.hpp"
#include "transfer/batch_loops.hpp"

using namespace tarn;
using tarn_test::counted;
using tarn_test::has_cuda_devices;

namespace stream_batches_test {

/// A device's pool, and a pool of one kind of pinned memory.
template <class PinnedSource>
class cuda_bench {
 public:
  using driver_type = cuda_driver;
  using memory_type = device_pool;
  using pinned_type = decltype(PinnedSource{} | pooled{} | tracked{});

  [[nodiscard]] cuda_driver driver() const { return memory_.driver(); }
  [[nodiscard]] memory_type memory() const { return memory_; }
  [[nodiscard]] pinned_type pinned() const { return pinned_; }
  bool keep_busy(stream_ref stream) const { return tarn_test::keep_busy(stream, 1); }

 private:
  memory_type memory_;
  pinned_type pinned_ = PinnedSource{} | pooled{} | tracked{};
};

/// Occupies a stream until flags[0] is set or a time limit passes; sets flags[1] to 1 if flags[0] was set in
/// time.
template <class Count>
__global__ void hold(int volatile* flags, Count most_nanoseconds) {
  Count begin = 0;
  Count now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (flags[0] == 0 && now - begin < most_nanoseconds);
  flags[1] = flags[0];
}

}  // namespace stream_batches_test

using stream_batches_test::cuda_bench;

TEMPLATE_TEST_CASE("stream_batches delivers every source complete and in order on CUDA",
                   "[raii][stream_batches][cuda]", pinned_host, registered_host) {
  if (!has_cuda_devices()) return;
  cuda_bench<TestType> bench;
  for (unsigned const threads : {0U, 4U}) tarn_test::sources_arrive_whole(bench, 3000, threads);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("collect_batches delivers device memory complete and in order on CUDA",
          "[raii][collect_batches][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_bench<pinned_host> bench;
  tarn_test::device_memory_comes_back(bench, 300'000);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("stream_batches loops can exit at any point on CUDA", "[raii][stream_batches][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_bench<pinned_host> bench;
  tarn_test::leaving_early_is_safe(bench, 300'000);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("stream_batches refuses a stream that CUDA captures, and keeps the capture valid",
          "[raii][stream_batches][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_bench<pinned_host> bench;
  basic_stream<cuda_driver> const stream(bench.driver());
  auto const all = counted(1000);
  stream_ref const on = stream;
  REQUIRE(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  CHECK_THROWS_AS(stream_batches(all, {}, bench.memory(), stream, bench.pinned()), misuse);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(on.get(), &graph) == cudaSuccess);
  if (graph != nullptr) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
}

TEST_CASE("stream_batches copies the next batch while work on the current one runs on CUDA",
          "[raii][stream_batches][cuda]") {
  if (!has_cuda_devices()) return;
  if (static_cast<bool>(cuda_driver{}.memory_tool())) {
    WARN("skipped: a memory tool serializes the work");
    return;
  }
  constexpr std::size_t bytes = 1_MiB;
  cuda_bench<pinned_host> bench;
  basic_stream<cuda_driver> const stream(bench.driver());
  basic_stream<cuda_driver> const look(bench.driver());
  auto const mark =
      static_cast<unsigned char>(1 + std::chrono::steady_clock::now().time_since_epoch().count() % 255);
  using pinned_type = cuda_bench<pinned_host>::pinned_type;
  pinned_buffer<std::byte, pinned_type> there(bench.pinned(), 2 * bytes, elements::uninitialised, stream);
  pinned_buffer<std::byte, pinned_type> seen(bench.pinned(), 1, elements::value_initialised, stream);
  pinned_buffer<int, pinned_type> flags(bench.pinned(), 2, elements::value_initialised, stream);
  stream.synchronize();
  std::memset(static_cast<void*>(there.data()), mark, 2 * bytes);
  auto* const go = static_cast<int volatile*>(flags.data());
  bool arrived = false;
  for (auto batch : stream_batches(there, {.batch_bytes = bytes, .depth = 2}, bench.memory(), stream)) {
    if (batch.index() == 0) {
      REQUIRE(cudaMemsetAsync(batch.data(), 0, bytes, stream.ref().get()) == cudaSuccess);
      stream_batches_test::hold<<<1, 1, 0, stream.ref().get()>>>(flags.data(), 10'000'000'000ULL);
      REQUIRE(cudaGetLastError() == cudaSuccess);
      continue;
    }
    // The stream waits for its work on the first batch, and that work waits for this thread.
    auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(8);
    while (!arrived && std::chrono::steady_clock::now() < end) {
      REQUIRE(cudaMemcpyAsync(seen.data(), batch.data() + bytes - 1, 1, cudaMemcpyDeviceToHost,
                              look.ref().get()) == cudaSuccess);
      look.synchronize();
      arrived = seen[0] == std::byte{mark};
    }
    go[0] = 1;
  }
  stream.synchronize();
  CHECK(arrived);
  CHECK(go[1] == 1);  // released by this thread, not by the time limit
}

TEMPLATE_TEST_CASE("stream_batches treats registered memory as pinned memory on CUDA",
                   "[source][registered_host][cuda]", std::true_type, std::false_type) {
  if (!has_cuda_devices()) return;
  registered_host memory(
      registered_options{.pages = TestType::value ? host_page_size::huge : host_page_size::usual});
  void* const p = memory.allocate_sync(70_MiB);
  cudaPointerAttributes attributes{};
  REQUIRE(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeHost);
  std::memset(p, 1, 70_MiB);
  memory.deallocate_sync(p, 70_MiB);
  CHECK(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  CHECK(cudaGetLastError() == cudaSuccess);
}
