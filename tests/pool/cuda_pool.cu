// SPDX-License-Identifier: Apache-2.0
// The pool on CUDA: the resource contract, stream order under real kernels, remapped handles, captures,
// threads.

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_pages.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::has_cuda_pages;
using tarn_test::keep_busy;
using tarn_test::last_error_is_clean;

namespace cuda_pool_test {

template <class Word>
__global__ void write_words(Word* p, std::size_t count, Word value) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    p[i] = value;
}
template <class Word>
__global__ void count_differences(Word const* p, std::size_t count, Word value, unsigned* differences) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    if (p[i] != value) atomicAdd(differences, 1U);
  }
}

struct stream_pair {
  basic_stream<cuda_driver> a{cuda_driver{}};
  basic_stream<cuda_driver> b{cuda_driver{}};
};

static void write(stream_ref stream, void* p, std::size_t bytes, std::uint32_t value) {
  write_words<<<256, 256, 0, stream.get()>>>(static_cast<std::uint32_t*>(p), bytes / 4, value);
}
static unsigned differences(stream_ref stream, void* p, std::size_t bytes, std::uint32_t value) {
  static unsigned* counter = nullptr;
  if (counter == nullptr) cudaMalloc(&counter, sizeof(unsigned));
  cudaMemsetAsync(counter, 0, sizeof(unsigned), stream.get());
  count_differences<<<256, 256, 0, stream.get()>>>(static_cast<std::uint32_t const*>(p), bytes / 4, value,
                                                   counter);
  unsigned found = 0;
  cudaMemcpyAsync(&found, counter, sizeof found, cudaMemcpyDeviceToHost, stream.get());
  cudaStreamSynchronize(stream.get());
  return found;
}

/// A pool with static storage: destroyed after main(), when CUDA may have unloaded.
static device_pool* keep_until_exit() {
  static device_pool pool;
  return &pool;
}

}  // namespace cuda_pool_test
using namespace cuda_pool_test;

TEST_CASE("device_pool over cuda_pages meets the resource contract", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return device_pool{}; }, last_error_is_clean{});
}
TEST_CASE("pooled over cuda_malloc meets the resource contract", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return cuda_malloc{} | pooled{}; }, last_error_is_clean{});
}
TEST_CASE("pooled over cuda_async meets the resource contract", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return cuda_async{} | pooled{}; }, last_error_is_clean{});
}
TEST_CASE("pooled over a limited CUDA pinned_host meets the resource contract", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  tarn_test::resource_contract([] { return pinned_host{} | limited{3_GiB} | pooled{}; },
                               last_error_is_clean{});
}

TEST_CASE("pooled on CUDA does not let another stream overwrite memory freed on a busy stream",
          "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  stream_pair s;
  auto pool = cuda_pages{} | limited{512_MiB} | pooled{};
  std::size_t const bytes = 400_MiB;
  auto result = make_device_buffer<std::uint32_t>(cuda_malloc{}, bytes / 4, s.a);
  for (int round = 0; round < 5; ++round) {
    void* const p = pool.allocate(s.a, bytes);
    write(s.a, p, bytes, 7);
    REQUIRE(keep_busy(s.a, 20));
    cudaMemcpyAsync(result.data(), p, bytes, cudaMemcpyDeviceToDevice, s.a.ref().get());
    pool.deallocate(s.a, p, bytes);
    void* const q = pool.allocate(s.b, bytes);  // the limit leaves only the same memory
    write(s.b, q, bytes, 9);
    pool.deallocate(s.b, q, bytes);
    CHECK(differences(s.a, result.data(), bytes, 7) == 0);
    s.b.synchronize();
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on CUDA keeps the bytes of live blocks while it remaps free handles", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  stream_pair s;
  auto pool = cuda_pages{} | limited{2_GiB} | pooled{};
  struct block {
    void* p;
    std::size_t bytes;
    std::uint32_t value;
  };
  std::vector<block> live;
  std::mt19937 random(5);
  std::size_t held = 0;
  std::uint32_t next = 1;
  for (int i = 0; i < 1500; ++i) {
    std::size_t const bytes = (1 + random() % 64) * (512_KiB) + random() % 4096 * 512;
    if (held + bytes < 1800_MiB && random() % 3 != 0) {
      try {
        block const b{pool.allocate(s.a, bytes), bytes, next++};
        write(s.a, b.p, b.bytes, b.value);
        live.push_back(b);
        held += bytes;
      } catch (out_of_memory const&) {
      }
    } else if (!live.empty()) {
      std::size_t const k = random() % live.size();
      CHECK(differences(s.a, live[k].p, live[k].bytes, live[k].value) == 0);
      pool.deallocate(s.a, live[k].p, live[k].bytes);
      held -= live[k].bytes;
      live[k] = live.back();
      live.pop_back();
    }
  }
  for (block const& b : live) {
    CHECK(differences(s.a, b.p, b.bytes, b.value) == 0);
    pool.deallocate(s.a, b.p, b.bytes);
  }
  // With a tool attached, the pool uses cudaMalloc blocks, which cannot be remapped.
  CHECK((pool->state().remaps > 0 || static_cast<bool>(cuda_driver{}.memory_tool())));
  pool.empty_cache();
  CHECK(pool->state().reserved == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on CUDA serves one large block from a freed checkerboard under a limit", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  stream_pair s;
  auto pool = cuda_pages{} | limited{8_GiB} | pooled{};
  std::vector<void*> blocks;
  std::size_t const bytes = 2_MiB;
  for (std::size_t i = 0; i < 4_GiB / bytes; ++i) blocks.push_back(pool.allocate(s.a, bytes));
  std::size_t const reserved = pool->state().reserved;
  for (std::size_t i = 0; i < blocks.size(); i += 2) pool.deallocate(s.a, blocks[i], bytes);
  void* const large = pool.allocate(s.a, 2_GiB - 64_MiB);
  write(s.a, large, 2_GiB - 64_MiB, 3);
  s.a.synchronize();
  WARN("reserved " << (reserved >> 20) << " MiB before, " << (pool->state().reserved >> 20) << " MiB after");
  pool.deallocate(s.a, large, 2_GiB - 64_MiB);
  for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(s.a, blocks[i], bytes);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on CUDA allocates during a capture without invalidating it", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  stream_pair s;
  auto pool = cuda_pages{} | pooled{};
  void* const before = pool.allocate(s.b, 64_MiB);
  pool.deallocate(s.b, before, 64_MiB);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(s.a.ref().get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  void* const p = pool.allocate(s.a, 256_MiB);
  cudaMemsetAsync(p, 1, 256_MiB, s.a.ref().get());
  REQUIRE(cudaStreamEndCapture(s.a.ref().get(), &graph) == cudaSuccess);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 1);
  cudaGraphDestroy(graph);
  pool.deallocate(s.a, p, 256_MiB);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("record_stream on CUDA holds the block back during a capture", "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  stream_pair s;
  basic_stream<cuda_driver> const captured{cuda_driver{}};
  constexpr std::size_t bytes = 1_MiB;
  void* const p = pool.allocate(s.a, bytes);
  keep_busy(s.b);
  write(s.b, p, bytes, 1);
  pool.record_stream(p, bytes, s.b);
  REQUIRE(cudaStreamBeginCapture(captured.ref().get(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
  pool.deallocate(s.a, p, bytes);
  void* const q = pool.allocate(s.a, bytes);
  CHECK(q != p);
  cudaGraph_t graph = nullptr;
  // Recording all work invalidates a capture on any stream of the device; see README, Limits.
  WARN("the capture ended with " << cudaGetErrorName(cudaStreamEndCapture(captured.ref().get(), &graph)));
  if (graph != nullptr) cudaGraphDestroy(graph);
  (void)cudaGetLastError();
  write(s.a, q, bytes, 2);
  CHECK(differences(s.a, q, bytes, 2) == 0);
  pool.deallocate(s.a, q, bytes);
  (void)pool.trim();
  CHECK(pool->upstream()->state().deferred == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on CUDA reuses blocks of a destroyed stream, also when its handle is reused",
          "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  auto pool = cuda_pages{} | limited{256_MiB} | pooled{};
  stream_pair s;
  for (int round = 0; round < 50; ++round) {
    cudaStream_t raw = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking) == cudaSuccess);
    void* const p = pool.allocate(raw, 200_MiB);
    write(raw, p, 200_MiB, 1);
    pool.deallocate(raw, p, 200_MiB);
    REQUIRE(cudaStreamDestroy(raw) == cudaSuccess);
    if (round % 2 == 0) {
      void* const q = pool.allocate(s.b, 200_MiB);
      pool.deallocate(s.b, q, 200_MiB);
    }
  }
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("pooled on CUDA gives memory back by itself while kernels are always queued",
          "[pool][live_window][cuda]") {
  if (!has_cuda_pages()) return;  // plain blocks stay
  stream_pair s;
  auto memory = cuda_pages{} | pooled{};
  std::size_t const large = 256_MiB;
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(memory.allocate(s.a, large));
  void* const own = memory.allocate(s.b, 600_MiB);  // enough for what follows
  REQUIRE((keep_busy(s.a, 20) && keep_busy(s.b, 20)));
  for (void* block : blocks)
    memory.deallocate(s.a, block, large);  // nothing is allocated on this stream again
  memory.deallocate(s.b, own, 600_MiB);
  std::size_t const high = memory->state().reserved;
  REQUIRE(high >= 2_GiB);
  std::uint64_t const waits = memory->state().host_waits;
  // Both streams always have a kernel queued: each runs for 5 ms, and the host waits for the one before it.
  cudaEvent_t done[2] = {};
  for (cudaEvent_t& event : done)
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  std::size_t passes = 0;
  for (std::size_t i = 0; passes < 60 && memory->state().reserved > 1_GiB; ++i) {
    std::size_t const bytes = 512_MiB - i % 3 * 2_MiB;
    void* const block = memory.allocate(s.b, bytes);
    memory.deallocate(s.b, block, bytes);
    if (i % 64 != 0) continue;
    REQUIRE((keep_busy(s.a, 5) && keep_busy(s.b, 5)));
    REQUIRE(cudaEventRecord(done[passes % 2], stream_ref(s.b).get()) == cudaSuccess);
    if (++passes > 1) REQUIRE(cudaEventSynchronize(done[passes % 2]) == cudaSuccess);
  }
  for (cudaEvent_t const event : done) (void)cudaEventDestroy(event);
  INFO("32 GiB were allocated " << passes << " times");
  CHECK(memory->state().reserved <= 1_GiB);
  CHECK(memory->state().host_waits == waits);
}

TEST_CASE("device_pool serves threads that each use their own stream", "[pool][cuda][threads]") {
  if (!has_cuda_devices()) return;
  device_pool pool;
  std::vector<std::thread> threads;
  std::vector<unsigned> wrong(8);
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      basic_stream<cuda_driver> stream{cuda_driver{device_id{0}}};
      std::mt19937 random(t);
      for (int i = 0; i < 300; ++i) {
        std::size_t const bytes = 256 << (random() % 16);
        void* const p = pool.allocate(stream, bytes);
        write(stream, p, bytes, t + 1);
        std::uint32_t first = 0;
        cudaMemcpyAsync(&first, p, 4, cudaMemcpyDeviceToHost, stream.ref().get());
        cudaStreamSynchronize(stream.ref().get());
        if (first != t + 1) ++wrong[t];
        pool.deallocate(stream, p, bytes);
      }
    });
  }
  for (auto& t : threads) t.join();
  for (unsigned const w : wrong) CHECK(w == 0);
  CHECK(memory_allocated(pool) == 0);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("device_pool with static storage is destroyed without an error after CUDA has unloaded",
          "[pool][cuda]") {
  if (!has_cuda_devices()) return;
  device_pool& pool = *keep_until_exit();
  void* const p = pool.allocate(stream_ref{}, 1_MiB);
  pool.deallocate(stream_ref{}, p, 1_MiB);
  SUCCEED("the exit status is the result");
}

TEST_CASE("device_pool extends a block where it is, while kernels use it", "[pool][cuda][extend]") {
  if (!has_cuda_devices()) return;
  if (static_cast<bool>(cuda_driver{}.memory_tool())) {
    WARN("skipped: under a memory tool no block is extended");
    return;
  }
  stream_pair s;
  device_pool pool;
  pool.deallocate(s.a, pool.allocate(s.a, 16_MiB), 16_MiB);
  void* const p = pool.allocate(s.a, 3_MiB);
  write(s.a, p, 3_MiB, 6);
  REQUIRE(keep_busy(s.a, 5));
  REQUIRE(pool.extend(s.a, p, 3_MiB, 5_MiB));
  auto* const behind = static_cast<std::byte*>(p) + 3_MiB;
  write(s.a, behind, 5_MiB, 7);
  CHECK(differences(s.a, p, 3_MiB, 6) == 0);
  CHECK(differences(s.a, behind, 5_MiB, 7) == 0);
  CHECK_FALSE(pool.extend(s.b, p, 8_MiB, 1_MiB));  // what is behind was freed on another stream
  CHECK(memory_allocated(pool) == 8_MiB);
  pool.deallocate(s.a, p, 8_MiB);
  CHECK(memory_allocated(pool) == 0);
}

TEST_CASE("device_buffer on CUDA copies across streams in order", "[raii][cuda]") {
  if (!has_cuda_devices()) return;
  stream_pair s;
  device_pool pool;
  std::vector<std::uint32_t> host(1 << 20, 5);
  auto a = make_device_buffer<std::uint32_t>(pool, std::span<std::uint32_t const>(host), s.a);
  REQUIRE(keep_busy(s.a, 20));
  write(s.a, a.data(), a.bytes(), 6);
  auto b = a.clone(s.b);
  a.reset();
  std::vector<std::uint32_t> back(b.size());
  b.copy_to_sync(back);
  CHECK(back == std::vector<std::uint32_t>(b.size(), 6));
  b.resize(b.size() * 2, s.a);
  CHECK(differences(s.a, b.data(), back.size() * 4, 6) == 0);
}
