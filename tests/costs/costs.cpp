// SPDX-License-Identifier: Apache-2.0
// What calls cost, as their docstrings say: driver calls, and items that are looked at, with n of what the
// cost depends on and with 4n. Never time. TARN_VISIT stands where the library reads an entry of its tables:
// a call that is O(1) reads as many with n as with 4n.

#include <cstdint>

namespace {
thread_local std::uint64_t visits = 0;
}
#define TARN_VISIT() static_cast<void>(++visits)

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/diagnostics.hpp"
#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/reservation.hpp"

using namespace tarn;

namespace {

struct cost {
  std::uint64_t items = 0;
  std::uint64_t calls = 0;
};

/// What `act` costs. The cost of learning a stream's identity is not counted.
template <class Act>
cost cost_of(sim_machine const& machine, Act const& act) {
  machine.reset_calls();
  visits = 0;
  act();
  std::uint64_t const items = visits;
  sim_calls const made = machine.calls();
  return {items, made.total() - made[driver_call::identify]};
}

enum class growth : std::uint8_t { none, linear, n_log_n };

/// The most that a cost may be with 4n if it is `at_n` with n.
constexpr std::uint64_t most_at_4n(std::uint64_t at_n, growth as) {
  constexpr std::uint64_t beside = 16;  // of what does not depend on n
  switch (as) {
    case growth::none:
      return at_n + beside;
    case growth::linear:
      return 4 * at_n + at_n / 8 + beside;
    default:
      return 4 * at_n + at_n + beside;  // log(4n) / log(n) is 1.25 with n of 256
  }
}

/// Fails if what `measure(n)` reports grows more than stated from n to 4n.
template <class Measure>
void check_growth(growth items, growth calls, std::size_t n, Measure const& measure) {
  cost const few = measure(n);
  cost const many = measure(4 * n);
  CAPTURE(n, few.items, many.items, few.calls, many.calls);
  CHECK(many.items <= most_at_4n(few.items, items));
  CHECK(many.calls <= most_at_4n(few.calls, calls));
}

/// A simulated device, whose memory is addresses only.
struct device {
  explicit device(std::size_t capacity = 140_GiB)
      : machine(sim_options{.capacity = capacity, .taken = 0, .backing = sim_backing::address_only}) {}

  sim_machine machine;
  sim_driver driver = machine.driver();
  basic_stream<sim_driver> stream{driver};
};

/// `count` blocks of 2 MiB, each a handle of its own; every other one is free.
template <class Memory>
std::vector<void*> checkerboard(Memory& memory, stream_ref stream, std::size_t count,
                                std::size_t bytes = 2_MiB) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 2 * count; ++i) blocks.push_back(memory.allocate(stream, bytes));
  std::vector<void*> kept;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      kept.push_back(blocks[i]);
    } else {
      memory.deallocate(stream, blocks[i], bytes);
    }
  }
  return kept;
}
template <class Memory>
void free_all(Memory& memory, stream_ref stream, std::vector<void*> const& blocks,
              std::size_t bytes = 2_MiB) {
  for (void* const p : blocks) memory.deallocate(stream, p, bytes);
}
/// Pages of a driver that can mark all work of a device, as that of CUDA 12.5 and later.
using marked_pages = basic_pages<sim_marking_driver>;

struct some_streams {
  device const& on;
  std::vector<basic_stream<sim_driver>> streams;

  some_streams(device const& d, std::size_t n) : on(d) {
    for (std::size_t i = 0; i < n; ++i) streams.emplace_back(d.driver);
  }
  /// Work on each stream that does not end.
  void work() const {
    for (auto const& s : streams) (void)on.machine.launch(s.ref(), 1'000'000'000'000);
  }
  template <class Memory>
  std::vector<void*> allocate(Memory& memory, std::size_t bytes) const {
    std::vector<void*> blocks;
    for (auto const& s : streams) blocks.push_back(memory.allocate(s, bytes));
    return blocks;
  }
  template <class Memory>
  void deallocate(Memory& memory, std::vector<void*> const& blocks, std::size_t bytes) const {
    for (std::size_t i = 0; i < streams.size(); ++i) memory.deallocate(streams[i], blocks[i], bytes);
  }
};

constexpr pooled finest{.slack_per_mille = 0, .largest_handle = 2_MiB};

}  // namespace

// ---- allocate and deallocate

TEST_CASE("allocate and deallocate look at as much whatever is live and free", "[costs][pool]") {
  for (std::size_t const bytes : {1_KiB, 100_KiB, 3_MiB}) {
    CAPTURE(bytes);
    check_growth(growth::none, growth::none, 256, [&](std::size_t n) {
      device d;
      auto memory = sim_pages{d.driver} | pooled{};
      auto const kept = checkerboard(memory, d.stream, n, 36_KiB);
      auto const large = checkerboard(memory, d.stream, n, 3_MiB);
      auto const pairs = [&] {  // more than a magazine holds of 3 MiB
        void* const p = memory.allocate(d.stream, bytes);
        void* const q = memory.allocate(d.stream, bytes);
        memory.deallocate(d.stream, p, bytes);
        memory.deallocate(d.stream, q, bytes);
      };
      pairs();
      cost const c = cost_of(d.machine, pairs);
      free_all(memory, d.stream, kept, 36_KiB);
      free_all(memory, d.stream, large, 3_MiB);
      return c;
    });
  }
}

TEST_CASE("extend looks at as much whatever is live and free, and makes no call", "[costs][pool][extend]") {
  check_growth(growth::none, growth::none, 256, [&](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{};
    auto kept = checkerboard(memory, d.stream, n, 3_MiB);
    void* const p = kept.back();
    kept.pop_back();
    bool extended = memory.extend(d.stream, p, 3_MiB, 512);  // after it the tables have room
    CHECK(extended);
    cost const c =
        cost_of(d.machine, [&] { extended = memory.extend(d.stream, p, 3_MiB + 512, 1_MiB - 512); });
    CHECK(extended);
    CHECK(c.calls == 0);
    memory.deallocate(d.stream, p, 4_MiB);
    free_all(memory, d.stream, kept, 3_MiB);
    return c;
  });
}

TEST_CASE("allocate that creates a handle or a segment looks at as much whatever is live", "[costs][pool]") {
  auto const measure = [](auto const& source, pooled const& options, std::size_t n) {
    device d;
    auto memory = source(d.driver) | options;
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < n; ++i) blocks.push_back(memory.allocate(d.stream, 2_MiB));
    cost const c = cost_of(d.machine, [&] { blocks.push_back(memory.allocate(d.stream, 2_MiB)); });
    free_all(memory, d.stream, blocks);
    return c;
  };
  check_growth(growth::none, growth::none, 256, [&](std::size_t n) {
    return measure([](sim_driver const& driver) { return sim_pages{driver}; }, finest, n);
  });
  check_growth(growth::none, growth::none, 256, [&](std::size_t n) {
    return measure([](sim_driver const& driver) { return sim_malloc{driver}; }, pooled{}, n);
  });
}

TEST_CASE("allocate that assembles a block looks at each free piece once, however many views there are",
          "[costs][pool][view]") {
  auto const measure = [](std::size_t n, std::size_t views, std::size_t bytes) {
    device d;
    auto memory = sim_pages{d.driver} | finest;
    auto const kept = checkerboard(memory, d.stream, n);
    std::vector<void*> large;
    for (std::size_t i = 0; i < views; ++i) large.push_back(memory.allocate(d.stream, 16_MiB));
    free_all(memory, d.stream, large, 16_MiB);
    void* p = nullptr;
    cost const c = cost_of(d.machine, [&] { p = memory.allocate(d.stream, bytes); });
    CHECK(memory->state().remaps > 0);
    memory.deallocate(d.stream, p, bytes);
    free_all(memory, d.stream, kept);
    return c;
  };
  for (std::size_t const bytes : {34_MiB, 35_MiB}) {  // whole handles, and a part of one
    CAPTURE(bytes);
    check_growth(growth::linear, growth::none, 512, [&](std::size_t n) { return measure(n, 32, bytes); });
    CHECK(measure(2048, 64, bytes).items < 2 * measure(2048, 1, bytes).items);
  }
}

TEST_CASE("allocate that finds a view looks at each view once", "[costs][pool][view]") {
  check_growth(growth::linear, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | limited{8 * n * 2_MiB} | finest;
    auto const kept = checkerboard(memory, d.stream, 4 * n);
    std::vector<void*> large;
    for (std::size_t i = 0; i < n; ++i) large.push_back(memory.allocate(d.stream, 4_MiB));
    memory.deallocate(d.stream, large.front(), 4_MiB);
    cost const c = cost_of(d.machine, [&] { large.front() = memory.allocate(d.stream, 4_MiB); });
    free_all(memory, d.stream, large, 4_MiB);
    free_all(memory, d.stream, kept);
    return c;
  });
}

TEST_CASE("allocate takes the memory of all other streams with one mark and one wait", "[costs][pool]") {
  for (bool const finished : {true, false}) {
    CAPTURE(finished);
    check_growth(growth::linear, growth::none, 64, [&](std::size_t n) {
      device d;
      auto memory = marked_pages{d.driver} | limited{n * 2_MiB} | finest;
      some_streams const streams(d, n);
      auto const blocks = streams.allocate(memory, 2_MiB);
      if (!finished) streams.work();
      streams.deallocate(memory, blocks, 2_MiB);
      void* p = nullptr;
      cost const c = cost_of(d.machine, [&] { p = memory.allocate(d.stream, 2_MiB); });
      memory.deallocate(d.stream, p, 2_MiB);
      return c;
    });
  }
}

TEST_CASE(
    "allocate takes the memory of each other stream with a few calls where the driver cannot mark all work",
    "[costs][pool]") {
  check_growth(growth::linear, growth::linear, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | limited{n * 2_MiB} | finest;
    some_streams const streams(d, n);
    auto const blocks = streams.allocate(memory, 2_MiB);
    streams.work();
    streams.deallocate(memory, blocks, 2_MiB);
    void* p = nullptr;
    cost const c = cost_of(d.machine, [&] { p = memory.allocate(d.stream, 2_MiB); });
    memory.deallocate(d.stream, p, 2_MiB);
    return c;
  });
}

TEST_CASE("allocate that the device refuses asks each other pool on it", "[costs][pool]") {
  check_growth(growth::linear, growth::linear, 16, [](std::size_t n) {
    device d(1_GiB);
    std::vector<stack<sim_pages, pooled>> pools;
    for (std::size_t i = 0; i < n; ++i) pools.push_back(sim_pages{d.driver} | pooled{});
    for (auto& other : pools) other.deallocate(d.stream, other.allocate(d.stream, 2_MiB), 2_MiB);
    auto memory = sim_pages{d.driver} | pooled{};
    void* p = nullptr;
    cost const c = cost_of(d.machine, [&] { p = memory.allocate(d.stream, 1_GiB); });
    for (auto& other : pools) CHECK(memory_reserved(other) == 0);
    memory.deallocate(d.stream, p, 1_GiB);
    return c;
  });
}

// ---- blocks that other streams use

TEST_CASE("record_stream and deallocate look at as much whatever else is recorded or deferred",
          "[costs][pool]") {
  check_growth(growth::none, growth::none, 256, [](std::size_t n) {
    device d;
    basic_stream<sim_driver> other{d.driver};
    auto memory = sim_pages{d.driver} | pooled{};
    std::vector<void*> recorded;
    for (std::size_t i = 0; i < n; ++i) {
      recorded.push_back(memory.allocate(d.stream, 1_KiB));
      memory.record_stream(recorded.back(), 1_KiB, other);
    }
    (void)d.machine.launch(other, 1'000'000'000'000);
    for (std::size_t i = 0; i < n / 2; ++i) memory.deallocate(d.stream, recorded[i], 1_KiB);
    void* const p = memory.allocate(d.stream, 1_KiB);
    cost const c = cost_of(d.machine, [&] {
      memory.record_stream(p, 1_KiB, other);
      memory.deallocate(d.stream, p, 1_KiB);
    });
    for (std::size_t i = n / 2; i < n; ++i) memory.deallocate(d.stream, recorded[i], 1_KiB);
    return c;
  });
}

TEST_CASE("deallocate of a block that many streams use makes one mark for all of a device", "[costs][pool]") {
  check_growth(growth::linear, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = marked_pages{d.driver} | pooled{};
    some_streams const streams(d, n);
    void* const p = memory.allocate(d.stream, 3_MiB);
    for (auto const& s : streams.streams) memory.record_stream(p, 3_MiB, s);
    return cost_of(d.machine, [&] { memory.deallocate(d.stream, p, 3_MiB); });
  });
}

// ---- giving back

TEST_CASE("empty_cache looks at each free handle or segment once, and makes some calls for each",
          "[costs][pool]") {
  check_growth(growth::n_log_n, growth::linear, 256, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | finest;
    auto const kept = checkerboard(memory, d.stream, n);
    cost const c = cost_of(d.machine, [&] { empty_cache(memory); });
    free_all(memory, d.stream, kept);
    return c;
  });
  check_growth(growth::linear, growth::linear, 256, [](std::size_t n) {
    device d;
    auto memory = sim_malloc{d.driver} | pooled{};
    auto const kept = checkerboard(memory, d.stream, n);
    cost const c = cost_of(d.machine, [&] { empty_cache(memory); });
    free_all(memory, d.stream, kept);
    return c;
  });
}

TEST_CASE("empty_cache makes one mark and one wait for all streams of a device", "[costs][pool]") {
  for (bool const finished : {true, false}) {
    CAPTURE(finished);
    check_growth(growth::linear, growth::none, 64, [&](std::size_t n) {
      device d;
      auto memory = marked_pages{d.driver} | finest;
      some_streams const streams(d, n);
      auto const blocks = streams.allocate(memory, 2_MiB);
      if (!finished) streams.work();
      streams.deallocate(memory, blocks, 2_MiB);
      sim_calls made;
      cost c = cost_of(d.machine, [&] {
        empty_cache(memory);
        made = d.machine.calls();
      });
      c.calls -= made.memory();
      return c;
    });
  }
}

TEST_CASE("sleep and wake look at each handle and range, and make some calls for each handle",
          "[costs][pool][sleep]") {
  for (contents const where : {contents::discarded, contents::in_pinned_memory}) {
    check_growth(growth::linear, growth::linear, 256, [&](std::size_t n) {
      device d;
      auto memory = sim_pages{d.driver} | finest;
      auto const kept = checkerboard(memory, d.stream, n, 100_KiB);
      cost const c = cost_of(d.machine, [&] {
        sleep(memory, where);
        wake(memory);
      });
      free_all(memory, d.stream, kept, 100_KiB);
      return c;
    });
  }
}

TEST_CASE("compact looks at each handle and range, and makes some calls for each handle that it replaces",
          "[costs][pool][compact]") {
  check_growth(growth::linear, growth::linear, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{.slack_per_mille = 0, .largest_handle = 8_MiB};
    auto const kept = checkerboard(memory, d.stream, n, 3_MiB);
    cost const c = cost_of(d.machine, [&] { (void)compact(memory); });
    free_all(memory, d.stream, kept, 3_MiB);
    return c;
  });
}

// ---- looking

TEST_CASE("memory_stats looks at each stream, not at each block", "[costs][pool][report]") {
  check_growth(growth::none, growth::none, 1024, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{} | tracked{};
    auto const kept = checkerboard(memory, d.stream, n, 36_KiB);
    cost const c = cost_of(d.machine, [&] { (void)memory_stats(memory); });
    free_all(memory, d.stream, kept, 36_KiB);
    return c;
  });
  check_growth(growth::linear, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{} | tracked{};
    some_streams const streams(d, n);
    streams.deallocate(memory, streams.allocate(memory, 1_KiB), 1_KiB);
    return cost_of(d.machine, [&] { (void)memory_stats(memory); });
  });
}

TEST_CASE("take_snapshot looks at each range, and sorts", "[costs][report]") {
  check_growth(growth::n_log_n, growth::none, 256, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{};
    auto const kept = checkerboard(memory, d.stream, n, 36_KiB);
    cost const c = cost_of(d.machine, [&] { (void)take_snapshot(memory); });
    free_all(memory, d.stream, kept, 36_KiB);
    return c;
  });
}

TEST_CASE("largest_available_block looks at each range and handle", "[costs][pool]") {
  check_growth(growth::linear, growth::none, 256, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | finest;
    auto const kept = checkerboard(memory, d.stream, n);
    cost const c = cost_of(d.machine, [&] { (void)largest_available_block(memory); });
    free_all(memory, d.stream, kept);
    return c;
  });
}

TEST_CASE("segments_of and page_pin look at the segments of the block, not at others", "[costs][sharing]") {
  auto const measure = [](std::size_t others, std::size_t bytes) {
    device d;
    auto memory = sim_pages{d.driver} | finest;
    auto const kept = checkerboard(memory, d.stream, others);
    void* const p = memory.allocate(d.stream, bytes);
    cost const c = cost_of(d.machine, [&] {
      (void)segments_of(memory, p, bytes);
      page_pin const pin(memory, p, bytes);
    });
    memory.deallocate(d.stream, p, bytes);
    free_all(memory, d.stream, kept);
    return c;
  };
  check_growth(growth::none, growth::none, 256, [&](std::size_t n) { return measure(n, 2_MiB); });
  check_growth(growth::linear, growth::none, 256, [&](std::size_t n) { return measure(0, n * 2_MiB); });
}

// ---- graphs

TEST_CASE("capture_scope and graph_memory look at as much whatever other owners there are",
          "[costs][graph_memory]") {
  check_growth(growth::none, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{};
    std::vector<graph_memory<stack<sim_pages, pooled>>> owners;
    for (std::size_t i = 0; i < n; ++i) {
      owners.emplace_back(memory);
      capture_scope const scope(owners.back(), d.stream);
    }
    return cost_of(d.machine, [&] {
      graph_memory owner(memory);
      capture_scope const scope(owner, d.stream);
    });
  });
}

TEST_CASE("capture_scope looks at as much whatever is free on whichever streams", "[costs][graph_memory]") {
  check_growth(growth::none, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{};
    some_streams const streams(d, n);
    streams.deallocate(memory, streams.allocate(memory, 3_MiB), 3_MiB);
    graph_memory owner(memory);
    return cost_of(d.machine, [&] { capture_scope const scope(owner, d.stream); });
  });
}

// ---- policies

TEST_CASE("allocate and deallocate through each policy look at as much whatever is live", "[costs][policy]") {
  auto const check = [](auto const& over) {
    check_growth(growth::none, growth::none, 256, [&](std::size_t n) {
      device d;
      auto memory = over(sim_pages{d.driver} | pooled{});
      auto const kept = checkerboard(memory, d.stream, n, 36_KiB);
      auto const pair = [&] { memory.deallocate(d.stream, memory.allocate(d.stream, 36_KiB), 36_KiB); };
      pair();
      cost const c = cost_of(d.machine, pair);
      free_all(memory, d.stream, kept, 36_KiB);
      return c;
    });
  };
  check([](auto pool) { return pool | tracked{}; });
  check([](auto pool) { return pool | limited{60_GiB}; });
  check([](auto pool) { return pool | tagged{"costs"}; });
  check([](auto pool) { return pool | retry_on_oom{[](out_of_memory const&, unsigned) { return false; }}; });
  check([](auto pool) { return pool | with_history{.history = 100}; });
  check([](auto pool) { return pool | fenced{}; });
  check([](auto pool) { return pool | poisoned{}; });
  check([](auto pool) { return pool | checked{}; });
}

TEST_CASE("headroom makes one query for each handle that is created", "[costs][policy]") {
  check_growth(growth::none, growth::linear, 16, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | headroom{1_GiB} | finest;
    void* p = nullptr;
    sim_calls made;
    (void)cost_of(d.machine, [&] {
      p = memory.allocate(d.stream, n * 2_MiB);
      made = d.machine.calls();
    });
    memory.deallocate(d.stream, p, n * 2_MiB);
    CHECK(made[driver_call::create_pages] == n);
    return cost{0, made[driver_call::memory_info]};
  });
}

TEST_CASE("tracked looks at the open peak scopes only where a peak rises", "[costs][policy]") {
  auto const measure = [](std::size_t n, std::size_t bytes) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{} | tracked{};
    memory.deallocate(d.stream, memory.allocate(d.stream, 1_MiB), 1_MiB);
    using scope = peak_scope<decltype(memory)>;
    std::vector<std::unique_ptr<scope>> scopes;
    for (std::size_t i = 0; i < n; ++i) scopes.push_back(std::make_unique<scope>(memory));
    auto const pair = [&](std::size_t b) { memory.deallocate(d.stream, memory.allocate(d.stream, b), b); };
    pair(1_MiB);
    return cost_of(d.machine, [&] { pair(bytes); });
  };
  check_growth(growth::none, growth::none, 64, [&](std::size_t n) { return measure(n, 1_KiB); });
  check_growth(growth::linear, growth::none, 64, [&](std::size_t n) { return measure(n, 100_MiB); });
}

TEST_CASE("limited looks at the budget scopes when one opens or ends, not at a call", "[costs][policy]") {
  auto const measure = [](std::size_t n, auto const& act) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{} | limited{60_GiB};
    using scope = budget_scope<decltype(memory)>;
    memory.deallocate(d.stream, memory.allocate(d.stream, 1_KiB), 1_KiB);
    std::vector<std::unique_ptr<scope>> scopes;
    for (std::size_t i = 0; i < n; ++i) scopes.push_back(std::make_unique<scope>(memory, 1_GiB));
    return cost_of(d.machine, [&] { act(memory, d.stream); });
  };
  check_growth(growth::none, growth::none, 64, [&](std::size_t n) {
    return measure(n, [](auto& memory, stream_ref stream) {
      memory.deallocate(stream, memory.allocate(stream, 1_KiB), 1_KiB);
    });
  });
  check_growth(growth::linear, growth::none, 64, [&](std::size_t n) {
    return measure(n, [](auto& memory, stream_ref) { budget_scope const scope(memory, 1_MiB); });
  });
}

TEST_CASE("reserve looks at the requests that wait, not at other reservations", "[costs][policy]") {
  check_growth(growth::none, growth::none, 64, [](std::size_t n) {
    device d;
    auto memory = sim_pages{d.driver} | pooled{} | limited{60_GiB};
    std::vector<reservation<decltype(memory)>> others;
    for (std::size_t i = 0; i < n; ++i) others.push_back(reserve(memory, 1_MiB));
    return cost_of(d.machine, [&] {
      auto const mine = reserve(memory, 1_MiB);
      auto part = mine.resource();
      part.deallocate(d.stream, part.allocate(d.stream, 1_KiB), 1_KiB);
    });
  });
}
