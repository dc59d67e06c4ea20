// SPDX-License-Identifier: Apache-2.0
// A pool over pinned memory (source/pinned_host, source/registered_host): how much it reserves, its order of
// reuse, its statistics and its driver calls.

#include <algorithm>
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

namespace {

struct one_stream {
  sim_machine machine;
  stream_ref a;
  one_stream() { (void)machine.driver().create_stream(a); }
};

template <class Source>
void reserves_what_it_needs() {
  sim_machine const machine;
  for (std::size_t const bytes : {2_MiB, 32_MiB, 128_MiB, 129_MiB + 512_KiB, 256_MiB + 1}) {
    auto memory = Source{machine.driver()} | pooled{};
    void* const p = memory.allocate_sync(bytes);
    CHECK(memory->state().live == align_up(bytes, 512));
    CHECK(memory->state().reserved == align_up(bytes, 2_MiB));
    memory.deallocate_sync(p, bytes);
  }
}

}  // namespace

TEST_CASE("pooled over sim_pinned_host rounds a block of at least 2 KiB up by at most an eighth",
          "[pool][pinned_host]") {
  auto memory = sim_pinned_host{sim_machine{}.driver()} | pooled{};
  std::size_t too_small = 0;
  auto const excess = [&](std::size_t bytes) {
    std::size_t const block = memory->block_bytes(bytes, default_alignment);
    if (block < bytes) too_small = bytes;
    return static_cast<double>(block - bytes) / static_cast<double>(bytes);
  };
  double worst = 0;
  for (std::size_t bytes = 2048; bytes <= 2_MiB; ++bytes) worst = std::max(worst, excess(bytes));
  CHECK(worst <= 0.125);
  CHECK(worst > 0.12);  // the bound is tight
  CHECK(excess(33_KiB) <= 0.0625);
  CHECK(excess(129_MiB + 512_KiB) == 0);
  CHECK(excess(1_MiB + 1) < 0.0005);
  CHECK(too_small == 0);
}

TEST_CASE("pooled over pinned memory reserves whole multiples of 2 MiB, not the next power of two",
          "[pool][pinned_host]") {
  reserves_what_it_needs<sim_pinned_host>();
  reserves_what_it_needs<sim_registered_host>();
}

TEST_CASE("pooled over blocks that are aligned to 256 bytes only has room for the requested bytes",
          "[pool][segment_growth]") {
  // Its blocks are aligned to 256 bytes only, as cudaMalloc guarantees.
  struct shifted_calls {
    using properties = property_set<device_accessible, host_accessible>;
    static status take(sim_driver const& driver, std::size_t bytes, std::size_t, void*& p) noexcept {
      void* block = nullptr;
      status const s = driver.malloc_pinned(bytes + 256, block);
      if (s.ok()) p = static_cast<char*>(block) + 256;
      return s;
    }
    static status give(sim_driver const& driver, void* p, std::size_t, std::size_t) noexcept {
      return driver.free_pinned(static_cast<char*>(p) - 256);
    }
  };
  sim_machine const machine;
  {
    auto memory = block_source<sim_driver, shifted_calls>(machine.driver()) | pooled{};
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
      auto* const p = static_cast<char*>(memory.allocate_sync(2_MiB, 256));
      REQUIRE(machine.is_accessible(p, 2_MiB));
      std::memset(p, i, 2_MiB);
      blocks.push_back(p);
    }
    for (int i = 0; i < 4; ++i) {
      auto* const p = static_cast<char*>(blocks[static_cast<std::size_t>(i)]);
      CHECK((p[0] == i && p[2_MiB - 1] == i));
      memory.deallocate_sync(p, 2_MiB, 256);
    }
  }
  CHECK(machine.leaks().blocks == 0);
}

TEST_CASE("pooled over sim_pinned_host reuses memory under a pending copy for that stream, not for the host",
          "[pool][pinned_host][stream]") {
  one_stream s;
  auto memory = sim_pinned_host{s.machine.driver()} | pooled{};
  void* const p = memory.allocate_sync(1_MiB);
  REQUIRE(s.machine.launch(s.a, 1'000'000'000, {sim_reads(p, 1_MiB)}).ok());
  memory.deallocate(s.a, p, 1_MiB);
  void* const host = memory.allocate_sync(1_MiB);  // the host may write at once
  CHECK(host != p);
  CHECK(s.machine.pending() == 1);                 // no wait
  void* const same = memory.allocate(s.a, 1_MiB);  // ordered after the copy
  CHECK(same == p);
  memory.deallocate(s.a, same, 1_MiB);
  void* const late = memory.allocate_sync(1_MiB);
  CHECK((late != p || s.machine.pending() == 0));  // or the host waited for the copy
  for (void* q : {host, late}) memory.deallocate_sync(q, 1_MiB);
}

TEST_CASE("tracked over a pinned pool reports an exact peak", "[pool][pinned_host][tracked]") {
  sim_machine const machine;
  auto memory = sim_pinned_host{machine.driver()} | pooled{} | tracked{};
  void* const a = memory.allocate_sync(129_MiB + 512_KiB);
  void* const b = memory.allocate_sync(1_MiB);
  memory.deallocate_sync(a, 129_MiB + 512_KiB);
  void* const c = memory.allocate_sync(2_MiB);
  auto const numbers = memory->statistics();
  CHECK(numbers.allocated_bytes[0].peak == 130_MiB + 512_KiB);
  CHECK(numbers.allocated_bytes[0].current == 3_MiB);
  CHECK(numbers.requested_bytes[0].peak == 130_MiB + 512_KiB);
  memory.deallocate_sync(b, 1_MiB);
  memory.deallocate_sync(c, 2_MiB);
}

TEST_CASE("pooled over sim_pinned_host makes no driver call once it is warm", "[pool][pinned_host]") {
  one_stream s;
  auto memory = sim_pinned_host{s.machine.driver()} | pooled{} | tracked{};
  auto const round = [&] {
    for (std::size_t const bytes : {4_KiB, 1_MiB, 32_MiB}) {
      void* const p = memory.allocate_sync(bytes);
      void* const q = memory.allocate(s.a, bytes);
      memory.deallocate_sync(p, bytes);
      memory.deallocate(s.a, q, bytes);
    }
  };
  round();
  round();
  s.machine.reset_calls();
  for (int i = 0; i < 100; ++i) round();
  CHECK(s.machine.calls().total() == s.machine.calls()[driver_call::is_capturing]);
}

TEST_CASE("pooled over sim_pinned_host lets the host reuse stream memory by events, not by new memory",
          "[pool][pinned_host]") {
  one_stream s;
  auto memory = sim_pinned_host{s.machine.driver()} | pooled{};
  auto const round = [&] {
    void* const p = memory.allocate_sync(32_MiB);
    REQUIRE(s.machine.launch(s.a, 1'000, {sim_reads(p, 32_MiB)}).ok());
    s.machine.advance(1'000'000);
    memory.deallocate(s.a, p, 32_MiB);
  };
  round();
  round();
  s.machine.reset_calls();
  for (int i = 0; i < 100; ++i) round();
  CHECK(s.machine.calls().memory() == 0);
  CHECK(s.machine.calls().acting() <= 400);
  CHECK(memory->state().reserved <= 64_MiB);
}
