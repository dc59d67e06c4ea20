// SPDX-License-Identifier: Apache-2.0
#pragma once
// The request that the ladder passes to a growth, and the counters of every growth, by pages or by segments.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pages/growth_notes.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE::detail {

/// Largest physical handle to create for a pool whose live peak is `peak`, bytes. A handle can be remapped
/// only if it is free, so waste grows with the handle's size relative to the pool's, while driver calls
/// become fewer. These bounds keep utilisation at 0.95 or more on the recorded traces above 1 GiB, and the
/// first pass below the driver time of PyTorch's expandable segments. bench/results/frontier.txt has the
/// alternatives: 8 MiB wastes half as much for up to 12 times the driver time. A pool that is still small
/// starts with small handles, which fit anywhere later; with 8 MiB below 2 GiB, small pools would hold up to
/// 4 % less, but the first pass of large ones would take up to 1.7 times the driver time.
[[nodiscard]] constexpr std::size_t handle_limit(std::size_t peak) noexcept {
  return min_of(max_of(align_down(peak / 32, usual_granule), std::size_t{20_MiB}), std::size_t{96_MiB});
}

/// The same where `left` more bytes can be created, which the device or a limit bounds: handles get finer as
/// memory becomes scarce, down to 2 MiB in the last 1.5 GiB, so that little of it is lost in handles that are
/// partly used. With the part 768, all eight recorded traces finish in 1.02 times their peak and seven
/// in 1.01 (`tarn_replay --cap`), for 3 to 36 times the driver time of a first pass with ample memory; 256
/// saves half of that time, and two traces do not finish in 1.02.
[[nodiscard]] constexpr std::size_t handle_limit_near_full(std::size_t left) noexcept {
  return max_of(align_down(left / 768, usual_granule), usual_granule);
}

/// Whether a pool creates the finest handles for a request, since it would otherwise waste too much: a small
/// pool that already reserves its live peak, `peak` bytes with the request. There a handle of the usual size
/// is a large part of the pool. Without this rule `cupy_flow_cg` (0.4 GiB) has a utilisation of 0.87 after 20
/// passes and creeps by 9 %; with it 0.93 and 0.9 %, for twice the driver time of the first pass. Traces that
/// become larger are as before: finer handles from the start would give them up to a third more driver time.
/// Requests up to 1 MiB share handles anyway.
[[nodiscard]] constexpr bool needs_finest_handles(std::size_t peak, std::size_t reserved,
                                                  std::size_t bytes) noexcept {
  return peak < 512_MiB && reserved >= peak && bytes > 1_MiB;
}

/// Whether a block that is assembled from free pieces uses up the free ends and starts of partly used handles
/// before whole handles: in a pool whose live peak, `peak` bytes, is small, since there these parts are a
/// large share, and where less than a 48th of it, `left` bytes, can still be created.
///
/// In small pools: `cupy_flow_cg` and ten traces with its sizes multiplied by 0.62 to 1.55 have a mean
/// utilisation of 0.930 instead of 0.911, and two streams that pass memory on hold 1.108 instead of 1.137
/// times the live peak (six seeds), at the same driver time. With a bound of 512 MiB the first gain is two
/// thirds of that. In every pool, first passes over creeping sizes and requests of random length take 1.7
/// and 1.3 times the driver time and hold as much. Where memory is scarce: seven of the eight recorded traces
/// finish in 1.01 times their peak instead of six, and two in 1.005 instead of one (`tarn_replay --cap`).
[[nodiscard]] constexpr bool uses_up_parts(std::size_t peak, std::size_t left) noexcept {
  return peak < 768_MiB || left < peak / 48;
}

/// How far reserved memory may exceed the live peak before free handles are remapped for a request of
/// `bytes`, in thousandths. Up to 8 MiB it is 5 times as much as for larger requests: a view for each of many
/// blocks of medium size costs more driver calls than it saves memory, and splits handles. Where sizes creep
/// up, as those of an attention cache do, remapping at 9 thousandths took 100 times the driver time, and held
/// up to 4 % more (`tarn_replay --pattern attention_cache`). If it remaps all the same, more often than once
/// for each GiB that it hands out, it gets up to 8 times as much: such a pool would reach the larger bound
/// anyway, and the first pass of `attention_cache` takes a seventh of the driver time. Remaps in relation to
/// handles are no such measure: those of `bert_recompute` are few for what it allocates, and save 2 % of its
/// memory.
///
/// Larger requests get up to 3 times as much where more than 20 are remapped for each GiB, as by a server
/// with requests of random length: its first pass takes 0.76 to 0.95 of the driver time, and no trace or
/// pattern holds over 0.1 % more. From one remap a GiB on, `bert_recompute` holds 3 % more; with 4 times as
/// much the server does, 1 %. With 3 times as much instead of 5 up to 8 MiB, the first pass of
/// `attention_cache` takes 7 to 35 times the driver time.
[[nodiscard]] constexpr std::size_t slack_of(std::size_t bytes, unsigned slack_per_mille,
                                             std::size_t remaps_per_gib) noexcept {
  if (bytes > 8_MiB) {
    std::size_t const often = remaps_per_gib > 20 ? remaps_per_gib - 20 : 0;
    return slack_per_mille * (1 + min_of(often, std::size_t{2}));
  }
  std::size_t const often = remaps_per_gib > 1 ? remaps_per_gib - 1 : 0;
  return slack_per_mille * (5 + min_of(often, std::size_t{3}));
}

/// The handle that a request of `bytes` above 1 MiB shares with others if it is smaller, bytes: 2 MiB up to a
/// live peak of 2 GiB, above that 8 MiB, for blocks that do not fill whole granules of 2 MiB. A solver that
/// allocates boxes of 1 to 8 MiB then creates a quarter fewer handles: the first pass of `amrex_regrid` takes
/// 75 ms of driver time instead of 94, and that of `burst` 67 instead of 93 (six seeds), which holds 0.5 %
/// more; the eight recorded traces hold as much on average. With 8 MiB from 1 GiB on, the first pass of
/// `attention_cache` takes twice the driver time or more; with 16 MiB, `amrex_regrid` takes 65 ms and holds
/// 0.5 % more, and `maskrcnn_varsize` and `prefetch_two_streams` hold 0.4 % more. Blocks of whole granules
/// keep handles of their own, so that the freed half of a checkerboard of them consists of whole handles.
[[nodiscard]] constexpr std::size_t shared_handle(std::size_t peak, std::size_t bytes) noexcept {
  return peak >= 2048_MiB && bytes % usual_granule != 0 ? std::size_t{8_MiB} : usual_granule;
}

/// How many bytes of the common part may stay reserved beside a new segment of `bytes` where free segments
/// are neither joined nor moved: together with it a quarter more than the live peak, which it may raise.
/// Sizes that grow would otherwise leave several times the live peak reserved; with a quarter more, later
/// passes over the eight recorded traces make at most 9 driver calls. With a fifth more, patterns and traces
/// hold up to 7 % of the live peak less, but later passes over `burst` and `streams:4` take 2.7 and 1.6 times
/// the driver time (six seeds), and `cupy_flow_cg`, `streams:2` and `streams:4` still hold 1.31 to 1.34 times
/// their live peak, instead of 1.31 to 1.36.
[[nodiscard]] inline std::size_t most_beside(arena const& a, std::size_t bytes) noexcept {
  std::size_t const live = max_of(a.live_peak, a.live_bytes + bytes);
  std::size_t const most = live + live / 4;
  return most > bytes ? most - bytes : 0;
}

/// How large a new segment should be for a request of `bytes` where free segments are neither joined nor
/// moved. As large as the request; but once more than a sixteenth of the live peak is free in pieces that do
/// not serve it, a sixteenth of the peak, up to 64 MiB, so that blocks of several sizes share a segment. This
/// may raise the reserved memory up to a fifth above the live peak. Without it sizes that creep up leave a
/// segment behind for each size: the first pass of `attention_cache` takes 166 ms of driver time instead of
/// 24 and holds 1.29 instead of 1.23 times the live peak, that of `mesh_refinement` 63 instead of 17 ms,
/// and 1.22 instead of 1.15 times (six seeds). No recorded trace holds or costs more; without the condition
/// on free memory `llama_generate` holds 1.18 instead of 1.12.
[[nodiscard]] inline std::size_t segment_for(arena const& a, part_ref part, std::size_t reserved,
                                             std::size_t bytes) noexcept {
  std::size_t const unused = reserved > a.live_of(part) ? reserved - a.live_of(part) : 0;
  if (unused <= a.peak_of(part) / 16) return bytes;
  std::size_t const live = max_of(a.peak_of(part), a.live_of(part) + bytes);
  std::size_t const most = live + live / 5;
  std::size_t const room = most > reserved ? most - reserved : 0;
  return max_of(bytes, align_down(min_of(min_of(live / 16, std::size_t{64_MiB}), room), usual_granule));
}

struct growth_request {
  domain_ref taker = neutral;
  part_ref part = common;  ///< of the taker
  zone where = zone::smaller;
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
  std::size_t asked = 0;  ///< bytes and alignment of the caller's request, for the error
  std::size_t asked_alignment = 0;
  // The ladder sets the rest for each step. A small pool that grows at once, and a step that only puts memory
  // together, do not exceed may_create; other growth may.
  std::size_t device_bytes = 0;        ///< all memory of the device, 0 if it is not known
  std::size_t may_create = 0;          ///< bytes that may be created before free handles are remapped instead
  std::size_t largest_handle = 2_MiB;  ///< upper bound for handles that are created
  std::size_t least_growth = 2_MiB;    ///< small requests share a handle of this size, if it may be created
  std::size_t segment = 0;  ///< bytes of a new segment, if the source has as many; at least those requested
  bool may_exceed = true;   ///< if remapping does not suffice, create more anyway
  bool may_remap = true;    ///< false: handles are mapped only at their home addresses
  bool uses_up_parts = false;  ///< see the function uses_up_parts()
  bool extend = true;          ///< whether a free range followed by a hole may be extended
};

/// Counts a handle, or a segment, that was taken from the driver.
inline void count_taken(pool_state& s, std::size_t bytes, zone where) noexcept {
  s.reserved += bytes;
  s.reserved_total += bytes;
  s.reserved_peak = max_of(s.reserved_peak, s.reserved);
  ++s.creates;
  ++s.handles;
  s.handles_peak = max_of(s.handles_peak, s.handles);
  pool_part& part = where == zone::smaller ? s.smaller : s.larger;
  part.reserved.increase(static_cast<std::int64_t>(bytes));
  part.handles.increase(1);
}
/// Counts handles or segments that were given back.
inline void count_given(pool_state& s, std::size_t bytes, std::size_t handles, zone where) noexcept {
  s.reserved -= bytes;
  s.released_total += bytes;
  s.destroys += handles;
  s.handles -= handles;
  pool_part& part = where == zone::smaller ? s.smaller : s.larger;
  part.reserved.decrease(static_cast<std::int64_t>(bytes));
  part.handles.decrease(static_cast<std::int64_t>(handles));
}

/// What a pool counts as it grows and shrinks; `reserved` is also read without it. There is one writer, so
/// plain loads are enough.
struct growth_counters : pool_state {
  growth_notes notes;
  std::atomic<std::size_t> reserved_now{0};  ///< `reserved`, for threads without the growth lock

  void hold(growth_lock const& growing, std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    notes.add(growing, growth_change::made, address, bytes);
    count_taken(*this, bytes, where);
    reserved_now.store(reserved, std::memory_order_relaxed);
  }
  void release(growth_lock const& growing, std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    notes.add(growing, growth_change::given_back, address, bytes);
    count_given(*this, bytes, 1, where);
    reserved_now.store(reserved, std::memory_order_relaxed);
  }
};

/// One piece of the memory that a growth holds, for inspection: a handle at its home address, or a segment.
struct held_memory {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  zone where = zone::smaller;  ///< the zone it was taken for
  bool is_handle = false;      ///< otherwise a segment, which is never joined to another or remapped
};

}  // namespace TARN_NAMESPACE::detail
