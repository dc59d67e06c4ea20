// SPDX-License-Identifier: Apache-2.0
// page_registrations: each handle is registered once, and no registered page is unmapped, whatever the pool
// does.

#include "tarn/sharing/page_registrations.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/check_unsupported.hpp"
#include "tarn/nccl.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;
using tarn_test::check_unsupported;

namespace {

sim_options small_machine() {
  sim_options o;
  o.capacity = 512_MiB;
  o.taken = 0;
  return o;
}

/// What a library knows: ranges by number, which must stay mapped.
struct known_ranges {
  explicit known_ranges(sim_machine of) : machine(std::move(of)) {}
  struct range {
    void* p;
    std::size_t bytes;
  };
  sim_machine machine;
  std::map<int, range> all{};
  int last = 0;
  int refuse_after = -1;  ///< so many calls succeed

  bool are_mapped() const {
    for (auto const& [number, r] : all) {
      if (!machine.is_accessible(r.p, r.bytes)) return false;
    }
    return true;
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (auto const& [number, r] : all) sum += r.bytes;
    return sum;
  }
};
class fake_library {
 public:
  using handle = int;
  explicit fake_library(std::shared_ptr<known_ranges> known) : known_(std::move(known)) {}
  int add(void* p, std::size_t bytes) {
    if (known_->refuse_after == 0) throw std::runtime_error("the library is full");
    --known_->refuse_after;
    CHECK(known_->machine.is_accessible(p, bytes));
    known_->all.emplace(++known_->last, known_ranges::range{p, bytes});
    return known_->last;
  }
  void remove(int number) noexcept {
    auto const i = known_->all.find(number);
    if (i == known_->all.end()) std::terminate();
    if (!known_->machine.is_accessible(i->second.p, i->second.bytes)) std::terminate();
    known_->all.erase(i);
  }

 private:
  std::shared_ptr<known_ranges> known_;
};
static_assert(page_library<fake_library>);
struct first_handle_only : fake_library {
  using fake_library::fake_library;
  static constexpr bool takes_one_handle = true;
};

struct registered_pool {
  explicit registered_pool(pooled options = {.largest_handle = 4_MiB})
      : memory(sim_pages{machine.driver(0)} | options | tracked{}),
        known(std::make_shared<known_ranges>(machine)),
        pages(memory, fake_library(known)) {}
  sim_machine machine{small_machine()};
  decltype(sim_pages{std::declval<sim_driver>()} | pooled{} | tracked{}) memory;
  std::shared_ptr<known_ranges> known;
  page_registrations<decltype(memory), fake_library> pages;
};

}  // namespace

TEST_CASE("page_registrations registers the handles of a block once", "[raii][registrations][pages]") {
  registered_pool t;
  void* const small = t.memory.allocate({}, 5000);
  CHECK_FALSE(t.pages.covers(small, 5000));
  int const first = t.pages.ensure(small, 5000);
  CHECK(t.known->all.size() == 1);
  CHECK(t.known->bytes() % 2_MiB == 0);
  CHECK(t.pages.covers(small, 5000));
  CHECK(t.pages.ensure(static_cast<char*>(small) + 100, 50) == first);

  // In the same handle.
  void* const beside = t.memory.allocate({}, 5000);
  CHECK(t.pages.ensure(beside, 5000) == first);
  // Freed and allocated again.
  t.memory.deallocate({}, small, 5000);
  void* const again = t.memory.allocate({}, 5000);
  CHECK(t.pages.ensure(again, 5000) == first);
  CHECK(t.pages.added() == 1);

  void* const large = t.memory.allocate({}, 30_MiB);
  int const second = t.pages.ensure(large, 30_MiB);
  CHECK(second != first);
  CHECK(t.known->bytes() >= 30_MiB + 2_MiB);
  for (std::size_t at = 0; at < 30_MiB; at += 1_MiB)
    CHECK(t.pages.ensure(static_cast<char*>(large) + at, 1_MiB) == second);
  CHECK(t.pages.added() == 2);
  CHECK(t.pages.size() == 2);
  t.memory.deallocate({}, again, 5000);
  t.memory.deallocate({}, beside, 5000);
  t.memory.deallocate({}, large, 30_MiB);
}

TEST_CASE("a library that uses the first handle of a registration gets only blocks that lie in one",
          "[raii][registrations][pages]") {
  sim_machine const machine{small_machine()};
  auto const known = std::make_shared<known_ranges>(machine);
  auto const registered = [&](pooled const& options) {
    auto memory = sim_pages{machine.driver(0)} | options | tracked{};
    return page_registrations<decltype(memory), first_handle_only>(memory, first_handle_only(known));
  };
  for (pooled const& options : {pooled{}, pooled{.remap = remapping::off}, pooled{.largest_handle = 4_MiB}}) {
    INFO("a pool whose blocks lie in several handles");
    check_unsupported([&] { (void)registered(options); }, {"handles_per_block::one"});
  }
  auto memory = sim_pages{machine.driver(0)} | pooled{.handles = handles_per_block::one} | tracked{};
  page_registrations<decltype(memory), first_handle_only> pages(memory, first_handle_only(known));
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::size_t const bytes : {std::size_t{5000}, 3_MiB, 30_MiB, 4_MiB, 100_MiB, 7_MiB})
    blocks.emplace_back(memory.allocate({}, bytes), bytes);
  for (auto const& [p, bytes] : blocks) {
    REQUIRE(segments_of(memory, p, bytes).size() == 1);
    (void)pages.ensure(p, bytes);
    CHECK(pages.covers(p, bytes));
  }
  // No registration covers two handles.
  CHECK(pages.added() == known->all.size());
  for (auto const& [p, bytes] : blocks) {
    std::size_t covering = 0;
    for (auto const& [number, range] : known->all) {
      auto const begin = static_cast<char*>(range.p);
      if (begin <= static_cast<char*>(p) && static_cast<char*>(p) + bytes <= begin + range.bytes) ++covering;
    }
    CHECK(covering == 1);
  }
  for (auto const& [p, bytes] : blocks) memory.deallocate({}, p, bytes);
}

TEST_CASE("registered pages stay mapped while the pool frees, trims, compacts and sleeps",
          "[raii][registrations][pages]") {
  registered_pool t;
  void* const p = t.memory.allocate({}, 30_MiB);
  void* const other = t.memory.allocate({}, 40_MiB);
  auto* const bytes = static_cast<unsigned char*>(p);
  bytes[0] = 7;
  bytes[30_MiB - 1] = 8;
  (void)t.pages.ensure(p, 30_MiB);
  CHECK(t.known->bytes() < 40_MiB);
  t.memory.deallocate({}, other, 40_MiB);
  compact(t.memory);
  CHECK(t.known->are_mapped());
  sleep(t.memory);
  CHECK(t.known->are_mapped());
  wake(t.memory);
  CHECK(bytes[0] == 7);
  CHECK(bytes[30_MiB - 1] == 8);
  t.memory.deallocate({}, p, 30_MiB);
  REQUIRE(t.machine.driver(0).synchronize_device().ok());
  empty_cache(t.memory);
  CHECK(t.known->are_mapped());
  CHECK(memory_reserved(t.memory) >= t.known->bytes());

  t.pages.forget(p, 1);
  CHECK(t.known->all.empty());
  CHECK(t.pages.size() == 0);
  empty_cache(t.memory);
  CHECK(memory_reserved(t.memory) == 0);
}

TEST_CASE("a block partly in registered handles gets one registration over all, beside the earlier ones",
          "[raii][registrations][pages]") {
  registered_pool t({.largest_handle = 2_MiB});
  void* const p = t.memory.allocate({}, 20_MiB);
  char* const bytes = static_cast<char*>(p);
  int const middle = t.pages.ensure(bytes + 9_MiB, 100);
  int const early = t.pages.ensure(bytes + 3_MiB, 100);
  CHECK(middle != early);
  CHECK(t.pages.size() == 2);
  CHECK_FALSE(t.pages.covers(p, 20_MiB));
  int const all = t.pages.ensure(bytes + 3_MiB, 10_MiB);
  CHECK(t.pages.size() == 1);
  CHECK(t.known->all.size() == 3);  // work may still use the parts
  CHECK(t.pages.ensure(bytes + 9_MiB, 100) == all);
  CHECK(t.pages.ensure(bytes + 3_MiB, 10_MiB) == all);
  int const whole = t.pages.ensure(p, 20_MiB);
  CHECK(t.known->all.at(whole).bytes >= 20_MiB);
  CHECK(t.pages.size() == 1);
  CHECK(t.pages.added() == 4);
  t.pages.forget(bytes + 15_MiB, 1);
  CHECK(t.known->all.empty());
  t.memory.deallocate({}, p, 20_MiB);
}

TEST_CASE("what the library refuses is neither registered nor pinned", "[raii][registrations][pages]") {
  registered_pool t;
  void* const p = t.memory.allocate({}, 30_MiB);
  t.known->refuse_after = 0;
  CHECK_THROWS_AS(t.pages.ensure(p, 30_MiB), std::runtime_error);
  CHECK(t.pages.size() == 0);
  CHECK(t.pages.added() == 0);
  // What overlaps stays as it is.
  t.known->refuse_after = 1;
  int const part = t.pages.ensure(p, 100);
  CHECK_THROWS_AS(t.pages.ensure(p, 30_MiB), std::runtime_error);
  CHECK(t.pages.ensure(p, 100) == part);
  CHECK(t.known->all.size() == 1);
  t.pages.clear();
  t.memory.deallocate({}, p, 30_MiB);
  REQUIRE(t.machine.driver(0).synchronize_device().ok());
  empty_cache(t.memory);
  CHECK(memory_reserved(t.memory) == 0);
}

TEST_CASE("page_registrations refuses bytes that no block of the pool has, and moves",
          "[raii][registrations][pages]") {
  registered_pool t;
  void* const p = t.memory.allocate({}, 3_MiB);
  int outside = 0;
  CHECK_THROWS_AS(t.pages.ensure(&outside, sizeof outside), misuse);
  CHECK_THROWS_AS(t.pages.ensure(p, 3_GiB), misuse);
  CHECK(t.pages.size() == 0);
  int const number = t.pages.ensure(p, 3_MiB);
  {
    auto moved = std::move(t.pages);
    CHECK(moved.ensure(p, 3_MiB) == number);
    CHECK(t.known->all.size() == 1);
  }
  CHECK(t.known->all.empty());
  t.memory.deallocate({}, p, 3_MiB);
}

TEST_CASE("random blocks are registered, stay mapped, and are registered once when warm",
          "[raii][registrations][pages]") {
  auto const seed = GENERATE(range(1u, 9u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  registered_pool t({.largest_handle = 2_MiB << (seed % 4)});
  struct block {
    void* p;
    std::size_t bytes;
  };
  std::vector<block> live;
  for (int step = 0; step < 600; ++step) {
    auto const what = random() % 8;
    if (live.size() < 30 && what < 4) {
      std::size_t const bytes = std::size_t{1} << (8 + random() % 15);
      try {
        live.push_back({t.memory.allocate({}, bytes), bytes});
      } catch (out_of_memory const&) {
      }
    } else if (!live.empty() && what < 6) {
      std::swap(live[random() % live.size()], live.back());
      t.memory.deallocate({}, live.back().p, live.back().bytes);
      if (random() % 4 == 0) t.pages.forget(live.back().p, live.back().bytes);
      live.pop_back();
    } else if (!live.empty() && what == 6) {
      block const b = live[random() % live.size()];
      (void)t.pages.ensure(b.p, b.bytes);
      CHECK(t.pages.covers(b.p, b.bytes));
    } else if (random() % 3 == 0) {
      compact(t.memory);
    } else {
      empty_cache(t.memory);
    }
    REQUIRE(t.known->are_mapped());
    REQUIRE(t.known->all.size() >= t.pages.size());
  }
  for (block const b : live) (void)t.pages.ensure(b.p, b.bytes);
  auto const before = t.pages.added();
  for (block const b : live) (void)t.pages.ensure(b.p, b.bytes);
  CHECK(t.pages.added() == before);
  for (block const b : live) t.memory.deallocate({}, b.p, b.bytes);
}

TEST_CASE("a forked child drops its registrations without a call of the library",
          "[raii][registrations][at_fork][pages]") {
  registered_pool t;
  void* const p = t.memory.allocate({}, 30_MiB);
  (void)t.pages.ensure(p, 30_MiB);
  CHECK(child_of([&] {
          t.pages.clear();
          return t.pages.size() == 0 && t.known->all.size() == 1;
        }) == 0);
  CHECK(child_of([&] {  // also where the child moves them
          auto moved = std::move(t.pages);
          t.pages = std::move(moved);
          { auto const last = std::move(t.pages); }
          return t.known->all.size() == 1;
        }) == 0);
  CHECK(t.pages.covers(p, 30_MiB));
  t.pages.clear();
  CHECK(t.known->all.empty());
  t.memory.deallocate({}, p, 30_MiB);
}
