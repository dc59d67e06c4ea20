// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/scratch.hpp"

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/early_release_contract.hpp"
#include "raii/archetype.hpp"
#include "raii/watched_machine.hpp"
#include "tarn/policy/limited.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::kept_memory;
using tarn_test::watched_machine;

namespace {

thread_local std::vector<misuse_kind> reported;
struct misuse_watch {
  misuse_watch() {
    reported.clear();
    before = set_misuse_handler([](misuse const& m) { reported.push_back(m.kind()); });
  }
  ~misuse_watch() { set_misuse_handler(before); }
  misuse_handler before;
};

}  // namespace

TEST_CASE("scratch orders its temporaries by its stream on any schedule", "[raii][scratch][stream]") {
  for (unsigned const seed : {0U, 1U, 2U, 3U}) {
    watched_machine const t(seed);
    tarn_test::scratch_contract(t.pool(), t.busy());
    REQUIRE(t.machine.driver().synchronize_device().ok());
    CHECK(t.machine.findings().empty());
  }
}

TEST_CASE("scratch rewind frees what was taken after the mark, and a warm scratch does not allocate",
          "[raii][scratch]") {
  kept_memory memory;
  {
    scratch arena{memory, 1'000};
    CHECK(memory.kept().allocations == 0);  // none before the first take
    auto* const a = arena.take<int>(10);
    scratch_mark const outer = arena.mark();
    auto* const b = arena.take<double>(50);
    scratch_mark const inner = arena.mark();
    (void)arena.take<char>(5'000);
    CHECK(arena.take<char>(0) == nullptr);
    arena.rewind(inner);
    CHECK(arena.marks() == 1);
    arena.rewind(outer);
    CHECK(arena.marks() == 0);
    CHECK(arena.used() == 40);
    std::size_t const cold = memory.kept().allocations;
    for (int i = 0; i < 100; ++i) {
      rewind_scope const step{arena};
      CHECK(arena.take<double>(50) == b);
      rewind_scope const deeper{arena};
      (void)arena.take<char>(5'000);
    }
    CHECK(memory.kept().allocations == cold);
    arena.rewind(arena.mark());
    CHECK(arena.used() == 40);
    CHECK(a != nullptr);
    CHECK(memory.kept().live.size() == cold);
  }
  CHECK(memory.balanced());
}

TEST_CASE("scratch take returns aligned ranges that never overlap", "[raii][scratch]") {
  struct alignas(4096) page {
    char bytes[4096];
  };
  kept_memory memory;
  {
    scratch arena{memory, 10'000};
    std::mt19937 random(3);
    struct piece {
      char* p;
      std::size_t bytes;
    };
    std::vector<piece> live;
    std::vector<std::pair<scratch_mark, std::size_t>> marks;
    for (int i = 0; i < 3'000; ++i) {
      auto const what = random() % 10;
      if (what < 6) {
        std::size_t const n = random() % 3'000 + 1;
        char* const p = arena.take<char>(n);
        REQUIRE(is_aligned(p, default_alignment));
        live.push_back({p, n});
      } else if (what == 6) {
        page* const p = arena.take<page>(1);
        REQUIRE(is_aligned(p, 4096));
        live.push_back({reinterpret_cast<char*>(p), 4096});
      } else if (what == 7) {
        marks.emplace_back(arena.mark(), live.size());
      } else if (what == 8 && !marks.empty()) {
        std::size_t const to = random() % marks.size();
        arena.rewind(marks[to].first);
        live.resize(marks[to].second);
        marks.resize(to);
      } else if (what == 9 && random() % 10 == 0) {
        arena.release();
      }
      std::size_t bytes = 0;
      for (piece const& x : live) {
        bytes += x.bytes;
        if (&x != &live.back()) {
          REQUIRE((x.p + x.bytes <= live.back().p || live.back().p + live.back().bytes <= x.p));
        }
        auto above = memory.kept().live.upper_bound(x.p);  // inside a live block
        REQUIRE(above != memory.kept().live.begin());
        --above;
        REQUIRE(x.p + x.bytes <= static_cast<char*>(above->first) + above->second.bytes);
      }
      REQUIRE(arena.used() >= bytes);
      REQUIRE(arena.capacity() >= arena.used());
      if (live.size() > 40) {
        while (!marks.empty()) {
          arena.rewind(marks.back().first);
          live.resize(marks.back().second);
          marks.pop_back();
        }
        if (live.size() > 40) break;
      }
    }
  }
  CHECK(memory.balanced());
}

TEST_CASE("scratch rewind reports a stale or foreign mark as misuse and changes nothing", "[raii][scratch]") {
  misuse_watch const misuses;
  kept_memory memory;
  scratch arena{memory, 1'000};
  scratch other{memory, 1'000};
  scratch_mark const outer = arena.mark();
  auto* const p = arena.take<int>(10);
  scratch_mark const inner = arena.mark();
  arena.rewind(outer);
  CHECK(reported.empty());
  CHECK(arena.take<int>(10) == p);
  arena.rewind(inner);  // ended together with the outer mark
  arena.rewind(outer);  // a second time
  CHECK(reported == std::vector{misuse_kind::double_free, misuse_kind::double_free});
  scratch_mark const again = arena.mark();  // at the depth of the mark that ended
  arena.rewind(outer);
  CHECK(reported.size() == 3);
  other.rewind(again);
  CHECK(reported.back() == misuse_kind::foreign_pointer);
  arena.rewind(scratch_mark{});
  CHECK(reported.back() == misuse_kind::foreign_pointer);
  CHECK(arena.used() == 40);
  CHECK(arena.marks() == 1);
  arena.rewind(again);
  CHECK(reported.size() == 5);
}

TEST_CASE("rewind_scope objects that end out of order are reported as misuse", "[raii][scratch]") {
  misuse_watch const misuses;
  scratch arena{kept_memory{}, 1'000};
  auto outer = std::make_unique<rewind_scope<kept_memory>>(arena);
  auto inner = std::make_unique<rewind_scope<kept_memory>>(arena);
  outer.reset();
  CHECK(reported.empty());
  inner.reset();
  CHECK(reported.size() == 1);
}

TEST_CASE("scratch grows by doubling, and release frees chunks that are not in use", "[raii][scratch]") {
  kept_memory memory;
  scratch arena{memory, 1'000};
  (void)arena.take<char>(800);
  scratch_mark const m = arena.mark();
  (void)arena.take<char>(800);
  (void)arena.take<char>(9'000);
  CHECK(arena.capacity() == 1'000 + 1'000 + 9'000);
  arena.release();
  CHECK(arena.capacity() == 11'000);  // all chunks are in use
  arena.rewind(m);
  arena.release();
  CHECK(arena.capacity() == 1'000);
  CHECK(memory.kept().live.size() == 1);
  char* const q = arena.take<char>(100);
  CHECK(q != nullptr);
  scratch empty{memory, 500};
  scratch_mark const bottom = empty.mark();
  (void)empty.take<char>(400);
  empty.rewind(bottom);
  empty.release();
  CHECK(empty.capacity() == 0);
  CHECK(empty.take<char>(400) != nullptr);
}

TEST_CASE("scratch of fixed size refuses what does not fit, and out_of_memory reports its size",
          "[raii][scratch]") {
  kept_memory memory;
  scratch arena{memory, {.chunk_bytes = 1'000, .growth = scratch_growth::none}};
  (void)arena.take<char>(600);
  try {
    (void)arena.take<char>(500);
    FAIL("the allocation must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 1'000);
    CHECK(error.report().live == 600);
    CHECK(error.asked() == 500);
  }
  CHECK(arena.take<char>(200) != nullptr);
  CHECK_THROWS_AS((void)scratch(memory, scratch_options{1'000, scratch_growth::none}).take<char>(1'001),
                  out_of_memory);
  CHECK_THROWS_AS((void)arena.take<double>(~std::size_t{0} / 4), length_error);
}

TEST_CASE("scratch allocates only the needed size if twice the size is refused", "[raii][scratch]") {
  auto const memory = sim_pages{} | pooled{} | limited{10_MiB};
  scratch arena{memory, 6_MiB};
  (void)arena.take<char>(6_MiB);
  CHECK(arena.take<char>(3_MiB) != nullptr);
  CHECK(arena.capacity() == 9_MiB);
  CHECK_THROWS_AS((void)arena.take<char>(2_MiB), out_of_memory);
  CHECK(arena.used() == 9_MiB);
  CHECK(arena.take<char>(1_MiB) != nullptr);
}

TEST_CASE("scratch is unchanged, whichever step of an operation fails", "[raii][scratch]") {
  using arena_type = std::unique_ptr<scratch<kept_memory>>;
  auto const make = [](kept_memory const& m) {
    auto arena = std::make_unique<scratch<kept_memory>>(m, std::size_t{100}, bare_stream(1));
    (void)arena->take<char>(100);
    return arena;
  };
  auto const unchanged = [](arena_type const& arena) {
    CHECK((arena->used() == 100 && arena->capacity() == 100 && arena->stream() == bare_stream(1)));
  };
  tarn_test::fail_each_step(
      make,
      [](arena_type& arena) {
        // The first request is for a chunk of twice the size, the second for the needed size.
        arena->resource().driver().plan().fail(driver_call::malloc_device, 2);
        (void)arena->take<char>(50);
      },
      unchanged);
  tarn_test::fail_each_step(
      make, [](arena_type& arena) { (void)arena->take<char>(500); }, unchanged);
  tarn_test::fail_each_step(
      make, [](arena_type& arena) { arena->set_stream(bare_stream(2)); }, unchanged);
}

TEST_CASE("scratch frees its chunks on its stream", "[raii][scratch][stream]") {
  kept_memory memory;
  {
    scratch arena{memory, 100, bare_stream(1)};
    arena.set_stream(bare_stream(2));  // no chunk to order yet
    CHECK(memory.driver().plan().calls(driver_call::record_event) == 0);
    (void)arena.take<char>(10);
    arena.set_stream(bare_stream(3));
    CHECK(memory.driver().plan().calls(driver_call::record_event) == 1);
  }
  CHECK(memory.kept().freed_on == bare_stream(3));
  CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
}

TEST_CASE("scratch made with {} has the default options", "[raii][scratch]") {
  kept_memory memory;
  scratch by_default(memory, {}, stream_ref{});
  (void)by_default.take<char>(100);
  CHECK(by_default.capacity() == scratch_options{}.chunk_bytes);
  scratch of_bytes(memory, 1000, stream_ref{});
  (void)of_bytes.take<char>(100);
  CHECK(of_bytes.capacity() == 1000);
  scratch by_options(memory, {.chunk_bytes = 2000}, stream_ref{});
  (void)by_options.take<char>(100);
  CHECK(by_options.capacity() == 2000);
}
