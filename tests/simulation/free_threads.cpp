// SPDX-License-Identifier: Apache-2.0
// Threads that run freely on shared pools, for ThreadSanitizer and for bugs that need real concurrency. Each
// thread writes to its blocks on the host: a block that two threads hold without an order between them is a
// data race, which ThreadSanitizer reports, and a changed stamp, which the thread reports.
//
// Driver calls take random real time, before or after their work: other threads run meanwhile.
//
// Arguments: SEED ROUNDS THREADS CALLS [SECONDS]. With SECONDS it continues with further seeds for that time.
// Exit status: 0 no findings, 1 findings.

#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "delayed_driver.hpp"
#include "pool_under_test.hpp"
#include "random_numbers.hpp"
#include "tarn/core/misuse.hpp"

namespace {

using namespace simulation;
using tarn::operator""_KiB;
using tarn::operator""_MiB;

std::atomic<std::uint64_t> found{0};
void say(char const* what, std::uint64_t seed) {
  if (found.fetch_add(1) < 20) std::printf("FOUND: %s (seed %" PRIu64 ")\n", what, seed);
}

/// Counts only refusals: the threads check the blocks.
struct no_witness final : witness {
  void given(unsigned, tarn::stream_ref, void*, std::size_t, std::size_t) override {}
  void returned(unsigned, tarn::stream_ref, void*, std::size_t, std::size_t) override {}
  void extended(unsigned, tarn::stream_ref, void*, std::size_t, std::size_t, std::size_t) override {}
  void refused(unsigned) override { refusals.fetch_add(1, std::memory_order_relaxed); }
  std::atomic<std::uint64_t> refusals{0};
};

struct block {
  void* p = nullptr;
  std::size_t bytes = 0, alignment = 256;
  tarn::stream_ref stream;
  std::uint64_t stamp = 0;
  bool sync = false;

  /// The host writes the start and the end: all device work on the block is over, because there is none.
  void write(std::uint64_t s) {
    stamp = s;
    put(p);
    if (bytes >= 16) put(static_cast<char*>(p) + bytes - 8);
  }
  [[nodiscard]] bool holds() const {
    return is(p) && (bytes < 16 || is(static_cast<char const*>(p) + bytes - 8));
  }

 private:
  void put(void* at) const { std::memcpy(at, &stamp, bytes < 8 ? bytes : 8); }
  [[nodiscard]] bool is(void const* at) const { return std::memcmp(at, &stamp, bytes < 8 ? bytes : 8) == 0; }
};

/// Where threads leave blocks for each other.
class exchange {
 public:
  /// Leaves a block and takes the previous one.
  block swap(std::size_t place, block b) {
    std::lock_guard const guard(mutex_);
    std::swap(b, places_[place % places_.size()]);
    return b;
  }

 private:
  std::mutex mutex_;
  std::array<block, 16> places_;
};

struct shared_things {
  tarn::sim_machine const& machine;
  pool_under_test& pool;
  exchange& left;
  std::vector<tarn::stream_ref> const& streams;
  std::uint64_t seed;
};

void free_block(shared_things const& t, block& b) {
  if (b.p == nullptr) return;
  if (!b.holds()) say("a block lost its contents", t.seed);
  if (b.sync) {
    t.pool.deallocate_sync(b.p, b.bytes, b.alignment);
  } else {
    // All device work is over, because there is none: a block may be freed on any stream, with or without a
    // recorded use.
    if (b.stamp % 16 == 0) t.pool.record_stream(b.p, b.bytes, t.streams[b.stamp / 16 % t.streams.size()]);
    t.pool.deallocate(b.stream, b.p, b.bytes, b.alignment);
  }
  b = {};
}

/// One thread's program.
void live(shared_things const& t, unsigned number, std::size_t calls) {
  random_numbers random(t.seed * 64 + number);
  std::vector<block> mine(40);
  tarn::stream_ref const own = t.streams[number % t.streams.size()];
  for (std::size_t i = 0; i < calls; ++i) {
    block& b = mine[random.below(mine.size())];
    auto const what = random.below(1000);
    if (what < 940) {
      free_block(t, b);
      b.bytes = random.percent(70)   ? random.between(1, 4_KiB)
                : random.percent(80) ? random.between(1, 256_KiB)
                                     : random.between(1, 3_MiB);
      b.alignment = random.percent(5) ? 512 : 256;
      // Threads share streams: they take turns on the host, as their blocks do.
      b.stream = random.percent(80) ? own : t.streams[random.below(t.streams.size())];
      b.sync = random.percent(5);
      try {
        b.p = b.sync ? t.pool.allocate_sync(b.bytes, b.alignment)
                     : t.pool.allocate(b.stream, b.bytes, b.alignment);
        b.write(random());
      } catch (tarn::out_of_memory const&) {
        b = {};
      }
    } else if (what < 980) {
      b = t.left.swap(random.below(64), std::exchange(b, {}));
      if (b.p != nullptr && !b.holds())
        say("a block lost its contents when another thread received it", t.seed);
    } else if (what < 984) {
      (void)t.pool.trim(random.below(64_MiB));
    } else if (what < 990) {
      (void)t.pool.state();
      (void)t.pool.statistics();
    } else if (what < 994) {
      if (b.p != nullptr && !t.pool.owns(b.p)) say("a pool does not own its block", t.seed);
    } else if (what < 997) {
      (void)t.pool.largest_free_range();
    } else {
      auto const scope = t.pool.open_scope();
      if (scope->read().current > t.pool.state().reserved + 1000_MiB)
        say("a scope reports impossible numbers", t.seed);
    }
  }
  for (block& b : mine) {
    if (random.percent(20)) b = t.left.swap(random.below(64), b);
    free_block(t, b);
  }
}

void round(std::uint64_t seed, unsigned threads, std::size_t calls) {
  random_numbers random(seed);
  tarn::sim_options o;
  o.capacity = 2_MiB * random.between(24, 200);
  o.taken = 0;
  o.costs = tarn::sim_costs::nothing();
  tarn::sim_machine const machine(o);
  tarn::sim_driver const driver = machine.driver();
  no_witness who;
  pool_choice choice;
  choice.on = static_cast<ground>(random.below(3));
  choice.limit = o.capacity * 4;
  std::vector<tarn::stream_ref> streams(random.between(1, threads));
  for (auto& s : streams) {
    if (!driver.create_stream(s).ok()) say("create_stream failed", seed);
    tarn::stream_id id = 0;
    if (driver.identify(s, id).ok()) s = tarn::stream_ref::from(s.handle(), id);
  }
  {
    auto const pool =
        make_pool<delayed<tarn::sim_driver>, delayed<tarn::sim_marking_driver>>(driver, choice, who, 0);
    exchange left;
    shared_things const t{machine, *pool, left, streams, seed};
    // Some threads end early, and others start in their place.
    for (int wave = 0; wave < 2; ++wave) {
      std::vector<std::thread> all;
      for (unsigned n = 0; n < threads; ++n)
        all.emplace_back(
            [&, n, wave] { live(t, n + static_cast<unsigned>(wave) * threads, calls / (n % 3 + 1)); });
      for (auto& one : all) one.join();
    }
    for (std::size_t place = 0; place < 16; ++place) {
      block b = left.swap(place, {});
      free_block(t, b);
    }
    auto const numbers = pool->statistics();
    if (numbers.allocations[0].current != 0 || numbers.allocated_bytes[0].current != 0 ||
        numbers.requested_bytes[0].current != 0 ||
        numbers.allocations[0].allocated != numbers.allocations[0].freed)
      say("tracked does not count to zero", seed);
    if (numbers.ooms != who.refusals.load()) say("tracked counts other refusals", seed);
    (void)pool->trim(0);  // blocks with a recorded use are live until they are reclaimed
    if (pool->state().live != 0 || pool->state().live_blocks != 0)
      say("state() does not count to zero", seed);
    if (pool->state().reserved != 0) say("memory stays reserved after all blocks were freed", seed);
  }
  for (auto& s : streams) (void)driver.destroy_stream(s);
  if (machine.leaks().total() != 0) say("the machine still holds resources", seed);
}

}  // namespace

int main(int count, char** values) {
  auto const number = [&](int i, std::uint64_t otherwise) {
    return count > i ? std::strtoull(values[i], nullptr, 10) : otherwise;
  };
  std::uint64_t const seed = number(1, 1), rounds = number(2, 10), threads = number(3, 8),
                      calls = number(4, 2000);
  tarn::set_misuse_handler([](tarn::misuse const& m) { say(m.what(), 0); });
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(number(5, 0));
  std::uint64_t done = 0;
  for (; (done < rounds || std::chrono::steady_clock::now() < until) && found.load() == 0; ++done) {
    // Every fourth round runs without delays: undelayed threads meet at other points.
    driver_delays::one_in = (seed + done) % 4 == 3 ? 0 : 16;
    round(seed + done, static_cast<unsigned>(threads), calls);
  }
  std::uint64_t const made = done * threads * 2 * calls / 2;
  std::printf("evidence: free_threads verdict=%s findings=%" PRIu64 " rounds=%" PRIu64 " threads=%" PRIu64
              " calls_about=%" PRIu64 " delays=%" PRIu64 " first_seed=%" PRIu64 "\n",
              found.load() == 0 ? "pass" : "fail", found.load(), done, threads, made,
              driver_delays::made.load(), seed);
  return found.load() == 0 ? 0 : 1;
}
