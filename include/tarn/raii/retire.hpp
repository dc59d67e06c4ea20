// SPDX-License-Identifier: Apache-2.0
#pragma once
// retire: gives the memory of an owner back early, in the order of the stream that used it last.
//
// Three ways to tell that memory was used on another stream than its owner's:
//
//                    order of the two streams          when it is free                 for
//   set_stream(s)    made now, by an event             later, when the owner ends      s goes on owning the work
//   record_use(p,s)  made when the owner frees         once the device is past s, for  uses on the side, e.g. of a copy
//                                                      the owner's stream; a pool only
//   retire(b, s)     made now, or known to be made     at once, for later work on s    s was the last to use it

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"

namespace tarn {

/// Whether the last user already comes after what was enqueued on the owner's own stream.
enum class earlier_work {
  wait_for,       ///< make it so: one event where the streams differ
  is_waited_for,  ///< it is so, as where the last user waited for what the owner's stream made: no driver call
};

/// What retire() takes: device_buffer, device_ptr, pinned_buffer, and owners like them.
template <class Owner>
concept retirable = std::is_nothrow_move_constructible_v<Owner> && requires(Owner& owner) {
  { owner.stream() } -> std::same_as<stream_ref>;
  { owner.resource() } -> std::same_as<typename Owner::resource_type const&>;
  { owner.alignment() } -> std::same_as<std::size_t>;
  { owner.size() } -> std::same_as<std::size_t>;
  owner.release();
};

namespace detail {

/// Elements that an owner's block holds.
template <class Owner>
[[nodiscard]] std::size_t block_elements(Owner const& owner) noexcept {
  if constexpr (requires { owner.capacity(); }) {
    return owner.capacity();
  } else {
    return owner.size();
  }
}

/// Frees an owner's block in the order of `stream`, which is known to come after all that uses it.
template <retirable Owner>
void give_back_on(Owner& owner, stream_ref stream) noexcept {
  std::size_t const count = block_elements(owner);
  auto* const p = owner.release();
  if (p == nullptr) return;
  typename Owner::resource_type memory = owner.resource();
  memory.deallocate(stream, p, count * sizeof(*p), owner.alignment());
}

/// Orders `stream` behind those of owners that own anything; one event for neighbours of one stream.
/// @throws cuda_error  some may be ordered, which harms nothing
template <retirable... Owners>
void order_behind(stream_ref stream, Owners const&... owners) {
  stream_ref last = stream;
  auto const order = [&](auto const& owner) {
    if (block_elements(owner) == 0 || owner.stream() == last) return;
    order_streams(owner.resource().driver(), stream, owner.stream());
    last = owner.stream();
  };
  (order(owners), ...);
}

}  // namespace detail

/// Gives the memory of owners back now, in the order of `stream`, their last user: later work on `stream` may have it at
/// once, other streams when ordered. The owners are empty afterwards and keep their streams; they may be used again.
/// Never waits, over a pool; without one, sources that cannot free in stream order wait as they always do.
/// @param stream   of the owners' device; all that uses the memory is enqueued on it, or on the owners' streams, by now
/// @param earlier  whether `stream` must be made to wait for the owners' own streams first
/// @throws cuda_error  a stream could not be made to wait: nothing was freed
template <class... Owners>
requires(sizeof...(Owners) != 0 && (retirable<std::remove_reference_t<Owners>> &&
                                    ...)) void retire(stream_ref stream, earlier_work earlier,
                                                      Owners&&... owners) {
  static_assert((!std::is_lvalue_reference_v<Owners> && ...),
                "tarn: an owner is empty once it is retired; say std::move(owner)");
  ((stream = identified(owners.resource().driver(), stream)), ...);
  if (earlier == earlier_work::wait_for) detail::order_behind(stream, owners...);
  (detail::give_back_on(owners, stream), ...);
}
template <class... Owners>
requires(sizeof...(Owners) != 0 && (retirable<std::remove_reference_t<Owners>> &&
                                    ...)) void retire(stream_ref stream, Owners&&... owners) {
  retire(stream, earlier_work::wait_for, std::forward<Owners>(owners)...);
}
/// The same for one owner, as one says it: `tarn::retire(std::move(weights), stream);`
template <class Owner>
requires retirable<std::remove_reference_t<Owner>>
void retire(Owner&& owner, stream_ref stream, earlier_work earlier = earlier_work::wait_for) {
  retire(stream, earlier, std::forward<Owner>(owner));
}

}  // namespace tarn
