// SPDX-License-Identifier: Apache-2.0
#pragma once
// explain_memory: accounts for a device's memory, for example why nvidia-smi shows 1,072 MiB for a model of
// 0.0004 MiB.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/core/text.hpp"
#include "tarn/driver/default_driver.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/report/memory_explanation.hpp"
#include "tarn/report/stats.hpp"

namespace TARN_NAMESPACE {

/// Device memory taken by a process's context and the modules loaded so far, bytes; empty if unknown.
struct context_cost {
  std::optional<std::size_t> bytes;
  char const* how = "as given";  ///< how it was measured; static storage
};

namespace detail {

/// Whether explain_memory() accepts it as memory: a stack with a pool, or at least with `tracked`.
template <class T>
inline constexpr bool is_memory = has_driver<T> && has_properties<T>;
template <class T>
inline constexpr bool is_in_device_memory = requires {
  typename T::properties;
  requires has_property<T, device_accessible> && !has_property<T, host_accessible>;
};

/// A table entry, and what it describes: the same pool, passed twice, counts once.
struct found_share {
  pool_share share;
  pools_of_stack layers;
  device_id device;
  bool is_in_device_memory = false;
};

template <class Layer>
[[nodiscard]] found_share found_in(Layer& layer) {
  found_share found{.share = {},
                    .layers = {},
                    .device = layer.driver().device(),
                    .is_in_device_memory = detail::is_in_device_memory<Layer>};
  if constexpr (std::invocable<pool_call::list_pools const&, Layer&>) {
    pool_call::list_pools{found.layers}(layer);
  } else {
    found.layers.pools.push_back(&layer);
  }
  return found;
}

/// Describes each of the nearest pools.
struct shares_of_pools {
  std::vector<found_share>& all;
  static constexpr auto crosses = crossing::each;
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<void>(pool_state(l.state()))) {
    pool_state const s = l.state();
    pool_share& p = all.emplace_back(found_in(l)).share;
    if constexpr (reachable<L, pool_call::allocator_backend>) p.backend = allocator_backend(l);
    std::size_t const held = min_of(s.live, s.reserved);
    p.reserved = s.reserved;
    p.deferred = min_of(s.deferred, held);  // to the pool, a deferred block is still live
    p.live = held - p.deferred;
    p.cached = p.reserved - held;
  }
};

template <class Memory>
std::vector<found_share> shares_of(Memory memory) {
  static_assert(is_pooled<Memory> || is_tracked<Memory>,
                "tarn: explain_memory needs a resource that counts its bytes; add: | tarn::pooled{}, or | "
                "tarn::tracked{}");
  std::vector<found_share> found;
  if constexpr (is_pooled<Memory>) nearest(memory, shares_of_pools{found});
  if constexpr (is_tracked<Memory>) {
    tracked_statistics const t = statistics_of(memory);
    std::size_t const allocated = positive(t.allocated_bytes[0].current);
    // While threads count, each is read by itself.
    std::size_t const requested = min_of(positive(t.requested_bytes[0].current), allocated);
    if constexpr (!is_pooled<Memory>) {
      found.push_back(nearest(
          memory,
          [](auto& l) -> decltype(static_cast<void>(l.statistics()), found_in(l)) { return found_in(l); }));
      found[0].share.reserved = found[0].share.live = allocated;
    }
    // `tracked` may also count memory of another source or pool (fallback_to); then it does not show this
    // pool's rounding.
    pool_share& p = found[0].share;
    bool const others = routes_above_pool<layer_behind<Memory>>() || found[0].layers.has_other_blocks;
    if (!others && allocated <= p.live) {
      p.requested = requested;
      p.rounding = allocated - requested;
      p.untracked = p.live - allocated;
    }
  }
  return found;
}

/// Returns the driver that a subject is or stands on.
template <class Subject>
decltype(auto) driver_of(Subject const& subject) {
  if constexpr (is_memory<Subject>) {
    return (subject.driver());
  } else {
    return (subject);
  }
}

/// Returns the first subject that identifies a device: a driver, or memory.
template <class First, class... Rest>
decltype(auto) device_among(First const& first, Rest const&... rest) {
  if constexpr (is_memory<First> || stream_driver<First>) {
    return driver_of(first);
  } else {
    static_assert(sizeof...(Rest) != 0,
                  "tarn: explain_memory needs a device; pass a pool, or a driver: tarn::cuda_driver{}");
    return device_among(rest...);
  }
}

template <class Driver>
device_account account_of(Driver const& driver, std::string& why) {
  device_account account;
  if constexpr (accounting_driver<Driver>) {
    status const s = driver.memory_account(account);
    if (s.ok()) return account;
    why = std::string(s.name) + " (" + s.call + ")";
  } else {
    why = "this driver reports no more";
  }
  return {};
}

[[nodiscard]] inline std::optional<std::size_t> if_known(std::size_t bytes) noexcept {
  return bytes == device_account::unknown ? std::nullopt : std::optional<std::size_t>(bytes);
}

/// A device_id denotes a device of the default driver.
template <class Subject>
decltype(auto) as_subject(Subject const& subject) {
  if constexpr (std::is_same_v<Subject, device_id>) {
    return default_driver<Subject>{subject};
  } else {
    return (subject);
  }
}

template <class... Subjects>
memory_explanation explain(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  memory_explanation e;
  e.device = driver.device().value;
  std::vector<void const*> seen;
  auto const is_seen = [&](void const* pool) {
    return std::find(seen.begin(), seen.end(), pool) != seen.end();
  };
  std::size_t pools = 0;
  auto const take = [&]<class Subject>(Subject const& subject) {
    if constexpr (std::is_same_v<Subject, context_cost>) {
      e.context = subject.bytes;
      e.context_how = subject.how;
    } else {
      static_assert(is_memory<Subject> || stream_driver<Subject>,
                    "tarn: explain_memory takes pools, drivers and the result of measure_context()");
      bool const elsewhere = driver_of(subject).device().value != e.device;
      if constexpr (!is_memory<Subject> || is_in_device_memory<Subject>) {
        if (elsewhere) {
          throw misuse(misuse_kind::wrong_device, nullptr,
                       "explain_memory: the pools belong to different devices; call it once for each device");
        }
      }
      if constexpr (is_memory<Subject>) {
        for (found_share& found : shares_of(subject)) {
          if (std::any_of(found.layers.pools.begin(), found.layers.pools.end(), is_seen)) continue;
          seen.insert(seen.end(), found.layers.pools.begin(), found.layers.pools.end());
          if (found.is_in_device_memory && found.device.value != e.device) continue;
          found.share.name = concat({"pool ", std::to_string(++pools)});
          (found.is_in_device_memory ? e.pools : e.host_pools).push_back(std::move(found.share));
        }
      }
    }
  };
  (take(subjects), ...);
  other_pools<std::remove_cvref_t<decltype(driver)>>::for_each_reserved(
      driver, [&](void const* pool, std::size_t bytes) {
        if (is_seen(pool)) return;
        e.other_pools += bytes;
        ++e.other_pool_count;
      });

  must_succeed(driver, driver.memory_info(e.free, e.total));
  std::string why;
  device_account account = account_of(driver, why);
  bool const knows_more = account.source[0] != '\0';
  // A management library that reports less total memory than the driver means something else (a part of it,
  // or host memory).
  bool const fits = account.total == device_account::unknown || account.total >= e.total;
  if (!fits) account = {};
  e.source = knows_more && fits ? std::string("reported by the driver and by ") + account.source
             : fits             ? "reported by the driver only: " + why
                    : "reported by the driver only: the management library describes a different memory";
  e.gap = account.gap;
  if (account.total != device_account::unknown) e.total = account.total;
  e.set_aside = if_known(account.set_aside);
  e.other_processes = if_known(account.other_processes);
  e.this_process = if_known(account.this_process);
  std::size_t const reserved = e.reserved();
  if (e.this_process && *e.this_process < reserved) {
    e.gap = "the management library reports less for this process than its pools reserve: not used";
  } else if (e.this_process) {
    e.outside_pools = *e.this_process - reserved;
  }
  if (e.context && e.outside_pools) {
    e.context = min_of(*e.context, *e.outside_pools);
    e.other_allocations = *e.outside_pools - *e.context;
  }
  return e;
}

/// Less than any context uses, bytes (contexts start at some 100 MiB): a smaller change is due to other
/// processes.
inline constexpr std::size_t least_context = std::size_t{32} << 20;

template <class... Subjects>
context_cost measure(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  std::string why;
  std::size_t const before = account_of(driver, why).free;
  memory_explanation const e = explain(subjects...);  // creates the context
  if (e.outside_pools) return {e.outside_pools, "measured before anything was allocated"};
  std::size_t const after = account_of(driver, why).free;
  bool const both = before != device_account::unknown && after != device_account::unknown;
  if (!both || before < after + least_context) return {};
  return {before - after, "measured: free memory before its creation minus free memory after"};
}

}  // namespace detail

/// Accounts for a device's memory. Takes, in any order, any number of pools (or other memory with `tracked`)
/// of one device, pools of host memory, a driver or a device_id if there is no pool yet, and the result of
/// measure_context(). A pool passed twice counts once; of a pool over another pool pass only the lower one.
/// Of memory that falls back to other pools, each pool is a row, but for those of another device.
/// Pools of the process on the device that are not passed are one row, but for those over fallback_to, part
/// of whose memory may be the host's.
///
///   std::cout << tarn::explain_memory(pool);
///
/// The pools' figures are exact; those of the driver and NVML are taken a moment later: the residual is
/// meaningful only if nothing is allocated meanwhile. If NVML is missing or does not see the processes, parts
/// are unknown and reported as such. Creates the device's context if there is none. Cost: NVML is initialised
/// and shut down, 10 to 100 ms; it does not wait for the device, but for threads that grow the pools that are
/// passed. Thread-safe.
/// @throws cuda_error  the driver does not report free memory
/// @throws misuse      a pool belongs to another device: call it once per device
template <class... Subjects>
[[nodiscard]] memory_explanation explain_memory(Subjects const&... subjects) {
  static_assert(sizeof...(Subjects) != 0,
                "tarn: explain_memory needs a device; pass a pool, or a driver: "
                "tarn::cuda_driver{}");
  return detail::explain(detail::as_subject(subjects)...);
}

/// Measures the device memory of this process's context and modules; takes the arguments of explain_memory().
/// Call it at program start, before anything but those pools has allocated, and pass the result to
/// explain_memory(), which then reports other allocations separately. Modules are loaded on first use: later
/// ones count as other allocations.
///
/// The result is what the management library reports for the process minus what the pools hold. If the
/// library does not see the process (in a container), it is the decrease of free memory while the context is
/// created: then this must be the program's first call on the device, and what other processes allocate in
/// that fraction of a second is included. Otherwise unknown. Cost and errors as explain_memory(), twice.
template <class... Subjects>
[[nodiscard]] context_cost measure_context(Subjects const&... subjects) {
  return detail::measure(detail::as_subject(subjects)...);
}

}  // namespace TARN_NAMESPACE
