// SPDX-License-Identifier: Apache-2.0
#pragma once
// compact(): gives back the free memory between live blocks, at unchanged addresses.

#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"

namespace TARN_NAMESPACE {

/// Gives back every granule (2 MiB on current devices) of a pool without a live byte: handles that are partly
/// live are copied into smaller ones, which are mapped at the old addresses. No work uses the pool's memory
/// from this call until it returns; the caller has synchronised the streams that did. Does nothing while the
/// pool sleeps.
///
/// Afterwards `reserved` < `live` + 2 granules * `stretches`. Addresses stay, and a granule is indivisible: a
/// stretch of live bytes that begins and ends inside granules also holds the free rest of both, each less
/// than a granule. Two live bytes on either side of a boundary thus hold two granules; a stretch that begins
/// or ends on a boundary holds less than one granule beyond its bytes. Blocks up to 32 KiB lie in runs; a run
/// with a live block counts as live as a whole, and so do deferred blocks. Three kinds of handles stay as
/// they are, and may exceed the bound: those with a page_pin, those for whose copy the device has no memory,
/// and those that work may still use, contrary to the promise above. The memory of the pool's graph_memories
/// stays, and is counted neither as live nor as reserved here: its graphs hold addresses.
///
/// Where the device has no virtual memory management, or a memory tool is attached, gives back the segments
/// without a live byte, and `compaction::stretches` is 0: segments are neither split nor moved.
///
/// Needs memory for a copy of at most one handle at a time; a handle for which there is none stays as it is.
/// @throws cuda_error, std::bad_alloc  contents and addresses are kept; cuda_error also while a capture_scope
/// is open, in any pool
///                                     of the process. If the driver refuses to map a handle at its new and then at its old
///                                     place, is_asleep() is true and the pool keeps its memory: wake() maps it again
/// @throws out_of_memory               only in that case
/// @throws misuse                      called by a handler of the pool's own growth
/// Waits on the host for the copies. Thread-safe. O(handles + ranges), and O(slots of views) and about 150 us
/// for each handle that is replaced, on an H200, and one copy on the device of its live granules.
template <class Memory>
compaction compact(Memory const& memory, source_location place = source_location::current()) {
  constexpr bool can = reachable<Memory const, pool_call::compact>;
  static_assert(can,
                "tarn: only a pool over a page source, such as cuda_pages, can be compacted: use "
                "`cuda_pages{} | pooled{}`");
  if constexpr (can) {
    return detail::called_from(place, [&] { return nearest(memory, pool_call::compact{}); });
  }
}

}  // namespace TARN_NAMESPACE
