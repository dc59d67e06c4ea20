// SPDX-License-Identifier: Apache-2.0
// Memory that every device may use, used and freed on a stream of another device than its pool's: through
// every owner, with both kinds of driver, the stream alive and destroyed. Contents are compared, and memory
// is bounded.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/calling_driver.hpp"
#include "driver/faulty.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/sim_sources.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/convert.hpp"
#include "tarn/transfer/element_reader.hpp"
#include "tarn/transfer/free_on.hpp"
#include "tarn/transfer/peer_copy.hpp"
#include "tarn/transfer/scratch.hpp"
#include "tarn/transfer/stream_batches.hpp"

using namespace tarn;

namespace {

constexpr std::size_t n = 1_MiB;
constexpr sim_nanoseconds second = 1'000'000'000;

/// Two devices, and the user's work on the second one.
template <class Driver>
struct two_devices {
  two_devices()
      : machine(options()), first(machine.driver(device_id{0})), other(machine.driver(device_id{1})) {}

  static sim_options options() {
    sim_options o;
    o.devices = 2;
    o.checks = sim_checks::stream_order;
    o.backing = sim_backing::host_backed;
    return o;
  }
  /// Work that takes long, then a kernel on the second device that reads the bytes, each of which must be
  /// `byte`.
  void read_late(stream_ref s, void const* p, unsigned char byte) {
    (void)other.launch(s, second);
    (void)other.launch(s, 1000, {sim_reads(p, n)}, [this, p, byte] {
      auto const* const bytes = static_cast<unsigned char const*>(p);
      good += std::all_of(bytes, bytes + n, [byte](unsigned char b) { return b == byte; }) ? 1 : 0;
    });
  }
  /// Runs all work and returns how many of the reads saw what was written for them.
  int good_reads() {
    (void)first.synchronize_device();
    (void)other.synchronize_device();
    return good;
  }

  sim_machine machine;
  Driver first;
  Driver other;
  int good = 0;
};

/// Another owner of the memory writes it on the host as soon as it gets it.
template <class Memory>
void overwrite(Memory& memory, stream_ref stream = {}) {
  for (int i = 0; i < 4; ++i) {
    pinned_buffer<char, Memory> const reused(memory, n, elements::value_initialised, stream);
    (void)reused;
  }
}

enum class end_of_stream { alive, destroyed };

using asked_driver = tarn_test::calling_driver<sim_driver>;

/// A capture of a blocking stream, which a use of the default stream of its device would end: what another
/// thread does in a capture_scope after the pool has asked the driver whether a stream is captured.
struct sudden_capture {
  explicit sudden_capture(sim_driver const& its_driver) : driver(its_driver) {
    REQUIRE(its_driver.machine().create_blocking_stream(driver.device(), stream).ok());
  }
  [[nodiscard]] asked_driver begins_in(sim_driver const& first) {
    return {first, driver_call::is_capturing, begin};
  }
  void may_begin(int after_questions) {
    begin = [this, left = after_questions - 1] {
      if (left != 0) return may_begin(left);
      was_asked = true;
      has_begun = detail::capture_gate::try_begin_capture() && driver.begin_capture(stream).ok();
    };
  }
  bool is_whole() {
    begin = nullptr;
    sim_graph graph;
    bool const ended = !has_begun || driver.end_capture(stream, graph).ok();
    if (has_begun) detail::capture_gate::end_capture();
    return ended && driver.destroy_stream(stream).ok();
  }
  sim_driver driver;
  stream_ref stream;
  std::function<void()> begin;
  bool was_asked = false;
  bool has_begun = false;
};

}  // namespace

TEMPLATE_TEST_CASE("host memory used on a stream of another device keeps its bytes until that work is over",
                   "[raii][other_device][stream]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto const end = GENERATE(end_of_stream::alive, end_of_stream::destroyed);
  stream_ref s;
  REQUIRE(t.other.create_stream(s).ok());
  bool const made_by_tarn = GENERATE(true, false);
  if (!made_by_tarn) {
    REQUIRE(t.other.destroy_stream(s).ok());
    REQUIRE(t.machine.create_blocking_stream(device_id{1}, s).ok());
    s = stream_ref::from(s.handle());
  }
  auto const with_each_memory = [&](auto const& use) {
    auto pinned = basic_pinned<TestType>{t.first} | pooled{};
    auto registered = basic_registered<TestType>{t.first} | pooled{};
    auto managed = basic_managed<TestType>{t.first} | pooled{};
    use(pinned);
    use(registered);
    use(managed);
    basic_pinned<TestType> bare{t.first};
    use(bare);
  };
  int reads = 0;
  auto const finish = [&] {
    if (end == end_of_stream::destroyed) {
      (void)t.other.destroy_stream(s);
    }
  };
  SECTION("~pinned_buffer") {
    with_each_memory([&](auto& memory) {
      if (reads != 0 && end == end_of_stream::destroyed) return;
      ++reads;
      {
        pinned_buffer<char, std::remove_reference_t<decltype(memory)>> b(memory, n, elements::uninitialised,
                                                                         s);
        std::memset(b.data(), 7, n);
        t.read_late(s, b.data(), 7);
        finish();
      }
      overwrite(memory);
    });
  }
  SECTION("~device_ptr, free_on, set_stream, record_stream and ~scratch") {
    auto memory = basic_pinned<TestType>{t.first} | pooled{};
    basic_stream<TestType> const own{t.first};
    auto const written = [&](void* p) {
      (void)t.first.synchronize_device();
      std::memset(p, 9, n);
      return p;
    };
    SECTION("~device_ptr") {
      auto p = make_device<char[]>(memory, n, s);
      t.read_late(s, written(p.get()), 9);
      finish();
    }
    SECTION("free_on") {
      auto p = make_device<char[]>(memory, n, own);
      t.read_late(s, written(p.get()), 9);
      free_on(std::move(p), s);
      finish();
    }
    SECTION("set_stream") {
      auto p = make_device<char[]>(memory, n, own);
      p.set_stream(s);
      t.read_late(s, written(p.get()), 9);
      finish();
    }
    SECTION("set_stream away from it") {
      auto p = make_device<char[]>(memory, n, s);
      t.read_late(s, written(p.get()), 9);
      p.set_stream(own);
      finish();
    }
    SECTION("record_stream") {
      void* const p = memory.allocate(own, n);
      t.read_late(s, written(p), 9);
      memory.record_stream(p, n, s);
      memory.deallocate(own, p, n);
      finish();
    }
    SECTION("~scratch") {
      scratch<decltype(memory)> work(memory, n, s);
      t.read_late(s, written(work.template take<char>(n)), 9);
      work.release();
      finish();
    }
    SECTION("~scratch after set_stream") {
      scratch<decltype(memory)> work(memory, n, own);
      void* const p = work.template take<char>(n);
      work.set_stream(s);
      t.read_late(s, written(p), 9);
      finish();
    }
    ++reads;
    overwrite(memory);
    SUCCEED();
  }
  CHECK(t.good_reads() == reads);
  if (end == end_of_stream::alive && made_by_tarn) (void)t.other.destroy_stream(s);
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("pages shared with another device are an ordinary pool's on its streams",
                   "[raii][other_device][stream][pages]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto const run = [&](auto policy) {
    auto pool =
        basic_pages<TestType>{t.first} | accessible_from{device_id{1}} | pooled{} | policy | tracked{};
    basic_stream<TestType> const own{t.first};
    for (int i = 0; i < 20; ++i) {
      basic_stream<TestType> const there{t.other};
      auto a = make_device_buffer<char>(pool, n, own);
      auto b = make_device_buffer<char>(pool, n, there);
      b.fill(std::byte{1});
      detail::order_streams(t.first, there, t.first, own);
      (void)t.other.launch(there, 1'000'000, {sim_reads(a.data(), n)}, [] {});
      a.record_stream(there);
      b.copy_from(a);
      auto c = b.clone(own);
      c.resize(2 * n, there);
    }
    (void)t.other.synchronize_device();
    pool.empty_cache();
    CHECK(memory_reserved(pool) == 0);
  };
  run(tracked{});
  run(poisoned{});
  run(fenced{});
  run(checked{.quarantine_blocks = 0});
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("batches are streamed and collected for work on a stream of another device",
                   "[raii][other_device][stream][stream_batches][pages]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto pinned = basic_pinned<TestType>{t.first} | pooled{};
  basic_stream<TestType> const there{t.other};
  std::vector<int> source(n);
  for (std::size_t i = 0; i < n; ++i) source[i] = static_cast<int>(i);
  auto const run = [&](auto memory) {
    auto const target = make_device_buffer<int>(memory, n, there);
    for (auto batch : stream_batches(source, {.batch_bytes = n}, memory, there, pinned)) {
      int* const to = const_cast<int*>(target.data()) + batch.offset();
      (void)t.other.launch(there, 1'000'000);
      (void)t.other.launch(there, 1000,
                           {sim_reads(batch.data(), batch.bytes()), sim_writes(to, batch.bytes())},
                           [=] { std::memcpy(to, batch.data(), batch.bytes()); });
    }
    std::vector<int> result;
    for (auto batch : collect_batches(target, {.batch_bytes = n}, there, pinned))
      result.insert(result.end(), batch.begin(), batch.end());
    CHECK(result == source);
  };
  run(basic_pages<TestType>{t.first} | accessible_from{device_id{1}} | pooled{});
  run(basic_managed<TestType>{t.first} | pooled{});
  (void)t.other.synchronize_device();
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("a pool refuses to allocate on a stream of a device that cannot use its pages",
                   "[raii][other_device][pages]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto pool = basic_pages<TestType>{t.first} | pooled{};
  basic_stream<TestType> const own{t.first};
  basic_stream<TestType> const there{t.other};
  try {
    (void)pool.allocate(there, n);
    FAIL("a stream of another device was accepted");
  } catch (misuse const& error) {
    CHECK(error.kind() == misuse_kind::wrong_device);
    CHECK(std::string(error.what()).find("is of device 1, which cannot use this memory of device 0") !=
          std::string::npos);
  }
  CHECK(memory_reserved(pool) == 0);
  // A copy on such a stream may be the last user of a block: it is freed there, and another stream takes it
  // in order.
  void* const p = pool.allocate(own, n);
  (void)t.other.launch(there, second);
  pool.deallocate(there, p, n);
  pool.empty_cache();
  CHECK(t.machine.now() >= second);
  CHECK(memory_reserved(pool) == 0);
  auto blocks = basic_malloc<TestType>{t.first} | pooled{};  // the program may have enabled peer access
  blocks.deallocate(there, blocks.allocate(there, n), n);
}

TEST_CASE(
    "the event of a stream covers its work until a later mark succeeds, also when its device is forgotten",
    "[raii][other_device][stream][pages]") {
  sim_options options = two_devices<sim_driver>::options();
  options.capacity = 46_MiB;
  options.backing = sim_backing::address_only;
  sim_machine const machine(options);
  sim_driver const first = machine.driver(device_id{0}), other = machine.driver(device_id{1});
  auto pool = sim_pages{first} | accessible_from{1} | pooled{};
  basic_stream<sim_driver> const slow(other), giver(first), taker(first), captured(first);
  auto const allocate = [&](stream_ref on, std::size_t bytes) {
    void* const p = pool.allocate(on, bytes);
    machine.allocated(p, bytes, on);
    return p;
  };
  auto const free = [&](stream_ref on, void* p, std::size_t bytes) {
    machine.freed(p, bytes, on);
    pool.deallocate(on, p, bytes);
  };
  void* const p = allocate(slow, 20_MiB);
  void* const between = allocate(slow, 2_MiB);
  void* const small = allocate(slow, 2_MiB);
  void* const q = allocate(giver, 20_MiB);
  REQUIRE(other.launch(slow, second, {sim_writes(p, 20_MiB)}).ok());
  free(slow, p, 20_MiB);
  free(giver, q, 20_MiB);
  REQUIRE(allocate(taker, 20_MiB) == q);  // marks the work on `slow`, too
  first.devices_of_streams().note(stream_ref(slow).id() + 2048, device_id{1});
  REQUIRE(first.devices_of_streams().find(stream_ref(slow).id()) == detail::unknown_device);
  graph_memory owner(pool);
  {
    capture_scope const scope(owner, captured);  // now nothing can be marked
    free(slow, small, 2_MiB);
    void* const again = allocate(taker, 20_MiB);
    CHECK(again == p);
    REQUIRE(first.launch(taker, 1000, {sim_writes(again, 20_MiB)}).ok());
    free(taker, again, 20_MiB);
  }
  free(taker, q, 20_MiB);
  free(slow, between, 2_MiB);
  REQUIRE(first.synchronize_stream(taker).ok());
  CHECK(machine.now() >= second);
  CHECK(machine.findings().empty());
}

TEMPLATE_TEST_CASE(
    "a default stream on host memory is the current device's, and a block waits for each device's",
    "[raii][other_device][stream]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto pinned = basic_pinned<TestType>{t.first} | pooled{};
  basic_stream<TestType> const uses_the_device{t.other};
  int const current = GENERATE(0, 1);
  REQUIRE(sim_driver::set_current_device(device_id{current}).ok());
  {
    pinned_buffer<char, decltype(pinned)> b(pinned, n, elements::uninitialised);
    CHECK(b.stream().id() == default_stream(current == 0 ? t.first : t.other).id());
    std::memset(b.data(), 7, n);
    // cudaSetDevice(1), and a copy on stream 0.
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    t.read_late(stream_ref{}, b.data(), 7);
  }
  overwrite(pinned);
  CHECK(t.good_reads() == 1);
  // Reuse at once is only by the same device's default stream.
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  void* const p = pinned.allocate(stream_ref{}, n);
  pinned.deallocate(stream_ref{}, p, n);
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  t.machine.reset_calls();
  void* const q = pinned.allocate(stream_ref{}, n);
  CHECK((q != p ||
         t.machine.calls()[driver_call::query_event] + t.machine.calls()[driver_call::wait_event] != 0));
  pinned.deallocate(stream_ref{}, q, n);
  // A bare source waits, too.
  basic_pinned<TestType> bare{t.first};
  void* const r = bare.allocate_sync(n);
  std::memset(r, 8, n);
  t.read_late(stream_ref{}, r, 8);
  bare.deallocate(stream_ref{}, r, n);
  CHECK(t.good_reads() == 2);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("host memory moved off a default stream is reused behind that of each device",
                   "[raii][other_device][stream]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto memory = basic_managed<TestType>{t.first} | pooled{};
  basic_stream<TestType> const uses_the_device{t.other};
  basic_stream<TestType> const own{t.first};
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  auto const use_on_both = [&](char* p) {
    (void)t.first.synchronize_device();
    std::memset(p, 7, n);
    // cudaSetDevice(1), and a kernel on stream 0.
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    t.read_late(stream_ref{}, p, 7);
  };
  SECTION("set_stream of a pinned_buffer") {
    pinned_buffer<char, decltype(memory)> b(memory, n, elements::uninitialised);
    use_on_both(b.data());
    b.set_stream(own);
  }
  SECTION("set_stream of a device_ptr") {
    auto p = make_device<char[]>(memory, n, stream_ref{});
    use_on_both(p.get());
    p.set_stream(own);
  }
  SECTION("set_stream of a scratch") {
    scratch<decltype(memory)> work(memory, n);
    use_on_both(work.template take<char>(n));
    work.set_stream(own);
  }
  SECTION("resize of a device_buffer") {
    auto b = make_device_buffer<char>(memory, n, stream_ref{});
    use_on_both(b.data());
    b.resize(2 * n, own);
  }
  SECTION("free_on") {
    auto b = make_device_buffer<char>(memory, n, stream_ref{});
    use_on_both(b.data());
    free_on(std::move(b), own);
  }
  SECTION("free_on of several owners, one of memory that only its device uses") {
    auto a = make_device_buffer<char>(basic_pages<TestType>{t.first} | pooled{}, n, default_stream(t.first));
    auto b = make_device_buffer<char>(memory, n, stream_ref{});
    use_on_both(b.data());
    free_on(own, std::move(a), std::move(b));
  }
  for (int i = 0; i < 4; ++i) {
    void* const q = memory.allocate(own, n);
    REQUIRE(t.first.launch(own, 10, {sim_writes(q, n)}, [q] { std::memset(q, 9, n); }).ok());
    (void)t.first.synchronize_stream(own);
    memory.deallocate(own, q, n);
  }
  CHECK(t.good_reads() == 1);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("an owner's elements move and are copied behind the default streams of each device",
                   "[raii][other_device][stream]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto memory = basic_managed<TestType>{t.first} | pooled{};
  basic_stream<TestType> const uses_the_device{t.other};
  basic_stream<TestType> const own{t.first};
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  using buffer = device_buffer<char, decltype(memory)>;
  auto const read = [&](char const* p) {
    (void)t.good_reads();
    return int{*p};
  };
  // A kernel of the second device on its default stream.
  auto const write_late = [&](char* p, int value, sim_nanoseconds after) {
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    REQUIRE(t.other.launch(stream_ref{}, after, {sim_writes(p, n)}, [=] { std::memset(p, value, n); }).ok());
  };
  {
    buffer from(memory, n, stream_ref{});
    from.zero();
    (void)t.good_reads();
    write_late(from.data(), 7, second);
    SECTION("resize on the same stream") {
      from.resize(3 * n);
      CHECK(read(from.data()) == 7);
    }
    SECTION("shrink_to_fit on the same stream") {
      from.resize(n / 2);
      from.shrink_to_fit();
      CHECK(read(from.data()) == 7);
    }
    SECTION("clone") {
      buffer const copied = from.clone(own);
      write_late(from.data(), 9, 1000);
      CHECK(read(copied.data()) == 7);
    }
    SECTION("copy_from") {
      buffer copied(memory, n, own);
      copied.copy_from(from);
      write_late(from.data(), 9, 1000);
      CHECK(read(copied.data()) == 7);
    }
    SECTION("copy_to_sync") {
      std::vector<char> host(n);
      from.copy_to_sync(host);
      CHECK(host[n - 1] == 7);
    }
    SECTION("copy_to") {
      buffer copied(memory, n, own);
      from.copy_to(copied.span());
      write_late(from.data(), 9, 1000);
      CHECK(read(copied.data()) == 7);
    }
    SECTION("copy_from host elements") {
      std::vector<char> const host(n, 5);
      from.copy_from(std::span<char const>(host));
      CHECK(read(from.data()) == 5);
    }
    SECTION("fill") {
      from.fill(std::byte{5});
      CHECK(read(from.data()) == 5);
    }
    SECTION("fill of, and append to, a growing_buffer") {
      REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
      growing_buffer<char, decltype(memory)> grows(memory, 64 * n, stream_ref{});
      grows.resize(2 * n);
      grows.resize(n);
      (void)t.good_reads();
      write_late(grows.data(), 6, second);
      grows.fill(std::byte{5});
      CHECK(read(grows.data()) == 5);
      write_late(grows.data() + n, 6, second);
      std::vector<char> const host(n, 4);
      grows.append(host);
      CHECK(read(grows.data() + n) == 4);
    }
    SECTION("peer_copy") {
      buffer copied(memory, n, own);
      peer_copy(from, copied);
      write_late(from.data(), 9, 1000);
      CHECK(read(copied.data()) == 7);
    }
    SECTION("peer_copy into it") {
      buffer const source(memory, std::vector<char>(n, 5), own);
      peer_copy(source, from);
      CHECK(read(from.data()) == 5);
    }
    SECTION("a growing_buffer that has to move") {
      growing_buffer<char, decltype(memory)> grows(memory, 64 * n, stream_ref{});
      grows.resize(n);
      (void)t.good_reads();
      write_late(grows.data(), 6, second);
      grows.resize(40 * n);
      CHECK(read(grows.data()) == 6);
      auto const copied = grows.clone(own);
      write_late(grows.data(), 9, 1000);
      CHECK(read(copied.data()) == 6);
    }
  }
  SECTION("converted") {
    device_buffer<float, decltype(memory)> from(memory, 1, stream_ref{});
    from.zero();
    (void)t.good_reads();
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    float* const p = from.data();
    REQUIRE(t.other.launch(stream_ref{}, second, {sim_writes(p, 4)}, [p] { *p = 7; }).ok());
    auto const to = converted<double>(memory, from, own);
    REQUIRE(t.other.launch(stream_ref{}, 1000, {sim_writes(p, 4)}, [p] { *p = 9; }).ok());
    (void)t.good_reads();
    CHECK(*to.data() == 7);
  }
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  CHECK(t.machine.findings().empty());
}

TEST_CASE("a copy on a captured per-thread stream leaves the default streams of other devices alone",
          "[raii][other_device][captures]") {
  two_devices<sim_driver> t;
  auto const memory = basic_managed<sim_driver>{t.first} | pooled{};
  basic_stream<sim_driver> const uses_the_device{t.other};
  auto const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
  auto from = make_device_buffer<char>(memory, n, per_thread);
  from.fill(std::byte{7});
  auto to = make_device_buffer<char>(memory, n, per_thread);
  graph_memory graphs(memory);
  {
    bool const has_scope = GENERATE(true, false);
    std::optional<capture_scope> scope;
    if (has_scope) scope.emplace(graphs, per_thread);
    sim_graph graph;
    REQUIRE(t.first.begin_capture(per_thread).ok());
    to.copy_from(from);
    if (has_scope) from.resize(2 * n);
    REQUIRE(t.first.end_capture(per_thread, graph).ok());
    REQUIRE(t.first.launch(per_thread, graph).ok());
  }
  REQUIRE(t.first.synchronize_stream(per_thread).ok());
  CHECK(to.data()[n - 1] == 7);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("a copy ends no capture on another device, and a buffer changes its stream after it",
          "[raii][other_device][captures]") {
  two_devices<sim_driver> t;
  auto const memory = basic_managed<sim_driver>{t.first} | pooled{};
  bool const is_blocking = GENERATE(true, false);
  basic_stream<sim_driver> const beside_legacy{t.other};
  stream_ref captured = beside_legacy;
  if (is_blocking) REQUIRE(t.machine.create_blocking_stream(device_id{1}, captured).ok());
  basic_stream<sim_driver> const own{t.first};
  auto from = make_device_buffer<char>(memory, n, stream_ref{});
  from.fill(std::byte{7});
  auto to = make_device_buffer<char>(memory, n, stream_ref{});
  graph_memory graphs(memory);
  std::atomic<int> step{0};
  bool is_whole = false;
  std::thread other([&] {
    capture_scope const scope(graphs, captured);
    sim_graph graph;
    bool const begun = t.other.begin_capture(captured).ok();
    step = 1;
    while (step != 2) std::this_thread::yield();
    is_whole = begun && t.other.end_capture(captured, graph).ok();
  });
  while (step != 1) std::this_thread::yield();
  to.copy_from(from);
  from.resize(2 * n);
  if (is_blocking) {
    CHECK_THROWS_AS(from.set_stream(own), cuda_error);
    CHECK(from.stream() == default_stream(t.first));
  } else {
    from.set_stream(own);
  }
  step = 2;
  other.join();
  CHECK(is_whole);
  from.set_stream(own);
  (void)t.good_reads();
  CHECK(to.data()[n - 1] == 7);
  CHECK(from.data()[n - 1] == 7);
  CHECK(t.machine.invalidated_captures() == 0);
  CHECK(t.machine.findings().empty());
  if (is_blocking) REQUIRE(t.other.destroy_stream(captured).ok());
}

TEST_CASE("a copy fails where the driver cannot say whether another device's default stream is captured",
          "[raii][other_device][captures]") {
  two_devices<sim_driver> t;
  basic_stream<sim_driver> const uses_the_device{t.other};
  fault_plan const plan;
  auto const memory = basic_pinned<faulty<sim_driver>>(faulty<sim_driver>(t.first, plan));
  auto from = make_device_buffer<char>(memory, n, stream_ref{});
  auto to = make_device_buffer<char>(memory, n, stream_ref{});
  to.copy_from(from);
  plan.reset();
  to.copy_from(from);
  std::uint64_t const asked = plan.calls(driver_call::is_capturing);
  REQUIRE(asked == 4);  // the streams of both buffers, before the copy and after it
  for (std::uint64_t nth = 1; nth <= asked; ++nth) {
    plan.reset();
    plan.fail(driver_call::is_capturing, nth);
    CHECK_THROWS_AS(to.copy_from(from), cuda_error);
  }
}

TEST_CASE("a copy does not end a capture that begins while it asks for captures of another device",
          "[raii][other_device][captures]") {
  two_devices<sim_driver> t;
  sudden_capture capture(t.other);
  auto const memory = basic_managed<asked_driver>{capture.begins_in(t.first)} | pooled{};
  basic_stream<sim_driver> const uses_the_device{t.other};
  auto from = make_device_buffer<char>(memory, n, stream_ref{});
  auto to = make_device_buffer<char>(memory, n, stream_ref{});
  capture.may_begin(1);
  to.copy_from(from);
  CHECK(capture.was_asked);
  CHECK(capture.is_whole());
  CHECK(t.machine.invalidated_captures() == 0);
}

TEST_CASE("a pool does not end a capture that begins while it marks the default streams of all devices",
          "[raii][other_device][captures]") {
  two_devices<sim_driver> t;
  sudden_capture capture(t.first);
  auto memory = basic_pinned<asked_driver>{capture.begins_in(t.first)} | pooled{};
  basic_stream<sim_driver> const taker{t.first};
  basic_stream<sim_driver> const uses_the_device{t.other};
  void* const p = memory.allocate(stream_ref{}, 40 * n);
  REQUIRE(t.first.launch(stream_ref{}, second).ok());
  memory.deallocate(stream_ref{}, p, 40 * n);
  memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 48 * n), 48 * n);  // the cache gives p up
  capture.may_begin(GENERATE(1, 2, 3, 4));
  void* const q = memory.allocate(taker, 40 * n);
  CHECK(capture.is_whole());
  CHECK(t.machine.invalidated_captures() == 0);
  memory.deallocate(taker, q, 40 * n);
}

TEMPLATE_TEST_CASE("a recorded use of a default stream is that of each device in use when the block is freed",
                   "[raii][other_device][stream]", sim_driver, sim_marking_driver) {
  two_devices<TestType> t;
  auto memory = basic_pinned<TestType>{t.first} | pooled{};
  basic_stream<TestType> const own{t.first};
  bool const has_other_use = GENERATE(false, true);
  pinned_buffer<char, decltype(memory)> first(memory, n, elements::uninitialised, own);
  if (has_other_use) first.record_stream(stream_ref{});
  basic_stream<TestType> const uses_the_device{t.other};
  {
    pinned_buffer<char, decltype(memory)> b(memory, n, elements::uninitialised, own);
    std::memset(b.data(), 7, n);
    b.record_stream(stream_ref{});
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    t.read_late(stream_ref{}, b.data(), 7);
  }
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  overwrite(memory, own);
  CHECK(t.good_reads() == 1);
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("bare host memory is freed behind the default streams that another thread named",
                   "[raii][other_device][stream]", basic_pinned<sim_driver>, basic_registered<sim_driver>) {
  two_devices<sim_driver> t;
  TestType memory{t.first};
  basic_stream<sim_driver> const uses_the_device{t.other};
  auto const handle = reinterpret_cast<void*>(GENERATE(as<std::uintptr_t>{}, 0, 1, 2));
  auto b = std::make_unique<pinned_buffer<char, TestType>>(memory, n, elements::uninitialised,
                                                           stream_ref::from(handle));
  std::memset(b->data(), 7, n);
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  t.read_late(stream_ref::from(handle), b->data(), 7);
  std::thread([&] { b.reset(); }).join();
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  overwrite(memory, default_stream(t.first));
  CHECK(t.good_reads() == 1);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("fill and convert are captured on a stream of another device",
          "[raii][other_device][captures][pages]") {
  two_devices<sim_driver> t;
  auto memory = sim_pages{t.first} | accessible_from{device_id{1}} | pooled{};
  basic_stream<sim_driver> const s{t.other};
  device_buffer<float, decltype(memory)> from(memory, 1, s);
  device_buffer<double, decltype(memory)> to(memory, 1, s);
  graph_memory graphs(memory);
  sim_graph graph;
  {
    capture_scope const scope(graphs, s);
    REQUIRE(t.other.begin_capture(s).ok());
    from.fill(std::byte{64});
    tarn::convert(from, to);
    REQUIRE(t.other.end_capture(s, graph).ok());
  }
  CHECK(t.machine.invalidated_captures() == 0);
  REQUIRE(t.other.launch(s, graph).ok());
  s.synchronize();
  CHECK(*from.data() > 3);
  CHECK(*to.data() == static_cast<double>(*from.data()));
  CHECK(t.machine.findings().empty());
}

TEST_CASE("element_reader and collect_batches read host memory behind the current device's default stream",
          "[raii][other_device][stream]") {
  two_devices<sim_driver> t;
  auto const memory = basic_managed<sim_driver>{t.first} | pooled{};
  basic_stream<sim_driver> const own{t.first};
  basic_stream<sim_driver> const uses_the_device{t.other};
  auto b = make_device_buffer<char>(memory, n, own);
  b.zero();
  own.synchronize();
  // cudaSetDevice(1), and a kernel on stream 0.
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  auto const write_late = [&, p = b.data()](int value) {
    REQUIRE(t.other.launch(stream_ref{}, second, {sim_writes(p, n)}, [=] { std::memset(p, value, n); }).ok());
  };
  write_late(7);
  element_reader<char, basic_pinned<sim_driver>> reader{basic_pinned<sim_driver>{t.first}};
  CHECK(reader.element(b, 0, stream_ref{}) == 7);
  write_late(8);
  for (auto batch : collect_batches(b, {}, stream_ref{})) CHECK(batch[0] == 8);
  CHECK(t.good_reads() == 0);
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("stream-ordered host memory freed on a default stream waits for that of each device",
                   "[raii][other_device][stream][cuda_async][memory_pools]", sim_async_pinned,
                   sim_async_managed) {
  two_devices<sim_driver> t;
  basic_stream<sim_driver> const uses_the_device{t.other};
  TestType memory{t.first};
  REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, n), misuse);
  int good = 0;
  for (int const current : {0, 1}) {
    void* const p = memory.allocate(default_stream(t.first), n);
    REQUIRE(t.first.synchronize_device().ok());
    std::memset(p, 7, n);
    t.read_late(default_stream(t.other), p, 7);
    REQUIRE(sim_driver::set_current_device(device_id{current}).ok());
    memory.deallocate(stream_ref{}, p, n);
    REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
    void* const q = memory.allocate(stream_ref{}, n);
    REQUIRE(t.first.launch(stream_ref{}, 10, {sim_writes(q, n)}, [q] { std::memset(q, 9, n); }).ok());
    CHECK(t.good_reads() == ++good);
    memory.deallocate(stream_ref{}, q, n);
  }
  // A captured default stream is one device's.
  stream_ref const captured = stream_ref::from(reinterpret_cast<void*>(2));
  REQUIRE(t.first.begin_capture(captured).ok());
  void* const p = memory.allocate(captured, n);
  t.machine.reset_calls();
  memory.deallocate(captured, p, n);
  CHECK(t.machine.calls()[driver_call::free_async] == 1);
  CHECK(t.machine.calls()[driver_call::create_stream] == 0);
  sim_graph graph;
  CHECK(t.first.end_capture(captured, graph).ok());
  CHECK(t.machine.findings().empty());
}

TEMPLATE_TEST_CASE("a default stream of a device that nothing else has used is waited for once it is named",
                   "[raii][other_device][stream]", basic_registered<sim_driver>, basic_pinned<sim_driver>) {
  two_devices<sim_driver> t;
  TestType memory{t.first};
  {
    pinned_buffer<char, TestType> b(memory, n, elements::uninitialised, default_stream(t.other));
    std::memset(b.data(), 7, n);
    // The user's cudaSetDevice(1), and a copy on stream 0.
    t.read_late(default_stream(t.other), b.data(), 7);
  }
  overwrite(memory);
  CHECK(t.good_reads() == 1);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("streams of a second device cost no call on a third one, and warm calls none at all",
          "[raii][other_device][stream]") {
  sim_options o;
  o.devices = 3;
  sim_machine const machine(o);
  sim_marking_driver const first(machine.driver(device_id{0}));
  auto pool = basic_pinned<sim_marking_driver>{first} | pooled{.captures = capture_watch::in_scopes};
  basic_stream<sim_marking_driver> const there{sim_marking_driver(machine.driver(device_id{1}))};
  for (int i = 0; i < 2; ++i) pool.deallocate(there, pool.allocate(there, 1000), 1000);
  machine.reset_calls();
  for (int i = 0; i < 100; ++i) pool.deallocate(there, pool.allocate(there, 1000), 1000);
  CHECK(machine.calls().total() == 0);
  pool.empty_cache();
  int in_use = 0;
  first.devices_of_streams().for_each_in_use([&](device_id d) { in_use |= 1 << d.value; });
  CHECK(in_use == 3);
}

namespace {

/// A kernel on the default stream of the second device, which is current, still reads a block when it is
/// freed. Neither the host nor another default stream may have the bytes before.
template <class Memory>
void free_on_default_streams(two_devices<sim_driver>& t, Memory memory) {
  basic_stream<sim_driver> const uses_the_device{t.other};
  int good = 0;
  auto const is_read_late = [&](int current, auto const& then) {
    REQUIRE(sim_driver::set_current_device(device_id{current}).ok());
    {
      pinned_buffer<char, Memory> b(memory, n, elements::uninitialised);
      std::memset(b.data(), 7, n);
      REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
      t.read_late(stream_ref{}, b.data(), 7);
    }
    then();
    CHECK(t.good_reads() == ++good);
  };
  auto const write = [&](int current, std::size_t bytes) {
    REQUIRE(sim_driver::set_current_device(device_id{current}).ok());
    void* const p = memory.allocate(stream_ref{}, bytes);
    auto const& driver = current == 0 ? t.first : t.other;
    auto const fill = [p, bytes] { std::memset(p, 9, bytes); };
    REQUIRE(driver.launch(stream_ref{}, 1000, {sim_writes(p, bytes)}, fill).ok());
    memory.deallocate(stream_ref{}, p, bytes);
  };
  for (int const current : {0, 1}) {
    is_read_late(current, [&] { overwrite(memory); });
    is_read_late(current, [&] { write(1, n - 100); });
    // The default stream that the buffer names may have it at once.
    if (current == 1) is_read_late(current, [&] { write(0, n); });
  }
  // Freed by the handle, which means the current device's.
  for (int const next : {0, 1}) {
    void* const p = memory.allocate_sync(n);
    std::memset(p, 7, n);
    REQUIRE(sim_driver::set_current_device(device_id{1}).ok());
    t.read_late(stream_ref{}, p, 7);
    memory.deallocate(stream_ref{}, p, n);
    write(next, n - 100);
    CHECK(t.good_reads() == ++good);
  }
  REQUIRE(sim_driver::set_current_device(device_id{0}).ok());
}

}  // namespace

TEST_CASE("policies free host memory behind the default streams of all devices",
          "[raii][other_device][policy]") {
  two_devices<sim_driver> t;
  auto const pinned = basic_pinned<sim_driver>{t.first} | pooled{};
  SECTION("none") {
    free_on_default_streams(t, pinned);
  }
  SECTION("with_history") {
    free_on_default_streams(t, pinned | with_history{});
  }
  SECTION("poisoned") {
    free_on_default_streams(t, pinned | poisoned{});
  }
  SECTION("fenced") {
    free_on_default_streams(t, pinned | fenced{});
  }
  SECTION("checked") {
    free_on_default_streams(t, pinned | checked{});
  }
  SECTION("checked without a quarantine") {
    free_on_default_streams(t, pinned | checked{.quarantine_blocks = 0});
  }
}
