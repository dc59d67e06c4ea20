// SPDX-License-Identifier: Apache-2.0
#pragma once
// The search for the physical segments behind a block of a pool, for segments_of() and page_pin.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

/// A block or a part of one, and the user's call that asks for its segments.
struct segments_wanted {
  std::string_view call;
  void const* p = nullptr;
  std::size_t bytes = 0;
};

[[noreturn]] TARN_NOINLINE inline void refuse_segments(segments_wanted const& wanted) {
  message<256> text;
  text.add(wanted.call).add(": no block of this pool has these ").add_bytes(wanted.bytes);
  text.add("; pass a pointer into a block that is allocated, and bytes that end in it");
  throw misuse(misuse_kind::foreign_pointer, wanted.p, text.view());
}

/// Finds the segments of a live block. First returns all threads' cached blocks to the heap, so that those
/// are seen to be free.
/// @throws misuse       not all of the bytes are live in this pool
/// @throws pool_asleep  the pool sleeps
/// @throws cuda_error   in a forked child; of kind `unsupported` if the memory is not pages here;
/// std::bad_alloc: nothing has changed
template <class Heap, class Front>
void find_segments(growth_lock const& growing, Heap& heap, Front& front, segments_wanted const& wanted,
                   sequence<memory_segment>& found) {
  auto const address = reinterpret_cast<std::uintptr_t>(wanted.p);
  if (heap.is_lost()) heap.refuse_forked();
  if (!heap.growth(growing).contains(address)) refuse_segments(wanted);
  if (!heap.uses_pages()) throw cuda_error(without_pages(segments_refused), heap.driver().device().value);
  if (heap.is_asleep()) heap.refuse_asleep(wanted.bytes);
  front.flush_all();
  bool are_live = false;
  {
    hot_lock const held = heap.lock_hot();
    are_live = heap.growth(growing).template visit_pages<bool>([&](auto& pages) {
      return pages.segments().each(heap.space(held), address, wanted.bytes,
                                   [&](memory_segment const& s) { found.push_back(s); });
    });
  }
  if (!are_live || wanted.bytes == 0) refuse_segments(wanted);
}

}  // namespace TARN_NAMESPACE::detail
