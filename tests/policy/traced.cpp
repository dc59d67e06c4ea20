// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/traced.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

namespace {
/// An unnamed file.
struct scratch {
  std::FILE* file = std::tmpfile();
  ~scratch() { std::fclose(file); }
  std::vector<trace_event> events() const {
    std::rewind(file);
    std::vector<trace_event> all;
    std::string line;
    std::uint64_t number = 0;
    for (int c = 0; (c = std::fgetc(file)) != EOF;) {
      if (c != '\n') {
        line += static_cast<char>(c);
        continue;
      }
      auto const event = parse_trace_line(line, ++number);
      if (event.kind != trace_event_kind::comment) all.push_back(event);
      line.clear();
    }
    CHECK(line.empty());
    return all;
  }
};
}  // namespace

TEST_CASE("recorded meets the resource contract", "[policy][traced]") {
  scratch const s;
  tarn_test::resource_contract([&] { return host_memory{} | traced(s.file); });
}

TEST_CASE("recorded writes requested bytes, streams and frees in order", "[policy][traced]") {
  scratch const s;
  sim_machine const machine;
  tarn_test::test_stream const a(machine.driver()), b(machine.driver());
  {
    auto memory = sim_pages(machine.driver()) | pooled{} | traced(s.file);
    void* const p = memory.allocate(a, 1000);
    void* const q = memory.allocate(b, 5);
    void* const r = memory.allocate({}, 7);
    CHECK(memory.allocate({}, 0) == nullptr);
    memory.deallocate({}, nullptr, 0);
    CHECK_THROWS_AS(memory.allocate(a, 1_TiB * 1024 * 1024), out_of_memory);
    memory.deallocate(a, q, 5);
    void* const again = memory.allocate(a, 1000);
    memory.deallocate(a, p, 1000);
    memory.deallocate_sync(r, 7);
    memory.deallocate(a, again, 1000);
    CHECK(memory->flush());
  }
  auto const e = s.events();
  REQUIRE(e.size() == 8);
  CHECK(e[0].bytes == 1000);
  CHECK(e[1].bytes == 5);
  CHECK(e[2].bytes == 7);
  CHECK(e[0].stream != e[1].stream);
  CHECK(e[2].stream == 0);
  CHECK(e[0].stream != 0);
  CHECK(e[3].kind == trace_event_kind::free);
  CHECK(e[3].id == e[1].id);
  CHECK(e[4].stream == e[0].stream);
  CHECK(e[5].id == e[0].id);
  CHECK(e[6].id == e[2].id);
  CHECK(e[7].id == e[4].id);
}

TEST_CASE("recorded ends a block that was freed below before its address is live again", "[policy][traced]") {
  scratch const s;
  {
    auto pool = sim_pages{} | pooled{};
    auto fences = pool | fenced{};
    auto memory = fences | traced(s.file);
    void* const p = memory.allocate({}, 2_MiB);
    fences.deallocate({}, p, 2_MiB);
    // The same memory, at another address within it: fences are as wide as the alignment.
    void* const q = memory.allocate({}, 2_MiB - 512, 512);
    CHECK(static_cast<char*>(q) - static_cast<char*>(p) == 256);
    memory.deallocate({}, q, 2_MiB - 512, 512);
    CHECK(memory->flush());
  }
  auto const e = s.events();
  REQUIRE(e.size() == 4);
  CHECK(e[1].kind == trace_event_kind::free);
  CHECK(e[1].id == e[0].id);
  CHECK(e[2].kind == trace_event_kind::allocate);
  CHECK(e[3].id == e[2].id);
}

TEST_CASE("recorded treats the null stream and the legacy handle as one stream", "[policy][traced]") {
  scratch const s;
  sim_machine const machine;
  {
    auto memory = sim_malloc(machine.driver()) | traced(s.file);
    stream_ref const legacy = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{1}));
    for (stream_ref const on : {stream_ref{}, legacy}) memory.deallocate(on, memory.allocate(on, 10), 10);
  }
  auto const e = s.events();
  REQUIRE(e.size() == 4);
  CHECK(e[0].stream == 0);
  CHECK(e[2].stream == 0);
}

TEST_CASE("recorded writes a consistent order of events from several threads", "[policy][traced][threads]") {
  scratch const s;
  {
    auto memory = host_memory{} | pooled{} | traced(s.file);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) memory.deallocate({}, memory.allocate({}, 100), 100);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::map<std::uint64_t, int> state;
  int wrong = 0;
  auto const events = s.events();
  for (auto const& e : events) {
    int& now = state[e.id];
    if (now != (e.kind == trace_event_kind::allocate ? 0 : 1)) ++wrong;
    ++now;
  }
  CHECK(events.size() == 4000);
  CHECK(state.size() == 2000);
  CHECK(wrong == 0);
}

TEST_CASE("recorded throws if its file cannot be opened", "[policy][traced]") {
  CHECK_THROWS_AS(host_memory{} | traced("/nowhere/at/all/trace.txt"), std::system_error);
  auto const no_path = [] { (void)(host_memory{} | traced(static_cast<char const*>(nullptr))); };
  auto const no_file = [] { (void)(host_memory{} | traced(static_cast<std::FILE*>(nullptr))); };
  for (auto const& call : {std::function<void()>(no_path), std::function<void()>(no_file)}) {
    try {
      call();
      FAIL("no exception was thrown");
    } catch (file_error const& error) {
      CHECK(error.code() == std::errc::invalid_argument);
      CHECK(std::string(error.what()).find("the trace needs a path or an open file") != std::string::npos);
    }
  }
}

TEST_CASE("recorded writes the trace format with its legend first", "[policy][traced][trace_format]") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    auto memory = sim_pages{} | pooled{} | traced{file};
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
}

TEST_CASE("recorded stops recording when a write fails and keeps serving", "[policy][traced]") {
  std::FILE* const probe = std::fopen("/dev/full", "w");
  if (probe == nullptr) return;  // not Linux
  std::fclose(probe);
  bool const flushed = GENERATE(true, false);
  auto memory = host_memory{} | traced("/dev/full");
  // More than the buffer holds, so that a write fails before flush().
  for (int i = 0; i < (flushed ? 1 : 2000); ++i) {
    void* const p = memory.allocate({}, 100);
    REQUIRE(p != nullptr);
    memory.deallocate({}, p, 100);
  }
  CHECK_FALSE(memory->flush());
  CHECK_FALSE(memory->flush());  // still fails: a trace with a gap would be of another program
}

TEST_CASE("recorded distinguishes a stream that the driver no longer knows by its handle",
          "[policy][traced]") {
  scratch const s;
  sim_machine const machine;
  {
    auto memory = sim_malloc(machine.driver()) | traced(s.file);
    stream_ref a;
    REQUIRE(machine.driver().create_stream(a).ok());
    REQUIRE(machine.driver().destroy_stream(a).ok());
    stream_ref const gone = stream_ref::from(a.handle());
    void* const p = memory.allocate(gone, 10);
    void* const q = memory.allocate({}, 10);
    memory.deallocate({}, p, 10);
    memory.deallocate({}, q, 10);
  }
  auto const e = s.events();
  REQUIRE(e.size() == 4);
  CHECK(e[0].stream == 1);
  CHECK(e[1].stream == 0);
}

TEST_CASE("recorded survives a final flush that fails", "[policy][traced]") {
  std::FILE* const borrowed = std::fopen("/dev/full", "w");
  if (borrowed == nullptr) return;  // not Linux
  // Little enough that only the destructor writes it.
  for (bool const owned : {true, false}) {
    auto memory = owned ? host_memory{} | traced("/dev/full") : host_memory{} | traced(borrowed);
    memory.deallocate({}, memory.allocate({}, 100), 100);
  }
  CHECK(std::fclose(borrowed) == 0);  // still the caller's to close
}

TEST_CASE("recorded gives streams beyond the format's last number that number", "[policy][traced]") {
  scratch const s;
  constexpr std::uint32_t streams = most_trace_streams + 1000;
  {
    auto memory = host_memory{} | traced(s.file);
    auto const use = [&](std::uint32_t i) {
      stream_ref const on =
          stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{i} * 4096), std::uint64_t{i} * 4096);
      memory.deallocate(on, memory.allocate(on, 10), 10);
    };
    for (std::uint32_t i = 1; i <= streams; ++i) use(i);
    use(1);  // the first streams keep their numbers
    CHECK(memory->flush());
  }
  std::vector<std::uint64_t> numbers;
  for (trace_event const& e : s.events()) {
    if (e.kind == trace_event_kind::allocate) numbers.push_back(e.stream);
  }
  REQUIRE(numbers.size() == streams + 1);
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < streams; ++i) {
    if (numbers[i] != std::min(i + 1, most_trace_streams - 1)) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(numbers.back() == 1);
}

TEST_CASE("recorded writes each event once, also if the program forks", "[policy][traced][fork]") {
  scratch const s;
  auto memory = host_memory{} | traced(s.file);
  void* const p = memory.allocate({}, 10);
  CHECK(child_of([&] {
          memory.deallocate({}, p, 10);  // of the child's copy
          return std::fflush(s.file) == 0;
        }) == 0);
  memory.deallocate({}, p, 10);
  CHECK(memory->flush());
  auto const events = s.events();
  REQUIRE(events.size() == 2);
  CHECK((events[0].kind == trace_event_kind::allocate && events[1].kind == trace_event_kind::free));
}

TEST_CASE("recorded keeps a capture valid on the stream of a call", "[policy][traced][memory_pools]") {
  scratch const s;
  sim_machine const machine;
  tarn_test::test_stream const stream(machine.driver());
  stream_ref const bare = stream_ref::from(stream_ref(stream).handle());
  auto memory = sim_async(machine.driver()) | traced(s.file);
  REQUIRE(machine.begin_capture(stream).ok());
  memory.deallocate(bare, memory.allocate(bare, 1000), 1000);
  sim_graph graph;
  CHECK(machine.end_capture(stream, graph).ok());
  CHECK(memory->flush());
  CHECK(s.events().size() == 2);
}
