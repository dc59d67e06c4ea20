// SPDX-License-Identifier: Apache-2.0
// The domains of short-lived streams, including the default streams of threads that end. No domain is kept
// forever, and none is forgotten while its work runs.

#include "tarn/pool/arena/stream_table.hpp"

#include <cstdint>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;

/// The default stream of thread number `n`, as seen by another thread.
stream_ref per_thread(std::uint64_t n) {
  return stream_ref::from(reinterpret_cast<void*>(2), (stream_id{3} << 62) + n);
}

template <class Pool>
std::size_t places_of(Pool& pool) {
  std::size_t places = 0;
  pool->inspect(
      [&](auto&, auto& heap, auto&, auto&, auto&) { places = heap.space(heap.lock_hot()).streams.size(); });
  return places;
}

sim_options checked(std::size_t capacity) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  o.checks = sim_checks::stream_order;
  return o;
}

}  // namespace

TEST_CASE("pooled forgets the default streams of a million threads that have ended", "[pool][stream_order]") {
  std::uint64_t const threads =
      TARN_ASAN ? 100'000 : 1'000'000;  // AddressSanitizer takes a minute for a million
  auto memory = host_memory{} | pooled{};
  std::size_t early = 0;
  for (std::uint64_t n = 1; n <= threads; ++n) {
    void* const p = memory.allocate(per_thread(n), 4096);
    memory.deallocate(per_thread(n), p, 4096);
    if (n == 10'000) early = memory->state().host_bytes;
  }
  CHECK(memory->state().host_bytes <= early + early / 4);
  CHECK(places_of(memory) < 512);  // bounds every scan over the domains
  CHECK(memory->state().live == 0);
}

TEST_CASE("pooled forgets the default streams of 70,000 threads that only free", "[pool][stream_order]") {
  sim_machine const machine(checked(4_GiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const own(machine.driver());
  std::vector<void*> blocks(70'000);
  for (void*& p : blocks) p = memory.allocate(own, 1000);
  for (std::size_t n = 0; n < blocks.size(); ++n) memory.deallocate(per_thread(n), blocks[n], 1000);
  CHECK(places_of(memory) < 512);
  CHECK(memory->state().live == 0);
  memory.empty_cache();
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled forgets the default streams of ended threads whose blocks are live",
          "[pool][stream_order]") {
  sim_machine const machine(checked(4_GiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const own(machine.driver());
  std::vector<void*> blocks(20'000);
  for (std::size_t n = 0; n < blocks.size(); ++n) blocks[n] = memory.allocate(per_thread(n), 1000);
  CHECK(places_of(memory) < 512);
  // The rest of their runs serves other threads; otherwise each thread would keep 64 KiB.
  CHECK(memory->state().reserved <= 256_MiB);
  for (void* const p : blocks) memory.deallocate(own, p, 1000);
  CHECK(memory->state().live == 0);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled keeps the default stream of an ended thread until its work is complete",
          "[pool][stream_order]") {
  sim_machine const machine(checked(512_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  void* late = nullptr;
  void* small = nullptr;
  std::thread([&] {
    stream_ref const mine = stream_ref::from(reinterpret_cast<void*>(2));
    for (auto [p, bytes] : {std::pair{&late, 40_MiB}, std::pair{&small, std::size_t{1000}}}) {
      *p = memory.allocate(mine, bytes);
      machine.allocated(*p, bytes, mine);
      REQUIRE(machine.launch(mine, 100 * second, {sim_writes(*p, bytes)}).ok());
      machine.freed(*p, bytes, mine);
      memory.deallocate(mine, *p, bytes);
    }
  }).join();
  for (int n = 1; n <= 1000; ++n) {
    test_stream const own(machine.driver());
    for (std::size_t const bytes : {std::size_t{1000}, 2_MiB}) {
      void* const p = memory.allocate(own, bytes);
      machine.allocated(p, bytes, own);
      REQUIRE(machine.launch(own, 10, {sim_writes(p, bytes)}).ok());
      machine.freed(p, bytes, own);
      memory.deallocate(own, p, bytes);
    }
    if (n % 16 == 0) machine.advance(1000);
  }
  CHECK(places_of(memory) < 512);
  REQUIRE(machine.driver().synchronize_device().ok());
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(machine.findings().empty());
}

TEST_CASE("pooled keeps the domains of all streams in use, however many", "[pool][stream_order]") {
  sim_machine const machine(checked(4_GiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::vector<stream_ref> streams(300);
  for (stream_ref& s : streams) REQUIRE(machine.driver().create_stream(s).ok());
  auto const round = [&] {
    for (stream_ref const s : streams) {
      void* const p = memory.allocate(s, 3_MiB, 512);  // not served from a magazine
      memory.deallocate(s, p, 3_MiB, 512);
    }
  };
  std::size_t in_use = 0;
  for (int i = 0; i < 10; ++i) {
    round();
    memory->inspect([&](auto&, auto& heap, auto&, auto&, auto&) {
      in_use = heap.space(heap.lock_hot()).streams.in_use();
    });
    CHECK(in_use == streams.size());
  }
}
