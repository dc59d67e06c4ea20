// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/checked.hpp"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/resource_contract.hpp"
#include "driver/calling_driver.hpp"
#include "driver/faulty.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::holds;
using tarn_test::test_stream;

namespace {
/// Collects the reported misuses for the duration of a test.
struct reported {
  struct one {
    misuse_kind kind;
    std::string text;
  };
  static std::vector<one>& all() {
    static std::vector<one> list;
    return list;
  }
  reported() : before(set_misuse_handler([](misuse const& m) { all().push_back({m.kind(), m.what()}); })) {
    all().clear();
  }
  ~reported() { (void)set_misuse_handler(before); }
  reported(reported const&) = delete;
  reported& operator=(reported const&) = delete;

  /// The message of the only misuse reported since the last call; checks its kind.
  static std::string one_of(misuse_kind kind) {
    REQUIRE(all().size() == 1);
    CHECK(all()[0].kind == kind);
    std::string const text = all()[0].text;
    all().clear();
    return text;
  }
  misuse_handler before;
};
bool has(std::string const& text, std::string const& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}
std::string line(int number) {
  return "checked.cpp:" + std::to_string(number);
}
}  // namespace

TEST_CASE("checked names the user's lines for blocks of owners, and none of tarn's", "[policy][checked]") {
  reported const log;
  sim_machine const machine{sim_options{}};
  auto memory = sim_pages{machine.driver(0)} | pooled{} | checked{};
  void* p = nullptr;
  {
    auto buffer = make_device_buffer<char>(memory, 1000, stream_ref{});
    p = buffer.data();
  }
  memory.deallocate(stream_ref{}, p, 1000);
  std::string const text = reported::one_of(misuse_kind::double_free);
  CHECK(has(text, "checked.cpp"));
  CHECK(text.find(".hpp") == std::string::npos);
}

TEST_CASE("checked meets the resource contract and reports nothing in it", "[policy][checked]") {
  reported const t;
  SECTION("over host memory") {
    tarn_test::resource_contract([] { return host_memory{} | checked{}; });
  }
  SECTION("over a pool of pages") {
    tarn_test::resource_contract([] { return sim_pages{} | pooled{} | checked{}; });
  }
  SECTION("under other policies") {
    tarn_test::resource_contract([] { return sim_pages{} | pooled{} | checked{} | tracked{}; });
  }
  CHECK(reported::all().empty());
}

TEST_CASE("checked asks the pool about a block as a whole, and about other memory as it is",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  auto const of_pool = [&](void* p) { return detail::block_address_of(memory->upstream(), p); };
  void* const live = memory.allocate(stream, 3_MiB);
  void* const freed = memory.allocate(stream, 3_MiB);
  memory.deallocate(stream, freed, 3_MiB);
  CHECK(memory->block_address(live) < live);
  CHECK(memory->block_address(freed) == of_pool(freed));
  CHECK(memory->block_address(nullptr) == of_pool(nullptr));
  memory.deallocate(stream, live, 3_MiB);
}

TEST_CASE("checked reports a double free with the places of the allocation and the first free",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  int const allocated = __LINE__ + 1;
  void* const p = memory.allocate(stream, 1000);
  int const freed = __LINE__ + 1;
  memory.deallocate(stream, p, 1000);
  CHECK(reported::all().empty());
  int const again = __LINE__ + 1;
  memory.deallocate(stream, p, 1000);
  std::string text = reported::one_of(misuse_kind::double_free);
  has(text, "allocated: " + line(allocated));
  has(text, "; freed: " + line(freed));
  has(text, "; this free: " + line(again));
  has(text, "call 1, stream " + std::to_string(stream_ref(stream).id()));
  has(text, "of 1000 bytes");
  // It is also recognized after the block has left the quarantine.
  auto second = sim_pages(machine.driver()) | pooled{} | checked{.quarantine_blocks = 1};
  void* const q = second.allocate(stream, 1000);
  second.deallocate(stream, q, 1000);
  second.deallocate(stream, second.allocate(stream, 1000), 1000);
  second.deallocate(stream, q, 1000);
  CHECK(has(reported::one_of(misuse_kind::double_free), "was freed again, in call 5"));
}

TEST_CASE("checked reports and drops a free with a wrong size or alignment, or of a foreign or inner pointer",
          "[policy][checked]") {
  reported const t;
  auto memory = host_memory{} | limited{1_MiB} | checked{};
  auto& limit = memory->upstream().layer();
  auto* const p = static_cast<unsigned char*>(memory.allocate({}, 1000));
  std::size_t const used = limit.used();
  memory.deallocate({}, p, 999);
  CHECK(has(reported::one_of(misuse_kind::wrong_size), "of 1000 bytes was freed with a different size: 999"));
  memory.deallocate({}, p, 1000, 512);
  CHECK(has(reported::one_of(misuse_kind::wrong_alignment), "with a different alignment: 512"));
  memory.deallocate({}, p + 256, 744);
  CHECK(has(reported::one_of(misuse_kind::foreign_pointer), "not its start, at offset 256"));
  int local = 0;
  int* volatile stranger = &local;  // volatile: otherwise the compiler warns
  memory.deallocate({}, stranger, 4);
  CHECK(has(reported::one_of(misuse_kind::foreign_pointer), "was freed but not allocated by this resource"));
  CHECK(limit.used() == used);
  memory.deallocate({}, p, 1000);
  CHECK(reported::all().empty());
}

TEST_CASE(
    "checked reports with its history a block freed to a resource of another device, or to another resource",
    "[policy][checked]") {
  reported const t;
  sim_options options;
  options.devices = 2;
  sim_machine const machine(options);
  auto first = sim_pages(machine.driver(device_id{0})) | pooled{} | checked{};
  auto second = sim_pages(machine.driver(device_id{1})) | pooled{} | checked{};
  auto third = sim_pages(machine.driver(device_id{0})) | pooled{} | checked{};
  int const allocated = __LINE__ + 1;
  void* const p = first.allocate({}, 100);
  second.deallocate({}, p, 100);
  std::string const text = reported::one_of(misuse_kind::wrong_device);
  has(text, "belongs to another device but was freed on device 1; allocated: " + line(allocated));
  third.deallocate({}, p, 100);
  has(reported::one_of(misuse_kind::foreign_pointer), "belongs to another resource");
  first.deallocate({}, p, 100);
  CHECK(reported::all().empty());
}

TEST_CASE("checked reports a write past either end at the free and in check_all, after the stream's work",
          "[policy][checked]") {
  std::ptrdiff_t const where = GENERATE(-1, -256, 1000, 1255);
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  CHECK(memory->check_all() == 0);
  REQUIRE(machine.launch(stream, 5'000'000, [p, where] { p[where] = 1; }).ok());
  std::string const said = where < 0 ? "was written before its start, at distance " + std::to_string(-where)
                                     : "was written past its end, at offset " + std::to_string(where);
  CHECK(memory->check_all() == 1);
  has(reported::one_of(misuse_kind::overrun), said);
  REQUIRE(machine.launch(stream, 5'000'000, [p, where] { p[where] = 2; }).ok());
  memory.deallocate(stream, p, 1000);
  has(reported::one_of(misuse_kind::overrun), said);
}

TEST_CASE("checked reports a write after the free in check_all and when the block leaves the quarantine",
          "[policy][checked]") {
  std::size_t const bytes = GENERATE(std::size_t{100}, std::size_t{100'000}, 3_MiB);
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  test_stream const other(machine.driver());
  {
    auto memory = sim_pages(machine.driver()) | pooled{} | checked{.quarantine_blocks = 2};
    auto* const p = static_cast<unsigned char*>(memory.allocate(stream, bytes));
    memory.deallocate(stream, p, bytes);
    CHECK(memory->check_all() == 0);
    p[bytes - 1] = 1;  // a write by the host
    CHECK(memory->check_all() == 1);
    has(reported::one_of(misuse_kind::use_after_free),
        "was written after it was freed, at offset " + std::to_string(bytes - 1));
    REQUIRE(machine.launch(other, 1000, [p] { p[7] = 1; }).ok());
    REQUIRE(machine.driver().synchronize_stream(other).ok());
    for (int i = 0; i < 2; ++i) memory.deallocate(stream, memory.allocate(stream, 50), 50);
    has(reported::one_of(misuse_kind::use_after_free), "at offset 7; allocated: ");
    auto* const q = static_cast<unsigned char*>(memory.allocate(stream, bytes));
    memory.deallocate(stream, q, bytes);
    q[0] = 1;
  }
  has(reported::one_of(misuse_kind::use_after_free), "at offset 0");  // reported at destruction
}

namespace {
/// Calls `act` once between checked's sleep() and that of the pool, as another thread may.
template <class Upstream>
class between_layer : public resource_adaptor<between_layer<Upstream>, Upstream> {
 public:
  between_layer(Upstream upstream, struct between const& options);
  std::size_t sleep(contents where) {
    std::exchange(*act_, [] {})();
    return nearest(this->upstream(), pool_call::sleep{where});
  }

 private:
  std::function<void()>* act_;
};
struct between {
  std::function<void()>* act;
  template <class Upstream>
  using layer = between_layer<Upstream>;
};
template <class Upstream>
between_layer<Upstream>::between_layer(Upstream upstream, between const& options)
    : resource_adaptor<between_layer<Upstream>, Upstream>(std::move(upstream)), act_(options.act) {}

/// Its record_stream() fails.
template <class Upstream>
class refusing_layer : public resource_adaptor<refusing_layer<Upstream>, Upstream> {
 public:
  refusing_layer(Upstream upstream, struct refusing const&);
  void record_stream(void*, std::size_t, stream_ref) { throw std::bad_alloc(); }
};
struct refusing {
  template <class Upstream>
  using layer = refusing_layer<Upstream>;
};
template <class Upstream>
refusing_layer<Upstream>::refusing_layer(Upstream upstream, refusing const&)
    : resource_adaptor<refusing_layer<Upstream>, Upstream>(std::move(upstream)) {}
}  // namespace

TEST_CASE("checked verifies no poison that sleep discards", "[policy][checked][sleep][pages]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  std::function<void()> act = [] {};
  auto memory = sim_pages(machine.driver()) | pooled{} | between{&act} | checked{};
  void* const p = memory.allocate(stream, 1_MiB);
  void* const live = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.driver().synchronize_device().ok());
  act = [&] { memory.deallocate(stream, p, 1_MiB); };
  (void)sleep(memory, contents::discarded);
  (void)wake(memory);
  CHECK(memory->check_all() == 0);
  memory.deallocate(stream, live, 1_MiB);
  // What is freed later is verified.
  auto* const q = static_cast<unsigned char*>(memory.allocate(stream, 3_MiB));
  memory.deallocate(stream, q, 3_MiB);
  CHECK(reported::all().empty());
  q[0] = 1;
  CHECK(memory->check_all() == 1);
  memory = decltype(memory)(nullptr);
  CHECK(reported::all().size() == 2);
}

// Through the default stream the read would invalidate a capture that begins at that moment.
TEST_CASE("checked reads its quarantine beside a capture", "[policy][checked][capture]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  stream_ref captured;
  REQUIRE(machine.create_blocking_stream(device_id{0}, captured).ok());
  std::function<void()> begin = nullptr;
  tarn_test::calling_driver const driver(machine.driver(), driver_call::is_capturing, begin);
  auto memory = basic_pages(driver) | pooled{} | checked{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  memory.deallocate(stream, p, 1000);
  p[7] = 1;
  bool const later = GENERATE(false, true);
  if (later) {
    begin = [&] { CHECK(machine.begin_capture(captured).ok()); };
  } else {
    REQUIRE(machine.begin_capture(captured).ok());
  }
  memory = decltype(memory)(nullptr);
  has(reported::one_of(misuse_kind::use_after_free), "at offset 7; allocated: ");
  if (later && begin != nullptr) return;  // it asked for no capture
  sim_graph graph;
  CHECK(machine.end_capture(captured, graph).ok());
}

TEST_CASE("checked verifies a block whose record_stream the pool refused", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver()), captured(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | refusing{} | checked{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  {
    graph_memory graphs(memory);
    capture_scope const scope(graphs, captured);
    REQUIRE(machine.begin_capture(captured).ok());
    CHECK_THROWS_AS(memory.record_stream(p, 1000, captured), std::bad_alloc);
    sim_graph graph;
    REQUIRE(machine.end_capture(captured, graph).ok());
  }
  REQUIRE(machine.driver().fill(stream, p + 1000, 1, 4).ok());
  memory.deallocate(stream, p, 1000);
  has(reported::one_of(misuse_kind::overrun), "was written past its end, at offset 1000");
}

TEST_CASE("checked reports nothing for work enqueued before the free, however late it runs",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  test_stream const other(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  REQUIRE(machine.launch(stream, 10'000'000, [p] { p[999] = 1; }).ok());
  REQUIRE(machine.launch(other, 50'000'000, [p] { p[0] = 1; }).ok());
  memory.record_stream(p, 1000, other);
  memory.deallocate(stream, p, 1000);
  CHECK(memory->check_all() == 0);
  CHECK(reported::all().empty());
}

TEST_CASE("checked reports leaks with their places at its destruction", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  int allocated = 0;
  {
    auto memory = sim_pages(machine.driver()) | pooled{} | checked{} | tracked{};
    memory.deallocate({}, memory.allocate({}, 10), 10);
    allocated = __LINE__ + 1;
    (void)memory.allocate({}, 2000);  // through another policy: the place is still this line
    (void)memory.allocate_sync(3000);
    (void)make_device<int>(memory, stream_ref{}).release();
  }
  REQUIRE(reported::all().size() == 3);
  for (auto const& one : reported::all()) CHECK(one.kind == misuse_kind::leak);
  has(reported::all()[0].text,
      "of 2000 bytes was not freed; number of leaks: 3; allocated: " + line(allocated));
  has(reported::all()[1].text,
      "of 3000 bytes was not freed; number of leaks: 3; allocated: " + line(allocated + 1));
  has(reported::all()[2].text,
      "of 4 bytes was not freed; number of leaks: 3; allocated: " + line(allocated + 2));
}

TEST_CASE("checked reports the memory of a pinned_buffer with the line that made the buffer",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  auto memory = sim_pinned_host(machine.driver()) | checked{};
  int const made = __LINE__ + 1;
  pinned_buffer<unsigned char, decltype(memory)> buffer(memory, 100);
  buffer.data()[100] = 1;
  buffer.reset();
  has(reported::one_of(misuse_kind::overrun), "allocated: " + line(made));
}

TEST_CASE("checked reports the memory of a device_buffer with the line that made or grew it",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  int made = 0;
  {
    auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
    made = __LINE__ + 1;
    device_buffer<int, decltype(memory)> buffer(memory, 10, stream_ref{});
    (void)buffer.release();
    (void)make_device_buffer<int>(memory, 20, stream_ref{}).release();
    std::vector<int> const host(30);
    (void)make_device_buffer<int>(memory, std::span<int const>(host), stream_ref{}).release();
    device_buffer<int, decltype(memory)> grown(memory);
    grown.resize(40);
    (void)grown.release();
    grown.reserve(50);
    auto copied = grown.clone(stream_ref{});
    (void)grown.release();
    copied.resize(60);
    auto const copy = copied.clone(stream_ref{});
    (void)copied.release();
    (void)copy.clone(stream_ref{}).release();
  }
  std::vector<std::pair<int, int>> const wanted{{40, 0},  {80, 2},   {120, 4}, {160, 6},
                                                {200, 8}, {240, 11}, {240, 14}};
  REQUIRE(reported::all().size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    has(reported::all()[i].text, "of " + std::to_string(wanted[i].first) + " bytes was not freed");
    has(reported::all()[i].text, "allocated: " + line(made + wanted[i].second));
  }
}

TEST_CASE("checked remembers the latest remembered_blocks freed blocks", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  auto memory =
      sim_pages(machine.driver()) | pooled{} | checked{.quarantine_blocks = 0, .remembered_blocks = 2};
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(memory.allocate({}, 1000));
  for (void* const p : blocks) memory.deallocate({}, p, 1000);
  memory.deallocate({}, blocks.back(), 1000);
  has(reported::one_of(misuse_kind::double_free), "freed again");
  memory.deallocate({}, blocks.front(), 1000);
  has(reported::one_of(misuse_kind::foreign_pointer), "was freed but not allocated by this resource");
  for (void*& p : blocks) p = memory.allocate({}, 1000);  // includes forgotten blocks
  std::size_t const reported_so_far = reported::all().size();
  for (void* const p : blocks) memory.deallocate({}, p, 1000);
  REQUIRE(reported::all().size() == reported_so_far);
}

TEST_CASE("checked_layer reports a leak without a place if it was not allocated through a handle",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;  // releases what is leaked on purpose
  {
    auto memory = sim_pages(machine.driver()) | pooled{};
    checked_layer<decltype(memory)> layer(std::move(memory));
    (void)layer.allocate({}, 100, 256);
  }
  has(reported::one_of(misuse_kind::leak), "at an unknown location");
}

TEST_CASE("location_scope sets the place of the calls below it, and the outermost one wins",
          "[policy][checked]") {
  reported const t;
  auto memory = host_memory{} | checked{};
  void* p = nullptr;
  int named = 0;
  {
    named = __LINE__ + 1;
    location_scope const here;
    location_scope const inner(source_location{"other.cpp", 1, "f"});
    p = memory.allocate({}, 100);
  }
  memory.deallocate({}, p, 99);
  std::string const text = reported::one_of(misuse_kind::wrong_size);
  has(text, "allocated: " + line(named));
  memory.deallocate({}, p, 100);
}

TEST_CASE("checked writes, waits for and verifies nothing while a graph is captured", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  void* const before = memory.allocate(stream, 1000);
  sim_graph graph;
  REQUIRE(machine.begin_capture(stream).ok());
  void* const p = memory.allocate(stream, 1000);
  REQUIRE(machine.launch(stream, 1000, {sim_writes(p, 1000)}).ok());
  memory.deallocate(stream, p, 1000);
  memory.deallocate(stream, before, 1000);
  memory.deallocate(stream, before, 1000);
  REQUIRE(machine.end_capture(stream, graph).ok());
  CHECK(machine.captured_calls() == 0);
  CHECK(graph.size() == 1);
  (void)reported::one_of(misuse_kind::double_free);
  void* const q = memory.allocate(stream, 1000);  // after the capture it works as before
  memory.deallocate(stream, q, 1000);
  CHECK(memory->check_all() == 0);
  CHECK(reported::all().empty());
}

TEST_CASE("checked and fenced report nothing of memory that is addresses only", "[policy][checked][fenced]") {
  reported const log;
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  auto const run = [&](auto memory) {
    test_stream const s(machine.driver());
    void* const p = memory.allocate(s, 1000);
    void* const q = memory.allocate(s, 3_MiB);
    memory.deallocate(s, p, 1000);
    CHECK(check_all(memory) == 0);
    memory.deallocate(s, q, 3_MiB);
    memory.trim(0);
    CHECK(reported::all().empty());
    memory.deallocate(s, q, 3_MiB);
    CHECK(reported::all().size() == 1);  // a double free needs no contents
    reported::all().clear();
    // Its pinned memory has contents, and fences.
    auto pinned = sim_pinned_host{machine.driver()} | checked{};
    auto* const bytes = static_cast<unsigned char*>(pinned.allocate_sync(10));
    bytes[10] = 1;
    pinned.deallocate_sync(bytes, 10);
    (void)reported::one_of(misuse_kind::overrun);
  };
  run(sim_pages{machine.driver()} | pooled{} | checked{});
  run(sim_pages{machine.driver()} | pooled{} | fenced{});
}

TEST_CASE("checked bounds its quarantine and releases it before memory is refused", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | limited{64_MiB} | pooled{} | checked{};
  for (int i = 0; i < 8; ++i) {
    void* const p = memory.allocate(stream, 30_MiB);
    memory.deallocate(stream, p, 30_MiB);
  }
  for (int i = 0; i < 20'000; ++i) memory.deallocate(stream, memory.allocate(stream, 1), 1);
  CHECK(memory->live_blocks() == 0);
  try {
    (void)memory.allocate(stream, 1_GiB);
    FAIL("the allocation exceeded the limit");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == 1_GiB);  // without the fences
  }
  CHECK(reported::all().empty());
}

TEST_CASE("checked neither fills nor waits for a freed block that its quarantine has no room for",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  auto const calls_of_a_free = [&](checked const& options, std::size_t bytes) {
    auto memory = sim_pages(machine.driver()) | pooled{} | options;
    void* const p = memory.allocate(stream, bytes);
    auto const before = machine.calls();
    memory.deallocate(stream, p, bytes);
    return machine.calls()[driver_call::synchronize_stream] - before[driver_call::synchronize_stream];
  };
  std::uint64_t const kept = calls_of_a_free({}, 1_MiB);
  CHECK(calls_of_a_free({.quarantine_blocks = 0}, 1_MiB) < kept);
  CHECK(calls_of_a_free({.quarantine_bytes = 512_KiB}, 1_MiB) < kept);
}

TEST_CASE("checked allows the misuse handler to use the memory that reports to it", "[policy][checked]") {
  static stack<host_memory, checked>* used = nullptr;
  static int calls = 0;
  stack<host_memory, checked> memory;
  used = &memory;
  calls = 0;
  misuse_handler const before = set_misuse_handler([](misuse const&) {
    ++calls;
    used->deallocate({}, used->allocate({}, 100), 100);
    if (calls < 100) (void)(*used)->check_all();
  });
  auto* const p = static_cast<unsigned char*>(memory.allocate({}, 50));
  memory.deallocate({}, p, 51);
  p[50] = 0;
  memory.deallocate({}, p, 50);
  CHECK(calls == 2);
  (void)set_misuse_handler(before);
}

TEST_CASE("checked reports nothing when threads share a pool", "[policy][checked][threads]") {
  reported const t;
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{.quarantine_blocks = 16};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      test_stream const stream(machine.driver());
      for (std::size_t i = 0; i < 200; ++i) {
        void* const p = memory.allocate(stream, 1 + i * 37 % 5000);
        memory.deallocate(stream, p, 1 + i * 37 % 5000);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(memory->check_all() == 0);
  CHECK(reported::all().empty());
}

TEST_CASE("report_leaks lists the live blocks through any policy above, each time", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{} | tracked{};
  CHECK(report_leaks(memory) == 0);
  {
    auto const first = make_device_buffer<char>(memory, 1000, stream_ref{});
    auto const second = make_device_buffer<char>(memory, 2000, stream_ref{});
    CHECK(report_leaks(memory) == 2);
    CHECK(reported::all().size() == 2);
    CHECK(report_leaks(memory) == 2);
    CHECK(check_all(memory) == 0);
  }
  CHECK(report_leaks(memory) == 0);
  CHECK(reported::all().size() == 4);
}

TEST_CASE("checked leaves a freed block as it is that a graph uses", "[policy][checked]") {
  reported const t;
  sim_machine const machine;
  test_stream const stream(machine.driver());
  test_stream const captured(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | checked{};
  graph_memory graphs(memory);
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  sim_graph graph;
  {
    capture_scope const scope(graphs, captured);
    REQUIRE(machine.begin_capture(captured).ok());
    REQUIRE(machine.launch(captured, 1000, {sim_writes(p, 1000)}).ok());
    memory.record_stream(p, 1000, captured);
    REQUIRE(machine.end_capture(captured, graph).ok());
  }
  REQUIRE(machine.driver().fill(stream, p, 7, 1000).ok());
  memory.deallocate(stream, p, 1000);
  REQUIRE(machine.driver().synchronize_stream(stream).ok());
  CHECK(holds(memory, stream, p, 7, 1000));
  p[0] = 8;  // as a replay may
  CHECK(memory->check_all() == 0);
  CHECK(reported::all().empty());
}

TEST_CASE("checked leaves a block as it is that the current device's per-thread stream uses in a graph",
          "[policy][checked]") {
  reported const t;
  sim_machine const machine{{.devices = 2}};
  sim_driver const other = machine.driver(device_id{1});
  basic_stream<sim_driver> const stream(other);
  auto memory = basic_pinned<sim_driver>(machine.driver(device_id{0})) | pooled{} | checked{};
  graph_memory graphs(memory);
  auto const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  auto* const p = static_cast<unsigned char*>(memory.allocate_sync(1000));
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  sim_graph graph;
  {
    capture_scope const scope(graphs, per_thread);
    REQUIRE(other.begin_capture(per_thread).ok());
    REQUIRE(other.launch(per_thread, 1000, {sim_writes(p, 1000)}).ok());
    memory.record_stream(p, 1000, per_thread);
    REQUIRE(other.end_capture(per_thread, graph).ok());
  }
  p[0] = 7;
  memory.deallocate(stream, p, 1000);
  CHECK(p[0] == 7);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
}

TEST_CASE("checked allocates nothing if allocate_sync cannot wait for its fills",
          "[policy][checked][faults]") {
  sim_machine const machine;
  fault_plan const plan;
  auto memory =
      basic_pages<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) | pooled{} | checked{};
  plan.fail(driver_call::synchronize_stream, 1);
  CHECK_THROWS_AS(memory.allocate_sync(1_MiB), cuda_error);
  CHECK(memory->live_blocks() == 0);
  void* const p = memory.allocate_sync(1_MiB);
  CHECK(memory->live_blocks() == 1);
  memory.deallocate_sync(p, 1_MiB);
}

TEST_CASE("checked frees a block behind its poison if deallocate_sync cannot wait for that",
          "[policy][checked][faults]") {
  sim_machine const machine;
  fault_plan const plan;
  faulty<sim_driver> const driver(machine.driver(), plan);
  auto pool = basic_pages<faulty<sim_driver>>(driver) | pooled{};
  auto memory = pool | checked{};
  constexpr std::size_t whole = 1_MiB + 2 * 256;
  void* const p = memory.allocate_sync(1_MiB);
  plan.fail(driver_call::synchronize_stream, 3);  // the first two read the fences
  memory.deallocate_sync(p, 1_MiB);
  CHECK(plan.failed() == 1);
  auto* const q = static_cast<unsigned char*>(pool.allocate_sync(whole));
  q[whole / 2] = 7;
  REQUIRE(driver.synchronize_device().ok());
  CHECK(q[whole / 2] == 7);
  pool.deallocate_sync(q, whole);
}

TEST_CASE("checked reports no leak of a thread that a forked child does not have",
          "[policy][checked][at_fork]") {
  reported const now;
  auto memory = sim_pages{} | pooled{} | checked{};
  std::atomic<int> step{0};
  std::thread other([&] {
    void* const p = memory.allocate_sync(1000);
    step = 1;
    while (step != 2) std::this_thread::yield();
    memory.deallocate_sync(p, 1000);
  });
  while (step != 1) std::this_thread::yield();
  CHECK(child_of([&] {
          memory = decltype(memory)(nullptr);
          return reported::all().empty();
        }) == 0);
  step = 2;
  other.join();
  CHECK(memory->live_blocks() == 0);
  CHECK(reported::all().empty());
}

TEST_CASE("checked reports the leaks of a forked child at its end, and not those of its parent",
          "[policy][checked][at_fork]") {
  auto memory = host_memory{} | checked{.leaks_at_exit = true};
  void* const p = memory.allocate_sync(1000);
  CHECK(child_of([] {
          (void)set_misuse_handler([](misuse const& m) {
            bool const is_own =
                std::string_view(m.what()).find(" of 77 bytes was not freed; number of leaks: 1;") !=
                std::string_view::npos;
            ::_exit(is_own ? 0 : 2);
          });
          auto* const leaked = new auto(host_memory{} | checked{.leaks_at_exit = true});
          (void)leaked->allocate_sync(77);
          std::exit(1);
          return false;
        }) == 0);
  memory.deallocate_sync(p, 1000);
}

TEST_CASE("checked keeps a block that no pool defers while a capture forbids to wait for its uses",
          "[policy][checked][capture][memory_pools]") {
  reported const now;
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  test_stream const stream(driver), other(driver);
  auto memory = sim_async{driver} | checked{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  REQUIRE(driver.synchronize_stream(stream).ok());
  REQUIRE(machine.launch(other, 50'000'000, [p] { p[0] = 1; }).ok());
  memory.record_stream(p, 1000, other);
  detail::capture_gate::begin_capture();
  memory.deallocate(stream, p, 1000);
  CHECK(memory->live_blocks() == 0);
  auto* const q = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  REQUIRE(driver.fill(stream, q, 7, 1000).ok());
  CHECK(memory->check_all() == 0);
  detail::capture_gate::end_capture();
  REQUIRE(driver.synchronize_device().ok());
  CHECK(q[0] == 7);
  CHECK(memory->check_all() == 0);
  memory.deallocate(stream, q, 1000);
  memory = decltype(memory)(nullptr);
  CHECK(machine.leaks().blocks == 0);
  CHECK(reported::all().empty());
}
