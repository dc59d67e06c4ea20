// SPDX-License-Identifier: Apache-2.0
// Temporaries of Thrust and CUB inside a capture come from the graph's memory: a graph that is replayed
// between eager work, which allocates and sorts at random, gives the eager result. Thrust's algorithms need a
// par_nosync policy there, and those that return a value cannot be captured: they wait for the stream.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/tarn.hpp"
#include "tarn/thrust.hpp"

#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/transform.h>
#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cuda/std/functional>

namespace thrust_capture_test {

using tarn::stream;
using number = std::uint32_t;

struct scramble {
  number salt;
  __host__ __device__ number operator()(number x) const {
    x = x * 2654435761U + salt;
    return ((x ^ (x >> 15)) * 2246822519U) >> 20;  // so few that many are equal
  }
};
/// Not one of the orders that Thrust and CUB sort by radix.
struct by_low_bits {
  __host__ __device__ bool operator()(number a, number b) const { return (a & 0xffU) < (b & 0xffU); }
};
__global__ void count_up(number* to, std::size_t n, number first) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    to[i] = first + static_cast<number>(i);
}
__global__ void mix(number* to, number const* a, number const* b, std::size_t n) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    to[i] = a[i] * 31U + b[i];
}

/// A user's own allocator for Thrust's temporaries: bytes of a pool, in the order of one stream. Notes what
/// it gives out.
template <class Pool>
struct own_temporaries {
  using value_type = char;

  char* allocate(std::ptrdiff_t bytes) {
    auto* const p = static_cast<char*>(pool.allocate(on, static_cast<std::size_t>(bytes)));
    given.emplace_back(p, static_cast<std::size_t>(bytes));
    return p;
  }
  void deallocate(char* p, std::size_t bytes) { pool.deallocate(on, p, bytes); }

  Pool pool;
  tarn::stream_ref on;
  std::vector<std::pair<char*, std::size_t>> given{};
};

/// Algorithms with temporaries, under a policy of Thrust's. (Scans by key: g++ 12 warns of Thrust's and CUB's
/// other scans.)
template <class Policy, class Pool>
void thrust_step(Policy const& policy, Pool const& pool, stream const& s, number const* in, number* out,
                 std::size_t n) {
  auto keys = tarn::make_device_buffer<number>(pool, n, s);
  auto values = tarn::make_device_buffer<number>(pool, n, s);
  thrust::transform(policy, in, in + n, keys.data(), scramble{1});
  count_up<<<64, 256, 0, s.get()>>>(values.data(), n, 5);
  thrust::stable_sort_by_key(policy, keys.data(), keys.data() + n, values.data());  // by radix
  thrust::stable_sort(policy, values.data(), values.data() + n, by_low_bits{});     // by merging
  thrust::inclusive_scan_by_key(policy, keys.data(), keys.data() + n, values.data(), values.data());
  mix<<<64, 256, 0, s.get()>>>(out, keys.data(), values.data(), n);
}

/// Runs a call of CUB's with temporary storage of the pool. Returns CUB's status.
template <class Pool, class Call>
cudaError_t with_storage(Pool const& pool, stream const& s, Call const& call) {
  std::size_t bytes = 0;
  cudaError_t code = call(nullptr, bytes);
  if (code != cudaSuccess) return code;
  auto storage = tarn::make_device_buffer<std::byte>(pool, bytes, s);
  return call(static_cast<void*>(storage.data()), bytes);
}

/// The same with CUB. Returns whether each call succeeded.
template <class Pool>
bool cub_step(Pool const& pool, stream const& s, number const* in, number* out, std::size_t n) {
  auto const count = static_cast<int>(n);
  auto keys = tarn::make_device_buffer<number>(pool, n, s);
  auto values = tarn::make_device_buffer<number>(pool, n, s);
  auto sum = tarn::make_device_buffer<number>(pool, 2, s);
  auto sorted = tarn::make_device_buffer<number>(pool, n, s);
  count_up<<<64, 256, 0, s.get()>>>(values.data(), n, 11);
  bool good = true;
  auto const run = [&](auto const& call) { good = with_storage(pool, s, call) == cudaSuccess && good; };
  run([&](void* at, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(at, bytes, in, keys.data(), values.data(), sorted.data(), count, 0,
                                           32, s.get());
  });
  run([&](void* at, std::size_t& bytes) {
    return cub::DeviceMergeSort::StableSortKeys(at, bytes, sorted.data(), count, by_low_bits{}, s.get());
  });
  run([&](void* at, std::size_t& bytes) {
    return cub::DeviceScan::InclusiveSumByKey(at, bytes, keys.data(), sorted.data(), values.data(), count,
                                              cuda::std::equal_to<>{}, s.get());
  });
  run([&](void* at, std::size_t& bytes) {
    return cub::DeviceReduce::Sum(at, bytes, values.data(), sum.data(), count, s.get());
  });
  run([&](void* at, std::size_t& bytes) {
    return cub::DeviceReduce::Max(at, bytes, keys.data(), sum.data() + 1, count, s.get());
  });
  mix<<<64, 256, 0, s.get()>>>(out, keys.data(), values.data(), n);
  mix<<<1, 2, 0, s.get()>>>(out, sum.data(), out, 2);
  return good && cudaGetLastError() == cudaSuccess;
}

std::vector<number> on_host(number const* p, std::size_t n, stream const& s) {
  std::vector<number> out(n);
  REQUIRE(cudaMemcpyAsync(out.data(), p, 4 * n, cudaMemcpyDeviceToHost, s.get()) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(s.get()) == cudaSuccess);
  return out;
}

/// Eager work: blocks of sizes at random, which are written and read back, and Thrust's temporaries.
template <class Pool>
class eager_user {
 public:
  eager_user(Pool pool, number first_value) : pool_(std::move(pool)), next_value_(first_value) {}
  eager_user(eager_user const&) = delete;
  eager_user& operator=(eager_user const&) = delete;
  ~eager_user() {
    for (block const& b : live_) pool_.deallocate(stream_, b.p, 4 * b.count);
    (void)cudaStreamSynchronize(stream_.get());
  }

  void act() {
    std::size_t const count = std::size_t{256} << random_() % 12;
    live_.push_back(
        {static_cast<number*>(pool_.allocate(stream_, 4 * count)), count, next_value_ += 1'000'000});
    auto const& made = live_.back();
    count_up<<<16, 256, 0, stream_.get()>>>(made.p, count, made.first);
    if (random_() % 4 == 0)
      thrust::sort(tarn::par_nosync(pool_).on(stream_), made.p, made.p + count, thrust::less<number>());
    if (live_.size() <= 16) return;
    std::swap(live_[random_() % live_.size()], live_.back());
    block const b = live_.back();
    live_.pop_back();
    std::vector<number> expected(b.count);
    std::iota(expected.begin(), expected.end(), b.first);
    overwritten_ += on_host(b.p, b.count, stream_) != expected ? 1U : 0U;
    pool_.deallocate(stream_, b.p, 4 * b.count);
  }
  /// The number of freed blocks that did not hold what was written.
  [[nodiscard]] unsigned overwritten() const noexcept { return overwritten_; }
  /// Whether a live block overlaps these bytes.
  [[nodiscard]] bool overlaps(char const* begin, std::size_t bytes) const {
    for (block const& b : live_) {
      auto const* const mine = reinterpret_cast<char const*>(b.p);
      if (mine < begin + bytes && begin < mine + 4 * b.count) return true;
    }
    return false;
  }

 private:
  struct block {
    number* p;
    std::size_t count;
    number first;
  };
  Pool pool_;
  stream stream_{};
  std::minstd_rand random_{};
  std::vector<block> live_{};
  number next_value_;
  unsigned overwritten_ = 0;
};

/// A captured graph that can be launched.
class executable {
 public:
  /// Captures what `work` launches on a stream.
  template <class Work>
  executable(stream const& s, Work const& work) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    work();
    REQUIRE(cudaStreamEndCapture(s.get(), &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec_, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  }
  executable(executable const&) = delete;
  executable& operator=(executable const&) = delete;
  ~executable() {
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  }
  [[nodiscard]] bool launch(stream const& s) const { return cudaGraphLaunch(exec_, s.get()) == cudaSuccess; }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

/// The number of blocks that were ever allocated from tracked memory.
template <class Pool>
std::int64_t allocations(Pool const& pool) {
  for (auto const& [key, count] : tarn::memory_stats(pool)) {
    if (key == "allocation.all.allocated") return count;
  }
  return 0;
}

/// Captures `step(out)` once and replays it 100 times between eager work. Each result must be the eager one.
/// `temporaries` returns the blocks that the capture got, as far as the step knows them.
template <class Pool, class Step, class Temporaries>
void replay_beside_eager_work(Pool const& pool, stream const& s, std::size_t n, Step const& step,
                              Temporaries const& temporaries) {
  auto out = tarn::make_device_buffer<number>(pool, n, s);
  step(out.data());
  auto const eager = on_host(out.data(), n, s);
  tarn::graph_memory memory{pool};
  auto const graph = [&] {
    tarn::capture_scope const scope(memory, s);
    return std::make_unique<executable>(s, [&] { step(out.data()); });
  }();
  CHECK(memory.state().allocated == 0);
  CHECK(memory.state().kept == 0);
  CHECK(memory.state().reserved >= 2 * 4 * n);
  auto const of_graph = temporaries();
  std::size_t const reserved = memory.state().reserved;
  eager_user<Pool> user(pool, 1), on_another(pool, 500'000'000);
  auto mine = tarn::make_device_buffer<number>(pool, n, s);
  unsigned wrong = 0, overlaps = 0;
  for (int round = 0; round < 100; ++round) {
    user.act();
    {  // eager work on the captured stream itself, with the sizes of the step
      auto again = tarn::make_device_buffer<number>(pool, n, s);
      count_up<<<64, 256, 0, s.get()>>>(again.data(), n, 0xbeef0000U);
      thrust::sort(tarn::par_nosync(pool).on(s), again.data(), again.data() + n);
    }
    if (round % 10 == 0) step(mine.data());
    count_up<<<64, 256, 0, s.get()>>>(out.data(), n, 0);
    REQUIRE(graph->launch(s));
    on_another.act();
    if (round % 25 == 0) tarn::empty_cache(pool);
    for (auto const& [p, bytes] : of_graph)
      overlaps += user.overlaps(p, bytes) || on_another.overlaps(p, bytes) ? 1U : 0U;
    wrong += on_host(out.data(), n, s) != eager ? 1U : 0U;
  }
  CHECK(wrong == 0);
  CHECK(overlaps == 0);
  CHECK(user.overwritten() + on_another.overwritten() == 0);
  CHECK(on_host(mine.data(), n, s) == eager);
  CHECK(memory.state().reserved == reserved);
  CHECK(cudaGetLastError() == cudaSuccess);
}

auto nothing_known() {
  return std::vector<std::pair<char*, std::size_t>>{};
}

template <class Pool>
void all_steps(Pool const& pool) {
  constexpr std::size_t n = 100'000;
  stream s;
  auto in = tarn::make_device_buffer<number>(pool, n, s);
  count_up<<<64, 256, 0, s.get()>>>(in.data(), n, 7);
  thrust::transform(tarn::par_nosync(pool).on(s), in.data(), in.data() + n, in.data(), scramble{9});
  {
    auto const policy = tarn::par_nosync(pool).on(s);
    auto const before = allocations(pool);
    replay_beside_eager_work(
        pool, s, n, [&](number* out) { thrust_step(policy, pool, s, in.data(), out, n); }, nothing_known);
    CHECK(allocations(pool) > before);
  }
  {
    own_temporaries<Pool> of_user{pool, s};
    auto const policy = thrust::cuda::par_nosync(of_user).on(s.get());
    std::size_t eager = 0;
    replay_beside_eager_work(
        pool, s, n,
        [&](number* out) {
          eager = of_user.given.size();  // of the steps before
          thrust_step(policy, pool, s, in.data(), out, n);
        },
        [&] {
          CHECK(eager != 0);
          CHECK(of_user.given.size() == 2 * eager);
          decltype(of_user.given)
              const captured(of_user.given.begin() + static_cast<std::ptrdiff_t>(eager), of_user.given.end());
          for (auto const& [p, bytes] : captured) CHECK(pool.owns(p));
          return captured;
        });
  }
  replay_beside_eager_work(
      pool, s, n, [&](number* out) { REQUIRE(cub_step(pool, s, in.data(), out, n)); }, nothing_known);
}

}  // namespace thrust_capture_test

TEST_CASE("temporaries of Thrust and CUB in a capture belong to the graph: replays give the eager result",
          "[interop][thrust][graph_memory][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  SECTION("device_pool") {
    thrust_capture_test::all_steps(tarn::device_pool{});
  }
  SECTION("a pool under policies") {
    thrust_capture_test::all_steps(tarn::cuda_pages{} | tarn::pooled{} | tarn::limited{std::size_t{8} << 30} |
                                   tarn::fenced{} | tarn::tracked{});
  }
}

TEST_CASE("an algorithm of Thrust's that returns a value throws in a capture and gives its temporaries back",
          "[interop][thrust][graph_memory][cuda]") {
  using namespace thrust_capture_test;
  if (!tarn_test::has_cuda_devices()) return;
  tarn::device_pool pool;
  constexpr std::size_t n = 100'000;
  stream s;
  auto in = tarn::make_device_buffer<number>(pool, n, s);
  auto out = tarn::make_device_buffer<number>(pool, n, s);
  count_up<<<64, 256, 0, s.get()>>>(in.data(), n, 7);
  REQUIRE(cudaStreamSynchronize(s.get()) == cudaSuccess);
  tarn::graph_memory memory{pool};
  {
    tarn::capture_scope const scope(memory, s);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    CHECK_THROWS((void)thrust::reduce(tarn::par_nosync(pool).on(s), in.data(), in.data() + n));
    CHECK(cudaStreamEndCapture(s.get(), &graph) != cudaSuccess);  // Thrust waited for the stream
    (void)cudaGetLastError();
  }
  CHECK(memory.state().allocated == 0);
  // The owner and the pool serve the next capture.
  auto const policy = tarn::par_nosync(pool).on(s);
  thrust_step(policy, pool, s, in.data(), out.data(), n);
  auto const eager = on_host(out.data(), n, s);
  auto const graph = [&] {
    tarn::capture_scope const scope(memory, s);
    return std::make_unique<executable>(s, [&] { thrust_step(policy, pool, s, in.data(), out.data(), n); });
  }();
  count_up<<<64, 256, 0, s.get()>>>(out.data(), n, 0);
  REQUIRE(graph->launch(s));
  CHECK(on_host(out.data(), n, s) == eager);
}
