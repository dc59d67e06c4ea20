// SPDX-License-Identifier: Apache-2.0
// Devices that lack virtual memory management, memory pools, or both: what a user writes works as it stands,
// and reports what it uses. The policy matrix runs every promise there, too (policy_matrix/subject.hpp).
#include "tarn/policy/device_pool.hpp"

#include <string>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/summary.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/reservation.hpp"

using namespace tarn;
using tarn_test::resource_contract;
using tarn_test::test_stream;

namespace {

/// A device that may lack each capability.
struct device {
  explicit device(bool pages, bool pools) : machine(options(pages, pools)) {}
  static sim_options options(bool pages, bool pools) {
    sim_options o;
    o.paging = pages ? sim_paging::available : sim_paging::missing;
    o.memory_pools = pools ? sim_memory_pools::available : sim_memory_pools::missing;
    return o;
  }
  [[nodiscard]] auto pages() const { return sim_pages{driver}; }
  [[nodiscard]] std::string missing() const {
    return std::string(machine.options().paging == sim_paging::missing ? "no pages" : "pages") +
           (machine.options().memory_pools == sim_memory_pools::missing ? ", no memory pools" : "");
  }
  sim_machine machine;
  sim_driver driver = machine.driver(0);
};
/// Keeps no block after a refusal.
bool gives_up(out_of_memory const&, unsigned) {
  return false;
}

}  // namespace

TEST_CASE("the resource contract holds whatever the device lacks", "[policy][capabilities]") {
  bool const has_pages = GENERATE(true, false);
  bool const has_pools = GENERATE(true, false);
  device const d(has_pages, has_pools);
  CAPTURE(d.missing());
  SECTION("device_pool") {
    resource_contract([&] { return sim_pool{d.pages()}; });
  }
  SECTION("limits and headroom below a pool") {
    resource_contract([&] { return d.pages() | headroom{1_GiB} | limited{64_GiB} | pooled{} | tracked{}; });
  }
  SECTION("policies that write into blocks") {
    resource_contract([&] { return d.pages() | pooled{} | fenced{} | poisoned{}; });
  }
  SECTION("checked") {
    resource_contract([&] { return d.pages() | pooled{} | checked{}; });
  }
  SECTION("policies around a refusal") {
    resource_contract([&] {
      return d.pages() | pooled{} | retry_on_oom{&gives_up} | fallback_to{sim_managed{d.driver} | pooled{}};
    });
  }
  SECTION("pools over blocks") {
    resource_contract([&] { return sim_malloc{d.driver} | pooled{}; });
  }
  SECTION("pools of pinned memory") {
    resource_contract([&] { return sim_pinned_host{d.driver} | pooled{}; });
  }
  CHECK(d.machine.findings().empty());
}

TEST_CASE("what a user sees of the device's capabilities", "[policy][capabilities]") {
  bool const has_pages = GENERATE(true, false);
  bool const has_pools = GENERATE(true, false);
  device const d(has_pages, has_pools);
  CAPTURE(d.missing());
  sim_pool const memory{d.pages()};
  CHECK(std::string(allocator_backend(memory)) == (has_pages ? "pages" : "cudaMalloc"));
  auto const buffer = make_device_buffer<int>(memory, 1000, stream_ref{});
  CHECK(memory_allocated(memory) >= 4000);
  CHECK(memory_reserved(memory) >= 4000);
  CHECK((memory_summary(memory).find(", cudaMalloc") != std::string::npos) == !has_pages);
  CHECK(available_memory(memory).bytes > 1_GiB);
  auto const shared = memory | limited{1_GiB};
  CHECK(reserve(shared, 10_MiB).bytes() == 10_MiB);
  if (has_pages) {
    CHECK_NOTHROW(tarn::sleep(memory, contents::discarded));
    CHECK(wake(memory) != 0);
  } else {
    CHECK_THROWS_AS(tarn::sleep(memory, contents::discarded), cuda_error);
  }
  if (has_pools) {
    CHECK_NOTHROW(sim_async{d.driver});
  } else {
    CHECK_THROWS_AS(sim_async{d.driver}, cuda_error);
  }
}

TEST_CASE("a capture has its own memory whatever the device lacks", "[policy][capabilities]") {
  bool const has_pages = GENERATE(true, false);
  bool const has_pools = GENERATE(true, false);
  device const d(has_pages, has_pools);
  CAPTURE(d.missing());
  test_stream const s(d.driver);
  sim_pool const memory{d.pages()};
  graph_memory of_graph(memory);
  sim_graph graph;
  void* inside = nullptr;
  {
    capture_scope const scope(of_graph, s);
    REQUIRE(d.machine.begin_capture(s).ok());
    auto pool = memory;
    inside = pool.allocate(s, 3_MiB);
    pool.deallocate(s, inside, 3_MiB);
    REQUIRE(d.machine.end_capture(s, graph).ok());
  }
  auto pool = memory;
  void* const outside = pool.allocate(s, 3_MiB);
  CHECK(outside != inside);
  pool.deallocate(s, outside, 3_MiB);
  CHECK(d.machine.invalidated_captures() == 0);
}
