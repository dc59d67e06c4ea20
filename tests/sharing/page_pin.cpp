// SPDX-License-Identifier: Apache-2.0
// segments_of() and page_pin: which handles are behind a block, and that pinned ones stay whatever the pool
// does.

#include "tarn/sharing/page_pin.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "raii/kept_blocks.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::failing_call;
using tarn_test::failing_calls;
using tarn_test::kept_blocks;
using tarn_test::test_stream;

namespace {

sim_options small_machine() {
  sim_options o;
  o.capacity = 512_MiB;
  o.taken = 0;
  return o;
}

/// Addresses that must stay mapped, and how often one of them did not.
struct kept_addresses {
  std::mutex mutex;
  std::vector<std::pair<std::uintptr_t, std::size_t>> all;
  std::atomic<int> unmapped{0};

  void add(void const* p, std::size_t bytes) {
    std::lock_guard const guard(mutex);
    all.emplace_back(reinterpret_cast<std::uintptr_t>(p), bytes);
  }
  void remove(void const* p) {
    std::lock_guard const guard(mutex);
    std::erase_if(all, [&](auto const& k) { return k.first == reinterpret_cast<std::uintptr_t>(p); });
  }
  void unmap(void const* p, std::size_t bytes) {
    std::lock_guard const guard(mutex);
    auto const begin = reinterpret_cast<std::uintptr_t>(p);
    for (auto const& [at, size] : all) {
      if (begin < at + size && at < begin + bytes) ++unmapped;
    }
  }
};
/// In a scope that is inside that of a pin.
class kept_while {
 public:
  kept_while(kept_addresses& kept, void const* p, std::size_t bytes) : kept_(kept), p_(p) {
    kept_.add(p, bytes);
  }
  kept_while(kept_while const&) = delete;
  kept_while& operator=(kept_while const&) = delete;
  ~kept_while() { kept_.remove(p_); }

 private:
  kept_addresses& kept_;
  void const* p_;
};
/// A layer over pages that watches unmap().
template <class Upstream>
class watching_layer : public resource_adaptor<watching_layer<Upstream>, Upstream> {
 public:
  template <class Options>
  watching_layer(Upstream upstream, Options const& options)
      : resource_adaptor<watching_layer, Upstream>(std::move(upstream)), kept_(options.kept) {}
  [[nodiscard]] std::size_t granularity() const noexcept { return this->upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return this->upstream().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { this->upstream().unreserve(p, bytes); }
  [[nodiscard]] page_handle create(std::size_t bytes) { return this->upstream().create(bytes); }
  void destroy(page_handle handle, std::size_t bytes) noexcept { this->upstream().destroy(handle, bytes); }
  void map(void* p, std::size_t bytes, page_handle handle) { this->upstream().map(p, bytes, handle); }
  void unmap(void* p, std::size_t bytes) noexcept {
    kept_->unmap(p, bytes);
    this->upstream().unmap(p, bytes);
  }

 private:
  std::shared_ptr<kept_addresses> kept_;
};
struct watching {
  std::shared_ptr<kept_addresses> kept;
  template <class Upstream>
  using layer = watching_layer<Upstream>;
};

/// A block that lies across handles which are not neighbours at home, between blocks that stay.
template <class Memory>
struct scattered {
  static constexpr std::size_t bytes = 23_MiB;
  explicit scattered(Memory const& m) : memory(m) {
    std::vector<void*> all;
    for (int i = 0; i < 24; ++i) all.push_back(memory.allocate({}, 2_MiB));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i % 2 == 0) {
        memory.deallocate({}, all[i], 2_MiB);
      } else {
        between.push_back(all[i]);
      }
    }
    p = memory.allocate({}, bytes);
  }
  scattered(scattered const&) = delete;
  scattered& operator=(scattered const&) = delete;
  ~scattered() {
    if (p != nullptr) memory.deallocate({}, p, bytes);
    for (void* b : between) memory.deallocate({}, b, 2_MiB);
  }
  void free() { memory.deallocate({}, std::exchange(p, nullptr), bytes); }

  Memory memory;
  std::vector<void*> between;
  void* p = nullptr;
};

/// Whether the segments are those of the block: in order, without gaps, and with the block's bytes in the
/// handles.
bool are_behind(std::vector<memory_segment> const& all, sim_driver const& driver, void const* p,
                std::size_t bytes) {
  auto const* at = static_cast<unsigned char const*>(p);
  for (memory_segment const& s : all) {
    if (s.address != at || s.bytes == 0 || s.offset + s.bytes > s.handle_bytes) return false;
    void* elsewhere = nullptr;
    if (!driver.reserve_range(s.handle_bytes, 2_MiB, elsewhere).ok()) return false;
    if (!driver.map_pages(elsewhere, s.handle_bytes, s.handle).ok()) return false;
    bool const same = std::memcmp(static_cast<unsigned char*>(elsewhere) + s.offset, at, s.bytes) == 0;
    (void)driver.unmap_pages(elsewhere, s.handle_bytes);
    (void)driver.release_range(elsewhere, s.handle_bytes);
    if (!same) return false;
    at += s.bytes;
  }
  return at == static_cast<unsigned char const*>(p) + bytes;
}
void write(void* p, std::size_t bytes, unsigned seed) {
  auto* const to = static_cast<unsigned char*>(p);
  for (std::size_t i = 0; i < bytes; i += 1024) to[i] = static_cast<unsigned char>((i >> 8) + seed);
}
bool holds(void const* p, std::size_t bytes, unsigned seed) {
  auto const* const from = static_cast<unsigned char const*>(p);
  for (std::size_t i = 0; i < bytes; i += 1024) {
    if (from[i] != static_cast<unsigned char>((i >> 8) + seed)) return false;
  }
  return true;
}
template <class Memory>
bool refuses(Memory const& memory, void const* p, std::size_t bytes) {
  int refused = 0;
  try {
    (void)segments_of(memory, p, bytes);
  } catch (misuse const& error) {
    refused += error.kind() == misuse_kind::foreign_pointer && error.pointer() == p ? 1 : 0;
  }
  try {
    page_pin const pin(memory, p, bytes);
  } catch (misuse const& error) {
    refused += error.kind() == misuse_kind::foreign_pointer && error.pointer() == p ? 1 : 0;
  }
  return refused == 2;
}

}  // namespace

TEST_CASE("segments_of lists the handles behind a block, its first and last part, and small blocks",
          "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  sim_driver const driver = machine.driver(0);
  auto memory = sim_pages{driver} | pooled{.largest_handle = 8_MiB} | tracked{};
  void* const p = memory.allocate({}, 30_MiB);
  write(p, 30_MiB, 1);
  auto const all = segments_of(memory, p, 30_MiB);
  CHECK(all.size() >= 4);
  CHECK(are_behind(all, driver, p, 30_MiB));
  auto* const middle = static_cast<unsigned char*>(p) + 7_MiB + 100;
  CHECK(are_behind(segments_of(memory, middle, 9_MiB), driver, middle, 9_MiB));
  auto const one = segments_of(memory, middle, 1);
  REQUIRE(one.size() == 1);
  CHECK(one[0].bytes == 1);
  void* const small = memory.allocate({}, 100);
  write(small, 100, 2);
  CHECK(are_behind(segments_of(memory, small, 100), driver, small, 100));
  memory.deallocate({}, small, 100);
  memory.deallocate({}, p, 30_MiB);
}

TEST_CASE("segments_of lists the handles behind a view", "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | limited{64_MiB} | pooled{};
  scattered block(memory);
  REQUIRE(memory->state().remaps > 0);
  write(block.p, block.bytes, 3);
  CHECK(are_behind(segments_of(memory, block.p, block.bytes), machine.driver(0), block.p, block.bytes));
  auto* const part = static_cast<unsigned char*>(block.p) + 3_MiB;
  CHECK(are_behind(segments_of(memory, part, 11_MiB), machine.driver(0), part, 11_MiB));
  CHECK(refuses(memory, part, block.bytes));
}

TEST_CASE("segments_of and page_pin refuse what is not a block of the pool", "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  auto other = sim_pages{machine.driver(0)} | pooled{};
  int here = 0;
  CHECK(refuses(memory, &here, 4));  // before the pool has any memory
  auto* const p = static_cast<unsigned char*>(memory.allocate({}, 10_MiB));
  void* const of_other = other.allocate({}, 10_MiB);
  CHECK(refuses(memory, &here, 4));
  CHECK(refuses(memory, nullptr, 1));
  CHECK(refuses(memory, p, 0));
  CHECK(refuses(memory, p, 10_MiB + 513));
  CHECK(refuses(memory, p, ~std::size_t{0}));
  CHECK(refuses(memory, p - 1, 10));
  CHECK(refuses(memory, of_other, 1));
  void* const freed = memory.allocate({}, 600'000);  // goes to the thread's cache when it is freed
  memory.deallocate({}, freed, 600'000);
  CHECK(refuses(memory, freed, 600'000));
  memory.deallocate({}, p, 10_MiB);
  CHECK(refuses(memory, p, 10_MiB));
  other.deallocate({}, of_other, 10_MiB);
  try {
    (void)segments_of(memory, p, 10_MiB);
  } catch (misuse const& error) {
    CHECK(std::string(error.what()).find("segments_of: no block of this pool has these 10 MiB") !=
          std::string::npos);
  }
}

TEST_CASE("trim keeps the pages of a pin, also when the block was freed", "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  auto const kept = std::make_shared<kept_addresses>();
  auto memory = sim_pages{machine.driver(0)} | watching{kept} | pooled{.largest_handle = 8_MiB};
  void* const p = memory.allocate({}, 30_MiB);
  void* const q = memory.allocate({}, 30_MiB);
  {
    page_pin first(memory, p, 30_MiB);
    auto const segments = first.segments();
    kept->add(p, 30_MiB);
    {
      page_pin const second(memory, p, 5_MiB);
      CHECK(second.size_bytes() == 5_MiB);
    }
    write(p, 30_MiB, 4);
    memory.deallocate({}, p, 30_MiB);
    memory.deallocate({}, q, 30_MiB);
    memory.empty_cache();
    CHECK(memory->state().reserved >= 30_MiB);
    CHECK(memory->state().reserved < 60_MiB);
    CHECK(holds(p, 30_MiB, 4));
    page_pin const moved = std::move(first);
    memory.empty_cache();
    CHECK(memory->state().reserved >= 30_MiB);
    void* const again = memory.allocate({}, 30_MiB);  // the pool may use the bytes
    CHECK(again == p);
    CHECK(moved.segments() == segments);
    memory.deallocate({}, again, 30_MiB);
    CHECK(kept->unmapped == 0);
    kept->remove(p);
  }
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("a pin keeps its pool alive", "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  auto memory = std::make_unique<stack<sim_pages, pooled>>(sim_pages{machine.driver(0)} | pooled{});
  void* const p = memory->allocate({}, 3_MiB);
  {
    page_pin const pin(*memory, p, 3_MiB);
    memory->deallocate({}, p, 3_MiB);
    memory.reset();
    CHECK(machine.usage().page_bytes > 0);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("old views are unmapped, but not one with a pin", "[raii][page_pin][pages]") {
  sim_options options;
  options.backing = sim_backing::address_only;
  sim_machine const machine{options};
  auto const kept = std::make_shared<kept_addresses>();
  auto memory = sim_pages{machine.driver(0)} | watching{kept} | limited{64_MiB} | pooled{};
  scattered block(memory);
  REQUIRE(memory->state().remaps > 0);
  nearest(memory, [](auto& layer) -> decltype(static_cast<void>(layer.set_limit(512_MiB))) {
    (void)layer.set_limit(512_MiB);
  });
  void* const p = block.p;
  kept->add(p, block.bytes);
  auto pin = std::make_unique<page_pin<decltype(memory)>>(memory, p, block.bytes);
  block.free();
  std::mt19937_64 random(1);
  std::vector<std::pair<void*, std::size_t>> live;
  std::size_t bytes_live = 0;
  auto const let_go = [&](std::size_t i) {
    memory.deallocate({}, live[i].first, live[i].second);
    bytes_live -= live[i].second;
    live[i] = live.back();
    live.pop_back();
  };
  for (int step = 0; step < 60'000; ++step) {
    if (!live.empty() && (bytes_live > 380_MiB || random() % 5 < 2)) {
      let_go(random() % live.size());
      continue;
    }
    std::size_t const bytes = 1_MiB + random() % 40_MiB;
    try {
      live.emplace_back(memory.allocate({}, bytes), bytes);
      bytes_live += bytes;
    } catch (out_of_memory const&) {
    }
  }
  CHECK(memory->state().unmaps > 100);
  CHECK(kept->unmapped == 0);
  while (!live.empty()) let_go(live.size() - 1);
  memory.empty_cache();
  CHECK(kept->unmapped == 0);
  kept->remove(p);
  pin.reset();
}

TEST_CASE("compact leaves the handles of a pin as they are", "[raii][page_pin][compact][pages]") {
  sim_machine const machine(small_machine());
  auto const kept = std::make_shared<kept_addresses>();
  auto memory = sim_pages{machine.driver(0)} | watching{kept} | limited{160_MiB} | pooled{};
  kept_blocks held(memory);
  scattered block(memory);
  page_pin const pin(memory, block.p, block.bytes);
  auto const before = pin.segments();
  write(block.p, block.bytes, 5);
  kept->add(block.p, block.bytes);
  for (memory_segment const& s : before) kept->add(s.address, s.bytes);
  std::size_t const released = compact(memory).released;
  CHECK(kept->unmapped == 0);
  CHECK(pin.segments() == before);
  CHECK(holds(block.p, block.bytes, 5));
  CHECK(held.intact());
  kept->remove(block.p);
  (void)released;
}

TEST_CASE("compact gives back no part of a pinned handle", "[raii][page_pin][compact][pages]") {
  sim_machine const machine(sim_options{.backing = sim_backing::address_only});
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* const first = memory.allocate({}, 20_MiB);
  memory.deallocate({}, first, 20_MiB);
  void* const p = memory.allocate({}, 5_MiB);
  {
    page_pin const pin(memory, p, 5_MiB);
    auto const before = pin.segments();
    REQUIRE(before.front().handle_bytes == 20_MiB);
    CHECK(compact(memory).released == 0);
    CHECK(pin.segments() == before);
  }
  CHECK(compact(memory).released == 14_MiB);
  memory.deallocate({}, p, 5_MiB);
}

TEST_CASE("a pool sleeps but for its pins, whose contents stay on the device",
          "[raii][page_pin][sleep][pages]") {
  for (contents const where : {contents::in_pinned_memory, contents::discarded}) {
    sim_machine const machine(small_machine());
    auto const kept = std::make_shared<kept_addresses>();
    {
      auto memory = sim_pages{machine.driver(0)} | watching{kept} | limited{160_MiB} | pooled{};
      kept_blocks held(memory);
      scattered in_view(memory);
      void* const at_home = memory.allocate({}, 9_MiB);
      write(in_view.p, in_view.bytes, 6);
      write(at_home, 9_MiB, 7);
      {
        page_pin const first(memory, in_view.p, in_view.bytes);
        auto second = std::make_unique<page_pin<decltype(memory)>>(memory, at_home, 9_MiB);
        auto const segments = first.segments();
        kept->add(in_view.p, in_view.bytes);
        kept->add(at_home, 9_MiB);
        std::size_t const reserved = memory->state().reserved;
        std::size_t const given = sleep(memory, where);
        CHECK(given > 0);
        CHECK(given <= reserved - in_view.bytes - 9_MiB);
        CHECK(memory->state().reserved == reserved - given);
        CHECK(machine.usage().page_bytes == reserved - given);
        CHECK(holds(in_view.p, in_view.bytes, 6));
        CHECK(holds(at_home, 9_MiB, 7));
        CHECK_THROWS_AS(page_pin(memory, at_home, 9_MiB), pool_asleep);
        CHECK_THROWS_AS(segments_of(memory, at_home, 9_MiB), pool_asleep);
        CHECK_THROWS_AS(first.segments(), pool_asleep);
        kept->remove(at_home);
        second.reset();  // while the pool sleeps
        CHECK(wake(memory) <= given);
        CHECK(kept->unmapped == 0);
        CHECK(first.segments() == segments);
        CHECK(holds(in_view.p, in_view.bytes, 6));
        CHECK(holds(at_home, 9_MiB, 7));
        if (where != contents::discarded) CHECK(held.intact());
        held.write();
        // Without the second pin its handles go with the others.
        (void)sleep(memory, where);
        if (where != contents::discarded) {
          (void)wake(memory);
          CHECK(holds(at_home, 9_MiB, 7));
          (void)sleep(memory, where);
        }
        memory.deallocate({}, at_home, 9_MiB);
        in_view.free();
        memory.empty_cache();
        CHECK(machine.usage().page_bytes > 0);
        CHECK(kept->unmapped == 0);
        kept->remove(in_view.p ? in_view.p : segments[0].address);
      }
      (void)wake(memory);
      (void)sleep(memory, where);
      CHECK(machine.usage().page_bytes == 0);
      (void)wake(memory);
    }
    CHECK(machine.leaks().total() == 0);
    CHECK(machine.findings().empty());
  }
}

TEST_CASE("a pool may end asleep after its pins", "[raii][page_pin][sleep][pages]") {
  sim_machine const machine(small_machine());
  {
    auto memory = sim_pages{machine.driver(0)} | limited{160_MiB} | pooled{};
    kept_blocks held(memory);
    scattered block(memory);
    {
      page_pin const pin(memory, block.p, block.bytes);
      (void)sleep(memory);
    }
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sleep, wake and compact keep pins when a driver call fails, and can be tried again",
          "[raii][page_pin][sleep][pages]") {
  for (failing_call const& way : failing_calls) {
    bool const many = way.call == driver_call::map_pages || way.call == driver_call::create_pages;
    for (std::uint64_t nth = 1; nth <= (many ? 4U : 1U); nth += 3) {
      sim_machine const machine(small_machine());
      fault_plan const plan;
      auto const kept = std::make_shared<kept_addresses>();
      {
        auto memory = basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(0), plan)) |
                      watching{kept} | limited{100_MiB} | pooled{};
        scattered block(memory);
        void* const other = memory.allocate({}, 20_MiB);
        write(other, 20_MiB, 8);
        page_pin const pin(memory, block.p, block.bytes);
        auto const segments = pin.segments();
        write(block.p, block.bytes, 9);
        kept->add(block.p, block.bytes);
        auto const attempt = [&](auto const& call) {
          plan.fail(way.call, nth, {.moment = way.moment});
          try {
            call();
          } catch (out_of_memory const&) {
          } catch (cuda_error const&) {
          }
          plan.disarm();
          CHECK(holds(block.p, block.bytes, 9));
        };
        attempt([&] { (void)compact(memory); });
        (void)wake(memory);
        attempt([&] { (void)sleep(memory); });
        (void)sleep(memory);
        attempt([&] { (void)wake(memory); });
        (void)wake(memory);
        CHECK(kept->unmapped == 0);
        CHECK(pin.segments() == segments);
        CHECK(holds(other, 20_MiB, 8));
        kept->remove(block.p);
        memory.deallocate({}, other, 20_MiB);
      }
      CHECK(machine.leaks().total() == 0);
    }
  }
}

TEST_CASE("fallback_to finds the segments of each pool's blocks", "[raii][page_pin][pages]") {
  sim_machine const machine(small_machine());
  sim_driver const driver = machine.driver(0);
  auto second = sim_pages{driver} | pooled{};
  auto memory = sim_pages{driver} | limited{16_MiB} | pooled{} | fallback_to(second) | tracked{};
  void* const a = memory.allocate({}, 10_MiB);
  void* const b = memory.allocate({}, 30_MiB);
  REQUIRE(second.owns(b));
  write(a, 10_MiB, 1);
  write(b, 30_MiB, 2);
  CHECK(are_behind(segments_of(memory, a, 10_MiB), driver, a, 10_MiB));
  CHECK(are_behind(segments_of(memory, b, 30_MiB), driver, b, 30_MiB));
  int here = 0;
  CHECK(refuses(memory, &here, 4));
  {
    page_pin const of_a(memory, a, 10_MiB);
    page_pin const of_b(memory, b, 30_MiB);
    memory.deallocate({}, a, 10_MiB);
    memory.deallocate({}, b, 30_MiB);
    memory.empty_cache();
    CHECK(memory_reserved(memory) >= 40_MiB);
  }
  memory.empty_cache();
  CHECK(memory_reserved(memory) == 0);
}

TEST_CASE("blocks of a graph_memory have segments and pins", "[raii][page_pin][graph_memory][pages]") {
  sim_machine const machine(small_machine());
  sim_driver const driver = machine.driver(0);
  test_stream<sim_driver> const s(driver);
  auto memory = sim_pages{driver} | pooled{};
  graph_memory graphs{memory};
  sim_graph graph;
  void* p = nullptr;
  {
    capture_scope const scope(graphs, s);
    REQUIRE(machine.begin_capture(s).ok());
    p = memory.allocate(s, 10_MiB);
    REQUIRE(machine.end_capture(s, graph).ok());
  }
  write(p, 10_MiB, 3);
  CHECK(are_behind(segments_of(memory, p, 10_MiB), driver, p, 10_MiB));
  {
    page_pin const pin(memory, p, 10_MiB);
    auto const before = pin.segments();
    (void)sleep(memory, contents::discarded);
    CHECK(holds(p, 10_MiB, 3));
    (void)wake(memory);
    CHECK(pin.segments() == before);
  }
  memory.deallocate(s, p, 10_MiB);
}

TEST_CASE("a pin keeps the pages of a graph_memory that has ended", "[raii][page_pin][graph_memory][pages]") {
  sim_machine const machine(small_machine());
  sim_driver const driver = machine.driver(0);
  test_stream<sim_driver> const s(driver);
  auto const kept = std::make_shared<kept_addresses>();
  auto memory = sim_pages{driver} | watching{kept} | pooled{};
  auto graphs = std::make_unique<graph_memory<decltype(memory)>>(memory);
  sim_graph graph;
  void* p = nullptr;
  {
    capture_scope const scope(*graphs, s);
    REQUIRE(machine.begin_capture(s).ok());
    p = memory.allocate(s, 10_MiB);
    REQUIRE(machine.end_capture(s, graph).ok());
  }
  {
    page_pin const pin(memory, p, 10_MiB);
    kept_while const watched(*kept, p, 10_MiB);
    memory.deallocate(s, p, 10_MiB);
    graphs.reset();
    memory.empty_cache();
    CHECK(machine.usage().page_bytes >= 10_MiB);
    CHECK(kept->unmapped == 0);
  }
  memory.empty_cache();
  CHECK(machine.usage().page_bytes == 0);
}

TEST_CASE("threads pin, allocate, trim, sleep and compact: no pinned page is unmapped",
          "[raii][page_pin][threads][pages]") {
  sim_options options;
  options.capacity = 1_GiB;
  options.taken = 0;
  options.backing = sim_backing::address_only;
  sim_machine const machine{options};
  auto const kept = std::make_shared<kept_addresses>();
  auto memory = sim_pages{machine.driver(0)} | watching{kept} | limited{300_MiB} | pooled{};
  std::atomic<bool> stop{false};
  std::atomic<int> changed{0};
  std::atomic<int> pinned{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      test_stream<sim_driver> const s(machine.driver(0));
      std::mt19937_64 random(t);
      while (!stop) {
        std::size_t const bytes = 1 + random() % 30_MiB;
        try {
          void* const p = memory.allocate(s, bytes);
          try {
            page_pin const pin(memory, p, bytes);
            auto const before = segments_of(memory, p, bytes);
            kept_while const watched(*kept, p, bytes);
            for (unsigned i = 0; i < random() % 3; ++i) {
              std::size_t const more = 1_MiB + random() % 9_MiB;
              memory.deallocate(s, memory.allocate(s, more), more);
            }
            std::this_thread::yield();
            if (segments_of(memory, p, bytes) != before) ++changed;
            ++pinned;
          } catch (out_of_memory const&) {
          } catch (pool_asleep const&) {
          }
          memory.deallocate(s, p, bytes);
        } catch (out_of_memory const&) {
        } catch (pool_asleep const&) {
        }
      }
    });
  }
  std::mt19937_64 random(9);
  for (int i = 0; i < 40 || pinned < 60; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    switch (random() % 3) {
      case 0:
        memory.empty_cache();
        break;
      case 1:
        (void)compact(memory);
        break;
      default:
        (void)sleep(memory, contents::discarded);
        std::this_thread::yield();
        (void)wake(memory);
    }
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(changed == 0);
  CHECK(kept->unmapped == 0);
}
