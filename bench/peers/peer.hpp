// SPDX-License-Identifier: Apache-2.0
#pragma once
// The interface that a memory pool must offer to be replayed and timed: one adapter per pool, one file per
// adapter, chosen at compile time, so that only the pool itself is measured.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tarn/pool/options.hpp"

namespace tarn::bench {

/// Where a pool's memory is.
enum class place_of_memory : std::uint8_t { host, simulated, cuda };

[[nodiscard]] constexpr std::string_view to_text(place_of_memory where) noexcept {
  switch (where) {
    case place_of_memory::host:
      return "host";
    case place_of_memory::simulated:
      return "sim";
    case place_of_memory::cuda:
      return "cuda";
  }
  return "";
}

/// The parameters that a pool is created with.
struct setup {
  std::uint64_t capacity = 0;  ///< bytes of the device; 0: the real device, or the host without a limit
  std::size_t streams = 1;     ///< stream indices are below this
  unsigned threads = 1;        ///< that call the pool, in turn
  pooled options = {};         ///< of a pool of tarn's
};

/// What a pool reports about itself; unknown values are empty.
struct usage {
  std::optional<std::uint64_t> peak_reserved;  ///< maximum bytes held from the driver or system so far
  std::optional<std::uint64_t> driver_calls;   ///< calls that allocate, free, map or order, so far
  std::uint64_t driver_ns = 0;  ///< modelled nanoseconds of those calls; 0 where calls are real
};

/// An adapter. `stream` is an index below setup::streams. A refused request returns null or throws
/// std::bad_alloc. Deallocation of null does nothing; deallocation passes the bytes of the allocation again.
template <class P>
concept peer = std::constructible_from<P, setup const&> &&
               requires(P& pool, P const& seen, std::size_t stream, void* block, std::size_t bytes) {
                 { P::name } -> std::convertible_to<std::string_view>;
                 { P::about } -> std::convertible_to<std::string_view>;
                 { P::where } -> std::convertible_to<place_of_memory>;
                 { pool.allocate(stream, bytes) } -> std::same_as<void*>;
                 { pool.deallocate(stream, block, bytes) } noexcept;
                 { seen.used() } -> std::same_as<usage>;
               };

/// True unless the adapter declares `thread_safe = false`.
template <class P>
inline constexpr bool is_thread_safe = true;
template <class P>
  requires requires { P::thread_safe; }
inline constexpr bool is_thread_safe<P> = P::thread_safe;

/// False for an adapter that declares `pools = false`: it calls the driver for every block, or for most, and
/// is timed with less work.
template <class P>
inline constexpr bool is_pool = true;
template <class P>
  requires requires { P::pools; }
inline constexpr bool is_pool<P> = P::pools;

/// An adapter of a pool that holds a block back until its uses on other streams end. `stream` is the stream
/// that used it.
template <class P>
concept records_uses = peer<P> && requires(P& pool, std::size_t stream, void* block, std::size_t bytes) {
  pool.record_stream(stream, block, bytes);
};

/// An adapter that gets its peak only from the system, which is too slow while timing: it is sampled in one
/// more pass, which is not timed.
template <class P>
concept sampled_peer = peer<P> && requires(P& pool) { pool.sample(); };

/// An adapter that can reset usage::peak_reserved to what the pool holds now, so that each pass of a replay
/// has its own peak.
template <class P>
concept resets_peak = peer<P> && requires(P& pool) { pool.reset_peak(); };

}  // namespace tarn::bench
