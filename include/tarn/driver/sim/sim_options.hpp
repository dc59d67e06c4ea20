// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options of a simulated machine, and its counters.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/sim/sim_backing.hpp"
#include "tarn/driver/sim/sim_cost.hpp"
#include "tarn/driver/sim/sim_memory_tool.hpp"

namespace TARN_NAMESPACE {

/// Whether simulated devices support virtual memory management; some virtual GPUs do not.
enum class sim_paging : std::uint8_t { available, missing };

/// Whether simulated devices have memory pools, which cudaMallocAsync needs; some virtual GPUs and Jetson
/// devices do not.
enum class sim_memory_pools : std::uint8_t { available, missing };

/// Whether simulated devices can move pages of managed memory while they run (concurrentManagedAccess); those
/// of Windows and some Jetsons cannot.
enum class sim_migration : std::uint8_t { available, missing };

/// Whether simulated devices can access each other's pages, as over NVLink. Copies between them do not need
/// it.
enum class sim_peers : std::uint8_t { reachable, apart };

/// How simulated pages can be exported. A page handle that can is a memory file of its own: another process
/// that receives the descriptor and imports it into its own machine has the same memory, and keeps it if this
/// process ends.
enum class sim_sharing : std::uint8_t {
  none,
  descriptors,            ///< allocation_handle_type::posix_file_descriptor; Linux only
  descriptors_and_fabric  ///< and fabric, within one machine
};

/// Where a device's memory is.
enum class sim_placement : std::uint8_t {
  discrete,   ///< in a card, apart from the host's
  integrated  ///< it is the host's, as of a Jetson; pinned and managed memory then count for the device, too
};

/// Whether the order checker is active (sim_order.hpp). It costs time and memory per access.
enum class sim_checks : std::uint8_t {
  off,
  stream_order,  ///< host threads share one timeline: a wait by one counts for all
  each_thread    ///< threads must also be ordered, by publish() and observe()
};

/// What the simulated management library reports.
enum class sim_accounting : std::uint8_t {
  reported,
  hidden,  ///< sums, but no processes, as in a container with its own process ids
  missing  ///< there is no library
};

/// The configuration of a simulated machine. The default is one H200, backed by host memory as it is touched.
struct sim_options {
  int devices = 1;
  static constexpr std::size_t usual = ~std::size_t{0};
  std::size_t capacity = 140_GiB;  ///< of each device, bytes
  /// Of it, in use from the start: the context, other processes. Usual is a 140th of the capacity, at most 1
  /// GiB, or the parts below, if they are more. The machine's options() have the number.
  std::size_t taken = usual;
  std::size_t context = 0;  ///< part of `taken`: this process's context and modules, for memory_account()
  std::size_t other_processes = 0;  ///< part of `taken`; so is what take_memory() takes later
  std::size_t set_aside = 0;        ///< part of `taken`, by driver and firmware; the rest is unowned
  sim_accounting accounting = sim_accounting::reported;
  sim_placement placement = sim_placement::discrete;
  /// The host's page cache, which the driver counts as used. An integrated device gives it to who allocates.
  std::size_t page_cache = 0;
  std::size_t host_capacity = 64_GiB;  ///< for pinned and managed memory together
  std::size_t granularity = 2_MiB;     ///< of pages
  sim_backing backing = sim_backing::host_backed;
  sim_paging paging = sim_paging::available;
  sim_memory_pools memory_pools = sim_memory_pools::available;
  sim_migration migration = sim_migration::available;
  sim_peers peers = sim_peers::reachable;
  sim_sharing sharing = sim_sharing::none;  ///< not the default: each handle would take a file descriptor
  sim_checks checks = sim_checks::off;
  sim_tool tool = sim_tool::absent;  ///< attached: a pool's allocations are tracked, which costs time
  sim_costs costs{};
  std::uint64_t seed = 0;            ///< selects a schedule; 0: work takes exactly the requested time
  sim_nanoseconds jitter = 100'000;  ///< with a seed, work may take up to this much longer
  /// With a seed: out of a thousand streams this many are slow, and each of their operations takes up to
  /// `slowness` longer. With a slowness of a second and more they appear never to end until a thread waits.
  unsigned slow_streams = 0;
  sim_nanoseconds slowness = 1'000'000'000;
  sim_nanoseconds late_events = 0;  ///< with a seed, an event may be reached up to this much later
};

namespace detail {
[[nodiscard]] constexpr sim_options resolved(sim_options o) noexcept {
  if (o.taken != sim_options::usual) return o;
  std::size_t const least = o.context + o.other_processes + o.set_aside;
  o.taken = max_of(least, min_of(1_GiB, o.capacity / 140 / 2_MiB * 2_MiB));
  return o;
}
}  // namespace detail

/// Counts of each driver call, and their cost in virtual time.
struct sim_calls {
  std::uint64_t counts[driver_call_count]{};
  std::uint64_t driver_ns = 0;  ///< modelled nanoseconds inside the driver, excluding waits

  [[nodiscard]] std::uint64_t operator[](driver_call call) const noexcept {
    return counts[static_cast<std::size_t>(call)];
  }
  /// All calls.
  [[nodiscard]] std::uint64_t total() const noexcept {
    return sum([](driver_call) { return true; });
  }
  /// Calls that allocate, map or free memory.
  [[nodiscard]] std::uint64_t memory() const noexcept { return sum(changes_memory); }
  /// Calls that order or move something: all but those that only inspect a stream.
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

/// Objects not yet released; all zero if nothing leaked.
struct sim_leaks {
  std::size_t ranges = 0;   ///< reserved address ranges
  std::size_t maps = 0;     ///< mapped pages
  std::size_t handles = 0;  ///< page handles
  std::size_t blocks = 0;   ///< of all kinds, except blocks cached by cudaMallocAsync
  std::size_t streams = 0;
  std::size_t events = 0;
  [[nodiscard]] std::size_t total() const noexcept {
    return ranges + maps + handles + blocks + streams + events;
  }
};

}  // namespace TARN_NAMESPACE
