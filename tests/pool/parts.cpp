// SPDX-License-Identifier: Apache-2.0
// The parts of the pool: size_class, range, range_index, address_map, run, magazine, page_map, address_index,
// owner_lock, hot_lock, stream_order, arena, growth.

#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "tarn/core/address_map.hpp"
#include "tarn/core/wait.hpp"
#include "tarn/pool/arena/address_index.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/range_index.hpp"
#include "tarn/pool/arena/run.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/arena/stream_table.hpp"
#include "tarn/pool/cache/magazine.hpp"
#include "tarn/pool/cache/owner_lock.hpp"
#include "tarn/pool/pages/growth.hpp"

#if TARN_HAS_MEMBARRIER && defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>
#endif

using namespace tarn;
using namespace tarn::detail;

TEST_CASE("class_of returns a size class that fits and wastes at most an eighth", "[pool][size_class]") {
  std::size_t wrong = 0;
  for (std::size_t bytes = 1; bytes <= class_limit; bytes += bytes < 70000 ? 1 : 97) {
    std::size_t const block = class_bytes(class_of(bytes));
    wrong += block < bytes ? 1 : 0;
    wrong += bytes > 2048 && block - bytes > bytes / 8 ? 1 : 0;
    wrong += class_of(block) != class_of(bytes) ? 1 : 0;
    wrong += block % 256 != 0 ? 1 : 0;
  }
  CHECK(wrong == 0);
  CHECK(rounded_bytes(0, 256) == 0);
  CHECK(rounded_bytes(1_MiB + 1, 256) == 1_MiB + 512);
  CHECK(rounded_bytes(100, 4096) == 512);
}

TEST_CASE("address_map::find returns what was inserted, through growth and removal", "[pool][address_map]") {
  address_map<std::uint32_t> table;
  std::map<std::uintptr_t, std::uint32_t> reference;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::uintptr_t const key = (1 + random() % 3000) * 512;
    if (reference.contains(key)) {
      REQUIRE(table.find(key) == reference[key]);
      if (random() % 2 != 0) {
        REQUIRE(table.erase(key) == reference[key]);
        reference.erase(key);
      }
    } else {
      REQUIRE(table.find(key) == 0);
      REQUIRE(table.erase(key) == 0);
      table.make_room(1);
      auto const value = static_cast<std::uint32_t>(1 + random() % 1000);
      table.insert(key, value);
      reference[key] = value;
    }
    REQUIRE(table.size() == reference.size());
  }
}

TEST_CASE("range_index::find returns a range that fits and is at most an eighth larger than the best one",
          "[pool][range_index][range]") {
  range_table table;
  range_index index;
  std::mt19937 random(2);
  std::vector<range_ref> in;
  table.make_room(600);
  for (int i = 0; i < 500; ++i) {
    range_ref const r = table.take();
    table[r].address = 1_GiB + static_cast<std::uintptr_t>(i) * 64_MiB;
    table[r].bytes = (1 + random() % 4000) * range_grain;
    table[r].state = range_state::free;
    index.insert(table, r);
    in.push_back(r);
  }
  for (int i = 0; i < 2000; ++i) {
    std::size_t const bytes = (1 + random() % 4200) * range_grain;
    std::size_t best = 0;
    for (range_ref const r : in) {
      if (table[r].bytes >= bytes && (best == 0 || table[r].bytes < best)) best = table[r].bytes;
    }
    range_ref const found = index.find(table, bytes, 256);
    REQUIRE((found != 0) == (best != 0));
    if (found != 0) REQUIRE(table[found].bytes <= best + best / 8);
  }
  std::size_t largest = 0;
  for (range_ref const r : in) largest = std::max(largest, table[r].bytes);
  CHECK(index.largest(table) == largest);
  for (range_ref const r : in) index.erase(table, r);
  CHECK(index.bytes() == 0);
  CHECK(index.any() == 0);
  CHECK(index.find(table, 512, 256) == 0);
}

TEST_CASE("run_table hands each block out once, and finds only where blocks start", "[pool][run]") {
  run_table runs;
  runs.make_room();
  unsigned const k = class_of(3000);
  run_ref const r = runs.add(1, 0x100000, k, 1);
  std::map<void*, bool> seen;
  while (runs[r].free_count != 0) {
    void* const p = runs[r].take();
    REQUIRE_FALSE(seen[p]);
    seen[p] = true;
    REQUIRE(runs.find(p) == r);
  }
  CHECK(seen.size() == run_blocks(k));
  void* const first = seen.begin()->first;
  auto* const second = static_cast<char*>(std::next(seen.begin())->first);
  for (void* const p : {first, static_cast<void*>(second)}) {
    std::size_t const n = runs[r].find(p);
    REQUIRE(n != run::none);
    CHECK_FALSE(runs[r].is_free(n));
    runs[r].put_back(n);
    CHECK(runs[r].is_free(n));
  }
  CHECK(runs[r].free_count == 2);
  CHECK(runs[r].find(static_cast<char*>(first) + 1) == run::none);
  CHECK(runs[r].find(second + 256) == run::none);
  runs.remove(r);
  CHECK(runs.find(first) == 0);
}

TEST_CASE("magazine_capacity is bounded and magazine_batch is at most half of it", "[pool][magazine]") {
  for (unsigned k = 0; k < class_count; ++k) {
    CHECK(magazine_capacity(k) >= 2);
    CHECK(magazine_capacity(k) <= 64);
    CHECK(magazine_batch(k) * 2 <= magazine_capacity(k));
  }
  stream_cache cache(1, {});
  REQUIRE(cache.make_magazine(3));
  CHECK(cache.magazines[3].capacity == magazine_capacity(3));
}

TEST_CASE("range_index::find prefers other ranges to a range before a hole", "[pool][range_index][range]") {
  range_table table;
  range_index index;
  table.make_room(4);
  auto const add = [&](std::uintptr_t address, std::size_t bytes) {
    range_ref const r = table.take();
    table[r].address = address;
    table[r].bytes = bytes;
    table[r].state = range_state::free;
    return r;
  };
  range_ref const large = add(0x100000, 1_MiB);
  range_ref const last = add(0x800000, 64_KiB);
  range_ref const hole = add(0x810000, 16_MiB);
  table[hole].state = range_state::hole;
  table[last].next = hole;
  index.insert(table, large);
  index.insert(table, last);
  CHECK(index.find(table, 64_KiB, 256) == large);
  CHECK(index.largest(table) == 1_MiB);
  index.erase(table, large);
  CHECK(index.find(table, 64_KiB, 256) == last);
  CHECK(index.largest(table) == 64_KiB);
  // The range after it may change state while it is in the index.
  table[hole].state = range_state::live;
  index.erase(table, last);
  CHECK(index.any() == 0);
  CHECK(index.bytes() == 0);
}

TEST_CASE("hot_lock is held by one thread at a time", "[pool][hot_lock][threads]") {
  hot_mutex mutex;
  long count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        hot_lock const held(mutex);
        ++count;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(count == 20000);
}

TEST_CASE("owner_lock excludes the owner and visitors from each other", "[pool][owner_lock][threads]") {
  owner_lock lock;
  long count = 0;
  std::thread owner([&] {
    for (int i = 0; i < 20000; ++i) {
      lock.enter();
      ++count;
      lock.leave();
    }
  });
  for (int i = 0; i < 300; ++i) {
    lock.announce();
    remote_barrier();
    lock.visit();
    ++count;
    lock.end_visit();
  }
  owner.join();
  CHECK(count == 20300);
}

#if TARN_HAS_MEMBARRIER && defined(__x86_64__)
TEST_CASE("remote_barrier does without membarrier where a filter forbids it after it was registered",
          "[pool][owner_lock]") {
  ::pid_t const child = ::fork();  // a filter of system calls stays until the process ends
  if (child == 0) {
    if (!has_remote_barrier()) ::_exit(77);
    owner_lock lock;
    remote_barrier();
    if (!has_remote_barrier()) ::_exit(1);
    ::sock_filter forbid[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(::seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, __NR_membarrier},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    ::sock_fprog const filter{4, forbid};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      ::_exit(77);
    // An owner of a lock from before the filter; without any barrier a visitor meets it once in a thousand
    // visits.
    std::atomic<bool> done{false};
    std::atomic<long> count{0};
    std::thread owner([&] {
      while (!done.load(std::memory_order_relaxed)) {
        lock.enter();
        count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        lock.leave();
      }
    });
    bool met = false;
    auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    for (int i = 0; i < 300'000 && std::chrono::steady_clock::now() < end; ++i) {
      lock.announce();
      remote_barrier();
      lock.visit();
      long const seen = count.load(std::memory_order_relaxed);
      for (int k = 0; k < 50; ++k) met = met || count.load(std::memory_order_relaxed) != seen;
      lock.end_visit();
      for (int k = 0; k < i * 7 % 300; ++k) spin_wait(0);
    }
    done.store(true);
    owner.join();
    // Refused: the owners of new locks execute the fence.
    ::_exit(met ? 3 : has_remote_barrier() || !remote_barrier_refused.load() ? 2 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    WARN("skipped: membarrier or seccomp is not available here");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}
#endif

TEST_CASE("page_map::at returns the handle of each home address", "[pool][page_map]") {
  page_map map;
  map.set_up(0x40000000, 64 * 2_MiB, 128 * 2_MiB, 2_MiB);
  map.make_room(2);
  handle_ref const h = map.add(77, 4_MiB, 0x40000000);
  handle_ref const k = map.add(78, 2_MiB, 0x40000000 + 4_MiB);
  CHECK(map.at(0x40000000 + 4_MiB - 1) == h);
  CHECK(map.at(0x40000000 + 4_MiB) == k);
  CHECK(map.at(0x40000000 + 6_MiB) == 0);
  CHECK(map.end_of(h) == map[k].home);
  map.remove(h);
  CHECK(map.at(0x40000000) == 0);
  CHECK(map.count() == 1);
  CHECK(map.add(79, 2_MiB, 0x40000000) == h);
  CHECK(map.contains(0x40000000 + 255_MiB));
  CHECK_FALSE(map.contains(0x40000000 + 256_MiB));
}

TEST_CASE("address_index covers the bytes that it was set up for and no others", "[pool][address_index]") {
  constexpr std::uintptr_t base = 0x7f0000000000;
  address_index index;
  CHECK_FALSE(index.covers(base));
  index.set_up(base, 64_MiB, 2_MiB);
  CHECK(index.covers(base));
  CHECK(index.covers(base + 64_MiB - 1));
  CHECK_FALSE(index.covers(base - 1));
  CHECK_FALSE(index.covers(base + 64_MiB));  // another reservation may begin there
}

TEST_CASE("address_index::find returns the range that covers an address after splits and merges",
          "[pool][address_index]") {
  constexpr std::uintptr_t base = 0x7f0000000000;
  constexpr std::size_t bytes = 40000 * 2_MiB;  // spans several words of the upper bitmap
  arena space;
  space.ranges.make_room(1);
  space.starts.set_up(base, bytes, 2_MiB);
  range_ref const all = space.ranges.take();
  space.ranges[all].address = base;
  space.ranges[all].bytes = bytes;
  space.starts.note(space.ranges, all);
  std::map<std::uintptr_t, range_ref> model{{base, all}};
  std::mt19937_64 random(11);
  for (int step = 0; step < 20000; ++step) {
    std::uintptr_t const address = base + random() % bytes / 512 * 512;
    auto const holder = std::prev(model.upper_bound(address));
    REQUIRE(space.starts.find(space.ranges, address) == holder->second);
    if (random() % 2 == 0 && address != holder->first) {
      space.ranges.make_room(1);
      // Often close to the start, so that several ranges start in one granule.
      std::uintptr_t at = random() % 2 == 0 ? address : holder->first + 512 * (1 + random() % 64);
      if (at >= space.ranges[holder->second].end()) at = address;
      model[at] = space.split(holder->second, at - holder->first);
    } else if (std::next(holder) != model.end()) {
      space.merge(holder->second, std::next(holder)->second);
      model.erase(std::next(holder));
    }
  }
  CHECK(model.size() > 10);
}

TEST_CASE("address_index::open replaces an earlier range", "[pool][address_index]") {
  address_index index;
  index.set_up(0x10000000, 64 * 2_MiB, 2_MiB);
  index.set_up(0x70000000, 64 * 2_MiB, 2_MiB);
  CHECK(index.covers(0x70000000));
  CHECK_FALSE(index.covers(0x10000000));
}

TEST_CASE("stream_table marks a stream as gone when its handle returns with another id",
          "[pool][stream_order]") {
  stream_table streams;
  recursive_fork_mutex mutex;
  growth_lock const growing(mutex);
  int handle = 0;
  domain_ref const old = streams.get(5, stream_ref::from(&handle));
  (void)streams[old].mark();  // its work may still run
  domain_ref const fresh = streams.get(6, stream_ref::from(&handle));
  CHECK(old != fresh);
  CHECK(streams[old].gone);
  CHECK_FALSE(streams[fresh].gone);
  CHECK(streams.find(5) == old);
  streams.forget(growing, old);
  CHECK(streams.find(5) == neutral);
  CHECK(streams.get(7, stream_ref::from(&streams)) == old);
  // A stream that freed nothing may be forgotten; the next stream takes its slot.
  int other = 0;
  domain_ref const brief = streams.get(10, stream_ref::from(&other));
  CHECK_FALSE(streams[brief].is_over());
  domain_ref const living = streams.get(11, stream_ref::from(&other));
  CHECK(streams[brief].is_over());
  streams.forget(growing, brief);
  CHECK(streams.find(10) == neutral);
  CHECK(streams.find(11) == living);
  // A late free on the old stream does not mark the new one as destroyed.
  CHECK(streams.get(10, stream_ref::from(&other)) == brief);
  CHECK(streams[brief].gone);
  CHECK_FALSE(streams[living].gone);
  // Not over while a thread allocates on it.
  streams[brief].climbing = true;
  CHECK_FALSE(streams[brief].is_over());
  // The handle of a per-thread default stream denotes a different stream in each thread.
  auto* const per_thread = reinterpret_cast<void*>(2);
  domain_ref const mine = streams.get(8, stream_ref::from(per_thread));
  (void)streams.get(9, stream_ref::from(per_thread));
  CHECK_FALSE(streams[mine].gone);
}

TEST_CASE("arena::take and arena::release split and coalesce ranges and keep streams apart",
          "[pool][arena][growth]") {
  arena space;
  space.make_room();
  range_ref const r = space.ranges.take();
  space.ranges[r].address = 0x10000000;
  space.ranges[r].bytes = 8_MiB;
  space.ranges[r].where = zone::larger;
  int handle = 0;
  domain_ref const a = space.streams.get(1, stream_ref::from(&handle));
  domain_ref const b = space.streams.get(2, stream_ref::from(&space));
  space.make_free(r, a, 0);
  auto take = [&](domain_ref d, std::size_t bytes) {
    space.make_room();
    return space.take(d, zone::larger, bytes, 256);
  };
  void* const x = take(a, 2_MiB);
  void* const y = take(a, 3_MiB);
  CHECK(take(b, 1_MiB) == nullptr);  // the free memory belongs to a
  CHECK(space.live_bytes == 5_MiB);
  CHECK(space.release(a, x, 1_MiB) == release_result::wrong_size);
  CHECK(space.release(b, x, 2_MiB) == release_result::done);
  CHECK(space.release(b, x, 2_MiB) == release_result::foreign);
  CHECK(take(b, 2_MiB) == x);  // freed on b: available to b at once
  CHECK(space.release(a, x, 2_MiB) == release_result::done);
  CHECK(space.release(a, y, 3_MiB) == release_result::done);
  CHECK(space.largest_free() == 8_MiB);
  space.hand_over(a, neutral, ~std::uint64_t{0});
  CHECK(take(b, 8_MiB) != nullptr);
  recursive_fork_mutex mutex;
  growth_lock const growing(mutex);
  growth_counters counters;
  counters.hold(growing, 0x1000, 10, zone::larger);
  counters.release(growing, 0x1000, 4, zone::larger);
  CHECK((counters.reserved == 6 && counters.reserved_peak == 10));
}

namespace {
/// An arena with one free range in one domain.
struct one_range {
  arena space;
  domain_ref a = space.streams.get(1, stream_ref::from(this));
  one_range(std::size_t bytes, zone where) {
    space.make_room();
    range_ref const r = space.ranges.take();
    space.ranges[r].address = 0x10000000;
    space.ranges[r].bytes = bytes;
    space.ranges[r].where = where;
    space.make_free(r, a, 0);
  }
};
}  // namespace

TEST_CASE("arena::release gives a coalesced range the newer epoch", "[pool][arena][stream_order]") {
  for (bool const lower_first : {true, false}) {
    one_range t(4_MiB, zone::larger);
    arena& space = t.space;
    space.make_room();
    void* const lower = space.take(t.a, zone::larger, 2_MiB, 256);
    space.make_room();
    void* const upper = space.take(t.a, zone::larger, 2_MiB, 256);
    REQUIRE(lower < upper);
    std::uint64_t const old = space.streams[t.a].epoch;
    CHECK(space.release(t.a, lower_first ? lower : upper, 2_MiB) == release_result::done);
    space.streams[t.a].epoch = old + 1;
    CHECK(space.release(t.a, lower_first ? upper : lower, 2_MiB) == release_result::done);
    space.hand_over(t.a, neutral, old);  // the device has passed the older epoch only
    CHECK(space.streams[neutral].free_bytes() == 0);
    space.hand_over(t.a, neutral, old + 1);
    CHECK(space.streams[neutral].free_bytes() == 4_MiB);
  }
}

TEST_CASE(
    "arena::join_neutral joins a stream's ranges with neutral neighbours and leaves other ranges neutral",
    "[pool][arena][stream_order]") {
  struct example {
    char const* freed_by;  ///< six blocks in a row: by stream a, by no stream (n), or live
    std::size_t joined;
    std::size_t stays_neutral;
  };
  // The stream has fewer ranges, or more than are neutral, or as many.
  for (example const& e :
       {example{"na-n-n", 2_MiB, 2_MiB}, example{"an-a-a", 2_MiB, 0}, example{"nan-n-", 3_MiB, 1_MiB}}) {
    CAPTURE(e.freed_by);
    one_range t(6_MiB, zone::larger);
    arena& space = t.space;
    space.streams[neutral].epoch = 9;  // means nothing in another domain
    void* blocks[6] = {};
    for (void*& p : blocks) {
      space.make_room();
      p = space.take(t.a, zone::larger, 1_MiB, 256);
    }
    for (std::size_t i = 0; i < 6; ++i) {
      if (e.freed_by[i] == '-') continue;
      domain_ref const giver = e.freed_by[i] == 'a' ? t.a : neutral;
      CHECK(space.release(giver, blocks[i], 1_MiB) == release_result::done);
    }
    space.join_neutral(t.a);
    range_ref const first = space.streams[t.a].ranges(zone::larger).find(space.ranges, e.joined, 256);
    REQUIRE(first != 0);
    CHECK(space.ranges[first].address == 0x10000000);
    CHECK(space.ranges[first].bytes == e.joined);
    CHECK(space.ranges[first].epoch == space.streams[t.a].freed);
    CHECK(space.streams[neutral].free_bytes() == e.stays_neutral);
  }
}

TEST_CASE("arena::release_small makes a block of a full run available again", "[pool][arena][run]") {
  unsigned const k = class_of(4_KiB);
  one_range t(run_bytes(k), zone::smaller);
  arena& space = t.space;
  std::vector<void*> all(run_blocks(k));
  space.make_room();
  CHECK(space.take_small(t.a, k, all.data(), run_blocks(k)) == run_blocks(k));
  void* again = nullptr;
  CHECK(space.take_small(t.a, k, &again, 1) == 0);
  for (std::size_t const i : {std::size_t{0}, all.size() - 1, std::size_t{7}}) {
    CHECK(space.release_small(t.a, k, all[i]) == release_result::done);
    CHECK(space.take_small(t.a, k, &again, 1) == 1);
    CHECK(again == all[i]);
  }
  for (void* p : all) CHECK(space.release_small(t.a, k, p) == release_result::done);
  CHECK(space.live_bytes == 0);
  CHECK(space.largest_free() == run_bytes(k));
}
