// SPDX-License-Identifier: Apache-2.0
#include "tarn/report/live_blocks_summary.hpp"

#include <string>
#include <utility>

#include "catch.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("live_blocks_summary is empty if and only if nothing is allocated", "[report][live_blocks]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver()} | pooled{} | tracked{};
  CHECK(live_blocks_summary(memory) == "");
  sim_stream const stream{machine.driver()};
  sim_stream const other{machine.driver()};
  void* const p = memory.allocate(stream, 100);
  CHECK(live_blocks_summary(memory) == "1 block with 100 B is live");
  void* const q = memory.allocate_sync(3_MiB);
  CHECK(live_blocks_summary(basic_any_resource<sim_driver, device_accessible>(memory)) ==
        "2 blocks with 3 MiB are live");
  memory.deallocate_sync(q, 3_MiB);
  CHECK(detail::fill_in_order(machine.driver(), other, p, 1, 100).ok());
  memory.record_stream(p, 100, other);
  memory.deallocate(stream, p, 100);
  CHECK(nearest(memory, pool_call::state{}).deferred_blocks == 1);
  CHECK(live_blocks_summary(memory) == "");
}

TEST_CASE("live_blocks_summary lists size, tag and line of recorded blocks, the largest first",
          "[report][live_blocks]") {
  auto memory = host_memory{} | pooled{} | with_history{};
  CHECK(live_blocks_summary(memory) == "");
  std::string const file = __FILE__;
  unsigned const line = __LINE__;
  {
    auto const small = make_device_buffer<char>(memory, 100, stream_ref{});
    auto const large = make_device_buffer<char>(memory, 5_KiB, stream_ref{}, tag("weights"));
    auto const colour = make_device_buffer<char>(memory, 90, stream_ref{}, tag("a\x1b[2J"));
    auto const at = [&](unsigned more) { return " at " + file + ":" + std::to_string(line + more); };
    std::string const weights = "3 blocks with 5.1 KiB are live\n  5 KiB \"weights\"" + at(3);
    CHECK(live_blocks_summary(memory) == weights + "\n  100 B" + at(2) + "\n  90 B \"a [2J\"" + at(4));
    CHECK(live_blocks_summary(memory, 1) == weights + "\n  and 2 more");
  }
  CHECK(live_blocks_summary(memory) == "");
}

TEST_CASE("live_blocks_summary counts what a history does not see", "[report][live_blocks]") {
  auto const pool = host_memory{} | pooled{} | tracked{};
  auto memory = pool | with_history{};
  auto const unseen = make_device_buffer<char>(pool, 200, stream_ref{});
  CHECK(live_blocks_summary(memory) == "1 block with 200 B is live");
}

TEST_CASE("live_blocks_summary sees a history above the counts", "[report][live_blocks]") {
  auto const pool = host_memory{} | pooled{} | with_history{};
  auto const memory = pool | tracked{};
  auto const unseen = make_device_buffer<char>(pool, 200, stream_ref{});
  CHECK(live_blocks_summary(memory).substr(0, 26) == "1 block with 200 B is live");
}

TEST_CASE("live_blocks_summary takes no segment of a pool for a block", "[report][live_blocks]") {
  auto memory = host_memory{} | with_history{} | pooled{} | tracked{};
  memory.deallocate_sync(memory.allocate_sync(100), 100);
  CHECK(live_blocks_summary(memory) == "");
}

TEST_CASE("live_blocks_summary reports more frees than allocations", "[report][live_blocks]") {
  auto one = host_memory{} | pooled{};
  auto counted = one | tracked{};
  void* const p = one.allocate({}, 100);
  counted.deallocate({}, p, 100);
  CHECK(live_blocks_summary(counted).substr(0, 35) == "more was freed than allocated; add ");
}

TEST_CASE("live_blocks_summary does not list what checked has in quarantine", "[report][live_blocks]") {
  sim_machine const machine;
  static int reported = 0;
  misuse_handler const before = set_misuse_handler([](misuse const&) { ++reported; });
  auto const try_on = [&](auto memory, std::string const& live) {
    void* const p = memory.allocate({}, 2_MiB);
    memory.deallocate({}, memory.allocate({}, 1_MiB), 1_MiB);
    CHECK(live_blocks_summary(memory).starts_with("1 block with " + live));
    memory.deallocate({}, p, 2_MiB);
    REQUIRE(machine.driver().fill(stream_ref{}, p, 0x11, 1).ok());  // after the free
    REQUIRE(machine.driver().synchronize_stream(stream_ref{}).ok());
    CHECK(std::exchange(reported, 0) == 0);
    CHECK(live_blocks_summary(memory) == "");
    CHECK(std::exchange(reported, 0) == 1);  // what is given back was verified
  };
  auto const pool = sim_pages{machine.driver()} | pooled{};
  checked const without_fences{.fence_bytes = 0};
  try_on(pool | tracked{} | without_fences, "2 MiB is live");
  try_on(pool | with_history{} | without_fences, "2 MiB is live\n  2 MiB at ");
  try_on(pool | checked{} | tracked{} | without_fences, "2 MiB is live");
  (void)set_misuse_handler(before);
}
