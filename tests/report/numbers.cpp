// SPDX-License-Identifier: Apache-2.0
// The numbers: stats and summary.

#include <algorithm>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/absent_capabilities.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/summary.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
std::int64_t number_of(std::size_t bytes) {
  return static_cast<std::int64_t>(bytes);
}
}  // namespace

TEST_CASE("empty_cache returns the cached memory of a pool to the driver", "[report][stats]") {
  sim_pool pool;
  { auto const used = make_device_buffer<int>(pool, 1'000'000, stream_ref{}); }
  CHECK(memory_reserved(pool) > 0);
  empty_cache(pool);
  CHECK(memory_reserved(pool) == 0);
}

TEST_CASE("memory_stats has PyTorch's keys and values", "[report][stats]") {
  sim_machine machine{sim_options{.backing = sim_backing::address_only}};
  sim_pool pool{sim_pages{machine.driver(0)}};
  void* const small = pool.allocate({}, 700);
  void* const large = pool.allocate({}, 5_MiB + 1);
  CHECK(memory_allocated(pool) == 768 + 5_MiB + 512);
  pool.deallocate({}, large, 5_MiB + 1);
  CHECK(memory_allocated(pool) == 768);
  CHECK(max_memory_allocated(pool) == 768 + 5_MiB + 512);
  CHECK(memory_reserved(pool) >= 8_MiB);
  CHECK(max_memory_reserved(pool) == memory_reserved(pool));
  auto const stats = memory_stats(pool);
  CHECK(std::is_sorted(stats.begin(), stats.end(),
                       [](auto const& a, auto const& b) { return a.first < b.first; }));
  auto const at = [&](std::string const& key) {
    auto const found =
        std::find_if(stats.begin(), stats.end(), [&](auto const& s) { return s.first == key; });
    REQUIRE(found != stats.end());
    return found->second;
  };
  CHECK(at("allocation.all.current") == 1);
  CHECK(at("allocation.large_pool.freed") == 1);
  CHECK(at("requested_bytes.small_pool.current") == 700);
  CHECK(at("reserved_bytes.all.current") == static_cast<std::int64_t>(memory_reserved(pool)));
  CHECK(at("num_ooms") == 0);
  CHECK(stats.size() == 9 * 3 * 4 + 2 * 4 + 6);
  auto const info = mem_get_info(pool);
  CHECK(info.free + memory_reserved(pool) <= info.total);
  pool.deallocate({}, small, 700);
  reset_accumulated_memory_stats(pool);
  reset_peak_memory_stats(pool);
  CHECK(max_memory_allocated(pool) == 0);
}

TEST_CASE("memory_stats reports reserved memory separately for small and large blocks", "[report][stats]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto const on_pages = [&] { return sim_pages{machine.driver(0)} | pooled{} | tracked{}; };
  auto const on_blocks = [&] { return sim_malloc{machine.driver(0)} | pooled{} | tracked{}; };
  auto const try_on = [](auto memory, bool const has_segments) {
    std::vector<memory_stat> stats;
    auto const at = [&](std::string const& key) {
      auto const found =
          std::find_if(stats.begin(), stats.end(), [&](auto const& s) { return s.first == key; });
      REQUIRE(found != stats.end());
      return found->second;
    };
    auto const parts_add_up = [&](std::string const& name) {
      stats = memory_stats(memory);
      return at(name + ".small_pool.current") + at(name + ".large_pool.current") == at(name + ".all.current");
    };
    void* const small = memory.allocate({}, 700);
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(at("reserved_bytes.small_pool.current") >= 65536);
    CHECK(at("reserved_bytes.large_pool.current") == 0);
    void* const large = memory.allocate({}, 40_MiB);
    void* const medium = memory.allocate({}, 1_MiB);
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(at("reserved_bytes.large_pool.current") >= number_of(40_MiB));
    CHECK(at("reserved_bytes.large_pool.current") < number_of(48_MiB));
    memory.deallocate({}, large, 40_MiB);
    memory.deallocate({}, small, 700);
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(at("reserved_bytes.large_pool.current") >= number_of(40_MiB));  // cached
    if (has_segments) {
      CHECK(parts_add_up("segment"));
      CHECK(at("segment.large_pool.current") == 1);
    }
    memory.trim(0);
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(parts_add_up("inactive_split"));
    CHECK(parts_add_up("inactive_split_bytes"));
    CHECK(at("inactive_split.small_pool.current") >= 1);  // next to the block of 1 MiB
    CHECK(at("inactive_split_bytes.small_pool.current") == number_of(1_MiB));
    CHECK(at("reserved_bytes.small_pool.current") == number_of(2_MiB));
    CHECK(at("reserved_bytes.large_pool.current") == 0);
    CHECK(at("reserved_bytes.large_pool.peak") >= number_of(40_MiB));
    CHECK(at("reserved_bytes.large_pool.freed") == at("reserved_bytes.large_pool.allocated"));
    if (has_segments) {
      CHECK(at("segment.large_pool.freed") == 1);
      CHECK(at("segment.small_pool.current") == 1);
    }
    reset_peak_memory_stats(memory);
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(at("reserved_bytes.large_pool.peak") == 0);
    // The numbers are also right after a refused request.
    CHECK_THROWS_AS(memory.allocate({}, 1024_GiB), out_of_memory);
    memory.trim(0);
    CHECK(parts_add_up("reserved_bytes"));
    memory.deallocate({}, medium, 1_MiB);
    memory.empty_cache();
    CHECK(parts_add_up("reserved_bytes"));
    CHECK(at("reserved_bytes.small_pool.current") == 0);
  };
  SECTION("over pages") {
    try_on(on_pages(), false);
  }
  SECTION("over blocks") {
    try_on(on_blocks(), true);
  }
}

TEST_CASE("memory_stats inactive_split has the same peak and totals, however often it is read",
          "[report][stats]") {
  std::size_t const sizes = GENERATE(11, 14, 16);  // up to 1, 8 and 32 MiB
  // Over blocks, trim() counts as one step with a call before it that threw, unless they are read in between.
  bool const is_tight = sizes == 16 && !tarn_test::is_absent("pages");
  auto const totals_of = [=](bool reads_often) {
    sim_machine const machine{
        sim_options{.capacity = is_tight ? 192_MiB : 16_GiB, .backing = sim_backing::address_only}};
    auto memory = sim_pages(machine.driver()) | pooled{} | tracked{};
    std::vector<std::pair<void*, std::size_t>> blocks;
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
      if (blocks.empty() || random() % 64 < (i / 250 % 2 == 0 ? 40U : 24U)) {
        std::size_t const bytes = std::size_t{1024} << random() % sizes;
        try {
          blocks.emplace_back(memory.allocate({}, bytes), bytes);
        } catch (out_of_memory const&) {  // after the caches were flushed, which changes many ranges at once
        }
      } else {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        memory.deallocate({}, blocks.back().first, blocks.back().second);
        blocks.pop_back();
      }
      if (is_tight && i % 50 == 49) (void)memory.trim(16_MiB);
      if (reads_often) (void)memory_stats(memory);
    }
    std::vector<std::pair<std::string, std::int64_t>> found;
    for (auto const& [name, n] : memory_stats(memory)) {
      if (std::string(name).starts_with("inactive_split")) found.emplace_back(name, n);
    }
    std::map<std::string, std::int64_t> const at(found.begin(), found.end());
    for (std::string const key : {"inactive_split", "inactive_split_bytes"}) {
      for (std::string const of : {".current", ".allocated", ".freed"})
        CHECK(at.at(key + ".all" + of) == at.at(key + ".small_pool" + of) + at.at(key + ".large_pool" + of));
    }
    for (auto const& [p, bytes] : blocks) memory.deallocate({}, p, bytes);
    return found;
  };
  CHECK(totals_of(true) == totals_of(false));
}

TEST_CASE("memory_stats inactive_split keeps its peak and totals, and excludes memory that can be released",
          "[report][stats]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto const try_on = [](auto memory) {
    auto const values_are = [&](char const* key, std::int64_t current, std::int64_t peak,
                                std::int64_t allocated, std::int64_t freed) {
      std::map<std::string, std::int64_t> stats;
      for (auto const& [name, n] : memory_stats(memory)) stats.emplace(name, n);
      std::string const name = key;
      bool same = true;
      for (char const* group : {".all", ".large_pool"}) {
        same = same && stats.at(name + group + ".current") == current &&
               stats.at(name + group + ".peak") == peak &&
               stats.at(name + group + ".allocated") == allocated &&
               stats.at(name + group + ".freed") == freed;
      }
      return same && stats.at(name + ".small_pool.peak") == 0;
    };
    std::int64_t const rest = number_of(1_MiB);
    // 3 MiB in a handle or segment of 4 MiB.
    void* const p = memory.allocate({}, 3_MiB);
    CHECK(values_are("inactive_split", 1, 1, 1, 0));
    CHECK(values_are("inactive_split_bytes", rest, rest, rest, 0));
    void* const q = memory.allocate({}, 1_MiB + 1);  // does not fit into the rest
    memory.deallocate({}, q, 1_MiB + 1);
    reset_peak_memory_stats(memory);
    memory.deallocate({}, p, 3_MiB);
    memory.trim(0);
    CHECK(memory_reserved(memory) == 0);
    std::map<std::string, std::int64_t> stats;
    for (auto const& [name, n] : memory_stats(memory)) stats.emplace(name, n);
    CHECK(stats.at("inactive_split.all.current") == 0);
    CHECK(stats.at("inactive_split_bytes.all.current") == 0);
    CHECK(stats.at("inactive_split.all.peak") >= 1);
    CHECK(stats.at("inactive_split_bytes.all.peak") >= rest);
    CHECK(stats.at("inactive_split.all.allocated") == stats.at("inactive_split.all.freed"));
    CHECK(stats.at("inactive_split_bytes.all.allocated") == stats.at("inactive_split_bytes.all.freed"));
    reset_peak_memory_stats(memory);
    reset_accumulated_memory_stats(memory);
    CHECK(values_are("inactive_split", 0, 0, 0, 0));
    CHECK(values_are("inactive_split_bytes", 0, 0, 0, 0));
    CHECK(values_are("reserved_bytes", 0, 0, 0, 0));
    CHECK(values_are("segment", 0, 0, 0, 0));
    // A block that fills its handle or segment leaves no split, neither while it is live nor afterwards.
    void* const whole = memory.allocate({}, 4_MiB);
    CHECK(values_are("inactive_split", 0, 0, 0, 0));
    memory.deallocate({}, whole, 4_MiB);
    CHECK(values_are("inactive_split", 0, 0, 0, 0));
    CHECK(values_are("reserved_bytes", number_of(4_MiB), number_of(4_MiB), number_of(4_MiB), 0));
  };
  SECTION("over pages") {
    try_on(sim_pages{machine.driver(0)} | pooled{} | tracked{});
  }
  SECTION("over blocks") {
    try_on(sim_malloc{machine.driver(0)} | pooled{} | tracked{});
  }
}

TEST_CASE("memory_summary has PyTorch's layout", "[report][summary]") {
  sim_machine machine{sim_options{.backing = sim_backing::address_only}};
  sim_pool pool{sim_pages{machine.driver(0)}};
  void* const p = pool.allocate({}, 10_MiB);
  std::string const text = memory_summary(pool);
  std::istringstream lines(text);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    ++count;
    CHECK(line.size() == 77);  // 75 columns between the edges
    CHECK((line.front() == '|' && line.back() == '|'));
  }
  CHECK(count > 40);
  CHECK(text.find("| Allocated memory      |  10240 KiB |  10240 KiB |  10240 KiB |      0 B   |") !=
        std::string::npos);
  CHECK(text.find("|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |") !=
        std::string::npos);
  pool.deallocate({}, p, 10_MiB);
}

TEST_CASE("memory_stats_json is one JSON object of memory_stats", "[report][stats]") {
  sim_pool pool;
  auto const used = make_device_buffer<std::byte>(pool, 1000, stream_ref{});
  std::string const json = memory_stats_json(pool);
  std::string expected;
  for (auto const& [key, value] : memory_stats(pool)) {
    CHECK(key.find_first_of("\"\\") == std::string::npos);  // needs no escape
    expected += (expected.empty() ? "{\"" : ",\"") + key + "\":" + std::to_string(value);
  }
  CHECK(json == expected + "}");
  CHECK(json.find("\"allocated_bytes.all.current\":1024") != std::string::npos);
  CHECK(json.find("\"max_split_size\":-1") != std::string::npos);
}

TEST_CASE("memory_stats and memory_summary show the memory of captured graphs while there is any",
          "[report][stats][summary][graph_memory]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto const try_on = [&](auto pool) {
    sim_stream const s{machine.driver(0)};
    std::map<std::string, std::int64_t> stats;
    auto const read = [&] {
      auto const now = memory_stats(pool);
      CHECK(std::is_sorted(now.begin(), now.end(),
                           [](auto const& a, auto const& b) { return a.first < b.first; }));
      stats = {now.begin(), now.end()};
    };
    auto const has_keys = [&] {
      return std::any_of(stats.begin(), stats.end(),
                         [](auto const& entry) { return entry.first.rfind("graph_memory.", 0) == 0; });
    };
    auto const has_rows = [&] { return memory_summary(pool).find("Graph memory") != std::string::npos; };
    void* const freed_in_capture = pool.allocate(s, 3_MiB);
    void* const also_freed = pool.allocate(s, 700);
    read();
    std::int64_t const active = stats.at("active_bytes.all.current");
    CHECK(active == number_of(3_MiB + 768));
    CHECK_FALSE(has_keys());
    CHECK_FALSE(has_rows());
    std::size_t const keys = stats.size();
    {
      graph_memory memory(pool), second(pool);
      void* live = nullptr;
      void* live_of_second = nullptr;
      auto const capture = [&](auto& owner, auto const& work) {
        capture_scope const scope(owner, s);
        sim_graph graph;
        REQUIRE(machine.begin_capture(s).ok());
        work();
        REQUIRE(machine.end_capture(s, graph).ok());
      };
      capture(memory, [&] {
        live = pool.allocate(s, 5_MiB);
        pool.deallocate(s, pool.allocate(s, 2_MiB), 2_MiB);
        pool.deallocate(s, freed_in_capture, 3_MiB);
      });
      capture(second, [&] {
        live_of_second = pool.allocate(s, 1_MiB);
        pool.deallocate(s, also_freed, 700);
      });
      read();
      CHECK(stats.size() == keys + 4);
      CHECK(stats.at("graph_memory.owners") == 2);
      CHECK(stats.at("graph_memory.allocated_bytes") == number_of(6_MiB));
      CHECK(stats.at("graph_memory.kept_bytes") == active);
      CHECK(stats.at("graph_memory.reserved_bytes") ==
            number_of(memory.state().reserved + second.state().reserved));
      CHECK(stats.at("graph_memory.reserved_bytes") >= number_of(8_MiB));
      CHECK(stats.at("graph_memory.reserved_bytes") < stats.at("reserved_bytes.all.current"));
      CHECK(stats.at("allocated_bytes.all.current") == number_of(6_MiB));
      CHECK(stats.at("active_bytes.all.current") == active + number_of(6_MiB));
      std::istringstream lines(memory_summary(pool));
      std::string line, rows;
      while (std::getline(lines, line)) {
        CHECK(line.size() == 77);
        if (line.find("Graph memory") != std::string::npos || !rows.empty()) rows += line + "\n";
      }
      CHECK(rows.find("|       allocated       |   6144 KiB |            |            |            |") !=
            std::string::npos);
      CHECK(rows.find("|       kept blocks     |   3072 KiB |            |            |            |") !=
            std::string::npos);
      pool.deallocate(s, live, 5_MiB);
      pool.deallocate(s, live_of_second, 1_MiB);
      read();
      CHECK(stats.at("graph_memory.allocated_bytes") == 0);
    }
    empty_cache(pool);  // ended owners give back
    read();
    CHECK_FALSE(has_keys());
    CHECK_FALSE(has_rows());
    CHECK(stats.size() == keys);
    CHECK(stats.at("active_bytes.all.current") == 0);
  };
  SECTION("over pages") {
    try_on(sim_pages{machine.driver(0)} | pooled{} | tracked{});
  }
  SECTION("over blocks") {
    try_on(sim_malloc{machine.driver(0)} | pooled{} | tracked{});
  }
}

TEST_CASE("memory_summary shortens counts as PyTorch does", "[report][summary]") {
  CHECK(detail::table_number(5, 5, detail::number_unit::count) == "      5   ");
  CHECK(detail::table_number(749'999, 749'999, detail::number_unit::count) == " 749999   ");
  CHECK(detail::table_number(750'000, 750'000, detail::number_unit::count) == "    750 K ");
  CHECK(detail::table_number(1'000, 750'000'000, detail::number_unit::count) == "      0 M ");
}

TEST_CASE("memory_summary shows zero for what memory without a pool does not have", "[report][summary]") {
  auto memory = sim_malloc{} | tracked{};
  std::string const text = memory_summary(memory);
  CHECK(text.find("cudaMalloc retries: 0") != std::string::npos);
}
