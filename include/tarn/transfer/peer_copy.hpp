// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies between buffers of two devices, whole or in part, with or without peer access.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tarn/core/message.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"

namespace TARN_NAMESPACE {

namespace detail {

inline void require_elements(char const* whose, std::size_t first, std::size_t count, std::size_t size,
                             source_location where) {
  if (first <= size && count <= size - first) return;
  message<160> const text("tarn: peer_copy of ", count, " elements, starting at element ", first, " of the ",
                          whose, ", which has ", size);
  throw at(where, length_error(text.view()));
}

}  // namespace detail

/// Copies elements between buffers on any devices, including the same one, on the target's stream. That
/// stream first waits, on the device, for the source's stream, which then waits for the copy, so either
/// buffer may be changed or destroyed at once. The host does not wait. Peer access is not required: without
/// it the driver copies through the host (which may take ten times as long); pages made `|
/// accessible_from{...}` can be copied directly.
/// @param from_first, to_first, count  elements
/// @throws length_error  beyond the end of a buffer; nothing is copied
/// @throws misuse        of kind `overlap`: both are the same buffer and the ranges share elements
/// @throws cuda_error
template <class T, class FromResource, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, std::size_t from_first,
               device_buffer<T, ToResource>& to, std::size_t to_first, std::size_t count,
               source_location where = source_location::current()) {
  detail::require_elements("source", from_first, count, from.size(), where);
  detail::require_elements("target", to_first, count, to.size(), where);
  if (count == 0) return;
  T const* const source = from.data() + from_first;
  T* const target = to.data() + to_first;
  std::size_t const bytes = count * sizeof(T);
  detail::require_no_overlap(source, bytes, target, bytes,
                             "the target of a copy overlaps its source; copy through a separate buffer",
                             where);
  detail::copy_in_turn<FromResource, ToResource>(detail::stream_on(from.resource(), from.stream()), source,
                                                 detail::stream_on(to.resource(), to.stream()), target, bytes,
                                                 where);
}

/// Copies all elements. @throws length_error  the sizes differ; cuda_error
template <class T, class FromResource, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, device_buffer<T, ToResource>& to,
               source_location where = source_location::current()) {
  detail::require_elements("source", 0, to.size(), from.size(), where);
  tarn::peer_copy(from, 0, to, 0, from.size(), where);
}

}  // namespace TARN_NAMESPACE
