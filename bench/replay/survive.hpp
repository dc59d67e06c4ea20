// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replays a trace on a device with limited memory, and reports the first refused request. A pool fails by
// what it holds beyond live bytes: rounding, fragments and caches of other streams.

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "peers/ballast.hpp"
#include "peers/peer.hpp"
#include "replay/progress.hpp"
#include "replay/run.hpp"
#include "replay/survival.hpp"
#include "replay/trace.hpp"

namespace tarn::bench {

/// Physical memory is allocated in pages of this size, bytes; less cannot be taken from a device.
inline constexpr std::uint64_t page_of_device = std::uint64_t{2} << 20;

/// Replays `t` once on a new pool under `factor` times its peak. A refused request is skipped and the replay
/// continues.
template <peer P>
[[nodiscard]] survival survive(trace const& t, double factor, progress& line) {
  survival s;
  s.trace = t.name;
  s.pool = P::name;
  s.device = to_text(P::where);
  s.factor = factor;
  constexpr double most = 0x1p60;  // as --capacity
  auto const wanted = static_cast<std::uint64_t>(std::min(static_cast<double>(t.peak_live) * factor, most));
  s.cap = (wanted + page_of_device - 1) / page_of_device * page_of_device;
  s.events = t.events.size();
  line.begin(s.trace + ", " + s.pool + ", capped");
  setup made_for;
  made_for.capacity = s.cap;
  made_for.streams = std::max<std::size_t>(1, t.stream_numbers.size());
  try {
    ballast const filled(P::where == place_of_memory::cuda ? s.cap : 0);
    s.free_at_start = P::where == place_of_memory::cuda ? filled.left_free() : s.cap;
    P pool(made_for);
    std::vector<void*> blocks(t.slots, nullptr);
    std::uint64_t live = 0;
    for (std::size_t i = 0; i < t.events.size(); ++i) {
      event const& e = t.events[i];
      if (i % detail::chunk_events == 0) line.show(i, t.events.size());
      if (e.what == operation::free) {
        if (blocks[e.slot] != nullptr) live -= e.bytes;
        pool.deallocate(e.stream, blocks[e.slot], e.bytes);
        continue;
      }
      std::uint64_t const before = s.refusals;
      blocks[e.slot] = detail::request(pool, e, s.refusals);
      if (blocks[e.slot] != nullptr) live += e.bytes;
      if (s.refusals == before || s.first_refusal != 0) continue;
      s.first_refusal = i + 1;
      s.first_refused_bytes = e.bytes;
      s.live_at_first = live;
    }
    for (event const& e : detail::missing_frees(t)) pool.deallocate(e.stream, blocks[e.slot], e.bytes);
  } catch (std::exception const& error) {
    s.failed = error.what();
  }
  line.clear();
  return s;
}

}  // namespace tarn::bench
