// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/limited.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/page_source_contract.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("limited meets the resource contract", "[policy][limited]") {
  tarn_test::resource_contract([] { return host_memory{} | limited{2_GiB}; });
}
TEST_CASE("limited over a pool meets the resource contract", "[policy][limited]") {
  tarn_test::resource_contract([] { return host_memory{} | pooled{} | limited{2_GiB}; });
}

TEST_CASE("limited does not count a refused allocation", "[policy][limited]") {
  auto memory = host_memory{} | limited{1_MiB};
  REQUIRE_THROWS_AS(memory.allocate({}, 2_MiB, 256), out_of_memory);
  REQUIRE_THROWS_AS(memory.allocate_sync(1_MiB + 1, 256), out_of_memory);
  REQUIRE_THROWS_AS(memory.allocate({}, 100, 3), bad_alignment);
  CHECK(memory->used() == 0);
  void* const p = memory.allocate({}, 1_MiB, 256);  // the whole budget is still free
  CHECK(memory->used() == 1_MiB);
  CHECK_THROWS_AS(memory.allocate({}, 1, 256), out_of_memory);
  CHECK_THROWS_AS(memory.allocate({}, 1, 3), bad_alignment);  // which more memory would not serve
  CHECK_THROWS_AS(memory.allocate({}, 1, 4_MiB), bad_alignment);
  memory.deallocate({}, p, 1_MiB, 256);
  CHECK(memory->used() == 0);
}

TEST_CASE("limited does not count an allocation that failed upstream", "[policy][limited]") {
  sim_machine const machine;
  fault_plan const plan;
  auto memory = basic_malloc<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) | limited{1_MiB};
  plan.fail(driver_call::malloc_device, 1);
  CHECK_THROWS_AS(memory.allocate({}, 1_MiB), out_of_memory);
  CHECK(memory->used() == 0);
  plan.fail(driver_call::malloc_device, 1, {failure::other});
  CHECK_THROWS_AS(memory.allocate({}, 1_MiB), cuda_error);
  CHECK(memory->used() == 0);
}

TEST_CASE("limited goes on after a second free that the handler of misuse lets pass", "[policy][limited]") {
  static int reported;
  reported = 0;
  misuse_handler const before = set_misuse_handler([](misuse const&) { ++reported; });
  sim_machine const machine;
  auto memory = sim_pages{machine.driver()} | pooled{} | limited{100_MiB};
  void* const p = memory.allocate({}, 4_MiB);
  memory.deallocate({}, p, 4_MiB);
  memory.deallocate({}, p, 4_MiB);
  CHECK(reported == 1);
  CHECK(memory->used() == 0);
  void* const q = memory.allocate({}, 50_MiB);
  CHECK(memory->used() <= 50_MiB);
  CHECK_THROWS_AS(memory.allocate({}, 100_MiB), out_of_memory);
  memory.deallocate({}, q, 50_MiB);
  (void)set_misuse_handler(before);
}

#if !TARN_TSAN  // whose own threads do not survive a fork
TEST_CASE("a forked child has no bound of a thread that it does not have", "[policy][limited][fork]") {
  auto memory = host_memory{} | limited{10_MiB};
  detail::budget_bound theirs;
  std::thread([&] { memory->budget().add(theirs, 1_MiB); }).join();
  detail::budget_bound mine;
  memory->budget().add(mine, 5_MiB);
  CHECK(tarn::child_of([&] {
          theirs.next = reinterpret_cast<detail::budget_bound*>(std::uintptr_t{1});  // it was on that stack
          bool const is_own = memory->budget().limit() == 5_MiB;
          memory->budget().remove(theirs);
          memory->budget().remove(mine);
          return is_own && memory->budget().limit() == 10_MiB;
        }) == 0);
  CHECK(memory->budget().limit() == 1_MiB);
  memory->budget().remove(theirs);
  memory->budget().remove(mine);
  CHECK(memory->budget().limit() == 10_MiB);
}
#endif

TEST_CASE("limited does not count zero-byte allocations and null deallocations", "[policy][limited]") {
  auto memory = host_memory{} | pooled{} | limited{1_MiB};
  for (int i = 0; i < 10; ++i) CHECK(memory.allocate({}, 0) == nullptr);
  CHECK(memory.allocate_sync(0) == nullptr);
  memory.deallocate({}, nullptr, 100);
  memory.deallocate_sync(nullptr, 100);
  CHECK(memory->used() == 0);
}

TEST_CASE("limited over a pool counts blocks with their rounded size", "[policy][limited]") {
  auto memory = host_memory{} | pooled{} | limited{1024};
  void* const p = memory.allocate({}, 1);
  CHECK(memory->used() == 256);
  void* const q = memory.allocate({}, 700);
  CHECK(memory->used() == 1024);
  CHECK_THROWS_AS(memory.allocate({}, 1), out_of_memory);
  memory.deallocate({}, p, 1);
  memory.deallocate({}, q, 700);
  CHECK(memory->used() == 0);
}

TEST_CASE("limited reports the limit and the live bytes in out_of_memory", "[policy][limited]") {
  auto memory = host_memory{} | limited{3_MiB};
  void* const p = memory.allocate({}, 2_MiB);
  try {
    (void)memory.allocate({}, 2_MiB);
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 3_MiB);
    CHECK(error.report().live == 2_MiB);
    CHECK(error.asked() == 2_MiB);
    std::string_view const text = error.what();
    CHECK(text.find("refused by limited(3 MiB)") != text.npos);
    CHECK(text.find("raise the limit") != text.npos);
  }
  memory.deallocate({}, p, 2_MiB);
}

TEST_CASE("limited::set_limit accepts a limit below the used bytes", "[policy][limited]") {
  auto memory = host_memory{} | limited{2_MiB};
  void* const p = memory.allocate({}, 1_MiB);
  CHECK(memory->set_limit(1000) == 2_MiB);
  CHECK(memory->limit() == 1000);
  CHECK_THROWS_AS(memory.allocate({}, 1), out_of_memory);
  memory.deallocate({}, p, 1_MiB);
  void* const q = memory.allocate({}, 1000);
  CHECK(q != nullptr);
  memory.deallocate({}, q, 1000);
}

TEST_CASE("limited below a pool bounds reserved bytes, not live bytes", "[policy][limited]") {
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | limited{8_MiB} | pooled{};
  void* const p = memory.allocate({}, 6_MiB);
  memory.deallocate({}, p, 6_MiB);
  auto& limit = memory->upstream().layer();
  CHECK(limit.used() >= 6_MiB);  // includes cached memory
  CHECK(limit.used() == machine.usage().used);
  CHECK_THROWS_AS(memory.allocate({}, 9_MiB), out_of_memory);
  memory.empty_cache();
  CHECK(limit.used() == 0);
}

TEST_CASE("limited is never exceeded by concurrent allocations", "[policy][limited][threads]") {
  auto memory = host_memory{} | limited{100'000};
  std::atomic<std::size_t> live{0};
  std::atomic<int> exceeded{0}, served{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3000; ++i) {
        std::size_t const bytes = static_cast<std::size_t>((i * 31 + t * 7) % 60'000) + 1;
        try {
          void* const p = memory.allocate({}, bytes);
          if (live.fetch_add(bytes) + bytes > 100'000) ++exceeded;
          ++served;
          live.fetch_sub(bytes);
          memory.deallocate({}, p, bytes);
        } catch (out_of_memory const&) {
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(exceeded == 0);
  CHECK(served > 0);
  CHECK(memory->used() == 0);
}

namespace {
std::string refusal_of(auto& memory, std::size_t bytes) {
  try {
    (void)memory.allocate({}, bytes);
  } catch (out_of_memory const& error) {
    return error.what();
  }
  return "served";
}
bool says(std::string const& text, char const* part) {
  return text.find(part) != text.npos;
}
}  // namespace

TEST_CASE("A limit that two pools share reports what the other one holds, if that is the cause",
          "[policy][limited]") {
  sim_machine const machine;
  auto const limit = sim_pages(machine.driver()) | limited{64_MiB};
  auto first = limit | pooled{};
  auto second = limit | limited{1_GiB} | pooled{};
  auto held = make_device_buffer<std::byte>(first, 40_MiB, stream_ref{});
  std::string text = refusal_of(second, 30_MiB);
  INFO(text);
  CHECK(says(text, "refused by limited(64 MiB), of which 40 MiB are used."));
  CHECK(says(text,
             "Others under this limit hold 40 MiB: free their memory, call empty_cache() on their pools"));
  held.reset();
  text = refusal_of(second, 30_MiB);  // cached by the first pool
  CHECK(says(text, "Others under this limit hold 40 MiB"));
  first.empty_cache();
  CHECK(refusal_of(second, 30_MiB) == "served");
  text = refusal_of(second, 40_MiB);
  INFO(text);
  CHECK(says(text, "Free memory or raise the limit."));
  CHECK_FALSE(says(text, "Others"));
}

TEST_CASE("A request of more than the memory has is refused with its size",
          "[policy][limited][errors][pages]") {
  sim_machine const machine({.capacity = 2_GiB});
  auto device = sim_pages(machine.driver()) | pooled{};
  CHECK(says(refusal_of(device, 1024_GiB), "refused by the device."));
  CHECK(says(refusal_of(device, 1024_GiB), "The device has 2 GiB in all: ask for less, or split the work."));
  if (TARN_ASAN == 0) {  // AddressSanitizer ends a program that asks malloc for so much
    auto host = host_memory{} | pooled{};
    std::string const of_host = refusal_of(host, std::size_t{1} << 45);
    INFO(of_host);
    CHECK_FALSE(says(of_host, "device"));
  }
  auto pinned = sim_pinned_host(machine.driver()) | pooled{};
  std::string const of_pinned = refusal_of(pinned, 1024_GiB);
  INFO(of_pinned);
  CHECK_FALSE(says(of_pinned, "the device"));
}

TEST_CASE("A refusal reports the free memory of the device after the attempt was undone",
          "[policy][limited][errors]") {
  sim_machine const machine({.capacity = 4_GiB});
  auto pool = sim_pages(machine.driver()) | pooled{};
  auto const held = make_device_buffer<std::byte>(pool, 2_GiB, stream_ref{});
  std::size_t const free = mem_get_info(pool).free;
  try {
    (void)pool.allocate({}, 2_GiB);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.report().device_free == free);
  }
}

namespace {
/// How many blocks of `bytes` a pool over `source` has within a limit of 64 MiB.
template <class Source>
std::size_t blocks_within_limit(Source const& source, std::size_t bytes) {
  auto memory = source | limited{64_MiB} | pooled{};
  std::vector<void*> blocks;
  try {
    for (;;) blocks.push_back(memory.allocate(stream_ref{}, bytes));
  } catch (out_of_memory const&) {
  }
  for (void* p : blocks) memory.deallocate(stream_ref{}, p, bytes);
  return blocks.size();
}
}  // namespace

TEST_CASE("A pool fills the limit below it, with blocks of each size, over each source",
          "[policy][limited][pool][memory_pools]") {
  sim_machine const machine(sim_options{.capacity = 1_GiB, .taken = 0, .backing = sim_backing::address_only});
  sim_driver const driver = machine.driver(0);
  for (std::size_t bytes = 1_MiB; bytes <= 64_MiB; bytes += bytes < 32_MiB ? 1_MiB : 32_MiB) {
    INFO(bytes / 1_MiB << " MiB");
    std::size_t const all = 64_MiB / bytes;
    CHECK(blocks_within_limit(host_memory{}, bytes) == all);
    CHECK(blocks_within_limit(sim_pages{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_malloc{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_async{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_pinned_host{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_registered_host{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_managed{driver}, bytes) == all);
    CHECK(blocks_within_limit(sim_pages{driver} | pooled{}, bytes) == all);
  }
}
