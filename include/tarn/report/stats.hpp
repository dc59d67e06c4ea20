// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory statistics under the names of PyTorch. Reading them changes nothing; the reset functions change
// peaks and totals.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/pool/graph/graph_totals.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/pool_statistics.hpp"

namespace TARN_NAMESPACE {

namespace detail {

inline constexpr auto ask_statistics = [](auto& layer) -> decltype(layer.statistics()) {
  return layer.statistics();
};

template <class Resource>
inline constexpr bool is_tracked = reachable<Resource, decltype(ask_statistics)>;
template <class Resource>
inline constexpr bool is_pooled = reachable<Resource, pool_call::state>;

template <class Resource>
tracked_statistics statistics_of(Resource& memory) {
  static_assert(is_tracked<Resource>, "tarn: this needs exact numbers; add: | tarn::tracked{}");
  return nearest(memory, ask_statistics);
}
template <class Resource>
pool_state state_of(Resource& memory) {
  static_assert(is_pooled<Resource>, "tarn: this needs a pool; add: | tarn::pooled{}");
  return nearest(memory, pool_call::state{});
}

/// What memory_stats() and memory_summary() show, each for all blocks, small ones and large ones.
struct reported_numbers : tracked_statistics {
  pool_state pool;
  graph_totals graphs;
  std::array<counter, 3> reserved_bytes, segment, inactive_split, inactive_split_bytes;

  /// Returns a number of the pool, of the events since the last reset.
  [[nodiscard]] std::int64_t since_reset(pool_number const& n) const noexcept {
    std::size_t const past = n.at_reset != nullptr ? pool.totals_reset.*n.at_reset : 0;
    return static_cast<std::int64_t>(pool.*n.value - past);
  }
  [[nodiscard]] bool has_graphs() const noexcept { return graphs.owners != 0 || graphs.kept != 0; }
};

/// A statistic of memory_stats() that memory_summary() shows, too, in this order.
struct stat_row {
  char const* key;
  char const* label;
  number_unit unit;
  number_in<reported_numbers, std::array<counter, 3>> values;
};
inline constexpr stat_row stat_rows[] = {
    {"allocated_bytes", "Allocated memory", number_unit::bytes, &reported_numbers::allocated_bytes},
    {"active_bytes", "Active memory", number_unit::bytes, &reported_numbers::active_bytes},
    {"requested_bytes", "Requested memory", number_unit::bytes, &reported_numbers::active_requested_bytes},
    {"reserved_bytes", "GPU reserved memory", number_unit::bytes, &reported_numbers::reserved_bytes},
    {"inactive_split_bytes", "Non-releasable memory", number_unit::bytes,
     &reported_numbers::inactive_split_bytes},
    {"allocation", "Allocations", number_unit::count, &reported_numbers::allocations},
    {"active", "Active allocs", number_unit::count, &reported_numbers::active},
    {"segment", "GPU reserved segments", number_unit::count, &reported_numbers::segment},
    {"inactive_split", "Non-releasable allocs", number_unit::count, &reported_numbers::inactive_split},
};

/// A current value of captured graphs, shown while there is any.
struct graph_row {
  char const* key;
  char const* label;  ///< if memory_summary() shows it
  number_in<graph_totals, std::size_t> value;
};
inline constexpr graph_row graph_rows[] = {
    {"graph_memory.owners", nullptr, &graph_totals::owners},
    {"graph_memory.reserved_bytes", "Graph memory", &graph_totals::reserved},
    {"graph_memory.allocated_bytes", "      allocated", &graph_totals::allocated},
    {"graph_memory.kept_bytes", "      kept blocks", &graph_totals::kept},
};

template <class Resource>
reported_numbers read_numbers(Resource& memory) {
  reported_numbers n{statistics_of(memory), {}, {}, {}, {}, {}, {}};
  if constexpr (is_pooled<Resource>) n.pool = state_of(memory);
  if constexpr (reachable<Resource, pool_call::add_graphs>) nearest(memory, pool_call::add_graphs{n.graphs});
  pool_state const& p = n.pool;
  auto const all = [](std::size_t now, std::size_t peak, std::size_t taken, std::size_t given) {
    return counter{static_cast<std::int64_t>(now), static_cast<std::int64_t>(peak),
                   static_cast<std::int64_t>(taken), static_cast<std::int64_t>(given)};
  };
  pool_totals const& past = p.totals_reset;
  n.reserved_bytes = {
      all(p.reserved, p.reserved_peak, p.reserved_total - past.reserved, p.released_total - past.released),
      p.smaller.reserved, p.larger.reserved};
  n.segment = {all(p.handles, p.handles_peak, p.creates - past.creates, p.destroys - past.destroys),
               p.smaller.handles, p.larger.handles};
  n.inactive_split = {p.split.blocks, p.smaller.split.blocks, p.larger.split.blocks};
  n.inactive_split_bytes = {p.split.bytes, p.smaller.split.bytes, p.larger.split.bytes};
  return n;
}

}  // namespace detail

/// Returns the bytes allocated now, as the pool rounds them. Exact. If more bytes were freed than allocated,
/// which only a double free or a free to the wrong resource can cause, it reports misuse and returns 0.
/// O(threads that have counted, at most 32).
template <class Resource>
[[nodiscard]] std::size_t memory_allocated(Resource memory) {
  std::int64_t const bytes = detail::statistics_of(memory).allocated_bytes[0].current;
  if (bytes < 0) [[unlikely]] {
    message<160> const text(
        "memory_allocated: ", static_cast<std::uint64_t>(-bytes),
        " more bytes were freed than allocated; add | tarn::checked{} to find the double free");
    report_misuse(misuse(misuse_kind::double_free, nullptr, text.view()));
    return 0;
  }
  return static_cast<std::size_t>(bytes);
}
/// Returns the maximum of memory_allocated() since the start or the last reset_peak_memory_stats(). Exact.
/// Costs as that.
template <class Resource>
[[nodiscard]] std::size_t max_memory_allocated(Resource memory) {
  return static_cast<std::size_t>(detail::statistics_of(memory).allocated_bytes[0].peak);
}
/// Returns all cached memory of the pool to the driver, as torch.cuda.empty_cache() does. Waits for the
/// streams that freed it. O(streams + free ranges + handles log handles + slots of views): two driver calls
/// for each handle and its places in views.
template <class Resource>
void empty_cache(Resource const& memory, source_location where = source_location::current()) {
  static_assert(detail::is_pooled<Resource>, "tarn: empty_cache needs a pool; add: | tarn::pooled{}");
  memory.empty_cache(where);
}
/// Returns the bytes that the pool holds from the driver now. O(threads + streams).
template <class Resource>
[[nodiscard]] std::size_t memory_reserved(Resource memory) {
  return detail::state_of(memory).reserved;
}
/// Returns the maximum of memory_reserved() since the start or the last reset_peak_memory_stats().
template <class Resource>
[[nodiscard]] std::size_t max_memory_reserved(Resource memory) {
  return detail::state_of(memory).reserved_peak;
}

/// Returns where the nearest pool's memory comes from, as torch.cuda.get_allocator_backend() does: "pages"
/// (mapped pages of cuda_pages), "cudaMalloc", "cudaMallocAsync", "cudaMallocFromPoolAsync, pinned",
/// "cudaMallocFromPoolAsync, managed", "cudaHostAlloc", "cudaHostRegister", "cudaMallocManaged" or "operator
/// new"; "blocks" if a source of your own does not report it. A device_pool returns "pages", and "cudaMalloc"
/// where the device has no virtual memory management or a memory tool is attached: its memory is then
/// segments that are neither extended nor remapped, and sleep() is refused. Of a fallback_to: that of the
/// first resource. A tool is noticed at the first allocation. Static storage. One read of the state;
/// thread-safe.
template <class Resource>
[[nodiscard]] char const* allocator_backend(Resource const& memory) noexcept {
  static_assert(reachable<Resource, pool_call::allocator_backend>,
                "tarn: allocator_backend needs a pool; add: | tarn::pooled{}");
  return nearest(memory, pool_call::allocator_backend{});
}

/// Resets every peak to the current value. Peaks of peak_scopes are unaffected.
template <class Resource>
void reset_peak_memory_stats(Resource memory) {
  nearest(memory, [](auto& l) -> decltype(l.reset_peak_statistics()) { return l.reset_peak_statistics(); });
  if constexpr (detail::is_pooled<Resource>) nearest(memory, pool_call::reset_peaks{});
}
/// Resets the totals ("allocated", "freed") and the counts of calls and refused requests to zero.
template <class Resource>
void reset_accumulated_memory_stats(Resource memory) {
  nearest(memory, [](auto& l) -> decltype(l.reset_accumulated_statistics()) {
    return l.reset_accumulated_statistics();
  });
  if constexpr (detail::is_pooled<Resource>) nearest(memory, pool_call::reset_totals{});
}

/// Free and total bytes of the whole device, as the driver reports.
struct memory_info {
  std::size_t free = 0;
  std::size_t total = 0;
};
/// @throws cuda_error
template <has_driver Resource>
[[nodiscard]] memory_info mem_get_info(Resource const& memory,
                                       source_location where = source_location::current()) {
  memory_info info;
  detail::must_succeed(memory, memory.driver().memory_info(info.free, info.total), where);
  return info;
}

}  // namespace TARN_NAMESPACE
