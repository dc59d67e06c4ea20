// SPDX-License-Identifier: Apache-2.0
#pragma once
// The costs of simulated GPU calls, in nanoseconds of virtual time. Measured on one H200 (bench/results)
// unless noted otherwise.

#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"

namespace TARN_NAMESPACE {

/// A duration in virtual time, nanoseconds.
using sim_nanoseconds = std::uint64_t;

/// A cost that depends on size: linear between measured points, constant below the first, with the last slope
/// beyond the last.
struct sim_cost_curve {
  struct point {
    std::size_t bytes;
    sim_nanoseconds ns;
  };
  point points[4];

  [[nodiscard]] constexpr sim_nanoseconds at(std::size_t bytes) const noexcept {
    if (bytes <= points[0].bytes) return points[0].ns;
    std::size_t i = 1;
    while (i < 3 && bytes > points[i].bytes) ++i;
    point const a = points[i - 1];
    point const b = points[i];
    double const slope =
        (static_cast<double>(b.ns) - static_cast<double>(a.ns)) / static_cast<double>(b.bytes - a.bytes);
    double const ns = static_cast<double>(a.ns) + slope * static_cast<double>(bytes - a.bytes);
    return ns <= 0 ? 0 : static_cast<sim_nanoseconds>(ns);
  }
};

/// The costs of all calls. Change a field to model another machine; sim_costs::nothing() makes every call
/// free, so that only the test advances time.
struct sim_costs {
  // Streams and events. Event costs are for one thread; eight concurrent threads pay 2,453 ns per record.
  sim_nanoseconds look = 30;           ///< cudaStreamGetId, cudaStreamIsCapturing; estimated
  sim_nanoseconds create_event = 115;  ///< create and destroy together: 230
  sim_nanoseconds destroy_event = 115;
  sim_nanoseconds record_event = 249;
  sim_nanoseconds query_event = 263;
  sim_nanoseconds wait_event = 231;
  sim_nanoseconds synchronize = 1'000;    ///< excluding the wait itself; estimated
  sim_nanoseconds create_stream = 5'000;  ///< estimated, as is the next
  sim_nanoseconds destroy_stream = 5'000;
  sim_nanoseconds launch = 3'900;       ///< host time to launch an empty kernel
  sim_nanoseconds copy = 2'000;         ///< host time to enqueue a copy or fill; estimated
  sim_nanoseconds memory_info = 5'000;  ///< estimated, as is the next
  sim_nanoseconds memory_account = 20'000'000;

  // Pages, per handle. Mapping includes both cuMemMap and cuMemSetAccess.
  sim_nanoseconds page_granularity = 100;  ///< estimated
  sim_cost_curve reserve_range{{{2_MiB, 5'000}, {1_GiB, 10'000}, {140_GiB, 40'000}, {1_TiB, 77'000}}};
  sim_nanoseconds release_range = 5'000;  ///< estimated
  sim_cost_curve create_pages{{{2_MiB, 9'800}, {20_MiB, 10'400}, {200_MiB, 13'000}, {1_GiB, 17'000}}};
  sim_cost_curve destroy_pages{{{2_MiB, 15'000}, {20_MiB, 16'000}, {200_MiB, 76'000}, {1_GiB, 338'000}}};
  sim_cost_curve map_pages{{{2_MiB, 25'600}, {20_MiB, 26'700}, {200_MiB, 34'700}, {1_GiB, 61'800}}};
  sim_nanoseconds share_pages = 25'000;  ///< one more cuMemSetAccess; estimated
  sim_nanoseconds export_pages = 5'000;  ///< estimated, as is the next
  sim_nanoseconds import_pages = 10'000;
  sim_cost_curve unmap_pages{{{2_MiB, 16'500}, {20_MiB, 16'500}, {200_MiB, 20'000}, {1_GiB, 29'000}}};

  // Blocks.
  sim_cost_curve malloc_device{{{2_MiB, 58'000}, {64_MiB, 70'000}, {1_GiB, 123'000}, {8_GiB, 509'000}}};
  sim_cost_curve free_device{{{2_MiB, 40'000}, {64_MiB, 70'000}, {1_GiB, 371'000}, {8_GiB, 2'565'000}}};
  sim_nanoseconds malloc_async_warm = 335;  ///< with its free: 670
  sim_nanoseconds free_async = 335;
  sim_cost_curve malloc_async_cold{{{1_MiB, 10'000}, {64_MiB, 88'000}, {1_GiB, 982'000}, {8_GiB, 8'133'000}}};
  sim_cost_curve malloc_pinned{
      {{4_KiB, 2'000}, {1_MiB, 449'000}, {1_GiB, 460'000'000}, {8_GiB, 3'680'000'000}}};
  sim_cost_curve free_pinned{{{4_KiB, 1'000}, {1_MiB, 113'000}, {1_GiB, 116'000'000}, {8_GiB, 928'000'000}}};
  /// The rest of registered_host's 168 ms per GiB once the host has touched the pages; estimated, as is the
  /// next.
  sim_cost_curve register_host{{{4_KiB, 2'000}, {1_MiB, 60'000}, {1_GiB, 60'000'000}, {8_GiB, 480'000'000}}};
  sim_cost_curve unregister_host{
      {{4_KiB, 1'000}, {1_MiB, 30'000}, {1_GiB, 30'000'000}, {8_GiB, 240'000'000}}};
  sim_nanoseconds malloc_managed = 60'000;  ///< estimated from cudaMalloc, as is the next
  sim_nanoseconds free_managed = 40'000;

  // Device work, bytes per nanosecond (GB/s); 0 takes no time.
  // The first two are from the data sheet's 4.8 TB/s of HBM3e: a copy reads and writes each byte, a fill
  // writes it.
  double on_device_rate = 2'000;
  double fill_rate = 4'000;
  double pinned_rate = 53;  ///< host to device or back, chunks of 4 MiB
  /// between devices with peer access: one direction of NVLink 4, from its data sheet
  double peer_rate = 450;
  double staged_rate = 25;  ///< between devices without it, through the host: half of pinned_rate; estimated
  double pageable_rate = 8.4;

  /// Every call is free, and device work other than kernels takes no time.
  [[nodiscard]] static constexpr sim_costs nothing() noexcept {
    constexpr sim_cost_curve level{{{1, 0}, {2, 0}, {3, 0}, {4, 0}}};
    sim_costs c;
    c.look = c.create_event = c.destroy_event = c.record_event = c.query_event = c.wait_event = 0;
    c.synchronize = c.create_stream = c.destroy_stream = c.launch = c.copy = c.memory_info = 0;
    c.memory_account = 0;
    c.export_pages = c.import_pages = 0;
    c.page_granularity = c.share_pages = c.release_range = c.malloc_async_warm = c.free_async = 0;
    c.malloc_managed = c.free_managed = 0;
    c.reserve_range = c.create_pages = c.destroy_pages = c.map_pages = c.unmap_pages = level;
    c.malloc_device = c.free_device = c.malloc_async_cold = c.malloc_pinned = c.free_pinned = level;
    c.register_host = c.unregister_host = level;
    c.on_device_rate = c.fill_rate = c.pinned_rate = c.peer_rate = c.staged_rate = c.pageable_rate = 0;
    return c;
  }
};

namespace detail {
/// Returns the nanoseconds to transfer `bytes` at a rate in bytes per nanosecond; 0 for a rate of 0.
[[nodiscard]] constexpr sim_nanoseconds sim_transfer(std::size_t bytes, double rate) noexcept {
  return rate <= 0 ? 0 : static_cast<sim_nanoseconds>(static_cast<double>(bytes) / rate);
}
}  // namespace detail

}  // namespace TARN_NAMESPACE
