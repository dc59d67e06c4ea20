// SPDX-License-Identifier: Apache-2.0
#pragma once
// free_on: frees the memory of an owner early, in the order of the stream that used it last.
//
// Three ways to report that memory was used on a stream other than its owner's:
//
//                        order of the streams       when the memory is free       for
//   set_stream(s)        made now, by an event      when the owner ends           s continues to own the work
//   record_stream(p, s)  made when the owner frees  once the device has passed    more uses, as of a copy; pools only
//                                                   s, for the owner's stream
//   free_on(owner, s)    made now, or it exists     at once, for later work on s  s was the last to use it

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/layers.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

/// Whether the last user's stream is already ordered behind what was enqueued on the owner's stream.
enum class earlier_work {
  wait_for,       ///< order it: one event if the streams differ; one for each device in use if the owner's is
                  ///< a default stream and the host can access its memory
  is_waited_for,  ///< already ordered, as when the last user waited for the owner's stream: no driver call
};

/// An owner that free_on() accepts: device_buffer, device_ptr, pinned_buffer, and similar types.
template <class Owner>
concept freeable = std::is_nothrow_move_constructible_v<Owner> && requires(Owner& owner) {
  { owner.stream() } -> std::same_as<stream_ref>;
  { owner.resource() } -> std::same_as<typename Owner::resource_type const&>;
  { owner.alignment() } -> std::same_as<std::size_t>;
  { owner.size() } -> std::same_as<std::size_t>;
  owner.release();
};

namespace detail {

/// Returns the number of elements in an owner's block.
template <class Owner>
[[nodiscard]] std::size_t block_elements(Owner const& owner) noexcept {
  if constexpr (requires { owner.capacity(); }) {
    return owner.capacity();
  } else {
    return owner.size();
  }
}

/// Frees an owner's block in the order of `stream`, which must be ordered behind all work that uses it.
template <freeable Owner>
void free_block_on(Owner& owner, stream_ref stream) noexcept {
  std::size_t const count = block_elements(owner);
  auto* const p = owner.release();
  if (p == nullptr) return;
  typename Owner::resource_type memory = owner.resource();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the memory is not written
  auto* const block = const_cast<void*>(static_cast<void const*>(p));
  free_block(memory, stream, block, count * sizeof(*p), owner.alignment());
}

/// Orders `stream` behind the streams of non-empty owners. Adjacent owners on the same stream share one
/// event, unless it may be the default stream of any device.
/// @throws cuda_error  some may be ordered, which is harmless
template <freeable... Owners>
void order_behind(stream_ref stream, Owners const&... owners) {
  stream_ref last = stream;
  auto const order = [&]<class Owner>(Owner const& owner) {
    if (block_elements(owner) == 0) return;
    constexpr default_streams named = default_streams_of<typename Owner::resource_type>();
    if (same_stream(owner.stream(), last) && !is_of_any_device(owner.resource().driver(), last, named))
      return;
    order_streams(owner.resource(), stream, owner.stream());
    last = owner.stream();
  };
  (order(owners), ...);
}

}  // namespace detail

/// Frees the memory of owners now, in the order of their last user, a stream: later work on it may reuse it
/// at once, other streams once they are ordered. The owners are then empty, keep their streams and may be
/// reused. Over a pool it never waits; without one, sources that cannot free in stream order wait as usual.
/// @param last_user  a stream of any device; all work that uses the memory is enqueued on it or on the
///                   owners' streams
/// @param earlier    whether it must first be made to wait for the owners' streams
/// @throws cuda_error  a stream could not be made to wait: nothing was freed
template <class... Owners>
  requires(sizeof...(Owners) != 0 && (freeable<std::remove_reference_t<Owners>> && ...))
void free_on(detail::stream_at last_user, earlier_work earlier, Owners&&... owners) {
  static_assert((!std::is_lvalue_reference_v<Owners> && ...),
                "tarn: free_on takes the memory of its owners; pass std::move(owner)");
  stream_ref stream = last_user.stream;
  detail::called_from(last_user.where, [&] {
    ((stream = identified(owners.resource(), stream)), ...);
    if (earlier == earlier_work::wait_for) detail::order_behind(stream, owners...);
  });
  (detail::free_block_on(owners, stream), ...);
}
template <class... Owners>
  requires(sizeof...(Owners) != 0 && (freeable<std::remove_reference_t<Owners>> && ...))
void free_on(detail::stream_at last_user, Owners&&... owners) {
  free_on(last_user, earlier_work::wait_for, std::forward<Owners>(owners)...);
}
/// Frees the memory of one owner: `tarn::free_on(std::move(weights), stream);`
template <class Owner>
  requires freeable<std::remove_reference_t<Owner>>
void free_on(Owner&& owner, stream_ref stream, earlier_work earlier = earlier_work::wait_for,
             source_location where = source_location::current()) {
  free_on(detail::stream_at(stream, where), earlier, std::forward<Owner>(owner));
}

}  // namespace TARN_NAMESPACE
