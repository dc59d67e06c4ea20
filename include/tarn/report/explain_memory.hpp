// SPDX-License-Identifier: Apache-2.0
#pragma once
// explain_memory: where did it go? Why nvidia-smi shows 1,072 MiB for a model of 0.0004 MiB.

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/core/config.hpp"
#include "tarn/core/device.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/extremes.hpp"
#include "tarn/core/joined.hpp"
#include "tarn/core/property.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/driver.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif
#include "tarn/report/memory_explanation.hpp"
#include "tarn/report/stats.hpp"

namespace tarn {

/// What a process's context and the modules loaded so far take of a device, bytes; none where nobody tells.
struct context_cost {
  std::optional<std::size_t> bytes;
  char const* how = "as given";  ///< how they were measured; static storage
};

namespace detail {

/// True for what explain_memory() takes the memory of: a stack with a pool, or with `tracked` at least.
template <class T>
inline constexpr bool is_memory = has_driver<T>&& has_properties<T>;
template <class T>
inline constexpr bool is_in_device_memory = false;
template <class T>
requires is_memory<T>
inline constexpr bool is_in_device_memory<T> =
    has_property<T, device_accessible> && !has_property<T, host_accessible>;

/// A table entry, and which layer it is about: the same pool, named twice, counts once.
struct found_share {
  pool_share share;
  void const* layer = nullptr;
};

template <class Memory>
found_share share_of(Memory memory) {
  static_assert(is_pooled<Memory> || is_tracked<Memory>,
                "tarn: explain_memory needs memory that knows what it holds; add: | tarn::pooled{}, or | "
                "tarn::tracked{}");
  found_share found;
  pool_share& p = found.share;
  if constexpr (is_pooled<Memory>) {
    pool_state const s = state_of(memory);
    found.layer = nearest(
        memory,
        [](auto& l) -> decltype(static_cast<void>(l.state()), static_cast<void const*>(&l)) { return &l; });
    p.reserved = s.reserved;
    std::size_t const held = smaller_of(s.live, s.reserved);
    p.awaiting = smaller_of(s.pending, held);  // to the pool a block that is held back is live still
    p.live = held - p.awaiting;
    p.cached = p.reserved - held;
  }
  if constexpr (is_tracked<Memory>) {
    tracked_statistics const t = statistics_of(memory);
    auto const allocated = static_cast<std::size_t>(t.allocated_bytes[0].current);
    auto const requested = static_cast<std::size_t>(t.requested_bytes[0].current);
    if constexpr (!is_pooled<Memory>) {
      found.layer = nearest(
          memory, [](auto& l) -> decltype(static_cast<void>(l.statistics()), static_cast<void const*>(&l)) {
            return &l;
          });
      p.reserved = p.live = allocated;
    }
    // `tracked` may count memory of another source as well (fallback_to): then it does not tell this pool's rounding.
    if (allocated <= p.live) {
      p.requested = requested;
      p.rounding = allocated - requested;
      p.untracked = p.live - allocated;
    }
  }
  return found;
}

/// The driver that a subject names or stands on.
template <class Subject>
decltype(auto) driver_of(Subject const& subject) {
  if constexpr (is_memory<Subject>) {
    return (subject.driver());
  } else {
    return (subject);
  }
}

/// The first subject that names a device: a driver, or memory.
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
    why = "this driver tells no more";
  }
  return {};
}

[[nodiscard]] inline std::optional<std::size_t> if_known(std::size_t bytes) noexcept {
  return bytes == device_account::unknown ? std::nullopt : std::optional<std::size_t>(bytes);
}

/// A device by its number is CUDA's.
template <class Subject>
decltype(auto) as_subject(Subject const& subject) {
#if TARN_HAS_CUDA
  if constexpr (std::is_same_v<Subject, device_id>) {
    return cuda_driver{subject};
  } else
#endif
    return (subject);
}

template <class... Subjects>
memory_explanation explain(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  memory_explanation e;
  e.device = driver.device().value;
  std::vector<void const*> seen;
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
          throw misuse(
              misuse_kind::wrong_device, nullptr,
              "explain_memory: a pool is of another device than the first; call it once for each device");
        }
      }
      if constexpr (is_memory<Subject>) {
        found_share found = share_of(subject);
        for (void const* layer : seen) {
          if (layer == found.layer) return;
        }
        seen.push_back(found.layer);
        found.share.name = joined({"pool ", std::to_string(++pools)});
        (is_in_device_memory<Subject> ? e.pools : e.host_pools).push_back(std::move(found.share));
      }
    }
  };
  (take(subjects), ...);

  status const s = driver.memory_info(e.free, e.total);
  if (!s.ok()) throw cuda_error(s, e.device);
  std::string why;
  device_account account = account_of(driver, why);
  bool const knows_more = account.source[0] != '\0';
  // A management library that tells of less than the driver has means something else (a part of it, or host memory).
  bool const fits = account.total == device_account::unknown || account.total >= e.total;
  if (!fits) account = {};
  e.source = knows_more && fits ? std::string("told by the driver and by ") + account.source
             : fits             ? "told by the driver alone: " + why
                                : "told by the driver alone: the management library means another memory";
  e.gap = account.gap;
  if (account.total != device_account::unknown) e.total = account.total;
  e.set_aside = if_known(account.set_aside);
  e.other_processes = if_known(account.other_processes);
  e.this_process = if_known(account.this_process);
  std::size_t const reserved = e.reserved();
  if (e.this_process && *e.this_process < reserved) {
    e.gap = "the management library says less of this process than its pools hold: not used";
  } else if (e.this_process) {
    e.outside_pools = *e.this_process - reserved;
  }
  if (e.context && e.outside_pools) {
    e.context = smaller_of(*e.context, *e.outside_pools);
    e.other_allocations = *e.outside_pools - *e.context;
  }
  return e;
}

/// Less than any context takes, bytes (they begin at some 100 MiB): a smaller change is other processes' doing.
inline constexpr std::size_t least_context = std::size_t{32} << 20;

template <class... Subjects>
context_cost measure(Subjects const&... subjects) {
  auto const& driver = device_among(subjects...);
  std::string why;
  std::size_t const before = account_of(driver, why).free;
  memory_explanation const e = explain(subjects...);  // sets the context up
  if (e.outside_pools) return {e.outside_pools, "measured before anything was allocated"};
  std::size_t const after = account_of(driver, why).free;
  bool const both = before != device_account::unknown && after != device_account::unknown;
  if (!both || before < after + least_context) return {};
  return {before - after, "measured: what was free before it was set up, less what was after"};
}

}  // namespace detail

/// Whose a device's memory is. Takes, in any order, any number of pools (or other memory with `tracked`) of one device,
/// pools of host memory, a driver (or a device_id, on CUDA) where there is no pool yet, and what measure_context()
/// gave. A pool that is named twice counts once; of a pool over another pool name the lower one alone.
///
///   std::cout << tarn::explain_memory(pool).text();
///
/// The pools' figures are exact; the driver's and NVML's are of a moment later: let nobody allocate meanwhile where the
/// residual is to mean something. Where NVML is missing or does not see the processes, parts are unknown, and said to
/// be. Sets up the device's context if there is none. Cost: NVML is started and ended, 10 to 100 ms; nothing waits for
/// the device. Safe from any thread.
/// @throws cuda_error  the driver does not even tell what is free
/// @throws misuse      a pool is of another device: call it once for each
template <class... Subjects>
[[nodiscard]] memory_explanation explain_memory(Subjects const&... subjects) {
  static_assert(sizeof...(Subjects) != 0,
                "tarn: explain_memory needs a device; pass a pool, or a driver: "
                "tarn::cuda_driver{}");
  return detail::explain(detail::as_subject(subjects)...);
}

/// What this process's context and its modules take of the device; takes what explain_memory() takes. Call it where
/// the program begins, before anything but those pools has been allocated, and hand it to explain_memory(), which then
/// tells other allocations apart. Modules are loaded when they are first used: later ones count as other allocations.
///
/// It is what the management library says of the process, less what the pools hold; or, where that does not see the
/// process (in a container), what is free no more once the context is set up: then it must be the first call of the
/// program on the device, and what others take in that fraction of a second counts as the context's. Else unknown.
/// Cost and errors as explain_memory(), twice.
template <class... Subjects>
[[nodiscard]] context_cost measure_context(Subjects const&... subjects) {
  return detail::measure(detail::as_subject(subjects)...);
}

}  // namespace tarn
