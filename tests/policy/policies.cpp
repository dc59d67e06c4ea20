// SPDX-License-Identifier: Apache-2.0
// The policies: compose, pooled, limited, tracked, block_bytes, device_pool, recorded, trace_format, fallback_to,
// retry_on_oom, fenced, poisoned, fill_pattern.

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/poisoned.hpp"
#include "tarn/policy/recorded.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

static_assert(std::same_as<decltype(sim_pages{} | pooled{} | tracked{}), sim_pool>);
static_assert(
    std::same_as<stack<host_memory, pooled, fenced>, decltype(host_memory{} | pooled{} | fenced{})>);
static_assert(page_source<decltype(sim_pages{} | limited{1_GiB})>);
static_assert(!page_source<sim_pool>);

TEST_CASE("every policy keeps the contract of resources", "[policy]") {
  SECTION("limited") {
    tarn_test::resource_contract([] { return host_memory{} | limited{3_GiB}; });
  }
  SECTION("tracked") {
    tarn_test::resource_contract([] { return host_memory{} | limited{3_GiB} | tracked{}; });
  }
  SECTION("fenced and poisoned") {
    tarn_test::resource_contract([] { return host_memory{} | limited{64_MiB} | fenced{} | poisoned{}; });
  }
  SECTION("fallback_to") {
    tarn_test::resource_contract(
        [] { return host_memory{} | limited{1_MiB} | fallback_to{host_memory{} | limited{2_GiB}}; });
  }
  SECTION("retry_on_oom") {
    tarn_test::resource_contract([] {
      return host_memory{} | limited{3_GiB} |
             retry_on_oom{[](out_of_memory const&, unsigned) { return false; }};
    });
  }
}

TEST_CASE("a refused allocation costs no budget", "[policy][limited]") {
  auto memory = host_memory{} | limited{1_MiB};
  CHECK_THROWS_AS(memory.allocate({}, 2_MiB, 256), out_of_memory);
  CHECK(memory->used() == 0);
  void* const p = memory.allocate({}, 1_MiB, 256);  // the whole budget is still there
  CHECK_THROWS_AS(memory.allocate({}, 1, 256), out_of_memory);
  memory.deallocate({}, p, 1_MiB, 256);
  CHECK(memory->used() == 0);
}

TEST_CASE("an upstream failure costs no budget", "[policy][limited]") {
  auto memory = host_memory{} | limited{1_KiB} | limited{1_MiB};
  CHECK_THROWS_AS(memory.allocate({}, 2_KiB, 256), out_of_memory);
  CHECK(memory->used() == 0);
}

TEST_CASE("a limit under a pool bounds reserved bytes, over it live bytes as the pool rounds them",
          "[policy][limited][block_bytes]") {
  auto over = host_memory{} | pooled{} | limited{1_MiB};
  void* const p = over.allocate({}, 300, 256);
  CHECK(over->used() == 512);
  over.deallocate({}, p, 300, 256);
  auto under = sim_pages{} | limited{4_MiB} | pooled{};
  void* const q = under.allocate({}, 3_MiB, 256);
  CHECK_THROWS_AS(under.allocate({}, 3_MiB, 256), out_of_memory);
  under.deallocate({}, q, 3_MiB, 256);
}

TEST_CASE("a limit is never exceeded under races", "[policy][limited][threads]") {
  auto memory = host_memory{} | limited{64 * 100};
  std::vector<std::thread> threads;
  std::atomic<bool> exceeded{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) {
        try {
          void* const p = memory.allocate({}, 100, 64);
          if (memory->used() > memory->limit()) exceeded = true;
          memory.deallocate({}, p, 100, 64);
        } catch (out_of_memory const&) {
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK_FALSE(exceeded);
  CHECK(memory->used() == 0);
}

TEST_CASE("statistics are exact under threads", "[policy][tracked][threads]") {
  auto memory = host_memory{} | pooled{} | tracked{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<void*> live;
      for (int i = 0; i < 500; ++i) live.push_back(memory.allocate({}, 700, 256));
      for (void* p : live) memory.deallocate({}, p, 700, 256);
    });
  }
  for (auto& t : threads) t.join();
  auto const s = memory->statistics();
  CHECK(s.allocations[0].allocated == 2000);
  CHECK(s.allocations[0].current == 0);
  CHECK(s.allocated_bytes[0].allocated == 2000 * 768);
  CHECK(s.requested_bytes[1].freed == 2000 * 700);
  CHECK(s.allocated_bytes[0].peak <= 2000 * 768);
  CHECK(s.allocated_bytes[0].peak >= 500 * 768);
  CHECK(s.allocations[2].allocated == 0);
}

TEST_CASE("the fallback serves what the first refuses, and each block goes home", "[policy][fallback_to]") {
  auto first = host_memory{} | limited{1_MiB};
  auto second = host_memory{} | limited{8_MiB};
  auto memory = first | fallback_to{second};
  void* const a = memory.allocate({}, 1_MiB, 256);
  void* const b = memory.allocate({}, 2_MiB, 256);
  CHECK(first->used() == 1_MiB);
  CHECK(second->used() == 2_MiB);
  CHECK(memory->fallback_blocks() == 1);
  memory.deallocate({}, b, 2_MiB, 256);
  memory.deallocate({}, a, 1_MiB, 256);
  CHECK(first->used() + second->used() == 0);
  CHECK_THROWS_AS(memory.allocate({}, 9_MiB, 256), out_of_memory);
}

TEST_CASE("a handler is asked until it declines, and other exceptions pass", "[policy][retry_on_oom]") {
  auto small = host_memory{} | limited{1_KiB};
  void* held = small.allocate({}, 1_KiB, 256);
  unsigned asked = 0;
  auto memory = small | retry_on_oom{[&](out_of_memory const& e, unsigned attempt) {
                  asked = attempt;
                  if (e.asked() == 77) throw 5;
                  if (held == nullptr) return false;
                  if (attempt == 3) small.deallocate({}, std::exchange(held, nullptr), 1_KiB, 256);
                  return true;
                }};
  CHECK_THROWS_AS(memory.allocate({}, 77, 256), int);
  void* const p = memory.allocate({}, 1_KiB, 256);
  CHECK(asked == 3);
  CHECK_THROWS_AS(memory.allocate({}, 1_KiB, 256), out_of_memory);
  memory.deallocate({}, p, 1_KiB, 256);
}

TEST_CASE("fences find writes past both ends, wrong sizes and strangers", "[policy][fenced][fill_pattern]") {
  static std::vector<misuse_kind> told;
  told.clear();
  auto const before = set_misuse_handler([](misuse const& m) { told.push_back(m.kind()); });
  {
    auto memory = host_memory{} | fenced{} | poisoned{};
    auto* const p = static_cast<unsigned char*>(memory.allocate_sync(100, 256));
    CHECK(p[99] == pattern::uninitialised);
    CHECK(memory->upstream()->check_all() == 0);
    p[100] = 0;
    p[-1] = 0;
    CHECK(memory->upstream()->check_all() == 1);
    CHECK(told == std::vector<misuse_kind>{misuse_kind::overrun, misuse_kind::overrun});
    told.clear();
    auto bare = memory->upstream();
    bare.deallocate_sync(p, 99, 256);
    bare.deallocate_sync(p, 100, 512);
    p[100] = p[-1] = pattern::fence;
    bare.deallocate_sync(p, 100, 256);
    bare.deallocate_sync(p, 100, 256);
    CHECK(told == std::vector<misuse_kind>{misuse_kind::wrong_size, misuse_kind::wrong_alignment,
                                           misuse_kind::foreign_pointer});
  }
  set_misuse_handler(before);
}

TEST_CASE("a recording names requests, streams and frees in the order they happened",
          "[policy][recorded][trace_format]") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    auto memory = sim_pages{} | pooled{} | recorded{file};
    stream_ref other;
    REQUIRE(memory.driver().create_stream(other).ok());
    void* const a = memory.allocate({}, 1000, 256);
    void* const b = memory.allocate(other, 5, 256);
    CHECK(memory.allocate({}, 0, 256) == nullptr);
    memory.deallocate({}, a, 1000, 256);
    memory.deallocate(other, b, 5, 256);
    REQUIRE(memory.driver().destroy_stream(other).ok());
  }
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  CHECK(text == "# a <id> <bytes> <stream> | f <id>\na 1 1000 0\na 2 5 1\nf 1\nf 2\n");
  CHECK_THROWS_AS(host_memory{} | recorded{"/no/such/folder/trace"}, std::system_error);
}

TEST_CASE("a line of a trace is an event or a telling error", "[policy][trace_format]") {
  auto const event = parse_trace_line("a 12 4096 1\r", 1);
  CHECK((event.kind == trace_event_kind::allocate && event.id == 12 && event.bytes == 4096 &&
         event.stream == 1));
  CHECK(parse_trace_line("f 3", 1).kind == trace_event_kind::free);
  CHECK(parse_trace_line("  # words", 1).kind == trace_event_kind::comment);
  CHECK(parse_trace_line("", 1).kind == trace_event_kind::comment);
  CHECK(format_trace_line(event).view() == "a 12 4096 1\n");
  for (char const* bad : {"a", "a 1", "a 1 2", "a 1 2 3 4", "a x 2 3", "a 1 -2 3", "f", "f 1 2", "g 1",
                          "ab 1 2 3", "a 1 99999999999999999999 0", "a 1 2x 0", "f 1.5"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_trace_line(bad, 41), trace_error);
  }
  try {
    (void)parse_trace_line("f nobody", 41);
  } catch (trace_error const& e) {
    CHECK(e.line() == 41);
    CHECK(std::string(e.what()).find("line 41") == 0);
  }
}
