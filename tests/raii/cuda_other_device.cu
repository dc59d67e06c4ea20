// SPDX-License-Identifier: Apache-2.0
// Memory of one GPU's pools that is used and freed on streams of another GPU, and calls for a GPU that is not
// current.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;
using tarn_test::keep_busy;

namespace {

constexpr std::size_t n = 8_MiB;
constexpr device_id first{0};
constexpr device_id other{1};

void busy_on_other(stream_ref stream) {
  device_guard const guard{other};
  REQUIRE(keep_busy(stream, 200));
}
template <class Buffer>
bool holds(Buffer const& buffer, char byte) {
  std::vector<char> seen(buffer.size());
  buffer.copy_to_sync(seen);
  return std::all_of(seen.begin(), seen.end(), [byte](char c) { return c == byte; });
}
/// Another owner of the memory writes it on the host as soon as it gets it.
template <class Memory>
void overwrite(Memory& memory) {
  std::vector<pinned_buffer<char, Memory>> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(memory, n, elements::uninitialised);
  for (auto& each : all) std::memset(each.data(), 9, n);
}

}  // namespace

TEST_CASE("cuda_driver learns where a stream lives, by cuStreamGetDevice and by its context",
          "[driver][stream_device][cuda]") {
  if (!has_cuda_devices()) return;
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  for (int d = 0; d < count && d < 2; ++d) {
    basic_stream<cuda_driver> const s{cuda_driver{device_id{d}}};
    device_id found{-1};
    CHECK(cuda_driver{first}.ask_device(stream_ref::from(s.get()), found).ok());
    CHECK(found == device_id{d});
    found = device_id{-1};
    CHECK(cuda_driver::device_by_context(s.get(), found).ok());
    CHECK(found == device_id{d});
    CHECK(detail::device_of(cuda_driver{first}, s) == device_id{d});
    CHECK(detail::device_of(cuda_driver{first}, default_stream(device_id{d})) == device_id{d});
    cudaStream_t raw = nullptr;
    device_guard const guard{device_id{d}};
    REQUIRE(cudaStreamCreate(&raw) == cudaSuccess);
    stream_ref const named = identified(cuda_driver{first}, stream_ref(raw));
    CHECK(detail::device_of(cuda_driver{first}, named) == device_id{d});
    CHECK(cudaStreamDestroy(raw) == cudaSuccess);
  }
  CHECK_FALSE(cuda_driver{device_id{100}}.synchronize_device().ok());
  detail::devices_of_cuda_streams().for_each_in_use([&](device_id d) { CHECK(d.value < count); });
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("a pinned_buffer freed on a stream of another GPU keeps its bytes until the copy is over",
          "[raii][pinned_buffer][cuda]") {
  if (!has_cuda_devices(2)) return;
  auto pinned = pinned_host{first} | pooled{};
  device_pool pool{cuda_pages{other}};
  for (bool const destroyed : {false, true}) {
    for (bool const to_device : {true, false}) {
      auto s = std::make_unique<basic_stream<cuda_driver>>(cuda_driver{other});
      auto g = make_device_buffer<char>(pool, n, *s);
      g.fill(std::byte{7});
      {
        pinned_buffer<char, decltype(pinned)> b(pinned, n, elements::uninitialised, *s);
        std::memset(b.data(), to_device ? 5 : 1, n);
        busy_on_other(*s);
        if (to_device) {
          g.copy_from(std::span<char const>(b.data(), n));
        } else {
          g.copy_to(std::span<char>(b.data(), n));
        }
        if (destroyed) {
          g.set_stream(default_stream(other));
          s.reset();
        }
      }
      overwrite(pinned);
      CHECK(holds(g, to_device ? 5 : 7));
    }
  }
}

TEST_CASE("a copy on another GPU's default stream keeps its pinned memory, pooled or bare",
          "[raii][pinned_buffer][cuda]") {
  if (!has_cuda_devices(2)) return;
  device_pool pool{cuda_pages{other}};
  auto g = make_device_buffer<char>(pool, n, default_stream(other));
  auto pinned = pinned_host{first} | pooled{};
  auto const run = [&](auto memory) {
    {
      pinned_buffer<char, decltype(memory)> b(memory, n, elements::uninitialised);
      std::memset(b.data(), 5, n);
      device_guard const guard{other};
      REQUIRE(keep_busy(stream_ref{}, 200));
      REQUIRE(cudaMemcpyAsync(g.data(), b.data(), n, cudaMemcpyDefault, nullptr) == cudaSuccess);
    }
    overwrite(memory);
    CHECK(holds(g, 5));
  };
  run(pinned);
  run(pinned_host{first});
}

TEST_CASE("pages shared with another GPU are recorded, freed and given back in the order of its streams",
          "[pool][record_stream][cuda]") {
  if (!has_cuda_devices(2)) return;
  bool yes = false;
  if (!cuda_driver{first}.can_share(other, yes).ok() || !yes) return;
  auto pool = cuda_pages{first} | accessible_from{other} | pooled{} | tracked{};
  device_pool there{cuda_pages{other}};
  basic_stream<cuda_driver> const own{cuda_driver{first}};
  basic_stream<cuda_driver> const s{cuda_driver{other}};
  auto result = make_device_buffer<char>(there, n, s);
  for (int i = 0; i < 10; ++i) {
    auto a = make_device_buffer<char>(pool, n, own);
    a.fill(static_cast<std::byte>(i));
    detail::order_streams(cuda_driver{other}, s, cuda_driver{first}, own);
    busy_on_other(s);
    {
      device_guard const guard{other};
      REQUIRE(cudaMemcpyAsync(result.data(), a.data(), n, cudaMemcpyDefault, s.get()) == cudaSuccess);
    }
    a.record_stream(s);
    a.reset();
    for (int k = 0; k < 3; ++k) {
      auto again = make_device_buffer<char>(pool, n, own);
      again.fill(std::byte{99});
    }
    CHECK(holds(result, static_cast<char>(i)));
  }
  auto on_other = make_device_buffer<char>(pool, n, s);
  on_other.fill(std::byte{3});
  CHECK(holds(on_other, 3));
  on_other.reset();
  pool.empty_cache();
  CHECK(memory_reserved(pool) == 0);
  device_pool plain{cuda_pages{first}};
  CHECK_THROWS_AS(plain.allocate(s, 1000), misuse);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("debugging policies write and read their patterns for streams of another GPU", "[policy][cuda]") {
  if (!has_cuda_devices(2)) return;
  auto const run = [&](auto memory) {
    basic_stream<cuda_driver> const s{cuda_driver{other}};
    for (int i = 0; i < 3; ++i) {
      auto b = make_device_buffer<char>(memory, 1000, s);
      b.fill(std::byte{4});
      CHECK(holds(b, 4));
    }
    s.synchronize();
  };
  run(cuda_malloc{first} | pooled{} | poisoned{});
  run(cuda_malloc{first} | pooled{} | fenced{});
  run(cuda_malloc{first} | pooled{} | checked{});
  CHECK(cudaGetLastError() == cudaSuccess);
}

// A process of its own: device 0 must not have been used. Hidden: the case below starts it.
TEST_CASE("no call for GPU 1 makes a context on GPU 0", "[.stray_context]") {
  auto const state = detail::cuda_driver_calls().primary_context_get_state;
  REQUIRE(state != nullptr);
  auto const check = [&](char const* after) {
    unsigned flags = 0;
    int active = 0;
    REQUIRE(state(0, &flags, &active) == CUDA_SUCCESS);
    INFO(after);
    CHECK(active == 0);
  };
  int current = -1;
  REQUIRE(cudaGetDevice(&current) == cudaSuccess);
  REQUIRE(current == 0);
  check("cudaGetDevice");
  {
    cuda_driver const driver{other};
    basic_stream<cuda_driver> s{driver};
    check("a stream");
    s.synchronize();
    check("synchronize");
    basic_stream<cuda_driver> t{driver};
    device_pool pool{cuda_pages{other}};
    check("device_pool");
    auto a = make_device_buffer<int>(pool, 1'000'000, s);
    check("make_device_buffer");
    std::vector<int> host(a.size(), 3);
    a.zero();
    a.copy_from(std::span<int const>(host));
    a.copy_to_sync(host);
    check("copies");
    a.record_stream(t);
    a.set_stream(t);
    check("record_stream, set_stream");
    auto b = a.clone(s);
    a.reset();
    b.resize(2'000'000, t);
    pool.empty_cache();
    check("clone, resize, empty_cache");
    auto pinned = pinned_host{other} | pooled{};
    pinned_buffer<int, decltype(pinned)> c(pinned, 1000, elements::value_initialised, s);
    c.reset();
    pinned.empty_cache();
    check("pinned pool");
    auto d = make_device<int>(pinned, stream_ref{});
    d.reset();
    pinned.empty_cache();
    check("a default stream on pinned memory");
    pinned_buffer<int, pinned_host> bare(pinned_host{other}, 1000);
    bare.reset();
    check("bare pinned memory");
    auto async = make_device<int[]>(cuda_async{other}, 1000, s);
    async.reset();
    auto blocks = make_device<int[]>(cuda_malloc{other} | pooled{} | checked{}, 1000, s);
    blocks.reset();
    check("cuda_async, cuda_malloc, checked");
    {
      graph_memory memory{pool};
      // The user's own calls. device_guard ends with cudaSetDevice(0), which makes a context there.
      detail::on_device const there(other.value);
      capture_scope scope{memory, s};
      REQUIRE(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeRelaxed) == cudaSuccess);
      auto in_graph = make_device_buffer<int>(pool, 1000, s);
      in_graph.zero();
      in_graph.reset();
      cudaGraph_t graph = nullptr;
      REQUIRE(cudaStreamEndCapture(s.get(), &graph) == cudaSuccess);
      REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }
    check("graph_memory");
    b.reset();
    (void)sleep(pool);
    (void)wake(pool);
    (void)compact(pool);
    check("sleep, wake, compact");
    CHECK(!memory_summary(pool).empty());
    (void)available_memory(pool);
    (void)memory_stats(pool);
    check("reports");
    t = basic_stream<cuda_driver>{driver};
    check("~stream");
  }
  check("~device_pool");
}

TEST_CASE("calls for a GPU that is not current make no context on the current one", "[driver][cuda]") {
  if (!has_cuda_devices(2)) return;
  CHECK(std::system("/proc/$PPID/exe '[.stray_context]' 1>&2") == 0);
}
