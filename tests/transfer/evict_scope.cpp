// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/evict_scope.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "contract/early_release_contract.hpp"
#include "driver/faulty.hpp"
#include "raii/watched_machine.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/report/stats.hpp"

using namespace tarn;
using tarn_test::counted_elements;
using tarn_test::elements_of;
using tarn_test::watched_machine;

namespace {

using faulty_driver = faulty<sim_driver>;

/// A small machine whose calls can be made to fail, with two buffers on two streams and their expected
/// contents.
struct small_world {
  using memory_type =
      decltype(basic_pages<faulty_driver>(std::declval<faulty_driver>()) | pooled{} | tracked{});
  using pinned_type =
      decltype(basic_pinned<faulty_driver>(std::declval<faulty_driver>()) | pooled{} | tracked{});

  explicit small_world(sim_machine const& on)
      : machine(on),
        driver(machine.driver(), fault_plan{}),
        memory(basic_pages<faulty_driver>(driver) | pooled{} | tracked{}),
        pinned(basic_pinned<faulty_driver>(driver) | pooled{} | tracked{}),
        a(machine.driver()),
        b(machine.driver()),
        s(machine.driver()) {}

  static sim_options tight() {
    sim_options o;
    o.capacity = 32_MiB;
    o.taken = 0;
    o.host_capacity = 64_MiB;
    o.checks = sim_checks::stream_order;
    return o;
  }

  sim_machine machine;
  faulty_driver driver;
  memory_type memory;
  pinned_type pinned;
  basic_stream<sim_driver> a, b, s;
  std::vector<int> const words = counted_elements<int>(800'000, 1);
  std::vector<short> const halves = counted_elements<short>(700'000, 3);
  device_buffer<int, memory_type> first{memory, std::span<int const>(words), a};
  device_buffer<short, memory_type> second{memory, std::span<short const>(halves), b};

  [[nodiscard]] bool intact() {
    return first.stream() == stream_ref(a) && second.stream() == stream_ref(b) &&
           elements_of<int>(first) == words && elements_of<short>(second) == halves;
  }
  /// Takes all remaining device memory.
  void fill_device() { machine.take_memory(device_id{}, 1_TiB); }
};

std::vector<int> copied(std::span<std::byte const> bytes) {
  auto const* const p = reinterpret_cast<int const*>(bytes.data());
  return {p, p + bytes.size() / sizeof(int)};
}

thread_local int reported_misuses = 0;
thread_local misuse_kind reported_kind{};
/// Counts the calls of the misuse handler.
struct misuse_watch {
  misuse_watch() {
    reported_misuses = 0;
    before = set_misuse_handler([](misuse const& m) {
      ++reported_misuses;
      reported_kind = m.kind();
    });
  }
  ~misuse_watch() { set_misuse_handler(before); }
  misuse_handler before;
};

}  // namespace

TEST_CASE("evict_scope restores the elements of its buffers on any schedule", "[raii][evict_scope][stream]") {
  for (unsigned const seed : {0U, 1U, 2U, 3U, 4U, 5U}) {
    watched_machine const t(seed);
    auto const memory = t.pool();
    auto const pinned = t.pinned();
    tarn_test::evict_contract(memory, pinned, t.busy());
    CHECK(t.machine.findings().empty());
    CHECK((memory_allocated(memory) == 0 && memory_allocated(pinned) == 0));
  }
}

TEST_CASE("evict_scope frees the device memory for the scope without a host wait",
          "[raii][evict_scope][pages]") {
  watched_machine const t(0, 64_MiB);
  auto const memory = t.pool();
  basic_stream const a(t.machine.driver());
  basic_stream const s(t.machine.driver());
  auto const pinned = t.pinned();
  {
    auto weights = make_device_buffer<int>(memory, 10'000'000, a);
    auto const was = weights.data();
    weights.zero();
    { evict_scope const warm{pinned, s, weights}; }
    REQUIRE(t.machine.driver().synchronize_device().ok());
    t.busy()(a);
    auto const start = t.machine.now();
    {
      evict_scope const evicted{pinned, s, weights};
      CHECK(memory_allocated(memory) == 0);
      auto const activations =
          make_device_buffer<int>(memory, 12'000'000, s);  // would not fit beside the weights
      CHECK(activations.size() * 4 + 40'000'000 > 64_MiB);
    }
    CHECK(t.machine.now() - start < 500'000'000);
    CHECK(weights.size() == 10'000'000);
    (void)was;
  }
  CHECK(t.machine.findings().empty());
}

TEST_CASE("evict_scope leaves both buffers in place if the host has no room for the second",
          "[raii][evict_scope]") {
  sim_options options = small_world::tight();
  options.host_capacity = 4_MiB;  // the first buffer needs 3.1 MiB
  small_world t{sim_machine{options}};
  auto const* const place = t.first.data();
  CHECK_THROWS_AS((evict_scope{t.pinned, t.s, t.first, t.second}), out_of_memory);
  CHECK(t.first.data() == place);
  CHECK(t.intact());
  CHECK(memory_allocated(t.pinned) == 0);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("evict_scope frees what a buffer was given during the scope when it restores the elements",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  auto const live = memory_allocated(t.memory);
  {
    evict_scope const evicted{t.pinned, t.s, t.first, t.second};
    t.first.resize(77);
    t.first.zero();
  }
  CHECK(t.intact());
  CHECK(memory_allocated(t.memory) <= live);
}

TEST_CASE("evict_scope bring_back onto a full device throws, loses nothing and can be retried",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  {
    evict_scope evicted{t.pinned, t.s, t.first, t.second};
    t.memory.empty_cache();
    t.fill_device();
    CHECK_THROWS_AS(evicted.bring_back(), out_of_memory);
    CHECK((t.first.empty() && t.second.empty()));
    CHECK(memory_allocated(t.memory) == 0);
    CHECK(std::ranges::equal(evicted.host_copy<0>(), t.words));
    CHECK(std::ranges::equal(evicted.host_copy<1>(), t.halves));
    t.machine.take_memory(device_id{}, 0);
    evicted.bring_back();
    CHECK(evicted.evicted_bytes() == 0);
    evicted.bring_back();  // does nothing the second time
  }
  CHECK(t.intact());
  CHECK(memory_allocated(t.pinned) == 0);
}

TEST_CASE("evict_scope bring_back clears the cache of another buffer's pool", "[raii][evict_scope]") {
  sim_machine const machine{sim_options{.capacity = 64_MiB, .taken = 0}};
  // The device has room: it is the limit of both pools that refuses, for which a pool does not ask others.
  auto const pages = sim_pages{machine.driver()} | limited{32_MiB};
  auto one = pages | pooled{};
  auto const two = pages | pooled{};
  auto const pinned = sim_pinned_host{machine.driver()} | pooled{};
  basic_stream const s(machine.driver());
  auto const words = counted_elements<int>(4_MiB, 0);  // 16 MiB
  auto first = make_device_buffer<int>(one, words, s);
  auto second = make_device_buffer<int>(two, 1000, s);
  evict_scope evicted{pinned, s, first, second};
  one.empty_cache();
  make_device_buffer<std::byte>(two, 30_MiB, s).reset();
  CHECK_NOTHROW(evicted.bring_back());
  CHECK((elements_of<int>(first) == words));
}

TEST_CASE("evict_scope passes elements that it cannot restore to the when_lost handler",
          "[raii][evict_scope]") {
  misuse_watch const misuses;
  small_world t{sim_machine{small_world::tight()}};
  std::vector<std::size_t> reported;
  std::vector<int> saved;
  std::size_t saved_halves = 0;
  bool why_is_memory = false;
  {
    evict_scope evicted{t.pinned, t.s, t.first, t.second};
    evicted.when_lost([&](lost_elements const& lost) {
      reported.push_back(lost.index);
      if (lost.index == 0) saved = copied(lost.bytes);
      if (lost.index == 1) saved_halves = lost.bytes.size();
      try {
        std::rethrow_exception(lost.why);
      } catch (out_of_memory const&) {
        why_is_memory = true;
      }
    });
    t.memory.empty_cache();
    t.fill_device();
  }
  CHECK(reported == std::vector<std::size_t>{0, 1});
  CHECK((saved == t.words));
  CHECK(saved_halves == t.halves.size() * sizeof(short));
  CHECK(why_is_memory);
  CHECK((t.first.empty() && t.second.empty()));
  CHECK(reported_misuses == 0);
  CHECK(memory_allocated(t.pinned) == 0);
}

TEST_CASE("evict_scope calls the when_lost handler only after the copies have completed",
          "[raii][evict_scope][stream]") {
  small_world t{sim_machine{small_world::tight()}};
  std::vector<int> saved;
  REQUIRE(t.machine.launch(t.s, 1'000'000'000).ok());
  {
    evict_scope evicted{t.pinned, t.s, t.first};
    evicted.when_lost([&](lost_elements const& lost) { saved = copied(lost.bytes); });
    t.driver.plan().reset();
    t.driver.plan().fail(driver_call::copy, 1);
  }
  CHECK((saved == t.words));
}

TEST_CASE("evict_scope does not give host memory back for host use while copies still read it",
          "[raii][evict_scope][stream]") {
  watched_machine const t(0);
  auto const pinned = sim_pinned_host{t.machine.driver()} | limited{8_MiB} | pooled{};
  basic_stream const s(t.machine.driver());
  auto const words = counted_elements<int>(1'500'000, 1);
  auto buffer = make_device_buffer<int>(t.pool(), words, s);
  {
    evict_scope const evicted{pinned, s, buffer};
    s.synchronize();  // the copies to the host are done, the copies back are not
    t.busy()(s);
  }
  pinned_buffer<int, std::remove_const_t<decltype(pinned)>> later(pinned,
                                                                  words.size());  // there is no other memory
  std::ranges::fill(later, 3);
  CHECK((elements_of<int>(buffer) == words));
}

TEST_CASE("evict_scope synchronizes after a failed copy, so that memory still being read is not reused",
          "[raii][evict_scope][stream]") {
  small_world t{sim_machine{small_world::tight()}};
  REQUIRE(t.machine.launch(t.s, 1'000'000'000).ok());
  t.driver.plan().reset();
  t.driver.plan().fail(driver_call::copy, 2);
  if (GENERATE(false, true)) t.driver.plan().fail(driver_call::synchronize_stream, 1);
  CHECK_THROWS_AS((evict_scope{t.pinned, t.s, t.first, t.second}), cuda_error);
  CHECK(t.machine.pending() == 0);
  CHECK(t.intact());
}

TEST_CASE("evict_scope reports lost elements as misuse if there is no when_lost handler",
          "[raii][evict_scope]") {
  misuse_watch const misuses;
  small_world t{sim_machine{small_world::tight()}};
  {
    evict_scope const evicted{t.pinned, t.s, t.first, t.second};
    t.memory.empty_cache();
    t.fill_device();
  }
  CHECK(reported_misuses == 1);
  CHECK(reported_kind == misuse_kind::contents_lost);
  CHECK(t.first.empty());
}

TEST_CASE("evict_scope passes an empty span to when_lost if the device failed before the copy",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  std::optional<bool> empty;
  {
    evict_scope evicted{t.pinned, t.s, t.first};
    evicted.when_lost([&](lost_elements const& lost) { empty = lost.bytes.empty(); });
    t.machine.break_device(device_id{});
  }
  t.machine.repair();
  CHECK(empty == true);
}

TEST_CASE("evict_scope is destroyed without a report after the driver has unloaded", "[raii][evict_scope]") {
  misuse_watch const misuses;
  sim_machine const machine{small_world::tight()};
  {
    auto buffer = make_device_buffer<int>(sim_pool{sim_pages{machine.driver()}}, 1000, stream_ref{});
    auto const pinned = sim_pinned_host{machine.driver()} | pooled{};
    evict_scope evicted{pinned, stream_ref{}, buffer};
    evicted.when_lost([](lost_elements const&) { FAIL("the handler must not be called"); });
    machine.unload();
  }
  machine.repair();
  CHECK(reported_misuses == 0);
}

#if !TARN_TSAN  // whose own threads do not survive a fork
TEST_CASE("evict_scope ends in a forked child without a report: the parent has the elements",
          "[raii][evict_scope][fork]") {
  sim_machine const machine{small_world::tight()};
  std::vector<int> const words(1000, 7);
  device_buffer<int, sim_pool> buffer{sim_pool{sim_pages{machine.driver()}}, std::span<int const>(words),
                                      stream_ref{}};
  auto pinned = sim_pinned_host{machine.driver()} | pooled{};
  {
    auto evicted =
        std::make_optional<evict_scope<decltype(pinned), decltype(buffer)>>(pinned, stream_ref{}, buffer);
    CHECK(tarn::child_of([&] {
            misuse_watch const misuses;
            evicted->when_lost([](lost_elements const&) { ++reported_misuses; });
            evicted.reset();
            return reported_misuses == 0;
          }) == 0);
  }
  CHECK(elements_of<int>(buffer) == words);
}
#endif

TEST_CASE("evict_scope refuses a stream that is being captured", "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  REQUIRE(t.machine.begin_capture(t.s).ok());
  CHECK_THROWS_AS((evict_scope{t.pinned, t.s, t.first}), misuse);
  sim_graph graph;
  CHECK(t.machine.end_capture(t.s, graph).ok());
  CHECK(graph.is_empty());
  CHECK(t.machine.captured_calls() == 0);
  {
    evict_scope evicted{t.pinned, t.s, t.first};
    REQUIRE(t.machine.begin_capture(t.s).ok());
    CHECK_THROWS_AS(evicted.bring_back(), misuse);
    REQUIRE(t.machine.end_capture(t.s, graph).ok());
  }
  CHECK(t.intact());
}

TEST_CASE("evict_scope neither evicts nor restores a buffer whose own stream is being captured",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  sim_graph graph;
  REQUIRE(t.machine.begin_capture(t.a).ok());
  CHECK_THROWS_AS((evict_scope{t.pinned, t.s, t.first}), misuse);
  CHECK(t.machine.end_capture(t.a, graph).ok());
  CHECK(t.machine.captured_calls() == 0);
  {
    evict_scope evicted{t.pinned, t.s, t.first};
    REQUIRE(t.machine.begin_capture(t.a).ok());
    CHECK_THROWS_AS(evicted.bring_back(), misuse);
    REQUIRE(t.machine.end_capture(t.a, graph).ok());
  }
  CHECK(t.intact());
}

TEST_CASE(
    "evict_scope that ends while its stream is captured calls when_lost and leaves the active capture valid",
    "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  std::vector<int> saved;
  sim_graph graph;
  REQUIRE(t.machine.launch(t.s, 1'000'000).ok());
  {
    evict_scope evicted{t.pinned, t.s, t.first};
    evicted.when_lost([&](lost_elements const& lost) { saved = copied(lost.bytes); });
    REQUIRE(t.machine.begin_capture(t.s).ok());
  }
  CHECK(t.machine.end_capture(t.s, graph).ok());
  CHECK((saved == t.words));
}

TEST_CASE("evict_scope accepts pinned memory of another device", "[raii][evict_scope][stream]") {
  sim_options o = small_world::tight();
  o.devices = 2;
  sim_machine const machine{o};
  auto memory = sim_pages{machine.driver(device_id{1})} | pooled{};
  auto pinned = sim_pinned_host{machine.driver(device_id{0})} | pooled{};
  std::vector<int> const words = counted_elements<int>(400'000, 1);
  device_buffer<int, decltype(memory)> buffer(memory, std::span<int const>(words), {});
  REQUIRE(machine.driver(device_id{1}).synchronize_device().ok());
  REQUIRE(machine.driver(device_id{1}).launch(stream_ref{}, 1'000'000'000, {}, [] {}).ok());
  evict_scope evicted{pinned, stream_ref{}, buffer};
  std::span<int const> const seen = evicted.host_copy<0>();
  CHECK((std::vector<int>(seen.begin(), seen.end()) == words));
  REQUIRE(machine.driver(device_id{1}).launch(stream_ref{}, 1'000'000'000, {}, [] {}).ok());
  evicted.bring_back();
  // The host can reuse the scope's memory only after the copy back.
  auto* const again = static_cast<int*>(pinned.allocate_sync(words.size() * sizeof(int)));
  std::fill(again, again + words.size(), -1);
  CHECK((elements_of<int>(buffer) == words));
  pinned.deallocate_sync(again, words.size() * sizeof(int));
}

TEST_CASE("evict_scope restores its buffers during stack unwinding", "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  try {
    evict_scope const evicted{t.pinned, t.s, t.first, t.second};
    (void)make_device_buffer<std::byte>(t.memory, 1_GiB, t.s);
    FAIL("the allocation must not succeed");
  } catch (out_of_memory const&) {
  }
  CHECK(t.intact());
}

namespace {

/// One scope with an injected failure. The elements must be in place, restored or passed to when_lost.
struct failing_scope {
  bool struck = false;  ///< a call was made to fail
  bool threw = false;
  std::size_t left = 0;  ///< number of leaks at the end

  template <class Arm>
  failing_scope(Arm const& arm, fault_span span) {
    misuse_watch const misuses;
    sim_machine const machine{small_world::tight()};
    {
      small_world t{machine};
      std::vector<std::size_t> reported;
      bool words_match = true;
      t.driver.plan().reset();
      arm(t.driver.plan());
      try {
        evict_scope evicted{t.pinned, t.s, t.first, t.second};
        evicted.when_lost([&](lost_elements const& lost) {
          reported.push_back(lost.index);
          // A device that fails permanently does not report whether the copy completed.
          if (span == fault_span::once && lost.index == 0) words_match = copied(lost.bytes) == t.words;
        });
        auto const other = make_device_buffer<int>(t.memory, 800'000, t.s);
        evicted.bring_back();
      } catch (out_of_memory const&) {
        threw = true;
      } catch (cuda_error const&) {
        threw = true;
      }
      struck = t.driver.plan().failed() != 0;
      t.driver.plan().disarm();
      CHECK(words_match);
      CHECK(reported_misuses == 0);
      if (reported.empty()) {
        CHECK(t.intact());
      } else {
        CHECK((threw && t.first.empty() && t.second.empty()));
        CHECK(reported == std::vector<std::size_t>{0, 1});
      }
      // Everything works once the driver has recovered.
      t.first = device_buffer<int, small_world::memory_type>(t.memory, std::span<int const>(t.words), t.a);
      CHECK((elements_of<int>(t.first) == t.words));
      CHECK(memory_allocated(t.pinned) == 0);
    }
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().streams == 0);
    left = machine.leaks().total();
  }
};

}  // namespace

TEST_CASE("evict_scope loses no element, whichever driver call fails", "[raii][evict_scope][faults]") {
  int threw = 0;
  for (failure const kind : {failure::none, failure::out_of_memory, failure::other}) {
    for (std::uint64_t nth = 1;; ++nth) {
      INFO("call " << nth << ", failure " << static_cast<int>(kind));
      REQUIRE(nth < 200);
      failing_scope const run([&](fault_plan const& plan) { plan.fail(nth, {kind}); }, fault_span::once);
      threw += run.threw ? 1 : 0;
      CHECK(run.left <= 3);  // what that call would have freed
      if (run.struck) continue;
      CHECK(run.left == 0);
      break;
    }
  }
  CHECK(threw > 30);
}

TEST_CASE("evict_scope passes every element that it loses to when_lost if the driver fails permanently",
          "[raii][evict_scope][faults]") {
  for (std::uint64_t nth = 1;; ++nth) {
    INFO("call " << nth);
    REQUIRE(nth < 200);
    failing_scope const run(
        [&](fault_plan const& plan) {
          plan.fail(nth, {failure::other, fault_moment::instead, fault_span::for_good});
        },
        fault_span::for_good);
    if (!run.struck) break;
  }
}

TEST_CASE("evict_scope loses nothing if a driver call does its work and then fails",
          "[raii][evict_scope][faults]") {
  for (driver_call const call : {driver_call::copy, driver_call::record_event, driver_call::wait_event,
                                 driver_call::destroy_event, driver_call::is_capturing}) {
    for (std::uint64_t nth = 1;; ++nth) {
      INFO(name_of(call) << " " << nth);
      REQUIRE(nth < 50);
      failing_scope const run(
          [&](fault_plan const& plan) {
            plan.fail(call, nth, {failure::other, fault_moment::after});
          },
          fault_span::once);
      CHECK(run.left == 0);
      if (!run.struck) break;
    }
  }
}

TEST_CASE("evict_scope restores elements to their own resource, whatever a buffer is given meanwhile",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  auto const other = basic_pages<faulty_driver>(t.driver) | pooled{} | tracked{};
  {
    evict_scope const evicted{t.pinned, t.s, t.first, t.second};
    t.first = make_device_buffer<int>(other, 10, t.a);
    t.second.set_stream(t.s);
    t.second = {};  // without a resource and a stream
  }
  CHECK(t.first.resource() == t.memory);
  CHECK(t.second.resource() == t.memory);
  CHECK(memory_allocated(other) == 0);
  CHECK(elements_of<int>(t.first) == t.words);
  CHECK(elements_of<short>(t.second) == t.halves);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("evict_scope restores stream and alignment, whatever a buffer is given meanwhile",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  device_buffer<int, small_world::memory_type> aligned(t.memory, std::span<int const>(t.words), t.a, 4096);
  {
    evict_scope const evicted{t.pinned, t.s, aligned, t.second};
    aligned = make_device_buffer<int>(t.memory, 10, t.b);
    t.second.set_stream(t.s);
  }
  CHECK(aligned.alignment() == 4096);
  CHECK(aligned.stream().id() == t.a.ref().id());
  CHECK(t.second.stream().id() == t.b.ref().id());
  CHECK(elements_of<int>(aligned) == t.words);
  CHECK(elements_of<short>(t.second) == t.halves);
  CHECK(t.machine.findings().empty());
}

TEST_CASE("evict_scope leaves a buffer without a resource as it is, and refuses it as the first one",
          "[raii][evict_scope]") {
  small_world t{sim_machine{small_world::tight()}};
  decltype(t.first) none;
  CHECK_THROWS_AS((evict_scope{t.pinned, t.s, none, t.first}), misuse);
  CHECK(t.intact());
  {
    evict_scope evicted{t.pinned, t.s, t.first, none};
    evicted.bring_back();
  }
  CHECK(t.intact());
  CHECK(none.empty());
}
