// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a simulated machine is like, and what it counts.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/driver/driver_call.hpp"
#include "tarn/driver/sim_backing.hpp"
#include "tarn/driver/sim_cost.hpp"
#include "tarn/driver/sim_memory_tool.hpp"

namespace tarn {

/// Whether simulated devices have virtual memory management; some virtual GPUs have none.
enum class sim_paging : std::uint8_t { available, missing };

/// Whether simulated devices can be let at each other's pages, as over NVLink. Copies between them need it not.
enum class sim_peers : std::uint8_t { reachable, apart };

/// Whether the order checker watches (sim_order.hpp). It costs time and memory per access.
enum class sim_checks : std::uint8_t {
  off,
  stream_order,  ///< host threads count as one timeline: what one has waited for, all have
  each_thread    ///< and threads too must be ordered, by publish() and observe()
};

/// What the simulated management library tells.
enum class sim_accounting : std::uint8_t {
  told,
  hidden,  ///< sums, but no processes: as in a container that has process numbers of its own
  missing  ///< there is none
};

/// What a child of fork() can do with a simulated machine.
enum class sim_fork : std::uint8_t {
  refused,  ///< nothing, as with CUDA: each call fails, and the bytes of pages stay its parent's
  works  ///< all, with a machine of its own; needs sim_backing::address_only, as pages with bytes are shared
};

/// What a simulated machine is like. The default is one H200 whose memory is this host's, as far as touched.
struct sim_options {
  int devices = 1;
  std::size_t capacity = 140_GiB;  ///< of each device, bytes
  std::size_t taken = 1_GiB;       ///< of it not free from the start: the context, other processes
  std::size_t context = 0;  ///< of `taken`: this process's context and modules, as memory_account() tells
  std::size_t other_processes = 0;  ///< of `taken`, likewise; what take_memory() takes later is theirs, too
  std::size_t set_aside = 0;        ///< of `taken`, by driver and firmware; what is left of it is nobody's
  sim_accounting accounting = sim_accounting::told;
  std::size_t host_capacity = 64_GiB;  ///< for pinned and managed memory together
  std::size_t granularity = 2_MiB;     ///< of pages
  sim_backing backing = sim_backing::host_backed;
  sim_paging paging = sim_paging::available;
  sim_peers peers = sim_peers::reachable;
  sim_checks checks = sim_checks::off;
  sim_fork forked = sim_fork::refused;
  sim_tool tool = sim_tool::absent;  ///< attached: what a pool hands out is watched, at the price of speed
  sim_costs costs{};
  std::uint64_t seed = 0;            ///< of another schedule; 0: work takes exactly the time asked
  sim_nanoseconds jitter = 100'000;  ///< with a seed, work may take up to this much longer
  /// With a seed: of a thousand streams so many are slow, and each piece of their work takes up to `slowness` longer. With a
  /// second and more they seem never to end, until somebody waits.
  unsigned slow_streams = 0;
  sim_nanoseconds slowness = 1'000'000'000;
  sim_nanoseconds late_events = 0;  ///< with a seed, an event's mark may be reached up to this much later
};

/// How often each driver call was made, and what that cost in virtual time.
struct sim_calls {
  std::uint64_t counts[driver_call_count]{};
  std::uint64_t driver_ns = 0;  ///< modelled nanoseconds inside the driver, waiting not included

  [[nodiscard]] std::uint64_t operator[](driver_call call) const noexcept {
    return counts[static_cast<std::size_t>(call)];
  }
  /// All calls.
  [[nodiscard]] std::uint64_t total() const noexcept {
    return sum([](driver_call) { return true; });
  }
  /// Calls that make, map or give back memory.
  [[nodiscard]] std::uint64_t memory() const noexcept { return sum(changes_memory); }
  /// Calls that order or move something: all but those that only look at a stream.
  [[nodiscard]] std::uint64_t acting() const noexcept {
    return sum([](driver_call call) { return !only_looks(call); });
  }

 private:
  template <class Select>
  [[nodiscard]] std::uint64_t sum(Select const& select) const noexcept {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      if (select(driver_call_at(i))) n += counts[i];
    }
    return n;
  }
};

/// What is not yet given back; all zero means that nothing leaks.
struct sim_leaks {
  std::size_t ranges = 0;   ///< reserved address ranges
  std::size_t maps = 0;     ///< mapped pages
  std::size_t handles = 0;  ///< page handles
  std::size_t blocks = 0;   ///< of all kinds; blocks cached by cudaMallocAsync are no leak
  std::size_t streams = 0;
  std::size_t events = 0;
  [[nodiscard]] std::size_t total() const noexcept {
    return ranges + maps + handles + blocks + streams + events;
  }
};

}  // namespace tarn
