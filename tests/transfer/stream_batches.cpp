// SPDX-License-Identifier: Apache-2.0
// Loops over batches on the simulated device: contents under many schedules, order, time, driver calls,
// faults.

#include "tarn/transfer/stream_batches.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "contract/owners_reported.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "transfer/batch_loops.hpp"

using namespace tarn;
using tarn_test::arrived;
using tarn_test::counted;
using tarn_test::numbers;

namespace {

/// A machine with a pool of each kind. Work completes late by up to the seed's jitter.
class bench {
 public:
  using driver_type = sim_driver;
  using memory_type = decltype(sim_pages{} | pooled{} | tarn_test::owners_reported{} | tracked{});
  using pinned_type = decltype(sim_pinned_host{} | pooled{} | tarn_test::owners_reported{} | tracked{});

  explicit bench(std::uint64_t seed = 0, sim_costs const& costs = {})
      : machine_(options_for(seed, costs)),
        memory_(sim_pages{machine_.driver()} | pooled{} | tarn_test::owners_reported{machine_} | tracked{}),
        pinned_(sim_pinned_host{machine_.driver()} | pooled{} | tarn_test::owners_reported{machine_} |
                tracked{}) {}

  [[nodiscard]] sim_machine const& machine() const { return machine_; }
  [[nodiscard]] sim_driver driver() const { return machine_.driver(); }
  [[nodiscard]] memory_type memory() const { return memory_; }
  [[nodiscard]] pinned_type pinned() const { return pinned_; }
  bool keep_busy(stream_ref stream) const { return machine_.launch(stream, 300'000).ok(); }

 private:
  static sim_options options_for(std::uint64_t seed, sim_costs const& costs) {
    sim_options o;
    o.capacity = 1_GiB;
    o.taken = 0;
    o.host_capacity = 512_MiB;
    o.checks = sim_checks::stream_order;
    o.costs = costs;
    o.seed = seed;
    o.jitter = seed % 3 == 0 ? 16 : seed % 3 == 1 ? 100'000 : 5'000'000;
    o.slow_streams = seed % 4 == 1 ? 300 : 0;
    o.late_events = seed % 2 == 0 ? 0 : 50'000;
    return o;
  }
  sim_machine machine_;
  memory_type memory_;
  pinned_type pinned_;
};

std::string findings(sim_machine const& machine) {
  auto const all = machine.findings();
  return all.empty() ? "" : all.front();
}

constexpr std::size_t small_batch = 700;  // elements

}  // namespace

TEST_CASE("stream_batches delivers every source complete and in order", "[raii][stream_batches]") {
  for (unsigned const threads : {0U, 1U, 4U}) {
    bench b(threads);
    tarn_test::sources_arrive_whole(b, small_batch, threads);
    CHECK(findings(b.machine()).empty());
    CHECK(b.machine().leaks().streams == 0);
    CHECK(b.machine().leaks().events <= 4);  // owned by the pools
  }
}

TEST_CASE("stream_batches fills a large batch in parts on several threads",
          "[raii][stream_batches][threads]") {
  bench b;
  basic_stream const stream(b.driver());
  numbers const all = counted(1'400'003);
  tarn_test::scratch_file const file(all);
  mapped_file const mapped(file.path());
  for (unsigned const threads : {2U, 3U, 7U}) {
    batch_options const options{.batch_bytes = 1_MiB + 4, .threads = threads};
    CHECK(arrived(b, stream, all, options, all.size()) == all);
    CHECK(arrived(b, stream, from_file<std::uint32_t>(mapped), options, all.size()) == all);
  }
}

TEST_CASE("collect_batches delivers device memory complete and in order", "[raii][collect_batches]") {
  for (std::uint64_t const seed : {0U, 1U, 2U}) {
    bench b(seed);
    tarn_test::device_memory_comes_back(b, small_batch);
    CHECK(findings(b.machine()).empty());
  }
}

TEST_CASE("stream_batches loops can exit at any point", "[raii][stream_batches]") {
  for (std::uint64_t const seed : {0U, 1U, 5U}) {
    bench b(seed);
    tarn_test::leaving_early_is_safe(b, small_batch);
    CHECK(findings(b.machine()).empty());
    CHECK(b.machine().leaks().streams == 0);
  }
}

TEST_CASE("stream_batches makes each batch visible only to the work on it, on every schedule",
          "[raii][stream_batches][stream]") {
  constexpr std::size_t per_batch = 64;
  constexpr std::size_t batches = 12;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    auto const up_to = [&](std::uint64_t most) { return random() % (most + 1); };
    // With free calls the host runs ahead of the device. With expensive calls the device waits.
    bench b(
        seed, seed % 2 == 0 ? sim_costs{} : [] {
          sim_costs c = sim_costs::nothing();
          c.pinned_rate = 0.0005;  // a batch takes half a millisecond
          return c;
        }());
    basic_stream const stream(b.driver());
    batch_options const options{
        .batch_bytes = per_batch * 4, .depth = 1 + up_to(3), .threads = static_cast<unsigned>(up_to(3))};
    numbers const all = counted(per_batch * batches - up_to(per_batch - 1));
    pinned_buffer<std::uint32_t, bench::pinned_type> const there(b.pinned(), all, stream);
    std::list<numbers> seen;  // filled when the work completes
    auto const loop = [&](auto&& source) {
      for (auto batch : stream_batches(source, options, b.memory(), stream, b.pinned())) {
        numbers& mine = seen.emplace_back(batch.size());
        REQUIRE(b.driver()
                    .launch(stream, up_to(2'000'000), {sim_writes(batch.data(), batch.bytes())},
                            [&mine, batch] {
                              mine.assign(batch.span().begin(), batch.span().end());
                              std::ranges::fill(batch.span(), 0U);  // the body may write to the slot
                            })
                    .ok());
        if (up_to(4) == 0) stream.synchronize();
        if (up_to(20) == 0) break;
      }
    };
    for (int loops = 0; loops < 3; ++loops) {
      // Earlier work, on memory that the pool may reuse for the loop.
      device_buffer<std::uint32_t, bench::memory_type> before(b.memory(), per_batch, stream);
      REQUIRE(b.driver().launch(stream, up_to(3'000'000), {sim_writes(before.data(), before.bytes())}).ok());
      before.reset();
      if (loops == 1) {
        loop(pinned(std::span<std::uint32_t const>(there)));
      } else {
        loop(all);
      }
    }
    stream.synchronize();
    std::uint32_t next = 1;
    for (numbers const& batch : seen) {
      if (batch.front() == 1) next = 1;
      REQUIRE(batch == counted(batch.size(), next));
      next += static_cast<std::uint32_t>(batch.size());
    }
    CHECK(findings(b.machine()) == "");
  }
}

TEST_CASE("stream_batches overlaps copies with work of the same length", "[raii][stream_batches][stream]") {
  constexpr std::size_t batches = 20;
  constexpr std::size_t bytes = 4_MiB;
  auto const time_of = [&](std::size_t depth, auto const& make_source) {
    sim_machine const machine;
    auto memory = sim_pages{machine.driver()} | pooled{};
    auto staging = sim_pinned_host{machine.driver()} | pooled{};
    basic_stream const stream(machine.driver());
    pinned_buffer<std::byte, decltype(staging)> const there(staging, batches * bytes, elements::uninitialised,
                                                            stream);
    auto const one =
        static_cast<sim_nanoseconds>(static_cast<double>(bytes) / machine.options().costs.pinned_rate);
    sim_nanoseconds begin = 0;
    for (auto batch : stream_batches(make_source(there), {.batch_bytes = bytes, .depth = depth}, memory,
                                     stream, staging)) {
      if (batch.index() == 0) begin = machine.now();
      REQUIRE(machine.launch(stream, one, {sim_reads(batch.data(), batch.bytes())}).ok());
    }
    stream.synchronize();
    return static_cast<double>(machine.now() - begin) /
           static_cast<double>(one);  // in units of one batch's copy time
  };
  auto const direct = [](auto const& there) { return pinned(std::span<std::byte const>(there)); };
  auto const staged = [](auto const& there) {
    return pageable_source<std::byte>(std::span<std::byte const>(there));
  };
  CHECK(time_of(1, direct) > 1.9 * batches);  // copies and work alternate
  CHECK(time_of(2, direct) < 1.15 * (batches + 1));
  CHECK(time_of(3, direct) < 1.05 * (batches + 1));
  CHECK(time_of(3, staged) < 1.05 * (batches + 1));
}

TEST_CASE("stream_batches and collect_batches reach the copy rate of pinned memory",
          "[raii][stream_batches][stream]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver()} | pooled{};
  auto staging = sim_pinned_host{machine.driver()} | pooled{};
  basic_stream const stream(machine.driver());
  constexpr std::size_t bytes = 256_MiB;
  pinned_buffer<std::byte, decltype(staging)> const there(staging, bytes, elements::uninitialised, stream);
  auto const through = [&](auto const& loop) {
    auto const begin = machine.now();
    loop();
    stream.synchronize();
    return static_cast<double>(machine.now() - begin);
  };
  auto const plain = through([&] {
    auto device = make_device_buffer<std::byte>(memory, bytes, stream);
    device.copy_from(std::span<std::byte const>(there));
  });
  auto const streamed = through([&] {
    for ([[maybe_unused]] auto batch : stream_batches(there, {.batch_bytes = 32_MiB}, memory, stream)) {
    }
  });
  CHECK(plain / streamed > 0.97);
  auto const device = make_device_buffer<std::byte>(memory, bytes, stream);
  for ([[maybe_unused]] auto batch : collect_batches(device, {.batch_bytes = 32_MiB}, stream, staging)) {
    break;  // allocates the slots
  }
  auto const collected = through([&] {
    for ([[maybe_unused]] auto batch : collect_batches(device, {.batch_bytes = 32_MiB}, stream, staging)) {
    }
  });
  CHECK(plain / collected > 0.97);
}

TEST_CASE("stream_batches over pinned memory synchronizes the host only at its end",
          "[raii][stream_batches]") {
  sim_machine const machine;
  auto memory = sim_pages{machine.driver()} | pooled{};
  auto staging = sim_pinned_host{machine.driver()} | pooled{};
  basic_stream const stream(machine.driver());
  pinned_buffer<std::byte, decltype(staging)> const there(staging, 64_KiB, elements::uninitialised, stream);
  auto const waits = [&] {
    auto const calls = machine.calls();
    return std::vector<std::uint64_t>{calls[driver_call::synchronize_event],
                                      calls[driver_call::synchronize_stream],
                                      calls[driver_call::synchronize_device]};
  };
  auto const loop = [&](auto const& source) {
    for (auto batch : stream_batches(source, {.batch_bytes = 4_KiB}, memory, stream, staging)) {
      REQUIRE(machine.launch(stream, 1'000'000, {sim_reads(batch.data(), batch.bytes())}).ok());
    }
  };
  loop(there);
  machine.reset_calls();
  loop(there);
  CHECK(waits() == std::vector<std::uint64_t>{0, 1, 0});
  CHECK(machine.calls()[driver_call::query_event] == 0);
  CHECK(machine.calls().memory() == 0);  // the pools are warm
  loop(std::span<std::byte const>(there));
  machine.reset_calls();
  loop(pageable_source<std::byte>(std::span<std::byte const>(there)));
  CHECK(waits()[0] <= 16);  // at most one per slot
  CHECK(waits()[1] == 1);
  CHECK(waits()[2] == 0);
  CHECK(machine.calls().memory() == 0);
}

TEST_CASE("stream_batches never splits an element and never exceeds batch_bytes", "[raii][stream_batches]") {
  struct three {
    float x, y, z;
  };
  bench b;
  basic_stream const stream(b.driver());
  std::vector<three> const all(1000);
  std::size_t total = 0;
  for (auto batch : stream_batches(all, {.batch_bytes = 1000}, b.memory(), stream, b.pinned())) {
    CHECK(batch.size() == std::min<std::size_t>(83, 1000 - total));
    total += batch.size();
  }
  CHECK(total == 1000);
  for (auto batch : stream_batches(all, {.batch_bytes = sizeof(three)}, b.memory(), stream, b.pinned())) {
    CHECK(batch.size() == 1);
  }
}

TEST_CASE("stream_batches of a source smaller than a batch allocates only what it needs",
          "[raii][stream_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  numbers const all = counted(1000);
  for (auto batch : stream_batches(all, {}, b.memory(), stream, b.pinned())) {
    CHECK(batch.size() == 1000);
    CHECK(b.memory()->statistics().requested_bytes[0].current == 4000);
    CHECK(b.pinned()->statistics().requested_bytes[0].current == 4000);
  }
  for ([[maybe_unused]] auto batch :
       stream_batches(std::span<int const>(), {}, b.memory(), stream, b.pinned())) {
    FAIL("an empty source has no batch");
  }
  CHECK(b.memory()->statistics().requested_bytes[0].current == 0);
}

TEST_CASE("stream_batches refuses invalid options and reports what to change", "[raii][stream_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  numbers const all = counted(10);
  auto const refused = [&](batch_options const& options, char const* says) {
    auto const text_of = [&](auto const& make) -> std::string {
      try {
        make();
      } catch (bad_batch const& error) {
        return error.what();
      }
      return "nothing";
    };
    CHECK(text_of([&] { (void)stream_batches(all, options, b.memory(), stream, b.pinned()); }).find(says) !=
          std::string::npos);
    CHECK(text_of([&] {
            (void)collect_batches(std::span<std::uint32_t const>(), options, b.memory(), stream, b.pinned());
          }).find(says) != std::string::npos);
  };
  refused({.depth = 0}, "depth is 0; use 1 or more");
  refused({.batch_bytes = 0}, "at least one element, 4 B");
  refused({.batch_bytes = 3}, "at least one element, 4 B");
  refused({.batch_bytes = ~std::size_t{0}}, "batch_bytes is 18446744073709551615");
  CHECK_THROWS_AS(
      stream_batches(generate<int>([](std::span<int>, std::size_t) { return std::size_t{0}; }),
                     {.batch_bytes = max_request_bytes, .depth = 1}, b.memory(), stream, b.pinned()),
      out_of_memory);
  // The number of batches of a generator is unknown, so nothing else bounds the slots.
  auto const slots = [&](std::size_t depth) {
    (void)stream_batches(generate<int>([](std::span<int>, std::size_t) { return std::size_t{0}; }),
                         {.batch_bytes = 1_MiB, .depth = depth}, b.memory(), stream, b.pinned());
  };
  b.machine().reset_calls();
  CHECK_THROWS_AS(slots(~std::size_t{0}), bad_batch);
  CHECK_THROWS_AS(slots(1'000'000), out_of_memory);
  CHECK(b.machine().calls()[driver_call::create_event] == 0);
  CHECK(b.machine().leaks().streams == 1);
  REQUIRE(b.machine().begin_capture(stream).ok());
  CHECK_THROWS_AS(stream_batches(all, {}, b.memory(), stream, b.pinned()), misuse);
  sim_graph graph;
  CHECK(b.machine().end_capture(stream, graph).ok());  // the capture is still valid
}

TEST_CASE("a loop over batches that would join a capture is refused, and the graph has nothing of it",
          "[raii][stream_batches][collect_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  pinned_buffer<int, bench::pinned_type> const all(b.pinned(), 4096);
  device_buffer<int, bench::memory_type> on_device(b.memory(), 4096, stream);
  bool const begins_inside = GENERATE(false, true);
  sim_graph graph;
  auto const loop = [&](auto&& batches) {
    if (!begins_inside) REQUIRE(b.machine().begin_capture(stream).ok());
    try {
      for (auto const& batch : batches) {
        if (begins_inside && batch.index() == 0) REQUIRE(b.machine().begin_capture(stream).ok());
      }
      return false;
    } catch (misuse const& m) {
      return m.kind() == misuse_kind::capture;
    }
  };
  CHECK(loop(stream_batches(all, {.batch_bytes = 4096, .depth = 2}, b.memory(), stream, b.pinned())));
  REQUIRE(b.machine().end_capture(stream, graph).ok());
  CHECK(graph.size() == 0);
  if (begins_inside) return;  // a loop that collects does not name the stream again
  CHECK(loop(collect_batches(on_device, {.batch_bytes = 4096, .depth = 2}, stream, b.pinned())));
  REQUIRE(b.machine().end_capture(stream, graph).ok());
  CHECK(graph.size() == 0);
}

TEST_CASE("stream_batches refuses a generator that reports more elements than its slot holds",
          "[raii][stream_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  for (unsigned const threads : {0U, 2U}) {
    auto const loop = [&] {
      for ([[maybe_unused]] auto batch :
           stream_batches(generate<int>([](std::span<int> slot, std::size_t) { return slot.size() + 1; }),
                          {.batch_bytes = 64, .threads = threads}, b.memory(), stream, b.pinned())) {
        FAIL("no batch must follow");
      }
    };
    CHECK_THROWS_AS(loop(), bad_batch);
  }
}

TEST_CASE("generate with threads fills ahead, calls each index once, and keeps batches in order",
          "[raii][stream_batches][threads]") {
  bench b;
  basic_stream const stream(b.driver());
  std::set<std::thread::id> who;
  std::vector<int> calls(64);
  std::atomic<int> inside{0};
  std::mutex mutex;
  std::size_t next = 0;
  for (auto batch :
       stream_batches(generate<int>([&](std::span<int> slot, std::size_t index) -> std::size_t {
                        ++inside;
                        {
                          std::lock_guard const lock(mutex);
                          who.insert(std::this_thread::get_id());
                          ++calls[index];
                        }
                        std::ranges::fill(slot, static_cast<int>(index));
                        --inside;
                        return index < 40 ? slot.size() : 0;
                      }),
                      {.batch_bytes = 256, .depth = 4, .threads = 3}, b.memory(), stream, b.pinned())) {
    REQUIRE(batch.index() == next);
    int first = -1;
    REQUIRE(b.driver().copy(stream, &first, batch.data(), sizeof first).ok());
    CHECK(first == static_cast<int>(next));
    ++next;
  }
  CHECK(next == 40);
  CHECK(inside == 0);  // the threads are joined
  CHECK_FALSE(who.contains(std::this_thread::get_id()));
  for (std::size_t i = 0; i <= 40; ++i) CHECK(calls[i] == 1);
  for (std::size_t i = 41; i < calls.size(); ++i) CHECK(calls[i] <= 1);
}

TEST_CASE("generate runs on all threads at once, whatever the number of device slots",
          "[raii][stream_batches][threads]") {
  bench b;
  basic_stream const stream(b.driver());
  constexpr unsigned threads = 5;
  std::atomic<unsigned> inside{0};
  std::atomic<bool> met{false};
  std::size_t batches = 0;
  for ([[maybe_unused]] auto batch :
       stream_batches(generate<int>([&](std::span<int> slot, std::size_t index) -> std::size_t {
                        if (index >= 20) return 0;
                        if (++inside == threads) met = true;
                        auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
                        while (!met && std::chrono::steady_clock::now() < end) std::this_thread::yield();
                        --inside;
                        return slot.size();
                      }),
                      {.batch_bytes = 256, .depth = 1, .threads = threads}, b.memory(), stream, b.pinned())) {
    ++batches;
  }
  CHECK(batches == 20);
  CHECK(met);
}

TEST_CASE("generate without threads runs on the loop's thread", "[raii][stream_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  auto const me = std::this_thread::get_id();
  std::size_t batches = 0;
  for ([[maybe_unused]] auto batch :
       stream_batches(generate<int>([&](std::span<int> slot, std::size_t index) {
                        CHECK(std::this_thread::get_id() == me);
                        return index < 5 ? slot.size() : 0;
                      }),
                      {.batch_bytes = 64}, b.memory(), stream)) {
    ++batches;
  }
  CHECK(batches == 5);
}

TEST_CASE("stream_batches runs several loops with threads at once on one pool",
          "[raii][stream_batches][threads]") {
  bench b;
  std::vector<std::thread> loops;
  std::atomic<int> right{0};
  for (unsigned t = 0; t < 3; ++t) {
    loops.emplace_back([&, t] {
      basic_stream const stream(b.driver());
      numbers const all = counted(20'000, t + 1);
      auto device = make_device_buffer<std::uint32_t>(b.memory(), all.size(), stream);
      for (auto batch :
           stream_batches(all, {.batch_bytes = 4_KiB, .threads = 2}, b.memory(), stream, b.pinned())) {
        (void)b.driver().copy(stream, device.data() + batch.offset(), batch.data(), batch.bytes());
      }
      numbers back;
      for (auto batch : collect_batches(device, {.batch_bytes = 4_KiB}, stream, b.pinned())) {
        back.insert(back.end(), batch.begin(), batch.end());
      }
      right += back == all ? 1 : 0;
    });
  }
  for (auto& loop : loops) loop.join();
  CHECK(right == 3);
  CHECK(findings(b.machine()) == "");
}

TEST_CASE("stream_batches is a single-pass input range", "[raii][stream_batches]") {
  bench b;
  basic_stream const stream(b.driver());
  numbers const all = counted(100);
  auto range = stream_batches(all, {.batch_bytes = 40}, b.memory(), stream, b.pinned());
  using range_type = decltype(range);
  static_assert(std::ranges::input_range<range_type> && !std::ranges::forward_range<range_type>);
  static_assert(!std::copyable<range_type> && !std::movable<range_type>);
  auto it = range.begin();
  CHECK((*it).index() == 0);
  ++it;
  it++;
  CHECK((*range.begin()).index() == 2);  // the current position of the loop
  std::size_t left = 0;
  for ([[maybe_unused]] auto batch : range) ++left;
  CHECK(left == 8);
  CHECK(range.begin() == range.end());
}

TEST_CASE("stream_batches throws a typed error and leaks nothing, whichever driver call fails",
          "[raii][stream_batches][fault]") {
  numbers const all = counted(50);
  auto const run = [&](fault_plan const& plan, sim_machine const& machine, bool staged) {
    faulty const driver(machine.driver(), plan);
    auto memory = basic_pages<faulty<sim_driver>>(driver) | pooled{};
    auto staging = basic_pinned<faulty<sim_driver>>(driver) | pooled{};
    basic_stream const stream(driver);
    numbers back;
    auto device = make_device_buffer<std::uint32_t>(memory, all.size(), stream);
    auto const body = [&](auto batch) {
      if (!driver.copy(stream, device.data() + batch.offset(), batch.data(), batch.bytes()).ok())
        throw std::runtime_error("the body's own");
    };
    if (staged) {
      for (auto batch : stream_batches(all, {.batch_bytes = 40, .threads = 2}, memory, stream, staging))
        body(batch);
    } else {
      pinned_buffer<std::uint32_t, decltype(staging)> const there(staging, all, stream);
      for (auto batch : stream_batches(there, {.batch_bytes = 40}, memory, stream, staging)) body(batch);
    }
    for (auto batch : collect_batches(device, {.batch_bytes = 40}, stream, staging)) {
      back.insert(back.end(), batch.begin(), batch.end());
    }
    CHECK(back == all);  // if nothing threw
  };
  std::uint64_t typed = 0;
  for (bool const staged : {false, true}) {
    for (fault_span const span : {fault_span::once, fault_span::for_good}) {
      bool struck = true;
      for (std::uint64_t k = 1; struck; ++k) {
        INFO("call " << k << (staged ? ", staged" : ", pinned"));
        sim_machine const machine;
        fault_plan const plan;
        plan.fail(k, {.span = span});
        try {
          run(plan, machine, staged);
        } catch (cuda_error const&) {
          ++typed;
        } catch (out_of_memory const&) {
          ++typed;
        } catch (std::runtime_error const& error) {
          CHECK(std::string_view(error.what()) == "the body's own");
        }
        struck = plan.failed() != 0;
        // A failed release may leak its object: one object, or a page with its handle and its range.
        if (span == fault_span::once) CHECK(machine.leaks().total() <= 3);
        if (span == fault_span::once) CHECK(machine.leaks().streams + machine.leaks().events <= 1);
        REQUIRE(k < 1000);
      }
    }
  }
  CHECK(typed > 200);
}

TEST_CASE("collect_batches refuses a buffer without a resource", "[raii][collect_batches]") {
  bench const b;
  basic_stream const stream(b.driver());
  device_buffer<int, sim_pool> const none;
  CHECK_THROWS_AS(collect_batches(none, {}, stream), misuse);
  CHECK_THROWS_AS(collect_batches(none, {}, stream, b.pinned()), misuse);
}
