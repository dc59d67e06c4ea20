// SPDX-License-Identifier: Apache-2.0
#pragma once
// The hot paths, for any pool: host nanoseconds per allocate+free pair, warm, memory never touched.
//
// | work         | what |
// |--------------|------------------------------------------------------------------------------------------|
// | hot_pair/B   | one block of B bytes, allocated and freed, one thread, one stream | | window/W     | W
// live blocks, log-uniform 256 B to 1 MiB, random replacement                              | | million_live |
// 2^20 live blocks, log-uniform 256 B to 2 KiB, random replacement                          | | threads/T |
// T threads, each its own stream and 64 live blocks, log-uniform 256 B to 256 KiB; per thread | |
// other_thread | 4 KiB allocated by one thread, freed by another, one stream                                |
// | two_streams  | 64 KiB, allocated and freed on one stream, then on the other, and so on |
//
// Above it: the lists of pools. Below it: peers/peer, work, crew, Google Benchmark (used because its
// repetition, filters and JSON are what readers of benches expect).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "hot_paths/crew.hpp"
#include "hot_paths/work.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

namespace hot {

inline constexpr size_range small_to_mib{256, std::size_t{1} << 20};
inline constexpr size_range small_to_256_kib{256, std::size_t{256} << 10};
inline constexpr size_range small_to_2_kib{256, std::size_t{2} << 10};
inline constexpr std::size_t blocks_per_thread = 64;
inline constexpr std::size_t pair_bytes[] = {256, 4096, 65536, 1048576, 20971520};
inline constexpr std::size_t window_blocks[] = {16, 256, 4096, 32768, 65536};
inline constexpr std::size_t thread_counts[] = {1, 2, 4, 8, 16};

/// Pairs that are timed where filling the window takes longer than timing it: Google Benchmark would fill it
/// anew for each guess of how many it takes.
inline constexpr std::int64_t pairs_in_large_window = 100000;

/// Windows from here on are large, blocks.
inline constexpr std::size_t large_window = 4096;

/// How long a batch of a crew takes, seconds: long beside the start of its threads, so that they run
/// together, and short enough that a pool whose one lock costs 1 ms with 16 threads ends too.
inline constexpr double batch_seconds = 0.02;

/// Pairs in the first batch of a crew, which warms the pool and tells how many a batch takes.
inline constexpr std::size_t first_pairs = 100;

/// Warms the crew's pool until a batch lasts as long as it should; sets `pairs`, which the crew's work reads.
inline void settle(crew& workers, std::size_t& pairs) {
  for (int i = 0; i < 3; ++i) {
    double const per_pair = workers.run() / static_cast<double>(pairs);
    pairs = std::clamp<std::size_t>(static_cast<std::size_t>(batch_seconds / per_pair), first_pairs, 1000000);
  }
}

[[nodiscard]] inline setup with_streams(std::size_t count) {
  setup s;
  s.streams = count;
  return s;
}

template <peer P>
void hot_pair(benchmark::State& state, std::size_t bytes) {
  P pool(with_streams(1));
  for (auto _ : state) {
    void* const block = pool.allocate(0, bytes);
    benchmark::DoNotOptimize(block);
    pool.deallocate(0, block, bytes);
  }
}

template <peer P>
void replace_in_window(benchmark::State& state, std::size_t live, size_range sizes) {
  P pool(with_streams(1));
  window<P> blocks(pool, 0, live, sizes);
  for (std::size_t i = 0; i < live / 4; ++i) blocks.step();  // away from the order of the first fill
  for (auto _ : state) blocks.step();
}

template <peer P>
void two_streams(benchmark::State& state) {
  constexpr std::size_t bytes = std::size_t{64} << 10;
  P pool(with_streams(2));
  std::size_t stream = 0;
  for (auto _ : state) {
    void* const block = pool.allocate(stream, bytes);
    benchmark::DoNotOptimize(block);
    pool.deallocate(stream, block, bytes);
    stream ^= 1;
  }
}

template <peer P>
void threads(benchmark::State& state, std::size_t count) {
  P pool(with_streams(count));
  std::vector<std::unique_ptr<window<P>>> windows;
  for (std::size_t t = 0; t < count; ++t) {
    windows.push_back(std::make_unique<window<P>>(pool, t, blocks_per_thread, small_to_256_kib,
                                                  static_cast<unsigned>(t + 1)));
  }
  std::size_t pairs = first_pairs;
  auto const batch = [&](std::size_t t) {
    for (std::size_t i = 0; i < pairs; ++i) windows[t]->step();
  };
  crew workers(count, batch);
  settle(workers, pairs);
  for (auto _ : state) state.SetIterationTime(workers.run() / static_cast<double>(pairs));
}

template <peer P>
void other_thread(benchmark::State& state) {
  constexpr std::size_t bytes = 4096;
  P pool(with_streams(1));
  handover queue;
  std::size_t pairs = first_pairs;
  auto const batch = [&](std::size_t t) {
    for (std::size_t i = 0; i < pairs; ++i) {
      if (t == 0) {
        queue.give(pool.allocate(0, bytes));
      } else {
        pool.deallocate(0, queue.take(), bytes);
      }
    }
  };
  crew giver_and_taker(2, batch);
  settle(giver_and_taker, pairs);
  for (auto _ : state) state.SetIterationTime(giver_and_taker.run() / static_cast<double>(pairs));
}

}  // namespace hot

/// Registers every work above for one pool, as work/parameter/pool.
template <peer P>
void register_hot_paths() {
  std::string pool(P::name);
  if (P::where == place_of_memory::simulated) pool += ".sim";  // tarn on CUDA stands in the same table
  auto const add = [&](std::string const& work, auto run) {
    return benchmark::RegisterBenchmark((work + "/" + pool).c_str(), run);
  };
  for (std::size_t const bytes : hot::pair_bytes) {
    add("hot_pair/" + std::to_string(bytes), [bytes](benchmark::State& s) { hot::hot_pair<P>(s, bytes); });
  }
  for (std::size_t const live : hot::window_blocks) {
    if (!is_pool<P> && live >= hot::large_window) continue;
    auto* const entry = add("window/" + std::to_string(live), [live](benchmark::State& s) {
      hot::replace_in_window<P>(s, live, hot::small_to_mib);
    });
    if (live >= hot::large_window) entry->Iterations(hot::pairs_in_large_window);
  }
  if constexpr (is_pool<P> && !searches<P>) {
    constexpr std::size_t live = std::size_t{1} << 20;
    add("million_live", [](benchmark::State& s) {
      hot::replace_in_window<P>(s, live, hot::small_to_2_kib);
    })->Iterations(hot::pairs_in_large_window);
  }
  add("two_streams", [](benchmark::State& s) { hot::two_streams<P>(s); });
  if constexpr (is_thread_safe<P>) {
    for (std::size_t const count : hot::thread_counts) {
      if (!is_pool<P> && count > 4) continue;
      add("threads/" + std::to_string(count), [count](benchmark::State& s) { hot::threads<P>(s, count); })
          ->UseManualTime()
          ->Iterations(5);
    }
    add("other_thread", [](benchmark::State& s) { hot::other_thread<P>(s); })->UseManualTime()->Iterations(5);
  }
}

void register_host_and_simulated();
void register_cuda();
void register_rmm();
void register_torch();

}  // namespace tarn::bench
