// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stream order: which stream may reuse which memory without synchronisation. Each stream has a domain: the
// free memory that its own later work may take at once, with no driver call. Frees carry the domain's epoch;
// one event, recorded only when another stream is short of memory, covers every epoch up to now.
//
//   stream A              pool                             stream B
//   kernel uses p
//   deallocate(A, p) ---> p is free in A's domain, epoch 7
//                         A allocates: p at once, no driver call
//                         B allocates and has no free memory left:
//                           record event on A   (epoch 7 is covered, frees from now on are epoch 8)
//                           already complete?  -> p is neutral: every stream may take it
//                           else B waits for the event (on the device) -> p joins B's domain
//
// From CUDA 12.5 on, one event marks the work of all streams of the device (order/mark_work.hpp). Blocks of a
// run that is partly in use stay with their stream until it is swept (order/reclaim.hpp).

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/arena/range_index.hpp"
#include "tarn/pool/arena/run.hpp"

namespace TARN_NAMESPACE::detail {

/// The identity of "no stream": memory that nothing on the device uses (allocate_sync).
inline constexpr stream_id neutral_id = ~stream_id{0};

/// The identity that memory of a graph capture is kept under (pool/graph/): no stream has one with these two
/// bits, see cuda_driver. Nothing is recorded on it and no other stream takes its memory. When the capture
/// ends, its memory becomes neutral.
[[nodiscard]] constexpr stream_id captured_id(std::uint64_t number) noexcept {
  return stream_id{1} << 62 | number;
}
[[nodiscard]] constexpr bool is_captured_id(stream_id id) noexcept {
  return id >> 62 == 1;
}

struct stream_domain {
  stream_id id = 0;
  stream_ref stream;
  part_ref part = common;  ///< whose memory it has; a stream has a domain in each part that it uses
  domain_ref neutral_domain = neutral;  ///< that of its part
  domain_ref next_in_part = neutral;    ///< in the list of the part's domains
  domain_ref previous_in_part = neutral;
  domain_ref next_of_stream = neutral;  ///< in the list of its stream's; that of the common part is first
  domain_ref previous_of_stream = neutral;
  bool climbing = false;       ///< its stream is climbing the ladder, see ladder
  bool gone = false;           ///< its stream was destroyed; nothing may be recorded on it
  bool used = false;           ///< looked up by a thread since the last sweep, see stream_table
  bool runs_marked = false;    ///< `freed` covers what is free in its runs, which carry no marks of their own
  std::uint64_t epoch = 1;     ///< the mark of memory freed now
  std::uint64_t freed = 0;     ///< newest mark on memory that is free or stale here
  std::uint64_t recorded = 0;  ///< marks up to here are covered by `event`
  std::uint64_t completed = 0;    ///< marks up to here are complete on the device
  std::uint64_t neutralised = 0;  ///< what is marked up to here was made neutral
  event_handle event = nullptr;
  device_id event_device;          ///< where `event` was created
  std::uint32_t shared_mark = 0;   ///< of ordering: if not 0, its event covers the marks, not `event`
  domain_ref next_free = neutral;  ///< of a free place
  std::uint32_t generation = 0;    ///< number of streams that had this place before
  range_index index[zone_count];
  run_list runs[run_class_count];
  /// Blocks freed on this stream that were cut from another domain's run. This stream reuses them; they
  /// return to their runs when the device has completed `foreign_epoch`.
  sequence<void*> foreign[run_class_count];
  std::size_t foreign_count = 0;
  std::uint64_t foreign_epoch = 0;

  [[nodiscard]] range_index& ranges(zone where) noexcept { return index[static_cast<std::size_t>(where)]; }
  [[nodiscard]] range_index const& ranges(zone where) const noexcept {
    return index[static_cast<std::size_t>(where)];
  }
  [[nodiscard]] std::size_t free_bytes() const noexcept { return index[0].bytes() + index[1].bytes(); }
  [[nodiscard]] std::size_t range_count() const noexcept { return index[0].count() + index[1].count(); }
  /// Whether it holds memory that another stream could take once it is ordered.
  [[nodiscard]] bool has_free() const noexcept { return free_bytes() != 0 || foreign_count != 0; }
  [[nodiscard]] bool holds_no_run() const noexcept {
    for (run_list const& list : runs) {
      if (list.head != 0) return false;
    }
    return true;
  }
  /// Whether the device has completed the uses of all that was freed here.
  [[nodiscard]] bool is_completed() const noexcept { return freed <= completed; }
  /// Whether nothing is left of it; its stream gets a new domain if it is used again. Work not known to be
  /// complete counts as left: views may be marked with it, and completed marks of the next stream in its
  /// place would be mistaken for its own.
  [[nodiscard]] bool is_empty() const noexcept {
    return !climbing && id != 0 && id != neutral_id && is_completed() && !has_free() && holds_no_run();
  }
  /// Whether nothing on the device uses its memory any more.
  [[nodiscard]] bool is_neutral() const noexcept { return id == neutral_id; }
  /// Whether its stream was destroyed and nothing is left of it.
  [[nodiscard]] bool is_over() const noexcept { return gone && is_empty(); }
  /// Marks a free and returns the mark.
  std::uint64_t mark() noexcept { return freed = epoch; }
};

/// A part of the heap: whole handles, or segments, that serve some requests alone. All memory is common,
/// unless it is one of the two parts that the owner of a graph memory has (pool/graph/). Free memory moves
/// between parts by whole handles whose work is complete.
struct heap_part {
  domain_ref neutral_domain = neutral;
  domain_ref first = neutral;  ///< of the domains of its streams
  bool is_used = false;        ///< otherwise the number may be given to another part
  /// captured graphs hold them: nothing of it is unmapped, moved or given to another part
  bool keeps_addresses = false;
  part_ref beside = common;  ///< the other part of its owner, whose free handles it may take
  std::uint64_t owner = 0;   ///< number of the graph_memory that owns it, 0 for the common part
  std::atomic<std::int64_t>* handed_out = nullptr;  ///< bytes, as the owner counts them
  // Of the others than the common part, bytes:
  std::size_t live_bytes = 0;  ///< in live ranges
  std::size_t live_peak = 0;
  std::size_t reserved = 0;
  std::size_t live_in_views = 0;  ///< blocks
};

}  // namespace TARN_NAMESPACE::detail
