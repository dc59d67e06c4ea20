// SPDX-License-Identifier: Apache-2.0
// Threads and the pool: mixed work, producers and consumers, threads that end before or after the pool.

#include "tarn/pool/cache/thread_cache.hpp"

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#if defined(__unix__) || defined(__APPLE__)
#include "child_process.hpp"
#endif
#include "contract/memory_access.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::test_stream;

namespace {

sim_options plain(std::size_t capacity) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  o.backing = sim_backing::address_only;
  return o;
}

/// The owner of each 256 bytes handed out; detects at once when two threads hold the same bytes.
class ownership {
 public:
  bool take(void const* p, std::size_t bytes, std::uint32_t who) { return change(p, bytes, 0, who); }
  bool give(void const* p, std::size_t bytes, std::uint32_t who) { return change(p, bytes, who, 0); }

 private:
  bool change(void const* p, std::size_t bytes, std::uint32_t from, std::uint32_t to) {
    std::lock_guard const guard(mutex_);
    bool right = true;
    auto const first = reinterpret_cast<std::uintptr_t>(p) / 256;
    for (std::uintptr_t at = first; at <= first + (bytes - 1) / 256; ++at) {
      std::uint32_t& owner = owner_[at];
      right = right && owner == from;
      owner = to;
    }
    return right;
  }
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::uint32_t> owner_;
};

}  // namespace

TEST_CASE("pooled never gives two threads the same bytes, on own or shared streams", "[pool][threads]") {
  bool const shared_stream = GENERATE(false, true);
  unsigned const thread_count = GENERATE(4U, 16U);
  sim_machine const machine(plain(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const common(machine.driver());
  ownership owners;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 1; t <= thread_count; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      test_stream const own(machine.driver());
      stream_ref const on = shared_stream ? stream_ref(common) : stream_ref(own);
      std::vector<std::pair<void*, std::size_t>> blocks;
      auto const drop = [&](std::size_t at) {
        auto const [p, bytes] = blocks[at];
        blocks[at] = blocks.back();
        blocks.pop_back();
        if (!owners.give(p, bytes, t)) ++wrong;
        memory.deallocate(on, p, bytes);
      };
      for (int i = 0; i < 400; ++i) {
        if (blocks.size() < 20 && random() % 2 == 0) {
          std::size_t const bytes = random() % (std::size_t{2} << (random() % 21)) + 1;
          try {
            void* const p = memory.allocate(on, bytes);
            if (!owners.take(p, bytes, t)) ++wrong;
            blocks.emplace_back(p, bytes);
          } catch (out_of_memory const&) {
          }
        } else if (!blocks.empty()) {
          drop(random() % blocks.size());
        }
        if (i % 100 == 99 && t == 1) (void)memory.trim(0);
      }
      while (!blocks.empty()) drop(0);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(memory->state().live == 0);
  CHECK(memory->state().live_blocks == 0);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("pooled counts exactly while 16 threads exchange blocks, record uses, read state and trim",
          "[pool][threads]") {
  constexpr unsigned thread_count = 16;
  sim_machine const machine(plain(512_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{} | tracked{};
  ownership owners;
  std::atomic<int> wrong{0};
  std::barrier at_once(thread_count);  // no thread begins or ends before all 16 run
  struct block {
    void* p;
    std::size_t bytes;
  };
  std::mutex counter_mutex;
  std::vector<block> counter;  // blocks that one thread left for another
  std::vector<std::thread> threads;
  for (unsigned t = 1; t <= thread_count; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      test_stream const own(machine.driver());
      test_stream const other(machine.driver());
      at_once.arrive_and_wait();
      for (int i = 0; i < 150; ++i) {
        std::size_t const bytes = random() % (std::size_t{2} << (random() % 20)) + 1;
        block mine{nullptr, bytes};
        try {
          mine.p = random() % 8 == 0 ? memory.allocate_sync(bytes) : memory.allocate(own, bytes);
          if (!owners.take(mine.p, bytes, 1)) ++wrong;
          if (random() % 8 == 0) memory.record_stream(mine.p, bytes, other);
        } catch (out_of_memory const&) {
        }
        block theirs{nullptr, 0};
        {
          std::lock_guard const guard(counter_mutex);
          if (mine.p != nullptr) counter.push_back(mine);
          if (counter.size() > thread_count) {
            std::swap(counter[random() % counter.size()], counter.back());
            theirs = counter.back();
            counter.pop_back();
          }
        }
        if (theirs.p != nullptr) {
          if (!owners.give(theirs.p, theirs.bytes, 1)) ++wrong;
          memory.deallocate(random() % 2 == 0 ? own : other, theirs.p, theirs.bytes);
        }
        if (random() % 64 == 0) (void)memory.trim(random() % 64_MiB);
        if (random() % 64 == 0 && memory->upstream()->state().reserved > 512_MiB) ++wrong;
        if (random() % 64 == 0 && memory->statistics().allocations[0].current < 0) ++wrong;
      }
      at_once.arrive_and_wait();
    });
  }
  for (auto& thread : threads) thread.join();
  for (block const& b : counter) memory.deallocate_sync(b.p, b.bytes);
  CHECK(wrong == 0);
  (void)memory.trim(0);
  CHECK(memory->upstream()->state().live == 0);
  CHECK(memory->upstream()->state().live_blocks == 0);
  CHECK(memory->upstream()->state().reserved == 0);
  CHECK(memory->statistics().allocated_bytes[0].current == 0);
  CHECK(memory->statistics().requested_bytes[0].current == 0);
}

TEST_CASE("deallocate by a consumer thread works on the same, another or the default stream",
          "[pool][threads]") {
  int const streams = GENERATE(0, 1, 2);  // the same, another, the default
  sim_machine const machine(plain(512_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const a(machine.driver()), b(machine.driver());
  stream_ref const from = streams == 2 ? stream_ref{} : stream_ref(a);
  stream_ref const to = streams == 0 ? stream_ref(a) : streams == 1 ? stream_ref(b) : stream_ref{};
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<std::pair<void*, std::size_t>> queue;
  ownership owners;
  std::atomic<int> wrong{0};
  constexpr int count = 1500;
  std::thread producer([&] {
    for (int i = 0; i < count; ++i) {
      std::size_t const bytes = static_cast<std::size_t>(i * 37 % 3000) * (i % 50 == 0 ? 1000 : 1) + 1;
      void* const p = memory.allocate(from, bytes);
      if (!owners.take(p, bytes, 1)) ++wrong;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return queue.size() < 64; });
        queue.emplace_back(p, bytes);
      }
      ready.notify_all();
    }
  });
  std::thread consumer([&] {
    for (int i = 0; i < count; ++i) {
      std::pair<void*, std::size_t> got;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [&] { return !queue.empty(); });
        got = queue.front();
        queue.pop_front();
      }
      ready.notify_all();
      if (!owners.give(got.first, got.second, 1)) ++wrong;
      memory.deallocate(to, got.first, got.second);
    }
  });
  producer.join();
  consumer.join();
  CHECK(wrong == 0);
  auto const s = memory->state();
  CHECK(s.live == 0);
  CHECK(s.live_blocks == 0);
  CHECK(s.reserved < 300_MiB);  // the producer reuses what the consumer freed
}

TEST_CASE("thread_cache of an ended thread returns its blocks to the pool", "[pool][threads]") {
  sim_machine const machine(plain(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  void* left = nullptr;
  std::thread([&] {
    std::vector<void*> blocks;
    for (int i = 0; i < 60; ++i) blocks.push_back(memory.allocate(stream, 1_MiB));
    for (void* p : blocks) memory.deallocate(stream, p, 1_MiB);
    left = memory.allocate(stream, 1000);
  }).join();
  CHECK(memory->state().live == 1024);
  CHECK(memory->state().live_blocks == 1);
  memory.deallocate(stream, left, 1000);
  CHECK(memory->state().live == 0);
  void* const whole = memory.allocate(stream, 62_MiB);
  CHECK(whole != nullptr);
  memory.deallocate(stream, whole, 62_MiB);
}

TEST_CASE("thread_cache of a live thread is reclaimed when another thread runs out of memory",
          "[pool][threads]") {
  sim_machine const machine(plain(64_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::vector<void*> blocks;
  for (int i = 0; i < 60; ++i) blocks.push_back(memory.allocate({}, 1_MiB));
  for (void* p : blocks) memory.deallocate({}, p, 1_MiB);
  bool served = false;
  std::thread([&] {
    try {
      void* const p = memory.allocate({}, 62_MiB);
      memory.deallocate({}, p, 62_MiB);
      served = true;
    } catch (out_of_memory const&) {
    }
  }).join();
  CHECK(served);
}

TEST_CASE("a block that another thread caches is taken back before memory grows, even if it is a small part",
          "[pool][threads]") {
  constexpr std::size_t bytes = 24_MiB;
  constexpr std::size_t count = 44;
  sim_machine machine(plain(4_GiB));
  auto memory = sim_pages{machine.driver()} | pooled{};
  test_stream<sim_driver> const stream(machine.driver());
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < count; ++i) blocks.push_back(memory.allocate(stream, bytes));
  std::atomic<bool> has_freed{false};
  std::atomic<bool> may_end{false};
  std::thread other([&] {
    memory.deallocate(stream, memory.allocate(stream, bytes), bytes);
    has_freed = true;
    while (!may_end) std::this_thread::yield();
  });
  while (!has_freed) std::this_thread::yield();
  std::size_t const reserved = memory->state().reserved;
  CHECK(reserved == (count + 1) * bytes);
  blocks.push_back(memory.allocate(stream, bytes));
  CHECK(memory->state().reserved == reserved);
  may_end = true;
  other.join();
  for (void* const p : blocks) memory.deallocate(stream, p, bytes);
}

TEST_CASE("thread_cache allows a thread to outlive the pools it used", "[pool][threads]") {
  sim_machine const machine;
  std::mutex mutex;
  std::condition_variable changed;
  int stage = 0;
  auto memory = std::make_unique<stack<sim_pages, pooled>>(sim_pages(machine.driver()));
  std::thread user([&] {
    void* const p = memory->allocate({}, 1000);
    memory->deallocate({}, p, 1000);
    std::unique_lock lock(mutex);
    stage = 1;
    changed.notify_all();
    changed.wait(lock, [&] { return stage == 2; });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stage == 1; });
    memory.reset();
    CHECK(machine.leaks().total() == 0);
    stage = 2;
  }
  changed.notify_all();
  user.join();
}

TEST_CASE("thread_cache allows one thread to use many pools in turn", "[pool][threads]") {
  sim_machine const machine(plain(1_GiB));  // sanitizers leave little address space for so many ranges
  std::vector<stack<sim_pages, pooled>> pools;
  for (int i = 0; i < 40; ++i) pools.emplace_back(sim_pages(machine.driver()));
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> blocks;
    for (auto& pool : pools) blocks.push_back(pool.allocate({}, 5000));
    for (std::size_t i = 0; i < pools.size(); ++i) {
      for (std::size_t j = 0; j < pools.size(); ++j) CHECK(pools[j].owns(blocks[i]) == (i == j));
      pools[i].deallocate({}, blocks[i], 5000);
      CHECK(pools[i]->state().live == 0);
    }
  }
  while (!pools.empty()) pools.pop_back();
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("pooled may be released by its creator while other threads begin and end", "[pool][threads]") {
  sim_machine const machine(plain(1_GiB));
  for (int round = 0; round < 20; ++round) {
    auto memory = std::make_unique<stack<sim_pages, pooled>>(sim_pages(machine.driver()));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([copy = *memory]() mutable {
        void* const p = copy.allocate({}, 3000);
        copy.deallocate({}, p, 3000);
      });
    }
    memory.reset();
    for (auto& thread : threads) thread.join();
    REQUIRE(machine.leaks().total() == 0);
  }
}

TEST_CASE("pooled over pooled serves threads that begin and end", "[pool][threads]") {
  sim_machine const machine(plain(1_GiB));
  auto memory = sim_malloc(machine.driver()) | pooled{} | pooled{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        std::thread([&] {
          memory.deallocate({}, memory.allocate({}, 3_MiB), 3_MiB);
          memory.empty_cache();
        }).join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(memory->state().live == 0);
}

TEST_CASE("thread_cache keeps the magazines of few streams when a thread uses many in turn", "[pool]") {
  sim_machine const machine(plain(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::size_t after_some = 0;
  for (int i = 0; i < 5000; ++i) {
    test_stream const brief(machine.driver());
    void* const small = memory.allocate(brief, 1000);
    void* const large = memory.allocate(brief, 3_MiB);
    memory.deallocate(brief, large, 3_MiB);
    memory.deallocate(brief, small, 1000);
    if (i == 500) after_some = memory->state().host_bytes;
  }
  auto const s = memory->state();
  CHECK(s.host_bytes <= after_some + after_some / 4);
  CHECK(s.live == 0);
  CHECK(s.live_blocks == 0);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("thread_cache returns the blocks of streams it no longer uses to the pool", "[pool]") {
  sim_machine const machine(plain(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  std::vector<std::unique_ptr<test_stream<sim_driver>>> streams;
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    streams.push_back(std::make_unique<test_stream<sim_driver>>(machine.driver()));
    blocks.push_back(memory.allocate(*streams.back(), 1_MiB));
  }
  auto const before = memory->state();
  for (std::size_t i = 0; i < blocks.size(); ++i) memory.deallocate(*streams[i], blocks[i], 1_MiB);
  auto const s = memory->state();
  CHECK(s.live == 0);
  // 64 magazines hold one block each; the others are in the pool.
  CHECK(s.inactive_split_bytes >= 136_MiB);
  CHECK(s.inactive_split_bytes < 200_MiB);
  // Streams that had only live blocks were forgotten; those whose blocks are freed get a domain again.
  CHECK(s.host_bytes < before.host_bytes + 64 * 8_KiB + streams.size() * sizeof(detail::stream_domain));
  // The stream used first reuses its memory, and the one used last still has its magazine.
  CHECK(memory.allocate(*streams.back(), 1_MiB) == blocks.back());
  void* const first = memory.allocate(*streams.front(), 1_MiB);
  CHECK(memory->state().reserved == before.reserved);
  CHECK(memory->state().live == 2_MiB);
  memory.deallocate(*streams.front(), first, 1_MiB);
  memory.deallocate(*streams.back(), blocks.back(), 1_MiB);
}

namespace {
std::size_t bytes_in_caches(auto& memory) {
  std::size_t bytes = 0;
  auto const look = [&](detail::growth_lock const&, auto&, auto& front, auto&, auto&) {
    bytes = front.idle().bytes;
  };
  nearest(memory, pool_call::inspect{look});
  return bytes;
}
}  // namespace

TEST_CASE(
    "a request above 32 KiB that misses returns what the thread caches of such sizes, if it is over 2 MiB",
    "[pool]") {
  sim_machine const machine(plain(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  // Rows of eight size classes fill three handles but for a part of the last one.
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < 8; ++i) rows.push_back(544_KiB + i * 32_KiB);
  std::vector<void*> blocks;
  for (std::size_t const bytes : rows) blocks.push_back(memory.allocate(stream, bytes));
  auto const full = memory->state();
  REQUIRE(full.reserved == 6_MiB);
  std::size_t const rest = full.inactive_split_bytes;
  REQUIRE(rest >= 256_KiB);
  auto const free_last = [&] {
    memory.deallocate(stream, blocks.back(), rows[blocks.size() - 1]);
    blocks.pop_back();
  };

  while (blocks.size() > 5) free_last();  // 2,208 KiB: more than 2 MiB
  CHECK(memory->state().inactive_split_bytes == rest);
  CHECK(bytes_in_caches(memory) == 704_KiB + 736_KiB + 768_KiB);
  void* const small = memory.allocate(stream, 32_KiB);
  std::size_t const of_small = rest - memory->state().inactive_split_bytes;
  CHECK(of_small == 256_KiB);  // a run, and no row has returned
  void* const row = memory.allocate(stream, 64_KiB);
  auto s = memory->state();
  CHECK(s.inactive_split_bytes == rest - of_small - 64_KiB + 704_KiB + 736_KiB + 768_KiB);
  CHECK(s.reserved == 6_MiB);
  CHECK(bytes_in_caches(memory) < 256_KiB);  // what is left of the run

  while (blocks.size() > 2) free_last();  // 1,920 KiB
  std::size_t const before = memory->state().inactive_split_bytes;
  void* const another = memory.allocate(stream, 64_KiB);
  s = memory->state();
  CHECK(s.inactive_split_bytes == before - 64_KiB);
  CHECK(s.live == 544_KiB + 576_KiB + 32_KiB + 2 * 64_KiB);
  memory.deallocate(stream, another, 64_KiB);
  memory.deallocate(stream, row, 64_KiB);
  memory.deallocate(stream, small, 32_KiB);
  while (!blocks.empty()) free_last();
  CHECK(memory->state().live == 0);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
}

TEST_CASE("a thread keeps what it caches above 32 KiB while the misses ask for the sizes that were returned",
          "[pool]") {
  sim_machine const machine(plain(256_MiB));
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  // Allocates and frees some rows of 544 to 768 KiB, each of another class.
  auto const cache_rows = [&](std::size_t first, unsigned of_each) {
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (std::size_t i = first; i < 8; ++i) {
      for (unsigned n = 0; n < of_each; ++n) {
        std::size_t const bytes = 544_KiB + i * 32_KiB;
        blocks.emplace_back(memory.allocate(stream, bytes), bytes);
      }
    }
    for (auto const& [p, bytes] : blocks) memory.deallocate(stream, p, bytes);
  };
  std::vector<std::pair<void*, std::size_t>> missed;
  auto const miss = [&](std::size_t bytes) { missed.emplace_back(memory.allocate(stream, bytes), bytes); };

  cache_rows(4, 1);
  CHECK(bytes_in_caches(memory) == 2880_KiB);
  miss(64_KiB);
  CHECK(bytes_in_caches(memory) == 0);
  cache_rows(4, 1);  // misses, and asks for what was returned
  miss(96_KiB);
  CHECK(bytes_in_caches(memory) == 2880_KiB);
  cache_rows(0, 2);  // 10,496 KiB: more than twice what was returned
  miss(128_KiB);
  CHECK(bytes_in_caches(memory) == 0);
  miss(160_KiB);  // asks for another size
  cache_rows(0, 1);
  CHECK(bytes_in_caches(memory) == 5248_KiB);
  miss(192_KiB);
  CHECK(bytes_in_caches(memory) == 0);
  for (auto const& [p, bytes] : missed) memory.deallocate(stream, p, bytes);
}

TEST_CASE("a thread that replaces blocks at random seldom returns what it caches", "[pool][pages]") {
  sim_machine const machine(sim_options{.backing = sim_backing::address_only});
  auto memory = sim_pages(machine.driver()) | pooled{};
  test_stream const stream(machine.driver());
  std::mt19937 random(3);
  std::vector<std::pair<void*, std::size_t>> blocks(64);
  std::size_t before = 0;
  int returns = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto& [p, bytes] = blocks[random() % blocks.size()];
    if (p != nullptr) memory.deallocate(stream, p, bytes);
    bytes = (std::size_t{256} << random() % 10) + random() % 4 * (std::size_t{64} << random() % 10);
    p = memory.allocate(stream, bytes);
    std::size_t const now = bytes_in_caches(memory);
    if (now + 1_MiB < before) ++returns;
    before = now;
  }
  CHECK(returns < 40);
  for (auto const& [p, bytes] : blocks) memory.deallocate(stream, p, bytes);
}

TEST_CASE("local_caches.find returns a thread's cache of each of 1000 pools and none of a destroyed pool",
          "[pool][threads]") {
  using detail::local_caches;
  std::thread([] {
    auto& exit = detail::thread_exit::of_this_thread();
    struct live_pool {
      detail::counted<detail::pool_link> link;
      detail::thread_cache cache;
      live_pool() {
        link->pool = this;
        link->retire = [](void*, detail::thread_cache*) noexcept { return true; };
      }
    };
    std::deque<live_pool> pools;
    auto const find = [](live_pool const& p) { return local_caches.find(p.link.get(), p.link->number); };
    int wrong = 0, layouts = 0;
    auto const* places = local_caches.places;
    for (int i = 0; i < 20'000; ++i) {
      if (i % 3 == 2 || i > 4000) {  // destroyed; the next pool's link may reuse the memory of its link
        pools.front().link->pool = nullptr;
        pools.pop_front();
      }
      live_pool& made = pools.emplace_back();
      wrong += find(made) == nullptr ? 0 : 1;  // also if the link has the address of a destroyed pool's link
      exit.add(made.link, &made.cache);
      layouts += std::exchange(places, local_caches.places) != local_caches.places ? 1 : 0;
      if (i % 100 == 0) {
        for (live_pool& p : pools) wrong += find(p) == &p.cache ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
    CHECK(layouts < 100);  // which forget the ended pools; adding one is amortised O(1)
    CHECK(pools.size() > 1000);
    for (live_pool& p : pools) CHECK(find(p) == &p.cache);
    // One thread's pools have numbers far apart, as if each object had several pools.
    CHECK(local_caches.mask < 16 * pools.size());
  }).join();
}

TEST_CASE("an ending thread does not hold the mutex of pool_link while another one has the growth lock",
          "[pool][threads]") {
  struct busy_pool {
    detail::counted<detail::pool_link> link;
    detail::thread_cache cache;
    std::atomic<int> asked{0};
    std::atomic<bool> is_free{false};
  };
  busy_pool pool;
  pool.link->pool = &pool;
  pool.link->retire = [](void* self, detail::thread_cache*) noexcept {
    auto& p = *static_cast<busy_pool*>(self);
    bool const is_first = p.asked++ == 0;  // the other thread has the growth lock
    return !is_first && p.is_free.load();
  };
  std::thread ending([&pool] { detail::thread_exit::of_this_thread().add(pool.link, &pool.cache); });
  while (pool.asked == 0) std::this_thread::yield();
  {
    std::lock_guard const guard(
        pool.link->mutex);  // as the end of a graph_memory, which holds the growth lock
    pool.is_free = true;
  }
  ending.join();
  CHECK(pool.asked > 1);
}

TEST_CASE("local_caches does not grow with the number of destroyed pools", "[pool][threads]") {
  auto kept = host_memory{} | pooled{};
  for (int i = 0; i < 5000; ++i) {
    auto memory = host_memory{} | pooled{};
    void* const p = memory.allocate_sync(100);
    memory.deallocate_sync(p, 100);
    void* const q = kept.allocate_sync(100);
    kept.deallocate_sync(q, 100);
  }
  CHECK(detail::local_caches.mask < 256);
}

#if defined(__unix__) || defined(__APPLE__)

TEST_CASE("allocate serves nothing from a thread's cache in a forked child", "[pool][at_fork]") {
  auto memory = host_memory{} | pooled{};
  void* const p = memory.allocate_sync(100);
  memory.deallocate_sync(p, 100);
  CHECK(child_of([&] {
          try {
            (void)memory.allocate_sync(100);
            return false;
          } catch (cuda_error const& refused) {
            return refused.kind() == failure::forked;
          }
        }) == 0);
  CHECK(memory.allocate_sync(100) == p);
  memory.deallocate_sync(p, 100);
}

#endif
