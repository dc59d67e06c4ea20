// SPDX-License-Identifier: Apache-2.0
// graph_memory on CUDA: captured graphs are replayed between eager work and give bit-identical results; other
// threads invalidate no capture, in any mode.

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

#include <thrust/execution_policy.h>
#include <thrust/sort.h>

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace cuda_graph_memory_test {

__global__ void scramble(std::uint32_t* to, std::uint32_t const* from, std::size_t n, std::uint32_t salt) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    std::uint32_t x = from[i] * 2654435761U + salt;
    x ^= x >> 15;
    to[i] = x * 2246822519U;
  }
}
__global__ void overwrite(std::uint32_t* p, std::size_t n, std::uint32_t value) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    p[i] = value;
}

/// A step with temporaries of its own: buffers, and Thrust's and CUB's.
template <class Pool>
void step(Pool const& pool, tarn::stream const& s, std::uint32_t const* in, std::uint32_t* out,
          std::size_t n) {
  auto a = make_device_buffer<std::uint32_t>(pool, n, s);
  scramble<<<64, 256, 0, s.get()>>>(a.data(), in, n, 1);
  {
    auto b = make_device_buffer<std::uint32_t>(pool, n, s);
    scramble<<<64, 256, 0, s.get()>>>(b.data(), a.data(), n, 2);
    thrust::sort(tarn::par_nosync(pool).on(s), b.data(), b.data() + n);
    scramble<<<64, 256, 0, s.get()>>>(a.data(), b.data(), n, 3);
  }
  auto c = make_device_buffer<std::uint32_t>(pool, 2 * n, s);
  scramble<<<64, 256, 0, s.get()>>>(c.data(), a.data(), n, 4);
  scramble<<<64, 256, 0, s.get()>>>(out, c.data(), n, 5);
}

/// Allocates, overwrites and frees at random on a stream.
template <class Pool>
struct eager_user {
  Pool pool;
  tarn::stream stream{};
  std::minstd_rand random{};
  std::vector<std::pair<void*, std::size_t>> live{};

  void act() {
    std::size_t const bytes = std::size_t{1024} << random() % 13;
    live.emplace_back(pool.allocate(stream, bytes), bytes);
    overwrite<<<16, 256, 0, stream.get()>>>(static_cast<std::uint32_t*>(live.back().first), bytes / 4,
                                            0xdeadbeef);
    if (live.size() > 16) {
      std::swap(live[random() % live.size()], live.back());
      pool.deallocate(stream, live.back().first, live.back().second);
      live.pop_back();
    }
  }
  ~eager_user() {
    for (auto const& [p, bytes] : live) pool.deallocate(stream, p, bytes);
    cudaStreamSynchronize(stream.get());
  }
};

std::vector<std::uint32_t> on_host(std::uint32_t const* p, std::size_t n, tarn::stream const& s) {
  std::vector<std::uint32_t> out(n);
  cudaMemcpyAsync(out.data(), p, 4 * n, cudaMemcpyDeviceToHost, s.get());
  cudaStreamSynchronize(s.get());
  return out;
}

}  // namespace cuda_graph_memory_test
using namespace cuda_graph_memory_test;

namespace cuda_graph_memory_test {
/// Frees a block on a stream that was destroyed, while a capture is open on another. Returns whether the
/// capture stayed valid.
template <class Memory>
bool free_on_destroyed_stream(Memory memory) {
  device_pool const pool;
  tarn::stream const captured;
  graph_memory of_graph(pool);
  auto gone = std::make_unique<tarn::stream>();
  stream_ref const stream = *gone;
  void* const p = memory.allocate(stream, 10'000);
  cudaGraph_t graph = nullptr;
  bool valid = false;
  {
    capture_scope const scope(of_graph, captured);
    if (cudaStreamBeginCapture(captured.get(), cudaStreamCaptureModeGlobal) != cudaSuccess) return false;
    gone.reset();
    memory.deallocate(stream, p, 10'000);
    valid = cudaStreamEndCapture(captured.get(), &graph) == cudaSuccess;
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  return valid;
}
}  // namespace cuda_graph_memory_test

TEST_CASE("policies leave a capture valid when a block is freed on a destroyed CUDA stream",
          "[graph_memory][cuda]") {
  if (!has_cuda_devices()) return;
  CHECK(free_on_destroyed_stream(cuda_pages{} | pooled{}));
  CHECK(free_on_destroyed_stream(cuda_pages{} | pooled{} | fenced{}));
  CHECK(free_on_destroyed_stream(cuda_pages{} | pooled{} | poisoned{}));
  CHECK(free_on_destroyed_stream(cuda_pages{} | pooled{} | checked{}));
}

TEST_CASE("a graph that is captured once and replayed between eager work gives the eager result",
          "[graph_memory][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  constexpr std::size_t n = 200'000;
  tarn::stream s, side;
  auto in = make_device_buffer<std::uint32_t>(pool, n, s);
  auto out = make_device_buffer<std::uint32_t>(pool, n, s);
  overwrite<<<64, 256, 0, s.get()>>>(in.data(), n, 7);
  scramble<<<64, 256, 0, s.get()>>>(in.data(), in.data(), n, 9);
  step(pool, s, in.data(), out.data(), n);
  auto const eager = on_host(out.data(), n, s);
  cudaGraphExec_t exec = nullptr;
  {
    graph_memory memory{pool};
    {
      capture_scope const scope(memory, s);
      cudaGraph_t graph = nullptr;
      REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
      step(pool, s, in.data(), out.data(), n);
      REQUIRE(cudaStreamEndCapture(s.get(), &graph) == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
      cudaGraphDestroy(graph);
    }
    CHECK(memory.state().allocated == 0);
    CHECK(memory.state().reserved >= 4 * 3 * n);
    eager_user<device_pool> on_s{pool}, on_side{pool};
    unsigned wrong = 0;
    for (int round = 0; round < 1000; ++round) {
      on_s.act();
      overwrite<<<64, 256, 0, s.get()>>>(out.data(), n, 0);
      REQUIRE(cudaGraphLaunch(exec, s.get()) == cudaSuccess);
      on_side.act();
      if (round % 50 == 0) pool.empty_cache();
      if (round % 10 == 0) wrong += on_host(out.data(), n, s) != eager ? 1 : 0;
    }
    CHECK(wrong == 0);
    overwrite<<<64, 256, 0, s.get()>>>(out.data(), n, 0);
    REQUIRE(cudaGraphLaunch(exec, s.get()) == cudaSuccess);
  }  // the owner ends while the graph may run
  {
    eager_user<device_pool> user{pool};
    for (int i = 0; i < 200; ++i) user.act();
  }
  CHECK(on_host(out.data(), n, s) == eager);
  pool.empty_cache();
  cudaGraphExecDestroy(exec);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("no call of the pool on 16 other threads invalidates a capture, in any mode",
          "[graph_memory][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  std::vector<tarn::stream> streams(16);
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> calls{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      std::vector<std::pair<void*, std::size_t>> live;
      for (unsigned i = 0; !over; ++i) {
        std::size_t const bytes = std::size_t{256} << random() % 16;
        live.emplace_back(pool.allocate(streams[t], bytes), bytes);
        if (i % 4 == 0) pool.record_stream(live.back().first, bytes, streams[(t + 1) % 16]);
        if (live.size() > 32) {
          std::swap(live[random() % live.size()], live.back());
          // Frees on another stream, so that streams take memory over.
          pool.deallocate(streams[i % 3 == 0 ? (t + 5) % 16 : t], live.back().first, live.back().second);
          live.pop_back();
        }
        if (i % 500 == t) pool.trim(64 << 20);
        if (i % 97 == 0) {
          tarn::stream const short_lived;
          void* const p = pool.allocate(short_lived, 1 << 20);
          pool.deallocate(short_lived, p, 1 << 20);
        }
        ++calls;
      }
      for (auto const& [p, bytes] : live) pool.deallocate(streams[t], p, bytes);
    });
  }
  graph_memory memory{pool};
  tarn::stream s;
  auto in = make_device_buffer<std::uint32_t>(pool, 10'000, s);
  auto out = make_device_buffer<std::uint32_t>(pool, 10'000, s);
  unsigned invalidated = 0;
  for (int round = 0; round < 300; ++round) {
    cudaStreamCaptureMode const mode = round % 3 == 0   ? cudaStreamCaptureModeGlobal
                                       : round % 3 == 1 ? cudaStreamCaptureModeThreadLocal
                                                        : cudaStreamCaptureModeRelaxed;
    capture_scope const scope(memory, s);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(s.get(), mode) == cudaSuccess);
    for (int i = 0; i < 4; ++i) {
      auto a = make_device_buffer<std::uint32_t>(pool, 10'000, s);
      scramble<<<8, 256, 0, s.get()>>>(a.data(), in.data(), 10'000, 1);
      scramble<<<8, 256, 0, s.get()>>>(out.data(), a.data(), 10'000, 1);
    }
    invalidated += cudaStreamEndCapture(s.get(), &graph) != cudaSuccess ? 1 : 0;
    if (graph != nullptr) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }
  over = true;
  for (auto& t : threads) t.join();
  WARN(calls.load() << " calls of other threads during 300 captures, " << invalidated << " invalidated");
  CHECK(invalidated == 0);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("a graph that was captured before its pool slept gives the same result after it",
          "[graph_memory][sleep][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  constexpr std::size_t n = 200'000;
  tarn::stream s;
  auto in = make_device_buffer<std::uint32_t>(pool, n, s);
  auto out = make_device_buffer<std::uint32_t>(pool, n, s);
  overwrite<<<64, 256, 0, s.get()>>>(in.data(), n, 7);
  scramble<<<64, 256, 0, s.get()>>>(in.data(), in.data(), n, 9);
  step(pool, s, in.data(), out.data(), n);
  auto const eager = on_host(out.data(), n, s);
  graph_memory memory{pool};
  cudaGraphExec_t exec = nullptr;
  {
    capture_scope const scope(memory, s);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    step(pool, s, in.data(), out.data(), n);
    REQUIRE(cudaStreamEndCapture(s.get(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    sleep(pool);
    // Under a memory tool a pool has plain blocks, and keeps those that are live.
    if (!cuda_driver{}.memory_tool()) CHECK(memory_reserved(pool) == 0);
    wake(pool);
    overwrite<<<64, 256, 0, s.get()>>>(out.data(), n, 0);
    REQUIRE(cudaGraphLaunch(exec, s.get()) == cudaSuccess);
    CHECK(on_host(out.data(), n, s) == eager);
  }
  cudaGraphExecDestroy(exec);
}

TEST_CASE("bare handles in a capture on CUDA allocate and free without invalidating it",
          "[graph_memory][cuda]") {
  if (!has_cuda_devices()) return;
  cudaStream_t s = nullptr;
  cudaStream_t joined = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&joined, cudaStreamNonBlocking) == cudaSuccess);
  cudaEvent_t fork = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming) == cudaSuccess);
  constexpr std::size_t count = 5000;
  for (auto const mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    device_pool pool;
    auto* const out = static_cast<std::uint32_t*>(pool.allocate(s, count * 4));
    graph_memory memory{pool};
    cudaGraph_t graph = nullptr;
    {
      capture_scope const scope(memory, s);
      REQUIRE(cudaStreamBeginCapture(s, mode) == cudaSuccess);
      auto* const p = static_cast<std::uint32_t*>(pool.allocate(s, count * 4));
      cuda_graph_memory_test::overwrite<<<4, 256, 0, s>>>(p, count, 7);
      REQUIRE(cudaEventRecord(fork, s) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(joined, fork, 0) == cudaSuccess);
      auto* const q = static_cast<std::uint32_t*>(pool.allocate(joined, count * 4));
      cuda_graph_memory_test::scramble<<<4, 256, 0, joined>>>(q, p, count, 1);
      cuda_graph_memory_test::scramble<<<4, 256, 0, joined>>>(out, q, count, 2);
      pool.deallocate(joined, q, count * 4);
      REQUIRE(cudaEventRecord(fork, joined) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(s, fork, 0) == cudaSuccess);
      pool.deallocate(s, p, count * 4);
      CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    }
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    std::vector<std::uint32_t> first(count);
    std::vector<std::uint32_t> last(count);
    for (int i = 0; i < 20; ++i) {
      REQUIRE(cudaGraphLaunch(exec, s) == cudaSuccess);
      auto eager = make_device_buffer<std::uint32_t>(pool, count, s);
      cuda_graph_memory_test::overwrite<<<4, 256, 0, s>>>(eager.data(), count, 99);
      REQUIRE(cudaMemcpyAsync((i == 0 ? first : last).data(), out, count * 4, cudaMemcpyDeviceToHost, s) ==
              cudaSuccess);
      REQUIRE(cudaStreamSynchronize(s) == cudaSuccess);
    }
    CHECK(first == last);
    CHECK(first[0] != 0);
    pool.deallocate(s, out, count * 4);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  CHECK(cudaEventDestroy(fork) == cudaSuccess);
  CHECK(cudaStreamDestroy(joined) == cudaSuccess);
  CHECK(cudaStreamDestroy(s) == cudaSuccess);
}
