// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/tracked.hpp"

#include <cstdint>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

namespace {
std::size_t at(block_group g) {
  return static_cast<std::size_t>(g);
}
}  // namespace

TEST_CASE("tracked meets the resource contract", "[policy][tracked]") {
  tarn_test::resource_contract([] { return host_memory{} | tracked{}; });
}

TEST_CASE("tracked counts exactly, for all blocks and by size group", "[policy][tracked]") {
  auto memory = host_memory{} | pooled{} | tracked{};
  void* const p = memory.allocate({}, 1);
  void* const q = memory.allocate_sync(1_MiB + 1);
  void* const r = memory.allocate({}, 1_MiB);
  auto s = memory->statistics();
  CHECK(s.allocations[at(block_group::all)].current == 3);
  CHECK(s.allocations[at(block_group::smaller)].current == 2);
  CHECK(s.allocations[at(block_group::larger)].current == 1);
  CHECK(s.requested_bytes[0].current == 1 + 2 * static_cast<std::int64_t>(1_MiB) + 1);
  CHECK(s.allocated_bytes[0].current == 256 + 2 * static_cast<std::int64_t>(1_MiB) + 512);
  CHECK(s.allocated_bytes[at(block_group::smaller)].current == 256 + static_cast<std::int64_t>(1_MiB));
  memory.deallocate({}, p, 1);
  memory.deallocate_sync(q, 1_MiB + 1);
  s = memory->statistics();
  CHECK(s.allocations[0].current == 1);
  CHECK(s.allocations[0].peak == 3);
  CHECK(s.allocations[0].allocated == 3);
  CHECK(s.allocations[0].freed == 2);
  memory->reset_peak_statistics();
  CHECK(memory->statistics().allocations[0].peak == 1);
  memory->reset_accumulated_statistics();
  CHECK(memory->statistics().allocations[0].allocated == 0);
  CHECK(memory->statistics().allocations[0].freed == 0);
  CHECK(memory->statistics().allocations[0].current == 1);
  memory.deallocate({}, r, 1_MiB);
  CHECK(memory->statistics().allocated_bytes[0].current == 0);
}

TEST_CASE("tracked counts nothing for zero bytes and null, and a refusal only in ooms", "[policy][tracked]") {
  auto memory = host_memory{} | limited{1000} | tracked{};
  CHECK(memory.allocate({}, 0) == nullptr);
  memory.deallocate({}, nullptr, 100);
  memory.deallocate_sync(nullptr, 100);
  CHECK_THROWS_AS(memory.allocate({}, 2000), out_of_memory);
  CHECK_THROWS_AS(memory.allocate_sync(2000), out_of_memory);
  CHECK_THROWS_AS(memory.allocate({}, 10, 5), bad_alignment);
  auto const s = memory->statistics();
  CHECK(s.allocations[0].allocated == 0);
  CHECK(s.allocations[0].freed == 0);
  CHECK(s.ooms == 2);
  memory->reset_accumulated_statistics();
  CHECK(memory->statistics().ooms == 0);
}

TEST_CASE("high_water_mark covers the calls between add and remove, also when nested", "[policy][tracked]") {
  auto memory = host_memory{} | tracked{};
  void* const before = memory.allocate({}, 1000);
  high_water_mark outer, inner;
  memory->add(outer, peak_of::all_threads);
  CHECK(outer.start == 1000);
  void* const p = memory.allocate({}, 500);
  memory->add(inner, peak_of::this_thread);
  void* const q = memory.allocate({}, 2000);
  memory.deallocate({}, q, 2000);
  CHECK(memory->read(inner).peak == 2000);
  CHECK(memory->read(inner).current == 0);
  CHECK(memory->read(inner).allocations == 1);
  CHECK(memory->read(outer).peak == 3500);
  memory->remove(inner);
  void* const r = memory.allocate({}, 100);
  CHECK(memory->read(inner).allocations == 1);
  CHECK(memory->read(outer).allocations == 3);
  memory->remove(outer);
  memory.deallocate({}, before, 1000);
  memory.deallocate({}, p, 500);
  memory.deallocate({}, r, 100);
}

TEST_CASE("high_water_mark of this_thread does not count another thread's blocks",
          "[policy][tracked][threads]") {
  auto memory = host_memory{} | tracked{};
  high_water_mark mine, all;
  memory->add(mine, peak_of::this_thread);
  memory->add(all, peak_of::all_threads);
  std::thread([&] { memory.deallocate({}, memory.allocate({}, 5000), 5000); }).join();
  CHECK(memory->read(mine).peak == 0);
  CHECK(memory->read(all).peak == 5000);
  memory->remove(all);
  memory->remove(mine);
}

TEST_CASE("high_water_mark of an ended thread does not count a later thread with the same tag",
          "[policy][tracked][threads]") {
  auto memory = host_memory{} | tracked{};
  high_water_mark ended;
  void const* tag = nullptr;
  std::thread([&] {
    memory->add(ended, peak_of::this_thread);
    memory.deallocate({}, memory.allocate({}, 1000), 1000);
    tag = detail::this_thread_tag();
  }).join();
  CHECK(memory->read(ended).peak == 1000);
  bool same_tag = false;
  for (int i = 0; i < 1000 && !same_tag; ++i) {
    std::thread([&] {
      same_tag = detail::this_thread_tag() == tag;
      high_water_mark own;
      memory->add(own, peak_of::this_thread);
      memory.deallocate({}, memory.allocate({}, 5000), 5000);
      CHECK(memory->read(own).peak == 5000);
      memory->remove(own);
    }).join();
  }
  CHECK(memory->read(ended).peak == 1000);
  CHECK(memory->read(ended).allocations == 1);
  if (!same_tag) WARN("no later thread had the same tag: this run has tested nothing");
  memory->remove(ended);
}

TEST_CASE("high_water_mark scopes of threads nest and end in any order", "[policy][tracked][threads]") {
  auto memory = host_memory{} | tracked{};
  high_water_mark outer, inner, other;
  memory->add(outer, peak_of::this_thread);
  memory->add(inner, peak_of::this_thread);
  void* const p = memory.allocate({}, 1000);
  std::thread([&] {
    memory->add(other, peak_of::this_thread);
    memory.deallocate({}, memory.allocate({}, 7000), 7000);
  }).join();
  memory->reset_peak_statistics();  // changes no mark
  memory->remove(outer);            // before the inner one
  void* const q = memory.allocate({}, 500);
  CHECK(memory->read(outer).peak == 1000);
  CHECK(memory->read(inner).peak == 1500);
  CHECK(memory->read(other).peak == 7000);
  memory->remove(other);  // on another thread than it was added
  memory->remove(inner);
  memory.deallocate({}, p, 1000);
  memory.deallocate({}, q, 500);
  CHECK(memory->read(inner).current == 1500);
}

TEST_CASE("tracked counts exactly with several threads", "[policy][tracked][threads]") {
  auto memory = host_memory{} | pooled{} | tracked{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) memory.deallocate({}, memory.allocate({}, 300), 300);
    });
  }
  for (auto& thread : threads) thread.join();
  auto const s = memory->statistics();
  CHECK(s.allocations[0].allocated == 8000);
  CHECK(s.allocations[0].freed == 8000);
  CHECK(s.allocations[0].current == 0);
  CHECK(s.allocated_bytes[0].current == 0);
  CHECK(s.allocations[0].peak <= 4);
  CHECK(s.allocations[0].peak >= 1);
}

TEST_CASE("tracked::peak_error has exact peaks while one thread allocates, whatever the bound",
          "[policy][tracked]") {
  for (std::size_t const error : {std::size_t{0}, std::size_t{1}, std::size_t{1_MiB}, ~std::size_t{0}}) {
    CAPTURE(error);
    auto memory = host_memory{} | pooled{} | tracked{.peak_error = error};
    std::vector<void*> blocks;
    for (int i = 0; i < 1000; ++i) blocks.push_back(memory.allocate({}, 1024));
    for (void* p : blocks) memory.deallocate({}, p, 1024);
    void* const large = memory.allocate({}, 2_MiB);
    CHECK(memory->statistics().allocations[0].peak == 1000);
    CHECK(memory->statistics().allocated_bytes[0].peak == 2 * static_cast<std::int64_t>(1_MiB));
    CHECK(memory->statistics().allocated_bytes[at(block_group::smaller)].peak == 1'024'000);
    memory.deallocate({}, large, 2_MiB);
  }
}
