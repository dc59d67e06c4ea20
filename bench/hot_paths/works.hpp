// SPDX-License-Identifier: Apache-2.0
#pragma once
// The hot paths, for any pool: host nanoseconds per allocate+free pair, warm; the memory is never accessed.
//
//   hot_pair/B    one block of B bytes, allocated and freed, one thread, one stream
//   window/W      W live blocks, log-uniform 256 B to 1 MiB, random replacement
//   live/N        N live blocks, log-uniform 256 B to 2 KiB, random replacement
//   threads/T     T threads, each its own stream and 64 live blocks, log-uniform 256 B to 256 KiB; per thread
//   other_thread  4 KiB allocated by one thread, freed by another, one stream
//   two_streams   64 KiB, allocated and freed alternately on two streams
//   uses/N        64 live blocks, log-uniform 256 B to 2 KiB, random replacement, while N others have a recorded use
//   record_stream    4 KiB, allocated, used on another stream, freed; includes its share of collecting deferred blocks
//   pools/N       N pools of host memory, used in turn by one thread (tarn only)
//   tail/W        each operation of window/W timed individually
//   fail/...      the time to fail: refusals.hpp, and limits.hpp (tarn only)

#include <memory>
#include <string>
#include <vector>

#include "hot_paths/crew.hpp"
#include "hot_paths/entry.hpp"
#include "hot_paths/refusals.hpp"
#include "hot_paths/work.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// Returns every work on every pool of this program. Each program defines it.
/// @param cuda_found  whether there is a device for the CUDA pools
[[nodiscard]] std::vector<entry> all_entries(bool cuda_found);

namespace hot {

inline constexpr size_range small_to_mib{256, std::size_t{1} << 20};
inline constexpr size_range small_to_256_kib{256, std::size_t{256} << 10};
inline constexpr size_range small_to_2_kib{256, std::size_t{2} << 10};
inline constexpr std::size_t blocks_per_thread = 64;
inline constexpr std::size_t pair_bytes[] = {256, 4096, 65536, 1048576, 20971520};
inline constexpr std::size_t window_blocks[] = {16, 256, 4096, 32768, 65536};
inline constexpr std::size_t live_blocks[] = {1000, 1000000};
inline constexpr std::size_t thread_counts[] = {1, 2, 4, 8, 16};
inline constexpr std::size_t tail_window = 4096;
inline constexpr std::size_t recorded_streams[] = {0, 40000, 1000000};

/// Maximum live blocks, and maximum threads, for allocators that call the driver for each block.
inline constexpr std::size_t most_live_without_pool = 256;
inline constexpr std::size_t most_threads_without_pool = 4;

[[nodiscard]] inline setup with_streams(std::size_t count) {
  setup s;
  s.streams = count;
  return s;
}

/// Allocates and frees on the streams that `next` returns.
template <peer P, class Next>
[[nodiscard]] spread time_pairs(P& pool, std::size_t bytes, plan const& p, Next next) {
  return time_batches(p, [&](std::uint64_t pairs) {
    return time_loop(pairs, [&] {
      std::size_t const stream = next();
      void* const block = pool.allocate(stream, bytes);
      if (block == nullptr) throw cannot("a block is refused");
      keep(block);
      pool.deallocate(stream, block, bytes);
    });
  });
}

template <peer P>
void hot_pair(plan const& p, row& r, std::size_t bytes) {
  P pool(with_streams(1));
  r.pair = time_pairs(pool, bytes, p, [] { return std::size_t{0}; });
}

template <peer P>
void two_streams(plan const& p, row& r) {
  P pool(with_streams(2));
  r.pair =
      time_pairs(pool, std::size_t{64} << 10, p, [stream = std::size_t{1}]() mutable { return stream ^= 1; });
}

template <peer P>
void replace(plan const& p, row& r, std::size_t live, size_range sizes) {
  P pool(with_streams(1));
  deadline const until(p.fill_seconds);
  window<P> blocks(pool, 0, live, sizes, until);
  blocks.warm(until);
  r.pair = time_batches(p, [&](std::uint64_t pairs) { return time_loop(pairs, [&] { blocks.step(); }); });
}

/// Replaces blocks on stream 0 while `uses` others have a recorded use on stream 1.
template <records_uses P>
void beside_uses(plan const& p, row& r, std::size_t uses) {
  constexpr std::size_t bytes = 256;
  P pool(with_streams(2));
  deadline const until(p.fill_seconds);
  std::vector<void*> blocks;
  blocks.reserve(uses);
  for (std::size_t i = 0; i < uses && (i % 256 != 0 || !until.over()); ++i) {
    blocks.push_back(pool.allocate(0, bytes));
    pool.record_stream(1, blocks.back(), bytes);
  }
  if (blocks.size() == uses) {
    window<P> others(pool, 0, blocks_per_thread, small_to_2_kib, until);
    others.warm(until);
    r.pair = time_batches(p, [&](std::uint64_t pairs) { return time_loop(pairs, [&] { others.step(); }); });
  } else {
    r.problem = "recording takes too long";
  }
  for (void* const block : blocks) pool.deallocate(0, block, bytes);
}

template <records_uses P>
void record_stream(plan const& p, row& r) {
  constexpr std::size_t bytes = 4096;
  P pool(with_streams(2));
  r.pair = time_batches(p, [&](std::uint64_t pairs) {
    return time_loop(pairs, [&] {
      void* const block = pool.allocate(0, bytes);
      if (block == nullptr) throw cannot("a block is refused");
      pool.record_stream(1, block, bytes);
      pool.deallocate(0, block, bytes);
    });
  });
}

template <peer P>
void tails(plan const& p, row& r) {
  P pool(with_streams(1));
  deadline const until(p.fill_seconds);
  window<P> blocks(pool, 0, tail_window, small_to_mib, until);
  blocks.warm(until);
  tick_clock const& clock = tick_clock::calibrated();
  tail_recorder freed(p.tail_samples), allocated(p.tail_samples);
  for (unsigned batch = 0; batch < p.repetitions; ++batch) {
    for (std::size_t i = 0; i < p.tail_samples; ++i) {
      std::uint64_t const start = clock.now();
      blocks.free_next();
      std::uint64_t const between = clock.now();
      blocks.allocate_next();
      std::uint64_t const end = clock.now();
      freed.at(i, between - start);
      allocated.at(i, end - between);
    }
    freed.end_batch();
    allocated.end_batch();
  }
  r.deallocate = freed.result();
  r.allocate = allocated.result();
  r.clock_ns = clock.own_ticks * clock.ns_per_tick;
}

/// Times batches of a crew, each thread doing `pairs` pairs; before that, a call for 0 pairs, in which each
/// may warm up.
template <class Pairs>
[[nodiscard]] spread time_crew(plan const& p, std::size_t count, Pairs&& pairs_of_thread) {
  std::uint64_t pairs = 0;
  auto const work = [&](std::size_t thread) { pairs_of_thread(thread, pairs); };
  crew workers(count, work);
  (void)workers.run();
  return time_batches(p, [&](std::uint64_t n) {
    pairs = n;
    return workers.run();
  });
}

template <peer P>
void threads(plan const& p, row& r, std::size_t count) {
  P pool(with_streams(count));
  deadline const until(p.fill_seconds);
  std::vector<std::unique_ptr<window<P>>> windows;
  for (std::size_t t = 0; t < count; ++t) {
    windows.push_back(std::make_unique<window<P>>(pool, t, blocks_per_thread, small_to_256_kib, until,
                                                  static_cast<unsigned>(t + 1)));
  }
  r.pair = time_crew(p, count, [&](std::size_t t, std::uint64_t pairs) {
    if (pairs == 0) windows[t]->warm(until);
    for (std::uint64_t i = 0; i < pairs; ++i) windows[t]->step();
  });
}

template <peer P>
void other_thread(plan const& p, row& r) {
  constexpr std::size_t bytes = 4096;
  P pool(with_streams(1));
  handover queue;
  r.pair = time_crew(p, 2, [&](std::size_t t, std::uint64_t pairs) {
    bool refused = false;
    for (std::uint64_t i = 0; i < pairs; ++i) {
      if (t != 0) {
        pool.deallocate(0, queue.take(), bytes);
        continue;
      }
      void* block = nullptr;  // passed on even if refused: the other thread waits for it
      try {
        block = pool.allocate(0, bytes);
      } catch (std::bad_alloc const&) {
      }
      refused = refused || block == nullptr;
      queue.give(block);
    }
    if (refused) throw cannot("a block is refused");
  });
}

}  // namespace hot

/// Adds the works of several threads for one pool.
template <peer P>
void add_thread_works(std::vector<entry>& list) {
  auto const add = [&](std::string work, std::size_t live, auto run) {
    list.push_back({std::move(work), std::string(P::name), std::string(to_text(P::where)), live, run});
  };
  for (std::size_t const count : hot::thread_counts) {
    if (!is_pool<P> && count > hot::most_threads_without_pool) continue;
    add("threads/" + std::to_string(count), hot::blocks_per_thread,
        [count](plan const& p, row& r) { hot::threads<P>(p, r, count); });
  }
  add("other_thread", 1, [](plan const& p, row& r) { hot::other_thread<P>(p, r); });
}

/// Adds every work for one pool.
template <peer P>
void add_works(std::vector<entry>& list) {
  auto const add = [&](std::string work, std::size_t live, auto run) {
    if (is_pool<P> || live <= hot::most_live_without_pool) {
      list.push_back({std::move(work), std::string(P::name), std::string(to_text(P::where)), live, run});
    }
  };
  for (std::size_t const bytes : hot::pair_bytes) {
    add("hot_pair/" + std::to_string(bytes), 1,
        [bytes](plan const& p, row& r) { hot::hot_pair<P>(p, r, bytes); });
  }
  for (std::size_t const live : hot::window_blocks) {
    add("window/" + std::to_string(live), live,
        [live](plan const& p, row& r) { hot::replace<P>(p, r, live, hot::small_to_mib); });
  }
  for (std::size_t const live : hot::live_blocks) {
    add("live/" + std::to_string(live), live,
        [live](plan const& p, row& r) { hot::replace<P>(p, r, live, hot::small_to_2_kib); });
  }
  add("two_streams", 1, [](plan const& p, row& r) { hot::two_streams<P>(p, r); });
  if constexpr (records_uses<P>) {
    for (std::size_t const uses : hot::recorded_streams) {
      add("uses/" + std::to_string(uses), uses + hot::blocks_per_thread,
          [uses](plan const& p, row& r) { hot::beside_uses<P>(p, r, uses); });
    }
    add("record_stream", 1, [](plan const& p, row& r) { hot::record_stream<P>(p, r); });
  }
  add("tail/" + std::to_string(hot::tail_window), hot::tail_window,
      [](plan const& p, row& r) { hot::tails<P>(p, r); });
  if constexpr (is_thread_safe<P>) add_thread_works<P>(list);
  add_refusals<P>(list);
}

}  // namespace tarn::bench
