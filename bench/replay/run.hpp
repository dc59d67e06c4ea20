// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replays a trace on a pool: a first pass on a fresh pool (cold), then passes on the same pool (warm). Only
// the pool's calls are timed; blocks are never accessed.

#include <algorithm>
#include <chrono>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "peers/peer.hpp"
#include "replay/figures.hpp"
#include "replay/pass_gate.hpp"
#include "replay/progress.hpp"
#include "replay/trace.hpp"
#include "replay/turns.hpp"

namespace tarn::bench {

namespace detail {

/// Events between two readings of the clock: frequent enough for the progress line, rare enough not to affect
/// the times.
inline constexpr std::size_t chunk_events = 8192;

/// Parts of a pass that several threads play in turn, about as many as the forward and backward passes of a
/// recorded training.
inline constexpr std::size_t turns_per_pass = 48;

/// Events between two samples of a pool whose peak must be queried, besides one at each new peak of live
/// bytes.
inline constexpr std::size_t sample_events = 64;

template <peer P>
void* request(P& pool, event const& e, std::uint64_t& refused) {
  void* block = nullptr;
  try {
    block = pool.allocate(e.stream, e.bytes);
  } catch (std::bad_alloc const&) {
  }
  if (block == nullptr && e.bytes != 0) ++refused;
  return block;
}

template <peer P>
void play(P& pool, std::span<event const> events, std::vector<void*>& blocks, std::uint64_t& refused) {
  for (event const& e : events) {
    if (e.what == operation::allocate) {
      blocks[e.slot] = request(pool, e, refused);
    } else {
      pool.deallocate(e.stream, blocks[e.slot], e.bytes);
    }
  }
}

/// Returns the frees that are missing from the trace: of blocks that the program still held at its end.
inline std::vector<event> missing_frees(trace const& t) {
  std::vector<event> last(t.slots);
  for (event const& e : t.events) last[e.slot] = e;
  std::vector<event> frees;
  for (event e : last) {
    if (e.what != operation::allocate) continue;
    e.what = operation::free;
    frees.push_back(e);
  }
  return frees;
}

/// One pass that samples how much the pool holds.
template <sampled_peer P>
void play_sampled(P& pool, std::span<event const> events, std::vector<void*>& blocks) {
  std::uint64_t live = 0, peak = 0, refused = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    event const& e = events[i];
    play(pool, events.subspan(i, 1), blocks, refused);
    live += e.what == operation::allocate ? e.bytes : -e.bytes;
    if (live > peak || i % sample_events == 0) pool.sample();
    peak = std::max(peak, live);
  }
}

}  // namespace detail

/// Replays `t` `passes` times on one new pool; with several threads, each pass in parts that they play in
/// turn. A refused request is counted, and the replay continues without it.
template <peer P>
[[nodiscard]] figures run(trace const& t, setup made_for, unsigned passes, progress& line,
                          pass_gate const& gate = {}) {
  using clock = std::chrono::steady_clock;
  made_for.streams = std::max<std::size_t>(1, t.stream_numbers.size());
  figures row;
  row.trace = t.name;
  row.pool = P::name;
  row.device = to_text(P::where);
  row.events = t.events.size();
  row.peak_live = t.peak_live;
  row.passes = passes;
  row.threads = made_for.threads;

  std::vector<event> const left_over = detail::missing_frees(t);
  std::vector<void*> blocks(t.slots, nullptr);
  P pool(made_for);
  turns threads(made_for.threads);  // end before the pool
  std::span<event const> const all(t.events);
  std::size_t const part =
      made_for.threads == 1
          ? detail::chunk_events
          : std::clamp<std::size_t>(all.size() / detail::turns_per_pass, 1, detail::chunk_events);
  double const per_event = 1.0 / static_cast<double>(std::max<std::size_t>(1, all.size()));
  usage before = pool.used();
  for (unsigned pass = 0; pass < passes; ++pass) {
    line.begin(row.trace + ", " + row.pool + ", pass " + std::to_string(pass + 1) + " of " +
               std::to_string(passes));
    if constexpr (resets_peak<P>) {
      if (pass != 0) pool.reset_peak();
    }
    gate.pass();
    std::chrono::nanoseconds spent{0};
    for (std::size_t at = 0; at < all.size(); at += part) {
      auto const chunk = all.subspan(at, std::min(part, all.size() - at));
      threads.next([&] {
        auto const start = clock::now();
        detail::play(pool, chunk, blocks, row.out_of_memory);
        spent += clock::now() - start;
      });
      line.show(at, all.size());
    }
    usage const after = pool.used();  // before freeing the remaining blocks, which the program never did
    if (resets_peak<P> && after.peak_reserved) row.peak_reserved_of_pass.push_back(*after.peak_reserved);
    row.ns_per_event_of_pass.push_back(static_cast<double>(spent.count()) * per_event);
    auto const driver_ns = static_cast<double>(after.driver_ns - before.driver_ns) * per_event;
    if (after.driver_calls && pass == 0) row.driver_calls = *after.driver_calls - *before.driver_calls;
    if (after.driver_calls && pass == 1) row.driver_calls_warm = *after.driver_calls - *before.driver_calls;
    if (pass == 0) row.driver_ns_cold = driver_ns;
    if (pass == 1) row.driver_ns_warm = driver_ns;
    detail::play(pool, left_over, blocks, row.out_of_memory);
    before = pool.used();
  }
  std::vector<double> warm = row.ns_per_event_of_pass;
  if (!warm.empty()) {
    row.cold_ns_per_event = warm.front();
    warm.erase(warm.begin());
  }
  if (!warm.empty()) {
    std::sort(warm.begin(), warm.end());
    row.warm_best_ns_per_event = warm.front();
    row.warm_ns_per_event = (warm[(warm.size() - 1) / 2] + warm[warm.size() / 2]) / 2;
  }
  if constexpr (sampled_peer<P>) {
    line.begin(row.trace + ", " + row.pool + ", sampling");
    detail::play_sampled(pool, all, blocks);
    std::uint64_t ignored = 0;
    detail::play(pool, left_over, blocks, ignored);
  }
  row.peak_reserved = pool.used().peak_reserved;
  std::vector<std::uint64_t> const& peaks = row.peak_reserved_of_pass;
  if (!peaks.empty()) row.peak_reserved = *std::max_element(peaks.begin(), peaks.end());
  line.clear();
  return row;
}

}  // namespace tarn::bench
