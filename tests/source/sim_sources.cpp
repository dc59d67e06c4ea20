// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/sim_sources.hpp"

#include <string_view>
#include <vector>

#include "catch.hpp"
#include "contract/page_source_contract.hpp"
#include "contract/resource_contract.hpp"

using namespace tarn;
using namespace tarn_test;

namespace {

/// A machine small enough that running out of memory is quick.
sim_machine small_machine(sim_options options = {}) {
  options.capacity = 4_GiB;
  options.host_capacity = 4_GiB;
  return sim_machine(options);
}

template <class Source>
Source on(sim_machine const& machine) {
  return Source(machine.driver());
}

}  // namespace

TEMPLATE_TEST_CASE("sources of blocks keep the contract of resources", "[source]", sim_malloc, sim_async,
                   sim_pinned_host, sim_managed) {
  sim_machine const machine = small_machine();
  resource_contract([&] { return on<TestType>(machine); });
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_pages keeps the contract of page sources", "[source][cuda_pages]") {
  sim_machine const machine = small_machine();
  page_source_contract([&] { return on<sim_pages>(machine); });
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("an owner of pages gives them back exactly once", "[source][page_handle]") {
  sim_machine const machine = small_machine();
  auto pages = on<sim_pages>(machine);
  {
    unique_pages a(pages, 2_MiB);
    unique_pages b = std::move(a);
    unique_pages c(pages, 2_MiB);
    c = std::move(b);
    CHECK(machine.calls()[driver_call::destroy_pages] == 1);  // what c had
    c.reset();
    CHECK(machine.calls()[driver_call::destroy_pages] == 2);
    c.reset();
  }
  CHECK(machine.calls()[driver_call::create_pages] == 2);
  CHECK(machine.calls()[driver_call::destroy_pages] == 2);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("a request that could wrap does not reach the driver", "[source][errors]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  auto pages = on<sim_pages>(machine);
  CHECK_THROWS_AS(memory.allocate_sync(max_request_bytes + 1), out_of_memory);
  CHECK_THROWS_AS(pages.create(max_request_bytes + 1), out_of_memory);
  CHECK_THROWS_AS(pages.reserve(max_request_bytes + 1), out_of_memory);
  CHECK(machine.calls().memory() == 0);
}

TEST_CASE("pages without virtual memory management are refused with what to use instead",
          "[source][cuda_pages]") {
  sim_options options;
  options.paging = sim_paging::missing;
  sim_machine const machine(options);
  try {
    (void)on<sim_pages>(machine);
    FAIL("must not succeed");
  } catch (cuda_error const& error) {
    CHECK(error.kind() == failure::unsupported);
    CHECK(std::string_view(error.what()).find("cuda_malloc | pooled") != std::string_view::npos);
  }
  CHECK_NOTHROW(on<sim_malloc>(machine).deallocate_sync(on<sim_malloc>(machine).allocate_sync(64), 64));
}

TEST_CASE("a missing device is refused by its number", "[source]") {
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

TEMPLATE_TEST_CASE("memory that the driver does not order is freed only when its stream is done", "[source]",
                   sim_malloc, sim_pinned_host, sim_managed) {
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
  CHECK(machine.calls()[driver_call::synchronize_stream] == 1);  // not left to cudaFree's habits
  CHECK(machine.findings().empty());
}

TEST_CASE("sim_async waits for nobody", "[source][cuda_async]") {
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

TEMPLATE_TEST_CASE("giving back while a graph is captured does not spoil the capture", "[source]", sim_malloc,
                   sim_pinned_host, sim_managed) {
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

TEMPLATE_TEST_CASE("after the driver has unloaded giving back does nothing, quietly", "[source]", sim_malloc,
                   sim_async, sim_pinned_host, sim_managed) {
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

TEST_CASE("running out says what was asked, of whom, and what is free", "[source][errors]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  try {
    (void)memory.allocate({}, 5_GiB);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == 5_GiB);
    CHECK(error.report().device == 0);
    CHECK(error.report().device_free == 3_GiB);
    CHECK(std::string_view(error.report().refused_by) == "malloc_device");
    CHECK(std::string_view(error.what()).find("Free on the device 3 GiB.") != std::string_view::npos);
  }
}

TEMPLATE_TEST_CASE("a refused allocation takes nothing from the device", "[source][errors]", sim_malloc,
                   sim_async) {
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

TEST_CASE("an alignment above 256 costs a device block a whole page", "[source][cuda_malloc]") {
  sim_machine const machine = small_machine();
  auto memory = on<sim_malloc>(machine);
  void* const p = memory.allocate({}, 100, 4_KiB);
  CHECK(is_aligned(p, 4_KiB));
  CHECK(machine.usage().used == 2_MiB);
  memory.deallocate({}, p, 100, 4_KiB);
  CHECK(machine.usage().used == 0);
}

TEMPLATE_TEST_CASE("an alignment that the driver's blocks do not have is refused, and nothing is kept",
                   "[source][errors]", sim_malloc, sim_async) {
  sim_options options;
  options.granularity = 4_MiB;  // so that 2 MiB are no whole page
  sim_machine const machine = small_machine(options);
  auto memory = on<TestType>(machine);
  CHECK_THROWS_AS(memory.allocate({}, 100, 4_KiB), bad_alignment);
  CHECK_THROWS_AS(memory.allocate_sync(100, 4_KiB), bad_alignment);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sources on different devices are not equal", "[source]") {
  sim_options options;
  options.devices = 2;
  sim_machine const machine = small_machine(options);
  CHECK(sim_malloc(machine.driver(0)) == sim_malloc(machine.driver(0)));
  CHECK(!(sim_malloc(machine.driver(0)) == sim_malloc(machine.driver(1))));
  CHECK(!(sim_pages(machine.driver(0)) == sim_pages(machine.driver(1))));
}
