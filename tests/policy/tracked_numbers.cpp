// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/tracked_numbers.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/policy/tracked_slot.hpp"

using namespace tarn;
using detail::tracked_amounts;
using detail::tracked_kinds;
using detail::tracked_numbers;
using detail::tracked_slot;
using detail::tracked_totals;
using detail::tracked_update;

namespace {
constexpr auto mib = static_cast<std::int64_t>(1_MiB);

std::size_t at(block_group g) {
  return static_cast<std::size_t>(g);
}
block_group group_of(std::int64_t bytes) {
  return bytes <= mib ? block_group::smaller : block_group::larger;
}

/// A thread as tracked_numbers knows it.
struct thread_name {
  std::uint64_t number;
  unsigned place;
};
/// Threads with a place of their own. Those beyond the places share the last one, as threads without a place
/// do.
thread_name named(std::uintptr_t n) {
  return {1'000'000 + n, std::min(static_cast<unsigned>(n), detail::thread_places)};
}
tracked_update come(std::int64_t bytes, thread_name thread = named(0)) {
  return {{1, bytes, bytes - bytes / 8}, false, thread.place, thread.number, group_of(bytes)};
}
tracked_update go(std::int64_t bytes, thread_name thread = named(0)) {
  return {{1, bytes, bytes - bytes / 8}, true, thread.place, thread.number, group_of(bytes)};
}
void come_here(tracked_numbers& numbers, std::int64_t bytes) {
  numbers.count_allocation(static_cast<std::size_t>(bytes), static_cast<std::size_t>(bytes - bytes / 8),
                           group_of(bytes));
}
void go_here(tracked_numbers& numbers, std::int64_t bytes) {
  numbers.count_deallocation(static_cast<std::size_t>(bytes), static_cast<std::size_t>(bytes - bytes / 8),
                             group_of(bytes));
}
/// Lets calls of two threads overlap.
void overlap(tracked_numbers& numbers) {
  std::array<std::thread, 2> both;
  for (std::thread& t : both) {
    t = std::thread([&] {
      for (int i = 0; !numbers.has_overlapped(); ++i) {
        if (i == 10'000'000) break;
        for (int j = 0; j < 100; ++j) {  // a large block is counted under the lock
          come_here(numbers, 2 * mib);
          go_here(numbers, 2 * mib);
        }
      }
    });
  }
  for (std::thread& t : both) t.join();
  REQUIRE(numbers.has_overlapped());
}

detail::deferred_amount deferred(std::int64_t bytes) {
  return {bytes > 0 ? 1 : -1, bytes, bytes};
}

/// Live and deferred blocks that threads count, and what the numbers must be. Each array is by group and
/// kind.
struct counted_blocks {
  std::vector<std::int64_t> live, deferred;
  tracked_amounts current{}, active{}, peak{}, active_peak{}, came{}, left{}, stopped{};
  std::int64_t mark_peak = 0;  ///< of the bytes since begin_mark()

  void allocate(tracked_numbers& numbers, std::int64_t bytes, thread_name thread) {
    live.push_back(bytes);
    numbers.count(come(bytes, thread));
    change(bytes, [&](std::size_t g, std::size_t k, std::int64_t amount) {
      current[g][k] += amount;
      active[g][k] += amount;
      came[g][k] += amount;
    });
  }
  void free(tracked_numbers& numbers, std::size_t i, thread_name thread, bool is_deferred) {
    std::int64_t const bytes = take(live, i);
    numbers.count(go(bytes, thread));
    change(bytes, [&](std::size_t g, std::size_t k, std::int64_t amount) {
      current[g][k] -= amount;
      left[g][k] += amount;
      if (is_deferred) return;
      active[g][k] -= amount;
      stopped[g][k] += amount;
    });
    if (!is_deferred) return;
    deferred.push_back(bytes);
    count_deferred(numbers, bytes, 1);
  }
  void end_deferral(tracked_numbers& numbers, std::size_t i) {
    std::int64_t const bytes = take(deferred, i);
    count_deferred(numbers, bytes, -1);
    change(bytes, [&](std::size_t g, std::size_t k, std::int64_t amount) {
      active[g][k] -= amount;
      stopped[g][k] += amount;
    });
  }
  void reset_peaks(tracked_numbers& numbers) {
    numbers.reset_peaks();
    peak = current;
    active_peak = active;
  }
  void reset_totals(tracked_numbers& numbers) {
    numbers.reset_totals();
    came = left = stopped = {};
  }
  void begin_mark() { mark_peak = current[0][1]; }

  /// Compares everything. Returns the largest difference of a peak, which may be `off` bytes and blocks.
  std::int64_t check(tracked_numbers& numbers, tracked_kinds const& off) const {
    tracked_statistics const s = numbers.statistics();
    std::int64_t most = 0;
    auto const is = [&](tarn::counter const& n, std::int64_t now, std::int64_t top, std::int64_t in,
                        std::int64_t out, std::int64_t bound) {
      CHECK(n.current == now);
      CHECK(n.allocated == in);
      CHECK(n.freed == out);
      CHECK(n.peak >= n.current);
      CHECK(std::abs(n.peak - top) <= bound);
      most = std::max(most, std::abs(n.peak - top));
    };
    for (std::size_t g = 0; g < 3; ++g) {
      std::array<tarn::counter const*, 3> const plain{&s.allocations[g], &s.allocated_bytes[g],
                                                      &s.requested_bytes[g]};
      std::array<tarn::counter const*, 3> const both{&s.active[g], &s.active_bytes[g],
                                                     &s.active_requested_bytes[g]};
      for (std::size_t k = 0; k < 3; ++k) {
        is(*plain[k], current[g][k], peak[g][k], came[g][k], left[g][k], off[k]);
        is(*both[k], active[g][k], active_peak[g][k], came[g][k], stopped[g][k], off[k]);
      }
    }
    return most;
  }

 private:
  static std::int64_t take(std::vector<std::int64_t>& from, std::size_t i) {
    std::int64_t const bytes = from[i];
    from[i] = from.back();
    from.pop_back();
    return bytes;
  }
  static void count_deferred(tracked_numbers& numbers, std::int64_t bytes, std::int64_t sign) {
    detail::deferred_amount const by{sign, sign * bytes, sign * (bytes - bytes / 8)};
    bool const is_small = group_of(bytes) == block_group::smaller;
    numbers.count_deferred(is_small ? by : detail::deferred_amount{},
                           is_small ? detail::deferred_amount{} : by);
  }
  template <class F>
  void change(std::int64_t bytes, F const& f) {
    tracked_kinds const by{1, bytes, bytes - bytes / 8};
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t const g : {std::size_t{0}, at(group_of(bytes))}) {
        f(g, k, by[k]);
        peak[g][k] = std::max(peak[g][k], current[g][k]);
        active_peak[g][k] = std::max(active_peak[g][k], active[g][k]);
      }
    }
    mark_peak = std::max(mark_peak, current[0][1]);
  }
};

/// A random program of named threads in turn. Returns by how much a peak was off at most.
std::int64_t run_program(unsigned seed, tracked_numbers& numbers, std::uintptr_t threads,
                         tracked_kinds const& off, bool may_restart) {
  if (detail::this_thread_place.table == nullptr) detail::place_holder::take();
  std::mt19937_64 random(seed);
  counted_blocks model;
  high_water_mark mark, own;
  bool marked = false;
  bool owned = false;
  std::int64_t own_current = 0, own_peak = 0;
  std::int64_t most_off = 0;
  std::size_t const most = 4 + random() % (seed % 2 == 0 ? 400 : 40);
  auto const size = [&] {
    if (random() % 6 == 0) return mib + 1 + static_cast<std::int64_t>(random() % (4 * 1024 * 1024));
    return 1 + static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 300'000 : 5'000));
  };
  auto const note_own = [&](thread_name thread, std::int64_t change) {
    if (!owned || thread.number != detail::this_thread_number()) return;
    own_current += change;
    own_peak = std::max(own_peak, own_current);
  };
  // The last of the threads is the one that runs the program.
  std::uintptr_t turn = 0;
  auto const next_thread = [&]() -> thread_name {
    if (random() % 20 == 0) turn = random() % threads;
    return turn == threads - 1 ? thread_name{detail::this_thread_number(), detail::this_thread_place.index}
                               : named(turn + 4);
  };
  for (int step = 0; step < 20'000; ++step) {
    thread_name const thread = next_thread();
    bool const grows = random() % 16 != 0 ? step / 700 % 2 == 0 : random() % 2 == 0;
    if (model.live.size() < most && (model.live.empty() || grows)) {
      model.allocate(numbers, size(), thread);
      note_own(thread, model.live.back());
    } else if (!model.live.empty()) {
      std::size_t const i = random() % model.live.size();
      note_own(thread, -model.live[i]);
      model.free(numbers, i, thread, random() % 10 == 0);
    }
    if (!model.deferred.empty() && random() % 12 == 0)
      model.end_deferral(numbers, random() % model.deferred.size());
    if (random() % 3'000 == 0) {
      if (owned) {
        CHECK(numbers.read(own).peak == own_peak);
        CHECK(numbers.read(own).current == own_current);
        numbers.remove(own);
      } else {
        numbers.add(own, peak_of::this_thread);
        own_current = own_peak = 0;
      }
      owned = !owned;
    }
    if (may_restart && random() % 2'000 == 0) {
      if (marked) {
        high_water_mark const now = numbers.read(mark);
        CHECK(now.current == model.current[0][1]);
        CHECK(std::abs(now.peak - model.mark_peak) <= off[1]);
        numbers.remove(mark);
        CHECK(mark.peak == now.peak);
      } else {
        numbers.add(mark, peak_of::all_threads);
        CHECK(mark.start == model.current[0][1]);
        model.begin_mark();
      }
      marked = !marked;
    }
    if (may_restart && random() % 4'000 == 0) model.reset_peaks(numbers);
    if (random() % 4'000 == 0) model.reset_totals(numbers);
    if (random() % 1'000 == 0 || step == 19'999) most_off = std::max(most_off, model.check(numbers, off));
  }
  if (marked) numbers.remove(mark);
  if (owned) numbers.remove(own);
  return most_off;
}
}  // namespace

TEST_CASE("tracked_numbers counts exactly while threads take turns, in random programs",
          "[policy][tracked][random]") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    for (std::size_t const error : {std::size_t{1_MiB}, std::size_t{0}, std::size_t{20'000}}) {
      tracked_numbers numbers(error);
      CHECK(run_program(seed, numbers, seed % 3 == 0 ? 1 : 2 + seed % 40, {}, true) == 0);
      CHECK_FALSE(numbers.has_overlapped());
    }
  }
}

TEST_CASE("tracked_numbers has peaks within the bound for each thread once calls overlap, in random programs",
          "[policy][tracked][random]") {
  std::int64_t most_off = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::int64_t const error = 1'000 << (seed % 12);
    tracked_numbers numbers(static_cast<std::size_t>(error));
    std::int64_t const threads = 2 + seed % 9;
    auto const bound = [&](std::int64_t by) { return (threads + 2) * by; };
    overlap(numbers);
    counted_blocks model;
    std::mt19937_64 random(seed);
    tracked_statistics const before = numbers.statistics();
    for (int step = 0; step < 20'000; ++step) {
      thread_name const thread = named(4 + random() % static_cast<unsigned>(threads));
      bool const grows = random() % 16 != 0 ? step / 1'500 % 2 == 0 : random() % 2 == 0;
      if (model.live.empty() || grows) {
        model.allocate(numbers, 1 + static_cast<std::int64_t>(random() % 30'000), thread);
      } else {
        model.free(numbers, random() % model.live.size(), thread, false);
      }
    }
    tracked_statistics const s = numbers.statistics();
    CHECK(numbers.has_overlapped());
    CHECK(s.allocated_bytes[0].current == model.current[0][1]);
    CHECK(s.requested_bytes[0].current == model.current[0][2]);
    CHECK(s.allocations[0].allocated - before.allocations[0].allocated == model.came[0][0]);
    REQUIRE(model.peak[0][1] > before.allocated_bytes[0].peak);
    std::int64_t const off = std::abs(s.allocated_bytes[0].peak - model.peak[0][1]);
    most_off = std::max(most_off, off);
    CHECK(off <= bound(error));
    CHECK(std::abs(s.requested_bytes[0].peak - model.peak[0][2]) <= bound(error));
    CHECK(std::abs(s.allocations[0].peak - model.peak[0][0]) <=
          bound(std::max(error / 1024, std::int64_t{1})));
    CHECK(std::abs(s.allocated_bytes[at(block_group::smaller)].peak - model.peak[1][1]) <= bound(error));
  }
  CHECK(most_off > 0);  // the bound is used
}

TEST_CASE("tracked_numbers has exact peaks again after a reset, and in a scope that begins",
          "[policy][tracked]") {
  tracked_numbers numbers(1_MiB);
  overlap(numbers);
  for (unsigned seed = 1; seed <= 5; ++seed) {
    numbers.reset_peaks();
    CHECK_FALSE(numbers.has_overlapped());
    high_water_mark mark;
    overlap(numbers);
    numbers.add(mark, peak_of::all_threads);
    for (std::uintptr_t n = 0; n < 7; ++n) numbers.count(come(1000, named(n)));
    for (std::uintptr_t n = 0; n < 7; ++n) numbers.count(go(1000, named(n)));
    CHECK(numbers.read(mark).peak == mark.start + 7000);
    CHECK(numbers.read(mark).allocations == 7);
    numbers.remove(mark);
  }
}

TEST_CASE("tracked_numbers is within the bound with threads that rise and fall together",
          "[policy][tracked][threads]") {
  // Between two barriers all threads only allocate, or only free: the sum after them is the same in each
  // order, and so is the peak.
  constexpr unsigned count = 6;
  constexpr std::size_t rounds = 60;
  for (std::int64_t const error : {std::int64_t{0}, std::int64_t{50'000}, mib}) {
    CAPTURE(error);
    tracked_numbers numbers(static_cast<std::size_t>(error));
    std::mt19937_64 random(1);
    std::array<std::array<std::array<int, rounds>, 2>, count> rise{};
    std::array<std::array<std::int64_t, rounds>, 3> top{};  // bytes after the rise of each round, by group
    for (auto& thread : rise) {
      for (std::size_t g = 0; g < 2; ++g) {
        for (std::size_t r = 0; r < rounds; ++r) {
          thread[g][r] = static_cast<int>(random() % 3 == 0 ? 1 : random() % 200 + 1);
          top[g + 1][r] += thread[g][r] * (g == 0 ? 3'000 : 2'000'000);
          top[0][r] += thread[g][r] * (g == 0 ? 3'000 : 2'000'000);
        }
      }
    }
    std::array<std::int64_t, 3> peak{};
    int wrong = 0;
    std::size_t round = 0;
    auto const check = [&]() noexcept {  // by one thread, while the others wait
      tracked_statistics const s = numbers.statistics();
      for (std::size_t g = 0; g < 3; ++g) {
        peak[g] = std::max(peak[g], top[g][round]);
        wrong += s.allocated_bytes[g].current != top[g][round];
        wrong += std::abs(s.allocated_bytes[g].peak - peak[g]) > count * error;
      }
      if (round % 9 == 0) {
        numbers.reset_peaks();
        for (std::size_t g = 0; g < 3; ++g) peak[g] = top[g][round];
      }
      ++round;
    };
    std::barrier risen(count, check);
    std::barrier fallen(count);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t r = 0; r < rounds; ++r) {
          fallen.arrive_and_wait();
          for (int i = 0; i < rise[t][0][r]; ++i) come_here(numbers, 3'000);
          for (int i = 0; i < rise[t][1][r]; ++i) come_here(numbers, 2'000'000);
          risen.arrive_and_wait();
          for (int i = 0; i < rise[t][0][r]; ++i) go_here(numbers, 3'000);
          for (int i = 0; i < rise[t][1][r]; ++i) go_here(numbers, 2'000'000);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(numbers.statistics().allocated_bytes[0].current == 0);
    CHECK(numbers.statistics().allocations[0].allocated == numbers.statistics().allocations[0].freed);
  }
}

TEST_CASE("tracked_numbers counts exactly with threads that end, one after the other",
          "[policy][tracked][threads]") {
  tracked_numbers numbers(1_MiB);
  high_water_mark mark;
  numbers.add(mark, peak_of::all_threads);
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (int t = 0; t < 100; ++t) {
    std::thread([&] {
      for (int i = 0; i < 50; ++i) come_here(numbers, 1000);
      for (int i = 0; i < 49; ++i) go_here(numbers, 1000);
      high_water_mark own;
      numbers.add(own, peak_of::this_thread);
      come_here(numbers, 700);
      go_here(numbers, 700);
      CHECK(numbers.read(own).peak == 700);
      numbers.remove(own);
    }).join();
    peak = std::max(peak, live + 50'000);
    live += 1000;
    CHECK(numbers.statistics().allocated_bytes[0].current == live);
    CHECK(numbers.statistics().allocated_bytes[0].peak == peak);
    CHECK(numbers.read(mark).peak == peak);
  }
  numbers.remove(mark);
}

TEST_CASE("high_water_mark of this_thread counts a thread that begins with it",
          "[policy][tracked][threads]") {
  tracked_numbers numbers(1_MiB);
  for (int t = 0; t < 3; ++t) {  // each gets the place of the one before, whose slot is open
    std::thread([&] {
      high_water_mark own;
      numbers.add(own, peak_of::this_thread);
      come_here(numbers, 5000);
      come_here(numbers, 3000);
      go_here(numbers, 5000);
      high_water_mark const now = numbers.read(own);
      CHECK(now.peak == 8000);
      CHECK(now.current == 3000);
      CHECK(now.allocations == 2);
      numbers.remove(own);
      go_here(numbers, 3000);
      come_here(numbers, 100);
      go_here(numbers, 100);
    }).join();
  }
}

TEST_CASE("high_water_mark of this_thread counts a thread that had no place when it began",
          "[policy][tracked][threads]") {
  tracked_numbers numbers(1_MiB);
  std::atomic<int> begun{0};
  std::atomic<bool> enough = false;
  std::vector<std::thread> holders;
  for (unsigned i = 0; i < detail::thread_places; ++i) {
    holders.emplace_back([&] {
      come_here(numbers, 100);
      go_here(numbers, 100);
      ++begun;
      while (!enough) std::this_thread::yield();
    });
  }
  while (begun != static_cast<int>(detail::thread_places)) std::this_thread::yield();
  std::thread([&] {
    high_water_mark own;
    numbers.add(own, peak_of::this_thread);
    come_here(numbers, 2000);
    enough = true;
    for (std::thread& t : holders) t.join();  // their places are free now
    come_here(numbers, 1000);
    CHECK(numbers.read(own).peak == 3000);
    CHECK(numbers.read(own).allocations == 2);
    numbers.remove(own);
  }).join();
}

TEST_CASE("tracked_numbers counts more threads than there are places", "[policy][tracked][threads]") {
  constexpr int count = detail::thread_places + 8;
  tracked_numbers numbers(10'000);
  std::vector<std::thread> threads;
  std::barrier together(count);
  for (int t = 0; t < count; ++t) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      for (int i = 0; i < 500; ++i) come_here(numbers, 100);
      together.arrive_and_wait();
      for (int i = 0; i < 500; ++i) go_here(numbers, 100);
      together.arrive_and_wait();
    });
  }
  for (std::thread& t : threads) t.join();
  tracked_statistics const s = numbers.statistics();
  CHECK(s.allocations[0].allocated == count * 500);
  CHECK(s.allocated_bytes[0].current == 0);
  CHECK(std::abs(s.allocated_bytes[0].peak - count * 50'000) <= std::int64_t{count} * 10'000);
}

TEST_CASE("tracked_numbers::statistics contains every call that ended before it",
          "[policy][tracked][threads]") {
  tracked_numbers numbers(1_MiB);
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!enough) {
        auto const before = numbers.statistics().allocations[0].allocated;
        come_here(numbers, 300);
        come_here(numbers, 2'000'000);
        auto const s = numbers.statistics();
        bool const seen = s.allocations[0].allocated >= before + 2 &&
                          s.allocated_bytes[0].current >= 2'000'300 && s.allocations[0].current <= 8 &&
                          s.allocated_bytes[0].peak >= s.allocated_bytes[0].current;
        if (!seen) enough = true;
        for (int i = 0; i < 50; ++i) {
          go_here(numbers, 300);
          come_here(numbers, 300);
        }
        go_here(numbers, 300);
        go_here(numbers, 2'000'000);
        if (!seen) return;
        if (numbers.statistics().allocations[0].allocated > 400'000) enough = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  tracked_statistics const s = numbers.statistics();
  CHECK(s.allocations[0].allocated > 400'000);  // no thread saw too little
  CHECK(s.allocations[0].current == 0);
  CHECK(s.allocated_bytes[at(block_group::larger)].current == 0);
  CHECK(s.allocated_bytes[at(block_group::larger)].peak <= 8'000'000);
}

TEST_CASE(
    "tracked_numbers::statistics is never negative or far off while threads pass blocks on and free them",
    "[policy][tracked][threads]") {
  tracked_numbers numbers(1_MiB);
  constexpr int slots = 64;
  std::array<std::atomic<bool>, slots> full{};
  std::atomic<bool> enough = false;
  std::thread maker([&] {
    for (unsigned i = 0; !enough; ++i) {
      if (full[i % slots].load(std::memory_order_acquire)) continue;
      come_here(numbers, 1000);
      full[i % slots].store(true, std::memory_order_release);
    }
  });
  std::thread taker([&] {
    for (unsigned i = 0; !enough; ++i) {
      come_here(numbers, 1000);  // of its own: many of these are counted during one read
      go_here(numbers, 1000);
      if (!full[i % slots].load(std::memory_order_acquire)) continue;
      go_here(numbers, 1000);
      full[i % slots].store(false, std::memory_order_release);
    }
  });
  int wrong = 0;
  for (int i = 0; i < 30'000; ++i) {
    tracked_statistics const s = numbers.statistics();
    for (tarn::counter const& n : {s.allocations[0], s.allocated_bytes[0], s.requested_bytes[0], s.active[0]})
      wrong += n.current < 0 || n.freed < 0 || n.freed > n.allocated || n.peak < n.current;
    // What one thread has not published is off by up to 1,048 blocks, in either direction, if it is read
    // earlier or later than another.
    wrong += s.allocations[0].current > slots + 4 * 1'048;
  }
  enough = true;
  maker.join();
  taker.join();
  CHECK(wrong == 0);
  for (auto& f : full) {
    if (f) go_here(numbers, 1000);
  }
  CHECK(numbers.statistics().allocated_bytes[0].current == 0);
  CHECK(numbers.statistics().requested_bytes[0].current == 0);
}

TEST_CASE("tracked_statistics::active_bytes includes deferred blocks and keeps its peak until a reset",
          "[policy][tracked]") {
  tracked_numbers numbers(1_MiB);
  numbers.count(come(600));
  numbers.count(come(500));
  numbers.count(go(500));
  numbers.count_deferred(deferred(500), {});
  numbers.count(come(400));
  tracked_statistics s = numbers.statistics();
  CHECK(s.active_bytes[0].current == 1500);
  CHECK(s.active_bytes[0].peak == 1500);
  CHECK(s.active_bytes[at(block_group::smaller)].peak == 1500);
  CHECK(s.active_bytes[at(block_group::larger)].peak == 0);
  CHECK(s.allocated_bytes[0].peak == 1100);
  CHECK(s.active[0].current == 3);
  CHECK(s.active[0].allocated == 3);
  CHECK(s.active[0].freed == 0);
  CHECK(s.allocations[0].freed == 1);
  numbers.count_deferred(deferred(-500), {});
  s = numbers.statistics();
  CHECK(s.active_bytes[0].current == 1000);
  CHECK(s.active_bytes[0].peak == 1500);
  CHECK(s.active[0].freed == 1);
  numbers.count(go(600));
  numbers.count_deferred(deferred(600), {});
  numbers.reset_totals();
  numbers.reset_peaks();
  numbers.count_deferred(deferred(-600), {});
  s = numbers.statistics();
  CHECK(s.active_bytes[0].peak == 1000);
  CHECK(s.active_bytes[0].current == 400);
  CHECK(s.active_bytes[0].freed == 600);
  CHECK(s.allocated_bytes[0].freed == 0);
}

TEST_CASE("high_water_mark that is added again begins anew", "[policy][tracked]") {
  tracked_numbers numbers(1_MiB);
  high_water_mark mark;
  for (std::int64_t const blocks : {3, 1}) {
    numbers.add(mark, peak_of::all_threads);
    for (std::int64_t i = 0; i < blocks; ++i) numbers.count(come(1000));
    CHECK(numbers.read(mark).allocations == blocks);
    for (std::int64_t i = 0; i < blocks; ++i) numbers.count(go(1000));
    numbers.remove(mark);
    CHECK(mark.allocations == blocks);
    CHECK(mark.peak == 1000 * blocks);
  }
}

TEST_CASE("tracked_slot counts within its room and its bound, and is read whole", "[policy][tracked]") {
  tracked_slot slot;
  tracked_totals sums;
  CHECK_FALSE(slot.allocate(7, 100, 90));  // it is closed
  slot.open(7, {10, 1000, 1000}, {{{5, 500, 500}, {4, 400, 400}, {9, 900, 900}}});
  CHECK_FALSE(slot.allocate(8, 100, 90));  // another generation
  CHECK_FALSE(slot.allocate(7, 401, 1));
  CHECK(slot.allocate(7, 300, 200));
  CHECK_FALSE(slot.allocate(7, 101, 1));
  CHECK(slot.fits({{1, 200, 200}, false, 0, 0, block_group::larger}));
  CHECK_FALSE(slot.allocate(7, 1, 1));  // there is no room of all blocks left
  CHECK_FALSE(slot.fits({{1, 1, 1}, false, 0, 0, block_group::larger}));
  CHECK(slot.fits({{1, 200, 200}, true, 0, 0, block_group::larger}));
  CHECK(slot.allocate(7, 100, 50));
  CHECK_FALSE(slot.deallocate(7, 1, 1));  // frees are let through in parts
  slot.renew();
  for (int i = 0; i < 12; ++i) CHECK(slot.deallocate(7, 100, 100));
  CHECK_FALSE(slot.deallocate(7, 1, 1));  // 10 blocks and what came
  slot.renew();
  CHECK_FALSE(slot.deallocate(7, 1, 1));
  CHECK(slot.publish(sums));
  CHECK_FALSE(slot.publish(sums));
  CHECK(sums.came == tracked_kinds{2, 400, 250});
  CHECK(sums.left == tracked_kinds{12, 1200, 1200});
  CHECK(sums.live(1) == -800);
  slot.close();
  CHECK_FALSE(slot.allocate(7, 1, 1));
  slot.open(9, {10, 1000, 1000}, {{{50, 5000, 5000}, {40, 4000, 4000}, {90, 9000, 9000}}});
  CHECK_FALSE(slot.allocate(9, 1001, 1));  // within its room, but not within the bound
  CHECK(slot.allocate(9, 1000, 1));
}

#if !TARN_TSAN  // whose own threads do not survive a fork
TEST_CASE("tracked_numbers counts on in a child forked while threads count", "[policy][tracked][threads]") {
  for (unsigned const count : {1U, 4U}) {
    tracked_numbers numbers(1_MiB);
    std::atomic<bool> enough = false;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; ++t) {
      threads.emplace_back([&] {
        while (!enough) {
          come_here(numbers, 1000);
          come_here(numbers, 2 * mib);
          go_here(numbers, 1000);
          go_here(numbers, 2 * mib);
        }
      });
    }
    int good = 0;
    for (int round = 0; round < 20; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      good +=
          tarn::child_of([&] {
            tracked_statistics const before = numbers.statistics();
            bool const right =
                before.allocations[0].current >= 0 && before.allocations[0].current <= 2 * count;
            for (int i = 0; i < 100; ++i) come_here(numbers, 1000);
            tracked_statistics const after = numbers.statistics();
            // A call that waited for the lock at the fork may be counted meanwhile.
            return right &&
                   std::abs(after.allocations[0].current - before.allocations[0].current - 100) <= count &&
                   after.allocated_bytes[0].allocated - before.allocated_bytes[0].allocated >= 100'000;
          }) == 0;
    }
    enough = true;
    for (std::thread& t : threads) t.join();
    CHECK(good == 20);
    CHECK(numbers.statistics().allocations[0].current == 0);
  }
}

TEST_CASE("tracked_numbers has no scope of a thread that a forked child does not have",
          "[policy][tracked][threads]") {
  for (peak_of const whose : {peak_of::all_threads, peak_of::this_thread}) {
    tracked_numbers numbers(1_MiB);
    high_water_mark theirs;
    std::thread([&] { numbers.add(theirs, whose); }).join();
    high_water_mark mine;
    numbers.add(mine, whose);
    CHECK(tarn::child_of([&] {
            theirs.next = reinterpret_cast<high_water_mark*>(std::uintptr_t{1});  // it was on that stack
            come_here(numbers, 2 * mib);
            numbers.remove(theirs);
            numbers.remove(mine);
            return mine.peak == 2 * mib;
          }) == 0);
    come_here(numbers, mib);
    go_here(numbers, mib);
    numbers.remove(theirs);
    numbers.remove(mine);
    CHECK(mine.peak == mib);
    CHECK(theirs.peak == (whose == peak_of::all_threads ? mib : 0));
  }
}
#endif
