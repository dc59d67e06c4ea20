// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/poisoned.hpp"

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::holds;
using tarn_test::test_stream;

TEST_CASE("poisoned meets the resource contract", "[policy][poisoned]") {
  tarn_test::resource_contract([] { return host_memory{} | poisoned{}; });
}

TEST_CASE("poisoned fills a new block with pattern::uninitialised and a freed one with pattern::freed",
          "[policy][poisoned]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | poisoned{};
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{1000}, 3_MiB}) {
    void* const p = memory.allocate(stream, bytes);
    CHECK(holds(memory, stream, p, pattern::uninitialised, bytes));
    memory.deallocate(stream, p, bytes);
    CHECK(holds(memory, stream, p, pattern::freed, bytes));
    void* const q = memory.allocate_sync(bytes);
    auto const* const seen = static_cast<unsigned char const*>(q);  // readable at once, without a wait
    CHECK(seen[0] == pattern::uninitialised);
    CHECK(seen[bytes - 1] == pattern::uninitialised);
    memory.deallocate_sync(q, bytes);
    CHECK(seen[0] == pattern::freed);
    CHECK(seen[bytes - 1] == pattern::freed);
  }
}

TEST_CASE("poisoned fills a block after the work of the stream, and nothing outside the block",
          "[policy][poisoned]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | poisoned{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  p[100] = 7;  // the rest of the 256 bytes is not part of the block
  REQUIRE(machine.launch(stream, 1'000'000, [p] { p[0] = 1; }).ok());
  memory.deallocate(stream, p, 100);
  REQUIRE(machine.driver().synchronize_stream(stream).ok());
  CHECK(p[0] == pattern::freed);
  CHECK(p[99] == pattern::freed);
  CHECK(p[100] == 7);
}

TEST_CASE("poisoned fills a block that is freed on a stream that is no more", "[policy][poisoned]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | poisoned{};
  stream_ref gone;
  REQUIRE(machine.driver().create_stream(gone).ok());
  void* const p = memory.allocate(gone, 1000);
  REQUIRE(machine.driver().destroy_stream(gone).ok());
  memory.deallocate(gone, p, 1000);
  CHECK(holds(memory, stream, p, pattern::freed, 1000));
}

TEST_CASE("poisoned does not overwrite a block that another stream still uses", "[policy][poisoned]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  test_stream const other(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | poisoned{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  REQUIRE(machine.driver().fill(stream, p, 7, 100).ok());
  REQUIRE(machine.driver().synchronize_stream(stream).ok());
  unsigned char seen = 0;
  REQUIRE(machine.launch(other, 50'000'000, [&seen, p] { seen = p[0]; }).ok());
  memory.record_stream(p, 100, other);
  memory.deallocate(stream, p, 100);
  REQUIRE(machine.driver().synchronize_device().ok());
  CHECK(seen == 7);
  void* const q = memory.allocate(stream, 100);  // the recorded use is cleared
  memory.deallocate(stream, q, 100);
  CHECK(holds(memory, stream, q, pattern::freed, 100));
}

TEST_CASE(
    "poisoned does not overwrite a block after a refused record, which another thread may have made, too",
    "[policy][poisoned]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty<sim_driver> const driver(machine.driver(), plan);
  test_stream const stream(machine.driver());
  auto memory = basic_pages<faulty<sim_driver>>(driver) | pooled{} | poisoned{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 100));
  stream_ref const unidentified = stream_ref::from(stream_ref(stream).handle());
  plan.fail(driver_call::identify, 1, fault{});
  CHECK_THROWS_AS(memory.record_stream(p, 100, unidentified), cuda_error);
  CHECK_NOTHROW(memory.record_stream(nullptr, 0, stream));
  memory.deallocate(stream, p, 100);
  REQUIRE(machine.driver().synchronize_stream(stream).ok());
  CHECK(p[0] == pattern::uninitialised);
}

TEST_CASE("poisoned does not overwrite a block of a capture that is freed while the graph runs",
          "[policy][poisoned]") {
  sim_machine const machine;
  test_stream const stream(machine.driver());
  test_stream const other(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | poisoned{};
  graph_memory graphs(memory);
  unsigned char seen = 0;
  unsigned char* p = nullptr;
  sim_graph graph;
  {
    capture_scope const scope(graphs, stream);
    REQUIRE(machine.begin_capture(stream).ok());
    p = static_cast<unsigned char*>(memory.allocate(stream, 100));
    REQUIRE(machine.launch(stream, 1000, [p] { p[0] = 7; }).ok());
    REQUIRE(machine.launch(stream, 50'000'000).ok());
    REQUIRE(machine.launch(stream, 1000, [&seen, p] { seen = p[0]; }).ok());
    void* const q = memory.allocate(stream, 200);
    memory.deallocate(stream, q, 200);
    REQUIRE(machine.end_capture(stream, graph).ok());
  }
  REQUIRE(machine.launch(other, graph).ok());
  memory.deallocate(stream, p, 100);
  REQUIRE(machine.driver().synchronize_device().ok());
  CHECK(seen == 7);
}
