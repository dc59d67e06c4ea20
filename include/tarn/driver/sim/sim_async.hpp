// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated cudaMallocAsync. Freed blocks are cached and reused in stream order, and return to the device
// at the next synchronisation (release threshold 0, CUDA's default).

#include <cstddef>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/driver/sim/sim_memory.hpp"
#include "tarn/driver/sim/sim_streams.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether a block came from the cache, which determines its cost.
enum class sim_warmth : std::uint8_t { warm, cold };

/// The pools of one device, one for each kind of memory. A freed block serves requests of its own size: at
/// once on the stream that freed it, on other streams once the free has completed. Callers hold the machine's
/// lock.
class sim_async {
 public:
  sim_async(int device, sim_memory& memory, sim_order* order) noexcept
      : device_(device), memory_(memory), order_(order) {}

  sim_code allocate(std::size_t bytes, sim_kind kind, sim_stream const& stream, sim_nanoseconds now, void*& p,
                    sim_warmth& warmth) {
    p = nullptr;
    warmth = sim_warmth::warm;
    if (bytes == 0) return sim_code::ok;
    if (bytes > max_request_bytes) return sim_code::out_of_memory;
    held const size{kind, align_up(bytes, default_alignment * 2)};
    auto const [first, last] = cached_.equal_range(size);
    for (auto it = first; it != last; ++it) {
      kept const& c = it->second;
      if (c.freed_on != stream.id && c.freed_at > now) continue;
      if (order_ != nullptr) order_->learn(stream.agent, c.clock);
      p = c.p;
      live_.emplace(p, size);
      cached_.erase(it);
      return sim_code::ok;
    }
    warmth = sim_warmth::cold;
    sim_code outcome = memory_.allocate(device_, size.second, kind, p);
    if (outcome == sim_code::out_of_memory) {
      trim(now);
      outcome = memory_.allocate(device_, size.second, kind, p);
    }
    if (outcome == sim_code::ok) live_.emplace(p, size);
    return outcome;
  }

  /// @param end  when the work before the free on its stream completes
  sim_code release(void* p, sim_stream const& stream, sim_nanoseconds end) {
    if (p == nullptr) return sim_code::ok;
    auto const it = live_.find(p);
    if (it == live_.end()) return sim_code::invalid_value;
    kept c{p, stream.id, end, {}};
    if (order_ != nullptr) c.clock = order_->clock(stream.agent);
    cached_.emplace(it->second, std::move(c));
    live_.erase(it);
    return sim_code::ok;
  }

  /// Returns cached blocks whose free has completed to the device.
  void trim(sim_nanoseconds now) {
    for (auto it = cached_.begin(); it != cached_.end();) {
      if (it->second.freed_at <= now) {
        (void)memory_.release(it->second.p, it->first.first);
        it = cached_.erase(it);
      } else {
        ++it;
      }
    }
  }

  /// Number of cached blocks.
  [[nodiscard]] std::size_t cached() const noexcept { return cached_.size(); }

 private:
  using held = std::pair<sim_kind, std::size_t>;  ///< with the bytes
  struct kept {
    void* p;
    stream_id freed_on;
    sim_nanoseconds freed_at;
    sim_clock clock;
  };
  int device_;
  sim_memory& memory_;
  sim_order* order_;
  std::unordered_map<void*, held> live_;
  std::multimap<held, kept> cached_;
};

}  // namespace TARN_NAMESPACE::detail
