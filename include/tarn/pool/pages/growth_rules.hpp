// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules of the growth: which handles and segments a pool creates, and when it remaps free handles
// instead. What each rule saves on recorded traces, and what other numbers cost, is in bench/README.md, "The
// numbers of the growth".

#include <cstddef>

#include "tarn/core/bytes.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

/// Largest physical handle to create for a pool whose live peak is `peak`, bytes. A handle can be
/// remapped only if it is free, so waste grows with the handle's size relative to the pool's, while
/// driver calls become fewer. A pool that is still small starts with small handles, which fit anywhere
/// later.
[[nodiscard]] constexpr std::size_t handle_limit(std::size_t peak) noexcept {
  return min_of(max_of(align_down(peak / 32, usual_granule), std::size_t{20_MiB}), std::size_t{96_MiB});
}

/// The same where `left` more bytes can be created, which the device or a limit bounds: handles get finer
/// as memory becomes scarce, down to 2 MiB in the last 1.5 GiB, so that little of it is lost in handles
/// that are partly used.
[[nodiscard]] constexpr std::size_t handle_limit_near_full(std::size_t left) noexcept {
  return max_of(align_down(left / 768, usual_granule), usual_granule);
}

/// Whether a pool creates the finest handles for a request, since it would otherwise waste too much: a
/// small pool that already reserves its live peak, `peak` bytes with the request. There a handle of the
/// usual size is a large part of the pool. Requests up to class_limit share handles anyway.
[[nodiscard]] constexpr bool needs_finest_handles(std::size_t peak, std::size_t reserved,
                                                  std::size_t bytes) noexcept {
  return peak < 512_MiB && reserved >= peak && bytes > class_limit;
}

/// Whether a block that is assembled from free pieces uses up the free ends and starts of partly used
/// handles before whole handles: in a pool whose live peak, `peak` bytes, is small, since there these
/// parts are a large share; where less than a 48th of it, `left` bytes, can still be created; and for a
/// request above 32 MiB, `bytes`, with which the live peak does not rise: what it makes the pool reserve,
/// later passes over the same work keep.
[[nodiscard]] constexpr bool uses_up_ends(std::size_t peak, std::size_t left, std::size_t bytes,
                                          bool raises_peak) noexcept {
  return peak < 768_MiB || left < peak / 48 || (!raises_peak && bytes > 32_MiB);
}

/// How far reserved memory may exceed the live peak before free handles are remapped for a request of
/// `bytes`, in thousandths. Up to 8 MiB it is 5 times as much as for larger requests: a view for each of
/// many blocks of medium size costs more driver calls than it saves memory, and splits handles. A pool
/// that remaps all the same, more often than once for each GiB that it hands out, gets up to 8 times as
/// much, since it would reach the larger bound anyway. A request above 1 MiB with which the live peak does
/// not rise gets once as much, and up to 8 times in such a pool: what it makes the pool reserve stays free at
/// the peak. Requests above 8 MiB get up to 3 times as much where more than 20 are remapped for each GiB.
[[nodiscard]] constexpr std::size_t slack_of(std::size_t bytes, unsigned slack_per_mille,
                                             std::size_t remaps_per_gib, bool raises_peak) noexcept {
  if (bytes > 8_MiB) {
    std::size_t const often = remaps_per_gib > 20 ? remaps_per_gib - 20 : 0;
    return slack_per_mille * (1 + min_of(often, std::size_t{2}));
  }
  std::size_t const often = remaps_per_gib > 1 ? remaps_per_gib - 1 : 0;
  std::size_t const least = raises_peak || bytes <= class_limit ? 5 : 1;
  return slack_per_mille * min_of(least + often, std::size_t{8});
}

/// The handle that a request of `bytes` above 1 MiB shares with others if it is smaller, bytes: 2 MiB up
/// to a live peak of 2 GiB, above that 8 MiB, for blocks that do not fill whole granules of 2 MiB. Blocks
/// of whole granules keep handles of their own, so that the freed half of a checkerboard of them consists
/// of whole handles.
[[nodiscard]] constexpr std::size_t shared_handle(std::size_t peak, std::size_t bytes) noexcept {
  return peak >= 2048_MiB && bytes % usual_granule != 0 ? std::size_t{8_MiB} : usual_granule;
}

/// How many bytes of the common part may stay reserved beside a new segment of `bytes` where free
/// segments are neither joined nor moved: together with it a quarter more than the live peak, which it
/// may raise. Sizes that grow would otherwise leave several times the live peak reserved.
[[nodiscard]] inline std::size_t most_beside(arena const& a, std::size_t bytes) noexcept {
  std::size_t const live = max_of(a.live_peak, a.live_bytes + bytes);
  std::size_t const most = live + live / 4;
  return most > bytes ? most - bytes : 0;
}

/// How large a new segment should be for a request of `bytes` where free segments are neither joined nor
/// moved. As large as the request; but once more than a sixteenth of the live peak is free in pieces that
/// do not serve it, a sixteenth of the peak, up to 64 MiB, so that blocks of several sizes share a
/// segment. This may raise the reserved memory up to a fifth above the live peak.
[[nodiscard]] inline std::size_t segment_for(arena const& a, part_ref part, std::size_t reserved,
                                             std::size_t bytes) noexcept {
  std::size_t const unused = reserved > a.live_of(part) ? reserved - a.live_of(part) : 0;
  if (unused <= a.peak_of(part) / 16) return bytes;
  std::size_t const live = max_of(a.peak_of(part), a.live_of(part) + bytes);
  std::size_t const most = live + live / 5;
  std::size_t const room = most > reserved ? most - reserved : 0;
  return max_of(bytes, align_down(min_of(min_of(live / 16, std::size_t{64_MiB}), room), usual_granule));
}

}  // namespace TARN_NAMESPACE::detail
