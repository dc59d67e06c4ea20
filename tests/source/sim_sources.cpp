// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/sim_sources.hpp"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/check_unsupported.hpp"
#include "contract/page_source_contract.hpp"
#include "contract/resource_contract.hpp"
#include "contract/unique_pages.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/stream.hpp"

using namespace tarn;
using namespace tarn_test;

namespace {

/// A machine with little memory, so that it runs out quickly.
sim_machine small_machine(sim_options options = {}) {
  options.capacity = 4_GiB;
  options.taken = 1_GiB;
  options.host_capacity = 4_GiB;
  return sim_machine(options);
}

template <class Source>
Source on(sim_machine const& machine) {
  return Source(machine.driver());
}

/// Has the call of cuda_driver that a simulated driver lacks; accepts up to 1 GiB.
struct driver_of_thresholds : sim_driver {
  std::size_t* threshold;
  driver_of_thresholds(sim_driver const& driver, std::size_t& at) : sim_driver(driver), threshold(&at) {}
  [[nodiscard]] status set_release_threshold(std::size_t bytes) const noexcept {
    *threshold = bytes;
    return bytes <= 1_GiB ? status{} : status{failure::other, 1, "set_release_threshold"};
  }
};

/// Fails to open its pools of pinned and managed memory.
struct driver_of_pools : sim_driver {
  status answer;
  driver_of_pools(sim_driver const& driver, status const& s) : sim_driver(driver), answer(s) {}
  [[nodiscard]] status open_memory_pool(async_memory) const noexcept { return answer; }
};

}  // namespace

TEMPLATE_TEST_CASE("sim_malloc, sim_async, sim_pinned_host and sim_managed meet the resource contract",
                   "[source][memory_pools]", sim_malloc, sim_async, sim_async_pinned, sim_async_managed,
                   sim_pinned_host, sim_managed) {
  sim_machine const machine = small_machine();
  resource_contract([&] { return on<TestType>(machine); });
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_pages meets the page source contract", "[source][cuda_pages][pages]") {
  sim_machine const machine = small_machine();
  page_source_contract([&] { return on<sim_pages>(machine); });
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("unique_pages destroys its page_handle exactly once", "[source][page_handle][pages]") {
  sim_machine const machine = small_machine();
  auto pages = on<sim_pages>(machine);
  {
    unique_pages a(pages, 2_MiB);
    unique_pages b = std::move(a);
    unique_pages c(pages, 2_MiB);
    c = std::move(b);
    CHECK(machine.calls()[driver_call::destroy_pages] == 1);  // the former pages of c
    c.reset();
    CHECK(machine.calls()[driver_call::destroy_pages] == 2);
    c.reset();
  }
  CHECK(machine.calls()[driver_call::create_pages] == 2);
  CHECK(machine.calls()[driver_call::destroy_pages] == 2);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_malloc and sim_pages refuse more than max_request_bytes without a driver call",
          "[source][errors][pages]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  auto pages = on<sim_pages>(machine);
  CHECK_THROWS_AS(memory.allocate_sync(max_request_bytes + 1), out_of_memory);
  CHECK_THROWS_AS(pages.create(max_request_bytes + 1), out_of_memory);
  CHECK_THROWS_AS(pages.reserve(max_request_bytes + 1), out_of_memory);
  CHECK(machine.calls().memory() == 0);
}

namespace {
sim_machine machine_without_pages() {
  sim_options options;
  options.paging = sim_paging::missing;
  return small_machine(options);
}
/// A driver with pages and no other memory of the device.
struct driver_of_pages : sim_driver {
  explicit driver_of_pages(sim_driver driver) : sim_driver(std::move(driver)) {}
  status malloc_device(std::size_t, void*&) const noexcept = delete;
};
}  // namespace

TEST_CASE("sim_pages without virtual memory management has plain blocks, and refuses every call of pages",
          "[source][cuda_pages][pages]") {
  sim_machine const machine = machine_without_pages();
  auto pages = on<sim_pages>(machine);
  CHECK_FALSE(pages.has_pages());
  CHECK(on<sim_pages>(small_machine()).has_pages());
  CHECK(pages.granularity() == 2_MiB);
  void* const p = pages.allocate_plain(3_MiB);
  CHECK(machine.usage().blocks == 1);
  pages.deallocate_plain(p, 3_MiB);
  char const* const advice = "no virtual memory management on this device";
  check_unsupported([&] { (void)pages.reserve(2_MiB); }, {advice});
  check_unsupported([&] { (void)pages.create(2_MiB); }, {advice});
  check_unsupported([&] { pages.map(&pages, 2_MiB, 1); }, {advice});
  check_unsupported([&] { unique_pages const owner(pages, 2_MiB); }, {advice});
  check_unsupported([&] { (void)(pages | limited{1_GiB}).create(2_MiB); }, {advice});
  CHECK(machine.calls()[driver_call::create_pages] == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("has_pages reports the device of the source through every layer over pages",
          "[source][cuda_pages]") {
  for (sim_machine const& machine : {machine_without_pages(), small_machine()}) {
    auto pages = on<sim_pages>(machine);
    bool const has = machine.driver().page_granularity(*std::make_unique<std::size_t>()).ok();
    CHECK((pages | limited{1_GiB}).has_pages() == has);
    CHECK((pages | headroom{1_MiB}).has_pages() == has);
    CHECK((pages | accessible_from{}).has_pages() == has);
    CHECK((pages | limited{1_GiB} | headroom{1_MiB} | limited{1_GiB}).has_pages() == has);
  }
}

TEST_CASE("sim_pages without virtual memory management or plain blocks throws and names the alternative",
          "[source][cuda_pages][pages]") {
  sim_machine const machine = machine_without_pages();
  check_unsupported([&] { (void)basic_pages<driver_of_pages>(driver_of_pages(machine.driver())); },
                    {"cuda_malloc | pooled"});
  CHECK_NOTHROW(basic_pages<driver_of_pages>(driver_of_pages(small_machine().driver())));
  CHECK_NOTHROW(on<sim_malloc>(machine).deallocate_sync(on<sim_malloc>(machine).allocate_sync(64), 64));
}

TEST_CASE("sim_async on a device without memory pools throws when it is made, and names the alternative",
          "[source][cuda_async]") {
  sim_options options;
  options.memory_pools = sim_memory_pools::missing;
  sim_machine const machine = small_machine(options);
  check_unsupported([&] { (void)on<sim_async>(machine); },
                    {"no memory pools on this device; use cuda_malloc"});
  CHECK(machine.calls().total() == 0);
  void* p = nullptr;
  CHECK(machine.driver().malloc_async(64, {}, p).kind == failure::unsupported);
  CHECK(machine.driver().free_async(p, {}).kind == failure::unsupported);
  auto pool = on<sim_pages>(machine) | pooled{};  // nothing else needs them
  pool.deallocate({}, pool.allocate({}, 3_MiB), 3_MiB);
  CHECK(noexcept(sim_malloc(machine.driver())));
}

TEST_CASE("sim_malloc and sim_pages report the number of a missing device", "[source]") {
  sim_machine const machine = small_machine();
  sim_malloc memory(machine.driver(device_id{7}));
  try {
    (void)memory.allocate({}, 64);
    FAIL("must not succeed");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::no_device);
    CHECK(error.device() == 7);
  }
  CHECK_THROWS_AS(sim_pages(machine.driver(device_id{7})), cuda_error);
}

TEMPLATE_TEST_CASE("deallocate of sim_malloc, sim_pinned_host and sim_managed waits for the stream",
                   "[source]", sim_malloc, sim_pinned_host, sim_managed) {
  sim_options options;
  options.checks = sim_checks::stream_order;
  sim_machine const machine = small_machine(options);
  auto memory = on<TestType>(machine);
  test_stream stream(memory.driver());
  test_stream other(memory.driver());
  void* const p = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.launch(stream, 1'000'000, {sim_writes(p, 1_MiB)}).ok());
  REQUIRE(machine.pending() == 1);
  machine.reset_calls();
  memory.deallocate(stream, p, 1_MiB);
  CHECK(machine.pending() == 0);
  CHECK(machine.calls()[driver_call::synchronize_stream] == 1);  // an explicit wait, not left to cudaFree
  CHECK(machine.findings().empty());
}

TEMPLATE_TEST_CASE("sim_async_pinned and sim_async_managed take host memory in stream order",
                   "[source][cuda_async][memory_pools]", sim_async_pinned, sim_async_managed) {
  sim_machine const machine;
  auto memory = on<TestType>(machine);
  STATIC_REQUIRE(has_property<TestType, host_accessible> && has_property<TestType, device_accessible>);
  STATIC_REQUIRE_FALSE(has_property<sim_async, host_accessible>);
  test_stream<sim_driver> busy(memory.driver());
  REQUIRE(machine.launch(busy, 1'000'000'000).ok());
  auto* const p = static_cast<char*>(memory.allocate(busy, 1_MiB));
  memory.deallocate(busy, p, 1_MiB);
  CHECK(memory.allocate(busy, 1_MiB) == p);  // the same kind of memory
  void* const device = on<sim_async>(machine).allocate(busy, 1_MiB);
  CHECK(machine.now() < 1'000'000'000);  // nothing has waited
  CHECK(device != p);
  CHECK(machine.usage().block_bytes == 1_MiB);  // of the device only what cudaMallocAsync took
  p[1_MiB - 1] = 7;
  bool const is_managed = memory.driver().prefetch(busy, p, 1_MiB, 0).ok();
  CHECK(is_managed == std::is_same_v<TestType, sim_async_managed>);
  CHECK_FALSE(memory.driver().free_pinned(p).ok());
  CHECK_FALSE(memory.driver().free_managed(p).ok());
  on<sim_async>(machine).deallocate(busy, device, 1_MiB);
  memory.deallocate(busy, p, 1_MiB);
  CHECK(machine.leaks().blocks == 0);
  REQUIRE(memory.driver().synchronize_device().ok());
  CHECK(machine.usage().used == 0);
}

TEST_CASE("sim_async_pinned without memory pools names the alternative", "[source][cuda_async]") {
  sim_machine const machine{{.memory_pools = sim_memory_pools::missing}};
  CHECK_THROWS_AS(on<sim_async_pinned>(machine), cuda_error);
  CHECK_THROWS_AS(on<sim_async_managed>(machine), cuda_error);
}

TEMPLATE_TEST_CASE("basic_async_pinned and basic_async_managed keep the code of a failure of the driver",
                   "[source][cuda_async][memory_pools]", basic_async_pinned<driver_of_pools>,
                   basic_async_managed<driver_of_pools>) {
  sim_machine const machine = small_machine();
  auto const make = [&](failure kind, int code) {
    (void)TestType(driver_of_pools(machine.driver(), {kind, code, "", "open_memory_pool"}));
  };
  auto const code_of = [&](failure kind, int code) {
    try {
      make(kind, code);
    } catch (cuda_error const& error) {
      return error.kind() == kind ? error.code() : 0;
    }
    return 0;
  };
  CHECK(code_of(failure::no_device, 100) == 100);
  CHECK(code_of(failure::other, 700) == 700);
  CHECK(code_of(failure::out_of_memory, 2) == 2);
  check_unsupported([&] { make(failure::unsupported, 1); }, {"CUDA before 13", "pinned_host | pooled"});
}

TEST_CASE("set_release_threshold sets the threshold of the driver's pool, and throws if it is refused",
          "[source][cuda_async][memory_pools]") {
  sim_machine const machine = small_machine();
  std::size_t threshold = 0;
  basic_async<driver_of_thresholds> const memory(driver_of_thresholds(machine.driver(), threshold));
  set_release_threshold(memory, 64_MiB);
  CHECK(threshold == 64_MiB);
  CHECK_THROWS_AS(set_release_threshold(memory, 2_GiB), cuda_error);
}

TEST_CASE("sim_async does not wait for a busy stream", "[source][cuda_async][memory_pools]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_async>(machine);
  test_stream stream(memory.driver());
  void* const p = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.launch(stream, 1'000'000, {sim_writes(p, 1_MiB)}).ok());
  memory.deallocate(stream, p, 1_MiB);
  CHECK(machine.pending() == 1);
  CHECK(machine.calls()[driver_call::synchronize_stream] == 0);
  void* const q = memory.allocate_sync(1_MiB);  // on a stream of its own, which it waits for
  CHECK(machine.calls()[driver_call::synchronize_stream] == 1);
  CHECK(machine.pending() == 1);
  memory.deallocate_sync(q, 1_MiB);
  CHECK(machine.calls()[driver_call::synchronize_device] == 0);
}

TEMPLATE_TEST_CASE("deallocate of a simulated source during a capture keeps the capture valid", "[source]",
                   sim_malloc, sim_pinned_host, sim_managed) {
  sim_machine const machine = small_machine();
  auto memory = on<TestType>(machine);
  test_stream stream(memory.driver());
  void* const before = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.begin_capture(stream).ok());
  REQUIRE(machine.launch(stream, 1000).ok());
  void* const inside = memory.allocate(stream, 1_MiB);
  memory.deallocate(stream, before, 1_MiB);
  memory.deallocate(stream, inside, 1_MiB);
  sim_graph graph;
  CHECK(machine.end_capture(stream, graph).ok());
  CHECK(graph.size() == 1);
  CHECK(machine.captured_calls() == 0);
}

TEMPLATE_TEST_CASE("calls of a simulated source with the handle of a captured stream keep the capture valid",
                   "[source][memory_pools]", sim_malloc, sim_async, sim_pinned_host, sim_managed) {
  sim_machine const machine = small_machine();
  auto memory = on<TestType>(machine);
  test_stream stream(memory.driver());
  stream_ref const bare = stream_ref::from(stream_ref(stream).handle());
  REQUIRE(machine.begin_capture(stream).ok());
  memory.deallocate(bare, memory.allocate(bare, 1_MiB), 1_MiB);
  CHECK_THROWS_AS(memory.allocate(bare, 1_TiB), out_of_memory);
  sim_graph graph;
  CHECK(machine.end_capture(stream, graph).ok());
}

TEMPLATE_TEST_CASE("deallocate of a simulated source does nothing after the driver has unloaded",
                   "[source][memory_pools]", sim_malloc, sim_async, sim_pinned_host, sim_managed) {
  sim_machine const machine = small_machine();
  auto memory = on<TestType>(machine);
  void* const p = memory.allocate({}, 1000);
  void* const q = memory.allocate_sync(1000);
  machine.unload();
  memory.deallocate({}, p, 1000);
  memory.deallocate_sync(q, 1000);
  CHECK_THROWS_AS(memory.allocate({}, 1000), cuda_error);
  machine.repair();
  CHECK(machine.leaks().blocks == 2);  // nothing was freed, nothing crashed
  memory.deallocate({}, p, 1000);
  memory.deallocate_sync(q, 1000);
  CHECK(machine.leaks().blocks == 0);
}

TEST_CASE("out_of_memory of sim_malloc reports the request, the call and the free bytes",
          "[source][errors]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  try {
    (void)memory.allocate({}, 5_GiB);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == 5_GiB);
    CHECK(error.report().device == 0);
    CHECK(error.report().device_free == 3_GiB);
    CHECK(error.report().device_total == 4_GiB);
    CHECK(std::string_view(error.report().refused_by) == "the device");
    CHECK(std::string_view(error.report().call) == "malloc_device");
    CHECK(std::string_view(error.what()).find("Free on the device 3 GiB.") != std::string_view::npos);
  }
}

TEMPLATE_TEST_CASE("sim_malloc and sim_async keep nothing from a refused allocation",
                   "[source][errors][memory_pools]", sim_malloc, sim_async) {
  sim_machine const machine = small_machine();
  auto memory = on<TestType>(machine);
  void* const half = memory.allocate({}, 2_GiB);
  CHECK_THROWS_AS(memory.allocate({}, 2_GiB), out_of_memory);
  CHECK_THROWS_AS(memory.allocate_sync(2_GiB), out_of_memory);
  CHECK(machine.leaks().blocks == 1);
  CHECK(machine.leaks().streams == 0);
  memory.deallocate({}, half, 2_GiB);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_malloc uses a whole page for an alignment above 256", "[source][cuda_malloc]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  void* const p = memory.allocate({}, 100, 4_KiB);
  CHECK(is_aligned(p, 4_KiB));
  CHECK(machine.usage().used == 2_MiB);
  memory.deallocate({}, p, 100, 4_KiB);
  CHECK(machine.usage().used == 0);
}

TEMPLATE_TEST_CASE("sim_malloc and sim_async refuse an unsupported alignment and keep nothing",
                   "[source][errors][memory_pools]", sim_malloc, sim_async) {
  sim_options options;
  options.granularity = 4_MiB;  // so that 2 MiB is not a whole page
  sim_machine const machine = small_machine(options);
  auto memory = on<TestType>(machine);
  CHECK_THROWS_AS(memory.allocate({}, 100, 4_KiB), bad_alignment);
  CHECK_THROWS_AS(memory.allocate_sync(100, 4_KiB), bad_alignment);
  CHECK(machine.leaks().total() == 0);
}

TEMPLATE_TEST_CASE("bad_alignment of a source of blocks has an alignment that works as its limit",
                   "[source][errors]", sim_malloc, sim_pinned_host) {
  sim_options options;
  options.granularity = 4_MiB;
  sim_machine const machine = small_machine(options);
  auto memory = on<TestType>(machine);
  void* const before = memory.allocate_sync(100);
  std::size_t worked = 0;
  for (std::size_t alignment = 256; alignment <= max_alignment; alignment *= 2) {
    try {
      memory.deallocate_sync(memory.allocate_sync(100, alignment), 100, alignment);
      worked = alignment;
    } catch (bad_alignment const& error) {
      INFO(error.what());
      CHECK(error.limit() >= worked);
      CHECK(error.limit() < alignment);
    }
  }
  memory.deallocate_sync(before, 100);
}

TEST_CASE("operator== of simulated sources is false on different devices", "[source]") {
  sim_options options;
  options.devices = 2;
  sim_machine const machine = small_machine(options);
  CHECK(sim_malloc(machine.driver(0)) == sim_malloc(machine.driver(0)));
  CHECK(!(sim_malloc(machine.driver(0)) == sim_malloc(machine.driver(1))));
  CHECK(!(sim_pages(machine.driver(0)) == sim_pages(machine.driver(1))));
}

TEST_CASE("a block of a destroyed stream is not given back while its work may run",
          "[source][memory_pools]") {
  bool const fails = GENERATE(true, false);
  sim_machine const machine = small_machine();
  fault_plan const plan;
  basic_async<faulty<sim_driver>> memory(faulty<sim_driver>{machine.driver(), plan});
  stream_ref gone;
  void* p = nullptr;
  {
    basic_stream<sim_driver> const stream(machine.driver());
    gone = stream;
    p = memory.allocate(gone, 2_MiB);
  }
  if (fails) plan.fail(driver_call::synchronize_device, 1);
  memory.deallocate(gone, p, 2_MiB);
  CHECK(plan.failed() == (fails ? 1U : 0U));
  CHECK(machine.leaks().blocks == (fails ? 1U : 0U));
}
