// SPDX-License-Identifier: Apache-2.0
// Random programs that mix the abilities of a pool that are rarely used together: pins, growing buffers,
// captures of several graph memories, recorded uses, extended blocks, sleep, compact, trim. What the pool
// says of its memory must hold after each of them, also where several driver calls of a step fail.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sim.hpp"
#include "tarn/transfer/available_memory.hpp"

namespace {

using namespace tarn;

struct no_pin {
  template <class Memory>
  no_pin(Memory const&, void*, std::size_t) {}
};
template <class Memory>
struct pins_of {
  using type = page_pin<Memory>;
};
template <class Memory>
  requires(!detail::has_segments<Memory>)
struct pins_of<Memory> {
  using type = no_pin;
};

struct abilities {
  bool pages = true;  ///< whether there are pages to pin, to put to sleep and to compact
  bool grow = true;   ///< whether a block may have several handles, as growing buffers need
};

/// One program. What it does at a step is chosen by the seed.
template <class Memory>
class program {
 public:
  program(sim_machine& machine, Memory memory, unsigned seed, abilities has)
      : machine_(machine), memory_(std::move(memory)), random_(seed), has_(has) {}

  void run(int steps, std::size_t margin) {
    for (int step = 0; step < steps; ++step) {
      try {
        do_one(random_() % 16);
      } catch (out_of_memory const&) {  // the device is small
      }
      if (step % 8 == 7) check_what_is_left(step, margin);
    }
    end();
    CHECK(memory_reserved(memory_) == 0);
  }
  /// The same, while up to four driver calls of a step fail. The pool may be asleep after a step.
  void run_with_faults(int steps, fault_plan const& plan, bool waits_fail) {
    plan_ = &plan;
    for (int step = 0; step < steps; ++step) {
      INFO("step " << step);
      for (unsigned i = random_() % 5; i != 0; --i) fail_one(waits_fail);
      try {
        unsigned const what = random_() % 16;
        if (is_asleep(memory_)) {
          do_one_asleep(what);
        } else {
          do_one(what);
        }
      } catch (out_of_memory const&) {
      } catch (cuda_error const&) {
      } catch (pool_asleep const&) {
      }
      plan.disarm();
      check_counters();
    }
    wait();
    (void)wake(memory_);
    end();
    check_counters();
    // What copies may still use after a wait that failed is kept.
    if (plan.failed(driver_call::synchronize_device) == 0) CHECK(memory_reserved(memory_) == 0);
  }

 private:
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    stream_ref stream;
  };
  using stream = basic_stream<sim_driver>;
  using buffer = growing_buffer<char, Memory>;

  stream_ref any_stream() { return streams_[random_() % 3]; }
  std::size_t up_to(std::size_t bytes) { return random_() % bytes; }

  void do_one(unsigned what) {
    stream_ref const s = any_stream();
    if (what < 6) return allocate(s);
    if (what < 9) return free_one();
    if (what == 9) return pin();
    if (what == 10) return grow(s);
    if (what == 11) return take_turns(graphs_, random_() % 3 == 0);
    if (what == 12) return capture();
    if (what == 13) return allocate_for_graph(s);
    switch (random_() % 6) {
      case 0:
        return memory_.empty_cache();
      case 1:
        return use_elsewhere(s);
      case 2:
        return extend();
      case 3:
        return sleep_and_wake();
      default:
        return make_compact();
    }
  }
  void do_one_asleep(unsigned what) {
    if (what < 3) return free_one();
    if (what == 3) return memory_.empty_cache();
    if (what == 4 && !pins_.empty()) return pins_.pop_back();
    if (what == 5 && !growing_.empty()) return growing_.pop_back();
    if (what == 6 && !graphs_.empty()) return graphs_.pop_back();
    (void)wake(memory_);
  }
  void fail_one(bool waits_fail) {
    constexpr driver_call calls[] = {driver_call::create_pages,       driver_call::map_pages,
                                     driver_call::map_pages,          driver_call::copy,
                                     driver_call::malloc_pinned,      driver_call::create_event,
                                     driver_call::record_event,       driver_call::query_event,
                                     driver_call::wait_event,         driver_call::synchronize_event,
                                     driver_call::synchronize_stream, driver_call::synchronize_device};
    driver_call const call = calls[random_() % std::size(calls)];
    if (call == driver_call::synchronize_device && !waits_fail) return;
    unsigned const nth = 1 + random_() % 4;
    for (unsigned n = nth; n <= nth + random_() % 3; ++n) plan_->fail(call, n);
  }
  void check_counters() {
    pool_state const now = nearest(memory_, pool_call::state{});
    sim_leaks const there = machine_.leaks();
    CHECK(now.maps - now.unmaps == there.maps);
    CHECK(now.handles == there.handles);
    CHECK(now.reserved == machine_.usage().page_bytes);
    if (!is_asleep(memory_)) CHECK(now.live + now.cached == now.reserved);
    for (std::string const& finding : machine_.findings()) FAIL(finding);
  }

  void allocate(stream_ref s) {
    if (held_.size() == 14) return;
    std::size_t const bytes = random_() % 4 == 0 ? 1 + up_to(100'000) : 1_MiB + up_to(30_MiB);
    std::size_t const alignment = random_() % 4 == 0 ? std::size_t{256} << random_() % 14 : 256;
    held_.push_back({memory_.allocate(s, bytes, alignment), bytes, alignment, s});
  }
  void free_one() {
    if (held_.empty()) return;
    std::swap(held_[random_() % held_.size()], held_.back());
    free(held_.back());
    held_.pop_back();
  }
  void free(block const& b) { memory_.deallocate(b.stream, b.p, b.bytes, b.alignment); }
  /// Makes two of a kind, and ends the older one of two.
  template <class T>
  void take_turns(std::vector<std::unique_ptr<T>>& all, bool ends) {
    if (all.size() < 2) {
      all.push_back(std::make_unique<T>(memory_));
    } else if (ends) {
      all.erase(all.begin());
    }
  }
  void pin() {
    if (!has_.pages || held_.empty()) return;
    block const& b = held_[random_() % held_.size()];
    if (pins_.size() == 2) return (void)pins_.erase(pins_.begin());
    pins_.push_back(std::make_unique<typename pins_of<Memory>::type>(memory_, b.p, b.bytes));
  }
  void grow(stream_ref s) {
    if (!has_.grow) return;
    if (growing_.size() < 2) return growing_.push_back(std::make_unique<buffer>(memory_, 60_MiB, s));
    if (random_() % 2 == 0) return (void)growing_.erase(growing_.begin());
    buffer& b = *growing_[random_() % 2];
    b.resize(up_to(40_MiB));
    if (random_() % 2 == 0) b.shrink_to_fit();
  }
  void capture() {
    if (graphs_.empty()) return;
    graph_memory<Memory>& owner = *graphs_[random_() % graphs_.size()];
    stream const captured(machine_.driver());
    sim_graph graph;
    {
      capture_scope const scope(owner, captured);
      REQUIRE(machine_.begin_capture(captured).ok());
      std::vector<block> own;
      try {
        for (int i = 0; i < 3; ++i) {
          std::size_t const bytes = 1_MiB + up_to(10_MiB);
          own.push_back({memory_.allocate(captured, bytes), bytes, default_alignment, captured});
        }
      } catch (out_of_memory const&) {
      } catch (cuda_error const&) {
        if (plan_ == nullptr) throw;
      }
      for (block const& b : own) free(b);
      bool const is_captured = machine_.end_capture(captured, graph).ok();
      REQUIRE((is_captured || plan_ != nullptr));
    }
  }
  void allocate_for_graph(stream_ref s) {
    if (graphs_.empty()) return;
    std::size_t const bytes = 1_MiB + up_to(10_MiB);
    void* const p = graphs_[random_() % graphs_.size()]->allocate(s, bytes);
    held_.push_back({p, bytes, default_alignment, s});
  }
  void use_elsewhere(stream_ref s) {
    if (held_.empty()) return;
    block const& b = held_[random_() % held_.size()];
    memory_.record_stream(b.p, b.bytes, s);
    (void)machine_.launch(s, 1000, {});
  }
  void extend() {
    if (held_.empty()) return;
    block& b = held_[random_() % held_.size()];
    std::size_t const more = up_to(3_MiB);
    if (memory_.extend(b.stream, b.p, b.bytes, more, b.alignment)) b.bytes += more;
  }
  void wait() {
    for (stream const& s : streams_) (void)machine_.driver().synchronize_stream(s);
  }
  void sleep_and_wake() {
    if constexpr (detail::can_sleep<Memory>) {
      if (!has_.pages) return;
      wait();
      (void)sleep(memory_, contents::discarded);
      if (random_() % 2 == 0) free_one();
      if (!growing_.empty() && random_() % 4 == 0) growing_.pop_back();
      if (!graphs_.empty() && random_() % 4 == 0) graphs_.pop_back();
      if (!pins_.empty() && random_() % 4 == 0) pins_.pop_back();
      (void)wake(memory_);
    }
  }
  void make_compact() {
    if constexpr (detail::can_sleep<Memory>) {
      if (!has_.pages) return;
      wait();
      std::size_t const before = memory_reserved(memory_);
      compaction const c = compact(memory_);
      CHECK(c.reserved <= before);
      // Beyond that, and where calls fail, there may be no memory for the copies.
      if (plan_ == nullptr && pins_.empty() && before <= 70_MiB)
        CHECK(c.reserved <= c.live + 2 * 2_MiB * c.stretches);
    }
  }

  void check_what_is_left(int step, std::size_t margin) {
    std::size_t const largest = largest_available_block(memory_);
    INFO("step " << step << ", largest " << largest);
    if (has_.pages) CHECK(largest <= available_memory(memory_).bytes);
    if (largest <= 1_MiB) return;
    stream_ref const s = any_stream();
    auto const is_served = [&](std::size_t bytes) {
      try {
        memory_.deallocate(s, memory_.allocate(s, bytes), bytes);
        return true;
      } catch (out_of_memory const&) {
        return false;
      }
    };
    CHECK(is_served(largest));
    CHECK(is_served(1_MiB + 1 + up_to(largest - 1_MiB)));
    CHECK(largest_available_block(memory_) + margin >= largest);
  }
  void end() {
    pins_.clear();
    growing_.clear();
    graphs_.clear();
    for (block const& b : held_) free(b);
    wait();
    memory_.empty_cache();
  }

  sim_machine& machine_;
  Memory memory_;
  std::mt19937 random_;
  abilities has_;
  fault_plan const* plan_ = nullptr;
  stream streams_[3] = {stream(machine_.driver()), stream(machine_.driver()), stream(machine_.driver())};
  std::vector<block> held_;
  std::vector<std::unique_ptr<typename pins_of<Memory>::type>> pins_;
  std::vector<std::unique_ptr<buffer>> growing_;
  std::vector<std::unique_ptr<graph_memory<Memory>>> graphs_;
};

sim_options small_device() {
  sim_options o;
  o.capacity = 200_MiB;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  return o;
}

}  // namespace

TEST_CASE("a pool serves what it says that it can while its abilities are mixed",
          "[pool][mixed_abilities][pages]") {
#if defined(TARN_FEWER_CASES)
  unsigned const seed = GENERATE(range(20U, 36U));
#else
  unsigned const seed = GENERATE(range(1U, 151U));
#endif
  INFO("seed " << seed);
  sim_options o = small_device();
  abilities has;
  auto const run = [&](auto const& make, std::size_t margin = 0) {
    sim_machine machine{o};
    program(machine, make(machine.driver(0)), seed, has).run(300, margin);
    CHECK(machine.leaks().total() == 0);
  };
  auto const pages = [](sim_driver d) { return sim_pages{d} | pooled{} | tracked{}; };
  auto const limit = [](sim_driver d) {
    return sim_pages{d} | limited{120_MiB} | pooled{.largest_handle = 16_MiB} | tracked{};
  };
  SECTION("pages") {
    run(pages);
  }
  SECTION("large handles") {
    run([](sim_driver d) { return sim_pages{d} | pooled{.largest_handle = 16_MiB} | tracked{}; });
  }
  SECTION("a limit") {
    run(limit);
  }
  SECTION("headroom") {
    run([](sim_driver d) { return sim_pages{d} | headroom{40_MiB} | pooled{} | tracked{}; });
  }
  SECTION("no remapping") {
    run([](sim_driver d) { return sim_pages{d} | pooled{.remap = remapping::off} | tracked{}; });
  }
  SECTION("one handle per block") {
    has.grow = false;
    run([](sim_driver d) { return sim_pages{d} | pooled{.handles = handles_per_block::one} | tracked{}; });
  }
  has.pages = false;
  SECTION("blocks") {
    run([](sim_driver d) { return sim_malloc{d} | pooled{} | tracked{}; });
  }
  SECTION("a device without pages") {
    o.paging = sim_paging::missing;
    run(pages);
  }
  SECTION("a device without pages, a limit") {
    o.paging = sim_paging::missing;
    run(limit, 512);
  }
}

TEST_CASE("a pool keeps memory and counts it while driver calls fail and its abilities are mixed",
          "[pool][mixed_abilities][pages]") {
#if defined(TARN_FEWER_CASES)
  unsigned const seed = GENERATE(range(1U, 31U));
#else
  unsigned const seed = GENERATE(range(1U, 301U));
#endif
  INFO("seed " << seed);
  sim_options o = small_device();
  o.checks = sim_checks::stream_order;
  sim_machine machine{o};
  fault_plan const plan;
  bool const waits_fail = seed % 2 == 0;
  {
    auto const pages = basic_pages<faulty<sim_driver>>{faulty<sim_driver>{machine.driver(0), plan}};
    auto memory = pages | limited{120_MiB} | pooled{.largest_handle = 16_MiB} | tracked{};
    program(machine, memory, seed, abilities{}).run_with_faults(300, plan, waits_fail);
  }
  if (plan.failed(driver_call::synchronize_device) == 0) CHECK(machine.leaks().total() == 0);
}
