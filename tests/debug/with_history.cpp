// SPDX-License-Identifier: Apache-2.0
// debug/with_history with history_log, location_table and call_stack; policy/tagged is in
// tests/policy/tagged.cpp.
#include "tarn/debug/with_history.hpp"

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

namespace {

/// A clock that advances by 10 at each call.
std::uint64_t ticking() {
  static std::atomic<std::uint64_t> now{1'000'000};
  return now += 10;
}

template <class Memory>
memory_history record_of(Memory& memory) {
  return nearest(memory, [](auto& l) -> decltype(l.record()) { return l.record(); });
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

}  // namespace

TEST_CASE("with_history meets the resource contract", "[policy][with_history]") {
  tarn_test::resource_contract([] { return host_memory{} | with_history{.history = 8}; });
  tarn_test::resource_contract([] { return sim_pages{} | pooled{} | with_history{}; });
}

TEST_CASE("with_history records the sizes, stream, line and time of a live block", "[policy][with_history]") {
  sim_machine const machine;
  basic_stream<sim_driver> const a(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | with_history{.history = 0, .clock = &ticking};
  void* const p = memory.allocate(a, 1000);
  int const line = __LINE__ - 1;
  void* const q = memory.allocate_sync(3_MiB);
  CHECK(memory.allocate(a, 0) == nullptr);
  memory_history r = record_of(memory);
  REQUIRE(r.live.size() == 2);
  bool const first = r.live[0].address == reinterpret_cast<std::uintptr_t>(p);
  history_block const& b = r.live[first ? 0 : 1];
  history_block const& c = r.live[first ? 1 : 0];
  CHECK(r.live[0].address < r.live[1].address);
  CHECK(b.address == reinterpret_cast<std::uintptr_t>(p));
  CHECK(b.requested == 1000);
  CHECK(b.bytes == memory->upstream()->block_bytes(1000, default_alignment));
  CHECK(b.bytes > b.requested);
  stream_id id = 0;
  REQUIRE(machine.driver().identify(a, id).ok());
  CHECK(b.stream == id);
  CHECK(c.stream != id);
  CHECK(c.requested == 3_MiB);
  CHECK(b.time_ns == 10);
  CHECK(c.time_ns == 20);
  CHECK(r.now_ns == 30);
  CHECK(r.started_ns >= 1'000'010);
  REQUIRE(r.locations.at(b.location).size() == 1);
  CHECK(file_name(r.locations[b.location][0].file) == "with_history.cpp");
  CHECK(r.locations[b.location][0].line == line);
  CHECK(r.locations[b.location][0].function == std::string(__func__));
  CHECK(r.locations[0].empty());
  CHECK(r.events.empty());
  memory.deallocate(a, p, 1000);
  memory.deallocate_sync(q, 3_MiB);
  r = record_of(memory);
  CHECK(r.live.empty());
  CHECK(r.forgotten_events == 4);
}

TEST_CASE("with_history by default keeps the latest 100,000 events", "[policy][with_history]") {
  auto memory = host_memory{} | with_history{};
  for (int i = 0; i < 50'001; ++i) memory.deallocate({}, memory.allocate({}, 10), 10);
  memory_history const r = record_of(memory);
  CHECK(r.events.size() == 100'000);
  CHECK(r.forgotten_events == 2);
  CHECK(sizeof(history_event) == 56);
  CHECK(memory->host_bytes() >= 5'600'000);
  CHECK(memory->host_bytes() < 5'700'000);
}

TEST_CASE("with_history records the identity of a stream that came as a handle, and asks for it once",
          "[policy][with_history]") {
  sim_machine const machine;
  basic_stream const stream(machine.driver(0));
  stream_ref const handle{stream.get()};
  REQUIRE(handle.id() == stream_ref::unknown_id);
  stream_id id = 0;
  REQUIRE(machine.driver(0).identify(handle, id).ok());
  auto memory = sim_malloc{machine.driver(0)} | pooled{} | with_history{.history = 4};
  void* const p = memory.allocate(handle, 1000);
  CHECK(record_of(memory).live.at(0).stream == id);
  auto const before = machine.calls()[driver_call::identify];
  void* const q = memory.allocate(handle, 1000);
  CHECK(machine.calls()[driver_call::identify] == before + 1);
  memory.deallocate(handle, p, 1000);
  memory.deallocate(handle, q, 1000);
  for (history_event const& e : record_of(memory).events) CHECK(e.stream == id);
}

TEST_CASE("with_history by default counts nanoseconds since its start, and the start since 1970",
          "[policy][with_history]") {
  auto memory = host_memory{} | with_history{};
  void* const p = memory.allocate({}, 10);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  memory_history const r = record_of(memory);
  auto const now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  auto const started = static_cast<std::int64_t>(r.started_ns);
  CHECK(started <= now.count());
  CHECK(started > now.count() - 3'600'000'000'000);
  CHECK(r.now_ns >= r.live.at(0).time_ns + 3'000'000);
  memory.deallocate({}, p, 10);
}

TEST_CASE("with_history never records decreasing times, even if its clock goes back",
          "[policy][with_history]") {
  static std::uint64_t at = 0;
  at = 100;
  auto memory = host_memory{} | with_history{.history = 4, .clock = [] { return at; }};
  at = 150;
  void* const p = memory.allocate({}, 10);
  at = 140;
  memory.deallocate({}, p, 10);
  memory_history const r = record_of(memory);
  CHECK(r.started_ns == 100);
  REQUIRE(r.events.size() == 2);
  CHECK(r.events[0].time_ns == 50);
  CHECK(r.events[1].time_ns == 50);
  CHECK(r.now_ns == 50);
}

TEST_CASE("with_history records the line of a buffer's caller through the policies between",
          "[policy][with_history]") {
  auto memory = sim_pages{} | pooled{} | with_history{.history = 16} | limited{1_GiB} | tracked{};
  auto buffer = make_device_buffer<float>(memory, 1000, stream_ref{});
  int const line = __LINE__ - 1;
  buffer.resize(5000);
  buffer.reset();
  memory_history const r = record_of(memory);
  REQUIRE(r.events.size() == 4);
  auto const line_of = [&](std::size_t i) {
    auto const& frames = r.locations.at(r.events[i].location);
    return frames.empty() ? 0 : frames[0].line;
  };
  CHECK(line_of(0) == line);
  CHECK(line_of(1) == line + 2);
  CHECK(line_of(2) == line + 2);  // resize() frees the old block
}

TEST_CASE("with_history keeps the latest events, oldest first, and counts the forgotten ones",
          "[policy][with_history]") {
  sim_machine const machine;
  basic_stream<sim_driver> const a(machine.driver());
  basic_stream<sim_driver> const b(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | with_history{.history = 3, .clock = &ticking};
  void* const p = memory.allocate(a, 100);
  void* const q = memory.allocate(a, 200);
  memory_history r = record_of(memory);
  CHECK(r.events.size() == 2);
  CHECK(r.forgotten_events == 0);
  memory.deallocate(b, p, 100);
  memory.deallocate(a, q, 200);
  r = record_of(memory);
  REQUIRE(r.events.size() == 3);
  CHECK(r.forgotten_events == 1);
  CHECK(r.events[0].kind == history_event_kind::allocate);
  CHECK(r.events[0].requested == 200);
  CHECK(r.events[1].kind == history_event_kind::free);
  CHECK(r.events[1].address == reinterpret_cast<std::uintptr_t>(p));
  CHECK(r.events[1].requested == 100);
  CHECK(r.events[1].bytes == memory->upstream()->block_bytes(100, default_alignment));
  CHECK(r.events[1].stream != r.events[0].stream);  // each event has the stream of its own call
  CHECK(r.events[2].address == reinterpret_cast<std::uintptr_t>(q));
  CHECK(r.events[1].time_ns < r.events[2].time_ns);
  CHECK(r.events[2].time_ns <= r.now_ns);
}

TEST_CASE("with_history records a refusal as an event and adds the largest tags to its error",
          "[policy][with_history]") {
  auto memory = host_memory{} | limited{10_MiB} | with_history{.history = 8};
  tag const weights("weights of the refused");
  void* const p = memory.allocate({}, 4_MiB, 256, weights);
  void* const q = memory.allocate({}, 1_MiB);
  try {
    tag_scope const here("refused");
    (void)memory.allocate({}, 8_MiB);
    FAIL("not refused");
  } catch (out_of_memory const& e) {
    CHECK(std::string(e.what()).find("By tag: weights of the refused 4 MiB, untagged 1 MiB.") !=
          std::string::npos);
    CHECK(std::string(e.report().refused_by) == "limited");
    CHECK(e.asked() == 8_MiB);
    CHECK(std::string(e.report().biggest_tags[0].name) == "weights of the refused");
    CHECK(e.report().biggest_tags[0].bytes == 4_MiB);
    CHECK(e.report().biggest_tags[1].bytes == 1_MiB);
    CHECK(e.report().biggest_tags[2].name == nullptr);
  }
  memory_history const r = record_of(memory);
  REQUIRE(r.events.size() == 3);
  history_event const& e = r.events.back();
  CHECK(e.kind == history_event_kind::refused);
  CHECK(e.address == 0);
  CHECK(e.bytes == 0);
  CHECK(e.requested == 8_MiB);
  CHECK(r.tags.at(e.tag).name == "refused");
  CHECK(r.tags[e.tag].allocations == 0);
  CHECK(r.locations.at(e.location).at(0).function == std::string(__func__));
  memory.deallocate({}, p, 4_MiB);
  memory.deallocate({}, q, 1_MiB);
}

TEST_CASE("with_history does not change the text of an error if no tag was ever used",
          "[policy][with_history]") {
  auto const text_of = [](auto memory) -> std::string {
    void* const p = memory.allocate({}, 1_MiB);
    std::string text;
    try {
      (void)memory.allocate({}, 8_MiB);
    } catch (out_of_memory const& e) {
      text = e.what();
    }
    memory.deallocate({}, p, 1_MiB);
    return text;
  };
  std::string const plain = text_of(host_memory{} | limited{5_MiB});
  std::string const seen = text_of(host_memory{} | limited{5_MiB} | with_history{});
  REQUIRE(plain.find("refused") != std::string::npos);
  // The text before it has the stream's id, which the watched layer has queried.
  CHECK(plain.substr(plain.find("refused")) == seen.substr(seen.find("refused")));
}

TEST_CASE("with_history bounds the text of an error with the longest tags", "[policy][with_history]") {
  auto memory = host_memory{} | limited{10_MiB} | with_history{};
  std::vector<void*> blocks;
  for (char const c : {'x', 'y', 'z'})
    blocks.push_back(memory.allocate({}, 1_MiB, 256, tag(std::string(200, c))));
  try {
    (void)memory.allocate({}, 1_TiB * 1024 * 1024);
    FAIL("not refused");
  } catch (out_of_memory const& e) {
    std::string const text = e.what();
    CHECK(text.find(std::string(63, 'x') + " 1 MiB") != std::string::npos);
    CHECK(text.find(std::string(64, 'x')) == std::string::npos);
    CHECK(text.find("check the size for overflow.") != std::string::npos);  // the end is not cut off
  }
  for (void* p : blocks) memory.deallocate({}, p, 1_MiB);
}

TEST_CASE("with_history counts bytes, peaks and blocks for each tag", "[policy][with_history]") {
  auto memory = sim_pages{} | pooled{} | with_history{};
  tag const one("counted one");
  tag const two("counted two");
  void* const p = memory.allocate({}, 1_MiB, 256, one);
  void* const q = memory.allocate({}, 2_MiB, 256, one);
  void* const r = memory.allocate({}, 1000, 256, two);
  memory.deallocate({}, q, 2_MiB);
  memory_history const all = record_of(memory);
  REQUIRE(all.tags.size() == 3);
  CHECK(all.tags[0].name == "untagged");
  CHECK(all.tags[0].allocations == 0);
  history_tag const& t = all.tags[1];
  CHECK(t.name == "counted one");
  CHECK(t.bytes == 1_MiB);
  CHECK(t.peak_bytes == 3_MiB);
  CHECK(t.requested == 1_MiB);
  CHECK(t.blocks == 1);
  CHECK(t.allocations == 2);
  CHECK(all.tags[2].requested == 1000);
  CHECK(all.tags[2].bytes == memory->upstream()->block_bytes(1000, 256));
  auto const again = memory->tags();
  REQUIRE(again.size() == 3);
  CHECK(again[1].name == t.name);
  CHECK(again[1].peak_bytes == t.peak_bytes);
  void* const s = memory.allocate({}, 1_MiB, 256, one);
  CHECK(memory->tags()[1].peak_bytes == 3_MiB);
  memory.deallocate({}, s, 1_MiB);
  memory->reset_tag_peaks();
  CHECK(memory->tags()[1].peak_bytes == 1_MiB);
  memory.deallocate({}, p, 1_MiB);
  memory.deallocate({}, r, 1000);
  for (auto const& left : memory->tags()) {
    CHECK(left.bytes == 0);
    CHECK(left.requested == 0);
    CHECK(left.blocks == 0);
  }
}

TEST_CASE("with_history does not list an address twice that was freed without it", "[policy][with_history]") {
  auto pool = host_memory{} | pooled{};
  auto memory = pool | with_history{.history = 8};
  void* const p = memory.allocate({}, 1000, 256, tag("around"));
  pool.deallocate({}, p, 1000);  // around the watched layer
  void* const q = memory.allocate({}, 1000, 256, tag("around"));
  REQUIRE(p == q);
  memory_history const r = record_of(memory);
  CHECK(r.live.size() == 1);
  CHECK(r.tags.at(1).blocks == 1);
  CHECK(r.tags[1].allocations == 2);
  REQUIRE(r.events.size() == 3);
  CHECK(r.events[1].kind == history_event_kind::free);
  memory.deallocate({}, q, 1000);
  // A pointer that was never seen passes through.
  void* const other = pool.allocate({}, 50);
  memory.deallocate({}, other, 50);
  CHECK(record_of(memory).events.size() == 4);
}

TEST_CASE("with_history adds a block after its allocation and removes it before its deallocation",
          "[policy][with_history]") {
  std::function<void()> look = [] {};
  std::vector<std::size_t> live;
  auto memory = host_memory{} | logged{[&](call_record const&) { look(); }} | with_history{};
  look = [&] { live.push_back(record_of(memory).live.size()); };
  memory.deallocate({}, memory.allocate({}, 100), 100);
  memory.deallocate_sync(memory.allocate_sync(100), 100);
  CHECK(live == std::vector<std::size_t>{0, 0, 0, 0});
}

TEST_CASE("with_history records the calls of several threads in a consistent order",
          "[policy][with_history][threads]") {
  auto memory = host_memory{} | pooled{} | with_history{.history = 20'000};
  std::vector<std::thread> threads;
  std::atomic<bool> stop{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      tag_scope const mine("thread " + std::to_string(t));
      for (int i = 0; i < 1000; ++i) memory.deallocate({}, memory.allocate({}, 100), 100);
    });
  }
  std::thread looking([&] {
    while (!stop) {
      memory_history const r = record_of(memory);
      std::size_t blocks = 0;
      for (auto const& t : r.tags) blocks += t.blocks;
      if (blocks != r.live.size()) stop = true;
    }
  });
  for (auto& thread : threads) thread.join();
  CHECK_FALSE(stop.exchange(true));
  looking.join();
  memory_history const r = record_of(memory);
  REQUIRE(r.events.size() == 8000);
  CHECK(r.live.empty());
  std::set<std::uintptr_t> live;
  std::map<std::uint32_t, int> of_tag;
  int wrong = 0;
  std::uint64_t last = 0;
  for (auto const& e : r.events) {
    bool const sound =
        e.kind == history_event_kind::allocate ? live.insert(e.address).second : live.erase(e.address) == 1;
    wrong += sound && e.time_ns >= last ? 0 : 1;
    last = e.time_ns;
    ++of_tag[e.tag];
  }
  CHECK(wrong == 0);
  CHECK(of_tag.size() == 4);
  for (auto const& [t, events] : of_tag) CHECK(events == 2000);
}

TEST_CASE("with_history captures a stack at each call and names frames only in record",
          "[policy][with_history][call_stack]") {
  static std::atomic<int> captured{0};
  static std::atomic<int> named{0};
  stack_hooks const hooks{[](void** frames, std::size_t most) {
                            ++captured;
                            if (most < 2) return most;
                            frames[0] = reinterpret_cast<void*>(std::uintptr_t{0x1000});
                            frames[1] = reinterpret_cast<void*>(std::uintptr_t{0x2000});
                            return std::size_t{2};
                          },
                          [](void* frame, history_frame& out) {
                            ++named;
                            out.function =
                                frame == reinterpret_cast<void*>(std::uintptr_t{0x1000}) ? "inner" : "outer";
                          }};
  auto memory = host_memory{} | with_history{.history = 4, .stacks = hooks};
  void* p = nullptr;
  for (int i = 0; i < 2; ++i) {
    p = memory.allocate({}, 100);
    if (i == 0) memory.deallocate({}, p, 100);
  }
  CHECK(captured == 4);  // one at the construction of the layer
  CHECK(named == 0);
  memory_history const r = record_of(memory);
  CHECK(r.locations.size() == 3);  // two lines, each stored once
  auto const& frames = r.locations.at(r.live.at(0).location);
  REQUIRE(frames.size() == 3);
  CHECK(file_name(frames[0].file) == "with_history.cpp");
  CHECK(frames[1].function == "inner");
  CHECK(frames[2].function == "outer");
  memory.deallocate({}, p, 100);
  // Without a name hook the address is the name.
  auto bare = host_memory{} | with_history{.stacks = {hooks.capture, nullptr}};
  void* const q = bare.allocate({}, 100);
  CHECK(record_of(bare).locations.at(1).at(1).function == "0x1000");
  bare.deallocate({}, q, 100);
}

TEST_CASE("with_history keeps no more places than its option allows",
          "[policy][with_history][location_table]") {
  auto memory = host_memory{} | with_history{.locations = 1};
  void* const p = memory.allocate({}, 10);
  void* const q = memory.allocate({}, 10);
  memory_history const r = record_of(memory);
  CHECK(r.locations.size() == 2);
  CHECK(r.live.at(0).location + r.live.at(1).location == 1);
  memory.deallocate({}, p, 10);
  memory.deallocate({}, q, 10);
}

TEST_CASE("history_log::copy copies nothing if more was recorded than there is room for",
          "[policy][with_history][history_log]") {
  detail::history_log log(10, 10);
  detail::history_log::sizes const room = log.count();
  int copies = 0;
  auto const take = [&](detail::history_log const&) { ++copies; };
  CHECK(log.copy(room, take));
  history_block b;
  b.address = 0x1000;
  log.note_allocation(b, {});
  CHECK_FALSE(log.copy(room, take));
  CHECK(copies == 1);
}

TEST_CASE("with_history finds each of many live blocks", "[policy][with_history][history_log]") {
  auto memory = host_memory{} | pooled{} | with_history{};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 3000; ++i) blocks.push_back(memory.allocate({}, 100 + i));
  for (std::size_t i = 0; i < 3000; i += 2) memory.deallocate({}, std::exchange(blocks[i], nullptr), 100 + i);
  for (std::size_t i = 0; i < 3000; i += 4) blocks[i] = memory.allocate({}, 100 + i);
  memory_history const r = record_of(memory);
  std::map<std::uintptr_t, std::size_t> known;
  for (auto const& b : r.live) known[b.address] = b.requested;
  std::size_t live = 0;
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < 3000; ++i) {
    if (blocks[i] == nullptr) continue;
    ++live;
    wrong += known[reinterpret_cast<std::uintptr_t>(blocks[i])] == 100 + i ? 0 : 1;
    memory.deallocate({}, blocks[i], 100 + i);
  }
  CHECK(wrong == 0);
  CHECK(r.live.size() == live);
  CHECK(record_of(memory).live.empty());
}

TEST_CASE("with_history bounds its host memory by the peak number of live blocks",
          "[policy][with_history][history_log]") {
  auto memory = host_memory{} | pooled{} | with_history{.history = 100};
  std::size_t const empty = memory->host_bytes();
  CHECK(empty >= 100 * sizeof(history_event));
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(memory.allocate({}, 300));
  std::size_t const full = memory->host_bytes();
  CHECK(full > empty + 1000 * 80);
  CHECK(full < empty + 1000 * 160 + 4096);  // plus places and tags
  for (int i = 0; i < 5; ++i) {
    for (void* p : blocks) memory.deallocate({}, p, 300);
    for (void*& p : blocks) p = memory.allocate({}, 300);
  }
  std::size_t const later = memory->host_bytes();
  for (void* p : blocks) memory.deallocate({}, p, 300);
  CHECK(later <= full + 4096);
  CHECK(memory->host_bytes() == later);
}
