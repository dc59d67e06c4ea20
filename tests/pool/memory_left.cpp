// SPDX-License-Identifier: Apache-2.0
// What a pool knows of the memory that is left below it, and what follows from it: finer handles near the
// end, and an early refusal of what cannot be served.
#include "tarn/pool/pages/memory_left.hpp"

#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

namespace {

using namespace tarn;
using detail::memory_left;

/// A device of 8 GiB whose memory is never touched.
struct device {
  sim_machine machine{sim_options{.capacity = 8_GiB, .taken = 0, .backing = sim_backing::address_only}};
  sim_driver driver = machine.driver(0);
  stream_ref stream;
  [[nodiscard]] std::uint64_t calls(driver_call what) const { return machine.calls()[what]; }
};

template <class Memory>
detail::memory_bound left_of(Memory& memory) {
  return memory_left(detail::layer_of(memory));
}

/// The pool refuses `bytes`; returns the error's report.
template <class Memory>
memory_report refused(Memory& memory, stream_ref stream, std::size_t bytes) {
  try {
    (void)memory.allocate(stream, bytes);
  } catch (out_of_memory const& error) {
    return error.report();
  }
  FAIL("the request was served");
  return {};
}

}  // namespace

TEST_CASE("memory_left is the device's free memory, less headroom, within each limit",
          "[pool][memory_left][pages]") {
  device d;
  auto pages = sim_pages{d.driver};
  detail::memory_bound bound = memory_left(pages);
  CHECK(bound.bytes == 8_GiB);
  CHECK(bound.device_free == 8_GiB);
  CHECK(bound.device_total == 8_GiB);
  CHECK(std::string(bound.by) == "the device");

  auto with_headroom = sim_pages{d.driver} | headroom{1_GiB};
  bound = left_of(with_headroom);
  CHECK(bound.bytes == 7_GiB);
  CHECK(std::string(bound.by) == "headroom");
  CHECK(bound.headroom == 1_GiB);
  CHECK(bound.device_free == 8_GiB);

  auto both = sim_pages{d.driver} | headroom{1_GiB} | limited{2_GiB};
  bound = left_of(both);
  CHECK(bound.bytes == 2_GiB);
  CHECK(std::string(bound.by) == "limited");
  CHECK(bound.limit == 2_GiB);
  CHECK(bound.limit_used == 0);
  CHECK(bound.headroom == memory_report::unknown);

  // Headroom is a part of the device, not of a limit below it.
  auto above = sim_pages{d.driver} | limited{2_GiB} | headroom{1_GiB};
  CHECK(left_of(above).bytes == 2_GiB);
  auto tighter = sim_pages{d.driver} | limited{2_GiB} | headroom{7_GiB};
  bound = left_of(tighter);
  CHECK(bound.bytes == 1_GiB);
  CHECK(bound.limit == memory_report::unknown);

  auto pool = both | pooled{.largest_handle = 2_MiB};
  void* const p = pool.allocate(d.stream, 500_MiB);
  bound = left_of(both);
  CHECK(bound.bytes == 2_GiB - 500_MiB);
  CHECK(bound.limit_used == 500_MiB);
  CHECK(left_of(pool).live == 500_MiB);
  pool.deallocate(d.stream, p, 500_MiB);
  CHECK(left_of(pool).bytes == 2_GiB);
  CHECK(left_of(pool).cached == 500_MiB);

  auto wide = sim_pages{d.driver} | limited{20_GiB};
  CHECK(left_of(wide).bytes == 8_GiB - pool->state().reserved);
  auto pinned = sim_pinned_host{d.driver};
  CHECK(memory_left(pinned).bytes == detail::unknown_left);
}

TEST_CASE("known_left is renewed after a sixteenth of it was taken", "[pool][memory_left]") {
  detail::recursive_fork_mutex mutex;
  detail::growth_lock const growing(mutex);
  detail::known_left left;
  CHECK(left.is_old(0));
  CHECK(left.bytes(0) == detail::unknown_left);
  detail::memory_bound found;
  found.bytes = 160_MiB;
  left.renew(growing, found, 40_MiB);
  CHECK(left.bytes(40_MiB) == 160_MiB);
  CHECK(left.bytes(45_MiB) == 155_MiB);
  CHECK_FALSE(left.is_old(50_MiB));
  CHECK(left.is_old(51_MiB));
  CHECK(left.bytes(300_MiB) == 0);
  CHECK(left.bytes(10_MiB) == 190_MiB);
  CHECK_FALSE(left.is_old(10_MiB));
  left.forget(growing);
  CHECK(left.is_old(40_MiB));
  left.renew(growing, detail::memory_bound{}, 40_MiB);
  CHECK(left.bytes(50_MiB) == detail::unknown_left);
}

TEST_CASE("the first allocation of a pool queries the free memory once",
          "[pool][memory_left][page_growth][pages]") {
  for (std::size_t const bytes : {std::size_t{512}, std::size_t{3_MiB}, std::size_t{512_MiB}}) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{};
    void* const p = memory.allocate(d.stream, bytes);
    CHECK(d.calls(driver_call::memory_info) == 1);
    memory.deallocate(d.stream, p, bytes);
  }
}

TEST_CASE("handles get finer as memory becomes scarce", "[pool][memory_left][page_growth][pages]") {
  device d;
  auto ample =
      basic_pages<sim_driver>(sim_machine{sim_options{.backing = sim_backing::address_only}}.driver(0));
  CHECK(detail::handle_limit_near_full(detail::unknown_left) > 96_MiB);
  CHECK(detail::handle_limit_near_full(76800_MiB) == 100_MiB);
  CHECK(detail::handle_limit_near_full(7_GiB) == 8_MiB);
  CHECK(detail::handle_limit_near_full(0) == 2_MiB);

  auto const handles_of = [&](auto&& memory, std::size_t bytes) {
    void* const p = memory.allocate(d.stream, bytes);
    auto const handles = memory->state().handles;
    memory.deallocate(d.stream, p, bytes);
    return handles;
  };
  CHECK(handles_of(sim_pages{d.driver} | limited{1_GiB} | pooled{}, 512_MiB) == 256);
  CHECK(handles_of(sim_pages{d.driver} | pooled{}, 512_MiB) == 52);  // 8 GiB / 768, in 2 MiB: 10 MiB each
  CHECK(handles_of(sim_pages{d.driver} | headroom{7_GiB} | pooled{}, 512_MiB) == 256);
  // What the user chose stays.
  CHECK(handles_of(sim_pages{d.driver} | limited{1_GiB} | pooled{.largest_handle = 64_MiB}, 512_MiB) == 8);
}

TEST_CASE("a pool refuses more than it and the layers below have without changing anything",
          "[pool][memory_left][ladder]") {
  device d;
  auto memory = sim_pages{d.driver} | limited{1_GiB} | pooled{};
  void* const live = memory.allocate(d.stream, 300_MiB);
  memory.deallocate(d.stream, memory.allocate(d.stream, 200_MiB), 200_MiB);
  auto const reserved = memory->state().reserved;
  auto const created = d.calls(driver_call::create_pages);
  auto const unmapped = d.calls(driver_call::unmap_pages);
  memory_report const r = refused(memory, d.stream, 2_GiB);
  CHECK(r.asked == 2_GiB);
  CHECK(std::string(r.refused_by) == "limited");
  CHECK(r.limit == 1_GiB);
  CHECK(r.limit_used == reserved);
  CHECK(r.live == 300_MiB);
  CHECK(memory->state().reserved == reserved);
  CHECK(d.calls(driver_call::create_pages) == created);
  CHECK(d.calls(driver_call::unmap_pages) == unmapped);
  CHECK(memory->state().ooms == 1);
  // Exactly what is left is served.
  void* const rest = memory.allocate(d.stream, 724_MiB);
  CHECK(memory->state().reserved <= 1_GiB);
  (void)refused(memory, d.stream, 2_MiB);
  memory.deallocate(d.stream, rest, 724_MiB);
  memory.deallocate(d.stream, live, 300_MiB);
}

TEST_CASE("memory that becomes free below a pool is found by the next request",
          "[pool][memory_left][ladder]") {
  device d;
  auto limit = sim_pages{d.driver} | limited{1_GiB};
  auto first = limit | pooled{};
  auto second = limit | pooled{};
  void* const taken = first.allocate(d.stream, 800_MiB);
  void* const p = second.allocate(d.stream, 100_MiB);
  (void)refused(second, d.stream, 500_MiB);
  first.deallocate(d.stream, taken, 800_MiB);
  first.empty_cache();
  void* q = nullptr;
  REQUIRE_NOTHROW(q = second.allocate(d.stream, 900_MiB));
  second.deallocate(d.stream, q, 900_MiB);
  second.deallocate(d.stream, p, 100_MiB);
}

TEST_CASE("a request for more than is known to be left queries the device again",
          "[pool][memory_left][page_growth][pages]") {
  device d;
  auto first = sim_pages{d.driver} | pooled{};
  auto second = sim_pages{d.driver} | pooled{};
  void* const taken = first.allocate(d.stream, 7680_MiB);
  void* const p = second.allocate(d.stream, 8_MiB);
  first.deallocate(d.stream, taken, 7680_MiB);
  first.empty_cache();
  auto const before = second->state().handles;
  auto const queries = d.calls(driver_call::memory_info);
  void* const q = second.allocate(d.stream, 760_MiB);
  CHECK(d.calls(driver_call::memory_info) == queries + 1);
  CHECK(second->state().handles == before + 76);  // of 10 MiB; of 2 MiB where 500 MiB are left
  second.deallocate(d.stream, q, 760_MiB);
  second.deallocate(d.stream, p, 8_MiB);
}

TEST_CASE("a pool refuses early only over layers that bound what the device has", "[pool][memory_left]") {
  auto const only_bounds = []<class Memory>(Memory*) {
    return detail::only_bounds<
        std::remove_reference_t<decltype(detail::layer_of(std::declval<Memory&>()))>>();
  };
  using pages = sim_pages;
  using bounded = decltype(std::declval<pages>() | headroom{1} | limited{1});
  using reachable = decltype(std::declval<bounded>() | accessible_from({}));
  STATIC_REQUIRE(only_bounds(static_cast<pages*>(nullptr)));
  STATIC_REQUIRE(only_bounds(static_cast<bounded*>(nullptr)));
  STATIC_REQUIRE_FALSE(only_bounds(static_cast<reachable*>(nullptr)));
}

TEST_CASE("blocks whose sizes creep up are not remapped at each step", "[pool][memory_left][page_growth]") {
  CHECK(detail::slack_of(8_MiB + 1, 9, 20, true) == 9);
  CHECK(detail::slack_of(8_MiB + 1, 9, 21, true) == 18);
  CHECK(detail::slack_of(8_MiB + 1, 9, 100, true) == 27);
  CHECK(detail::slack_of(8_MiB, 9, 0, true) == 45);
  CHECK(detail::slack_of(4_KiB, 9, 1, true) == 45);
  CHECK(detail::slack_of(4_KiB, 9, 3, true) == 63);
  CHECK(detail::slack_of(4_KiB, 9, 1000, true) == 72);
  CHECK(detail::slack_of(4_KiB, 0, 1000, true) == 0);
  CHECK(detail::slack_of(2_MiB, 9, 1, false) == 9);  // the live peak does not rise
  CHECK(detail::slack_of(2_MiB, 9, 8, false) == 72);
  CHECK(detail::slack_of(1_MiB, 9, 1, false) == 45);
  CHECK(detail::slack_of(8_MiB + 1, 9, 20, false) == 9);

  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  std::mt19937_64 random(7);
  constexpr std::size_t row = 8_KiB;
  constexpr std::size_t layers = 22;
  struct sequence_cache {
    std::size_t rows = 0;
    std::size_t ends = 0;
    std::vector<void*> blocks;
  };
  auto const begin = [&](sequence_cache& s) {
    s.rows = 128 + random() % 770;
    s.ends = s.rows + 40 + random() % 360;
    s.blocks.clear();
    for (std::size_t k = 0; k < layers; ++k) s.blocks.push_back(memory.allocate({}, s.rows * row));
  };
  auto const end = [&](sequence_cache& s) {
    for (void* p : s.blocks) memory.deallocate({}, p, s.rows * row);
  };
  std::vector<sequence_cache> all(11);
  for (sequence_cache& s : all) begin(s);
  constexpr std::size_t steps = 800;
  for (std::size_t step = 0; step < steps; ++step) {
    for (sequence_cache& s : all) {
      for (void*& p : s.blocks) {
        void* const longer = memory.allocate({}, (s.rows + 1) * row);
        memory.deallocate({}, p, s.rows * row);
        p = longer;
      }
      if (++s.rows < s.ends) continue;
      end(s);
      begin(s);
    }
  }
  pool_state const state = memory->state();
  CHECK(state.remaps < steps * all.size() * layers / 100);  // of the requests
  for (sequence_cache& s : all) end(s);
}
